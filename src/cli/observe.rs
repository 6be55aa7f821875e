//! `lanemesh observe`: what sidecars say of instances that fail.

use super::{Outcome, client::Sidecar, shown};
use crate::routing::SignalsReport;

/// Show what sidecars see fail: failure signals of the last seconds, who is believed, and which instances are kept away for them
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    sidecar: Sidecar,
}

pub(super) async fn run(args: &Args, json: bool) -> Outcome {
    let answer = args.sidecar.client()?.get("/v1/signals").await?;
    shown(json, answer, |report: &SignalsReport| {
        format!("{}\n", crate::client::clean_lines(report.to_string().trim_end()))
    })
}
