//! `lanemesh ring`: how the keys of a service spread over its instances.

use super::{
    Outcome,
    client::{Sidecar, encode},
    shown, values,
};
use crate::{routing::RingReport, types::ServiceName};

/// Print the rings of a service: points and share of keys of each instance, lane by lane
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Service
    #[arg(value_parser = values::service)]
    service: ServiceName,
    #[command(flatten)]
    sidecar: Sidecar,
}

pub(super) async fn run(args: &Args, json: bool) -> Outcome {
    let answer = args.sidecar.client()?.get(&format!("/v1/ring/{}", encode(args.service.as_str()))).await?;
    shown(json, answer, |report: &RingReport| {
        format!("{}\n", crate::client::clean_lines(report.to_string().trim_end()))
    })
}
