//! `lanemesh drain` and `undrain`: instances of the asked sidecar out of rotation and back.

use std::time::Duration;

use http::Method;
use tokio::time::{Instant, sleep};

use super::{Exit, Failure, Outcome, client::Sidecar, shown};
use crate::{
    admin::{DrainAnswer, DrainOrder, UndrainOrder},
    config::parse_duration,
    types::InstanceId,
};

/// Take instances of the asked sidecar out of rotation; requests in flight finish
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Instance ids; all of the sidecar when none is given
    ids: Vec<InstanceId>,
    /// Why; everybody sees it
    #[arg(long, default_value = "")]
    reason: String,
    /// Who; everybody sees it [default: your user name]
    #[arg(long)]
    by: Option<String>,
    /// Refuse when fewer than N other ready instances would be left in a lane
    #[arg(long, value_name = "N")]
    min_ready: Option<u32>,
    /// With --min-ready: wait until enough others are ready, at most this long [default: 30s]
    #[arg(
        long,
        value_name = "DURATION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "30s",
        value_parser = parse_duration,
        requires = "min_ready"
    )]
    wait: Option<Duration>,
    #[command(flatten)]
    sidecar: Sidecar,
}

/// Put drained instances of the asked sidecar back into rotation
#[derive(Debug, clap::Args)]
pub(super) struct UndrainArgs {
    /// Instance ids; all of the sidecar when none is given
    ids: Vec<InstanceId>,
    #[command(flatten)]
    sidecar: Sidecar,
}

pub(super) async fn run(args: &Args, json: bool) -> Outcome {
    let order = DrainOrder {
        ids: args.ids.clone(),
        reason: args.reason.clone(),
        by: args.by.clone().unwrap_or_else(user),
        min_ready: args.min_ready,
    };
    let mut client = args.sidecar.client()?;
    let until = args.wait.map(|wait| Instant::now() + wait);
    let answer = loop {
        let again = Instant::now() + RETRY;
        match client.order(Method::POST, "/v1/drain", &order).await {
            // Refused for now; the replacement may still become ready.
            Err(Failure { exit: Exit::Failed, .. }) if until.is_some_and(|until| again < until) => {
                sleep(RETRY).await;
                client.renew();
            }
            Err(Failure { exit: Exit::Failed, error, cure }) if until.is_some() => {
                let error = format!("{error} (waited {})", humantime::format_duration(args.wait.unwrap_or_default()));
                return Err(Failure { exit: Exit::Failed, error, cure });
            }
            other => break other?,
        }
    };
    shown(json, answer, |answer: &DrainAnswer| told(answer, "drained"))
}

pub(super) async fn undrain(args: &UndrainArgs, json: bool) -> Outcome {
    let order = UndrainOrder { ids: args.ids.clone() };
    let answer = args.sidecar.client()?.order(Method::POST, "/v1/undrain", &order).await?;
    shown(json, answer, |answer: &DrainAnswer| told(answer, "back in rotation"))
}

fn told(answer: &DrainAnswer, what: &str) -> String {
    match answer.ids.is_empty() {
        true => "nothing to change\n".to_owned(),
        false => answer.ids.iter().map(|id| format!("{id} {what}\n")).collect(),
    }
}

/// Who types this, as far as the environment tells.
fn user() -> String {
    let named = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    named.filter(|name| !name.is_empty()).unwrap_or_else(|| "operator".to_owned())
}

/// Between two tries of a drain that was refused.
const RETRY: Duration = Duration::from_millis(500);
