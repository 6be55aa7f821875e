//! All header rules, in one place (RFC 9110 7.6.1; REQUIREMENTS P2, L4).
//!
//! Both ways: hop-by-hop headers are removed, those nominated by `Connection` as well, and so is everything that starts with
//! `x-lanemesh-` (also spelt with underscores, which some servers take for the same). Then the proxy adds its own, last, so that
//! nobody can remove or forge them. `Via` is not sent: some servers stop compressing when they see it; loops are found by
//! counting hops instead.

use std::net::{IpAddr, Ipv4Addr};

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{self, Entry},
};

use super::Reason;

pub(super) const X_ERROR: HeaderName = HeaderName::from_static("x-lanemesh-error");
pub(super) const X_LANE: HeaderName = HeaderName::from_static("x-lanemesh-lane");
pub(super) const X_VERSION: HeaderName = HeaderName::from_static("x-lanemesh-version");
pub(super) const X_INSTANCE: HeaderName = HeaderName::from_static("x-lanemesh-instance");
pub(super) const X_REASON: HeaderName = HeaderName::from_static("x-lanemesh-reason");
pub(super) const X_BUCKET: HeaderName = HeaderName::from_static("x-lanemesh-bucket");
pub(super) const X_ATTEMPTS: HeaderName = HeaderName::from_static("x-lanemesh-attempts");
pub(super) const X_ATTEMPT: HeaderName = HeaderName::from_static("x-lanemesh-attempt");
pub(super) const X_HOPS: HeaderName = HeaderName::from_static("x-lanemesh-hops");
pub(super) const X_REQUEST_TIMEOUT: HeaderName = HeaderName::from_static("x-request-timeout");
pub(super) const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Sidecars that a request may pass. Deep call chains count when applications copy all headers.
pub(super) const MAX_HOPS: u32 = 32;

/// Hop-by-hop whatever `Connection` says. `Transfer-Encoding` is among them: each side's framing is written anew. `Trailer` is
/// not: it describes the message.
///
/// Looked for by text, one pass over the few headers that there are: nine look-ups in a hash map of what is nearly never there
/// cost more than everything else that is done to a head.
fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
            | "proxy-authorization"
            | "proxy-authenticate"
            | "proxy-authentication-info"
    )
}

/// What a header is to the proxy, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing: it is passed on as it is.
    Other,
    Host,
    ContentLength,
    TransferEncoding,
    Connection,
    /// Hop-by-hop, and changes what the message is: `TE`, `Upgrade`.
    Changes,
    /// Any other hop-by-hop header.
    HopByHop,
    /// Of the mesh.
    Ours,
    Expect,
    ForwardedFor,
    ForwardedProto,
    RequestTimeout,
    Date,
    Trailer,
}

/// What a header with this name is, in whatever case. For heads whose lines are passed on without becoming a map: the same names as
/// in the rules below, found by length and first letter, since nearly every header is none of them.
pub(super) fn kind(name: &[u8]) -> Kind {
    let Some(first) = name.first() else { return Kind::Other };
    let (text, kind) = match (name.len(), first | 0x20) {
        (2, b't') => ("te", Kind::Changes),
        (4, b'h') => ("host", Kind::Host),
        (4, b'd') => ("date", Kind::Date),
        (6, b'e') => ("expect", Kind::Expect),
        (7, b'u') => ("upgrade", Kind::Changes),
        (7, b't') => ("trailer", Kind::Trailer),
        (10, b'c') => ("connection", Kind::Connection),
        (10, b'k') => ("keep-alive", Kind::HopByHop),
        (14, b'c') => ("content-length", Kind::ContentLength),
        (15, b'x') if name[2] | 0x20 == b'f' => ("x-forwarded-for", Kind::ForwardedFor),
        (16, b'p') => ("proxy-connection", Kind::HopByHop),
        (17, b't') => ("transfer-encoding", Kind::TransferEncoding),
        (17, b'x') if name[2] | 0x20 == b'f' => ("x-forwarded-proto", Kind::ForwardedProto),
        (17, b'x') if name[2] | 0x20 == b'r' => ("x-request-timeout", Kind::RequestTimeout),
        (18, b'p') => ("proxy-authenticate", Kind::HopByHop),
        (19, b'p') => ("proxy-authorization", Kind::HopByHop),
        (25, b'p') => ("proxy-authentication-info", Kind::HopByHop),
        (11.., b'x') if is_ours(name) => return Kind::Ours,
        _ => return Kind::Other,
    };
    if name.eq_ignore_ascii_case(text.as_bytes()) { kind } else { Kind::Other }
}

