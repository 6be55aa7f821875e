//! What users meet: the proxy's ports, the application beside it, and the three views that have to agree: what the mesh says of an
//! instance, what requests are routed by here, and what they really hit.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

use super::{
    Live, Loaded,
    finding::{Finding, fail, ok, skip, warn},
};
use crate::{
    admin::{OutcomeInfo, ServiceInfo},
    agent::{InstanceInfo, NodeInfo},
    config::{CheckKind, Config},
    probe,
    routing::{BreakerState, Exclusion, SignalsReport, Standing},
    types::{Health, InstanceId, Lane, NodeId, Protocol, ServiceName},
};

/// The group `proxy`.
pub(super) async fn proxy(loaded: &Loaded, live: &Live) -> Vec<Finding> {
    let info = match &live.info {
        Err(why) => return [LISTENS, REQUEST].map(|name| skip(name, why.clone())).into(),
        Ok(_) if !live.here => {
            return [LISTENS, REQUEST].map(|name| skip(name, "the sidecar runs on another machine")).into();
        }
        Ok(info) => info,
    };
    vec![listens(info).await, request(info, loaded).await]
}

/// TCP ports are left out: a connection there is one to an instance.
async fn listens(info: &NodeInfo) -> Finding {
    let all: Vec<SocketAddr> = std::iter::once(info.proxy).chain(info.ports.values().copied()).collect();
    for addr in &all {
        if let Err(why) = connect(*addr).await {
            let cure = "restart the sidecar; if it is overloaded, see proxy.max_connections";
            return fail(LISTENS, format!("{addr} takes no connection: {why}"), cure);
        }
    }
    ok(LISTENS, all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}

async fn connect(addr: SocketAddr) -> Result<TcpStream, String> {
    let addr = SocketAddr::new(reachable(addr), addr.port());
    match timeout(PATIENCE, TcpStream::connect(addr)).await {
        Ok(stream) => stream.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer in {} s", PATIENCE.as_secs())),
    }
}

/// What is bound to all addresses is asked by loopback.
fn reachable(addr: SocketAddr) -> std::net::IpAddr {
    match addr.ip() {
        ip if !ip.is_unspecified() => ip,
        std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
        std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    }
}

/// One request through the proxy: the health check of an own service, routed like any other; without one, a service that does not
/// exist, which the proxy itself refuses.
async fn request(info: &NodeInfo, loaded: &Loaded) -> Finding {
    let own = match loaded {
        Loaded::Good { config, .. } => checked_by_http(config),
        _ => None,
    };
    let (service, path) = own.clone().unwrap_or_else(|| (NOBODY.to_owned(), "/".to_owned()));
    let answer = timeout(PATIENCE, get(info.proxy, &service, &path)).await;
    let answer = answer.unwrap_or_else(|_| Err(format!("no answer in {} s", PATIENCE.as_secs())));
    let what = format!("GET {path} of `{service}`");
    match (answer, own) {
        (Err(why), _) => fail(REQUEST, format!("{what}: {why}"), "see the sidecar's log"),
        (Ok((status, None)), Some(_)) => ok(REQUEST, format!("{what}: {status} from an instance")),
        (Ok((status, Some(reason))), Some(_)) => {
            let cure = format!(
                "`lanemesh instances --service {service}` and `lanemesh route {service}` say why; see `app` and `views`"
            );
            fail(REQUEST, format!("{what}: the proxy answers {status}, {reason}"), cure)
        }
        (Ok((404, Some(reason))), None) if reason == "unknown_service" => {
            ok(REQUEST, "the proxy answers; no service of this sidecar has an HTTP check that could be asked")
        }
        (Ok((status, _)), None) => {
            let text = format!("{what}: {status}, where a lanemesh proxy says 404");
            fail(REQUEST, text, "something else listens on the proxy's port: see `ports`")
        }
    }
}

fn checked_by_http(config: &Config) -> Option<(String, String)> {
    config.instances.iter().find_map(|instance| match &instance.check.kind {
        CheckKind::Http(path) if instance.protocol == Protocol::Http1 => {
            Some((instance.service.to_string(), path.clone()))
        }
        _ => None,
    })
}

/// Status, and the proxy's own reason where it answered itself.
async fn get(proxy: SocketAddr, service: &str, path: &str) -> Result<(u16, Option<String>), String> {
    let stream = connect(proxy).await?;
    let failed = |error: hyper::Error| error.to_string();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let request = http::Request::get(path)
        .header(http::header::HOST, service)
        .header(http::header::USER_AGENT, "lanemesh-check")
        .header(http::header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let exchange = async move {
        let response = sender.send_request(request).await.map_err(failed)?;
        let reason = response.headers().get("x-lanemesh-error").and_then(|value| value.to_str().ok());
        Ok((response.status().as_u16(), reason.map(str::to_owned)))
    };
    // The connection does the reading and writing, and ends when the exchange has dropped its sender.
    tokio::join!(exchange, connection).0
}

/// The check `app.check`: as the running sidecar sees its applications, or asked once where it does not run.
pub(super) async fn app(loaded: &Loaded, live: &Live) -> Vec<Finding> {
    match (&live.instances, loaded) {
        (Ok(instances), _) => {
            let own: Vec<Finding> = instances.iter().filter(|instance| instance.local).map(announced).collect();
            if own.is_empty() { vec![ok(APP, "this sidecar announces no instance")] } else { own }
        }
        (Err(_), Loaded::Good { config, .. }) if config.instances.is_empty() => {
            vec![ok(APP, "no instance is configured")]
        }
        (Err(_), Loaded::Good { config, .. }) => {
            let mut findings = Vec::new();
            for instance in &config.instances {
                findings.push(asked(config, instance).await);
            }
            findings
        }
        (Err(_), _) => vec![skip(APP, loaded.why_not())],
    }
}

fn announced(instance: &InstanceInfo) -> Finding {
    let record = &instance.record;
    let (id, service, at) = (&record.id, &record.service, record.authority());
    let what = format!("{id} of {service} at {at}");
    match (record.health, &record.drain, &instance.failing) {
        (Health::Critical, _, reason) => {
            let reason = reason.as_deref().unwrap_or("no check has ended yet");
            fail(
                APP,
                format!("{what} is out of traffic: {reason}"),
                "start the application, or correct `port` or `check` of its [[instance]]",
            )
        }
        (_, Some(drain), _) => {
            warn(APP, format!("{what} is drained by {}", drain.by), "`lanemesh undrain` puts it back")
        }
        (_, None, Some(reason)) => {
            warn(APP, format!("{what} takes traffic, but its last check failed: {reason}"), "see the application's log")
        }
        (_, None, None) => match &instance.excluded {
            Some(why) => warn(
                APP,
                format!("{what} passes its check, but takes no traffic: {why}"),
                "`lanemesh instances` says more",
            ),
            None => ok(APP, format!("{what} passes its check")),
        },
    }
}

/// Before a start the application may not be there yet: that is worth a word and no more.
async fn asked(config: &Config, instance: &crate::config::Instance) -> Finding {
    let advertised = config.gossip.advertise.map_or(config.gossip.bind.ip(), |addr| addr.ip());
    let host = match (&instance.host, advertised) {
        (Some(host), _) => host.clone(),
        (None, ip) if ip.is_unspecified() => reachable(SocketAddr::new(ip, 0)).to_string(),
        (None, ip) => ip.to_string(),
    };
    let port = instance.port;
    let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let id = InstanceId::new("check").expect("a valid id");
    let what = format!("{} at {authority}", instance.service);
    let target = probe::Target { id, authority, check: instance.check.clone() };
    match probe::once(&target).await {
        Ok(()) if instance.check.kind == CheckKind::None => ok(APP, format!("{what} has no check")),
        Ok(()) => ok(APP, format!("{what} passes its check")),
        Err(reason) => warn(
            APP,
            format!("{what} does not pass its check yet: {reason}"),
            "start it; it takes no traffic before it passes",
        ),
    }
}

/// The group `views`.
pub(super) fn views(live: &Live) -> Vec<Finding> {
    let all = [LOCAL, LANES, REQUESTS, PEERS];
    let (Ok(instances), Ok(outcomes)) = (&live.instances, &live.outcomes) else {
        let why = live.instances.as_ref().err().or(live.outcomes.as_ref().err()).cloned().unwrap_or_default();
        return all.map(|name| skip(name, why.clone())).into();
    };
    let signals = live.signals.as_ref();
    let mut findings = vec![local(live.before.as_ref().unwrap_or(instances), instances, outcomes)];
    findings.extend(match &live.services {
        Ok(services) => lanes(services),
        Err(why) => vec![skip(LANES, why.clone())],
    });
    findings.extend(requests(instances, outcomes, signals.ok()));
    findings.extend(match signals {
        Ok(signals) => peers(signals),
        Err(why) => vec![skip(PEERS, why.clone())],
    });
    findings
}

/// Whether what the mesh has told is not yet, or no longer, what requests are routed by.
pub(super) fn unsettled(live: &Live) -> bool {
    let (Ok(instances), Ok(outcomes)) = (&live.instances, &live.outcomes) else { return false };
    local(instances, instances, outcomes).result != super::finding::Verdict::Ok
}

/// Mesh view and local view: every record that was held at the first look, and is held still, is routed by in that version or a newer
/// one.
fn local(before: &[InstanceInfo], instances: &[InstanceInfo], outcomes: &[OutcomeInfo]) -> Finding {
    let held = |of: &[InstanceInfo], owner: &NodeId, id: &InstanceId| {
        of.iter().any(|instance| instance.record.id == *id && instance.record.owner == *owner)
    };
    let behind = |instance: &InstanceInfo| {
        let (record, id) = (&instance.record, &instance.record.id);
        let seen = outcomes.iter().find(|seen| seen.instance == *id && seen.owner == record.owner);
        match seen {
            None => Some(format!("{id} is announced, and requests do not know it")),
            Some(seen) if seen.record < (record.generation, record.sequence) => {
                Some(format!("{id} is routed by an older record than the mesh has"))
            }
            Some(_) => None,
        }
    };
    let still = before.iter().filter(|instance| held(instances, &instance.record.owner, &instance.record.id));
    let mut wrong: Vec<String> = still.filter_map(behind).collect();
    let gone = outcomes
        .iter()
        .filter(|seen| !held(instances, &seen.owner, &seen.instance) && !held(before, &seen.owner, &seen.instance));
    wrong.extend(gone.map(|seen| format!("{} is withdrawn, and still routed to", seen.instance)));
    if wrong.is_empty() {
        return ok(LOCAL, format!("requests are routed by what the mesh says of {} instances", instances.len()));
    }
    let text = super::output::first_few(wrong.iter(), SHOWN);
    fail(LOCAL, text, "see the sidecar's log for `routing view`; a restart builds the view anew")
}

/// Lanes that users are sent to and nobody serves.
fn lanes(services: &[ServiceInfo]) -> Vec<Finding> {
    let empty = |service: &ServiceInfo| {
        let stable = (Lane::stable(), Default::default());
        let lanes = service.lanes.clone();
        // `stable` takes the rest, whether anybody announces it or not.
        let all = if lanes.contains_key(&stable.0) { lanes } else { lanes.into_iter().chain([stable]).collect() };
        let wanted =
            move |lane: &Lane, size: Option<u16>| lane.as_str() == Lane::STABLE || size.is_some_and(|size| size > 0);
        let off = service.off;
        all.into_iter()
            .filter(|(lane, info)| info.candidates == 0 && wanted(lane, info.size.filter(|_| !off)))
            .map(|(lane, info)| fail(
                LANES,
                format!("lane `{lane}` of `{}` has users and none of its {} instances takes traffic", service.service, info.instances),
                format!("`lanemesh instances --service {} --lane {lane}` says why; `lanemesh rollback {}` empties a canary", service.service, service.service),
            ))
            .collect::<Vec<_>>()
    };
    let found: Vec<Finding> = services.iter().flat_map(empty).collect();
    if !found.is_empty() {
        return found;
    }
    vec![ok(
        LANES,
        match services.len() {
            0 => "nobody announces a service".to_owned(),
            count => format!("every lane with users is served, in {count} services"),
        },
    )]
}

/// Local view and reality: instances in rotation where requests fail, and instances out of it that answer.
fn requests(instances: &[InstanceInfo], outcomes: &[OutcomeInfo], signals: Option<&SignalsReport>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for seen in outcomes {
        let (id, service) = (&seen.instance, &seen.service);
        let failing = seen.attempts >= LEAST && 2 * seen.failures >= seen.attempts;
        let away = matches!(
            seen.breaker,
            BreakerState::Open | BreakerState::HalfOpen | BreakerState::Held | BreakerState::Signalled
        );
        match seen.excluded {
            None if failing || away => {
                let (failures, attempts, breaker) = (seen.failures, seen.attempts, seen.breaker.as_str());
                let met = match attempts {
                    0 => "no request from here met it lately".to_owned(),
                    _ => format!("{failures} of {attempts} requests from here failed"),
                };
                let others = witnesses(signals, service, &seen.owner, id);
                let health = instances.iter().find(|i| i.record.id == *id && i.record.owner == seen.owner);
                let health = health
                    .map_or("", |i| if i.record.health == Health::Passing { ", which passes its check" } else { "" });
                let text = format!(
                    "the mesh has `{id}` of `{service}` in rotation{health}; {met}, breaker {breaker}; {}",
                    said(&others)
                );
                findings.push(fail(REQUESTS, text, cure(others.is_empty(), seen)));
            }
            // One that is drained finishes what it has.
            Some(why @ (Exclusion::Critical | Exclusion::OwnerDown))
                if seen.attempts > seen.failures && seen.in_flight == 0 && is_fresh(seen) =>
            {
                let why = why.as_str();
                findings.push(warn(
                    REQUESTS,
                    format!("the mesh has `{id}` of `{service}` out of rotation ({why}), and it answered requests from here a moment ago"),
                    "if it stays so, its own sidecar's check is stricter than its users: see `lanemesh instances`",
                ));
            }
            _ => {}
        }
    }
    if findings.is_empty() {
        let (hit, of) = (outcomes.iter().filter(|seen| seen.attempts > 0).count(), outcomes.len());
        let sum = outcomes.iter().map(|seen| u64::from(seen.attempts)).sum::<u64>();
        findings.push(ok(
            REQUESTS,
            match sum {
                0 => "no request went through this sidecar lately: nothing to hold the view against".to_owned(),
                sum => format!("{sum} requests of the last seconds at {hit} of {of} instances agree with the view"),
            },
        ));
    }
    findings
}

fn is_fresh(seen: &OutcomeInfo) -> bool {
    seen.answered_ms_ago.is_some_and(|ago| ago < 2_000)
}

/// Other sidecars that say it fails.
fn witnesses(signals: Option<&SignalsReport>, service: &ServiceName, owner: &NodeId, id: &InstanceId) -> Vec<NodeId> {
    let observers = signals.into_iter().flat_map(|signals| &signals.observers);
    let names = |o: &crate::types::Observation| o.service == *service && o.owner == *owner && o.instance == *id;
    observers.filter(|observer| observer.seen.iter().any(names)).map(|observer| observer.observer.clone()).collect()
}

fn said(others: &[NodeId]) -> String {
    match others {
        [] => "no other sidecar says so, if any has asked it lately".to_owned(),
        _ => format!("so say {}", super::output::first_few(others.iter().map(NodeId::as_str), SHOWN)),
    }
}

fn cure(alone: bool, seen: &OutcomeInfo) -> String {
    match alone {
        true => format!(
            "if others reach it, look at the way from here to it (host, port, network policy); `lanemesh route {}` shows who is asked",
            seen.service
        ),
        false => "see the application's log; its check should ask for what its users ask for".to_owned(),
    }
}

/// What peers say, beside what this sidecar believes.
fn peers(signals: &SignalsReport) -> Vec<Finding> {
    let mut findings = Vec::new();
    for observer in &signals.observers {
        if matches!(observer.standing, Standing::AnswersHere | Standing::AccusesMost | Standing::Discredited) {
            let text = format!("{} {}", observer.observer, observer.standing.words());
            findings.push(warn(PEERS, text, format!("run `lanemesh check` beside {}", observer.observer)));
        }
    }
    for doubt in &signals.doubts {
        let (failures, attempts, names) = (
            doubt.failures,
            doubt.attempts,
            super::output::first_few(doubt.observers.iter().map(NodeId::as_str), SHOWN),
        );
        let text = format!(
            "`{}` of `{}` is kept away here because {names} saw {failures} of {attempts} requests fail",
            doubt.instance, doubt.service
        );
        findings.push(warn(PEERS, text, "see the application's log; `lanemesh observe` follows it"));
    }
    if findings.is_empty() {
        findings.push(ok(
            PEERS,
            match signals.observers.len() {
                0 => "no sidecar says that an instance fails".to_owned(),
                1 => "one sidecar sees failures; nothing follows from them here".to_owned(),
                count => format!("{count} sidecars see failures; nothing follows from them here"),
            },
        ));
    }
    findings
}

/// For one connection, and for one request.
const PATIENCE: Duration = Duration::from_secs(3);
/// A service that nobody announces.
const NOBODY: &str = "lanemesh-check";
/// Requests below which nothing is concluded.
const LEAST: u16 = 3;
/// Names in a line.
const SHOWN: usize = 4;
const LISTENS: &str = "proxy.listens";
const REQUEST: &str = "proxy.request";
const APP: &str = "app.check";
const LOCAL: &str = "views.local";
const LANES: &str = "views.lanes";
const REQUESTS: &str = "views.requests";
const PEERS: &str = "views.peers";
