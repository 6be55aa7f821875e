//! Lives: a member is introduced, refutes, restarts, leaves, is forgotten.
//!
//! A life is (generation, incarnation). A higher one replaces what is held of a lower, at once and wholly: one entry per
//! member, never two. A new generation beats everything, also a verdict and a hold-down; a new incarnation beats
//! everything but a hold-down and a goodbye.

use std::time::Duration;

use super::{
    Action, Membership,
    case::Case,
    confirm::Why,
    engine::Peer,
    history::Happened,
    roster::{ME, Slot},
    timers::Timer,
};
use crate::types::{MemberState, Mono, NodeId, Planted, Trust};

impl Membership {
    /// A member is known (its signed introduction or `Alive` was accepted): add it, or lift what is held of a lower
    /// (generation, incarnation). Whether it was news. Of this node itself nothing is news.
    pub fn alive(&mut self, now: Mono, node: &NodeId, generation: u64, incarnation: u16) -> bool {
        self.enter(now);
        match self.lookup(node) {
            Some(ME) => false,
            Some(slot) => self.take(now, slot, generation, incarnation),
            None => {
                let slot = self.roster.add(node.clone(), generation, incarnation, now);
                self.probe(now, slot, false);
                self.watch_anew(now);
                self.actions.push_back(Action::Changed { node: node.clone(), state: MemberState::Alive });
                true
            }
        }
    }

    /// All these are known at once, as after a long time together, to a node that knew nobody. It is nobody's news.
    pub(in crate::node) fn acquaint<'a>(
        &mut self,
        now: Mono,
        all: impl Iterator<Item = (&'a (NodeId, u64, u16), Option<u32>)>,
    ) {
        self.enter(now);
        self.roster.add_all(all, now);
        self.watch_anew(now);
    }

    /// See [`circle::ranks`](super::circle::ranks).
    pub(in crate::node) fn ranks(names: &[&NodeId]) -> Vec<Vec<u32>> {
        super::circle::ranks(names)
    }

    /// Takes a member into a higher life. `false` when it is not higher, or this generation has left.
    pub(super) fn take(&mut self, now: Mono, slot: Slot, generation: u64, incarnation: u16) -> bool {
        let member = self.roster.get(slot);
        if (generation, incarnation) <= member.life() {
            return false;
        }
        if generation > member.generation {
            self.restarted(now, slot, generation, incarnation);
            return true;
        }
        match member.state {
            MemberState::Left => return false,
            MemberState::Down if Planted::RefutationsDontLift.is_on() => return false,
            MemberState::Down if member.held_until.is_some_and(|until| now < until) => {
                let left = member.held_until.map_or(Duration::ZERO, |until| until.since(now));
                if !member.refuted_while_held {
                    self.timers.set(now, left, Timer::Release(slot));
                }
                self.roster.get_mut(slot).case = Case::default();
                self.roster.set_life(slot, generation, incarnation);
                self.roster.set_refuted_while_held(slot, true);
            }
            _ => self.refuted(now, slot, incarnation),
        }
        true
    }

    /// The member has shown that its accusers were wrong.
    fn refuted(&mut self, now: Mono, slot: Slot, incarnation: u16) {
        let was_down = self.roster.get(slot).state == MemberState::Down;
        if !was_down {
            self.charge_accusers(now, slot);
        }
        if was_down {
            self.tallies.revived += 1;
            self.note_lifted(now);
        } else {
            self.tallies.refuted += 1;
        }
        self.note(now, slot, Happened::Refuted(incarnation));
        self.roster.get_mut(slot).refutations += 1;
        self.roster.set_life(slot, self.roster.get(slot).generation, incarnation);
        self.stand_up(now, slot, was_down);
    }

    fn restarted(&mut self, now: Mono, slot: Slot, generation: u64, incarnation: u16) {
        let member = self.roster.get_mut(slot);
        member.heard = None;
        member.flaps = (0, Mono::ZERO);
        member.refutations = 0;
        self.note(now, slot, Happened::Restarted(generation));
        self.roster.set_life(slot, generation, incarnation);
        self.stand_up(now, slot, false);
    }

