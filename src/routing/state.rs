//! What the data path keeps of one service: its retry budget, how often keys are asked for, how many requests leave their lane, and counts of what breakers and budget did. Shared by threads and by successive snapshots.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{Bell, budget::Budget, hot::Rates};
use crate::types::Mono;

/// Local state of one service.
#[derive(Debug, Default)]
pub struct ServiceState {
    pub(super) budget: Budget,
    pub(super) fallbacks: Rate,
    pub(super) rates: Rates,
    denied: AtomicU64,
    opened: AtomicU64,
    held: AtomicU64,
    beyond: AtomicU64,
    returned: AtomicU64,
    signalled: AtomicU64,
    wary: AtomicU64,
    /// Rung when there is something to tell other sidecars.
    bell: Option<Arc<Bell>>,
}

/// Counts what happens in the present second.
#[derive(Debug, Default)]
pub(super) struct Rate(AtomicU64);

impl Rate {
    /// Counts one more, unless there were `most` in this second already.
    pub(super) fn allows(&self, now: Mono, most: u32) -> bool {
        let second = (now.millis() / 1_000) & 0xffff_ffff;
        let count = |word: u64| {
            let so_far = if word >> 32 == second { word & 0xffff_ffff } else { 0 };
            (so_far < u64::from(most)).then_some(second << 32 | (so_far + 1))
        };
        self.0.fetch_update(Relaxed, Relaxed, count).is_ok()
    }
}

/// What its breakers did so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BreakerCounts {
    /// Breakers that opened.
    pub opened: u64,
    /// Breakers that should have opened, but too much of the lane was kept away already.
    pub held: u64,
    /// Of those that opened: beyond the floor, since their instance gave nothing at all.
    pub beyond: u64,
    /// Instances that began to come back.
    pub returned: u64,
    /// Instances kept away because other sidecars saw them fail.
    pub signalled: u64,
}

impl ServiceState {
    /// Of a service whose failures are told by this bell.
    pub(super) fn new(bell: Option<Arc<Bell>>) -> Self {
        Self { bell, ..Self::default() }
    }

    /// There is something to tell other sidecars.
    pub(super) fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }

    /// What its breakers did so far.
    pub fn breakers(&self) -> BreakerCounts {
        let read = |count: &AtomicU64| count.load(Relaxed);
        BreakerCounts {
            opened: read(&self.opened),
            held: read(&self.held),
            beyond: read(&self.beyond),
            returned: read(&self.returned),
            signalled: read(&self.signalled),
        }
    }

    /// Retries that the budget did not allow so far.
    pub fn retries_denied(&self) -> u64 {
        self.denied.load(Relaxed)
    }

    /// Requests so far that could not be repeated and passed over an instance where several waited unheard of.
    pub fn silent_avoided(&self) -> u64 {
        self.wary.load(Relaxed)
    }

    pub(super) fn count_wary(&self) {
        self.wary.fetch_add(1, Relaxed);
    }

    pub(super) fn count_denied(&self) {
        self.denied.fetch_add(1, Relaxed);
    }

    pub(super) fn count_opened(&self) {
        self.opened.fetch_add(1, Relaxed);
    }

    pub(super) fn count_held(&self) {
        self.held.fetch_add(1, Relaxed);
    }

    pub(super) fn count_beyond(&self) {
        self.beyond.fetch_add(1, Relaxed);
    }

    pub(super) fn count_signalled(&self) {
        self.signalled.fetch_add(1, Relaxed);
    }

    pub(super) fn count_returned(&self) {
        self.returned.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_begins_anew_every_second() {
        let rate = Rate::default();
        let allowed = |ms, most| (0..10).filter(|_| rate.allows(Mono::from_millis(ms), most)).count();
        assert_eq!([allowed(0, 3), allowed(999, 4), allowed(1_000, 3), allowed(5_000, 0)], [3, 1, 3, 0]);
    }
}
