//! Which sidecars are alive: foca as the probe engine, fed only what it should believe, and our own accusations around it.
//!
//! Sans-io; `Node` feeds it and carries out its [`Action`]s. In one paragraph: foca picks whom to ping (`engine`). A
//! missed ack starts a *confirm* (`confirm`): the member is asked again, its port is tried, others are asked to look, and
//! random members are asked for a sign that this node's own network works. Only a failed confirm with such a sign makes a
//! signed *accusation* (`accuse`), first private, public with the second distinct accuser. Accusations make a member
//! doubtful and, after a wait, down (`suspicion`); its own signed `Alive` at a higher incarnation lifts both
//! (`refute`, `lives`). Contact with those held dead is attempted for ever (`heal`).
//!
//! Invariants:
//! - nobody is declared dead on one node's word, unless no second accuser can exist; then only on this node's own;
//! - nobody accuses who has no sign of its own health in the same moment;
//! - only a node's own word moves its generation or incarnation: signed, or over its own authenticated connection;
//! - `Down` is a verdict on (generation, incarnation): a higher one lifts it. `Left` is final for a generation.
//!
//! Frames before header: for one envelope, call `alive`, `left` and `accusation` for its statements first, then `foca`,
//! then `ctl`, then `heard`. Otherwise a header's incarnation makes the signed `Alive` beside it look old, and it is
//! never passed on.
//!
//! Not here: joining (members come in through `alive`, after `Node` has checked their introduction), the gossip queue,
//! comparing digests, forgetting (`Node` decides when), and signatures (`Trust`; statements come in verified).

mod accuse;
mod action;
mod case;
mod circle;
mod config;
mod confirm;
mod credit;
mod engine;
mod heal;
mod history;
mod lives;
mod losses;
mod refute;
mod removal;
mod roster;
mod suspicion;
#[cfg(test)]
mod tests;
mod timers;
mod unheard;
mod why;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

pub use action::Action;
pub use config::MembershipConfig;
pub use history::{Accuser, Story, StoryEvent, Tallies};
pub use removal::Removal;

use self::{
    case::Accused,
    circle::{Circle, Stirred},
    confirm::{Confirms, Why},
    engine::{Effects, Engine, Peer, Probe, ProbePacket},
    history::Happened,
    losses::Losses,
    refute::Refutation,
    roster::{ME, Roster, Slot},
    timers::{Timer, Timers},
    unheard::Unheard,
};
use crate::{
    types::{MemberState, Mono, NodeId, Planted, Trust},
    wire::{Ctl, Frame, KeyId, Statement},
};

/// How long a member that has gone is remembered by default.
pub const FORGET_AFTER: Duration = Duration::from_secs(3600);

/// The membership machine of one node.
pub struct Membership {
    config: MembershipConfig,
    key: KeyId,
    seed: u64,
    rng: Pcg64Mcg,
    roster: Roster,
    engine: Engine,
    timers: Timers,
    actions: VecDeque<Action>,
    ping: Option<Ping>,
    confirms: Confirms,
    health: OwnHealth,
    refutation: Refutation,
    unheard: Unheard,
    losses: Losses,
    accused: Accused,
    tallies: Tallies,
    /// Nobody is accused or convicted before this: this process stood still.
    hold_until: Mono,
    /// When this machine was last called.
    entered: Mono,
    synced_at: Option<Mono>,
}

/// The ping that foca has under way.
struct Ping {
    to: Peer,
    number: u8,
    at: Mono,
    acked: bool,
}

/// What this node knows of its own health (Lifeguard's local health awareness, with controls).
#[derive(Default)]
struct OwnHealth {
    /// 0 is well; each step stretches this node's own probe timers by one more of themselves.
    score: u32,
    /// The last answer in time from any member.
    answered: Option<Mono>,
    /// The last sign from outside the mesh.
    outside: Option<Mono>,
}

impl OwnHealth {
    fn worse(&mut self, by: u32) {
        self.score = (self.score + by).min(WORST_SCORE);
    }
}

