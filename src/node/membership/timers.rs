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

    /// The ack came in time: the end of the direct stage, which foca insists on before its next probe, will find nothing, so
    /// nobody is woken for it. It comes with the next probe.
    pub(super) fn put_off_indirect(&mut self) {
        let indirect = |timer: &Timer| matches!(timer, Timer::Foca(foca::Timer::SendIndirectProbe { .. }));
        let next = |timer: &Timer| matches!(timer, Timer::Foca(foca::Timer::ProbeRandomMember(_)));
        let find =
            |wanted: &dyn Fn(&Timer) -> bool| self.queue.iter().find(|(_, timer)| wanted(timer)).map(|(key, _)| *key);
        let (Some(stage), Some((at, ..))) = (find(&indirect), find(&next)) else { return };
        if stage.0 < at
            && let Some(timer) = self.queue.remove(&stage)
        {
            // Its rank puts it before the probe.
            self.queue.insert((at, stage.1, stage.2), timer);
        }
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
    fn a_stage_that_will_find_nothing_comes_with_the_next_probe_and_before_it() {
        let mut timers = Timers::default();
        let ms = Duration::from_millis;
        let probed_id = Peer { slot: 1, generation: 1 };
        timers.set(Mono::ZERO, ms(300), Timer::Foca(foca::Timer::ProbeRandomMember(0)));
        timers.put_off_indirect();
        timers.set(Mono::ZERO, ms(150), Timer::Foca(foca::Timer::SendIndirectProbe { probed_id, token: 0 }));
        assert_eq!(timers.next(), Some(Mono::from_millis(150)));
        timers.put_off_indirect();
        assert_eq!(timers.next(), Some(Mono::from_millis(300)));
        let first = timers.due(Mono::from_millis(300)).map(|(_, timer)| timer);
        assert!(matches!(first, Some(Timer::Foca(foca::Timer::SendIndirectProbe { .. }))));
    }

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
