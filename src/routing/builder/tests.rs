//! What is a candidate, what moves, and what stays as it was.

use proptest::prelude::*;

use super::*;
use crate::{
    routing::{BreakerState, choose, testing::*},
    types::{Env, Health, LoadFigure},
};

fn excluded(snapshot: &Snapshot, id: &str) -> Option<Exclusion> {
    let service = snapshot.service("orders").unwrap();
    service.instances.iter().find(|entry| entry.record.id.as_str() == id).unwrap().excluded
}

fn ring(snapshot: &Snapshot, lane: &str) -> Arc<Ring> {
    snapshot.service("orders").unwrap().lane(lane).unwrap().ring.clone()
}

#[test]
fn gossiped_facts_exclude_each_with_its_reason() {
    let mut table = fleet(10, 0);
    edit(&mut table, "a0", |record| record.env = Env::new("staging").unwrap());
    edit(&mut table, "a1", |record| record.health = Health::Critical);
    edit(&mut table, "a2", |record| record.drain = drain());
    edit(&mut table, "a3", |record| record.weight = 0);
    edit(&mut table, "a4", |record| record.health = Health::Warning);
    owner(&mut table, "a5", MemberState::Down);
    owner(&mut table, "a6", MemberState::Left);
    owner(&mut table, "a7", MemberState::Doubtful);
    owner(&mut table, "a8", MemberState::Down);
    table.instances[8].stale = true;
    let snapshot = built(&table);
    let found: Vec<_> = (0..10).map(|i| excluded(&snapshot, &format!("a{i}"))).collect();
    use Exclusion::*;
    let expected =
        [Some(OtherEnv), Some(Critical), Some(Draining), Some(WeightZero), None, Some(OwnerDown), Some(OwnerLeft)];
    assert_eq!(found[..7], expected);
    assert_eq!(found[7..], [None, Some(OwnerDown), None]);
    assert_eq!(ring(&snapshot, "stable").members().len(), 3);
}

/// Other rules hold from the next build on, also for a table that is the same; what is known of instances stays.
#[test]
fn rules_change_and_what_is_known_of_instances_stays() {
    let mut builder = Builder::new(locality());
    let table = fleet(4, 0);
    let before = builder.build(&table, NOW).0;
    let entry = |snapshot: &Snapshot| snapshot.service("orders").unwrap().instances[1].clone();
    open_breaker(&entry(&before));
    let other = Routing { retry_share: 0.5, bounded_load: Some(150), ..Routing::default() };
    builder.set_rules(Rules::new(0, Arc::new(other.clone()), &BTreeMap::new()));
    let after = builder.build(&table, NOW).0;
    let (old, new) = (before.service("orders").unwrap(), after.service("orders").unwrap());
    assert_eq!(*new.rules, other);
    assert!(Arc::ptr_eq(&old.state, &new.state) && Arc::ptr_eq(&entry(&before).cell, &entry(&after).cell));
    assert!(Arc::ptr_eq(&ring(&before, "stable"), &ring(&after, "stable")));
    assert_eq!(entry(&after).cell.state(NOW, &new.rules), BreakerState::Open);
    assert_eq!(after.digest, before.digest, "rules are this sidecar's own");
    let same = builder.build(&table, NOW).0;
    assert!(std::ptr::eq(same.service("orders").unwrap(), new), "and then nothing is built again");
}

/// M8: those who went with many others are tried only where nobody else is left.
#[test]
fn a_last_resort_serves_only_where_nobody_lives() {
    let mut table = fleet(4, 0);
    for at in 0..4 {
        (table.instances[at].owner, table.instances[at].stale) = (MemberState::Down, true);
    }
    table.instances[3].stale = false;
    let snapshot = built(&table);
    let left: Vec<_> = (0..4).map(|i| excluded(&snapshot, &format!("a{i}"))).collect();
    assert_eq!(left, [None, None, None, Some(Exclusion::OwnerDown)]);
    table.instances[1].owner = MemberState::Doubtful;
    let snapshot = built(&table);
    let left: Vec<_> = (0..4).map(|i| excluded(&snapshot, &format!("a{i}"))).collect();
    let down = Some(Exclusion::OwnerDown);
    assert_eq!(left, [down, None, down, down], "one that lives, though doubted, is better");
}

