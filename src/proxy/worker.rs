//! Threads and listeners. Every data thread has its own runtime and its own socket on every port.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io,
    net::SocketAddr,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use arc_swap::{ArcSwap, cache::Cache};
use http::HeaderName;
use ring::rand::{SecureRandom, SystemRandom};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::{
    net::TcpListener,
    sync::{Notify, watch},
    task::{LocalSet, spawn_local},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Reason, ahead,
    client::Client,
    client::serve,
    files::{self, Complaint},
    h2_pool::H2Pool,
    hints::{self, Clients},
    pool::Pool,
    tcp,
    view::View,
};
use crate::{
    config::{AccessLog, Proxy, ServiceRule},
    routing::Snapshot,
    telemetry::{AccessLogger, AccessSink, Clock, Metrics},
    types::{Mono, ServiceName},
};

/// What the proxy needs to start.
#[derive(Debug, Clone)]
pub struct ProxyConfig {
    /// Ports, limits, time limits.
    pub proxy: Proxy,
    /// This sidecar's rules by service.
    pub services: BTreeMap<ServiceName, ServiceRule>,
    /// Access log.
    pub access_log: AccessLog,
    /// This node's name: the source of connections that come from its own loopback.
    pub node: String,
    /// Whether plain HTTP/1.1 goes by the own path. Without it hyper serves everything: the same, for more; tests hold both to it.
    pub plain: bool,
    /// Other listeners of this sidecar (admin): an instance with one of these addresses is refused.
    pub own: Vec<SocketAddr>,
}

/// Why the proxy could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartFault {
    /// A port could not be bound.
    #[error("cannot listen on {addr} ({what}): {error}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// `proxy.bind`, or the service of a dedicated port.
        what: String,
        /// What the system says.
        error: io::Error,
    },
    /// The configured lane header is no header name.
    #[error("proxy.lane_header `{0}` is not a header name; write one like `x-lane`")]
    LaneHeader(String),
    /// The access log cannot be written.
    #[error("{0}")]
    AccessLog(io::Error),
    /// A thread or its runtime could not be made.
    #[error("cannot start a data-path thread: {0}")]
    Thread(io::Error),
}

/// What all data threads share: read by requests, written rarely.
#[derive(Debug, Default)]
struct Shared {
    draining: AtomicBool,
    connections: AtomicUsize,
    in_flight: AtomicUsize,
    requests: AtomicUsize,
}

/// The running proxy.
#[derive(Debug)]
pub struct Running {
    addr: SocketAddr,
    ports: BTreeMap<ServiceName, SocketAddr>,
    tcp_ports: BTreeMap<ServiceName, SocketAddr>,
    shared: Arc<Shared>,
    stop: CancellationToken,
    threads: Vec<JoinHandle<()>>,
    access: AccessLogger,
    settings: watch::Sender<Arc<ProxyConfig>>,
}

impl Running {
    /// The bound address of the shared port.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The bound dedicated ports.
    pub fn ports(&self) -> &BTreeMap<ServiceName, SocketAddr> {
        &self.ports
    }

    /// The bound TCP ports.
    pub fn tcp_ports(&self) -> &BTreeMap<ServiceName, SocketAddr> {
        &self.tcp_ports
    }

    /// From now on every response asks the client to close its connection; nothing is refused.
    pub fn drain(&self) {
        self.shared.draining.store(true, Relaxed);
    }

