//! A raise only adds, a cut only takes away.

use std::collections::BTreeMap;

use lanemesh::lanes::LaneReason;

use super::{Findings, Invariant};
use crate::world::{Flight, World};

pub const NAME: &str = "raises-only-add";
pub const DOC: &str = "A subject that is in a lane at one size is in it at every greater size, whatever happened in between: \
raised, cut, rolled back, raised again (REQUIREMENTS L2, C3). The salt of the simulation's policies never changes.";

/// For each service and user: the least size at which it was in, and the greatest at which it was out.
#[derive(Default)]
pub struct Check {
    seen: BTreeMap<(usize, u32), (u16, u16)>,
}

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decided(&mut self, world: &World, flight: &Flight, found: &mut Findings) {
        let Some(view) = flight.snapshot.service(world.services[flight.service].as_str()) else { return };
        if flight.decision.lane.reason == LaneReason::Rule {
            // Whatever the bucket.
            return;
        }
        let Some(policy) = view.policy.as_ref().map(|compiled| &compiled.policy).filter(|policy| !policy.off) else {
            return;
        };
        let size = policy.lanes.iter().find(|(lane, _)| lane.as_str() == "canary").map_or(0, |(_, rule)| rule.size);
        let inside = view.decided(&flight.decision.lane).name.as_str() == "canary";
        let (least, most) = self.seen.entry((flight.service, flight.user)).or_insert((u16::MAX, 0));
        if inside {
            *least = size.min(*least);
        } else {
            *most = size.max(*most);
        }
        if *least <= *most {
            found.add(
                NAME,
                format!(
                    "user {} of {} was in canary at {least} basis points and is out at {most}",
                    flight.user, view.name
                ),
            );
        }
    }
}
