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

/// SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub fn new() -> Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The next one's name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
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
            name = signals.next() => tracing::warn!("{name} again: ending at once"),
        }
        if self.handle.leave().await.is_err() {
            tracing::debug!("the agent had ended before");
        }
    }

    /// Waits until the drain has spread and the data path is quiet, inside the limit.
    async fn served_out(&self) {
        let limit = Instant::now() + self.shutdown.limit;
        tokio::time::sleep(self.shutdown.spread).await;
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
