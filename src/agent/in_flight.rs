//! Tells owners what this sidecar has in flight at instances whose load is told by that (REQUIREMENTS R10).

use std::{collections::BTreeSet, time::Duration};

use super::run::Agent;
use crate::types::{InstanceId, Mono, NodeId};

/// From one telling to the next.
const EVERY: Duration = Duration::from_secs(2);

/// What was told, and when.
#[derive(Debug, Default)]
pub(super) struct InFlightTold {
    /// Those that had requests of this sidecar's.
    busy: BTreeSet<(NodeId, InstanceId)>,
    at: Option<Mono>,
}

impl Agent {
    /// About once a second.
    pub(super) fn tell_in_flight(&mut self) {
        let now = self.now();
        if self.in_flight_told.at.is_some_and(|at| now.mono.since(at) < EVERY) {
            return;
        }
        self.in_flight_told.at = Some(now.mono);
        let snapshot = self.snapshot.load_full();
        let counted = snapshot.services().flat_map(|service| &service.instances).filter(|entry| entry.record.counted);
        let mut busy = BTreeSet::new();
        let mut counts = Vec::new();
        for entry in counted {
            let (whose, count) = ((entry.record.owner.clone(), entry.record.id.clone()), entry.cell.in_flight());
            // Once more when it is over.
            if count > 0 || self.in_flight_told.busy.contains(&whose) {
                counts.push((whose.0.clone(), whose.1.clone(), count));
            }
            if count > 0 {
                busy.insert(whose);
            }
        }
        self.in_flight_told.busy = busy;
        if !counts.is_empty() {
            self.node.tell_in_flight(now, counts);
        }
    }
}