#[test]
fn a_flapping_instance_waits_unless_its_lane_has_nobody_else() {
    let mut table = fleet(2, 0);
    table.instances[0].held = true;
    let owners = |table: &CandidateTable| [excluded(&built(table), "a0"), excluded(&built(table), "a1")];
    assert_eq!(owners(&table), [Some(Exclusion::Flapping), None]);
    edit(&mut table, "a1", |record| record.health = Health::Critical);
    assert_eq!(owners(&table), [None, Some(Exclusion::Critical)]);
}

#[test]
fn the_smaller_node_id_keeps_a_doubled_instance_id_while_it_is_there() {
    let mut table = fleet(2, 0);
    let mut other = record("a0", "stable");
    other.owner = crate::types::NodeId::new("a-smaller-node").unwrap();
    table.instances.push(alive(other));
    let owners = |table: &CandidateTable| {
        let snapshot = built(table);
        let service = snapshot.service("orders").unwrap();
        let pair = service.instances.iter().filter(|entry| entry.record.id.as_str() == "a0");
        pair.map(|entry| (entry.record.owner.to_string(), entry.excluded)).collect::<Vec<_>>()
    };
    let (small, large) = ("a-smaller-node".to_owned(), "node-a0".to_owned());
    assert_eq!(owners(&table), [(small.clone(), None), (large.clone(), Some(Exclusion::DuplicateId))]);
    table.instances[2].owner = MemberState::Down;
    assert_eq!(owners(&table), [(small, Some(Exclusion::OwnerDown)), (large, None)]);
}

#[test]
fn what_did_not_change_is_kept() {
    let mut builder = Builder::new(locality());
    let mut table = with_policy(fleet(4, 2), policy(500));
    let (first, _) = builder.build(&table, NOW);
    let (second, _) = builder.build(&table, NOW);
    assert!(std::ptr::eq(first.service("orders").unwrap(), second.service("orders").unwrap()));
    assert_eq!((second.version, second.digest, second.moved_basis_points), (2, first.digest, 0));

    edit(&mut table, "c0", |record| record.weight = 200);
    let (third, _) = builder.build(&table, NOW);
    assert!(Arc::ptr_eq(&ring(&first, "stable"), &ring(&third, "stable")));
    assert!(!Arc::ptr_eq(&ring(&first, "canary"), &ring(&third, "canary")));
    let cell = |snapshot: &Snapshot| snapshot.service("orders").unwrap().instances[0].cell.clone();
    assert!(Arc::ptr_eq(&cell(&first), &cell(&third)));
    let compiled = |snapshot: &Snapshot| snapshot.service("orders").unwrap().policy.clone().unwrap();
    assert!(Arc::ptr_eq(&compiled(&first), &compiled(&third)));
    assert_ne!(third.digest, first.digest);
}

#[test]
fn news_from_the_owner_clear_what_was_held_against_an_instance() {
    let changes: [fn(&mut crate::types::InstanceRecord); 3] =
        [|record| record.generation = 2, |record| record.port = 1, |record| record.host = "10.0.0.9".into()];
    for change in changes {
        let (mut builder, mut table) = (Builder::new(locality()), fleet(2, 0));
        let entry = builder.build(&table, NOW).0.service("orders").unwrap().instances[0].clone();
        open_breaker(&entry);
        let is_open = || entry.cell.open_until(NOW).is_some();
        edit(&mut table, "a0", |record| record.sequence = 2);
        builder.build(&table, NOW);
        assert!(is_open(), "not by any news");
        edit(&mut table, "a0", change);
        builder.build(&table, NOW);
        assert!(!is_open());
    }
}

#[test]
fn a_return_into_rotation_clears_too() {
    let (mut builder, mut table) = (Builder::new(locality()), fleet(2, 0));
    let entry = builder.build(&table, NOW).0.service("orders").unwrap().instances[0].clone();
    edit(&mut table, "a0", |record| record.health = Health::Critical);
    builder.build(&table, NOW);
    open_breaker(&entry);
    edit(&mut table, "a0", |record| record.health = Health::Passing);
    builder.build(&table, NOW);
    assert_eq!(entry.cell.open_until(NOW), None);
}

fn state(snapshot: &Snapshot, id: &str, now: crate::types::Mono) -> BreakerState {
    let service = snapshot.service("orders").unwrap();
    let entry = service.instances.iter().find(|entry| entry.record.id.as_str() == id).unwrap();
    entry.cell.state(now, &service.rules)
}

