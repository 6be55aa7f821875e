//! Bodies in both directions: streamed with backpressure, cut after silence, or held whole where that allows a retry.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::Future as _,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::{
    sync::oneshot,
    task::spawn_local,
    time::{Instant, Sleep, sleep},
};

use super::{
    flight::Flight,
    grpc,
    headers::clean_trailers,
    pool::Lease,
    replay::{Origin, ahead_of},
};
use crate::routing::Outcome;

/// A limit on silence. Fires between one and two times the limit after the last progress: progress only sets a mark, so that
/// a busy stream never touches its timer.
#[derive(Debug)]
pub(super) struct Idle {
    limit: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
    progress: bool,
    /// Pieces that had moved the other way when the limit last passed.
    other_way: u64,
}

impl Idle {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, sleep: None, progress: false, other_way: 0 }
    }

    fn progress(&mut self) {
        self.progress = true;
    }

    /// Ready when the limit has passed in silence, on this body and on the one that goes the other way, of which so many pieces
    /// have moved. Poll it while waiting.
    fn poll_expired(&mut self, other_way: u64, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        let timer = self.sleep.get_or_insert_with(|| Box::pin(sleep(limit)));
        loop {
            ready!(timer.as_mut().poll(cx));
            let other_way = std::mem::replace(&mut self.other_way, other_way) != other_way;
            if !std::mem::take(&mut self.progress) && !other_way {
                return Poll::Ready(());
            }
            timer.as_mut().reset(Instant::now() + limit);
        }
    }
}

/// Why a request's body could not be sent to its end: the client's doing, never the instance's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientFault {
    /// It went away or broke its framing.
    Broken,
    /// It stopped sending.
    Silent,
}

/// How far a streamed body has come; shared with who waits for the answer, and with the answer's body.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Pieces taken from the client.
    pub(super) frames: Cell<u64>,
    /// Pieces of the answer given to the client.
    answered: Cell<u64>,
    /// Set when the client is to blame for the end.
    pub(super) fault: Cell<Option<ClientFault>>,
    /// Set while the client, which waits for a 100, was not asked for it.
    pub(super) withheld: Cell<bool>,
    /// Set while the instance would take more and the client sends nothing: that time is not the instance's.
    pub(super) owed: Cell<bool>,
}

/// A request's body before and between tries.
pub(super) enum Outgoing {
    /// Held whole; empty when there is none.
    Kept(Bytes),
    /// Passed on as it comes; `None` once it was sent.
    Streamed {
        /// The body, until it is handed over.
        body: Option<Box<Streamed>>,
        /// Where its pieces come from, whoever has it.
        origin: Rc<RefCell<Origin>>,
        /// The limit on silence.
        silence: Duration,
        /// Whether the client waits for a 100.
        expects: bool,
    },
}

impl Outgoing {
    pub(super) fn empty() -> Self {
        Self::Kept(Bytes::new())
    }

    pub(super) fn streamed(origin: Rc<RefCell<Origin>>, silence: Duration, expects: bool) -> Self {
        let body = Streamed::new(origin.clone(), silence, Rc::default());
        Self::Streamed { body: Some(Box::new(body)), origin, silence, expects }
    }

    /// Whether it can be sent again after it was sent.
    pub(super) fn replayable(&self) -> bool {
        matches!(self, Self::Kept(_))
    }

    /// Whether it waits for a 100.
    pub(super) fn expects(&self) -> bool {
        matches!(self, Self::Streamed { expects: true, .. })
    }

    /// The body for one try. A streamed one is handed over; `opened` hears of the instance's 100. With `keeps`, the beginning of
    /// it is kept, for the case that the instance refuses it.
    pub(super) fn take(
        &mut self,
        opened: Option<oneshot::Receiver<()>>,
        keeps: bool,
    ) -> (RequestBody, Option<Rc<Progress>>) {
        if !keeps {
            self.settle();
        }
        match self {
            Self::Kept(bytes) => (RequestBody::Kept(bytes.clone()), None),
            Self::Streamed { body, .. } => match body.take() {
                Some(mut streamed) => {
                    streamed.gate =
                        opened.map(|opened| Gate { opened, patience: Box::pin(sleep(PATIENCE)), closed: false });
                    let progress = streamed.progress.clone();
                    progress.withheld.set(streamed.gate.is_some());
                    (RequestBody::Streamed(streamed), Some(progress))
                }
                // `Attempts` never repeats what was sent and cannot be replayed.
                None => unreachable!("a streamed body was asked for twice"),
            },
        }
    }

