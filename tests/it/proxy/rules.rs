//! Match rules on real requests (REQUIREMENTS L4): what the proxy reads, over both versions, is what `route` explains.

use lanemesh::{
    lanes::PlainHead,
    routing::Question,
    types::{LanePolicy, MatchRule, Mono},
};

use super::observe::canary;
use crate::support::{Fixture, Instance, Upstream, h2};

fn ruled(rules: &[(&str, &[&str])]) -> LanePolicy {
    let rule = |(lane, when): &(&str, &[&str])| MatchRule {
        lane: lane.parse().unwrap(),
        when: when.iter().map(|condition| condition.parse().unwrap()).collect(),
    };
    LanePolicy { rules: rules.iter().map(rule).collect(), ..canary(0, &[]) }
}

fn fixture(policy: LanePolicy, stable: &Upstream, new: &Upstream) -> Fixture {
    let instances = [Instance::new("o1", stable.addr), Instance::new("o2", new.addr).lane("canary", "v2")];
    Fixture::with(&instances, &[policy], |_| {})
}

#[test]
fn the_first_rule_that_matches_decides_the_lane() {
    let (stable, new) = (Upstream::ok("stable"), Upstream::ok("canary"));
    let policy = ruled(&[
        ("stable", &["path:/pay"]),
        ("canary", &["header:x-beta=1"]),
        ("canary", &["cookie:beta=yes", "method:POST"]),
        ("canary", &["subject:tenant-7/*"]),
        ("canary", &["path:/v2"]),
    ]);
    let proxy = fixture(policy, &stable, &new);
    for (method, target, headers, lane) in [
        ("GET", "/", "x-user-id: u1\r\n", "stable"),
        ("GET", "/", "x-user-id: u1\r\nX-Beta: 1\r\n", "canary"),
        // Nobody has to be known for it.
        ("GET", "/", "x-beta: 1\r\n", "canary"),
        ("GET", "/", "x-beta: 1\r\nx-beta: 1\r\n", "stable"),
        ("GET", "/", "x-beta: 11\r\n", "stable"),
        ("GET", "/pay/now", "x-beta: 1\r\n", "stable"),
        ("POST", "/", "cookie: a=b; beta=yes\r\n", "canary"),
        ("GET", "/", "cookie: a=b; beta=yes\r\n", "stable"),
        ("GET", "/", "x-user-id: tenant-7/ann\r\n", "canary"),
        ("GET", "/v2/carts?x=1", "x-user-id: u1\r\n", "canary"),
        ("GET", "/v2x", "x-user-id: u1\r\n", "stable"),
        // C62: by the bytes that are sent on, whatever they might mean to the application.
        ("GET", "/%76%32/carts", "x-user-id: u1\r\n", "stable"),
        ("GET", "/a/../v2", "x-user-id: u1\r\n", "stable"),
        ("GET", "http://orders/v2", "x-user-id: u1\r\n", "canary"),
    ] {
        let request = format!("{method} {target} HTTP/1.1\r\nHost: orders\r\n{headers}Content-Length: 0\r\n\r\n");
        let answer = proxy.ask(&request);
        assert_eq!((answer.status, answer.text().as_str()), (200, lane), "{request}");
        // What is explained for the same head is what was done.
        let lines = headers.lines().map(|line| line.split_once(": ").unwrap());
        let head = PlainHead {
            method: method.into(),
            path: target.trim_start_matches("http://orders").split('?').next().unwrap().into(),
            headers: lines.map(|(name, value)| (name.to_lowercase(), value.into())).collect(),
        };
        let question = Question { service: "orders".into(), head, ..Question::default() };
        let told = question.answer(&proxy.snapshots.load(), Mono::ZERO).unwrap();
        assert_eq!(told.lane.as_str(), lane, "{told}");
        assert_eq!(answer.header("x-lanemesh-reason"), Some(told.lane_reason.as_str()), "{request}");
    }
    let log = proxy.access_log();
    assert_eq!((&log[1]["gray_result"], &log[1]["target_lane"]), (&"rule".into(), &"canary".into()));
}

#[test]
fn rules_read_http_2_as_well() {
    let (stable, new) = (Upstream::ok("stable"), Upstream::ok("canary"));
    let proxy = fixture(ruled(&[("canary", &["header:x-beta=1", "path:/v2", "method:GET"])]), &stable, &new);
    let mut client = proxy.h2();
    let beta = h2::request("GET", "/v2/carts", &[("x-beta", "1")]);
    assert_eq!(client.ask(1, &beta, "").text(), "canary");
    assert_eq!(client.ask(3, &h2::request("GET", "/v2/carts", &[]), "").text(), "stable");
}

#[test]
fn rules_follow_the_policy_in_force() {
    let (stable, new) = (Upstream::ok("stable"), Upstream::ok("canary"));
    let mut proxy = fixture(ruled(&[("canary", &["header:x-beta"])]), &stable, &new);
    let ask = |proxy: &Fixture| proxy.ask("GET / HTTP/1.1\r\nHost: orders\r\nx-beta: 1\r\n\r\n").text();
    assert_eq!(ask(&proxy), "canary");
    let instances = [Instance::new("o1", stable.addr), Instance::new("o2", new.addr).lane("canary", "v2")];
    let off = LanePolicy { off: true, ..ruled(&[("canary", &["header:x-beta"])]) };
    proxy.publish(&instances, &[off]);
    assert_eq!(ask(&proxy), "stable", "off beats all");
}
