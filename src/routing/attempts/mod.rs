//! The life of one request after the decision, sans-io: try, wait, next, give up (REQUIREMENTS R6).
//!
//! - Nothing was sent (connection refused): the next instance in failover order, through the whole order, inside the deadline.
//!   A pooled connection that turned out closed: the same instance over a fresh one; not a failure of the instance. Where it may have
//!   been processed all the same, that counts as a retry, is done once, and only for what may be repeated.
//! - Something was sent: only an idempotent method whose body can be sent again is retried, at most `max_retries` times.
//! - Never the same instance twice while another is left; instances that local state speaks against come after the others.
//! - Such retries are charged to the service's budget; when that is used up, there is none.
//! - Waits (with jitter) only before the same instance or after a status; the lane that serves is never left.
//!
//! It also keeps the instances' cells: [`Attempts::next`] takes a ticket, [`Attempts::ended`] gives it back with what came of it,
//! and opens the instance's breaker where that is due. Dropped in the middle of a try, it says nothing about the instance and
//! frees the place of a try on an opened one. Whoever drives it does neither.
//!
//! Not here: connecting, sending, the clock.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    Decision, LaneView, ServiceView, SkipReason, Ticket,
    choose::{Asking, MayTry, skip_reason},
    floor,
    load::Room,
    near::Place,
    signals,
};
use crate::{
    config::Counts,
    types::{Mono, Planted},
};

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

impl MethodClass {
    /// Of a method as it was sent: methods are case-sensitive, and what is not known is never repeated.
    pub fn of(method: &str) -> Self {
        match method {
            "GET" | "HEAD" | "OPTIONS" | "TRACE" => Self::Safe,
            "PUT" | "DELETE" => Self::Idempotent,
            _ => Self::Other,
        }
    }
}

/// Alias for readers of the proxy.
pub type Method = MethodClass;

/// Limits of one request's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptsConfig {
    /// Retries after something was sent; connect refusals don't count.
    pub max_retries: u8,
    /// A try's own limit; for what may be repeated at most a third of `total`.
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
    /// A pooled connection broke after something was sent, before any response byte: most likely it had been closed for being idle,
    /// but it may have been processed.
    MaybeStale,
    /// The connection broke after something was sent, before any response byte.
    Reset,
    /// No response in the try's time.
    Timeout,
    /// A complete response with a status that may be retried ([`Counts::repeats`]).
    RetryableStatus(u16),
    /// Nothing was tried: this sidecar has as many requests at the instance as it may. It says nothing about the instance.
    Full,
    /// A gRPC call that ended with this code before any message came.
    Called(u8),
    /// A usable response with this status; whether it counts as the instance's failure is the breaker's matter.
    Answered(u16),
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
    /// It would have left its lane, but too many do in this second, or the lane in its place has no room for more.
    FallbackLimit,
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
            Self::FallbackLimit => "fallback_limit",
            Self::AllRefused => "all_refused",
            Self::UpstreamReset => "upstream_reset",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::Deadline => "deadline",
            Self::RetriesUsedUp => "retries_used_up",
        }
    }
}

