//! What this sidecar itself says: its instances, drains, policies set here, and goodbye.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Drains, Node, Now, Output, Phase, Records, Spread, sync::Purpose};
use crate::{
    catalog::{Change, MAX_AHEAD_MS},
    health::Easing,
    lanes::{PolicyChange, rollback},
    types::{
        CertFacts, Drain, Env, Health, InstanceId, InstanceRecord, Lane, LanePolicy, MAX_RECORD_BYTES, MemberState,
        NodeId, Protocol, RecordFault, Region, ServiceName, VersionName, Zone,
    },
    wire::{Body, Left, SyncRequest},
};

/// Peers that must have heard of a leave before the node counts it as told.
const GOODBYES: usize = 3;

/// An instance to announce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceSpec {
    /// Stable over restarts.
    pub id: InstanceId,
    /// Its service.
    pub service: ServiceName,
    /// Where the application listens.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What it speaks.
    pub protocol: Protocol,
    /// Environment.
    pub env: Env,
    /// Region.
    pub region: Region,
    /// Zone.
    pub zone: Zone,
    /// Version.
    pub version: VersionName,
    /// Lane.
    pub lane: Lane,
    /// Weight.
    pub weight: u16,
    /// Labels.
    pub tags: BTreeMap<String, String>,
    /// Requests a second.
    pub capacity: Option<u32>,
}

/// A change to an instance of this sidecar. Only what is given changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InstanceChange {
    /// 0..=1600.
    pub weight: Option<u16>,
    /// Lane.
    pub lane: Option<Lane>,
    /// Version.
    pub version: Option<VersionName>,
    /// Replaces the tags.
    pub tags: Option<BTreeMap<String, String>>,
    /// Requests a second.
    pub capacity: Option<u32>,
}

/// Why an order is not carried out; each says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// The record would break a rule.
    #[error(transparent)]
    Record(#[from] RecordFault),
    /// The policy would break a rule.
    #[error(transparent)]
    Policy(#[from] crate::lanes::ChangeFault),
    /// This sidecar announces no such instance.
    #[error("this sidecar announces no instance `{id}`; it announces: {known}")]
    NoInstance {
        /// What was asked for.
        id: InstanceId,
        /// What there is.
        known: String,
    },
    /// This sidecar announces nothing at all.
    #[error("this sidecar announces no instances")]
    Nothing,
    /// `drain --min-ready` is not met.
    #[error(
        "draining would leave {left} ready instances in lane `{lane}` of `{service}`, {wanted} are asked for: wait for the replacement"
    )]
    MinReady {
        /// Ready without those to be drained.
        left: usize,
        /// Lane.
        lane: Lane,
        /// Service.
        service: ServiceName,
        /// The minimum.
        wanted: u32,
    },
    /// The policy in force came from a clock that was ahead; nobody would take a change that builds on it.
    #[error(
        "the policy of `{service}` in force was set by a clock {seconds} s ahead of this one: check both clocks, then `lanemesh rollback {service}` and set it anew"
    )]
    ClockAhead {
        /// Service.
        service: ServiceName,
        /// By how much.
        seconds: u64,
    },
    /// The clock of this node is ahead of its peers': they would refuse the policy, and only this node would follow it.
    #[error(
        "this node's clock is {seconds} s ahead of its peers', who would refuse the policy: set the clock right, or give the order at another node (a rollback works from here as well)"
    )]
    OwnClockAhead {
        /// By how much.
        seconds: u64,
    },
    /// The node has left or its name is taken.
    #[error("this sidecar has left the mesh")]
    Gone,
}

/// This sidecar's own state.
#[derive(Debug)]
pub(super) struct Local {
    records: Records,
    drains: BTreeMap<InstanceId, Drain>,
    /// Of instances whose load is measured.
    pub(super) easings: BTreeMap<InstanceId, Easing>,
    facts: CertFacts,
}

impl Local {
    pub fn new(drains: Drains, facts: CertFacts) -> Self {
        Self { records: Records::new(), drains: drains.into_iter().collect(), easings: BTreeMap::new(), facts }
    }

    /// Operators' drains; one that a shutdown set ends with the process.
    pub fn drains(&self) -> Drains {
        self.drains.iter().map(|(id, drain)| (id.clone(), drain.clone())).collect()
    }
}

impl Node {
    /// Instances that this sidecar announces, by id.
    pub fn own_instances(&self) -> impl Iterator<Item = &InstanceRecord> {
        self.local.records.values().filter(|record| !record.removed)
    }

