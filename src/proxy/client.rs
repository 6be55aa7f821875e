//! One client connection: hyper serves it, the thread's sweep watches its clock.

use std::{
    cell::{Cell, OnceCell, RefCell},
    convert::Infallible,
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, sync::Notify, time::timeout};

use super::{
    Reason,
    detect::{Opening, PREFACE, Rewound},
    flight::{Asked, Flight},
    forward::{Refusal, handle},
    framing::{Follower, Limit},
    h2_serve,
    io::{ClientIo, Socket, Wire},
    plain,
    tunnel::Tunnel,
    worker::{Slot, Worker},
};
use crate::{routing::MethodClass, types::Mono};

/// A client connection, as requests and the sweep see it.
pub(super) struct Client {
    pub(super) address: SocketAddr,
    /// Service of the port, when it has one.
    pub(super) dedicated: Option<Arc<str>>,
    socket: Socket,
    pub(super) wire: Rc<Wire>,
    /// Set once it speaks HTTP/2.
    pub(super) http2: OnceCell<Rc<h2_serve::Streams>>,
    /// What the connection becomes after the present response.
    tunnel: RefCell<Option<Tunnel>>,
    /// It has become that, and looks after itself.
    tunnelled: Cell<bool>,
    /// Its number on this thread, once it is registered.
    number: Cell<u64>,
    /// Requests handed over by hyper so far.
    served: Cell<u64>,
    in_flight: Cell<u32>,
    pub(super) end: Notify,
    pub(super) how: Cell<End>,
    /// Set with every notice of `end`: cheaper to look at.
    pub(super) told: Cell<bool>,
}

/// How a connection is ended from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// After the request in flight.
    Gracefully,
    /// At once.
    Now,
}

impl Client {
    pub(super) fn new(worker: &Worker, socket: Socket, address: SocketAddr, dedicated: Option<Arc<str>>) -> Rc<Self> {
        let config = &worker.config;
        let wire = Rc::new(Wire {
            opening: Opening::default(),
            follower: Follower::new(config.max_head_bytes, config.max_headers).into(),
            plain_head: Cell::new(false),
            since: worker.clock.mono().into(),
            blocked: Cell::new(None),
            answered_400: Cell::new(false),
        });
        Rc::new(Self {
            address,
            dedicated,
            socket,
            wire,
            http2: OnceCell::new(),
            tunnel: RefCell::default(),
            tunnelled: Cell::new(false),
            number: Cell::new(0),
            served: Cell::new(0),
            in_flight: Cell::new(0),
            end: Notify::new(),
            how: Cell::new(End::Gracefully),
            told: Cell::new(false),
        })
    }

    /// Whether the present request must be refused for what hyper hid. To be called once per request, in order.
    pub(super) fn next_fault(&self) -> Option<Refusal> {
        let index = self.served.replace(self.served.get() + 1);
        self.wire.follower.borrow().fault(index).map(Refusal::from)
    }

