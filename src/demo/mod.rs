//! demo.

use std::process::ExitCode;

/// How the demonstration is run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Leave the mesh running and print what to try.
    pub keep: bool,
    /// Print the summary as JSON.
    pub json: bool,
}

/// Placeholder.
pub async fn run(options: Options) -> anyhow::Result<ExitCode> {
    let _ = options;
    todo!()
}
