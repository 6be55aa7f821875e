//! One decision: lane, candidates, ring, walk. Pure, lock-free, without allocation.
//!
//! Order: the policy gives the lane (none: `stable`); an empty lane falls back or fails by the policy's rule for empty lanes;
//! the key's place on the lane's ring gives the failover order; the first candidate in it that local state does not speak
//! against is chosen. If local state speaks against all of them, the first that is coming back takes the request, and where
//! there is none, the ring's owner is used as it is (panic): a candidate that may answer is better than none. A lane other than
//! `stable` is left for `stable` before that, where its rule for empty lanes says so.
//!
//! The words of a decision are in `explain`; what happens after it is in `attempts`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    InstanceEntry, LaneView, Look, MethodClass, ServiceView, Snapshot, admission_hash, hot, key_hash, load::Room,
};
use crate::{
    config::{Balance, Routing},
    lanes::{Entry, Head, LaneDecision},
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
    /// What match rules look at.
    pub head: Option<&'a dyn Head>,
}

/// Why the walk passed over a candidate: local state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SkipReason {
    /// Its sidecar is accused.
    Doubtful,
    /// Its breaker is open: it failed a moment ago.
    BreakerOpen,
    /// Other sidecars saw it fail a moment ago.
    Signalled,
    /// Its breaker was open for long enough, and one request of its own keys is to try it first.
    HalfOpen,
    /// It works again; its keys come back little by little, and this one is not among them yet.
    Ramping,
    /// It is new; its keys come little by little, and this one is not among them yet.
    SlowStart,
    /// It has more than its part of this sidecar's requests in flight (`bounded_load`).
    Loaded,
    /// Its sidecar says that it has more to do than it can, and it has its smaller part of this sidecar's requests.
    SaysFull,
    /// It has as many of this sidecar's requests in flight as it may.
    Full,
    /// Several requests wait there unheard of, and this one could not be repeated elsewhere.
    Silent,
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
    /// It has candidates, and local state speaks against all of them.
    Sick,
    /// It has candidates that come back after it had none, and this key is not among theirs yet.
    Returning,
    /// It has candidates, and all of them have as many of this sidecar's requests as they may.
    Saturated,
}

impl FallbackReason {
    /// As it is logged and labelled.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Unhealthy => "unhealthy",
            Self::Draining => "draining",
            Self::Sick => "sick",
            Self::Returning => "returning",
            Self::Saturated => "saturated",
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
    /// Local state spoke against every candidate, none of them was even coming back, and the ring's owner was taken all the same.
    pub panic: bool,
    /// It would leave its lane, but the lane in its place has no room for it (`fallback_capacity`).
    pub capped: bool,
    /// Its key is spread over so many of the first in its failover order; 1 for an ordinary one.
    pub spread: u8,
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
    let key = key.or(request.subject.filter(|subject| !subject.is_empty()));
    let by_load = match service.rules.balance {
        Balance::Ring => false,
        Balance::KeylessLeastLoaded => key.is_none(),
        Balance::LeastLoaded => true,
    };
    let key_hash = match key.filter(|_| !by_load) {
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
        capped: false,
        spread: if by_load || key.is_none() { 1 } else { hot::spread(service, key_hash, now) },
        snapshot: snapshot.version,
    };
    let decided = service.decided_index(lane.lane);
    let lane = &service.lanes[usize::from(decided)];
    decision.fallback = lane.empty;
    if lane.empty.is_some() {
        decision.served = fallback(service, decided, lane.empty, request.method);
        if decision.served.is_some() && !lane.is_taken(key_hash) {
            (decision.served, decision.capped) = (None, true);
        }
        if let Some(served) = decision.served {
            walk(service, &service.lanes[usize::from(served)], request, now, &mut decision);
        }
        return decision;
    }
    decision.served = Some(decided);
    let found = walk(service, lane, request, now, &mut decision);
    if found != Found::Well {
        leave(service, decided, found, request, now, &mut decision);
    }
    if by_load {
        lighter(service, request, now, &mut decision);
    }
    decision
}

