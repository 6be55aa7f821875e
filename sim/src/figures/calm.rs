//! What must not happen: deaths of the living, over loss, hunger, deafness and links that come and go.

use lanemesh::types::MemberState::{Alive, Down};

use super::{Figure, Size, mesh, none_figure, step, turns, world};
use crate::{
    queue::seconds,
    scenario::{Do, Step},
    world::World,
};

fn deaths(world: &World, of: impl Fn(u32) -> bool) -> u64 {
    let turns = world.record.iter().flat_map(|record| &record.turns);
    turns.filter(|turn| turn.state == Down && of(turn.subject)).count() as u64
}

/// Nothing is wrong but the links: packets are lost one by one, or all for a moment.
pub fn loss(size: Size, tell: &mut dyn FnMut(Figure)) {
    let nodes = 100.min(size.most);
    let hours = size.node_hours;
    for (loss, burst) in [(0.0, 0.0), (0.1, 0.0), (0.3, 0.0), (0.1, 100.0), (0.3, 100.0)] {
        let length = hours * 3600.0 / f64::from(nodes);
        let mut scenario = mesh(nodes, loss, 20.0 + length);
        scenario.mesh.link.burst_ms = burst;
        let mut world = world(scenario, size.seed);
        world.advance(seconds(20.0));
        world.record = Some(Default::default());
        let sent: u64 = world.hosts.iter().map(|host| host.sent.0).sum();
        let end = world.end();
        world.advance(end);
        let bytes = world.hosts.iter().map(|host| host.sent.0).sum::<u64>() - sent;
        let per = bytes as f64 / length / f64::from(nodes);
        let kind = if burst > 0.0 { format!(" in bursts of {burst:.0} ms") } else { String::new() };
        let what = format!("false deaths, {nodes} nodes, loss {:.0} %{kind}", loss * 100.0);
        tell(none_figure(what, deaths(&world, |_| true), &format!(" in {hours:.0} node-hours ({per:.0} B/s a node)")));
    }
}

/// Some nodes hardly get the processor.
pub fn starved(size: Size, tell: &mut dyn FnMut(Figure)) {
    let nodes = 100.min(size.most);
    for hungry in [4, 16, 32].into_iter().filter(|hungry| *hungry < nodes) {
        let mut wrong = 0;
        for seed in 0..u64::from(size.trials) {
            let mut scenario = mesh(nodes, 0.0, 60.0);
            let some = format!("0-{}", hungry - 1);
            let starve = Step { run: Some(0.05), stop: Some(0.95), ..step(20.0, Do::Starve, some, 10.0) };
            scenario.step.push(starve);
            let mut world = world(scenario, size.seed + seed);
            let end = world.end();
            world.advance(end);
            wrong += deaths(&world, |subject| subject >= hungry);
        }
        let of = format!(" over {} seeds", size.trials);
        tell(none_figure(format!("healthy ones held dead, {hungry} of {nodes} starved 10 s"), wrong, &of));
    }
}

/// A node hears nothing for a minute.
pub fn deaf(size: Size, tell: &mut dyn FnMut(Figure)) {
    let nodes = 100.min(size.most);
    let mut wrong = 0;
    for seed in 0..u64::from(size.trials) {
        let mut scenario = mesh(nodes, 0.0, 110.0);
        scenario.step.push(Step { to: Some("5".into()), ..step(20.0, Do::OneWay, "0-4,6-999", 60.0) });
        let mut world = world(scenario, size.seed + seed);
        let end = world.end();
        world.advance(end);
        wrong += deaths(&world, |subject| subject != 5);
    }
    let of = format!(" over {} seeds", size.trials);
    tell(none_figure(format!("others held dead, one of {nodes} hears nothing for 60 s"), wrong, &of));
}

/// A node's way out comes and goes every 20 s for 10 minutes.
pub fn flip_flop(size: Size, tell: &mut dyn FnMut(Figure)) {
    let nodes = 100.min(size.most);
    let (mut wrong, mut changes) = (0, 0);
    let seeds = size.trials.clamp(1, 3);
    for seed in 0..u64::from(seeds) {
        let mut scenario = mesh(nodes, 0.0, 700.0);
        scenario.step.push(Step { period: Some(20.0), ..step(20.0, Do::FlipFlop, "7", 600.0) });
        let mut world = world(scenario, size.seed + seed);
        let end = world.end();
        world.advance(end);
        let record = world.record.iter().flat_map(|record| &record.turns);
        wrong += record.filter(|turn| turn.state == Down && turn.subject != 7 && turn.observer != 7).count() as u64;
        // What one other node's ring sees of it: out, and back.
        let seen: Vec<bool> = turns(&world, 7, seconds(20.0), seconds(620.0))
            .filter(|turn| turn.observer == 50)
            .map(|turn| turn.state == Alive)
            .collect();
        changes += seen.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64;
    }
    tell(none_figure(
        format!("others held dead, one of {nodes} flips every 20 s"),
        wrong,
        &format!(" over {seeds} seeds"),
    ));
    let per = changes as f64 / f64::from(seeds);
    tell(Figure {
        what: "changes of its state at another node in 10 min".into(),
        goal: "as few as can be".into(),
        ours: format!("{per:.0}"),
        met: true,
    });
}
