//! What a user of the mesh sees, in virtual time.

use std::time::Duration;

use super::world::World;
use crate::{
    lanes::PolicyChange,
    node::{Event, Input, InstanceChange},
    types::{Health, InstanceId, Lane, MemberState, ServiceName},
};

const SECOND: Duration = Duration::from_secs(1);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn id(name: &str) -> InstanceId {
    InstanceId::new(name).unwrap()
}

fn orders() -> ServiceName {
    ServiceName::new("orders").unwrap()
}

/// Whether every running node's table shows this of an instance.
fn everywhere(world: &World, instance: &str, shows: impl Fn(&crate::routing::Candidate) -> bool) -> bool {
    world.running().into_iter().all(|at| {
        let mut found = world.table(at).instances.iter().filter(|c| c.record.id.as_str() == instance);
        found.next().is_some_and(&shows)
    })
}

#[test]
fn ten_nodes_see_each_other_within_a_second_and_hold_the_same() {
    let mut world = World::new(1);
    for at in 0..10 {
        world.add(&format!("n{at}"), &["orders"]);
    }
    for at in 0..10 {
        world.start(at);
    }
    let took = world.run_until(5 * SECOND, World::converged).expect("never converged");
    assert!(took <= SECOND, "{took:?}");
    assert!(world.run_until(SECOND, |w| w.running().iter().all(|at| w.table(*at).instances.len() == 10)).is_some());
}

#[test]
fn a_change_is_in_every_table_within_a_fraction_of_a_second() {
    let mut world = World::mesh(10, 2);
    world.run(2 * SECOND);
    let change =
        InstanceChange { weight: Some(30), lane: Some(Lane::new("canary").unwrap()), ..InstanceChange::default() };
    world.order_of(3, |node, now| node.change_instance(now, &id("n3"), change).unwrap());
    let seen = |w: &World| everywhere(w, "n3", |c| c.record.weight == 30 && c.record.lane.as_str() == "canary");
    let took = world.run_until(5 * SECOND, seen).expect("never arrived");
    assert!(took <= ms(400), "{took:?}");
}

#[test]
fn under_heavy_loss_every_change_still_arrives_everywhere() {
    for seed in 0..5 {
        let mut world = World::mesh(10, seed);
        world.set_loss(0.3);
        world.run(2 * SECOND);
        for weight in [1, 50, 1600] {
            let change = InstanceChange { weight: Some(weight), ..InstanceChange::default() };
            world.order_of(2, |node, now| node.change_instance(now, &id("n2"), change).unwrap());
            let took = world.run_until(10 * SECOND, |w| everywhere(w, "n2", |c| c.record.weight == weight));
            assert!(took.is_some_and(|took| took <= 5 * SECOND), "seed {seed}, weight {weight}: {took:?}");
        }
    }
}

#[test]
fn a_leave_is_left_everywhere_at_once_and_never_down() {
    let mut world = World::mesh(10, 3);
    world.order_of(4, crate::node::Node::leave);
    let left = |w: &World| (0..10).filter(|at| *at != 4).all(|at| w.state(at, 4) == Some(MemberState::Left));
    let took = world.run_until(5 * SECOND, left).expect("not everybody heard");
    assert!(took <= ms(300), "{took:?}");
    assert!(world.run_until(ms(100), |w| w.node(4).goodbye_heard()).is_some());
    world.kill(4);
    world.run(10 * SECOND);
    assert!(left(&world));
    for at in (0..10).filter(|at| *at != 4) {
        let name = world.name(4);
        let bad = world
            .events(at)
            .iter()
            .any(|event| matches!(event, Event::Member { node, state: MemberState::Down } if node == name));
        assert!(!bad, "n{at} held a leaver dead");
    }
}

