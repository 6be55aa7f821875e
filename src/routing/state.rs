//! What the data path keeps of one service: its retry budget, and counts of what breakers and budget did. Shared by threads and by successive snapshots.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::budget::Budget;

/// Local state of one service.
#[derive(Debug, Default)]
pub struct ServiceState {
    pub(super) budget: Budget,
    denied: AtomicU64,
    opened: AtomicU64,
    held: AtomicU64,
    returned: AtomicU64,
}

/// What its breakers did so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BreakerCounts {
    /// Breakers that opened.
    pub opened: u64,
    /// Breakers that should have opened, but too much of the lane was kept away already.
    pub held: u64,
    /// Instances that began to come back.
    pub returned: u64,
}

impl ServiceState {
    /// What its breakers did so far.
    pub fn breakers(&self) -> BreakerCounts {
        let read = |count: &AtomicU64| count.load(Relaxed);
        BreakerCounts { opened: read(&self.opened), held: read(&self.held), returned: read(&self.returned) }
    }

    /// Retries that the budget did not allow so far.
    pub fn retries_denied(&self) -> u64 {
        self.denied.load(Relaxed)
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

    pub(super) fn count_returned(&self) {
        self.returned.fetch_add(1, Relaxed);
    }
}
