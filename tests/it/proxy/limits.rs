//! Limits, shedding, loops and the end (REQUIREMENTS P6, P7).

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::support::{Act, End, Fixture, Instance, Raw, Upstream, fixture::eventually};

#[test]
fn c46_too_large_heads_get_an_answer_never_a_bare_close() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::one(up.addr);
    let long = |size: usize| format!("GET / HTTP/1.1\r\nHost: orders\r\nx-long: {}\r\n\r\n", "a".repeat(size));
    let many = |count: usize| {
        let headers: String = (0..count).map(|n| format!("x-{n}: 1\r\n")).collect();
        format!("GET / HTTP/1.1\r\nHost: orders\r\n{headers}\r\n")
    };
    assert_eq!(proxy.ask(long(16 * 1024)).status, 200);
    assert_eq!(proxy.ask(many(98)).status, 200);
    let target = |size: usize| format!("GET /{} HTTP/1.1\r\nHost: orders\r\n\r\n", "a".repeat(size));
    assert_eq!(proxy.ask(target(8_677)).status, 200);
    for (request, status, reason) in [
        (long(33 * 1024), 431, "head_too_large"),
        (many(100), 431, "head_too_large"),
        (many(200), 431, "head_too_large"),
        (many(2_000), 431, "head_too_large"),
        (long(70 * 1024), 431, "head_too_large"),
        (long(512 * 1024), 431, "head_too_large"),
        (long(4 << 20), 431, "head_too_large"),
        (target(33 * 1024), 414, "target_too_long"),
        (target(65_534), 414, "target_too_long"),
        (target(1 << 20), 414, "target_too_long"),
        (format!("{}{}", many(3), many(101)), 431, "head_too_large"),
    ] {
        let mut client = proxy.client();
        let pipelined = request.matches("GET /").count() == 2;
        client.send(&request);
        if pipelined {
            assert_eq!(client.response(false).status, 200, "what came before is answered first");
        }
        let response = client.response(false);
        assert_eq!((response.status, response.header("x-lanemesh-error")), (status, Some(reason)), "{}", request.len());
        assert!(response.text().contains("proxy.max_head_bytes") && response.header("connection") == Some("close"));
        assert!(response.header("proxy-status").is_some_and(|value| value.contains(reason)));
        assert_eq!(client.patience(Duration::from_secs(2)).drain(), (vec![], End::Fin));
    }
    assert_eq!(up.seen().len(), 4);
    assert_eq!(proxy.metric("lanemesh_proxy_errors_total", &["head_too_large"]), 8.0);
    assert_eq!(proxy.metric("lanemesh_proxy_errors_total", &["target_too_long"]), 3.0);
}

#[test]
fn a_slow_head_is_given_up_and_an_idle_connection_closed() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::with(&[Instance::new("o1", up.addr)], &[], |config| {
        config.proxy.timeouts.head = Duration::from_millis(300);
        config.proxy.timeouts.idle = Duration::from_millis(800);
    });
    let mut slow = proxy.client();
    let began = Instant::now();
    slow.send("GET / HTTP/1.1\r\nHost: or");
    assert_eq!(slow.response(false).status, 408);
    assert!(began.elapsed() < Duration::from_secs(2));
    let mut idle = proxy.client();
    assert_eq!(idle.ask("GET / HTTP/1.1\r\nHost: orders\r\n\r\n").status, 200);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(idle.ask("GET / HTTP/1.1\r\nHost: orders\r\n\r\n").status, 200, "its own limit, not that of a head");
    assert_eq!(idle.drain(), (vec![], End::Fin));
    let mut untouched = proxy.client();
    assert_eq!(untouched.drain().1, End::Fin);
}