#[test]
fn who_is_new_or_back_starts_slowly_where_somebody_else_is_there() {
    use BreakerState::{Closed, SlowStart};
    let (mut builder, mut table) = (Builder::new(locality()), with_policy(fleet(2, 0), policy(500)));
    builder.build(&table, NOW);
    let later = NOW + std::time::Duration::from_secs(60);
    table = with_policy(fleet(3, 2), policy(500));
    edit(&mut table, "a0", |record| record.generation = 2);
    let (snapshot, _) = builder.build(&table, later);
    let states = ["a0", "a1", "a2", "c0", "c1"].map(|id| state(&snapshot, id, later));
    assert_eq!(states, [Closed, Closed, SlowStart, Closed, Closed], "canary has nobody else; a0's application runs on");

    edit(&mut table, "a1", |record| record.health = Health::Critical);
    builder.build(&table, later);
    edit(&mut table, "a1", |record| record.health = Health::Passing);
    edit(&mut table, "c1", |record| record.lane = crate::types::Lane::stable());
    let (snapshot, _) = builder.build(&table, later);
    assert_eq!(["a1", "c1"].map(|id| state(&snapshot, id, later)), [SlowStart; 2]);
}

/// C87: no flapping of users with the only instance of their lane.
#[test]
fn a_lane_that_had_nobody_holds_before_its_users_go_back() {
    let (mut builder, mut table) = (Builder::new(locality()), with_policy(fleet(2, 1), policy(10_000)));
    builder.build(&table, NOW);
    let after = |seconds| NOW + std::time::Duration::from_secs(seconds);
    edit(&mut table, "c0", |record| record.health = Health::Critical);
    builder.build(&table, after(60));
    edit(&mut table, "c0", |record| record.health = Health::Passing);
    let (snapshot, _) = builder.build(&table, after(70));
    let service = snapshot.service("orders").unwrap();
    let home = |now| {
        let users = (0..200).map(|user| format!("u{user}"));
        let lane = |user: String| crate::routing::choose(&snapshot, service, &get(&user), now).fallback;
        users.filter(|user| lane(user.clone()).is_none()).count()
    };
    assert_eq!(home(after(74)), 0);
    assert!((5..40).contains(&home(after(75))), "{}", home(after(75)));
    assert_eq!(home(after(85)), 200);
}

#[test]
fn a_sidecar_that_has_just_started_takes_everybody_as_known() {
    let mut builder = Builder::new(locality());
    builder.build(&fleet(2, 0), NOW);
    let later = NOW + std::time::Duration::from_secs(9);
    assert_eq!(state(&builder.build(&fleet(3, 0), later).0, "a2", later), BreakerState::Closed);
}

#[test]
fn the_digest_is_equal_for_equal_content_whatever_the_history() {
    let (mut builder, mut table) = (Builder::new(locality()), with_policy(fleet(5, 2), policy(500)));
    let fresh = built(&table).digest;
    edit(&mut table, "a1", |record| record.health = Health::Critical);
    let without = builder.build(&table, NOW).0.digest;
    assert_ne!(without, fresh);
    edit(&mut table, "a1", |record| record.health = Health::Passing);
    assert_eq!(builder.build(&table, NOW).0.digest, fresh);
    let changes: [fn(&mut CandidateTable); 4] = [
        |table| edit(table, "a1", |record| record.weight = 99),
        |table| edit(table, "a1", |record| record.port = 1),
        |table| edit(table, "a1", |record| record.lane = Lane::new("canary").unwrap()),
        |table| *table = with_policy(std::mem::take(table), policy(501)),
    ];
    for change in changes {
        let mut other = table.clone();
        change(&mut other);
        assert_ne!(built(&other).digest, fresh);
    }
}

#[test]
fn moved_keys_are_measured() {
    let (mut builder, mut table) = (Builder::new(locality()), fleet(10, 0));
    assert_eq!(builder.build(&table, NOW).0.moved_basis_points, 0, "nothing was there before");
    owner(&mut table, "a3", MemberState::Down);
    let moved = builder.build(&table, NOW).0.moved_basis_points;
    assert!((800..=1_200).contains(&moved), "a tenth, but {moved}");
    for i in 0..10 {
        owner(&mut table, &format!("a{i}"), MemberState::Down);
    }
    assert_eq!(builder.build(&table, NOW).0.moved_basis_points, 10_000);
}

