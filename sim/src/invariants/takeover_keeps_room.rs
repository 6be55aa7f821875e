//! A lane that takes over another's users is not drowned by them.

use std::collections::BTreeMap;

use super::{Findings, Invariant, Try};
use crate::{
    queue::{SECOND, Time},
    world::World,
};

pub const NAME: &str = "takeover-keeps-room";
pub const DOC: &str = "Where instances announce what they can serve, a stable lane whose own users leave it a fifth of that or more is not filled \
above nine tenths by users of a lane that was lost, counted over 10 s; and some of them are taken where there is room (REQUIREMENTS L7).";

/// Requests of ten seconds, of each service.
#[derive(Default)]
pub struct Check {
    since: Time,
    asked: BTreeMap<usize, Asked>,
}

#[derive(Default)]
struct Asked {
    /// By stable's own users.
    own: u32,
    /// By users of another lane.
    crossed: u32,
    /// By users of another lane who were not taken.
    refused: u32,
}

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decided(&mut self, _: &World, flight: &crate::world::Flight, _: &mut Findings) {
        if flight.decision.capped {
            self.asked.entry(flight.service).or_default().refused += 1;
        }
    }

    fn tried(&mut self, _: &World, attempt: &Try<'_>, _: &mut Findings) {
        if attempt.entry.record.lane.is_stable() {
            let asked = self.asked.entry(attempt.flight.service).or_default();
            let crossed = attempt.flight.decision.fallback.is_some();
            *(if crossed { &mut asked.crossed } else { &mut asked.own }) += 1;
        }
    }

    fn sample(&mut self, world: &World, found: &mut Findings) {
        if world.now < self.since + SPAN {
            return;
        }
        let spans = (world.now - self.since) as f64 / SECOND as f64;
        self.since = world.now;
        for (service, asked) in std::mem::take(&mut self.asked) {
            let apps = world.hosts.iter().filter(|host| host.is_member()).flat_map(|host| &host.apps);
            let serves = |app: &&crate::app::App| {
                let there = app.service == service && !app.canary && app.drained.is_none() && app.weight > 0;
                // One that has just come counts for others' views in a moment only.
                there && app.well_since.is_some_and(|well| well + 2 * SPAN <= world.now)
            };
            let strength: f64 = apps.filter(serves).map(|app| app.strength).sum();
            let capacity = world.scenario.mesh.capacity * strength * spans;
            let (own, all) = (f64::from(asked.own), f64::from(asked.own + asked.crossed));
            let name = &world.services[service];
            let drowned = asked.crossed > 0 && own <= 0.8 * capacity && all > 0.9 * capacity;
            if capacity > 0.0 && drowned {
                let text = format!(
                    "stable of {name} is asked {all} times in {spans} s, {own} of them by its own users, and can do {capacity}"
                );
                found.add(NAME, text);
            }
            let shut = asked.refused > 0 && asked.crossed == 0 && own < 0.5 * capacity;
            if shut {
                found.add(NAME, format!("stable of {name} takes nobody, though it is asked {own} times in {spans} s and can do {capacity}"));
            }
        }
    }
}

const SPAN: Time = 10 * SECOND;
