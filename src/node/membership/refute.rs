//! Being accused: this node's answers.
//!
//! A lone private accuser is answered alone and costs nothing. A second distinct one within a few seconds, or anybody
//! that holds this node dead, costs an incarnation: a signed `Alive` that lifts what is held against the lower one.
//! At most two of those a second, none for a life that is not the present one, and none while nobody hears it (`unheard`).

use std::time::Duration;

use super::{Accusers, Action, Membership, roster::ME, timers::Timer};
use crate::{
    types::{Mono, NodeId, Planted, Trust},
    wire::{Alive, Body, Ctl, Frame, Kind, Statement},
};

/// What this node has to say for itself.
#[derive(Default)]
pub(super) struct Refutation {
    accusers: Accusers,
    last: Option<Mono>,
    pending: Option<Flood>,
    /// When that is due.
    due: Mono,
    /// The newest own `Alive`.
    pub(super) statement: Option<Statement>,
}

/// Whether a refutation goes to every open connection: somebody holds this node dead already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flood(bool);

impl Membership {
    /// Somebody accuses this node.
    pub(super) fn accused_by(
        &mut self,
        now: Mono,
        accuser: &NodeId,
        life: (u64, u16),
        from: &NodeId,
        trust: &dyn Trust,
    ) {
        let own = self.roster.me().life();
        if life < own {
            if let Some(relay) = self.lookup(from) {
                self.correct(now, relay, ME);
            }
            return;
        }
        if life > own || *accuser == self.roster.me().name {
            return; // a life this node has never had
        }
        let expires = self.config.lone_expires;
        let accusers = &mut self.refutation.accusers;
        accusers.retain(|_, at| now.since(*at) <= expires);
        accusers.insert(accuser.clone(), now);
        if accusers.len() >= 2 {
            self.accused_myself(now, life, false, trust);
        } else {
            self.send(accuser.clone(), vec![Frame::Ctl(Ctl::Here)]);
        }
    }

    /// The mesh doubts this node, or a peer holds it dead (`flood`), in this life.
    pub(super) fn accused_myself(&mut self, now: Mono, life: (u64, u16), flood: bool, trust: &dyn Trust) {
        if life != self.roster.me().life() || Planted::LoseRefutations.is_on() {
            return;
        }
        let gap = self.config.refute_gap;
        let since = self.refutation.last.map_or(gap, |last| now.since(last));
        let waiting = self.refutation.pending;
        let wait = if waiting.is_some() { Duration::ZERO } else { self.refutes_in(now).max(gap.saturating_sub(since)) };
        if waiting.is_none() && wait.is_zero() {
            return self.refute(now, flood, trust);
        }
        self.refutation.pending = Some(Flood(flood || waiting == Some(Flood(true))));
        if waiting.is_none() {
            self.refute_in(now, wait);
        }
    }

    /// Looks again then, and not before.
    pub(super) fn refute_in(&mut self, now: Mono, wait: Duration) {
        self.refutation.due = now + wait;
        self.timers.set(now, wait, Timer::Refute);
    }

    /// This process stood still: peers may hold anything of it by now.
    pub(super) fn refute_soon(&mut self, now: Mono) {
        self.refutation.pending = Some(Flood(true));
        self.refute_in(now, Duration::ZERO);
    }

    pub(super) fn refute_pending(&mut self, now: Mono, trust: &dyn Trust) {
        let Some(Flood(flood)) = self.refutation.pending.filter(|_| now >= self.refutation.due) else { return };
        match self.refutes_in(now) {
            Duration::ZERO => self.refute(now, flood, trust),
            wait => self.refute_in(now, wait),
        }
    }

    fn refute(&mut self, now: Mono, flood: bool, trust: &dyn Trust) {
        self.refutation.last = Some(now);
        self.refutation.pending = None;
        self.refutation.accusers.clear();
        if !self.engine.raise_incarnation() {
            return self.actions.push_back(Action::TakeNextGeneration);
        }
        let (generation, incarnation) = (self.engine.generation(), self.engine.incarnation());
        self.roster.set_life(ME, generation, incarnation);
        self.roster.get_mut(ME).refutations += 1;
        let node = self.roster.me().name.clone();
        let body = Body::Alive(Alive { node: node.clone(), generation, incarnation });
        let statement = Statement::sign(trust, &node, self.key, Kind::Alive, body.encode(), false);
        self.refutation.statement = Some(statement.clone());
        self.actions.push_back(Action::Gossip { statement, eager: true, flood, except: None });
    }
}
