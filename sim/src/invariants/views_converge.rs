//! After the last fault, everybody sees everybody rightly within a bound.

use lanemesh::types::{MemberState, Mono};

use super::{Findings, Invariant, secs};
use crate::{
    host::Host,
    queue::{MILLI, SECOND, Time},
    world::World,
};

pub const NAME: &str = "views-converge";
pub const DOC: &str = "Within 60 s after the last fault has ended (with the LAN's constants; and within the settling time of the \
scenario) every member sees every other member alive and nobody else, and it stays so but for doubts of less than 3 s. 60 s are: a verdict that must still fall \
(15 s), a flapping member's hold (30 s), and contact made again (15 s). Nodes that joined or restarted later have 20 s from then.";

#[derive(Default)]
pub struct Check {
    reported: bool,
}

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sample(&mut self, world: &World, found: &mut Findings) {
        let Some(calm) = world.calm_since else { return };
        // Cheap first: nothing to look at in detail while all is right and nothing changed.
        let late = calm + world.bounds.converged <= world.now;
        if !late && !world.now.is_multiple_of(5 * SECOND) {
            return;
        }
        if late && world.now.is_multiple_of(5 * SECOND) || world.now + 2 * SECOND > world.end() {
            self.look(world, found);
        }
    }

    fn end(&mut self, world: &World, found: &mut Findings) {
        self.look(world, found);
    }
}

impl Check {
    fn look(&mut self, world: &World, found: &mut Findings) {
        if self.reported {
            return;
        }
        let observers = world.hosts.iter().filter(|host| host.is_member() && host.started + NEWCOMER <= world.now);
        for observer in observers {
            let Some((subject, state)) = world.wrong_about(observer.index) else { continue };
            let other = &world.hosts[subject as usize];
            let fresh = other.started.max(other.ended) + NEWCOMER > world.now;
            let doubt_only = state == Some(MemberState::Doubtful) && other.is_member();
            // A doubt that is cleared in a moment is no lasting difference.
            if fresh || (doubt_only && doubted_for(observer, other, world.now) < DOUBT_LASTS) {
                continue;
            }
            let truth = if other.is_member() { "lives" } else { "is gone" };
            let calm = world.calm_since.map_or(0.0, secs);
            found.add(
                NAME,
                format!("{} holds {} {state:?}, which {truth}; all faults ended at {calm} s", observer.id, other.id),
            );
            self.reported = true;
            return;
        }
    }
}

/// For how long one has been in its state for another.
fn doubted_for(observer: &Host, other: &Host, now: Time) -> Time {
    let story = observer.node.as_ref().and_then(|node| node.membership().story(&other.id, Mono(now)));
    story.map_or(0, |story| story.since_ms * MILLI)
}

const NEWCOMER: Time = 20 * SECOND;
const DOUBT_LASTS: Time = 3 * SECOND;
