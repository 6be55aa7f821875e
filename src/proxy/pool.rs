//! HTTP/1.1 connections to instances: one pool per data thread, so that taking and giving back needs no lock (REQUIREMENTS P4).
//!
//! Last in, first out: few connections stay warm and the rest age out. A connection is offered again only when hyper says that it
//! is ready; for a request that must not be repeated, the socket itself is asked as well, since an application closes idle
//! connections at times of its own choosing. A stale connection is never the client's error and never the instance's fault.
//!
//! Idle connections rest here plain, as sockets without buffer or task; [`Pool::watch`] notices when one is closed. hyper is put
//! on one when a request needs it, and stays on it.

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    io,
    mem::MaybeUninit,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustc_hash::FxHashMap;
use tokio::{
    io::ReadBuf,
    net::TcpStream,
    task::{JoinHandle, spawn_local},
    time::{Instant, timeout_at},
};

use super::{
    body::RequestBody,
    files::{Complaint, is_local},
    h2_pool::Stream,
    io::{InstanceIo, MAX_RESPONSE_HEADERS, Socket, spent},
};
use crate::{
    routing::{InFlight, InstanceCell, InstanceEntry},
    telemetry::{Clock, Metrics},
    types::Mono,
};

/// Idle connections kept per instance and thread.
const MOST_IDLE: usize = 256;
/// Largest response head, and with it the largest piece of a body that is read at a time: what a client does not take stays in
/// memory, so a stalled one must not hold much.
///
/// A little more than 64 KiB: bodies of that size come with their head in one piece.
pub(super) const MAX_RESPONSE_HEAD: usize = 96 * 1024;

/// One connection to an instance.
pub(super) struct Link {
    pub(super) sender: SendRequest<RequestBody>,
    socket: Socket,
    /// When it was last given back; zero while it is in use.
    since: Rc<Cell<Mono>>,
    /// Whether it has carried a request before.
    pub(super) reused: bool,
    /// Of the address that it leads to.
    epoch: u32,
    /// Not to be used again.
    spent: bool,
    /// hyper's side of the connection: closed together with this one, also in the middle of a request. Its result is what the
    /// instance sent beyond its last response.
    driver: JoinHandle<Bytes>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// A connection that nothing but its user reads or writes.
pub(super) struct Plain {
    pub(super) stream: TcpStream,
    /// When it was last given back.
    since: Mono,
    /// Whether it has carried a request before.
    pub(super) reused: bool,
    /// Of the address that it leads to.
    epoch: u32,
}

impl Plain {
    /// Whether the other end has closed, reset, or sent something unasked; if not, `cx` is woken when it does. No system call as
    /// long as nothing has happened.
    fn poll_spent(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut byte = [MaybeUninit::uninit()];
        self.stream.poll_peek(cx, &mut ReadBuf::uninit(&mut byte)).map(drop)
    }
}

struct Entry {
    /// Held so that the address of the cell stays this instance's key.
    cell: Arc<InstanceCell>,
    host: String,
    port: u16,
    epoch: u32,
    idle: Vec<Link>,
    plain: Vec<Plain>,
    patience: Rc<Patience>,
    /// When a connection that had carried a request was last kept.
    kept: Option<Mono>,
}

impl Entry {
    fn new(instance: &InstanceEntry) -> Self {
        Self {
            cell: instance.cell.clone(),
            host: instance.record.host.clone(),
            port: instance.record.port,
            epoch: 0,
            idle: Vec::new(),
            plain: Vec::new(),
            patience: Rc::default(),
            kept: None,
        }
    }

    /// Whether its connections lead to where the instance is now; those that don't are closed.
    fn leads_to(&mut self, instance: &InstanceEntry) -> bool {
        if self.host == instance.record.host && self.port == instance.record.port {
            return true;
        }
        self.host.clone_from(&instance.record.host);
        self.port = instance.record.port;
        self.epoch += 1;
        self.shed();
        false
    }

