//! HTTP/1.1 as it goes over the wire (REQUIREMENTS P1, P2).

use std::{
    io::Write,
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use lanemesh::types::ServiceName;

use crate::support::{Act, End, Fixture, Instance, Raw, Upstream, fixture::eventually, raw::find};

fn get(line: &str, headers: &[&str]) -> String {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    format!("{line}\r\n{headers}\r\n")
}

#[test]
fn c43_exactly_one_valid_host() {
    let up = Upstream::ok("hi");
    let proxy = Fixture::one(up.addr);
    let bad: [&[&str]; 7] = [
        &[],
        &["Host: orders", "Host: billing"],
        &["Host: orders", "host: orders"],
        &["Host:"],
        &["Host: orders/x"],
        &["Host: a@orders"],
        &["Host: orders:99999"],
    ];
    for headers in bad {
        let response = proxy.ask(get("GET / HTTP/1.1", headers));
        assert_eq!((response.status, response.header("x-lanemesh-error")), (400, Some("bad_host")), "{headers:?}");
        assert_eq!(response.header("connection"), Some("close"));
    }
    assert_eq!(proxy.ask("GET / HTTP/1.0\r\n\r\n").status, 400);
    assert!(up.seen().is_empty());
    for host in ["ORDERS", "orders.", "orders:15001"] {
        assert_eq!(proxy.ask(get("GET / HTTP/1.1", &[&format!("Host: {host}")])).status, 200, "{host}");
    }
}

#[test]
fn c44_absolute_form_decides_and_host_follows() {
    let (orders, billing) = (Upstream::ok("orders"), Upstream::ok("billing"));
    let proxy = Fixture::new(&[Instance::new("o1", orders.addr), Instance::new("b1", billing.addr).service("billing")]);
    for (line, host, path) in [
        ("GET http://orders/p?q=1 HTTP/1.1", "orders", "/p?q=1"),
        ("GET http://orders/p?q=1 HTTP/1.1", "billing", "/p?q=1"),
        ("GET HTTP://orders HTTP/1.1", "orders", "/"),
    ] {
        assert_eq!(proxy.ask(get(line, &[&format!("Host: {host}")])).text(), "orders");
        let seen = orders.seen().pop().unwrap();
        assert_eq!(seen.line(), format!("GET {path} HTTP/1.1"));
        assert_eq!(seen.values("host"), ["orders"]);
    }
    for line in ["GET ftp://orders/ HTTP/1.1", "GET * HTTP/1.1", "GET products HTTP/1.1", "GET /a#b HTTP/1.1"] {
        assert_eq!(proxy.ask(get(line, &["Host: orders"])).status, 400, "{line}");
    }
    assert_eq!((orders.seen().len(), billing.seen().len()), (3, 0));
}

#[test]
fn a_question_to_the_whole_service_is_its_instances_to_answer() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::one(up.addr);
    assert_eq!(proxy.client().ask(get("OPTIONS * HTTP/1.1", &["Host: orders"])).status, 200);
    assert_eq!(up.only().line(), "OPTIONS * HTTP/1.1");
}

#[test]
fn a_dedicated_port_is_for_one_service() {
    let up = Upstream::ok("hi");
    let service = ServiceName::new("orders").unwrap();
    let name = service.clone();
    let proxy = Fixture::with(&[Instance::new("o1", up.addr)], &[], move |config| {
        config.proxy.ports.insert(name, "127.0.0.1:0".parse().unwrap());
        config.proxy.workers = 2;
    });
    let port = proxy.running.as_ref().unwrap().ports()[&service];
    for _ in 0..8 {
        assert_eq!(Raw::connect(port).ask("GET / HTTP/1.1\r\nHost: anything:1\r\n\r\n").status, 200);
    }
    assert_eq!(Raw::connect(port).ask("GET / HTTP/1.0\r\n\r\n").status, 200);
    assert_eq!(up.seen().pop().unwrap().values("host"), ["orders"]);
}

