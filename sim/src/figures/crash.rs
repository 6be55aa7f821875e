//! Members that go: killed, silent, many at once, or standing still.

use lanemesh::types::MemberState::{Doubtful, Down};

use super::{Figure, Size, first_turns, mesh, none_figure, share, spread_figure, step, turns, until, world};
use crate::{
    queue::{SECOND, Time, seconds},
    scenario::{Do, Step},
    world::World,
};

const LOSSES: [f64; 3] = [0.0, 0.1, 0.3];
/// Before the first fault, and between a fault and the next.
const WARM: f64 = 20.0;
const EACH: f64 = 40.0;
/// Where there are so many nodes that a few who are away make no difference, trials overlap.
const MANY: u32 = 300;
const EACH_OF_MANY: f64 = 3.0;
/// How long a member stays away.
const AWAY: f64 = 20.0;

/// One mesh in which members go and come back in turn.
fn one_by_one(nodes: u32, loss: f64, size: Size, how: &str) -> (World, Vec<(u32, Time)>) {
    let trials = size.trials;
    let each = if nodes >= MANY { EACH_OF_MANY } else { EACH };
    let mut scenario = mesh(nodes, loss, WARM + each * f64::from(trials - 1) + AWAY);
    let mut gone = Vec::new();
    for trial in 0..trials {
        // Not the seeds, and not in step with anybody's timers.
        let victim = 3 + (trial * 7) % (nodes - 3);
        let t = WARM + each * f64::from(trial) + 0.037 * f64::from(trial % 11);
        scenario.step.push(Step { how: Some(how.into()), ..step(t, Do::Crash, victim, AWAY) });
        gone.push((victim, seconds(t)));
    }
    let mut world = world(scenario, size.seed);
    let end = world.end();
    world.advance(end);
    (world, gone)
}

fn sizes(size: Size) -> impl Iterator<Item = u32> {
    [10, 100, 300, 1000].into_iter().filter(move |nodes| *nodes <= size.most)
}

/// When every node that is there first turned to one of these states, in each trial: all but the victim itself and, where trials
/// overlap, the other victims that are away at that time. Nothing for a trial in which one never did.
fn all_turns(world: &World, gone: &[(u32, Time)], states: &[lanemesh::types::MemberState]) -> Vec<Option<Vec<f64>>> {
    let away = seconds(AWAY);
    let turns = |(victim, at): &(u32, Time)| {
        let overlaps = |(_, other): &&(u32, Time)| other.abs_diff(*at) < away + SECOND;
        let absent: Vec<u32> = gone.iter().filter(overlaps).map(|(host, _)| *host).collect();
        let observers = (world.hosts.len() - absent.len(), |host| !absent.contains(&host));
        first_turns(world, *victim, (*at, at + away), observers, states)
    };
    gone.iter().map(turns).collect()
}

/// Something of each trial, and how many trials had nobody to the end.
fn of_each(trials: &[Option<Vec<f64>>], figure: impl Fn(&[f64]) -> f64) -> (Vec<f64>, usize) {
    let ended: Vec<f64> = trials.iter().flatten().map(|times| figure(times)).collect();
    let never = trials.len() - ended.len();
    (ended, never)
}

/// The last observer's time in each trial, and how many trials had one that never turned.
fn last_turns(world: &World, gone: &[(u32, Time)], states: &[lanemesh::types::MemberState]) -> (Vec<f64>, usize) {
    of_each(&all_turns(world, gone, states), |times| times.last().copied().unwrap_or(f64::NAN))
}

/// From the first verdict to that of 99 % of the mesh.
fn news_of_death(world: &World, gone: &[(u32, Time)]) -> (Vec<f64>, usize) {
    of_each(&all_turns(world, gone, &[Down]), |times| share(times, 0.99) - times.first().copied().unwrap_or(f64::NAN))
}

/// A process ends, its host refuses for it.
pub fn killed(size: Size, tell: &mut dyn FnMut(Figure)) {
    for nodes in sizes(size) {
        for loss in LOSSES {
            let (world, gone) = one_by_one(nodes, loss, size, "refused");
            let at = format!("{nodes} nodes, loss {:.0} %", loss * 100.0);
            let (down, never) = last_turns(&world, &gone, &[Down]);
            tell(spread_figure(format!("down everywhere, {at}"), down, never, (1.0, 2.2)));
            let (news, never) = news_of_death(&world, &gone);
            let most = if nodes > 300 { 0.7 } else { 0.5 };
            tell(spread_figure(format!("first verdict to 99 % know, {at}"), news, never, (most, most)));
        }
    }
}

