//! One client connection of HTTP/2: hyper serves it, the thread's sweep watches its clock, its streams and its manners.
//!
//! What h2 itself sees to, with limits set here: concurrent streams, size of a head, endless CONTINUATION, streams reset before
//! they were taken up, floods of PING and SETTINGS (answered one by one, each only when the answer before has gone out). What is
//! added here: streams reset just after they were taken up (CVE-2023-44487), a stream whose client takes no more of it while its
//! connection goes on, and the two-step GOAWAY (RFC 9113 6.8) when this sidecar drains or the connection is idle.
//!
//! Windows are small, since the client is on this machine, and the connection's window has room for every stream's: a
//! stalled upload takes nothing from the others.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    error::Error as _,
    future::poll_fn,
    rc::Rc,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, request::Parts};
use hyper::{body::Incoming, rt::Executor, server::conn::http2, service::service_fn};
use hyper_util::rt::TokioIo;
use rustc_hash::FxHashMap;
use tokio::task::{AbortHandle, spawn_local};

use super::{
    Reason,
    client::{Client, End},
    forward::handle,
    headers,
    worker::{Slot, Worker},
};
use crate::{telemetry::Clock, types::Mono};

/// The streams of one connection, as its sweep sees them.
#[derive(Debug, Default)]
pub(super) struct Streams {
    tasks: RefCell<FxHashMap<u64, Task>>,
    next: Cell<u64>,
    /// Streams that the client gave up just after it had opened them, since the last sweep.
    abandoned: Cell<u32>,
    /// GOAWAY was sent because the sidecar drains.
    leaving: Cell<bool>,
}

#[derive(Debug)]
struct Task {
    /// When it last ran. A stream that waits for an instance runs at least at the end of each limit on silence.
    ran: Rc<Cell<Mono>>,
    abort: AbortHandle,
}

impl Streams {
    /// Notes a stream that the client gave up after so long.
    pub(super) fn given_up(&self, after: Duration, client: &Client, worker: &Worker) {
        if after > RAPID {
            return;
        }
        self.abandoned.set(self.abandoned.get() + 1);
        if self.abandoned.get() == MOST_ABANDONED {
            worker.metrics.proxy_error(RESET_FLOOD);
            tracing::warn!(client = %client.address, "a flood of streams opened and reset: connection closed");
            client.cut();
        }
    }

    /// Called with the connection's own sweep.
    pub(super) fn sweep(&self, client: &Client, worker: &Worker, now: Mono) {
        self.abandoned.set(0);
        if worker.draining() && !self.leaving.replace(true) {
            client.finish();
        }
        let stalled = worker.config.timeouts.idle * 2 + SLACK;
        for task in self.tasks.borrow().values().filter(|task| now.since(task.ran.get()) > stalled) {
            tracing::debug!(client = %client.address, "the client takes no more of a stream: stream reset");
            task.abort.abort();
        }
        // It was asked to go at half of this, and does not even answer the PING.
        if self.tasks.borrow().is_empty() && now.since(client.wire.since.get()) > stalled {
            client.cut();
        }
    }
}

/// Runs streams, and lets the sweep see them.
#[derive(Clone)]
struct Spawn {
    streams: Rc<Streams>,
    clock: Clock,
}

impl<F: Future + 'static> Executor<F> for Spawn {
    fn execute(&self, stream: F) {
        let (streams, clock) = (self.streams.clone(), self.clock);
        let id = streams.next.replace(streams.next.get() + 1);
        let ran = Rc::new(Cell::new(clock.mono()));
        let running = Running { streams: streams.clone(), id };
        let mark = ran.clone();
        let task = spawn_local(async move {
            let _running = running;
            let mut stream = std::pin::pin!(stream);
            poll_fn(|cx| {
                mark.set(clock.mono());
                stream.as_mut().poll(cx).map(drop)
            })
            .await;
        });
        streams.tasks.borrow_mut().insert(id, Task { ran, abort: task.abort_handle() });
    }
}

struct Running {
    streams: Rc<Streams>,
    id: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        // A sweep that aborts this very stream reads the map; the task ends after it.
        if let Ok(mut tasks) = self.streams.tasks.try_borrow_mut() {
            tasks.remove(&self.id);
        }
    }
}

