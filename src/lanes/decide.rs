//! Which lane a request goes to. Only the entry decides (REQUIREMENTS L4).
//!
//! Order: off; an explicit lane header of an allow-listed subject; allow-lists; match rules; the bucket's range. A subject on a
//! lane's deny-list never goes to that lane, whatever else is said; other lanes stay open to it. A subject on several allow-lists
//! goes to the first of those lanes in name order.
//!
//! Not here: lane contexts from upstream hops (a later issue).

use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::{
    BUCKETS, Bucket, Head, Here, Prefix,
    rules::{self, Rule},
};
use crate::types::{AnonymousRule, Lane, LanePolicy, Planted};

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
    /// Match rules that may hold at this sidecar, in order.
    rules: Box<[Rule]>,
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
    /// What match rules look at; without it only those on the subject and the sidecar match.
    pub head: Option<&'a dyn Head>,
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
    /// A match rule of the policy: see [`LaneDecision::rule`].
    Rule,
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
            Self::Rule => "rule",
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
    /// Place of the match rule in the policy, from 0, where one decided.
    pub rule: Option<u8>,
}

impl LaneDecision {
    /// For a service without a policy: `stable`. Nobody is allow-listed, so an explicit header is a probe.
    pub const fn no_policy(explicit: bool) -> Self {
        Self { bucket: None, lane: STABLE, reason: LaneReason::NoPolicy, probe: explicit, rule: None }
    }
}

impl CompiledPolicy {
    /// Makes a policy ready. It has passed [`LanePolicy::check`]; of one that has not, lanes past the 31st are ignored and
    /// of overlapping ranges the one with the lower start wins. Rules on the sidecar's place or tags match nowhere: see
    /// [`CompiledPolicy::at`].
    pub fn new(policy: Arc<LanePolicy>) -> Self {
        Self::compile(policy, None)
    }

    /// The same at a sidecar that stands there.
    pub fn at(policy: Arc<LanePolicy>, here: Here<'_>) -> Self {
        Self::compile(policy, Some(here))
    }

    fn compile(policy: Arc<LanePolicy>, here: Option<Here<'_>>) -> Self {
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
        let planted = Planted::BucketByVersion.is_on().then(|| policy.version.clock.to_string());
        let salt = planted.as_deref().unwrap_or(&policy.salt);
        let prefix = Prefix::new(policy.scheme, salt, &policy.experiment);
        let rules = rules::compile(&policy, &lanes, here);
        Self { policy, prefix, lanes, ranges, listed, rules }
    }

