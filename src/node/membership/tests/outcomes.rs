//! What a user would notice: how fast a crash is known, and that nothing else is ever taken for one.

use std::time::Duration;

use super::harness::{Life, World, ms, name};
use crate::{
    node::MembershipConfig,
    types::MemberState::{Alive, Doubtful, Down},
};

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

#[test]
fn no_crash_is_acted_on_later_than_the_configuration_says() {
    for count in [3, 4, 10, 40] {
        let bounds = crate::node::removal(&MembershipConfig::lan(), count);
        for seed in 0..12 {
            let (doubtful, down) = crash(count, seed, Life::Refusing, 0.0);
            assert!(doubtful <= bounds.killed, "{count} nodes, seed {seed}: killed, {doubtful:?} > {bounds:?}");
            assert!(down <= bounds.down, "{count} nodes, seed {seed}: killed, {down:?} > {bounds:?}");
            let (doubtful, down) = crash(count, seed, Life::Silent, 0.0);
            assert!(doubtful <= bounds.silent, "{count} nodes, seed {seed}: silent, {doubtful:?} > {bounds:?}");
            assert!(down <= bounds.down, "{count} nodes, seed {seed}: silent, {down:?} > {bounds:?}");
        }
    }
}

#[test]
fn loss_slows_a_crash_down_but_hides_it_from_nobody() {
    for seed in 0..6 {
        let (_, down) = crash(30, seed, Life::Silent, 0.2);
        assert!(down <= ms(6_500), "seed {seed}: {down:?}");
    }
}

#[test]
fn a_pause_of_three_seconds_is_no_death_and_trust_is_back_within_0_3_seconds() {
    for seed in 0..20 {
        let mut world = World::new(10, seed);
        world.pause(3, ms(3_000));
        world.run(ms(3_000));
        let back = world.until(ms(5_000), World::whole).expect("trusted again");
        assert!(back <= ms(300), "seed {seed}: {back:?}");
        world.run(ms(10_000));
        assert!(world.turns.iter().all(|turn| turn.state != Down), "seed {seed}");
        assert!(world.whole());
        assert!(world.nodes[3].reports[0].contains("stood still for"), "{:?}", world.nodes[3].reports);
    }
}

#[test]
fn a_pause_longer_than_every_timer_is_a_death_that_ends_with_the_pause() {
    let mut world = World::new(10, 4);
    let generation = world.nodes[0].m.life(&name(3)).unwrap().0;
    world.pause(3, ms(15_000));
    world.run(ms(14_000));
    assert!(world.all_hold(3, Down));
    world.run(ms(1_000));
    let back = world.until(ms(5_000), World::whole).expect("back");
    assert!(back <= ms(500), "{back:?}");
    assert_eq!(world.nodes[0].m.life(&name(3)).unwrap().0, generation, "it costs an incarnation, not a generation");
    assert!(world.wrong_deaths(&[3]).is_empty(), "the paused node buries nobody either");
}

#[test]
fn minutes_of_ten_per_cent_loss_kill_nobody() {
    for (count, seed) in [(2, 1), (3, 2), (5, 3), (10, 4), (20, 5)] {
        let mut world = World::new(count, seed);
        world.loss = 0.1;
        world.run(ms(180_000));
        assert!(world.wrong_deaths(&[]).is_empty(), "{count} nodes: {:?}", world.turns);
        world.loss = 0.0;
        world.until(ms(3_000), |w| w.whole() && w.digests().len() == 1).expect("one view");
    }
}

#[test]
fn a_split_heals_within_two_seconds() {
    for (count, seed) in [(2, 1), (3, 2), (10, 3), (10, 4), (30, 5)] {
        let mut world = World::new(count, seed);
        for index in 0..count {
            world.nodes[index].m.control(world.now);
        }
        world.split = Some(count / 2);
        world.run(ms(60_000));
        world.split = None;
        let healed = world.until(ms(30_000), World::whole).expect("whole again");
        assert!(healed <= ms(2_000), "{count} nodes: {healed:?}");
        world.until(ms(3_000), |w| w.digests().len() == 1).expect("one view");
        let deaths = world.turns.len();
        world.run(ms(20_000));
        assert_eq!(world.turns.len(), deaths, "nothing happens afterwards");
    }
}

