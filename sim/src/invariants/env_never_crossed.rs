//! Nothing crosses an environment.

use super::{Findings, Invariant, Try};
use crate::world::World;

pub const NAME: &str = "env-never-crossed";
pub const DOC: &str = "No request is ever sent to an instance of another environment than its sidecar's: neither by the record, nor \
by who really lives at the record's address (REQUIREMENTS R1, L7, S3).";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn tried(&mut self, world: &World, Try { flight, entry, target }: &Try<'_>, found: &mut Findings) {
        let own = &world.hosts[flight.at.host as usize].locality.env;
        let there = target.map(|target| &world.hosts[target.host as usize].locality.env);
        if entry.record.env != *own || there.is_some_and(|env| env != own) {
            found.add(NAME, format!("a request from {own} goes to {} in {}", entry.record.id, entry.record.env));
        }
    }
}
