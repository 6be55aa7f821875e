//! What must hold, each in a file with a name; `lanemesh-sim explain NAME` prints its description.
//!
//! Safety is looked at all through a run; liveness after all faults have ended. An invariant sees the world from outside, with
//! the truth at hand, and can change nothing.

mod bounded;
mod connections_agree;
mod digests_agree;
mod drained_gets_nothing;
mod env_never_crossed;
mod few_keys_move;
mod flappers_are_held;
mod gone_are_remembered;
mod goodbye_is_heard;
mod lane_keeps;
mod loads_ease;
mod meshes_stay_apart;
mod names_are_free;
mod near_first;
mod newcomers_meet_the_living;
mod no_false_death;
mod one_word_is_not_enough;
mod only_listed_services;
mod only_owners_words;
mod other_instance_first;
mod pins_hold;
mod policy_spreads;
mod raises_only_add;
mod requests_end;
mod ring_is_pure;
mod rollbacks_stand;
mod rules_decide;
mod safe_requests_succeed;
mod selectors_hold;
mod sent_as_often_as_it_may;
mod shares_follow_weights;
mod slow_are_left;
mod takeover_keeps_room;
mod unwell_judge_nobody;
mod view_follows;
mod views_converge;

use std::collections::BTreeMap;

use lanemesh::{
    routing::{InstanceEntry, Snapshot},
    types::{InstanceRecord, LanePolicy, MemberState, Trait},
};
use serde::Serialize;

pub use self::rollbacks_stand::Order;

use crate::{
    app::App,
    queue::{SECOND, Time},
    scenario::Scenario,
    world::{End, Flight, Target, World},
};

/// One rule. Every method is a moment at which it may look.
#[allow(unused_variables, reason = "defaults look at nothing")]
pub trait Invariant {
    /// Its name, as on the command line and in scenario files.
    fn name(&self) -> &'static str;
    /// A member's state changed at an observer.
    fn member(&mut self, world: &World, observer: u32, subject: u32, state: MemberState, found: &mut Findings) {}
    /// A node ends because its name is taken.
    fn name_taken(&mut self, world: &World, host: u32, found: &mut Findings) {}
    /// A request was decided.
    fn decided(&mut self, world: &World, flight: &Flight, found: &mut Findings) {}
    /// A host's routing view was replaced.
    fn published(&mut self, world: &World, host: u32, before: &Snapshot, after: &Snapshot, found: &mut Findings) {}
    /// A request came for a service that the host does not know.
    fn unknown_service(&mut self, world: &World, host: u32, service: usize, found: &mut Findings) {}
    /// A request is sent to an instance.
    fn tried(&mut self, world: &World, attempt: &Try<'_>, found: &mut Findings) {}
    /// A request is over.
    fn landed(&mut self, world: &World, flight: &Flight, end: End, found: &mut Findings) {}
    /// A second has passed.
    fn sample(&mut self, world: &World, found: &mut Findings) {}
    /// The run is over.
    fn end(&mut self, world: &World, found: &mut Findings) {}
}

/// One try of a request.
#[derive(Clone, Copy)]
pub struct Try<'a> {
    /// The request, this try included.
    pub flight: &'a Flight,
    /// The instance it goes to, as the sidecar sees it.
    pub entry: &'a InstanceEntry,
    /// Who really lives at that address, if anybody does.
    pub target: Option<Target>,
}

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Violation {
    /// Which invariant.
    pub invariant: &'static str,
    /// Virtual seconds at the first time.
    pub at: f64,
    /// How often.
    pub times: u64,
    /// What was seen the first time.
    pub what: String,
}

/// Violations, each invariant's first in full and the rest counted.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    found: Vec<Violation>,
    fresh: usize,
}

impl Findings {
    /// Notes one.
    pub fn add(&mut self, invariant: &'static str, what: String) {
        match self.found.iter_mut().find(|violation| violation.invariant == invariant) {
            Some(violation) => violation.times += 1,
            None => self.found.push(Violation { invariant, at: f64::NAN, times: 1, what }),
        }
    }

    /// Dates what was found since the last time.
    pub fn stamp(&mut self, now: Time) {
        for violation in &mut self.found[self.fresh..] {
            violation.at = (now / 1_000_000) as f64 / 1000.0;
        }
        self.fresh = self.found.len();
    }

    /// All of them.
    pub fn all(&self) -> &[Violation] {
        &self.found
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }
}