    fn shed(&mut self) {
        self.idle.clear();
        self.plain.clear();
    }
}

/// For how long an instance keeps an idle connection, as seen: when it closed one, and when it did not. A request that meets the
/// close on its way is lost, and one that must not be repeated is lost for the user: it takes only a connection that has not
/// rested longer than others have rested before it and lived, and not one that is about to be closed.
#[derive(Default)]
struct Patience {
    /// The shortest rest that ended with a close, and when it was seen last.
    seen: Cell<Option<(Duration, Mono)>>,
    /// The longest rest that did not, since the last close that contradicts it.
    lived: Cell<Duration>,
}

impl Patience {
    fn closed_after(&self, rest: Duration, now: Mono) {
        let shortest = self.known(now).map_or(rest, |known| known.min(rest));
        self.seen.set(Some((shortest, now)));
        // Earlier than others were closed: it was restarted, perhaps as something that closes sooner.
        let lived = self.lived.get();
        self.lived.set(if rest < lived { Duration::ZERO } else { lived.min(before(rest)) });
    }

    /// A connection has rested for so long, and is still there.
    fn lives_after(&self, rest: Duration) {
        self.lived.set(self.lived.get().max(rest));
    }

    /// A restart closes connections at any age: what was seen is not held against the instance for ever.
    fn known(&self, now: Mono) -> Option<Duration> {
        self.seen.get().filter(|(_, at)| now.since(*at) < REMEMBERED).map(|(rest, _)| rest)
    }

    /// Whether a connection that has rested for so long will still be there for a request.
    fn holds(&self, rest: Duration, now: Mono) -> bool {
        rest <= self.lived.get().max(TRUSTED) && self.known(now).is_none_or(|known| rest < before(known))
    }
}

/// The rest that still leaves a request the time to arrive before a close.
fn before(close: Duration) -> Duration {
    close.saturating_sub((close / 5).max(MARGIN))
}

/// A rest that every instance is trusted to bear: it is about to read the next request, not to give up.
const TRUSTED: Duration = Duration::from_millis(5);
/// How long a closed idle connection is remembered.
const REMEMBERED: Duration = Duration::from_secs(300);
/// Least distance kept from the moment of closing, for the request to arrive.
const MARGIN: Duration = Duration::from_millis(20);

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum ConnectFault {
    /// It leads back to this sidecar.
    OwnAddress(SocketAddr),
    /// Refused, unreachable, unresolvable or too slow.
    Failed(io::Error),
    /// This host has no more files or ports to give.
    Local(io::Error),
    /// All connections are in use, and no more are opened.
    Full,
}

impl Clone for ConnectFault {
    fn clone(&self) -> Self {
        match self {
            Self::OwnAddress(addr) => Self::OwnAddress(*addr),
            Self::Failed(error) => Self::Failed(io::Error::new(error.kind(), error.to_string())),
            Self::Local(error) => Self::Local(io::Error::new(error.kind(), error.to_string())),
            Self::Full => Self::Full,
        }
    }
}

/// The pool of one data thread.
pub(super) struct Pool {
    entries: RefCell<FxHashMap<usize, Entry>>,
    idle_limit: Cell<Duration>,
    clock: Clock,
    /// This sidecar's own listeners.
    own: Vec<SocketAddr>,
    metrics: Arc<Metrics>,
    complaint: Complaint,
    /// Of [`Pool::watch`].
    watcher: RefCell<Waker>,
}

pub(super) fn key(cell: &Arc<InstanceCell>) -> usize {
    Arc::as_ptr(cell) as usize
}

impl Pool {
    pub(super) fn new(idle_limit: Duration, own: Vec<SocketAddr>, clock: Clock, metrics: Arc<Metrics>) -> Self {
        Self {
            entries: RefCell::default(),
            idle_limit: Cell::new(idle_limit),
            clock,
            own,
            metrics,
            complaint: Complaint::new(clock),
            watcher: RefCell::new(Waker::noop().clone()),
        }
    }

    /// Another limit, from now on.
    pub(super) fn set_idle_limit(&self, limit: Duration) {
        self.idle_limit.set(limit);
    }

    /// Notices for as long as it is polled that instances close idle connections.
    pub(super) async fn watch(self: Rc<Self>) {
        poll_fn(|cx| {
            self.watcher.borrow_mut().clone_from(cx.waker());
            let now = self.clock.mono();
            for entry in self.entries.borrow_mut().values_mut() {
                let Entry { plain, patience, .. } = entry;
                plain.retain(|link| {
                    let spent = link.poll_spent(cx).is_ready();
                    if spent {
                        patience.closed_after(now.since(link.since), now);
                    }
                    !spent
                });
            }
            Poll::<()>::Pending
        })
        .await;
    }

