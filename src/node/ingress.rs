//! What comes in from peers: statements first, then foca's packet, then control messages, then the sender itself.
//!
//! The order matters: applied first, the header's incarnation would make the signed refutation in the same packet look old,
//! and it would never be passed on.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;

use super::{Event, Node, Now, Phase, view::Urgency};
use crate::{
    catalog::{Change, Merge},
    types::{Health, InstanceRecord, NodeId},
    wire::{Alive, Body, Envelope, Frame, Kind, Left, Namesake, Statement},
};

/// How long another run's words are heard before they are outdone.
const OUTDO_AFTER: Duration = Duration::from_secs(3);
/// Most statements of one envelope that are answered because the sender is behind.
const MOST_ANSWERS: usize = 8;

impl Node {
    pub(super) fn envelope(&mut self, now: Now, from: &NodeId, addr: SocketAddr, bytes: Bytes) {
        let held = |kind, body: &[u8]| self.catalog.holds_body(kind, body);
        let (envelope, faults) = match Envelope::decode_unless(bytes, held) {
            Ok(decoded) => decoded,
            Err(fault) => return self.malformed(now, from, fault.to_string()),
        };
        for fault in faults {
            self.malformed(now, from, fault.to_string());
        }
        if from == &self.config.node {
            return;
        }
        let (mut focas, mut ctls, mut statements, mut asked) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for frame in envelope.frames {
            match frame {
                Frame::Statement(statement) => statements.push(statement),
                Frame::Foca(packet) => focas.push(packet),
                Frame::Ctl(ctl) => ctls.push(ctl),
                Frame::Asked(counts) => asked = counts,
            }
        }
        if !statements.is_empty() {
            self.statements(now, from, statements);
        }
        let Some(stale) = self.catalog.member(from).map(|entry| entry.stale) else {
            // Authenticated, but not introduced: ask it who it is.
            self.introduce_me_to(now, from, addr);
            return;
        };
        for packet in focas {
            self.membership.foca(now.mono, from, packet);
        }
        for ctl in ctls {
            self.membership.ctl(now.mono, from, ctl, &*self.trust);
        }
        self.asked_heard(now, from, asked);
        if stale {
            self.heard(now, from);
        } else {
            self.membership.heard(now.mono, from);
        }
        // A packet's header can lift a verdict that is only held back.
        if self.catalog.is_gone(from) {
            self.note_gone(from);
        }
        self.compare_digest(now, from, envelope.digest);
    }

    /// Merges statements that a peer sent; the sender hears where it is behind.
    pub(super) fn statements(&mut self, now: Now, from: &NodeId, mut statements: Vec<Statement>) {
        statements.sort_by_key(|statement| statement.kind != Kind::Member as u8);
        let mut answers: Vec<Statement> = Vec::new();
        for statement in statements {
            if let Some(answer) = self.statement(now, from, statement)
                && answers.len() < MOST_ANSWERS
                && !answers.contains(&answer)
            {
                answers.push(answer);
            }
        }
        self.pass_on(now, from);
        // A node that has not joined yet says nothing of itself: its generation is not settled.
        if !answers.is_empty() && self.phase == Phase::Member {
            self.send_statements(from, answers);
        }
    }

    /// Merges one; returns what the sender should know better.
    fn statement(&mut self, now: Now, from: &NodeId, statement: Statement) -> Option<Statement> {
        if self.catalog.holds(&statement) {
            return None;
        }
        let body = match Body::decode(&statement) {
            Ok(body) => body,
            Err(fault) => {
                self.malformed(now, from, fault.to_string());
                return None;
            }
        };
        if body.speaker() == self.config.node.as_str() {
            return self.about_me(now, from, &statement, &body);
        }
        if let Body::Member(member) = &body
            && let Some((generation, _)) = self.forgotten.get(&member.node)
        {
            // Forgotten here, not yet everywhere: only the node itself or a new run brings it back.
            if member.generation <= *generation && from != &member.node {
                return None;
            }
            self.forgotten.remove(&member.node);
        }
        if let Body::Signal(signal) = &body
            && !self.signals.is_news(now.mono, signal)
        {
            return None;
        }
        match self.catalog.merge(&statement, &*self.trust, now.wall) {
            Merge::News(change) => self.news(now, from, statement, &body, change),
            Merge::Signal(signal) => self.signal_heard(now, from, statement, signal),
            Merge::Accusation(accusation) => {
                self.membership.accusation(now.mono, &accusation, &statement, from, &*self.trust);
            }
            Merge::Known => {}
            Merge::Older(newer) => return Some(*newer),
            Merge::UnknownSigner => self.syncs.hurry(now.mono),
            Merge::Refused(refusal) => {
                self.counters.statements_refused += 1;
                let signer = statement.signer.clone();
                if let Some(times) = self.complaints.note(now.mono, &signer, refusal.class(), statement.kind) {
                    self.event(Event::Refused { from: from.clone(), signer, reason: refusal.to_string(), times });
                }
            }
        }
        None
    }

    fn news(&mut self, now: Now, from: &NodeId, statement: Statement, body: &Body, change: Change) {
        self.counters.statements_news += 1;
        self.touch(now);
        self.applied(now, from, &change);
        if self.phase == Phase::Member {
            self.queue.push(statement.clone(), body);
        }
        self.fresh.push(statement);
    }

