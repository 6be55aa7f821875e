//! The test of the tests: small mistakes planted into the real code, each of which some invariant must find.
//!
//! `plant search` looks for the first seed of the swarm at which the code with the mistake violates an invariant that it does
//! not violate without; `planted.toml` keeps what was found, and `plant check` (and CI) replays only that. A seed stops
//! catching when the code under test changes enough to change its history: then the check goes on with the seeds after it
//! for a little, and says that the file wants a new search.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
};

use lanemesh::types::{Planted, plant};
use serde::{Deserialize, Serialize};

use crate::{
    library::LIBRARY,
    play::{Options, play},
    scenario::Scenario,
    swarm::{Size, draw},
};

/// Where it was found that a fault is caught.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catch {
    /// The fault.
    pub fault: String,
    /// The invariant that found it first.
    pub by: String,
    /// The seed, of the swarm unless a scenario is named.
    pub seed: u64,
    /// A scenario of the library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scenario: Option<String>,
    /// Virtual seconds after which it was found.
    pub at: f64,
    /// What was found.
    pub what: String,
}

/// The file that is kept.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// Hosts of the drawn meshes.
    pub nodes: u32,
    /// Virtual minutes of each.
    pub minutes: f64,
    /// One for each fault, in the order of their list.
    pub catch: Vec<Catch>,
}

/// As it is in the repository.
pub fn kept() -> Kept {
    toml::from_str(include_str!("../planted.toml")).expect("the kept file is in order")
}

/// Which invariants a history breaks without any fault, found once for each.
#[derive(Default)]
pub struct Healthy {
    seen: Mutex<BTreeMap<String, BTreeSet<&'static str>>>,
}

impl Healthy {
    fn breaks(&self, scenario: &Scenario, seed: u64, invariant: &str) -> bool {
        let key = format!("{} {seed}", scenario.name);
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let broken = seen.unwrap_or_else(|| {
            plant(None);
            let summary = play(scenario, seed, Options::default());
            summary.violations.iter().map(|violation| violation.invariant).collect()
        });
        let breaks = broken.contains(invariant);
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(key, broken);
        breaks
    }
}

/// Plays a history with a fault; what finds it, if anything does that does not find the same without.
fn caught(fault: Planted, name: Option<&str>, scenario: &Scenario, seed: u64, healthy: &Healthy) -> Option<Catch> {
    plant(Some(fault));
    let summary = play(scenario, seed, Options { stop_at_first: true, ..Options::default() });
    plant(None);
    let violation = summary.violations.first()?;
    let catch = Catch {
        fault: fault.name().to_owned(),
        by: violation.invariant.to_owned(),
        seed,
        scenario: name.map(ToOwned::to_owned),
        at: violation.at,
        what: violation.what.clone(),
    };
    (!healthy.breaks(scenario, seed, violation.invariant)).then_some(catch)
}

/// Looks for the first seed that catches a fault; then among the scenarios of the library, for what takes hours to show.
pub fn search(fault: Planted, size: Size, seeds: u64, healthy: &Healthy) -> Option<Catch> {
    let drawn = (1..=seeds).find_map(|seed| caught(fault, None, &draw(seed, size), seed, healthy));
    drawn.or_else(|| in_long(fault, healthy))
}

/// Whether a kept catch still holds; a new one near it, if it does not.
pub fn check(catch: &Catch, size: Size, healthy: &Healthy) -> Option<Catch> {
    let fault = Planted::named(&catch.fault)?;
    if let Some(name) = &catch.scenario {
        return caught(fault, Some(name), &library(name)?, catch.seed, healthy);
    }
    let near = (catch.seed..catch.seed + NEAR).find_map(|seed| caught(fault, None, &draw(seed, size), seed, healthy));
    near.or_else(|| in_long(fault, healthy))
}

fn in_long(fault: Planted, healthy: &Healthy) -> Option<Catch> {
    LONG.iter().find_map(|name| caught(fault, Some(name), &library(name)?, 1, healthy))
}

fn library(name: &str) -> Option<Scenario> {
    let (_, text) = LIBRARY.iter().find(|(known, _)| *known == name)?;
    Scenario::parse(text).ok()
}

/// As large and long as it takes for most faults to be found within a few seeds, and no larger.
pub const SIZE: Size = Size { nodes: 12, minutes: 2.5 };
/// Scenarios for faults that no few minutes show.
const LONG: &[&str] = &[
    "one-way",
    "slow-third",
    "slow-machines",
    "pause",
    "canary-under-failure",
    "flapping-checks",
    "c03-no-seed-left",
    "c11-forgotten",
    "testers",
    "dead-canary",
    "selectors",
    "pins",
    "regions",
];
/// Seeds after the kept one that are tried before a fault counts as not caught.
const NEAR: u64 = 12;
