//! What a user would notice: how fast a crash is known, and that nothing else is ever taken for one.

use std::time::Duration;

use super::harness::{Life, World, ms};
use crate::types::MemberState::{Alive, Doubtful, Down};

/// (last node doubtful, last node down) of one crash.
fn crash(count: usize, seed: u64, life: Life, loss: f64) -> (Duration, Duration) {
    let mut world = World::new(count, seed);
    world.loss = loss;
    let (start, victim) = (world.now, count / 2);
    world.kill(victim, life);
    world.until(ms(20_000), |w| w.all_hold(victim, Down)).expect("a crash is known everywhere");
    assert_eq!(world.wrong_deaths(&[victim]), Vec::<&_>::new(), "seed {seed}");
    let doubtful = world.last_turn(start, victim, Doubtful).unwrap_or_default();
    (doubtful, world.last_turn(start, victim, Down).expect("just seen"))
}

#[test]
fn a_crash_with_a_refusing_port_is_a_death_everywhere_within_2_2_seconds() {
    for (count, seeds) in [(10, 20), (30, 6)] {
        for seed in 0..seeds {
            let (_, down) = crash(count, seed, Life::Refusing, 0.0);
            assert!(down <= ms(2_200), "{count} nodes, seed {seed}: {down:?}");
        }
    }
}

#[test]
fn a_silent_crash_stops_new_requests_within_2_5_seconds_and_is_a_death_within_5_2() {
    for (count, seeds) in [(10, 20), (30, 6)] {
        for seed in 0..seeds {
            let (doubtful, down) = crash(count, seed, Life::Silent, 0.0);
            assert!(doubtful <= ms(2_500), "{count} nodes, seed {seed}: doubtful {doubtful:?}");
            assert!(down <= ms(5_200), "{count} nodes, seed {seed}: down {down:?}");
        }
    }
}
