//! gRPC: streams as they come, statuses that its clients understand, deadlines (REQUIREMENTS P1, P2, P5).

use std::{
    thread,
    time::{Duration, Instant},
};

use lanemesh::types::Protocol;

use crate::support::{
    Fixture, Instance, Upstream,
    fixture::{eventually, silent},
    h2::{self, Event, H2Up, Reply, call, fields, values},
};

fn grpc(up: &H2Up) -> Fixture {
    Fixture::new(&[Instance::new("o1", up.addr).protocol(Protocol::Grpc)])
}

/// A trailers-only answer of the proxy's own.
fn assert_status(response: &h2::Response, code: &str, reason: &str) {
    assert_eq!((response.status, response.only_fields), (200, true), "{response:?}");
    assert_eq!(values(&response.fields, "content-type"), ["application/grpc"]);
    assert_eq!((response.field("grpc-status"), response.field("x-lanemesh-error")), (code, reason), "{response:?}");
    let message = response.field("grpc-message");
    assert!(message.starts_with("lanemesh: ") && message.len() < 400, "{message}");
    assert!(response.field("proxy-status").contains(reason));
}

#[test]
fn a_unary_call_keeps_its_trailers() {
    let up = H2Up::answering(|seen| {
        assert_eq!((seen.values("te"), seen.values("content-type")), (vec!["trailers"], vec!["application/grpc"]));
        Reply::ok("answer").field("content-type", "application/grpc").trailers(&[("grpc-status", "0"), ("x-cost", "7")])
    });
    let response = grpc(&up).h2().ask(1, &call(&[]), "question");
    assert_eq!((response.status, response.text().as_str()), (200, "answer"));
    assert_eq!(response.trailers, fields(&[("grpc-status", "0"), ("x-cost", "7")]));
    assert_eq!(up.seen()[0].body, b"question");
}

#[test]
fn an_applications_own_status_is_its_answer() {
    // Trailers-only UNAVAILABLE: the application has seen the call, so nobody repeats it.
    let up = H2Up::answering(|_| Reply {
        fields: fields(&[
            (":status", "200"),
            ("content-type", "application/grpc"),
            ("grpc-status", "14"),
            ("grpc-message", "x"),
        ]),
        ..Reply::default()
    });
    let response = grpc(&up).h2().ask(1, &call(&[]), "question");
    assert!(response.only_fields);
    assert_eq!((response.field("grpc-status"), response.field("x-lanemesh-error")), ("14", ""));
    assert_eq!(up.seen().len(), 1);
}

/// A call that ends with a code that counts is a failure of its instance, whether its status stands in the head or in trailers;
/// others, and calls whose messages have begun, are none (REQUIREMENTS R5).
#[test]
fn how_calls_end_feeds_the_breaker() {
    let status =
        |code: &'static str| fields(&[(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", code)]);
    let in_trailers =
        |body: &str| Reply::ok(body).field("content-type", "application/grpc").trailers(&[("grpc-status", "13")]);
    for (opens, up) in [
        (1.0, H2Up::answering(move |_| Reply { fields: status("14"), ..Reply::default() })),
        (1.0, H2Up::answering(move |_| in_trailers(""))),
        (0.0, H2Up::answering(move |_| Reply { fields: status("5"), ..Reply::default() })),
        (0.0, H2Up::answering(move |_| in_trailers("some"))),
    ] {
        let well = H2Up::answering(|_| {
            Reply::ok("fine").field("content-type", "application/grpc").trailers(&[("grpc-status", "0")])
        });
        let instances =
            [("o1", up.addr), ("o2", well.addr)].map(|(id, addr)| Instance::new(id, addr).protocol(Protocol::Grpc));
        let proxy = Fixture::new(&instances);
        let key = (0..).map(|n| format!("u{n}")).find(|key| proxy.order(key)[0] == "o1").unwrap();
        for _ in 0..3 {
            proxy.h2().ask(1, &call(&[("x-user-id", &key)]), "question");
        }
        eventually("counted", || proxy.metric("lanemesh_requests_total", &["instance=\"o1\""]) == 3.0);
        assert_eq!(proxy.metric("lanemesh_breaker_opened_total", &[]), opens);
    }
}