/// One request's life.
#[derive(Debug)]
pub struct Attempts {
    key_hash: u64,
    lane: u16,
    panic: bool,
    /// It has left its lane.
    crossed: bool,
    /// It passed over an instance for those that wait there.
    wary: bool,
    /// It is counted.
    begun: bool,
    replayable: bool,
    repeatable: bool,
    max_retries: u8,
    per_try: Duration,
    /// A shorter try's timeout says nothing about the instance.
    patience: Duration,
    /// It is the deadline that makes a try as short as it is.
    hurried: bool,
    deadline: Mono,
    /// Start of the present try.
    since: Mono,
    tries: u8,
    retries: u8,
    /// A connection was stale, perhaps.
    doubted: bool,
    /// An instance has answered it with 500.
    erred: bool,
    /// The last instance that took a connection, and how the try on it ended.
    accepted: Option<(u16, GiveUp)>,
    state: State,
    /// Of the try that is under way.
    ticket: Option<Ticket>,
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
    place: Place,
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
            None if decision.capped => State::Over(GiveUp::FallbackLimit),
            None => State::Over(GiveUp::NoInstance),
        };
        let repeatable = replayable && class != MethodClass::Other;
        // What is never repeated leaves no time for others.
        let share = if repeatable { config.total / 3 } else { config.total };
        Self {
            key_hash: decision.key_hash,
            lane: decision.served.unwrap_or(0),
            panic: decision.panic,
            crossed: decision.fallback.is_some(),
            wary: decision.skipped.iter().any(|skipped| skipped.why == SkipReason::Silent),
            begun: false,
            replayable,
            repeatable,
            max_retries: config.max_retries,
            per_try: config.per_try.min(share),
            patience: config.per_try.min(LONG_ENOUGH),
            hurried: share < config.per_try,
            deadline: now + config.total,
            since: now,
            tries: 0,
            retries: 0,
            doubted: false,
            erred: false,
            accepted: None,
            state,
            ticket: None,
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
                State::Waiting { instance, .. } => {
                    self.ticket = Some(service.instances[usize::from(instance)].cell.force());
                    self.start(instance, false, service, now);
                }
                State::Ready { .. } if !self.begun => self.begin(service, now),
                State::Ready { instance, fresh, checked } => {
                    if self.ticket.is_none() {
                        let cell = &service.instances[usize::from(instance)].cell;
                        self.ticket = if checked { cell.admit(now, &service.rules) } else { Some(cell.force()) };
                    }
                    if self.ticket.is_some() {
                        self.start(instance, fresh, service, now);
                    } else {
                        // Another request took the place of the one that tries it since the decision. It stays untried.
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
        if outcome == Outcome::StaleConnection && !fresh {
            // The same ticket goes on.
            self.state = State::Ready { instance, fresh: true, checked: false };
            return;
        }
        if outcome == Outcome::MaybeStale && self.repeatable && !fresh && !std::mem::replace(&mut self.doubted, true) {
            self.tries = self.tries.saturating_add(1);
            self.retries = self.retries.saturating_add(1);
            self.state = State::Ready { instance, fresh: true, checked: false };
            return;
        }
        self.note(outcome, instance, service, now);
        match outcome {
            // A fresh connection that closes before it takes anything is as good as refused.
            Outcome::ConnectFailed | Outcome::StaleConnection => {
                if Planted::RefusedIsFinal.is_on() {
                    self.state = State::Over(GiveUp::AllRefused);
                    return;
                }
                self.mark_tried(instance, service);
                self.state = self.advance(service, now).unwrap_or_else(|| self.all_refused(service, now));
            }
            Outcome::Full => {
                self.mark_tried(instance, service);
                self.state = self.advance(service, now).unwrap_or_else(|| self.all_refused(service, now));
            }
            Outcome::Reset | Outcome::MaybeStale => self.failed(instance, GiveUp::UpstreamReset, service, now),
            Outcome::Timeout => {
                let why = if self.hurried { GiveUp::Deadline } else { GiveUp::UpstreamTimeout };
                self.failed(instance, why, service, now);
            }
            Outcome::RetryableStatus(_) => self.failed(instance, GiveUp::RetriesUsedUp, service, now),
            Outcome::Answered(_) | Outcome::Called(_) => self.state = State::Over(GiveUp::RetriesUsedUp),
        }
    }

    /// The try has an answer, of which only the end will say how it went (gRPC): over, and whoever reads on tells.
    pub fn hand_over(&mut self, service: &ServiceView, now: Mono) -> Option<Pending> {
        let State::Trying { instance, .. } = self.state else { return None };
        service.instances[usize::from(instance)].cell.answered(now.since(self.since));
        self.state = State::Over(GiveUp::RetriesUsedUp);
        self.ticket.take().map(|ticket| Pending { ticket, instance, lane: self.lane })
    }

    /// Tells the instance's breaker.
    fn note(&mut self, outcome: Outcome, instance: u16, service: &ServiceView, now: Mono) {
        let Some(ticket) = self.ticket.take() else { return };
        // A caller in a hurry must not speak for the instance.
        if outcome == Outcome::Timeout && self.per_try < self.patience {
            return;
        }
        let took = now.since(self.since);
        if matches!(outcome, Outcome::Answered(_) | Outcome::RetryableStatus(_) | Outcome::Called(_)) {
            service.instances[usize::from(instance)].cell.answered(took);
        }
        // What two instances in a row can't do is the request's fault: it must not open the breakers of a lane one after another.
        if outcome == Outcome::RetryableStatus(500) && std::mem::replace(&mut self.erred, true) {
            return;
        }
        note(ticket, outcome, Some(took), (instance, self.lane), service, now);
    }

    /// Tries after the first, whatever ended it; the fresh connection after one that was certainly stale is not another try.
    pub fn retries(&self) -> u8 {
        self.tries.saturating_sub(1)
    }

    /// Counts the request where its service's limits are kept; over when it must not begin.
    fn begin(&mut self, service: &ServiceView, now: Mono) {
        self.begun = true;
        let most = service.rules.fallback.per_second.filter(|_| self.crossed);
        if most.is_none_or(|most| service.state.fallbacks.allows(now, most)) {
            service.state.budget.request(now);
            if self.wary {
                service.state.count_wary();
            }
            if let Some(above) = service.rules.spread_above {
                service.state.rates.count(self.key_hash, above, now);
            }
        } else {
            self.state = State::Over(GiveUp::FallbackLimit);
        }
    }

    /// Number of the present try, from 1.
    pub fn number(&self) -> u8 {
        self.tries
    }

    fn start(&mut self, instance: u16, fresh: bool, service: &ServiceView, now: Mono) {
        if !fresh {
            let entry = &service.instances[usize::from(instance)];
            // A stream's silence is its users', or an upload's.
            if self.replayable {
                entry.cell.asked(now);
            }
            service.still_waits(entry, now);
            self.tries = self.tries.saturating_add(1);
        }
        self.since = now;
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
        if !self.charge(service, now) {
            self.state = State::Over(why);
            return;
        }
        self.state = match self.advance(service, now) {
            Some(State::Ready { instance, .. }) if why == GiveUp::RetriesUsedUp => self.wait(instance, why, now),
            Some(next) => next,
            None => self.wait(instance, why, now),
        };
    }

    /// No instance is left that was not tried. One that took a connection before may be tried again.
    fn all_refused(&mut self, service: &ServiceView, now: Mono) -> State {
        let Some((instance, why)) = self.accepted else { return State::Over(GiveUp::AllRefused) };
        if self.charge(service, now) { self.wait(instance, why, now) } else { State::Over(why) }
    }

    /// Whether it may be repeated, and is charged for it.
    fn charge(&mut self, service: &ServiceView, now: Mono) -> bool {
        let repeatable = self.repeatable || Planted::RetryUnsafe.is_on();
        if !repeatable || self.retries >= self.max_retries && !Planted::NoDeadline.is_on() {
            return false;
        }
        if !service.state.budget.retry(now, &service.rules) {
            service.state.count_denied();
            return false;
        }
        self.retries += 1;
        true
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
        // A request that has failed once is not sent to see whether another instance works again.
        let room = Room::of(lane, &service.rules);
        let asking = Asking {
            key_hash,
            may_try: MayTry::No,
            wary: service.rules.silent_after.filter(|_| !self.repeatable),
            room,
            now,
        };
        let walk = self.walk(service);
        loop {
            let Some(instance) = walk.place.next(lane, key_hash) else {
                if std::mem::replace(&mut walk.second_lap, true) {
                    return None;
                }
                walk.place = Place::start(lane, key_hash);
                continue;
            };
            let entry = &service.instances[usize::from(instance)];
            let anyway = panic || walk.second_lap;
            if !walk.was_tried(instance) && (anyway || skip_reason(entry, &service.rules, asking).is_none()) {
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
                place: Place::start(lane, self.key_hash),
                second_lap: false,
                tried: vec![0; service.instances.len().div_ceil(64)].into(),
            })
        })
    }
}

