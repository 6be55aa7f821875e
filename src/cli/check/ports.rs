//! Ports: free before a start, held by the sidecar afterwards, and reachable by nobody who should not reach them.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpListener, UdpSocket},
};

use super::{
    Live, Loaded,
    finding::{Finding, fail, ok, skip, warn},
    holder::{Kind, holder},
};
use crate::{
    agent::NodeInfo,
    config::{self, Config},
    types::ServiceName,
};

/// One port that a sidecar binds.
struct Port {
    check: &'static str,
    key: String,
    kind: Kind,
    addr: SocketAddr,
}

/// The group `ports`: of the running sidecar where there is one, else of the configuration.
pub(super) fn ports(loaded: &Loaded, live: &Live) -> Vec<Finding> {
    let mut findings = match (&live.info, loaded) {
        (Ok(_), _) if !live.here => ALL.iter().map(|name| skip(name, "the sidecar runs on another machine")).collect(),
        (Ok(info), _) => told(of_sidecar(info).iter().map(|port| held(port, info)).collect()),
        (Err(_), Loaded::Good { config, .. }) => told(of_config(config).iter().map(free).collect()),
        (Err(_), _) => ALL.iter().map(|name| skip(name, loaded.why_not())).collect(),
    };
    findings.push(exposure(loaded, live));
    findings
}

/// Ports that a sidecar with this configuration can't bind now, and what to do about each; nothing about ports of this process.
pub(in crate::cli) fn unbindable(config: &Config) -> Option<String> {
    let others = |port: &Port| holder(port.kind, port.addr).is_none_or(|holder| holder.pid != std::process::id());
    let lines: Vec<String> = of_config(config)
        .iter()
        .filter(|port| others(port))
        .map(free)
        .filter_map(|Finding { seen, cure, .. }| cure.map(|cure| format!("{seen}: {cure}")))
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Groups without a port of theirs are said to have none.
fn told(mut findings: Vec<Finding>) -> Vec<Finding> {
    for name in ALL {
        if !findings.iter().any(|finding| finding.name == *name) {
            findings.push(ok(name, "none configured"));
        }
    }
    findings.sort_by_key(|finding| ALL.iter().position(|name| *name == finding.name));
    findings
}

fn of_config(config: &Config) -> Vec<Port> {
    let port = |check, key: &str, kind, addr| Port { check, key: key.to_owned(), kind, addr };
    let mut ports = vec![
        port(MESH, "gossip.bind", Kind::Udp, config.gossip.bind),
        port(PROXY, "proxy.bind", Kind::Tcp, config.proxy.bind),
        port(ADMIN, "admin.bind", Kind::Tcp, config.admin.bind),
    ];
    let more = |check, table: &str, services: &std::collections::BTreeMap<ServiceName, SocketAddr>| {
        let of =
            |(service, addr): (&ServiceName, &SocketAddr)| port(check, &format!("{table}.{service}"), Kind::Tcp, *addr);
        services.iter().map(of).collect::<Vec<_>>()
    };
    ports.extend(more(SERVICES, "proxy.ports", &config.proxy.ports));
    ports.extend(more(TCP, "proxy.tcp_ports", &config.proxy.tcp_ports));
    ports
}

fn of_sidecar(info: &NodeInfo) -> Vec<Port> {
    let port = |check, key: String, kind, addr| Port { check, key, kind, addr };
    let mut ports = vec![
        port(MESH, "gossip.bind".into(), Kind::Udp, info.gossip),
        port(PROXY, "proxy.bind".into(), Kind::Tcp, info.proxy),
        port(ADMIN, "admin.bind".into(), Kind::Tcp, info.admin),
    ];
    ports.extend(
        info.ports.iter().map(|(service, addr)| port(SERVICES, format!("proxy.ports.{service}"), Kind::Tcp, *addr)),
    );
    ports.extend(
        info.tcp_ports.iter().map(|(service, addr)| port(TCP, format!("proxy.tcp_ports.{service}"), Kind::Tcp, *addr)),
    );
    ports
}

/// Tries to bind, without the option by which the proxy's own threads share a port.
fn bind(port: &Port) -> std::io::Result<()> {
    match port.kind {
        Kind::Tcp => TcpListener::bind(port.addr).map(drop),
        Kind::Udp => UdpSocket::bind(port.addr).map(drop),
    }
}

/// Before a start it must be free.
fn free(port: &Port) -> Finding {
    let Port { check, key, addr, kind } = port;
    let what = format!("{key} {addr}{}", if *kind == Kind::Udp { "/udp" } else { "" });
    match bind(port) {
        Ok(()) if addr.port() == 0 => ok(check, format!("{what}: the system will choose a port")),
        Ok(()) => ok(check, format!("{what} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let by = holder(*kind, *addr).map_or("another process".to_owned(), |holder| holder.to_string());
            fail(check, format!("{what} is taken by {by}"), format!("stop it, or set {key} to another port"))
        }
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
            fail(check, format!("{what} is no address of this machine"), format!("set {key} to one (0.0.0.0 for all)"))
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            fail(check, format!("{what} may not be bound: {error}"), format!("set {key} to a port above 1023"))
        }
        Err(error) => fail(check, format!("{what} can't be bound: {error}"), format!("set {key} to another address")),
    }
}

/// While the sidecar runs it must be held, by the sidecar.
fn held(port: &Port, info: &NodeInfo) -> Finding {
    let Port { check, key, addr, kind } = port;
    let what = format!("{key} {addr}{}", if *kind == Kind::Udp { "/udp" } else { "" });
    match bind(port) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => match holder(*kind, *addr) {
            Some(holder) if holder.pid != info.pid => fail(
                check,
                format!("{what} is held by {holder}, not by the sidecar (pid {})", info.pid),
                "stop it, and restart the sidecar",
            ),
            _ => ok(check, format!("{what} is held by the sidecar (pid {})", info.pid)),
        },
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
            skip(check, format!("{addr} is no address of this machine: it is what peers use"))
        }
        Err(error) => skip(check, format!("{what} can't be tried: {error}")),
        Ok(()) => fail(check, format!("the sidecar says that it holds {what}, and nobody does"), "restart the sidecar"),
    }
}

fn exposure(loaded: &Loaded, live: &Live) -> Finding {
    let sentences = match (&live.info, loaded) {
        (_, Loaded::Good { config, .. }) => config::exposure(config),
        (Ok(info), _) => of_sidecar(info).iter().filter(|port| port.check != MESH).filter_map(open).collect(),
        (Err(_), _) => return skip(EXPOSURE, loaded.why_not()),
    };
    match sentences[..] {
        [] => ok(EXPOSURE, "proxy and admin ports are on loopback"),
        _ => warn(EXPOSURE, sentences.join("; "), "bind them to 127.0.0.1, unless a network policy keeps others away"),
    }
}

fn open(port: &Port) -> Option<String> {
    let Port { key, addr, .. } = port;
    (!addr.ip().to_canonical().is_loopback()).then(|| format!("{key}: {addr} is not loopback: others reach it"))
}

const MESH: &str = "ports.mesh";
const PROXY: &str = "ports.proxy";
const ADMIN: &str = "ports.admin";
const SERVICES: &str = "ports.services";
const TCP: &str = "ports.tcp";
const EXPOSURE: &str = "ports.exposure";
/// Those that are bound, in order.
const ALL: &[&str] = &[MESH, PROXY, ADMIN, SERVICES, TCP];
