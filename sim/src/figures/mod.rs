//! The quantities that membership promises, measured: goal beside what this build does, in virtual time.
//!
//! Each case is a scenario and what is read from its record. Trials of one mesh follow each other in one run: a member goes,
//! everybody settles, it comes back, the next one goes. Times are from the fault to the last of all observers, or to the
//! share of them that is named.
//!
//! Meshes of [`WARM_FROM`] nodes and more begin warm where their start is not what is measured: all know each other.
//!
//! Not here: CPU and memory (`benches/mesh.rs`).

mod calm;
mod crash;
mod heal;
mod sick;
mod signals;
mod spread;

use lanemesh::types::MemberState;

use crate::{
    log::Log,
    queue::{SECOND, Time},
    record::{Record, Turn},
    scenario::{Do, Mesh, Scenario, Step},
    world::World,
};

/// One measured quantity.
#[derive(Debug, Clone)]
pub struct Figure {
    /// What was measured, and where.
    pub what: String,
    /// What it should be.
    pub goal: String,
    /// What it is.
    pub ours: String,
    /// Whether the goal is met.
    pub met: bool,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Meshes of more nodes are left out.
    pub most: u32,
    /// Trials of each kind, or seeds.
    pub trials: u32,
    /// First seed.
    pub seed: u64,
    /// Virtual node-hours of each calm run.
    pub node_hours: f64,
}

/// A group of figures.
pub struct Case {
    /// As it is called on the command line.
    pub name: &'static str,
    /// What it measures.
    pub about: &'static str,
    /// What else it goes by, together with others.
    pub group: &'static str,
    /// Measures; hands each figure over as it comes.
    pub run: fn(Size, &mut dyn FnMut(Figure)),
}

/// All of them.
pub const CASES: &[Case] = &[
    membership("killed", "a process ends, its host refuses for it", crash::killed),
    membership("silent", "a host is gone", crash::silent),
    membership("mass", "half of 100 hosts are gone at once", crash::mass),
    membership("paused", "one node in ten stands still", crash::paused),
    membership("record", "one record changes", spread::record),
    membership("publish", "everybody's record changes at once", spread::publish),
    membership("join", "one node joins; everybody starts at once", spread::join),
    membership("loss", "nothing is wrong but the links", calm::loss),
    membership("starved", "some nodes hardly get the processor", calm::starved),
    membership("deaf", "a node hears nothing", calm::deaf),
    membership("flip-flop", "a node's way out comes and goes", calm::flip_flop),
    membership("partition", "halves that meet again", heal::partition),
    membership("liar", "a member with a valid certificate lies", calm::liar),
    membership("bytes", "what an idle node sends, QUIC and handshakes included", calm::bytes),
    Case {
        name: "signals",
        about: "one of ten instances is sick, with and without failure signals",
        group: "routing",
        run: signals::sick,
    },
    Case {
        name: "sick",
        about: "one of ten instances is sick: failures, latency, who moves and comes back",
        group: "routing",
        run: sick::one,
    },
    Case { name: "most", about: "three quarters of a service fail", group: "routing", run: sick::most },
    Case { name: "lies", about: "sidecars say of well instances that they fail", group: "routing", run: signals::lies },
];

const fn membership(name: &'static str, about: &'static str, run: fn(Size, &mut dyn FnMut(Figure))) -> Case {
    Case { name, about, group: "membership", run }
}

/// Meshes of so many nodes begin warm.
const WARM_FROM: u32 = 100;

/// A mesh without users, of which nothing is demanded but what is measured.
fn mesh(nodes: u32, loss: f64, seconds: f64) -> Scenario {
    let mut scenario = Scenario {
        name: "figures".into(),
        about: String::new(),
        cases: Vec::new(),
        level: 1,
        seconds,
        settle: 0.0,
        mesh: Mesh { nodes, rate: 0.0, services: 3, canary: 0.0, ..Mesh::default() },
        allow: Default::default(),
        step: Vec::new(),
    };
    scenario.mesh.link.loss = loss;
    scenario.mesh.warm = nodes >= WARM_FROM;
    scenario.allow =
        crate::invariants::names().into_iter().map(|name| (name.to_owned(), "not looked at".to_owned())).collect();
    scenario
}

/// A step on some hosts.
fn step(t: f64, act: Do, nodes: impl ToString, lasts: f64) -> Step {
    Step { nodes: Some(nodes.to_string()), lasts: Some(lasts), ..Step::new(t, act) }
}

/// A world that keeps a record.
fn world(scenario: Scenario, seed: u64) -> World {
    let mut world = World::new(scenario, seed, Log::quiet());
    world.record = Some(Record::default());
    world
}

/// Advances until it holds, looking every 10 ms; when that was.
fn until(world: &mut World, most: f64, mut holds: impl FnMut(&World) -> bool) -> Option<Time> {
    let end = world.now + crate::queue::seconds(most);
    while world.now < end {
        world.advance(world.now + SECOND / 100);
        if holds(world) {
            return Some(world.now);
        }
    }
    None
}

/// Turns of a subject from a moment on, of observers that run.
fn turns(world: &World, subject: u32, from: Time, to: Time) -> impl Iterator<Item = &Turn> {
    let record = world.record.as_ref().map_or(&[][..], |record| &record.turns);
    let first = record.partition_point(|turn| turn.at < from);
    record[first..].iter().take_while(move |turn| turn.at < to).filter(move |turn| turn.subject == subject)
}

/// When each of the observers that `watches` names, `observers` in number, first turned to one of these, sorted; `None` if one never did.
fn first_turns(
    world: &World,
    subject: u32,
    (from, to): (Time, Time),
    (observers, watches): (usize, impl Fn(u32) -> bool),
    states: &[MemberState],
) -> Option<Vec<f64>> {
    let mut firsts: std::collections::BTreeMap<u32, f64> = Default::default();
    for turn in turns(world, subject, from, to).filter(|turn| states.contains(&turn.state) && watches(turn.observer)) {
        firsts.entry(turn.observer).or_insert((turn.at - from) as f64 / SECOND as f64);
    }
    let mut times: Vec<f64> = firsts.into_values().collect();
    times.sort_by(f64::total_cmp);
    (times.len() >= observers).then_some(times)
}

/// The value below which a share of the sorted values lies.
fn share(sorted: &[f64], share: f64) -> f64 {
    let at = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// Median and 99 % of some times against goals; a trial that never ended misses them.
fn spread_figure(what: String, mut times: Vec<f64>, never: usize, goal: (f64, f64)) -> Figure {
    times.sort_by(f64::total_cmp);
    let (p50, p99) = (share(&times, 0.5), share(&times, 0.99));
    let never_text = if never == 0 { String::new() } else { format!(", {never} never") };
    Figure {
        what,
        goal: format!("{:.2} / {:.2} s", goal.0, goal.1),
        ours: format!("{p50:.2} / {p99:.2} s of {}{never_text}", times.len() + never),
        met: never == 0 && p50 <= goal.0 && p99 <= goal.1,
    }
}

fn none_figure(what: String, count: u64, of: &str) -> Figure {
    Figure { what, goal: "0".into(), ours: format!("{count}{of}"), met: count == 0 }
}

/// Hosts whose members are all there and nobody else, of all that run.
fn whole(world: &World) -> bool {
    world.hosts.iter().filter(|host| host.is_member()).all(|host| world.view_is_right(host.index))
}
