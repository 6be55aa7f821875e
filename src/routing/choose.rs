//! One decision: lane, candidates, ring, walk. Pure, lock-free, without allocation; explains itself.

use serde::{Deserialize, Serialize};

use super::{MethodClass, ServiceView, Snapshot};
use crate::{
    lanes::{LaneDecision, LaneReason},
    types::{Lane, Mono, PolicyVersion},
};

/// What routing sees of a request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Who is bucketed.
    pub subject: Option<&'a str>,
    /// What is hashed on the ring; the subject when absent, a random number when both are.
    pub route_key: Option<&'a str>,
    /// An explicit lane header.
    pub explicit_lane: Option<&'a str>,
    /// Safe or not, for empty lanes.
    pub method: MethodClass,
    /// A random number of this request's own.
    pub random: u64,
}

/// Why the walk passed over a candidate: local state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SkipReason {
    /// Refused connections a moment ago.
    Refusing,
    /// Its sidecar is accused.
    Doubtful,
}

/// A candidate that the walk passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    /// Index into [`ServiceView::instances`].
    pub instance: u16,
    /// Why.
    pub why: SkipReason,
}

/// Why a request left its decided lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FallbackReason {
    /// The lane has no instance at all.
    Absent,
    /// It has some, none healthy.
    Unhealthy,
    /// It has some, all draining or at weight 0.
    Draining,
}

/// What was decided. Small, `Copy`, without references: indices into the snapshot it was made on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Who.
    pub lane: LaneDecision,
    /// Hash of the route key: with the ring of the lane it gives the failover order.
    pub key_hash: u64,
    /// The chosen instance: index into [`ServiceView::instances`]; `None` when there is no candidate.
    pub instance: Option<u16>,
    /// The lane that serves, when it is not the decided one, and why.
    pub fallback: Option<FallbackReason>,
    /// Version of the snapshot.
    pub snapshot: u64,
}

/// Decides. The snapshot must be the one that `service` belongs to.
pub fn choose(snapshot: &Snapshot, service: &ServiceView, request: &Request<'_>, now: Mono) -> Decision {
    todo!()
}

/// A [`Decision`] in words, for `route`, the access log and response headers. Made from the decision, never decided anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {}

#[allow(unused_variables)]
impl Explanation {
    /// Placeholder.
    pub fn of(
        snapshot: &Snapshot,
        service: &ServiceView,
        request: &Request<'_>,
        decision: &Decision,
        now: Mono,
    ) -> Self {
        todo!()
    }
}

impl std::fmt::Display for Explanation {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        todo!()
    }
}
