//! HTTP/2 connections to instances: shared by many requests at once, one pool per data thread.
//!
//! An instance has as few connections as its limit on concurrent streams allows: another one is opened only when all are full,
//! one at a time, and whoever needs it meanwhile waits for the same one. A connection counts as open when the instance's own
//! SETTINGS have come: until then nothing was sent, so that an instance that is silent, or speaks something else, is passed over
//! with any method. After GOAWAY a connection takes no new stream, and those on it finish.
//!
//! A dead connection is found by the kernel (keepalive probes and unacknowledged bytes, within half a minute), by a request that
//! timed out while not a byte came, and by an HTTP/2 PING after `proxy.timeouts.h2_ping` of silence. The last is rare by default:
//! gRPC servers close connections of clients that ping more often than every five minutes.
//!
//! The connection's window has room for every stream's: a client that stops reading takes nothing from the others.

use std::{
    cell::{Cell, RefCell},
    error::Error as _,
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::{
    client::conn::http2::{self, Connection, SendRequest},
    rt::Executor,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustc_hash::FxHashMap;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::Notify,
    task::spawn_local,
    time::timeout_at,
};

use super::{
    body::RequestBody,
    io::Socket,
    pool::{ConnectFault, MAX_RESPONSE_HEAD, Pool, key},
};
use crate::{
    config::Timeouts,
    routing::{InstanceCell, InstanceEntry},
    telemetry::{Clock, Metrics},
    types::Mono,
};

/// Whether a failed request was certainly not processed: its stream was refused, or lies above a GOAWAY's last (RFC 9113 8.7).
pub(super) fn unprocessed(error: &hyper::Error) -> bool {
    cause(error).is_some_and(|cause| {
        cause.is_remote()
            && (cause.is_go_away() || cause.is_reset() && cause.reason() == Some(h2::Reason::REFUSED_STREAM))
    })
}

/// Whether the instance broke the protocol.
pub(super) fn malformed(error: &hyper::Error) -> bool {
    cause(error).is_some_and(h2::Error::is_library)
}

/// Whether the instance reset this very stream.
pub(super) fn was_reset(error: &hyper::Error) -> bool {
    cause(error).is_some_and(|cause| cause.is_remote() && cause.is_reset())
}

fn cause(error: &hyper::Error) -> Option<&h2::Error> {
    error.source()?.downcast_ref()
}

/// The HTTP/2 connections of one data thread.
pub(super) struct H2Pool {
    /// Dials, and knows which addresses are this sidecar's own.
    dialer: Rc<Pool>,
    entries: RefCell<FxHashMap<usize, Rc<Entry>>>,
    timeouts: Cell<Timeouts>,
    clock: Clock,
    metrics: Arc<Metrics>,
}

/// One instance's connections.
struct Entry {
    /// Held so that the address of the cell stays this instance's key.
    cell: Arc<InstanceCell>,
    host: String,
    port: u16,
    shared: RefCell<Vec<Rc<Shared>>>,
    /// Connections begun to be opened.
    begun: Cell<u64>,
    opening: Cell<bool>,
    /// The last that failed, by number.
    failed: RefCell<Option<(u64, ConnectFault)>>,
    /// A stream has ended, or opening a connection has.
    changed: Notify,
}

/// One connection.
struct Shared {
    number: u64,
    sender: RefCell<SendRequest<RequestBody>>,
    /// Until it has ended.
    driver: Rc<RefCell<Option<Driver>>>,
    heard: Rc<Heard>,
    socket: Socket,
    streams: Cell<usize>,
    used: Cell<bool>,
    /// When a stream last ended.
    since: Cell<Mono>,
    /// Takes no new streams.
    retired: Cell<bool>,
}

type Driver = Connection<TokioIo<Listening>, RequestBody, Spawn>;

impl Shared {
    /// Streams that it takes at a time, as far as it has said; 0 before that, and after its end.
    fn room(&self) -> usize {
        let most = self.driver.borrow().as_ref().map_or(0, Connection::current_max_send_streams);
        most.min(MOST_STREAMS)
    }

    fn usable(&self) -> bool {
        !self.retired.get() && !self.sender.borrow().is_closed() && self.driver.borrow().is_some()
    }
}

/// A place on a connection; dropping it ends the stream.
pub(super) struct Stream {
    shared: Rc<Shared>,
    entry: Rc<Entry>,
    clock: Clock,
    begun: Mono,
    /// Whether the connection has carried a request before.
    pub(super) reused: bool,
}

impl Stream {
    /// The connection's number: a fresh one has a higher.
    pub(super) fn number(&self) -> u64 {
        self.shared.number
    }

    /// Sends a request.
    pub(super) fn sender(&self) -> std::cell::RefMut<'_, SendRequest<RequestBody>> {
        self.shared.sender.borrow_mut()
    }

    /// Notes that no answer came in time. When not a byte came, on any stream, nothing new goes out on this connection.
    pub(super) fn timed_out(&self) {
        if self.shared.heard.at.get() <= self.begun {
            self.shared.retired.set(true);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.streams.set(self.shared.streams.get() - 1);
        self.shared.since.set(self.clock.mono());
        self.entry.changed.notify_one();
    }
}

impl H2Pool {
    pub(super) fn new(dialer: Rc<Pool>, timeouts: Timeouts, clock: Clock, metrics: Arc<Metrics>) -> Self {
        Self { dialer, entries: RefCell::default(), timeouts: Cell::new(timeouts), clock, metrics }
    }

    /// Other time limits, for connections opened from now on.
    pub(super) fn set_timeouts(&self, timeouts: Timeouts) {
        self.timeouts.set(timeouts);
    }

    /// A stream on a connection with a number above `after`, at the latest by `until`.
    pub(super) async fn stream(
        self: &Rc<Self>,
        instance: &InstanceEntry,
        until: Mono,
        after: u64,
    ) -> Result<Stream, ConnectFault> {
        let entry = self.entry(instance);
        let deadline = self.clock.instant(until).into();
        // Failures of connections begun before this request came are not its own.
        let mine = entry.begun.get() + u64::from(!entry.opening.get());
        loop {
            if let Some(stream) = self.take(&entry, after) {
                return Ok(stream);
            }
            if let Some((number, fault)) = &*entry.failed.borrow()
                && *number >= mine
            {
                return Err(fault.clone());
            }
            if !entry.opening.get() && entry.shared.borrow().len() < MOST_CONNECTIONS {
                self.open(&entry);
            }
            if timeout_at(deadline, entry.changed.notified()).await.is_err() {
                let full = entry.shared.borrow().iter().any(|shared| shared.usable());
                return Err(if full { ConnectFault::Full } else { late() });
            }
        }
    }

    /// Opens a connection to an instance that has none, for requests to come.
    pub(super) fn open_ahead(self: &Rc<Self>, instance: &InstanceEntry) {
        let entry = self.entry(instance);
        if entry.shared.borrow().is_empty() && !entry.opening.get() {
            self.open(&entry);
        }
    }

    /// Whether there is a connection to an instance that has carried a request.
    pub(super) fn keeps(&self, instance: &InstanceEntry) -> bool {
        let entries = self.entries.borrow();
        let shared = |entry: &Rc<Entry>| entry.shared.borrow().iter().any(|one| one.used.get() && one.usable());
        entries.get(&key(&instance.cell)).is_some_and(shared)
    }

    fn entry(&self, instance: &InstanceEntry) -> Rc<Entry> {
        let mut entries = self.entries.borrow_mut();
        let record = &instance.record;
        let known = entries.get(&key(&instance.cell));
        if let Some(entry) = known.filter(|entry| entry.host == record.host && entry.port == record.port) {
            return entry.clone();
        }
        // Streams on connections to the address before hold their connections themselves, and finish.
        let entry = Rc::new(Entry {
            cell: instance.cell.clone(),
            host: record.host.clone(),
            port: record.port,
            shared: RefCell::default(),
            begun: Cell::new(0),
            opening: Cell::new(false),
            failed: RefCell::default(),
            changed: Notify::new(),
        });
        entries.insert(key(&instance.cell), entry.clone());
        entry
    }

    fn take(&self, entry: &Rc<Entry>, after: u64) -> Option<Stream> {
        let mut all = entry.shared.borrow_mut();
        all.retain(|shared| shared.usable());
        // The first with room: later ones are for peaks, and age out after them.
        let at = all.iter().position(|shared| shared.number > after && shared.streams.get() < shared.room())?;
        let shared = &all[at];
        if shared.streams.get() == 0 && shared.socket.ended() {
            // The other end closed while nobody looked.
            self.metrics.upstream_stale.inc();
            all.remove(at);
            drop(all);
            return self.take(entry, after);
        }
        let reused = shared.used.replace(true);
        if reused {
            self.metrics.upstream_reused.inc();
        }
        shared.streams.set(shared.streams.get() + 1);
        Some(Stream {
            shared: shared.clone(),
            entry: entry.clone(),
            clock: self.clock,
            begun: self.clock.mono(),
            reused,
        })
    }

    /// Opens a connection for whoever waits. It does not end with the request that asked first.
    fn open(self: &Rc<Self>, entry: &Rc<Entry>) {
        let number = entry.begun.get() + 1;
        entry.begun.set(number);
        entry.opening.set(true);
        let (pool, entry) = (self.clone(), entry.clone());
        spawn_local(async move {
            let deadline = pool.clock.instant(pool.clock.mono() + pool.timeouts.get().connect).into();
            let opened = match timeout_at(deadline, pool.dial(&entry, number)).await {
                Ok(opened) => opened,
                Err(_) => Err(late()),
            };
            match opened {
                Ok(shared) => {
                    pool.metrics.upstream_opened.inc();
                    entry.shared.borrow_mut().push(Rc::new(shared));
                }
                Err(fault) => {
                    pool.metrics.upstream_connect_failed.inc();
                    *entry.failed.borrow_mut() = Some((number, fault));
                }
            }
            entry.opening.set(false);
            entry.changed.notify_waiters();
        });
    }

    async fn dial(&self, entry: &Entry, number: u64) -> Result<Shared, ConnectFault> {
        let stream = self.dialer.connect(&entry.host, entry.port).await?;
        let _ = stream.set_nodelay(true);
        watch_by_kernel(&stream);
        let socket = Socket::new(stream);
        let heard = Rc::new(Heard { at: Cell::new(Mono::ZERO), more: Notify::new() });
        let io = TokioIo::new(Listening { socket: socket.clone(), heard: heard.clone(), clock: self.clock });
        let (sender, connection) =
            self.builder().handshake(io).await.map_err(|error| ConnectFault::Failed(io::Error::other(error)))?;
        let driver = Rc::new(RefCell::new(Some(connection)));
        let shared = Shared {
            number,
            sender: sender.into(),
            driver: driver.clone(),
            heard,
            socket,
            streams: Cell::new(0),
            used: Cell::new(false),
            since: Cell::new(self.clock.mono()),
            retired: Cell::new(false),
        };
        let heard = shared.heard.clone();
        spawn_local(async move {
            let ended = poll_fn(|cx| match &mut *driver.borrow_mut() {
                Some(connection) => Pin::new(connection).poll(cx),
                None => Poll::Ready(Ok(())),
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "HTTP/2 connection to an instance ended");
            }
            // Requests queued on it come back unsent.
            drop(driver.borrow_mut().take());
            heard.more.notify_one();
        });
        while shared.room() == 0 {
            if !shared.usable() {
                let text = "it closed the connection, or does not speak HTTP/2 without TLS";
                return Err(ConnectFault::Failed(io::Error::other(text)));
            }
            shared.heard.more.notified().await;
        }
        Ok(shared)
    }

    fn builder(&self) -> http2::Builder<Spawn> {
        let mut builder = http2::Builder::new(Spawn);
        builder
            .timer(TokioTimer::new())
            // No stream before the instance's own SETTINGS.
            .initial_max_send_streams(0)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(MOST_STREAMS as u32 * STREAM_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(MAX_RESPONSE_HEAD as u32)
            .keep_alive_interval(self.timeouts.get().h2_ping)
            .keep_alive_timeout(self.timeouts.get().h2_ping.min(MOST_PING_WAIT));
        builder
    }

    /// Whether there is no connection.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.borrow().values().all(|entry| entry.shared.borrow().is_empty())
    }

    /// Closes what has been unused too long, and forgets instances that nobody knows any more. Call it about once a second.
    pub(super) fn sweep(&self) {
        let now = self.clock.mono();
        self.entries.borrow_mut().retain(|_, entry| {
            entry.shared.borrow_mut().retain(|shared| {
                let unused = shared.streams.get() == 0 && now.since(shared.since.get()) > self.timeouts.get().idle;
                shared.usable() && !unused
            });
            // The pool's own handle is the last one: no snapshot holds the instance.
            Arc::strong_count(&entry.cell) > 1
        });
    }
}

fn late() -> ConnectFault {
    ConnectFault::Failed(io::Error::new(io::ErrorKind::TimedOut, "no HTTP/2 connection in time"))
}

/// Has the kernel give up on a peer that is gone without a word.
fn watch_by_kernel(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY).with_retries(3);
    // A platform without it still has time limits.
    let _ = socket.set_tcp_keepalive(&probes);
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
}

