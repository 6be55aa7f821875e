//! The process's log: `tracing` events to standard error, as text or JSON.
//!
//! `tracing-subscriber`'s `EnvFilter` is not used: it brings a regular-expression engine for span filters that nobody
//! sets on a sidecar. `Targets` understands `info` and `info,lanemesh::proxy=debug`.

use std::{str::FromStr, sync::OnceLock};

use tracing_subscriber::{
    Layer, Registry, filter::Targets, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt,
};

use crate::config::LogFormat;

/// Why logging could not start.
#[derive(Debug, thiserror::Error)]
pub enum LogFault {
    /// The filter does not parse.
    #[error(
        "log filter `{filter}`: {reason}; write a level (`info`) or levels by module (`info,lanemesh::proxy=debug`)"
    )]
    Filter {
        /// What was given.
        filter: String,
        /// What the parser says.
        reason: String,
    },
    /// A subscriber is there already.
    #[error("logging was started twice in one process")]
    Twice,
}

/// Starts logging to standard error; once per process.
pub fn init_logging(filter: &str, format: LogFormat) -> Result<(), LogFault> {
    let (targets, handle) = reload::Layer::new(parse(filter)?);
    let layer = fmt::layer().with_writer(std::io::stderr);
    let layer = match format {
        LogFormat::Text => {
            let colour = std::io::IsTerminal::is_terminal(&std::io::stderr());
            layer.with_ansi(colour).with_target(false).boxed()
        }
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(layer.with_filter(targets)).try_init().map_err(|_| LogFault::Twice)?;
    // Set once: a second start was refused above.
    let _ = FILTER.set(handle);
    Ok(())
}

/// Puts another filter in force; nothing happens where logging was not started by [`init_logging`].
pub fn set_log_filter(filter: &str) -> Result<(), LogFault> {
    let targets = parse(filter)?;
    if let Some(handle) = FILTER.get() {
        // Fails only when the subscriber is gone, and then nobody logs any more.
        let _ = handle.reload(targets);
    }
    Ok(())
}

fn parse(filter: &str) -> Result<Targets, LogFault> {
    Targets::from_str(filter).map_err(|error| LogFault::Filter { filter: filter.to_owned(), reason: error.to_string() })
}

/// The subscriber is the process's one, and so is its filter.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_filter_names_itself_and_the_cure() {
        let error = init_logging("lanemesh=loud", LogFormat::Text).unwrap_err().to_string();
        assert!(error.contains("lanemesh=loud") && error.contains("lanemesh::proxy=debug"), "{error}");
    }
}