    /// Requests in flight, response bodies included.
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Relaxed)
    }

    /// Requests begun since the start; wraps around.
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Relaxed)
    }

    /// Open client connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Relaxed)
    }

    /// The same, for whoever outlives this handle.
    pub fn connection_count(&self) -> impl Fn() -> usize + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || shared.connections.load(Relaxed)
    }

    /// Puts other settings in force, for every request that begins from now on. What was bound stays as it was: `bind`,
    /// `ports` and `workers` are not looked at, nor where the access log goes.
    pub fn reload(&self, proxy: Proxy, services: BTreeMap<ServiceName, ServiceRule>, access_log: AccessLog) {
        self.settings.send_modify(|now| {
            let (own, node, plain) = (now.own.clone(), now.node.clone(), now.plain);
            *now = Arc::new(ProxyConfig { proxy, services, access_log, node, plain, own });
        });
    }

    /// Has the access log's file opened anew, for whoever moved it away.
    pub fn reopen_access_log(&self) {
        self.access.reopen();
    }

    /// Stops accepting, gives requests in flight up to a quarter of a second (the caller has drained before), and ends the
    /// threads; returns when they have ended and the access log is written. Blocks.
    pub fn stop(self) {
        self.stop.cancel();
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a data-path thread had panicked; its connections were lost");
            }
        }
        self.access.finish();
    }
}

/// What comes in at a port.
#[derive(Debug, Clone)]
enum Port {
    /// Requests for any service.
    Shared,
    /// Requests for one.
    Service(Arc<str>),
    /// Connections for one.
    Tcp(Arc<str>),
}

/// One thread's listeners, before they belong to its runtime.
type Listeners = Vec<(std::net::TcpListener, Port)>;

/// Binds every port and starts the threads. Port 0 lets the system choose; [`Running`] says what was bound.
pub fn start(
    config: ProxyConfig,
    snapshots: Arc<ArcSwap<Snapshot>>,
    metrics: Arc<Metrics>,
    clock: Clock,
) -> Result<Running, StartFault> {
    lane_header(&config.proxy)?;
    let workers = config.proxy.workers.max(1);
    let mut listeners: Vec<Listeners> = (0..workers).map(|_| Vec::new()).collect();
    let addr = bind_all(config.proxy.bind, "proxy.bind", &Port::Shared, &mut listeners)?;
    let mut ports = BTreeMap::new();
    for (service, wanted) in &config.proxy.ports {
        let port = Port::Service(service.as_str().into());
        let bound = bind_all(*wanted, &format!("port of service `{service}`"), &port, &mut listeners)?;
        ports.insert(service.clone(), bound);
    }
    let mut tcp_ports = BTreeMap::new();
    for (service, wanted) in &config.proxy.tcp_ports {
        let port = Port::Tcp(service.as_str().into());
        let bound = bind_all(*wanted, &format!("TCP port of service `{service}`"), &port, &mut listeners)?;
        tcp_ports.insert(service.clone(), bound);
    }
    metrics.watch(snapshots.clone(), clock);
    let dropped = metrics.access_log_dropped.clone();
    let (access, sink) = AccessLogger::start(&config.access_log, dropped).map_err(StartFault::AccessLog)?;
    let own =
        config.own.iter().copied().chain([addr]).chain(ports.values().chain(tcp_ports.values()).copied()).collect();
    let (settings, changes) = watch::channel(Arc::new(config));
    let seed = Seed { settings: changes, snapshots, metrics, clock, sink, own };
    let shared = Arc::new(Shared::default());
    let stop = CancellationToken::new();
    let mut threads = Vec::new();
    for (index, listeners) in listeners.into_iter().enumerate() {
        let (seed, shared, stop) = (seed.clone(), shared.clone(), stop.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartFault::Thread)?;
        let thread = thread::Builder::new().name(format!("proxy-{index}")).spawn(move || {
            LocalSet::new().block_on(&runtime, run(index, seed, shared, listeners, stop));
        });
        threads.push(thread.map_err(StartFault::Thread)?);
    }
    Ok(Running { addr, ports, tcp_ports, shared, stop, threads, access, settings })
}

/// Binds one port once per thread; the first bind decides what port 0 means.
fn bind_all(
    wanted: SocketAddr,
    what: &str,
    port: &Port,
    listeners: &mut [Listeners],
) -> Result<SocketAddr, StartFault> {
    let mut addr = wanted;
    for (index, of_thread) in listeners.iter_mut().enumerate() {
        let bound = bind(addr, index == 0).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (bound, listener) =
            bound.map_err(|error| StartFault::Bind { addr: wanted, what: what.to_owned(), error })?;
        addr = bound;
        of_thread.push((listener, port.clone()));
    }
    Ok(addr)
}

