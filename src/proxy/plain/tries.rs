//! The tries of a plain request: what [`super::super::exchange`] does through hyper, on plain connections.

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use tokio::io::AsyncWrite;

use super::{
    super::{
        Reason,
        class::retry,
        exchange::{LONGEST_HOLD, blame, gives_up_early, not_connected},
        flight::Flight,
        forward::{Refusal, SMALL, refusal},
        headers::{X_ATTEMPT, X_LANE, X_REQUEST_TIMEOUT, X_VERSION, add_line},
        pool::{self, Plain, Pool},
        view::{Prepared, Service},
        worker::Worker,
    },
    buffer::Buffer,
    request::add_number,
    response::{self, Blame, Facts, Framing, Parsed},
    timer::Timer,
};
use crate::{
    routing::{Attempts, AttemptsConfig, Decision, InFlight, InstanceEntry, MethodClass, Outcome, ServiceView, Step},
    types::Mono,
};

/// A connection to an instance in use. Dropped before its answer was read to the end, it is closed.
pub(super) struct Lent {
    pub(super) link: Plain,
    pool: Rc<Pool>,
    key: usize,
    /// Counts the request as in flight at its instance.
    _in_flight: InFlight,
    /// Not to be used again.
    pub(super) spent: bool,
}

impl Lent {
    /// Gives the connection back, if it may carry another request.
    pub(super) fn give_back(self) {
        if !self.spent {
            self.pool.give_back_plain(self.key, self.link);
        }
    }
}

/// An instance's answer, as far as it was read.
pub(super) struct Answer {
    pub(super) lent: Lent,
    pub(super) facts: Facts,
    /// The head for the client, but for its last lines.
    pub(super) head: Vec<u8>,
    /// It has a `Date`.
    pub(super) dated: bool,
    /// The instance's head, and what came behind it.
    pub(super) buffer: Buffer,
    pub(super) instance: u16,
    /// When it was read.
    pub(super) heard: Mono,
}

/// What a request and its tries are made of.
pub(super) struct Tries<'a> {
    pub(super) worker: &'a Rc<Worker>,
    pub(super) service: &'a Service,
    pub(super) routed: &'a ServiceView,
    pub(super) flight: &'a mut Flight,
    pub(super) timer: &'a mut Timer,
    /// The head for instances; up to `common` it is the same for all.
    pub(super) out: &'a mut Vec<u8>,
    pub(super) common: usize,
    pub(super) body: &'a [u8],
    /// The caller's own deadline, to be passed on.
    pub(super) deadline: Option<Mono>,
    /// It is `HEAD`.
    pub(super) head: bool,
    /// Room for the answer's head.
    pub(super) reply: Vec<u8>,
    /// The time as it was read last: reading it for each use costs more than most uses.
    now: Mono,
    /// Other instances of the lane that could still be tried.
    others: usize,
    /// What the try before failed with, when another follows.
    failed: Option<&'static str>,
    /// The last answer with a status that may be retried.
    last: Option<Answer>,
    /// The last failure in words.
    blame: Option<(Reason, String)>,
}

/// The request of [`Tries`].
pub(super) struct Asked<'a> {
    pub(super) out: &'a mut Vec<u8>,
    pub(super) body: &'a [u8],
    pub(super) deadline: Option<Mono>,
    pub(super) head: bool,
    pub(super) reply: Vec<u8>,
}

impl<'a> Tries<'a> {
    pub(super) fn new(
        worker: &'a Rc<Worker>,
        (service, routed): (&'a Service, &'a ServiceView),
        flight: &'a mut Flight,
        timer: &'a mut Timer,
        asked: Asked<'a>,
    ) -> Self {
        let served = flight.decision.as_ref().and_then(|decision| decision.served_lane(routed));
        let others = served.map_or(0, |lane| lane.members.len()).min(usize::from(worker.config.max_retries) + 1);
        let Asked { out, body, deadline, head, reply } = asked;
        let common = out.len();
        Self {
            worker,
            service,
            routed,
            flight,
            timer,
            out,
            common,
            body,
            deadline,
            head,
            reply,
            now: Mono::ZERO,
            others,
            failed: None,
            last: None,
            blame: None,
        }
    }

