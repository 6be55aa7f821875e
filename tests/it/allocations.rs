//! A decision allocates nothing (REQUIREMENTS R3), on its straight path and on every other one.

use std::{hint::black_box, sync::Arc, time::Duration};

use lanemesh::{
    lanes::{LaneReason, PlainHead},
    routing::{Attempts, AttemptsConfig, MethodClass, Outcome, Request, Snapshot, Step, choose},
    types::{MatchRule, MemberState, Mono},
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
fn nor_does_one_by_match_rules() {
    let rule = |lane: &str, when: &[&str]| MatchRule {
        lane: lane.parse().unwrap(),
        when: when.iter().map(|condition| condition.parse().unwrap()).collect(),
    };
    let mut table = fleet::table(10);
    let policy = Arc::make_mut(table.policies.values_mut().next().expect("one policy"));
    policy.rules = (0..63).map(|at| rule("canary", &[&format!("header:x-{at}=1"), "method:GET"])).collect();
    policy.rules.push(rule("canary", &["cookie:beta=yes", "path:/v2", "subject:u*"]));
    let snapshot = fleet::snapshot(&table);
    let headers = [("x-user-id", "u1"), ("cookie", "a=b; beta=yes")].map(|(name, value)| (name.into(), value.into()));
    let head = PlainHead { method: "GET".into(), path: "/v2/carts".into(), headers: headers.into() };
    let service = snapshot.service("orders").expect("the service is there");
    let mut reason = None;
    let all = || {
        let who = service.reading.read(&head);
        let request = who.request(&head, MethodClass::Safe, 7);
        reason = Some(choose(&snapshot, service, &request, fleet::NOW).lane.reason);
    };
    assert_eq!(allocations(all), 0);
    assert_eq!(reason, Some(LaneReason::Rule));
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
