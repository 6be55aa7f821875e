//! The life of a request, against the rules of R6 read one by one, and against scripted worlds drawn by proptest.

use std::{collections::BTreeSet, sync::Arc};

use proptest::prelude::*;

use super::*;
use crate::routing::{BreakerState, Snapshot, choose, testing::*};

const CONFIG: AttemptsConfig =
    AttemptsConfig { max_retries: 2, per_try: Duration::from_secs(5), total: Duration::from_secs(15) };

/// One request on a snapshot, with its own clock.
struct Life {
    snapshot: Arc<Snapshot>,
    attempts: Attempts,
    order: Vec<u16>,
    now: Mono,
}

impl Life {
    fn new(snapshot: &Arc<Snapshot>, subject: &str, class: MethodClass, replayable: bool) -> Self {
        let service = snapshot.service("orders").unwrap();
        let decision = choose(snapshot, service, &crate::routing::Request { method: class, ..get(subject) }, NOW);
        let order = decision.served_lane(service).map_or(Vec::new(), |lane| lane.order(decision.key_hash).collect());
        let attempts = Attempts::new(&decision, class, replayable, CONFIG, NOW);
        Self { snapshot: snapshot.clone(), attempts, order, now: NOW }
    }

    fn next(&mut self) -> Step {
        self.attempts.next(self.snapshot.service("orders").unwrap(), self.now)
    }

    fn ended(&mut self, outcome: Outcome) {
        self.attempts.ended(outcome, self.snapshot.service("orders").unwrap(), self.now);
    }

    /// The next try's place in failover order, with waits slept through; or why it is over.
    fn place(&mut self) -> Result<usize, GiveUp> {
        loop {
            match self.next() {
                Step::Try { instance, .. } => return Ok(self.order.iter().position(|at| *at == instance).unwrap()),
                Step::Wait(until) => self.now = until,
                Step::GiveUp(why) => return Err(why),
            }
        }
    }

    /// Tries and their end, one after the other, until it is over.
    fn all(&mut self, outcomes: &[Outcome]) -> (Vec<usize>, Option<GiveUp>) {
        let mut places = Vec::new();
        for outcome in outcomes {
            match self.place() {
                Ok(place) => places.push(place),
                Err(why) => return (places, Some(why)),
            }
            self.ended(*outcome);
        }
        (places, self.place().err())
    }
}

fn instances(count: usize) -> Arc<Snapshot> {
    built(&fleet(count, 0))
}

fn make_doubtful(snapshot: &Snapshot, instance: u16) {
    open_breaker(&snapshot.service("orders").unwrap().instances[usize::from(instance)]);
}

use Outcome::*;

/// C75: the next distinct instance, never the failed one; the order is the ring's.
#[test]
fn refusals_walk_the_whole_order_for_every_method() {
    for class in [MethodClass::Safe, MethodClass::Other] {
        for user in 0..50 {
            let mut life = Life::new(&instances(7), &format!("u{user}"), class, false);
            assert_eq!(life.all(&[ConnectFailed; 8]), ((0..7).collect(), Some(GiveUp::AllRefused)));
            assert_eq!(life.attempts.retries(), 6);
        }
    }
}

#[test]
fn a_thousand_refusals_reach_a_thousand_instances() {
    let mut life = Life::new(&instances(1_000), "u", MethodClass::Safe, true);
    let (places, why) = life.all(&[ConnectFailed; 1_001]);
    assert_eq!((places, why), ((0..1_000).collect(), Some(GiveUp::AllRefused)));
}

#[test]
fn what_may_have_been_processed_is_repeated_only_if_it_may_be() {
    for (outcome, why) in [
        (Reset, GiveUp::UpstreamReset),
        (Timeout, GiveUp::UpstreamTimeout),
        (RetryableStatus(503), GiveUp::RetriesUsedUp),
    ] {
        let run = |class, replayable| Life::new(&instances(5), "u", class, replayable).all(&[outcome; 5]);
        assert_eq!(run(MethodClass::Safe, true), (vec![0, 1, 2], Some(why)));
        assert_eq!(run(MethodClass::Idempotent, true), (vec![0, 1, 2], Some(why)));
        assert_eq!(run(MethodClass::Other, true), (vec![0], Some(why)));
        assert_eq!(run(MethodClass::Safe, false), (vec![0], Some(why)));
    }
}

