//! Level 2: connections are bounded, and known at both of their ends.

use std::collections::BTreeMap;

use super::{Findings, Invariant};
use crate::{
    queue::{SECOND, Time},
    world::World,
};

pub const NAME: &str = "connections-agree";
pub const DOC: &str = "At level 2 no sidecar has connections with more peers than mesh.connections. And 60 s after the last fault (with the LAN's constants), \
where the pool has room for everybody, no member has had a connection with another for 30 s that the other knows nothing of: such a \
half swallows what is sent on it (REQUIREMENTS S3).";

#[derive(Default)]
pub struct Check {
    halves: BTreeMap<(u32, u32), Time>,
}

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sample(&mut self, world: &World, found: &mut Findings) {
        let most = world.scenario.mesh.connections as usize;
        let mut peers: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for host in world.hosts.iter().filter(|host| host.is_member()) {
            let Some(with) = world.peers(host.index) else { return };
            if with.len() > most {
                found.add(NAME, format!("{} has connections with {} peers, {most} are allowed", host.id, with.len()));
            }
            peers.insert(host.index, with);
        }
        let calm = world.calm_since.is_some_and(|calm| calm + world.bounds.converged <= world.now);
        if !calm || world.hosts.len() > most {
            return;
        }
        let mut halves = BTreeMap::new();
        for (host, with) in &peers {
            let others = with.iter().filter(|peer| peers.get(peer).is_some_and(|theirs| !theirs.contains(host)));
            for peer in others {
                let since = self.halves.get(&(*host, *peer)).copied().unwrap_or(world.now);
                if since + LASTS <= world.now {
                    let (a, b) = (&world.hosts[*host as usize].id, &world.hosts[*peer as usize].id);
                    found.add(NAME, format!("{a} has had a connection with {b} for 30 s that {b} does not know"));
                }
                halves.insert((*host, *peer), since);
            }
        }
        self.halves = halves;
    }
}

const LASTS: Time = 30 * SECOND;
