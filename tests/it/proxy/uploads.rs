//! Ends that come too early or too late: an answer before the upload is over, a refusal of one, an answer whose end is late.

use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::mpsc,
    thread,
    time::Duration,
};

use lanemesh::types::Protocol;

use crate::support::{
    Act, End, Fixture, Instance, Upstream,
    fixture::eventually,
    h2::{self, Event, H2Up, fields},
};

/// An application that refuses what it has not read, as many do, has its answer on the way when its socket resets (RFC 9112 9.5).
#[test]
fn an_answer_that_came_before_a_reset_reaches_the_client_and_is_no_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Fixture::one(listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno");
            // Closed with bytes unread: a reset, while more is on its way.
        }
    });
    // More than the sockets on the way can hold together: the proxy never has all of it when the answer comes.
    const PIECES: usize = 1_000;
    for round in 0..20 {
        let mut client = proxy.client();
        let length = PIECES * 64_000;
        client.send(format!("POST /{round} HTTP/1.1\r\nHost: orders\r\nContent-Length: {length}\r\n\r\n"));
        let mut upload = client.writer();
        let sends = thread::spawn(move || {
            // The proxy reads on or closes after its answer; both are fine.
            let piece = [b'x'; 64_000];
            (0..PIECES).try_for_each(|_| upload.write_all(&piece)).is_ok()
        });
        let response = client.response(false);
        assert_eq!((response.status, response.text().as_str()), (413, "no"), "round {round}");
        assert_eq!(response.header("connection"), Some("close"));
        drop(client);
        let _ = sends.join();
    }
    assert_eq!(proxy.metric("lanemesh_breaker_opened_total", &[]), 0.0, "a client's mistake is nobody's failure");
}

/// A client whose upload nobody wants is told when its connection ends with the answer (RFC 9112 9.6), and keeps it where it need not.
#[test]
fn a_refused_upload_ends_its_connection_only_with_notice() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::one(up.addr);
    let sized = |length: usize| format!("Content-Length: {length}\r\n\r\n{}", "x".repeat(length));
    let chunked =
        format!("Transfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n", format!("2710\r\n{:010000}\r\n", 1).repeat(20));
    for (body, stays) in [(sized(10), true), (sized(60_000), true), (sized(200_000), false), (chunked, false)] {
        let mut client = proxy.client();
        client.send(format!("POST / HTTP/1.1\r\nHost: nobody\r\n{body}"));
        let response = client.response(false);
        assert_eq!((response.status, response.header("x-lanemesh-error")), (404, Some("unknown_service")));
        assert_eq!(response.header("connection"), (!stays).then_some("close"), "{} bytes", body.len());
        if stays {
            assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: orders\r\n\r\n").status, 200);
        } else {
            assert_eq!(client.patience(Duration::from_secs(5)).drain().1, End::Fin);
        }
    }
}

/// An HTTP/2 instance may end its answer in a frame of its own, after all that it said would come. It is not told that its client has gone.
#[test]
fn an_end_that_comes_late_is_waited_for() {
    for method in ["GET", "POST"] {
        let (told, events) = mpsc::channel();
        let up = H2Up::start(move |conn, number, _| {
            conn.settings(&[]);
            let Some(seen) = h2::next_request(conn, number) else { return };
            conn.headers(seen.stream, &fields(&[(":status", "200"), ("content-length", "2")]), false);
            conn.data(seen.stream, "ok", false);
            // What comes now, if anything, is about this stream.
            conn.patience(Duration::from_millis(100));
            while let Some(event) = conn.poll() {
                if matches!(event, Event::Reset { .. } | Event::Closed) {
                    told.send(format!("{event:?}")).unwrap();
                    break;
                }
            }
            conn.data(seen.stream, "", true);
            conn.patience(Duration::from_secs(5));
            while conn.poll().is_some_and(|event| event != Event::Closed) {}
        });
        let proxy = Fixture::new(&[Instance::new("o1", up.addr).protocol(Protocol::H2c)]);
        let response = proxy.ask(format!("{method} / HTTP/1.1\r\nHost: orders\r\nContent-Length: 0\r\n\r\n"));
        assert_eq!((response.status, response.text().as_str()), (200, "ok"));
        eventually("it has ended", || proxy.running.as_ref().unwrap().in_flight() == 0);
        assert_eq!(events.recv_timeout(Duration::from_millis(300)).ok(), None, "no stream was given up");
        let log = proxy.access_log();
        assert!(log.len() == 1 && log[0]["error"].is_null(), "{log:?}");
    }
}

/// A client of HTTP/1.0 gets an answer of unknown length until the connection ends, and that is the end of it.
#[test]
fn an_old_client_has_not_gone_when_it_has_everything() {
    let up = Upstream::start(|_, _| {
        vec![
            Act::send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n"),
            Act::Pause(Duration::from_millis(20)),
            Act::send("2\r\nay\r\n0\r\nx-sum: 4\r\n\r\n"),
        ]
    });
    let proxy = Fixture::one(up.addr);
    for _ in 0..3 {
        let mut client = proxy.client();
        client.send("GET / HTTP/1.0\r\nHost: orders\r\n\r\n");
        let (bytes, end) = client.drain();
        assert!(bytes.ends_with(b"\r\n\r\nokay") && end == End::Fin, "{:?} {end:?}", String::from_utf8_lossy(&bytes));
    }
    let log = proxy.access_log();
    assert!(log.len() == 3 && log.iter().all(|line| line["error"].is_null()), "{log:?}");
}

/// As many headers as an instance may send come through, on the plain path and beside it; one more has its reason.
#[test]
fn an_answer_may_have_256_headers() {
    for (count, status) in [(255, 200), (300, 502)] {
        let headers: String = (0..count).map(|n| format!("x-{n}: 1\r\n")).collect();
        let answer: &'static str = format!("HTTP/1.1 200 OK\r\n{headers}content-length: 2\r\n\r\nok").leak();
        let up = Upstream::bytes(answer);
        let proxy = Fixture::one(up.addr);
        for more in ["", "TE: trailers\r\nConnection: TE\r\n"] {
            let response = proxy.ask(format!("GET / HTTP/1.1\r\nHost: orders\r\n{more}\r\n"));
            assert_eq!(response.status, status, "{count} {more:?}: {}", response.text());
        }
    }
}
