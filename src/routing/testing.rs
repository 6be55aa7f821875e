//! What the tests of this module share: tables, policies and requests in few words.

use std::{collections::BTreeMap, sync::Arc};

use super::{Builder, Candidate, CandidateTable, Locality, MethodClass, Request, Snapshot};
use crate::{
    config::Routing,
    types::{
        AnonymousRule, BucketScheme, Drain, EmptyLaneRule, Env, Health, InstanceId, InstanceRecord, Lane, LanePolicy,
        LaneRule, MemberState, Mono, NodeId, PolicyVersion, Protocol, Region, ServiceName, VersionName, Wall, Zone,
    },
};

pub(super) const NOW: Mono = Mono::from_millis(1_000_000);

pub(super) fn locality() -> Locality {
    let (env, region, zone) = (Env::new("prod").unwrap(), Region::new("eu").unwrap(), Zone::new("eu-1").unwrap());
    Locality { env, region, zone, tags: BTreeMap::new() }
}

/// A passing instance of `orders` in prod, announced by `node-{id}`.
pub(super) fn record(id: &str, lane: &str) -> InstanceRecord {
    InstanceRecord {
        owner: NodeId::new(&format!("node-{id}")).unwrap(),
        generation: 1,
        sequence: 1,
        id: InstanceId::new(id).unwrap(),
        service: ServiceName::new("orders").unwrap(),
        host: "10.0.0.1".into(),
        port: 8080,
        protocol: Protocol::Http1,
        env: locality().env,
        region: locality().region,
        zone: locality().zone,
        version: VersionName::new("v1").unwrap(),
        lane: Lane::new(lane).unwrap(),
        weight: 100,
        health: Health::Passing,
        drain: None,
        tags: BTreeMap::new(),
        capacity: None,
        updated_at: Wall(0),
        removed: false,
        load: None,
        counted: false,
    }
}

pub(super) fn drain() -> Option<Drain> {
    Some(Drain { by: "ann".into(), at: Wall(0), reason: String::new() })
}

pub(super) fn alive(record: InstanceRecord) -> Candidate {
    Candidate { record: Arc::new(record), owner: MemberState::Alive, stale: false, held: false }
}

/// Passing instances `a0..`, of lane `stable`, and `c0..`, of lane `canary`.
pub(super) fn fleet(stable: usize, canary: usize) -> CandidateTable {
    let stable = (0..stable).map(|i| alive(record(&format!("a{i}"), "stable")));
    let canary = (0..canary).map(|i| alive(record(&format!("c{i}"), "canary")));
    CandidateTable { instances: stable.chain(canary).collect(), ..CandidateTable::default() }
}

/// `canary` with these buckets from 0.
pub(super) fn policy(size: u16) -> LanePolicy {
    LanePolicy {
        service: ServiceName::new("orders").unwrap(),
        version: PolicyVersion { epoch: 0, clock: u64::from(size), author: "n1".into() },
        off: false,
        experiment: "e".into(),
        salt: String::new(),
        scheme: BucketScheme::Prefixed,
        lanes: [(Lane::new("canary").unwrap(), LaneRule { size, ..LaneRule::default() })].into(),
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

pub(super) fn with_policy(mut table: CandidateTable, policy: LanePolicy) -> CandidateTable {
    table.policies.insert(policy.service.clone(), Arc::new(policy));
    table
}

pub(super) fn edit(table: &mut CandidateTable, id: &str, change: impl FnOnce(&mut InstanceRecord)) {
    let found = table.instances.iter_mut().find(|candidate| candidate.record.id.as_str() == id);
    change(Arc::make_mut(&mut found.unwrap().record));
}

pub(super) fn owner(table: &mut CandidateTable, id: &str, state: MemberState) {
    let found = table.instances.iter_mut().find(|candidate| candidate.record.id.as_str() == id);
    found.unwrap().owner = state;
}

/// A first snapshot, which must be without faults.
pub(super) fn built(table: &CandidateTable) -> Arc<Snapshot> {
    let (snapshot, faults) = Builder::new(locality()).build(table, NOW);
    assert_eq!(faults, Vec::<String>::new());
    snapshot
}

pub(super) fn get(subject: &str) -> Request<'_> {
    Request {
        subject: Some(subject),
        route_key: None,
        explicit_lane: None,
        method: MethodClass::Safe,
        random: 7,
        head: None,
    }
}

pub(super) fn post(subject: &str) -> Request<'_> {
    Request { method: MethodClass::Other, ..get(subject) }
}

/// Opens an instance's breaker, whatever its lane says.
pub(super) fn open_breaker(entry: &super::InstanceEntry) {
    assert!(entry.cell.open(entry.cell.epoch(), false, NOW, &Routing::default()));
}
