//! The orderly end: out of rotation, wait until that has spread, serve on until it is quiet, then goodbye.

use std::time::Duration;

use anyhow::Result;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::Instant,
};

use super::Sidecar;
use crate::ready::Blocker;

/// No request under way and none begun for this long: the application has no more to ask.
const QUIET: Duration = Duration::from_millis(1000);
/// Between looks.
const LOOK: Duration = Duration::from_millis(20);

/// What to do next.
pub(super) enum Told {
    /// End; with the signal's name.
    End(&'static str),
    /// The configuration may have changed.
    Reload,
}

/// SIGTERM, SIGINT and SIGHUP.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    pub fn new() -> Result<Self> {
        let [terminate, interrupt, hangup] =
            [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
        Ok(Self { terminate: terminate?, interrupt: interrupt?, hangup: hangup? })
    }

    /// The next one that ends the process.
    pub async fn end(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// The next one.
    pub async fn next(&mut self) -> Told {
        let Self { terminate, interrupt, hangup } = self;
        tokio::select! {
            _ = terminate.recv() => Told::End("SIGTERM"),
            _ = interrupt.recv() => Told::End("SIGINT"),
            _ = hangup.recv() => Told::Reload,
        }
    }
}

impl Sidecar {
    /// Ends in order; a second signal skips what is being waited for.
    pub(super) async fn shut_down(&mut self, signals: &mut Signals) {
        self.ready.block(Blocker::Shutdown);
        // The agent may have ended by itself a moment ago; then there is nothing to announce.
        let _ = self.handle.shutting_down().await;
        tokio::select! {
            () = self.served_out() => {}
            name = signals.end() => tracing::warn!("{name} again: ending at once"),
        }
        if self.handle.leave().await.is_err() {
            tracing::debug!("the agent had ended before");
        }
    }

    /// Waits until the drain has spread and the data path is quiet, inside the limit.
    async fn served_out(&self) {
        let limit = Instant::now() + self.config.shutdown.limit;
        tokio::time::sleep(self.config.shutdown.spread).await;
        let Some(proxy) = &self.proxy else { return };
        proxy.drain();
        let (mut seen, mut quiet_since) = (proxy.requests(), Instant::now());
        while quiet_since.elapsed() < QUIET {
            if Instant::now() >= limit {
                tracing::warn!(in_flight = proxy.in_flight(), "shutdown.limit reached with requests under way");
                return;
            }
            tokio::time::sleep(LOOK).await;
            let requests = proxy.requests();
            if requests != seen || proxy.in_flight() > 0 {
                (seen, quiet_since) = (requests, Instant::now());
            }
        }
    }
}
