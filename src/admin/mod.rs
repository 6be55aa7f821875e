//! Floor 5: the admin HTTP API: questions for everybody on this machine, orders for whoever can read the write token.
//!
//! Invariants: GET never changes anything; no order without the token and `content-type: application/json`; a web page in a
//! local browser can do neither (`guard`); every error is JSON with the reason and, where there is one, the cure; every
//! request is answered within [`HANDLER_DEADLINE`]. Services, routes and rings are read from the snapshot that requests are
//! routed by, never from a second view.
//!
//! Not here: what an order means and whether it is allowed by the rules of the mesh (the agent), TLS (the address is loopback
//! unless asked for by name, and then it belongs behind something that encrypts), the content of `/metrics` (`telemetry`).

mod error;
mod guard;
mod read;
#[cfg(test)]
mod tests;
pub mod token;
mod views;
mod write;

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    http::{Method, StatusCode, Uri},
    middleware::from_fn_with_state,
    response::{IntoResponse, Response},
    routing::{MethodRouter, delete, get, patch, post},
};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

pub use error::ErrorBody;
pub use token::Token;
pub use views::{DrainAnswer, DrainOrder, LaneInfo, Nothing, Readiness, RollbackOrder, ServiceInfo, UndrainOrder};

use crate::{agent::Handle, types::Mono};
use error::Problem;

/// What the API works with; cheap to clone.
#[derive(Clone)]
pub struct AdminState {
    /// The agent.
    pub handle: Handle,
    /// Encodes the metrics (OpenMetrics text).
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// What readiness waits for; empty when ready.
    pub ready: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    /// The write token.
    pub token: Arc<Token>,
    /// The time that routing cells are kept in.
    pub clock: Arc<dyn Fn() -> Mono + Send + Sync>,
    /// Binding to other than loopback was asked for by name: the bound address counts as a host of its own, and who asks from
    /// elsewhere needs the token for reads as well (except `/health`, `/ready` and `/metrics`).
    pub allow_remote: bool,
}

/// Longest time until a request is answered.
pub const HANDLER_DEADLINE: Duration = Duration::from_secs(4);
/// Largest body of an order, bytes.
pub const MAX_BODY: usize = 64 * 1024;

/// How requests are served.
#[derive(Clone, Copy)]
struct Terms {
    /// The bound address.
    bound: SocketAddr,
    /// Until a request is answered.
    deadline: Duration,
}

/// Where a request came from.
#[derive(Clone, Copy)]
struct Peer(SocketAddr);

/// Serves until `stop`; then finishes what is being answered, for at most a second. Dropping the future ends every connection
/// at once.
pub async fn serve(listener: TcpListener, state: AdminState, stop: CancellationToken) -> std::io::Result<()> {
    let terms = Terms { bound: listener.local_addr()?, deadline: HANDLER_DEADLINE };
    serve_router(listener, router(state, terms), stop).await;
    Ok(())
}

async fn serve_router(listener: TcpListener, router: Router, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let place = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            Ok(place) = places.clone().acquire_owned() => place,
        };
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                connections.spawn(connection(stream, peer, router.clone(), place, stop.clone()));
            }
            // Out of file descriptors, or a client that went away: neither ends the listener.
            Err(error) => {
                tracing::debug!(%error, "admin: accept failed");
                sleep(Duration::from_millis(20)).await;
            }
        }
    }
    drop(listener);
    let _ = timeout(FAREWELL, async { while connections.join_next().await.is_some() {} }).await;
}

/// One client connection, until it ends, idles, or `stop`.
async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    _place: OwnedSemaphorePermit,
    stop: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        hyper::service::Service::call(&router, request)
    });
    // The timer on the head also ends kept-open connections that ask nothing more.
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    tokio::select! {
        _ = serving.as_mut() => return,
        () = stop.cancelled() => serving.as_mut().graceful_shutdown(),
    }
    let _ = serving.await;
}

/// All routes. A write is one only through `order`, which puts the token and the content type before it.
fn router(state: AdminState, terms: Terms) -> Router {
    let order = |method: MethodRouter<AdminState, Infallible>| {
        method.route_layer(from_fn_with_state(state.clone(), guard::writes))
    };
    Router::new()
        .route("/", get(read::index))
        .route("/health", get(read::health))
        .route("/ready", get(read::ready))
        .route("/metrics", get(read::metrics))
        .route("/v1/info", get(read::info))
        .route("/v1/members", get(read::members))
        .route("/v1/members/{node}", get(read::member))
        .route("/v1/compare", get(read::compare))
        .route("/v1/services", get(read::services))
        .route("/v1/instances", get(read::instances).merge(order(post(write::register))))
        .route(
            "/v1/instances/{id}",
            get(read::instance).merge(order(patch(write::set_instance))).merge(order(delete(write::deregister))),
        )
        .route("/v1/policies", get(read::policies))
        .route("/v1/policies/{service}", get(read::policy).merge(order(patch(write::set_policy))))
        .route("/v1/route/{service}", get(read::route))
        .route("/v1/mesh-route/{service}", get(read::mesh_route))
        .route("/v1/ring/{service}", get(read::ring))
        .route("/v1/signals", get(read::signals))
        .route("/v1/drain", order(post(write::drain)))
        .route("/v1/undrain", order(post(write::undrain)))
        .route("/v1/rollback/{service}", order(post(write::rollback)))
        .route("/v1/leave", order(post(write::leave)))
        .fallback(no_such_page)
        .method_not_allowed_fallback(wrong_method)
        .layer(Extension(terms))
        .layer(from_fn_with_state((state.clone(), terms), guard::everywhere))
        .with_state(state)
}

async fn no_such_page(uri: Uri) -> Problem {
    let path: String = uri.path().chars().take(80).collect();
    Problem::new(StatusCode::NOT_FOUND, format!("there is no page `{path}`")).cure("`GET /` lists the pages")
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    let path: String = uri.path().chars().take(80).collect();
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, format!("`{path}` does not take {method}"))
        .cure("the `allow` header and `GET /` list what it takes")
        .into_response()
}

/// Most connections at a time; more wait in the listen queue.
const MAX_CONNECTIONS: usize = 256;
/// For a request head, and for silence between two requests.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);
/// Largest request head, bytes.
const MAX_HEAD: usize = 64 * 1024;
/// For answers under way when the server is stopped.
const FAREWELL: Duration = Duration::from_secs(1);
