//! Accusations: our own, and what is done with everybody's.
//!
//! The first accusation is private: to the accused, which answers, and to the members nearest to it, which look for
//! themselves. The second distinct accuser makes both public; only then they are gossiped and cost the accused an
//! incarnation. So one liar makes nobody doubtful and nobody talk.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Action, Membership,
    confirm::Why,
    roster::{ME, Member, Slot},
    timers::Timer,
};
use crate::{
    types::{Mono, NodeId, Planted, Trust},
    wire::{Accusation, Body, Ctl, Evidence, Frame, Kind, Statement},
};

impl Membership {
    /// Our own confirm failed.
    pub(super) fn accuse(&mut self, now: Mono, slot: Slot, evidence: Evidence, why: Why, trust: &dyn Trust) {
        let member = self.roster.get(slot);
        let accusation = Accusation {
            accuser: self.roster.me().name.clone(),
            accused: member.name.clone(),
            generation: member.generation,
            incarnation: member.incarnation,
            evidence,
        };
        let body = Body::Accusation(accusation);
        let me = self.roster.me().name.clone();
        let statement = Statement::sign(trust, &me, self.key, Kind::Accusation, body.encode(), false);
        self.roster.get_mut(slot).case.own = true;
        self.charge(now, slot, ME, evidence, &statement, None);
        if why == Why::Sweep || self.mass_loss() {
            self.add_to_bulk(now, statement);
        } else {
            self.tell_privately(slot, &statement);
        }
        self.set_again(now, slot, 0);
    }

    fn tell_privately(&mut self, accused: Slot, statement: &Statement) {
        self.send_statements(accused, [statement.clone()]);
        for slot in self.nearest_others(accused) {
            self.send_statements(slot, [statement.clone()]);
        }
    }

    /// A verified accusation, heard from `from`. The statement is what is passed on.
    pub fn accusation(
        &mut self,
        now: Mono,
        accusation: &Accusation,
        statement: &Statement,
        from: &NodeId,
        trust: &dyn Trust,
    ) {
        self.enter(now);
        let life = (accusation.generation, accusation.incarnation);
        if accusation.accused == self.roster.me().name {
            return self.accused_by(now, &accusation.accuser, life, from, trust);
        }
        let (Some(accused), Some(accuser)) = (self.lookup(&accusation.accused), self.lookup(&accusation.accuser))
        else {
            return; // nobody we were introduced to: no witness, or nobody to lose
        };
        let relay = self.lookup(from);
        if relay.is_some_and(|slot| self.roster.get(slot).is_gone()) || accuser == ME || accuser == accused {
            return;
        }
        let held = self.roster.get(accused).life();
        if life < held && !Planted::StaleSuspicions.is_on() {
            return relay.map_or((), |relay| self.correct(now, relay, accused));
        }
        if life > held || self.roster.get(accused).is_gone() || self.roster.get(accuser).credit.is_spent(now) {
            return;
        }
        self.charge(now, accused, accuser, accusation.evidence, statement, Some(from));
    }

    /// Whether an accusation still says something: its life is the one held, and not down yet. For queues that may hold
    /// it longer than it is true.
    pub fn is_current(&self, accusation: &Accusation) -> bool {
        let Some(slot) = self.lookup(&accusation.accused) else { return false };
        self.roster.get(slot).life() == (accusation.generation, accusation.incarnation)
    }

    /// Public accusations in force, those of the dead included, for a sync reply: a node that missed them reaches the
    /// same verdict.
    pub fn public_accusations(&self) -> Vec<Statement> {
        let enough = self.config.accusers_enough;
        let public = self.under_suspicion().into_iter().filter(|member| member.case.public);
        public
            .flat_map(|member| member.case.charges().take(enough).map(|(_, charge)| charge.statement.clone()))
            .collect()
    }

    /// Those who are down or something is held against, in name order; others may be among them.
    pub(super) fn under_suspicion(&self) -> Vec<&Member> {
        let down = self.roster.down().iter().copied();
        let slots: BTreeSet<Slot> = self.accused.iter().chain(down).filter(|slot| *slot != ME).collect();
        let mut members: Vec<&Member> = slots.into_iter().filter_map(|slot| self.roster.find(slot)).collect();
        members.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        members
    }

