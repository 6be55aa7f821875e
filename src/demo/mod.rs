//! Floor 6: `lanemesh demo`. Real processes of this binary on loopback, real traffic of 2,000 users, real faults; every line
//! of the summary is measured.
//!
//! `mesh` starts and kills processes, `place` is where their files are, `load` is the users, `story` the acts and what each must show, `screen` what people see
//! meanwhile, `app` the small application in each pod. Not here: anything that a user's own mesh would not do as well.

mod app;
#[expect(clippy::disallowed_methods, reason = "the demo measures what its users see")]
mod load;
#[expect(clippy::disallowed_methods, reason = "the demo measures what its users see")]
mod mesh;
mod place;
#[expect(clippy::disallowed_methods, reason = "the demo measures what its users see")]
mod screen;
#[expect(clippy::disallowed_methods, reason = "the demo measures what its users see")]
mod story;

use std::process::ExitCode;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

pub use app::serve as serve_app;

use mesh::Mesh;
use screen::Screen;

/// What was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Leave the mesh running at the end, until Ctrl-C, and print what to try.
    pub keep: bool,
    /// Print the summary as JSON.
    pub json: bool,
}

/// The signals that end a demo: Ctrl-C, SIGTERM, and the terminal is gone.
struct ToldToEnd([Signal; 3]);

impl ToldToEnd {
    /// From here on these signals no longer kill the process: before it has made anything that would be left behind.
    fn listen() -> Result<Self> {
        let caught = |kind| signal(kind).context("can't catch signals");
        Ok(Self([caught(SignalKind::interrupt())?, caught(SignalKind::terminate())?, caught(SignalKind::hangup())?]))
    }

    /// Until one of them has come.
    async fn wait(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Has this process, a child of the demo, end when the demo is killed without a chance to clean up.
/// `false`: it has ended already.
pub fn end_with_parent(parent: u32) -> bool {
    #[cfg(target_os = "linux")]
    {
        // Where the kernel refuses, the process lives on and is as any other.
        let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
    }
    u32::try_from(nix::unistd::getppid().as_raw()) == Ok(parent)
}

/// Runs the demo; exit code 1 when a claim fails. Cleans up after itself, also on Ctrl-C, SIGTERM and SIGHUP.
pub async fn run(options: Options) -> Result<ExitCode> {
    let mut told_to_end = ToldToEnd::listen()?;
    let mut screen = Screen::new(options.json);
    let mut mesh = Mesh::new()?;
    let outcome = tokio::select! {
        outcome = story::tell(&mut mesh, &mut screen) => Some(outcome),
        () = told_to_end.wait() => None,
    };
    let Some(outcome) = outcome else {
        screen.say("interrupted: stopping the mesh");
        mesh.stop().await;
        return Ok(ExitCode::from(130));
    };
    let summary = match outcome {
        Ok(summary) => summary,
        Err(error) => {
            mesh.stop().await;
            return Err(error.context(mesh.hint()));
        }
    };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&summary)?);
    } else {
        screen.summary(&summary);
    }
    if options.keep {
        screen.say(&mesh.things_to_try());
        told_to_end.wait().await;
    }
    mesh.stop().await;
    Ok(if summary.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
