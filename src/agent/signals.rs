//! Failure signals in and out: what requests from here meet is told to the mesh, what others say is judged.

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;

use super::run::Agent;
use crate::{
    routing::{Bell, Remark, Signals, SignalsReport},
    types::{Mono, NodeId, Signal},
};

/// Shortest time between two signals of this sidecar.
const REST: Duration = Duration::from_millis(200);

/// What an agent has for signals.
pub(super) struct Telling {
    pub(super) signals: Signals,
    /// Notified when the data path has something to tell.
    pub(super) failures: Arc<Notify>,
    pub(super) bell: Arc<Bell>,
    due: Option<Mono>,
    told: Option<Mono>,
}

impl Telling {
    pub(super) fn new(me: NodeId) -> Self {
        let failures = Arc::new(Notify::new());
        let wake = failures.clone();
        let bell = Arc::new(Bell::new(move || wake.notify_one()));
        Self { signals: Signals::new(me), failures, bell, due: None, told: None }
    }

    /// When the next own signal is due.
    pub(super) fn due(&self) -> Option<Mono> {
        self.due
    }

    /// The bell was rung: something is to be told, at once if nothing was lately.
    pub(super) fn rung(&mut self, now: Mono) {
        let rested = self.told.map_or(now, |told| told + REST);
        self.due.get_or_insert(rested.max(now));
    }
}

impl Agent {
    /// Tells what fails here, if that is due.
    pub(super) fn tell_failures(&mut self) {
        let now = self.now();
        if self.telling.due.is_none_or(|due| now.mono < due) {
            return;
        }
        (self.telling.due, self.telling.told) = (None, Some(now.mono));
        // Before the look: what is noted after it rings again.
        self.telling.bell.answer();
        let (seen, remarks) = self.telling.signals.tell(&self.snapshot.load(), now.mono);
        self.node.signal(now, seen);
        self.say(remarks);
    }

    /// Another sidecar says what it sees fail.
    pub(super) fn signal_heard(&mut self, signal: Signal) {
        let now = self.clock.mono();
        let remarks = self.telling.signals.hear(signal, &self.snapshot.load(), now);
        self.say(remarks);
    }

    /// Once a second.
    pub(super) fn tidy_signals(&mut self) {
        let now = self.clock.mono();
        let remarks = self.telling.signals.tidy(&self.snapshot.load(), now);
        self.say(remarks);
    }

    pub(super) fn signals(&self) -> SignalsReport {
        self.telling.signals.report(&self.snapshot.load(), self.clock.mono())
    }

    fn say(&self, remarks: Vec<Remark>) {
        for remark in remarks {
            tracing::warn!("failure signals: {remark}");
        }
    }
}