/// Where headers are added.
pub(super) trait Put {
    /// Adds one, in the place of any of that name.
    fn put(&mut self, name: &HeaderName, value: &HeaderValue);
}

impl Put for HeaderMap {
    fn put(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.insert(name, value.clone());
    }
}

/// A head as it goes over the wire, from which all of that name were taken before.
impl Put for Vec<u8> {
    fn put(&mut self, name: &HeaderName, value: &HeaderValue) {
        add_line(self, name.as_str().as_bytes(), value.as_bytes());
    }
}

/// Writes one header.
pub(super) fn add_line(head: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        head.extend_from_slice(part);
    }
}

/// Whether a token of `Connection` names no header.
pub(super) fn is_plain_token(token: &[u8]) -> bool {
    token.is_empty()
        || [b"close".as_slice(), b"keep-alive", b"te", b"upgrade"].iter().any(|t| token.eq_ignore_ascii_case(t))
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    headers.get_all(name).into_iter().flat_map(|value| value.as_bytes().split(|c| *c == b',')).map(<[u8]>::trim_ascii)
}

fn is_ours(name: &[u8]) -> bool {
    let is_dash = |at: usize| matches!(name[at], b'-' | b'_');
    name.len() >= 11
        && is_dash(1)
        && is_dash(10)
        && name[0] | 0x20 == b'x'
        && name[2..10].eq_ignore_ascii_case(b"lanemesh")
}

/// Removes what `Connection` nominates; refuses when `protected` holds one of the names.
fn strip_nominated(headers: &mut HeaderMap, protected: impl Fn(&HeaderName) -> bool) -> Result<(), Reason> {
    // Nearly always there is nothing beyond `close` and `keep-alive`: no allocation then.
    if tokens(headers, &header::CONNECTION).all(is_plain_token) {
        return Ok(());
    }
    let nominated: Vec<HeaderName> = tokens(headers, &header::CONNECTION)
        .filter(|token| !is_plain_token(token))
        .filter_map(|token| HeaderName::from_bytes(token).ok())
        .collect();
    if nominated.iter().any(protected) {
        return Err(Reason::BadConnectionHeader);
    }
    for name in &nominated {
        headers.remove(name);
    }
    Ok(())
}

/// Removes what is hop-by-hop, and what only the mesh itself may say.
fn strip(headers: &mut HeaderMap) {
    let goes = |name: &&HeaderName| is_hop_by_hop(name.as_str()) || is_ours(name.as_str().as_bytes());
    // Without one, nothing is allocated.
    let gone: Vec<HeaderName> = headers.keys().filter(goes).cloned().collect();
    for name in &gone {
        headers.remove(name);
    }
}

/// What the request's headers said before they were cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cleaned {
    /// Sidecars that it has passed.
    pub(super) hops: u32,
    /// A sidecar before this one is already repeating it: the application handed on the number of a later try.
    pub(super) repeated: bool,
}

/// What a client asks to upgrade to (RFC 9110 7.8): the tokens of `Upgrade`, if `Connection` lists it. `h2c` is not among them:
/// upgrading to HTTP/2 is obsolete (RFC 9113 3.1), and what follows is for this sidecar, not for an instance.
pub(super) fn wanted_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    if !headers.contains_key(header::UPGRADE) {
        return None;
    }
    tokens(headers, &header::CONNECTION).find(|token| token.eq_ignore_ascii_case(b"upgrade"))?;
    let wanted: Vec<&[u8]> = tokens(headers, &header::UPGRADE)
        .filter(|token| !token.is_empty() && !token.eq_ignore_ascii_case(b"h2c"))
        .collect();
    HeaderValue::from_bytes(&wanted.join(&b", "[..])).ok().filter(|value| !value.is_empty())
}

/// Asks an instance to upgrade. To be called last: nothing else may change `Connection` afterwards.
pub(super) fn ask_upgrade(headers: &mut HeaderMap, wanted: HeaderValue) {
    let trailers = headers.contains_key(header::CONNECTION);
    let nominated = if trailers { "te, upgrade" } else { "upgrade" };
    headers.insert(header::CONNECTION, HeaderValue::from_static(nominated));
    headers.insert(header::UPGRADE, wanted);
}

/// Whether a 101 switches to something that was asked for. Some servers don't name it: then it is what was asked.
pub(super) fn grants_upgrade(headers: &HeaderMap, wanted: &HeaderValue) -> bool {
    let asked =
        |token: &[u8]| wanted.as_bytes().split(|c| *c == b',').any(|t| t.trim_ascii().eq_ignore_ascii_case(token));
    tokens(headers, &header::UPGRADE).all(asked)
}

