//! One ordered queue for everything that waits: foca's timers and our own.
//!
//! Order is (deadline, rank, sequence): equal deadlines fire in the order they were set, but foca's indirect stage before
//! its next probe, as foca requires.

use std::{collections::BTreeMap, time::Duration};

use super::{engine::Peer, roster::Slot};
use crate::types::Mono;

/// What is due.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Timer {
    /// One of foca's own.
    Foca(foca::Timer<Peer>),
    /// The next round of a confirm.
    Confirm(Slot),
    /// Look again at what is held against a member.
    Review(Slot),
    /// Ask a member again that this node alone doubts; how many times it was asked.
    Again(Slot, u32),
    /// A member's hold ends: take it back if it has refuted meanwhile.
    Release(Slot),
    /// Attempt contact with members held dead.
    Heal,
    /// A refutation that was put off.
    Refute,
    /// Count again whether this is a mass loss.
    Mass,
    /// Tell others what a sweep has found.
    Bulk,
}

/// The queue.
#[derive(Default)]
pub(super) struct Timers {
    queue: BTreeMap<(Mono, u8, u64), Timer>,
    sequence: u64,
}

impl Timers {
    pub(super) fn set(&mut self, now: Mono, after: Duration, timer: Timer) {
        let rank = u8::from(!matches!(timer, Timer::Foca(foca::Timer::SendIndirectProbe { .. })));
        self.sequence += 1;
        self.queue.insert((now + after, rank, self.sequence), timer);
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<Mono> {
        self.queue.first_key_value().map(|((at, _, _), _)| *at)
    }

    /// Takes the earliest timer, if it is due, with its deadline.
    pub(super) fn due(&mut self, now: Mono) -> Option<(Mono, Timer)> {
        if self.next()? > now {
            return None;
        }
        self.queue.pop_first().map(|((at, _, _), timer)| (at, timer))
    }

    /// Drops foca's timers: its engine was replaced.
    pub(super) fn drop_foca(&mut self) {
        self.queue.retain(|_, timer| !matches!(timer, Timer::Foca(_)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_indirect_stage_comes_before_the_next_probe_at_the_same_moment() {
        let mut timers = Timers::default();
        let after = Duration::from_millis(5);
        let probed = Peer { slot: 1, generation: 1 };
        timers.set(Mono::ZERO, after, Timer::Heal);
        timers.set(Mono::ZERO, after, Timer::Foca(foca::Timer::ProbeRandomMember(0)));
        timers.set(Mono::ZERO, after, Timer::Foca(foca::Timer::SendIndirectProbe { probed_id: probed, token: 0 }));
        assert_eq!(timers.due(Mono::from_millis(4)), None);
        let order: Vec<_> = std::iter::from_fn(|| timers.due(Mono::from_millis(5))).map(|(_, timer)| timer).collect();
        assert!(matches!(order[0], Timer::Foca(foca::Timer::SendIndirectProbe { .. })));
        assert_eq!(order[1], Timer::Heal);
        assert_eq!(order.len(), 3);
    }
}
