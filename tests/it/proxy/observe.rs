//! What people and programs are told: decision headers, metrics, access log (REQUIREMENTS O3, O4, L8).

use std::collections::BTreeMap;

use lanemesh::types::{
    AnonymousRule, BucketScheme, EmptyLaneRule, Lane, LanePolicy, LaneRule, PolicyVersion, ServiceName, Wall,
};

use crate::support::{Fixture, Instance, Upstream, fixture::eventually};

/// A policy of `orders` with one lane.
pub(super) fn canary(size: u16, allow: &[&str]) -> LanePolicy {
    let rule = LaneRule { size, allow: allow.iter().map(|s| (*s).to_owned()).collect(), ..LaneRule::default() };
    LanePolicy {
        service: ServiceName::new("orders").unwrap(),
        version: PolicyVersion { epoch: 1, clock: 2, author: "n1".into() },
        off: false,
        experiment: "e".into(),
        salt: "s".into(),
        scheme: BucketScheme::Prefixed,
        lanes: BTreeMap::from([(Lane::new("canary").unwrap(), rule)]),
        subject: None,
        anonymous: AnonymousRule::Stable,
        empty: EmptyLaneRule::default(),
        reason: String::new(),
        set_at: Wall(0),
        rules: Vec::new(),
        reserved: BTreeMap::new(),
        selectors: BTreeMap::new(),
    }
}

#[test]
fn lane_and_version_come_from_one_decision_and_only_listed_subjects_may_choose() {
    let (stable, new) = (Upstream::ok("stable"), Upstream::ok("canary"));
    let instances = [Instance::new("o1", stable.addr), Instance::new("o2", new.addr).lane("canary", "v2")];
    let proxy = Fixture::with(&instances, &[canary(0, &["vip"])], |_| {});
    let ask = |user: &str, lane: &str| {
        proxy.ask(format!("GET / HTTP/1.1\r\nHost: orders\r\nx-user-id: {user}\r\nx-lane: {lane}\r\n\r\n"))
    };
    let vip = ask("vip", "canary");
    assert_eq!((vip.text().as_str(), vip.header("x-lanemesh-lane")), ("canary", Some("canary")));
    assert_eq!((vip.header("x-lanemesh-version"), vip.header("x-lanemesh-instance")), (Some("v2"), Some("o2")));
    assert_eq!(vip.header("x-lanemesh-reason"), Some("explicit"));
    let seen = new.only();
    assert_eq!((seen.values("x-lanemesh-lane"), seen.values("x-lanemesh-version")), (vec!["canary"], vec!["v2"]));
    let other = ask("somebody", "canary");
    assert_eq!((other.text().as_str(), other.header("x-lanemesh-reason")), ("stable", Some("out-of-range")));
    assert!(other.header("x-lanemesh-bucket").unwrap().parse::<u16>().unwrap() < 10_000);
    assert_eq!(stable.only().values("x-lanemesh-lane"), ["stable"]);
    assert_eq!(proxy.metric("lanemesh_lane_probes_total", &["orders"]), 1.0);
}

#[test]
fn decisions_are_told_only_when_asked_for() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::with(&[Instance::new("o1", up.addr)], &[], |config| config.proxy.expose_decision = false);
    let response = proxy.get("u1");
    assert!(response.headers.iter().all(|(name, _)| !name.starts_with("x-lanemesh")), "{:?}", response.headers);
}

#[test]
fn an_empty_lane_falls_back_for_safe_methods_and_is_counted() {
    let up = Upstream::ok("stable");
    let proxy = Fixture::with(&[Instance::new("o1", up.addr)], &[canary(10_000, &[])], |_| {});
    assert_eq!(proxy.get("u1").text(), "stable");
    let post = proxy.ask("POST / HTTP/1.1\r\nHost: orders\r\nx-user-id: u1\r\nContent-Length: 0\r\n\r\n");
    assert_eq!((post.status, post.header("x-lanemesh-error")), (503, Some("no_instance")));
    assert_eq!(proxy.metric("lanemesh_lane_fallback_total", &["lane=\"canary\"", "reason=\"absent\""]), 1.0);
    let log = proxy.access_log();
    assert_eq!((&log[0]["fallback_reason"], &log[0]["target_lane"]), (&"absent".into(), &"stable".into()));
}

