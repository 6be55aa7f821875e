//! Orders. Every handler here stands behind the token and the content type (`guard::writes`); the agent decides.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::{
    Extension, Json,
    extract::{FromRequest, Path, Request, State},
    http::{StatusCode, header},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::{
    AdminState, MAX_BODY, Terms,
    error::Problem,
    read::parsed,
    views::{DrainAnswer, DrainOrder, Nothing, RollbackOrder, UndrainOrder},
};
use crate::{
    agent::{InstanceChange, NewInstance, NodeDone, PolicyChange},
    telemetry::Observe,
    types::{InstanceId, InstanceRecord, LanePolicy, ServiceName},
};

type Answer<T> = Result<Json<T>, Problem>;

/// The body of an order: JSON of at most [`MAX_BODY`] bytes. No body at all counts as `{}`.
pub(super) struct Order<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Order<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let announced =
            request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        if announced.is_some_and(|bytes: u64| bytes > MAX_BODY as u64) {
            return Err(too_large());
        }
        let bytes = match Limited::new(request.into_body(), MAX_BODY).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => return Err(too_large()),
            Err(_) => return Err(Problem::new(StatusCode::BAD_REQUEST, "the body ended early")),
        };
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        serde_json::from_slice(text).map(Self).map_err(|error| {
            Problem::new(StatusCode::BAD_REQUEST, format!("the body is not what this order takes: {error}"))
        })
    }
}

fn too_large() -> Problem {
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("an order to a sidecar has at most {MAX_BODY} bytes"))
        .cure("an instance record carries 8 KiB, its tags included; a policy lists at most 1,000 subjects")
}

/// `PATCH /v1/instances/{id}`.
pub(super) async fn set_instance(
    State(state): State<AdminState>,
    Path(id): Path<String>,
    Order(change): Order<InstanceChange>,
) -> Answer<InstanceRecord> {
    let id = parsed(InstanceId::new(&id))?;
    Ok(Json(state.handle.set_instance(id, change).await?))
}

/// `POST /v1/instances`: 201 and the record. The sidecar's own ports are no application: announced as one, every sidecar of the
/// mesh would carry requests to them.
pub(super) async fn register(
    State(state): State<AdminState>,
    Extension(terms): Extension<Terms>,
    Order(new): Order<NewInstance>,
) -> Result<(StatusCode, Json<InstanceRecord>), Problem> {
    let info = state.handle.info().await?;
    let host = new.host.clone().unwrap_or_else(|| info.gossip.ip().to_string());
    let proxies = std::iter::once(&info.proxy).chain(info.ports.values()).chain(info.tcp_ports.values());
    let mut own = std::iter::once((terms.bound, "admin API")).chain(proxies.map(|addr| (*addr, "proxy")));
    if let Some((_, what)) = own.find(|(addr, _)| names(&host, new.port, *addr)) {
        let error = format!("{host}:{} is this sidecar's {what}, not an application", new.port);
        return Err(
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error).cure("give the application's own host and port")
        );
    }
    Ok((StatusCode::CREATED, Json(state.handle.register(new).await?)))
}

fn names(host: &str, port: u16, bound: SocketAddr) -> bool {
    let ip = match host.eq_ignore_ascii_case("localhost") {
        true => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        false => host.parse::<IpAddr>().ok(),
    };
    let here = ip
        .is_some_and(|ip| ip == bound.ip() || ip.is_unspecified() || (bound.ip().is_unspecified() && ip.is_loopback()));
    port == bound.port() && here
}

/// `DELETE /v1/instances/{id}`.
pub(super) async fn deregister(State(state): State<AdminState>, Path(id): Path<String>) -> Answer<Nothing> {
    state.handle.deregister(parsed(InstanceId::new(&id))?).await?;
    Ok(Json(Nothing {}))
}

/// `POST /v1/drain`.
pub(super) async fn drain(State(state): State<AdminState>, Order(order): Order<DrainOrder>) -> Answer<DrainAnswer> {
    let DrainOrder { ids, reason, by, min_ready } = order;
    let by = if by.is_empty() { "operator".to_owned() } else { by };
    for (what, text) in [("by", &by), ("reason", &reason)] {
        if text.len() > MAX_TEXT {
            let error = format!("`{what}` has {} bytes, at most {MAX_TEXT} are carried", text.len());
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error));
        }
    }
    let ids = state.handle.drain(ids, by, reason, min_ready).await?;
    Ok(Json(DrainAnswer { ids }))
}

/// `POST /v1/undrain`.
pub(super) async fn undrain(State(state): State<AdminState>, Order(order): Order<UndrainOrder>) -> Answer<DrainAnswer> {
    Ok(Json(DrainAnswer { ids: state.handle.undrain(order.ids).await? }))
}

/// `PATCH /v1/policies/{service}`.
pub(super) async fn set_policy(
    State(state): State<AdminState>,
    Path(service): Path<String>,
    Order(change): Order<PolicyChange>,
) -> Answer<LanePolicy> {
    let service = parsed(ServiceName::new(&service))?;
    Ok(Json(state.handle.set_policy(service, change).await?))
}

/// `POST /v1/rollback/{service}`.
pub(super) async fn rollback(
    State(state): State<AdminState>,
    Path(service): Path<String>,
    Order(order): Order<RollbackOrder>,
) -> Answer<LanePolicy> {
    let service = parsed(ServiceName::new(&service))?;
    Ok(Json(state.handle.rollback(service, order.reason).await?))
}

/// `POST /v1/observe`: every active member logs all requests of a subject for a while.
pub(super) async fn observe(State(state): State<AdminState>, Order(order): Order<Observe>) -> Answer<Vec<NodeDone>> {
    if order.by.len() > MAX_TEXT {
        let error = format!("`by` has {} bytes, at most {MAX_TEXT} are carried", order.by.len());
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error));
    }
    Ok(Json(state.handle.observe(order).await?))
}

/// `POST /v1/leave`: answers when peers were told.
pub(super) async fn leave(State(state): State<AdminState>, Order(Nothing {}): Order<Nothing>) -> Answer<Nothing> {
    state.handle.leave().await?;
    Ok(Json(Nothing {}))
}

/// Longest `by` and `reason` of a drain, bytes: they travel in every record of the instance.
const MAX_TEXT: usize = 512;
