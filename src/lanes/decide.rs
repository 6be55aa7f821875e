//! Which lane a request goes to. Only the entry decides (REQUIREMENTS L4).
//!
//! Order: off; an explicit lane header of an allow-listed subject; allow-lists; the bucket's range. A subject on a lane's
//! deny-list never goes to that lane, whatever else is said; other lanes stay open to it. A subject on several allow-lists
//! goes to the first of those lanes in name order.
//!
//! Not here: rules on header values, region, zone or tag, and lane contexts from upstream hops (later issues).

use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::{BUCKETS, Bucket, Prefix};
use crate::types::{AnonymousRule, Lane, LanePolicy};

/// A policy made ready for the request path: prefix absorbed, lists hashed, ranges sorted.
pub struct CompiledPolicy {
    /// As set.
    pub policy: Arc<LanePolicy>,
    prefix: Prefix,
    /// `stable`, then the policy's lanes in name order.
    lanes: Vec<Lane>,
    /// Ranges that hold a bucket, sorted, without overlap.
    ranges: Vec<Range>,
    /// Looked up, never iterated. The keys are the operators' own, so nobody outside can crowd its buckets.
    listed: FxHashMap<Box<str>, Listed>,
}

/// Buckets `start..end` belong to a lane.
#[derive(Debug, Clone, Copy)]
struct Range {
    start: u32,
    end: u32,
    lane: u8,
}

/// The lists that hold a subject: bit n stands for lane n.
#[derive(Debug, Clone, Copy, Default)]
struct Listed {
    allow: u32,
    deny: u32,
}

/// What the lane decision sees of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Entry<'a> {
    /// The subject, if the request has one. An empty text counts as none: all who send an empty header are not one user.
    pub subject: Option<&'a str>,
    /// An explicit lane header.
    pub explicit: Option<&'a str>,
    /// A random number of this request's own, for `AnonymousRule::Request`.
    pub random: u64,
}

/// Why a request goes to its lane; printed by `route`, logged as `gray_result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The bucket is in a lane's range, but the subject is on that lane's deny-list.
    DenyList,
    /// No lane's range holds the bucket.
    OutOfRange,
    /// No subject, and the rule sends such requests to `stable`.
    Anonymous,
}

impl LaneReason {
    /// As it is logged and labelled.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoPolicy => "no-policy",
            Self::Off => "off",
            Self::Explicit => "explicit",
            Self::AllowList => "allow-list",
            Self::Range => "range",
            Self::DenyList => "deny-list",
            Self::OutOfRange => "out-of-range",
            Self::Anonymous => "anonymous",
        }
    }
}

/// Who: the lane of a request, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneDecision {
    /// The subject's bucket, where one was computed: not without a policy, while it is off, or for the anonymous rule
    /// `stable`.
    pub bucket: Option<Bucket>,
    /// Index into [`CompiledPolicy::lane`]: 0 is `stable`.
    pub lane: u8,
    /// Why.
    pub reason: LaneReason,
    /// An explicit lane header came from a subject that may not use it: ignored, counted as a probe, stripped.
    pub probe: bool,
}

impl LaneDecision {
    /// For a service without a policy: `stable`. Nobody is allow-listed, so an explicit header is a probe.
    pub const fn no_policy(explicit: bool) -> Self {
        Self { bucket: None, lane: STABLE, reason: LaneReason::NoPolicy, probe: explicit }
    }
}

impl CompiledPolicy {
    /// Makes a policy ready. It has passed [`LanePolicy::check`]; of one that has not, lanes past the 31st are ignored and
    /// of overlapping ranges the one with the lower start wins.
    pub fn new(policy: Arc<LanePolicy>) -> Self {
        let mut lanes = vec![Lane::stable()];
        let mut ranges = Vec::new();
        let mut listed: FxHashMap<Box<str>, Listed> = FxHashMap::default();
        let own = policy.lanes.iter().filter(|(name, _)| !name.is_stable()).take(MAX_LANES);
        for (index, (name, rule)) in (1..).zip(own) {
            lanes.push(name.clone());
            let start = u32::from(rule.start);
            if rule.size > 0 {
                ranges.push(Range { start, end: start + u32::from(rule.size), lane: index });
            }
            for subject in &rule.allow {
                listed.entry(subject.as_str().into()).or_default().allow |= 1 << index;
            }
            for subject in &rule.deny {
                listed.entry(subject.as_str().into()).or_default().deny |= 1 << index;
            }
        }
        ranges.sort_by_key(|range| range.start);
        let prefix = Prefix::new(policy.scheme, &policy.salt, &policy.experiment);
        Self { policy, prefix, lanes, ranges, listed }
    }