/// An answer whose end will say how it went. Dropped, it says nothing about the instance.
#[derive(Debug)]
pub struct Pending {
    ticket: Ticket,
    instance: u16,
    lane: u16,
}

impl Pending {
    /// How it went. `service` must come from the decision's snapshot.
    pub fn ended(self, outcome: Outcome, service: &ServiceView, now: Mono) {
        note(self.ticket, outcome, None, (self.instance, self.lane), service, now);
    }
}

/// Tells an instance's cell how a request there went, opens its breaker where that is due, and rings when others should hear of it.
fn note(
    ticket: Ticket,
    outcome: Outcome,
    took: Option<Duration>,
    (instance, lane): (u16, u16),
    service: &ServiceView,
    now: Mono,
) {
    let cell = &service.instances[usize::from(instance)].cell;
    let epoch = ticket.epoch();
    let slow = service.rules.breaker.slow.zip(took);
    match verdict(outcome, &service.rules.breaker.counts) {
        // It answers, and takes as long as before: what it was kept away for goes on.
        Verdict::Success if slow.is_some_and(|(times, took)| cell.is_slow_still(took, times)) => {
            cell.stays_away(&ticket, now, &service.rules);
        }
        Verdict::Success => {
            let (current, comes_back) = (epoch == cell.epoch(), cell.succeeded(ticket, now, &service.rules));
            if comes_back {
                service.state.count_returned();
            } else if let (true, Some((times, took))) = (current, slow)
                && cell.is_slow(took, times, now)
            {
                floor::keep_away(service, &service.lanes[usize::from(lane)], instance, false, now);
            }
        }
        Verdict::Failure => {
            if cell.failed(ticket, now, &service.rules) {
                floor::open(service, &service.lanes[usize::from(lane)], instance, epoch, now);
            }
            if signals::is_worth_telling(cell, now, &service.rules) {
                service.state.ring();
            }
        }
        // Dropped, the ticket says nothing.
        Verdict::Neither => {}
    }
}

