//! The routing view follows the membership.

use std::collections::BTreeMap;

use lanemesh::{
    routing::InstanceEntry,
    types::{Health, InstanceId, MemberState, NodeId},
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Findings, Invariant};
use crate::{
    host::Host,
    queue::{SECOND, Time},
    world::World,
};

pub const NAME: &str = "view-follows";
pub const DOC: &str = "What a node's membership and catalog say is what its routing view says, soon: an instance whose owner is \
down or has left, or that is critical or drained, is no candidate 5 s later (looks are 5 s apart); a passing instance of a live owner is one 5 s \
later, or 62 s later where it kept leaving and coming back and its return is held (REQUIREMENTS R4, cases C22 and C25).";

#[derive(Default)]
pub struct Check {
    differs: BTreeMap<(u32, String, u64), Time>,
    /// What was looked at and found right, by host.
    right: FxHashMap<u32, Seen>,
}

/// What a look depends on: run, catalog, view, and states of members; those are told as they change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    epoch: u32,
    digest: u64,
    view: (u64, Option<u64>),
}

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn member(&mut self, _: &World, observer: u32, _: u32, _: MemberState, _: &mut Findings) {
        self.right.remove(&observer);
    }

    fn sample(&mut self, world: &World, found: &mut Findings) {
        let second = world.now / SECOND;
        for host in world.hosts.iter().filter(|host| host.is_awake(world.now)) {
            if !(u64::from(host.index) + second).is_multiple_of(EVERY) {
                continue;
            }
            let seen = host.node.as_ref().map(|node| Seen {
                epoch: host.epoch,
                digest: node.catalog().digest(),
                view: (host.snapshot.version, host.table.as_ref().map(|table| table.version)),
            });
            // Now and then all the same: a state might change without a word.
            let in_turn = (u64::from(host.index) + second / EVERY).is_multiple_of(ANYWAY);
            if seen.is_some() && self.right.get(&host.index) == seen.as_ref() && !in_turn {
                continue;
            }
            if self.look(world, host, found) {
                self.right.extend(seen.map(|seen| (host.index, seen)));
            } else {
                self.right.remove(&host.index);
            }
        }
    }
}

impl Check {
    /// Whether nothing differs.
    fn look(&mut self, world: &World, host: &Host, found: &mut Findings) -> bool {
        let Some(node) = &host.node else { return false };
        let (candidates, mut differs) = (candidates(host), BTreeMap::new());
        for entry in node.catalog().instances() {
            let record = &entry.record;
            if record.env != host.locality.env {
                continue;
            }
            let state =
                if record.owner == host.id { Some(MemberState::Alive) } else { node.membership().state(&record.owner) };
            let alive = matches!(state, Some(MemberState::Alive | MemberState::Doubtful));
            let serves = alive
                && !record.removed
                && record.drain.is_none()
                && record.health != Health::Critical
                && record.weight > 0;
            if serves == candidates.contains(&(&record.owner, &record.id)) {
                continue;
            }
            // A check that failed between two looks has the holding begin anew; records that tell loads change without that.
            let said = if world.scenario.mesh.capacity > 0.0 { 0 } else { record.sequence };
            let key = (host.index, format!("{}/{}", record.owner, record.id), said);
            let since = self.differs.get(&key).copied().unwrap_or(world.now);
            let bound = if serves { HELD } else { GONE };
            if world.now - since >= bound {
                let text = format!(
                    "{}: {} {} a candidate for {} s, against its membership ({state:?}, {:?})",
                    host.id,
                    key.1,
                    if serves { "is not" } else { "is still" },
                    (world.now - since) / SECOND,
                    record.health
                );
                found.add(NAME, text);
            }
            differs.insert(key, since);
        }
        let right = differs.is_empty();
        self.differs.retain(|(of, ..), _| *of != host.index);
        self.differs.extend(differs);
        right
    }
}

/// Owner and id of what a host's routing view has for a candidate; of its newest table, if no view was built from that yet.
fn candidates(host: &Host) -> FxHashSet<(&NodeId, &InstanceId)> {
    let Some(table) = &host.table else {
        let entries = host.snapshot.services().flat_map(|service| &service.instances);
        // What a dead member announced may be the last resort of a service that has nobody else.
        let last_resort = |entry: &&InstanceEntry| entry.owner == MemberState::Down && entry.stale;
        let entries = entries.filter(|entry| entry.excluded.is_none() && !last_resort(entry));
        return entries.map(|entry| (&entry.record.owner, &entry.record.id)).collect();
    };
    let instances = table.instances.iter().filter(|candidate| {
        candidate.record.drain.is_none()
            && candidate.record.weight > 0
            && candidate.record.health != Health::Critical
            && matches!(candidate.owner, MemberState::Alive | MemberState::Doubtful)
    });
    instances.map(|candidate| (&candidate.record.owner, &candidate.record.id)).collect()
}

const GONE: Time = 5 * SECOND;
const HELD: Time = 62 * SECOND;
const EVERY: u64 = 5;
const ANYWAY: u64 = 6;