    /// Announces an instance, or replaces what is said of it. Health starts critical; a drain in force stays in force.
    pub fn announce(&mut self, now: Now, spec: InstanceSpec) -> Result<InstanceRecord, OrderError> {
        self.present()?;
        let held = self.local.records.get(&spec.id).filter(|record| !record.removed);
        let record = InstanceRecord {
            owner: self.config.node.clone(),
            generation: self.generation,
            sequence: 0,
            drain: self.local.drains.get(&spec.id).cloned().or_else(|| held.and_then(|record| record.drain.clone())),
            health: held
                .filter(|r| (&r.host, r.port) == (&spec.host, spec.port))
                .map_or(Health::Critical, |r| r.health),
            id: spec.id,
            service: spec.service,
            host: spec.host,
            port: spec.port,
            protocol: spec.protocol,
            env: spec.env,
            region: spec.region,
            zone: spec.zone,
            version: spec.version,
            lane: spec.lane,
            weight: spec.weight,
            tags: spec.tags,
            capacity: spec.capacity,
            updated_at: now.wall,
            removed: false,
            load: held.and_then(|record| record.load),
            // Whoever measures its load asks anew.
            counted: false,
        };
        self.put(now, record)
    }

    /// Changes what is given.
    pub fn change_instance(
        &mut self,
        now: Now,
        id: &InstanceId,
        change: InstanceChange,
    ) -> Result<InstanceRecord, OrderError> {
        let mut record = self.own(id)?.clone();
        record.weight = change.weight.unwrap_or(record.weight);
        record.lane = change.lane.unwrap_or(record.lane);
        record.version = change.version.unwrap_or(record.version);
        record.tags = change.tags.unwrap_or(record.tags);
        record.capacity = change.capacity.or(record.capacity);
        self.put(now, record)
    }

    /// A check found the application in another state. Unknown ids are ignored: the instance may just have been withdrawn,
    /// and a late check result must not bring it back.
    pub fn set_health(&mut self, now: Now, id: &InstanceId, health: Health) {
        let Ok(record) = self.own(id) else { return };
        if record.health == health {
            return;
        }
        let record = InstanceRecord { health, ..record.clone() };
        if let Err(error) = self.put(now, record) {
            self.event(super::Event::Report(format!("health of `{id}` not announced: {error}")));
        }
    }

    /// A check measured how busy the application is (1.0: as much as it can do), or `None`: it says nothing of that any more. What
    /// follows for its weight is told when it is worth it. Unknown ids are ignored.
    pub fn set_load(&mut self, now: Now, id: &InstanceId, load: Option<f64>) {
        let Ok(record) = self.own(id).cloned() else { return };
        let told = match load {
            None => {
                self.local.easings.remove(id);
                None
            }
            Some(load) => {
                let others = self.load_of_others(&record);
                let fresh = Easing::new(load, now.mono);
                let easing = self.local.easings.entry(id.clone()).or_insert(fresh);
                // Of one whose figure was taken back, or never told.
                let missing = record.load.is_none().then(|| easing.figure());
                match easing.measured(load, others, now.mono).or(missing) {
                    Some(figure) => Some(figure),
                    None => return,
                }
            }
        };
        if record.load == told {
            return;
        }
        if let Err(error) = self.put(now, InstanceRecord { load: told, ..record }) {
            self.event(super::Event::Report(format!("load of `{id}` not announced: {error}")));
        }
    }

    /// Mean load of the other candidates of an instance's lane that tell theirs, by weight; 1.0 is all they can do.
    fn load_of_others(&self, record: &InstanceRecord) -> Option<f64> {
        let lives =
            |owner: &NodeId| *owner == self.config.node || self.membership.state(owner) == Some(MemberState::Alive);
        let others = self.catalog.instances().map(|entry| &entry.record).filter(|other| {
            (&other.service, &other.env, &other.lane) == (&record.service, &record.env, &record.lane)
                && (&other.owner, &other.id) != (&record.owner, &record.id)
                && !other.removed
                && other.drain.is_none()
                && other.health != Health::Critical
                && lives(&other.owner)
        });
        let (mut load, mut weight) = (0, 0);
        for (figure, share) in others.filter_map(|other| Some((other.load?, u64::from(other.ring_weight())))) {
            load += u64::from(figure.percent) * share;
            weight += share;
        }
        (weight > 0).then(|| load as f64 / (100 * weight) as f64)
    }

    /// Withdraws an instance.
    pub fn withdraw(&mut self, now: Now, id: &InstanceId) -> Result<(), OrderError> {
        let record = InstanceRecord { removed: true, ..self.own(id)?.clone() };
        self.local.drains.remove(id);
        self.local.easings.remove(id);
        self.put(now, record).map(|_| ())
    }