#[test]
fn what_takes_traffic_away_is_never_held_back() {
    let mut world = World::mesh(6, 4);
    world.run(2 * SECOND);
    // A change just published starts the coalescing time; the drain does not wait for its end.
    let change = InstanceChange { weight: Some(90), ..InstanceChange::default() };
    world.order_of(0, |node, now| node.change_instance(now, &id("n0"), change).unwrap());
    world.run_until(SECOND, |w| everywhere(w, "n0", |c| c.record.weight == 90)).unwrap();
    world.order_of(1, |node, now| node.drain(now, &[], "test", "", None).unwrap());
    let took = world.run_until(5 * SECOND, |w| everywhere(w, "n1", |c| c.record.drain.is_some())).unwrap();
    assert!(took <= ms(50), "{took:?}");
    world.order_of(2, |node, now| node.set_health(now, &id("n2"), Health::Critical));
    let took = world.run_until(5 * SECOND, |w| everywhere(w, "n2", |c| c.record.health == Health::Critical)).unwrap();
    assert!(took <= ms(50), "{took:?}");
}

#[test]
fn further_changes_are_coalesced() {
    let mut world = World::mesh(3, 5);
    world.run(2 * SECOND);
    let before = world.table(0).version;
    for weight in 1..=20 {
        let change = InstanceChange { weight: Some(weight), ..InstanceChange::default() };
        world.order_of(1, |node, now| node.change_instance(now, &id("n1"), change).unwrap());
        world.run(ms(20));
    }
    world.run(SECOND);
    let published = world.table(0).version - before;
    assert!((1..=3).contains(&published), "{published} publications for 20 changes in 0.4 s");
    assert!(everywhere(&world, "n1", |c| c.record.weight == 20));
}

#[test]
fn a_policy_set_anywhere_reaches_everybody_and_a_rollback_wins() {
    let mut world = World::mesh(8, 6);
    let canary =
        |size| PolicyChange { sizes: [(Lane::new("canary").unwrap(), size)].into(), ..PolicyChange::default() };
    world.order_of(5, |node, now| node.set_policy(now, &orders(), &canary(500)).unwrap());
    let holds = |w: &World, off: bool| {
        w.running().iter().all(|at| w.table(*at).policies.get(&orders()).is_some_and(|policy| policy.off == off))
    };
    assert!(world.run_until(SECOND, |w| holds(w, false)).is_some());
    // A raise on one side of a partition, a rollback on the other: after the heal the rollback stands everywhere.
    world.split_at(Some(4));
    world.order_of(6, |node, now| node.rollback(now, &orders(), "errors").unwrap());
    world.run(ms(50));
    world.order_of(1, |node, now| node.set_policy(now, &orders(), &canary(900)).unwrap());
    world.run(3 * SECOND);
    world.split_at(None);
    assert!(world.run_until(10 * SECOND, |w| holds(w, true)).is_some());
}

/// What one of them misses of all that is said at once is not left to the next second.
#[test]
fn halves_that_meet_again_are_whole_within_a_second() {
    for seed in 1..6 {
        let mut world = World::mesh(40, seed);
        world.run(2 * SECOND);
        world.split_at(Some(20));
        world.run(10 * SECOND + ms(130 * seed));
        assert!(!world.converged(), "both halves hold the other dead");
        world.set_loss(0.1);
        world.split_at(None);
        assert!(world.run_until(SECOND, World::converged).is_some(), "seed {seed}");
    }
}

#[test]
fn a_glance_is_enough_where_both_hold_the_same_and_leads_to_what_differs() {
    let mut world = World::mesh(3, 64);
    let other = world.name(1).clone();
    let opened = |world: &World| world.node(0).counters().syncs_opened;
    let before = opened(&world);
    world.order_of(0, |node, now| node.glance_at(now, &other));
    world.run(ms(60));
    assert_eq!(opened(&world), before + 1);
    // Of what follows only syncs come through.
    world.set_loss(1.0);
    world.order_of(1, |node, now| node.set_policy(now, &orders(), &PolicyChange::default()).unwrap());
    world.order_of(0, |node, now| node.glance_at(now, &other));
    world.run(ms(60));
    assert_eq!(opened(&world), before + 3);
    assert!(world.node(0).catalog().policy(&orders()).is_some());
}

