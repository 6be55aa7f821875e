//! One try after another: connection, request, answer; and what each failure means.

use std::{rc::Rc, sync::Mutex, time::Duration};

use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header, request, response};
use hyper::{body::Incoming, client::conn::TrySendError};
use tokio::{sync::oneshot, time::timeout_at};

use super::{
    Reason,
    body::{AnswerBody, Gathering, Outgoing, Progress, RequestBody, Whole},
    flight::Flight,
    forward::{Refusal, reads_whole, refusal},
    grpc,
    h2_pool::{malformed, unprocessed, was_reset},
    headers::{self, X_ATTEMPT, X_LANE, X_REQUEST_TIMEOUT, X_VERSION, for_http2},
    hints,
    pool::{Carrier, ConnectFault, Lease},
    view::{Prepared, Service},
    worker::Worker,
};
use crate::{
    routing::{Decision, GiveUp, InstanceEntry, MethodClass, Outcome, ServiceView},
    types::{Mono, Protocol},
};

/// An instance's answer.
pub(super) struct Answer {
    pub(super) head: response::Parts,
    pub(super) body: AnswerBody,
    pub(super) lease: Lease,
    pub(super) instance: u16,
    /// Of the request's body, where that is streamed.
    pub(super) request: Option<Rc<Progress>>,
}

impl Answer {
    /// The client holds back a body that nobody wants: its connection cannot be used further.
    pub(super) fn closes(&self) -> bool {
        self.request.as_ref().is_some_and(|request| request.withheld.get())
    }
}

/// How one try ended.
pub(super) enum Tried {
    /// With an answer for the client.
    Answered(Box<Answer>),
    /// Without one; [`crate::routing::Attempts`] says what follows.
    Failed(Outcome),
}

