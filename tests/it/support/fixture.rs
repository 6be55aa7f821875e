//! A proxy over a snapshot made by hand.

use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use lanemesh::{
    config::{AccessLog, LogFormat, Proxy, Timeouts},
    proxy::{self, ProxyConfig, Running},
    routing::{Builder, Candidate, CandidateTable, Locality, Rules, Snapshot},
    telemetry::{Clock, Metrics},
    types::{
        Env, Health, InstanceId, InstanceRecord, Lane, LanePolicy, MemberState, NodeId, Protocol, Region, ServiceName,
        SubjectSource, VersionName, Wall, Zone,
    },
};

use super::{
    h2::Conn,
    raw::{Raw, Response},
};

/// One instance of a hand-made table.
#[derive(Debug, Clone)]
pub struct Instance(pub InstanceRecord);

impl Instance {
    /// A passing instance of `orders` in `stable`.
    pub fn new(id: &str, addr: SocketAddr) -> Self {
        Self(InstanceRecord {
            owner: NodeId::new(&format!("node-of-{id}")).unwrap(),
            generation: 1,
            sequence: 1,
            id: InstanceId::new(id).unwrap(),
            service: ServiceName::new("orders").unwrap(),
            host: addr.ip().to_string(),
            port: addr.port(),
            protocol: Default::default(),
            env: Env::new("prod").unwrap(),
            region: Region::new("r1").unwrap(),
            zone: Zone::new("z1").unwrap(),
            version: VersionName::new("v1").unwrap(),
            lane: Lane::stable(),
            weight: 100,
            health: Health::Passing,
            drain: None,
            tags: BTreeMap::new(),
            capacity: None,
            updated_at: Wall(0),
            removed: false,
            load: None,
            counted: false,
        })
    }

    pub fn service(mut self, name: &str) -> Self {
        self.0.service = ServiceName::new(name).unwrap();
        self
    }

    pub fn lane(mut self, lane: &str, version: &str) -> Self {
        self.0.lane = Lane::new(lane).unwrap();
        self.0.version = VersionName::new(version).unwrap();
        self
    }

    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.0.protocol = protocol;
        self
    }

    pub fn health(mut self, health: Health) -> Self {
        self.0.health = health;
        self
    }
}

/// Limits that suit tests: nothing waits long.
pub fn proxy_config() -> Proxy {
    Proxy {
        bind: "127.0.0.1:0".parse().unwrap(),
        ports: BTreeMap::new(),
        tcp_ports: BTreeMap::new(),
        workers: 1,
        expose_decision: true,
        lane_header: "x-lane".into(),
        max_head_bytes: 32 * 1024,
        max_headers: 100,
        max_connections: 1_000,
        max_requests_per_instance: 1_000,
        connect_ahead: 16,
        max_replay_bytes: 65_536,
        h2_max_streams: 100,
        max_retries: 2,
        timeouts: Timeouts {
            connect: Duration::from_millis(500),
            per_try: Duration::from_secs(2),
            silence: Duration::from_secs(1),
            total: Duration::from_secs(6),
            idle: Duration::from_secs(5),
            tunnel_idle: Duration::from_secs(5),
            pool_idle: Duration::from_secs(3),
            h2_ping: Duration::from_secs(310),
            head: Duration::from_secs(5),
            body: Duration::from_secs(5),
        },
        subject: SubjectSource::default(),
    }
}

/// A running proxy.
pub struct Fixture {
    pub running: Option<Running>,
    pub metrics: Arc<Metrics>,
    pub snapshots: Arc<ArcSwap<Snapshot>>,
    builder: Builder,
    version: u64,
    clock: Clock,
    pub log: tempfile::TempDir,
}

impl Fixture {
    pub fn new(instances: &[Instance]) -> Self {
        Self::with(instances, &[], |_| {})
    }

    /// One instance of `orders` at `addr`.
    pub fn one(addr: SocketAddr) -> Self {
        Self::new(&[Instance::new("o1", addr)])
    }

    pub fn with(instances: &[Instance], policies: &[LanePolicy], change: impl FnOnce(&mut ProxyConfig)) -> Self {
        Self::made(instances, policies, Rules::default(), change)
    }

    /// With rules of its own for routing.
    pub fn ruled(instances: &[Instance], rules: Rules, change: impl FnOnce(&mut ProxyConfig)) -> Self {
        Self::made(instances, &[], rules, change)
    }

