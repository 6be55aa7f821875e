//! A node that restarts gets its name back.

use super::{Findings, Invariant};
use crate::world::World;

pub const NAME: &str = "names-are-free";
pub const DOC: &str = "No node ends because its name is taken: in a simulation every name has one process, so whoever is refused \
was taken for its own former self, at whatever address and after whatever loss of its disk (REQUIREMENTS M6, cases C01, C08, \
C09, C18).";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn name_taken(&mut self, world: &World, host: u32, found: &mut Findings) {
        found.add(NAME, format!("{} was refused its own name", world.hosts[host as usize].id));
    }
}