#[test]
fn the_access_log_has_the_decision_and_every_error() {
    let up = Upstream::ok("hello");
    let instances = [Instance::new("o1", up.addr), Instance::new("o2", Upstream::refusing())];
    let proxy = Fixture::with(&instances, &[canary(0, &[])], |config| config.access_log.sample = 0.0);
    assert_eq!(proxy.get("u1").status, 200);
    assert_eq!(proxy.ask("GET /x?y=1 HTTP/1.1\r\nHost: shop\r\n\r\n").status, 404);
    let log = proxy.access_log();
    assert_eq!(log.len(), 1, "the good one is not in the sample: {log:?}");
    assert_eq!((&log[0]["error"], &log[0]["path"]), (&"unknown_service".into(), &"/x".into()));

    let proxy = Fixture::with(&instances, &[canary(0, &[])], |_| {});
    let key = (0..).map(|n| format!("u{n}")).find(|key| proxy.order(key)[0] == "o2").unwrap();
    assert_eq!(proxy.get(&key).status, 200);
    let line = &proxy.access_log()[0];
    for (name, value) in [
        ("user_id", key.as_str()),
        ("route_key", key.as_str()),
        ("gray_result", "out-of-range"),
        ("target_instance", "o1"),
        ("target_version", "v1"),
        ("target_lane", "stable"),
        ("policy_version", "1.2.n1"),
        ("service", "orders"),
        ("method", "GET"),
    ] {
        assert_eq!(line[name], value, "{name}");
    }
    assert_eq!((&line["retry_count"], &line["status"], &line["bytes"]), (&1.into(), &200.into(), &5.into()));
    assert!(line["bucket"].is_u64() && line["hash_value"].as_str().unwrap().len() == 16);
}

#[test]
fn c97_labels_are_bounded_whatever_clients_send() {
    let up = Upstream::ok("ok");
    let mut proxy = Fixture::one(up.addr);
    let series = |proxy: &Fixture| proxy.metrics.encode().lines().filter(|line| !line.starts_with('#')).count();
    proxy.get("u1");
    let mut client = proxy.client();
    for n in 0..2_000 {
        client.ask(format!("AAAA{n} / HTTP/1.1\r\nHost: s{n}.example\r\nx-lane: l{n}\r\n\r\n"));
        client.ask(format!("BBBB{n} / HTTP/1.1\r\nHost: orders\r\nx-lane: l{n}\r\n\r\n"));
    }
    // The last one is counted once its answer is under way.
    eventually("all are counted", || {
        proxy.metric("lanemesh_requests_total", &["service=\"orders\"", "method=\"other\""]) >= 2_000.0
    });
    let after = series(&proxy);
    assert!(after < 120, "{after} series:\n{}", proxy.metrics.encode());
    assert_eq!(proxy.metric("lanemesh_requests_total", &["service=\"other\"", "code=\"4xx\""]), 2_000.0);
    assert_eq!(proxy.metric("lanemesh_requests_total", &["service=\"orders\"", "method=\"other\""]), 2_000.0);
    // Departed instances: kept for the grace, then gone.
    proxy.publish(&[Instance::new("o2", up.addr)], &[]);
    let snapshot = proxy.snapshots.load_full();
    proxy.metrics.retire(&snapshot, lanemesh::types::Mono::from_millis(1_000));
    assert!(proxy.metric("lanemesh_requests_total", &["instance=\"o1\""]) > 0.0);
    proxy.metrics.retire(&snapshot, lanemesh::types::Mono::from_millis(400_000));
    assert_eq!(proxy.metric("lanemesh_requests_total", &["instance=\"o1\""]), 0.0);
}

#[test]
fn users_stay_on_their_instance() {
    let ups: Vec<Upstream> = (0..3).map(|_| Upstream::ok("ok")).collect();
    let instances: Vec<Instance> = (0..3).map(|n| Instance::new(&format!("o{n}"), ups[n].addr)).collect();
    let proxy = Fixture::with(&instances, &[], |config| config.proxy.workers = 2);
    for user in 0..60 {
        let key = format!("u{user}");
        let expected = proxy.order(&key)[0].clone();
        for _ in 0..3 {
            assert_eq!(proxy.get(&key).header("x-lanemesh-instance"), Some(expected.as_str()));
        }
    }
}
