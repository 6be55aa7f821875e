//! `lanemesh rollback`.

use http::Method;

use super::{
    Outcome,
    client::{Sidecar, encode},
    served, shown, values,
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
    let mut client = args.sidecar.client()?;
    let answer = client.order(Method::POST, &path, &order).await?;
    // The rollback is done; what can't be looked at now takes nothing from that.
    let instances = if json { None } else { served::instances(&client, &args.service).await.ok() };
    shown(json, answer, |policy: &LanePolicy| {
        let (epoch, clock, author) = (policy.version.epoch, policy.version.clock, &policy.version.author);
        let version = format!("policy {epoch}.{clock}, by {author}");
        match instances.and_then(|instances| served::no_stable(policy, &instances)) {
            None => format!("{}: everybody goes to stable ({version})\n", policy.service),
            Some(why) => format!("{}: everybody is sent to stable ({version}), but {why}", policy.service),
        }
    })
}
