//! Which lane a request goes to. Only the entry decides (REQUIREMENTS L4).

use std::sync::Arc;

use serde::Serialize;

use super::Bucket;
use crate::types::{Lane, LanePolicy};

/// A policy made ready for the request path: prefix absorbed, lists hashed, ranges sorted.
pub struct CompiledPolicy {
    /// As set.
    pub policy: Arc<LanePolicy>,
}

/// What the lane decision sees of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Entry<'a> {
    /// The subject, if the request has one.
    pub subject: Option<&'a str>,
    /// An explicit lane header.
    pub explicit: Option<&'a str>,
    /// A random number of this request's own, for `AnonymousRule::Request`.
    pub random: u64,
}

/// Why a request goes to its lane; printed by `route`, logged as `gray_result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LaneReason {
    /// The service has no policy.
    NoPolicy,
    /// The policy is off.
    Off,
    /// The request named the lane and its subject is on that lane's allow-list.
    Explicit,
    /// The subject is on the lane's allow-list.
    AllowList,
    /// The bucket is in the lane's range.
    Range,
    /// The bucket is in the lane's range, but the subject is on its deny-list.
    DenyList,
    /// No lane's range holds the bucket.
    OutOfRange,
    /// No subject, and the rule sends such requests to `stable`.
    Anonymous,
}

/// Who: the lane of a request, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneDecision {
    /// The subject's bucket, where one was computed.
    pub bucket: Option<Bucket>,
    /// Index into [`CompiledPolicy::lane`]: 0 is `stable`.
    pub lane: u8,
    /// Why.
    pub reason: LaneReason,
    /// An explicit lane header came from a subject that may not use it: counted as a probe, stripped.
    pub probe: bool,
}

impl CompiledPolicy {
    /// Makes a checked policy ready.
    pub fn new(policy: Arc<LanePolicy>) -> Self {
        todo!()
    }

    /// Decides. Takes no lock, allocates nothing.
    pub fn decide(&self, entry: &Entry<'_>) -> LaneDecision {
        todo!()
    }

    /// The lane of an index: 0 is `stable`, then the policy's lanes in name order.
    pub fn lane(&self, index: u8) -> &Lane {
        todo!()
    }
}
