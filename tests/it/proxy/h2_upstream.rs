//! HTTP/2 towards instances: shared connections, GOAWAY, refusals, limits on streams (REQUIREMENTS P4, R6).

use std::{
    collections::BTreeSet,
    net::TcpListener,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use lanemesh::types::Protocol;

use crate::support::{
    Act, Fixture, Instance, Upstream,
    fixture::{eventually, silent},
    h2::{self, Conn, Event, H2Up, Reply, fields, request, values},
};

fn h2c(up: &H2Up) -> Fixture {
    Fixture::new(&[Instance::new("o1", up.addr).protocol(Protocol::H2c)])
}

/// Opens streams with a body, `first` and on, `count` of them.
fn open_posts(client: &mut Conn, first: u32, count: u32) {
    for n in 0..count {
        client.headers(first + 2 * n, &request("POST", "/", &[("content-length", "3")]), false);
        client.data(first + 2 * n, "abc", true);
    }
}

/// An application whose first connection plays `first` once it has three whole requests; later ones answer everything.
fn third_request(first: impl Fn(&mut Conn, &[u32]) + Send + Sync + 'static) -> H2Up {
    H2Up::start(move |conn, number, log| {
        conn.settings(&[]);
        let mut held = Vec::new();
        while let Some(seen) = h2::next_request(conn, number) {
            let stream = seen.stream;
            log.lock().unwrap().push(seen);
            if number > 0 {
                conn.ok(stream, "later");
                continue;
            }
            held.push(stream);
            if held.len() == 3 {
                first(conn, &held);
            }
        }
    })
}

#[test]
fn c53_streams_above_a_goaway_are_sent_again_and_the_others_finish() {
    for two_steps in [false, true] {
        let up = third_request(move |conn, held| {
            if two_steps {
                conn.go_away(0x7fff_ffff, h2::NO_ERROR);
            }
            conn.go_away(held[1], h2::NO_ERROR);
            thread::sleep(Duration::from_millis(200));
            conn.ok(held[0], "first").ok(held[1], "first");
        });
        let proxy = h2c(&up);
        let mut client = proxy.h2();
        open_posts(&mut client, 1, 3);
        let texts: Vec<_> = [1, 3, 5].map(|stream| client.response(stream)).iter().map(h2::Response::text).collect();
        assert_eq!(texts, ["first", "first", "later"], "{two_steps}");
        assert_eq!(up.connections(), 2);
        let later: Vec<_> = up.seen().into_iter().filter(|seen| seen.connection == 1).collect();
        assert_eq!((later.len(), later[0].body.as_slice()), (1, &b"abc"[..]), "processed once, with its body");
        assert_eq!(proxy.metric("lanemesh_retries_total", &[]), 1.0);
        // Nothing new goes to the connection that is going away.
        assert_eq!(client.ask(7, &request("POST", "/", &[]), "x").text(), "later");
    }
}

#[test]
fn c53_a_refused_stream_is_sent_again_with_any_method() {
    let up = third_request(|conn, held| {
        conn.reset(held[2], h2::REFUSED_STREAM).ok(held[0], "first").ok(held[1], "first");
    });
    let proxy = h2c(&up);
    let mut client = proxy.h2();
    open_posts(&mut client, 1, 3);
    let texts: Vec<_> = [1, 3, 5].map(|stream| client.response(stream)).iter().map(h2::Response::text).collect();
    assert_eq!(texts, ["first", "first", "later"]);
    assert_eq!((up.connections(), up.seen().len()), (2, 4));
}

#[test]
fn a_stream_that_was_processed_is_not_sent_again() {
    for code in [h2::CANCEL, h2::PROTOCOL_ERROR] {
        let up = third_request(move |conn, held| {
            conn.reset(held[2], code).ok(held[0], "first").ok(held[1], "first");
        });
        let proxy = h2c(&up);
        let mut client = proxy.h2();
        open_posts(&mut client, 1, 3);
        let last = client.response(5);
        assert_eq!((last.status, last.field("x-lanemesh-error")), (502, "upstream_reset_before_response"));
        assert_eq!(up.seen().len(), 3);
    }
    // A connection that ends with a stream on it: no POST twice, any GET again.
    let up = third_request(|conn, _| {
        conn.shut();
    });
    let proxy = h2c(&up);
    let mut client = proxy.h2();
    open_posts(&mut client, 1, 2);
    client.headers(5, &request("GET", "/", &[]), true);
    assert_eq!([1, 3, 5].map(|stream| client.response(stream).status), [502, 502, 200]);
}

#[test]
fn a_stream_that_was_taken_and_reset_is_repeated_no_more_often_than_allowed() {
    for code in [h2::CANCEL, h2::PROTOCOL_ERROR, h2::INTERNAL_ERROR] {
        let up = || {
            H2Up::start(move |conn, number, log| {
                conn.settings(&[]);
                while let Some(seen) = h2::next_request(conn, number) {
                    let (stream, bad) = (seen.stream, seen.values(":path")[0] == "/bad");
                    log.lock().unwrap().push(seen);
                    if bad {
                        conn.reset(stream, code)
                    } else {
                        conn.ok(stream, "warm")
                    };
                }
            })
        };
        let ups = [up(), up()];
        let instances = ["o1", "o2"].into_iter().zip(&ups);
        let instances: Vec<_> = instances.map(|(id, up)| Instance::new(id, up.addr).protocol(Protocol::H2c)).collect();
        let proxy = Fixture::new(&instances);
        // Both have a connection that has carried requests.
        for n in 0..20 {
            assert_eq!(proxy.get(&format!("u{n}")).status, 200);
        }
        let warm = ups.iter().map(|up| up.seen().len()).sum::<usize>();
        let answer = proxy.client().ask("GET /bad HTTP/1.1\r\nHost: orders\r\n\r\n");
        assert_eq!((answer.status, answer.header("x-lanemesh-error")), (502, Some("upstream_reset_before_response")));
        let executed = ups.iter().map(|up| up.seen().len()).sum::<usize>() - warm;
        assert_eq!((executed, answer.header("x-lanemesh-attempts")), (3, Some("3")), "once and two retries");
    }
}

#[test]
fn a_refused_stream_whose_body_is_small_is_sent_again_without_a_length_too() {
    let up = third_request(|conn, held| {
        conn.reset(held[2], h2::REFUSED_STREAM).ok(held[0], "first").ok(held[1], "first");
    });
    let proxy = h2c(&up);
    let mut client = proxy.h2();
    for stream in [1, 3, 5] {
        client.headers(stream, &h2::call(&[]), false).data(stream, "message", true);
    }
    let texts: Vec<_> = [1, 3, 5].map(|stream| client.response(stream)).iter().map(h2::Response::text).collect();
    assert_eq!(texts, ["first", "first", "later"]);
    assert!(up.seen().iter().all(|seen| seen.body == b"message"));
}

#[test]
fn cold_requests_share_one_connection() {
    let gate = Arc::new(Mutex::new(()));
    let held = gate.lock().unwrap();
    let closed = gate.clone();
    let up = H2Up::start(move |conn, number, log| {
        drop(closed.lock());
        conn.settings(&[]);
        while let Some(seen) = h2::next_request(conn, number) {
            conn.ok(seen.stream, "ok");
            log.lock().unwrap().push(seen);
        }
    });
    let proxy = h2c(&up);
    let mut client = proxy.h2();
    open_posts(&mut client, 1, 50);
    eventually("all wait", || proxy.running.as_ref().unwrap().in_flight() == 50);
    drop(held);
    for n in 0..50 {
        assert_eq!(client.response(2 * n + 1).status, 200);
    }
    assert_eq!(up.connections(), 1);
}

#[test]
fn c58_never_more_streams_than_the_instance_takes() {
    let most = Arc::new(AtomicUsize::new(0));
    let counted = most.clone();
    // Ten at a time, in small windows; after the tenth request one at a time.
    let up = H2Up::start(move |conn, number, log| {
        conn.settings(&[(h2::MAX_CONCURRENT_STREAMS, 10), (h2::INITIAL_WINDOW_SIZE, 16_384)]);
        let mut open = BTreeSet::new();
        loop {
            match conn.next() {
                Event::Headers { stream, .. } => {
                    open.insert(stream);
                    counted.fetch_max(open.len(), SeqCst);
                }
                Event::Data { stream, end: true, .. } => {
                    open.remove(&stream);
                    let mut log = log.lock().unwrap();
                    log.push(h2::Seen { connection: number, stream, ..h2::Seen::default() });
                    if log.len() == 10 {
                        conn.settings(&[(h2::MAX_CONCURRENT_STREAMS, 1)]);
                    }
                    drop(log);
                    conn.ok(stream, "ok");
                }
                Event::Closed => return,
                _ => {}
            }
        }
    });
    let proxy = Fixture::with(&[Instance::new("o1", up.addr).protocol(Protocol::H2c)], &[], |config| {
        config.proxy.h2_max_streams = 1_000;
        config.proxy.timeouts.connect = Duration::from_secs(5);
        config.proxy.timeouts.per_try = Duration::from_secs(10);
        config.proxy.timeouts.total = Duration::from_secs(30);
    });
    let mut client = proxy.h2();
    let body = "x".repeat(32_000);
    // The answer shows that the client's window is what the proxy wants it to be.
    assert_eq!(client.ask(1, &request("POST", "/", &[]), "x").status, 200);
    for n in 1..100 {
        client.headers(2 * n + 1, &request("POST", "/", &[]), false).data(2 * n + 1, &body, true);
    }
    for n in 1..100 {
        assert_eq!(client.response(2 * n + 1).status, 200, "{n}");
    }
    assert!((2..=10).contains(&most.load(SeqCst)), "{most:?}");
    assert!(up.connections() > 1, "more connections, not more streams");
}

#[test]
fn c58_an_instance_without_room_is_passed_over() {
    let full = H2Up::start(|conn, _, _| {
        conn.settings(&[(h2::MAX_CONCURRENT_STREAMS, 0)]);
        conn.until("the end", |event| *event == Event::Closed);
    });
    let free = H2Up::ok("free");
    let instances = [
        Instance::new("o1", full.addr).protocol(Protocol::H2c),
        Instance::new("o2", free.addr).protocol(Protocol::H2c),
    ];
    let proxy = Fixture::with(&instances, &[], |config| config.proxy.timeouts.connect = Duration::from_millis(200));
    let mut client = proxy.h2();
    for (at, user) in ["u1", "u2", "u3", "u4", "u5"].into_iter().enumerate() {
        let asked = request("POST", "/", &[("x-user-id", user)]);
        assert_eq!(client.ask(2 * at as u32 + 1, &asked, "x").text(), "free", "{user}");
    }
}

#[test]
fn all_instances_full_is_overflow() {
    // One stream at a time, and it never ends.
    let up = H2Up::start(|conn, number, log| {
        conn.settings(&[(h2::MAX_CONCURRENT_STREAMS, 1)]);
        while let Some(seen) = h2::next_request(conn, number) {
            log.lock().unwrap().push(seen);
        }
    });
    let instance = Instance::new("o1", up.addr).protocol(Protocol::Grpc);
    let proxy = Fixture::with(&[instance], &[], |config| {
        config.proxy.timeouts.connect = Duration::from_secs(1);
        config.proxy.timeouts.total = Duration::from_secs(30);
        config.proxy.timeouts.per_try = Duration::from_secs(10);
    });
    let mut client = proxy.h2();
    // As many connections as there may be.
    open_posts(&mut client, 1, 16);
    eventually("all are held", || up.seen().len() == 16);
    let refused = client.ask(101, &request("POST", "/", &[]), "x");
    assert_eq!((refused.status, refused.field("x-lanemesh-error")), (503, "overflow"));
    assert_eq!(client.ask(103, &h2::call(&[]), "x").field("grpc-status"), "8");
    assert_eq!(up.connections(), 16);
}

#[test]
fn what_does_not_speak_http2_is_passed_over_and_named() {
    let http1 =
        Upstream::start(|_, _| vec![Act::send("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"), Act::Close]);
    let (_listener, mute) = silent();
    for addr in [http1.addr, mute] {
        let instance = Instance::new("o1", addr).protocol(Protocol::H2c);
        let mut proxy = Fixture::with(std::slice::from_ref(&instance), &[], |config| {
            config.proxy.timeouts.connect = Duration::from_millis(200)
        });
        let response = proxy.ask("POST / HTTP/1.1\r\nHost: orders\r\nContent-Length: 1\r\n\r\nx");
        assert_eq!((response.status, response.header("x-lanemesh-error")), (503, Some("all_refused")));
        assert!(response.text().contains("HTTP/2"), "{}", response.text());
        // Nothing was sent: another instance gets it, whatever the method.
        let up = H2Up::ok("ok");
        proxy.publish(&[instance, Instance::new("o2", up.addr).protocol(Protocol::H2c)], &[]);
        for user in ["u1", "u2", "u3", "u4"] {
            let asked = format!("POST / HTTP/1.1\r\nHost: orders\r\nx-user-id: {user}\r\nContent-Length: 1\r\n\r\nx");
            assert_eq!(proxy.ask(asked).status, 200);
        }
    }
}

#[test]
fn a_connection_on_which_nothing_comes_takes_no_new_streams() {
    // The first connection answers one request and then falls silent, as behind a cut cable.
    let up = H2Up::start(|conn, number, _| {
        conn.settings(&[]);
        let first = h2::next_request(conn, number).unwrap().stream;
        conn.ok(first, "ok");
        conn.give_back = number > 0;
        while let Some(seen) = h2::next_request(conn, number) {
            if number > 0 {
                conn.ok(seen.stream, "ok");
            }
        }
    });
    let instance = Instance::new("o1", up.addr).protocol(Protocol::H2c);
    let proxy = Fixture::with(&[instance], &[], |config| config.proxy.timeouts.per_try = Duration::from_millis(300));
    let mut client = proxy.h2();
    assert_eq!(client.ask(1, &request("POST", "/", &[]), "x").status, 200);
    assert_eq!(client.ask(3, &request("POST", "/", &[]), "x").status, 504);
    for stream in [5, 7] {
        assert_eq!(client.ask(stream, &request("POST", "/", &[]), "x").status, 200);
    }
    assert_eq!(up.connections(), 2);
}

#[test]
fn a_silent_connection_is_pinged_and_given_up() {
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let up = H2Up::start(move |conn, _, _| {
        conn.acknowledge = false;
        conn.settings(&[]);
        let event = conn.until("a ping or the end", |event| matches!(event, Event::Ping | Event::Closed));
        let _ = tell.lock().unwrap().send(event);
        conn.until("the end", |event| *event == Event::Closed);
    });
    let instance = Instance::new("o1", up.addr).protocol(Protocol::H2c);
    let proxy = Fixture::with(&[instance], &[], |config| {
        config.proxy.timeouts.h2_ping = Duration::from_millis(200);
        config.proxy.timeouts.per_try = Duration::from_secs(20);
        config.proxy.timeouts.total = Duration::from_secs(60);
    });
    let response = proxy.h2().ask(1, &request("POST", "/", &[]), "x");
    assert_eq!(response.status, 502);
    assert_eq!(told.recv_timeout(Duration::from_secs(5)), Ok(Event::Ping));
}

#[test]
fn a_connection_closed_while_idle_is_nobodys_error() {
    let up = H2Up::start(|conn, number, log| {
        conn.settings(&[]);
        if let Some(seen) = h2::next_request(conn, number) {
            log.lock().unwrap().push(seen.clone());
            conn.ok(seen.stream, "ok");
            // Even with something to read before the end, the end is noticed.
            conn.frame(0xfa, 0, 0, b"of a type that nobody knows");
        }
    });
    let proxy = h2c(&up);
    let mut client = proxy.h2();
    for n in 0..20 {
        let seen = up.seen().len();
        assert_eq!(client.ask(2 * n + 1, &request("POST", "/", &[]), "x").status, 200, "{n}");
        assert_eq!(up.seen().len(), seen + 1, "once");
        eventually("closed", || up.closed() == n as usize + 1);
    }
    assert_eq!(up.connections(), 20);
}

#[test]
fn an_instance_that_moves_is_followed() {
    let (old, new) = (H2Up::ok("old"), H2Up::ok("new"));
    let mut proxy = h2c(&old);
    let mut client = proxy.h2();
    assert_eq!(client.ask(1, &request("GET", "/", &[]), "").text(), "old");
    proxy.publish(&[Instance::new("o1", new.addr).protocol(Protocol::H2c)], &[]);
    assert_eq!(client.ask(3, &request("GET", "/", &[]), "").text(), "new");
}

#[test]
fn own_ports_are_refused_over_http2_too() {
    let up = Upstream::ok("ok");
    let mut proxy = Fixture::one(up.addr);
    let own = proxy.addr();
    proxy.publish(&[Instance::new("o1", own).protocol(Protocol::H2c)], &[]);
    let response = proxy.h2().ask(1, &request("GET", "/", &[]), "");
    assert_eq!((response.status, response.field("x-lanemesh-error")), (508, "instance_is_this_sidecar"));
}

#[test]
fn a_client_that_stops_reading_takes_nothing_from_the_others() {
    let up = H2Up::start(|conn, number, _| {
        conn.give_back = false;
        conn.settings(&[]);
        let mut window = 65_535_usize;
        while let Some(seen) = h2::next_request(conn, number) {
            if seen.values(":path") == ["/big"] {
                // As much as the stream's window allows.
                conn.headers(seen.stream, &fields(&[(":status", "200")]), false);
                conn.data(seen.stream, vec![b'x'; window.min(60_000)], false);
                window = 0;
            } else {
                conn.ok(seen.stream, "small");
            }
        }
    });
    let proxy = h2c(&up);
    let mut stalled = proxy.h2();
    stalled.give_back = false;
    for n in 0..20 {
        stalled.headers(2 * n + 1, &request("GET", "/big", &[]), true);
    }
    eventually("all under way", || proxy.running.as_ref().unwrap().in_flight() == 20);
    let mut other = proxy.h2();
    for n in 0..50 {
        assert_eq!(other.ask(2 * n + 1, &request("GET", "/small", &[]), "").text(), "small");
    }
    assert_eq!(up.connections(), 1);
}

#[test]
fn c81_a_key_stays_with_its_instance_over_either_protocol() {
    let ups = [H2Up::ok("1"), H2Up::ok("2"), H2Up::ok("3")];
    let instances: Vec<_> = ups
        .iter()
        .enumerate()
        .map(|(n, up)| Instance::new(&format!("o{n}"), up.addr).protocol(Protocol::Grpc))
        .collect();
    let proxy = Fixture::new(&instances);
    let mut client = proxy.h2();
    for n in 0..30 {
        let user = format!("u{n}");
        let owner = proxy.order(&user).remove(0);
        let response = client.ask(2 * n + 1, &request("GET", "/", &[("x-user-id", &user)]), "");
        assert_eq!(response.field("x-lanemesh-instance"), owner);
        assert_eq!(proxy.get(&user).header("x-lanemesh-instance"), Some(owner.as_str()));
    }
}

#[test]
fn refused_connections_walk_the_order_for_http2_as_well() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let up = H2Up::answering(|_| Reply::ok("ok"));
    let instances =
        [Instance::new("o1", gone).protocol(Protocol::H2c), Instance::new("o2", up.addr).protocol(Protocol::H2c)];
    let proxy = Fixture::new(&instances);
    let mut client = proxy.h2();
    let began = Instant::now();
    for n in 0..10 {
        let asked = request("POST", "/", &[("x-user-id", &format!("u{n}"))]);
        assert_eq!(client.ask(2 * n + 1, &asked, "x").status, 200);
    }
    assert!(began.elapsed() < Duration::from_secs(2));
    assert!(up.seen().iter().all(|seen| values(&seen.fields, "x-lanemesh-hops") == ["1"]));
}