    /// Does what [`Attempts`] says until there is an answer or none to be had.
    pub(super) async fn drive(mut self, decision: &Decision, limits: AttemptsConfig) -> Result<Answer, Refusal> {
        self.now = self.worker.clock.mono();
        let mut attempts = Attempts::new(decision, self.flight.class, true, limits, self.now);
        loop {
            match attempts.next(self.routed, self.now) {
                Step::Try { instance, until, fresh } => {
                    let tried = self.attempt(instance, attempts.number(), until, fresh).await?;
                    let outcome = match &tried {
                        Ok(answer) => Outcome::Answered(answer.facts.status),
                        Err(outcome) => *outcome,
                    };
                    attempts.ended(outcome, self.routed, self.now);
                    if let Ok(answer) = tried {
                        self.flight.retries = u32::from(attempts.retries());
                        return Ok(answer);
                    }
                    self.failed = retry(outcome);
                }
                Step::Wait(until) => {
                    Box::pin(tokio::time::sleep_until(self.worker.clock.instant(until).into())).await;
                    self.now = self.worker.clock.mono();
                }
                Step::GiveUp(why) => {
                    self.flight.retries = u32::from(attempts.retries());
                    return self.last.ok_or_else(|| refusal(why, decision, self.routed, self.blame));
                }
            }
        }
    }

    /// One try. A refusal ends the request.
    async fn attempt(
        &mut self,
        at: u16,
        number: u8,
        until: Mono,
        fresh: bool,
    ) -> Result<Result<Answer, Outcome>, Refusal> {
        if let Some(reason) = self.failed.take() {
            self.worker.metrics.retried(self.service.name.as_str(), reason);
        }
        self.flight.instance = Some(at);
        let routed = self.routed;
        let entry = &routed.instances[usize::from(at)];
        if entry.cell.in_flight() as usize >= self.worker.config.max_requests_per_instance {
            self.blame = Some(blame(Reason::Overloaded, entry, "full"));
            return Ok(Err(Outcome::Full));
        }
        let link = match self.link(entry, until, fresh).await {
            Ok(link) => link,
            Err(outcome) => return Ok(Err(outcome)),
        };
        let prepared = self.service.prepared(&self.flight.view, at, &self.worker.metrics);
        self.last_lines(prepared.as_deref(), number);
        let (pool, key) = (self.worker.pool.clone(), pool::key(&entry.cell));
        let lent = Lent { link, pool, key, _in_flight: entry.cell.enter(), spent: false };
        self.others = self.others.saturating_sub(1);
        self.ask(lent, entry, prepared.as_deref(), at, until).await
    }

    /// A connection: one that is idle, or a new one.
    async fn link(&mut self, entry: &InstanceEntry, until: Mono, fresh: bool) -> Result<Plain, Outcome> {
        let careful = self.flight.class == MethodClass::Other;
        let pool = &self.worker.pool;
        if let Some(link) = if fresh { None } else { pool.take_plain(entry, careful, self.now) } {
            return Ok(link);
        }
        let until = until.min(self.now + self.worker.config.timeouts.connect);
        // On the heap: rare, and larger than all the rest.
        let opened = Box::pin(pool.open_plain(entry, until)).await;
        self.now = self.worker.clock.mono();
        opened.map_err(|fault| {
            let (outcome, blame) = not_connected(&fault, entry);
            self.blame = Some(blame);
            outcome
        })
    }

    /// Ends the head with what is this try's own.
    fn last_lines(&mut self, prepared: Option<&Prepared>, number: u8) {
        let out = &mut *self.out;
        out.truncate(self.common);
        if let Some(prepared) = prepared {
            add_line(out, X_LANE.as_str().as_bytes(), prepared.lane.as_bytes());
            add_line(out, X_VERSION.as_str().as_bytes(), prepared.version.as_bytes());
        }
        add_number(out, X_ATTEMPT.as_str().as_bytes(), number.into());
        if let Some(deadline) = self.deadline {
            let left = deadline.since(self.now).as_millis();
            add_number(out, X_REQUEST_TIMEOUT.as_str().as_bytes(), u64::try_from(left).unwrap_or(u64::MAX));
        }
        out.extend_from_slice(b"\r\n");
    }

    fn repeatable(&self) -> bool {
        self.flight.class != MethodClass::Other
    }

