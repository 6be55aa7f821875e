//! Who is believed, who is not, and what follows.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use super::*;
use crate::routing::{BreakerState, Builder, Rules, testing::*};

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn saw(instance: &str, attempts: u16, failures: u16) -> Observation {
    let service = ServiceName::new("orders").unwrap();
    let (owner, instance) = (node(&format!("node-{instance}")), InstanceId::new(instance).unwrap());
    Observation { service, owner, instance, attempts, failures }
}

fn signal(observer: &str, seen: Vec<Observation>) -> Signal {
    Signal { observer: node(observer), generation: 1, number: 1, seen }
}

fn state(snapshot: &Snapshot, id: &str) -> BreakerState {
    let service = snapshot.service("orders").unwrap();
    let entry = service.instances.iter().find(|entry| entry.record.id.as_str() == id).unwrap();
    entry.cell.state(NOW, &service.rules)
}

fn fail(snapshot: &Snapshot, id: &str, times: usize, now: Mono) {
    let service = snapshot.service("orders").unwrap();
    let entry = service.instances.iter().find(|entry| entry.record.id.as_str() == id).unwrap();
    for _ in 0..times {
        entry.cell.failed(entry.cell.force(), now, &service.rules);
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn two_observers_together_keep_an_instance_away_and_one_alone_does_not() {
    let snapshot = built(&fleet(5, 0));
    let mut signals = Signals::new(node("me"));
    for _ in 0..5 {
        assert!(signals.hear(signal("x", vec![saw("a1", 6, 6)]), &snapshot, NOW).is_empty());
    }
    assert_eq!(state(&snapshot, "a1"), BreakerState::Closed, "one alone");
    signals.hear(signal("y", vec![saw("a1", 2, 2)]), &snapshot, NOW + ms(100));
    assert_eq!(state(&snapshot, "a1"), BreakerState::Signalled);
    assert_eq!(state(&snapshot, "a2"), BreakerState::Closed);
    let report = signals.report(&snapshot, NOW + ms(200));
    assert_eq!((report.doubts.len(), report.doubts[0].failures, report.doubts[0].observers.len()), (1, 8, 2));
    assert!(report.observers.iter().all(|observer| observer.standing == Standing::Agreed));
    let text = report.to_string();
    assert!(text.contains("kept away  a1 of orders for 0 s: 8 of 8 failed, seen by x, y"), "{text}");
}

#[test]
fn own_failures_count_as_one_observers() {
    let snapshot = built(&fleet(5, 0));
    let mut signals = Signals::new(node("me"));
    signals.hear(signal("x", vec![saw("a1", 2, 2)]), &snapshot, NOW);
    fail(&snapshot, "a1", 2, NOW);
    let (told, _) = signals.tell(&snapshot, NOW);
    assert_eq!(told, vec![saw("a1", 2, 2)]);
    assert_eq!(state(&snapshot, "a1"), BreakerState::Signalled);
    assert_eq!(signals.tell(&snapshot, NOW).0, vec![], "what others know is not told again");
}

/// The floor keeps it in use, and each of its requests fails: that is said every two seconds, and at once when it has become clearly more.
#[test]
fn what_goes_on_failing_is_not_told_with_every_failure() {
    let snapshot = built(&fleet(5, 0));
    let mut signals = Signals::new(node("me"));
    let mut told = Vec::new();
    for step in 0..50 {
        let now = NOW + ms(200 * step);
        fail(&snapshot, "a1", 1, now);
        told.extend(signals.tell(&snapshot, now).0.iter().map(|observation| (200 * step, observation.failures)));
    }
    let times: Vec<u64> = told.iter().map(|(at, _)| *at).collect();
    assert!(told.len() <= 10 && told[0] == (200, 2) && told[1] == (400, 3), "{told:?}");
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] <= 2_000), "before it runs out: {times:?}");
    // What is new is told at once, and the rest with it: the newer word replaces the older one.
    fail(&snapshot, "a2", 2, NOW + ms(9_900));
    let (seen, _) = signals.tell(&snapshot, NOW + ms(9_900));
    let names: Vec<&str> = seen.iter().map(|observation| observation.instance.as_str()).collect();
    assert_eq!(names, ["a2", "a1"]);
}

