//! What `lanemesh check` asks a running sidecar beside what the other pages say: its seeds, its clock, its certificate.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::run::{Agent, wall_zero};
use crate::types::{MemberState, NodeId, Wall};

/// The surroundings of a sidecar, as it sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostics {
    /// The configured seeds, in their order.
    pub seeds: Vec<SeedInfo>,
    /// Its clock.
    pub clock: ClockInfo,
    /// The last moment in which the certificate in force is valid.
    pub certificate_until: Wall,
    /// Its own health in membership: 0 is well, 8 the worst.
    pub own_health: u32,
    /// How old the routing view in force is, in milliseconds.
    pub snapshot_age_ms: u64,
}

/// One configured seed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeedInfo {
    /// As it is written: `host:port`.
    pub seed: String,
    /// Why it resolves to no address.
    pub fault: Option<String>,
    /// What it resolves to.
    pub addrs: Vec<SeedAddr>,
}

/// An address of a seed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeedAddr {
    /// The address.
    pub addr: SocketAddr,
    /// It is the sidecar's own.
    pub own: bool,
    /// Who lives or answered there.
    pub node: Option<NodeId>,
    /// Why nobody answered at the last try; absent when somebody did, or before the first try has ended.
    pub fault: Option<String>,
}

/// A sidecar's wall clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockInfo {
    /// How far it is ahead of the middle of its peers (negative: behind), in milliseconds; `None` before any has told.
    pub ahead_ms: Option<i64>,
    /// By how much it was set since the sidecar started, in milliseconds: what it has gained on the monotonic clock.
    pub set_ms: i64,
}

impl Agent {
    pub(super) fn diagnostics(&self) -> Diagnostics {
        let now = self.now();
        Diagnostics {
            seeds: self.seed_infos(),
            clock: ClockInfo {
                ahead_ms: self.node.clock_ahead(now),
                set_ms: wall_zero(self.clock).saturating_sub(self.wall_zero),
            },
            certificate_until: self.certificate_until,
            own_health: self.node.membership().health_score(),
            snapshot_age_ms: now.mono.since(self.snapshot.load().published).as_millis().try_into().unwrap_or(u64::MAX),
        }
    }

    fn seed_infos(&self) -> Vec<SeedInfo> {
        let known: Vec<crate::node::SeedState> = self.node.seeds().collect();
        let lives = |addr: SocketAddr| {
            let mut members = self.node.catalog().members();
            let found = members.find(|(node, entry)| {
                entry.member.addr == addr && self.node.membership().state(node) == Some(MemberState::Alive)
            });
            found.map(|(node, _)| node.clone())
        };
        let addr = |addr: &SocketAddr| {
            let state = known.iter().find(|state| state.addr == *addr);
            let last = state.and_then(|state| state.last.clone());
            let node = lives(*addr).or_else(|| last.clone()?.ok());
            let fault = if node.is_none() { last.and_then(Result::err) } else { None };
            SeedAddr { addr: *addr, own: state.is_some_and(|state| state.own), node, fault }
        };
        let info = |seed: &super::seeds::Resolved| SeedInfo {
            seed: seed.name.clone(),
            fault: seed.addrs.as_ref().err().cloned(),
            addrs: seed.addrs.iter().flatten().map(addr).collect(),
        };
        self.seeds.iter().map(info).collect()
    }
}
