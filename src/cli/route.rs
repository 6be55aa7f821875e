//! `lanemesh route`: where a request goes, and why; on one node, or asked of every node.

use std::fmt::Write;

use super::{
    Outcome,
    client::{Sidecar, encode, with_query},
    output::table,
    shown, values,
};
use crate::{
    routing::{Explanation, MeshAnswer, NodeAnswer},
    types::{Lane, ServiceName},
};

/// Explain where a request goes: bucket, lane and why, candidates, who was left out and why, failover order
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Service
    #[arg(value_parser = values::service)]
    service: ServiceName,
    /// What is hashed on the ring [default: read from the headers, as the service's rules say]
    #[arg(long, allow_hyphen_values = true, required_unless_present_any = ["headers", "subject", "anonymous"])]
    key: Option<String>,
    /// Who is bucketed [default: read from the headers, else the key]
    #[arg(long, conflicts_with = "anonymous", allow_hyphen_values = true)]
    subject: Option<String>,
    /// A request without a subject
    #[arg(long)]
    anonymous: bool,
    /// Lane that the request names explicitly
    #[arg(long)]
    lane: Option<Lane>,
    /// A header of the request, for match rules and for who it is from; may be repeated
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = values::header)]
    headers: Vec<String>,
    /// HTTP method of the request
    #[arg(long, default_value = "GET")]
    method: String,
    /// Path of the request, for match rules
    #[arg(long, default_value = "/")]
    path: String,
    /// Ask every node, and show in what their answers differ
    #[arg(long)]
    mesh: bool,
    #[command(flatten)]
    sidecar: Sidecar,
}

pub(super) async fn run(args: &Args, json: bool) -> Outcome {
    let subject = if args.anonymous { Some("") } else { args.subject.as_deref() };
    let headers = args.headers.join("\n");
    let query = [
        ("key", args.key.as_deref()),
        ("subject", subject),
        ("lane", args.lane.as_ref().map(Lane::as_str)),
        ("method", Some(args.method.as_str())),
        ("path", Some(args.path.as_str())),
        ("headers", Some(headers.as_str()).filter(|text| !text.is_empty())),
    ];
    let page = if args.mesh { "mesh-route" } else { "route" };
    let path = with_query(&format!("/v1/{page}/{}", encode(args.service.as_str())), &query);
    let answer = args.sidecar.client()?.get(&path).await?;
    match args.mesh {
        true => shown(json, answer, mesh),
        false => shown(json, answer, |explanation: &Explanation| words(explanation)),
    }
}

fn words(explanation: &Explanation) -> String {
    format!("{}\n", crate::client::clean_lines(explanation.to_string().trim_end()))
}

/// The answer of the node that was asked, every node's in a line, and what they differ in.
fn mesh(answer: &MeshAnswer) -> String {
    let own = answer.answers.iter().find(|node| node.node == answer.here).and_then(|node| node.explanation.as_ref());
    let mut text = own.map_or_else(String::new, |own| words(own) + "\n");
    let rows = answer.answers.iter().map(|node| row(node, node.node == answer.here)).collect();
    text += &table(&["NODE", "LANE", "SERVED BY", "INSTANCE", "POLICY", "SNAPSHOT", "ANSWER"], rows, "no answers");
    text.push('\n');
    let mut differ = 0;
    let mut silent = 0;
    for NodeAnswer { node, fault, differences, .. } in &answer.answers {
        silent += usize::from(fault.is_some());
        differ += usize::from(!differences.is_empty());
        for line in fault.iter().chain(differences) {
            // Writing to a text cannot fail.
            let _ = writeln!(text, "{node}: {}", super::output::clean(line));
        }
    }
    let same = answer.answers.len() - differ - silent;
    let _ = match (differ, silent) {
        (0, 0) => writeln!(text, "all {same} nodes answer the same"),
        _ => writeln!(text, "{same} answer as {}, {differ} differ, {silent} did not answer", answer.here),
    };
    text
}

fn row(answer: &NodeAnswer, own: bool) -> Vec<String> {
    let NodeAnswer { node, explanation, differences, .. } = answer;
    let mut row = vec![node.to_string()];
    let Some(explanation) = explanation else {
        row.extend((0..5).map(|_| String::new()));
        row.push("none".to_owned());
        return row;
    };
    let policy = explanation.policy.as_ref();
    row.push(explanation.lane.to_string());
    row.push(explanation.served_lane.as_ref().map_or_else(|| "nobody".to_owned(), Lane::to_string));
    row.push(explanation.instance.as_ref().map_or_else(|| "none".to_owned(), |target| target.id.to_string()));
    row.push(policy.map_or_else(|| "none".to_owned(), |version| format!("{}.{}", version.epoch, version.clock)));
    row.push(explanation.snapshot_digest.clone());
    row.push(match differences.is_empty() {
        _ if own => "asked here".to_owned(),
        true => "same".to_owned(),
        false => "differs".to_owned(),
    });
    row
}
