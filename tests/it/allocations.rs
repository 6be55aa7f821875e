//! A decision allocates nothing (REQUIREMENTS R3), on its straight path and on every other one.

use std::{hint::black_box, time::Duration};

use lanemesh::{
    routing::{Attempts, AttemptsConfig, MethodClass, Outcome, Request, Snapshot, Step, choose},
    types::{MemberState, Mono},
};

use crate::{counting::allocations, fleet};

fn decide(snapshot: &Snapshot, request: &Request<'_>, now: Mono) {
    let service = snapshot.service("orders").expect("the service is there");
    black_box(choose(snapshot, service, request, now));
}

#[test]
fn counting_counts() {
    assert_eq!(allocations(|| drop(black_box(Box::new(7_u64)))), 1);
}

#[test]
fn a_decision_allocates_nothing() {
    let subjects: Vec<String> =
        (0..1_000).map(|n| format!("user-{n}")).chain(["tester-1".into(), "vip-1".into()]).collect();
    for instances in [1, 10, 1_000] {
        let snapshot = fleet::snapshot(&fleet::table(instances));
        let all = || {
            for subject in &subjects {
                decide(&snapshot, &fleet::get(subject), fleet::NOW);
                decide(&snapshot, &Request { explicit_lane: Some("canary"), ..fleet::get(subject) }, fleet::NOW);
                decide(&snapshot, &Request { subject: None, ..fleet::get("") }, fleet::NOW);
            }
        };
        assert_eq!(allocations(all), 0, "{instances} instances");
    }
}

#[test]
fn nor_does_one_with_breakers_zones_bounded_load_and_hot_keys() {
    let snapshot = fleet::busy_snapshot(fleet::table(1_000));
    let service = snapshot.service("orders").expect("the service is there");
    let open = service.instances.iter().filter(|entry| entry.cell.open_until(fleet::NOW).is_some()).count();
    assert_eq!(open, 200);
    let subjects: Vec<String> = (0..1_000).map(|n| format!("user-{n}")).chain(["tenant-7".into()]).collect();
    let all = || subjects.iter().for_each(|subject| decide(&snapshot, &fleet::get(subject), fleet::NOW));
    assert_eq!(allocations(all), 0);
}

#[test]
fn nor_does_one_that_walks_past_everybody() {
    let mut table = fleet::table(1_000);
    for candidate in &mut table.instances {
        candidate.owner = MemberState::Doubtful;
    }
    let snapshot = fleet::snapshot(&table);
    assert_eq!(allocations(|| decide(&snapshot, &fleet::get("user-1"), fleet::NOW)), 0);
}

#[test]
fn nor_does_the_life_of_a_request_that_succeeds_at_once() {
    let snapshot = fleet::snapshot(&fleet::table(10));
    let service = snapshot.service("orders").expect("the service is there");
    let config = AttemptsConfig { max_retries: 2, per_try: Duration::from_secs(1), total: Duration::from_secs(15) };
    let life = || {
        let decision = choose(&snapshot, service, &fleet::get("user-1"), fleet::NOW);
        let mut attempts = Attempts::new(&decision, MethodClass::Safe, true, config, fleet::NOW);
        assert!(matches!(attempts.next(service, fleet::NOW), Step::Try { .. }));
        attempts.ended(Outcome::Answered(200), service, fleet::NOW);
    };
    assert_eq!(allocations(life), 0);
}
