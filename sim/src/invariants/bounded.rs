//! Memory and traffic are bounded.

use super::{Findings, Invariant};
use crate::{queue::SECOND, world::World};

pub const NAME: &str = "bounded";
pub const DOC: &str = "No node's gossip queue holds more than 16 items for each member it knows, plus 1,000; it knows no more members \
than there ever were in the last 65 minutes (tombstones are forgotten after an hour); and 30 s after the last fault it sends \
no more than 100 kB a second on average over 10 s (REQUIREMENTS M11, M13, cases C11 and C24).";

#[derive(Default)]
pub struct Check {
    sent: Vec<u64>,
}

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sample(&mut self, world: &World, found: &mut Findings) {
        if !(world.now / SECOND).is_multiple_of(EVERY) {
            return;
        }
        let lately = world.hosts.iter().filter(|host| host.is_up() || host.ended + REMEMBERED > world.now).count();
        self.sent.resize(world.hosts.len(), 0);
        let calm = world.calm_since.is_some_and(|calm| calm + 30 * SECOND <= world.now);
        for host in &world.hosts {
            let Some(node) = &host.node else { continue };
            let known = node.catalog().members().count();
            if node.gossip_backlog() > 1000 + 16 * known {
                found.add(NAME, format!("{} has {} items to gossip", host.id, node.gossip_backlog()));
            }
            if known > lately {
                let old = node.catalog().members().map(|(id, _)| id).find(|id| {
                    let other = world.host_of(id).map(|other| &world.hosts[other as usize]);
                    other.is_some_and(|other| !other.is_up() && other.ended + REMEMBERED <= world.now)
                });
                let old = old.map_or("?".to_owned(), ToString::to_string);
                let text =
                    format!("{} knows {known} members, {lately} were there in the last 65 minutes; not {old}", host.id);
                found.add(NAME, text);
            }
            let rate = (host.sent.0 - self.sent[host.index as usize]) / EVERY;
            if calm && host.started + 30 * SECOND <= world.now && rate > MOST_RATE {
                found.add(NAME, format!("{} sends {rate} bytes a second long after the last fault", host.id));
            }
            self.sent[host.index as usize] = host.sent.0;
        }
    }
}

const EVERY: u64 = 10;
const REMEMBERED: u64 = 65 * 60 * SECOND;
const MOST_RATE: u64 = 100_000;
