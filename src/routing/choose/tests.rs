//! Who is decided to go where, and that it stays so.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::{
    config::Routing,
    lanes::LaneReason,
    routing::{CandidateTable, InFlight, testing::*},
    types::{AnonymousRule, Health},
};

fn users(count: u32) -> impl Iterator<Item = String> {
    (0..count).map(|user| format!("user-{user}"))
}

fn chosen(snapshot: &Snapshot, request: &Request<'_>) -> Option<String> {
    let service = snapshot.service("orders").unwrap();
    let decision = choose(snapshot, service, request, NOW);
    decision.target(service).map(|entry| entry.record.id.to_string())
}

fn owners(snapshot: &Snapshot, count: u32) -> BTreeMap<String, String> {
    users(count).map(|user| (user.clone(), chosen(snapshot, &get(&user)).unwrap())).collect()
}

fn refuse(snapshot: &Snapshot, id: &str) {
    let service = snapshot.service("orders").unwrap();
    open_breaker(service.instances.iter().find(|entry| entry.record.id.as_str() == id).unwrap());
}

/// C81: only a doubtful instance's keys move, each to its next; they return.
#[test]
fn a_refusing_instance_is_skipped_and_nobody_else_s_keys_move() {
    let snapshot = built(&fleet(5, 0));
    let service = snapshot.service("orders").unwrap();
    let before = owners(&snapshot, 2_000);
    refuse(&snapshot, "a2");
    for (user, owner) in &before {
        let decision = choose(&snapshot, service, &get(user), NOW);
        let now = &decision.target(service).unwrap().record.id;
        let order: Vec<u16> = decision.served_lane(service).unwrap().order(decision.key_hash).collect();
        if owner == "a2" {
            assert_eq!(decision.instance, Some(order[1]));
            assert_eq!(
                decision.skipped.iter().collect::<Vec<_>>(),
                [Skipped { instance: order[0], why: SkipReason::BreakerOpen }]
            );
        } else {
            assert_eq!(now.as_str(), owner);
            assert!(decision.skipped.is_empty());
        }
    }
    service.instances[2].cell.renew();
    assert_eq!(owners(&snapshot, 2_000), before);
}

#[test]
fn an_accused_owner_is_skipped_with_the_ring_unchanged() {
    let mut table = fleet(4, 0);
    let (before, calm) = (built(&table), owners(&built(&table), 500));
    owner(&mut table, "a1", MemberState::Doubtful);
    let after = built(&table);
    assert_eq!(after.digest, before.digest);
    let now = owners(&after, 500);
    let moved: Vec<_> = calm.iter().filter(|(user, owner)| now[*user] != **owner).collect();
    assert!(!moved.is_empty() && moved.iter().all(|(_, owner)| *owner == "a1"));
}

/// C81: during the ramp each user comes back once and stays; afterwards all are where they were.
#[test]
fn users_come_back_once() {
    let snapshot = built(&fleet(5, 0));
    let service = snapshot.service("orders").unwrap();
    let calm = owners(&snapshot, 3_000);
    refuse(&snapshot, "a2");
    let cell = &service.instances[2].cell;
    let begun = cell.open_until(NOW).unwrap();
    let ticket = cell.admit(begun, &service.rules).unwrap();
    assert!(cell.succeeded(ticket, begun, &service.rules));
    let mut back = std::collections::BTreeSet::new();
    let mine: Vec<_> = calm.iter().filter(|(_, owner)| *owner == "a2").map(|(user, _)| user.as_str()).collect();
    for second in 0..=20_u64 {
        let now = begun + std::time::Duration::from_secs(second);
        for user in &mine {
            let decision = choose(&snapshot, service, &get(user), now);
            let home = decision.instance == Some(2);
            assert!(home || !back.contains(user), "{user} left again");
            if home {
                back.insert(*user);
            } else {
                assert_eq!(decision.skipped.iter().next().unwrap().why, SkipReason::Ramping);
            }
        }
        let expected = mine.len() as f64 * (0.1 + 0.9 * second as f64 / 20.0);
        assert!((back.len() as f64 - expected).abs() < 60.0, "{} of {} after {second} s", back.len(), mine.len());
    }
    assert_eq!(back.len(), mine.len());
}

