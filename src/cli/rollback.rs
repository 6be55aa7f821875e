//! `lanemesh rollback`.

use http::Method;

use super::{
    Outcome,
    client::{Sidecar, encode},
    shown, values,
};
use crate::{
    admin::RollbackOrder,
    types::{LanePolicy, ServiceName},
};

/// Send everybody to stable, at once, mesh-wide; clears the lists too, requests in flight finish
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Service
    #[arg(value_parser = values::service)]
    service: ServiceName,
    /// Why; kept with the policy
    #[arg(long, default_value = "")]
    reason: String,
    #[command(flatten)]
    sidecar: Sidecar,
}

pub(super) async fn run(args: &Args, json: bool) -> Outcome {
    let path = format!("/v1/rollback/{}", encode(args.service.as_str()));
    let order = RollbackOrder { reason: args.reason.clone() };
    let answer = args.sidecar.client()?.order(Method::POST, &path, &order).await?;
    shown(json, answer, |policy: &LanePolicy| {
        let (epoch, clock) = (policy.version.epoch, policy.version.clock);
        format!("{}: everybody goes to stable (policy {epoch}.{clock}, by {})\n", policy.service, policy.version.author)
    })
}