    /// Sends the request, and waits for the answer.
    async fn ask(
        &mut self,
        mut lent: Lent,
        entry: &InstanceEntry,
        prepared: Option<&Prepared>,
        at: u16,
        until: Mono,
    ) -> Result<Result<Answer, Outcome>, Refusal> {
        let now = self.now;
        let mut asking = Asking {
            elsewhere: self.others > 0 && self.repeatable(),
            tries: self,
            entry,
            prepared,
            sent: 0,
            unwritable: false,
            buffer: None,
            dated: false,
            since: now,
            until,
        };
        let heard = poll_fn(|cx| asking.poll(&mut lent.link, cx)).await;
        let (all_sent, dated) = (asking.all_sent(), asking.dated);
        self.now = self.worker.clock.mono();
        match heard {
            Heard::Head(buffer, facts) => {
                entry.cell.heard(self.now);
                if let Some(prepared) = prepared {
                    prepared.heard.set(self.now);
                }
                lent.spent = !facts.persistent || !all_sent;
                let head = std::mem::take(&mut self.reply);
                let answer = Answer { lent, facts, head, dated, buffer, instance: at, heard: self.now };
                Ok(self.answered(answer, entry, until).await)
            }
            Heard::Bad(what, Blame::Unasked) => {
                let (reason, detail) = blame(Reason::BadResponse, entry, what);
                Err(Refusal { reason, detail })
            }
            Heard::Bad(what, Blame::Broken) => {
                self.blame = Some(blame(Reason::BadResponse, entry, what));
                Ok(Err(Outcome::Reset))
            }
            Heard::TimedOut => {
                self.blame = Some(blame(Reason::UpstreamTimeout, entry, "no answer in time"));
                Ok(Err(Outcome::Timeout))
            }
            Heard::Broken { sent, what } => {
                self.blame = Some(blame(Reason::UpstreamReset, entry, &what));
                let outcome = match (sent, lent.link.reused && self.repeatable()) {
                    (false, _) => Outcome::StaleConnection,
                    // The application closed an idle connection just as it was used again: no fault of the instance, and where the
                    // request may be repeated, the same instance is asked again before another one.
                    (true, true) => Outcome::MaybeStale,
                    (true, false) => return Ok(Err(Outcome::Reset)),
                };
                self.worker.metrics.upstream_stale.inc();
                Ok(Err(outcome))
            }
        }
    }

    /// An answer's head is there. Of a small answer to a safe request the body is waited for: until it is whole, nothing was given to
    /// the client, and another instance can answer.
    async fn answered(&mut self, mut answer: Answer, entry: &InstanceEntry, until: Mono) -> Result<Answer, Outcome> {
        let status = answer.facts.status;
        if self.routed.rules.breaker.counts.repeats(status) {
            self.last = Some(answer);
            return Err(Outcome::RetryableStatus(status));
        }
        let Framing::Length(length @ ..=SMALL) = answer.facts.framing else { return Ok(answer) };
        let whole = answer.facts.size + length as usize;
        if self.flight.class != MethodClass::Safe || answer.buffer.len() >= whole || whole > answer.buffer.capacity() {
            return Ok(answer);
        }
        let hold = until.min(self.now + LONGEST_HOLD);
        let Answer { lent, buffer, .. } = &mut answer;
        let timer = &mut *self.timer;
        let read = poll_fn(|cx| {
            while buffer.len() < whole {
                match buffer.poll_read(&mut lent.link.stream, cx) {
                    Poll::Ready(Ok(1..)) => {}
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        // Slow, but it answers: the client gets what there is, and the rest as it comes.
                        ready!(timer.poll(hold, cx));
                        return Poll::Ready(Ok(()));
                    }
                }
            }
            Poll::Ready(Ok(()))
        });
        let read = read.await;
        self.now = self.worker.clock.mono();
        answer.heard = self.now;
        match read {
            Ok(()) => Ok(answer),
            Err(error) => {
                self.reply = answer.head;
                self.blame = Some(blame(Reason::UpstreamReset, entry, &format!("its answer broke off: {error}")));
                Err(Outcome::Reset)
            }
        }
    }
}

/// What came of asking.
enum Heard {
    /// A head, and perhaps more.
    Head(Buffer, Facts),
    /// What is no answer.
    Bad(&'static str, Blame),
    /// The connection ended without one. `sent`: something was sent before.
    Broken { sent: bool, what: String },
    /// Nothing in time.
    TimedOut,
}

/// One request on one connection, until the answer's head is there.
struct Asking<'a, 'b> {
    tries: &'a mut Tries<'b>,
    entry: &'a InstanceEntry,
    prepared: Option<&'a Prepared>,
    /// Bytes of head and body that were sent.
    sent: usize,
    /// No more can be sent.
    unwritable: bool,
    buffer: Option<Buffer>,
    dated: bool,
    /// Since when the instance is waited for.
    since: Mono,
    until: Mono,
    /// Another instance could answer.
    elsewhere: bool,
}

impl Asking<'_, '_> {
    fn all_sent(&self) -> bool {
        self.sent == self.tries.out.len() + self.tries.body.len()
    }