/// Somebody who is coming back is better than somebody who fails.
#[test]
fn of_none_but_sick_ones_the_one_that_comes_back_is_taken() {
    let snapshot = built(&fleet(3, 0));
    let service = snapshot.service("orders").unwrap();
    refuse(&snapshot, "a0");
    refuse(&snapshot, "a1");
    service.instances[2].cell.start_slowly(NOW);
    for user in users(200) {
        let decision = choose(&snapshot, service, &get(&user), NOW);
        assert_eq!((decision.instance, decision.panic), (Some(2), false));
    }
}

/// C79: with everything doubtful the ring's owner is used as it is, and the decision says so.
#[test]
fn never_nothing_while_there_is_a_candidate() {
    let snapshot = built(&fleet(7, 0));
    let service = snapshot.service("orders").unwrap();
    let calm = owners(&snapshot, 50);
    for id in ["a0", "a1", "a2", "a3", "a4", "a5", "a6"] {
        // The floor would not let it come so far by failures alone.
        refuse(&snapshot, id);
    }
    let decision = choose(&snapshot, service, &get("user-1"), NOW);
    assert!(decision.panic);
    assert_eq!((decision.skipped.iter().count(), decision.skipped.more()), (4, 3));
    assert_eq!(owners(&snapshot, 50), calm);
}

/// C85: both sides are sticky, the same on every node, and a raise only adds.
#[test]
fn users_keep_their_lane_and_a_raise_only_adds() {
    let at = |size| built(&with_policy(fleet(3, 2), policy(size)));
    let on_canary = |snapshot: &Snapshot, user: &str| chosen(snapshot, &get(user)).unwrap().starts_with('c');
    let (five, again, more) = (at(500), at(500), at(2_500));
    let mut count = 0;
    for user in users(10_000) {
        let now = on_canary(&five, &user);
        assert_eq!(now, on_canary(&again, &user));
        assert!(!now || on_canary(&more, &user));
        count += u32::from(now);
    }
    assert!((440..=560).contains(&count), "{count} of 10,000 at 5 %");
}

#[test]
fn without_a_policy_everybody_is_stable_and_a_named_lane_is_a_probe() {
    let snapshot = built(&fleet(1, 3));
    let service = snapshot.service("orders").unwrap();
    let request = Request { explicit_lane: Some("canary"), ..get("ann") };
    let decision = choose(&snapshot, service, &request, NOW);
    assert_eq!((decision.lane.reason, decision.lane.probe), (LaneReason::NoPolicy, true));
    assert_eq!(chosen(&snapshot, &request).unwrap(), "a0");
}

fn fallback_of(table: &CandidateTable, request: &Request<'_>) -> (Option<String>, Option<FallbackReason>) {
    let snapshot = built(table);
    let service = snapshot.service("orders").unwrap();
    let decision = choose(&snapshot, service, request, NOW);
    (decision.served_lane(service).map(|lane| lane.name.to_string()), decision.fallback)
}

