//! Heads of plain requests: told from all others, and written anew for an instance.
//!
//! Plain is HTTP/1.1 in origin-form with one proper `Host`, a body of known and small length or none, and nothing about the
//! connection but `close` and `keep-alive`. Whatever is not certainly plain is left to hyper, whose verdict (and whose refusal, with
//! its reason) it gets; so this parser can afford to take less than it might, and refuses nothing itself.
//!
//! Lines are passed on in the spelling they came in, without those that the rules of [`super::super::headers`] take out.

use std::{
    mem::MaybeUninit,
    net::{IpAddr, Ipv4Addr},
};

use http::HeaderName;
use httparse::{Header, Status};

use super::super::{
    framing::KEPT,
    headers::{Kind, X_ATTEMPT, X_HOPS, add_line, is_plain_token, kind},
    target::{Wanted, of_host},
};
use crate::lanes;

/// A whole plain head.
#[derive(Debug)]
pub(super) struct Head<'a> {
    pub(super) method: &'a str,
    /// Path and query.
    pub(super) target: &'a str,
    pub(super) headers: &'a [Header<'a>],
    /// What each of them is.
    kinds: [Kind; MOST_HEADERS],
    /// What `Host` asks for.
    pub(super) host: Wanted,
    /// Bytes of the body.
    pub(super) length: u64,
    /// Bytes of the head.
    pub(super) size: usize,
    /// The client wants the connection closed.
    pub(super) closes: bool,
    /// Its `HTTP2-Settings` go with the connection.
    settings: bool,
}

impl lanes::Head for Head<'_> {
    fn method(&self) -> &str {
        self.method
    }

    fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    fn values<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.headers.iter().filter(|line| line.name.eq_ignore_ascii_case(name)).for_each(|line| each(line.value));
    }
}

/// What the bytes of a client begin with.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed<T> {
    /// A whole plain head.
    Plain(T),
    /// What may become one.
    Partial,
    /// Something else.
    Unusual,
}

/// What may be plain at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of a head.
    pub(super) head: usize,
    /// Headers of a head.
    pub(super) headers: usize,
    /// Bytes of a body.
    pub(super) body: u64,
}

/// Gives a whole plain head to `then`.
pub(super) fn parse<T>(bytes: &[u8], limits: Limits, then: impl FnOnce(Head<'_>) -> T) -> Parsed<T> {
    let mut space = [const { MaybeUninit::uninit() }; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    let size = match request.parse_with_uninit_headers(bytes, &mut space) {
        Ok(Status::Complete(size)) => size,
        Ok(Status::Partial) if bytes.len() < limits.head => return Parsed::Partial,
        Ok(Status::Partial) | Err(_) => return Parsed::Unusual,
    };
    if size > limits.head || request.headers.len() > limits.headers {
        return Parsed::Unusual;
    }
    match check(&request, size, limits.body) {
        Some(head) => Parsed::Plain(then(head)),
        None => Parsed::Unusual,
    }
}

fn check<'a>(request: &'a httparse::Request<'_, '_>, size: usize, most: u64) -> Option<Head<'a>> {
    let (Some(method), Some(target), Some(1)) = (request.method, request.path, request.version) else { return None };
    if method == "CONNECT" || !target.starts_with('/') || !target.bytes().all(is_usual) {
        return None;
    }
    let (mut host, mut length, mut closes, mut settings) = (None, None, false, false);
    let mut kinds = [Kind::Other; MOST_HEADERS];
    for (line, noted) in request.headers.iter().zip(&mut kinds) {
        *noted = kind(line.name.as_bytes());
        match *noted {
            // A second one of either, or a value that is none, is for hyper and the follower to judge.
            Kind::Host if host.is_none() => host = Some(of_host(line.value)?),
            Kind::ContentLength if length.is_none() && is_short(line) => length = Some(digits(line.value)?),
            Kind::Connection => {
                for token in line.value.split(|c| *c == b',').map(<[u8]>::trim_ascii) {
                    closes |= token.eq_ignore_ascii_case(b"close");
                    let of_upgrade = token.eq_ignore_ascii_case(b"http2-settings");
                    settings |= of_upgrade;
                    if !of_upgrade && !is_plain_token(token) {
                        return None;
                    }
                }
            }
            // Some clients offer HTTP/2 with every request, and are content without.
            Kind::Upgrade if line.value.eq_ignore_ascii_case(b"h2c") => {}
            Kind::Host | Kind::ContentLength | Kind::TransferEncoding | Kind::Te | Kind::Upgrade | Kind::Expect => {
                return None;
            }
            Kind::Other
            | Kind::HopByHop
            | Kind::Ours
            | Kind::ForwardedFor
            | Kind::ForwardedProto
            | Kind::RequestTimeout
            | Kind::Http2Settings
            | Kind::Date
            | Kind::Trailer => {}
        }
    }
    let length = length.unwrap_or(0);
    let fits = length <= most;
    let headers = &*request.headers;
    host.filter(|_| fits).map(|host| Head { method, target, headers, kinds, host, length, size, closes, settings })
}

