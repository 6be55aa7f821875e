//! Limits on HTTP/2 clients, floods, and the end (REQUIREMENTS P6, P7).

use std::{
    thread,
    time::{Duration, Instant},
};

use lanemesh::types::Protocol;

use crate::support::{
    Act, Fixture, Instance, Upstream,
    fixture::eventually,
    h2::{self, Conn, Event, H2Up, block, fields, request},
};

/// How a connection that is flooded ends: with a GOAWAY or without; and that others are served.
fn ends_calmly(proxy: &Fixture, mut client: Conn) -> Option<u32> {
    let mut code = None;
    loop {
        match client.next() {
            Event::GoAway { code: told, .. } => code = Some(told),
            Event::Closed => break,
            _ => {}
        }
    }
    assert_eq!(proxy.h2().ask(1, &request("GET", "/", &[]), "").status, 200);
    eventually("nothing is left of it", || proxy.running.as_ref().unwrap().in_flight() == 0);
    code
}

#[test]
fn a_large_head_is_431_with_a_reason_and_a_huge_one_431() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.h2();
    let long = |size: usize| {
        // Several fields: one frame takes 16 KiB, which the pieces below stay under in all.
        request("GET", "/", &[("x-long", &"a".repeat(size))])
    };
    assert_eq!(client.ask(1, &long(16_000), "").status, 200);
    // Head in three frames, 33,000 bytes of it.
    let mut send = |stream: u32, size: usize, more: usize| {
        let mut all = request("GET", "/", &[("x-long", &"a".repeat(size))]);
        all.extend((0..more).map(|n| (format!("x-{n}"), "1".to_owned())));
        let bytes = block(&all);
        let mut pieces = bytes.chunks(16_000).peekable();
        let mut kind = h2::HEADERS;
        while let Some(piece) = pieces.next() {
            let ends = if pieces.peek().is_none() { h2::END_HEADERS } else { 0 };
            let flags = if kind == h2::HEADERS { ends | h2::END_STREAM } else { ends };
            client.frame(kind, flags, stream, piece);
            kind = h2::CONTINUATION;
        }
        client.response(stream)
    };
    let over = send(3, 33_000, 0);
    assert_eq!((over.status, over.field("x-lanemesh-error")), (431, "head_too_large"));
    assert_eq!(send(5, 10, 100).field("x-lanemesh-error"), "head_too_large");
    assert_eq!(send(7, 10, 90).status, 200);
    assert_eq!(send(9, 60_000, 0).status, 431);
    assert_eq!(send(11, 10, 0).status, 200, "the connection goes on");
    assert_eq!(up.seen().len(), 3);
}

#[test]
fn endless_continuation_ends_the_connection() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.h2();
    client.frame(h2::HEADERS, h2::END_STREAM, 1, &block(&request("GET", "/", &[])));
    for _ in 0..2_000 {
        client.frame(h2::CONTINUATION, 0, 1, &block(&fields(&[("x-more", &"a".repeat(200))])));
    }
    ends_calmly(&proxy, client);
    assert!(proxy.metric("lanemesh_proxy_errors_total", &["http2_flood"]) >= 1.0, "{}", proxy.metrics.encode());
}

#[test]
fn streams_reset_as_soon_as_opened_end_the_connection() {
    // CVE-2023-44487, at once and piecemeal.
    for together in [true, false] {
        let up = Upstream::start(|seen, _| {
            let wait = if seen.line().contains("/slow") { 5_000 } else { 0 };
            vec![Act::Pause(Duration::from_millis(wait)), Act::ok("ok")]
        });
        let proxy = Fixture::one(up.addr);
        let mut client = proxy.h2();
        let mut bytes = Vec::new();
        for n in 0..3_000 {
            let stream = 2 * n + 1;
            bytes.extend(h2::frame(
                h2::HEADERS,
                h2::END_HEADERS | h2::END_STREAM,
                stream,
                &block(&request("GET", "/slow", &[])),
            ));
            bytes.extend(h2::frame(h2::RST_STREAM, 0, stream, &h2::CANCEL.to_be_bytes()));
            if !together {
                client.raw(&bytes);
                bytes.clear();
                thread::sleep(Duration::from_micros(200));
            }
        }
        client.raw(&bytes);
        ends_calmly(&proxy, client);
        let floods = proxy.metric("lanemesh_proxy_errors_total", &["http2_flood"])
            + proxy.metric("lanemesh_proxy_errors_total", &["http2_reset_flood"]);
        assert!(floods >= 1.0, "{together}");
        assert!(up.connections() < 1_000, "{together}: {}", up.connections());
    }
}

#[test]
fn pings_and_settings_without_end_take_nothing_from_others() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.h2();
    // Never reads: what is owed to it stops at what the socket takes, and so does what is read of it.
    let mut writer = client.writer();
    writer.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut flood = Vec::new();
    for n in 0..200_000_u64 {
        flood.extend(h2::frame(h2::PING, 0, 0, &n.to_be_bytes()));
        if n % 2 == 0 {
            flood.extend(h2::frame(h2::SETTINGS, 0, 0, &[]));
        }
    }
    let sent = thread::spawn(move || {
        let mut sent = 0;
        while sent < flood.len() {
            match std::io::Write::write(&mut writer, &flood[sent..]) {
                Ok(n) => sent += n,
                Err(_) => break,
            }
        }
        (sent, flood.len())
    });
    let mut other = proxy.h2();
    let began = Instant::now();
    for n in 0..100 {
        assert_eq!(other.ask(2 * n + 1, &request("GET", "/", &[]), "").status, 200);
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let (sent, all) = sent.join().unwrap();
    assert!(sent <= all);
    client.shut();
}