#[test]
fn refusals_do_not_use_up_retries() {
    let mut life = Life::new(&instances(9), "u", MethodClass::Safe, true);
    let outcomes = [ConnectFailed, ConnectFailed, Reset, ConnectFailed, Timeout, ConnectFailed, Reset];
    assert_eq!(life.all(&outcomes), ((0..7).collect(), Some(GiveUp::UpstreamReset)));
}

#[test]
fn a_stale_connection_is_tried_again_fresh_on_the_same_instance_and_is_nobody_s_failure() {
    let mut life = Life::new(&instances(3), "u", MethodClass::Other, false);
    let Step::Try { instance, fresh: false, .. } = life.next() else { panic!("a first try") };
    life.ended(StaleConnection);
    let Step::Try { instance: again, fresh: true, .. } = life.next() else { panic!("the same, fresh") };
    assert_eq!((again, life.attempts.retries()), (instance, 0));
    let cell = life.snapshot.service("orders").unwrap().instances[usize::from(instance)].cell.clone();
    assert_eq!(cell.open_until(NOW), None);
    life.ended(StaleConnection);
    assert_eq!(life.place(), Ok(1), "a fresh one that is closed at once is as good as refused");
}

#[test]
fn what_may_have_been_processed_is_repeated_once_for_free_and_no_more_often_than_allowed() {
    let mut life = Life::new(&instances(9), "u", MethodClass::Safe, true);
    let Step::Try { instance, fresh: false, .. } = life.next() else { panic!("a first try") };
    life.ended(MaybeStale);
    let Step::Try { instance: again, fresh: true, .. } = life.next() else { panic!("the same, fresh") };
    assert_eq!((again, life.attempts.retries(), life.attempts.number()), (instance, 1, 2));
    let cell = life.snapshot.service("orders").unwrap().instances[usize::from(instance)].cell.clone();
    assert_eq!(cell.open_until(NOW), None);
    life.ended(Reset);
    assert!(matches!(life.next(), Step::Try { fresh: false, .. }));
    // A second one is a failure like any other, and two retries were all.
    life.ended(MaybeStale);
    assert_eq!(life.next(), Step::GiveUp(GiveUp::UpstreamReset));
    let mut unsafe_one = Life::new(&instances(9), "u", MethodClass::Other, true);
    unsafe_one.next();
    unsafe_one.ended(MaybeStale);
    assert_eq!(unsafe_one.next(), Step::GiveUp(GiveUp::UpstreamReset));
}

#[test]
fn waits_come_only_after_a_status_or_before_the_same_instance() {
    let mut life = Life::new(&instances(3), "u", MethodClass::Safe, true);
    life.next();
    life.ended(Reset);
    assert!(matches!(life.next(), Step::Try { .. }));
    life.ended(RetryableStatus(503));
    let Step::Wait(until) = life.next() else { panic!("after a status") };
    let waits = until.since(NOW);
    assert!((Duration::from_millis(25)..=Duration::from_millis(50)).contains(&waits), "{waits:?}");
    assert_eq!(life.next(), Step::Wait(until), "asked too early");
    life.now = until;
    assert!(matches!(life.next(), Step::Try { .. }));

    let mut alone = Life::new(&instances(1), "u", MethodClass::Safe, true);
    alone.next();
    alone.ended(Reset);
    assert!(matches!(alone.next(), Step::Wait(_)));
    assert_eq!(alone.all(&[Reset, Reset]), (vec![0, 0], Some(GiveUp::UpstreamReset)));
}

