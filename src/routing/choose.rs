//! One decision: lane, candidates, ring, walk. Pure, lock-free, without allocation.
//!
//! Order: the policy gives the lane (none: `stable`); an empty lane falls back or fails by the policy's rule for empty lanes;
//! the key's place on the lane's ring gives the failover order; the first candidate in it that local state does not speak
//! against is chosen. If local state speaks against all of them, the ring's owner is used as it is (panic): a candidate that
//! may answer is better than none.
//!
//! The words of a decision are in `explain`; what happens after it is in `attempts`.

use serde::{Deserialize, Serialize};

use super::{InstanceEntry, LaneView, MethodClass, ServiceView, Snapshot, key_hash};
use crate::{
    lanes::{Entry, LaneDecision},
    types::{EmptyLane, EmptyLaneRule, MemberState, Mono, Planted},
};

/// What routing sees of a request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Who is bucketed. An empty text counts as none.
    pub subject: Option<&'a str>,
    /// What is hashed on the ring; the subject when absent, a random number when both are. An empty text counts as none.
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

/// The candidates that a walk passed over: the first few, and how many more there were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SkippedList {
    first: [Option<Skipped>; KEPT_SKIPS],
    more: u16,
}

impl SkippedList {
    fn push(&mut self, skipped: Skipped) {
        match self.first.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(skipped),
            None => self.more = self.more.saturating_add(1),
        }
    }

    /// The first of them, in failover order.
    pub fn iter(&self) -> impl Iterator<Item = Skipped> {
        self.first.iter().copied().flatten()
    }

    /// How many there were beyond those.
    pub fn more(&self) -> u16 {
        self.more
    }

    /// Whether none was passed over.
    pub fn is_empty(&self) -> bool {
        self.first[0].is_none()
    }
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

impl FallbackReason {
    /// As it is logged and labelled.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Unhealthy => "unhealthy",
            Self::Draining => "draining",
        }
    }
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
    /// The lane that serves: index into [`ServiceView::lanes`]; `None` when none may.
    pub served: Option<u16>,
    /// Why the decided lane does not serve; `None` when it does.
    pub fallback: Option<FallbackReason>,
    /// Candidates before the chosen one in failover order.
    pub skipped: SkippedList,
    /// Local state spoke against every candidate, and the ring's owner was taken all the same.
    pub panic: bool,
    /// Version of the snapshot.
    pub snapshot: u64,
}

impl Decision {
    /// The chosen instance. `service` must be the view that the decision was made on.
    pub fn target<'a>(&self, service: &'a ServiceView) -> Option<&'a InstanceEntry> {
        self.instance.map(|at| &service.instances[usize::from(at)])
    }

    /// The lane that serves. `service` must be the view that the decision was made on.
    pub fn served_lane<'a>(&self, service: &'a ServiceView) -> Option<&'a LaneView> {
        self.served.map(|at| &service.lanes[usize::from(at)])
    }
}

/// Decides. The snapshot must be the one that `service` belongs to.
#[inline]
pub fn choose(snapshot: &Snapshot, service: &ServiceView, request: &Request<'_>, now: Mono) -> Decision {
    let lane = decide_lane(service, request);
    let key = request.route_key.filter(|key| !key.is_empty());
    let key_hash = match key.or(request.subject.filter(|subject| !subject.is_empty())) {
        Some(key) => key_hash(key.as_bytes()),
        None => key_hash(&request.random.to_le_bytes()),
    };
    let mut decision = Decision {
        lane,
        key_hash,
        instance: None,
        served: None,
        fallback: None,
        skipped: SkippedList::default(),
        panic: false,
        snapshot: snapshot.version,
    };
    let decided = service.decided_index(lane.lane);
    decision.fallback = service.lanes[usize::from(decided)].empty;
    decision.served = match decision.fallback {
        None => Some(decided),
        Some(_) => fallback(service, decided, request.method),
    };
    if let Some(served) = decision.served {
        walk(service, &service.lanes[usize::from(served)], now, &mut decision);
    }
    decision
}

