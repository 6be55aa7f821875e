//! A rollback is not undone by whoever has not heard of it.

use std::collections::BTreeMap;

use lanemesh::types::{PolicyVersion, ServiceName};

use super::{Findings, Invariant};
use crate::world::World;

pub const NAME: &str = "rollbacks-stand";
pub const DOC: &str = "What is in force at the end of a run was ordered by somebody who knew of every rollback (or is a rollback \
itself): a raise on the other side of a cut does not undo one, however late it was ordered (REQUIREMENTS C3).";

/// An order: by which version it replaces which, and whether it is a rollback.
#[derive(Debug, Clone)]
pub struct Order {
    /// Its service.
    pub service: ServiceName,
    /// Its version.
    pub version: PolicyVersion,
    /// What its author held.
    pub base: Option<PolicyVersion>,
    /// Whether it is a rollback.
    pub rollback: bool,
}

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn end(&mut self, world: &World, found: &mut Findings) {
        let Some(host) = world.hosts.iter().find(|host| host.is_member() && !host.foreign) else { return };
        let Some(node) = &host.node else { return };
        for service in &world.services {
            let orders: BTreeMap<&PolicyVersion, &Order> = world
                .stats
                .lineage
                .iter()
                .filter(|order| order.service == *service)
                .map(|order| (&order.version, order))
                .collect();
            let Some(last) = node.catalog().policy(service).map(|entry| &entry.policy.version) else { continue };
            // From what is in force back to the first: what its authors knew of.
            let mut knew = Vec::new();
            let mut at = Some(last);
            while let Some(order) = at.and_then(|version| orders.get(version)) {
                knew.push(&order.version);
                at = order.base.as_ref();
            }
            let is_rollback = orders.get(last).is_some_and(|order| order.rollback);
            // Where the chain breaks, what came before was lost with its last holder.
            let missed = orders.values().find(|order| order.rollback && !knew.contains(&&order.version));
            if let Some(missed) = missed.filter(|_| !is_rollback && !knew.is_empty()) {
                let text = format!(
                    "{} holds {last:?} for {service}, whose author did not know of the rollback {:?}",
                    host.id, missed.version
                );
                found.add(NAME, text);
            }
        }
    }
}