/// A host is gone.
pub fn silent(size: Size, tell: &mut dyn FnMut(Figure)) {
    for nodes in sizes(size) {
        for loss in LOSSES {
            let (world, gone) = one_by_one(nodes, loss, size, "silent");
            let at = format!("{nodes} nodes, loss {:.0} %", loss * 100.0);
            let (doubtful, never) = last_turns(&world, &gone, &[Doubtful, Down]);
            tell(spread_figure(format!("no new request, {at}"), doubtful, never, (1.2, 2.5)));
            let (down, never) = last_turns(&world, &gone, &[Down]);
            tell(spread_figure(format!("down everywhere, {at}"), down, never, (4.0, 5.2)));
        }
    }
}

/// Half of all hosts are gone at once, under traffic.
pub fn mass(size: Size, tell: &mut dyn FnMut(Figure)) {
    if size.most < 100 {
        return;
    }
    for rate in [0.0, 10.0] {
        let (mut last_try, mut doubtful, mut back) = (Vec::new(), Vec::new(), Vec::new());
        let (mut never, mut never_back) = (0, 0);
        for seed in 0..u64::from(size.trials.clamp(1, 5)) {
            let mut scenario = mesh(100, 0.0, 120.0);
            scenario.mesh.rate = rate;
            scenario.step.push(Step { how: Some("silent".into()), ..step(20.0, Do::Crash, "50-99", 60.0) });
            let mut world = world(scenario, size.seed + seed);
            world.advance(seconds(20.0));
            let dead: Vec<u32> = (50..100).collect();
            let trusts = |world: &World| (0..50).any(|at| dead.iter().any(|dead| world.trusts(at, *dead)));
            let begun = world.now;
            match until(&mut world, 30.0, |world| !trusts(world)) {
                Some(at) => doubtful.push((at - begun) as f64 / SECOND as f64),
                None => never += 1,
            }
            world.advance(seconds(80.0));
            let firsts = &world.record.as_ref().expect("it is kept").firsts;
            let last = firsts.iter().filter(|(at, host)| *at > begun && dead.contains(host)).map(|(at, _)| *at).max();
            last_try.extend(last.map(|at| (at - begun) as f64 / SECOND as f64));
            let begun = world.now;
            match until(&mut world, 30.0, super::whole) {
                Some(at) => back.push((at - begun) as f64 / SECOND as f64),
                None => never_back += 1,
            }
        }
        let at = format!("{rate} requests/s a node");
        tell(spread_figure(format!("nobody trusts a dead one, {at}"), doubtful, never, (3.0, 3.0)));
        if rate > 0.0 {
            tell(spread_figure(format!("last new request to a dead one, {at}"), last_try, 0, (3.0, 3.0)));
        }
        tell(spread_figure(format!("all back, everybody sees it, {at}"), back, never_back, (2.0, 3.0)));
    }
}

/// One node in ten stands still for a while.
pub fn paused(size: Size, tell: &mut dyn FnMut(Figure)) {
    for nodes in [100, 300].into_iter().filter(|nodes| *nodes <= size.most) {
        for loss in LOSSES {
            for lasts in [3.0, 10.0] {
                pauses(nodes, loss, lasts, size, tell);
            }
        }
    }
}

fn pauses(nodes: u32, loss: f64, lasts: f64, size: Size, tell: &mut dyn FnMut(Figure)) {
    let (mut wrong, mut back, mut never, mut paused_down) = (0, Vec::new(), 0, 0);
    let trials = size.trials.clamp(1, 5);
    let mut scenario = mesh(nodes, loss, WARM + EACH * f64::from(trials));
    for trial in 0..trials {
        let first = (trial * nodes / 10) % nodes;
        let some = format!("{first}-{}", first + nodes / 10 - 1);
        scenario.step.push(step(WARM + EACH * f64::from(trial), Do::Pause, some, lasts));
    }
    let mut world = world(scenario, size.seed);
    for trial in 0..trials {
        let begun = seconds(WARM + EACH * f64::from(trial));
        let first = (trial * nodes / 10) % nodes;
        let asleep = first..first + nodes / 10;
        world.advance(begun + seconds(lasts));
        let resumed = world.now;
        match until(&mut world, 20.0, super::whole) {
            Some(at) => back.push((at - resumed) as f64 / SECOND as f64),
            None => never += 1,
        }
        world.advance(begun + seconds(EACH));
        for subject in 0..nodes {
            let deaths = turns(&world, subject, begun, world.now).filter(|turn| turn.state == Down);
            if asleep.contains(&subject) {
                paused_down += u64::from(deaths.count() > 0);
            } else {
                wrong += deaths.count() as u64;
            }
        }
    }
    let at = format!("{nodes} nodes, loss {:.0} %, {lasts} s", loss * 100.0);
    tell(none_figure(format!("running ones held dead, {at}"), wrong, ""));
    if lasts < 5.0 && loss < 0.3 {
        tell(none_figure(format!("paused ones held dead, {at}"), paused_down, ""));
    }
    tell(spread_figure(format!("back after it goes on, {at}"), back, never, (0.3, if loss < 0.3 { 0.3 } else { 2.0 })));
}