/// Name and description of every invariant, those that the world itself watches included.
pub const ALL: &[(&str, &str)] = &[
    (no_false_death::NAME, no_false_death::DOC),
    (views_converge::NAME, views_converge::DOC),
    (digests_agree::NAME, digests_agree::DOC),
    (ring_is_pure::NAME, ring_is_pure::DOC),
    (few_keys_move::NAME, few_keys_move::DOC),
    (view_follows::NAME, view_follows::DOC),
    (drained_gets_nothing::NAME, drained_gets_nothing::DOC),
    (lane_keeps::NAME, lane_keeps::DOC),
    (loads_ease::NAME, loads_ease::DOC),
    (env_never_crossed::NAME, env_never_crossed::DOC),
    (rollbacks_stand::NAME, rollbacks_stand::DOC),
    (safe_requests_succeed::NAME, safe_requests_succeed::DOC),
    (policy_spreads::NAME, policy_spreads::DOC),
    (only_owners_words::NAME, only_owners_words::DOC),
    (meshes_stay_apart::NAME, meshes_stay_apart::DOC),
    (names_are_free::NAME, names_are_free::DOC),
    (bounded::NAME, bounded::DOC),
    (flappers_are_held::NAME, flappers_are_held::DOC),
    (gone_are_remembered::NAME, gone_are_remembered::DOC),
    (goodbye_is_heard::NAME, goodbye_is_heard::DOC),
    (newcomers_meet_the_living::NAME, newcomers_meet_the_living::DOC),
    (one_word_is_not_enough::NAME, one_word_is_not_enough::DOC),
    (only_listed_services::NAME, only_listed_services::DOC),
    (other_instance_first::NAME, other_instance_first::DOC),
    (raises_only_add::NAME, raises_only_add::DOC),
    (requests_end::NAME, requests_end::DOC),
    (sent_as_often_as_it_may::NAME, sent_as_often_as_it_may::DOC),
    (shares_follow_weights::NAME, shares_follow_weights::DOC),
    (unwell_judge_nobody::NAME, unwell_judge_nobody::DOC),
    (connections_agree::NAME, connections_agree::DOC),
    (rules_decide::NAME, rules_decide::DOC),
    (takeover_keeps_room::NAME, takeover_keeps_room::DOC),
    (selectors_hold::NAME, selectors_hold::DOC),
    (pins_hold::NAME, pins_hold::DOC),
    (near_first::NAME, near_first::DOC),
    (slow_are_left::NAME, slow_are_left::DOC),
    (
        "node-rests",
        "A node's timers never come up more than 2,000 times in one virtual second: a deadline in the past that stays there would be a loop without an end in life.",
    ),
    (
        "no-storm",
        "No more than 20,000 events, and 5,000 for each host, happen in one virtual second: answers that make answers would never end. The run ends there.",
    ),
    ("node-starts", "A node starts with whatever its disk holds, damaged or old, and can announce its instances."),
];

/// All names.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, _)| *name).collect()
}

/// Those that a scenario does not allow to be broken.
pub fn all(scenario: &Scenario) -> Vec<Box<dyn Invariant>> {
    let all: Vec<Box<dyn Invariant>> = vec![
        Box::new(no_false_death::Check::default()),
        Box::new(views_converge::Check::default()),
        Box::new(digests_agree::Check),
        Box::new(ring_is_pure::Check::default()),
        Box::new(few_keys_move::Check),
        Box::new(view_follows::Check::default()),
        Box::new(drained_gets_nothing::Check),
        Box::new(lane_keeps::Check::default()),
        Box::new(loads_ease::Check::default()),
        Box::new(env_never_crossed::Check),
        Box::new(rollbacks_stand::Check),
        Box::new(safe_requests_succeed::Check),
        Box::new(policy_spreads::Check::default()),
        Box::new(only_owners_words::Check::default()),
        Box::new(meshes_stay_apart::Check),
        Box::new(names_are_free::Check),
        Box::new(bounded::Check::default()),
        Box::new(flappers_are_held::Check::default()),
        Box::new(gone_are_remembered::Check::default()),
        Box::new(goodbye_is_heard::Check),
        Box::new(newcomers_meet_the_living::Check),
        Box::new(one_word_is_not_enough::Check),
        Box::new(only_listed_services::Check),
        Box::new(other_instance_first::Check),
        Box::new(raises_only_add::Check::default()),
        Box::new(requests_end::Check),
        Box::new(sent_as_often_as_it_may::Check),
        Box::new(shares_follow_weights::Check),
        Box::new(unwell_judge_nobody::Check),
        Box::new(connections_agree::Check::default()),
        Box::new(rules_decide::Check),
        Box::new(takeover_keeps_room::Check::default()),
        Box::new(selectors_hold::Check),
        Box::new(pins_hold::Check),
        Box::new(near_first::Check),
        Box::new(slow_are_left::Check::default()),
    ];
    all.into_iter().filter(|check| !scenario.allow.contains_key(check.name())).collect()
}

/// The lane that a known instance serves under a policy, worked out here and not by the code under test: the first by name of whose
/// selector it has every trait, else the one that it really announces.
fn lane_of<'a>(world: &World, record: &InstanceRecord, policy: Option<&'a LanePolicy>) -> Option<&'a str> {
    let host = &world.hosts[world.host_of(&record.owner)? as usize];
    let app = host.apps.iter().find(|app| app.id == record.id)?;
    Some(serves(app, &record.version.to_string(), &world.tags(host.index), policy))
}

/// The same, of an application that runs this version.
fn serves<'a>(app: &App, version: &str, tags: &BTreeMap<String, String>, policy: Option<&'a LanePolicy>) -> &'a str {
    let has = |one: &Trait| match one {
        Trait::Version(wanted) => wanted.admits(version),
        Trait::Tag(name, wanted) => tags.get(name).is_some_and(|value| wanted.admits(value)),
    };
    let taken = policy.and_then(|policy| policy.selectors.iter().find(|(_, traits)| traits.iter().all(has)));
    taken.map_or(if app.canary { "canary" } else { "stable" }, |(lane, _)| lane.as_str())
}

/// Virtual seconds, for texts.
fn secs(time: Time) -> f64 {
    (time / (SECOND / 1000)) as f64 / 1000.0
}
