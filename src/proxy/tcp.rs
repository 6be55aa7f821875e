//! Dedicated TCP ports: every connection to one is carried to an instance of one service, whatever is spoken in it.
//!
//! There are no headers to decide by: the lane is that of an anonymous request, and the place on the ring comes from the service's
//! `tcp_key` (by default the client's address). An instance that refuses, or that closes before a byte was exchanged, is passed
//! over for the next one in order; after the first byte nobody is. TCP has no words: a client for whom there is no instance is
//! reset, and the log and the metrics say why.

use std::{net::SocketAddr, rc::Rc, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Uri};
use tokio::{net::TcpStream, time::sleep};

use super::{
    Reason,
    client::Client,
    flight::Flight,
    forward::{Refusal, shown},
    io::Socket,
    reach::{Reach, Reached},
    tunnel::Tunnel,
    worker::{Slot, Worker},
};
use crate::{
    config::TcpKey,
    routing::{self, MethodClass},
    types::ServiceName,
};

/// Carries one connection to its end.
pub(super) async fn serve(slot: Rc<Slot>, stream: TcpStream, address: SocketAddr, service: Arc<str>) {
    let worker = slot.worker();
    // Small pieces must not wait for an acknowledgement of the one before.
    let _ = stream.set_nodelay(true);
    let client = Client::new(&worker, Socket::new(stream), address, Some(service.clone()));
    let _registered = worker.register(&client);
    let (mut parts, ()) = Request::new(()).into_parts();
    // As it stands in the access log.
    parts.method = Method::from_bytes(b"TCP").unwrap_or(Method::CONNECT);
    parts.uri = Uri::from_static("*");
    let mut flight = Box::new(Flight::new(worker.clone(), client.clone(), &parts, MethodClass::Other));
    match reach(&worker, &mut flight, &client, &service).await {
        Ok(Reached { socket, in_flight }) => {
            flight.answered = true;
            flight.status = Some(200);
            flight.switches();
            client.carry(Tunnel { flight, instance: socket, early: Bytes::new(), in_flight }, Bytes::new()).await;
        }
        Err(Refusal { reason, detail }) => {
            worker.metrics.proxy_error(reason.name());
            flight.error = Some(reason.name());
            flight.status = Some(reason.status());
            tracing::debug!(client = %address, %service, reason = reason.name(), detail, "TCP connection reset");
            client.socket().reset_on_close();
        }
    }
}

async fn reach(worker: &Rc<Worker>, flight: &mut Flight, client: &Client, name: &str) -> Result<Reached, Refusal> {
    let view = flight.view.clone();
    let unknown = || Refusal { reason: Reason::UnknownService, detail: shown(name) };
    let service = view.service(name).ok_or_else(unknown)?;
    flight.service = Some(service.clone());
    let routed = service.view(&view).ok_or_else(unknown)?;
    let key = key(worker, &service.name, client.address);
    let request = routing::Request {
        subject: None,
        route_key: key.as_deref(),
        explicit_lane: None,
        method: MethodClass::Other,
        random: flight.random,
        head: None,
    };
    let decision = routing::choose(&view.snapshot, routed, &request, worker.clock.mono());
    flight.route_key = key.map(String::into_boxed_str);
    flight.decision = Some(decision);
    let mut reach = Reach::new(worker, routed, decision, None);
    loop {
        let reached = reach.next(flight).await?;
        if lasts(client.socket(), &reached.socket, worker.config.timeouts.connect).await {
            reach.settled();
            return Ok(reached);
        }
        reach.closed_at_once(flight);
    }
}

/// What is hashed on the ring; `None` takes a random place.
fn key(worker: &Worker, service: &ServiceName, client: SocketAddr) -> Option<String> {
    let ip = client.ip().to_canonical();
    match worker.rules.get(service).map_or(&TcpKey::Source, |rule| &rule.tcp_key) {
        TcpKey::Random => None,
        TcpKey::Fixed(text) => Some(text.clone()),
        // Every pod's application has the same loopback address: its sidecar's name tells them apart.
        TcpKey::Source if ip.is_loopback() => Some(worker.node.to_string()),
        TcpKey::Source => Some(ip.to_string()),
    }
}

/// Waits until either side has something to say, but not for long; whether the instance is still there then.
async fn lasts(client: &Socket, instance: &Socket, limit: Duration) -> bool {
    tokio::select! {
        _ = client.peek() => {}
        _ = instance.peek() => {}
        () = sleep(limit) => {}
    }
    !instance.closed()
}
