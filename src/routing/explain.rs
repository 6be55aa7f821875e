//! A decision in words, for `route`, the access log and response headers. Made from the decision, never decided anew.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{BreakerState, Decision, Exclusion, FallbackReason, Request, ServiceView, SkipReason, Snapshot, pin};
use crate::{
    lanes::{Bucket, LaneReason},
    types::{InstanceId, Lane, Mono, NodeId, PolicyVersion, ServiceName, VersionName},
};

/// What `lanemesh route` prints: the whole decision with its reasons (REQUIREMENTS R11).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The service.
    pub service: ServiceName,
    /// The subject, as given.
    pub subject: Option<String>,
    /// The route key, as given; the subject stands in when absent.
    pub route_key: Option<String>,
    /// Hash of the route key, 16 hexadecimal digits.
    pub key_hash: String,
    /// Bucket of the subject, where one was computed.
    pub bucket: Option<Bucket>,
    /// Version of the policy, if there is one.
    pub policy: Option<PolicyVersion>,
    /// The decided lane.
    pub lane: Lane,
    /// Why, for programs.
    pub lane_reason: LaneReason,
    /// Why, for people.
    pub lane_why: String,
    /// The match rule that decided: its place in the policy, from 1.
    #[serde(default)]
    pub rule: Option<u8>,
    /// An explicit lane header was ignored.
    pub probe: bool,
    /// The lane that serves; `None` when none may.
    pub served_lane: Option<Lane>,
    /// Why the decided lane does not serve.
    pub fallback: Option<FallbackReason>,
    /// It may not leave its lane: the lane in its place has no room for it.
    #[serde(default)]
    pub capped: bool,
    /// Of the decided lane's users: for how many of a hundred the lane in its place has room.
    #[serde(default = "all")]
    pub room_percent: u8,
    /// The chosen instance; `None` when there is no candidate.
    pub instance: Option<Target>,
    /// Candidates that were passed over before it, the first few.
    pub skipped: Vec<SkippedInstance>,
    /// How many more were passed over.
    pub skipped_more: u16,
    /// Local state spoke against every candidate; the ring's owner was taken all the same.
    pub panic: bool,
    /// Over how many instances its key is spread; 1 for an ordinary one.
    #[serde(default)]
    pub spread: u8,
    /// The instances that this sidecar's rules pin its key to; empty for an ordinary one.
    #[serde(default)]
    pub pinned: Vec<InstanceId>,
    /// Those of them that nobody announces: slips of the pen, perhaps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pinned_unknown: Vec<InstanceId>,
    /// Breaker of the chosen instance: `held` when it should be open, but too much of its lane is kept away already.
    #[serde(default)]
    pub breaker: BreakerState,
    /// The first instances in failover order, the ring's owner first.
    pub failover: Vec<InstanceId>,
    /// Number of candidates in the lane that serves.
    pub candidates: usize,
    /// Points on its ring.
    pub ring_points: usize,
    /// Instances of the service that are no candidates, in any lane.
    pub excluded: Vec<ExcludedInstance>,
    /// Version of the snapshot, counted by this node.
    pub snapshot: u64,
    /// Digest of the snapshot, 16 hexadecimal digits; equal on every node with the same content.
    pub snapshot_digest: String,
    /// Age of the snapshot in milliseconds.
    pub snapshot_age_ms: u64,
}

/// The chosen instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Instance id.
    pub id: InstanceId,
    /// Version of the application.
    pub version: VersionName,
    /// `host:port`.
    pub address: String,
    /// The sidecar that announces it.
    pub owner: NodeId,
    /// Known from disk or kept as a last resort, not confirmed by its owner in this run.
    pub stale: bool,
}

/// A candidate that was passed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedInstance {
    /// Instance id.
    pub id: InstanceId,
    /// Why.
    pub why: SkipReason,
}

/// An instance that is no candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExcludedInstance {
    /// Instance id.
    pub id: InstanceId,
    /// The sidecar that announces it.
    pub owner: NodeId,
    /// Its lane.
    pub lane: Lane,
    /// Why.
    pub why: Exclusion,
}

