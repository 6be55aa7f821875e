//! Two meshes do not melt together.

use lanemesh::types::NodeId;

use super::{Findings, Invariant};
use crate::world::World;

pub const NAME: &str = "meshes-stay-apart";
pub const DOC: &str = "No node holds a member, an instance or a policy of another mesh, even where both have the same authority, one \
was given the other's seeds, and nothing on the way between them looks at the name in the certificate (level 1 leaves that \
check of the connection away on purpose) (REQUIREMENTS C2, case C16).";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sample(&mut self, world: &World, found: &mut Findings) {
        if world.scenario.mesh.foreign == 0 {
            return;
        }
        for host in &world.hosts {
            let Some(node) = &host.node else { continue };
            let strange = |id: &NodeId| {
                world.host_of(id).is_some_and(|other| world.hosts[other as usize].foreign != host.foreign)
            };
            let mut signers = node.catalog().each_statement().map(|statement| &statement.signer);
            if let Some(id) = signers.find(|id| strange(id)) {
                found.add(NAME, format!("{} holds what {id} of another mesh says", host.id));
            }
        }
    }
}
