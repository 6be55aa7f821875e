//! Plain HTTP/1.1, end to end: what nearly every request is, forwarded without being taken apart.
//!
//! A client connection begins here. As long as its requests are plain (see `request`) and go to instances that speak HTTP/1.1,
//! one task reads a request, decides, asks an instance and passes the answer on: heads are written anew by the rules of `headers`,
//! bodies are passed on from the buffer they were read into. The first request that is anything else (an upgrade, a body of unknown
//! length, HTTP/2, what is no HTTP at all) takes the connection, with every byte from that request on, to hyper, for good. So nothing
//! here refuses a client's syntax, and nothing there is different for having begun here.
//!
//! Why not hyper for all: its server and client parse every head into a map and move every request through two tasks and two
//! channels, which costs twice of what the system calls leave to be saved.

mod buffer;
mod chunks;
mod date;
#[cfg(any(fuzzing, test))]
pub(super) mod fuzzed;
mod relay;
mod request;
mod response;
#[cfg(test)]
mod tests;
mod timer;
mod tries;

use std::{
    cell::Cell,
    future::poll_fn,
    io::{self, IoSlice},
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderValue, Method, Response, header};
use tokio::io::AsyncWrite;

use self::{
    buffer::Buffer,
    relay::{Relay, Relayed},
    request::{Head, Limits, Parsed},
    timer::Timer,
    tries::{Answer, Tries},
};
use super::{
    Reason,
    body::ClientFault,
    class::method_class,
    client::{Client, End, linger},
    deadline,
    detect::PREFACE,
    errors::on_the_wire,
    flight::{Asked, Flight},
    forward::{Refusal, decide, expose, limits, refused, shown},
    headers::{MAX_HOPS, Put, X_REQUEST_TIMEOUT},
    io::Socket,
    target::Wanted,
    worker::{Slot, Worker},
};
use crate::{
    lanes::Head as _,
    routing::{AttemptsConfig, Decision},
    types::Mono,
};

/// Serves a connection as long as its requests are plain. `Some`: it goes on elsewhere, from these bytes on.
pub(super) async fn serve(slot: &Rc<Slot>, client: &Rc<Client>) -> Option<Bytes> {
    let ends = Ends::default();
    let mut connection = pin!(Connection::new(slot, client, &ends).run());
    let mut told = pin!(client.end.notified());
    let mut listening = false;
    poll_fn(|cx| {
        // Asked only when there is something to hear: `Notified` takes a lock each time.
        while !listening || client.told.take() {
            listening = true;
            if told.as_mut().poll(cx).is_ready() {
                told.set(client.end.notified());
                listening = false;
                ends.closing.set(true);
                if client.how.get() == End::Now || ends.idle.get() {
                    return Poll::Ready(None);
                }
            }
        }
        connection.as_mut().poll(cx)
    })
    .await
}

/// What [`serve`] and its connection tell each other.
#[derive(Default)]
struct Ends {
    /// The connection is to end after the present request.
    closing: Cell<bool>,
    /// It waits for a request of which nothing has come.
    idle: Cell<bool>,
}

struct Connection<'a> {
    slot: &'a Slot,
    client: &'a Rc<Client>,
    ends: &'a Ends,
    socket: Socket,
    /// What the client sent and nobody has dealt with.
    input: Vec<u8>,
    /// Reads that did not complete the present head.
    parts: u32,
    /// A request whose body has not come whole.
    begun: Option<Box<Flight>>,
    /// The head for an instance.
    out: Vec<u8>,
    /// The head for the client.
    reply: Vec<u8>,
    timer: Timer,
}

/// A request, decided.
struct Ready {
    flight: Box<Flight>,
    routed: Result<Routed, Refusal>,
    /// Bytes of its head, and of head and body.
    size: usize,
    end: usize,
    closes: bool,
    /// It is `HEAD`.
    head: bool,
    json: bool,
}

struct Routed {
    decision: Decision,
    limits: AttemptsConfig,
    /// The caller's own, to be passed on.
    deadline: Option<Mono>,
}

