//! `lanemesh leave`.

use http::Method;
use serde_json::json;

use super::{Outcome, client::Sidecar, output};
use crate::admin::Nothing;

/// Let the asked sidecar say goodbye to the mesh; returns when peers were told
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    sidecar: Sidecar,
}

pub(super) async fn run(args: &Args, json: bool) -> Outcome {
    let mut client = args.sidecar.client()?;
    client.order(Method::POST, "/v1/leave", &Nothing {}).await?;
    let address = client.address();
    Ok(if json {
        output::json(&json!({ "left": true, "admin": address }))
    } else {
        format!("the sidecar at {address} has left the mesh; its peers know\n")
    })
}