    /// Has a body that was handed over, and then refused unprocessed, once more. `false` when too much of it was sent to be kept.
    pub(super) fn restore(&mut self) -> bool {
        let Self::Streamed { body, origin, silence, .. } = self else { return true };
        if !origin.borrow().whole() {
            return false;
        }
        origin.borrow_mut().again();
        *body = Some(Box::new(Streamed::new(origin.clone(), *silence, Rc::default())));
        true
    }

    /// Nothing is kept any longer: the instance has taken the request.
    pub(super) fn settle(&mut self) {
        if let Self::Streamed { origin, .. } = self {
            origin.borrow_mut().settle();
        }
    }

    /// Takes back what was not sent.
    pub(super) fn put_back(&mut self, unsent: RequestBody) {
        if let (Self::Streamed { body, .. }, RequestBody::Streamed(streamed)) = (self, unsent) {
            *body = Some(streamed);
        }
    }
}

/// A request body on its way to an instance.
pub(super) enum RequestBody {
    /// Held whole; empty when there is none.
    Kept(Bytes),
    /// Passed on as it comes.
    Streamed(Box<Streamed>),
}

/// A body that is passed on as it comes.
pub(super) struct Streamed {
    origin: Rc<RefCell<Origin>>,
    /// Of its origin.
    turn: u32,
    /// Kept pieces given again.
    given: usize,
    idle: Idle,
    progress: Rc<Progress>,
    /// With `Expect: 100-continue`: opened by the instance's 100. Until then nothing is asked of the client.
    gate: Option<Gate>,
}

/// Holds a body back until the instance asks for it, or has said nothing for a second (RFC 9110 10.1.1 lets a client send
/// then as well).
struct Gate {
    opened: oneshot::Receiver<()>,
    patience: Pin<Box<Sleep>>,
    closed: bool,
}

impl Gate {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.closed {
            return Poll::Pending;
        }
        match Pin::new(&mut self.opened).poll(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(()),
            // The final answer came without a 100: the body is not wanted, and goes down with the connection.
            Poll::Ready(Err(_)) => {
                self.closed = true;
                Poll::Pending
            }
            Poll::Pending => self.patience.as_mut().poll(cx),
        }
    }
}

impl Streamed {
    fn new(origin: Rc<RefCell<Origin>>, silence: Duration, progress: Rc<Progress>) -> Self {
        let turn = origin.borrow().turn();
        Self { origin, turn, given: 0, idle: Idle::new(silence), progress, gate: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(gate) = &mut self.gate {
            ready!(gate.poll(cx));
            self.gate = None;
            self.progress.withheld.set(false);
        }
        let mut origin = self.origin.borrow_mut();
        if origin.turn() != self.turn {
            return Poll::Ready(Some(Err(io::Error::other("sent again elsewhere"))));
        }
        let polled = origin.poll(&mut self.given, cx);
        self.progress.owed.set(polled.is_pending());
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                self.idle.progress();
                self.progress.frames.set(self.progress.frames.get() + 1);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                self.progress.fault.set(Some(ClientFault::Broken));
                Poll::Ready(Some(Err(io::Error::other(error))))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                ready!(self.idle.poll_expired(self.progress.answered.get(), cx));
                self.progress.fault.set(Some(ClientFault::Silent));
                Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())))
            }
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Kept(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Kept(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Streamed(streamed) => streamed.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Kept(bytes) => bytes.is_empty(),
            Self::Streamed(streamed) => streamed.origin.borrow().ended(streamed.given),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Kept(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Streamed(streamed) => streamed.origin.borrow().size_hint(streamed.given),
        }
    }
}

/// Reads a request body of known, small length whole, inside `limit`: whoever sends it byte by byte holds nothing for long.
pub(super) async fn keep(body: Incoming, silence: Duration, limit: Duration) -> Result<Bytes, ClientFault> {
    tokio::time::timeout(limit, gather(body, silence)).await.unwrap_or(Err(ClientFault::Silent))
}

