//! What the admin API says and takes beside the agent's own data types. The command line reads and writes the same types.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    routing::{BreakerState, Exclusion, InstanceEntry, ServiceView, Snapshot},
    types::{BasisPoints, InstanceId, Lane, Mono, NodeId, PolicyVersion, ServiceName},
};

/// A service as this sidecar routes to it (`GET /v1/services`). Read from the routing snapshot itself, so it can't
/// disagree with what requests see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceInfo {
    /// Its name.
    pub service: ServiceName,
    /// Known instances, candidates or not.
    pub instances: usize,
    /// Instances that may take traffic.
    pub candidates: usize,
    /// The same by lane; also lanes that only the policy names.
    pub lanes: BTreeMap<Lane, LaneInfo>,
    /// Version of its policy; `None` when it has none.
    pub policy: Option<PolicyVersion>,
    /// Whether its policy is off (everybody to stable).
    pub off: bool,
    /// The snapshot that this was read from.
    pub snapshot: u64,
}

/// One lane of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneInfo {
    /// Known instances.
    pub instances: usize,
    /// Instances that may take traffic.
    pub candidates: usize,
    /// Buckets that the policy gives it; `None` for `stable` (which takes the rest) and where no policy names it.
    pub size: Option<BasisPoints>,
}

impl ServiceInfo {
    /// Reads one service of a snapshot.
    pub fn of(snapshot: &Snapshot, view: &ServiceView) -> Self {
        let mut lanes: BTreeMap<Lane, LaneInfo> = BTreeMap::new();
        for entry in &view.instances {
            let lane = lanes.entry(entry.record.lane.clone()).or_default();
            lane.instances += 1;
            lane.candidates += usize::from(entry.excluded.is_none());
        }
        let policy = view.policy.as_ref().map(|compiled| &compiled.policy);
        for (lane, rule) in policy.iter().flat_map(|policy| &policy.lanes) {
            lanes.entry(lane.clone()).or_default().size = Some(rule.size);
        }
        Self {
            service: view.name.clone(),
            instances: view.instances.len(),
            candidates: lanes.values().map(|lane| lane.candidates).sum(),
            lanes,
            policy: policy.map(|policy| policy.version.clone()),
            off: policy.is_some_and(|policy| policy.off),
            snapshot: snapshot.version,
        }
    }
}

/// An instance in the view that requests are routed by, and what requests from this sidecar met there (`GET /v1/outcomes`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeInfo {
    /// Its service.
    pub service: ServiceName,
    /// Instance id.
    pub instance: InstanceId,
    /// Its sidecar.
    pub owner: NodeId,
    /// Its lane.
    pub lane: Lane,
    /// Generation and sequence of the record in the view.
    pub record: (u64, u64),
    /// Why it is no candidate; `None` when it is one.
    pub excluded: Option<Exclusion>,
    /// Its breaker on this sidecar.
    pub breaker: BreakerState,
    /// Requests that ended in the last seconds (`routing.breaker_window`), and half of those in the window before.
    pub attempts: u16,
    /// Failures among them.
    pub failures: u16,
    /// Under way now.
    pub in_flight: u32,
    /// How long ago it answered anything, in milliseconds; `None`: never.
    pub answered_ms_ago: Option<u64>,
}

impl OutcomeInfo {
    /// Of all instances of a view.
    pub fn all(snapshot: &Snapshot, now: Mono) -> Vec<Self> {
        let of = |view: &ServiceView, entry: &InstanceEntry| {
            let (record, cell) = (&entry.record, &entry.cell);
            let (attempts, failures) = cell.outcomes(now, &view.rules);
            let ago = |at: Mono| u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX);
            Self {
                service: view.name.clone(),
                instance: record.id.clone(),
                owner: record.owner.clone(),
                lane: record.lane.clone(),
                record: (record.generation, record.sequence),
                excluded: entry.excluded,
                breaker: cell.state(now, &view.rules),
                attempts,
                failures,
                in_flight: cell.in_flight(),
                answered_ms_ago: cell.last_heard().map(ago),
            }
        };
        snapshot.services().flat_map(|view| view.instances.iter().map(move |entry| of(view, entry))).collect()
    }
}

/// Body of `POST /v1/drain`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainOrder {
    /// Which instances of this sidecar; all when empty.
    #[serde(default)]
    pub ids: Vec<InstanceId>,
    /// Why; shown to everybody.
    #[serde(default)]
    pub reason: String,
    /// Who; shown to everybody.
    #[serde(default)]
    pub by: String,
    /// Refuse when fewer other candidates would be left in a lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_ready: Option<u32>,
}

/// Body of `POST /v1/undrain`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UndrainOrder {
    /// Which instances of this sidecar; all when empty.
    #[serde(default)]
    pub ids: Vec<InstanceId>,
}

/// Answer to `POST /v1/drain` and `POST /v1/undrain`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainAnswer {
    /// The instances whose drain changed.
    pub ids: Vec<InstanceId>,
}

/// Body of `POST /v1/rollback/{service}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RollbackOrder {
    /// Why; kept with the policy.
    #[serde(default)]
    pub reason: String,
}

/// Body of orders that say nothing (`POST /v1/leave`, `DELETE`): an empty object or no body at all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Answer of `GET /ready` (200 or 503).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// Whether it waits for nothing.
    pub ready: bool,
    /// What it waits for, by name.
    pub waiting_for: Vec<String>,
}
