//! Heads: what is plain, and that plain ones are written as the rules for all others have it.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use proptest::prelude::*;

use super::{
    super::{headers, target},
    request::{self, Limits, Parsed, Said},
    response::{self, Blame, Facts, Framing},
};

const LIMITS: Limits = Limits { head: 1_024, headers: 12, body: 100 };
const LANE: HeaderName = HeaderName::from_static("x-lane");

/// What a head becomes: the service, the head for an instance, what it said, bytes of body and head, whether it closes.
type Became = (String, String, Said, u64, usize, bool);

fn plain(bytes: &[u8], client: IpAddr) -> Parsed<Became> {
    request::parse(bytes, LIMITS, |head| {
        let mut out = Vec::new();
        let said = request::write(&head, &LANE, client, &mut out);
        let text = String::from_utf8_lossy(&out).into_owned();
        (head.host.as_str().to_owned(), text, said, head.length, head.size, head.closes)
    })
}

fn local(text: &str) -> Parsed<Became> {
    plain(text.as_bytes(), IpAddr::from([127, 0, 0, 1]))
}

#[test]
fn a_plain_head_is_written_anew_and_keeps_its_spelling() {
    let head = "POST /a?b=%20&c=[1] HTTP/1.1\r\nHOST: Orders:80\r\nX-User-Id:  u1 \r\nContent-Length: 3\r\n\
        Connection: Keep-Alive, close\r\nkeep-alive: 5\r\nX-Lane: canary\r\nX-LaneMesh-Lane: forged\r\nx_lanemesh_x: 1\r\n\
        x-forwarded-for: 10.0.0.1\r\nX-Lanemesh-Hops: 2\r\nx-lanemesh-attempt: 2\r\nx-request-timeout: 5s\r\n\r\nabc";
    let Parsed::Plain((service, out, said, length, size, closes)) = local(head) else { panic!("not plain") };
    assert_eq!((service.as_str(), length, size, closes), ("orders", 3, head.len() - 3, true));
    assert_eq!(said, Said { hops: 2, repeated: true });
    let expected = "POST /a?b=%20&c=[1] HTTP/1.1\r\nHOST: Orders:80\r\nX-User-Id: u1\r\nContent-Length: 3\r\n\
        x-forwarded-for: 10.0.0.1, 127.0.0.1\r\nx-forwarded-proto: http\r\nx-lanemesh-hops: 3\r\n";
    assert_eq!(out, expected);
}

#[test]
fn whatever_is_not_certainly_plain_is_left_to_others() {
    let with = |lines: &str| format!("GET / HTTP/1.1\r\nHost: orders\r\n{lines}\r\n");
    for head in [
        with("Transfer-Encoding: chunked\r\n"),
        with("transfer-encoding: identity\r\n"),
        with("Upgrade: websocket\r\nConnection: upgrade\r\n").replace("Connection: upgrade\r\n", ""),
        with("Connection: x-secret\r\n"),
        with("TE: trailers\r\n"),
        with("Expect: 100-continue\r\nContent-Length: 3\r\n"),
        with("Content-Length: 3\r\nContent-Length: 3\r\n"),
        with("Content-Length: 3, 3\r\n"),
        with("Content-Length: +3\r\n"),
        with("Content-Length: \r\n"),
        with("Content-Length: 99999999999999999999\r\n"),
        with("Content-Length: 101\r\n"),
        with("Host: orders\r\n"),
        with(" folded: 1\r\n"),
        with("a : 1\r\n"),
        with("a: \u{0}\r\n"),
        with("a\r\n"),
        with(&"a: 1\r\n".repeat(12)),
        with(&format!("a: {}\r\n", "x".repeat(1_024))),
        "GET / HTTP/1.1\r\n\r\n".into(),
        "GET / HTTP/1.1\r\nHost:\r\n\r\n".into(),
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n".into(),
        "GET / HTTP/1.0\r\nHost: orders\r\n\r\n".into(),
        "GET / HTTP/2.0\r\nHost: orders\r\n\r\n".into(),
        "GET http://orders/ HTTP/1.1\r\nHost: orders\r\n\r\n".into(),
        "GET /a#b HTTP/1.1\r\nHost: orders\r\n\r\n".into(),
        "GET /ä HTTP/1.1\r\nHost: orders\r\n\r\n".into(),
        "OPTIONS * HTTP/1.1\r\nHost: orders\r\n\r\n".into(),
        "CONNECT orders:80 HTTP/1.1\r\nHost: orders\r\n\r\n".into(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(),
        "\u{16}\u{3}\u{1}\u{2}".into(),
        format!("GET /{} HTTP/1.1", "x".repeat(1_100)),
    ] {
        assert_eq!(local(&head), Parsed::Unusual, "{head:?}");
    }
    let whole = with("Accept: */*\r\n");
    for end in 0..whole.len() {
        assert_eq!(local(&whole[..end]), Parsed::Partial, "{end}");
    }
}

fn facts(text: &str, head: bool) -> response::Parsed<Facts> {
    response::parse(text.as_bytes(), head, |head| head.facts)
}

#[test]
fn an_answer_has_one_length() {
    let answer = |lines: &str| format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
    for (lines, framing, persistent) in [
        ("Content-Length: 3\r\n", Framing::Length(3), true),
        ("Content-Length: 3\r\ncontent-length: 3\r\n", Framing::Length(3), true),
        ("Content-Length: 3\r\nConnection: close\r\n", Framing::Length(3), false),
        ("Transfer-Encoding: Chunked\r\n", Framing::Chunked, true),
        ("X-A: 1\r\n", Framing::Close, false),
    ] {
        let response::Parsed::Whole(facts) = facts(&answer(lines), false) else { panic!("{lines}") };
        assert_eq!((facts.framing, facts.persistent), (framing, persistent), "{lines}");
    }
    for (lines, blame) in [
        ("Content-Length: 3\r\nContent-Length: 4\r\n", Blame::Broken),
        ("Content-Length: 3, 3\r\n", Blame::Broken),
        ("Content-Length: -1\r\n", Blame::Broken),
        ("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", Blame::Broken),
        ("Transfer-Encoding: gzip, chunked\r\n", Blame::Unasked),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", Blame::Unasked),
    ] {
        assert!(matches!(facts(&answer(lines), false), response::Parsed::Bad(_, b) if b == blame), "{lines}");
    }
    for (text, head, framing) in [
        ("HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n", false, Framing::None),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", false, Framing::None),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", true, Framing::None),
        ("HTTP/1.0 200 OK\r\n\r\n", false, Framing::Close),
    ] {
        assert!(matches!(facts(text, head), response::Parsed::Whole(facts) if facts.framing == framing), "{text}");
    }
    for text in ["HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "SSH-2.0-x\r\n", "HTTP/1.1 2x0 OK\r\n\r\n"] {
        assert!(matches!(facts(text, false), response::Parsed::Bad(..)), "{text}");
    }
}