#[test]
fn jitter_differs_between_requests() {
    let waits: BTreeSet<Mono> = (0..50)
        .map(|user| {
            let mut life = Life::new(&instances(3), &format!("u{user}"), MethodClass::Safe, true);
            life.next();
            life.ended(RetryableStatus(503));
            let Step::Wait(until) = life.next() else { panic!("after a status") };
            until
        })
        .collect();
    assert!(waits.len() > 40);
}

#[test]
fn one_that_took_a_connection_is_tried_again_when_all_others_refuse() {
    let mut life = Life::new(&instances(3), "u", MethodClass::Safe, true);
    let outcomes = [RetryableStatus(503), ConnectFailed, ConnectFailed, Answered(200)];
    assert_eq!(life.all(&outcomes).0, [0, 1, 2, 0]);
}

#[test]
fn doubtful_ones_come_after_the_others() {
    let snapshot = instances(4);
    let order = Life::new(&snapshot, "u", MethodClass::Safe, true).order;
    make_doubtful(&snapshot, order[0]);
    make_doubtful(&snapshot, order[2]);
    let mut life = Life::new(&snapshot, "u", MethodClass::Safe, true);
    assert_eq!(life.all(&[ConnectFailed; 5]), (vec![1, 3, 0, 2], Some(GiveUp::AllRefused)));
}

#[test]
fn of_two_requests_after_the_open_time_one_tries_it_and_the_other_walks_on() {
    let snapshot = instances(3);
    let order = Life::new(&snapshot, "u", MethodClass::Safe, true).order;
    make_doubtful(&snapshot, order[0]);
    let service = snapshot.service("orders").unwrap();
    let cell = &service.instances[usize::from(order[0])].cell;
    let later = cell.open_until(NOW).unwrap();
    let mut lives = [0, 1].map(|_| {
        let decision = choose(&snapshot, service, &get("u"), later);
        assert_eq!(decision.instance, Some(order[0]));
        Attempts::new(&decision, MethodClass::Safe, true, CONFIG, later)
    });
    let tried = lives.each_mut().map(|life| match life.next(service, later) {
        Step::Try { instance, .. } => instance,
        step => panic!("{step:?}"),
    });
    assert_eq!(tried, [order[0], order[1]]);
    lives[0].ended(Answered(404), service, later);
    assert_eq!(cell.state(later, &service.rules), BreakerState::Ramping, "any answer is one");
}

/// C76 (a), (e): the client goes away while its request tries an instance.
#[test]
fn a_request_that_is_dropped_frees_the_place_of_the_try() {
    let snapshot = instances(3);
    let order = Life::new(&snapshot, "u", MethodClass::Safe, true).order;
    make_doubtful(&snapshot, order[0]);
    let service = snapshot.service("orders").unwrap();
    let later = service.instances[usize::from(order[0])].cell.open_until(NOW).unwrap();
    for _ in 0..3 {
        let decision = choose(&snapshot, service, &get("u"), later);
        let mut attempts = Attempts::new(&decision, MethodClass::Safe, true, CONFIG, later);
        assert!(matches!(attempts.next(service, later), Step::Try { instance, .. } if instance == order[0]));
    }
}

/// A failure that can be repaired elsewhere is the better try: others wait a second for such a request.
#[test]
fn a_post_tries_an_instance_only_when_nobody_better_comes() {
    let snapshot = instances(3);
    let order = Life::new(&snapshot, "u", MethodClass::Safe, true).order;
    make_doubtful(&snapshot, order[0]);
    let service = snapshot.service("orders").unwrap();
    let later = service.instances[usize::from(order[0])].cell.open_until(NOW).unwrap();
    let chosen = |at| choose(&snapshot, service, &post("u"), at).instance;
    assert_eq!(chosen(later), Some(order[1]));
    assert_eq!(chosen(later + Duration::from_secs(1)), Some(order[0]));
    let get = choose(&snapshot, service, &get("u"), later);
    assert_eq!(get.instance, Some(order[0]));
}