/// What is to be done with what came so far.
enum Next {
    /// Read more of a head.
    Read,
    /// Read more of a body, up to so many bytes.
    Body(usize),
    /// Nothing here: it is not plain.
    Elsewhere,
    Answer(Ready),
}

impl<'a> Connection<'a> {
    fn new(slot: &'a Slot, client: &'a Rc<Client>, ends: &'a Ends) -> Self {
        let timer = Timer::new(slot.worker().clock);
        let (input, out, reply) = (Vec::new(), Vec::new(), Vec::new());
        Self { slot, client, ends, socket: client.socket().clone(), input, parts: 0, begun: None, out, reply, timer }
    }

    async fn run(mut self) -> Option<Bytes> {
        loop {
            let worker = self.slot.worker();
            match self.next(&worker) {
                Next::Read => {
                    self.client.wire.plain_head.set(!self.input.is_empty());
                    self.ends.idle.set(self.input.is_empty());
                    let read = poll_fn(|cx| self.poll_read(&worker, cx)).await;
                    self.ends.idle.set(false);
                    if !matches!(read, Ok(1..)) {
                        self.client.wire.plain_head.set(false);
                        return None;
                    }
                    self.parts += 1;
                }
                Next::Body(end) => {
                    if let Err(fault) = self.read_body(&worker, end).await {
                        self.give_up(&worker, &fault.into()).await;
                        return None;
                    }
                }
                Next::Elsewhere => {
                    self.client.wire.plain_head.set(false);
                    if self.ends.closing.get() {
                        // It heard of that, whoever serves it now has not.
                        self.client.finish();
                    }
                    return Some(std::mem::take(&mut self.input).into());
                }
                Next::Answer(ready) => {
                    self.client.wire.plain_head.set(false);
                    self.parts = 0;
                    let end = ready.end;
                    let stays = self.answer(&worker, ready).await;
                    self.consume(end);
                    if !stays {
                        if !self.input.is_empty() {
                            linger(self.client).await;
                        }
                        return None;
                    }
                }
            }
        }
    }

    /// Looks at what came so far.
    fn next(&mut self, worker: &Rc<Worker>) -> Next {
        if self.input.is_empty() {
            return Next::Read;
        }
        let config = &worker.config;
        let limits = Limits { head: config.max_head_bytes, headers: config.max_headers, body: config.max_replay_bytes };
        let Self { client, input, begun, out, .. } = self;
        let parsed = request::parse(input, limits, |head| ready(worker, client, input.len(), begun, out, &head));
        match parsed {
            Parsed::Plain(next) => next,
            // A head that comes in so many pieces costs more to look at anew each time than to hand over.
            Parsed::Partial if self.parts < MOST_PARTS && !PREFACE.starts_with(&self.input) => Next::Read,
            Parsed::Partial | Parsed::Unusual => Next::Elsewhere,
        }
    }

    /// Reads what is there.
    fn poll_read(&mut self, worker: &Worker, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        ready!(self.socket.poll_readable(cx))?;
        let mut buffer = Buffer::take();
        let count = ready!(buffer.poll_read(&mut self.socket, cx))?;
        if self.input.is_empty() {
            // A head's time runs from its first byte.
            self.client.wire.since.set(worker.clock.mono());
        }
        self.input.extend_from_slice(&buffer);
        Poll::Ready(Ok(count))
    }

    /// Reads up to the end of a small body, which has to come inside its time.
    async fn read_body(&mut self, worker: &Worker, end: usize) -> Result<(), ClientFault> {
        let timeouts = &worker.config.timeouts;
        let limit = worker.clock.mono() + timeouts.body;
        while self.input.len() < end {
            let until = limit.min(worker.clock.mono() + timeouts.idle);
            let read = poll_fn(|cx| match self.poll_read(worker, cx) {
                Poll::Ready(read) => Poll::Ready(Some(read)),
                Poll::Pending => self.timer.poll(until, cx).map(|()| None),
            });
            match read.await {
                Some(Ok(1..)) => {}
                Some(_) => return Err(ClientFault::Broken),
                None => return Err(ClientFault::Silent),
            }
        }
        Ok(())
    }