/// Why local state speaks against a candidate now, if it does.
#[inline]
pub(super) fn skip_reason(entry: &InstanceEntry, now: Mono) -> Option<SkipReason> {
    if entry.owner == MemberState::Doubtful {
        return Some(SkipReason::Doubtful);
    }
    entry.cell.doubtful(now).then_some(SkipReason::Refusing)
}

#[inline]
fn decide_lane(service: &ServiceView, request: &Request<'_>) -> LaneDecision {
    match &service.policy {
        Some(policy) => {
            policy.decide(&Entry { subject: request.subject, explicit: request.explicit_lane, random: request.random })
        }
        None => LaneDecision::no_policy(request.explicit_lane.is_some()),
    }
}

/// The lane that serves in place of an empty one (REQUIREMENTS L7): `stable`, and from there the policy's other lanes in name
/// order where it says that they may serve for `stable`. While a policy is off, they may not.
#[cold]
fn fallback(service: &ServiceView, decided: u16, method: MethodClass) -> Option<u16> {
    let policy = service.policy.as_ref().map(|compiled| &compiled.policy);
    let rule = policy.map_or_else(EmptyLaneRule::default, |policy| policy.empty);
    let by_method = if method == MethodClass::Safe { rule.safe } else { rule.unsafe_methods };
    if by_method == EmptyLane::Fail && !Planted::UnsafeFallsBack.is_on() {
        return None;
    }
    let (stable, others) = service.lane_of.split_first()?;
    let others_serve = rule.stable_to_others && policy.is_some_and(|policy| !policy.off);
    let others = others.iter().take_while(|_| others_serve);
    std::iter::once(stable)
        .chain(others)
        .copied()
        .find(|lane| *lane != decided && service.lanes[usize::from(*lane)].empty.is_none())
}

#[inline]
fn walk(service: &ServiceView, lane: &LaneView, now: Mono, decision: &mut Decision) {
    for instance in lane.order(decision.key_hash) {
        match skip_reason(&service.instances[usize::from(instance)], now) {
            None => {
                decision.instance = Some(instance);
                return;
            }
            Some(why) => decision.skipped.push(Skipped { instance, why }),
        }
    }
    decision.instance = lane.order(decision.key_hash).next();
    decision.panic = decision.instance.is_some();
}

