//! A mesh that has been one for long when the history begins: what a thousand hosts cost when all start at once is another
//! question, and takes longer to answer.
//!
//! Every host has started, joined, been checked and heard of all others; connections are open, nothing is left to be said.

use lanemesh::{catalog::Catalog, node::Seasoned, types::Health};

use super::{World, boot::MESH};
use crate::trust::SimTrust;

impl World {
    /// Starts all hosts but those of another mesh.
    pub(super) fn start_warm(&mut self) {
        let hosts: Vec<u32> = self.hosts.iter().filter(|host| !host.foreign).map(|host| host.index).collect();
        let mut known = Catalog::new();
        for host in &hosts {
            self.boot(*host, true, false);
            self.applications_run(*host);
            let entry = &self.hosts[*host as usize];
            let trust = SimTrust::honest(MESH, &entry.id, &self.certified(*host), self.register.clone());
            let said = entry.node.iter().flat_map(|node| node.catalog().hello(&entry.id));
            for statement in said {
                known.merge(&statement, &trust, entry.now(self.now).wall);
            }
        }
        let mesh = Seasoned::of(known, &self.scenario.membership());
        for (one, other) in mesh.in_touch() {
            if let (Some(one), Some(other)) = (self.host_of(one), self.host_of(other)) {
                let epoch = |host: u32| (host, self.hosts[host as usize].epoch);
                let (one, other) = (epoch(one), epoch(other));
                self.conns.dial(one, other, Ok(self.now));
            }
        }
        for host in hosts {
            let entry = &mut self.hosts[host as usize];
            let now = entry.now(self.now);
            if let Some(node) = &mut entry.node {
                node.grow_into(now, &mesh);
            }
            entry.ready_since = Some(self.now);
            self.drain(host);
        }
    }

    /// A host's applications listen and have passed their checks.
    fn applications_run(&mut self, host: u32) {
        let run = self.hosts[host as usize].run();
        for app in 0..self.hosts[host as usize].apps.len() {
            let start = self.hosts[host as usize].apps[app].start;
            self.listen(run, app as u8, start);
            let entry = &mut self.hosts[host as usize];
            let now = entry.now(self.now);
            let state = &mut entry.apps[app];
            while state.gate.undecided() || state.gate.health() == Health::Critical {
                state.gate.record(true);
            }
            if let Some(node) = &mut entry.node {
                node.set_health(now, &state.id, state.gate.health());
            }
        }
    }
}
