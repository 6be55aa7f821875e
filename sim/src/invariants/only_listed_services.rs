//! Nobody serves what its certificate does not list.

use super::{Findings, Invariant};
use crate::world::World;

pub const NAME: &str = "only-listed-services";
pub const DOC: &str = "No node holds an instance record of a service that its owner's certificate does not list: a certified member \
can't draw the traffic of a service that is not its own (REQUIREMENTS C2, M1).";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sample(&mut self, world: &World, found: &mut Findings) {
        // One host each second, in turn.
        let second = (world.now / crate::queue::SECOND) as usize;
        let host = &world.hosts[second % world.hosts.len()];
        let Some(node) = &host.node else { return };
        for entry in node.catalog().instances() {
            let record = &entry.record;
            let Some(owner) = world.host_of(&record.owner) else { continue };
            let services = world.certified(owner);
            if !services.contains(&record.service) {
                let text = format!(
                    "{} holds {} of {}, whose certificate is for other services",
                    host.id, record.id, record.owner
                );
                found.add(NAME, format!("{text} than {}", record.service));
            }
        }
    }
}
