//! `lanemesh route`: where a key goes, and why.

use super::{
    Outcome,
    client::{Sidecar, encode, with_query},
    shown, values,
};
use crate::{
    routing::Explanation,
    types::{Lane, ServiceName},
};

/// Explain where a key goes: bucket, lane and why, candidates, who was left out and why, failover order
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Service
    #[arg(value_parser = values::service)]
    service: ServiceName,
    /// What is hashed on the ring
    #[arg(long, allow_hyphen_values = true)]
    key: String,
    /// Who is bucketed [default: the key]
    #[arg(long, conflicts_with = "anonymous", allow_hyphen_values = true)]
    subject: Option<String>,
    /// A request without a subject
    #[arg(long)]
    anonymous: bool,
    /// Lane that the request names explicitly
    #[arg(long)]
    lane: Option<Lane>,
    /// HTTP method of the request
    #[arg(long, default_value = "GET")]
    method: String,
    #[command(flatten)]
    sidecar: Sidecar,
}

pub(super) async fn run(args: &Args, json: bool) -> Outcome {
    let subject = if args.anonymous { Some("") } else { args.subject.as_deref() };
    let query = [
        ("key", Some(args.key.as_str())),
        ("subject", subject),
        ("lane", args.lane.as_ref().map(Lane::as_str)),
        ("method", Some(args.method.as_str())),
    ];
    let path = with_query(&format!("/v1/route/{}", encode(args.service.as_str())), &query);
    let answer = args.sidecar.client()?.get(&path).await?;
    shown(json, answer, |explanation: &Explanation| {
        format!("{}\n", crate::client::clean_lines(explanation.to_string().trim_end()))
    })
}
