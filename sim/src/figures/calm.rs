//! What must not happen: deaths of the living, over loss, hunger, deafness and links that come and go.

use lanemesh::types::MemberState::{Alive, Down};

use super::{Figure, Size, mesh, none_figure, step, world};
use crate::{
    queue::{SECOND, seconds},
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

/// A node's way out comes and goes every 20 s for 10 minutes: it hears everybody all the time, and is heard half of it.
pub fn flip_flop(size: Size, tell: &mut dyn FnMut(Figure)) {
    let nodes = 100.min(size.most);
    let (mut wrong, mut changes) = (0, 0);
    let seeds = size.trials.clamp(1, 3);
    for seed in 0..u64::from(seeds) {
        let mut scenario = mesh(nodes, 0.0, 700.0);
        for turn in 0..15 {
            let out = step(20.0 + 40.0 * f64::from(turn), Do::OneWay, "7", 20.0);
            scenario.step.push(Step { to: Some("rest".into()), ..out });
        }
        let mut world = world(scenario, size.seed + seed);
        world.advance(seconds(20.0));
        let mut inside = is_asked(&mut world, 50, 7);
        while world.now < seconds(620.0) {
            world.advance(world.now + SECOND / 10);
            let now = is_asked(&mut world, 50, 7);
            changes += u64::from(std::mem::replace(&mut inside, now) != now);
        }
        let record = world.record.iter().flat_map(|record| &record.turns);
        wrong += record.filter(|turn| turn.state == Down && turn.subject != 7 && turn.observer != 7).count() as u64;
    }
    tell(none_figure(
        format!("others held dead, one of {nodes} flips every 20 s"),
        wrong,
        &format!(" over {seeds} seeds"),
    ));
    let per = changes as f64 / f64::from(seeds);
    tell(Figure {
        what: "times that it leaves or enters another node's rings in 10 min".into(),
        goal: "1".into(),
        ours: format!("{per:.0}"),
        met: per <= 1.0,
    });
}

/// Whether a host's routing view has another's instances for new requests.
fn is_asked(world: &mut World, host: u32, other: u32) -> bool {
    let view = world.view(host);
    let id = &world.hosts[other as usize].id;
    let mut entries = view.services().flat_map(|service| &service.instances);
    entries.any(|entry| entry.record.owner == *id && entry.excluded.is_none() && entry.owner == Alive)
}

/// One member has a valid certificate and lies: forged deaths, records, generations, replays, garbage.
pub fn liar(size: Size, tell: &mut dyn FnMut(Figure)) {
    for nodes in [20, 100].into_iter().filter(|nodes| *nodes <= size.most) {
        let (mut removed, mut taken, mut named) = (0, 0, 0);
        let seeds = size.trials.clamp(1, 3);
        for seed in 0..u64::from(seeds) {
            let mut scenario = mesh(nodes, 0.0, 150.0);
            scenario.step.push(step(20.0, Do::Lie, "5", 120.0));
            scenario.allow.remove("only-owners-words");
            let mut world = world(scenario, size.seed + seed);
            let end = world.end();
            world.advance(end);
            removed += deaths(&world, |subject| subject != 5);
            taken += world.findings.all().iter().map(|violation| violation.times).sum::<u64>();
            let liar = &world.hosts[5].id;
            named += u32::from(world.record.as_ref().is_some_and(|record| record.named.contains(liar)));
        }
        let of = format!(" over {seeds} seeds");
        tell(none_figure(format!("removed from routing by one liar of {nodes} in 120 s"), removed, &of));
        tell(none_figure("words of another's that are held and were never said".to_owned(), taken, &of));
        tell(Figure {
            what: "runs in which the liar is named in a log line and counted".into(),
            goal: format!("{seeds}"),
            ours: format!("{named}"),
            met: named == seeds,
        });
    }
}

/// What goes over the wire while nothing happens (level 2: real QUIC).
pub fn bytes(size: Size, tell: &mut dyn FnMut(Figure)) {
    for nodes in [100, 200].into_iter().filter(|nodes| *nodes <= size.most) {
        let mut scenario = mesh(nodes, 0.0, 120.0);
        (scenario.level, scenario.mesh.warm, scenario.mesh.cpu) = (2, false, Some(0.0));
        let mut world = world(scenario, size.seed);
        world.advance(seconds(60.0));
        let sent = |world: &World| world.hosts.iter().map(|host| host.sent.0).sum::<u64>();
        let before = sent(&world);
        world.advance(seconds(120.0));
        let per = (sent(&world) - before) as f64 / 60.0 / f64::from(nodes);
        tell(Figure {
            what: format!("bytes a node and second, {nodes} nodes, idle, with headers"),
            goal: "1000".into(),
            ours: format!("{per:.0}"),
            met: per <= 1000.0,
        });
    }
}