/// A request and its tries.
pub(super) struct Exchange<'a> {
    pub(super) worker: &'a Rc<Worker>,
    pub(super) routed: &'a ServiceView,
    pub(super) flight: &'a mut Flight,
    service: &'a Service,
    parts: &'a mut request::Parts,
    body: Outgoing,
    /// The caller's own deadline, to be passed on.
    deadline: Option<Mono>,
    /// What the try before failed with, when another follows.
    pub(super) failed: Option<&'static str>,
    /// Other instances of the lane that could still be tried.
    others: usize,
    /// The last answer with a status that may be retried.
    last: Option<Box<Answer>>,
    /// The last failure in words.
    blame: Option<(Reason, String)>,
    /// Number of the HTTP/2 connection used last.
    connection: u64,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(
        worker: &'a Rc<Worker>,
        service: &'a Service,
        routed: &'a ServiceView,
        flight: &'a mut Flight,
        parts: &'a mut request::Parts,
        body: Outgoing,
        deadline: Option<Mono>,
    ) -> Self {
        let served = flight.decision.as_ref().and_then(|decision| decision.served_lane(routed));
        let others = served.map_or(0, |lane| lane.members.len()).min(usize::from(worker.config.max_retries) + 1);
        Self {
            worker,
            routed,
            flight,
            service,
            parts,
            body,
            deadline,
            others,
            failed: None,
            last: None,
            blame: None,
            connection: 0,
        }
    }

    /// No more tries: the last answer, or why there is none.
    pub(super) fn give_up(self, why: GiveUp, decision: &Decision) -> Result<Answer, Refusal> {
        match self.last {
            Some(answer) => Ok(*answer),
            None => Err(refusal(why, decision, self.routed, self.blame)),
        }
    }

    /// One try. An error ends the request: it is the client's doing, or no other instance would do better.
    pub(super) async fn attempt(&mut self, at: u16, number: u8, until: Mono, fresh: bool) -> Result<Tried, Refusal> {
        if let Some(reason) = self.failed.take() {
            self.worker.metrics.retried(self.service.name.as_str(), reason);
        }
        self.flight.instance = Some(at);
        let entry = &self.routed.instances[usize::from(at)];
        if entry.cell.in_flight() as usize >= self.worker.config.max_requests_per_instance {
            self.blame(Reason::Overloaded, entry, "full");
            return Ok(Tried::Failed(Outcome::Full));
        }
        let carrier = match self.carrier(entry, until, fresh).await? {
            Ok(carrier) => carrier,
            Err(outcome) => return Ok(Tried::Failed(outcome)),
        };
        let reused = carrier.reused();
        let prepared = self.service.prepared(&self.flight.view, at, &self.worker.metrics);
        let http2 = matches!(carrier, Carrier::Http2(_));
        let (request, progress) = self.request(prepared.as_deref(), number, http2)?;
        let mut lease = Lease::new(self.worker.pool.clone(), entry, carrier);
        self.others = self.others.saturating_sub(1);
        let heard = (entry, prepared.as_deref());
        let waited = match &mut lease.carrier {
            Carrier::Http1(link) => {
                let sent = link.sender.try_send_request(request);
                self.wait(sent, until, progress.as_deref(), heard).await
            }
            Carrier::Http2(stream) => {
                let sent = stream.sender().try_send_request(request);
                let waited = self.wait(sent, until, progress.as_deref(), heard).await;
                if waited.is_none() {
                    stream.timed_out();
                }
                waited
            }
        };
        match waited {
            Some(Ok(response)) => {
                let now = self.worker.clock.mono();
                entry.cell.heard(now);
                if let Some(prepared) = &prepared {
                    prepared.heard.set(now);
                }
                self.answered(response, lease, at, until, progress).await
            }
            Some(Err(error)) => self.broken(error, entry, reused, progress.as_deref()),
            None => {
                self.blame(Reason::UpstreamTimeout, entry, "no answer in time");
                Ok(Tried::Failed(Outcome::Timeout))
            }
        }
    }

    /// What the instance's protocol needs to carry a request: a pooled connection or a new one, or a stream of a shared one.
    async fn carrier(
        &mut self,
        entry: &InstanceEntry,
        until: Mono,
        fresh: bool,
    ) -> Result<Result<Carrier, Outcome>, Refusal> {
        let until = until.min(self.worker.clock.mono() + self.worker.config.timeouts.connect);
        let found = match entry.record.protocol {
            Protocol::Http1 => {
                let careful = self.flight.class == MethodClass::Other || !self.body.replayable();
                let pool = &self.worker.pool;
                match if fresh { None } else { pool.take(entry, careful).await } {
                    Some(link) => Ok(Carrier::Http1(link)),
                    None => pool.open(entry, until).await.map(Carrier::Http1),
                }
            }
            Protocol::H2c | Protocol::Grpc => {
                let after = if fresh { self.connection } else { 0 };
                let found = self.worker.h2_pool.stream(entry, until, after).await;
                found.inspect(|stream| self.connection = stream.number()).map(Carrier::Http2)
            }
            Protocol::Tcp => {
                let detail = format!("{} speaks plain TCP", entry.record.id);
                return Err(Refusal { reason: Reason::ProtocolUnsupported, detail });
            }
        };
        Ok(found.map_err(|fault| {
            let (outcome, blame) = not_connected(&fault, entry);
            self.blame = Some(blame);
            outcome
        }))
    }

    fn blame(&mut self, reason: Reason, entry: &InstanceEntry, what: &str) {
        self.blame = Some(blame(reason, entry, what));
    }

    /// The request for one instance. What can be repeated is copied, what cannot is handed over and comes back only unsent; over
    /// HTTP/2 an instance may refuse what was sent, so there the head is always copied.
    fn request(
        &mut self,
        prepared: Option<&Prepared>,
        number: u8,
        http2: bool,
    ) -> Result<(Request<RequestBody>, Option<Rc<Progress>>), Refusal> {
        let repeatable = self.repeatable() || http2;
        // Written before the copy, so that the copy has the right size; another try writes its own over it.
        let headers = &mut self.parts.headers;
        match prepared {
            Some(prepared) => {
                headers.insert(X_LANE, prepared.lane.clone());
                headers.insert(X_VERSION, prepared.version.clone());
            }
            None => [X_LANE, X_VERSION].into_iter().for_each(|name| drop(headers.remove(name))),
        }
        headers.insert(X_ATTEMPT, headers::count(number.into()));
        if let Some(deadline) = self.deadline {
            let left = deadline.since(self.worker.clock.mono()).as_millis();
            headers.insert(X_REQUEST_TIMEOUT, HeaderValue::from(u64::try_from(left).unwrap_or(u64::MAX)));
            if self.flight.grpc {
                grpc::set_timeout(headers, deadline.since(self.worker.clock.mono()));
            }
        }
        let mut request = Request::new(RequestBody::Kept(bytes::Bytes::new()));
        *request.method_mut() = self.parts.method.clone();
        *request.uri_mut() = self.parts.uri.clone();
        *request.version_mut() = Version::HTTP_11;
        *request.headers_mut() =
            if repeatable { self.parts.headers.clone() } else { std::mem::take(&mut self.parts.headers) };
        if http2 {
            // No `Upgrade`, which may be ignored at any time: HTTP/2 has none.
            let (mut parts, body) = request.into_parts();
            for_http2(&mut parts)?;
            request = Request::from_parts(parts, body);
        } else if let Some(wanted) = &self.flight.upgrade {
            headers::ask_upgrade(request.headers_mut(), wanted.clone());
        }
        let (open, opened) = match (self.body.expects() && !http2).then(oneshot::channel) {
            Some((open, opened)) => (Some(Mutex::new(Some(open))), Some(opened)),
            None => (None, None),
        };
        // HTTP/1.0 knows no 1xx (RFC 9110 15.2).
        let hints = (self.parts.version == Version::HTTP_11 && !http2).then(|| self.flight.client.number());
        if open.is_some() || hints.is_some() {
            hyper::ext::on_informational(&mut request, move |response| match (response.status(), &open, hints) {
                (StatusCode::CONTINUE, Some(open), _) => {
                    if let Some(open) = open.lock().ok().and_then(|mut open| open.take()) {
                        let _ = open.send(());
                    }
                }
                // hyper asks the client by itself once its body is wanted.
                (StatusCode::CONTINUE, None, _) | (_, _, None) => {}
                (_, _, Some(number)) => hints::pass_on(number, response.status(), response.headers().clone()),
            });
        }
        let (body, progress) = self.body.take(opened, http2);
        *request.body_mut() = body;
        Ok((request, progress))
    }

    fn repeatable(&self) -> bool {
        self.flight.class != MethodClass::Other && self.body.replayable()
    }

    /// Waits for the answer's head. While a streamed body still moves, or the client owes the rest of it, the time of the try starts
    /// anew: a client's silence has its own limit, and is nobody else's fault. An instance that is silent altogether is not
    /// waited for as long, where another one could answer.
    async fn wait<F>(
        &self,
        sent: F,
        until: Mono,
        progress: Option<&Progress>,
        (entry, prepared): (&InstanceEntry, Option<&Prepared>),
    ) -> Option<Result<Response<Incoming>, TrySendError<Request<RequestBody>>>>
    where
        F: Future<Output = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>>,
    {
        let mut sent = std::pin::pin!(sent);
        let mut until = until;
        let mut seen = 0;
        let silence = self.worker.config.timeouts.silence;
        let elsewhere = self.others > 0 && self.repeatable();
        loop {
            let now = self.worker.clock.mono();
            let look = if elsewhere { until.min(now + silence) } else { until };
            let ended = timeout_at(self.worker.clock.instant(look).into(), &mut sent).await;
            if ended.is_err() {
                self.routed.still_waits(entry, self.worker.clock.mono());
            }
            match ended {
                Ok(answer) => return Some(answer),
                // It answers others, or nobody else waits there: this one may take its time.
                Err(_)
                    if look < until
                        && (!gives_up_early(entry, self.worker.clock.mono())
                            || prepared.is_some_and(|p| p.heard.get() > now)) => {}
                Err(_) if look < until => return None,
                Err(_) => {
                    let frames = progress.map_or(0, |progress| progress.frames.get());
                    let owed = progress.is_some_and(|progress| progress.owed.get());
                    if frames == seen && !owed {
                        return None;
                    }
                    seen = frames;
                    let timeouts = &self.worker.config.timeouts;
                    let span = if self.flight.grpc { timeouts.idle } else { timeouts.per_try };
                    until = self.worker.clock.mono() + span.max(MIN_SPAN);
                    // A caller of gRPC means its deadline for the whole call.
                    if let Some(deadline) = self.deadline.filter(|_| self.flight.grpc) {
                        until = until.min(deadline);
                    }
                }
            }
        }
    }

    /// An answer's head is there.
    async fn answered(
        &mut self,
        response: Response<Incoming>,
        lease: Lease,
        instance: u16,
        until: Mono,
        request: Option<Rc<Progress>>,
    ) -> Result<Tried, Refusal> {
        self.body.settle();
        let entry = &self.routed.instances[usize::from(instance)];
        let (head, body) = response.into_parts();
        let granted = |wanted: &HeaderValue| headers::grants_upgrade(&head.headers, wanted);
        if head.status == StatusCode::SWITCHING_PROTOCOLS && self.flight.upgrade.as_ref().is_some_and(granted) {
            let answer = Answer { head, body: AnswerBody::Switched, lease, instance, request: None };
            return Ok(Tried::Answered(Box::new(answer)));
        }
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            self.blame(Reason::BadResponse, entry, "it switches protocols unasked");
            let detail = self.blame.take().map(|(_, detail)| detail).unwrap_or_default();
            return Err(Refusal { reason: Reason::BadResponse, detail });
        }
        if !headers::framing_is_plain(&head.headers) {
            self.blame(Reason::BadResponse, entry, "it uses a transfer coding that nobody asked for");
            let detail = self.blame.take().map(|(_, detail)| detail).unwrap_or_default();
            return Err(Refusal { reason: Reason::BadResponse, detail });
        }
        if framed_twice(&head, &self.parts.method) {
            self.blame(Reason::BadResponse, entry, "its answer has both Content-Length and Transfer-Encoding");
            return Ok(Tried::Failed(Outcome::Reset));
        }
        let retryable = self.routed.rules.breaker.counts.repeats(head.status.as_u16());
        let body = if !retryable && reads_whole(self.flight.class, &self.parts.method, &body) {
            let mut gathering = Gathering::new(body);
            let hold = until.min(self.worker.clock.mono() + LONGEST_HOLD);
            match timeout_at(self.worker.clock.instant(hold).into(), gathering.read()).await {
                Ok(Whole::Done(bytes)) => AnswerBody::Whole(bytes),
                Ok(Whole::WithTrailers) => AnswerBody::Streamed(gathering),
                Ok(Whole::Broken(error)) => {
                    self.blame(Reason::UpstreamReset, entry, &error.to_string());
                    return Ok(Tried::Failed(Outcome::Reset));
                }
                // Slow, but it answers: the client gets what there is, and the rest as it comes.
                Err(_) => AnswerBody::Streamed(gathering),
            }
        } else if head.status == StatusCode::NOT_MODIFIED {
            AnswerBody::Absent
        } else {
            AnswerBody::Streamed(Gathering::new(body))
        };
        let answer = Box::new(Answer { head, body, lease, instance, request });
        if retryable {
            let status = answer.head.status.as_u16();
            self.last = Some(answer);
            return Ok(Tried::Failed(Outcome::RetryableStatus(status)));
        }
        Ok(Tried::Answered(answer))
    }

    /// The connection gave an error in an answer's place.
    fn broken(
        &mut self,
        mut error: TrySendError<Request<RequestBody>>,
        entry: &InstanceEntry,
        reused: bool,
        progress: Option<&Progress>,
    ) -> Result<Tried, Refusal> {
        if let Some(unsent) = error.take_message() {
            let (parts, body) = unsent.into_parts();
            // A head for HTTP/2 was a copy.
            if !self.repeatable() && parts.version != Version::HTTP_2 {
                self.parts.headers = parts.headers;
            }
            self.body.put_back(body);
            return Ok(Tried::Failed(self.stale()));
        }
        if let Some(fault) = progress.and_then(|progress| progress.fault.get()) {
            return Err(fault.into());
        }
        let error = error.into_error();
        if unprocessed(&error) && self.body.restore() {
            return Ok(Tried::Failed(self.stale()));
        }
        let bad = error.is_parse() || malformed(&error);
        let reason = if bad { Reason::BadResponse } else { Reason::UpstreamReset };
        self.blame(reason, entry, &error.to_string());
        // The application closed an idle connection just as it was used again: no fault of the instance, and where the request
        // may be repeated, the same instance is asked again before another one. A stream that the instance reset is its answer.
        if reused && self.repeatable() && !bad && !was_reset(&error) {
            self.worker.metrics.upstream_stale.inc();
            return Ok(Tried::Failed(Outcome::MaybeStale));
        }
        Ok(Tried::Failed(Outcome::Reset))
    }

    fn stale(&self) -> Outcome {
        self.worker.metrics.upstream_stale.inc();
        Outcome::StaleConnection
    }
}

