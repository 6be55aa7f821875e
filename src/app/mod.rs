//! Floor 6: a sidecar is composed here, runs, and ends in order.
//!
//! [`start`] returns what was bound, so that port 0 works everywhere. The end has two steps: out of rotation first, while
//! both directions are still served, then goodbye; a second signal shortens it.

mod advertise;
mod compose;
mod footprint;
mod identity;
mod reload;
mod removal;
mod shutdown;

use std::process::ExitCode;

use anyhow::Result;

pub use compose::{RUN_FILE, Sidecar, start};
pub use identity::{CertificateCheck, check_certificates};
pub use removal::{MEMBERS, WorstCase, worst_removal};

use self::shutdown::Told;
use crate::{agent::Ended, config::Config};

/// Runs a sidecar until it is told to end, or must. Exit code 0 after an orderly end, 4 when its name is taken. At SIGHUP
/// `read` is asked for the configuration again; its error names every fault.
pub async fn run(config: Config, read: impl Fn() -> Result<Config, String>) -> Result<ExitCode> {
    crate::telemetry::init_logging(&config.log_filter, config.log_format)?;
    let mut signals = shutdown::Signals::new()?;
    let mut sidecar = start(config).await?;
    tokio::spawn(footprint::give_back_text());
    if let Some(proxy) = &sidecar.proxy {
        tokio::spawn(footprint::give_back_heap(proxy.connection_count()));
    }
    let why = loop {
        tokio::select! {
            told = signals.next() => match told {
                Told::Reload => sidecar.reload(&read).await,
                Told::End(signal) => {
                    tracing::info!("{signal}: out of rotation, then goodbye");
                    sidecar.shut_down(&mut signals).await;
                    break Ended::Left;
                }
            },
            ended = sidecar.ended() => break ended,
        }
    };
    sidecar.close().await;
    Ok(match why {
        Ended::Left => ExitCode::SUCCESS,
        Ended::NameTaken(_) => ExitCode::from(NAME_TAKEN),
    })
}

/// Exit code when another live process has this node's name.
const NAME_TAKEN: u8 = 4;