/// Serves a connection whose first bytes were read before, to its end.
pub(super) async fn serve(slot: &Rc<Slot>, client: &Rc<Client>, first: Bytes) {
    let worker = &slot.worker();
    client.wire.follower.borrow_mut().stop();
    let streams = client.http2.get_or_init(Rc::default).clone();
    let service = service_fn(|request: Request<Incoming>| {
        let (worker, client) = (slot.worker(), client.clone());
        async move { Ok::<_, Infallible>(handle(worker, client, request).await) }
    });
    let io = TokioIo::new(client.io(worker, first));
    let spawn = Spawn { streams, clock: worker.clock };
    let mut connection = std::pin::pin!(builder(worker, spawn).serve_connection(io, service));
    loop {
        tokio::select! {
            ended = &mut connection => {
                if let Err(error) = ended {
                    broken(worker, client, &error);
                }
                return;
            }
            () = client.end.notified() => match client.how.get() {
                End::Gracefully => connection.as_mut().graceful_shutdown(),
                End::Now => return,
            },
        }
    }
}

fn builder(worker: &Worker, spawn: Spawn) -> http2::Builder<Spawn> {
    let config = &worker.config;
    let streams = config.h2_max_streams;
    let mut builder = http2::Builder::new(spawn);
    builder
        .max_concurrent_streams(streams)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(streams.saturating_mul(STREAM_WINDOW).min(MOST_WINDOW))
        .max_send_buf_size(SEND_BUFFER)
        // HTTP/2 counts 32 bytes more per header. What is a little too large is answered with a reason by `check_head`.
        .max_header_list_size(u32::try_from(config.max_head_bytes + 32 * config.max_headers).unwrap_or(u32::MAX))
        .max_local_error_reset_streams(MOST_FAULTS);
    builder
}

/// What HTTP/1.1's follower sees to: the size of a head, by the same two limits. And what HTTP/2 does to cookies is undone.
pub(super) fn check_head(worker: &Worker, parts: &mut Parts) -> Option<Reason> {
    let target = parts.uri.path_and_query().map_or(0, |path| path.as_str().len());
    let host = parts.uri.authority().map_or(0, |host| host.as_str().len());
    let line = |(name, value): (&http::HeaderName, &http::HeaderValue)| name.as_str().len() + value.len() + 4;
    let bytes: usize = target + host + parts.headers.iter().map(line).sum::<usize>();
    headers::join_cookies(&mut parts.headers);
    let config = &worker.config;
    (bytes > config.max_head_bytes || parts.headers.len() > config.max_headers).then_some(Reason::HeadTooLarge)
}

/// h2 has told the client in a GOAWAY; here it is counted and explained.
fn broken(worker: &Worker, client: &Client, error: &hyper::Error) {
    let client = client.address;
    let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
    let Some(reason) = cause.filter(|cause| cause.is_library()).and_then(h2::Error::reason) else {
        tracing::debug!(%client, %error, "client connection ended");
        return;
    };
    let name = if reason == h2::Reason::ENHANCE_YOUR_CALM { FLOOD } else { Reason::BadSyntax.name() };
    worker.metrics.proxy_error(name);
    tracing::info!(%client, %reason, "HTTP/2 connection refused");
}

/// In `lanemesh_proxy_errors_total`: connections closed for streams opened and reset at once.
const RESET_FLOOD: &str = "http2_reset_flood";
/// The same for what h2 closes upon by itself.
const FLOOD: &str = "http2_flood";
/// A stream given up within this time was never meant. A caller's own time limit is longer.
const RAPID: Duration = Duration::from_millis(50);
/// Of those, as many between two sweeps end the connection.
const MOST_ABANDONED: u32 = 200;
/// Beyond two limits on silence, for a busy machine.
const SLACK: Duration = Duration::from_secs(1);
/// On loopback a round trip takes some 30 us: this is 2 GB/s.
const STREAM_WINDOW: u32 = 64 * 1024;
const MOST_WINDOW: u32 = 64 * 1024 * 1024;
/// Response bytes that wait for one stream's window.
const SEND_BUFFER: usize = 64 * 1024;
/// Streams that a client breaks the protocol on.
const MOST_FAULTS: usize = 256;