    /// Decides. Takes no lock, allocates nothing.
    #[inline]
    pub fn decide(&self, entry: &Entry<'_>) -> LaneDecision {
        let subject = entry.subject.filter(|subject| !subject.is_empty());
        let listed = subject.map(|subject| self.listed(subject)).unwrap_or_default();
        let named = entry.explicit.and_then(|name| self.permitted(name, listed));
        let probe = entry.explicit.is_some() && named.is_none();
        if self.policy.off {
            return LaneDecision { bucket: None, lane: STABLE, reason: LaneReason::Off, probe };
        }
        let Some(bucket) = self.bucket(subject, entry.random) else {
            return LaneDecision { bucket: None, lane: STABLE, reason: LaneReason::Anonymous, probe };
        };
        let (lane, reason) = match named {
            Some(lane) => (lane, LaneReason::Explicit),
            None => self.by_lists_and_range(listed, bucket),
        };
        LaneDecision { bucket: Some(bucket), lane, reason, probe }
    }

    /// The lane of an index: 0 is `stable`, then the policy's lanes in name order. An index that no decision of this policy
    /// holds reads as `stable`.
    pub fn lane(&self, index: u8) -> &Lane {
        self.lanes.get(usize::from(index)).unwrap_or(&self.lanes[0])
    }

    /// All lanes in the order of their indices: `stable` first.
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// The bucket that this policy gives a subject, whether it is off or not.
    pub fn bucket_of(&self, subject: &str) -> Bucket {
        self.prefix.bucket(subject.as_bytes())
    }

    fn bucket(&self, subject: Option<&str>, random: u64) -> Option<Bucket> {
        match (subject, self.policy.anonymous) {
            (Some(subject), _) => Some(self.prefix.bucket(subject.as_bytes())),
            (None, AnonymousRule::Request) => Some((random % u64::from(BUCKETS)) as Bucket),
            (None, AnonymousRule::Stable) => None,
        }
    }

    fn listed(&self, subject: &str) -> Listed {
        if self.listed.is_empty() {
            return Listed::default();
        }
        self.listed.get(subject).copied().unwrap_or_default()
    }

    /// The lane that a subject may name: one whose allow-list holds it, or `stable` for whoever is on any allow-list.
    fn permitted(&self, name: &str, listed: Listed) -> Option<u8> {
        if listed.allow == 0 {
            return None;
        }
        let index = self.lanes.iter().position(|lane| lane.as_str() == name)? as u8;
        let open = index == STABLE || (listed.allow & !listed.deny) >> index & 1 == 1;
        open.then_some(index)
    }

    fn by_lists_and_range(&self, listed: Listed, bucket: Bucket) -> (u8, LaneReason) {
        let allowed = listed.allow & !listed.deny;
        if allowed != 0 {
            return (allowed.trailing_zeros() as u8, LaneReason::AllowList);
        }
        let bucket = u32::from(bucket);
        match self.ranges.iter().find(|range| range.start <= bucket && bucket < range.end) {
            Some(range) if listed.deny >> range.lane & 1 == 1 => (STABLE, LaneReason::DenyList),
            Some(range) => (range.lane, LaneReason::Range),
            None => (STABLE, LaneReason::OutOfRange),
        }
    }
}

const STABLE: u8 = 0;
/// One bit each in [`Listed`], bit 0 being `stable`'s. A checked policy has at most 16.
const MAX_LANES: usize = 31;
