//! Floor 6: `lanemesh demo`. Real processes of this binary on loopback, real traffic of 2,000 users, real faults; every line
//! of the summary is measured.
//!
//! `mesh` starts and kills processes, `load` is the users, `story` the acts and what each must show, `screen` what people see
//! meanwhile, `app` the small application in each pod. Not here: anything that a user's own mesh would not do as well.

mod app;
#[expect(clippy::disallowed_methods, reason = "the demo measures what its users see")]
mod load;
#[expect(clippy::disallowed_methods, reason = "the demo measures what its users see")]
mod mesh;
#[expect(clippy::disallowed_methods, reason = "the demo measures what its users see")]
mod screen;
#[expect(clippy::disallowed_methods, reason = "the demo measures what its users see")]
mod story;

use std::process::ExitCode;

use anyhow::Result;

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

/// Runs the demo; exit code 1 when a claim fails. Cleans up after itself, also on Ctrl-C.
pub async fn run(options: Options) -> Result<ExitCode> {
    let mut screen = Screen::new(options.json);
    let mut mesh = Mesh::new()?;
    let outcome = tokio::select! {
        outcome = story::tell(&mut mesh, &mut screen) => Some(outcome),
        _ = tokio::signal::ctrl_c() => None,
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
        // Ctrl-C is the end that was asked for; if it can't be waited for, the end is now.
        let _ = tokio::signal::ctrl_c().await;
    }
    mesh.stop().await;
    Ok(if summary.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