    /// Files an accusation, passes it on, looks for itself where this node is one of the nearest, and judges.
    fn charge(
        &mut self,
        now: Mono,
        accused: Slot,
        by: Slot,
        evidence: Evidence,
        statement: &Statement,
        from: Option<&NodeId>,
    ) {
        let most = self.config.accusers_enough + 2;
        let expires = self.config.lone_expires;
        let case = &mut self.roster.get_mut(accused).case;
        case.expire(now, expires);
        if !case.add(now, by, evidence, statement, most) {
            return;
        }
        let accusers = case.accusers();
        self.accused.note(accused, |slot| self.roster.find(slot).is_none_or(|member| member.case.is_empty()));
        let case = &mut self.roster.get_mut(accused).case;
        if accusers >= 2 {
            if std::mem::replace(&mut case.public, true) {
                self.publish(accused, [statement.clone()], from);
            } else {
                // A lone accusation of long ago has not been a warning to anybody: its time counts only in part.
                case.opened = case.opened.max(now - LONE_COUNTS);
                let all: Vec<_> = case.charges().map(|(_, charge)| charge.statement.clone()).collect();
                self.send_statements(accused, all.iter().cloned());
                self.publish(accused, all, from);
            }
        }
        let look = by != ME && (evidence == Evidence::Refused || accusers == 1);
        if look && self.roster.nearest(accused, self.config.helpers).contains(&ME) {
            self.confirm(now, accused, Why::ForAnother);
        }
        self.review(now, accused);
    }

    /// Spreads public accusations, unless so many have gone at once that single accusations would only be a flood: then each
    /// accuser tells a few others all of its own at once (`heal`), and they are passed on only in syncs.
    fn publish(&mut self, accused: Slot, statements: impl IntoIterator<Item = Statement>, from: Option<&NodeId>) {
        if self.mass_loss() {
            return self.send_statements(accused, statements);
        }
        for statement in statements {
            let except = from.cloned();
            self.actions.push_back(Action::Gossip { statement, eager: true, flood: false, except });
        }
    }

    /// Asks a member again that this node alone doubts: more and more rarely, and never giving up.
    pub(super) fn ask_again(&mut self, now: Mono, slot: Slot, asked: u32) {
        let mass_loss = self.mass_loss();
        let member = self.roster.get_mut(slot);
        member.again_at = None;
        if !member.case.own || member.is_gone() {
            return;
        }
        if !mass_loss {
            self.send_to(slot, Ctl::Ping { token: 0 });
            self.remind(now, slot, asked);
        }
        self.set_again(now, slot, asked + 1);
    }

    /// A private accusation may be lost, and others forget a lone one. As long as this node has a fresh sign of its own
    /// health it says it again, twice at once and then now and then, so that a second accuser finds the first.
    fn remind(&mut self, now: Mono, slot: Slot, asked: u32) {
        let due = if asked < REPEATS { Duration::ZERO } else { self.config.lone_expires * 4 / 5 };
        let healthy = self.is_well(now);
        let case = &mut self.roster.get_mut(slot).case;
        if let Some(statement) = case.remind(now, due).filter(|_| healthy) {
            self.tell_privately(slot, &statement);
        }
    }

    fn is_well(&self, now: Mono) -> bool {
        let recent = |at: Option<Mono>| at.is_some_and(|at| now.since(at) <= self.config.veto);
        recent(self.health.answered) || self.has_outside_sign(now)
    }

    fn set_again(&mut self, now: Mono, slot: Slot, asked: u32) {
        let after = (self.config.again_min * (asked + 1).min(100)).min(self.config.again_max);
        self.roster.get_mut(slot).again_at = Some(now + after);
        self.timers.set(now, after, Timer::Again(slot, asked));
    }

    /// Tells a peer that what it said of a member is out of date.
    pub(super) fn correct(&mut self, now: Mono, peer: Slot, about: Slot) {
        let member = self.roster.get_mut(about);
        if member.corrected.is_some_and(|at| now.since(at) < CORRECT_GAP) {
            return;
        }
        member.corrected = Some(now);
        let about_name = member.name.clone();
        let to = self.roster.get(peer).name.clone();
        match self.own_alive().filter(|_| about == ME).cloned() {
            Some(statement) => self.send(to, vec![Frame::Statement(statement)]),
            None => self.actions.push_back(Action::SendLatest { to, about: about_name }),
        }
    }
}

/// So much of a lone accusation's age counts when it becomes public.
const LONE_COUNTS: Duration = Duration::from_secs(2);
/// A lone accusation is repeated so often right after it was made.
const REPEATS: u32 = 2;
/// At least this much between two corrections about the same member.
const CORRECT_GAP: Duration = Duration::from_millis(100);