impl Membership {
    /// `seed` is this node's own source of chance.
    pub fn new(config: MembershipConfig, me: NodeId, generation: u64, key: KeyId, seed: u64, now: Mono) -> Self {
        let engine =
            Engine::new(Peer { slot: ME, generation }, config.probe_period, config.probe_rtt, seed ^ ENGINE_SEED);
        Self {
            rng: Pcg64Mcg::seed_from_u64(seed),
            roster: Roster::new(me, generation, now, Circle::new(config.contacts, config.watchers())),
            engine,
            timers: Timers::default(),
            actions: VecDeque::new(),
            ping: None,
            confirms: Confirms::new(seed),
            health: OwnHealth::default(),
            refutation: Refutation::default(),
            unheard: Unheard::new(now),
            losses: Losses::default(),
            accused: Accused::default(),
            tallies: Tallies::default(),
            hold_until: Mono::ZERO,
            entered: now,
            synced_at: None,
            config,
            key,
            seed,
        }
    }

    /// The key that signs from now on: the certificate was renewed.
    pub fn set_key(&mut self, key: KeyId) {
        self.key = key;
    }

    /// Own incarnation.
    pub fn incarnation(&self) -> u16 {
        self.engine.incarnation()
    }

    /// This node's newest signed `Alive`, once it has refuted anything in this generation.
    pub fn own_alive(&self) -> Option<&Statement> {
        self.refutation.statement.as_ref()
    }

    /// The own generation changed before anybody knew us (join found a higher one), or its incarnations are used up.
    pub fn set_generation(&mut self, now: Mono, generation: u64) {
        self.roster.set_life(ME, generation, 0);
        self.refutation = Refutation::default();
        self.ping = None;
        self.confirms.clear();
        self.timers.drop_foca();
        let me = Peer { slot: ME, generation };
        let seed = self.seed ^ ENGINE_SEED ^ generation;
        self.engine = Engine::new(me, self.config.probe_period, self.config.probe_rtt, seed);
        let all: Vec<_> = self.roster.iter().map(|(slot, member)| (slot, member.is_active())).collect();
        for (slot, active) in all {
            self.roster.get_mut(slot).probed = None;
            if active {
                self.probe(now, slot, false);
            }
        }
    }

    /// A probe packet from this node (a `Frame::Foca`), with `from` as its connection names it.
    pub fn foca(&mut self, now: Mono, from: &NodeId, packet: Bytes) {
        self.enter(now);
        let Some(packet) = ProbePacket::decode(&packet) else { return };
        let Some(slot) = self.roster.slot(from) else {
            // Nobody is probed or believed before its signed introduction is here.
            self.sync_with(now, from.clone());
            return;
        };
        let life = (packet.generation, packet.incarnation);
        if slot == ME || packet.generation < self.roster.get(slot).generation {
            return;
        }
        if packet.generation > self.roster.get(slot).generation {
            // It restarted. Its own connection says so, which is enough to replace the old life; the introduction with
            // its new address comes with the exchange.
            self.sync_with(now, from.clone());
        }
        self.take(now, slot, life.0, life.1);
        if packet.to_generation != self.engine.generation() {
            // Meant for an earlier run of this node (or a later one, which is then not us): never to be answered, but
            // the sender should learn who lives here.
            self.sync_with(now, from.clone());
            return;
        }
        if self.roster.get(slot).is_active() {
            self.acked(now, slot, packet.probe);
            let peer = self.peer(slot);
            if self.roster.get(slot).probed.is_some() {
                let effects = self.engine.packet(peer, &packet);
                self.run(now, effects);
            } else if let Probe::Ping(number) = packet.probe {
                // foca would take whoever pings for a member to probe, and this one is watched by others.
                let (generation, incarnation) = (self.engine.generation(), self.engine.incarnation());
                let ack = Probe::Ack(number);
                let packet = ProbePacket { generation, incarnation, to_generation: peer.generation, probe: ack };
                self.send(from.clone(), vec![Frame::Foca(packet.encode())]);
            }
        }
    }

    /// A control message from this node.
    pub fn ctl(&mut self, now: Mono, from: &NodeId, ctl: Ctl, trust: &dyn Trust) {
        self.enter(now);
        match ctl {
            // Also strangers and the condemned are answered: the question is only whether this process lives.
            Ctl::Ping { token } => return self.send(from.clone(), vec![Frame::Ctl(Ctl::Ack { token })]),
            Ctl::Condemned { generation, incarnation } => {
                return self.accused_myself(now, (generation, incarnation), true, trust);
            }
            _ => {}
        }
        if matches!(ctl, Ctl::Ack { .. } | Ctl::Here) {
            self.is_heard(now);
        }
        let slot = self.roster.slot(from).filter(|slot| *slot != ME && self.roster.get(*slot).is_active());
        let Some(slot) = slot else { return };
        match ctl {
            Ctl::Ack { token } => self.answered(now, slot, token),
            Ctl::Check { accused, generation, incarnation, token } => {
                self.send_to(slot, Ctl::Ack { token });
                self.look_for(now, slot, &accused, (generation, incarnation));
            }
            Ctl::Verify { accused, generation, incarnation } => {
                self.knows_better(now, slot, &accused, (generation, incarnation), trust);
            }
            // The contact itself is the message; see `heard`.
            Ctl::Here | Ctl::Ping { .. } | Ctl::Condemned { .. } => {}
        }
    }