/// C87, C88: the lane by bucket first, then its rule for being empty, by cause and method.
#[test]
fn an_empty_lane_falls_back_for_safe_methods_only() {
    let stable = Some("stable".to_owned());
    let absent = with_policy(fleet(2, 0), policy(10_000));
    assert_eq!(fallback_of(&absent, &get("u")), (stable.clone(), Some(FallbackReason::Absent)));
    assert_eq!(fallback_of(&absent, &post("u")), (None, Some(FallbackReason::Absent)));
    let put = Request { method: MethodClass::Idempotent, ..get("u") };
    assert_eq!(fallback_of(&absent, &put), (None, Some(FallbackReason::Absent)));

    let mut draining = with_policy(fleet(2, 2), policy(10_000));
    edit(&mut draining, "c0", |record| record.drain = drain());
    edit(&mut draining, "c1", |record| record.weight = 0);
    assert_eq!(fallback_of(&draining, &get("u")), (stable.clone(), Some(FallbackReason::Draining)));

    let mut unhealthy = draining.clone();
    edit(&mut unhealthy, "c0", |record| (record.drain, record.health) = (None, Health::Critical));
    assert_eq!(fallback_of(&unhealthy, &get("u")), (stable, Some(FallbackReason::Unhealthy)));

    let mut posts = policy(10_000);
    posts.empty.unsafe_methods = EmptyLane::Fallback;
    assert_eq!(fallback_of(&with_policy(fleet(2, 0), posts), &post("u")).0.as_deref(), Some("stable"));

    let full_canary = with_policy(fleet(0, 2), policy(10_000));
    assert_eq!(fallback_of(&full_canary, &post("u")), (Some("canary".into()), None));
}

/// C87, all breakers of canary open: its users are served by stable while the rule lets them, and come back one by one.
#[test]
fn a_sick_lane_is_left_for_stable_and_comes_back_little_by_little() {
    let snapshot = built(&with_policy(fleet(3, 2), policy(10_000)));
    let service = snapshot.service("orders").unwrap();
    let of = |request: &Request<'_>, now| {
        let decision = choose(&snapshot, service, request, now);
        (decision.served_lane(service).unwrap().name.to_string(), decision.fallback)
    };
    let (canary, stable) = ("canary".to_owned(), "stable".to_owned());
    refuse(&snapshot, "c0");
    assert!(users(100).all(|user| of(&get(&user), NOW) == (canary.clone(), None)), "one is left");
    refuse(&snapshot, "c1");
    assert!(users(100).all(|user| of(&get(&user), NOW) == (stable.clone(), Some(FallbackReason::Sick))));
    assert!(users(100).all(|user| of(&post(&user), NOW) == (canary.clone(), None)), "the rule says no: used as it is");
    for entry in service.instances.iter().filter(|entry| entry.record.lane.as_str() == "canary") {
        entry.cell.start_slowly(NOW);
    }
    let mut before = 0;
    for second in 0..=10 {
        let now = NOW + std::time::Duration::from_secs(second);
        let home = users(500).filter(|user| of(&get(user), now) == (canary.clone(), None)).count();
        let away = users(500).filter(|user| of(&get(user), now).1 == Some(FallbackReason::Returning)).count();
        assert!(home >= before && home + away == 500, "{home} and {away} after {second} s");
        before = home;
    }
    assert_eq!(before, 500);
}

#[test]
fn a_lane_is_not_left_for_one_that_is_sick_too() {
    let snapshot = built(&with_policy(fleet(1, 1), policy(10_000)));
    let service = snapshot.service("orders").unwrap();
    refuse(&snapshot, "a0");
    refuse(&snapshot, "c0");
    let decision = choose(&snapshot, service, &get("u"), NOW);
    assert_eq!((decision.fallback, decision.panic), (None, true));
}

#[test]
fn stable_falls_to_others_only_when_the_policy_says_so_and_is_not_off() {
    let mut set = policy(0);
    assert_eq!(fallback_of(&with_policy(fleet(0, 2), set.clone()), &get("u")).0, None);
    assert_eq!(fallback_of(&fleet(0, 2), &get("u")), (None, Some(FallbackReason::Absent)));
    set.empty.stable_to_others = true;
    let allowed = with_policy(fleet(0, 2), set.clone());
    assert_eq!(fallback_of(&allowed, &get("u")).0.as_deref(), Some("canary"));
    assert_eq!(fallback_of(&allowed, &post("u")).0, None);
    set.off = true;
    assert_eq!(fallback_of(&with_policy(fleet(0, 2), set), &get("u")).0, None);
}