/// Whether an instance that said nothing for a while is left for another one: several wait there, or it is known to fail.
pub(super) fn gives_up_early(entry: &InstanceEntry, now: Mono) -> bool {
    entry.cell.in_flight() >= WAITING || entry.cell.open_until(now).is_some()
}

/// A failure in words.
pub(super) fn blame(reason: Reason, entry: &InstanceEntry, what: &str) -> (Reason, String) {
    let record = &entry.record;
    (reason, format!("last tried: {} at {}: {what}", record.id, record.authority()))
}

/// What it means that there is no connection.
pub(super) fn not_connected(fault: &ConnectFault, entry: &InstanceEntry) -> (Outcome, (Reason, String)) {
    match fault {
        ConnectFault::OwnAddress(addr) => {
            tracing::warn!(instance = %entry.record.id, %addr, "the instance's address is this sidecar itself");
            (Outcome::ConnectFailed, blame(Reason::OwnAddress, entry, "its address is this sidecar's own"))
        }
        ConnectFault::Failed(error) => (Outcome::ConnectFailed, blame(Reason::AllRefused, entry, &error.to_string())),
        ConnectFault::Local(error) => (Outcome::Full, blame(Reason::LocalLimit, entry, &error.to_string())),
        ConnectFault::Full => (Outcome::Full, blame(Reason::Overflow, entry, "it takes no more streams")),
    }
}

/// Whether a response's body has two lengths. hyper would believe one of them; whoever comes next may believe the other
/// (RFC 9112 6.3).
fn framed_twice(head: &response::Parts, method: &Method) -> bool {
    let body = *method != Method::HEAD && !matches!(head.status.as_u16(), 204 | 304);
    body && head.headers.contains_key(header::CONTENT_LENGTH) && head.headers.contains_key(header::TRANSFER_ENCODING)
}

/// How long the head of a small answer is held for its body, so that an instance which dies between the two costs nothing. Most bodies
/// come with their head.
pub(super) const LONGEST_HOLD: Duration = Duration::from_millis(50);
/// One request that waits says little about its instance: it may be a slow one.
const WAITING: u32 = 2;
/// While a body moves, the answer's head is waited for in spans of at least this.
const MIN_SPAN: Duration = Duration::from_millis(100);