    /// With everything.
    pub fn made(
        instances: &[Instance],
        policies: &[LanePolicy],
        rules: Rules,
        change: impl FnOnce(&mut ProxyConfig),
    ) -> Self {
        let locality = Locality {
            env: Env::new("prod").unwrap(),
            region: Region::new("r1").unwrap(),
            zone: Zone::new("z1").unwrap(),
            tags: BTreeMap::new(),
        };
        let log = tempfile::tempdir().unwrap();
        let access_log = AccessLog {
            sample: 1.0,
            format: LogFormat::Json,
            hash_subject: false,
            path: Some(log.path().join("access.log")),
        };
        let mut config = ProxyConfig {
            proxy: proxy_config(),
            services: BTreeMap::new(),
            access_log,
            node: "n1".into(),
            // The whole suite holds for both ways; `.ci/run` runs it twice.
            plain: std::env::var_os("LANEMESH_TEST_ALL_HYPER").is_none(),
            own: Vec::new(),
        };
        change(&mut config);
        let mut fixture = Self {
            running: None,
            metrics: Arc::new(Metrics::new()),
            snapshots: Arc::new(ArcSwap::from_pointee(Snapshot::empty())),
            builder: Builder::with(locality, rules),
            version: 0,
            clock: Clock::start(),
            log,
        };
        fixture.publish(instances, policies);
        let (snapshots, metrics) = (fixture.snapshots.clone(), fixture.metrics.clone());
        fixture.running = Some(proxy::start(config, snapshots, metrics, fixture.clock).unwrap());
        fixture
    }

    /// Publishes another snapshot.
    pub fn publish(&mut self, instances: &[Instance], policies: &[LanePolicy]) {
        self.version += 1;
        let candidate = |i: &Instance| Candidate {
            record: Arc::new(i.0.clone()),
            owner: MemberState::Alive,
            stale: false,
            held: false,
        };
        let mut table = CandidateTable {
            version: self.version,
            digest: self.version,
            instances: instances.iter().map(candidate).collect(),
            policies: policies.iter().map(|p| (p.service.clone(), Arc::new(p.clone()))).collect(),
        };
        table.instances.sort_by(|a, b| {
            let key = |c: &Candidate| (c.record.service.clone(), c.record.id.clone(), c.record.owner.clone());
            key(a).cmp(&key(b))
        });
        let (snapshot, faults) = self.builder.build(&table, self.clock.mono());
        assert!(faults.is_empty(), "{faults:?}");
        self.snapshots.store(snapshot);
    }

    pub fn addr(&self) -> SocketAddr {
        self.running.as_ref().expect("runs").addr()
    }

    pub fn h2(&self) -> Conn {
        Conn::client(self.addr())
    }

    pub fn client(&self) -> Raw {
        Raw::connect(self.addr())
    }

    /// One request on a connection of its own.
    pub fn ask(&self, request: impl AsRef<[u8]>) -> Response {
        self.client().ask(request)
    }

    /// GET of `/` at `orders` for a user.
    pub fn get(&self, user: &str) -> Response {
        self.ask(format!("GET / HTTP/1.1\r\nHost: orders\r\nx-user-id: {user}\r\n\r\n"))
    }

    /// The failover order of a key among `orders`' stable instances.
    pub fn order(&self, key: &str) -> Vec<String> {
        let snapshot = self.snapshots.load();
        let service = snapshot.service("orders").unwrap();
        let lane = service.lane("stable").unwrap();
        let order = lane.order(lanemesh::routing::key_hash(key.as_bytes()));
        order.map(|at| service.instances[usize::from(at)].record.id.to_string()).collect()
    }

    /// Stops the proxy and returns the lines of its access log.
    pub fn access_log(mut self) -> Vec<serde_json::Value> {
        self.running.take().expect("runs").stop();
        let text = std::fs::read_to_string(self.log.path().join("access.log")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Sum of a metric over the series whose line contains all of `parts`.
    pub fn metric(&self, name: &str, parts: &[&str]) -> f64 {
        let text = self.metrics.encode();
        let lines = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
        let values = lines.filter(|line| parts.iter().all(|part| line.contains(part)));
        values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop();
        }
    }
}

/// Waits until `done`; panics with `what` when it takes longer than five seconds.
pub fn eventually(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(5), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A listener that accepts into its backlog and never answers.
pub fn silent() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    // Proves that the backlog takes connections.
    drop(TcpStream::connect(addr).unwrap());
    (listener, addr)
}