#[test]
fn the_route_key_goes_before_the_subject_and_chance_stands_in_for_both() {
    let snapshot = built(&fleet(20, 0));
    let keyed = |key| Request { route_key: Some(key), ..get("ann") };
    assert_eq!(chosen(&snapshot, &keyed("bob")), chosen(&snapshot, &get("bob")));
    assert_eq!(chosen(&snapshot, &keyed("")), chosen(&snapshot, &get("ann")));
    let random = |random| Request { subject: None, random, ..get("") };
    let spread: std::collections::BTreeSet<_> = (0..500).map(|n| chosen(&snapshot, &random(n))).collect();
    assert_eq!(spread.len(), 20, "small numbers reach every instance");
}

#[test]
fn the_lighter_of_two_takes_what_has_no_key() {
    let by = |balance| {
        let rules = crate::routing::Rules::new(0, Routing { balance, ..Routing::default() }.into(), &BTreeMap::new());
        crate::routing::Builder::with(locality(), rules).build(&fleet(10, 0), NOW).0
    };
    let spread = |snapshot: &Snapshot, subject: &str| {
        let service = snapshot.service("orders").unwrap();
        let mut guards = Vec::new();
        for random in 0..1_000_u64 {
            let random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let decision = choose(snapshot, service, &Request { random, ..get(subject) }, NOW);
            guards.push(decision.target(service).unwrap().cell.enter());
        }
        service.instances.iter().map(|entry| entry.cell.in_flight()).max().unwrap()
    };
    assert!(spread(&by(Balance::KeylessLeastLoaded), "") <= 110, "of a mean of 100");
    assert!(spread(&by(Balance::LeastLoaded), "ann") <= 110);
    assert!(spread(&by(Balance::Ring), "") > 110, "the ring is less even");
    assert_eq!(spread(&by(Balance::KeylessLeastLoaded), "ann"), 1_000, "a key keeps its place");
}

#[test]
fn anonymous_by_request_splits_lanes_by_chance() {
    let mut set = policy(5_000);
    set.anonymous = AnonymousRule::Request;
    let snapshot = built(&with_policy(fleet(2, 2), set));
    let on_canary = |random| chosen(&snapshot, &Request { subject: None, random, ..get("") }).unwrap().starts_with('c');
    assert!(on_canary(4_999) && !on_canary(5_000));
}

/// S3: no request crosses the environment, enters a lane that it was not sent to, or goes to what is no candidate.
#[test]
fn decisions_keep_to_candidates_of_their_lane() {
    let mut table = with_policy(fleet(6, 4), policy(3_000));
    edit(&mut table, "a0", |record| record.env = crate::types::Env::new("staging").unwrap());
    edit(&mut table, "a1", |record| record.health = Health::Critical);
    edit(&mut table, "c0", |record| record.drain = drain());
    let snapshot = built(&table);
    let service = snapshot.service("orders").unwrap();
    for user in users(3_000) {
        let decision = choose(&snapshot, service, &post(&user), NOW);
        let entry = decision.target(service).unwrap();
        assert_eq!(entry.excluded, None);
        assert_eq!(entry.record.lane, service.decided(&decision.lane).name);
    }
}

#[test]
fn a_decision_is_small_and_the_same_again() {
    assert!(size_of::<Decision>() <= 80, "{}", size_of::<Decision>());
    let snapshot: Arc<Snapshot> = built(&with_policy(fleet(9, 3), policy(1_000)));
    let service = snapshot.service("orders").unwrap();
    for user in users(100) {
        let decide = || choose(&snapshot, service, &get(&user), NOW);
        assert_eq!(decide(), decide());
    }
}

/// So many are sent there at once and wait for so long.
fn wait_at(entry: &InstanceEntry, count: usize, millis: u64) -> Vec<InFlight> {
    let since = Mono::from_millis(NOW.millis() - millis);
    (0..count).for_each(|_| entry.cell.asked(since));
    (0..count).map(|_| entry.cell.enter()).collect()
}

/// What its answers take is known: 3 ms.
fn known(entry: &InstanceEntry) {
    (0..40).for_each(|_| entry.cell.answered(Duration::from_millis(3)));
}