#[test]
fn only_so_many_requests_a_second_leave_their_lane() {
    let fallback = crate::config::Fallback { per_second: Some(3), ..crate::config::Routing::default().fallback };
    let routing = crate::config::Routing { fallback, ..Default::default() };
    let rules = crate::routing::Rules::new(0, routing.into(), &Default::default());
    let table = with_policy(fleet(3, 0), policy(10_000));
    let snapshot = crate::routing::Builder::with(locality(), rules).build(&table, NOW).0;
    let ends = |now| -> Vec<Option<GiveUp>> {
        let service = snapshot.service("orders").unwrap();
        let one = |user: u32| {
            let decision = choose(&snapshot, service, &get(&format!("u{user}")), now);
            let mut attempts = Attempts::new(&decision, MethodClass::Safe, true, CONFIG, now);
            match attempts.next(service, now) {
                Step::GiveUp(why) => Some(why),
                _ => None,
            }
        };
        (0..5).map(one).collect()
    };
    let expected = [None, None, None, Some(GiveUp::FallbackLimit), Some(GiveUp::FallbackLimit)];
    assert_eq!(ends(NOW), expected);
    assert_eq!(ends(NOW + Duration::from_secs(1)), expected);
}

/// A caller that gives little time says nothing about the instance.
#[test]
fn timeouts_of_callers_in_a_hurry_do_not_count() {
    let snapshot = instances(3);
    let service = snapshot.service("orders").unwrap();
    let run = |total| {
        let config = AttemptsConfig { total, ..CONFIG };
        for _ in 0..10 {
            let decision = choose(&snapshot, service, &get("u"), NOW);
            let mut attempts = Attempts::new(&decision, MethodClass::Other, false, config, NOW);
            attempts.next(service, NOW);
            attempts.ended(Timeout, service, NOW);
        }
        service.state.breakers().opened
    };
    assert_eq!((run(Duration::from_millis(900)), run(Duration::from_secs(1))), (0, 1));
}

/// A request that no instance can serve must not open the breakers of a lane one after another.
#[test]
fn what_a_second_instance_answers_with_500_too_is_the_requests_fault() {
    let opened = |status| {
        let snapshot = instances(4);
        for _ in 0..3 {
            Life::new(&snapshot, "u", MethodClass::Safe, true).all(&[RetryableStatus(status); 3]);
        }
        let service = snapshot.service("orders").unwrap();
        service.instances.iter().filter(|entry| entry.cell.open_until(NOW).is_some()).count()
    };
    assert_eq!((opened(500), opened(503)), (1, 2), "half of four may be kept away");
}

#[test]
fn three_refused_requests_make_the_next_one_skip_it() {
    let snapshot = instances(3);
    for expected in [0, 0, 0, 1] {
        let mut life = Life::new(&snapshot, "u", MethodClass::Safe, true);
        assert_eq!(life.place(), Ok(expected));
        life.ended(if expected == 0 { ConnectFailed } else { Answered(200) });
    }
}

#[test]
fn tries_stay_under_a_third_and_everything_ends_at_the_deadline() {
    let service_of = instances(5);
    let mut life = Life::new(&service_of, "u", MethodClass::Safe, true);
    for _ in 0..2 {
        let Step::Try { until, .. } = life.next() else { panic!("a try") };
        assert_eq!(until.since(life.now), CONFIG.total / 3);
        life.now = until;
        life.ended(Timeout);
    }
    life.now = NOW + CONFIG.total;
    assert_eq!(life.next(), Step::GiveUp(GiveUp::Deadline));
    assert_eq!(life.next(), Step::GiveUp(GiveUp::Deadline));
}

#[test]
fn without_a_candidate_it_is_over_at_once() {
    let mut life = Life::new(&built(&fleet(0, 1)), "u", MethodClass::Safe, true);
    assert_eq!(life.all(&[Answered(200)]), (vec![], Some(GiveUp::NoInstance)));
    assert_eq!(life.attempts.retries(), 0);
}