/// What an outcome says about the instance.
enum Verdict {
    Success,
    Failure,
    Neither,
}

fn verdict(outcome: Outcome, counts: &Counts) -> Verdict {
    let failure = match outcome {
        Outcome::ConnectFailed | Outcome::StaleConnection => counts.connect,
        Outcome::Reset | Outcome::MaybeStale => counts.reset,
        Outcome::Timeout => counts.timeout,
        Outcome::Full => false,
        Outcome::Called(code) if counts.grpc.contains(code) => true,
        Outcome::RetryableStatus(status) | Outcome::Answered(status) if counts.statuses.contains(status) => true,
        Outcome::RetryableStatus(_) | Outcome::Answered(_) | Outcome::Called(_) => return Verdict::Success,
    };
    if failure { Verdict::Failure } else { Verdict::Neither }
}

impl Walk {
    fn was_tried(&self, instance: u16) -> bool {
        self.tried[usize::from(instance) / 64] >> (instance % 64) & 1 == 1
    }
}

/// Who does not answer in this time is slow, whatever the limit of a try is.
const LONG_ENOUGH: Duration = Duration::from_secs(1);
/// Longest wait before the first retry that waits; doubles with every further one.
const BACKOFF: Duration = Duration::from_millis(25);
/// 25, 50, 100, 200, 400 ms.
const BACKOFF_DOUBLINGS: u8 = 5;

#[cfg(test)]
mod tests;
