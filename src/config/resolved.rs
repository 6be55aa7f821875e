//! What the configuration means, with nothing left to check.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use super::Routing;

use crate::types::{
    Env, InstanceId, Lane, MeshName, NodeId, Protocol, Region, ServiceName, SubjectSource, VersionName, Zone,
};

/// Everything a sidecar is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Node id; `None` takes it from the certificate.
    pub node: Option<NodeId>,
    /// Mesh; `None` takes it from the certificate.
    pub mesh: Option<MeshName>,
    /// Where generation, known peers and the write token are kept.
    pub data_dir: PathBuf,
    /// Certificate files.
    pub identity: Identity,
    /// Mesh side.
    pub gossip: Gossip,
    /// Application side.
    pub proxy: Proxy,
    /// How requests are spread over a service that has no rules of its own.
    pub routing: Arc<Routing>,
    /// Admin API.
    pub admin: Admin,
    /// Where this sidecar stands.
    pub env: Env,
    /// Region.
    pub region: Region,
    /// Zone.
    pub zone: Zone,
    /// Instances that this sidecar announces.
    pub instances: Vec<Instance>,
    /// Per-service rules of this sidecar.
    pub services: BTreeMap<ServiceName, ServiceRule>,
    /// Log level or filter (`info`, `lanemesh=debug`).
    pub log_filter: String,
    /// Log format.
    pub log_format: LogFormat,
    /// Access log.
    pub access_log: AccessLog,
    /// How it ends.
    pub shutdown: Shutdown,
}

/// Certificate files (PEM).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// This node's certificate.
    pub certificate: PathBuf,
    /// Its private key (PKCS #8).
    pub key: PathBuf,
    /// Trusted authorities.
    pub ca: PathBuf,
}

/// Timer profile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Profile {
    /// Round trips of a few milliseconds.
    #[default]
    Lan,
    /// Round trips up to some hundred milliseconds.
    Wan,
}

/// Mesh side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gossip {
    /// UDP address to bind; port 0 lets the system choose.
    pub bind: SocketAddr,
    /// Address that peers use; `None` takes the bound one, which must then not be unspecified.
    pub advertise: Option<SocketAddr>,
    /// `host:port`, re-resolved while any does not answer.
    pub seeds: Vec<String>,
    /// Timers.
    pub profile: Profile,
    /// Changes that take nobody out of traffic are collected so long; 0 to 2 s.
    pub coalesce: Duration,
}

/// Application side.
#[derive(Debug, Clone, PartialEq)]
pub struct Proxy {
    /// TCP address to bind.
    pub bind: SocketAddr,
    /// Dedicated ports: everything that comes in there is for one service.
    pub ports: BTreeMap<ServiceName, SocketAddr>,
    /// TCP ports: every connection that comes in there is for one service.
    pub tcp_ports: BTreeMap<ServiceName, SocketAddr>,
    /// Data-path threads.
    pub workers: usize,
    /// Adds `x-lanemesh-*` response headers that tell the decision.
    pub expose_decision: bool,
    /// Header that may name a lane explicitly (lower case).
    pub lane_header: String,
    /// Largest request head, bytes.
    pub max_head_bytes: usize,
    /// Most request headers.
    pub max_headers: usize,
    /// Most client connections.
    pub max_connections: usize,
    /// Most requests under way at one instance.
    pub max_requests_per_instance: usize,
    /// Most connections that a data thread opens ahead at a time, one to each instance that comes into rotation.
    pub connect_ahead: usize,
    /// Largest request body kept to be sent again.
    pub max_replay_bytes: u64,
    /// Most concurrent streams of an HTTP/2 client connection.
    pub h2_max_streams: u32,
    /// Most retries after something was sent.
    pub max_retries: u8,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Default subject of every service.
    pub subject: SubjectSource,
}