/// Of the chosen candidate and one of another place on the ring, the one with fewer requests in flight for its weight ("the power
/// of two choices", Mitzenmacher 2001). Where it leaves the lane, what was chosen stands.
fn lighter(service: &ServiceView, request: &Request<'_>, now: Mono, decision: &mut Decision) {
    let Some(lane) = decision.served_lane(service).filter(|_| !decision.panic && decision.fallback.is_none()) else {
        return;
    };
    let key_hash = key_hash(&request.random.rotate_left(32).wrapping_add(1).to_le_bytes());
    let mut other = Decision { key_hash, skipped: SkippedList::default(), ..*decision };
    if walk(service, lane, request, now, &mut other) != Found::Well {
        return;
    }
    let load = |decision: &Decision| {
        let entry = decision.target(service).map(|entry| (entry.cell.in_flight(), entry.record.ring_weight()));
        entry.unwrap_or((u32::MAX, 1))
    };
    let ((here, here_weight), (there, there_weight)) = (load(decision), load(&other));
    if u64::from(there) * u64::from(here_weight) < u64::from(here) * u64::from(there_weight) {
        *decision = other;
    }
}

/// Nobody in the decided lane is well. Where its rule for empty lanes allows it, and somebody in the lane in its place is, the
/// request is served there. `stable` is never left for this: its floor keeps half of it in use.
#[cold]
fn leave(service: &ServiceView, decided: u16, found: Found, request: &Request<'_>, now: Mono, decision: &mut Decision) {
    let lane = &service.lanes[usize::from(decided)];
    let may = match found {
        Found::Full => service.rules.fallback.saturated && !lane.name.is_stable(),
        Found::Well | Found::LastResort => service.may_be_left(&lane.name),
    };
    let why = match found {
        Found::Full => FallbackReason::Saturated,
        _ if decision.panic => FallbackReason::Sick,
        _ => FallbackReason::Returning,
    };
    if !may || !lane.is_taken(decision.key_hash) {
        return;
    }
    let Some(other) = fallback(service, decided, Some(why), request.method) else { return };
    let mut there = Decision { served: Some(other), fallback: Some(why), panic: false, ..*decision };
    if walk(service, &service.lanes[usize::from(other)], request, now, &mut there) == Found::Well {
        *decision = there;
    }
}

/// Who asks about a candidate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asking {
    pub(super) key_hash: u64,
    /// The candidate is the key's owner and the request may be the one that tries it: its failure can be repaired elsewhere, or
    /// nobody better has come.
    pub(super) may_try: MayTry,
    /// It cannot be repeated: it is not sent where several have waited unheard of for so long.
    pub(super) wary: Option<Duration>,
    pub(super) room: Room,
    pub(super) now: Mono,
}

/// Whether a request may be the one that tries an instance whose breaker was open for long enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MayTry {
    No,
    /// When nobody whose failure can be repaired came for a while.
    Overdue,
    Yes,
}

/// Why local state speaks against a candidate now, if it does.
#[inline]
pub(super) fn skip_reason(entry: &InstanceEntry, rules: &Routing, asking: Asking) -> Option<SkipReason> {
    if entry.owner == MemberState::Doubtful {
        return Some(SkipReason::Doubtful);
    }
    match entry.cell.look(asking.now, rules) {
        Look::Well => reason_of_load(entry, asking),
        look => breaker_reason(entry, look, asking),
    }
}

#[cold]
fn breaker_reason(entry: &InstanceEntry, look: Look, asking: Asking) -> Option<SkipReason> {
    match look {
        Look::Well => None,
        Look::Shut { signalled: false } => Some(SkipReason::BreakerOpen),
        Look::Shut { signalled: true } => Some(SkipReason::Signalled),
        Look::MayTry { overdue } => {
            let tries = asking.may_try == MayTry::Yes || (overdue && asking.may_try == MayTry::Overdue);
            (!tries).then_some(SkipReason::HalfOpen)
        }
        Look::Ramping { share, fresh } => {
            let waits = admission_hash(asking.key_hash, &entry.record.id) > share;
            let slowly = waits.then_some(if fresh { SkipReason::SlowStart } else { SkipReason::Ramping });
            slowly.or_else(|| reason_of_load(entry, asking))
        }
    }
}

/// Why what is in flight there speaks against it.
#[inline]
fn reason_of_load(entry: &InstanceEntry, asking: Asking) -> Option<SkipReason> {
    let silent = |after| entry.cell.is_silent(asking.now, after).then_some(SkipReason::Silent);
    asking.room.speaks_against(entry).or_else(|| asking.wary.and_then(silent))
}

#[inline]
fn decide_lane(service: &ServiceView, request: &Request<'_>) -> LaneDecision {
    match &service.policy {
        Some(policy) => {
            let Request { subject, explicit_lane: explicit, random, head, .. } = *request;
            policy.decide(&Entry { subject, explicit, random, head })
        }
        None => LaneDecision::no_policy(request.explicit_lane.is_some()),
    }
}