    /// Something authenticated came straight from this node. Called after all frames of an envelope were handled.
    pub fn heard(&mut self, now: Mono, from: &NodeId) {
        self.enter(now);
        let Some(slot) = self.roster.slot(from).filter(|slot| *slot != ME) else { return };
        self.hears(now, slot);
        match self.roster.get(slot).state {
            MemberState::Left => {}
            MemberState::Down => self.heard_condemned(now, slot),
            MemberState::Alive | MemberState::Doubtful => {
                self.roster.get_mut(slot).heard = Some(now);
                if self.confirms.is_running(slot) {
                    self.note(now, slot, Happened::Answered);
                    self.confirms.end(slot);
                }
                if !self.roster.get(slot).case.is_empty() {
                    self.roster.get_mut(slot).case.heard();
                    self.review(now, slot);
                }
            }
        }
    }

    /// Something outside the mesh answered just now over this node's network: a seed that is no member, or an upstream of
    /// the proxy on another host. Counts with two or three members only, where nobody may be left in the mesh to show
    /// that this node's network works; among more, the mesh's own answers are the better sign.
    pub fn control(&mut self, now: Mono) {
        self.health.outside = Some(now);
    }

    /// Whether a member misses acks and perhaps nobody in the mesh can serve as control: a sign from outside within the
    /// next half second is welcome. `Node` may ask its seeds for one.
    pub fn wants_control(&self) -> bool {
        self.witnesses() <= 1 && self.confirms.lack_control()
    }

    /// Up to `count` random contacts, cheaply at every size: whom gossip goes to. All active members are contacts, but in a
    /// mesh larger than [`MembershipConfig::contacts`] only those that this node watches or that watch it.
    pub fn random_active(&mut self, count: usize, except: Option<&NodeId>) -> Vec<NodeId> {
        let except = except.and_then(|node| self.lookup(node)).unwrap_or(ME);
        let slots = self.roster.random(&mut self.rng, count, except);
        slots.into_iter().map(|slot| self.roster.get(slot).name.clone()).collect()
    }

    /// Whether there are active members that are no contacts.
    pub fn has_strangers(&self) -> bool {
        self.roster.is_large()
    }

    /// An active member at random, contact or not: so that also those who never speak to each other compare their views.
    pub fn random_stranger(&mut self) -> Option<NodeId> {
        let slot = self.roster.random_of_all(&mut self.rng, 1, ME).pop()?;
        Some(self.roster.get(slot).name.clone())
    }

    /// How many members are active beside this node.
    pub fn active_count(&self) -> usize {
        self.roster.others()
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: Mono, trust: &dyn Trust) {
        self.enter(now);
        while let Some((at, timer)) = self.timers.due(now) {
            match timer {
                Timer::Foca(timer) => self.foca_timer(now, timer),
                Timer::Confirm(slot) => {
                    if self.confirms.is_due(slot, at) {
                        self.confirm_round(now, slot, trust);
                    }
                }
                Timer::Review(slot) => {
                    if self.roster.find(slot).is_some_and(|member| member.review_at == Some(at)) {
                        self.roster.get_mut(slot).review_at = None;
                        self.review(now, slot);
                    }
                }
                Timer::Again(slot, asked) => {
                    if self.roster.find(slot).is_some_and(|member| member.again_at == Some(at)) {
                        self.ask_again(now, slot, asked);
                    }
                }
                Timer::Release(slot) => self.release(now, slot),
                Timer::Heal => self.heal(now),
                Timer::Refute => self.refute_pending(now, trust),
                Timer::Mass => self.count_losses(now),
                Timer::Bulk => self.tell_in_bulk(),
            }
        }
    }

    /// When `timeout` wants to be called next.
    pub fn poll_timeout(&self) -> Option<Mono> {
        self.timers.next()
    }

    /// The next action.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What is held of a member; `None` for an unknown one.
    pub fn state(&self, node: &NodeId) -> Option<MemberState> {
        self.roster.slot(node).map(|slot| self.roster.get(slot).state)
    }

