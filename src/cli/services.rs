//! `lanemesh services`.

use super::{
    Outcome,
    client::Sidecar,
    output::{share, table},
    shown,
};
use crate::admin::{LaneInfo, ServiceInfo};

/// List the services that requests can go to: lanes, ready instances, policy
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    sidecar: Sidecar,
}

pub(super) async fn run(args: &Args, json: bool) -> Outcome {
    let answer = args.sidecar.client()?.get("/v1/services").await?;
    shown(json, answer, |services: &Vec<ServiceInfo>| render(services))
}

pub(super) fn render(services: &[ServiceInfo]) -> String {
    let lane = |(name, lane): (&crate::types::Lane, &LaneInfo)| {
        let size = lane.size.map(|size| format!(" ({})", share(size))).unwrap_or_default();
        format!("{name} {}/{}{size}", lane.candidates, lane.instances)
    };
    let row = |info: &ServiceInfo| {
        let lanes: Vec<String> = info.lanes.iter().map(lane).collect();
        let policy = match (&info.policy, info.off) {
            (None, _) => "none".to_owned(),
            (Some(version), false) => format!("{}.{}", version.epoch, version.clock),
            (Some(version), true) => format!("{}.{}, off", version.epoch, version.clock),
        };
        vec![info.service.to_string(), format!("{}/{}", info.candidates, info.instances), lanes.join(", "), policy]
    };
    table(&["SERVICE", "READY", "LANES", "POLICY"], services.iter().map(row).collect(), "no services")
}
