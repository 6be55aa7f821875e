//! The immutable routing view. One version of it answers a request from start to end; a newer one replaces it whole.
//!
//! Invariant: a lane's ring holds exactly the instances that are not [excluded](Exclusion) there (a pure function of one
//! candidate table and this sidecar's environment); local state never changes it.
//!
//! Not here: how it is made (`builder`), how a request is decided on it (`choose`).

use std::{collections::BTreeMap, sync::Arc};

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::{
    FallbackReason, InstanceCell, Load, Near, Reading, Ring, ServiceState, hot::Named, pin::Pin, takeover::Work,
};
use crate::{
    config::Routing,
    lanes::{CompiledPolicy, Here, LaneDecision},
    types::{
        EmptyLane, EmptyLaneRule, Env, InstanceId, InstanceRecord, Lane, MemberState, Mono, NodeId, PolicyVersion,
        Region, ServiceName, Zone,
    },
};

/// Where this sidecar stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locality {
    /// Requests never leave it.
    pub env: Env,
    /// Region.
    pub region: Region,
    /// Zone.
    pub zone: Zone,
    /// Tags of the instances that its file announces: match rules may ask for them.
    pub tags: BTreeMap<String, String>,
}

impl Locality {
    /// What match rules see of it.
    pub fn here(&self) -> Here<'_> {
        Here { region: &self.region, zone: &self.zone, tags: &self.tags }
    }
}

/// Why an instance is no candidate at all, for anybody: gossiped facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exclusion {
    /// Another environment.
    OtherEnv,
    /// A region that requests from here must not go to (`regions`).
    OtherRegion,
    /// Its own checks fail, or none has passed yet.
    Critical,
    /// Taken out of rotation.
    Draining,
    /// Weight 0.
    WeightZero,
    /// Its sidecar is down.
    OwnerDown,
    /// Its sidecar has left.
    OwnerLeft,
    /// Another node announces the same id; the smaller node id keeps it.
    DuplicateId,
    /// It keeps leaving and coming back: its return is held back for a moment.
    Flapping,
}

impl Exclusion {
    /// As it is logged and labelled.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OtherEnv => "other-env",
            Self::OtherRegion => "other-region",
            Self::Critical => "critical",
            Self::Draining => "draining",
            Self::WeightZero => "weight-zero",
            Self::OwnerDown => "owner-down",
            Self::OwnerLeft => "owner-left",
            Self::DuplicateId => "duplicate-id",
            Self::Flapping => "flapping",
        }
    }
}

/// One instance in a snapshot.
#[derive(Clone)]
pub struct InstanceEntry {
    /// The record.
    pub record: Arc<InstanceRecord>,
    /// State of its sidecar.
    pub owner: MemberState,
    /// See [`super::Candidate::stale`].
    pub stale: bool,
    /// Why it is no candidate; `None` when it is one.
    pub excluded: Option<Exclusion>,
    /// What the data path knows of it.
    pub cell: Arc<InstanceCell>,
}

/// One lane of a service, in this sidecar's environment.
#[derive(Clone)]
pub struct LaneView {
    /// Its name.
    pub name: Lane,
    /// Ring over its candidates; empty when there is none. Shared with the snapshots before while unchanged.
    pub ring: Arc<Ring>,
    /// Of every slot of the ring: its index into [`ServiceView::instances`].
    pub members: Vec<u16>,
    /// The candidates of the own zone, then of the own region; without those that would be the same as the next wider one, and
    /// none where nearness is not asked for.
    pub near: Vec<Near>,
    /// Why there is no candidate; `None` while there is one.
    pub empty: Option<FallbackReason>,
    /// Weight of all candidates together.
    pub weight: u32,
    /// Requests in flight at all of them, while that is wanted.
    pub load: Arc<Load>,
    /// What its candidates can do and have to do; of a lost lane, what they had.
    pub(super) work: Option<Work>,
    /// Share of its keys, of 2^32, that the lane in its place takes.
    pub(super) taken: u32,
    /// Keys that are pinned to some of its candidates.
    pub(super) pins: Vec<Pin>,
    /// It has, or had, a candidate: to be empty is a loss, not a beginning.
    pub(super) had_one: bool,
}

