//! What a client sees when instances fail (REQUIREMENTS R6, P4, P5).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use lanemesh::types::Health;

use crate::support::{
    Act, Fixture, Instance, Upstream,
    fixture::{eventually, silent},
};

const POST: &str = "POST / HTTP/1.1\r\nHost: orders\r\nContent-Length: 5\r\n\r\nhello";

/// What an instance does with every request.
type Script = fn() -> Vec<Act>;

/// A key whose first instance is `first`.
fn key_of(proxy: &Fixture, first: &str) -> String {
    (0..).map(|n| format!("u{n}")).find(|key| proxy.order(key)[0] == first).unwrap()
}

#[test]
fn an_unknown_service_is_404_and_an_empty_one_503() {
    let up = Upstream::ok("ok");
    let sick = Instance::new("b1", up.addr).service("billing").health(Health::Critical);
    let proxy = Fixture::new(&[Instance::new("o1", up.addr), sick]);
    let response = proxy.ask("GET / HTTP/1.1\r\nHost: shop\r\nAccept: application/json\r\n\r\n");
    assert_eq!((response.status, response.header("x-lanemesh-error")), (404, Some("unknown_service")));
    let body: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    assert_eq!((&body["error"], &body["detail"]), (&"unknown_service".into(), &"shop".into()));
    let response = proxy.ask("GET / HTTP/1.1\r\nHost: billing\r\n\r\n");
    assert_eq!((response.status, response.header("x-lanemesh-error")), (503, Some("no_instance")));
    assert_eq!(
        response.header("proxy-status"),
        Some("lanemesh; error=destination_unavailable; details=\"no_instance\"")
    );
    assert!(response.text().contains("unhealthy") && response.text().contains("cure: "), "{}", response.text());
}