#[test]
fn a_restart_is_recognised_at_once_in_whatever_state_the_old_generation_is() {
    // Before anybody noticed, while doubtful, and after the death (C09, C18).
    for wait in [50, 1_500, 10_000] {
        let mut world = World::new(10, 9);
        world.kill(3, Life::Silent);
        world.run(ms(wait));
        world.turns.clear();
        world.restart(3, true);
        assert!(world.all_hold(3, Alive), "after {wait} ms");
        world.run(ms(30_000));
        assert!(world.whole() && world.digests().len() == 1, "after {wait} ms");
        assert!(world.turns.iter().all(|turn| turn.state == Alive), "{:?}", world.turns);
    }
}

#[test]
fn a_restart_that_nobody_announced_introduces_itself_by_its_first_probe() {
    let mut world = World::new(10, 9);
    world.kill(3, Life::Silent);
    world.run(ms(10_000));
    world.restart(3, false);
    let known = world.until(ms(5_000), World::whole).expect("known again");
    assert!(known <= ms(2_500), "{known:?}");
}

#[test]
fn a_hold_ends_at_its_end_not_when_the_member_is_next_heard() {
    let mut world = World::new(60, 11);
    for _ in 0..3 {
        world.pause(3, ms(10_000));
        world.run(ms(10_500));
    }
    assert!(world.all_hold(3, Down));
    let taken = world.until(ms(60_000), World::whole).expect("taken back");
    assert!(taken <= ms(31_000), "{taken:?}: in a mesh of 60 a given member is heard every 18 s");
}

#[test]
fn a_flapping_member_is_held_down_but_a_restart_of_it_is_not() {
    let mut world = World::new(10, 11);
    for _ in 0..3 {
        world.pause(3, ms(10_000));
        world.run(ms(10_500));
    }
    assert!(world.all_hold(3, Down), "three deaths in half a minute hold it down");
    assert!(world.nodes[0].m.why(&name(3), world.now)[0].contains("held down"));
    assert_eq!(world.digests().len(), 1, "a local hold is no difference of views");
    let mut held = world.nodes[0].m.life(&name(3)).unwrap();
    world.run(ms(10_000));
    assert!(world.all_hold(3, Down));
    assert!(world.nodes[0].m.life(&name(3)).unwrap().1 <= held.1 + 1, "nobody asks a held member to refute again");
    world.restart(3, true);
    assert!(world.all_hold(3, Alive), "a new generation is taken at once");

    // Without a restart the hold ends by itself.
    let mut world = World::new(10, 11);
    for _ in 0..3 {
        world.pause(3, ms(10_000));
        world.run(ms(10_500));
    }
    held = world.nodes[0].m.life(&name(3)).unwrap();
    world.until(ms(40_000), World::whole).expect("taken back after the hold");
    assert!(world.nodes[0].m.life(&name(3)).unwrap().1 <= held.1 + 1);
}

/// Its way out is cut every 20 s for 20 s. It leaves once and comes back once, after the last time.
#[test]
fn a_member_whose_way_out_comes_and_goes_is_buried_once_and_taken_back_when_that_ends() {
    let mut world = World::new(20, 21);
    let way_out: Vec<_> = (0..20).filter(|to| *to != 3).map(|to| (3, to)).collect();
    for round in 0..4 {
        world.cut.extend(way_out.iter().copied());
        world.run(ms(20_000));
        assert!(world.all_hold(3, Down), "round {round}");
        world.cut.clear();
        world.run(ms(20_000));
        assert!(world.all_hold(3, Down), "round {round}: it waits until it has been heard for longer than this");
    }
    let taken = world.until(ms(30_000), World::whole).expect("taken back");
    assert!((ms(8_000)..=ms(12_000)).contains(&taken), "{taken:?}: 30 s after it could be heard again");
}

/// Shorter than a verdict takes, or both ways: then it is back at once.
#[test]
fn a_short_silence_of_the_way_out_and_a_split_are_no_reason_to_wait() {
    let way_out = || (0..20).filter(|to| *to != 3).map(|to| (3, to));
    let mut world = World::new(20, 22);
    world.cut.extend(way_out());
    world.run(ms(2_000));
    world.cut.clear();
    let back = world.until(ms(5_000), World::whole).expect("trusted again");
    assert!(back <= ms(500), "{back:?}");
    let mut world = World::new(20, 23);
    world.cut.extend(way_out().flat_map(|(from, to)| [(from, to), (to, from)]));
    world.run(ms(20_000));
    assert!(world.all_hold(3, Down));
    world.cut.clear();
    let back = world.until(ms(5_000), World::whole).expect("taken back");
    assert!(back <= ms(2_000), "{back:?}");
}

