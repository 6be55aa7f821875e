//! The lane policy of one service: who goes to which lane. One immutable object, replaced whole.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    InstanceRecord, Lane, MAX_CONDITIONS, MAX_RULES, MAX_TRAITS, MatchRule, Selectors, ServiceName, Wall, selected,
};

/// Size or place in an experiment: 0..=10000, one is 0.01 %.
pub type BasisPoints = u16;

/// How a subject becomes a bucket (REQUIREMENTS L1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BucketScheme {
    /// SHA-256 of a one-block prefix (salt, experiment) and the subject.
    #[default]
    Prefixed,
    /// SHA-256 of the bare subject, for gateways that already bucket that way.
    BareSubject,
}

/// Order of policies of one service: epoch, then hybrid logical clock, then author. A rollback raises the epoch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PolicyVersion {
    /// Raised by every rollback, so that a raise which had not seen it loses.
    pub epoch: u64,
    /// Hybrid logical clock: milliseconds since 1970, never behind what the author had seen.
    pub clock: u64,
    /// Who wrote it: a node id now, an operator's name later. Breaks ties.
    pub author: String,
}

/// Where a part of the subject comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SubjectPart {
    /// Value of a request header (name in lower case).
    Header(String),
    /// Value of a cookie.
    Cookie(String),
}

/// Where the subject comes from: its parts joined by `\x1f`; all must be present.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SubjectSource {
    /// At least one part.
    pub parts: Vec<SubjectPart>,
}

impl Default for SubjectSource {
    fn default() -> Self {
        Self { parts: vec![SubjectPart::Header("x-user-id".into())] }
    }
}

/// What happens to a request without a subject.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnonymousRule {
    /// It goes to `stable`.
    #[default]
    Stable,
    /// Each request is bucketed by a random number of its own.
    Request,
}

/// What happens when the decided lane has no candidate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EmptyLane {
    /// Served by the fallback lane.
    #[default]
    Fallback,
    /// Refused at once with a clear error.
    Fail,
}

/// Rule for an empty lane, by method class (REQUIREMENTS L7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EmptyLaneRule {
    /// GET, HEAD, OPTIONS, TRACE.
    pub safe: EmptyLane,
    /// Every other method.
    pub unsafe_methods: EmptyLane,
    /// Whether `stable`, when empty, may be served by other lanes.
    pub stable_to_others: bool,
}

impl Default for EmptyLaneRule {
    fn default() -> Self {
        Self { safe: EmptyLane::Fallback, unsafe_methods: EmptyLane::Fail, stable_to_others: false }
    }
}

/// One lane's part of an experiment: the buckets [start, start+size) and its lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneRule {
    /// First bucket.
    pub start: BasisPoints,
    /// Number of buckets; 0 admits by list only.
    pub size: BasisPoints,
    /// Subjects that always go here; also those whose explicit lane header is honoured.
    pub allow: BTreeSet<String>,
    /// Subjects that never go here.
    pub deny: BTreeSet<String>,
}

/// Mesh-wide rule of one service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LanePolicy {
    /// The service it rules.
    pub service: ServiceName,
    /// Its place in the order of this service's policies.
    pub version: PolicyVersion,
    /// Off beats all: everybody goes to `stable`.
    pub off: bool,
    /// Name of the experiment; part of the bucket's input, so that experiments are independent.
    pub experiment: String,
    /// Free text mixed into the bucket's input.
    pub salt: String,
    /// How subjects become buckets.
    pub scheme: BucketScheme,
    /// The lanes beside `stable`.
    pub lanes: BTreeMap<Lane, LaneRule>,
    /// Where the subject comes from; `None` leaves it to the sidecar's configuration.
    pub subject: Option<SubjectSource>,
    /// Requests without a subject.
    pub anonymous: AnonymousRule,
    /// What happens when a lane is empty.
    pub empty: EmptyLaneRule,
    /// Why it was set; required for large raises.
    pub reason: String,
    /// When it was set, by the author's clock.
    pub set_at: Wall,
    /// Requests that go to a lane whatever their bucket, in this order: the first that matches decides (REQUIREMENTS L4).
    #[serde(default)]
    pub rules: Vec<MatchRule>,
    /// Most buckets that a lane may ever have in this experiment: [start, start + this) is its own, also while it is smaller
    /// (REQUIREMENTS L5). A lane without a number grows until the next one begins.
    #[serde(default)]
    pub reserved: BTreeMap<Lane, BasisPoints>,
    /// Instances that serve a lane for their version and tags, beside those that announce it. In force also while the policy is off:
    /// what was told apart is not mixed by a rollback.
    #[serde(default)]
    pub selectors: Selectors,
}