#[test]
fn c35_conflicting_lengths_are_refused_and_nothing_is_smuggled() {
    let up = Upstream::ok("hi");
    let proxy = Fixture::one(up.addr);
    for lines in [
        "Content-Length: 13\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 13",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5, 5",
        "Content-Length: +5",
        "Content-Length: 0x5",
        "Content-Length : 5",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    ] {
        let mut client = proxy.client();
        client.send(format!(
            "POST /a HTTP/1.1\r\nHost: orders\r\n{lines}\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\nHost: orders\r\n\r\n"
        ));
        assert_eq!(client.response(false).status, 400, "{lines}");
        let (rest, end) = client.drain();
        assert!(rest.is_empty() && end != End::Open, "{lines}: {rest:?} {end:?}");
    }
    let old = "POST / HTTP/1.0\r\nHost: orders\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert_eq!(proxy.ask(old).status, 400);
    assert!(up.seen().is_empty(), "{:#?}", up.seen());
    for size in ["FFFFFFFFFFFFFFFF1", "5x"] {
        let head = "POST /a HTTP/1.1\r\nHost: orders\r\nTransfer-Encoding: chunked\r\n\r\n";
        let response = proxy.ask(format!("{head}{size}\r\nhello\r\n0\r\n\r\nGET /x HTTP/1.1\r\nHost: orders\r\n\r\n"));
        assert_eq!(response.status, 400, "{size}");
    }
    assert!(up.seen().iter().all(|seen| !seen.head.contains("/x")));
}