    /// A plain connection that is idle; `careful` asks the socket itself.
    pub(super) fn take_plain(&self, instance: &InstanceEntry, careful: bool, now: Mono) -> Option<Plain> {
        let mut entries = self.entries.borrow_mut();
        let entry = entries.get_mut(&key(&instance.cell))?;
        if !entry.leads_to(instance) {
            return None;
        }
        let mut at = entry.plain.len();
        while at > 0 {
            at -= 1;
            let rest = now.since(entry.plain[at].since);
            if rest > self.idle_limit.get() {
                entry.plain.swap_remove(at);
            } else if !careful || entry.patience.holds(rest, now) {
                let link = entry.plain.remove(at);
                if careful && spent(&link.stream) {
                    self.metrics.upstream_stale.inc();
                    continue;
                }
                self.metrics.upstream_reused.inc();
                return Some(link);
            }
        }
        None
    }

    /// An idle connection with hyper on it; `careful` asks the socket itself.
    pub(super) async fn take(&self, instance: &InstanceEntry, careful: bool) -> Option<Link> {
        if let Some(link) = self.take_linked(instance, careful) {
            return Some(link);
        }
        let plain = self.take_plain(instance, careful, self.clock.mono())?;
        self.link(plain, instance).await.ok()
    }

    fn take_linked(&self, instance: &InstanceEntry, careful: bool) -> Option<Link> {
        let mut entries = self.entries.borrow_mut();
        let entry = entries.get_mut(&key(&instance.cell))?;
        if !entry.leads_to(instance) {
            return None;
        }
        let now = self.clock.mono();
        let mut at = entry.idle.len();
        while at > 0 {
            at -= 1;
            let link = &entry.idle[at];
            let rest = now.since(link.since.get());
            if link.sender.is_closed() || rest > self.idle_limit.get() {
                entry.idle.swap_remove(at);
            } else if link.sender.is_ready() && (!careful || entry.patience.holds(rest, now)) {
                let link = entry.idle.remove(at);
                link.since.set(Mono::ZERO);
                if careful && link.socket.spent() {
                    self.metrics.upstream_stale.inc();
                    continue;
                }
                self.metrics.upstream_reused.inc();
                return Some(link);
            }
        }
        None
    }

    /// Opens a connection, at the latest by `until`.
    pub(super) async fn open(&self, instance: &InstanceEntry, until: Mono) -> Result<Link, ConnectFault> {
        let linked = async { self.link(self.dial(instance).await?, instance).await };
        self.by(until, linked).await
    }

    /// Opens a plain one, at the latest by `until`.
    pub(super) async fn open_plain(&self, instance: &InstanceEntry, until: Mono) -> Result<Plain, ConnectFault> {
        self.by(until, self.dial(instance)).await
    }

    /// A plain connection, at the latest by `until`.
    pub(super) async fn stream(&self, instance: &InstanceEntry, until: Mono) -> Result<TcpStream, ConnectFault> {
        self.by(until, self.connect(&instance.record.host, instance.record.port)).await
    }

    async fn by<T>(
        &self,
        until: Mono,
        opening: impl Future<Output = Result<T, ConnectFault>>,
    ) -> Result<T, ConnectFault> {
        let deadline = self.clock.instant(until).into();
        let opened = match timeout_at(deadline, opening).await {
            Ok(Err(ConnectFault::Failed(error))) if is_local(&error) => Err(self.short(error)),
            Ok(opened) => opened,
            Err(_) => Err(ConnectFault::Failed(io::ErrorKind::TimedOut.into())),
        };
        match opened {
            Ok(link) => {
                self.metrics.upstream_opened.inc();
                Ok(link)
            }
            Err(fault) => {
                self.metrics.upstream_connect_failed.inc();
                Err(fault)
            }
        }
    }

    /// No files or ports are left: what is merely kept is given up, and it is said.
    fn short(&self, error: io::Error) -> ConnectFault {
        if self.complaint.due() {
            tracing::error!(%error, "cannot open a connection: this process may open no more; raise the limit (ulimit -n, LimitNOFILE=)");
        }
        self.shed();
        ConnectFault::Local(error)
    }

    /// Closes every idle connection.
    pub(super) fn shed(&self) {
        for entry in self.entries.borrow_mut().values_mut() {
            entry.shed();
        }
    }

