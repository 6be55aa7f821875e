//! Snapshots are built by a thread of their own: neither the gossip loop nor a request ever waits for a ring. New rules are put
//! in force by building the last table again.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use arc_swap::ArcSwap;

use super::metrics::MeshMetrics;
use crate::{
    ready::{Blocker, Ready},
    routing::{self, CandidateTable, Rules, Snapshot},
    telemetry::Clock,
};

/// What waits for the building thread: only the newest table counts, so there is room for one.
#[derive(Default)]
struct Slot {
    next: Mutex<Next>,
    filled: Condvar,
}

#[derive(Default)]
struct Next {
    table: Option<Arc<CandidateTable>>,
    rules: Option<Rules>,
    closed: bool,
}

/// The way to the building thread; the thread ends with it.
pub(super) struct Builder {
    slot: Arc<Slot>,
}

impl Builder {
    pub fn start(
        mut builder: routing::Builder,
        clock: Clock,
        place: Arc<ArcSwap<Snapshot>>,
        metrics: Arc<MeshMetrics>,
        ready: Arc<Ready>,
    ) -> Self {
        let slot = Arc::new(Slot::default());
        let inbox = slot.clone();
        let run = move || {
            let mut last = None;
            while let Some((table, rules)) = inbox.take() {
                if let Some(rules) = rules {
                    builder.set_rules(rules);
                }
                last = table.or(last);
                let Some(table) = &last else { continue };
                let began = clock.mono();
                let (snapshot, faults) = builder.build(table, began);
                metrics.built(&snapshot, clock.mono().since(began), faults.len());
                for fault in faults {
                    tracing::error!("routing view: {fault}");
                }
                place.store(snapshot);
                ready.clear(Blocker::View);
            }
        };
        std::thread::Builder::new().name("lanemesh-view".into()).spawn(run).expect("the system can start a thread");
        Self { slot }
    }

    /// Hands over a table; never waits.
    pub fn build(&self, table: Arc<CandidateTable>) {
        self.slot.change(|next| next.table = Some(table));
    }

    /// Hands over rules for all views from now on; never waits.
    pub fn set_rules(&self, rules: Rules) {
        self.slot.change(|next| next.rules = Some(rules));
    }
}

impl Drop for Builder {
    fn drop(&mut self) {
        self.slot.change(|next| next.closed = true);
    }
}

impl Slot {
    fn change(&self, how: impl FnOnce(&mut Next)) {
        how(&mut self.next.lock().unwrap_or_else(PoisonError::into_inner));
        self.filled.notify_one();
    }

    /// Waits for a table or rules; `None` at the end.
    fn take(&self) -> Option<(Option<Arc<CandidateTable>>, Option<Rules>)> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if next.closed {
                return None;
            }
            if next.table.is_some() || next.rules.is_some() {
                return Some((next.table.take(), next.rules.take()));
            }
            next = self.filled.wait(next).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