#[test]
fn c39_framing_goes_through_as_it_came() {
    let up = Upstream::start(|seen, _| {
        vec![match seen.line() {
            "GET /chunked HTTP/1.1" => {
                Act::send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
            }
            "GET /long HTTP/1.1" => {
                Act::send(format!("HTTP/1.1 200 OK\r\ncontent-length: 205844\r\n\r\n{}", "x".repeat(205_844)))
            }
            _ => Act::ok("ok"),
        }]
    });
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.client();
    client.ask("GET / HTTP/1.1\r\nHost: orders\r\n\r\n");
    client.ask("POST / HTTP/1.1\r\nHost: orders\r\nContent-Length: 0\r\n\r\n");
    client.ask("DELETE / HTTP/1.1\r\nHost: orders\r\nContent-Length: 0\r\n\r\n");
    client.ask("POST / HTTP/1.1\r\nHost: orders\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    let seen = up.seen();
    let framing = |at: usize| (seen[at].values("content-length"), seen[at].values("transfer-encoding"));
    assert_eq!(framing(0), (vec![], vec![]));
    assert_eq!(framing(1), (vec!["0"], vec![]));
    assert_eq!(framing(2), (vec!["0"], vec![]));
    assert_eq!(framing(3), (vec![], vec!["chunked"]));
    assert_eq!(seen[3].body, b"abc");
    let long = client.ask("GET /long HTTP/1.1\r\nHost: orders\r\n\r\n");
    assert_eq!((long.header("content-length"), long.body.len()), (Some("205844"), 205_844));
    let chunked = client.ask("GET /chunked HTTP/1.1\r\nHost: orders\r\n\r\n");
    assert_eq!((chunked.header("transfer-encoding"), chunked.text().as_str()), (Some("chunked"), "hello"));
    // Every request left a connection that the next one could use. Only the two POSTs, which must not be repeated, may have wanted a
    // newer one than was there, if this machine let it rest for more than the few milliseconds that are trusted unseen.
    let seen = up.seen();
    for at in [2, 4, 5] {
        assert!(seen[..at].iter().any(|before| before.connection == seen[at].connection), "{at}: {:?}", seen[at]);
    }
}

#[test]
fn c41_responses_without_a_body_end_at_their_head() {
    for (request, answer, length) in [
        ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n", Some("1000")),
        ("HEAD", "HTTP/1.1 404 Not Found\r\ntransfer-encoding: chunked\r\n\r\n", None),
        ("GET", "HTTP/1.1 304 Not Modified\r\ncontent-length: 1000\r\netag: \"a\"\r\n\r\n", Some("1000")),
        ("GET", "HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked\r\n\r\n", None),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n", None),
        ("GET", "HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n", None),
    ] {
        let up = Upstream::bytes(answer);
        let proxy = Fixture::one(up.addr);
        let mut client = proxy.client();
        for _ in 0..2 {
            let began = Instant::now();
            client.send(format!("{request} / HTTP/1.1\r\nHost: orders\r\n\r\n"));
            let response = client.response(true);
            assert!(began.elapsed() < Duration::from_millis(500), "{answer}");
            assert_eq!(response.header("content-length"), length, "{answer}");
            assert!(client.pending().is_empty(), "{answer}: {:?}", client.pending());
        }
        assert_eq!(up.connections(), 1, "{answer}");
    }
}

#[test]
fn c41_bytes_after_a_head_response_spoil_that_connection_only() {
    let up = Upstream::bytes("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello");
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.client();
    for _ in 0..3 {
        let response = client.ask("HEAD / HTTP/1.1\r\nHost: orders\r\n\r\n");
        assert_eq!((response.status, response.header("content-length")), (200, Some("5")));
    }
    assert_eq!(up.connections(), 3, "a connection with bytes left over is never used again");
}

#[test]
fn c66_hop_by_hop_headers_go_both_ways() {
    let up = Upstream::bytes(
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nConnection: X-Up\r\nX-Up: 1\r\nKeep-Alive: timeout=5\r\n\
         x-lanemesh-instance: evil\r\nx-fine: 1\r\n\r\nok",
    );
    let proxy = Fixture::one(up.addr);
    let response = proxy.ask(get(
        "POST / HTTP/1.1",
        &[
            "Host: orders",
            "Connection: close, X-Secret, x-user-id",
            "X-Secret: 1",
            "x-user-id: u1",
            "Keep-Alive: timeout=5",
            "Proxy-Authorization: x",
            "Proxy-Connection: keep-alive",
            "TE: gzip",
            "Upgrade: websocket",
            "x-lanemesh-version: forged",
            "x_lanemesh_lane: forged",
            "x-lane: canary",
            "Content-Length: 2",
            "",
            "hi",
        ],
    ));
    let seen = up.only();
    for gone in [
        "connection",
        "x-secret",
        "x-user-id",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "upgrade",
        "x_lanemesh_lane",
        "x-lane",
    ] {
        assert!(seen.values(gone).is_empty(), "{gone}: {}", seen.head);
    }
    assert_eq!(seen.values("host"), ["orders"]);
    assert_eq!(seen.values("content-length"), ["2"]);
    assert_eq!(seen.values("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!((seen.values("x-lanemesh-version"), seen.values("x-lanemesh-lane")), (vec!["v1"], vec!["stable"]));
    assert_eq!(response.header("x-up"), None);
    assert_eq!(response.header("keep-alive"), None);
    assert_eq!((response.header("x-lanemesh-instance"), response.header("x-fine")), (Some("o1"), Some("1")));
    for name in ["Host", "Content-Length", "X-Lane", "x-lanemesh-lane"] {
        let response = proxy.ask(get("GET / HTTP/1.1", &["Host: orders", &format!("Connection: {name}")]));
        assert_eq!(response.header("x-lanemesh-error"), Some("bad_connection_header"), "{name}");
    }
    assert_eq!(up.seen().len(), 1);
}

#[test]
fn c42_an_upgrade_may_be_answered_as_an_ordinary_request_and_an_unasked_101_is_502() {
    let up = Upstream::start(|seen, _| {
        let switch = seen.line().contains("/switch");
        vec![if switch { Act::send("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n") } else { Act::ok("ok") }]
    });
    let proxy = Fixture::one(up.addr);
    let headers = ["Host: orders", "Connection: keep-alive, UPGRADE", "Upgrade: WebSocket"];
    assert_eq!(proxy.ask(get("GET / HTTP/1.1", &headers)).status, 200);
    let response = proxy.ask(get("GET /switch HTTP/1.1", &headers));
    assert_eq!((response.status, response.header("x-lanemesh-error")), (502, Some("bad_upstream_response")));
}

#[test]
fn an_upgrade_to_http2_is_answered_over_http1() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::one(up.addr);
    let upgrade =
        ["Host: orders", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"];
    assert_eq!(proxy.ask(get("GET / HTTP/1.1", &upgrade)).status, 200);
    let seen = up.only();
    assert!(seen.values("upgrade").is_empty() && seen.values("http2-settings").is_empty(), "{}", seen.head);
}

#[test]
fn what_cannot_be_parsed_is_400() {
    let proxy = Fixture::one(Upstream::refusing());
    for request in [
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\n folded: 1\r\n\r\n",
        "\x16\x03\x01\x02\0\x01\0\x01\x7c\x03\x03\r\n\r\n",
        "G\0T / HTTP/1.1\r\n\r\n",
    ] {
        let mut client = proxy.client();
        client.send(request);
        let response = client.response(false);
        assert_eq!((response.status, response.header("x-lanemesh-error")), (400, Some("bad_syntax")), "{request:?}");
        assert!(response.text().contains("TLS") && response.header("proxy-status").is_some());
        assert_ne!(client.drain().1, End::Open);
    }
}

#[test]
fn c59_trailers_reach_a_client_that_takes_them() {
    let up = Upstream::bytes(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n",
    );
    let proxy = Fixture::one(up.addr);
    for (te, wanted) in [("TE: trailers, deflate\r\nConnection: TE\r\n", true), ("TE: gzip\r\n", false)] {
        let mut client = proxy.client();
        client.send(format!("GET / HTTP/1.1\r\nHost: orders\r\n{te}\r\n"));
        client.until("end", |bytes| find(bytes, b"\r\n0\r\n").is_some() && bytes.ends_with(b"\r\n\r\n"));
        assert_eq!(find(client.pending(), b"x-sum: 7").is_some(), wanted, "{te}");
        let seen = up.seen().pop().unwrap();
        assert_eq!(seen.values("te"), if wanted { vec!["trailers"] } else { vec![] });
    }
}

#[test]
fn c62_paths_are_not_touched() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::one(up.addr);
    for path in ["/a/../b", "/a/%2e%2e/b", "//a", "/a%2Fb", "/a%2fb", "/a;v=1/b", "/a?x=/../y", "/%zz", "/%00", "/a?"] {
        assert_eq!(proxy.ask(get(&format!("GET {path} HTTP/1.1"), &["Host: orders"])).status, 200, "{path}");
        assert_eq!(up.seen().pop().unwrap().line(), format!("GET {path} HTTP/1.1"));
    }
}

#[test]
fn c47_a_half_closed_client_gets_its_answer() {
    let up = Upstream::start(|_, _| vec![Act::Pause(Duration::from_millis(700)), Act::ok("late")]);
    let proxy = Fixture::one(up.addr);
    for request in [
        "POST / HTTP/1.1\r\nHost: orders\r\nContent-Length: 2\r\n\r\nhi",
        "GET / HTTP/1.1\r\nHost: orders\r\nConnection: close\r\n\r\n",
    ] {
        let mut client = proxy.client();
        client.send(request).half_close();
        assert_eq!(client.response(false).text(), "late");
        assert_eq!(client.drain(), (vec![], End::Fin));
    }
}

#[test]
fn c47_a_reset_client_is_noticed_within_a_second_and_blames_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Fixture::one(listener.local_addr().unwrap());
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: orders\r\nContent-Length: 2\r\n\r\nhi");
    let (mut stream, _) = listener.accept().unwrap();
    let mut bytes = [0; 4096];
    std::io::Read::read(&mut stream, &mut bytes).unwrap();
    client.reset();
    let began = Instant::now();
    while std::io::Read::read(&mut stream, &mut bytes).is_ok_and(|n| n > 0) {}
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    let log = proxy.access_log();
    assert_eq!((&log[0]["error"], &log[0]["status"]), (&"client_aborted".into(), &serde_json::Value::Null));
}

#[test]
fn c50_http_1_0_clients() {
    let up = Upstream::bytes("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.client();
    client.send("GET / HTTP/1.0\r\nHost: orders\r\n\r\n");
    let response = client.response(false);
    assert_eq!((response.header("transfer-encoding"), response.text().as_str()), (None, "hello"));
    let up = Upstream::ok("ok");
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.client();
    for _ in 0..3 {
        let response = client.ask("GET / HTTP/1.0\r\nHost: orders\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!((response.text().as_str(), response.header("connection")), ("ok", Some("keep-alive")));
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let up = Upstream::start(|seen, _| vec![Act::ok(seen.line())]);
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.client();
    let requests: String = (0..20).map(|n| format!("GET /{n} HTTP/1.1\r\nHost: orders\r\n\r\n")).collect();
    client.send(requests);
    for n in 0..20 {
        assert_eq!(client.response(false).text(), format!("GET /{n} HTTP/1.1"));
    }
}

#[test]
fn large_bodies_stream_both_ways_whole() {
    let body: Vec<u8> = (0..8_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let up = Upstream::start(|seen, _| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", seen.body.len());
        vec![Act::send(head), Act::Send(seen.body.clone())]
    });
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.client();
    let mut writer = client.writer();
    let sent = body.clone();
    let sender = thread::spawn(move || {
        let head = format!("PUT / HTTP/1.1\r\nHost: orders\r\nContent-Length: {}\r\n\r\n", sent.len());
        writer.write_all(head.as_bytes()).unwrap();
        writer.write_all(&sent).unwrap();
    });
    let response = client.response(false);
    sender.join().unwrap();
    assert_eq!(up.only().body, body);
    assert_eq!(response.body, body);
}

#[test]
fn a_client_that_does_not_read_stops_the_upstream() {
    let up = Upstream::start(|_, _| {
        let mut acts = vec![Act::send("HTTP/1.1 200 OK\r\ncontent-length: 104857600\r\n\r\n")];
        acts.extend((0..100).map(|_| Act::Send(vec![b'x'; 1 << 20])));
        acts.push(Act::Close);
        acts
    });
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: orders\r\n\r\n").until("head", |bytes| find(bytes, b"\r\n\r\n").is_some());
    thread::sleep(Duration::from_millis(300));
    // Socket buffers on two hops hold some MiB; what matters is that it stands still far from the end.
    assert_eq!(proxy.running.as_ref().unwrap().in_flight(), 1);
    drop(client);
    eventually("the request ends with its client", || proxy.running.as_ref().unwrap().in_flight() == 0);
    let bytes = proxy.access_log()[0]["bytes"].as_u64().unwrap();
    assert!(bytes < 50 << 20, "{bytes} bytes were taken for a client that read none");
}

#[test]
fn an_early_answer_reaches_a_client_that_is_still_sending() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Fixture::one(listener.local_addr().unwrap());
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: orders\r\nContent-Length: 1000000\r\n\r\nfirst bytes");
    let (mut stream, _) = listener.accept().unwrap();
    std::io::Read::read(&mut stream, &mut [0; 4096]).unwrap();
    stream.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno").unwrap();
    let response = client.response(false);
    assert_eq!((response.status, response.text().as_str()), (413, "no"));
}

#[test]
fn c37_expect_is_the_instances_to_answer() {
    let ask = "PUT /f HTTP/1.1\r\nHost: orders\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    let up = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Fixture::one(listener.local_addr().unwrap());
        let mut client = proxy.client();
        client.send(ask);
        let (stream, _) = listener.accept().unwrap();
        let mut upstream = Raw::from_stream(stream);
        upstream.until("request head", |bytes| find(bytes, b"\r\n\r\n").is_some());
        let head = String::from_utf8_lossy(upstream.pending()).to_lowercase();
        assert!(head.contains("expect: 100-continue") && head.ends_with("\r\n\r\n"), "{head}");
        (proxy, client, upstream)
    };
    // (i) The client gets its 100 after the instance gave it, not before.
    let (_proxy, mut client, mut upstream) = up();
    let (early, end) = client.patience(Duration::from_millis(200)).drain();
    assert_eq!((early, end), (vec![], End::Open));
    client.patience(Duration::from_secs(5));
    upstream.send("HTTP/1.1 100 Continue\r\n\r\n");
    client.until("100", |bytes| bytes.starts_with(b"HTTP/1.1 100"));
    client.send("hello");
    upstream.until("body", |bytes| bytes.ends_with(b"\r\n\r\nhello"));
    upstream.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    assert_eq!(client.response(false).text(), "ok");
    // (ii) A refusal reaches the client, and no body was invited.
    let (_proxy, mut client, mut upstream) = up();
    upstream.send("HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\nno");
    client.until("final answer first", |bytes| bytes.starts_with(b"HTTP/1.1 401"));
    assert_eq!(client.response(false).status, 401);
    // (iii) Silence: after a second the body is asked for all the same.
    let (_proxy, mut client, mut upstream) = up();
    client.until("100", |bytes| bytes.starts_with(b"HTTP/1.1 100"));
    client.send("hello");
    upstream.until("body", |bytes| bytes.ends_with(b"\r\n\r\nhello"));
    upstream.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    assert_eq!(client.response(false).status, 200);
}

#[test]
fn a_bad_answer_is_502_and_says_so() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        "SSH-2.0-OpenSSH_9\r\n",
        "HTTP/1.1 200 OK\r\nbad header line\r\n\r\n",
    ] {
        let up = Upstream::start(move |_, _| vec![Act::send(answer), Act::Close]);
        let proxy = Fixture::one(up.addr);
        let response = proxy.ask("POST / HTTP/1.1\r\nHost: orders\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(
            (response.status, response.header("x-lanemesh-error")),
            (502, Some("bad_upstream_response")),
            "{answer}"
        );
        assert!(response.text().contains("o1 at 127.0.0.1"), "{}", response.text());
    }
}

