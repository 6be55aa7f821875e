//! What an operator ordered is what every node holds.

use lanemesh::types::PolicyVersion;

use super::{Findings, Invariant, secs};
use crate::{
    queue::{SECOND, Time},
    world::World,
};

pub const NAME: &str = "policy-spreads";
pub const DOC: &str = "A policy or rollback that was ordered anywhere is in force (or a later one is) on every node that nothing is \
wrong with and that the ordering node can reach, within 2 s (15 s where links lose more than 5 %; never, where the clocks of the two are more than 60 s apart); at the end of a run all \
hold the greatest that was ordered (unless for a moment there was no member at all); and a rollback is never undone by a raise that had not seen it (REQUIREMENTS C1, C3).";

#[derive(Default)]
pub struct Check {
    done: usize,
}

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sample(&mut self, world: &World, found: &mut Findings) {
        let spread = if world.links.base.loss > 0.05 { 15 * SECOND } else { SPREAD };
        self.done = self.done.min(world.stats.orders.len());
        while let Some((at, by, policy)) = world.stats.orders.get(self.done) {
            if at + spread > world.now {
                return;
            }
            self.done += 1;
            let author = &world.hosts[*by as usize];
            // Everybody refuses what comes from a clock that is more than 60 s ahead.
            if !author.is_clean(world.now, world.bounds.settled) || policy.set_at.0 > author_time(*at) + 60_000 {
                continue;
            }
            for host in &world.hosts {
                // A clock far behind makes everything else look as if it came from one far ahead: documented, and reported.
                if !world.all_well(*by, host.index, world.bounds.settled)
                    || looks_ahead(host, world.now, &policy.version)
                {
                    continue;
                }
                let held = held(world, host.index, &policy.service);
                if held.is_none_or(|held| *held < policy.version) {
                    let text = format!(
                        "{} does not hold what {} ordered for {} at {} s: it holds {held:?}, ordered was {:?}",
                        host.id,
                        author.id,
                        policy.service,
                        secs(*at),
                        policy.version
                    );
                    found.add(NAME, text);
                    break;
                }
            }
        }
    }

    fn end(&mut self, world: &World, found: &mut Findings) {
        for service in &world.services {
            let ordered =
                world.stats.orders.iter().filter(|(at, _, policy)| {
                    policy.service == *service && policy.set_at.0 <= author_time(*at) + 60_000
                });
            let Some(last) = ordered.map(|(_, _, policy)| &policy.version).max() else { continue };
            for host in world.hosts.iter().filter(|host| host.is_member() && host.started + 20 * SECOND <= world.now) {
                let held = held(world, host.index, service);
                if held != Some(last) && !looks_ahead(host, world.now, last) {
                    let text = format!(
                        "{} ends with {held:?} for {service}, the greatest that was ordered is {last:?}",
                        host.id
                    );
                    return found.add(NAME, text);
                }
            }
        }
    }
}

fn held<'a>(world: &'a World, host: u32, service: &lanemesh::types::ServiceName) -> Option<&'a PolicyVersion> {
    let node = world.hosts[host as usize].node.as_ref()?;
    node.catalog().policy(service).map(|entry| &entry.policy.version)
}

/// Whether a policy is refused by the rule that none may be more than 60 s ahead of the holder's clock.
fn looks_ahead(host: &crate::host::Host, now: Time, version: &PolicyVersion) -> bool {
    version.clock > host.now(now).wall.0 + 60_000
}

/// What a right clock showed then, in milliseconds since 1970.
fn author_time(at: Time) -> u64 {
    crate::host::EPOCH_MS + at / 1_000_000
}

const SPREAD: Time = 2 * SECOND;