/// What every parser of URLs takes in a path or query. hyper takes more, and is asked about the rest.
fn is_usual(c: u8) -> bool {
    c.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@%?[]".contains(&c)
}

/// Whether the follower would see all of a header's line.
fn is_short(line: &Header<'_>) -> bool {
    line.value.as_ptr().addr() + line.value.len() - line.name.as_ptr().addr() <= KEPT
}

/// A length of digits only.
pub(super) fn digits(value: &[u8]) -> Option<u64> {
    let fine = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| fine)?.parse().ok()
}

/// What a head said to the proxy itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Said {
    /// Sidecars that the request has passed.
    pub(super) hops: u32,
    /// A sidecar before this one is already repeating it.
    pub(super) repeated: bool,
}

/// Writes the head for an instance, up to the lines that each try adds: what the client sent and the proxy passes on, and what
/// it tells every instance.
pub(super) fn write(head: &Head<'_>, lane_header: &HeaderName, client: IpAddr, out: &mut Vec<u8>) -> Said {
    for part in [head.method.as_bytes(), b" ", head.target.as_bytes(), b" HTTP/1.1\r\n"] {
        out.extend_from_slice(part);
    }
    let (mut hops, mut attempt, mut proto, mut forwarded) = (None, None, false, false);
    for (line, kind) in head.headers.iter().zip(head.kinds) {
        let name = line.name.as_bytes();
        match kind {
            Kind::Ours if line.name.eq_ignore_ascii_case(X_HOPS.as_str()) => {
                hops.get_or_insert_with(|| number(line.value).unwrap_or(0));
            }
            Kind::Ours if line.name.eq_ignore_ascii_case(X_ATTEMPT.as_str()) => {
                attempt.get_or_insert_with(|| number(line.value).unwrap_or(1));
            }
            Kind::Ours | Kind::HopByHop | Kind::Connection | Kind::Upgrade | Kind::RequestTimeout => {}
            Kind::Http2Settings if head.settings => {}
            Kind::ForwardedFor => forwarded = true,
            _ if line.name.eq_ignore_ascii_case(lane_header.as_str()) => {}
            kind => {
                proto |= kind == Kind::ForwardedProto;
                add_line(out, name, line.value);
            }
        }
    }
    let hops = hops.unwrap_or(0);
    forward_for(head, client, forwarded, out);
    if !proto {
        out.extend_from_slice(b"x-forwarded-proto: http\r\n");
    }
    add_number(out, X_HOPS.as_str().as_bytes(), u64::from(hops) + 1);
    Said { hops, repeated: attempt.unwrap_or(1) > 1 }
}

/// Continues the list of those for whom the request is made.
fn forward_for(head: &Head<'_>, client: IpAddr, forwarded: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"x-forwarded-for: ");
    if forwarded {
        for (line, _) in head.headers.iter().zip(head.kinds).filter(|(_, kind)| *kind == Kind::ForwardedFor) {
            out.extend_from_slice(line.value);
            out.extend_from_slice(b", ");
        }
    }
    if client == IpAddr::V4(Ipv4Addr::LOCALHOST) {
        out.extend_from_slice(b"127.0.0.1\r\n");
    } else {
        out.extend_from_slice(format!("{client}\r\n").as_bytes());
    }
}

/// Writes a header that is a number.
pub(super) fn add_number(out: &mut Vec<u8>, name: &[u8], number: u64) {
    let mut digits = [0; 20];
    add_line(out, name, decimal(number, &mut digits));
}

fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

fn number(value: &[u8]) -> Option<u32> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Heads with more headers are left to hyper: they need more room than a stack should give.
const MOST_HEADERS: usize = 64;