    /// Clears what was held against an earlier life, and probes the member again.
    fn stand_up(&mut self, now: Mono, slot: Slot, was_down: bool) {
        self.confirms.end(slot);
        let member = self.roster.get_mut(slot);
        let case = std::mem::take(&mut member.case);
        member.held_until = None;
        member.told = None;
        member.helped = None;
        self.roster.set_refuted_while_held(slot, false);
        if case.public {
            let accused = self.roster.get(slot).name.clone();
            self.actions.push_back(Action::Retract { accused });
        }
        self.probe(now, slot, was_down);
        self.changed(now, slot, MemberState::Alive);
    }

    /// Whoever accused a member that refutes in time was wrong.
    fn charge_accusers(&mut self, now: Mono, slot: Slot) {
        let accusers: Vec<Slot> =
            self.roster.get(slot).case.charges().map(|(by, _)| by).filter(|by| *by != ME).collect();
        for by in accusers {
            let accuser = self.roster.get_mut(by);
            if accuser.credit.charge(now) {
                let report = format!(
                    "{} keeps accusing members that live ({} times refuted): its accusations are ignored for a while; look at its network and its load",
                    accuser.name,
                    accuser.credit.refuted()
                );
                self.actions.push_back(Action::Report(report));
            }
        }
    }

    /// A member held dead was heard: tell it, so that it can refute. One that flaps is told as well: its refutation then waits
    /// for the end of its hold.
    pub(super) fn heard_condemned(&mut self, now: Mono, slot: Slot) {
        if !self.roster.get(slot).refuted_while_held {
            self.warn(now, slot);
        }
    }

    /// A hold has ended: a member that has refuted meanwhile is taken back without another word. Not only when it is next
    /// heard, which in a large mesh can be a minute later.
    pub(super) fn release(&mut self, now: Mono, slot: Slot) {
        let Some(member) = self.roster.find(slot) else { return };
        let over = member.held_until.is_none_or(|until| until <= now);
        if member.state == MemberState::Down && member.refuted_while_held && over {
            self.stand_up(now, slot, true);
        }
    }

    /// A peer's sync says that it holds this life dead: if it is our own, refute; if we hold it alive, let the member
    /// know and look for ourselves.
    pub fn held_dead_by_peer(
        &mut self,
        now: Mono,
        node: &NodeId,
        generation: u64,
        incarnation: u16,
        trust: &dyn Trust,
    ) {
        self.enter(now);
        let life = (generation, incarnation);
        let Some(slot) = self.lookup(node) else { return };
        if slot == ME {
            return self.accused_myself(now, life, true, trust);
        }
        if self.roster.get(slot).is_active() && self.roster.get(slot).life() == life {
            self.warn(now, slot);
            self.confirm(now, slot, Why::ForAnother);
        }
    }

    /// A member said goodbye: final for this generation. Of this node itself only `Node` says so.
    pub fn left(&mut self, now: Mono, node: &NodeId, generation: u64) {
        self.enter(now);
        let Some(slot) = self.lookup(node).filter(|slot| *slot != ME) else { return };
        let member = self.roster.get(slot);
        if generation < member.generation || (generation == member.generation && member.state == MemberState::Left) {
            return;
        }
        if generation > member.generation {
            self.roster.set_life(slot, generation, 0);
        }
        self.confirms.end(slot);
        self.roster.get_mut(slot).case = Case::default();
        self.roster.get_mut(slot).held_until = None;
        self.roster.set_refuted_while_held(slot, false);
        self.stop_probing(now, slot);
        self.changed(now, slot, MemberState::Left);
    }

    /// A member is forgotten: drop everything about it.
    pub fn forget(&mut self, node: &NodeId) {
        let Some(slot) = self.lookup(node).filter(|slot| *slot != ME) else { return };
        // Nothing of what foca would do now may wait: the member is nobody.
        if let Some(generation) = self.roster.get_mut(slot).probed.take() {
            let _nothing_to_send = self.engine.forget(Peer { slot, generation });
        }
        if self.ping.as_ref().is_some_and(|ping| ping.to.slot == slot) {
            self.ping = None;
        }
        self.confirms.forget(slot);
        self.losses.forget(slot);
        self.roster.remove(slot);
    }
}