#[test]
fn a_service_over_the_limit_keeps_its_last_good_view_under_the_present_policy() {
    let (mut builder, mut table) = (Builder::new(locality()), with_policy(fleet(3, 1), policy(500)));
    let (good, _) = builder.build(&table, NOW);
    for i in 0..250 {
        let mut heavy = record(&format!("x{i}"), "stable");
        heavy.weight = 1600;
        table.instances.push(alive(heavy));
    }
    let mut off = policy(0);
    off.off = true;
    let table = with_policy(table, off);
    for _ in 0..2 {
        let (snapshot, faults) = builder.build(&table, NOW);
        assert_eq!(faults.len(), 1);
        assert!(
            faults[0].contains("service `orders`, lane `stable`") && faults[0].contains("last good view"),
            "{faults:?}"
        );
        assert!(Arc::ptr_eq(&ring(&snapshot, "stable"), &ring(&good, "stable")));
        assert!(snapshot.service("orders").unwrap().policy.as_ref().unwrap().policy.off);
    }
    let (first, faults) = Builder::new(locality()).build(&table, NOW);
    assert!(faults[0].contains("no candidate") && ring(&first, "stable").is_empty());
}

#[test]
fn services_come_from_instances_and_policies_in_name_order() {
    let mut table = fleet(1, 0);
    let mut cart = record("cart-0", "stable");
    cart.service = ServiceName::new("cart").unwrap();
    table.instances.push(alive(cart));
    let mut other = policy(1);
    other.service = ServiceName::new("zoo").unwrap();
    let snapshot = built(&with_policy(table, other));
    let names: Vec<_> = snapshot.services().map(|service| service.name.to_string()).collect();
    assert_eq!(names, ["cart", "orders", "zoo"]);
    assert!(snapshot.service("zoo").unwrap().lane("canary").unwrap().ring.is_empty());
    assert!(snapshot.service("nobody").is_none() && Snapshot::empty().service("orders").is_none());
}

/// One change to one of six instances.
fn any_change() -> impl Strategy<Value = (usize, u8)> {
    (0_usize..6, 0_u8..10)
}

