//! `lanemesh info`: the asked sidecar itself.

use super::{Outcome, client::Sidecar, output::pairs, shown};
use crate::agent::NodeInfo;

/// Print who the asked sidecar is: addresses, generation, readiness, digest
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    sidecar: Sidecar,
}

pub(super) async fn run(args: &Args, json: bool) -> Outcome {
    let answer = args.sidecar.client()?.get("/v1/info").await?;
    shown(json, answer, render)
}

pub(super) fn render(info: &NodeInfo) -> String {
    let tcp_ports: Vec<String> = info.tcp_ports.iter().map(|(service, addr)| format!("{service} {addr}")).collect();
    let ports: Vec<String> = info.ports.iter().map(|(service, addr)| format!("{service} {addr}")).collect();
    let ready = match info.waiting_for.is_empty() {
        true => "yes".to_owned(),
        false => format!("no, waiting for {}", info.waiting_for.join(", ")),
    };
    pairs(&[
        ("node", info.node.to_string()),
        ("mesh", info.mesh.clone()),
        ("ready", ready),
        ("version", info.version.clone()),
        ("generation", format!("{}.{}", info.generation, info.incarnation)),
        ("gossip", info.gossip.to_string()),
        ("proxy", info.proxy.to_string()),
        ("ports", ports.join(", ")),
        ("TCP ports", tcp_ports.join(", ")),
        ("admin", info.admin.to_string()),
        ("token file", info.token_file.clone()),
        ("pid", info.pid.to_string()),
        ("members alive", info.members.to_string()),
        ("connections", info.connections.to_string()),
        ("digest", info.digest.clone()),
        ("snapshot", info.snapshot.to_string()),
    ])
}
