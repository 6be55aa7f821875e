//! A connection on which plain requests are followed by others: whoever serves it, not a byte is lost and nothing is told apart.

use std::{net::TcpListener, thread, time::Duration};

use crate::support::{
    fixture::Fixture,
    raw::{Raw, find},
    upstream::{Act, Upstream},
};

fn echo() -> Upstream {
    Upstream::start(|seen, _| {
        let body = String::from_utf8_lossy(&seen.body).into_owned();
        vec![Act::ok(&format!("{}|{body}", seen.line()))]
    })
}

const PLAIN: &str = "GET /plain HTTP/1.1\r\nHost: orders\r\n\r\n";

#[test]
fn one_burst_of_all_kinds_is_answered_in_order() {
    let up = echo();
    let proxy = Fixture::one(up.addr);
    let kinds = [
        (PLAIN.to_owned(), "GET /plain HTTP/1.1|"),
        (
            "POST /body HTTP/1.1\r\nHost: orders\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
            "POST /body HTTP/1.1|hello",
        ),
        (PLAIN.to_owned(), "GET /plain HTTP/1.1|"),
        (
            "PUT /chunks HTTP/1.1\r\nHost: orders\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
                .to_owned(),
            "PUT /chunks HTTP/1.1|abcde",
        ),
        (PLAIN.to_owned(), "GET /plain HTTP/1.1|"),
        ("GET http://orders/absolute HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), "GET /absolute HTTP/1.1|"),
        (PLAIN.to_owned(), "GET /plain HTTP/1.1|"),
    ];
    let all: String = kinds.iter().map(|(request, _)| request.as_str()).collect();
    for piece in [all.len(), 7, 1] {
        let mut client = proxy.client();
        let mut writer = client.writer();
        let bytes = all.clone().into_bytes();
        let sender = thread::spawn(move || {
            for part in bytes.chunks(piece) {
                std::io::Write::write_all(&mut writer, part).unwrap();
            }
        });
        for (_, expected) in &kinds {
            assert_eq!(client.response(false).text(), *expected, "in pieces of {piece}");
        }
        sender.join().unwrap();
    }
}

#[test]
fn a_fault_behind_plain_requests_is_refused_and_they_are_answered() {
    let up = echo();
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.client();
    client.send(format!(
        "{PLAIN}POST / HTTP/1.1\r\nHost: orders\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab{PLAIN}"
    ));
    assert_eq!(client.response(false).text(), "GET /plain HTTP/1.1|");
    let refused = client.response(false);
    assert_eq!((refused.status, refused.header("x-lanemesh-error")), (400, Some("bad_framing")));
    let (rest, _) = client.drain();
    assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
    assert_eq!(up.seen().len(), 1);
}

#[test]
fn what_cannot_be_parsed_is_explained_whatever_was_answered_before() {
    let up = Upstream::start(|_, _| vec![Act::send("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")]);
    let absolute = "GET http://orders/ HTTP/1.1\r\nHost: orders\r\n\r\n";
    for (kind, reason) in [
        ("GARBAGE\r\n\r\n", "bad_syntax"),
        ("GET / HTTP/1.1\r\nHost: orders\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "bad_framing"),
    ] {
        let proxy = Fixture::one(up.addr);
        let mut client = proxy.client();
        // Of the application, and by the way that all others take.
        assert_eq!(client.ask(absolute).header("x-lanemesh-error"), None);
        let refused = client.ask(kind);
        assert_eq!((refused.status, refused.header("x-lanemesh-error")), (400, Some(reason)));
        drop(client);
        assert!(proxy.access_log().iter().any(|line| line["error"] == reason), "{reason} is in the access log");
    }
}

#[test]
fn an_upgrade_behind_plain_requests_is_a_tunnel() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Fixture::one(listener.local_addr().unwrap());
    let mut client = proxy.client();
    let ask = "GET /ws HTTP/1.1\r\nHost: orders\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    client.send(format!("{PLAIN}{ask}early"));
    let mut instance = Raw::from_stream(listener.accept().unwrap().0);
    instance.until("the plain request", |bytes| find(bytes, b"\r\n\r\n").is_some());
    instance.take();
    instance.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!(client.response(false).text(), "hi");
    // On the same connection: the plain one is taken over.
    instance.until("the upgrade", |bytes| find(bytes, b"\r\n\r\n").is_some());
    instance.take();
    instance.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nfirst");
    assert_eq!(client.response(false).status, 101);
    client.until("the instance's bytes", |bytes| bytes == b"first");
    instance.until("the client's early bytes", |bytes| bytes == b"early");
}

#[test]
fn an_answer_in_single_bytes_is_whole_and_its_connection_is_kept() {
    let answers = [
        "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nX-Sum: 1\r\n\r\n",
    ];
    let up = Upstream::start(move |_, at| {
        let bytes = answers[at % answers.len()].bytes();
        bytes.flat_map(|byte| [Act::Send(vec![byte]), Act::Pause(Duration::from_micros(200))]).collect()
    });
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.client();
    for _ in 0..4 {
        assert_eq!(client.ask(PLAIN).text(), "hello world");
    }
    assert!(up.connections() <= 2, "hyper may not be done with one when the next request comes");
}

#[test]
fn an_answer_given_before_the_request_was_read_reaches_the_client() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Fixture::one(listener.local_addr().unwrap());
    let answering = thread::spawn(move || {
        let mut instance = Raw::from_stream(listener.accept().unwrap().0);
        instance.until("a first byte", |bytes| !bytes.is_empty());
        instance.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno");
        instance.half_close();
        instance.drain();
    });
    let mut client = proxy.client();
    let body = "x".repeat(60_000);
    let head = format!("POST / HTTP/1.1\r\nHost: orders\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let response = client.ask(head);
    assert_eq!((response.status, response.text().as_str()), (413, "no"));
    drop(client);
    answering.join().unwrap();
}