    /// A change of the catalog reaches the membership and the view.
    pub(super) fn applied(&mut self, now: Now, from: &NodeId, change: &Change) {
        match change {
            Change::Member(node) | Change::Alive(node) => {
                let Some(entry) = self.catalog.member(node) else { return };
                let ((generation, incarnation), has_left) = (entry.life(), entry.has_left());
                if has_left {
                    self.membership.left(now.mono, node, generation);
                } else if self.membership.alive(now.mono, node, generation, incarnation)
                    && matches!(change, Change::Member(_))
                    && from != node
                {
                    // Heard of from others: it may have moved, and what is open may lead to its former self.
                    self.outputs.push_back(super::Output::Retire(node.clone()));
                }
                self.note_gone(node);
                self.view.changed(Urgency::Coalesced);
            }
            Change::Left(node) => {
                if let Some(entry) = self.catalog.member(node).filter(|entry| entry.has_left()) {
                    self.membership.left(now.mono, node, entry.member.generation);
                    self.note_gone(node);
                    self.view.changed(Urgency::Now);
                }
            }
            Change::Instance { before, after, .. } => {
                self.view.changed(if leaves_traffic(before.as_deref(), after) {
                    Urgency::Now
                } else {
                    Urgency::Coalesced
                });
            }
            Change::Policy(_) => self.view.changed(Urgency::Now),
        }
    }

    /// What takes traffic away is never held back, nor is the first instance of a service: no ring can be shaken yet.
    pub(super) fn instance_changed(&mut self, before: Option<&InstanceRecord>, after: &InstanceRecord) {
        let mut others = self.catalog.instances().map(|entry| &*entry.record).filter(|record| {
            record.service == after.service && (&record.owner, &record.id) != (&after.owner, &after.id)
        });
        let urgent = leaves_traffic(before, after) || (takes_traffic(after) && !others.any(takes_traffic));
        self.view.changed(if urgent { Urgency::Now } else { Urgency::Coalesced });
    }

    /// Somebody passes on what was signed with this node's name: an earlier run, this run, or a second process.
    fn about_me(&mut self, now: Now, from: &NodeId, statement: &Statement, body: &Body) -> Option<Statement> {
        let me = self.catalog.member(&self.config.node)?;
        let mine = me.statement.clone();
        match body {
            Body::Member(_) if statement.body == mine.body => None,
            Body::Member(member) if member.nonce == self.nonce || member.generation < self.generation => Some(mine),
            Body::Member(member) => {
                // Believed only with the signature that makes it this name's.
                let certificate = statement.certificate.as_ref()?;
                let facts = self.trust.check_certificate(certificate, now.wall).ok()?;
                let message = Statement::message(statement.kind, &statement.body);
                let genuine =
                    facts.node == self.config.node && self.trust.verify(&facts.key, &message, &statement.signature);
                if genuine {
                    let (generation, addr, nonce) = (member.generation, member.addr, member.nonce);
                    self.namesake(now, Namesake { generation, addr, nonce });
                }
                None
            }
            // What an earlier run said of its life is part of what everybody holds.
            Body::Alive(Alive { generation, .. }) | Body::Left(Left { generation, .. })
                if *generation < self.generation =>
            {
                self.catalog.merge(statement, &*self.trust, now.wall);
                None
            }
            Body::Alive(Alive { generation, incarnation, .. }) => {
                let held = me.alive.as_ref().map(|(generation, incarnation, _)| (*generation, *incarnation));
                if held < Some((*generation, *incarnation)) {
                    self.spoken_for(now, statement, *generation);
                }
                None
            }
            Body::Left(Left { generation, .. }) => {
                self.spoken_for(now, statement, *generation);
                None
            }
            Body::Instance(record) if record.generation < self.generation => Some(mine),
            Body::Instance(record) => {
                let held = self.catalog.instance(&self.config.node, &record.id);
                let (generation, sequence) = (record.generation, record.sequence);
                if held.is_none_or(|held| (held.record.generation, held.record.sequence) < (generation, sequence)) {
                    self.spoken_for(now, statement, generation);
                }
                None
            }
            Body::Policy(_) => {
                // An earlier run of this node may have set it: policies belong to the mesh, so it merges like any other.
                match self.catalog.merge(statement, &*self.trust, now.wall) {
                    crate::catalog::Merge::News(change) => self.news(now, from, statement.clone(), body, change),
                    crate::catalog::Merge::Older(newer) => return Some(*newer),
                    _ => {}
                }
                None
            }
            _ => None,
        }
    }

    /// Another run used this generation (two with one name met, and one has ended): what it said is outdone by the next
    /// generation. Not at once: while the other one still lives, its introduction leads to it, and one of the two ends.
    fn spoken_for(&mut self, now: Now, statement: &Statement, generation: u64) {
        let Some(me) = self.catalog.member(&self.config.node) else { return };
        let message = Statement::message(statement.kind, &statement.body);
        let genuine = self.trust.verify(&me.facts.key, &message, &statement.signature);
        if !genuine || self.phase != Phase::Member || !self.challenges.is_empty() {
            return;
        }
        let since = *self.spoken_since.get_or_insert(now.mono);
        if now.mono.since(since) >= OUTDO_AFTER {
            self.outdo(now, generation);
        }
    }

    pub(super) fn heard(&mut self, now: Now, from: &NodeId) {
        self.membership.heard(now.mono, from);
        if self.catalog.confirm(from) {
            self.view.changed(Urgency::Coalesced);
        }
    }

    pub(super) fn malformed(&mut self, now: Now, from: &NodeId, reason: String) {
        self.counters.malformed += 1;
        if let Some(times) = self.complaints.note(now.mono, from, "malformed", 0) {
            self.event(Event::Malformed { from: from.clone(), reason, times });
        }
    }
}

/// Whether a change takes traffic away from an instance.
fn leaves_traffic(before: Option<&InstanceRecord>, after: &InstanceRecord) -> bool {
    before.is_some_and(takes_traffic) && !takes_traffic(after)
}

fn takes_traffic(record: &InstanceRecord) -> bool {
    !record.removed && record.drain.is_none() && record.weight > 0 && record.health != Health::Critical
}