    /// Decides. Takes no lock, allocates nothing.
    #[inline]
    pub fn decide(&self, entry: &Entry<'_>) -> LaneDecision {
        let subject = entry.subject.filter(|subject| !subject.is_empty());
        let listed = subject.map(|subject| self.listed(subject)).unwrap_or_default();
        let named = entry.explicit.and_then(|name| self.permitted(name, listed));
        let probe = entry.explicit.is_some() && named.is_none();
        let decided = |bucket, lane, reason| LaneDecision { bucket, lane, reason, probe, rule: None };
        if self.policy.off {
            return decided(None, STABLE, LaneReason::Off);
        }
        let bucket = self.bucket(subject, entry.random);
        if let Some(lane) = named {
            return decided(bucket, lane, LaneReason::Explicit);
        }
        let allowed = listed.allow & !listed.deny;
        if allowed != 0 {
            return decided(bucket, allowed.trailing_zeros() as u8, LaneReason::AllowList);
        }
        let by_bucket = Planted::BucketsBeforeRules.is_on()
            && bucket.is_some_and(|bucket| self.by_range(listed, bucket).1 == LaneReason::Range);
        if let Some(rule) = self.rule(entry, listed).filter(|_| !by_bucket) {
            return LaneDecision { rule: Some(rule.number), ..decided(bucket, rule.lane, LaneReason::Rule) };
        }
        let Some(bucket) = bucket else { return decided(None, STABLE, LaneReason::Anonymous) };
        let (lane, reason) = self.by_range(listed, bucket);
        decided(Some(bucket), lane, reason)
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
            (Some(_), _) if Planted::LaneByDice.is_on() => Some((random % u64::from(BUCKETS)) as Bucket),
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

    /// The first match rule that holds, and whose lane is not closed to the subject.
    #[inline]
    fn rule(&self, entry: &Entry<'_>, listed: Listed) -> Option<&Rule> {
        let open = |rule: &&Rule| listed.deny >> rule.lane & 1 == 0;
        self.rules.iter().filter(open).find(|rule| rule.matches(entry))
    }

    fn by_range(&self, listed: Listed, bucket: Bucket) -> (u8, LaneReason) {
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
pub(super) const MAX_LANES: usize = 31;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::types::{BucketScheme, EmptyLaneRule, LaneRule, PolicyVersion, ServiceName, Wall};

    fn policy(lanes: &[(&str, u16, u16)]) -> LanePolicy {
        let rule = |start, size| LaneRule { start, size, ..LaneRule::default() };
        LanePolicy {
            service: ServiceName::new("orders").unwrap(),
            version: PolicyVersion { epoch: 0, clock: 1, author: "n1".into() },
            off: false,
            experiment: "checkout".into(),
            salt: "s1".into(),
            scheme: BucketScheme::Prefixed,
            lanes: lanes.iter().map(|(name, start, size)| (lane(name), rule(*start, *size))).collect(),
            subject: None,
            anonymous: AnonymousRule::Stable,
            empty: EmptyLaneRule::default(),
            reason: String::new(),
            set_at: Wall(0),
            rules: Vec::new(),
            reserved: BTreeMap::new(),
            selectors: BTreeMap::new(),
        }
    }

    fn lane(name: &str) -> Lane {
        Lane::new(name).unwrap()
    }

    fn listed(mut policy: LanePolicy, name: &str, allow: &[&str], deny: &[&str]) -> LanePolicy {
        let rule = policy.lanes.entry(lane(name)).or_default();
        rule.allow.extend(allow.iter().map(|s| s.to_string()));
        rule.deny.extend(deny.iter().map(|s| s.to_string()));
        policy
    }

    fn compile(policy: LanePolicy) -> CompiledPolicy {
        policy.check().unwrap();
        CompiledPolicy::new(Arc::new(policy))
    }

    fn decide<'a>(policy: &'a CompiledPolicy, subject: &str, explicit: Option<&str>) -> (&'a str, LaneReason, bool) {
        let decision = policy.decide(&Entry { subject: Some(subject), explicit, ..Entry::default() });
        (policy.lane(decision.lane).as_str(), decision.reason, decision.probe)
    }

    /// A subject whose bucket lies in `range`.
    fn subject_in(policy: &CompiledPolicy, range: std::ops::Range<u16>) -> String {
        let users = (0..100_000).map(|n| format!("u{n}"));
        users.into_iter().find(|user| range.contains(&policy.bucket_of(user))).unwrap()
    }

    #[test]
    fn ranges_decide_and_the_rest_is_stable() {
        let policy = compile(policy(&[("canary", 0, 500), ("beta", 500, 100)]));
        let in_canary = subject_in(&policy, 0..500);
        let in_beta = subject_in(&policy, 500..600);
        let outside = subject_in(&policy, 600..10_000);
        assert_eq!(decide(&policy, &in_canary, None), ("canary", LaneReason::Range, false));
        assert_eq!(decide(&policy, &in_beta, None), ("beta", LaneReason::Range, false));
        assert_eq!(decide(&policy, &outside, None), ("stable", LaneReason::OutOfRange, false));
    }

    #[test]
    fn the_ends_are_exact() {
        let none = compile(policy(&[("canary", 0, 0)]));
        let all = compile(policy(&[("canary", 0, 10_000)]));
        let one = compile(policy(&[("canary", 77, 1)]));
        for user in 0..20_000 {
            let user = format!("u{user}");
            assert_eq!(decide(&none, &user, None).0, "stable");
            assert_eq!(decide(&all, &user, None).0, "canary");
            assert_eq!(decide(&one, &user, None).0 == "canary", one.bucket_of(&user) == 77);
        }
    }

    #[test]
    fn explicit_is_for_allow_listed_subjects_only() {
        let base = policy(&[("canary", 0, 10_000), ("beta", 0, 0)]);
        let policy = compile(listed(listed(base, "canary", &["ann"], &[]), "beta", &["ben", "dan"], &["dan"]));
        assert_eq!(decide(&policy, "ann", Some("canary")), ("canary", LaneReason::Explicit, false));
        assert_eq!(decide(&policy, "ann", Some("stable")), ("stable", LaneReason::Explicit, false));
        assert_eq!(decide(&policy, "ann", Some("beta")), ("canary", LaneReason::AllowList, true));
        assert_eq!(decide(&policy, "ben", Some("beta")), ("beta", LaneReason::Explicit, false));
        assert_eq!(decide(&policy, "dan", Some("beta")), ("canary", LaneReason::Range, true));
        assert_eq!(decide(&policy, "eve", Some("stable")), ("canary", LaneReason::Range, true));
        assert_eq!(decide(&policy, "ann", Some("gamma")), ("canary", LaneReason::AllowList, true));
        assert_eq!(decide(&policy, "", Some("canary")), ("stable", LaneReason::Anonymous, true));
    }

    #[test]
    fn deny_beats_allow_and_range_of_its_lane_only() {
        let base = policy(&[("canary", 0, 10_000), ("beta", 0, 0)]);
        let policy = compile(listed(listed(base, "canary", &["ann"], &["ann", "ben"]), "beta", &["ben"], &[]));
        assert_eq!(decide(&policy, "ann", None), ("stable", LaneReason::DenyList, false));
        assert_eq!(decide(&policy, "ann", Some("canary")), ("stable", LaneReason::DenyList, true));
        assert_eq!(decide(&policy, "ben", None), ("beta", LaneReason::AllowList, false));
        assert_eq!(decide(&policy, "eve", None), ("canary", LaneReason::Range, false));
    }

    #[test]
    fn off_beats_all() {
        let mut set = listed(policy(&[("canary", 0, 10_000)]), "canary", &["ann"], &[]);
        set.off = true;
        let policy = compile(set);
        for (subject, explicit, probe) in
            [("ann", Some("canary"), false), ("eve", Some("canary"), true), ("", None, false)]
        {
            assert_eq!(decide(&policy, subject, explicit), ("stable", LaneReason::Off, probe));
        }
    }

    #[test]
    fn anonymous_requests_follow_their_rule() {
        let mut set = policy(&[("canary", 0, 2_500)]);
        assert_eq!(decide(&compile(set.clone()), "", None), ("stable", LaneReason::Anonymous, false));
        set.anonymous = AnonymousRule::Request;
        let policy = compile(set);
        let lane = |random| policy.decide(&Entry { random, ..Entry::default() });
        assert_eq!((lane(2_499).lane, lane(2_499).bucket), (1, Some(2_499)));
        assert_eq!((lane(12_500).lane, lane(12_500).reason), (0, LaneReason::OutOfRange));
    }

    #[test]
    fn lanes_are_numbered_in_name_order_and_unknown_numbers_read_as_stable() {
        let policy = compile(policy(&[("canary", 0, 1), ("beta", 1, 1)]));
        let names: Vec<_> = policy.lanes().iter().map(Lane::as_str).collect();
        assert_eq!(names, ["stable", "beta", "canary"]);
        assert_eq!(policy.lane(200).as_str(), "stable");
    }

    /// Up to three lanes, each growing inside a third of its own.
    fn sizes() -> impl Strategy<Value = [u16; 3]> {
        prop::array::uniform3(0_u16..=3_333)
    }

    fn three(sizes: [u16; 3]) -> CompiledPolicy {
        compile(policy(&[("a", 0, sizes[0]), ("b", 3_333, sizes[1]), ("c", 6_666, sizes[2])]))
    }

    proptest! {
        #[test]
        fn raising_only_adds_and_lowering_only_removes(before in sizes(), after in sizes(), users in prop::collection::vec("[a-z0-9]{1,12}", 50)) {
            let (old, new) = (three(before), three(after));
            for user in users {
                let (was, is) = (decide(&old, &user, None).0, decide(&new, &user, None).0);
                for (index, lane) in ["a", "b", "c"].into_iter().enumerate() {
                    // What another lane does has no part in it.
                    prop_assert!(was != lane || is == lane || after[index] < before[index]);
                    prop_assert!(is != lane || was == lane || after[index] > before[index]);
                }
            }
        }

        #[test]
        fn equals_the_order_of_the_rules(
            sizes in sizes(),
            lists in prop::collection::btree_map("[abc]", (prop::collection::btree_set("[u-z]", 0..4), prop::collection::btree_set("[u-z]", 0..4)), 0..4),
            subject in "[u-z]",
            explicit in prop::option::of("a|b|c|stable|d"),
            off in any::<bool>(),
        ) {
            let mut set = policy(&[("a", 0, sizes[0]), ("b", 3_333, sizes[1]), ("c", 6_666, sizes[2])]);
            set.off = off;
            for (name, (allow, deny)) in lists {
                let rule = set.lanes.get_mut(name.as_str()).unwrap();
                (rule.allow, rule.deny) = (allow, deny);
            }
            let expected = by_rules(&set, &subject, explicit.as_deref());
            let compiled = compile(set);
            prop_assert_eq!(decide(&compiled, &subject, explicit.as_deref()), (expected.0.as_str(), expected.1, expected.2));
        }
    }

    /// The rules of L4, read one by one.
    fn by_rules(policy: &LanePolicy, subject: &str, explicit: Option<&str>) -> (String, LaneReason, bool) {
        let allowed: BTreeMap<_, _> = policy.lanes.iter().filter(|(_, rule)| rule.allow.contains(subject)).collect();
        let open = |name: &str| policy.lanes.get(name).is_some_and(|rule| !rule.deny.contains(subject));
        let honoured = explicit.filter(|name| match *name {
            "stable" => !allowed.is_empty(),
            name => allowed.contains_key(&lane(name)) && open(name),
        });
        let probe = explicit.is_some() && honoured.is_none();
        let stable = |reason| ("stable".to_owned(), reason, probe);
        if policy.off {
            return stable(LaneReason::Off);
        }
        if let Some(name) = honoured {
            return (name.to_owned(), LaneReason::Explicit, probe);
        }
        if let Some(name) = allowed.keys().find(|name| open(name.as_str())) {
            return (name.to_string(), LaneReason::AllowList, probe);
        }
        let bucket = Prefix::new(policy.scheme, &policy.salt, &policy.experiment).bucket(subject.as_bytes());
        match policy.lanes.iter().find(|(_, rule)| (rule.start..rule.start + rule.size).contains(&bucket)) {
            Some((name, _)) if !open(name.as_str()) => stable(LaneReason::DenyList),
            Some((name, _)) => (name.to_string(), LaneReason::Range, probe),
            None => stable(LaneReason::OutOfRange),
        }
    }
}