/// One service in a snapshot.
pub struct ServiceView {
    /// Its name.
    pub name: ServiceName,
    /// All its known instances, candidates or not, by (instance id, owner).
    pub instances: Vec<InstanceEntry>,
    /// Its policy, if it has one.
    pub policy: Option<Arc<CompiledPolicy>>,
    /// Its lanes by name: `stable`, the policy's, and those of its instances.
    pub lanes: Vec<LaneView>,
    /// Hash of candidate sets and policy version; equal on every node with the same content.
    pub digest: u64,
    /// This sidecar's rules for it.
    pub rules: Arc<Routing>,
    /// How heads of requests to it are read here.
    pub reading: Arc<Reading>,
    /// What the data path keeps of it.
    pub state: Arc<ServiceState>,
    /// Keys that are spread by name.
    pub(super) named: Named,
    /// Of every lane index of the policy ([`LaneDecision::lane`]): its index into `lanes`. The first is `stable`'s.
    pub(super) lane_of: Vec<u16>,
}

impl ServiceView {
    /// Index into `instances` of one that a sidecar announces.
    pub fn instance(&self, owner: &NodeId, id: &InstanceId) -> Option<u16> {
        let found = self.instances.binary_search_by(|entry| (&entry.record.id, &entry.record.owner).cmp(&(id, owner)));
        found.ok().map(|at| at as u16)
    }

    /// A lane by name.
    pub fn lane(&self, name: &str) -> Option<&LaneView> {
        self.lanes.binary_search_by(|lane| lane.name.as_str().cmp(name)).ok().map(|at| &self.lanes[at])
    }

    /// The lane that a decision sends a request to, whether it has a candidate or not.
    pub fn decided(&self, decision: &LaneDecision) -> &LaneView {
        &self.lanes[usize::from(self.decided_index(decision.lane))]
    }

    /// A request waits at this instance: where it is time to tell other sidecars, they will be told.
    pub fn still_waits(&self, entry: &InstanceEntry, now: Mono) {
        if self.rules.signals && entry.cell.is_silence_news(now) {
            self.state.ring();
        }
    }

    /// Whether requests of a lane may leave it for `stable` when nobody in it is well: its policy lets safe methods fall back,
    /// and `stable` has a candidate. Breakers may then keep away all of the lane.
    pub(super) fn may_be_left(&self, lane: &Lane) -> bool {
        let stable = &self.lanes[usize::from(self.lane_of[0])];
        let rule = self.policy.as_ref().map_or(EmptyLaneRule::default(), |compiled| compiled.policy.empty);
        let rule_says_so = rule.safe == EmptyLane::Fallback && self.rules.fallback.sick;
        !lane.is_stable() && rule_says_so && stable.empty.is_none()
    }

    /// Index into `lanes` of a decided lane. An index that no decision on this view holds reads as `stable`.
    #[inline]
    pub(super) fn decided_index(&self, lane: u8) -> u16 {
        self.lane_of.get(usize::from(lane)).copied().unwrap_or(self.lane_of[0])
    }

    /// Version of its policy, if it has one.
    pub fn policy_version(&self) -> Option<&PolicyVersion> {
        self.policy.as_ref().map(|compiled| &compiled.policy.version)
    }
}

/// The immutable routing view.
pub struct Snapshot {
    /// Counts this node's snapshots.
    pub version: u64,
    /// Equal on every node with the same content: candidate sets and policy versions of all services.
    pub digest: u64,
    /// When it was published.
    pub published: Mono,
    /// Share of sampled keys (basis points) that had an owner in the snapshot before and have another now, in the lane where
    /// it is largest (REQUIREMENTS R12).
    pub moved_basis_points: u16,
    /// By name.
    services: Vec<Arc<ServiceView>>,
    /// Looked up, never iterated. The keys are announced services, so that no client can crowd its buckets.
    by_name: FxHashMap<ServiceName, u32>,
}

impl Snapshot {
    /// No services yet.
    pub fn empty() -> Self {
        Self::new(0, Mono::ZERO, Vec::new())
    }

    /// Of services in name order; nothing moved.
    pub(super) fn new(version: u64, published: Mono, services: Vec<Arc<ServiceView>>) -> Self {
        let by_name = (0..).zip(&services).map(|(at, service)| (service.name.clone(), at)).collect();
        let mut digest = xxhash_rust::xxh3::Xxh3::new();
        for service in &services {
            digest.update(&service.digest.to_le_bytes());
        }
        Self { version, digest: digest.digest(), published, moved_basis_points: 0, services, by_name }
    }

    /// A service by name; no allocation.
    #[inline]
    pub fn service(&self, name: &str) -> Option<&ServiceView> {
        self.by_name.get(name).map(|at| &*self.services[*at as usize])
    }

    /// All services, by name.
    pub fn services(&self) -> impl ExactSizeIterator<Item = &ServiceView> {
        self.services.iter().map(|service| &**service)
    }
}