impl Explanation {
    /// Of a decision. Snapshot, service and request must be those that it was made of.
    pub fn of(
        snapshot: &Snapshot,
        service: &ServiceView,
        request: &Request<'_>,
        decision: &Decision,
        now: Mono,
    ) -> Self {
        let id = |at: u16| service.instances[usize::from(at)].record.id.clone();
        let decided = service.decided(&decision.lane).name.clone();
        let served = decision.served_lane(service);
        let pinned = pin::named(&service.rules, decision.key_hash);
        let is_known = |id: &InstanceId| service.instances.iter().any(|entry| entry.record.id == *id);
        Self {
            service: service.name.clone(),
            subject: request.subject.map(Into::into),
            route_key: request.route_key.map(Into::into),
            key_hash: format!("{:016x}", decision.key_hash),
            bucket: decision.lane.bucket,
            policy: service.policy_version().cloned(),
            lane_why: lane_why(service, decision, &decided),
            lane: decided,
            lane_reason: decision.lane.reason,
            rule: decision.lane.rule.map(|at| at + 1),
            probe: decision.lane.probe,
            served_lane: served.map(|lane| lane.name.clone()),
            fallback: decision.fallback,
            capped: decision.capped,
            room_percent: service.decided(&decision.lane).room_percent(),
            instance: decision.target(service).map(|entry| Target {
                id: entry.record.id.clone(),
                version: entry.record.version.clone(),
                address: entry.record.authority(),
                owner: entry.record.owner.clone(),
                stale: entry.stale,
            }),
            skipped: decision.skipped.iter().map(|s| SkippedInstance { id: id(s.instance), why: s.why }).collect(),
            skipped_more: decision.skipped.more(),
            panic: decision.panic,
            spread: decision.spread,
            pinned: pinned.to_vec(),
            pinned_unknown: pinned.iter().filter(|id| !is_known(id)).cloned().collect(),
            breaker: decision.target(service).map(|entry| entry.cell.state(now, &service.rules)).unwrap_or_default(),
            failover: served.map_or_else(Vec::new, |lane| lane.order(decision.key_hash).take(SHOWN).map(id).collect()),
            candidates: served.map_or(0, |lane| lane.members.len()),
            ring_points: served.map_or(0, |lane| lane.ring.points()),
            excluded: excluded(service),
            snapshot: decision.snapshot,
            snapshot_digest: format!("{:016x}", snapshot.digest),
            snapshot_age_ms: u64::try_from(now.since(snapshot.published).as_millis()).unwrap_or(u64::MAX),
        }
    }
}

fn excluded(service: &ServiceView) -> Vec<ExcludedInstance> {
    let one = |entry: &super::InstanceEntry| {
        let record = &entry.record;
        let (id, owner, lane) = (record.id.clone(), record.owner.clone(), record.lane.clone());
        entry.excluded.map(|why| ExcludedInstance { id, owner, lane, why })
    };
    service.instances.iter().filter_map(one).collect()
}

fn lane_why(service: &ServiceView, decision: &Decision, lane: &Lane) -> String {
    let range = |lane: &Lane| {
        let rule = service.policy.as_ref().and_then(|compiled| compiled.policy.lanes.get(lane));
        rule.map_or((0, 0), |rule| (u32::from(rule.start), u32::from(rule.start) + u32::from(rule.size)))
    };
    let bucket = decision.lane.bucket.unwrap_or_default();
    match decision.lane.reason {
        LaneReason::NoPolicy => "the service has no policy".into(),
        LaneReason::Off => "the policy is off: everybody goes to stable".into(),
        LaneReason::Explicit => "the request names the lane and its subject may".into(),
        LaneReason::AllowList => format!("the subject is on the allow-list of {lane}"),
        LaneReason::Rule => {
            let at = decision.lane.rule.unwrap_or_default();
            let rule = service.policy.as_ref().and_then(|compiled| compiled.policy.rules.get(usize::from(at)));
            let when = rule.map(ToString::to_string).unwrap_or_default();
            format!("rule {} of the policy matches: {when}", at + 1)
        }
        LaneReason::Range => {
            let (start, end) = range(lane);
            format!("bucket {bucket} is in {start}..{end}, the range of {lane}")
        }
        LaneReason::DenyList => format!("bucket {bucket} is in a lane's range, but the subject is on its deny-list"),
        LaneReason::OutOfRange => format!("bucket {bucket} is in no lane's range"),
        LaneReason::Anonymous => "the request has no subject, and such go to stable".into(),
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = |text: &Option<String>| text.as_ref().map_or_else(|| "none".to_owned(), |text| format!("{text:?}"));
        writeln!(f, "service    {}", self.service)?;
        writeln!(f, "subject    {}", given(&self.subject))?;
        if self.route_key.is_some() {
            writeln!(f, "route key  {}", given(&self.route_key))?;
        }
        writeln!(f, "lane       {}: {}", self.lane, self.lane_why)?;
        if self.probe {
            writeln!(
                f,
                "           the explicit lane header is ignored: the subject is not on that lane's allow-list"
            )?;
        }
        if let Some(version) = &self.policy {
            writeln!(f, "policy     epoch {}, clock {}, by {}", version.epoch, version.clock, version.author)?;
        }
        if let Some(reason) = self.fallback {
            let reason = reason.words();
            match &self.served_lane {
                Some(served) => writeln!(f, "fallback   to {served}: {} has {reason}", self.lane)?,
                None => writeln!(f, "fallback   none: {} has {reason}", self.lane)?,
            }
        }
        if self.capped {
            let percent = self.room_percent;
            writeln!(f, "           the lane in its place has room for {percent} % of its users: not for this one")?;
        }
        self.write_where(f)?;
        self.write_excluded(f)?;
        let (version, digest, age) = (self.snapshot, &self.snapshot_digest, self.snapshot_age_ms);
        write!(f, "snapshot   {version}, digest {digest}, {age} ms old")
    }
}