/// Runs hyper's own tasks of a connection.
#[derive(Clone)]
struct Spawn;

impl<F: Future + 'static> Executor<F> for Spawn {
    fn execute(&self, task: F) {
        spawn_local(async move { drop(task.await) });
    }
}

/// What came from an instance.
struct Heard {
    /// When its last bytes came.
    at: Cell<Mono>,
    /// Bytes have come, or the connection has ended.
    more: Notify,
}

/// An instance's socket; notes when bytes come.
struct Listening {
    socket: Socket,
    heard: Rc<Heard>,
    clock: Clock,
}

impl AsyncRead for Listening {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.socket).poll_read(cx, buf))?;
        self.heard.at.set(self.clock.mono());
        self.heard.more.notify_one();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Listening {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

/// Connections per instance and thread.
const MOST_CONNECTIONS: usize = 16;
/// Streams used per connection, however many the instance takes.
const MOST_STREAMS: usize = 100;
/// In a data centre a round trip takes some 0.5 ms: this is 500 MB/s.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Request bytes that wait for one stream's window.
const SEND_BUFFER: usize = 256 * 1024;
/// For the answer to a PING.
const MOST_PING_WAIT: Duration = Duration::from_secs(20);
/// Keepalive probes of the kernel: the first after so much silence, three in all, so far apart.
const PROBE_AFTER: Duration = Duration::from_secs(15);
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// Sent bytes that stay unacknowledged for so long end the connection.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);
