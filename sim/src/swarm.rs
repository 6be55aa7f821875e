//! Scenarios drawn from the seed: which faults there are at all, then when, where and how bad. What is drawn is an ordinary
//! scenario: it can be printed, replayed and shrunk.
//!
//! Each seed leaves most kinds of fault out (Groce et al., "Swarm testing", 2012): runs in which everything fails at once find
//! less than runs in which two or three things do.

use crate::{
    chance::Chance,
    links::Quality,
    scenario::{Act, Do, Mesh, Scenario, Step},
};

/// How large drawn meshes are, and how long they live.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Hosts; fewer in some seeds.
    pub nodes: u32,
    /// Virtual minutes in all, settling included.
    pub minutes: f64,
}

impl Default for Size {
    /// As the goal for its speed has it: 50 hosts for 5 minutes.
    fn default() -> Self {
        Self { nodes: 50, minutes: 5.0 }
    }
}

/// The scenario of a seed.
pub fn draw(seed: u64, size: Size) -> Scenario {
    let mut chance = Chance::of(seed, &[SWARM]);
    let total = size.minutes * 60.0;
    let settle = (total * 0.4).clamp(30.0, 90.0);
    let seconds = (total - settle).max(10.0);
    let nodes = if chance.hits(0.25) { 2 + chance.below(size.nodes.max(3) as usize - 1) as u32 } else { size.nodes };
    let services = 1 + chance.below(3) as u32;
    let link = Quality {
        loss: *chance.pick(&[0.0, 0.0, 0.0, 0.01, 0.03, 0.1]).unwrap_or(&0.0),
        duplicate: *chance.pick(&[0.0, 0.0, 0.02]).unwrap_or(&0.0),
        reorder: *chance.pick(&[0.0, 0.0, 0.05]).unwrap_or(&0.0),
        ..Quality::default()
    };
    let mesh = Mesh {
        nodes,
        seeds: 3.min(nodes),
        services,
        canary: *chance.pick(&[0.0, 0.2, 0.34]).unwrap_or(&0.0),
        staging: *chance.pick(&[0.0, 0.0, 0.2]).unwrap_or(&0.0),
        link,
        ..Mesh::default()
    };
    let mut mesh = places(mesh, seed);
    let kinds = chance.some(KINDS, 2 + chance.clone().below(4));
    let mut step = Vec::new();
    // As the swarm has it, a fault every 8 to 40 s.
    let mean = chance.between(8.0, 40.0);
    let mut t = 10.0 + chance.waiting(1.0 / mean);
    while t < seconds - 1.0 {
        let kind = chance.pick(&kinds).copied().unwrap_or(Do::Crash);
        let first = one((t * 1000.0).round() / 1000.0, kind, services, &mut chance);
        if kind == Do::Policy && chance.hits(0.5) {
            // Two operators at a time.
            let other = one(((t + chance.between(0.0, 0.01)) * 1000.0).round() / 1000.0, kind, services, &mut chance);
            step.extend(other.filter(|other| other.t < seconds));
        }
        step.extend(first);
        t += chance.waiting(1.0 / mean);
    }
    select(&mut mesh, &mut step, seed);
    Scenario {
        name: format!("swarm-{seed}"),
        about: "drawn by `swarm`".into(),
        cases: Vec::new(),
        level: 1,
        seconds,
        settle,
        mesh,
        allow: Default::default(),
        step,
    }
}

/// Some seeds have several regions and ask near ones first, some pin a user. By a chance of its own, so that the histories of all others
/// stay what they were.
fn places(mut mesh: Mesh, seed: u64) -> Mesh {
    let mut chance = Chance::of(seed, &[SWARM, PLACES]);
    if chance.hits(0.15) {
        (mesh.regions, mesh.zones) = (2 + chance.below(2) as u32, 1 + chance.below(3) as u32);
        mesh.routing.insert("prefer_zone".into(), true.into());
    }
    if chance.hits(0.1) {
        let host = chance.below(mesh.nodes as usize);
        let service = NAMES[host % mesh.services as usize];
        let pin = format!("user-{}={service}-{host}", chance.below(mesh.users as usize));
        mesh.routing.insert("pin".into(), vec![pin].into());
    }
    mesh
}

/// In some seeds each change of a policy gives its lane a selector, or takes it away.
fn select(mesh: &mut Mesh, steps: &mut [Step], seed: u64) {
    let mut chance = Chance::of(seed, &[SWARM, SELECTORS]);
    let mut changes = steps.iter_mut().filter(|step| step.act.0 == Do::Policy).peekable();
    if changes.peek().is_none() || !chance.hits(0.3) {
        return;
    }
    mesh.racks = 2 + chance.below(4) as u32;
    for step in changes {
        let traits = [vec!["tag:rack=r0"], vec!["tag:rack=r1", "version:v*"], vec!["version:v2"], vec![]];
        step.select = chance.pick(&traits).map(|traits| traits.iter().map(|one| (*one).to_owned()).collect());
    }
}

