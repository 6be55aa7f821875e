//! `lanemesh observe`: what sidecars say of instances that fail; and subjects whose requests every sidecar logs for a while.

use std::{fmt::Write, time::Duration};

use http::Method;

use super::{
    Outcome,
    client::{Sidecar, parse},
    output::{self, clean},
    values,
};
use crate::{
    agent::NodeDone,
    routing::SignalsReport,
    telemetry::{Observe, ObservedSubject},
};

/// Show what sidecars see fail: failure signals of the last seconds, who is believed, and which instances are kept away for them; or have
/// every request of a subject logged
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Log every request of this subject, at every sidecar, whatever the sample says
    #[arg(long, allow_hyphen_values = true)]
    subject: Option<String>,
    /// For how long, at most 1h; 0s ends it
    #[arg(long = "for", value_name = "TIME", default_value = "10m", requires = "subject", value_parser = values::span)]
    lasts: Duration,
    /// Who wants it; goes to the sidecars' logs
    #[arg(long, default_value = "operator", hide_default_value = true, requires = "subject")]
    by: String,
    #[command(flatten)]
    sidecar: Sidecar,
}

pub(super) async fn run(args: &Args, json: bool) -> Outcome {
    let mut client = args.sidecar.client()?;
    if let Some(subject) = &args.subject {
        let for_ms = u64::try_from(args.lasts.as_millis()).unwrap_or(u64::MAX);
        let order = Observe { subject: subject.clone(), for_ms, by: args.by.clone() };
        let answer = client.order(Method::POST, "/v1/observe", &order).await?;
        return super::shown(json, answer, |done: &Vec<NodeDone>| told(&order, done));
    }
    let signals = client.get("/v1/signals").await?;
    if json {
        return Ok(output::json(&signals));
    }
    let report: SignalsReport = parse(signals)?;
    let observed: Vec<ObservedSubject> = parse(client.get("/v1/observe").await?)?;
    let mut text = format!("{}\n", crate::client::clean_lines(report.to_string().trim_end()));
    for ObservedSubject { subject, left_ms, by } in observed {
        let left = humantime::format_duration(Duration::from_secs(left_ms.div_ceil(1000)));
        // Writing to a text cannot fail.
        let _ = writeln!(text, "observed   {}, for {left}, by {}", clean(&subject), clean(&by));
    }
    Ok(text)
}

fn told(order: &Observe, done: &[NodeDone]) -> String {
    let well = done.iter().filter(|node| node.fault.is_none()).count();
    let lasts = humantime::format_duration(Duration::from_millis(order.for_ms));
    let what = match order.for_ms {
        0 => "no longer observed".to_owned(),
        _ => format!("observed for {lasts}: look into the access logs for user_id"),
    };
    let mut text = format!("{}: {what}; {well} of {} nodes know\n", clean(&order.subject), done.len());
    for NodeDone { node, fault } in done {
        if let Some(fault) = fault {
            let _ = writeln!(text, "{node}: {}", clean(fault));
        }
    }
    text
}