#[test]
fn a_client_that_stops_in_its_body_is_told() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::with(&[Instance::new("o1", up.addr)], &[], |config| {
        config.proxy.timeouts.idle = Duration::from_millis(200);
    });
    for length in [10, 1_000_000] {
        let response = proxy.ask(format!("POST / HTTP/1.1\r\nHost: orders\r\nContent-Length: {length}\r\n\r\nabc"));
        assert_eq!((response.status, response.header("x-lanemesh-error")), (408, Some("request_timeout")), "{length}");
    }
}

#[test]
fn a_body_that_drips_is_given_up() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::with(&[Instance::new("o1", up.addr)], &[], |config| {
        config.proxy.timeouts.body = Duration::from_millis(600);
    });
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: orders\r\nContent-Length: 1000\r\n\r\n").patience(Duration::from_millis(50));
    let began = Instant::now();
    let bytes = loop {
        client.send("x");
        let (bytes, end) = client.drain();
        if !bytes.is_empty() || end != End::Open {
            break bytes;
        }
        assert!(began.elapsed() < Duration::from_secs(5), "never given up");
    };
    assert!(bytes.starts_with(b"HTTP/1.1 408 "), "{:?}", String::from_utf8_lossy(&bytes));
    assert!(up.seen().is_empty());
}

#[test]
fn a_full_instance_is_passed_over_and_a_full_lane_is_503_at_once() {
    let slow = || {
        Upstream::start(|seen, _| {
            let wait = if seen.line().contains("/slow") { 1_500 } else { 0 };
            vec![Act::Pause(Duration::from_millis(wait)), Act::ok("ok")]
        })
    };
    let (first, second) = (slow(), slow());
    let mut proxy =
        Fixture::with(&[Instance::new("o1", first.addr), Instance::new("o2", second.addr)], &[], |config| {
            config.proxy.max_requests_per_instance = 3;
            config.proxy.timeouts.per_try = Duration::from_secs(2);
        });
    let key = (0..).map(|n| format!("u{n}")).find(|key| proxy.order(key)[0] == "o1").unwrap();
    let hold = |proxy: &Fixture| {
        let mut client = proxy.client();
        client.send(format!("POST /slow HTTP/1.1\r\nHost: orders\r\nx-user-id: {key}\r\nContent-Length: 0\r\n\r\n"));
        client
    };
    let mut held: Vec<Raw> = (0..3).map(|_| hold(&proxy)).collect();
    eventually("the first is full", || first.seen().len() == 3);
    let response = proxy.get(&key);
    assert_eq!((response.status, response.header("x-lanemesh-instance")), (200, Some("o2")));
    held.extend((0..3).map(|_| hold(&proxy)));
    eventually("both are full", || second.seen().len() == 4);
    let began = Instant::now();
    let response = proxy.get(&key);
    assert_eq!((response.status, response.header("x-lanemesh-error")), (503, Some("overloaded")));
    assert_eq!(response.header("retry-after"), Some("1"));
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    for client in &mut held {
        assert_eq!(client.response(false).status, 200, "what was taken is served");
    }
    let response = proxy.get(&key);
    assert_eq!(response.header("x-lanemesh-instance"), Some("o1"), "being full is held against nobody");
    proxy.running.take().unwrap().stop();
}

#[test]
fn connections_beyond_the_limit_are_refused_with_a_reason() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::with(&[Instance::new("o1", up.addr)], &[], |config| config.proxy.max_connections = 2);
    let held = [proxy.client(), proxy.client()];
    eventually("two are held", || proxy.running.as_ref().unwrap().connections() == 2);
    let mut third = proxy.client();
    let response = third.response(false);
    assert_eq!((response.status, response.header("x-lanemesh-error")), (503, Some("too_many_connections")));
    drop(held);
    eventually("room again", || proxy.running.as_ref().unwrap().connections() == 0);
    assert_eq!(proxy.get("u1").status, 200);
}