    /// Ends a request whose body did not come.
    async fn give_up(&mut self, worker: &Rc<Worker>, refusal: &Refusal) {
        let Some(mut flight) = self.begun.take() else { return };
        let response = refused(worker, &mut flight, refusal, false);
        self.respond(worker, &response, true, true).await;
        drop(flight);
        linger(self.client).await;
    }

    /// Answers a request; says whether the connection stays.
    async fn answer(&mut self, worker: &Rc<Worker>, ready: Ready) -> bool {
        let Ready { mut flight, routed, size, end, closes, head, json } = ready;
        let answer = match routed {
            Ok(routed) => self.ask(worker, &mut flight, routed, size..end, head).await,
            Err(refusal) => Err(refusal),
        };
        match answer {
            Ok(answer) => self.pass_on(worker, flight, answer, closes).await,
            Err(refusal) => {
                let response = refused(worker, &mut flight, &refusal, json);
                self.respond(worker, &response, closes, !head).await
            }
        }
    }

    /// Asks one instance after another.
    async fn ask(
        &mut self,
        worker: &Rc<Worker>,
        flight: &mut Flight,
        routed: Routed,
        body: std::ops::Range<usize>,
        head: bool,
    ) -> Result<Answer, Refusal> {
        let Routed { decision, limits, deadline } = routed;
        let (view, service) = (flight.view.clone(), flight.service.clone());
        let Some((service, routed)) = service.as_ref().and_then(|service| Some((service, service.view(&view)?))) else {
            return Err(Reason::UnknownService.into());
        };
        let asked = tries::Asked {
            out: &mut self.out,
            body: &self.input[body],
            deadline,
            head,
            reply: std::mem::take(&mut self.reply),
        };
        Tries::new(worker, (service, routed), flight, &mut self.timer, asked).drive(&decision, limits).await
    }

    /// An instance's answer on its way to the client; says whether the connection stays.
    async fn pass_on(&mut self, worker: &Worker, mut flight: Box<Flight>, answer: Answer, closes: bool) -> bool {
        let Answer { mut lent, facts, mut head, dated, buffer, instance, heard } = answer;
        flight.instance = Some(instance);
        flight.answered = true;
        flight.status = Some(facts.status);
        if !dated {
            date::add(&mut head, worker.clock.wall());
        }
        if worker.config.expose_decision {
            expose(&flight, &mut head);
        }
        let closes = closes || worker.draining() || self.ends.closing.get();
        if closes {
            head.put(&header::CONNECTION, &HeaderValue::from_static("close"));
        }
        head.extend_from_slice(b"\r\n");
        let silence = worker.config.timeouts.idle;
        let wire = self.client.wire.clone();
        let mut relay = Relay::new(&mut self.socket, &wire, worker.clock, &mut head, buffer, (facts, heard), silence);
        let timer = &mut self.timer;
        let relayed = poll_fn(|cx| {
            let polled = relay.poll(&mut lent.link.stream, timer, cx);
            flight.bytes = relay.bytes;
            polled
        })
        .await;
        lent.spent |= relay.beyond;
        flight.error = match relayed {
            Relayed::Whole => None,
            Relayed::Cut => Some("upstream_body_cut"),
            Relayed::Silent => Some("upstream_body_timeout"),
            Relayed::ClientGone => Some("client_aborted"),
        };
        if relayed == Relayed::Whole {
            lent.give_back();
        }
        self.reply = head;
        self.reply.clear();
        relayed == Relayed::Whole && !closes
    }