#[test]
fn each_message_arrives_before_the_next_is_sent() {
    // A conversation: either side says its next word only after it has heard the other's.
    let up = H2Up::start(|conn, _, _| {
        conn.settings(&[]);
        let mut heard = 0;
        loop {
            match conn.next() {
                Event::Headers { stream, .. } => {
                    conn.headers(stream, &fields(&[(":status", "200"), ("content-type", "application/grpc")]), false);
                }
                Event::Data { stream, bytes, end } => {
                    if !bytes.is_empty() {
                        assert_eq!(bytes, format!("ask {heard}").as_bytes());
                        conn.data(stream, format!("say {heard}"), false);
                        heard += 1;
                    }
                    if end {
                        conn.headers(stream, &fields(&[("grpc-status", "0")]), true);
                    }
                }
                Event::Closed => return,
                _ => {}
            }
        }
    });
    let proxy = grpc(&up);
    let mut client = proxy.h2();
    client.headers(1, &call(&[]), false);
    client.until("the head, before any message", |event| matches!(event, Event::Headers { stream: 1, .. }));
    for n in 0..20 {
        client.data(1, format!("ask {n}"), false);
        let event = client.until("an answer", |event| matches!(event, Event::Data { bytes, .. } if !bytes.is_empty()));
        assert_eq!(event, Event::Data { stream: 1, bytes: format!("say {n}").into_bytes(), end: false });
    }
    client.data(1, "", true);
    let end = client.until("trailers", |event| matches!(event, Event::Headers { .. }));
    assert_eq!(end, Event::Headers { stream: 1, fields: fields(&[("grpc-status", "0")]), end: true });
}

