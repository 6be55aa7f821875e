//! What is allowed but deserves a second look.

use std::time::Duration;

use crate::types::Protocol;

use super::{
    CheckKind, Config,
    values::{format_duration, request_id_in},
};

/// Sentences for the log at start and for `config check`; none of them keeps the sidecar from starting.
pub fn warnings(config: &Config) -> Vec<String> {
    [exposure(config), oddities(config)].concat()
}

/// Ports that others than this host's processes can reach, of those that have no credentials of their own.
pub fn exposure(config: &Config) -> Vec<String> {
    let mut out = Vec::new();
    let ports = config.proxy.ports.iter().map(|(service, address)| (format!("proxy.ports.{service}"), address));
    let tcp = config.proxy.tcp_ports.iter().map(|(service, address)| (format!("proxy.tcp_ports.{service}"), address));
    for (key, address) in std::iter::once(("proxy.bind".to_owned(), &config.proxy.bind)).chain(ports).chain(tcp) {
        if !address.ip().to_canonical().is_loopback() {
            out.push(format!("{key}: {address} is not loopback: whoever reaches it reaches every service of the mesh, without credentials"));
        }
    }
    if !config.admin.bind.ip().to_canonical().is_loopback() {
        out.push(format!(
            "admin.bind: {} is not loopback: `/health`, `/ready` and `/metrics` are open to whoever reaches it",
            config.admin.bind
        ));
    }
    out
}

/// Everything else.
pub fn oddities(config: &Config) -> Vec<String> {
    let mut out = Vec::new();
    if config.gossip.advertise.is_some_and(|a| a.ip().to_canonical().is_loopback()) {
        out.push("gossip.advertise: a loopback address reaches only sidecars on this host".to_owned());
    }
    for (service, rule) in &config.services {
        if let Some(header) = rule.route_key.as_ref().and_then(request_id_in) {
            out.push(format!(
                "service.{service}.route_key: `{header}` changes with every request, so nobody stays with an instance"
            ));
        }
    }
    for (index, instance) in config.instances.iter().enumerate() {
        if matches!(instance.check.kind, CheckKind::Http(_)) && instance.protocol != Protocol::Http1 {
            out.push(format!("instance.{index}.check: the check speaks HTTP/1.1, which an application of this protocol may refuse; `tcp` works with every one"));
        }
        if instance.weight == 0 {
            out.push(format!("instance.{index}.weight: 0 takes no new traffic"));
        }
    }
    let end = config.shutdown.spread + config.shutdown.limit;
    if end > Duration::from_secs(30) {
        let end = format_duration(end);
        out.push(format!("shutdown: up to {end} until exit; Kubernetes kills after 30s unless terminationGracePeriodSeconds is raised"));
    }
    out
}
