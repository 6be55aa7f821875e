//! A retry goes to another instance while there is one.

use std::collections::BTreeSet;

use super::{Findings, Invariant, Try};
use crate::world::World;

pub const NAME: &str = "other-instance-first";
pub const DOC: &str = "A request goes to the same instance twice only when every other candidate of its lane was tried (or over a \
fresh connection, when a pooled one turned out closed) (REQUIREMENTS R6).";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn tried(&mut self, world: &World, Try { flight, entry, target }: &Try<'_>, found: &mut Findings) {
        let Some((_, before)) = flight.tries.split_last() else { return };
        if target.is_none() || !before.contains(target) {
            return;
        }
        let Some(view) = flight.snapshot.service(world.services[flight.service].as_str()) else { return };
        let Some(lane) = flight.decision.served_lane(view) else { return };
        let tried: BTreeSet<_> = before.iter().flatten().map(|target| (target.host, target.app)).collect();
        let nowhere = before.iter().filter(|target| target.is_none()).count();
        if tried.len() + nowhere < lane.members.len() {
            let text = format!(
                "{} tries {} again after {} of {} candidates",
                world.hosts[flight.at.host as usize].id,
                entry.record.id,
                tried.len(),
                lane.members.len()
            );
            found.add(NAME, text);
        }
    }
}
