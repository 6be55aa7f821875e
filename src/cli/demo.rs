//! `lanemesh demo`.

use std::process::ExitCode;

use super::{Exit, Failure};
use crate::demo::Options;

/// Start a small mesh of real processes here, put it under load and through faults, and measure what it claims
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Leave the mesh running at the end and print what to try
    #[arg(long)]
    keep: bool,
}

pub(super) fn run(args: &Args, json: bool) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Failed, format!("no runtime: {error}")))?;
    Ok(runtime.block_on(crate::demo::run(Options { keep: args.keep, json }))?)
}

/// The application in each pod of the demo
#[derive(Debug, clap::Args)]
pub(super) struct AppArgs {
    /// Address to bind
    #[arg(long)]
    listen: std::net::SocketAddr,
    /// Whose application it is
    #[arg(long)]
    instance: String,
    /// Its version
    #[arg(long)]
    version: String,
    /// End when the process that started this one ends
    #[arg(long, value_name = "PID")]
    end_with_parent: Option<u32>,
}

pub(super) fn run_app(args: &AppArgs) -> Result<ExitCode, Failure> {
    if args.end_with_parent.is_some_and(|parent| !crate::demo::end_with_parent(parent)) {
        return Err(Failure::new(Exit::Failed, "the process that was to start this one has ended"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Failed, format!("no runtime: {error}")))?;
    runtime.block_on(crate::demo::serve_app(args.listen, &args.instance, &args.version))?;
    Ok(ExitCode::SUCCESS)
}
