//! Every request ends in its time.

use super::{Findings, Invariant, secs};
use crate::{
    queue::{SECOND, Time},
    world::{End, Flight, TIMEOUTS, World},
};

pub const NAME: &str = "requests-end";
pub const DOC: &str = "No request takes longer than its total time, whatever the instances do (REQUIREMENTS R6).";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn landed(&mut self, world: &World, flight: &Flight, end: End, found: &mut Findings) {
        let took = world.now - flight.begun;
        if took > TIMEOUTS.total.as_nanos() as Time + SECOND / 10 {
            let host = &world.hosts[flight.at.host as usize].id;
            found.add(NAME, format!("{host}: a request takes {} s and ends with {end:?}", secs(took)));
        }
    }
}