/// Three sidecars with one waiting request each are enough, two are not; and nobody is called sick for one that was slow.
#[test]
fn single_requests_that_wait_add_up() {
    let snapshot = built(&fleet(5, 0));
    let mut signals = Signals::new(node("me"));
    for (observer, kept_away) in [("x", false), ("y", false), ("z", true)] {
        signals.hear(signal(observer, vec![saw("a1", 1, 1)]), &snapshot, NOW);
        assert_eq!(state(&snapshot, "a1") == BreakerState::Signalled, kept_away, "{observer}");
    }
    let service = snapshot.service("orders").unwrap();
    let entry = service.instances.iter().find(|entry| entry.record.id.as_str() == "a2").unwrap();
    for _ in 0..10 {
        entry.cell.succeeded(entry.cell.force(), NOW + ms(6_000), &service.rules);
    }
    signals.hear(signal("x", vec![saw("a2", 1, 1)]), &snapshot, NOW + ms(100));
    assert_eq!(signals.tidy(&snapshot, NOW + ms(6_000)), Vec::<Remark>::new());
}

#[test]
fn too_little_too_old_or_too_mixed_keeps_nobody_away() {
    for (first, second, later) in [
        (saw("a1", 6, 1), saw("a1", 6, 1), 0),
        (saw("a1", 6, 2), saw("a1", 6, 2), 0),
        (saw("a1", 2, 2), saw("a2", 2, 2), 0),
        (saw("a1", 3, 3), saw("a1", 3, 3), 5_001),
    ] {
        let snapshot = built(&fleet(5, 0));
        let mut signals = Signals::new(node("me"));
        signals.hear(signal("x", vec![first]), &snapshot, NOW);
        signals.hear(signal("y", vec![second]), &snapshot, NOW + ms(later));
        assert_eq!((signals.counts().doubted, signals.counts().heard), (0, 2));
    }
}

#[test]
fn who_accuses_most_of_a_lane_is_not_believed_and_is_reported() {
    let snapshot = built(&fleet(4, 0));
    let mut signals = Signals::new(node("me"));
    let most = || vec![saw("a0", 6, 6), saw("a1", 6, 6), saw("a2", 6, 6)];
    let remarks = signals.hear(signal("x", most()), &snapshot, NOW);
    assert!(remarks.len() == 1 && remarks[0].contains("`x` says that most instances of `orders`"), "{remarks:?}");
    assert!(signals.hear(signal("x", most()), &snapshot, NOW).is_empty(), "once a minute");
    signals.hear(signal("y", vec![saw("a0", 6, 6)]), &snapshot, NOW);
    assert_eq!(signals.counts().doubted, 0);
    assert_eq!(signals.report(&snapshot, NOW).observers[0].standing, Standing::AccusesMost);
}

#[test]
fn a_sidecar_where_most_of_a_lane_fails_says_nothing() {
    let snapshot = built(&fleet(3, 0));
    let mut signals = Signals::new(node("me"));
    fail(&snapshot, "a0", 3, NOW);
    assert_eq!(signals.tell(&snapshot, NOW).0.len(), 1);
    fail(&snapshot, "a1", 3, NOW);
    let (told, remarks) = signals.tell(&snapshot, NOW);
    assert_eq!((told, remarks.len(), signals.counts().withheld), (vec![], 1, 2));
}

/// However many observers: the floor of the lane is kept.
#[test]
fn the_floor_is_kept() {
    let snapshot = built(&fleet(4, 0));
    let mut signals = Signals::new(node("me"));
    for id in ["a0", "a1", "a2", "a3"] {
        for observer in ["x", "y", "z"] {
            signals.hear(signal(&format!("{observer}-{id}"), vec![saw(id, 6, 6)]), &snapshot, NOW);
        }
    }
    assert_eq!(signals.counts().doubted, 2);
}

