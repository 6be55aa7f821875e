//! What is different for gRPC: how it tells time, and how it is told of errors.
//!
//! A gRPC client understands statuses in trailers, not HTTP statuses. A response that the proxy makes itself is therefore a
//! trailers-only `200` (PROTOCOL-HTTP2.md of gRPC), and a stream that an instance breaks off ends with a status instead of a
//! reset. Everything else of a call goes through untouched, message by message.
//!
//! How a call went is told to the instance's breaker when its first message comes, or its status without one.
//!
//! Not here: retries on the strength of `grpc-status` (an answer is an answer: the application has seen the call), gRPC-Web.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version, header};
use hyper::body::Frame;

use super::Reason;
use crate::routing::Outcome;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const MEDIA_TYPE: &[u8] = b"application/grpc";

/// Status codes of gRPC that the proxy uses.
const UNKNOWN: u8 = 2;
const DEADLINE_EXCEEDED: u8 = 4;
const RESOURCE_EXHAUSTED: u8 = 8;
const UNIMPLEMENTED: u8 = 12;
const INTERNAL: u8 = 13;
const UNAVAILABLE: u8 = 14;

/// Whether a request is a gRPC call: over HTTP/2, `application/grpc` with or without `+proto`, `+json` and parameters.
pub(super) fn is_call(version: Version, headers: &HeaderMap) -> bool {
    version == Version::HTTP_2
        && headers.get(header::CONTENT_TYPE).is_some_and(|value| {
            let value = value.as_bytes();
            value.len() >= MEDIA_TYPE.len()
                && value[..MEDIA_TYPE.len()].eq_ignore_ascii_case(MEDIA_TYPE)
                && matches!(value.get(MEDIA_TYPE.len()), None | Some(b'+' | b';' | b' '))
        })
}

/// The caller's deadline: one to eight digits and a unit. What does not parse is ignored, as gRPC servers differ on it too.
pub(super) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(GRPC_TIMEOUT)?.as_bytes();
    let (unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let n: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(n * 3_600),
        b'M' => Duration::from_secs(n * 60),
        b'S' => Duration::from_secs(n),
        b'm' => Duration::from_millis(n),
        b'u' => Duration::from_micros(n),
        b'n' => Duration::from_nanos(n),
        _ => return None,
    })
}

/// What an answer's head says of how a call or request went; `None` where only what follows will say.
pub(super) fn outcome(call: bool, head: &http::response::Parts) -> Option<Outcome> {
    if !call || head.status != StatusCode::OK {
        return Some(Outcome::Answered(head.status.as_u16()));
    }
    status(&head.headers).map(Outcome::Called)
}

/// What a piece of a response says of how its call goes: a message that it goes well, trailers their code.
pub(super) fn told(frame: &Frame<Bytes>) -> Option<u8> {
    match frame.trailers_ref() {
        Some(trailers) => Some(status(trailers).unwrap_or(UNKNOWN)),
        None => frame.data_ref().filter(|data| !data.is_empty()).map(|_| 0),
    }
}

/// The code in trailers, or in the head of a response that has nothing else. What is none counts as `UNKNOWN`, as gRPC has it.
fn status(headers: &HeaderMap) -> Option<u8> {
    let value = headers.get(GRPC_STATUS)?;
    Some(value.to_str().ok().and_then(|text| text.parse().ok()).filter(|code| *code <= 16).unwrap_or(UNKNOWN))
}

/// Passes on what is left of the deadline, in the finest unit that holds it.
pub(super) fn set_timeout(headers: &mut HeaderMap, left: Duration) {
    const MOST: u128 = 99_999_999;
    let (n, unit) = if left.as_micros() <= MOST {
        (left.as_micros(), 'u')
    } else if left.as_millis() <= MOST {
        (left.as_millis(), 'm')
    } else {
        (u128::from(left.as_secs()).min(MOST), 'S')
    };
    if let Ok(value) = HeaderValue::from_str(&format!("{n}{unit}")) {
        headers.insert(GRPC_TIMEOUT, value);
    }
}