/// The lane that serves in place of an empty one (REQUIREMENTS L7): `stable`, and from there the policy's other lanes in name
/// order where it says that they may serve for `stable`. While a policy is off, they may not.
#[cold]
fn fallback(service: &ServiceView, decided: u16, why: Option<FallbackReason>, method: MethodClass) -> Option<u16> {
    let policy = service.policy.as_ref().map(|compiled| &compiled.policy);
    let rule = policy.map_or_else(EmptyLaneRule::default, |policy| policy.empty);
    let by_method = if method == MethodClass::Safe { rule.safe } else { rule.unsafe_methods };
    let fails = by_method == EmptyLane::Fail && !Planted::UnsafeFallsBack.is_on();
    if fails || !leaves_for(service, why) {
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

/// Whom a walk found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// A candidate that nothing speaks against, or only that it has more than its part to do.
    Well,
    /// Some are well, and all of those are full.
    Full,
    /// One that something speaks against, for want of another; or none at all.
    LastResort,
}

/// Whether this sidecar's rules have requests leave a lane for what it is short of.
fn leaves_for(service: &ServiceView, why: Option<FallbackReason>) -> bool {
    let on = &service.rules.fallback;
    match why {
        Some(FallbackReason::Absent) => on.absent,
        Some(FallbackReason::Unhealthy) => on.unhealthy,
        Some(FallbackReason::Draining) => on.draining,
        Some(FallbackReason::Saturated) => on.saturated,
        Some(FallbackReason::Sick | FallbackReason::Returning) | None => on.sick,
    }
}

#[inline]
fn walk(service: &ServiceView, lane: &LaneView, request: &Request<'_>, now: Mono, decision: &mut Decision) -> Found {
    let may_try = if request.method == MethodClass::Other { MayTry::Overdue } else { MayTry::Yes };
    let room = Room::of(lane, &service.rules);
    let wary = service.rules.silent_after.filter(|_| request.method == MethodClass::Other);
    let mut asking = Asking { key_hash: decision.key_hash, may_try, wary, room, now };
    let mut resorts = Resorts::default();
    let mut before = if decision.spread > 1 { hot::pick(request, decision.spread) } else { 0 };
    for instance in lane.order(decision.key_hash) {
        match skip_reason(&service.instances[usize::from(instance)], &service.rules, asking) {
            None if before == 0 => {
                decision.instance = Some(instance);
                return Found::Well;
            }
            // Of a key that is spread: another request's.
            None => {
                before -= 1;
                resorts.well = resorts.well.or(Some(instance));
            }
            Some(why) => {
                decision.skipped.push(Skipped { instance, why });
                resorts.note(instance, why);
            }
        }
        // Only its own keys try an instance: others would move to it and back.
        asking.may_try = MayTry::No;
    }
    resorts.settle(lane, decision)
}

/// What a walk that found nobody falls back on: the first of each kind.
#[derive(Debug, Default)]
struct Resorts {
    /// Well, but another request's of the same key.
    well: Option<u16>,
    says_full: Option<u16>,
    loaded: Option<u16>,
    silent: Option<u16>,
    full: Option<u16>,
    coming_back: Option<u16>,
}

impl Resorts {
    fn note(&mut self, instance: u16, why: SkipReason) {
        let place = match why {
            SkipReason::SaysFull => &mut self.says_full,
            SkipReason::Loaded => &mut self.loaded,
            SkipReason::Silent => &mut self.silent,
            SkipReason::Full => &mut self.full,
            SkipReason::Ramping | SkipReason::SlowStart => &mut self.coming_back,
            SkipReason::Doubtful | SkipReason::BreakerOpen | SkipReason::Signalled | SkipReason::HalfOpen => return,
        };
        *place = place.or(Some(instance));
    }

    #[cold]
    fn settle(self, lane: &LaneView, decision: &mut Decision) -> Found {
        let well = self.well.or(self.says_full).or(self.loaded).or(self.silent);
        decision.instance = well.or(self.full).or(self.coming_back).or_else(|| lane.order(decision.key_hash).next());
        decision.panic = decision.instance.is_some() && well.or(self.full).or(self.coming_back).is_none();
        match (well, self.full) {
            (Some(_), _) => Found::Well,
            (None, Some(_)) => Found::Full,
            (None, None) => Found::LastResort,
        }
    }
}

/// Skipped candidates that a decision names; more are counted.
const KEPT_SKIPS: usize = 4;

#[cfg(test)]
mod tests;