#[test]
fn retries_stay_in_the_serving_lane() {
    let snapshot = built(&with_policy(fleet(4, 2), policy(10_000)));
    let service = snapshot.service("orders").unwrap();
    let decision = choose(&snapshot, service, &get("u"), NOW);
    let mut attempts = Attempts::new(&decision, MethodClass::Safe, true, CONFIG, NOW);
    let mut tried = Vec::new();
    while let Step::Try { instance, .. } = attempts.next(service, NOW) {
        tried.push(service.instances[usize::from(instance)].record.lane.to_string());
        attempts.ended(ConnectFailed, service, NOW);
    }
    assert_eq!(tried, ["canary", "canary"]);
}

fn any_outcome() -> impl Strategy<Value = Outcome> {
    prop::sample::select(vec![ConnectFailed, StaleConnection, Reset, Timeout, RetryableStatus(503), Answered(200)])
}

fn any_class() -> impl Strategy<Value = MethodClass> {
    prop::sample::select(vec![MethodClass::Safe, MethodClass::Idempotent, MethodClass::Other])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever the world answers: bounded, inside the deadline, nothing repeated that must not be, nobody twice while
    /// another is left, and it ends only for a reason.
    #[test]
    fn the_rules_hold_in_any_world(
        count in 1_usize..7,
        doubtful in prop::collection::btree_set(0_u16..7, 0..7),
        class in any_class(),
        replayable in any::<bool>(),
        script in prop::collection::vec((any_outcome(), 0_u64..3_000), 40),
    ) {
        let snapshot = instances(count);
        for instance in doubtful.into_iter().filter(|at| usize::from(*at) < count) {
            make_doubtful(&snapshot, instance);
        }
        let mut life = Life::new(&snapshot, "u", class, replayable);
        let may_repeat = replayable && class != MethodClass::Other;
        let (mut tried, mut sent, mut used, mut last, mut answered) = (BTreeSet::new(), 0, 0, None, false);
        for (outcome, takes) in script {
            let (instance, until, fresh) = match life.next() {
                Step::GiveUp(why) => {
                    let left = tried.len() < count;
                    match why {
                        GiveUp::AllRefused => prop_assert!(!left && sent == 0),
                        GiveUp::Deadline => prop_assert!(life.now >= NOW + CONFIG.total),
                        GiveUp::NoInstance | GiveUp::FallbackLimit => prop_assert!(false),
                        GiveUp::UpstreamReset | GiveUp::UpstreamTimeout | GiveUp::RetriesUsedUp =>
                            prop_assert!(answered || !may_repeat || used > 2 || life.now + Duration::from_millis(500) >= NOW + CONFIG.total),
                    }
                    return Ok(());
                }
                Step::Wait(until) => {
                    let same_next = tried.len() == count;
                    prop_assert!(same_next || last == Some(RetryableStatus(503)));
                    prop_assert!(until > life.now && until < NOW + CONFIG.total);
                    life.now = until;
                    let Step::Try { instance, until, fresh } = life.next() else { panic!("a try after a wait") };
                    (instance, until, fresh)
                }
                Step::Try { instance, until, fresh } => (instance, until, fresh),
            };
            prop_assert!(!answered);
            prop_assert!(until <= NOW + CONFIG.total && until.since(life.now) <= CONFIG.total / 3);
            prop_assert!(fresh == (last == Some(StaleConnection) && tried.contains(&instance)) || last == Some(StaleConnection));
            if !fresh {
                prop_assert!(tried.insert(instance) || tried.len() == count);
            }
            prop_assert!(sent == 0 || may_repeat);
            life.now = (life.now + Duration::from_millis(takes)).min(until);
            life.ended(outcome);
            last = Some(outcome);
            sent += u32::from(matches!(outcome, Reset | Timeout | RetryableStatus(_)));
            // A retry is used up by what was sent, and by a refusal that leaves only who took a connection before.
            let refused = outcome == ConnectFailed || (outcome == StaleConnection && fresh);
            used += u32::from(matches!(outcome, Reset | Timeout | RetryableStatus(_)) || (refused && sent > 0 && tried.len() == count));
            answered = outcome == Answered(200);
            prop_assert!(sent <= 3);
        }
        prop_assert!(false, "40 tries of at most 7 instances");
    }
}