    pub(super) fn entered(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    pub(super) fn left(&self, now: Mono) {
        self.in_flight.set(self.in_flight.get().saturating_sub(1));
        // Idle time runs from the end of a response, not from its request.
        if !self.wire.in_head() {
            self.wire.since.set(now);
        }
    }

    /// Ends the connection after the request in flight.
    pub(super) fn finish(&self) {
        if self.how.get() != End::Now {
            self.told.set(true);
            self.end.notify_one();
        }
    }

    /// The connection's bytes, watched; `first` are those that were read before.
    pub(super) fn io(&self, worker: &Worker, first: Bytes) -> ClientIo {
        ClientIo { socket: Rewound::new(first, self.socket.clone()), wire: self.wire.clone(), clock: worker.clock }
    }

    pub(super) fn cut(&self) {
        self.how.set(End::Now);
        self.told.set(true);
        self.end.notify_one();
    }

    /// The client's socket; the connection's own once HTTP is over.
    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Its number on this thread.
    pub(super) fn number(&self) -> u64 {
        self.number.get()
    }

    /// Gives it its number.
    pub(super) fn numbered(&self, number: u64) {
        self.number.set(number);
    }

    /// Writes an interim response ahead of the one that is awaited, where that is possible at once: it is only a hint.
    pub(super) fn hint(&self, text: &[u8]) {
        // hyper has nothing to write while it waits for the response, unless the client takes no bytes.
        let waits = self.in_flight.get() > 0 && self.wire.blocked.get().is_none() && !self.tunnelled.get();
        if waits && self.socket.try_write(text).is_ok_and(|count| count < text.len()) {
            self.cut();
        }
    }

    /// After the present response the connection is no longer HTTP.
    pub(super) fn becomes(&self, tunnel: Tunnel) {
        self.tunnel.replace(Some(tunnel));
    }

    /// Carries a tunnel to its end. `early`: what the client has sent for it already.
    pub(super) async fn carry(&self, tunnel: Tunnel, early: Bytes) {
        self.tunnelled.set(true);
        tunnel.carry(self, early).await;
    }

    /// Returns when the connection is ended from outside.
    pub(super) async fn told_to_end(&self) {
        self.end.notified().await;
    }

    /// Whether it was ended because the client broke off.
    pub(super) fn cut_off(&self) -> bool {
        self.how.get() == End::Now
    }

    /// Looks at the clock: ends what is idle, stalls, or was reset by the client.
    pub(super) fn sweep(self: &Rc<Self>, worker: &Rc<Worker>, now: Mono) {
        if self.tunnelled.get() {
            return;
        }
        let timeouts = &worker.config.timeouts;
        let silent = now.since(self.wire.since.get());
        if let Some(streams) = self.http2.get() {
            streams.sweep(self, worker, now);
        }
        if self.wire.blocked.get().is_some_and(|since| now.since(since) > timeouts.idle) {
            tracing::debug!(client = %self.address, "the client takes no bytes: connection closed");
            self.cut();
        } else if self.in_flight.get() > 0 {
            // With half-closing clients allowed, hyper does not read while it serves: a reset is noticed here.
            if self.socket.reset() {
                self.cut();
            }
        } else if self.wire.in_head() {
            if silent > timeouts.head {
                self.socket.last_words(&Reason::RequestTimeout.last_words(""));
                refused(worker, self, Reason::RequestTimeout);
                self.cut();
            }
        } else if silent > timeouts.idle {
            self.finish();
        }
    }
}

/// Serves one connection to its end.
pub(super) async fn serve(slot: Rc<Slot>, stream: TcpStream, address: SocketAddr, dedicated: Option<Arc<str>>) {
    let worker = slot.worker();
    // Small responses must not wait for an acknowledgement of the one before.
    let _ = stream.set_nodelay(true);
    let client = Client::new(&worker, Socket::new(stream), address, dedicated);
    let _registered = worker.register(&client);
    let first = if worker.plain { plain::serve(&slot, &client).await } else { Some(Bytes::new()) };
    let Some(first) = first else { return };
    // On the heap: most connections never need the others' room.
    let http2 = if first.starts_with(PREFACE) {
        Some(first)
    } else {
        Box::pin(serve_http1(&slot, &slot.worker(), &client, first)).await
    };
    if let Some(first) = http2 {
        client.wire.opening.skip();
        Box::pin(h2_serve::serve(&slot, &client, first)).await;
    }
}

/// Serves a connection as HTTP/1.1 to its end, or to the point where it turns out to be HTTP/2; returns what was read then.
/// `first` was read before.
async fn serve_http1(slot: &Rc<Slot>, worker: &Rc<Worker>, client: &Rc<Client>, first: Bytes) -> Option<Bytes> {
    let io = TokioIo::new(client.io(worker, first));
    let service = service_fn(|request: Request<Incoming>| {
        let (worker, client) = (slot.worker(), client.clone());
        async move {
            let response = handle(worker, client.clone(), request).await;
            client.wire.answered_400.set(response.status() == StatusCode::BAD_REQUEST);
            Ok::<_, Infallible>(response)
        }
    });
    let mut connection = builder(worker).serve_connection(io, service);
    loop {
        tokio::select! {
            ended = &mut connection => {
                let first = client.wire.opening.take();
                let stuck = client.wire.follower.borrow().stuck();
                match (stuck, ended) {
                    _ if first.is_some() => return first,
                    (Some(limit), _) => beyond(worker, client, limit),
                    (None, Err(error)) => broken(worker, client, &error),
                    (None, Ok(())) => {}
                }
                break;
            }
            () = client.end.notified() => match client.how.get() {
                End::Gracefully => std::pin::Pin::new(&mut connection).graceful_shutdown(),
                End::Now => return None,
            },
        }
    }
    let tunnel = client.tunnel.take();
    if let Some(tunnel) = tunnel {
        client.carry(tunnel, connection.into_parts().read_buf).await;
    } else {
        drop(connection);
        if !client.wire.follower.borrow().between() {
            linger(client).await;
        }
    }
    None
}

fn builder(worker: &Worker) -> http1::Builder {
    let config = &worker.config;
    let mut builder = http1::Builder::new();
    // The sweep keeps the time of heads: hyper's own timer would also run between requests.
    builder.half_close(true).header_read_timeout(None).max_buf_size(config.max_head_bytes.max(HYPER_BUFFER));
    // The follower keeps heads beyond the limits away. One more: the line that it stopped in may have begun.
    if config.max_headers >= HYPER_HEADERS {
        builder.max_headers(config.max_headers + 1);
    }
    builder
}

/// Closes in a way that lets a client which is still sending read the last answer (RFC 9112 9.6): with bytes unread, closing
/// would be a reset, and a reset takes away what the client has not read yet.
pub(super) async fn linger(client: &Client) {
    if client.socket.reset() {
        return;
    }
    client.socket.finish();
    // Whether it ends by its end, an error or the time: afterwards it is closed.
    let _ = timeout(LINGER, client.socket.discard()).await;
}

/// Counts and logs a request that was refused before anybody could read it.
fn refused(worker: &Rc<Worker>, client: &Rc<Client>, reason: Reason) {
    worker.metrics.proxy_error(reason.name());
    // In the log it has neither method nor path: what came is no request.
    let Ok(method) = Method::from_bytes(b"-") else { return };
    let asked = Asked::Path("-".into());
    let mut flight = Flight::begin(worker.clone(), client.clone(), method, asked, MethodClass::Other);
    flight.error = Some(reason.name());
    flight.status = Some(reason.status());
}

/// Refuses a head that the follower kept away from hyper.
fn beyond(worker: &Rc<Worker>, client: &Rc<Client>, limit: Limit) {
    let reason = if limit == Limit::Target { Reason::TargetTooLong } else { Reason::HeadTooLarge };
    client.socket.last_words(&reason.last_words(""));
    refused(worker, client, reason);
    let limits = (worker.config.max_head_bytes, worker.config.max_headers);
    let (client, reason) = (client.address, reason.name());
    tracing::info!(%client, reason, max_head_bytes = limits.0, max_headers = limits.1, "request refused");
}

/// hyper ends the connection when it cannot parse what comes; [`ClientIo`] has put the reason into its answer. Here it is
/// counted.
fn broken(worker: &Rc<Worker>, client: &Rc<Client>, error: &hyper::Error) {
    let refusal = if error.is_parse_too_large() {
        Some(Reason::HeadTooLarge.into())
    } else if error.is_parse() {
        Some(client.wire.unparsed())
    } else {
        None
    };
    if let Some(Refusal { reason, .. }) = &refusal {
        refused(worker, client, *reason);
    }
    let client = client.address;
    if let Some(Refusal { reason, detail }) = refusal {
        tracing::info!(%client, %error, reason = reason.name(), detail, "request refused");
    } else {
        tracing::debug!(%client, %error, "client connection ended");
    }
}

/// hyper keeps up to this many headers on the stack; more cost an allocation per request.
const HYPER_HEADERS: usize = 100;
/// Read buffer limit of a connection: bodies move in pieces up to this size.
const HYPER_BUFFER: usize = 64 * 1024;
/// For a client to read the last answer while it is still sending.
const LINGER: Duration = Duration::from_secs(1);
