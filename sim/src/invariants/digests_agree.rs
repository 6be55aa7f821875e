//! At the end everybody holds the same.

use std::collections::BTreeMap;

use super::{Findings, Invariant};
use crate::{queue::SECOND, world::World};

pub const NAME: &str = "digests-agree";
pub const DOC: &str = "At the end of a run, long after the last fault, all members that have run for 20 s have the same settled \
digest: they hold the same records, policies and introductions, and think the same of everybody. Without it every node would \
open a sync each second for ever. And all through a run a node's catalog leaves out of its digest exactly those that its \
membership takes for gone.";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sample(&mut self, world: &World, found: &mut Findings) {
        // One host each second, in turn.
        let second = (world.now / SECOND) as usize;
        let host = &world.hosts[second % world.hosts.len()];
        let Some(node) = &host.node else { return };
        for (id, entry) in node.catalog().members().filter(|(id, _)| **id != host.id) {
            let gone = entry.has_left() || node.membership().has_gone(id);
            if gone != node.catalog().is_gone(id) {
                let (left, state) = (entry.has_left(), node.membership().state(id));
                let text =
                    format!("{}: {id} has left: {left}, is {state:?}; for the digest it is gone: {}", host.id, !gone);
                return found.add(NAME, text);
            }
        }
    }

    fn end(&mut self, world: &World, found: &mut Findings) {
        let mut digests: BTreeMap<(u64, u64), Vec<&str>> = BTreeMap::new();
        for host in world
            .hosts
            .iter()
            .filter(|host| host.is_member() && !host.foreign && host.started + 20 * SECOND <= world.now)
        {
            if let Some(node) = &host.node {
                let key = (node.catalog().digest(), node.membership().digest());
                digests.entry(key).or_default().push(host.id.as_str());
            }
        }
        if digests.len() > 1 {
            let mut groups: Vec<_> = digests.into_iter().collect();
            groups.sort_by_key(|(_, who)| who.len());
            let few = &groups[0];
            let most = &groups[groups.len() - 1];
            let what = match (few.0.0 != most.0.0, few.0.1 != most.0.1) {
                (true, true) => "catalog and membership",
                (true, false) => "catalog",
                _ => "membership",
            };
            let shown: Vec<_> = few.1.iter().take(5).collect();
            let detail = differences(world, few.1[0], most.1[0]);
            found
                .add(NAME, format!("{} groups; {shown:?} differ from {} in {what}: {detail}", groups.len(), most.1[0]));
        }
    }
}

/// What one holds and the other does not.
fn differences(world: &World, a: &str, b: &str) -> String {
    let summary = |name: &str| {
        let host = world.hosts.iter().find(|host| host.id.as_str() == name);
        let node = host.and_then(|host| host.node.as_ref());
        let mut lines: Vec<String> = Vec::new();
        let Some(node) = node else { return lines };
        for (id, entry) in node.catalog().members() {
            let alive = entry.alive.as_ref().map(|(generation, incarnation, _)| (*generation, *incarnation));
            let left = entry.left.as_ref().map(|(generation, _)| *generation);
            lines.push(format!(
                "member {id} g{} r{} alive {alive:?} left {left:?} life {:?} state {:?}",
                entry.member.generation,
                entry.member.revision,
                node.membership().life(id),
                node.membership().state(id),
            ));
        }
        for entry in node.catalog().instances() {
            let record = &entry.record;
            lines.push(format!("record {}/{} {}.{}", record.owner, record.id, record.generation, record.sequence));
        }
        for entry in node.catalog().policies() {
            lines.push(format!("policy {} {:?}", entry.policy.service, entry.policy.version));
        }
        lines
    };
    let (ours, theirs) = (summary(a), summary(b));
    let only = |of: &[String], not: &[String]| {
        of.iter().filter(|line| !not.contains(line)).take(3).cloned().collect::<Vec<_>>().join("; ")
    };
    format!("only {a}: [{}], only {b}: [{}]", only(&ours, &theirs), only(&theirs, &ours))
}