    async fn dial(&self, instance: &InstanceEntry) -> Result<Plain, ConnectFault> {
        let stream = self.connect(&instance.record.host, instance.record.port).await?;
        // Small requests must not wait for an acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        let mut entries = self.entries.borrow_mut();
        let entry = entries.entry(key(&instance.cell)).or_insert_with(|| Entry::new(instance));
        Ok(Plain { stream, since: Mono::ZERO, reused: false, epoch: entry.epoch })
    }

    /// Puts hyper on a connection.
    async fn link(&self, plain: Plain, instance: &InstanceEntry) -> Result<Link, ConnectFault> {
        let Plain { stream, reused, epoch, .. } = plain;
        let socket = Socket::new(stream);
        let (sender, mut connection) = http1::Builder::new()
            .max_buf_size(MAX_RESPONSE_HEAD)
            .max_headers(MAX_RESPONSE_HEADERS)
            .handshake(TokioIo::new(InstanceIo::new(socket.clone())))
            .await
            .map_err(|error| ConnectFault::Failed(io::Error::other(error)))?;
        let mut entries = self.entries.borrow_mut();
        let entry = entries.entry(key(&instance.cell)).or_insert_with(|| Entry::new(instance));
        let since = Rc::new(Cell::new(Mono::ZERO));
        let (rests, patience, clock) = (since.clone(), entry.patience.clone(), self.clock);
        let driver = spawn_local(async move {
            match (&mut connection).await {
                Ok(()) => {
                    let (since, now) = (rests.get(), clock.mono());
                    if since != Mono::ZERO {
                        patience.closed_after(now.since(since), now);
                    }
                    connection.into_parts().read_buf
                }
                // Whoever waits for a response hears of the error there.
                Err(error) => {
                    tracing::debug!(%error, "connection to an instance ended");
                    Bytes::new()
                }
            }
        });
        Ok(Link { sender, socket, since, reused, epoch, spent: false, driver })
    }

    /// A TCP connection to an instance.
    pub(super) async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, ConnectFault> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            let addr = SocketAddr::new(ip, port);
            self.check(addr)?;
            return TcpStream::connect(addr).await.map_err(ConnectFault::Failed);
        }
        let found = tokio::net::lookup_host((host, port)).await.map_err(ConnectFault::Failed)?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name resolves to no address");
        for addr in found {
            self.check(addr)?;
            match TcpStream::connect(addr).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(ConnectFault::Failed(last))
    }

    fn check(&self, addr: SocketAddr) -> Result<(), ConnectFault> {
        let same = |own: &SocketAddr| {
            let ip = addr.ip().to_canonical();
            own.port() == addr.port()
                && (own.ip() == ip || own.ip().is_unspecified() && ip.is_loopback() || ip.is_unspecified())
        };
        if self.own.iter().any(same) { Err(ConnectFault::OwnAddress(addr)) } else { Ok(()) }
    }

    fn give_back(&self, key: usize, mut link: Link) {
        if link.spent || link.sender.is_closed() {
            return;
        }
        let mut entries = self.entries.borrow_mut();
        let Some(entry) = entries.get_mut(&key).filter(|entry| entry.epoch == link.epoch) else { return };
        if entry.idle.len() < MOST_IDLE {
            let now = self.clock.mono();
            link.since.set(now);
            link.reused = true;
            entry.idle.push(link);
            entry.kept = Some(now);
        }
    }