/// Two liars keep an instance away once; when it has come back and answers, they are proved wrong, and in the end nobody listens.
#[test]
fn liars_are_found_out() {
    let snapshot = built(&fleet(4, 0));
    let service = snapshot.service("orders").unwrap();
    let cell = &service.instances[1].cell;
    let mut signals = Signals::new(node("me"));
    let mut now = NOW;
    let mut lie = |now: Mono| {
        let said = ["x", "y"].map(|liar| signals.hear(signal(liar, vec![saw("a1", 6, 6)]), &snapshot, now));
        (said.concat(), signals.counts())
    };
    assert_eq!(lie(now).1.doubted, 1);
    now = now + ms(12_500);
    let ticket = cell.admit(now, &service.rules).expect("one may try it");
    assert!(cell.succeeded(ticket, now, &service.rules));
    for _ in 0..5 {
        cell.succeeded(cell.force(), now, &service.rules);
    }
    let mut remarks = Vec::new();
    for _ in 0..3 {
        now = now + ms(6_000);
        let (said, counts) = lie(now);
        assert_eq!(counts.doubted, 1, "it answers here");
        remarks.extend(said);
    }
    assert!(remarks.len() == 2 && remarks[0].contains("is not believed for 5 minutes"), "{remarks:?}");
    cell.renew();
    assert_eq!(lie(now).1.doubted, 1, "nor when nothing else speaks for the instance");
    assert_eq!(signals.report(&snapshot, now).observers[0].standing, Standing::Discredited);
}

#[test]
fn a_lone_observer_of_what_answers_here_is_reported_when_its_word_runs_out() {
    let snapshot = built(&fleet(3, 0));
    let service = snapshot.service("orders").unwrap();
    let mut signals = Signals::new(node("me"));
    signals.hear(signal("x", vec![saw("a1", 6, 6)]), &snapshot, NOW);
    let later = NOW + ms(5_100);
    assert!(signals.tidy(&snapshot, later).is_empty(), "who has not been there can't tell");
    signals.hear(signal("x", vec![saw("a1", 6, 6)]), &snapshot, later);
    let later = later + ms(5_100);
    for _ in 0..5 {
        service.instances[1].cell.succeeded(service.instances[1].cell.force(), later, &service.rules);
    }
    let remarks = signals.tidy(&snapshot, later);
    assert!(remarks.len() == 1 && remarks[0].contains("`x` alone sees `a1`"), "{remarks:?}");
}

#[test]
fn switched_off_it_neither_tells_nor_believes() {
    let routing = Routing { signals: false, ..Routing::default() };
    let rules = Rules::new(0, Arc::new(routing), &BTreeMap::new());
    let (snapshot, _) = Builder::with(locality(), rules).build(&fleet(4, 0), NOW);
    let mut signals = Signals::new(node("me"));
    for who in ["x", "y"] {
        signals.hear(signal(who, vec![saw("a1", 6, 6)]), &snapshot, NOW);
    }
    fail(&snapshot, "a2", 3, NOW);
    assert_eq!((signals.counts().doubted, signals.tell(&snapshot, NOW).0.len()), (0, 0));
}

#[test]
fn the_bell_wakes_once_until_it_is_answered() {
    let woken = Arc::new(AtomicUsize::new(0));
    let count = woken.clone();
    let bell = Bell::new(move || {
        count.fetch_add(1, Relaxed);
    });
    assert!(!bell.answer());
    bell.ring();
    bell.ring();
    assert!(bell.answer() && !bell.answer());
    bell.ring();
    assert_eq!(woken.load(Relaxed), 2);
}

/// Sends so many there at a moment, which then wait.
fn wait(snapshot: &Snapshot, id: &str, count: usize, since: Mono) -> Vec<crate::routing::InFlight> {
    let service = snapshot.service("orders").unwrap();
    let entry = service.instances.iter().find(|entry| entry.record.id.as_str() == id).unwrap();
    (0..40).for_each(|_| entry.cell.answered(ms(3)));
    (0..count).for_each(|_| entry.cell.asked(since));
    (0..count).map(|_| entry.cell.enter()).collect()
}