#[test]
fn a_slow_node_harms_nobody() {
    let mut world = World::new(20, 5);
    for _ in 0..3 {
        world.slow.insert(2, ms(10_000));
        world.slow.insert(7, ms(10_000));
        world.run(ms(20_000));
        world.slow.clear();
        world.run(ms(5_000));
    }
    let harmed: Vec<_> = world.turns.iter().filter(|turn| ![2, 7].contains(&turn.member)).collect();
    assert!(harmed.is_empty(), "{harmed:?}");
}

#[test]
fn with_two_members_a_sign_from_outside_makes_a_crash_known() {
    for life in [Life::Refusing, Life::Silent] {
        let mut world = World::new(2, 3);
        world.kill(1, life);
        let start = world.now;
        while !world.all_hold(1, Down) {
            world.run(ms(100));
            if world.nodes[0].m.wants_control() {
                world.nodes[0].m.control(world.now);
            }
            assert!(world.now.since(start) <= ms(6_500), "{life:?}");
        }
    }
}

#[test]
fn with_two_members_and_no_sign_from_outside_nobody_is_accused() {
    let mut world = World::new(2, 3);
    world.kill(1, Life::Silent);
    world.run(ms(60_000));
    assert!(world.turns.is_empty());
    assert!(world.nodes[0].m.wants_control());
    assert_eq!(world.nodes[0].m.health_score(), 0, "with nobody to ask, silence says nothing of one's own health");
}

#[test]
fn with_three_members_and_a_sign_from_outside_the_death_of_both_others_is_known() {
    let mut world = World::new(3, 3);
    world.kill(1, Life::Silent);
    world.kill(2, Life::Silent);
    let start = world.now;
    while !(world.all_hold(1, Down) && world.all_hold(2, Down)) {
        world.run(ms(100));
        if world.nodes[0].m.wants_control() {
            world.nodes[0].m.control(world.now);
        }
        assert!(world.now.since(start) <= ms(15_000), "{:?}", world.nodes[0].m.why(&name(1), world.now));
    }
}

#[test]
fn among_more_members_a_sign_from_outside_does_not_replace_the_meshs_own() {
    let mut world = World::new(6, 3);
    world.slow.insert(0, ms(10_000));
    for _ in 0..300 {
        world.run(ms(100));
        let now = world.now;
        world.nodes[0].m.control(now);
    }
    assert!(world.turns.iter().all(|turn| turn.member == 0), "{:?}", world.turns);
}

#[test]
fn with_three_members_a_crash_is_known() {
    for seed in 0..10 {
        for life in [Life::Refusing, Life::Silent] {
            let (_, down) = crash(3, seed, life, 0.0);
            assert!(down <= ms(5_500), "seed {seed}, {life:?}: {down:?}");
        }
    }
}

#[test]
fn half_the_mesh_at_once_is_a_mass_loss_and_two_of_ten_are_not() {
    let mut world = World::new(10, 6);
    world.kill(8, Life::Silent);
    world.kill(9, Life::Silent);
    world.run(ms(10_000));
    assert!(!world.nodes[0].m.mass_loss());
    for dead in 5..8 {
        world.kill(dead, Life::Silent);
    }
    world.until(ms(5_000), |w| (0..5).all(|node| w.nodes[node].m.mass_loss())).expect("noticed");
    let removed = (5..8).filter(|dead| world.all_hold(*dead, Down)).count();
    assert_eq!(removed, 0, "noticed before the verdicts fall");
    world.run(ms(70_000));
    assert!(!world.nodes[0].m.mass_loss(), "ends when the window has passed without more");
    world.until(ms(20_000), |w| (5..10).all(|dead| w.all_hold(dead, Down))).expect("then they are down");
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let history = || {
        let mut world = World::new(12, 77);
        world.loss = 0.2;
        world.kill(5, Life::Refusing);
        world.pause(7, ms(4_000));
        world.run(ms(20_000));
        (world.turns, world.nodes.iter().map(|node| node.bytes).collect::<Vec<_>>())
    };
    assert_eq!(history(), history());
}