impl Explanation {
    fn write_where(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.instance {
            None if self.capped => writeln!(f, "instance   none: too many would leave their lane")?,
            Some(Target { id, version, address, owner, stale }) => {
                let stale = if *stale { ", stale" } else { "" };
                writeln!(f, "instance   {id} ({version}) at {address}, announced by {owner}{stale}")?;
            }
            None => writeln!(f, "instance   none: there is no candidate")?,
        }
        match self.breaker {
            BreakerState::Held => writeln!(
                f,
                "           its breaker should be open, but too much of the lane is kept away already: used as it is"
            )?,
            BreakerState::Closed => {}
            state => writeln!(f, "           its breaker is {}", state.as_str())?,
        }
        if self.spread > 1 {
            let over = self.spread;
            writeln!(
                f,
                "           its key is spread over the first {over} of its order: the next request may go to another"
            )?;
        }
        if !self.pinned.is_empty() {
            let named: Vec<&str> = self.pinned.iter().map(InstanceId::as_str).collect();
            writeln!(
                f,
                "           its key is pinned: {} before all others, as far as they are candidates",
                named.join(", ")
            )?;
        }
        if !self.pinned_unknown.is_empty() {
            let unknown: Vec<&str> = self.pinned_unknown.iter().map(InstanceId::as_str).collect();
            writeln!(f, "           of those, nobody announces {}", unknown.join(", "))?;
        }
        if self.panic {
            writeln!(f, "           every candidate is doubtful here; the ring's owner is used as it is")?;
        }
        for SkippedInstance { id, why } in &self.skipped {
            writeln!(f, "skipped    {id}: {}", why.words())?;
        }
        if self.skipped_more > 0 {
            writeln!(f, "           and {} more", self.skipped_more)?;
        }
        let order: Vec<&str> = self.failover.iter().map(InstanceId::as_str).collect();
        if !order.is_empty() {
            let more = if self.candidates > order.len() { ", ..." } else { "" };
            writeln!(f, "ring order {}{more}", order.join(", "))?;
        }
        writeln!(f, "candidates {} with {} points; key hash {}", self.candidates, self.ring_points, self.key_hash)
    }

    fn write_excluded(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ExcludedInstance { id, owner, lane, why } in self.excluded.iter().take(SHOWN) {
            writeln!(f, "left out   {id} ({lane}) of {owner}: {}", why.words())?;
        }
        let more = self.excluded.len().saturating_sub(SHOWN);
        if more > 0 { writeln!(f, "           and {more} more") } else { Ok(()) }
    }
}

impl Exclusion {
    /// The reason in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::OtherEnv => "it belongs to another environment",
            Self::OtherRegion => "requests from here must not go to its region (regions)",
            Self::Critical => "its own health check fails, or has not passed yet",
            Self::Draining => "it is draining",
            Self::WeightZero => "its weight is 0",
            Self::OwnerDown => "its sidecar is down",
            Self::OwnerLeft => "its sidecar has left the mesh",
            Self::Flapping => "it came back more than twice in a minute: it is held back, 5 s at first, at most 60 s",
            Self::DuplicateId => "another node announces the same instance id; the smaller node id keeps it",
        }
    }
}

impl SkipReason {
    /// The reason in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Doubtful => "its sidecar is accused of not answering",
            Self::BreakerOpen => "its breaker is open: it failed requests of this sidecar a moment ago",
            Self::Signalled => "other sidecars saw it fail a moment ago",
            Self::HalfOpen => "its breaker waits for one request of its own keys to try it",
            Self::Ramping => "it works again, and its keys come back little by little: not this one yet",
            Self::Loaded => "it has more than its part of this sidecar's requests in flight (bounded_load)",
            Self::SaysFull => {
                "its sidecar says that it has more to do than it can, and it has its smaller part of this sidecar's requests"
            }
            Self::Silent => "several requests wait there unheard of, and this one could not be repeated (silent_after)",
            Self::Full => "it has as many of this sidecar's requests in flight as it may",
            Self::SlowStart => "it is new, and its keys come little by little: not this one yet",
        }
    }

    /// As it is logged and labelled.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Doubtful => "doubtful",
            Self::BreakerOpen => "breaker-open",
            Self::Signalled => "signalled",
            Self::HalfOpen => "half-open",
            Self::Ramping => "ramping",
            Self::SlowStart => "slow-start",
            Self::Loaded => "loaded",
            Self::SaysFull => "says-full",
            Self::Full => "full",
            Self::Silent => "silent",
        }
    }
}

