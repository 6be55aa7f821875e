//! Odd messages that proxies disagree about, each with the one right end (REQUIREMENTS P2).

use crate::support::{Act, End, Fixture, Instance, Upstream, raw::find};

const GET: &str = "GET / HTTP/1.1\r\nHost: orders\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: orders\r\nContent-Length: 0\r\n\r\n";

/// A proxy with the limits that it has unless told otherwise.
fn defaults(addr: std::net::SocketAddr) -> Fixture {
    let config = lanemesh::config::resolve("none", "", &Default::default(), &Default::default()).unwrap();
    Fixture::with(&[Instance::new("o1", addr)], &[], |fixture| {
        fixture.proxy.max_head_bytes = config.proxy.max_head_bytes;
        fixture.proxy.max_headers = config.proxy.max_headers;
    })
}

#[test]
fn a_folded_header_is_refused_and_never_joined() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::one(up.addr);
    for fold in ["x-a: 1\r\n 2\r\n", "x-a: 1\r\n\t2\r\n", "x-a:\r\n Transfer-Encoding: chunked\r\n"] {
        let response = proxy.ask(format!("GET / HTTP/1.1\r\nHost: orders\r\n{fold}\r\n"));
        assert_eq!((response.status, response.header("x-lanemesh-error")), (400, Some("bad_syntax")), "{fold:?}");
    }
    assert!(up.seen().is_empty());
}

#[test]
fn bare_line_feeds_are_taken_and_written_as_line_ends() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::one(up.addr);
    assert_eq!(proxy.ask("POST /a HTTP/1.1\nHost: orders\nx-a: 1\nContent-Length: 2\n\nhi").status, 200);
    let seen = up.only();
    assert_eq!((seen.values("x-a"), seen.body.as_slice()), (vec!["1"], b"hi".as_slice()));
    assert!(!seen.head.replace("\r\n", "").contains('\n'), "{:?}", seen.head);
}

#[test]
fn c35_odd_chunk_sizes_frame_one_request_or_none() {
    for (size, fine) in [
        ("5", true),
        ("0005", true),
        ("5;name=value", true),
        ("5 ", true),
        (" 5", false),
        ("+5", false),
        ("-5", false),
        ("0x5", false),
        ("", false),
        ("5,5", false),
        ("FFFFFFFFFFFFFFFF1", false),
    ] {
        let up = Upstream::ok("ok");
        let proxy = Fixture::one(up.addr);
        let mut client = proxy.client();
        client.send(format!(
            "POST /a HTTP/1.1\r\nHost: orders\r\nTransfer-Encoding: chunked\r\n\r\n{size}\r\nhello\r\n0\r\n\r\n\
             GET /x HTTP/1.1\r\nHost: orders\r\n\r\n"
        ));
        let first = client.response(false).status;
        let seen = up.seen();
        if fine {
            assert_eq!((first, client.response(false).status), (200, 200), "{size:?}");
            assert_eq!(seen[0].body, b"hello", "{size:?}");
        } else {
            assert_eq!(first, 400, "{size:?}");
            assert_ne!(client.drain().1, End::Open, "{size:?}");
        }
        assert!(seen.iter().all(|seen| fine || !seen.line().contains("/x")), "{size:?}");
    }
}

#[test]
fn a_head_of_32_kib_passes_and_one_of_100_kib_is_431() {
    let up = Upstream::ok("ok");
    let proxy = defaults(up.addr);
    let long = |size: usize| format!("GET / HTTP/1.1\r\nHost: orders\r\nx-long: {}\r\n\r\n", "a".repeat(size));
    let many = |count: usize| format!("GET / HTTP/1.1\r\nHost: orders\r\n{}\r\n", "x-a: 1\r\n".repeat(count));
    assert_eq!(proxy.ask(long(32 * 1024)).status, 200);
    assert_eq!(up.only().values("x-long")[0].len(), 32 * 1024);
    assert_eq!(proxy.ask(many(127)).status, 200);
    for request in [long(100 * 1024), many(128)] {
        let response = proxy.ask(request);
        assert_eq!((response.status, response.header("x-lanemesh-error")), (431, Some("head_too_large")));
    }
    assert_eq!(proxy.ask(format!("GET /{} HTTP/1.1\r\nHost: orders\r\n\r\n", "a".repeat(60_000))).status, 200);
    assert_eq!(up.seen().len(), 3);
}