#[test]
fn a_change_that_builds_on_a_clock_far_ahead_is_refused_with_a_cure_and_a_rollback_mends_it() {
    let mut world = World::mesh(3, 63);
    let canary =
        |size| PolicyChange { sizes: [(Lane::new("canary").unwrap(), size)].into(), ..PolicyChange::default() };
    world.order_of(1, |node, mut now| {
        now.wall.0 += 50_000;
        node.set_policy(now, &orders(), &canary(500)).unwrap();
    });
    world.run(SECOND);
    world.order_of(2, |node, mut now| {
        now.wall.0 -= 3_600_000;
        let error = node.set_policy(now, &orders(), &canary(900)).unwrap_err().to_string();
        assert!(error.contains("rollback orders"), "{error}");
        node.rollback(now, &orders(), "clock").unwrap();
    });
    let off = |w: &World| w.running().iter().all(|at| w.table(*at).policies[&orders()].off);
    assert!(world.run_until(SECOND, off).is_some());
    world.order_of(2, |node, now| node.set_policy(now, &orders(), &canary(900)).unwrap());
    assert!(world.run_until(SECOND, |w| !off(w)).is_some());
}

#[test]
fn a_restarted_node_asks_its_seeds_although_the_disk_calls_them_alive() {
    let mut world = World::mesh(4, 64);
    world.run(3 * SECOND);
    world.kill(2);
    world.run(ms(100));
    world.start(2);
    let took = world.run_until(SECOND, |w| w.node(2).is_member()).expect("never took part");
    assert!(took <= ms(100), "{took:?}: its seed answers within some milliseconds");
}

#[test]
fn a_fast_restart_is_the_new_run_at_once() {
    let mut world = World::mesh(5, 7);
    for round in 0..6 {
        world.kill(2);
        world.run(ms(150));
        world.start(2);
        world.announce(2, "n2", &format!("v{}", round + 2));
        let version = format!("v{}", round + 2);
        let took = world.run_until(5 * SECOND, |w| everywhere(w, "n2", |c| c.record.version.as_str() == version));
        assert!(took.is_some_and(|took| took <= 2 * SECOND), "round {round}: {took:?}");
        for at in world.running() {
            assert_eq!(world.node(at).catalog().owned_by(world.name(2)).count(), 1, "one entry, not both");
        }
    }
    assert!(world.run_until(5 * SECOND, World::converged).is_some());
    assert_eq!(world.node(2).generation(), 7);
}

#[test]
fn a_lost_disk_costs_nothing_since_the_mesh_remembers_the_generation() {
    let mut world = World::mesh(5, 8);
    for _ in 0..3 {
        world.kill(2);
        world.lose_disk(2);
        world.run(ms(100));
        world.start(2);
        world.run(ms(600));
    }
    assert_eq!(world.node(2).generation(), 4);
    assert!(world.run_until(5 * SECOND, World::converged).is_some());
}

#[test]
fn the_same_name_at_a_new_address_is_taken_back_after_leave_and_after_death() {
    let mut world = World::mesh(5, 9);
    world.order_of(3, crate::node::Node::leave);
    world.run(ms(300));
    world.kill(3);
    world.moves_to(3, 7900);
    world.start(3);
    assert!(world.run_until(3 * SECOND, World::converged).is_some(), "after a leave");
    world.kill(3);
    world.moves_to(3, 7901);
    world.lose_disk(3);
    world.start(3);
    assert!(world.run_until(4 * SECOND, World::converged).is_some(), "after a kill, without its disk");
}

#[test]
fn of_two_live_nodes_with_one_name_the_newcomer_is_refused_and_nobody_flaps() {
    let mut world = World::mesh(4, 10);
    let twin = world.add("n2", &["orders"]);
    let generation = world.node(2).generation();
    world.start(twin);
    let refused = |w: &World| w.events(twin).iter().any(|event| matches!(event, Event::NameTaken { .. }));
    assert!(world.run_until(5 * SECOND, refused).is_some());
    world.kill(twin);
    world.run(5 * SECOND);
    assert_eq!(world.node(2).generation(), generation, "the first one did not have to move");
    assert!(world.converged());
}