#[test]
fn c54_errors_are_statuses() {
    let up = H2Up::start(|conn, _, _| {
        conn.settings(&[]);
        conn.until("the end", |event| *event == Event::Closed);
    });
    let proxy = Fixture::new(&[
        Instance::new("o1", up.addr).protocol(Protocol::Grpc),
        Instance::new("r1", Upstream::refusing()).protocol(Protocol::Grpc).service("refusing"),
        Instance::new("t1", up.addr).protocol(Protocol::Tcp).service("tcp"),
        Instance::new("d1", up.addr).service("down").health(lanemesh::types::Health::Critical),
    ]);
    let to = |service: &str, more: &[(&str, &str)]| {
        let mut all = call(more);
        all.iter_mut().filter(|(name, _)| name == ":authority").for_each(|(_, value)| *value = service.to_owned());
        all
    };
    let mut client = proxy.h2();
    assert_status(&client.ask(1, &to("nowhere", &[]), "x"), "14", "unknown_service");
    assert_status(&client.ask(3, &to("down", &[]), "x"), "14", "no_instance");
    assert_status(&client.ask(5, &to("refusing", &[]), "x"), "14", "all_refused");
    assert_status(&client.ask(7, &to("tcp", &[]), "x"), "12", "protocol_not_supported");
    let began = Instant::now();
    let late = client.ask(9, &to("orders", &[("grpc-timeout", "100m")]), "x");
    assert_status(&late, "4", "deadline");
    assert!((80..2_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    // A client that does not speak gRPC gets statuses of its own.
    let mut rest = to("refusing", &[]);
    rest.retain(|(name, _)| name != "content-type");
    let plain = client.ask(11, &rest, "x");
    assert_eq!((plain.status, plain.field("grpc-status")), (503, ""));
    assert_eq!(proxy.ask("POST / HTTP/1.1\r\nHost: down\r\nContent-Type: application/grpc\r\n\r\n").status, 503);
}

#[test]
fn c54_a_stream_that_breaks_off_ends_with_a_status() {
    let up = H2Up::start(|conn, number, _| {
        conn.settings(&[]);
        let stream = h2::next_request(conn, number).unwrap().stream;
        conn.headers(stream, &fields(&[(":status", "200"), ("content-type", "application/grpc")]), false);
        conn.data(stream, "one", false).data(stream, "two", false);
        // The client has it before the application dies.
        conn.until("word from the client", |event| matches!(event, Event::Headers { .. }));
    });
    let proxy = grpc(&up);
    let mut client = proxy.h2();
    client.headers(1, &call(&[]), true);
    client.until("both messages", |event| matches!(event, Event::Data { bytes, .. } if bytes.ends_with(b"two")));
    client.headers(3, &call(&[]), true);
    let end = client.until("the status", |event| matches!(event, Event::Headers { stream: 1, end: true, .. }));
    let Event::Headers { fields, .. } = end else { unreachable!() };
    assert_eq!(values(&fields, "grpc-status"), ["14"]);
    assert!(values(&fields, "grpc-message")[0].contains("broke off"), "{fields:?}");
}

#[test]
fn deadlines_are_passed_on_shorter() {
    let up = H2Up::ok("ok");
    let proxy = grpc(&up);
    let mut client = proxy.h2();
    client.ask(1, &call(&[("grpc-timeout", "5S")]), "x");
    client.ask(3, &call(&[("grpc-timeout", "2H"), ("x-request-timeout", "5s")]), "x");
    client.ask(5, &call(&[("grpc-timeout", "nonsense")]), "x");
    let seen = up.seen();
    let micros = |at: usize| seen[at].values("grpc-timeout")[0].strip_suffix('u').unwrap().parse::<u64>().unwrap();
    for at in [0, 1] {
        assert!((4_000_000..5_000_000).contains(&micros(at)), "{}", micros(at));
        assert!(seen[at].values("x-request-timeout")[0].parse::<u64>().unwrap() < 5_000);
    }
    assert_eq!(seen[2].values("grpc-timeout"), ["nonsense"], "not ours to judge");
    assert!(seen[2].values("x-request-timeout").is_empty());
}

#[test]
fn a_call_may_take_as_long_as_its_caller_says() {
    // Longer than a try and than all tries of an ordinary request.
    let up = H2Up::answering(|seen| {
        thread::sleep(Duration::from_millis(900));
        Reply::ok(seen.values("grpc-timeout").first().unwrap_or(&"none"))
    });
    let proxy = Fixture::with(&[Instance::new("o1", up.addr).protocol(Protocol::Grpc)], &[], |config| {
        config.proxy.timeouts.per_try = Duration::from_millis(100);
        config.proxy.timeouts.total = Duration::from_millis(300);
        config.proxy.timeouts.connect = Duration::from_millis(100);
    });
    let mut client = proxy.h2();
    assert_eq!(client.ask(1, &call(&[("grpc-timeout", "10S")]), "x").status, 200);
    assert_eq!(client.ask(3, &call(&[]), "x").text(), "none");
    assert_eq!(client.ask(5, &h2::request("POST", "/", &[]), "x").status, 504);
}

#[test]
fn silence_one_way_is_no_silence() {
    // The client sends for longer than the limit on silence while the server listens, then the other way round.
    let up = H2Up::start(|conn, _, _| {
        conn.settings(&[]);
        let mut heard = 0;
        loop {
            match conn.next() {
                Event::Headers { stream, .. } => {
                    conn.headers(stream, &fields(&[(":status", "200"), ("content-type", "application/grpc")]), false);
                }
                Event::Data { stream, .. } => {
                    heard += 1;
                    if heard == 12 {
                        for _ in 0..12 {
                            thread::sleep(Duration::from_millis(100));
                            conn.data(stream, "say", false);
                        }
                        conn.headers(stream, &fields(&[("grpc-status", "0")]), true);
                    }
                }
                Event::Closed => return,
                _ => {}
            }
        }
    });
    let proxy = Fixture::with(&[Instance::new("o1", up.addr).protocol(Protocol::Grpc)], &[], |config| {
        config.proxy.timeouts.idle = Duration::from_millis(300);
    });
    let mut client = proxy.h2();
    client.headers(1, &call(&[]), false);
    for _ in 0..12 {
        thread::sleep(Duration::from_millis(100));
        client.data(1, "ask", false);
    }
    let response = client.response(1);
    assert_eq!((response.body.len(), response.field("grpc-status")), (36, "0"), "{response:?}");
    // Silence both ways is one.
    client.headers(3, &call(&[]), false).data(3, "ask", false);
    let silent = client.response(3);
    assert_eq!(
        (silent.status, silent.reset.is_some() || silent.field("grpc-status") == "14"),
        (200, true),
        "{silent:?}"
    );
}

#[test]
fn a_cancelled_call_is_cancelled_at_the_instance() {
    let up = H2Up::start(|conn, _, log| {
        conn.settings(&[]);
        loop {
            match conn.next() {
                Event::Headers { stream, .. } => {
                    conn.headers(stream, &fields(&[(":status", "200")]), false);
                }
                Event::Reset { stream, code } => {
                    let code = code.to_string();
                    log.lock().unwrap().push(h2::Seen {
                        stream,
                        fields: fields(&[("code", &code)]),
                        ..h2::Seen::default()
                    });
                }
                Event::Closed => return,
                _ => {}
            }
        }
    });
    let proxy = grpc(&up);
    let mut client = proxy.h2();
    client.headers(1, &call(&[]), false);
    client.until("the head", |event| matches!(event, Event::Headers { .. }));
    client.reset(1, h2::CANCEL);
    eventually("told", || up.seen().len() == 1);
    assert_eq!(up.seen()[0].values("code"), [h2::CANCEL.to_string()]);
}

#[test]
fn nothing_is_called_twice() {
    // After the call was taken, whatever breaks: one call, one status.
    let up = H2Up::start(|conn, number, log| {
        conn.settings(&[]);
        let seen = h2::next_request(conn, number).unwrap();
        log.lock().unwrap().push(seen);
    });
    let proxy = grpc(&up);
    assert_status(&proxy.h2().ask(1, &call(&[]), "x"), "14", "upstream_reset_before_response");
    assert_eq!(up.seen().len(), 1);
    let (_held, mute) = silent();
    let never = Fixture::new(&[Instance::new("o1", mute).protocol(Protocol::Grpc)]);
    assert_status(&never.h2().ask(1, &call(&[]), "x"), "14", "all_refused");
}
