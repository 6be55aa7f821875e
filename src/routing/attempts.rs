//! The life of one request after the decision, sans-io: try, wait, next, give up (REQUIREMENTS R6).

use std::time::Duration;

use serde::Serialize;

use super::{Decision, ServiceView};
use crate::types::Mono;

/// Classes of methods (RFC 9110 9.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MethodClass {
    /// GET, HEAD, OPTIONS, TRACE.
    Safe,
    /// PUT, DELETE.
    Idempotent,
    /// Everything else.
    Other,
}

/// Alias for readers of the proxy.
pub type Method = MethodClass;

/// Limits of one request's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptsConfig {
    /// Retries after something was sent; connect refusals don't count.
    pub max_retries: u8,
    /// A try's own limit, at most a third of `total`.
    pub per_try: Duration,
    /// Limit of all tries together.
    pub total: Duration,
}

/// How a try ended without a usable response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// No connection: refused, unreachable, timed out while connecting. Nothing was sent.
    ConnectFailed,
    /// A pooled connection turned out closed before anything was sent.
    StaleConnection,
    /// The connection broke after something was sent, before any response byte.
    Reset,
    /// No response in the try's time.
    Timeout,
    /// A complete response with a status that may be retried (502, 503, 504).
    RetryableStatus,
    /// A usable response.
    Answered,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Send to this instance, at most until then.
    Try {
        /// Index into [`ServiceView::instances`].
        instance: u16,
        /// Deadline of this try.
        until: Mono,
        /// Ask for a fresh connection instead of a pooled one.
        fresh: bool,
    },
    /// Wait, then ask again.
    Wait(Mono),
    /// Answer the client.
    GiveUp(GiveUp),
}

/// Why a request ends without an upstream's answer (or with its last one); the reason in `x-lanemesh-error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GiveUp {
    /// No candidate in the lane, and the empty-lane rule says fail (or stable is empty too).
    NoInstance,
    /// Every candidate refused its connection.
    AllRefused,
    /// It may have been processed, and its method must not be repeated.
    UpstreamReset,
    /// The try's time ran out, and its method must not be repeated, or retries are used up.
    UpstreamTimeout,
    /// The total time ran out.
    Deadline,
    /// Retries are used up; the last answer is passed on.
    RetriesUsedUp,
}

/// One request's life.
#[derive(Debug, Clone)]
pub struct Attempts {}

impl Attempts {
    /// Starts from a decision. `replayable`: the body is empty or kept whole.
    pub fn new(decision: &Decision, class: MethodClass, replayable: bool, config: AttemptsConfig, now: Mono) -> Self {
        todo!()
    }

    /// What to do now. `service` must come from the decision's snapshot.
    pub fn next(&mut self, service: &ServiceView, now: Mono) -> Step {
        todo!()
    }

    /// How the current try ended.
    pub fn ended(&mut self, outcome: Outcome, service: &ServiceView, now: Mono) {
        todo!()
    }

    /// Tries after the first.
    pub fn retries(&self) -> u8 {
        todo!()
    }
}
