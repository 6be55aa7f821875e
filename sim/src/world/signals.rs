//! Failure signals between sidecars, as the agent's loop carries them.

use std::{collections::BTreeMap, sync::Arc};

use lanemesh::{
    config::Routing,
    routing::{Bell, Builder, Rings, Rules, Signals},
    types::{Mono, Signal},
};

use super::World;
use crate::{
    host::Host,
    queue::{Event, MILLI, Run, Time},
};

/// What a run begins with: no view, nothing heard.
pub(super) fn begin(host: &mut Host, routing: &Arc<Routing>, rings: &Rings) {
    let rules = Rules::new(u64::from(host.index), routing.clone(), &BTreeMap::new());
    host.bell = Arc::new(Bell::new(|| {}));
    host.signals = Signals::new(host.id.clone());
    host.told = 0;
    host.builder = Builder::with(host.locality.clone(), rules.ringing(host.bell.clone())).sharing(rings);
}

impl World {
    /// A sidecar's data path has rung.
    pub(super) fn look_for_failures(&mut self, host: u32) {
        let entry = &self.hosts[host as usize];
        if entry.bell.answer() {
            let at = self.now.max(entry.told + REST) + LOOP;
            let run = entry.run();
            self.queue.plan(at, Event::Tell(run));
        }
    }

    /// It tells what fails there.
    pub(super) fn tell(&mut self, run: Run) {
        let now = self.now;
        let entry = &mut self.hosts[run.host as usize];
        let clock = entry.now(now);
        let (seen, remarks) = entry.signals.tell(&entry.snapshot, Mono(now));
        entry.told = now;
        self.stats.reports += remarks.len() as u64;
        if let Some(node) = &mut entry.node {
            self.stats.signals += u64::from(node.signal(clock, seen) > 0);
            self.drain(run.host);
        }
    }

    /// Another sidecar's word comes in.
    pub(super) fn signal_heard(&mut self, host: u32, signal: Signal) {
        let now = self.now;
        let snapshot = self.view(host);
        let observer = signal.observer.clone();
        let remarks = self.hosts[host as usize].signals.hear(signal, &snapshot, Mono(now));
        self.stats.reports += remarks.len() as u64;
        if let (Some(record), false) = (&mut self.record, remarks.is_empty()) {
            record.named.insert(observer);
        }
    }
}

/// Shortest time between two signals of one sidecar, as in the agent.
const REST: Time = 200 * MILLI;
/// Until the agent's loop comes round.
const LOOP: Time = MILLI / 2;