    /// Takes instances out of rotation (all when `ids` is empty), and says who did it and why.
    pub fn drain(
        &mut self,
        now: Now,
        ids: &[InstanceId],
        by: &str,
        reason: &str,
        min_ready: Option<u32>,
    ) -> Result<Vec<InstanceId>, OrderError> {
        let ids = self.chosen(ids)?;
        if let Some(wanted) = min_ready {
            self.enough_left(&ids, wanted)?;
        }
        for id in &ids {
            let record = self.own(id)?;
            // What an operator says of a drain is the last word; a shutdown adds nothing to it.
            let said =
                record.drain.as_ref().is_some_and(|held| by == SHUTDOWN || held.by != SHUTDOWN && reason.is_empty());
            if !said {
                let drain = Drain { by: by.to_owned(), at: now.wall, reason: reason.to_owned() };
                let record = InstanceRecord { drain: Some(drain.clone()), ..record.clone() };
                if by != SHUTDOWN {
                    self.local.drains.insert(id.clone(), drain);
                }
                self.put(now, record)?;
            }
        }
        self.persist_at = Some(now.mono);
        Ok(ids)
    }

    /// Puts instances back into rotation; returns those that were out of it.
    pub fn undrain(&mut self, now: Now, ids: &[InstanceId]) -> Result<Vec<InstanceId>, OrderError> {
        let mut back = Vec::new();
        for id in self.chosen(ids)? {
            let kept = self.local.drains.remove(&id).is_some();
            let record = self.own(&id)?;
            if record.drain.is_some() {
                let record = InstanceRecord { drain: None, ..record.clone() };
                self.put(now, record)?;
                back.push(id);
            } else if kept {
                back.push(id);
            }
        }
        self.persist_at = Some(now.mono);
        Ok(back)
    }

    /// Changes a service's policy, for the whole mesh.
    pub fn set_policy(
        &mut self,
        now: Now,
        service: &ServiceName,
        change: &PolicyChange,
    ) -> Result<LanePolicy, OrderError> {
        self.present()?;
        let held = self.catalog.policy(service).map(|entry| entry.policy.clone());
        let policy = change.apply(service, held.as_deref(), self.config.node.as_str(), now.wall)?;
        let own = u64::try_from(self.clock_ahead(now).unwrap_or(0)).unwrap_or(0);
        if own > MAX_AHEAD_MS && !policy.off {
            return Err(OrderError::OwnClockAhead { seconds: own / 1000 });
        }
        let ahead = policy.version.clock.saturating_sub(now.wall.0);
        if ahead > MAX_AHEAD_MS && !policy.off {
            return Err(OrderError::ClockAhead { service: service.clone(), seconds: ahead / 1000 });
        }
        self.say_policy(now, policy.clone(), Spread::Eager);
        Ok(policy)
    }

    /// Everybody to stable at once, for the whole mesh.
    pub fn rollback(&mut self, now: Now, service: &ServiceName, reason: &str) -> Result<LanePolicy, OrderError> {
        self.present()?;
        let held = self.catalog.policy(service).map(|entry| entry.policy.clone());
        let policy = rollback(service, held.as_deref(), self.config.node.as_str(), reason, self.believable_wall(now));
        self.say_policy(now, policy.clone(), Spread::Flood);
        Ok(policy)
    }

    /// Says goodbye: to everybody at once, and to a few with an answer awaited. Final.
    pub fn leave(&mut self, now: Now) {
        if self.phase != Phase::Member {
            self.phase = if self.phase == Phase::Refused { Phase::Refused } else { Phase::Left };
            return;
        }
        let left = Left { node: self.config.node.clone(), generation: self.generation };
        self.say(now, &Body::Left(left), Spread::Flood);
        self.phase = Phase::Left;
        let hello: Vec<_> = self
            .catalog
            .member(&self.config.node)
            .and_then(|e| e.left.clone())
            .map(|(_, left)| left)
            .into_iter()
            .collect();
        // A summary of nothing would ask for everything: the goodbye only wants an answer.
        let summary = self.catalog.summary();
        let request: bytes::Bytes = SyncRequest { version: 1, hello, summary }.encode().into();
        for peer in self.some_active(GOODBYES, None) {
            let Some(addr) = self.catalog.member(&peer).map(|entry| entry.member.addr) else { continue };
            let token = self.syncs.begin(now.mono, Purpose::Goodbye);
            self.outputs.push_back(Output::OpenSync { token, node: Some(peer), addr, request: request.clone() });
        }
        self.persist(now);
    }