#[test]
fn c98_an_instance_at_our_own_ports_is_refused_not_entered() {
    let admin = Upstream::ok("secret");
    let addr = admin.addr;
    let mut proxy = Fixture::with(&[Instance::new("o1", addr)], &[], move |config| config.own.push(addr));
    let response = proxy.get("u1");
    assert_eq!((response.status, response.header("x-lanemesh-error")), (508, Some("instance_is_this_sidecar")));
    let own = proxy.addr();
    proxy.publish(&[Instance::new("o1", own)], &[]);
    assert_eq!(proxy.get("u1").status, 508);
    assert!(admin.seen().is_empty());
}

#[test]
fn a_loop_of_sidecars_ends() {
    // Two proxies whose `orders` is the other one.
    let up = Upstream::ok("ok");
    let mut a = Fixture::one(up.addr);
    let b = Fixture::one(a.addr());
    a.publish(&[Instance::new("o1", b.addr())], &[]);
    let response = a.ask("POST / HTTP/1.1\r\nHost: orders\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(response.status, 508);
}

#[test]
fn c91_draining_asks_clients_to_close_and_refuses_nothing() {
    let up = Upstream::start(|seen, _| {
        let wait = if seen.line().contains("/slow") { 300 } else { 0 };
        vec![Act::Pause(Duration::from_millis(wait)), Act::ok("ok")]
    });
    let mut proxy = Fixture::one(up.addr);
    let mut old = proxy.client();
    assert_eq!(old.ask("GET / HTTP/1.1\r\nHost: orders\r\n\r\n").header("connection"), None);
    let mut slow = proxy.client();
    slow.send("GET /slow HTTP/1.1\r\nHost: orders\r\n\r\n");
    eventually("in flight", || proxy.running.as_ref().unwrap().in_flight() == 1);
    proxy.running.as_ref().unwrap().drain();
    for client in [&mut old, &mut proxy.client()] {
        let response = client.ask("GET / HTTP/1.1\r\nHost: orders\r\n\r\n");
        assert_eq!((response.status, response.header("connection")), (200, Some("close")));
        assert_eq!(client.drain(), (vec![], End::Fin));
    }
    assert_eq!(slow.response(false).status, 200);
    eventually("all done", || proxy.running.as_ref().unwrap().in_flight() == 0);
    let addr = proxy.addr();
    proxy.running.take().unwrap().stop();
    assert!(std::net::TcpStream::connect(addr).is_err(), "stopped means that nobody listens");
}

#[test]
fn stopping_cuts_what_does_not_end() {
    let up = Upstream::start(|_, _| vec![Act::Pause(Duration::from_secs(5))]);
    let mut proxy = Fixture::one(up.addr);
    let mut stuck = proxy.client();
    stuck.send("GET / HTTP/1.1\r\nHost: orders\r\n\r\n");
    eventually("in flight", || proxy.running.as_ref().unwrap().in_flight() == 1);
    let began = Instant::now();
    proxy.running.take().unwrap().stop();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_ne!(stuck.drain().1, End::Open);
}

#[test]
fn a_port_in_use_is_named() {
    let up = Upstream::ok("ok");
    let first = Fixture::one(up.addr);
    let mut config = crate::support::fixture::proxy_config();
    config.bind = first.addr();
    let log = lanemesh::config::AccessLog {
        sample: 0.0,
        format: lanemesh::config::LogFormat::Text,
        hash_subject: false,
        path: None,
    };
    let config = lanemesh::proxy::ProxyConfig {
        proxy: config,
        services: Default::default(),
        access_log: log,
        node: "n1".into(),
        plain: true,
        own: Vec::new(),
    };
    let clock = lanemesh::telemetry::Clock::start();
    let error = lanemesh::proxy::start(config, first.snapshots.clone(), first.metrics.clone(), clock).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&first.addr().to_string()) && text.contains("proxy.bind"), "{text}");
    assert_eq!(Raw::connect(first.addr()).ask("GET / HTTP/1.1\r\nHost: orders\r\n\r\n").status, 200);
}