    /// Writes a response of the proxy's own; says whether the connection stays.
    async fn respond(&mut self, worker: &Worker, response: &Response<Bytes>, closes: bool, with_body: bool) -> bool {
        let closes = closes || self.ends.closing.get() || response.headers().contains_key(header::CONNECTION);
        let mut response = response.clone();
        if closes {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let mut dated = Vec::new();
        date::add(&mut dated, worker.clock.wall());
        let text = on_the_wire(&response, &dated, with_body);
        let mut written = 0;
        let all = poll_fn(|cx| {
            while written < text.len() {
                let parts = [IoSlice::new(&text[written..])];
                match Pin::new(&mut self.socket).poll_write_vectored(cx, &parts) {
                    Poll::Ready(Ok(count @ 1..)) => written += count,
                    Poll::Ready(_) => return Poll::Ready(false),
                    Poll::Pending => {
                        if self.client.wire.blocked.get().is_none() {
                            self.client.wire.blocked.set(Some(worker.clock.mono()));
                        }
                        return Poll::Pending;
                    }
                }
                self.client.wire.blocked.set(None);
            }
            Poll::Ready(true)
        });
        all.await && !closes
    }

    /// Forgets a request that was answered, and what was large about it.
    fn consume(&mut self, end: usize) {
        self.input.drain(..end.min(self.input.len()));
        for room in [&mut self.input, &mut self.out, &mut self.reply] {
            room.shrink_to(MOST_KEPT);
        }
    }
}

/// Decides on a whole head. `came`: bytes so far, of this request and what follows.
fn ready(
    worker: &Rc<Worker>,
    client: &Rc<Client>,
    came: usize,
    begun: &mut Option<Box<Flight>>,
    out: &mut Vec<u8>,
    head: &Head<'_>,
) -> Next {
    let wanted = client.dedicated.as_deref().map_or(head.host, Wanted::new);
    let find = |flight: &Flight| flight.view.service(wanted.as_str());
    let mut flight = match begun.take() {
        Some(flight) => flight,
        None => {
            let view = worker.view();
            let service = view.service(wanted.as_str());
            let Some(method) = Method::from_bytes(head.method.as_bytes()).ok() else { return Next::Elsewhere };
            if service.is_some_and(|service| !service.http1) {
                return Next::Elsewhere;
            }
            let path = head.target.split('?').next().unwrap_or_default();
            let class = method_class(&method);
            Box::new(Flight::begin(worker.clone(), client.clone(), method, Asked::Path(path.into()), class))
        }
    };
    let end = head.size + head.length as usize;
    if came < end {
        *begun = Some(flight);
        return Next::Body(end);
    }
    let routed = match find(&flight) {
        Some(service) => {
            flight.service = Some(service);
            route(worker, client, &mut flight, out, head)
        }
        None => Err(Refusal { reason: Reason::UnknownService, detail: shown(wanted.as_str()) }),
    };
    let json = head.first("accept").is_some_and(|text| text.contains("application/json"));
    let is_head = head.method == "HEAD";
    Next::Answer(Ready { flight, routed, size: head.size, end, closes: head.closes, head: is_head, json })
}

/// Asks routing, and writes the head for instances.
fn route(
    worker: &Rc<Worker>,
    client: &Client,
    flight: &mut Flight,
    out: &mut Vec<u8>,
    head: &Head<'_>,
) -> Result<Routed, Refusal> {
    let (view, service) = (flight.view.clone(), flight.service.clone());
    let found = service.as_ref().and_then(|service| Some((service, service.view(&view)?)));
    let (service, routed) = found.ok_or(Reason::UnknownService)?;
    let decision = decide(worker, flight, service, routed, head);
    let limit = head.first(X_REQUEST_TIMEOUT.as_str()).and_then(deadline::parse);
    out.clear();
    let said = request::write(head, &worker.lane_header, client.address.ip(), out);
    if said.hops >= MAX_HOPS {
        return Err(Reason::Loop.into());
    }
    let mut limits = limits(worker, false, limit);
    if said.repeated {
        // Retries of every layer multiply, so only one repeats: the one that began it.
        limits.max_retries = 0;
    }
    let deadline = limit.map(|_| worker.clock.mono() + limits.total);
    Ok(Routed { decision, limits, deadline })
}

/// Reads of one head before it is left to hyper.
const MOST_PARTS: u32 = 8;
/// Room that a connection keeps for its next request, for each of three purposes.
const MOST_KEPT: usize = 2 * 1024;
