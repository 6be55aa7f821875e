//! Shared failure signals: how many requests meet a sick instance before everybody passes it over, with and without them.

use super::{Figure, Size, mesh, step, world};
use crate::{
    queue::seconds,
    scenario::{Do, Step},
    world::World,
};

/// Sidecars, each with an application; two services, so that one of ten instances is sick.
const NODES: u32 = 20;
/// Requests a second of each sidecar's users, to both services together.
const RATE: f64 = 200.0;
/// When the fault begins, and how long it lasts.
const BEGINS: f64 = 20.0;
const LASTS: f64 = 8.0;

/// What users met.
#[derive(Debug, Clone, Copy, Default)]
struct Met {
    /// Requests of which a try failed.
    met: u64,
    /// Requests that failed.
    failed: u64,
    /// Signals sent.
    signals: u64,
}

fn counts(world: &World) -> Met {
    Met { met: world.stats.met, failed: world.stats.failed, signals: world.stats.signals }
}

/// Over some seeds, from the fault's begin to its end. Checks see nothing of it: what they see is told by the mesh as it is.
fn faults(size: Size, how: &str, value: Option<f64>, rate: f64, signals: bool) -> Met {
    let mut sum = Met::default();
    for seed in 0..u64::from(size.trials.clamp(1, 5)) {
        let mut scenario = mesh(NODES, 0.0, 60.0);
        scenario.mesh.services = 2;
        scenario.mesh.rate = rate;
        scenario.mesh.users = 2_000;
        (scenario.mesh.signals, scenario.mesh.shallow) = (signals, true);
        let fault = step(BEGINS, Do::App, 4, LASTS);
        scenario.step.push(Step { how: Some(how.into()), value, ..fault });
        let met = between(&mut world(scenario, size.seed + seed), BEGINS, BEGINS + LASTS);
        sum = Met { met: sum.met + met.met, failed: sum.failed + met.failed, signals: sum.signals + met.signals };
    }
    sum
}

fn between(world: &mut World, from: f64, to: f64) -> Met {
    world.advance(seconds(from));
    let before = counts(world);
    world.advance(seconds(to));
    let after = counts(world);
    Met { met: after.met - before.met, failed: after.failed - before.failed, signals: after.signals - before.signals }
}

/// One of ten instances is sick, and its checks do not see it.
pub fn sick(size: Size, tell: &mut dyn FnMut(Figure)) {
    let cases = [
        ("refuses", "down", None, RATE),
        ("fails every request", "fail", Some(1.0), RATE),
        ("fails half", "fail", Some(0.5), RATE),
        ("never answers", "hang", None, RATE),
        ("never answers, few requests", "hang", None, 8.0),
        ("is far too slow", "slow", Some(20_000.0), RATE),
        ("fails every request, few requests", "fail", Some(1.0), 8.0),
    ];
    for (what, how, value, rate) in cases {
        let [without, with] = [false, true].map(|on| faults(size, how, value, rate, on));
        let ratio = with.met as f64 / without.met.max(1) as f64;
        tell(Figure {
            what: format!("requests that met an instance that {what}, {NODES} sidecars with signals / without"),
            goal: "at most a half".into(),
            ours: format!(
                "{} / {} = {ratio:.2} (failed {} / {}, {} signals)",
                with.met, without.met, with.failed, without.failed, with.signals
            ),
            met: ratio <= 0.5,
        });
    }
}

/// Some sidecars say that instances fail which are well.
pub fn lies(size: Size, tell: &mut dyn FnMut(Figure)) {
    for liars in [1, 2, 4] {
        let mut scenario = mesh(NODES, 0.0, 120.0);
        scenario.mesh.services = 2;
        scenario.mesh.rate = 20.0;
        let nodes = format!("{}-{}", NODES - liars, NODES - 1);
        scenario.step.push(Step { how: Some("signal".into()), ..step(BEGINS, Do::Lie, nodes, 90.0) });
        let mut world = world(scenario, size.seed);
        world.advance(seconds(BEGINS));
        let before = counts(&world);
        let (mut away, mut looks) = (0, 0);
        let mut at = BEGINS;
        while at < BEGINS + 90.0 {
            at += 1.0;
            world.advance(seconds(at));
            let (kept, all) = kept_away(&world);
            (away, looks) = (away + kept, looks + all);
        }
        let share = away as f64 / looks.max(1) as f64;
        let failed = counts(&world).failed - before.failed;
        let goal = if liars == 1 { 0.0 } else { 0.1 };
        let lied = |host: &crate::host::Host| host.index >= NODES - liars;
        let is_named =
            |host: &&crate::host::Host| world.record.as_ref().is_some_and(|record| record.named.contains(&host.id));
        let (named, wrongly): (Vec<bool>, Vec<bool>) =
            world.hosts.iter().filter(is_named).map(lied).partition(|lied| *lied);
        tell(Figure {
            what: format!("of {liars} such sidecars of {NODES}: named in a log line; others that were"),
            goal: format!("{liars}; 0"),
            ours: format!("{}; {}", named.len(), wrongly.len()),
            met: named.len() == liars as usize && wrongly.is_empty(),
        });
        tell(Figure {
            what: format!("healthy instances kept away while {liars} of {NODES} sidecars lie for 90 s"),
            goal: format!("at most {:.0} % of the time, 0 failed requests", goal * 100.0),
            ours: format!("{:.2} %, {failed} failed", share * 100.0),
            met: share <= goal && failed == 0,
        });
    }
}

/// Instances kept away on others' word, over all sidecars, and how many there are.
fn kept_away(world: &World) -> (usize, usize) {
    let views = world.hosts.iter().filter(|host| host.is_member()).map(|host| &host.snapshot);
    views.fold((0, 0), |(away, all), view| {
        let cells = view.services().flat_map(|service| service.instances.iter().map(move |entry| (entry, service)));
        cells.fold((away, all), |(away, all), (entry, service)| {
            let state = entry.cell.state(lanemesh::types::Mono(world.now), &service.rules);
            (away + usize::from(state == lanemesh::routing::BreakerState::Signalled), all + 1)
        })
    })
}
