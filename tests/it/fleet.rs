//! A service of any size, for tests and benchmarks of routing.

use std::{collections::BTreeMap, sync::Arc};

use lanemesh::{
    config::{Fallback, Routing},
    routing::{
        Attempts, AttemptsConfig, Builder, Candidate, CandidateTable, Decision, Locality, MethodClass, Outcome,
        Request, Rules, Snapshot, choose,
    },
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
    Locality { env, region, zone, tags: BTreeMap::new() }
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
        load: None,
        counted: false,
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
        rules: Vec::new(),
        reserved: BTreeMap::new(),
        selectors: BTreeMap::new(),
    }
}

/// A first snapshot.
pub fn snapshot(table: &CandidateTable) -> Arc<Snapshot> {
    let (snapshot, faults) = Builder::new(locality()).build(table, NOW);
    assert!(faults.is_empty(), "{faults:?}");
    snapshot
}

/// The same with everything on that a decision can look at: three zones, bounded load, hot keys, full instances; and the breakers
/// of one instance in ten open.
pub fn busy_snapshot(mut table: CandidateTable) -> Arc<Snapshot> {
    for (at, candidate) in table.instances.iter_mut().enumerate() {
        Arc::make_mut(&mut candidate.record).zone = Zone::new(["eu-1", "eu-2", "eu-3"][at % 3]).unwrap();
    }
    let fallback = Fallback { saturated: true, ..Routing::default().fallback };
    let routing = Routing {
        prefer_zone: true,
        bounded_load: Some(125),
        spread: vec![("tenant-7".into(), 4)],
        spread_above: Some(500),
        fallback,
        ..Routing::default()
    };
    let rules = Rules::new(0, Arc::new(routing), &BTreeMap::new());
    let (snapshot, faults) = Builder::with(locality(), rules).build(&table, NOW);
    assert!(faults.is_empty(), "{faults:?}");
    let service = snapshot.service("orders").expect("the service is there");
    let second = std::time::Duration::from_secs(1);
    let config = AttemptsConfig { max_retries: 0, per_try: second, total: second };
    for at in (0..service.instances.len()).step_by(10) {
        for _ in 0..3 {
            let lane = service.lanes.iter().position(|lane| lane.name == service.instances[at].record.lane);
            let (served, instance) = (lane.map(|lane| lane as u16), Some(at as u16));
            let decision = Decision { served, instance, ..choose(&snapshot, service, &get("u"), NOW) };
            let mut attempts = Attempts::new(&decision, MethodClass::Other, true, config, NOW);
            attempts.next(service, NOW);
            attempts.ended(Outcome::Reset, service, NOW);
        }
    }
    snapshot
}

/// A GET of this subject.
pub fn get(subject: &str) -> Request<'_> {
    Request {
        subject: Some(subject),
        route_key: None,
        explicit_lane: None,
        method: MethodClass::Safe,
        random: 7,
        head: None,
    }
}