fn one(t: f64, kind: Do, services: u32, chance: &mut Chance) -> Option<Step> {
    let round = |value: f64| (value * 100.0).round() / 100.0;
    let few = format!("random {}", [1, 1, 1, 2, 3][chance.below(5)]);
    let lasts = Some(round(chance.waiting(1.0 / 15.0).clamp(0.2, 60.0)));
    let service = Some(NAMES[chance.below(services as usize)].to_owned());
    let step = Step { t, act: Act(kind), nodes: Some(few), lasts, ..Step::default() };
    let address = if chance.hits(0.3) { "new" } else { "same" };
    let disk = Some(!chance.hits(0.3));
    let word = |words: &[&str], chance: &mut Chance| chance.pick(words).map(|word| (*word).to_owned());
    Some(match kind {
        Do::Crash => Step {
            lasts: lasts.filter(|_| !chance.hits(FOR_GOOD)),
            how: word(&["refused", "silent"], chance),
            what: word(&["pod", "pod", "sidecar", "app"], chance),
            disk,
            address: Some(address.into()),
            ..step
        },
        Do::Leave => {
            Step { lasts: lasts.filter(|_| !chance.hits(FOR_GOOD)), disk, address: Some(address.into()), ..step }
        }
        Do::Pause => Step { what: word(&["sidecar", "pod"], chance), lasts: lasts.map(|s| s.min(20.0)), ..step },
        Do::Starve => {
            Step { run: Some(round(chance.between(0.2, 2.0))), stop: Some(round(chance.between(0.5, 4.0))), ..step }
        }
        Do::OneWay => Step { to: word(&["random 1", "random 3", "half"], chance), ..step },
        Do::Partition => Step { nodes: word(&["random 1", "third", "half"], chance), ..step },
        Do::FlipFlop => {
            Step { period: Some(round(chance.between(0.5, 6.0))), nodes: word(&["random 1", "third"], chance), ..step }
        }
        Do::Worsen => {
            let link = Quality {
                loss: *chance.pick(&[0.05, 0.1, 0.3]).unwrap_or(&0.1),
                delay_ms: *chance.pick(&[0.0, 20.0, 80.0]).unwrap_or(&0.0),
                jitter_ms: *chance.pick(&[0.0, 50.0]).unwrap_or(&0.0),
                duplicate: 0.02,
                reorder: 0.1,
                reorder_ms: 20.0,
                ..Quality::default()
            };
            Step { nodes: word(&["random 1", "random 2", "third"], chance), link: Some(link), ..step }
        }
        Do::Clock => Step { value: chance.pick(&[-3600.0, -5.0, 5.0, 50.0]).copied(), ..step },
        Do::Disk => Step { how: word(&["full", "corrupt", "stale"], chance), ..step },
        Do::App => {
            let how = word(&["down", "hang", "slow", "fail"], chance);
            let value = match how.as_deref() {
                Some("slow") => Some(round(chance.between(100.0, 3000.0))),
                Some("fail") => Some(round(chance.between(0.05, 1.0))),
                _ => None,
            };
            Step { how, value, ..step }
        }
        Do::Roll => {
            let version = Some(format!("v{}", 3 + chance.below(90)));
            Step {
                t,
                act: Act(kind),
                service,
                version,
                every: Some(round(chance.between(0.5, 5.0))),
                ..Step::default()
            }
        }
        Do::Policy => {
            let value = chance.pick(&[0.0, 1.0, 5.0, 25.0, 50.0, 100.0]).copied();
            Step { t, act: Act(kind), service, value, ..Step::default() }
        }
        Do::Rollback => Step { t, act: Act(kind), service, ..Step::default() },
        Do::Weigh => Step { value: chance.pick(&[0.0, 10.0, 50.0, 200.0, 300.0]).copied(), ..step },
        Do::Lie | Do::Withdraw => step,
        Do::Drift => Step { value: chance.pick(&[-200.0, -20.0, 20.0, 200.0]).copied(), ..step },
        Do::Drain => step,
        Do::Join => Step { t, act: Act(kind), count: Some(1 + chance.below(2) as u32), ..Step::default() },
        Do::Start | Do::Churn | Do::Squat | Do::Slow => return None,
    })
}

/// What the swarm draws from.
const KINDS: &[Do] = &[
    Do::Crash,
    Do::Leave,
    Do::Drain,
    Do::Pause,
    Do::Starve,
    Do::OneWay,
    Do::Partition,
    Do::FlipFlop,
    Do::Worsen,
    Do::Clock,
    Do::Disk,
    Do::App,
    Do::Roll,
    Do::Policy,
    Do::Rollback,
    Do::Join,
    Do::Lie,
    Do::Weigh,
    Do::Drift,
    Do::Withdraw,
];
/// Services of a drawn mesh: one, two or three.
const NAMES: [&str; 3] = ["orders", "users", "carts"];
const SWARM: u64 = 50;
const PLACES: u64 = 1;
const SELECTORS: u64 = 2;
/// Share of those who crash or leave that never come back.
const FOR_GOOD: f64 = 0.2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_draws_a_scenario_that_reads_the_same() {
        let (mut drawn, mut kinds) = (std::collections::BTreeSet::new(), (0, 0, 0));
        for seed in 1..200 {
            let scenario = draw(seed, Size { nodes: 20, minutes: 5.0 });
            scenario.check().unwrap();
            let text = scenario.to_toml();
            assert_eq!(Scenario::parse(&text).unwrap(), scenario, "{text}");
            drawn.insert(text);
            kinds.0 += u32::from(scenario.mesh.regions > 1);
            kinds.1 += u32::from(scenario.mesh.routing.contains_key("pin"));
            kinds.2 += u32::from(scenario.step.iter().any(|step| step.select.is_some()));
        }
        assert_eq!(drawn.len(), 199);
        assert!(kinds.0 > 10 && kinds.1 > 5 && kinds.2 > 5 && kinds.0 + kinds.1 + kinds.2 < 150, "{kinds:?}");
    }
}
