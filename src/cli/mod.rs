//! Floor 6: the command line. One verb, one file; every verb turns arguments into one text for standard output, or a
//! [`Failure`].
//!
//! Invariants: a command that asks a sidecar ends within 5 s (unless told to wait; `check` asks many things); what is printed is complete or, when the
//! reader goes away, quietly cut; `--json` prints the sidecar's answer as it came, keys in order; exit codes are those in
//! `--help`. Nothing from a peer reaches the terminal with control characters in it.
//!
//! Not here: what orders mean (the agent), how a decision is worded (`routing::Explanation`), running a sidecar (`app`).

mod ca;
mod check;
mod config;
mod demo;
mod drain;
mod info;
mod instances;
mod leave;
mod members;
mod observe;
mod output;
mod policy;
mod ring;
mod rollback;
mod route;
mod run;
mod served;
mod services;
#[cfg(test)]
mod tests;
mod values;

use std::{future::Future, io, process::ExitCode};

use clap::{Parser, Subcommand, builder::FalseyValueParser};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) use crate::client::{self, Exit, Failure};

/// A sidecar mesh without registry or leader: gossip membership over QUIC, stable lanes, consistent-hash routing.
#[derive(Debug, Parser)]
#[command(name = "lanemesh", version, max_term_width = 110, after_help = AFTER_HELP, subcommand_required = true)]
struct Cli {
    /// JSON instead of text (`run` logs JSON) [env: LANEMESH_JSON]
    #[arg(long, global = true, env = "LANEMESH_JSON", hide_env = true, value_parser = FalseyValueParser::new())]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    #[command(flatten)]
    Sidecar(Ask),
    Check(check::Args),
    Ca(ca::Args),
    Config(config::Args),
    Demo(demo::Args),
    #[command(hide = true)]
    DemoApp(demo::AppArgs),
}

/// Commands that ask a running sidecar.
#[derive(Debug, Subcommand)]
enum Ask {
    Members(members::Args),
    Services(services::Args),
    Instances(instances::Args),
    Route(route::Args),
    Ring(ring::Args),
    Observe(observe::Args),
    Policy(policy::Args),
    Rollback(rollback::Args),
    Drain(drain::Args),
    Undrain(drain::UndrainArgs),
    Leave(leave::Args),
    Info(info::Args),
}

/// What a command prints, or why it failed.
type Outcome = Result<String, Failure>;

/// The whole program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(stop) if stop.use_stderr() && wants_json() => {
            let text = stop.to_string();
            let failure = Failure::new(Exit::Usage, text.trim().trim_start_matches("error: "));
            let _ = output::write_all(io::stderr(), &failure.render(true));
            return failure.exit.into();
        }
        Err(stop) => {
            // Help and version as well; a reader that went away is no error.
            let _ = stop.print();
            return ExitCode::from(u8::try_from(stop.exit_code()).unwrap_or(Exit::Usage as u8));
        }
    };
    let json = cli.json;
    match execute(cli) {
        Ok(code) => code,
        Err(failure) => {
            let _ = crate::cli::output::write_all(io::stderr(), &failure.render(json));
            failure.exit.into()
        }
    }
}

/// Whether JSON was asked for, of a command line that makes no sense.
fn wants_json() -> bool {
    let variable =
        std::env::var("LANEMESH_JSON").is_ok_and(|value| !matches!(&*value, "" | "0" | "false" | "no" | "off"));
    variable || std::env::args_os().any(|argument| argument == "--json")
}

fn execute(cli: Cli) -> Result<ExitCode, Failure> {
    let json = cli.json;
    match cli.command {
        Command::Run(args) => run::run(&args, json),
        Command::Demo(args) => demo::run(&args, json),
        Command::DemoApp(args) => demo::run_app(&args),
        Command::Config(args) => printed(config::run(&args, json)?),
        Command::Check(args) => printed(soon(check::run(&args, json))?),
        Command::Ca(args) => printed((ca::run(&args, json)?, ExitCode::SUCCESS)),
        Command::Sidecar(command) => printed((soon(ask(&command, json))?, ExitCode::SUCCESS)),
    }
}

async fn ask(command: &Ask, json: bool) -> Outcome {
    match command {
        Ask::Members(args) => members::run(args, json).await,
        Ask::Services(args) => services::run(args, json).await,
        Ask::Instances(args) => instances::run(args, json).await,
        Ask::Route(args) => route::run(args, json).await,
        Ask::Ring(args) => ring::run(args, json).await,
        Ask::Observe(args) => observe::run(args, json).await,
        Ask::Policy(args) => policy::run(args, json).await,
        Ask::Rollback(args) => rollback::run(args, json).await,
        Ask::Drain(args) => drain::run(args, json).await,
        Ask::Undrain(args) => drain::undrain(args, json).await,
        Ask::Leave(args) => leave::run(args, json).await,
        Ask::Info(args) => info::run(args, json).await,
    }
}

fn printed((text, code): (String, ExitCode)) -> Result<ExitCode, Failure> {
    match output::write_all(io::stdout().lock(), &text) {
        Ok(()) => Ok(code),
        Err(error) => Err(Failure::new(Exit::Failed, format!("the output could not be written: {error}"))),
    }
}

/// Runs a command that talks to a sidecar: one thread is enough.
fn soon<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Failed, format!("no runtime: {error}")))?;
    let outcome = runtime.block_on(command);
    // A name lookup may still hang in its thread; the command does not wait for it.
    runtime.shutdown_background();
    outcome
}

/// The answer as it came, or in words.
fn shown<T: DeserializeOwned>(json: bool, answer: Value, words: impl FnOnce(&T) -> String) -> Outcome {
    if json { Ok(output::json(&answer)) } else { Ok(words(&client::parse(answer)?)) }
}

const AFTER_HELP: &str = "\
Exit codes:
  0  done
  1  refused or failed; the message says why. `check`: something failed
  2  the command line makes no sense
  3  no sidecar at the admin address, or it did not answer in time. `check`: nothing could be looked at
  4  the sidecar knows no such service, instance or policy
  5  not allowed: the write token is missing, unreadable or wrong

Environment:
  LANEMESH_ADMIN       admin address of the sidecar to ask (127.0.0.1:15000)
  LANEMESH_TOKEN       write token; LANEMESH_TOKEN_FILE: file that holds it
  LANEMESH_JSON        1: JSON output
  LANEMESH_CONFIG      configuration file of `run`
  LANEMESH_*           keys of the configuration: see `lanemesh config reference`

Commands that ask a sidecar end within 5 s. Errors go to standard error,
with --json as one line {\"error\", \"cure\", \"exit\"}.";