    /// Whether enough peers have confirmed that they heard the goodbye.
    pub fn goodbye_heard(&self) -> bool {
        self.phase == Phase::Left && self.syncs.goodbyes as usize >= GOODBYES.min(self.membership.active_count())
    }

    /// Says all own instances anew, under the present generation.
    pub(super) fn restate(&mut self, now: Now) {
        let records: Vec<InstanceRecord> = self.own_instances().cloned().collect();
        for record in records {
            if let Err(error) = self.put(now, record) {
                self.event(super::Event::Report(format!("instance not announced: {error}")));
            }
        }
    }

    fn say_policy(&mut self, now: Now, policy: LanePolicy, spread: Spread) {
        let service = policy.service.clone();
        self.say(now, &Body::Policy(policy), spread);
        let me = self.config.node.clone();
        self.applied(now, &me, &Change::Policy(service));
        self.settle(now);
    }

    /// Signs, merges and spreads an own record; publishes at once where traffic must leave it.
    pub(super) fn put(&mut self, now: Now, mut record: InstanceRecord) -> Result<InstanceRecord, OrderError> {
        self.present()?;
        record.check()?;
        if !self.local.facts.may_announce(&record.service) {
            let (node, service) = (self.config.node.clone(), record.service);
            return Err(RecordFault::NotAuthorised { node, service }.into());
        }
        let before = self.local.records.get(&record.id).cloned();
        record.generation = self.generation;
        record.sequence = before.as_ref().filter(|b| b.generation == self.generation).map_or(1, |b| b.sequence + 1);
        record.updated_at = now.wall;
        let body = Body::Instance(record.clone());
        let size = body.encode().len();
        if size > MAX_RECORD_BYTES {
            return Err(RecordFault::TooLarge(size).into());
        }
        self.local.records.insert(record.id.clone(), record.clone());
        let urgent =
            record.removed || record.drain.is_some() || record.weight == 0 || record.health == Health::Critical;
        self.say(now, &body, if urgent && before.is_some() { Spread::Flood } else { Spread::Eager });
        self.instance_changed(before.as_ref(), &record);
        self.settle(now);
        Ok(record)
    }

    fn own(&self, id: &InstanceId) -> Result<&InstanceRecord, OrderError> {
        self.local.records.get(id).filter(|record| !record.removed).ok_or_else(|| {
            let known: Vec<&str> = self.own_instances().map(|record| record.id.as_str()).collect();
            if known.is_empty() {
                OrderError::Nothing
            } else {
                OrderError::NoInstance { id: id.clone(), known: known.join(", ") }
            }
        })
    }

    /// The ids asked for, all of them own; all own ones when none is named.
    fn chosen(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, OrderError> {
        for id in ids {
            self.own(id)?;
        }
        let all: Vec<InstanceId> = self.own_instances().map(|record| record.id.clone()).collect();
        match (ids.is_empty(), all.is_empty()) {
            (true, true) => Err(OrderError::Nothing),
            (true, false) => Ok(all),
            (false, _) => Ok(ids.to_vec()),
        }
    }

    /// Counts what would be ready without `ids`, in each lane that they leave.
    fn enough_left(&self, ids: &[InstanceId], wanted: u32) -> Result<(), OrderError> {
        for id in ids {
            let leaving = self.own(id)?;
            let same =
                |r: &InstanceRecord| (&r.service, &r.env, &r.lane) == (&leaving.service, &leaving.env, &leaving.lane);
            let left = self
                .catalog
                .instances()
                .map(|entry| &entry.record)
                .filter(|r| same(r) && !(r.owner == self.config.node && ids.contains(&r.id)))
                .filter(|r| !r.removed && r.drain.is_none() && r.weight > 0 && r.health != Health::Critical)
                .filter(|r| r.owner == self.config.node || self.membership.state(&r.owner) == Some(MemberState::Alive))
                .count();
            if left < wanted as usize {
                let (lane, service) = (leaving.lane.clone(), leaving.service.clone());
                return Err(OrderError::MinReady { left, lane, service, wanted });
            }
        }
        Ok(())
    }

    fn present(&self) -> Result<(), OrderError> {
        if matches!(self.phase, Phase::Left | Phase::Refused) { Err(OrderError::Gone) } else { Ok(()) }
    }
}

/// Who drains when the process ends; such a drain is not kept over a restart.
pub const SHUTDOWN: &str = "shutdown";