/// `SO_REUSEPORT` would let a second lanemesh share the port in silence, so the first socket is bound without it to see
/// whether the port is free.
fn bind(addr: SocketAddr, first: bool) -> io::Result<std::net::TcpListener> {
    let open = || {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if addr.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        io::Result::Ok(socket)
    };
    if first && addr.port() != 0 {
        open()?.bind(&addr.into())?;
    }
    let socket = open()?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// What a thread is made of.
#[derive(Clone)]
struct Seed {
    settings: watch::Receiver<Arc<ProxyConfig>>,
    snapshots: Arc<ArcSwap<Snapshot>>,
    metrics: Arc<Metrics>,
    clock: Clock,
    sink: AccessSink,
    own: Vec<SocketAddr>,
}

/// The settings' own rule for this name is the same; it is checked again because this is where it counts.
fn lane_header(proxy: &Proxy) -> Result<HeaderName, StartFault> {
    HeaderName::from_bytes(proxy.lane_header.as_bytes()).map_err(|_| StartFault::LaneHeader(proxy.lane_header.clone()))
}

/// Where a thread's worker is found: a reload puts another in its place, with other settings and the same connections.
/// Whoever lives longer than a request keeps this.
pub(super) struct Slot {
    worker: RefCell<Rc<Worker>>,
    /// There is nothing to sweep, so that is seldom done.
    rests: Cell<bool>,
    /// A client has come while that was so.
    roused: Notify,
}

impl Slot {
    /// The worker with the settings in force.
    pub(super) fn worker(&self) -> Rc<Worker> {
        self.worker.borrow().clone()
    }

    fn reload(&self, config: &ProxyConfig) {
        match self.worker().with(config) {
            Ok(worker) => *self.worker.borrow_mut() = Rc::new(worker),
            Err(fault) => tracing::error!("the old settings stay in force: {fault}"),
        }
    }

    fn rouse(&self) {
        if self.rests.replace(false) {
            self.roused.notify_one();
        }
    }
}

/// One data thread under one configuration, as its connections and requests see it.
pub(super) struct Worker {
    pub(super) config: Proxy,
    pub(super) node: Rc<str>,
    pub(super) plain: bool,
    pub(super) rules: BTreeMap<ServiceName, ServiceRule>,
    pub(super) lane_header: HeaderName,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
    pub(super) access: AccessSink,
    pub(super) pool: Rc<Pool>,
    max_connections: usize,
    pub(super) h2_pool: Rc<H2Pool>,
    snapshots: RefCell<Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>>,
    view: RefCell<Rc<View>>,
    random: Cell<u64>,
    clients: Clients,
    next_client: Rc<Cell<u64>>,
    shared: Arc<Shared>,
    /// A request has met a newer view.
    news: Rc<Notify>,
}

impl Worker {
    fn new(seed: Seed, shared: Arc<Shared>) -> Result<Self, StartFault> {
        let Seed { settings, snapshots, metrics, clock, sink, own } = seed;
        let config = settings.borrow().clone();
        let pool = Rc::new(Pool::new(config.proxy.timeouts.pool_idle, own, clock, metrics.clone()));
        let h2_pool = Rc::new(H2Pool::new(pool.clone(), config.proxy.timeouts, clock, metrics.clone()));
        let view = RefCell::new(Rc::new(View::new(snapshots.load_full())));
        Ok(Self {
            config: config.proxy.clone(),
            node: config.node.as_str().into(),
            plain: config.plain,
            rules: config.services.clone(),
            lane_header: lane_header(&config.proxy)?,
            metrics,
            clock,
            access: sink,
            pool,
            max_connections: files::connections(config.proxy.max_connections),
            h2_pool,
            snapshots: RefCell::new(Cache::new(snapshots)),
            view,
            random: Cell::new(first_random()),
            clients: Rc::default(),
            next_client: Rc::default(),
            shared,
            news: Rc::default(),
        })
    }

    /// The same thread under another configuration.
    fn with(&self, config: &ProxyConfig) -> Result<Self, StartFault> {
        let lane_header = lane_header(&config.proxy)?;
        self.pool.set_idle_limit(config.proxy.timeouts.pool_idle);
        self.h2_pool.set_timeouts(config.proxy.timeouts);
        let snapshots = self.snapshots.borrow().clone();
        Ok(Self {
            config: config.proxy.clone(),
            node: self.node.clone(),
            plain: self.plain,
            rules: config.services.clone(),
            lane_header,
            metrics: self.metrics.clone(),
            clock: self.clock,
            access: self.access.sampling(config.access_log.sample),
            pool: self.pool.clone(),
            max_connections: files::connections(config.proxy.max_connections),
            h2_pool: self.h2_pool.clone(),
            snapshots: RefCell::new(snapshots),
            view: RefCell::new(self.view()),
            random: Cell::new(self.random()),
            clients: self.clients.clone(),
            next_client: self.next_client.clone(),
            shared: self.shared.clone(),
            news: self.news.clone(),
        })
    }

    /// The routing view in force.
    pub(super) fn view(&self) -> Rc<View> {
        let mut cache = self.snapshots.borrow_mut();
        let snapshot = cache.load();
        let mut view = self.view.borrow_mut();
        if !Arc::ptr_eq(snapshot, &view.snapshot) {
            *view = Rc::new(View::new(snapshot.clone()));
            self.news.notify_one();
        }
        view.clone()
    }

    /// A random number (SplitMix64, Steele et al. 2014); good enough for sampling and for requests without a key.
    pub(super) fn random(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn draining(&self) -> bool {
        self.shared.draining.load(Relaxed)
    }

    pub(super) fn request_began(&self) {
        self.shared.in_flight.fetch_add(1, Relaxed);
        self.shared.requests.fetch_add(1, Relaxed);
        self.metrics.in_flight.inc();
    }

    pub(super) fn request_ended(&self) {
        self.shared.in_flight.fetch_sub(1, Relaxed);
        self.metrics.in_flight.dec();
    }

    /// Lets the sweep see a connection until the guard is dropped.
    pub(super) fn register(self: &Rc<Self>, client: &Rc<Client>) -> Registered {
        let id = self.next_client.replace(self.next_client.get() + 1);
        client.numbered(id);
        self.clients.borrow_mut().insert(id, client.clone());
        Registered { worker: self.clone(), id }
    }

    fn sweep(self: &Rc<Self>, now: Mono) {
        self.pool.sweep();
        self.h2_pool.sweep();
        for client in self.clients.borrow().values() {
            client.sweep(self, now);
        }
    }

    /// No connection to anybody, so nothing to sweep.
    fn is_empty(&self) -> bool {
        self.clients.borrow().is_empty() && self.pool.is_empty() && self.h2_pool.is_empty()
    }
}

/// One counted, registered client connection.
pub(super) struct Registered {
    worker: Rc<Worker>,
    id: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.worker.clients.borrow_mut().remove(&self.id);
        self.worker.shared.connections.fetch_sub(1, Relaxed);
        self.worker.metrics.client_connections.dec();
    }
}

/// One thread's life.
async fn run(index: usize, seed: Seed, shared: Arc<Shared>, listeners: Listeners, stop: CancellationToken) {
    let mut settings = seed.settings.clone();
    let worker = match Worker::new(seed, shared) {
        Ok(worker) => Rc::new(worker),
        Err(fault) => return tracing::error!("a data thread does not start: {fault}"),
    };
    hints::on_this_thread(worker.clients.clone());
    drop(spawn_local(worker.pool.clone().watch()));
    let (news, mut seen) = (worker.news.clone(), worker.view().snapshot.clone());
    let slot = Rc::new(Slot { worker: RefCell::new(worker), rests: Cell::new(false), roused: Notify::new() });
    for (listener, port) in listeners {
        match TcpListener::from_std(listener) {
            Ok(listener) => drop(spawn_local(accept(slot.clone(), listener, port, stop.clone()))),
            Err(error) => tracing::error!(%error, "a listener is lost: this data thread does not serve its port"),
        }
    }
    let (mut sweep_at, mut retire_at) = (Instant::now() + SWEEP, Instant::now() + RETIRE_EVERY);
    while !stop.is_cancelled() {
        tokio::select! {
            () = sleep_until(sweep_at) => {
                let worker = slot.worker();
                let (now, instant) = (worker.clock.mono(), Instant::now());
                worker.sweep(now);
                ahead::open(&worker, &mut seen);
                if index == 0 && instant >= retire_at {
                    retire_at = instant + RETIRE_EVERY;
                    worker.metrics.retire(&worker.view().snapshot, now);
                }
                slot.rests.set(worker.is_empty());
                sweep_at = instant + if slot.rests.get() { RETIRE_EVERY } else { SWEEP };
            }
            () = news.notified() => ahead::open(&slot.worker(), &mut seen),
            () = slot.roused.notified() => sweep_at = sweep_at.min(Instant::now() + SWEEP),
            // Ends only with `Running`, which stops this thread first.
            Ok(()) = settings.changed() => {
                let config = settings.borrow_and_update().clone();
                slot.reload(&config);
            }
            () = stop.cancelled() => {}
        }
    }
    let worker = slot.worker();
    for client in worker.clients.borrow().values() {
        client.finish();
    }
    let emptied = async {
        while !worker.clients.borrow().is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    // Whoever is left is cut off: the caller has waited for requests in flight already.
    let _ = timeout(LAST_WAIT, emptied).await;
}

async fn accept(slot: Rc<Slot>, listener: TcpListener, port: Port, stop: CancellationToken) {
    let complaint = Complaint::new(slot.worker().clock);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        match accepted {
            Ok((stream, address)) => {
                let worker = slot.worker();
                // Counted before the connection's task runs; `Registered` counts down.
                slot.rouse();
                let before = worker.shared.connections.fetch_add(1, Relaxed);
                worker.metrics.client_connections.inc();
                if before >= worker.max_connections {
                    refuse(&worker, &stream, &port);
                    continue;
                }
                match &port {
                    Port::Shared => spawn_local(serve(slot.clone(), stream, address, None)),
                    Port::Service(name) => spawn_local(serve(slot.clone(), stream, address, Some(name.clone()))),
                    Port::Tcp(name) => spawn_local(tcp::serve(slot.clone(), stream, address, name.clone())),
                };
            }
            Err(error) => {
                if complaint.due() {
                    tracing::error!(%error, "cannot accept connections; if there are too many open files, raise the limit (ulimit -n, LimitNOFILE=)");
                }
                let worker = slot.worker();
                worker.metrics.accept_failed.inc();
                worker.pool.shed();
                // Out of files, most likely: waiting lets connections end, spinning would not.
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Says why, and closes; costs no task and no buffer.
fn refuse(worker: &Worker, stream: &tokio::net::TcpStream, port: &Port) {
    worker.shared.connections.fetch_sub(1, Relaxed);
    worker.metrics.client_connections.dec();
    worker.metrics.client_connections_refused.inc();
    let reason = Reason::TooManyConnections;
    worker.metrics.proxy_error(reason.name());
    // Nothing is owed to a client that does not take it at once.
    let _ = match port {
        Port::Tcp(_) => SockRef::from(stream).set_linger(Some(Duration::ZERO)),
        Port::Shared | Port::Service(_) => stream.try_write(reason.last_words("").as_bytes()).map(|_| ()),
    };
}

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// How often a thread looks at its connections' clocks. A reset of a waiting client is noticed within this time.
const SWEEP: Duration = Duration::from_millis(500);
/// Where a thread's random numbers begin. They need not be secret, only different; the clock's low bits do as well.
fn first_random() -> u64 {
    let mut bytes = [0; 8];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => Clock::start().wall().0,
    }
}

/// For requests in flight at the very end.
const LAST_WAIT: Duration = Duration::from_millis(250);
/// How often series of departed instances are looked for. A thread without any connection wakes for nothing else.
const RETIRE_EVERY: Duration = Duration::from_secs(10);