#[test]
fn c46_a_large_response_head_passes_and_one_beyond_the_limit_is_502() {
    let up = Upstream::start(|seen, _| {
        let size = if seen.line().contains("/huge") { 600 * 1024 } else { 64 * 1024 };
        vec![Act::send(format!("HTTP/1.1 200 OK\r\nx-long: {}\r\ncontent-length: 2\r\n\r\nok", "a".repeat(size)))]
    });
    let proxy = Fixture::one(up.addr);
    let response = proxy.ask(GET);
    assert_eq!((response.status, response.header("x-long").map(str::len)), (200, Some(64 * 1024)));
    let response = proxy.ask(POST.replace("POST / ", "POST /huge "));
    assert_eq!((response.status, response.header("x-lanemesh-error")), (502, Some("bad_upstream_response")));
}

#[test]
fn a_response_framed_twice_is_502_and_its_connection_is_not_used_again() {
    let answers = [
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        "HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\nhello",
    ];
    for answer in answers {
        let up = Upstream::bytes(answer);
        let proxy = Fixture::one(up.addr);
        let mut client = proxy.client();
        for _ in 0..2 {
            let response = client.ask(POST);
            let told = (response.status, response.header("x-lanemesh-error"));
            assert_eq!(told, (502, Some("bad_upstream_response")), "{answer}");
        }
        assert_eq!(up.connections(), 2, "{answer}");
    }
    // A safe request goes to an instance that makes sense.
    let (bad, good) = (Upstream::bytes(answers[0]), Upstream::ok("good"));
    let proxy = Fixture::new(&[Instance::new("bad", bad.addr), Instance::new("good", good.addr)]);
    for n in 0..8 {
        assert_eq!(proxy.get(&format!("u{n}")).text(), "good");
    }
}

#[test]
fn the_same_length_twice_is_passed_on_once() {
    let up = Upstream::bytes("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello");
    let proxy = Fixture::one(up.addr);
    let response = proxy.ask(POST);
    assert_eq!(
        (response.status, response.header("content-length"), response.text().as_str()),
        (200, Some("5"), "hello")
    );
}

#[test]
fn a_body_that_ends_with_the_connection_is_framed_for_the_client() {
    let up = Upstream::start(|_, _| vec![Act::send("HTTP/1.1 200 OK\r\n\r\nuntil I close"), Act::Close]);
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.client();
    for _ in 0..2 {
        let response = client.ask(POST);
        assert_eq!(response.header("transfer-encoding"), Some("chunked"));
        assert_eq!(response.text(), "until I close");
    }
    let up = Upstream::start(|_, _| vec![Act::send("HTTP/1.0 200 OK\r\n\r\nfrom the old days"), Act::Close]);
    assert_eq!(Fixture::one(up.addr).ask(GET).text(), "from the old days");
}

#[test]
fn a_chunked_response_that_is_cut_is_not_made_whole() {
    let cut = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
    let up = Upstream::start(move |_, _| vec![Act::send(cut), Act::Close]);
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.client();
    client.send(POST);
    let (bytes, end) = client.drain();
    assert!(find(&bytes, b"hello").is_some() && !bytes.ends_with(b"0\r\n\r\n") && end != End::Open, "{end:?}");
}

#[test]
fn request_trailers_are_passed_on() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Fixture::one(listener.local_addr().unwrap());
    let mut client = proxy.client();
    client.send(
        "PUT / HTTP/1.1\r\nHost: orders\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n\
         2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n",
    );
    let mut instance = crate::support::Raw::from_stream(listener.accept().unwrap().0);
    instance.until("trailers", |bytes| bytes.ends_with(b"0\r\nx-sum: 7\r\n\r\n"));
    instance.send("HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(client.response(false).status, 204);
}