    /// (generation, incarnation) held of a member.
    pub fn life(&self, node: &NodeId) -> Option<(u64, u16)> {
        self.roster.slot(node).map(|slot| self.roster.get(slot).life())
    }

    /// Members that are neither down nor left, this node excluded, in name order.
    pub fn active(&self) -> Vec<NodeId> {
        self.roster.iter().filter(|(_, member)| member.is_active()).map(|(_, member)| member.name.clone()).collect()
    }

    /// Part of the settled digest: (member, generation, incarnation) of everybody that has not gone, this node included,
    /// in any order. Nodes with equal views have equal digests, also when one of them never met those who have gone.
    pub fn digest(&self) -> u64 {
        self.roster.digest()
    }

    /// Whom this node holds dead, for a sync reply, and whom two accusers doubt: only the member itself can lift either,
    /// and the peer may reach it.
    pub fn down(&self) -> Vec<(NodeId, u64, u16)> {
        let condemned = self.under_suspicion().into_iter().filter(|member| match member.state {
            MemberState::Down => !member.refuted_while_held,
            MemberState::Doubtful => member.case.public,
            MemberState::Alive | MemberState::Left => false,
        });
        condemned.map(|member| (member.name.clone(), member.generation, member.incarnation)).collect()
    }

    /// Whether a member is down or has left. One that is held down only for flapping has not gone, as for everybody else.
    pub fn has_gone(&self, node: &NodeId) -> bool {
        let member = self.roster.slot(node).map(|slot| self.roster.get(slot));
        member.is_some_and(|member| member.is_gone() && !member.refuted_while_held)
    }

    /// Since when a member is down or has left, for forgetting. Set once per life, never refreshed.
    pub fn gone_since(&self, node: &NodeId) -> Option<Mono> {
        let member = self.roster.get(self.roster.slot(node)?);
        member.is_gone().then_some(member.since)
    }

    /// When anybody was last heard of directly; `None` before the first time.
    pub fn last_heard(&self) -> Option<Mono> {
        self.roster.iter().filter_map(|(_, member)| member.heard).max()
    }

    /// Own health score: 0 is well, 8 the worst.
    pub fn health_score(&self) -> u32 {
        self.health.score
    }

    /// Notices that this process stood still: doubt yourself first.
    fn enter(&mut self, now: Mono) {
        let due = self.timers.next().unwrap_or(now).max(self.entered);
        self.entered = self.entered.max(now);
        let late = now.since(due);
        if late > self.config.probe_rtt {
            self.is_late(now);
        }
        if late <= self.config.pause || Planted::SlowConvicts.is_on() {
            return;
        }
        self.hold_until = now + self.config.hold;
        self.tallies.pauses += 1;
        self.health.worse(2);
        self.confirms.clear();
        self.ping = None;
        self.restart_waits(now);
        self.refute_soon(now);
        self.actions.push_back(Action::Report(format!(
            "this process stood still for {:.1} s (stopped, starved or swapped out): it holds back its own judgement for {:.0} s",
            late.as_secs_f64(),
            self.config.hold.as_secs_f64()
        )));
    }

    fn foca_timer(&mut self, now: Mono, timer: foca::Timer<Peer>) {
        // The end of the direct stage is the moment that tells whether an ack was missed. (foca tells it by sending an
        // indirect ping, but only if there is a third member.)
        let missed = match &timer {
            foca::Timer::SendIndirectProbe { probed_id, .. } => {
                self.ping.as_ref().filter(|ping| ping.to == *probed_id && !ping.acked).map(|ping| ping.to)
            }
            _ => None,
        };
        let effects = self.engine.timer(timer);
        self.run(now, effects);
        if let Some(peer) = missed
            && self.roster.find(peer.slot).is_some_and(|member| member.generation == peer.generation)
        {
            self.note(now, peer.slot, Happened::Missed);
            self.history(peer.slot).missed += 1;
            self.confirm(now, peer.slot, Why::Missed);
        }
    }

