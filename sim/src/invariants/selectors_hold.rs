//! An instance serves the lane whose selector takes it.

use lanemesh::routing::ServiceView;

use super::{Findings, Invariant, Try, lane_of};
use crate::{
    host::Host,
    world::{Flight, World},
};

pub const NAME: &str = "selectors-hold";
pub const DOC: &str = "In every sidecar's view an instance is a candidate of one lane alone: the first whose selector takes its version and tags under the policy in \
force, else the one that it announces; and no request is served by an instance of another lane than the one that serves it (REQUIREMENTS L5).";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decided(&mut self, world: &World, flight: &Flight, found: &mut Findings) {
        // Whoever is asked for a lane looks whether its view is right; nobody else need.
        let host = &world.hosts[flight.at.host as usize];
        if let Some(view) = flight.snapshot.service(world.services[flight.service].as_str())
            && view.policy.as_ref().is_some_and(|compiled| !compiled.policy.selectors.is_empty())
        {
            look(world, host, view, found);
        }
    }

    fn tried(&mut self, world: &World, Try { flight, entry, .. }: &Try<'_>, found: &mut Findings) {
        let Some(view) = flight.snapshot.service(world.services[flight.service].as_str()) else { return };
        let policy = view.policy.as_ref().map(|compiled| &*compiled.policy);
        let (Some(lane), Some(served)) = (lane_of(world, &entry.record, policy), flight.decision.served_lane(view))
        else {
            return;
        };
        if lane != served.name.as_str() {
            let (id, version) = (&entry.record.id, &entry.record.version);
            found.add(
                NAME,
                format!("a request of {} {} goes to {id} ({version}), which serves {lane}", view.name, served.name),
            );
        }
    }
}

fn look(world: &World, host: &Host, view: &ServiceView, found: &mut Findings) {
    let policy = view.policy.as_ref().map(|compiled| &*compiled.policy);
    for (at, entry) in (0_u16..).zip(&view.instances).filter(|(_, entry)| entry.excluded.is_none()) {
        let Some(due) = lane_of(world, &entry.record, policy) else { continue };
        let lanes = view.lanes.iter().filter(|lane| lane.members.binary_search(&at).is_ok());
        let lanes: Vec<&str> = lanes.map(|lane| lane.name.as_str()).collect();
        if lanes != [due] {
            let (id, version) = (&entry.record.id, &entry.record.version);
            found.add(NAME, format!("{}: {id} ({version}) is a candidate of {lanes:?}, not of {due}", host.id));
        }
    }
}
