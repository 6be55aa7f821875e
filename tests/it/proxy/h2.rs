//! HTTP/2 from the application: one port for both versions, translation both ways (REQUIREMENTS P1, P2).

use std::{io::Write, thread, time::Duration};

use lanemesh::types::Protocol;

use crate::support::{
    Act, Fixture, Instance, Raw, Upstream,
    fixture::eventually,
    h2::{self, Conn, Event, H2Up, PREFACE, Reply, fields, request, values},
};

/// A proxy in front of an application that speaks HTTP/2.
fn h2c(up: &H2Up) -> Fixture {
    Fixture::new(&[Instance::new("o1", up.addr).protocol(Protocol::H2c)])
}

#[test]
fn both_versions_are_served_on_one_port() {
    let up = Upstream::ok("hi");
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.h2();
    for stream in [1, 3] {
        let response = client.ask(stream, &request("GET", "/p?q=1", &[("x-user-id", "u1")]), "");
        assert_eq!((response.status, response.text().as_str()), (200, "hi"));
        assert_eq!(response.field("content-length"), "2");
        assert_eq!(response.field("x-lanemesh-instance"), "o1");
        assert!(values(&response.fields, "connection").is_empty());
    }
    assert_eq!(proxy.get("u1").text(), "hi");
    let seen = up.seen();
    assert_eq!((seen[0].line(), seen[0].values("host")), ("GET /p?q=1 HTTP/1.1", vec!["orders"]));
    // Each way of serving has its own.
    assert!(up.connections() <= 2);
}