    /// Carries out what foca wants.
    fn run(&mut self, now: Mono, effects: Effects) {
        for (to, packet) in effects.send {
            // foca may still be about to probe somebody who has been forgotten since, or whose place another has taken.
            let Some(member) = self.roster.find(to.slot).filter(|member| member.generation == to.generation) else {
                continue;
            };
            let name = member.name.clone();
            if let Probe::Ping(number) = packet.probe {
                self.ping = Some(Ping { to, number, at: now, acked: false });
                self.tallies.probes += 1;
                self.history(to.slot).probes += 1;
            }
            self.send(name, vec![Frame::Foca(packet.encode())]);
        }
        for (after, timer) in effects.timers {
            let stretched = after * (1 + self.health.score);
            let after = match timer {
                // Nodes that start together must not probe in step for ever.
                foca::Timer::ProbeRandomMember(_) if effects.active => after.mul_f64(self.rng.random_range(0.0..1.0)),
                foca::Timer::ProbeRandomMember(_) | foca::Timer::SendIndirectProbe { .. } => stretched,
                _ => after,
            };
            self.timers.set(now, after, Timer::Foca(timer));
        }
    }

    /// Has foca probe an active member, if it is this node's to watch. `was_down`: foca holds this life dead.
    fn probe(&mut self, now: Mono, slot: Slot, was_down: bool) {
        if !self.roster.is_watched(slot) {
            return self.leave_to_others(now, slot);
        }
        let peer = self.peer(slot);
        let was_down = was_down && self.roster.get(slot).probed.is_some();
        self.roster.get_mut(slot).probed = Some(peer.generation);
        let effects = self.engine.alive(peer, self.roster.get(slot).incarnation, was_down);
        self.run(now, effects);
    }

    /// Has foca forget a member.
    fn leave_to_others(&mut self, now: Mono, slot: Slot) {
        if let Some(generation) = self.roster.get_mut(slot).probed.take() {
            let effects = self.engine.forget(Peer { slot, generation });
            self.run(now, effects);
        }
    }

    /// Has foca stop probing a member, and remember that it is dead.
    fn stop_probing(&mut self, now: Mono, slot: Slot) {
        if self.roster.get(slot).probed.is_some() {
            let peer = self.peer(slot);
            self.roster.get_mut(slot).probed = Some(peer.generation);
            let effects = self.engine.down(peer);
            self.run(now, effects);
        }
    }

    /// After somebody came or went in a large mesh: watches those who are this node's to watch now.
    fn watch_anew(&mut self, now: Mono) {
        let stirred = match self.roster.take_stirred() {
            Stirred::Nobody => return,
            Stirred::Some(slots) => slots,
            Stirred::Everybody => self.roster.iter().map(|(slot, _)| slot).collect(),
        };
        for slot in stirred {
            let Some(member) = self.roster.find(slot).filter(|member| member.is_active()) else { continue };
            if member.probed.is_some() != self.roster.is_watched(slot) {
                self.probe(now, slot, false);
            }
        }
    }

    fn peer(&self, slot: Slot) -> Peer {
        Peer { slot, generation: self.roster.get(slot).generation }
    }

    fn send(&mut self, to: NodeId, frames: Vec<Frame>) {
        self.actions.push_back(Action::Send { to, frames });
    }

    fn send_to(&mut self, to: Slot, ctl: Ctl) {
        self.send(self.roster.get(to).name.clone(), vec![Frame::Ctl(ctl)]);
    }

    fn send_statements(&mut self, to: Slot, statements: impl IntoIterator<Item = Statement>) {
        let frames = statements.into_iter().map(Frame::Statement).collect();
        self.send(self.roster.get(to).name.clone(), frames);
    }

    fn sync_with(&mut self, now: Mono, with: NodeId) {
        if self.synced_at.is_none_or(|at| now.since(at) >= SYNC_GAP) {
            self.synced_at = Some(now);
            self.actions.push_back(Action::Sync { with });
        }
    }

    /// Active members beside this node and the accused: who else could accuse it.
    fn witnesses(&self) -> usize {
        self.roster.others().saturating_sub(1)
    }

    fn lookup(&self, node: &NodeId) -> Option<Slot> {
        self.roster.slot(node)
    }

    fn changed(&mut self, now: Mono, slot: Slot, state: MemberState) {
        let changed = self.roster.set_state(slot, state, now);
        self.note_loss(now, slot);
        if changed {
            self.note(now, slot, Happened::Became(state));
            let node = self.roster.get(slot).name.clone();
            self.actions.push_back(Action::Changed { node, state });
            self.watch_anew(now);
        }
    }
}

/// Accusers of this node at its present incarnation, and when each was last heard of.
type Accusers = BTreeMap<NodeId, Mono>;

/// Worst own health score: timers are nine times as long.
const WORST_SCORE: u32 = 8;
/// At least this much between two exchanges that membership asks for.
const SYNC_GAP: Duration = Duration::from_millis(100);
/// Keeps foca's chance apart from ours.
const ENGINE_SEED: u64 = 0x666f_6361;