fn map(lines: &[(String, String)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in lines {
        map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
    }
    map
}

/// The lines of a written head, sorted; one header's in their order.
fn lines(text: &str) -> Vec<(String, String)> {
    let mut lines: Vec<_> = text
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    lines.sort_by(|a, b| a.0.cmp(&b.0));
    lines
}

fn of_map(map: &HeaderMap) -> Vec<(String, String)> {
    let mut lines: Vec<_> =
        map.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    lines.sort_by(|a, b| a.0.cmp(&b.0));
    lines
}

fn any_line() -> impl Strategy<Value = (String, String)> {
    let name = prop::sample::select(vec![
        "host",
        "Host",
        "Accept",
        "Cookie",
        "x-user-id",
        "X-Lane",
        "connection",
        "Keep-Alive",
        "Proxy-Connection",
        "proxy-authorization",
        "x-lanemesh-lane",
        "X_LaneMesh_Id",
        "x-lanemesh-hops",
        "X-Lanemesh-Attempt",
        "x-forwarded-for",
        "X-Forwarded-For",
        "x-forwarded-proto",
        "Date",
        "Trailer",
        "content-length",
        "Content-Length",
        "transfer-encoding",
        "te",
        "upgrade",
        "expect",
        "x-secret",
        "proxy-authentication-info",
        "proxy-authentication-infos",
    ]);
    let value = prop::sample::select(vec![
        "orders",
        "3",
        "0",
        "close",
        "keep-alive",
        "x-secret",
        "a, b",
        "1",
        "2",
        "chunked",
        "trailers",
        "u-1",
        "10.0.0.1",
        "5;q=1",
    ]);
    (name.prop_map(str::to_owned), value.prop_map(str::to_owned))
}

proptest! {
    #[test]
    fn plain_heads_are_cleaned_as_all_others_are(
        mut sent in prop::collection::vec(any_line(), 0..8),
        with_host in any::<bool>(),
        v6 in any::<bool>(),
    ) {
        if with_host {
            sent.insert(0, ("Host".into(), "orders".into()));
        }
        let client: IpAddr = if v6 { "2001:db8::1".parse().unwrap() } else { "127.0.0.1".parse().unwrap() };
        let text: String = sent.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let text = format!("GET /p?q=1 HTTP/1.1\r\n{text}\r\n");
        let Parsed::Plain((service, out, said, _, size, _)) = plain(text.as_bytes(), client) else { return Ok(()) };
        prop_assert_eq!(size, text.len());
        let (mut headers, mut uri) = (map(&sent), Uri::from_static("/p?q=1"));
        let wanted = target::resolve(&Method::GET, Version::HTTP_11, &mut uri, &mut headers, None).expect("plain is fine");
        prop_assert_eq!(wanted.as_str(), service.as_str());
        headers.remove("x-request-timeout");
        let cleaned = headers::clean_request(&mut headers, &LANE).expect("plain is fine");
        prop_assert_eq!((cleaned.hops, cleaned.repeated), (said.hops, said.repeated));
        headers::add_common(&mut headers, client, cleaned.hops);
        prop_assert_eq!(of_map(&headers), lines(&out));
    }

    #[test]
    fn plain_answers_are_cleaned_as_all_others_are(sent in prop::collection::vec(any_line(), 0..8)) {
        let text: String = sent.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let text = format!("HTTP/1.1 200 Fine\r\n{text}\r\n");
        let parsed = response::parse(text.as_bytes(), false, |head| {
            let mut out = Vec::new();
            response::write(&head, &mut out);
            (head.facts.framing, String::from_utf8_lossy(&out).into_owned())
        });
        let response::Parsed::Whole((framing, out)) = parsed else { return Ok(()) };
        prop_assert!(out.starts_with("HTTP/1.1 200 Fine\r\n"));
        let mut headers = map(&sent);
        headers::clean_response(&mut headers);
        // The framing is written anew, and trailers are dropped.
        for name in ["content-length", "trailer"] {
            headers.remove(name);
        }
        let mut left = lines(&out);
        left.retain(|(name, _)| name != "content-length" && name != "transfer-encoding");
        prop_assert_eq!(of_map(&headers), left);
        let told = match framing {
            Framing::Length(length) => format!("content-length: {length}\r\n"),
            _ => "transfer-encoding: chunked\r\n".to_owned(),
        };
        prop_assert!(out.ends_with(&told), "{}", out);
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = plain(&bytes, IpAddr::from([127, 0, 0, 1]));
        let _ = response::parse(&bytes, false, |head| response::write(&head, &mut Vec::new()));
    }
}