#[test]
fn c75_refusals_walk_the_failover_order_at_once() {
    let ups: Vec<Upstream> = (0..2).map(|_| Upstream::ok("ok")).collect();
    let mut instances: Vec<Instance> = (0..2).map(|n| Instance::new(&format!("up{n}"), ups[n].addr)).collect();
    instances.extend((0..4).map(|n| Instance::new(&format!("down{n}"), Upstream::refusing())));
    let proxy = Fixture::new(&instances);
    let began = Instant::now();
    for n in 0..200 {
        let key = format!("u{n}");
        let heir = proxy.order(&key).into_iter().find(|id| id.starts_with("up")).unwrap();
        let response = proxy.get(&key);
        assert_eq!((response.status, response.header("x-lanemesh-instance")), (200, Some(heir.as_str())), "{key}");
        let response = proxy.ask(format!("{}x-user-id: {key}\r\n\r\nhello", &POST[..POST.len() - 7]));
        assert_eq!(response.status, 200, "nothing was sent, so a POST goes on as well");
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(proxy.metric("lanemesh_retries_total", &["connect_failed"]) > 0.0);
}

#[test]
fn when_all_refuse_the_client_is_told_that_nothing_was_sent() {
    let proxy = Fixture::new(&[Instance::new("o1", Upstream::refusing()), Instance::new("o2", Upstream::refusing())]);
    let response = proxy.ask(POST);
    assert_eq!((response.status, response.header("x-lanemesh-error")), (503, Some("all_refused")));
    assert!(response.text().contains("last tried: o"), "{}", response.text());
}

#[test]
fn c73_a_post_is_never_processed_twice() {
    let close: Script = || vec![Act::Close];
    let scripts: [(Script, u16); 4] = [
        (close, 502),
        (|| vec![Act::Reset], 502),
        (|| vec![Act::Pause(Duration::from_millis(1_500)), Act::ok("late")], 504),
        (|| vec![Act::send("HTTP/1.1 200 OK\r\nConte"), Act::Reset], 502),
    ];
    for (number, (script, status)) in scripts.into_iter().enumerate() {
        let bad = Upstream::start(move |_, _| script());
        let good = Upstream::ok("ok");
        let instances = [Instance::new("bad", bad.addr), Instance::new("good", good.addr)];
        let proxy = Fixture::with(&instances, &[], |config| {
            config.proxy.timeouts.per_try = Duration::from_millis(300);
        });
        let key = key_of(&proxy, "bad");
        let response = proxy.ask(format!("{}x-user-id: {key}\r\n\r\nhello", &POST[..POST.len() - 7]));
        assert_eq!(response.status, status, "script {number}");
        assert_eq!((bad.seen().len(), good.seen().len()), (1, 0), "script {number}");
    }
}

#[test]
fn a_safe_request_survives_the_same_failures() {
    let scripts: [Script; 7] = [
        || vec![Act::Close],
        || vec![Act::Reset],
        || vec![Act::Pause(Duration::from_millis(1_500)), Act::ok("late")],
        || vec![Act::send("HTTP/1.1 200 OK\r\nConte"), Act::Reset],
        // Killed in the middle of a small body: nothing was given to the client yet.
        || vec![Act::send("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf of it"), Act::Reset],
        || vec![Act::send("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n")],
        || vec![Act::send("HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\noops")],
    ];
    for (number, script) in scripts.into_iter().enumerate() {
        let bad = Upstream::start(move |_, _| script());
        let good = Upstream::ok("good");
        let instances = [Instance::new("bad", bad.addr), Instance::new("good", good.addr)];
        let proxy = Fixture::with(&instances, &[], |config| {
            config.proxy.timeouts.per_try = Duration::from_millis(300);
        });
        let key = key_of(&proxy, "bad");
        let response = proxy.get(&key);
        assert_eq!((response.status, response.text().as_str()), (200, "good"), "script {number}");
        assert_eq!(response.header("x-lanemesh-attempts"), Some("2"), "script {number}");
        assert_eq!((bad.seen().len(), good.seen().len()), (1, 1), "script {number}");
    }
}

#[test]
fn c69_a_retried_body_is_the_same_to_the_byte_or_not_retried() {
    let bad = Upstream::bytes("HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy");
    let good = Upstream::start(|seen, _| vec![Act::ok(&String::from_utf8_lossy(&seen.body))]);
    let proxy = Fixture::new(&[Instance::new("bad", bad.addr), Instance::new("good", good.addr)]);
    let key = key_of(&proxy, "bad");
    let head = format!("PUT / HTTP/1.1\r\nHost: orders\r\nx-user-id: {key}\r\n");
    let body = "x".repeat(60_000);
    let mut client = proxy.client();
    client.send(format!("{head}Content-Length: {}\r\n\r\n", body.len()));
    for piece in body.as_bytes().chunks(20_000) {
        client.send(piece);
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(client.response(false).text(), body);
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n1a\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\n\r\n");
    let response = client.ask(chunked);
    assert_eq!((response.status, response.text().as_str()), (503, "busy"), "of unknown length: passed on as it is");
}

#[test]
fn c72_the_last_answer_is_passed_on_whole() {
    let answer =
        "HTTP/1.1 503 Busy\r\ncontent-type: application/json\r\nx-err: 7\r\ncontent-length: 7\r\n\r\n{\"e\":7}";
    let ups = [Upstream::bytes(answer), Upstream::bytes(answer), Upstream::bytes(answer)];
    let instances: Vec<Instance> = (0..3).map(|n| Instance::new(&format!("o{n}"), ups[n].addr)).collect();
    let proxy = Fixture::with(&instances, &[], |config| config.proxy.max_retries = 1);
    let hits = || ups.iter().map(|up| up.seen().len()).sum::<usize>();
    for (request, expected) in [(POST, 1), ("GET / HTTP/1.1\r\nHost: orders\r\n\r\n", 3)] {
        let response = proxy.ask(request);
        assert_eq!((response.status, response.text().as_str()), (503, "{\"e\":7}"));
        assert_eq!((response.header("x-err"), response.header("content-type")), (Some("7"), Some("application/json")));
        assert_eq!((response.header("x-lanemesh-error"), hits()), (None, expected));
    }
}

#[test]
fn an_answer_is_better_than_what_came_after_it() {
    let busy = Upstream::bytes("HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy");
    let proxy = Fixture::new(&[Instance::new("busy", busy.addr), Instance::new("down", Upstream::refusing())]);
    let key = key_of(&proxy, "busy");
    let response = proxy.get(&key);
    assert_eq!((response.status, response.text().as_str()), (503, "busy"));
}

#[test]
fn c49_a_stale_connection_is_nobodys_error() {
    // Closes a little after every answer, so that some reuses meet the closing.
    let up = Upstream::start(|_, _| vec![Act::ok("ok"), Act::Pause(Duration::from_millis(5)), Act::Close]);
    let proxy = Fixture::one(up.addr);
    thread::scope(|scope| {
        for start in 0..8 {
            let proxy = &proxy;
            scope.spawn(move || {
                let mut client = proxy.client();
                for n in 0..60_u64 {
                    let get = client.ask("GET / HTTP/1.1\r\nHost: orders\r\n\r\n");
                    assert_eq!(get.status, 200, "{}", get.text());
                    thread::sleep(Duration::from_micros(4_000 + (n * 37 + start * 113) % 2_000));
                }
            });
        }
    });
    assert_eq!(proxy.snapshots.load().service("orders").unwrap().instances[0].cell.in_flight(), 0);
    assert_eq!(proxy.metric("lanemesh_proxy_errors_total", &[]), 0.0);
}

#[test]
fn c49_closing_on_the_second_requests_arrival() {
    let up =
        Upstream::start(|seen, _| if seen.line().contains("/again") { vec![Act::Close] } else { vec![Act::ok("ok")] });
    let first = AtomicUsize::new(0);
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.client();
    assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: orders\r\n\r\n").status, 200);
    first.store(up.seen().len(), SeqCst);
    let response = client.ask(POST.replace("POST / ", "POST /again "));
    assert_eq!((response.status, response.header("x-lanemesh-error")), (502, Some("upstream_reset_before_response")));
    assert_eq!(up.seen().len() - first.load(SeqCst), 1, "a POST that may have been processed is not repeated");
}

#[test]
fn closed_connections_add_no_tries_to_those_allowed() {
    let up =
        || Upstream::start(|seen, _| if seen.line().contains("/bad") { vec![Act::Close] } else { vec![Act::ok("ok")] });
    let ups = [up(), up(), up()];
    let instances: Vec<_> =
        ["o1", "o2", "o3"].into_iter().zip(&ups).map(|(id, up)| Instance::new(id, up.addr)).collect();
    let proxy = Fixture::new(&instances);
    // All have a connection that has carried requests.
    for n in 0..30 {
        assert_eq!(proxy.get(&format!("u{n}")).status, 200);
    }
    let seen = || ups.iter().map(|up| up.seen().len()).sum::<usize>();
    let before = seen();
    let answer = proxy.client().ask("GET /bad HTTP/1.1\r\nHost: orders\r\n\r\n");
    assert_eq!((answer.status, answer.header("x-lanemesh-attempts")), (502, Some("3")));
    assert_eq!(seen() - before, 3, "once and two retries");
}

#[test]
fn a_post_on_a_connection_that_was_closed_before_is_not_lost() {
    let up = Upstream::start(|_, _| vec![Act::ok("ok"), Act::Close]);
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.client();
    for n in 1..=50 {
        assert_eq!(client.ask(POST).status, 200);
        // Closed before the next one is sent: closing while it is on its way is another matter, see c49.
        eventually("the upstream has closed", || up.closed() == n);
    }
    assert_eq!(up.seen().len(), 50);
}

#[test]
fn a_killed_instance_costs_no_safe_request() {
    let ups: Vec<Upstream> = (0..4).map(|_| Upstream::ok("ok")).collect();
    let instances: Vec<Instance> = (0..4).map(|n| Instance::new(&format!("o{n}"), ups[n].addr)).collect();
    let proxy = Fixture::new(&instances);
    let done = AtomicUsize::new(0);
    thread::scope(|scope| {
        for worker in 0..8 {
            let (proxy, done) = (&proxy, &done);
            scope.spawn(move || {
                let mut client = proxy.client();
                for n in 0..150 {
                    let ask = format!("GET / HTTP/1.1\r\nHost: orders\r\nx-user-id: u{worker}-{n}\r\n\r\n");
                    let response = client.ask(ask);
                    assert_eq!(response.status, 200, "{}", response.text());
                    done.fetch_add(1, SeqCst);
                }
            });
        }
        eventually("some requests are through", || done.load(SeqCst) > 200);
        ups[1].kill();
    });
    assert_eq!(done.load(SeqCst), 1_200);
}

#[test]
fn timeouts_have_their_own_status_and_reason() {
    let (_listener, addr) = silent();
    let proxy = Fixture::with(&[Instance::new("o1", addr)], &[], |config| {
        config.proxy.timeouts.per_try = Duration::from_millis(150);
        config.proxy.timeouts.total = Duration::from_millis(900);
    });
    let began = Instant::now();
    let response = proxy.ask(POST);
    assert_eq!((response.status, response.header("x-lanemesh-error")), (504, Some("upstream_timeout")));
    assert!((100..600).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    let began = Instant::now();
    let response = proxy.ask("GET / HTTP/1.1\r\nHost: orders\r\n\r\n");
    assert_eq!(response.status, 504);
    assert!(began.elapsed() < Duration::from_millis(1_500), "{:?}", began.elapsed());
    // What the caller was too impatient for is not the operator's setting, and what nobody can read is not passed on.
    let hurried = proxy.ask("GET / HTTP/1.1\r\nHost: orders\r\nx-request-timeout: 120\r\n\r\n");
    assert_eq!((hurried.status, hurried.header("x-lanemesh-error")), (504, Some("deadline")));
}

#[test]
fn a_client_that_stalls_in_its_upload_is_not_held_against_the_instance() {
    let ups = [Upstream::ok("ok"), Upstream::ok("ok")];
    let proxy = Fixture::with(&[Instance::new("o0", ups[0].addr), Instance::new("o1", ups[1].addr)], &[], |config| {
        config.proxy.timeouts.per_try = Duration::from_millis(200);
        config.proxy.timeouts.total = Duration::from_millis(600);
        config.proxy.timeouts.idle = Duration::from_millis(900);
    });
    let key = key_of(&proxy, "o0");
    let head = format!("POST / HTTP/1.1\r\nHost: orders\r\nx-user-id: {key}\r\nTransfer-Encoding: chunked\r\n\r\n");
    // A pause longer than a try, and longer than all tries.
    let mut slow = proxy.client();
    slow.send(format!("{head}5\r\nhello\r\n"));
    thread::sleep(Duration::from_millis(700));
    slow.send("5\r\nworld\r\n0\r\n\r\n");
    assert_eq!(slow.response(false).status, 200);
    let mut stalled: Vec<_> = (0..8).map(|_| proxy.client()).collect();
    for client in &mut stalled {
        client.send(format!("{head}5\r\nhello\r\n"));
    }
    for client in &mut stalled {
        let response = client.response(false);
        assert_eq!((response.status, response.header("x-lanemesh-error")), (408, Some("request_timeout")));
    }
    assert_eq!(proxy.get(&key).header("x-lanemesh-instance"), Some("o0"), "its breaker stayed closed");
}

#[test]
fn a_post_does_not_race_with_the_close_of_an_idle_connection() {
    // It closes 150 ms after each answer, and what comes in between is lost.
    let up = Upstream::start(|_, _| vec![Act::ok("ok"), Act::Pause(Duration::from_millis(150)), Act::Close]);
    let proxy = Fixture::new(&[Instance::new("o0", up.addr)]);
    let mut client = proxy.client();
    for n in 0..3 {
        assert_eq!(client.ask(POST).status, 200);
        eventually("closed", || up.closed() == n + 1);
    }
    for n in 0..20 {
        assert_eq!(client.ask(POST).status, 200, "{n}");
        thread::sleep(Duration::from_millis(140));
    }
    assert_eq!(up.seen().len(), 23, "each once");
}

#[test]
fn a_post_trusts_no_idle_connection_before_others_have_lived_as_long() {
    // Nothing is known of it yet: it closes 400 ms after each answer, and what comes in between is lost.
    let up = Upstream::start(|_, _| vec![Act::ok("ok"), Act::Pause(Duration::from_millis(400)), Act::Close]);
    let proxy = Fixture::new(&[Instance::new("o0", up.addr)]);
    let mut client = proxy.client();
    for n in 0..12 {
        assert_eq!(client.ask(POST).status, 200, "{n}");
        thread::sleep(Duration::from_millis(345 + 4 * n));
    }
    assert_eq!(up.seen().len(), 12, "each once");
}

#[test]
fn a_post_takes_an_idle_connection_of_an_instance_that_keeps_them() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::new(&[Instance::new("o0", up.addr)]);
    let mut client = proxy.client();
    assert_eq!(client.ask(POST).status, 200);
    // The pause is the subject: connections that have rested are what it learns from.
    thread::sleep(Duration::from_millis(2_500));
    for n in 0..10 {
        assert_eq!(client.ask(POST).status, 200, "{n}");
        thread::sleep(Duration::from_millis(50));
    }
    // The first after the pause rests longer than any was seen to live; from there on there are two that have.
    assert_eq!((up.seen().len(), up.connections()), (11, 2));
}

#[test]
fn the_head_of_a_slow_answer_is_not_withheld() {
    let up = Upstream::start(|_, _| {
        vec![
            Act::send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na"),
            Act::Pause(Duration::from_secs(3)),
            Act::send("b"),
        ]
    });
    let proxy = Fixture::new(&[Instance::new("o0", up.addr)]);
    let mut client = proxy.client();
    let began = Instant::now();
    client.send("GET / HTTP/1.1\r\nHost: orders\r\n\r\n");
    client.until("the head", |bytes| bytes.ends_with(b"a"));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn the_callers_time_limit_is_passed_on_as_this_proxy_keeps_it() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::with(&[Instance::new("o1", up.addr)], &[], |config| {
        config.proxy.timeouts.total = Duration::from_secs(6);
    });
    let seen = |limit: &str| {
        let ask = format!("GET / HTTP/1.1\r\nHost: orders\r\nx-request-timeout: {limit}\r\n\r\n");
        assert_eq!(proxy.ask(ask).status, 200);
        up.seen().pop().unwrap().values("x-request-timeout").first().map(|left| left.parse::<u64>().unwrap())
    };
    for (limit, most) in [("60000", 6_000), ("99999999999999999999", 6_000), ("2s", 2_000), ("1500", 1_500)] {
        let left = seen(limit).unwrap();
        assert!((most - 500..=most).contains(&left), "{limit}: {left}");
    }
    for nonsense in ["abc", "-5", "1h"] {
        assert_eq!(seen(nonsense), None, "{nonsense}");
    }
}

#[test]
fn an_instance_that_hangs_fails_no_user() {
    let (_listener, hung) = silent();
    let up = Upstream::ok("ok");
    let proxy = Fixture::with(&[Instance::new("hung", hung), Instance::new("up", up.addr)], &[], |config| {
        config.proxy.timeouts.silence = Duration::from_millis(300);
        config.proxy.timeouts.per_try = Duration::from_secs(2);
    });
    let key = key_of(&proxy, "hung");
    // Another one waits there as well, and must: it may have been processed.
    let mut stuck = proxy.client();
    stuck.send(format!("POST / HTTP/1.1\r\nHost: orders\r\nx-user-id: {key}\r\nContent-Length: 0\r\n\r\n"));
    eventually("it waits", || proxy.running.as_ref().unwrap().in_flight() == 1);
    let began = Instant::now();
    let response = proxy.get(&key);
    assert_eq!((response.status, response.header("x-lanemesh-instance")), (200, Some("up")));
    assert!((250..1_500).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    let body = format!("PUT / HTTP/1.1\r\nHost: orders\r\nx-user-id: {key}\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(proxy.ask(body).status, 200);
    assert_eq!(up.seen().pop().unwrap().body, b"hello");
}

/// What may not be repeated is lost with an instance that hangs: it goes elsewhere as soon as several wait there, and back with the
/// first answer.
#[test]
fn where_several_wait_unheard_of_no_post_is_sent() {
    let hangs = Arc::new(AtomicBool::new(false));
    let flag = hangs.clone();
    let hung = Upstream::start(move |_, _| {
        while flag.load(SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        vec![Act::ok("ok")]
    });
    let up = Upstream::ok("ok");
    let proxy = Fixture::with(&[Instance::new("hung", hung.addr), Instance::new("up", up.addr)], &[], |config| {
        config.proxy.timeouts.silence = Duration::from_secs(20);
    });
    let key = key_of(&proxy, "hung");
    let post = format!("POST / HTTP/1.1\r\nHost: orders\r\nx-user-id: {key}\r\nContent-Length: 0\r\n\r\n");
    let by = || proxy.ask(&post).header("x-lanemesh-instance").map(str::to_owned);
    // Enough to know what its answers take.
    (0..30).for_each(|_| assert_eq!(by().as_deref(), Some("hung")));
    hangs.store(true, SeqCst);
    let mut waiting: Vec<_> = (0..3).map(|_| proxy.client()).collect();
    let get = format!("GET / HTTP/1.1\r\nHost: orders\r\nx-user-id: {key}\r\n\r\n");
    waiting.iter_mut().for_each(|client| _ = client.send(&get));
    eventually("they wait", || proxy.running.as_ref().unwrap().in_flight() == 3);
    thread::sleep(Duration::from_millis(150));
    assert_eq!(by().as_deref(), Some("up"));
    hangs.store(false, SeqCst);
    for client in &mut waiting {
        assert_eq!(client.response(false).header("x-lanemesh-instance"), Some("hung"), "those stay");
    }
    assert_eq!(by().as_deref(), Some("hung"));
}

#[test]
fn an_instance_that_is_slow_with_one_request_and_answers_others_is_waited_for() {
    let up = || {
        Upstream::start(|seen, _| {
            let slow = seen.line().contains("/slow");
            vec![Act::Pause(Duration::from_millis(if slow { 1_200 } else { 0 })), Act::ok("ok")]
        })
    };
    let ups = [up(), up()];
    let instances = [Instance::new("o0", ups[0].addr), Instance::new("o1", ups[1].addr)];
    let proxy = Fixture::with(&instances, &[], |config| config.proxy.timeouts.silence = Duration::from_millis(300));
    let key = key_of(&proxy, "o0");
    let mut slow = proxy.client();
    slow.send(format!("GET /slow HTTP/1.1\r\nHost: orders\r\nx-user-id: {key}\r\n\r\n"));
    eventually("it is on its way", || ups[0].seen().len() == 1);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1_150) {
        assert_eq!(proxy.get(&key).header("x-lanemesh-instance"), Some("o0"));
        thread::sleep(Duration::from_millis(50));
    }
    let response = slow.response(false);
    assert_eq!((response.status, response.header("x-lanemesh-attempts")), (200, Some("1")));
    assert!(ups[1].seen().is_empty(), "nothing was done twice");
}

#[test]
fn the_callers_deadline_is_kept_and_passed_on() {
    let (_listener, addr) = silent();
    let proxy = Fixture::one(addr);
    for (value, most) in [("150", 600), ("0.2s", 600), ("0", 200)] {
        let began = Instant::now();
        let response = proxy.ask(format!("GET / HTTP/1.1\r\nHost: orders\r\nx-request-timeout: {value}\r\n\r\n"));
        assert_eq!(response.status, 504, "{value}");
        assert!(began.elapsed() < Duration::from_millis(most), "{value}: {:?}", began.elapsed());
    }
    let up = Upstream::ok("ok");
    let proxy = Fixture::one(up.addr);
    proxy.ask("GET / HTTP/1.1\r\nHost: orders\r\nx-request-timeout: 1s\r\n\r\n");
    let passed: u64 = up.only().values("x-request-timeout")[0].parse().unwrap();
    assert!((500..=1_000).contains(&passed), "{passed}");
}

#[test]
fn a_body_that_falls_silent_is_cut_and_named() {
    let up = Upstream::start(|_, _| {
        vec![Act::send("HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\nsome"), Act::Pause(Duration::from_secs(3))]
    });
    let proxy = Fixture::with(&[Instance::new("o1", up.addr)], &[], |config| {
        config.proxy.timeouts.idle = Duration::from_millis(200);
    });
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: orders\r\n\r\n");
    let began = Instant::now();
    let (bytes, _) = client.drain();
    assert!(bytes.ends_with(b"some") && began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(proxy.access_log()[0]["error"], "upstream_body_timeout");
}

#[test]
fn a_long_upload_is_not_cut_by_the_time_of_a_try() {
    let up = Upstream::start(|seen, _| vec![Act::ok(&seen.body.len().to_string())]);
    let proxy = Fixture::with(&[Instance::new("o1", up.addr)], &[], |config| {
        config.proxy.timeouts.per_try = Duration::from_millis(150);
        config.proxy.timeouts.total = Duration::from_millis(450);
    });
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: orders\r\nContent-Length: 100000\r\n\r\n");
    for _ in 0..20 {
        client.send([b'x'; 5_000]);
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(client.response(false).text(), "100000");
}