#[test]
fn a_preface_that_comes_byte_by_byte_is_one() {
    let up = Upstream::ok("hi");
    let proxy = Fixture::one(up.addr);
    let mut client = Conn::bare(std::net::TcpStream::connect(proxy.addr()).unwrap());
    let mut writer = client.writer();
    for byte in PREFACE {
        writer.write_all(&[*byte]).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    client.settings(&[]);
    assert_eq!(client.ask(1, &request("GET", "/", &[]), "").status, 200);
    // So are requests that begin like one, or not.
    for line in ["POST", "PUT", "PRI", "P", "PRI * HTTP/2.0x"] {
        let mut raw = proxy.client();
        let mut writer = raw.writer();
        for byte in line.as_bytes() {
            writer.write_all(&[*byte]).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        writer.write_all(b" / HTTP/1.1\r\nHost: orders\r\nContent-Length: 0\r\n\r\n").unwrap();
        let expected = if line.contains('*') { 400 } else { 200 };
        assert_eq!(raw.response(false).status, expected, "{line}");
    }
}

#[test]
fn half_a_preface_is_a_slow_head() {
    let proxy = Fixture::with(&[], &[], |config| config.proxy.timeouts.head = Duration::from_millis(300));
    let mut slow = proxy.client();
    slow.send(&PREFACE[..10]);
    assert_eq!(slow.response(false).status, 408);
    let mut ended = proxy.client();
    ended.send(&PREFACE[..10]).half_close();
    ended.drain();
}

#[test]
fn a_dedicated_port_speaks_both_as_well() {
    let up = Upstream::ok("hi");
    let service = lanemesh::types::ServiceName::new("orders").unwrap();
    let name = service.clone();
    let proxy = Fixture::with(&[Instance::new("o1", up.addr)], &[], move |config| {
        config.proxy.ports.insert(name, "127.0.0.1:0".parse().unwrap());
    });
    let port = proxy.running.as_ref().unwrap().ports()[&service];
    let asked = fields(&[(":method", "GET"), (":scheme", "http"), (":authority", "anything:1"), (":path", "/")]);
    assert_eq!(Conn::client(port).ask(1, &asked, "").status, 200);
    assert_eq!(Raw::connect(port).ask("GET / HTTP/1.1\r\nHost: anything\r\n\r\n").status, 200);
}

#[test]
fn heads_are_translated_by_one_set_of_rules() {
    let old = Upstream::bytes(
        "HTTP/1.1 200 OK\r\nconnection: x-up\r\nx-up: 1\r\nkeep-alive: timeout=5\r\nx-lanemesh-instance: evil\r\n\
         set-cookie: a=1\r\nset-cookie: b=2\r\ncontent-length: 0\r\n\r\n",
    );
    let new = H2Up::answering(|_| Reply::ok("").field("x-lanemesh-instance", "evil").field("set-cookie", "a=1"));
    let more = [
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("te", "trailers"),
        ("x-lane", "canary"),
        ("x_lanemesh_lane", "canary"),
        ("x-lanemesh-lane", "canary"),
        ("proxy-authorization", "x"),
        ("x-kept", "3"),
    ];
    let proxy = Fixture::one(old.addr);
    let response = proxy.h2().ask(1, &request("GET", "/a/%2e%2e//b?", &more), "");
    assert_eq!((response.field("x-lanemesh-instance"), response.field("x-up")), ("o1", ""));
    assert_eq!(values(&response.fields, "set-cookie"), ["a=1", "b=2"]);
    let seen = old.only();
    assert_eq!((seen.line(), seen.values("cookie")), ("GET /a/%2e%2e//b? HTTP/1.1", vec!["a=1; b=2"]));
    assert_eq!((seen.values("te"), seen.values("connection")), (vec!["trailers"], vec!["te"]));
    assert_eq!((seen.values("x-lanemesh-lane"), seen.values("x-kept")), (vec!["stable"], vec!["3"]));
    assert_eq!(seen.values("x-forwarded-for"), ["127.0.0.1"]);
    for gone in ["x-lane", "x_lanemesh_lane", "proxy-authorization"] {
        assert!(seen.values(gone).is_empty(), "{gone}");
    }

    let proxy = h2c(&new);
    let response = proxy.h2().ask(1, &request("GET", "/a/%2e%2e//b?", &more), "");
    assert_eq!(response.field("x-lanemesh-instance"), "o1");
    let lines = "Host: orders\r\nConnection: keep-alive, TE, x-secret\r\nx-secret: 1\r\nTE: gzip, trailers\r\ncookie: a=1; b=2\r\n\
                 Keep-Alive: 5\r\nUpgrade: foo\r\nx-kept: 3";
    assert_eq!(proxy.ask(format!("GET /a/%2e%2e//b? HTTP/1.1\r\n{lines}\r\n\r\n")).status, 200);
    for seen in new.seen() {
        let values = |name| seen.values(name);
        assert_eq!((values(":path"), values(":authority")), (vec!["/a/%2e%2e//b?"], vec!["orders"]));
        assert_eq!((values(":scheme"), values(":method")), (vec!["http"], vec!["GET"]));
        assert_eq!((values("te"), values("cookie"), values("x-kept")), (vec!["trailers"], vec!["a=1; b=2"], vec!["3"]));
        assert_eq!((values("x-lanemesh-lane"), values("x-forwarded-for")), (vec!["stable"], vec!["127.0.0.1"]));
        for gone in ["host", "connection", "keep-alive", "upgrade", "x-secret", "x-lane", "content-length"] {
            assert!(values(gone).is_empty(), "{gone}: {seen:?}");
        }
    }
}

#[test]
fn c59_te_is_trailers_or_nothing() {
    let up = H2Up::ok("ok");
    let proxy = h2c(&up);
    for te in ["trailers", "trailers, deflate", "gzip"] {
        proxy.ask(format!("GET / HTTP/1.1\r\nHost: orders\r\nConnection: TE\r\nTE: {te}\r\n\r\n"));
    }
    let seen: Vec<_> = up.seen().iter().map(|seen| seen.values("te").concat()).collect();
    assert_eq!(seen, ["trailers", "trailers", ""]);
    // RFC 9113 8.2.2 makes anything else malformed.
    let mut client = proxy.h2();
    assert_eq!(client.ask(1, &request("GET", "/", &[("te", "gzip")]), "").reset, Some(h2::PROTOCOL_ERROR));
    assert_eq!(client.ask(3, &request("GET", "/", &[("te", "trailers")]), "").status, 200);
}

#[test]
fn c43_an_authority_or_one_host_and_no_contradiction() {
    let up = Upstream::ok("hi");
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.h2();
    let with = |authority: &str, hosts: &[&str], path: &str| {
        let mut all = fields(&[(":method", "GET"), (":scheme", "http"), (":path", path)]);
        if !authority.is_empty() {
            all.insert(2, (":authority".into(), authority.into()));
        }
        all.extend(hosts.iter().map(|host| ("host".to_owned(), (*host).to_owned())));
        all
    };
    let mut stream = 1;
    for (authority, hosts, path, status) in [
        ("ORDERS.:15001", &[][..], "/", 200),
        ("", &["orders"][..], "/", 200),
        ("orders", &["orders"][..], "/", 200),
        ("orders", &["billing"][..], "/", 400),
        ("", &["orders", "billing"][..], "/", 400),
        ("", &[][..], "/", 400),
        ("u@orders", &[][..], "/", 400),
        ("orders", &[][..], "*", 400),
    ] {
        let response = client.ask(stream, &with(authority, hosts, path), "");
        assert!(
            response.status == status || status == 400 && response.reset == Some(h2::PROTOCOL_ERROR),
            "{authority} {hosts:?}: {response:?}"
        );
        assert!(values(&response.fields, "connection").is_empty());
        stream += 2;
    }
    assert_eq!(up.seen().len(), 3);
}

#[test]
fn bodies_and_lengths_go_through_as_they_came() {
    let old = Upstream::start(|seen, _| match seen.line().split(' ').nth(1) {
        Some("/chunked") => {
            vec![Act::send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")]
        }
        _ => vec![Act::ok(&String::from_utf8_lossy(&seen.body))],
    });
    let new = H2Up::answering(|seen| {
        let reply = Reply::ok(&String::from_utf8_lossy(&seen.body));
        if seen.values(":path") == ["/chunked"] {
            Reply::ok("hello")
        } else {
            reply.field("content-length", &seen.body.len().to_string())
        }
    });
    let big = "x".repeat(40_000);
    // From HTTP/2 to HTTP/1.1.
    let proxy = Fixture::one(old.addr);
    let mut client = proxy.h2();
    let sized = request("POST", "/", &[("content-length", "3")]);
    assert_eq!(client.ask(1, &sized, "abc").text(), "abc");
    assert_eq!(client.ask(3, &request("PUT", "/", &[]), &big).text(), big);
    assert_eq!(client.ask(5, &request("GET", "/", &[]), "").field("content-length"), "0");
    let chunked = client.ask(7, &request("GET", "/chunked", &[]), "");
    assert_eq!((chunked.text().as_str(), chunked.field("content-length")), ("hello", ""));
    let framing: Vec<_> = old
        .seen()
        .iter()
        .map(|seen| (seen.values("content-length").concat(), seen.values("transfer-encoding").concat()))
        .collect();
    let expected = [("3", ""), ("", "chunked"), ("", ""), ("", "")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(framing, expected);
    // From HTTP/1.1 to HTTP/2.
    let proxy = h2c(&new);
    let mut client = proxy.client();
    let response = client.ask("POST / HTTP/1.1\r\nHost: orders\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!((response.header("content-length"), response.text().as_str()), (Some("3"), "abc"));
    let response =
        client.ask("POST / HTTP/1.1\r\nHost: orders\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    assert_eq!(response.text(), "abc");
    let response = client.ask("GET /chunked HTTP/1.1\r\nHost: orders\r\n\r\n");
    assert_eq!((response.header("transfer-encoding"), response.text().as_str()), (Some("chunked"), "hello"));
    let lengths: Vec<_> = new.seen().iter().map(|seen| seen.values("content-length").concat()).collect();
    assert_eq!(lengths, ["3", "", ""]);
    assert_eq!(new.connections(), 1);
}

#[test]
fn trailers_pass_in_all_four_directions() {
    let old = Upstream::start(|seen, _| {
        let trailers = if seen.values("te").is_empty() { "" } else { "x-sum: 7\r\nx-lanemesh-lane: evil\r\n" };
        vec![Act::send(format!(
            "HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n{trailers}\r\n"
        ))]
    });
    let new = H2Up::answering(|_| {
        Reply::ok("hello").field("trailer", "x-sum").trailers(&[("x-sum", "7"), ("x-lanemesh-lane", "evil")])
    });
    for (proxy, version) in [(Fixture::one(old.addr), 1), (h2c(&new), 2)] {
        let mut client = proxy.h2();
        client.headers(1, &request("POST", "/", &[("te", "trailers"), ("trailer", "x-check")]), false);
        client.data(1, "abc", false).headers(1, &fields(&[("x-check", "9")]), true);
        let response = client.response(1);
        assert_eq!((response.text().as_str(), response.trailers), ("hello", fields(&[("x-sum", "7")])), "{version}");
        let mut client = proxy.client();
        client.send(
            "POST / HTTP/1.1\r\nHost: orders\r\nTE: trailers\r\nConnection: TE\r\nTrailer: x-check\r\n\
             Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-check: 9\r\n\r\n",
        );
        client.until("trailers", |bytes| bytes.ends_with(b"0\r\nx-sum: 7\r\n\r\n"));
    }
    assert!(new.seen().iter().all(|seen| seen.trailers == fields(&[("x-check", "9")])), "{:?}", new.seen());
    // A small response of known length is no exception.
    let sized = H2Up::answering(|_| Reply::ok("hello").field("content-length", "5").trailers(&[("x-sum", "7")]));
    let proxy = h2c(&sized);
    assert_eq!(proxy.h2().ask(1, &request("GET", "/", &[]), "").trailers, fields(&[("x-sum", "7")]));
}

#[test]
fn c41_responses_without_a_body_keep_their_length() {
    let old = Upstream::start(|seen, _| {
        vec![Act::send(match seen.line().split(' ').next() {
            Some("HEAD") => "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n",
            Some("GET") => "HTTP/1.1 304 Not Modified\r\ncontent-length: 55\r\n\r\n",
            _ => "HTTP/1.1 204 No Content\r\n\r\n",
        })]
    });
    let new = H2Up::answering(|seen| match seen.values(":method")[0] {
        "HEAD" => Reply { fields: fields(&[(":status", "200"), ("content-length", "1000")]), ..Reply::default() },
        "GET" => Reply { fields: fields(&[(":status", "304"), ("content-length", "55")]), ..Reply::default() },
        _ => Reply { fields: fields(&[(":status", "204")]), ..Reply::default() },
    });
    let expected = [("HEAD", 200, "1000"), ("GET", 304, "55"), ("DELETE", 204, "")];
    for proxy in [Fixture::one(old.addr), h2c(&new)] {
        let (mut two, mut one) = (proxy.h2(), proxy.client());
        for (at, (method, status, length)) in expected.into_iter().enumerate() {
            let response = two.ask(2 * at as u32 + 1, &request(method, "/", &[]), "");
            assert_eq!((response.status, response.field("content-length")), (status, length), "{method}");
            assert!(response.only_fields, "{method}");
            one.send(format!("{method} / HTTP/1.1\r\nHost: orders\r\n\r\n"));
            let response = one.response(true);
            assert_eq!(
                (response.status, response.header("content-length").unwrap_or("")),
                (status, length),
                "{method}"
            );
        }
    }
    // One for each way of serving.
    assert!(old.connections() <= 2 && new.connections() == 1);
}

#[test]
fn errors_come_in_the_clients_protocol() {
    let proxy = Fixture::one(Upstream::refusing());
    let mut client = proxy.h2();
    let response = client.ask(1, &request("GET", "/", &[]), "");
    assert_eq!((response.status, response.field("x-lanemesh-error")), (503, "all_refused"));
    assert!(response.field("proxy-status").starts_with("lanemesh; error=connection_refused"));
    assert!(response.text().contains("cure:"));
    let other = fields(&[(":method", "GET"), (":scheme", "http"), (":authority", "nowhere"), (":path", "/")]);
    assert_eq!(client.ask(3, &other, "").status, 404);
    // Nothing of it costs the connection.
    let json = request("GET", "/", &[("accept", "application/json")]);
    let body: serde_json::Value = serde_json::from_slice(&client.ask(5, &json, "").body).unwrap();
    assert_eq!(body["error"], "all_refused");
}

#[test]
fn one_streams_end_is_not_the_others() {
    let up = H2Up::start(|conn, _, _| {
        conn.settings(&[]);
        let mut given_up = 0;
        loop {
            match conn.next() {
                Event::Headers { stream, fields, .. } => match values(&fields, ":path")[0] {
                    "/broken" => drop(conn.reset(stream, h2::CANCEL)),
                    "/cut" => {
                        conn.headers(stream, &h2::fields(&[(":status", "200")]), false).data(stream, "part", false);
                    }
                    "/hang" => {}
                    "/given-up" => drop(conn.ok(stream, &format!("{given_up}"))),
                    _ => drop(conn.reset(stream - 2, h2::CANCEL).ok(stream, "ok")),
                },
                Event::Reset { .. } => given_up += 1,
                Event::Closed => return,
                _ => {}
            }
        }
    });
    let proxy = h2c(&up);
    let mut client = proxy.h2();
    client.headers(1, &request("POST", "/broken", &[]), true);
    client.headers(3, &request("POST", "/cut", &[]), true);
    assert_eq!(client.response(1).status, 502);
    client.until("a part", |event| matches!(event, Event::Data { stream: 3, bytes, .. } if bytes == b"part"));
    client.headers(5, &request("POST", "/fine", &[]), true);
    assert_eq!(client.response(5).status, 200);
    assert!(client.response(3).reset.is_some());
    // A client that gives up a stream gives it up at the instance as well.
    client.headers(7, &request("POST", "/hang", &[]), true);
    eventually("in flight", || proxy.running.as_ref().unwrap().in_flight() == 1);
    client.reset(7, h2::CANCEL);
    eventually("given up", || proxy.running.as_ref().unwrap().in_flight() == 0);
    assert_eq!(client.ask(9, &request("POST", "/given-up", &[]), "").text(), "1");
    assert_eq!(up.connections(), 1);
}