#[test]
fn a_client_opens_no_more_streams_than_it_may() {
    let up = Upstream::start(|_, _| vec![Act::Pause(Duration::from_secs(1)), Act::ok("ok")]);
    let proxy = Fixture::with(&[Instance::new("o1", up.addr)], &[], |config| config.proxy.h2_max_streams = 5);
    let mut client = proxy.h2();
    let told = client.until("settings", |event| matches!(event, Event::Settings(_)));
    let Event::Settings(settings) = told else { unreachable!() };
    assert!(settings.contains(&(h2::MAX_CONCURRENT_STREAMS, 5)), "{settings:?}");
    for n in 0..6 {
        client.headers(2 * n + 1, &request("GET", "/", &[]), true);
    }
    let refused = client.until("a refusal", |event| matches!(event, Event::Reset { .. }));
    assert_eq!(refused, Event::Reset { stream: 11, code: h2::REFUSED_STREAM });
    assert_eq!(client.response(1).status, 200, "the others go on");
}

#[test]
fn a_stream_that_nobody_reads_is_reset_and_its_connection_goes_on() {
    let up = H2Up::start(|conn, number, _| {
        conn.settings(&[]);
        while let Some(seen) = h2::next_request(conn, number) {
            if seen.values(":path") == ["/endless"] {
                // More than every window on the way together.
                conn.headers(seen.stream, &fields(&[(":status", "200")]), false);
                conn.data(seen.stream, vec![b'x'; 65_000], false);
            } else {
                conn.ok(seen.stream, "ok");
            }
        }
    });
    let proxy = Fixture::with(&[Instance::new("o1", up.addr).protocol(Protocol::H2c)], &[], |config| {
        config.proxy.timeouts.idle = Duration::from_millis(200);
    });
    let mut client = proxy.h2();
    // Windows of nothing.
    client.settings(&[(h2::INITIAL_WINDOW_SIZE, 0)]);
    client.headers(1, &request("GET", "/endless", &[]), true);
    let began = Instant::now();
    let end = client.until("a reset", |event| matches!(event, Event::Reset { .. }));
    assert!(matches!(end, Event::Reset { stream: 1, .. }), "{end:?}");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    client.settings(&[(h2::INITIAL_WINDOW_SIZE, 65_535)]);
    assert_eq!(client.ask(3, &request("GET", "/", &[]), "").status, 200);
    eventually("nothing is held", || proxy.running.as_ref().unwrap().in_flight() == 0);
}

#[test]
fn an_idle_connection_is_told_to_go_and_closed() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::with(&[Instance::new("o1", up.addr)], &[], |config| {
        config.proxy.timeouts.idle = Duration::from_millis(300);
    });
    let mut client = proxy.h2();
    assert_eq!(client.ask(1, &request("GET", "/", &[]), "").status, 200);
    let first = client.until("GOAWAY", |event| matches!(event, Event::GoAway { .. }));
    assert_eq!(first, Event::GoAway { last: 0x7fff_ffff, code: h2::NO_ERROR });
    let last = client.until("the last GOAWAY", |event| matches!(event, Event::GoAway { .. }));
    assert_eq!(last, Event::GoAway { last: 1, code: h2::NO_ERROR });
    assert_eq!(client.next(), Event::Closed);
    // One that does not even answer a PING is cut.
    let mut deaf = proxy.h2();
    deaf.acknowledge = false;
    deaf.until("the end", |event| *event == Event::Closed);
}

#[test]
fn draining_says_goodbye_in_two_steps_and_loses_nothing() {
    let up = Upstream::start(|seen, _| {
        let wait = if seen.line().contains("/slow") { 1_500 } else { 0 };
        vec![Act::Pause(Duration::from_millis(wait)), Act::ok("ok")]
    });
    let mut proxy = Fixture::one(up.addr);
    let mut client = proxy.h2();
    client.acknowledge = false;
    client.headers(1, &request("GET", "/slow", &[]), true);
    eventually("in flight", || proxy.running.as_ref().unwrap().in_flight() == 1);
    proxy.running.as_ref().unwrap().drain();
    let first = client.until("GOAWAY", |event| matches!(event, Event::GoAway { .. }));
    assert_eq!(first, Event::GoAway { last: 0x7fff_ffff, code: h2::NO_ERROR });
    // On its way before the client could know.
    assert_eq!(client.ask(3, &request("POST", "/", &[]), "x").status, 200);
    client.acknowledge = true;
    // The PING that asks whether the client has heard of it.
    client.frame(h2::PING, h2::ACK, 0, b"\x0b\x7b\xa2\xf0\x8b\x9b\xfe\x54");
    let last = client.until("the last GOAWAY", |event| matches!(event, Event::GoAway { .. }));
    assert_eq!(last, Event::GoAway { last: 3, code: h2::NO_ERROR });
    assert_eq!(client.response(1).status, 200, "what was in flight finishes");
    assert_eq!(client.next(), Event::Closed);
    // Whoever still comes is served, and told.
    let mut late = proxy.h2();
    assert_eq!(late.ask(1, &request("GET", "/", &[]), "").status, 200);
    late.until("GOAWAY", |event| matches!(event, Event::GoAway { .. }));
    let began = Instant::now();
    proxy.running.take().unwrap().stop();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}