    fn poll(&mut self, link: &mut Plain, cx: &mut Context<'_>) -> Poll<Heard> {
        if !self.unwritable
            && !self.all_sent()
            && let Poll::Ready(Err(error)) = self.poll_send(link, cx)
        {
            if self.sent == 0 {
                return Poll::Ready(Heard::Broken { sent: false, what: error.to_string() });
            }
            // An answer may be there all the same.
            self.unwritable = true;
        }
        if let Poll::Ready(heard) = self.poll_hear(link, cx) {
            return Poll::Ready(heard);
        }
        self.poll_time(cx)
    }

    fn poll_send(&mut self, link: &mut Plain, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Tries { out, body, .. } = &*self.tries;
        while self.sent < out.len() + body.len() {
            let head = out.get(self.sent..).unwrap_or_default();
            let body = &body[self.sent.saturating_sub(out.len())..];
            let parts = [IoSlice::new(head), IoSlice::new(body)];
            let parts = if head.is_empty() { &parts[1..] } else { &parts[..1 + usize::from(!body.is_empty())] };
            match ready!(Pin::new(&mut link.stream).poll_write_vectored(cx, parts))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_hear(&mut self, link: &mut Plain, cx: &mut Context<'_>) -> Poll<Heard> {
        loop {
            let buffer = match &mut self.buffer {
                Some(buffer) => buffer,
                // Without one while there is nothing to read.
                none => match link.stream.poll_read_ready(cx) {
                    Poll::Ready(_) => none.insert(Buffer::take()),
                    Poll::Pending => return Poll::Pending,
                },
            };
            if buffer.is_full() {
                return Poll::Ready(Heard::Bad("the head of its answer is too large", Blame::Broken));
            }
            let broken = match buffer.poll_read(&mut link.stream, cx) {
                Poll::Ready(Ok(1..)) => {
                    if let Some(heard) = self.look() {
                        return Poll::Ready(heard);
                    }
                    continue;
                }
                Poll::Ready(Ok(0)) if buffer.is_empty() => "it closed the connection before it answered".to_owned(),
                Poll::Ready(Ok(0)) => "it closed the connection in the head of its answer".to_owned(),
                Poll::Ready(Err(error)) => error.to_string(),
                Poll::Pending => {
                    if buffer.is_empty() {
                        self.buffer = None;
                    }
                    return Poll::Pending;
                }
            };
            return Poll::Ready(Heard::Broken { sent: true, what: broken });
        }
    }

    /// What the bytes so far say. Interim answers are passed on, but for what nobody asked for.
    fn look(&mut self) -> Option<Heard> {
        let buffer = self.buffer.as_mut()?;
        loop {
            let reply = &mut self.tries.reply;
            reply.clear();
            let dated = &mut self.dated;
            let parsed = response::parse(buffer, self.tries.head, |head| {
                *dated = response::write(&head, reply);
                head.facts
            });
            match parsed {
                Parsed::Partial => return None,
                Parsed::Bad(what, blame) => return Some(Heard::Bad(what, blame)),
                Parsed::Whole(Facts { status: status @ 100..=199, size, .. }) => {
                    reply.extend_from_slice(b"\r\n");
                    if status != 100 && reply.len() <= LONGEST_HINT {
                        self.tries.flight.client.hint(reply);
                    }
                    buffer.drain(..size);
                    if buffer.is_empty() {
                        return None;
                    }
                }
                Parsed::Whole(facts) => return self.buffer.take().map(|buffer| Heard::Head(buffer, facts)),
            }
        }
    }

    /// An instance that is silent altogether is not waited for as long as others, where another one could answer.
    fn poll_time(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
        loop {
            let silence = self.tries.worker.config.timeouts.silence;
            let look = if self.elsewhere { self.until.min(self.since + silence) } else { self.until };
            ready!(self.tries.timer.poll(look, cx));
            let heard = self.prepared.is_some_and(|prepared| prepared.heard.get() > self.since);
            // It answers others, or nobody else waits there: this one may take its time.
            let now = self.tries.worker.clock.mono();
            self.tries.routed.still_waits(self.entry, now);
            if look >= self.until || gives_up_early(self.entry, now) && !heard {
                return Poll::Ready(Heard::TimedOut);
            }
            self.since = now;
        }
    }
}

/// Longest interim answer that is passed on; fits any socket's buffer.
const LONGEST_HINT: usize = 8 * 1024;