/// C46: whoever gets nothing at all may take it for a connection that had gone idle, and send the request again.
#[test]
fn a_body_that_breaks_off_follows_its_head() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\nhello",
    ] {
        let up = Upstream::start(move |_, _| vec![Act::send(answer), Act::Close]);
        let proxy = Fixture::one(up.addr);
        for method in ["GET", "POST"] {
            let mut client = Raw::connect(proxy.addr());
            client.send(format!("{method} / HTTP/1.1\r\nHost: orders\r\nContent-Length: 0\r\n\r\n"));
            let (bytes, _) = client.drain();
            let text = String::from_utf8_lossy(&bytes);
            assert!(text.starts_with("HTTP/1.1 200"), "{method} {answer}: {text:?}");
            assert_eq!(text.contains("hello"), answer.contains("\r\nhello"), "{method} {answer}: {text:?}");
            assert!(!text.ends_with("0\r\n\r\n"), "the client must see that it is cut: {text:?}");
        }
    }
}

/// RFC 9112 7: a coding that nobody asked for cannot be passed on as something else. Two lengths: see `matrix`.
#[test]
fn a_response_is_never_framed_otherwise_than_it_came() {
    let chunks = "5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n";
    for coding in ["gzip, chunked", "gzip", "identity", "chunked\r\ntransfer-encoding: gzip"] {
        let answer = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: {coding}\r\n\r\n{chunks}");
        let up = Upstream::start(move |_, _| vec![Act::send(&answer), Act::Close]);
        let response = Fixture::one(up.addr).ask("GET / HTTP/1.1\r\nHost: orders\r\n\r\n");
        let told = (response.status, response.header("x-lanemesh-error"));
        assert_eq!(told, (502, Some("bad_upstream_response")), "{coding}");
    }
}

#[test]
fn a_reason_phrase_goes_through() {
    for line in ["200 Fine", "999 Odd", "299 "] {
        let up = Upstream::start(move |_, _| vec![Act::send(format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\n\r\n"))]);
        let proxy = Fixture::one(up.addr);
        let mut client = Raw::connect(proxy.addr());
        client.send("GET / HTTP/1.1\r\nHost: orders\r\nConnection: close\r\n\r\n");
        let (bytes, _) = client.drain();
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.lines().next(), Some(&*format!("HTTP/1.1 {line}")));
    }
}
