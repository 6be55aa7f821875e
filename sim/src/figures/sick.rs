//! What users meet while one of ten instances is sick, or most are: the goals of the routing's own (REQUIREMENTS R5, R6, M10).
//!
//! 20 sidecars send 2,000 requests a second to ten instances of a service whose checks see nothing. One request in ten is neither safe nor
//! idempotent: it can't be repeated once it was sent, so that what it meets, its user meets.

use std::collections::BTreeMap;

use lanemesh::routing::MethodClass;

use super::{Figure, Size, mesh, share, step, world};
use crate::{
    queue::{SECOND, Time, seconds},
    record::{Landed, Record},
    scenario::{Do, Step},
    world::{World, subject},
};

/// Two services of ten instances each; half of a sidecar's requests go to each.
const NODES: u32 = 20;
const RATE: f64 = 200.0;
/// The sick instance's host; its service is the first.
const BAD: u32 = 4;
/// When the fault begins and ends, and until when everybody is to be back: the open time has doubled meanwhile, then comes the ramp.
const BEGINS: f64 = 20.0;
const LASTS: f64 = 20.0;
const BACK: f64 = 130.0;

/// The faults, how the simulator makes them, and whether repeatable requests may fail: an answer that is late is an answer.
const FAULTS: [(&str, &str, Option<f64>); 4] = [
    ("refuses", "down", None),
    ("never answers", "hang", None),
    ("fails half", "fail", Some(0.5)),
    // Works 1 to 15 ms when it is well.
    ("is ten times as slow", "slow", Some(72.0)),
];

/// One of ten.
pub fn one(size: Size, tell: &mut dyn FnMut(Figure)) {
    for (what, how, value) in FAULTS {
        let runs: Vec<Seen> =
            (0..u64::from(size.trials.clamp(1, 3))).map(|n| play(how, value, size.seed + n)).collect();
        let sum = |of: fn(&Seen) -> u64| runs.iter().map(of).sum::<u64>();
        tell(zero(
            format!("safe and idempotent requests that failed while one of ten {what}"),
            sum(|seen| seen.safe_failed),
        ));
        let mut each: Vec<f64> =
            runs.iter().flat_map(|seen| seen.posts_failed.values().map(|count| *count as f64)).collect();
        each.sort_by(f64::total_cmp);
        let (mean, p99) = (each.iter().sum::<f64>() / each.len().max(1) as f64, share(&each, 0.99));
        tell(Figure {
            what: format!("other requests that failed, by sidecar, while one of ten {what}"),
            goal: "mean 5, p99 10".into(),
            ours: format!("mean {mean:.1}, p99 {p99:.0}, most {:.0}", each.last().copied().unwrap_or(0.0)),
            met: mean <= 5.0 && p99 <= 10.0,
        });
        let slower = runs.iter().map(|seen| seen.slower).fold(0.0, f64::max);
        tell(Figure {
            what: format!("p99 of all users from 10 s after one of ten {what}, beside before"),
            goal: "2.00 times".into(),
            ours: format!("{slower:.2} times"),
            met: slower <= 2.0,
        });
        let (moved, of) = (sum(|seen| seen.moved), sum(|seen| seen.users));
        tell(zero(
            format!("users of others that moved while one of ten {what} ({moved} of its own {of} did)"),
            sum(|seen| seen.others_moved),
        ));
        tell(zero(
            format!("users that moved elsewhere than to their next when one of ten {what}"),
            sum(|seen| seen.astray),
        ));
        tell(zero(
            format!("users that are not back {:.0} s after the end, one of ten {what}", BACK - BEGINS - LASTS),
            sum(|seen| seen.not_back),
        ));
    }
}

fn zero(what: String, count: u64) -> Figure {
    Figure { what, goal: "0".into(), ours: count.to_string(), met: count == 0 }
}

/// What one run showed.
#[derive(Debug, Default)]
struct Seen {
    safe_failed: u64,
    /// By sidecar, also those with none.
    posts_failed: BTreeMap<u32, u64>,
    /// 99 % of all requests from 10 s after the fault began to its end, over the same before it.
    slower: f64,
    /// Users of the sick instance, those of them that were elsewhere in the end, and where they should not have been.
    users: u64,
    moved: u64,
    astray: u64,
    others_moved: u64,
    not_back: u64,
}

fn play(how: &str, value: Option<f64>, seed: u64) -> Seen {
    let mut scenario = mesh(NODES, 0.0, BACK + 10.0);
    (scenario.mesh.services, scenario.mesh.rate, scenario.mesh.users) = (2, RATE, 400);
    (scenario.mesh.shallow, scenario.mesh.breaker_slow) = (true, 4);
    scenario.step.push(Step { how: Some(how.into()), value, ..step(BEGINS, Do::App, BAD, LASTS) });
    let mut world = world(scenario, seed);
    // While the sick one is still on the ring: what refuses is seen by its checks and taken off it.
    world.advance(seconds(BEGINS - 0.01));
    let next = nexts(&world);
    world.advance(seconds(BEGINS + LASTS - 0.01));
    // Of the quiet time in between nothing is kept.
    world.advance(seconds(BACK));
    world.advance(seconds(BACK + 10.0));
    judge(world.record.as_ref().unwrap_or(&Record::default()), &next)
}