#[test]
fn two_with_one_name_that_meet_after_a_partition_end_as_one() {
    for seed in 0..4 {
        let mut world = World::mesh(6, 80 + seed);
        world.kill(4);
        world.lose_disk(4);
        // One comes up on each side of a partition, at different addresses, both as if for the first time.
        world.split_at(Some(3));
        world.run(4 * SECOND);
        let twin = world.add("n4", &["orders"]);
        world.start(4);
        world.start(twin);
        world.run(8 * SECOND);
        world.split_at(None);
        let ended = |w: &World, at: usize| w.events(at).iter().any(|event| matches!(event, Event::NameTaken { .. }));
        let one = |w: &World| ended(w, 4) != ended(w, twin);
        assert!(world.run_until(20 * SECOND, one).is_some(), "seed {seed}: nobody, or both, gave way");
        world.kill(if ended(&world, 4) { 4 } else { twin });
        assert!(world.run_until(20 * SECOND, World::converged).is_some(), "seed {seed}");
        assert!(one(&world));
    }
}

#[test]
fn killed_is_down_everywhere_soon_and_its_instances_leave_the_tables() {
    for seed in 0..5 {
        let mut world = World::mesh(10, 20 + seed);
        world.run(3 * SECOND);
        world.kill(7);
        let down = |w: &World| w.running().iter().all(|at| w.state(*at, 7) == Some(MemberState::Down));
        let took = world.run_until(10 * SECOND, down).expect("never noticed");
        assert!(took <= ms(2200), "seed {seed}: {took:?}");
        assert!(everywhere(&world, "n7", |c| c.owner == MemberState::Down));
    }
}

#[test]
fn a_silent_host_is_doubtful_then_down_and_welcome_back() {
    let mut world = World::mesh(10, 31);
    world.run(3 * SECOND);
    world.vanish(7);
    let doubtful = |w: &World| w.running().iter().all(|at| w.state(*at, 7) != Some(MemberState::Alive));
    assert!(world.run_until(10 * SECOND, doubtful).is_some_and(|took| took <= ms(2500)));
    let down = |w: &World| w.running().iter().all(|at| w.state(*at, 7) == Some(MemberState::Down));
    assert!(world.run_until(10 * SECOND, down).is_some_and(|took| took <= ms(5200)));
    world.start(7);
    assert!(world.run_until(3 * SECOND, World::converged).is_some());
}

#[test]
fn two_nodes_notice_a_kill_too() {
    let mut world = World::mesh(2, 32);
    world.run(2 * SECOND);
    world.kill(1);
    let took = world.run_until(20 * SECOND, |w| w.state(0, 1) == Some(MemberState::Down));
    assert!(took.is_some_and(|took| took <= 6 * SECOND), "{took:?}");
}

/// Nobody in a mesh of two can show that the survivor's own network works; a seed's host can, whose sidecar is not started.
#[test]
fn of_two_nodes_one_that_falls_silent_is_noticed_by_the_sign_of_a_seed() {
    for (with_seed, most) in [(true, Some(6 * SECOND)), (false, None)] {
        let mut world = World::new(33);
        for name in ["n0", "n1", "n2"] {
            world.add(name, &["orders"]);
        }
        let (spare, first) = ("127.0.0.1:7000".parse().unwrap(), "127.0.0.1:7001".parse().unwrap());
        for at in [1, 2] {
            world.start(at);
            world.give(at, Input::Seeds(if with_seed { vec![spare, first] } else { vec![first] }));
        }
        world.run_until(5 * SECOND, World::converged).expect("never converged");
        world.vanish(2);
        let took = world.run_until(20 * SECOND, |w| w.state(1, 2) == Some(MemberState::Down));
        assert_eq!(took.is_some(), most.is_some(), "{took:?}");
        assert!(took <= most, "{took:?}");
    }
}

