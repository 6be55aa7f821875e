//! What must not be sent twice is sent once.

use lanemesh::routing::MethodClass;

use super::{Findings, Invariant, Try};
use crate::world::{TIMEOUTS, World};

pub const NAME: &str = "sent-as-often-as-it-may";
pub const DOC: &str = "A request that is neither safe nor idempotent is not tried again once a try of it was sent (it may have done \
its work); any other at most twice more (REQUIREMENTS R6).";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn tried(&mut self, world: &World, Try { flight, entry, .. }: &Try<'_>, found: &mut Findings) {
        let most = if flight.class == MethodClass::Other { 0 } else { u32::from(TIMEOUTS.max_retries) };
        if flight.sent > most {
            let text = format!(
                "{}: a request of class {:?} was sent {} times and is now sent to {}",
                world.hosts[flight.at.host as usize].id, flight.class, flight.sent, entry.record.id
            );
            found.add(NAME, text);
        }
    }
}
