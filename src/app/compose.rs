//! All parts of one sidecar, wired.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result, bail};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

use super::{advertise, identity, removal};
use crate::{
    admin::{self, AdminState},
    agent::{Agent, AgentConfig, Ended, Handle, LocalInstance, MeshMetrics, NodeInfo, StateDir, Watch},
    config::{self, Config},
    net::{self, Net, NetConfig},
    node::{InstanceSpec, Node, NodeConfig, Now},
    probe,
    proxy::{self, ProxyConfig},
    ready::Ready,
    routing::{Locality, Rules},
    telemetry::{Clock, Metrics},
    types::{InstanceId, NodeId},
};

/// Events from the network waiting for the agent.
const EVENTS: usize = 1024;
/// Data-path threads when none are asked for: one per core, at most two; a sidecar shares its host.
const MOST_WORKERS: usize = 2;

/// A running sidecar.
pub struct Sidecar {
    /// The way to its agent.
    pub handle: Handle,
    pub(super) proxy: Option<proxy::Running>,
    pub(super) net: Net,
    /// The configuration in force.
    pub(super) config: Config,
    pub(super) node: NodeId,
    /// Where instances are reached that name no host of their own.
    pub(super) host: String,
    pub(super) ready: Arc<Ready>,
    ended: Option<oneshot::Receiver<Ended>>,
    stop_admin: CancellationToken,
    run_file: PathBuf,
}

/// Starts a sidecar inside the present runtime; everything is bound when it returns.
pub async fn start(config: Config) -> Result<Sidecar> {
    for warning in config::warnings(&config) {
        tracing::warn!("{warning}");
    }
    raise_file_limit();
    let clock = Clock::start();
    let identity = Arc::new(identity::load(&config)?);
    for warning in identity::warnings(&config, &identity) {
        tracing::warn!("{warning}");
    }
    let node_id = identity::node(&identity);
    let state = StateDir::open(&config.data_dir)?;
    let stored = state.load();
    let token = Arc::new(admin::token::load_or_create(&config.data_dir)?);

    let runtime = net::runtime()?;
    let socket = net::bind(config.gossip.bind, &*runtime)
        .with_context(|| format!("gossip.bind {}: can't bind", config.gossip.bind))?;
    let net_config = NetConfig::new(identity.clone(), runtime, socket, state.reset_key(random()?));
    let (events_in, events) = mpsc::channel(EVENTS);
    let (net, bound) = Net::start(net_config, events_in)?;
    let gossip = advertise::address(&config.gossip, bound)?;
    let admin_listener = TcpListener::bind(config.admin.bind)
        .await
        .with_context(|| format!("admin.bind {}: can't bind; is another sidecar running?", config.admin.bind))?;
    let admin_addr = admin_listener.local_addr()?;

    let metrics = Arc::new(Metrics::new());
    let mesh_metrics = Arc::new(MeshMetrics::register(&metrics));
    let help = "When this sidecar's certificate ends, in seconds since 1970; then every peer refuses it";
    let expiry = metrics.register_gauge("certificate_expiry_timestamp_seconds", help);
    expiry.set(i64::try_from(identity.facts().not_after.0 / 1000).unwrap_or(i64::MAX));
    let ready = Arc::new(Ready::default());
    let node_config = NodeConfig {
        node: node_id.clone(),
        addr: gossip,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        membership: removal::membership(config.gossip.profile),
        coalesce: config.gossip.coalesce,
        seed: u64::from_le_bytes(random()?),
    };
    let now = Now { mono: clock.mono(), wall: clock.wall() };
    let node = Node::new(node_config, identity.clone(), stored, now)?;
    let locality = locality(&config);
    let host = gossip.ip().to_string();
    let instances = local_instances(&config, &node_id, &host)?;
    #[expect(clippy::disallowed_methods, reason = "only this sidecar's own operator orders checks, one at a time")]
    let (watch, watches) = mpsc::unbounded_channel();
    // The proxy needs the agent's snapshots, the agent's `info` the proxy's addresses: the info is completed by a cell.
    let info = Arc::new(std::sync::OnceLock::new());
    let (handle, ended) = Agent::start(AgentConfig {
        node,
        net: net.clone(),
        events,
        clock,
        state,
        seeds: config.gossip.seeds.clone(),
        certificate_until: identity.facts().not_after,
        locality,
        rules: Rules::new(u64::from_le_bytes(random()?), config.routing.clone(), &config.services)
            .reading(&config.proxy),
        instances,
        watch,
        info: info.clone(),
        host: host.clone(),
        metrics: mesh_metrics.clone(),
        observed: metrics.observed.clone(),
        ready: ready.clone(),
    });
    check_applications(watches, handle.clone());

    let mut proxy_config = config.proxy.clone();
    if proxy_config.workers == 0 {
        proxy_config.workers = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(MOST_WORKERS));
    }
    let proxy_config = ProxyConfig {
        proxy: proxy_config,
        services: config.services.clone(),
        access_log: config.access_log.clone(),
        node: node_id.to_string(),
        plain: true,
        own: vec![admin_addr],
    };
    let proxy = proxy::start(proxy_config, handle.snapshots(), metrics.clone(), clock)?;
    let token_file = config.data_dir.join(admin::token::FILE_NAME);
    let fixed = NodeInfo {
        node: node_id,
        mesh: identity.facts().mesh.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        generation: 0,
        incarnation: 0,
        gossip,
        proxy: proxy.addr(),
        ports: proxy.ports().clone(),
        tcp_ports: proxy.tcp_ports().clone(),
        admin: admin_addr,
        token_file: std::path::absolute(&token_file).unwrap_or(token_file).display().to_string(),
        pid: std::process::id(),
        members: 0,
        connections: 0,
        digest: String::new(),
        snapshot: 0,
        waiting_for: Vec::new(),
    };
    let run_file = config.data_dir.join(RUN_FILE);
    if let Err(error) = write_run_file(&run_file, &fixed) {
        // A full disk must not keep a pod out of service.
        tracing::warn!("commands on this host need --admin and --token-file: {error:#}");
    }
    tracing::info!(
        node = %fixed.node, mesh = %fixed.mesh, gossip = %gossip, proxy = %fixed.proxy, admin = %admin_addr,
        "lanemesh {} runs", fixed.version
    );
    tracing::info!("at worst until an instance gets no new request: {}", removal::in_words(&config));
    // Set once, here.
    let _ = info.set(fixed);

    let stop_admin = CancellationToken::new();
    let snapshots = handle.snapshots();
    let asked = ready.clone();
    let admin_state = AdminState {
        handle: handle.clone(),
        metrics: Arc::new(move || {
            mesh_metrics.snapshot_age(clock.mono().since(snapshots.load().published));
            metrics.encode()
        }),
        ready: Arc::new(move || asked.waiting_for()),
        token,
        clock: Arc::new(move || clock.mono()),
        allow_remote: config.admin.allow_remote,
    };
    tokio::spawn(serve_admin(admin_listener, admin_state, stop_admin.clone()));
    let ended = Some(ended);
    let (proxy, node) = (Some(proxy), identity::node(&identity));
    Ok(Sidecar { handle, proxy, net, config, node, host, ready, ended, stop_admin, run_file })
}

