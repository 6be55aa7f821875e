//! Failure signals (REQUIREMENTS M10) on their way: this node's own are signed and spread, others' are checked, passed on and
//! handed out. What they mean is `routing`'s to judge.
//!
//! Invariants: of one observer only what is newer than everything heard of it is taken, so that nothing old can be played
//! again, and not more often than every [`REST`], so that nobody can set the mesh busy. They are not kept, not part of the
//! digest and not written down.

use std::{collections::BTreeMap, time::Duration};

use super::{Node, Now, Output, Phase, Spread};
use crate::{
    types::{MAX_OBSERVATIONS, MAX_SIGNAL_BYTES, MemberState, Mono, NodeId, Observation, Signal},
    wire::{Body, Kind, Statement},
};

/// Shortest time between two signals of one observer that are taken.
const REST: Duration = Duration::from_millis(50);

/// The newest signal of every observer.
#[derive(Debug, Default)]
pub(super) struct Heard {
    newest: BTreeMap<NodeId, ((u64, u64), Mono)>,
    /// Own ones so far.
    said: u64,
}

impl Heard {
    /// Whether it is newer than what was heard of its observer, and does not come too soon after that.
    pub fn is_news(&self, now: Mono, signal: &Signal) -> bool {
        let newest = self.newest.get(&signal.observer);
        newest.is_none_or(|(order, at)| (signal.generation, signal.number) > *order && now.since(*at) >= REST)
    }
}

impl Node {
    /// Tells the mesh what this sidecar sees fail. What does not fit is left for the next time; how many were told.
    pub fn signal(&mut self, now: Now, mut seen: Vec<Observation>) -> usize {
        if self.phase != Phase::Member || seen.is_empty() {
            return 0;
        }
        seen.truncate(MAX_OBSERVATIONS);
        self.signals.said += 1;
        let (observer, generation, number) = (self.config.node.clone(), self.generation, self.signals.said);
        let mut told = seen.len();
        let signal =
            |told: usize| Signal { observer: observer.clone(), generation, number, seen: seen[..told].to_vec() };
        let mut body = Body::Signal(signal(told));
        while body.encode().len() > MAX_SIGNAL_BYTES {
            told -= 1;
            body = Body::Signal(signal(told));
        }
        let statement = Statement::sign(&*self.trust, &observer, self.key, Kind::Signal, body.encode(), false);
        self.spread(statement, &body, Spread::Flood, None);
        self.settle(now);
        told
    }

    /// A verified one: passed on, and handed out if its observer lives. Those who do not answer others judge nobody.
    pub(super) fn signal_heard(&mut self, now: Now, from: &NodeId, statement: Statement, signal: Signal) {
        let order = (signal.generation, signal.number);
        self.signals.newest.insert(signal.observer.clone(), (order, now.mono));
        if self.membership.state(&signal.observer) != Some(MemberState::Alive) {
            return;
        }
        self.spread(statement, &Body::Signal(signal.clone()), Spread::Eager, Some(from));
        self.outputs.push_back(Output::Signal(signal));
    }

    /// Forgets those whose observers are forgotten.
    pub(super) fn tidy_signals(&mut self) {
        let catalog = &self.catalog;
        self.signals.newest.retain(|observer, _| catalog.member(observer).is_some());
    }
}
