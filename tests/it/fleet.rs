//! A service of any size, for tests and benchmarks of routing.

use std::{collections::BTreeMap, sync::Arc};

use lanemesh::{
    routing::{Builder, Candidate, CandidateTable, Locality, MethodClass, Request, Snapshot},
    types::{
        AnonymousRule, BucketScheme, EmptyLaneRule, Env, Health, InstanceId, InstanceRecord, Lane, LanePolicy,
        LaneRule, MemberState, Mono, NodeId, PolicyVersion, Protocol, Region, ServiceName, VersionName, Wall, Zone,
    },
};

/// When everything happens.
pub const NOW: Mono = Mono::from_millis(1_000_000);

/// Where the sidecar stands.
pub fn locality() -> Locality {
    let (env, region, zone) = (Env::new("prod").unwrap(), Region::new("eu").unwrap(), Zone::new("eu-1").unwrap());
    Locality { env, region, zone }
}

/// So many passing instances of `orders` in `stable`, and as many in `canary`, which takes 5 %; 20 subjects are listed.
pub fn table(instances: usize) -> CandidateTable {
    let of_lane = |lane| (0..instances).map(move |at| candidate(&format!("orders-{lane}-{at}"), lane));
    let policy = Arc::new(policy());
    CandidateTable {
        instances: of_lane("canary").chain(of_lane("stable")).collect(),
        policies: [(policy.service.clone(), policy)].into(),
        ..CandidateTable::default()
    }
}

/// One passing instance.
pub fn candidate(id: &str, lane: &str) -> Candidate {
    let record = InstanceRecord {
        owner: NodeId::new(id).unwrap(),
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
    };
    Candidate { record: Arc::new(record), owner: MemberState::Alive, stale: false, held: false }
}

fn policy() -> LanePolicy {
    let listed = |prefix| (0..10).map(|n| format!("{prefix}-{n}")).collect();
    let canary = LaneRule { start: 0, size: 500, allow: listed("tester"), deny: listed("vip") };
    LanePolicy {
        service: ServiceName::new("orders").unwrap(),
        version: PolicyVersion { epoch: 0, clock: 1, author: "n1".into() },
        off: false,
        experiment: "checkout".into(),
        salt: String::new(),
        scheme: BucketScheme::Prefixed,
        lanes: [(Lane::new("canary").unwrap(), canary)].into(),
        subject: None,
        anonymous: AnonymousRule::Stable,
        empty: EmptyLaneRule::default(),
        reason: String::new(),
        set_at: Wall(0),
    }
}

/// A first snapshot.
pub fn snapshot(table: &CandidateTable) -> Arc<Snapshot> {
    let (snapshot, faults) = Builder::new(locality()).build(table, NOW);
    assert!(faults.is_empty(), "{faults:?}");
    snapshot
}

/// A GET of this subject.
pub fn get(subject: &str) -> Request<'_> {
    Request { subject: Some(subject), route_key: None, explicit_lane: None, method: MethodClass::Safe, random: 7 }
}