/// Time limits of the data path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// To connect to an instance.
    pub connect: Duration,
    /// One try, up to the response head.
    pub per_try: Duration,
    /// Silence of an instance altogether, after which another is asked where that is safe.
    pub silence: Duration,
    /// All tries, up to the response head.
    pub total: Duration,
    /// Silence on a body or a kept-open client connection.
    pub idle: Duration,
    /// Silence both ways in a tunnel.
    pub tunnel_idle: Duration,
    /// A pooled connection to an instance.
    pub pool_idle: Duration,
    /// Silence of an HTTP/2 connection to an instance before it is pinged.
    pub h2_ping: Duration,
    /// A request head, from its first byte.
    pub head: Duration,
    /// A request body that is kept.
    pub body: Duration,
}

/// This sidecar's rule for one service.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServiceRule {
    /// Subject; `None` takes the policy's, then the default.
    pub subject: Option<SubjectSource>,
    /// What is hashed on the ring; `None` takes the subject.
    pub route_key: Option<SubjectSource>,
    /// A request id is refused as a subject unless this is set.
    pub request_id_as_subject: bool,
    /// What is hashed for connections of its TCP port.
    pub tcp_key: TcpKey,
    /// How its requests are spread; `None` takes [`Config::routing`].
    pub routing: Option<Arc<Routing>>,
}

/// What places a TCP connection on the ring.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum TcpKey {
    /// The client's IP address; for loopback, this node's name.
    #[default]
    Source,
    /// Chance, for every connection anew.
    Random,
    /// This text, so that all connections go to one instance.
    Fixed(String),
}

/// Admin API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// TCP address to bind; loopback unless `allow_remote`.
    pub bind: SocketAddr,
    /// Binding to other than loopback was asked for by name.
    pub allow_remote: bool,
}

/// How an instance's application is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What is asked.
    pub kind: CheckKind,
    /// From start to start.
    pub interval: Duration,
    /// Per check.
    pub timeout: Duration,
    /// Whether and where it tells how busy the application is.
    pub load: LoadSource,
    /// Successes in a row until passing.
    pub rise: u8,
    /// Failures in a row until critical.
    pub fall: u8,
}

impl Default for Check {
    /// As an instance without `check` keys has it.
    fn default() -> Self {
        let (interval, timeout) = (Duration::from_secs(1), Duration::from_millis(500));
        Self { kind: CheckKind::Tcp, interval, timeout, load: LoadSource::None, rise: 2, fall: 2 }
    }
}

/// Where an instance's load comes from (REQUIREMENTS R10).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LoadSource {
    /// Nobody measures it: the weight is what it is set to.
    #[default]
    None,
    /// The header `x-lanemesh-load` of the health reply; rates in it are of this capacity, requests a second.
    Check(Option<u32>),
    /// A control group of version 2: this directory.
    Group(PathBuf),
    /// Requests that all sidecars have in flight there, of so many that it can have.
    InFlight(u32),
}

/// What a check asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckKind {
    /// Nothing: always passing.
    None,
    /// That a connection is accepted.
    Tcp,
    /// That a GET of this path answers 200 to 399.
    Http(String),
}

impl CheckKind {
    /// `http:/path`, `tcp` or `none`. The error says so.
    pub fn parse(text: &str) -> Result<Self, String> {
        super::parse_check(text)
    }
}

/// One instance that this sidecar announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Defaults to the node id (first instance).
    pub id: Option<InstanceId>,
    /// Service.
    pub service: ServiceName,
    /// Where others reach the application; `None` takes the advertised IP address.
    pub host: Option<String>,
    /// Its port.
    pub port: u16,
    /// What it speaks.
    pub protocol: Protocol,
    /// Version.
    pub version: VersionName,
    /// Lane.
    pub lane: Lane,
    /// Weight.
    pub weight: u16,
    /// Labels.
    pub tags: BTreeMap<String, String>,
    /// Requests a second it can serve.
    pub capacity: Option<u32>,
    /// Its health check.
    pub check: Check,
}

/// Log format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Access log.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessLog {
    /// Share of requests logged, 0.0 to 1.0; errors are always logged.
    pub sample: f64,
    /// Format.
    pub format: LogFormat,
    /// Log a hash in place of the subject.
    pub hash_subject: bool,
    /// File to append to; `None` is standard output.
    pub path: Option<PathBuf>,
}

/// How the sidecar ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shutdown {
    /// After the drain was announced, before anything stops.
    pub spread: Duration,
    /// For requests in flight.
    pub limit: Duration,
}