async fn gather(mut body: Incoming, silence: Duration) -> Result<Bytes, ClientFault> {
    let mut first = Bytes::new();
    let mut more: Option<BytesMut> = None;
    loop {
        let frame = match tokio::time::timeout(silence, body.frame()).await {
            Err(_) => return Err(ClientFault::Silent),
            Ok(None) => return Ok(more.map_or(first, BytesMut::freeze)),
            Ok(Some(Err(_))) => return Err(ClientFault::Broken),
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        if first.is_empty() {
            first = data;
        } else {
            more.get_or_insert_with(|| BytesMut::from(&first[..])).extend_from_slice(&data);
        }
    }
}

/// How far reading a small response whole has come.
pub(super) enum Whole {
    /// All of it.
    Done(Bytes),
    /// All of it, and trailers, which stay where they are.
    WithTrailers,
    /// The instance broke off: nothing of it was given to the client.
    Broken(hyper::Error),
}

/// A response's body being read whole. Kept outside the future that reads, so that nothing is lost when time runs out.
pub(super) struct Gathering {
    parts: VecDeque<Frame<Bytes>>,
    rest: Incoming,
}

impl Gathering {
    pub(super) fn new(rest: Incoming) -> Self {
        Self { parts: VecDeque::new(), rest }
    }

    /// Reads to the end; may be dropped and called again.
    pub(super) async fn read(&mut self) -> Whole {
        loop {
            match self.rest.frame().await {
                None => break,
                Some(Err(error)) => return Whole::Broken(error),
                Some(Ok(frame)) => self.parts.push_back(frame),
            }
        }
        if self.parts.back().is_some_and(Frame::is_trailers) {
            return Whole::WithTrailers;
        }
        match self.parts.len() {
            0 => Whole::Done(Bytes::new()),
            1 => Whole::Done(self.parts.pop_front().and_then(|part| part.into_data().ok()).unwrap_or_default()),
            _ => Whole::Done(self.parts.iter().filter_map(Frame::data_ref).flatten().copied().collect()),
        }
    }
}

/// An answer's body before it goes to the client.
pub(super) enum AnswerBody {
    /// Read to its end.
    Whole(Bytes),
    /// Read in part, or not at all.
    Streamed(Gathering),
    /// None, whatever its head says (304).
    Absent,
    /// None: the connection is no longer HTTP.
    Switched,
}

enum Source {
    Whole(Bytes),
    /// Of a 304, whose `Content-Length` speaks of the response to another request. hyper's HTTP/1.1 drops that header when the body says
    /// that it has ended, and sends nothing of a body that claims otherwise.
    Absent,
    Streamed {
        parts: VecDeque<Frame<Bytes>>,
        rest: Incoming,
        idle: Idle,
        /// Of the request's body, where that is streamed.
        request: Option<Rc<Progress>>,
        /// The instance broke off; told one turn later. hyper writes what it holds (the head, for a start) only when a body has
        /// nothing for it, and throws it away when the body fails: the client would see a connection that closes without a byte,
        /// and many repeat such a request, whatever its method.
        broken: Option<hyper::Error>,
    },
}

/// A response body on its way to the client. Its end, whichever way, ends the request: the connection to the instance goes
/// back to the pool, counters and log are written.
pub(super) struct ResponseBody {
    source: Source,
    /// Trailers were given: nothing comes behind them, and nobody may ask whether.
    trailers: bool,
    lease: Option<Lease>,
    flight: Option<Box<Flight>>,
}

impl ResponseBody {
    /// An instance's.
    pub(super) fn new(
        body: AnswerBody,
        request: Option<Rc<Progress>>,
        silence: Duration,
        lease: Lease,
        flight: Box<Flight>,
    ) -> Self {
        match body {
            AnswerBody::Whole(bytes) => {
                lease.give_back();
                Self::local(bytes, flight)
            }
            AnswerBody::Absent => {
                lease.give_back();
                if flight.http2 {
                    return Self::local(Bytes::new(), flight);
                }
                Self { source: Source::Absent, trailers: false, lease: None, flight: Some(flight) }
            }
            AnswerBody::Switched => Self::none(),
            AnswerBody::Streamed(Gathering { parts, rest }) => {
                let source = Source::Streamed { parts, rest, idle: Idle::new(silence), request, broken: None };
                Self { source, trailers: false, lease: Some(lease), flight: Some(flight) }
            }
        }
    }

    /// None, of a response that does not end its request.
    pub(super) fn none() -> Self {
        Self { source: Source::Whole(Bytes::new()), trailers: false, lease: None, flight: None }
    }

    /// One that needs no connection any more.
    pub(super) fn local(bytes: Bytes, flight: Box<Flight>) -> Self {
        Self { source: Source::Whole(bytes), trailers: false, lease: None, flight: Some(flight) }
    }

    fn ended(&self) -> bool {
        self.trailers
            || match &self.source {
                Source::Whole(bytes) => bytes.is_empty(),
                Source::Absent => true,
                Source::Streamed { parts, rest, broken, .. } => {
                    parts.is_empty() && broken.is_none() && rest.is_end_stream()
                }
            }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut self.source {
            Source::Absent => Poll::Ready(None),
            Source::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Source::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Source::Streamed { parts, rest, idle, request, broken } => {
                if let Some(error) = broken.take() {
                    return Poll::Ready(Some(Err(io::Error::other(error))));
                }
                if let Some(part) = parts.pop_front() {
                    return Poll::Ready(Some(Ok(part)));
                }
                match Pin::new(rest).poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => {
                        idle.progress();
                        if let Some(request) = request {
                            request.answered.set(request.answered.get() + 1);
                        }
                        Poll::Ready(Some(Ok(frame)))
                    }
                    Poll::Ready(Some(Err(error))) => {
                        *broken = Some(error);
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    }
                    Poll::Ready(None) => Poll::Ready(None),
                    Poll::Pending => {
                        let moved = request.as_ref().map_or(0, |request| request.frames.get());
                        ready!(idle.poll_expired(moved, cx));
                        Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())))
                    }
                }
            }
        }
    }

    /// Whether the client has all that was said to come. An HTTP/2 instance may say only later that there is no more.
    fn is_given(&self) -> bool {
        matches!(&self.source, Source::Streamed { parts, rest, broken: None, .. }
            if parts.is_empty() && rest.size_hint().exact() == Some(0))
    }

    /// Waits for the instance's own end of its answer: a stream that is given up before that is a cancellation to it.
    fn hear_out(&mut self) {
        let Source::Streamed { rest, .. } = std::mem::replace(&mut self.source, Source::Whole(Bytes::new())) else {
            return;
        };
        let (mut rest, lease) = (rest, self.lease.take());
        spawn_local(async move {
            let end = async { while let Some(Ok(_)) = rest.frame().await {} };
            if tokio::time::timeout(LATE_END, end).await.is_ok()
                && let Some(lease) = lease
            {
                lease.give_back();
            }
        });
    }

    fn finish(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
        self.flight = None;
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let mut frame = ready!(self.poll(cx));
        match &mut frame {
            Some(Ok(frame)) => {
                if let Some(flight) = self.flight.as_mut().filter(|flight| flight.pending.is_some())
                    && let Some(code) = grpc::told(frame)
                {
                    flight.called(Outcome::Called(code));
                }
                self.trailers = frame.trailers_mut().map(clean_trailers).is_some();
                if let (Some(data), Some(flight)) = (frame.data_ref(), &mut self.flight) {
                    flight.bytes += data.len() as u64;
                }
            }
            Some(Err(error)) => {
                let silent = error.kind() == io::ErrorKind::TimedOut;
                let grpc = self.flight.as_mut().is_some_and(|flight| {
                    flight.called(if silent { Outcome::Timeout } else { Outcome::Reset });
                    flight.error = Some(if silent { "upstream_body_timeout" } else { "upstream_body_cut" });
                    flight.grpc
                });
                (self.lease, self.flight) = (None, None);
                if grpc {
                    self.source = Source::Whole(Bytes::new());
                    return Poll::Ready(Some(Ok(Frame::trailers(grpc::broken_off(silent)))));
                }
            }
            None => self.finish(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        !matches!(self.source, Source::Absent) && self.ended()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Absent => SizeHint::default(),
            Source::Streamed { parts, rest, .. } => {
                let ahead: u64 = parts.iter().filter_map(Frame::data_ref).map(|part| part.len() as u64).sum();
                ahead_of(rest.size_hint(), ahead)
            }
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        // hyper drops a body that says it has ended without polling it again, and one whose `Content-Length` has been given.
        if self.ended() {
            self.finish();
        } else if self.is_given() {
            self.flight = None;
            self.hear_out();
        } else if let Some(flight) = &mut self.flight {
            flight.error.get_or_insert("client_aborted");
        }
    }
}

/// How long an instance may take to end an answer that is complete.
const LATE_END: Duration = Duration::from_secs(2);
/// How long a client that expects a 100 is kept waiting for the instance's word.
const PATIENCE: Duration = Duration::from_secs(1);