/// M8: a node that loses everybody keeps what it knew as a last resort; who loses one or two removes them.
#[test]
fn whoever_is_cut_off_keeps_a_last_resort_until_it_is_back() {
    let mut world = World::mesh(8, 34);
    world.split_at(Some(3));
    let lost = |w: &World, at: usize, who: std::ops::Range<usize>| {
        who.clone().all(|other| w.state(at, other) == Some(MemberState::Down))
    };
    world.run_until(15 * SECOND, |w| lost(w, 0, 3..8) && lost(w, 5, 0..3)).expect("never down");
    world.run(SECOND);
    let kept = |w: &World, at: usize| w.table(at).instances.iter().filter(|c| c.stale).count();
    assert_eq!(kept(&world, 0), 5, "five of eight: most of the mesh");
    assert_eq!(kept(&world, 5), 3, "three of eight: more than 30 %");
    world.split_at(None);
    world.run_until(5 * SECOND, World::converged).expect("healed");
    world.run(SECOND);
    assert_eq!((kept(&world, 0), kept(&world, 5)), (0, 0));

    world.kill(7);
    world.run_until(5 * SECOND, |w| lost(w, 0, 7..8)).expect("never down");
    world.run(SECOND);
    assert_eq!(kept(&world, 0), 0, "a single death is one");
}

#[test]
fn both_sides_of_a_partition_work_on_and_heal() {
    for seed in 0..3 {
        let mut world = World::mesh(10, 40 + seed);
        world.split_at(Some(4));
        let halves = |w: &World| {
            (0..10).all(|a| {
                (0..10).filter(|b| *b != a).all(|b| {
                    let same = (a < 4) == (b < 4);
                    (w.state(a, b) == Some(MemberState::Alive)) == same
                })
            })
        };
        assert!(world.run_until(30 * SECOND, halves).is_some(), "seed {seed}");
        let change = InstanceChange { weight: Some(7), ..InstanceChange::default() };
        world.order_of(8, |node, now| node.change_instance(now, &id("n8"), change).unwrap());
        world.run(20 * SECOND);
        world.split_at(None);
        let took = world.run_until(20 * SECOND, World::converged);
        assert!(took.is_some_and(|took| took <= 5 * SECOND), "seed {seed}: {took:?}");
        assert!(world.run_until(SECOND, |w| everywhere(w, "n8", |c| c.record.weight == 7)).is_some());
    }
}

#[test]
fn a_node_that_starts_alone_serves_what_it_knew_and_drops_who_stays_away() {
    let mut world = World::mesh(4, 50);
    world.run(3 * SECOND);
    (0..4).for_each(|at| world.kill(at));
    world.run(SECOND);
    world.start(3);
    world.run(ms(600));
    let known = &world.table(3).instances;
    assert_eq!(known.len(), 4, "ready at once on the stored view");
    assert!(known.iter().filter(|c| c.record.id.as_str() != "n3").all(|c| c.stale));
    (0..3).for_each(|at| world.start(at));
    assert!(world.run_until(5 * SECOND, World::converged).is_some());
    assert!(world.run_until(2 * SECOND, |w| w.table(3).instances.iter().all(|c| !c.stale)).is_some());
}

#[test]
fn an_operators_drain_survives_restart_health_and_weight() {
    let mut world = World::mesh(3, 60);
    world.order_of(1, |node, now| node.drain(now, &[], "ann", "maintenance", None).unwrap());
    world.run(ms(100));
    world.kill(1);
    world.start(1);
    let drained = |w: &World| everywhere(w, "n1", |c| c.record.drain.as_ref().is_some_and(|d| d.by == "ann"));
    assert!(world.run_until(3 * SECOND, drained).is_some(), "over a restart");
    world.order_of(1, |node, now| node.set_health(now, &id("n1"), Health::Critical));
    world.order_of(1, |node, now| node.set_health(now, &id("n1"), Health::Passing));
    let change = InstanceChange { weight: Some(5), ..InstanceChange::default() };
    world.order_of(1, |node, now| node.change_instance(now, &id("n1"), change).unwrap());
    world.announce(1, "n1", "v9");
    world.run(2 * SECOND);
    assert!(drained(&world), "over health, weight and registration");
    world.order_of(1, |node, now| node.undrain(now, &[]).unwrap());
    assert!(world.run_until(SECOND, |w| everywhere(w, "n1", |c| c.record.drain.is_none())).is_some());
}

