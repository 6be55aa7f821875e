//! Breakers and retry budgets on real sockets (REQUIREMENTS R5, R6; cases C76, C79, C81).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use lanemesh::{
    config::{Breaker, Routing, Statuses},
    routing::Rules,
};

use super::observe::canary;
use crate::support::{
    Act, Fixture, Instance, Upstream,
    fixture::{eventually, silent},
};

const BUSY: &str = "HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy";

/// Short times, so that a test sees a whole life.
fn quick() -> Routing {
    let breaker = Breaker {
        open: Duration::from_millis(150),
        open_max: Duration::from_millis(150),
        ramp: Duration::from_millis(300),
        ..Routing::default().breaker
    };
    Routing { breaker, ..Routing::default() }
}

fn fixture(instances: &[Instance], rules: Routing) -> Fixture {
    Fixture::ruled(instances, Rules::new(1, Arc::new(rules), &BTreeMap::new()), |config| {
        config.proxy.timeouts.per_try = Duration::from_millis(300);
    })
}

/// An application that fails for as long as it is told to.
fn sick(how: &'static str) -> (Upstream, Arc<AtomicBool>) {
    let well = Arc::new(AtomicBool::new(false));
    let is_well = well.clone();
    let up = Upstream::start(move |_, _| match (is_well.load(SeqCst), how) {
        (true, _) => vec![Act::ok("ok")],
        (false, "reset") => vec![Act::Reset],
        (false, "cut") => vec![Act::send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsome"), Act::Reset],
        (false, "hang") => vec![Act::Pause(Duration::from_secs(2)), Act::Close],
        (false, _) => vec![Act::send(BUSY)],
    });
    (up, well)
}

/// Three instances, the first one sick.
fn three(up: &Upstream, others: &[Upstream; 2], rules: Routing) -> Fixture {
    let addrs = [up.addr, others[0].addr, others[1].addr];
    let instances: Vec<Instance> = (0..3).map(|n| Instance::new(&format!("o{n}"), addrs[n])).collect();
    fixture(&instances, rules)
}

fn keys_of(proxy: &Fixture, first: &str, count: usize) -> Vec<String> {
    (0..).map(|n| format!("u{n}")).filter(|key| proxy.order(key)[0] == first).take(count).collect()
}

fn state(proxy: &Fixture, state: &str) -> f64 {
    proxy.metric("lanemesh_breakers", &[&format!("state=\"{state}\"")])
}

/// C81: its users see nothing, move to their next, and are all back after the ramp; nobody else moves.
#[test]
fn a_sick_instance_s_users_move_once_and_come_back() {
    for how in ["reset", "cut", "status", "hang"] {
        let (up, well) = sick(how);
        let others = [Upstream::ok("ok"), Upstream::ok("ok")];
        let proxy = three(&up, &others, quick());
        let (own, foreign) = (keys_of(&proxy, "o0", 6), keys_of(&proxy, "o1", 3));
        for key in &own {
            let response = proxy.get(key);
            assert_eq!((response.status, response.text().as_str()), (200, "ok"), "{how}");
            assert_eq!(response.header("x-lanemesh-instance"), Some(proxy.order(key)[1].as_str()), "{how}");
        }
        assert!((3..=4).contains(&up.seen().len()), "{how}: {} requests until it opened", up.seen().len());
        assert_eq!(proxy.metric("lanemesh_breaker_opened_total", &["orders"]), 1.0, "{how}");
        for key in &foreign {
            assert_eq!(proxy.get(key).header("x-lanemesh-instance"), Some("o1"), "{how}");
        }
        well.store(true, SeqCst);
        eventually("all its users are back", || {
            own.iter().all(|key| proxy.get(key).header("x-lanemesh-instance") == Some("o0"))
        });
        eventually("the breaker is closed", || {
            proxy.get(&own[0]);
            state(&proxy, "closed") == 3.0
        });
    }
}

/// C76: however the request ends that tries an instance, another one may try it within an open time.
#[test]
fn c76_the_place_of_the_try_never_stays_taken() {
    let (up, well) = sick("status");
    let others = [Upstream::ok("ok"), Upstream::ok("ok")];
    let proxy = three(&up, &others, quick());
    let key = keys_of(&proxy, "o0", 1).remove(0);
    let open = || (0..4).for_each(|_| drop(proxy.get(&key)));
    open();
    for _ in 0..3 {
        let seen = up.seen().len();
        eventually("it is tried", || {
            // Half of the clients go away at once.
            proxy.client().send(format!("GET / HTTP/1.1\r\nHost: orders\r\nx-user-id: {key}\r\n\r\n"));
            proxy.get(&key);
            up.seen().len() > seen
        });
    }
    well.store(true, SeqCst);
    let head = format!("HEAD / HTTP/1.1\r\nHost: orders\r\nx-user-id: {key}\r\nConnection: close\r\n\r\n");
    eventually("a HEAD brings it back as well", || {
        proxy.client().send(&head);
        state(&proxy, "ramping") + state(&proxy, "closed") == 3.0
    });
    eventually("it is home again", || proxy.get(&key).header("x-lanemesh-instance") == Some("o0"));
}

/// C79: of four that all fail, two stay; a single one always; and that is said.
#[test]
fn c79_the_floor_is_kept_and_seen() {
    for (count, open) in [(4, 2.0), (1, 0.0)] {
        let sick: Vec<_> = (0..count).map(|_| sick("status")).collect();
        let instances: Vec<Instance> =
            sick.iter().enumerate().map(|(n, (up, _))| Instance::new(&format!("o{n}"), up.addr)).collect();
        let rules = quick();
        let breaker = Breaker { open: Duration::from_secs(2), ..rules.breaker.clone() };
        let proxy = fixture(&instances, Routing { breaker: Breaker { open_max: breaker.open, ..breaker }, ..rules });
        for n in 0..60 {
            let response = proxy.get(&format!("u{n}"));
            assert_eq!((response.status, response.text().as_str()), (503, "busy"), "the application's own answer");
        }
        assert_eq!(state(&proxy, "open"), open);
        assert_eq!(state(&proxy, "held"), f64::from(count) - open);
        assert!(proxy.metric("lanemesh_breaker_held_total", &["orders"]) >= f64::from(count) - open);
        sick.iter().for_each(|(_, well)| well.store(true, SeqCst));
        eventually("everybody is served", || (0..20).all(|n| proxy.get(&format!("u{n}")).status == 200));
    }
}

/// Where 500 does not count as the instance's failure, it is an answer like any other.
#[test]
fn a_500_that_does_not_count_is_not_repeated() {
    let bad = Upstream::bytes("HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\noops");
    let good = Upstream::ok("good");
    let instances = [Instance::new("bad", bad.addr), Instance::new("good", good.addr)];
    for (counted, answers) in [(&[500, 503][..], &["good"][..]), (&[503], &["good", "oops"])] {
        let mut rules = quick();
        rules.breaker.counts.statuses = Statuses::of(counted);
        let proxy = fixture(&instances, rules);
        let seen: BTreeSet<String> = (0..20).map(|n| proxy.get(&format!("u{n}")).text()).collect();
        assert_eq!(seen.iter().map(String::as_str).collect::<Vec<_>>(), answers, "{counted:?}");
    }
}

/// C87: a canary that fails whole is left for stable, which is counted by pair and reason, and gets its users back.
#[test]
fn c87_a_canary_that_fails_is_left_for_stable_and_comes_back() {
    let (up, well) = sick("status");
    let stable = Upstream::ok("stable");
    let instances = [Instance::new("c1", up.addr).lane("canary", "v2"), Instance::new("s1", stable.addr)];
    let rules = Rules::new(1, Arc::new(quick()), &BTreeMap::new());
    let proxy = Fixture::made(&instances, &[canary(10_000, &[])], rules, |_| {});
    let answers: Vec<String> = (0..12).map(|n| proxy.get(&format!("u{n}")).text()).collect();
    assert!(answers.iter().any(|text| text == "busy"), "the first ones see it fail");
    assert!(answers[6..].iter().all(|text| text == "stable"), "{answers:?}");
    let counted = ["lane=\"canary\"", "served=\"stable\"", "reason=\"sick\""];
    assert!(proxy.metric("lanemesh_lane_fallback_total", &counted) >= 6.0);
    well.store(true, SeqCst);
    eventually("all are back", || (0..20).all(|n| proxy.get(&format!("u{n}")).text() == "ok"));
}

/// Retries stay within a fifth of the requests and ten for a start, however many fail; refused connections are free.
#[test]
fn the_retry_budget_holds_when_everybody_fails() {
    let ups: Vec<Upstream> = (0..3).map(|_| Upstream::bytes(BUSY)).collect();
    let instances: Vec<Instance> = (0..3).map(|n| Instance::new(&format!("o{n}"), ups[n].addr)).collect();
    let proxy = fixture(&instances, quick());
    for n in 0..100 {
        assert_eq!(proxy.get(&format!("u{n}")).text(), "busy");
    }
    let tries: usize = ups.iter().map(|up| up.seen().len()).sum();
    assert!((110..=132).contains(&tries), "{tries} tries of 100 requests");
    assert!(proxy.metric("lanemesh_retries_denied_total", &["orders"]) > 50.0);

    let down: Vec<Instance> = (0..5).map(|n| Instance::new(&format!("d{n}"), Upstream::refusing())).collect();
    let up = Upstream::ok("ok");
    let instances = [down, vec![Instance::new("up", up.addr)]].concat();
    let proxy = fixture(&instances, quick());
    assert!((0..100).all(|n| proxy.get(&format!("u{n}")).status == 200));
    assert_eq!(proxy.metric("lanemesh_retries_denied_total", &["orders"]), 0.0);
}

/// Only one layer retries: the number of the try is told, and who is told of a second one does not repeat it.
#[test]
fn one_layer_retries() {
    let busy = Upstream::bytes(BUSY);
    let ok = Upstream::ok("ok");
    let proxy = fixture(&[Instance::new("busy", busy.addr), Instance::new("ok", ok.addr)], quick());
    let key = keys_of(&proxy, "busy", 1).remove(0);
    assert_eq!(proxy.get(&key).text(), "ok");
    let number = |up: &Upstream| up.seen().last().unwrap().values("x-lanemesh-attempt")[0].to_owned();
    assert_eq!((number(&busy).as_str(), number(&ok).as_str()), ("1", "2"));
    let repeated = format!("GET / HTTP/1.1\r\nHost: orders\r\nx-user-id: {key}\r\nx-lanemesh-attempt: 2\r\n\r\n");
    assert_eq!(proxy.ask(repeated).text(), "busy");
}

/// An instance that accepts and says nothing costs each user at most one try's time, and then nobody.
#[test]
fn a_silent_instance_is_passed_over_after_three() {
    let (_listener, addr) = silent();
    let ok = Upstream::ok("ok");
    let proxy = fixture(&[Instance::new("silent", addr), Instance::new("ok", ok.addr)], Routing::default());
    let keys = keys_of(&proxy, "silent", 8);
    let slow = keys.iter().filter(|key| proxy.get(key).header("x-lanemesh-attempts") != Some("1")).count();
    assert_eq!(slow, 3);
}

/// C87: with everybody on canary and nobody in stable, all are served; with canary gone, safe requests are, others hear why not.
#[test]
fn c87_a_full_canary_needs_no_stable() {
    let new = Upstream::ok("canary");
    let proxy = Fixture::with(&[Instance::new("c1", new.addr).lane("canary", "v2")], &[canary(10_000, &[])], |_| {});
    assert!((0..30).all(|n| proxy.get(&format!("u{n}")).text() == "canary"));
    let stable = Upstream::ok("stable");
    let proxy = Fixture::with(&[Instance::new("s1", stable.addr)], &[canary(1_000, &["vip"])], |_| {});
    assert!((0..30).all(|n| proxy.get(&format!("u{n}")).text() == "stable"));
    let ask = |method: &str| {
        proxy.ask(format!(
            "{method} / HTTP/1.1\r\nHost: orders\r\nx-user-id: vip\r\nx-lane: canary\r\nContent-Length: 0\r\n\r\n"
        ))
    };
    assert_eq!((ask("GET").text().as_str(), ask("POST").status), ("stable", 503));
    assert!(
        proxy.metric("lanemesh_lane_fallback_total", &["lane=\"canary\"", "served=\"stable\"", "reason=\"absent\""])
            >= 1.0
    );
}