/// Cleans the headers of a 101, which stay those of an upgrade.
pub(super) fn clean_switch(headers: &mut HeaderMap, wanted: HeaderValue) {
    let granted = headers.get(header::UPGRADE).cloned().unwrap_or(wanted);
    clean_response(headers);
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, granted);
}

/// Cleans a request's headers. `lane_header` goes as well: whether it is honoured is decided before.
pub(super) fn clean_request(headers: &mut HeaderMap, lane_header: &HeaderName) -> Result<Cleaned, Reason> {
    let ours = headers.keys().any(|name| is_ours(name.as_str().as_bytes()));
    let number = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()?.parse().ok());
    let (hops, attempt) = if ours { (number(X_HOPS).unwrap_or(0), number(X_ATTEMPT).unwrap_or(1)) } else { (0, 1) };
    let protected = |name: &HeaderName| {
        [header::HOST, header::CONTENT_LENGTH, header::TRANSFER_ENCODING].contains(name)
            || name == lane_header
            || is_ours(name.as_str().as_bytes())
    };
    strip_nominated(headers, protected)?;
    let trailers = tokens(headers, &header::TE).any(|token| token.eq_ignore_ascii_case(b"trailers"));
    strip(headers);
    headers.remove(lane_header);
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("te"));
    }
    Ok(Cleaned { hops, repeated: attempt > 1 })
}

/// HTTP/2 lets a client cut its cookies into several headers; everybody else knows one (RFC 9113 8.2.3).
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    let mut all = headers.get_all(header::COOKIE).iter();
    if all.next().is_none() || all.next().is_none() {
        return;
    }
    let crumbs: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    // Joined from valid values by valid bytes.
    if let Ok(joined) = HeaderValue::from_bytes(&crumbs.join(b"; ".as_slice())) {
        headers.insert(header::COOKIE, joined);
    }
}

/// Turns the head of a cleaned request for HTTP/1.1 into one for HTTP/2: `Host` becomes the authority, and what speaks of the
/// connection has no place there. `TE: trailers` stays (RFC 9113 8.2.2). `Expect` goes: its 100 is not waited for.
pub(super) fn for_http2(request: &mut http::request::Parts) -> Result<(), Reason> {
    let headers = &mut request.headers;
    headers.remove(header::CONNECTION);
    headers.remove(header::EXPECT);
    let host = headers.remove(header::HOST).ok_or(Reason::BadHost)?;
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(http::uri::Scheme::HTTP);
    parts.authority = Some(host.as_bytes().try_into().map_err(|_| Reason::BadHost)?);
    parts.path_and_query = request.uri.path_and_query().cloned();
    request.uri = http::Uri::from_parts(parts).map_err(|_| Reason::BadTarget)?;
    request.version = http::Version::HTTP_2;
    Ok(())
}

/// Cleans trailers, of requests and responses: nothing that frames, routes or belongs to a connection or to the mesh comes after
/// the body (RFC 9110 6.5.1).
pub(super) fn clean_trailers(trailers: &mut HeaderMap) {
    strip(trailers);
    for name in [header::HOST, header::CONTENT_LENGTH, X_FORWARDED_FOR, X_FORWARDED_PROTO] {
        trailers.remove(name);
    }
}

/// What the proxy tells an instance: the same for every try.
pub(super) fn add_common(headers: &mut HeaderMap, client: IpAddr, hops: u32) {
    // These, and three more of the decision: the map grows once.
    headers.reserve(ADDED);
    headers.insert(X_HOPS, count(hops + 1));
    headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static("http"));
    match headers.entry(X_FORWARDED_FOR) {
        Entry::Vacant(none) if client == IpAddr::V4(Ipv4Addr::LOCALHOST) => {
            none.insert(HeaderValue::from_static("127.0.0.1"));
        }
        Entry::Vacant(none) => {
            none.insert(name_value(&client.to_string()));
        }
        Entry::Occupied(mut some) => {
            let before = some.iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
            let all: Vec<String> = before.chain([client.to_string()]).collect();
            if let Ok(value) = HeaderValue::from_str(&all.join(", ")) {
                some.insert(value);
            }
        }
    }
}

/// Headers that a request gets on its way to an instance.
const ADDED: usize = 6;

/// A small number; the usual ones without allocation.
pub(super) fn count(number: u32) -> HeaderValue {
    match number {
        1 => HeaderValue::from_static("1"),
        2 => HeaderValue::from_static("2"),
        more => HeaderValue::from(more),
    }
}

/// Names of the mesh are valid header values: letters, digits and a few signs.
pub(super) fn name_value(name: &str) -> HeaderValue {
    HeaderValue::from_str(name).unwrap_or_else(|_| HeaderValue::from_static("other"))
}