/// Why a policy is refused; each names the lane and the cure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyFault {
    /// A range passes 10000.
    #[error("lane `{0}` ends at bucket {1}, past 10000 (100 %)")]
    PastEnd(Lane, u32),
    /// Two lanes share buckets.
    #[error("lanes `{0}` and `{1}` overlap: give them separate ranges")]
    Overlap(Lane, Lane),
    /// More buckets than are reserved.
    #[error(
        "lane `{lane}` can't have {size} basis points: {most} are reserved for it; raise its reserve, such as \
         `--reserve {lane}={size}bp`, or stay below"
    )]
    AboveReserve {
        /// Which lane.
        lane: Lane,
        /// Buckets it would have.
        size: BasisPoints,
        /// Buckets it may have.
        most: BasisPoints,
    },
    /// A reserve or selector for a lane that the policy does not have.
    #[error("{0} for lane `{1}`, which the policy does not have")]
    UnknownLane(&'static str, Lane),
    /// A selector without traits.
    #[error("the selector of lane `{0}` has no trait and would take every instance: give it one, such as `version:v2`")]
    NoTrait(Lane),
    /// A rule for `stable`.
    #[error("`stable` takes what the other lanes leave; it has no range, lists or selector of its own")]
    Stable,
    /// More than a policy carries.
    #[error("{what}: {is}, at most {most}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        is: usize,
        /// How much may be.
        most: usize,
    },
    /// A rule without conditions.
    #[error("rule {0} has no condition and would take everybody: give it one, such as `header:x-beta=1`")]
    NoCondition(usize),
    /// A rule to a lane that the policy does not have.
    #[error(
        "rule {0} sends to lane `{1}`, which the policy does not have: give the lane a share (0% will do) or a list"
    )]
    RuleLane(usize, Lane),
    /// A subject without parts.
    #[error("the subject needs at least one part, such as `header:x-user-id`")]
    NoSubjectPart,
}

impl LanePolicy {
    /// Checks ranges and limits.
    pub fn check(&self) -> Result<(), PolicyFault> {
        let limit =
            |what, is: usize, most| if is > most { Err(PolicyFault::TooMany { what, is, most }) } else { Ok(()) };
        limit("lanes of one policy", self.lanes.len(), 16)?;
        limit("bytes of the experiment's name", self.experiment.len(), 64)?;
        limit("bytes of the salt", self.salt.len(), 64)?;
        limit("bytes of the reason", self.reason.len(), 512)?;
        let listed = self.lanes.values().flat_map(|rule| rule.allow.iter().chain(&rule.deny));
        limit("subjects on the lists", listed.clone().count(), 1000)?;
        limit("bytes of a listed subject", listed.map(String::len).max().unwrap_or(0), 256)?;
        if self.subject.as_ref().is_some_and(|s| s.parts.is_empty()) {
            return Err(PolicyFault::NoSubjectPart);
        }
        self.check_rules()?;
        self.check_lanes()?;
        let mut ranges: Vec<(u32, u32, &Lane)> = Vec::new();
        for (lane, rule) in &self.lanes {
            if lane.is_stable() {
                return Err(PolicyFault::Stable);
            }
            let room = self.room(lane);
            let end = u32::from(rule.start) + u32::from(room);
            if end > 10_000 {
                return Err(PolicyFault::PastEnd(lane.clone(), end));
            }
            if room > 0 {
                ranges.push((rule.start.into(), end, lane));
            }
        }
        ranges.sort();
        match ranges.windows(2).find(|pair| pair[1].0 < pair[0].1) {
            Some(pair) => Err(PolicyFault::Overlap(pair[0].2.clone(), pair[1].2.clone())),
            None => Ok(()),
        }
    }

    /// Buckets that nobody else may have: what a lane has, or more where more is reserved for it.
    pub fn room(&self, lane: &Lane) -> BasisPoints {
        let size = self.lanes.get(lane).map_or(0, |rule| rule.size);
        self.reserved.get(lane).copied().unwrap_or(0).max(size)
    }

    /// The lane that an instance serves: the first whose selector takes it, else the one that it announces.
    pub fn lane_of<'a>(&'a self, record: &'a InstanceRecord) -> &'a Lane {
        selected(&self.selectors, record).unwrap_or(&record.lane)
    }

    /// Reserves and selectors.
    fn check_lanes(&self) -> Result<(), PolicyFault> {
        for (lane, most) in &self.reserved {
            let Some(rule) = self.lanes.get(lane) else {
                return Err(PolicyFault::UnknownLane("a reserve", lane.clone()));
            };
            if rule.size > *most {
                return Err(PolicyFault::AboveReserve { lane: lane.clone(), size: rule.size, most: *most });
            }
        }
        for (lane, traits) in &self.selectors {
            if !self.lanes.contains_key(lane) {
                return Err(PolicyFault::UnknownLane("a selector", lane.clone()));
            }
            if traits.is_empty() {
                return Err(PolicyFault::NoTrait(lane.clone()));
            }
            if traits.len() > MAX_TRAITS {
                return Err(PolicyFault::TooMany {
                    what: "traits of one selector",
                    is: traits.len(),
                    most: MAX_TRAITS,
                });
            }
        }
        Ok(())
    }

    fn check_rules(&self) -> Result<(), PolicyFault> {
        let most =
            |what, is: usize, most| if is > most { Err(PolicyFault::TooMany { what, is, most }) } else { Ok(()) };
        most("rules of one policy", self.rules.len(), MAX_RULES)?;
        for (number, rule) in (1..).zip(&self.rules) {
            if rule.when.is_empty() {
                return Err(PolicyFault::NoCondition(number));
            }
            most("conditions of one rule", rule.when.len(), MAX_CONDITIONS)?;
            if !rule.lane.is_stable() && !self.lanes.contains_key(&rule.lane) {
                return Err(PolicyFault::RuleLane(number, rule.lane.clone()));
            }
        }
        Ok(())
    }
}
