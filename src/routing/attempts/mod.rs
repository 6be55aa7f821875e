//! The life of one request after the decision, sans-io: try, wait, next, give up (REQUIREMENTS R6).
//!
//! - Nothing was sent (connection refused): the next instance in failover order, through the whole order, inside the deadline.
//!   A pooled connection that turned out closed: the same instance over a fresh one; not a failure of the instance.
//! - Something was sent: only an idempotent method whose body can be sent again is retried, at most `max_retries` times.
//! - Never the same instance twice while another is left; instances that local state speaks against come after the others.
//! - Waits (with jitter) only before the same instance or after a status; the lane that serves is never left.
//!
//! It also keeps the instances' cells: [`Attempts::next`] takes the place of a trial, [`Attempts::ended`] notes refusals and
//! answers. Whoever drives it does neither.
//!
//! Not here: retry budgets and breakers (a later issue), connecting, sending, the clock.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Decision, LaneView, ServiceView, choose::skip_reason, ring::Cursor};
use crate::types::{Mono, Planted};

/// Classes of methods (RFC 9110 9.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// A try's own limit; of more than a third of `total`, a third is used.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GiveUp {
    /// No candidate in the lane, and the empty-lane rule says fail (or stable is empty too).
    NoInstance,
    /// Every candidate refused its connection.
    AllRefused,
    /// It may have been processed, and its method must not be repeated, or retries are used up.
    UpstreamReset,
    /// The try's time ran out, and its method must not be repeated, or retries are used up.
    UpstreamTimeout,
    /// The total time ran out.
    Deadline,
    /// It must not be retried, or retries are used up; the last answer is passed on, if the last try had one.
    RetriesUsedUp,
}

impl GiveUp {
    /// As it stands in `x-lanemesh-error`, logs and labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoInstance => "no_instance",
            Self::AllRefused => "all_refused",
            Self::UpstreamReset => "upstream_reset",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::Deadline => "deadline",
            Self::RetriesUsedUp => "retries_used_up",
        }
    }
}

/// One request's life.
#[derive(Debug, Clone)]
pub struct Attempts {
    key_hash: u64,
    lane: u16,
    panic: bool,
    repeatable: bool,
    max_retries: u8,
    per_try: Duration,
    deadline: Mono,
    tries: u8,
    retries: u8,
    /// The last instance that took a connection, and how the try on it ended.
    accepted: Option<(u16, GiveUp)>,
    state: State,
    /// Where the walk stands; made at the first failure, so that a request that succeeds at once pays nothing for it.
    walk: Option<Box<Walk>>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// The next call of `next` tries this instance; `checked`: whether its cell has a say.
    Ready {
        instance: u16,
        fresh: bool,
        checked: bool,
    },
    /// As `Ready`, but not before then.
    Waiting {
        instance: u16,
        until: Mono,
    },
    /// A try is under way.
    Trying {
        instance: u16,
        until: Mono,
        fresh: bool,
    },
    Over(GiveUp),
}

/// Progress through the failover order.
#[derive(Debug, Clone)]
struct Walk {
    cursor: Cursor,
    /// First lap: those that nothing speaks against. Second lap: the rest.
    second_lap: bool,
    /// One bit per instance of the service.
    tried: Box<[u64]>,
}

impl Attempts {
    /// Starts from a decision. `replayable`: the body is empty or kept whole.
    pub fn new(decision: &Decision, class: MethodClass, replayable: bool, config: AttemptsConfig, now: Mono) -> Self {
        let state = match decision.instance {
            Some(instance) => State::Ready { instance, fresh: false, checked: !decision.panic },
            None => State::Over(GiveUp::NoInstance),
        };
        Self {
            key_hash: decision.key_hash,
            lane: decision.served.unwrap_or(0),
            panic: decision.panic,
            repeatable: replayable && class != MethodClass::Other,
            max_retries: config.max_retries,
            per_try: config.per_try.min(config.total / 3),
            deadline: now + config.total,
            tries: 0,
            retries: 0,
            accepted: None,
            state,
            walk: None,
        }
    }

    /// What to do now. `service` must come from the decision's snapshot. While a try is under way, it is returned again.
    pub fn next(&mut self, service: &ServiceView, now: Mono) -> Step {
        loop {
            match self.state {
                State::Over(why) => return Step::GiveUp(why),
                State::Trying { instance, until, fresh } => return Step::Try { instance, until, fresh },
                _ if now >= self.deadline => self.state = State::Over(GiveUp::Deadline),
                State::Waiting { until, .. } if now < until => return Step::Wait(until),
                State::Waiting { instance, .. } => self.start(instance, false, now),
                State::Ready { instance, fresh, checked } => {
                    if !checked || service.instances[usize::from(instance)].cell.admit(now) {
                        self.start(instance, fresh, now);
                    } else {
                        // Another request took the place of the trial since the decision. It stays untried.
                        self.state = match self.advance(service, now) {
                            Some(next) => next,
                            None => State::Ready { instance, fresh, checked: false },
                        };
                    }
                }
            }
        }
    }

