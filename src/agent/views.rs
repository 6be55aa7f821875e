//! Snapshots are built by a thread of their own: neither the gossip loop nor a request ever waits for a ring.

use std::sync::{Arc, mpsc};

use arc_swap::ArcSwap;

use super::metrics::MeshMetrics;
use crate::{
    ready::{Blocker, Ready},
    routing::{self, CandidateTable, Locality, Snapshot},
    telemetry::Clock,
};

/// The way to the building thread.
pub(super) struct Builder {
    tables: mpsc::Sender<Arc<CandidateTable>>,
}

impl Builder {
    pub fn start(
        locality: Locality,
        clock: Clock,
        place: Arc<ArcSwap<Snapshot>>,
        metrics: Arc<MeshMetrics>,
        ready: Arc<Ready>,
    ) -> Self {
        let (tables, inbox) = mpsc::channel::<Arc<CandidateTable>>();
        let run = move || {
            let mut builder = routing::Builder::new(locality);
            while let Ok(mut table) = inbox.recv() {
                // Only the newest counts.
                while let Ok(newer) = inbox.try_recv() {
                    table = newer;
                }
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
        Self { tables }
    }

    pub fn build(&self, table: Arc<CandidateTable>) {
        // The thread lives as long as this sender.
        let _ = self.tables.send(table);
    }
}