/// The status code for a reason: by what the caller may do about it. Limits say "slow down", a missing instance "try again", a
/// passed deadline itself, and what nobody can mend by trying again `INTERNAL` or `UNIMPLEMENTED`.
fn code(reason: Reason) -> u8 {
    match (reason, reason.status()) {
        (Reason::TooManyConnections | Reason::Overflow | Reason::HeadTooLarge, _) => RESOURCE_EXHAUSTED,
        (Reason::BadResponse, _) => INTERNAL,
        (Reason::ProtocolUnsupported, _) => UNIMPLEMENTED,
        (_, 408 | 504) => DEADLINE_EXCEEDED,
        // An unknown service too: its sidecars may be about to join.
        (_, 404 | 502 | 503) => UNAVAILABLE,
        (_, 501) => UNIMPLEMENTED,
        _ => INTERNAL,
    }
}

/// The proxy's own answer to a call: `200`, no body, the status in the headers.
pub(super) fn response(reason: Reason, detail: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
    set_status(headers, code(reason), &format!("lanemesh: {}{detail}", reason.what()));
    reason.mark(headers);
    response
}

/// Trailers in place of the rest of a response that an instance broke off.
pub(super) fn broken_off(silent: bool) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    let text = if silent {
        "lanemesh: nothing came either way for longer than proxy.timeouts.idle"
    } else {
        "lanemesh: the instance broke off its response"
    };
    set_status(&mut trailers, UNAVAILABLE, text);
    trailers
}

fn set_status(headers: &mut HeaderMap, code: u8, message: &str) {
    headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(code)));
    if let Ok(value) = HeaderValue::from_str(&percent_encoded(message)) {
        headers.insert(GRPC_MESSAGE, value);
    }
}

/// As gRPC wants its messages: printable ASCII but `%` as it is, every other byte as `%XX`.
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'$' | b'&'..=b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn a_call_is_told_by_version_and_media_type() {
        for (value, call) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/GRPC; charset=x", true),
            ("application/grpc-web", false),
            ("application/grpcx", false),
            ("application/json", false),
        ] {
            assert_eq!(is_call(Version::HTTP_2, &map("content-type", value)), call, "{value}");
            assert!(!is_call(Version::HTTP_11, &map("content-type", value)));
        }
        assert!(!is_call(Version::HTTP_2, &HeaderMap::new()));
    }

    #[test]
    fn timeouts_are_read_in_every_unit_and_nonsense_is_ignored() {
        for (text, millis) in [("1H", 3_600_000), ("2M", 120_000), ("3S", 3_000), ("4m", 4), ("5000u", 5), ("0m", 0)] {
            assert_eq!(timeout(&map("grpc-timeout", text)), Some(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(timeout(&map("grpc-timeout", "7n")), Some(Duration::from_nanos(7)));
        assert!(timeout(&map("grpc-timeout", "99999999H")).is_some());
        for text in ["", "S", "1", "1s", "-1S", "1.5S", "123456789S", "1 S"] {
            assert_eq!(timeout(&map("grpc-timeout", text)), None, "{text}");
        }
    }

    #[test]
    fn messages_are_printable_whatever_is_in_them() {
        assert_eq!(percent_encoded("a b: 100%\n\u{e9}"), "a b: 100%25%0A%C3%A9");
    }

    #[test]
    fn every_reason_has_a_code_that_fits() {
        for (reason, wanted) in [
            (Reason::NoInstance, 14),
            (Reason::AllRefused, 14),
            (Reason::UnknownService, 14),
            (Reason::UpstreamReset, 14),
            (Reason::Deadline, 4),
            (Reason::UpstreamTimeout, 4),
            (Reason::TooManyConnections, 8),
            (Reason::Overflow, 8),
            (Reason::HeadTooLarge, 8),
            (Reason::Loop, 13),
        ] {
            assert_eq!(code(reason), wanted, "{reason:?}");
        }
        for reason in Reason::ALL {
            let response = response(reason, "x");
            assert_eq!(response.status(), 200);
            assert!(response.body().is_empty() && response.headers()[GRPC_MESSAGE].len() < 400);
            assert!((1..=16).contains(&response.headers()[GRPC_STATUS].to_str().unwrap().parse::<u8>().unwrap()));
        }
    }

    proptest! {
        #[test]
        fn what_is_left_never_grows_on_the_way(nanos in 0_u64..200_000_000_000_000_000) {
            let left = Duration::from_nanos(nanos);
            let mut headers = HeaderMap::new();
            set_timeout(&mut headers, left);
            let read = timeout(&headers).expect("parses");
            prop_assert!(read <= left);
            prop_assert!(left - read < Duration::from_secs(1) || read.as_secs() == 99_999_999);
        }
    }
}