#[test]
fn c62_what_no_path_may_have_is_refused_and_the_rest_untouched() {
    let up = Upstream::ok("ok");
    let proxy = Fixture::one(up.addr);
    for path in ["/a\\b", "/a//b", "/a;v=1?", "/?", "/a?b=c?d", "/%E4%B8%AD", "/a|b", "/a'b(c)", "/a?x=[1]"] {
        let response = proxy.ask(format!("GET {path} HTTP/1.1\r\nHost: orders\r\n\r\n"));
        match response.status {
            200 => assert_eq!(up.seen().pop().unwrap().line(), format!("GET {path} HTTP/1.1")),
            status => assert_eq!((status, response.header("x-lanemesh-error")), (400, Some("bad_syntax")), "{path}"),
        }
    }
    for path in ["/a#frag", "/a b", "/a\u{1}b"] {
        assert_eq!(proxy.ask(format!("GET {path} HTTP/1.1\r\nHost: orders\r\n\r\n")).status, 400, "{path}");
    }
}

#[test]
fn c73_a_post_whose_head_was_taken_is_not_sent_again() {
    // (vi): reset after the head, before the body.
    let bad = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let good = Upstream::ok("ok");
    let instances = [Instance::new("bad", bad.local_addr().unwrap()), Instance::new("good", good.addr)];
    let proxy = Fixture::new(&instances);
    let key = (0..).map(|n| format!("u{n}")).find(|key| proxy.order(key)[0] == "bad").unwrap();
    let mut client = proxy.client();
    client.send(format!("POST / HTTP/1.1\r\nHost: orders\r\nx-user-id: {key}\r\nContent-Length: 200000\r\n\r\nabc"));
    let mut instance = crate::support::Raw::from_stream(bad.accept().unwrap().0);
    instance.until("head", |bytes| find(bytes, b"\r\n\r\n").is_some());
    instance.reset();
    let response = client.response(false);
    assert_eq!((response.status, response.header("x-lanemesh-error")), (502, Some("upstream_reset_before_response")));
    assert!(good.seen().is_empty());
}

#[test]
fn interim_responses_are_passed_on_in_order() {
    let hints = "HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\nx-lanemesh-lane: forged\r\n\r\n";
    let up = Upstream::start(move |seen, _| {
        let again = Act::send("HTTP/1.1 102 Processing\r\n\r\n");
        vec![Act::send(hints), again, Act::Pause(std::time::Duration::from_millis(50)), Act::ok(seen.line())]
    });
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.client();
    for n in 0..3 {
        client.send(format!("GET /{n} HTTP/1.1\r\nHost: orders\r\n\r\n"));
        let early = client.head_only();
        assert_eq!((early.status, early.header("link")), (103, Some("</style.css>; rel=preload")));
        assert_eq!(early.header("x-lanemesh-lane"), None);
        assert_eq!(client.head_only().status, 102);
        assert_eq!(client.response(false).text(), format!("GET /{n} HTTP/1.1"));
    }
    let mut old = proxy.client();
    old.send("GET /old HTTP/1.0\r\nHost: orders\r\n\r\n");
    let response = old.head_only();
    assert_eq!(response.status, 200, "HTTP/1.0 knows none");
    // Pipelined ones come each before its own response.
    let mut eager = proxy.client();
    eager.send("GET /a HTTP/1.1\r\nHost: orders\r\n\r\nGET /b HTTP/1.1\r\nHost: orders\r\n\r\n");
    for path in ["/a", "/b"] {
        assert_eq!((eager.head_only().status, eager.head_only().status), (103, 102));
        assert_eq!(eager.response(false).text(), format!("GET {path} HTTP/1.1"));
    }
}

#[test]
fn c37_an_interim_response_does_not_open_the_body() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Fixture::one(listener.local_addr().unwrap());
    let mut client = proxy.client();
    client.send("PUT /f HTTP/1.1\r\nHost: orders\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    let mut instance = crate::support::Raw::from_stream(listener.accept().unwrap().0);
    instance.until("head", |bytes| find(bytes, b"\r\n\r\n").is_some());
    instance.send("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n");
    assert_eq!(client.head_only().status, 103);
    instance.send("HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(client.head_only().status, 100);
    client.send("hello");
    instance.until("body", |bytes| bytes.ends_with(b"hello"));
    instance.send("HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(client.response(false).status, 201);
}
