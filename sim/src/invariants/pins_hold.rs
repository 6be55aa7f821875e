//! A pinned key stays with its instances.

use lanemesh::routing::ServiceView;

use super::{Findings, Invariant};
use crate::{
    queue::{SECOND, Time},
    world::{Flight, World, subject},
};

pub const NAME: &str = "pins-hold";
pub const DOC: &str = "While an instance to which a key is pinned is a candidate of the lane that serves, the key's requests go to one of those instances, unless \
something speaks against each of them here and now; and they are back there 90 s after the last fault, if it was well all that time (REQUIREMENTS R8).";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decided(&mut self, world: &World, flight: &Flight, found: &mut Findings) {
        let subject = subject(flight.user);
        let Some((_, named)) = world.routing.pin.iter().find(|(key, _)| *key == subject) else { return };
        let Some(view) = flight.snapshot.service(world.services[flight.service].as_str()) else { return };
        let (decision, Some(lane)) = (&flight.decision, flight.decision.served_lane(view)) else { return };
        let is_named = |at: u16| named.contains(&view.instances[usize::from(at)].record.id);
        let Some(chosen) = decision.instance else { return };
        if is_named(chosen) {
            return;
        }
        let passed = |at: u16| decision.skipped.iter().any(|skipped| skipped.instance == at);
        let missed =
            lane.members.iter().copied().find(|at| is_named(*at) && (!passed(*at) || long_well(world, view, *at)));
        if let Some(missed) = missed {
            let record = |at: u16| &view.instances[usize::from(at)].record;
            let text = format!(
                "{subject} of {} {} goes to {} and not to {}, where it is pinned",
                view.name,
                lane.name,
                record(chosen).id,
                record(missed).id
            );
            found.add(NAME, text);
        }
    }
}

/// Whether nothing can speak against an instance any more: open times and ramps are over.
fn long_well(world: &World, view: &ServiceView, at: u16) -> bool {
    let record = &view.instances[usize::from(at)].record;
    let host = world.host_of(&record.owner).map(|host| &world.hosts[host as usize]);
    let app = host.and_then(|host| host.apps.iter().find(|app| app.id == record.id));
    let over = |since: Option<Time>| since.is_some_and(|since| since + BACK <= world.now);
    over(world.calm_since) && app.is_some_and(|app| over(app.well_since))
}

const BACK: Time = 90 * SECOND;