/// The host of the second instance of each user whose first is the sick one.
fn nexts(world: &World) -> BTreeMap<u32, u32> {
    let view = &world.hosts[0].snapshot;
    let Some(service) = view.service(world.services[BAD as usize % 2].as_str()) else { return BTreeMap::new() };
    let Some(lane) = service.lane("stable") else { return BTreeMap::new() };
    let host = |at: u16| {
        let owner = service.instances[usize::from(at)].record.owner.as_str();
        world.hosts.iter().find(|host| host.id.as_str() == owner).map(|host| host.index)
    };
    let of = |user: u32| {
        let mut order = lane.order(lanemesh::routing::key_hash(subject(user).as_bytes()));
        (host(order.next()?)? == BAD).then(|| host(order.next()?).map(|next| (user, next)))?
    };
    (0..world.scenario.mesh.users).filter_map(of).collect()
}

fn judge(record: &Record, next: &BTreeMap<u32, u32>) -> Seen {
    let [begins, late, ends, back, end] = [BEGINS, BEGINS + 10.0, BEGINS + LASTS, BACK, BACK + 10.0].map(seconds);
    let all = |from: Time, to: Time| {
        record
            .landed
            .iter()
            .filter(move |landed| landed.service == BAD as usize % 2 && (from..to).contains(&landed.begun))
    };
    let failed: Vec<&Landed> = all(begins, end).filter(|landed| landed.by.is_none()).collect();
    let mut posts_failed: BTreeMap<u32, u64> = (0..NODES).map(|host| (host, 0)).collect();
    for landed in failed.iter().filter(|landed| landed.class == MethodClass::Other) {
        *posts_failed.entry(landed.from).or_default() += 1;
    }
    let p99 = |from, to| {
        let mut times: Vec<f64> = all(from, to).map(|landed| landed.took as f64 / SECOND as f64).collect();
        times.sort_by(f64::total_cmp);
        share(&times, 0.99)
    };
    // Where each user of each sidecar was last.
    let places = |from, to| -> BTreeMap<(u32, u32), u32> {
        all(from, to).filter_map(|landed| Some(((landed.from, landed.user), landed.by?))).collect()
    };
    let (before, during, after) = (places(seconds(5.0), begins), places(ends - 5 * SECOND, ends), places(back, end));
    let was = |key: &(u32, u32)| before.get(key).copied();
    let count = |keep: &dyn Fn(&(u32, u32), u32) -> bool, of: &BTreeMap<(u32, u32), u32>| {
        of.iter().filter(|(key, at)| keep(key, **at)).count() as u64
    };
    Seen {
        safe_failed: failed.iter().filter(|landed| landed.class != MethodClass::Other).count() as u64,
        posts_failed,
        slower: p99(late, ends) / p99(seconds(5.0), begins),
        users: count(&|key, _| was(key) == Some(BAD), &during),
        moved: count(&|key, at| was(key) == Some(BAD) && at != BAD, &during),
        astray: count(&|key, at| was(key) == Some(BAD) && at != BAD && next.get(&key.1) != Some(&at), &during),
        others_moved: count(&|key, at| was(key).is_some_and(|was| was != BAD && was != at), &during),
        not_back: count(&|key, at| was(key).is_some_and(|was| was != at), &after),
    }
}

/// Three quarters of a service fail every request, and what is left can't carry all.
pub fn most(size: Size, tell: &mut dyn FnMut(Figure)) {
    const HOSTS: u32 = 12;
    const EACH: u32 = 100;
    for (load, text) in [
        (0.5, "half of what the survivors can do"),
        (1.0, "what the survivors can do"),
        (2.0, "twice what the survivors can do"),
    ] {
        let mut scenario = mesh(HOSTS, 0.0, 80.0);
        let capacity = f64::from(HOSTS / 4 * EACH);
        (scenario.mesh.services, scenario.mesh.users) = (1, 2_000);
        (scenario.mesh.most_rate, scenario.mesh.shallow) = (EACH, true);
        scenario.mesh.rate = load * capacity / f64::from(HOSTS);
        scenario.step.push(Step { how: Some("fail".into()), value: Some(1.0), ..step(20.0, Do::App, "0-8", 60.0) });
        let mut world = world(scenario, size.seed);
        world.advance(seconds(80.0));
        let empty = Record::default();
        let record = world.record.as_ref().unwrap_or(&empty);
        let (from, to) = (seconds(40.0), seconds(75.0));
        let seen: Vec<&Landed> = record.landed.iter().filter(|landed| (from..to).contains(&landed.begun)).collect();
        let good = seen.iter().filter(|landed| landed.by.is_some()).count() as f64 / 35.0;
        let tries = seen.iter().map(|landed| f64::from(landed.tries)).sum::<f64>() / seen.len().max(1) as f64;
        let could = capacity.min(load * capacity);
        tell(Figure {
            what: format!("goodput while nine of {HOSTS} fail everything, under {text}"),
            goal: "90 %, 1.20 tries a request".into(),
            ours: format!("{:.0} % of {could:.0} a second, {tries:.2} tries", 100.0 * good / could),
            met: good >= 0.9 * could && tries <= 1.2,
        });
    }
}