#[test]
fn a_removed_instance_never_comes_back_by_a_late_health_report() {
    let mut world = World::mesh(3, 61);
    world.order_of(1, |node, now| node.withdraw(now, &id("n1")).unwrap());
    world.order_of(1, |node, now| node.set_health(now, &id("n1"), Health::Critical));
    world.run(3 * SECOND);
    let gone = |at: usize| !world.table(at).instances.iter().any(|c| c.record.id.as_str() == "n1");
    assert!((0..3).all(gone));
}

#[test]
fn a_flapping_instance_is_held_back_but_its_operator_is_not() {
    let mut world = World::mesh(3, 62);
    let flap = |world: &mut World| {
        world.order_of(1, |node, now| node.set_health(now, &id("n1"), Health::Critical));
        world.run(SECOND);
        world.order_of(1, |node, now| node.set_health(now, &id("n1"), Health::Passing));
        world.run(SECOND);
    };
    flap(&mut world);
    flap(&mut world);
    assert!(everywhere(&world, "n1", |c| !c.held), "twice may happen");
    flap(&mut world);
    assert!(everywhere(&world, "n1", |c| c.held), "the third return waits");
    assert!(world.run_until(10 * SECOND, |w| everywhere(w, "n1", |c| !c.held)).is_some());
    for _ in 0..5 {
        world.order_of(2, |node, now| node.drain(now, &[], "ann", "", None).unwrap());
        world.run(SECOND);
        world.order_of(2, |node, now| node.undrain(now, &[]).unwrap());
        world.run(SECOND);
    }
    assert!(everywhere(&world, "n2", |c| !c.held));
}

#[test]
fn bad_bytes_are_counted_and_harm_nobody() {
    let mut world = World::mesh(3, 70);
    let (from, addr) = (world.name(1).clone(), "127.0.0.1:7001".parse().unwrap());
    let mut junk: Vec<Vec<u8>> =
        vec![vec![], vec![9; 40], vec![1; 8], [[1; 9].to_vec(), vec![2, 255, 255, 255, 0]].concat()];
    junk.push([[1; 9].to_vec(), vec![2, 3, 0, 0, 7, 7, 7], vec![200, 1, 0, 0, 5]].concat());
    for bytes in &junk {
        let bytes = bytes::Bytes::from(bytes.clone());
        world.give(0, crate::node::Input::Envelope { from: from.clone(), addr, bytes: bytes.clone() });
        world.give(0, crate::node::Input::SyncRequest { id: 999, from: from.clone(), addr, bytes });
    }
    assert!(world.node(0).counters().malformed >= junk.len() as u64 - 1);
    world.run(5 * SECOND);
    assert!(world.converged());
}

#[test]
fn the_same_seed_is_the_same_history() {
    let history = |seed: u64| {
        let mut world = World::mesh(5, seed);
        world.set_loss(0.2);
        world.kill(1);
        world.run(5 * SECOND);
        world.start(1);
        world.run(5 * SECOND);
        let events: Vec<String> = (0..5).flat_map(|at| world.events(at).iter().map(|e| format!("{e:?}"))).collect();
        (events, (0..5).map(|at| world.node(at).counters()).collect::<Vec<_>>())
    };
    assert_eq!(history(5), history(5));
    assert_ne!(history(5), history(6));
}

#[test]
fn a_node_whose_clock_is_ahead_of_its_peers_sets_no_policy_that_only_it_would_follow() {
    let mut world = World::mesh(4, 65);
    let canary = PolicyChange { sizes: [(Lane::new("canary").unwrap(), 500)].into(), ..PolicyChange::default() };
    world.order_of(2, |node, mut now| {
        now.wall.0 += 3_600_000;
        let error = node.set_policy(now, &orders(), &canary).unwrap_err().to_string();
        assert!(error.contains(" s ahead of its peers'"), "{error}");
        node.rollback(now, &orders(), "incident").unwrap();
    });
    world.run(SECOND);
    world.order_of(2, |node, now| node.set_policy(now, &orders(), &canary).map(drop).unwrap());
}
