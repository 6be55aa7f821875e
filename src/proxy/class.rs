//! Classes and words of the request path that more than one place needs.

use crate::routing::{MethodClass, Outcome};

/// What made another try necessary; `None` for an answer.
pub(super) fn retry(outcome: Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::ConnectFailed => Some("connect_failed"),
        Outcome::StaleConnection => Some("stale_connection"),
        Outcome::Reset => Some("reset"),
        Outcome::Timeout => Some("timeout"),
        Outcome::RetryableStatus(_) => Some("status"),
        Outcome::Full => Some("full"),
        Outcome::Answered(_) | Outcome::Called(_) => None,
    }
}

/// RFC 9110 9.2.1 and 9.2.2.
pub(super) fn method_class(method: &http::Method) -> MethodClass {
    MethodClass::of(method.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_classed_by_rfc_9110_and_invented_ones_are_never_repeated() {
        for (method, class) in [
            ("GET", MethodClass::Safe),
            ("HEAD", MethodClass::Safe),
            ("DELETE", MethodClass::Idempotent),
            ("POST", MethodClass::Other),
            ("LOCK", MethodClass::Other),
            ("AAAA1", MethodClass::Other),
        ] {
            assert_eq!(method_class(&http::Method::from_bytes(method.as_bytes()).unwrap()), class);
        }
    }
}
