//! A subject's lane never flips while its policy stands.

use std::collections::BTreeMap;

use lanemesh::{routing::MethodClass, types::PolicyVersion};

use super::{Findings, Invariant};
use crate::world::{Flight, World};

pub const NAME: &str = "lane-keeps";
pub const DOC: &str = "Under one version of a service's policy a subject is decided into the same lane by every sidecar, at every \
time, whatever happens to instances and members. And what is served outside the decided lane is so only because the \
decision says why, and the method is safe (REQUIREMENTS L1, L7, R1, S3).";

/// Service, user, policy.
type Key = (usize, u32, Option<PolicyVersion>);

#[derive(Default)]
pub struct Check {
    lanes: BTreeMap<Key, String>,
}

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decided(&mut self, world: &World, flight: &Flight, found: &mut Findings) {
        let Some(view) = flight.snapshot.service(world.services[flight.service].as_str()) else { return };
        let lane = view.decided(&flight.decision.lane).name.to_string();
        let key = (flight.service, flight.user, view.policy_version().cloned());
        let held = self.lanes.entry(key).or_insert_with(|| lane.clone());
        if *held != lane {
            found.add(
                NAME,
                format!("user {} of {} was in {held}, is now in {lane}, under one policy", flight.user, view.name),
            );
        }
        let served = flight.decision.served_lane(view).map(|lane| lane.name.to_string());
        let target = flight.decision.target(view);
        let crossed = target.is_some_and(|entry| Some(entry.record.lane.as_str()) != served.as_deref());
        // The policies of a simulation leave the rule for empty lanes as it is: only safe methods fall back.
        let forbidden = flight.class != MethodClass::Safe && served.as_ref().is_some_and(|served| *served != lane);
        if forbidden {
            found.add(NAME, format!("a {:?} request of {} leaves its lane {lane}", flight.class, view.name));
        }
        let silent = served.is_some_and(|served| served != lane) && flight.decision.fallback.is_none();
        if crossed || silent {
            found.add(NAME, format!("a request of {} leaves its lane {lane} without saying why", view.name));
        }
    }
}
