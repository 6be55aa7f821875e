//! One request: which service, who, which instance; then what [`Attempts`] says, until an answer or a reason not to have one.

use std::{rc::Rc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Version, header, request::Parts};
use hyper::{
    body::{Body, Incoming},
    ext::ReasonPhrase,
};

use super::{
    Reason,
    body::{AnswerBody, ClientFault, ResponseBody},
    class::{method_class, retry},
    client::Client,
    connect::connect,
    deadline,
    exchange::{Answer, Exchange, Tried},
    flight::Flight,
    grpc, h2_serve,
    head::RequestHead,
    headers::{self, Put, X_ATTEMPTS, X_BUCKET, X_INSTANCE, X_LANE, X_REASON, X_VERSION},
    target,
    tunnel::Tunnel,
    upload::Upload,
    view::Service,
    worker::Worker,
};
use crate::{
    lanes::Head,
    routing::{self, Attempts, AttemptsConfig, Decision, GiveUp, MethodClass, ServiceView, Step},
};

/// A response that the proxy makes itself, and what the reason alone does not say.
pub(super) struct Refusal {
    pub(super) reason: Reason,
    pub(super) detail: String,
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self { reason, detail: String::new() }
    }
}

/// Answers one request, whatever happens.
pub(super) async fn handle(
    worker: Rc<Worker>,
    client: Rc<Client>,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let (mut parts, body) = request.into_parts();
    let fault = match parts.version {
        Version::HTTP_2 => h2_serve::check_head(&worker, &mut parts).map(Refusal::from),
        _ => client.next_fault(),
    };
    let class = method_class(&parts.method);
    let json = parts.headers.get(header::ACCEPT).is_some_and(Reason::wants_json);
    let mut flight = Box::new(Flight::new(worker.clone(), client, &parts, class));
    if fault.is_none() && parts.method == http::Method::CONNECT && parts.version != http::Version::HTTP_2 {
        return connect(&worker, flight, parts, body, json).await;
    }
    let mut upload = Upload::new(&parts, body);
    let answered = match fault {
        Some(refusal) => Err(refusal),
        None => answer(&worker, &mut flight, &mut parts, &mut upload).await,
    };
    match answered {
        Ok(answer) if matches!(answer.body, AnswerBody::Switched) => switch(&worker, flight, answer, json).await,
        Ok(answer) => pass_on(&worker, flight, answer, upload.is_taken()),
        Err(refusal) if parts.version == Version::HTTP_2 => refuse(&worker, flight, &refusal, json),
        Err(refusal) => {
            // What cannot be trusted is not read, and its reason closes by itself.
            if !refusal.reason.closes() {
                upload.drain(&worker.config).await;
            }
            let mut response = refuse(&worker, flight, &refusal, json);
            if !upload.is_taken() {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
    }
}

/// Everything up to an instance's answer.
async fn answer(
    worker: &Rc<Worker>,
    flight: &mut Flight,
    parts: &mut Parts,
    upload: &mut Upload,
) -> Result<Answer, Refusal> {
    let dedicated = flight.client.dedicated.clone();
    let Parts { method, uri, version, headers, .. } = parts;
    let wanted = target::resolve(method, *version, uri, headers, dedicated.as_deref())?;
    let view = flight.view.clone();
    let unknown = || Refusal { reason: Reason::UnknownService, detail: shown(wanted.as_str()) };
    let service = view.service(wanted.as_str()).ok_or_else(unknown)?;
    flight.service = Some(service.clone());
    let routed = service.view(&view).ok_or_else(unknown)?;
    let decision = decide(worker, flight, &service, routed, &RequestHead { method, uri, headers });
    let limit = deadline::requested(headers, flight.grpc);
    if limit.is_none() {
        // What this proxy could not read, nobody behind it is to read otherwise.
        headers.remove(headers::X_REQUEST_TIMEOUT);
    }
    let upgrade = if *version == Version::HTTP_11 { headers::wanted_upgrade(headers) } else { None };
    let headers::Cleaned { hops, repeated } = headers::clean_request(headers, &worker.lane_header)?;
    if hops >= headers::MAX_HOPS {
        return Err(Reason::Loop.into());
    }
    headers::add_common(headers, flight.client.address.ip(), hops);
    let outgoing = upload.take(headers, &worker.config).await?;
    // A body that is still on its way would have to be finished first; an `Upgrade` may be ignored at any time.
    flight.upgrade = upgrade.filter(|_| outgoing.replayable());
    let mut limits = limits(worker, flight.grpc, limit);
    if repeated {
        // Retries of every layer multiply, so only one repeats: the one that began it.
        limits.max_retries = 0;
    }
    let now = worker.clock.mono();
    let attempts = Attempts::new(&decision, flight.class, outgoing.replayable(), limits, now);
    let exchange = Exchange::new(worker, &service, routed, flight, parts, outgoing, limit.map(|_| now + limits.total));
    drive(attempts, exchange, &decision).await
}

/// Time limits of a request. A gRPC call may take as long as its caller gives it, and a server that streams may have nothing to
/// say for a while: without a deadline it is silence that ends it. Nothing is retried after it was sent, so one try has all the time.
pub(super) fn limits(worker: &Worker, grpc: bool, limit: Option<Duration>) -> AttemptsConfig {
    let timeouts = &worker.config.timeouts;
    let max_retries = worker.config.max_retries;
    if grpc {
        let total = limit.unwrap_or(timeouts.idle);
        return AttemptsConfig { max_retries, per_try: total.max(timeouts.idle), total };
    }
    let total = limit.map_or(timeouts.total, |limit| limit.min(timeouts.total));
    AttemptsConfig { max_retries, per_try: timeouts.per_try, total }
}

/// Asks routing, and notes what it said.
pub(super) fn decide(
    worker: &Worker,
    flight: &mut Flight,
    service: &Service,
    routed: &ServiceView,
    head: &dyn Head,
) -> Decision {
    let who = routed.reading.read(head);
    let request = who.request(head, flight.class, flight.random);
    let decision = routing::choose(&flight.view.snapshot, routed, &request, worker.clock.mono());
    if decision.panic {
        worker.metrics.panicked(service.name.as_str());
    }
    if decision.lane.probe {
        worker.metrics.lane_probe(service.name.as_str());
    }
    if let (Some(why), Some(served)) = (decision.fallback, decision.served_lane(routed)) {
        let lane = routed.decided(&decision.lane).name.as_str();
        worker.metrics.fell_back(service.name.as_str(), lane, served.name.as_str(), why.as_str());
    }
    // Errors are logged whatever the sample says, and nobody knows yet how this one ends.
    let [subject, route_key] = [request.subject, request.route_key].map(|text| text.map(Box::from));
    (flight.subject, flight.route_key) = (subject, route_key);
    flight.decision = Some(decision);
    decision
}

impl From<ClientFault> for Refusal {
    fn from(fault: ClientFault) -> Self {
        match fault {
            ClientFault::Broken => Self {
                reason: Reason::BadFraming,
                detail: "the body broke off, or a chunk of it is malformed".to_owned(),
            },
            ClientFault::Silent => Reason::RequestTimeout.into(),
        }
    }
}

/// Does what [`Attempts`] says until there is an answer or none to be had.
async fn drive(mut attempts: Attempts, mut exchange: Exchange<'_>, decision: &Decision) -> Result<Answer, Refusal> {
    loop {
        match attempts.next(exchange.routed, exchange.worker.clock.mono()) {
            Step::Try { instance, until, fresh } => {
                match exchange.attempt(instance, attempts.number(), until, fresh).await? {
                    Tried::Answered(answer) => {
                        let now = exchange.worker.clock.mono();
                        match grpc::outcome(exchange.flight.grpc, &answer.head) {
                            Some(outcome) => attempts.ended(outcome, exchange.routed, now),
                            None => exchange.flight.pending = attempts.hand_over(exchange.routed, now),
                        }
                        exchange.flight.retries = u32::from(attempts.retries());
                        return Ok(*answer);
                    }
                    Tried::Failed(outcome) => {
                        attempts.ended(outcome, exchange.routed, exchange.worker.clock.mono());
                        exchange.failed = retry(outcome);
                    }
                }
            }
            Step::Wait(until) => tokio::time::sleep_until(exchange.worker.clock.instant(until).into()).await,
            Step::GiveUp(why) => {
                exchange.flight.retries = u32::from(attempts.retries());
                return exchange.give_up(why, decision);
            }
        }
    }
}

/// An instance's answer on its way to the client.
fn pass_on(worker: &Worker, mut flight: Box<Flight>, answer: Answer, taken: bool) -> Response<ResponseBody> {
    let closes = answer.closes();
    let Answer { mut head, body, mut lease, instance, request } = answer;
    flight.instance = Some(instance);
    flight.answered = true;
    flight.status = Some(head.status.as_u16());
    headers::clean_response(&mut head.headers);
    finish_head(worker, &flight, &mut head.headers);
    if (closes || !taken) && !flight.http2 {
        head.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if closes {
        lease.spend();
    }
    // Of what hyper notes beside a head, only a reason phrase of the instance's own is anybody else's business.
    let phrase = head.extensions.remove::<ReasonPhrase>();
    head.extensions.clear();
    match phrase {
        Some(phrase) => drop(head.extensions.insert(phrase)),
        None if head.status.canonical_reason().is_none() => {
            head.extensions.insert(ReasonPhrase::from_static(b""));
        }
        None => {}
    }
    // The client's own version decides the framing; an instance that speaks 1.0 does not make the client's connection 1.0.
    head.version = http::Version::HTTP_11;
    let silence = worker.config.timeouts.idle;
    Response::from_parts(head, ResponseBody::new(body, request, silence, lease, flight))
}

/// An instance has switched protocols: the client is told, and then both connections are one.
async fn switch(worker: &Worker, mut flight: Box<Flight>, answer: Answer, json: bool) -> Response<ResponseBody> {
    let Answer { mut head, lease, instance, .. } = answer;
    let until = worker.clock.instant(worker.clock.mono() + worker.config.timeouts.per_try);
    let (Some(wanted), Some((socket, early, in_flight))) = (flight.upgrade.take(), lease.switched(until.into()).await)
    else {
        let detail = "it switched protocols before it had taken the request".to_owned();
        return refuse(worker, flight, &Refusal { reason: Reason::BadResponse, detail }, json);
    };
    (flight.instance, flight.answered) = (Some(instance), true);
    flight.status = Some(head.status.as_u16());
    flight.switches();
    headers::clean_switch(&mut head.headers, wanted);
    if worker.config.expose_decision {
        expose(&flight, &mut head.headers);
    }
    head.extensions.clear();
    head.version = http::Version::HTTP_11;
    let client = flight.client.clone();
    client.becomes(Tunnel { flight, instance: socket, early, in_flight });
    Response::from_parts(head, ResponseBody::none())
}

/// A response of the proxy's own.
pub(super) fn refuse(
    worker: &Worker,
    mut flight: Box<Flight>,
    refusal: &Refusal,
    json: bool,
) -> Response<ResponseBody> {
    let response = refused(worker, &mut flight, refusal, json);
    response.map(|bytes| ResponseBody::local(bytes, flight))
}

/// The same, with its body as it is.
pub(super) fn refused(worker: &Worker, flight: &mut Flight, refusal: &Refusal, json: bool) -> Response<Bytes> {
    let reason = refusal.reason;
    worker.metrics.proxy_error(reason.name());
    flight.error = Some(reason.name());
    flight.status = Some(reason.status());
    let mut response =
        if flight.grpc { grpc::response(reason, &refusal.detail) } else { reason.response(json, &refusal.detail) };
    if flight.http2 {
        response.headers_mut().remove(header::CONNECTION);
    }
    finish_head(worker, flight, response.headers_mut());
    response
}

/// What every response carries: the decision, where that is wanted, and the end of the connection, where that is near.
fn finish_head(worker: &Worker, flight: &Flight, headers: &mut HeaderMap) {
    if worker.config.expose_decision {
        expose(flight, headers);
    }
    // HTTP/2 connections are told by GOAWAY.
    if worker.draining() && !flight.http2 {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
}

/// Tells the client what was decided.
pub(super) fn expose(flight: &Flight, headers: &mut impl Put) {
    let (Some(service), Some(decision)) = (&flight.service, &flight.decision) else { return };
    headers.put(&X_REASON, &HeaderValue::from_static(decision.lane.reason.as_str()));
    if let Some(bucket) = decision.lane.bucket {
        headers.put(&X_BUCKET, &HeaderValue::from(bucket));
    }
    if let Some(prepared) = flight.instance.and_then(|at| service.prepared(&flight.view, at, &flight.worker.metrics)) {
        headers.put(&X_INSTANCE, &prepared.id);
        headers.put(&X_VERSION, &prepared.version);
        headers.put(&X_LANE, &prepared.lane);
        headers.put(&X_ATTEMPTS, &HeaderValue::from(flight.retries + 1));
    } else if let Some(lane) = service.lane(&flight.view, decision) {
        headers.put(&X_LANE, &headers::name_value(lane));
    }
}

/// What a client sent, for an error text: short, and nothing but plain characters.
pub(super) fn shown(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_graphic()).take(63).collect()
}

/// Bytes of an answer that is read whole before the client gets anything.
pub(super) const SMALL: u64 = 8 * 1024;

/// Whether the answer's body is small enough to be read before the client gets anything.
pub(super) fn reads_whole(class: MethodClass, method: &http::Method, body: &Incoming) -> bool {
    class == MethodClass::Safe
        && *method != http::Method::HEAD
        && !body.is_end_stream()
        && body.size_hint().exact().is_some_and(|length| length <= SMALL)
}

/// Reason and detail of giving up without an answer to pass on.
pub(super) fn refusal(
    why: GiveUp,
    decision: &Decision,
    routed: &ServiceView,
    blame: Option<(Reason, String)>,
) -> Refusal {
    match (why, blame) {
        (GiveUp::NoInstance, _) => {
            let lane = routed.decided(&decision.lane).name.as_str();
            let why = decision.fallback.map_or("", |why| why.as_str());
            Refusal { reason: Reason::NoInstance, detail: format!("service {}, lane {lane}: {why}", routed.name) }
        }
        (GiveUp::FallbackLimit, _) if decision.capped => {
            let lane = routed.decided(&decision.lane);
            let room = lane.room_percent();
            let detail = format!(
                "service {}, lane {}: the lane in its place has room for {room} % of its users",
                routed.name, lane.name
            );
            Refusal { reason: Reason::FallbackLimit, detail }
        }
        // What went wrong last says more than that it was the last.
        (
            GiveUp::AllRefused,
            Some((
                reason @ (Reason::OwnAddress
                | Reason::AllRefused
                | Reason::Overloaded
                | Reason::Overflow
                | Reason::LocalLimit),
                detail,
            )),
        ) => Refusal { reason, detail },
        (GiveUp::UpstreamReset | GiveUp::RetriesUsedUp, Some((reason @ Reason::BadResponse, detail))) => {
            Refusal { reason, detail }
        }
        (_, blame) => Refusal { reason: why.into(), detail: blame.map(|(_, detail)| detail).unwrap_or_default() },
    }
}
