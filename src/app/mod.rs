//! app.

use std::process::ExitCode;

use crate::config::Config;

/// Placeholder.
pub async fn run(config: Config) -> anyhow::Result<ExitCode> {
    let _ = config;
    todo!()
}
