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
    types::{EmptyLane, EmptyLaneRule, MemberState, Mono},
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
    if by_method == EmptyLane::Fail {
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