/// Whether a response's body comes as it is, or in chunks: any other transfer coding would have to be undone here (RFC 9112
/// 7), and none was asked for, since no `TE` is ever sent.
pub(super) fn framing_is_plain(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"),
        _ => false,
    }
}

/// Cleans a response's headers.
pub(super) fn clean_response(headers: &mut HeaderMap) {
    // Chunks say how long a body is, whatever the other header claims (RFC 9112 6.3).
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    // What an upstream nominates by mistake (its own Content-Length) is kept; the rest goes.
    let framing = |name: &HeaderName| [header::CONTENT_LENGTH, header::TRANSFER_ENCODING].contains(name);
    // On refusal nothing was removed: the response is passed on with its framing whole.
    let _ = strip_nominated(headers, framing);
    strip(headers);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        map
    }

    fn lane() -> HeaderName {
        HeaderName::from_static("x-lane")
    }

    #[test]
    fn hop_by_hop_nominated_and_mesh_headers_go() {
        let mut headers = map(&[
            ("host", "orders"),
            ("connection", "keep-alive, X-Secret"),
            ("connection", "x-other"),
            ("x-secret", "1"),
            ("x-other", "2"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "x"),
            ("te", "gzip, trailers"),
            ("upgrade", "websocket"),
            ("x-lanemesh-lane", "canary"),
            ("x_lanemesh_lane", "canary"),
            ("x-lane", "canary"),
            ("x-kept", "3"),
        ]);
        let cleaned = clean_request(&mut headers, &lane()).unwrap();
        assert_eq!(cleaned.hops, 0);
        let names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names.len(), 4, "{names:?}");
        assert_eq!((&headers["host"], &headers["x-kept"]), (&"orders".parse().unwrap(), &"3".parse().unwrap()));
        assert_eq!((&headers["te"], &headers["connection"]), (&"trailers".parse().unwrap(), &"te".parse().unwrap()));
    }

    #[test]
    fn nominations_that_would_break_the_proxy_are_refused() {
        for name in ["Host", "content-length", "Transfer-Encoding", "x-lanemesh-lane", "X-Lane"] {
            let mut headers = map(&[("connection", &format!("close, {name}"))]);
            assert_eq!(clean_request(&mut headers, &lane()), Err(Reason::BadConnectionHeader), "{name}");
        }
    }

    #[test]
    fn cookie_crumbs_become_one_header() {
        let mut headers = map(&[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2; c=3")]);
        join_cookies(&mut headers);
        assert_eq!(headers.get_all("cookie").iter().collect::<Vec<_>>(), ["a=1; b=2; c=3"]);
        let mut one = map(&[("cookie", "a=1")]);
        join_cookies(&mut one);
        assert_eq!(one, map(&[("cookie", "a=1")]));
    }

    #[test]
    fn a_head_for_http2_has_an_authority_and_nothing_of_the_connection() {
        let request = http::Request::builder().uri("/a%2Fb?").body(()).unwrap();
        let mut parts = request.into_parts().0;
        parts.headers = map(&[("host", "orders:80"), ("te", "trailers"), ("connection", "te"), ("x-kept", "1")]);
        for_http2(&mut parts).unwrap();
        assert_eq!(parts.uri, "http://orders:80/a%2Fb?");
        assert_eq!(parts.headers, map(&[("te", "trailers"), ("x-kept", "1")]));
    }

    #[test]
    fn trailers_carry_no_framing_and_no_decision() {
        let mut trailers = map(&[("grpc-status", "0"), ("content-length", "1"), ("x-lanemesh-lane", "c"), ("te", "x")]);
        clean_trailers(&mut trailers);
        assert_eq!(trailers, map(&[("grpc-status", "0")]));
    }

    #[test]
    fn forwarded_for_is_continued() {
        let mut headers = map(&[("x-forwarded-for", "10.0.0.1")]);
        add_common(&mut headers, "127.0.0.1".parse().unwrap(), 2);
        assert_eq!(headers["x-forwarded-for"], "10.0.0.1, 127.0.0.1");
        assert_eq!(headers["x-lanemesh-hops"], "3");
    }

    #[test]
    fn a_response_cannot_forge_the_decision() {
        let mut headers = map(&[
            ("connection", "X-Up"),
            ("x-up", "1"),
            ("x-lanemesh-instance", "evil"),
            ("transfer-encoding", "chunked"),
            ("content-type", "text/plain"),
        ]);
        clean_response(&mut headers);
        assert_eq!(headers.len(), 1);
    }
}