    /// Whether no connection rests here.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.borrow().values().all(|entry| entry.idle.is_empty() && entry.plain.is_empty())
    }

    /// Takes a plain connection back that has nothing unread.
    pub(super) fn give_back_plain(&self, key: usize, mut link: Plain) {
        let mut entries = self.entries.borrow_mut();
        let Some(entry) = entries.get_mut(&key).filter(|entry| entry.epoch == link.epoch) else { return };
        let watcher = self.watcher.borrow();
        let mut cx = Context::from_waker(&watcher);
        if entry.plain.len() < MOST_IDLE && link.poll_spent(&mut cx).is_pending() {
            link.since = self.clock.mono();
            link.reused = true;
            entry.kept = Some(link.since);
            entry.plain.push(link);
        }
    }

    /// Keeps a connection that was opened ahead. It counts as one that was used: it rests like those, and may be closed meanwhile.
    pub(super) fn rest(&self, instance: &InstanceEntry, link: Plain) {
        let kept = self.entries.borrow().get(&key(&instance.cell)).and_then(|entry| entry.kept);
        self.give_back_plain(key(&instance.cell), link);
        if let Some(entry) = self.entries.borrow_mut().get_mut(&key(&instance.cell)) {
            entry.kept = kept;
        }
    }

    /// Whether a connection to an instance has carried a request and was kept lately: the application keeps them open.
    pub(super) fn keeps(&self, instance: &InstanceEntry) -> bool {
        let kept = self.entries.borrow().get(&key(&instance.cell)).and_then(|entry| entry.kept);
        kept.is_some_and(|kept| self.clock.mono().since(kept) <= self.idle_limit.get())
    }

    /// Closes what has been idle too long, and forgets instances that nobody knows any more. Call it about once a second.
    pub(super) fn sweep(&self) {
        let now = self.clock.mono();
        self.entries.borrow_mut().retain(|_, entry| {
            entry.idle.retain(|link| !link.sender.is_closed() && now.since(link.since.get()) <= self.idle_limit.get());
            entry.plain.retain(|link| now.since(link.since) <= self.idle_limit.get());
            let rests = entry.idle.iter().map(|link| link.since.get()).chain(entry.plain.iter().map(|link| link.since));
            if let Some(oldest) = rests.min() {
                entry.patience.lives_after(now.since(oldest));
            }
            // The pool's own handle is the last one: no snapshot holds the instance.
            Arc::strong_count(&entry.cell) > 1
        });
    }
}

/// What carries one request.
pub(super) enum Carrier {
    /// A connection of its own.
    Http1(Link),
    /// A stream of a shared one.
    Http2(Stream),
}

impl Carrier {
    /// Whether its connection has carried a request before.
    pub(super) fn reused(&self) -> bool {
        match self {
            Self::Http1(link) => link.reused,
            Self::Http2(stream) => stream.reused,
        }
    }
}

/// A carrier in use; its connection goes back when its response was read to the end. Dropped before, the connection of its own is
/// closed, the stream reset.
pub(super) struct Lease {
    pool: Rc<Pool>,
    key: usize,
    pub(super) carrier: Carrier,
    /// Counts the request as in flight at its instance.
    in_flight: InFlight,
}

impl Lease {
    pub(super) fn new(pool: Rc<Pool>, instance: &InstanceEntry, carrier: Carrier) -> Self {
        Self { pool, key: key(&instance.cell), carrier, in_flight: instance.cell.enter() }
    }

    /// Has the connection closed after the present response, if it is this request's alone.
    pub(super) fn spend(&mut self) {
        if let Carrier::Http1(link) = &mut self.carrier {
            link.spent = true;
        }
    }

    /// The connection itself, when its response has switched it away from HTTP, and what the instance sent behind that.
    /// `None` when the request was not taken whole by `until`, which no instance that switches may do, and of a shared connection.
    pub(super) async fn switched(self, until: Instant) -> Option<(Socket, Bytes, InFlight)> {
        let Carrier::Http1(mut link) = self.carrier else { return None };
        let early = timeout_at(until, &mut link.driver).await.ok()?.ok()?;
        Some((link.socket.clone(), early, self.in_flight))
    }

    pub(super) fn give_back(self) {
        let Self { pool, key, carrier, .. } = self;
        if let Carrier::Http1(link) = carrier {
            pool.give_back(key, link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_idle_connection_is_trusted_as_far_as_others_have_lived() {
        let patience = Patience::default();
        let now = Mono::ZERO + Duration::from_secs(1);
        assert!(patience.holds(TRUSTED, now) && !patience.holds(TRUSTED + MS, now));
        patience.lives_after(MS * 700);
        assert!(patience.holds(MS * 700, now) && !patience.holds(MS * 701, now));
        patience.closed_after(MS * 800, now);
        assert!(patience.holds(MS * 639, now) && !patience.holds(MS * 640, now));
        // A restart: whatever listens there now has not shown anything.
        patience.closed_after(MS * 300, now);
        assert!(patience.holds(TRUSTED, now) && !patience.holds(TRUSTED + MS, now));
        patience.lives_after(MS * 900);
        assert!(patience.holds(MS * 239, now) && !patience.holds(MS * 240, now));
        assert!(patience.holds(MS * 900, now + REMEMBERED));
    }
}
