//! The caller's own time limit: `x-request-timeout`, and `grpc-timeout` of gRPC calls, honoured and passed on reduced by the time
//! already spent.

use std::time::Duration;

use http::HeaderMap;

use super::{grpc, headers::X_REQUEST_TIMEOUT};

/// The shorter of what the headers say.
pub(super) fn requested(headers: &HeaderMap, grpc: bool) -> Option<Duration> {
    let call = if grpc { grpc::timeout(headers) } else { None };
    let own = headers.get(X_REQUEST_TIMEOUT).and_then(|value| parse(value.to_str().ok()?));
    match (own, call) {
        (Some(own), Some(call)) => Some(own.min(call)),
        (own, call) => own.or(call),
    }
}

/// Milliseconds without a unit, or a number with `ms` or `s` (`250`, `250ms`, `1.5s`). What does not parse is ignored: a limit
/// that nobody understands is none.
pub(super) fn parse(text: &str) -> Option<Duration> {
    let text = text.trim_ascii();
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (text, 1e-3),
    };
    let plain = !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit() || c == b'.');
    let seconds = number.parse::<f64>().ok().filter(|_| plain)? * unit;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn units_are_read_and_nonsense_is_ignored() {
        let get = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(X_REQUEST_TIMEOUT, HeaderValue::from_static(text));
            requested(&headers, false)
        };
        for (text, millis) in [("250", 250), ("250ms", 250), ("1s", 1_000), ("1.5s", 1_500), (" 7 ", 7), ("0", 0)] {
            assert_eq!(get(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "-1", "1e9", "inf", "5 m", "1h", "99999999999999999999999s"] {
            assert_eq!(get(text), None, "{text}");
        }
    }
}