    /// How the current try ended. Without one under way, nothing happens. After `Answered` it is over: nothing is left to ask.
    pub fn ended(&mut self, outcome: Outcome, service: &ServiceView, now: Mono) {
        let State::Trying { instance, fresh, .. } = self.state else { return };
        let cell = &service.instances[usize::from(instance)].cell;
        match outcome {
            Outcome::StaleConnection if !fresh => {
                self.state = State::Ready { instance, fresh: true, checked: false };
            }
            // A fresh connection that closes before it takes anything is as good as refused.
            Outcome::ConnectFailed | Outcome::StaleConnection => {
                cell.refused(now);
                if Planted::RefusedIsFinal.is_on() {
                    self.state = State::Over(GiveUp::AllRefused);
                    return;
                }
                self.mark_tried(instance, service);
                self.state = self.advance(service, now).unwrap_or_else(|| self.all_refused(now));
            }
            Outcome::Reset => self.failed(instance, GiveUp::UpstreamReset, service, now),
            Outcome::Timeout => self.failed(instance, GiveUp::UpstreamTimeout, service, now),
            Outcome::RetryableStatus => {
                cell.answered();
                self.failed(instance, GiveUp::RetriesUsedUp, service, now);
            }
            Outcome::Answered => {
                cell.answered();
                self.state = State::Over(GiveUp::RetriesUsedUp);
            }
        }
    }

    /// Tries after the first, whatever ended it; the fresh connection after a stale one is not another try.
    pub fn retries(&self) -> u8 {
        self.tries.saturating_sub(1)
    }

    fn start(&mut self, instance: u16, fresh: bool, now: Mono) {
        if !fresh {
            self.tries = self.tries.saturating_add(1);
        }
        let until = (now + self.per_try).min(self.deadline);
        self.state = State::Trying { instance, until, fresh };
    }

    /// Something was sent: retries where that is allowed.
    fn failed(&mut self, instance: u16, why: GiveUp, service: &ServiceView, now: Mono) {
        self.accepted = Some((instance, why));
        if Planted::NoDeadline.is_on() {
            self.deadline = now + self.per_try * 3;
        }
        self.mark_tried(instance, service);
        if !self.may_repeat() {
            self.state = State::Over(why);
            return;
        }
        self.retries += 1;
        self.state = match self.advance(service, now) {
            Some(State::Ready { instance, .. }) if why == GiveUp::RetriesUsedUp => self.wait(instance, why, now),
            Some(next) => next,
            None => self.wait(instance, why, now),
        };
    }

    /// No instance is left that was not tried. One that took a connection before may be tried again.
    fn all_refused(&mut self, now: Mono) -> State {
        match self.accepted {
            None => State::Over(GiveUp::AllRefused),
            Some((_, why)) if !self.may_repeat() => State::Over(why),
            Some((instance, why)) => {
                self.retries += 1;
                self.wait(instance, why, now)
            }
        }
    }

    fn may_repeat(&self) -> bool {
        let repeatable = self.repeatable || Planted::RetryUnsafe.is_on();
        repeatable && (self.retries < self.max_retries || Planted::NoDeadline.is_on())
    }

    /// Waits before an instance, half of it by chance; ends here when the deadline comes before.
    fn wait(&self, instance: u16, why: GiveUp, now: Mono) -> State {
        let full = BACKOFF * 2_u32.pow(u32::from(self.retries.clamp(1, BACKOFF_DOUBLINGS)) - 1);
        // The moment is different for every request, and the same again in a simulation with the same seed.
        let chance = xxh3_64_with_seed(&now.0.to_le_bytes(), self.key_hash) >> 32;
        let jitter = Duration::from_nanos((full.as_nanos() as u64 / 2 * chance) >> 32);
        let until = now + full / 2 + jitter;
        if until >= self.deadline { State::Over(why) } else { State::Waiting { instance, until } }
    }

    /// The next instance in failover order that was not tried.
    fn advance(&mut self, service: &ServiceView, now: Mono) -> Option<State> {
        let lane = &service.lanes[usize::from(self.lane)];
        let panic = self.panic;
        let key_hash = self.key_hash;
        let walk = self.walk(service);
        loop {
            let Some(slot) = walk.cursor.next(&lane.ring) else {
                if std::mem::replace(&mut walk.second_lap, true) {
                    return None;
                }
                walk.cursor = lane.ring.cursor(key_hash);
                continue;
            };
            let instance = lane.members[usize::from(slot)];
            let entry = &service.instances[usize::from(instance)];
            let anyway = panic || walk.second_lap;
            if !walk.was_tried(instance) && (anyway || (skip_reason(entry, now).is_none() && entry.cell.admit(now))) {
                return Some(State::Ready { instance, fresh: false, checked: false });
            }
        }
    }

    fn mark_tried(&mut self, instance: u16, service: &ServiceView) {
        if Planted::SameInstanceAgain.is_on() {
            return;
        }
        self.walk(service).tried[usize::from(instance) / 64] |= 1 << (instance % 64);
    }

    fn walk(&mut self, service: &ServiceView) -> &mut Walk {
        let lane: &LaneView = &service.lanes[usize::from(self.lane)];
        self.walk.get_or_insert_with(|| {
            Box::new(Walk {
                cursor: lane.ring.cursor(self.key_hash),
                second_lap: false,
                tried: vec![0; service.instances.len().div_ceil(64)].into(),
            })
        })
    }
}

impl Walk {
    fn was_tried(&self, instance: u16) -> bool {
        self.tried[usize::from(instance) / 64] >> (instance % 64) & 1 == 1
    }
}

/// Longest wait before the first retry that waits; doubles with every further one.
const BACKOFF: Duration = Duration::from_millis(25);
/// 25, 50, 100, 200, 400 ms.
const BACKOFF_DOUBLINGS: u8 = 5;

#[cfg(test)]
mod tests;