fn apply(table: &mut CandidateTable, (at, what): (usize, u8)) {
    let id = format!("a{at}");
    match what {
        0 => owner(table, &id, MemberState::Down),
        1 => owner(table, &id, MemberState::Alive),
        2 => owner(table, &id, MemberState::Left),
        3 => owner(table, &id, MemberState::Doubtful),
        4 => edit(table, &id, |record| record.drain = drain()),
        5 => edit(table, &id, |record| record.drain = None),
        6 => edit(table, &id, |record| record.weight = 0),
        7 => edit(table, &id, |record| record.weight = 70),
        8 => edit(table, &id, |record| record.lane = Lane::new("canary").unwrap()),
        _ => edit(table, &id, |record| record.health = Health::Critical),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// C22: the ring is a pure function of the table, whatever came before.
    #[test]
    fn a_view_after_many_changes_is_the_view_of_a_new_builder(changes in prop::collection::vec(any_change(), 1..20)) {
        let (mut builder, mut table) = (Builder::new(locality()), fleet(6, 0));
        for change in changes {
            apply(&mut table, change);
            let (kept, fresh) = (builder.build(&table, NOW).0, built(&table));
            prop_assert_eq!(kept.digest, fresh.digest);
            let (kept, fresh) = (kept.service("orders").unwrap(), fresh.service("orders").unwrap());
            for (kept, fresh) in kept.lanes.iter().zip(&fresh.lanes) {
                prop_assert_eq!(kept.ring.iter().collect::<Vec<_>>(), fresh.ring.iter().collect::<Vec<_>>());
                prop_assert_eq!((&kept.members, kept.empty), (&fresh.members, fresh.empty));
            }
            let on_rings: usize = kept.lanes.iter().map(|lane| lane.ring.members().len()).sum();
            prop_assert_eq!(on_rings, kept.instances.iter().filter(|entry| entry.excluded.is_none()).count());
        }
    }
}

proptest! {
    /// A step of an overloaded instance (REQUIREMENTS R10) takes some of its own keys, about a tenth of its whole, each to its next;
    /// and a step back brings exactly those home.
    #[test]
    fn a_step_of_easing_moves_few_keys_and_only_its_own(count in 2_usize..12, at in 0_usize..12, from in 0_u8..5, weight in 50_u16..300) {
        let id = format!("a{}", at % count);
        let mut table = fleet(count, 0);
        edit(&mut table, &id, |record| record.weight = weight);
        let mut eased = |share: u8| {
            edit(&mut table, &id, |record| record.load = Some(LoadFigure { percent: 120, share }));
            let snapshot = built(&table);
            let service = snapshot.service("orders").unwrap();
            let owner = |key: u32| {
                let target = choose(&snapshot, service, &get(&format!("u{key}")), NOW).instance.unwrap();
                service.instances[usize::from(target)].record.id.to_string()
            };
            (0..4_000).map(owner).collect::<Vec<_>>()
        };
        let share = 100 - 10 * from;
        let (before, after, back) = (eased(share), eased(share - 10), eased(share));
        let moved: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
        prop_assert!(moved.iter().all(|(before, after)| **before == id && **after != id));
        // A tenth of what it would have at its whole weight, and what chance adds: a step may be as few as 13 points.
        let whole = eased(100).iter().filter(|owner| **owner == id).count();
        prop_assert!(moved.len() as f64 <= 0.1 * whole as f64 * 2.0 + 40.0, "{} of {} keys", moved.len(), whole);
        prop_assert_eq!(before, back);
    }
}

/// L5: who is of which lane by version, whatever it announces; its own keys move, nobody else's, and a rollback does not mix them.
#[test]
fn a_selector_takes_instances_for_their_version() {
    let mut table = with_policy(fleet(6, 0), policy(0));
    edit(&mut table, "a5", |record| record.version = "v2.1".parse().unwrap());
    let mut builder = Builder::new(locality());
    let before = builder.build(&table, NOW).0;
    let owners = |snapshot: &Snapshot| {
        let service = snapshot.service("orders").unwrap();
        let owner = |user: u32| {
            let target = choose(snapshot, service, &get(&format!("u{user}")), NOW).instance.unwrap();
            service.instances[usize::from(target)].record.id.to_string()
        };
        (0..500).map(owner).collect::<Vec<_>>()
    };
    let old = owners(&before);
    let selectors: crate::types::Selectors = [("canary".parse().unwrap(), vec!["version:v2*".parse().unwrap()])].into();
    let selecting = |policy: LanePolicy| LanePolicy { selectors: selectors.clone(), ..policy };
    let after = builder.build(&with_policy(table.clone(), selecting(policy(0))), NOW).0;
    let lanes = |snapshot: &Snapshot| {
        ["stable", "canary"].map(|lane| snapshot.service("orders").unwrap().lane(lane).unwrap().members.len())
    };
    assert_eq!(lanes(&after), [5, 1]);
    for (old, new) in old.iter().zip(owners(&after)).filter(|(old, _)| *old != "a5") {
        assert_eq!(*old, new, "it was not at the one that was taken");
    }
    let off = LanePolicy { off: true, ..selecting(policy(0)) };
    assert_eq!(lanes(&builder.build(&with_policy(table, off), NOW).0), [5, 1]);
}

/// R1: what may not leave its region does not, also when nobody else is left.
#[test]
fn requests_keep_to_the_regions_that_are_named() {
    let mut table = fleet(4, 0);
    edit(&mut table, "a2", |record| record.region = crate::types::Region::new("us").unwrap());
    edit(&mut table, "a3", |record| record.region = crate::types::Region::new("ap").unwrap());
    let keeping = |table: &CandidateTable, names: &[&str]| {
        let regions = names.iter().map(|name| crate::types::Region::new(name).unwrap()).collect();
        let routing = Routing { regions, prefer_zone: true, ..Routing::default() };
        Builder::with(locality(), Rules::new(0, routing.into(), &BTreeMap::new())).build(table, NOW).0
    };
    let left_out = |snapshot: &Snapshot| (0..4).map(|at| excluded(snapshot, &format!("a{at}"))).collect::<Vec<_>>();
    let other = Some(Exclusion::OtherRegion);
    assert_eq!(left_out(&keeping(&table, &["eu", "us"])), [None, None, None, other]);
    assert_eq!(left_out(&keeping(&table, &[])), [None; 4]);
    (0..2).for_each(|at| edit(&mut table, &format!("a{at}"), |record| record.health = Health::Critical));
    let snapshot = keeping(&table, &["eu"]);
    let service = snapshot.service("orders").unwrap();
    assert_eq!(choose(&snapshot, service, &get("u1"), NOW).instance, None);
}
