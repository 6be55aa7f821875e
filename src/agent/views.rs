//! Snapshots are built by a thread of their own: neither the gossip loop nor a request ever waits for a ring.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use arc_swap::ArcSwap;

use super::metrics::MeshMetrics;
use crate::{
    ready::{Blocker, Ready},
    routing::{self, CandidateTable, Snapshot},
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
            while let Some(table) = inbox.take() {
                let began = clock.mono();
                let (snapshot, faults) = builder.build(&table, began);
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

    /// Waits for a table; `None` at the end.
    fn take(&self) -> Option<Arc<CandidateTable>> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if next.closed {
                return None;
            }
            if let Some(table) = next.table.take() {
                return Some(table);
            }
            next = self.filled.wait(next).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
