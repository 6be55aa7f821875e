//! Figures to compare with the prototype's (which had the same model). Prints; asserts little.
//!
//! `cargo test --release --lib figures -- --ignored --nocapture`

use std::time::Duration;

use super::harness::{Life, World, ms};
use crate::types::MemberState::{Alive, Doubtful, Down};

fn spread(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64();
    format!("{:.2}/{:.2}", at(50), at(100))
}

fn crashes(count: usize, seeds: u64, life: Life, loss: f64) {
    let (mut doubtful, mut down, mut wrong, mut incomplete) = (vec![], vec![], 0, 0);
    for seed in 0..seeds {
        let mut world = World::new(count, seed);
        world.loss = loss;
        let (start, victim) = (world.now, count / 2);
        world.kill(victim, life);
        world.run(ms(15_000));
        doubtful.extend(world.last_turn(start, victim, Doubtful));
        match world.last_turn(start, victim, Down) {
            Some(time) => down.push(time),
            None => incomplete += 1,
        }
        wrong += world.wrong_deaths(&[victim]).len();
    }
    let (doubtful, down) = (spread(doubtful), spread(down));
    println!(
        "{count:4} {life:?} loss {loss:.1}: everywhere doubtful {doubtful}, down {down} s (median/worst of {seeds}); incomplete {incomplete}, wrong {wrong}"
    );
}

fn steady(count: usize, seconds: u64, loss: f64) {
    let mut world = World::new(count, 3);
    world.loss = loss;
    for node in &mut world.nodes {
        (node.bytes, node.datagrams) = (0, 0);
    }
    world.run(ms(seconds * 1_000));
    let per = (count as u64 * seconds) as f64;
    let bytes: u64 = world.nodes.iter().map(|node| node.bytes).sum();
    let datagrams: u64 = world.nodes.iter().map(|node| node.datagrams).sum();
    let doubts = world.turns.iter().filter(|turn| turn.state == Doubtful).count();
    println!(
        "{count:4} steady {seconds} s loss {loss:.1}: {:.0} B/s, {:.1} datagrams/s a node; doubtful turns {doubts}, deaths {}",
        bytes as f64 / per,
        datagrams as f64 / per,
        world.wrong_deaths(&[]).len()
    );
}

fn pauses(count: usize, seeds: u64, loss: f64) {
    let (mut back, mut deaths) = (vec![], 0);
    let paused = (count / 10).max(1);
    for seed in 0..seeds {
        let mut world = World::new(count, seed);
        world.loss = loss;
        (0..paused).for_each(|index| world.pause(index, ms(3_000)));
        world.run(ms(3_000));
        back.extend(world.until(ms(20_000), World::whole));
        deaths += world.turns.iter().filter(|turn| turn.state == Down).count();
    }
    println!(
        "{count:4} paused 3 s, {paused} of them, loss {loss:.1}: trusted again {} s, deaths {deaths}",
        spread(back)
    );
}

fn splits(count: usize, seeds: u64, loss: f64) {
    let mut healed = vec![];
    for seed in 0..seeds {
        let mut world = World::new(count, seed);
        world.loss = loss;
        world.split = Some(count / 2);
        world.run(ms(60_000));
        world.split = None;
        healed.extend(world.until(ms(30_000), World::whole));
    }
    println!(
        "{count:4} split 60 s, loss {loss:.1}: whole again {} s, {} of {seeds}",
        spread(healed.clone()),
        healed.len()
    );
}

fn mass(count: usize, life: Life) {
    let mut world = World::new(count, 1);
    let start = world.now;
    (0..count / 2).for_each(|index| world.kill(index, life));
    let skipped = world.until(ms(60_000), |w| (0..count / 2).all(|dead| w.observers_holding(dead, Alive) == 0));
    let down = world.until(ms(120_000), |w| (0..count / 2).all(|dead| w.all_hold(dead, Down)));
    let at = down.map(|_| world.now.since(start).as_secs_f64());
    println!("{count:4} half {life:?} at once: nobody trusts a dead one after {skipped:?}, all down after {at:?} s");
}

fn figures(count: usize, seeds: u64, seconds: u64) {
    for life in [Life::Refusing, Life::Silent] {
        for loss in LOSSES {
            crashes(count, seeds, life, loss);
        }
        mass(count, life);
    }
    for loss in LOSSES {
        steady(count, seconds, loss);
        pauses(count, 10, loss);
        splits(count, 5, loss);
    }
}

const LOSSES: [f64; 3] = [0.0, 0.1, 0.3];

#[test]
#[ignore = "prints figures"]
fn figures_of_3_and_10() {
    figures(3, 40, 3_600);
    figures(10, 40, 3_600);
}

#[test]
#[ignore = "prints figures"]
fn figures_of_30() {
    figures(30, 40, 1_800);
}

#[test]
#[ignore = "prints figures; takes a minute in release"]
fn figures_of_100() {
    figures(100, 20, 600);
}
