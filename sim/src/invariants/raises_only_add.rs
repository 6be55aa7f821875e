//! A raise only adds, a cut only takes away.

use std::collections::BTreeMap;

use lanemesh::{lanes::LaneReason, types::Lane};

use super::{Findings, Invariant};
use crate::world::{Flight, World};

pub const NAME: &str = "raises-only-add";
pub const DOC: &str = "A subject that is in a lane at one size is in it at every greater size, whatever happened in between: \
raised, cut, rolled back, raised again (REQUIREMENTS L2, C3). The salt of the simulation's policies never changes.";

/// For each service, user and lane: the least size at which it was in, and the greatest at which it was out.
#[derive(Default)]
pub struct Check {
    seen: BTreeMap<(usize, u32, Lane), (u16, u16)>,
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
        for (lane, rule) in &policy.lanes {
            let key = (flight.service, flight.user, lane.clone());
            let (least, most) = self.seen.entry(key).or_insert((u16::MAX, 0));
            if view.decided(&flight.decision.lane).name == *lane {
                *least = rule.size.min(*least);
            } else {
                *most = rule.size.max(*most);
            }
            if *least <= *most {
                let (user, service) = (flight.user, &view.name);
                let text =
                    format!("user {user} of {service} was in {lane} at {least} basis points and is out at {most}");
                found.add(NAME, text);
            }
        }
    }
}