/// Nobody's time is up yet, and two sidecars have heard nothing for too long.
#[test]
fn who_waits_unheard_of_counts_as_failed() {
    let snapshot = built(&fleet(5, 0));
    let mut signals = Signals::new(node("me"));
    signals.hear(signal("x", vec![saw("a1", 2, 2)]), &snapshot, NOW);
    let waiting = wait(&snapshot, "a1", 2, NOW);
    assert_eq!(signals.tell(&snapshot, NOW + ms(290)).0, vec![]);
    assert_eq!(state(&snapshot, "a1"), BreakerState::Closed);
    assert_eq!(signals.tell(&snapshot, NOW + ms(300)).0, vec![saw("a1", 2, 2)]);
    assert_eq!(state(&snapshot, "a1"), BreakerState::Signalled);
    drop(waiting);
    let one = wait(&snapshot, "a2", 1, NOW);
    assert_eq!(signals.tell(&snapshot, NOW + ms(890)).0, vec![], "one may be a slow one");
    assert_eq!(signals.tell(&snapshot, NOW + ms(900)).0, vec![saw("a2", 1, 1)]);
    drop(one);
    // Everybody hears it, so that a mesh of many instances hears of such from each sidecar the more rarely; told or not, it counts here.
    let instances = snapshot.services().map(|view| view.instances.len()).sum::<usize>() as u32;
    let next = NOW + ms(900) + SINGLES * instances;
    let another = wait(&snapshot, "a3", 1, NOW + ms(100));
    assert_eq!(signals.tell(&snapshot, next - ms(1)).0, vec![]);
    signals.hear(signal("x", vec![saw("a3", 2, 2)]), &snapshot, next - ms(1));
    assert_eq!(state(&snapshot, "a3"), BreakerState::Signalled);
    drop(another);
    let later = wait(&snapshot, "a4", 1, NOW + ms(100));
    assert_eq!(signals.tell(&snapshot, next).0, vec![saw("a4", 1, 1)]);
    drop(later);
}

/// It was only a pause: the first answer to what was sent before brings it back, and what is said of it then is not believed.
#[test]
fn who_answers_what_was_sent_before_comes_back() {
    for failed in [false, true] {
        let snapshot = built(&fleet(5, 0));
        let service = snapshot.service("orders").unwrap();
        let cell = &service.instances[1].cell;
        let mut signals = Signals::new(node("me"));
        let before = cell.admit(NOW, &service.rules).unwrap();
        fail(&snapshot, "a1", usize::from(failed), NOW);
        let mut say = |at| _ = ["x", "y"].map(|who| signals.hear(signal(who, vec![saw("a1", 2, 2)]), &snapshot, at));
        say(NOW);
        assert_eq!(state(&snapshot, "a1"), BreakerState::Signalled);
        assert_eq!(cell.succeeded(before, NOW + ms(10), &service.rules), !failed, "unless it failed here as well");
        say(NOW + ms(20));
        assert_eq!(state(&snapshot, "a1") == BreakerState::Signalled, failed);
    }
}

/// It need not stop for that: a lone observer that goes on and on is named while it speaks.
#[test]
fn a_lone_observer_that_goes_on_is_named() {
    let snapshot = built(&fleet(3, 0));
    let service = snapshot.service("orders").unwrap();
    let mut signals = Signals::new(node("me"));
    let mut remarks = Vec::new();
    for second in 0..20 {
        let now = NOW + ms(second * 1_000);
        (0..5).for_each(|_| {
            _ = service.instances[1].cell.succeeded(service.instances[1].cell.force(), now, &service.rules)
        });
        remarks.extend(signals.hear(signal("x", vec![saw("a1", 6, 6)]), &snapshot, now));
    }
    assert!(remarks.len() == 1 && remarks[0].contains("`x` alone sees `a1`"), "once a minute: {remarks:?}");
    let standing: Vec<_> =
        signals.report(&snapshot, NOW + ms(19_000)).observers.iter().map(|observer| observer.standing).collect();
    assert_eq!(standing, [Standing::AnswersHere], "and whoever asks is told");
    assert_eq!((signals.counts().alone, signals.counts().doubted), (3, 0));
}