#[test]
fn a_silent_instance_gets_nothing_that_cannot_be_repeated() {
    let snapshot = built(&fleet(4, 0));
    let service = snapshot.service("orders").unwrap();
    let order: Vec<u16> = service.lanes[0].order(key_hash(b"ann")).collect();
    let entry = &service.instances[usize::from(order[0])];
    let goes = || [get("ann"), post("ann")].map(|request| choose(&snapshot, service, &request, NOW).instance.unwrap());
    let (here, next) = ([order[0]; 2], [order[0], order[1]]);
    drop(wait_at(entry, 3, 60_000));
    assert_eq!(goes(), here, "it is not known yet what its answers take");
    known(entry);
    let two = wait_at(entry, 2, 5_000);
    assert_eq!(goes(), here, "two may be slow ones");
    let third = wait_at(entry, 1, 50);
    assert_eq!(goes(), next);
    drop(third);
    assert_eq!(goes(), here, "callers that gave up wait no more");
    let third = wait_at(entry, 1, 0);
    entry.cell.answered(Duration::from_millis(3));
    assert_eq!(goes(), here, "it answers");
    drop((two, third));
    // What its answers take says how long a silence is one.
    for (takes, waited, silent) in [(3, 99, false), (3, 100, true), (200, 300, false), (200, 2_000, true)] {
        (0..4_000).for_each(|_| entry.cell.answered(Duration::from_millis(takes)));
        let waiting = wait_at(entry, 3, waited);
        assert_eq!(goes(), if silent { next } else { here }, "{takes} {waited}");
        drop(waiting);
    }
    let waiting = wait_at(entry, 3, 60_000);
    let decision = choose(&snapshot, service, &post("ann"), NOW);
    assert_eq!(decision.skipped.iter().map(|skipped| skipped.why).collect::<Vec<_>>(), [SkipReason::Silent]);
    drop(waiting);
}

#[test]
fn silence_is_nothing_where_the_rules_say_so() {
    let rules = Routing { silent_after: None, ..Routing::default() };
    let rules = crate::routing::Rules::new(0, rules.into(), &BTreeMap::new());
    let snapshot = crate::routing::Builder::with(locality(), rules).build(&fleet(4, 0), NOW).0;
    let service = snapshot.service("orders").unwrap();
    let owner = choose(&snapshot, service, &post("ann"), NOW).instance.unwrap();
    known(&service.instances[usize::from(owner)]);
    let waiting = wait_at(&service.instances[usize::from(owner)], 9, 60_000);
    assert_eq!(choose(&snapshot, service, &post("ann"), NOW).instance, Some(owner));
    drop(waiting);
}

proptest! {
    /// Whoever is silent: what can be repeated stays, everything else goes to the first in its order that is not, and where all are
    /// it stays too.
    #[test]
    fn only_what_cannot_be_repeated_moves_each_to_its_next(silent in prop::collection::vec(any::<bool>(), 1..8), user in any::<u32>()) {
        let snapshot = built(&fleet(silent.len(), 0));
        let service = snapshot.service("orders").unwrap();
        let who = user.to_string();
        let order: Vec<u16> = service.lanes[0].order(key_hash(who.as_bytes())).collect();
        let at = |instance: &u16| silent[usize::from(*instance)];
        service.instances.iter().for_each(known);
        let waiting: Vec<_> =
            order.iter().filter(|instance| at(instance)).map(|instance| wait_at(&service.instances[usize::from(*instance)], 3, 2_000)).collect();
        let next = order.iter().find(|instance| !at(instance)).unwrap_or(&order[0]);
        let decision = choose(&snapshot, service, &post(&who), NOW);
        prop_assert_eq!((decision.instance, decision.panic), (Some(*next), false));
        prop_assert_eq!(choose(&snapshot, service, &get(&who), NOW).instance, Some(order[0]));
        drop(waiting);
    }
}