impl FallbackReason {
    /// What the lane has.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Absent => "no instance",
            Self::Unhealthy => "no healthy instance",
            Self::Draining => "only instances that drain or have weight 0",
            Self::Sick => "only instances that fail",
            Self::Saturated => "only instances that have as many requests as they may",
            Self::Returning => "only instances that are coming back, and this key is not among theirs yet",
        }
    }
}

fn all() -> u8 {
    100
}

/// Instances shown of a long list.
const SHOWN: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        routing::{Snapshot, choose, testing::*},
        types::{Health, MemberState},
    };

    fn explain(snapshot: &Snapshot, request: &Request<'_>) -> Explanation {
        let service = snapshot.service("orders").unwrap();
        let decision = choose(snapshot, service, request, NOW);
        Explanation::of(snapshot, service, request, &decision, NOW + std::time::Duration::from_millis(40))
    }

    #[test]
    fn says_who_where_and_why() {
        let mut table = with_policy(fleet(4, 2), policy(10_000));
        edit(&mut table, "a1", |record| record.health = Health::Critical);
        let snapshot = built(&table);
        let explained = explain(&snapshot, &get("ann"));
        assert_eq!((explained.lane.as_str(), explained.lane_reason), ("canary", LaneReason::Range));
        assert_eq!(explained.failover[0], explained.instance.as_ref().unwrap().id);
        assert_eq!((explained.candidates, explained.ring_points), (2, 512));
        let text = explained.to_string();
        let bucket = explained.bucket.unwrap();
        for part in [
            format!("lane       canary: bucket {bucket} is in 0..10000, the range of canary"),
            "policy     epoch 0, clock 10000, by n1".into(),
            "at 10.0.0.1:8080, announced by node-c".into(),
            "left out   a1 (stable) of node-a1: its own health check fails, or has not passed yet".into(),
            format!("snapshot   1, digest {:016x}, 40 ms old", snapshot.digest),
        ] {
            assert!(text.contains(&part), "{part:?} is missing in\n{text}");
        }
    }

    #[test]
    fn says_what_was_passed_over_and_that_it_was_the_last_resort() {
        let mut table = fleet(2, 0);
        owner(&mut table, "a0", MemberState::Doubtful);
        owner(&mut table, "a1", MemberState::Doubtful);
        let explained = explain(&built(&table), &Request { explicit_lane: Some("canary"), ..get("ann") });
        assert!(explained.panic && explained.probe);
        assert_eq!(explained.skipped.len(), 2);
        let text = explained.to_string();
        for part in
            ["ring's owner is used as it is", "is accused of not answering", "the explicit lane header is ignored"]
        {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }

    #[test]
    fn says_why_nobody_serves() {
        let explained = explain(&built(&with_policy(fleet(1, 0), policy(10_000))), &post("ann"));
        assert_eq!((explained.served_lane.as_ref(), explained.instance.as_ref()), (None, None));
        assert!(explained.to_string().contains("fallback   none: canary has no instance"));
        let explained = explain(&built(&with_policy(fleet(1, 0), policy(10_000))), &get("ann"));
        assert!(explained.to_string().contains("fallback   to stable: canary has no instance"));
    }

    #[test]
    fn says_what_the_breaker_does() {
        let snapshot = built(&fleet(2, 0));
        let service = snapshot.service("orders").unwrap();
        let calm = explain(&snapshot, &get("ann"));
        let owner =
            service.instances.iter().find(|entry| entry.record.id == calm.instance.as_ref().unwrap().id).unwrap();
        owner.cell.hold();
        let text = explain(&snapshot, &get("ann")).to_string();
        assert!(text.contains("its breaker should be open, but too much of the lane"), "{text}");
        owner.cell.renew();
        open_breaker(owner);
        let text = explain(&snapshot, &get("ann")).to_string();
        assert!(text.contains(&format!("skipped    {}: its breaker is open", owner.record.id)), "{text}");
    }

    #[test]
    fn survives_json() {
        let explained = explain(&built(&with_policy(fleet(3, 2), policy(500))), &get("ann"));
        let json = serde_json::to_string(&explained).unwrap();
        assert_eq!(serde_json::from_str::<Explanation>(&json).unwrap(), explained);
    }
}