/// Skipped candidates that a decision names; more are counted.
const KEPT_SKIPS: usize = 4;

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use super::*;
    use crate::{
        lanes::LaneReason,
        routing::{CandidateTable, testing::*},
        types::{AnonymousRule, Health},
    };

    fn users(count: u32) -> impl Iterator<Item = String> {
        (0..count).map(|user| format!("user-{user}"))
    }

    fn chosen(snapshot: &Snapshot, request: &Request<'_>) -> Option<String> {
        let service = snapshot.service("orders").unwrap();
        let decision = choose(snapshot, service, request, NOW);
        decision.target(service).map(|entry| entry.record.id.to_string())
    }

    fn owners(snapshot: &Snapshot, count: u32) -> BTreeMap<String, String> {
        users(count).map(|user| (user.clone(), chosen(snapshot, &get(&user)).unwrap())).collect()
    }

    fn refuse(snapshot: &Snapshot, id: &str) {
        let service = snapshot.service("orders").unwrap();
        let entry = service.instances.iter().find(|entry| entry.record.id.as_str() == id).unwrap();
        entry.cell.refused(NOW);
        entry.cell.refused(NOW);
    }

    /// C81: only a doubtful instance's keys move, each to its next; they return.
    #[test]
    fn a_refusing_instance_is_skipped_and_nobody_else_s_keys_move() {
        let snapshot = built(&fleet(5, 0));
        let service = snapshot.service("orders").unwrap();
        let before = owners(&snapshot, 2_000);
        refuse(&snapshot, "a2");
        for (user, owner) in &before {
            let decision = choose(&snapshot, service, &get(user), NOW);
            let now = &decision.target(service).unwrap().record.id;
            let order: Vec<u16> = decision.served_lane(service).unwrap().order(decision.key_hash).collect();
            if owner == "a2" {
                assert_eq!(decision.instance, Some(order[1]));
                assert_eq!(
                    decision.skipped.iter().collect::<Vec<_>>(),
                    [Skipped { instance: order[0], why: SkipReason::Refusing }]
                );
            } else {
                assert_eq!(now.as_str(), owner);
                assert!(decision.skipped.is_empty());
            }
        }
        service.instances[2].cell.answered();
        assert_eq!(owners(&snapshot, 2_000), before);
    }

    #[test]
    fn an_accused_owner_is_skipped_with_the_ring_unchanged() {
        let mut table = fleet(4, 0);
        let (before, calm) = (built(&table), owners(&built(&table), 500));
        owner(&mut table, "a1", MemberState::Doubtful);
        let after = built(&table);
        assert_eq!(after.digest, before.digest);
        let now = owners(&after, 500);
        let moved: Vec<_> = calm.iter().filter(|(user, owner)| now[*user] != **owner).collect();
        assert!(!moved.is_empty() && moved.iter().all(|(_, owner)| *owner == "a1"));
    }

    /// C79: with everything doubtful the ring's owner is used as it is, and the decision says so.
    #[test]
    fn never_nothing_while_there_is_a_candidate() {
        let snapshot = built(&fleet(7, 0));
        let service = snapshot.service("orders").unwrap();
        let calm = owners(&snapshot, 50);
        for id in ["a0", "a1", "a2", "a3", "a4", "a5", "a6"] {
            refuse(&snapshot, id);
        }
        let decision = choose(&snapshot, service, &get("user-1"), NOW);
        assert!(decision.panic);
        assert_eq!((decision.skipped.iter().count(), decision.skipped.more()), (4, 3));
        assert_eq!(owners(&snapshot, 50), calm);
    }

    /// C85: both sides are sticky, the same on every node, and a raise only adds.
    #[test]
    fn users_keep_their_lane_and_a_raise_only_adds() {
        let at = |size| built(&with_policy(fleet(3, 2), policy(size)));
        let on_canary = |snapshot: &Snapshot, user: &str| chosen(snapshot, &get(user)).unwrap().starts_with('c');
        let (five, again, more) = (at(500), at(500), at(2_500));
        let mut count = 0;
        for user in users(10_000) {
            let now = on_canary(&five, &user);
            assert_eq!(now, on_canary(&again, &user));
            assert!(!now || on_canary(&more, &user));
            count += u32::from(now);
        }
        assert!((440..=560).contains(&count), "{count} of 10,000 at 5 %");
    }

    #[test]
    fn without_a_policy_everybody_is_stable_and_a_named_lane_is_a_probe() {
        let snapshot = built(&fleet(1, 3));
        let service = snapshot.service("orders").unwrap();
        let request = Request { explicit_lane: Some("canary"), ..get("ann") };
        let decision = choose(&snapshot, service, &request, NOW);
        assert_eq!((decision.lane.reason, decision.lane.probe), (LaneReason::NoPolicy, true));
        assert_eq!(chosen(&snapshot, &request).unwrap(), "a0");
    }

    fn fallback_of(table: &CandidateTable, request: &Request<'_>) -> (Option<String>, Option<FallbackReason>) {
        let snapshot = built(table);
        let service = snapshot.service("orders").unwrap();
        let decision = choose(&snapshot, service, request, NOW);
        (decision.served_lane(service).map(|lane| lane.name.to_string()), decision.fallback)
    }

    /// C87, C88: the lane by bucket first, then its rule for being empty, by cause and method.
    #[test]
    fn an_empty_lane_falls_back_for_safe_methods_only() {
        let stable = Some("stable".to_owned());
        let absent = with_policy(fleet(2, 0), policy(10_000));
        assert_eq!(fallback_of(&absent, &get("u")), (stable.clone(), Some(FallbackReason::Absent)));
        assert_eq!(fallback_of(&absent, &post("u")), (None, Some(FallbackReason::Absent)));
        let put = Request { method: MethodClass::Idempotent, ..get("u") };
        assert_eq!(fallback_of(&absent, &put), (None, Some(FallbackReason::Absent)));

        let mut draining = with_policy(fleet(2, 2), policy(10_000));
        edit(&mut draining, "c0", |record| record.drain = drain());
        edit(&mut draining, "c1", |record| record.weight = 0);
        assert_eq!(fallback_of(&draining, &get("u")), (stable.clone(), Some(FallbackReason::Draining)));

        let mut unhealthy = draining.clone();
        edit(&mut unhealthy, "c0", |record| (record.drain, record.health) = (None, Health::Critical));
        assert_eq!(fallback_of(&unhealthy, &get("u")), (stable, Some(FallbackReason::Unhealthy)));

        let mut posts = policy(10_000);
        posts.empty.unsafe_methods = EmptyLane::Fallback;
        assert_eq!(fallback_of(&with_policy(fleet(2, 0), posts), &post("u")).0.as_deref(), Some("stable"));

        let full_canary = with_policy(fleet(0, 2), policy(10_000));
        assert_eq!(fallback_of(&full_canary, &post("u")), (Some("canary".into()), None));
    }

    #[test]
    fn stable_falls_to_others_only_when_the_policy_says_so_and_is_not_off() {
        let mut set = policy(0);
        assert_eq!(fallback_of(&with_policy(fleet(0, 2), set.clone()), &get("u")).0, None);
        assert_eq!(fallback_of(&fleet(0, 2), &get("u")), (None, Some(FallbackReason::Absent)));
        set.empty.stable_to_others = true;
        let allowed = with_policy(fleet(0, 2), set.clone());
        assert_eq!(fallback_of(&allowed, &get("u")).0.as_deref(), Some("canary"));
        assert_eq!(fallback_of(&allowed, &post("u")).0, None);
        set.off = true;
        assert_eq!(fallback_of(&with_policy(fleet(0, 2), set), &get("u")).0, None);
    }

    #[test]
    fn the_route_key_goes_before_the_subject_and_chance_stands_in_for_both() {
        let snapshot = built(&fleet(20, 0));
        let keyed = |key| Request { route_key: Some(key), ..get("ann") };
        assert_eq!(chosen(&snapshot, &keyed("bob")), chosen(&snapshot, &get("bob")));
        assert_eq!(chosen(&snapshot, &keyed("")), chosen(&snapshot, &get("ann")));
        let random = |random| Request { subject: None, random, ..get("") };
        let spread: std::collections::BTreeSet<_> = (0..500).map(|n| chosen(&snapshot, &random(n))).collect();
        assert_eq!(spread.len(), 20, "small numbers reach every instance");
    }

    #[test]
    fn anonymous_by_request_splits_lanes_by_chance() {
        let mut set = policy(5_000);
        set.anonymous = AnonymousRule::Request;
        let snapshot = built(&with_policy(fleet(2, 2), set));
        let on_canary =
            |random| chosen(&snapshot, &Request { subject: None, random, ..get("") }).unwrap().starts_with('c');
        assert!(on_canary(4_999) && !on_canary(5_000));
    }

    /// S3: no request crosses the environment, enters a lane that it was not sent to, or goes to what is no candidate.
    #[test]
    fn decisions_keep_to_candidates_of_their_lane() {
        let mut table = with_policy(fleet(6, 4), policy(3_000));
        edit(&mut table, "a0", |record| record.env = crate::types::Env::new("staging").unwrap());
        edit(&mut table, "a1", |record| record.health = Health::Critical);
        edit(&mut table, "c0", |record| record.drain = drain());
        let snapshot = built(&table);
        let service = snapshot.service("orders").unwrap();
        for user in users(3_000) {
            let decision = choose(&snapshot, service, &post(&user), NOW);
            let entry = decision.target(service).unwrap();
            assert_eq!(entry.excluded, None);
            assert_eq!(entry.record.lane, service.decided(&decision.lane).name);
        }
    }

    #[test]
    fn a_decision_is_small_and_the_same_again() {
        assert!(size_of::<Decision>() <= 80, "{}", size_of::<Decision>());
        let snapshot: Arc<Snapshot> = built(&with_policy(fleet(9, 3), policy(1_000)));
        let service = snapshot.service("orders").unwrap();
        for user in users(100) {
            let decide = || choose(&snapshot, service, &get(&user), NOW);
            assert_eq!(decide(), decide());
        }
    }
}