impl Sidecar {
    /// Waits until the agent ends by itself: asked to leave, or its name is taken.
    pub async fn ended(&mut self) -> Ended {
        match self.ended.as_mut() {
            Some(ended) => match ended.await {
                Ok(how) => {
                    self.ended = None;
                    how
                }
                // The agent's task is gone without a word: only a panic does that.
                Err(_) => Ended::Left,
            },
            None => std::future::pending().await,
        }
    }

    /// Stops serving and closes every connection.
    pub async fn close(mut self) {
        self.stop_admin.cancel();
        if let Some(proxy) = self.proxy.take() {
            // Its threads are waited for; that must not hold up the runtime.
            let _ = tokio::task::spawn_blocking(move || proxy.stop()).await;
        }
        self.net.close().await;
        // Its absence says that nothing runs here.
        let _ = std::fs::remove_file(&self.run_file);
    }
}

fn locality(config: &Config) -> Locality {
    // Of a tag that two of its instances have, the first one's value counts.
    let tags = config.instances.iter().rev().flat_map(|instance| instance.tags.clone());
    Locality { env: config.env.clone(), region: config.region.clone(), zone: config.zone.clone(), tags: tags.collect() }
}

pub(super) fn local_instances(config: &Config, node: &NodeId, host: &str) -> Result<Vec<LocalInstance>> {
    let local = |(at, instance): (usize, &config::Instance)| {
        let id = match (&instance.id, at) {
            (Some(id), _) => id.clone(),
            (None, 0) => InstanceId::new(node.as_str())?,
            (None, _) => InstanceId::new(&format!("{node}-{at}"))
                .with_context(|| format!("instance {at} needs an `id`: its default would be too long"))?,
        };
        let spec = InstanceSpec {
            id,
            service: instance.service.clone(),
            host: instance.host.clone().unwrap_or_else(|| host.to_owned()),
            port: instance.port,
            protocol: instance.protocol,
            env: config.env.clone(),
            region: config.region.clone(),
            zone: config.zone.clone(),
            version: instance.version.clone(),
            lane: instance.lane.clone(),
            weight: instance.weight,
            tags: instance.tags.clone(),
            capacity: instance.capacity,
        };
        Ok(LocalInstance { spec, check: instance.check.clone() })
    };
    config.instances.iter().enumerate().map(local).collect()
}

/// Passes on what the agent wants checked.
fn check_applications(mut watches: mpsc::UnboundedReceiver<Watch>, handle: Handle) {
    tokio::spawn(async move {
        let probes = probe::start(Vec::new(), handle);
        while let Some(watch) = watches.recv().await {
            match watch {
                Watch::Start { id, host, port, check } => {
                    let authority =
                        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
                    probes.check(probe::Target { id, authority, check });
                }
                Watch::Stop(id) => probes.forget(&id),
            }
        }
    });
}

async fn serve_admin(listener: TcpListener, state: AdminState, stop: CancellationToken) {
    if let Err(error) = admin::serve(listener, state, stop).await {
        tracing::error!("admin API ended: {error}");
    }
}

/// What was bound, for tools and tests; removed at the end.
fn write_run_file(path: &std::path::Path, info: &NodeInfo) -> Result<()> {
    let fresh = path.with_extension("json.new");
    let write = || -> std::io::Result<()> {
        std::fs::write(&fresh, serde_json::to_vec_pretty(info)?)?;
        std::fs::rename(&fresh, path)
    };
    write()
        .inspect_err(|_| drop(std::fs::remove_file(&fresh)))
        .with_context(|| format!("can't write {}", path.display()))
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    if SystemRandom::new().fill(&mut bytes).is_err() {
        bail!("the system gives no random numbers");
    }
    Ok(bytes)
}

/// A proxy needs many sockets; the soft limit is often 1,024.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!("open files stay limited to {soft}: {error}");
    }
}

/// In the data directory: what a running sidecar has bound.
pub const RUN_FILE: &str = "run.json";
