//! `CONNECT service:port` (RFC 9110 9.3.6): a tunnel to an instance of a service of the mesh, and to nothing else.
//!
//! Lane, key and instance are decided by the `CONNECT`'s own headers, as for any request. The port has to be there, as the RFC
//! asks, and is not looked at: an instance has one. Nothing inside the tunnel is looked at either, so no header of it decides or
//! is taken off.

use std::rc::Rc;

use http::{Response, header, request::Parts};
use hyper::body::{Body, Incoming};

use super::{
    Reason,
    body::ResponseBody,
    deadline,
    flight::Flight,
    forward::{Refusal, decide, expose, refuse, shown},
    head::RequestHead,
    headers,
    reach::{Reach, Reached},
    target,
    tunnel::Tunnel,
    worker::Worker,
};

/// Answers a `CONNECT`; with 200, the client's connection becomes a tunnel.
pub(super) async fn connect(
    worker: &Rc<Worker>,
    mut flight: Box<Flight>,
    mut parts: Parts,
    body: Incoming,
    json: bool,
) -> Response<ResponseBody> {
    let reached = match reach(worker, &mut flight, &mut parts, &body).await {
        Ok(reached) => reached,
        Err(refusal) => return refuse(worker, flight, &refusal, json),
    };
    flight.answered = true;
    flight.status = Some(200);
    flight.switches();
    let mut response = Response::new(ResponseBody::none());
    if worker.config.expose_decision {
        expose(&flight, response.headers_mut());
    }
    let client = flight.client.clone();
    let Reached { socket, in_flight } = reached;
    client.becomes(Tunnel { flight, instance: socket, early: bytes::Bytes::new(), in_flight });
    response
}

async fn reach(
    worker: &Rc<Worker>,
    flight: &mut Flight,
    parts: &mut Parts,
    body: &Incoming,
) -> Result<Reached, Refusal> {
    let dedicated = flight.client.dedicated.clone();
    let wanted = target::of_connect(parts.version, &parts.uri, &parts.headers, dedicated.as_deref())?;
    // "Content in a CONNECT request has no defined meaning": a length would say that the tunnel's first bytes are not its own.
    if !body.is_end_stream() || parts.headers.contains_key(header::CONTENT_LENGTH) {
        return Err(Refusal { reason: Reason::BadFraming, detail: "a CONNECT has no body".to_owned() });
    }
    let view = flight.view.clone();
    let unknown = || Refusal { reason: Reason::UnknownService, detail: shown(wanted.as_str()) };
    let service = view.service(wanted.as_str()).ok_or_else(unknown)?;
    flight.service = Some(service.clone());
    let routed = service.view(&view).ok_or_else(unknown)?;
    let Parts { method, uri, headers, .. } = &*parts;
    let decision = decide(worker, flight, &service, routed, &RequestHead { method, uri, headers });
    let limit = deadline::requested(&parts.headers, false);
    if headers::clean_request(&mut parts.headers, &worker.lane_header)?.hops >= headers::MAX_HOPS {
        return Err(Reason::Loop.into());
    }
    let mut reach = Reach::new(worker, routed, decision, limit);
    let reached = reach.next(flight).await?;
    reach.settled();
    Ok(reached)
}
