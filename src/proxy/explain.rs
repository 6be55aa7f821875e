//! Words for a decision, in headers, metrics and the access log. The same words as `lanemesh route` prints.

use crate::{
    lanes::LaneReason,
    routing::{FallbackReason, MethodClass, Outcome},
};

pub(super) fn lane_reason(reason: LaneReason) -> &'static str {
    match reason {
        LaneReason::NoPolicy => "no-policy",
        LaneReason::Off => "off",
        LaneReason::Explicit => "explicit",
        LaneReason::AllowList => "allow-list",
        LaneReason::Range => "range",
        LaneReason::DenyList => "deny-list",
        LaneReason::OutOfRange => "out-of-range",
        LaneReason::Anonymous => "anonymous",
    }
}

pub(super) fn fallback(reason: FallbackReason) -> &'static str {
    match reason {
        FallbackReason::Absent => "absent",
        FallbackReason::Unhealthy => "unhealthy",
        FallbackReason::Draining => "draining",
    }
}

/// What made another try necessary; `None` for an answer.
pub(super) fn retry(outcome: Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::ConnectFailed => Some("connect_failed"),
        Outcome::StaleConnection => Some("stale_connection"),
        Outcome::Reset => Some("reset"),
        Outcome::Timeout => Some("timeout"),
        Outcome::RetryableStatus => Some("status"),
        Outcome::Answered => None,
    }
}

/// RFC 9110 9.2.1 and 9.2.2.
pub(super) fn method_class(method: &http::Method) -> MethodClass {
    match method.as_str() {
        "GET" | "HEAD" | "OPTIONS" | "TRACE" => MethodClass::Safe,
        "PUT" | "DELETE" => MethodClass::Idempotent,
        _ => MethodClass::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_serialized_types() {
        for reason in [LaneReason::NoPolicy, LaneReason::AllowList, LaneReason::OutOfRange, LaneReason::DenyList] {
            assert_eq!(serde_json::to_value(reason).unwrap(), lane_reason(reason));
        }
        for reason in [FallbackReason::Absent, FallbackReason::Unhealthy, FallbackReason::Draining] {
            assert_eq!(serde_json::to_value(reason).unwrap(), fallback(reason));
        }
    }
}
