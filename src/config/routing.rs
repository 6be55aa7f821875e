//! How requests to one service are spread over its instances and kept away from sick ones: `[routing]` for all services, any
//! of its keys again in `[service.NAME]` for one.

use std::time::Duration;

use super::{
    fault::{Faults, Wrong},
    keys::Key,
    raw::Value,
    table::Section,
    values::{self, Parsed, format_duration},
};
use crate::types::{InstanceId, Region};

/// Rules of one service.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// When an instance is passed over for its failures.
    pub breaker: Breaker,
    /// In which an instance that is new, or back in rotation, gets its keys: a tenth at once, the rest evenly. Zero: all at once.
    pub slow_start: Duration,
    /// Retries after something was sent, as a share of the service's requests.
    pub retry_share: f64,
    /// And so many a second beyond that.
    pub retries_per_second: u32,
    /// When requests leave their lane.
    pub fallback: Fallback,
    /// Own zone first, then own region (REQUIREMENTS R7).
    pub prefer_zone: bool,
    /// Requests go to instances of these regions only; empty: of any (REQUIREMENTS R1).
    pub regions: Vec<Region>,
    /// Which of its candidates a request goes to.
    pub balance: Balance,
    /// Most of this sidecar's requests in flight at one instance, in per cent of its even part; `None` for no bound (R8).
    pub bounded_load: Option<u16>,
    /// A request that cannot be repeated is not sent where several have waited unheard of for so long (and longer than its answers
    /// take); `None`: it is.
    pub silent_after: Option<Duration>,
    /// Requests in flight at which an instance is full: `proxy.max_requests_per_instance`.
    pub most_in_flight: u32,
    /// Keys that are spread, and over how many instances each.
    pub spread: Vec<(String, u8)>,
    /// Keys that are pinned, and the instances that each has before all others.
    pub pin: Vec<(String, Vec<InstanceId>)>,
    /// A key with more requests a second is spread too; `None` for none.
    pub spread_above: Option<u32>,
    /// Over how many instances.
    pub spread_over: u8,
    /// Whether failures are told to other sidecars, and theirs are believed (REQUIREMENTS M10).
    pub signals: bool,
}

/// Which of a lane's candidates a request goes to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Balance {
    /// By its key's place on the ring; without a key, any.
    #[default]
    Ring,
    /// As `Ring`, but without a key the one of two with fewer requests in flight.
    KeylessLeastLoaded,
    /// Always the one of two with fewer requests in flight: for services that keep nothing of their users.
    LeastLoaded,
}

/// When requests leave a lane that cannot serve them, as far as the service's policy lets them (REQUIREMENTS L7).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fallback {
    /// The lane has no instance.
    pub absent: bool,
    /// It has some, none healthy.
    pub unhealthy: bool,
    /// It has some, all draining or at weight 0.
    pub draining: bool,
    /// It has candidates, and breakers keep all of them away.
    pub sick: bool,
    /// It has candidates, and all of them are full.
    pub saturated: bool,
    /// How long a lane that had nobody must hold before its users go back.
    pub hold: Duration,
    /// Most such requests a second; `None` for any number.
    pub per_second: Option<u32>,
    /// Share of its announced capacity up to which they may fill the lane that takes them.
    pub fill: f64,
}

impl Default for Routing {
    /// As a sidecar without a `[routing]` section has it.
    fn default() -> Self {
        let breaker = Breaker {
            failures: 3,
            of: 6,
            window: Duration::from_secs(10),
            share: 0.5,
            volume: 20,
            open: Duration::from_secs(10),
            open_max: Duration::from_secs(300),
            ramp: Duration::from_secs(20),
            slow: None,
            max_share: 0.5,
            counts: Counts {
                connect: true,
                reset: true,
                timeout: true,
                statuses: Statuses::of(&[500, 502, 503, 504]),
                grpc: GrpcCodes::of(&GRPC_FAILURES),
            },
        };
        let hold = Duration::from_secs(5);
        let (absent, unhealthy, draining, sick, saturated) = (true, true, true, true, false);
        let fallback = Fallback { absent, unhealthy, draining, sick, saturated, hold, per_second: None, fill: 0.8 };
        let slow_start = Duration::from_secs(10);
        Self {
            breaker,
            slow_start,
            retry_share: 0.2,
            retries_per_second: 1,
            fallback,
            prefer_zone: false,
            regions: Vec::new(),
            balance: Balance::Ring,
            bounded_load: None,
            silent_after: Some(Duration::from_millis(100)),
            most_in_flight: 4_096,
            spread: Vec::new(),
            pin: Vec::new(),
            spread_above: None,
            spread_over: 4,
            signals: true,
        }
    }
}

/// The breaker of each instance (REQUIREMENTS R5).
#[derive(Debug, Clone, PartialEq)]
pub struct Breaker {
    /// So many failures of the last `of` open it; 0 leaves that rule out.
    pub failures: u8,
    /// 1..=16, at least `failures`.
    pub of: u8,
    /// Failures are forgotten after this; and the window of `share`.
    pub window: Duration,
    /// This share of failures in the window opens it as well.
    pub share: f64,
    /// Fewest results in the window for `share`; 0 leaves that rule out.
    pub volume: u32,
    /// How long it stays open the first time, give or take a fifth.
    pub open: Duration,
    /// The longest; doubles up to here.
    pub open_max: Duration,
    /// After a successful try, from a tenth of its keys to all of them.
    pub ramp: Duration,
    /// An instance whose answers take so many times what its lane's usually take is kept away; `None`: slowness is no failure.
    pub slow: Option<u32>,
    /// Largest share of a lane that may be kept away at a time; one instance always stays.
    pub max_share: f64,
    /// What counts as a failure.
    pub counts: Counts,
}

/// What counts as an instance's failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// No connection.
    pub connect: bool,
    /// The connection broke before the response.
    pub reset: bool,
    /// No response in the try's time.
    pub timeout: bool,
    /// Responses with these statuses.
    pub statuses: Statuses,
    /// gRPC calls that end with these codes.
    pub grpc: GrpcCodes,
}

impl Counts {
    /// Whether a complete response with this status is asked for again at another instance, where the request may be: 502, 503 and 504
    /// always, since no application gave an answer; 500 where it counts as the instance's failure.
    pub const fn repeats(&self, status: u16) -> bool {
        matches!(status, 502..=504) || status == 500 && self.statuses.contains(500)
    }
}

/// A set of statuses 500 to 599.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statuses(u128);

impl Statuses {
    /// Of a list; what is outside of 500 to 599 is left out.
    pub fn of(list: &[u16]) -> Self {
        Self(list.iter().filter(|status| (500..600).contains(*status)).fold(0, |set, status| set | 1 << (status - 500)))
    }

    /// Whether a status is in it.
    pub const fn contains(self, status: u16) -> bool {
        status >= 500 && status < 600 && self.0 >> (status - 500) & 1 == 1
    }
}

/// A set of gRPC status codes, 1 to 16.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GrpcCodes(u32);

impl GrpcCodes {
    /// Of a list; what is no code of an error is left out.
    pub fn of(list: &[u8]) -> Self {
        Self(list.iter().filter(|code| (1..=16).contains(*code)).fold(0, |set, code| set | 1 << code))
    }

    /// Whether a code is in it.
    pub const fn contains(self, code: u8) -> bool {
        code < 32 && self.0 >> code & 1 == 1
    }
}

/// Names of gRPC's codes from 1 on (grpc/doc/statuscodes.md), as they are written here.
const GRPC_NAMES: [&str; 16] = [
    "cancelled",
    "unknown",
    "invalid_argument",
    "deadline_exceeded",
    "not_found",
    "already_exists",
    "permission_denied",
    "resource_exhausted",
    "failed_precondition",
    "aborted",
    "out_of_range",
    "unimplemented",
    "internal",
    "unavailable",
    "data_loss",
    "unauthenticated",
];

/// UNKNOWN, INTERNAL, UNAVAILABLE, DATA_LOSS: what is the server's doing, by gRPC's own words.
const GRPC_FAILURES: [u8; 4] = [2, 13, 14, 15];

/// By name or number.
fn grpc_code(text: &str) -> Option<u8> {
    let named = GRPC_NAMES.iter().position(|name| name.eq_ignore_ascii_case(text)).map(|at| at as u8 + 1);
    named.or_else(|| text.parse().ok().filter(|code| (1..=16).contains(code)))
}

/// Reads one section's keys over `base`: what is not given there stays.
pub(super) fn read(s: &Section<'_>, base: &Routing, f: &mut Faults) -> Routing {
    let mut rules = base.clone();
    let breaker = &mut rules.breaker;
    set(&mut breaker.failures, s.given(f, "breaker_failures", |v, k| values::whole(v, k).map(small)));
    set(&mut breaker.of, s.given(f, "breaker_of", |v, k| values::whole(v, k).map(small)));
    set(&mut breaker.window, s.given(f, "breaker_window", values::span));
    set(&mut breaker.share, s.given(f, "breaker_share", values::share));
    set(&mut breaker.volume, s.given(f, "breaker_volume", |v, k| values::whole(v, k).map(small)));
    set(&mut breaker.open, s.given(f, "breaker_open", values::span));
    set(&mut breaker.open_max, s.given(f, "breaker_open_max", values::span));
    set(&mut breaker.ramp, s.given(f, "breaker_ramp", values::span));
    if let Some(times) = s.given(f, "breaker_slow", |v, k| values::whole(v, k).map(small)) {
        breaker.slow = Some(times);
    }
    set(&mut breaker.max_share, s.given(f, "breaker_max_share", values::share));
    set(&mut breaker.counts, s.given(f, "breaker_counts", counts));
    set(&mut rules.retry_share, s.given(f, "retry_share", values::share));
    set(&mut rules.retries_per_second, s.given(f, "retries_per_second", |v, k| values::whole(v, k).map(small)));
    set(&mut rules.fallback.hold, s.given(f, "fallback_hold", values::span));
    if let Some(per_second) = s.given(f, "fallback_per_second", |v, k| values::whole(v, k).map(small)) {
        rules.fallback.per_second = Some(per_second);
    }
    if let Some(on) = s.given(f, "fallback_on", fallback_on) {
        let Fallback { hold, per_second, fill, .. } = rules.fallback;
        rules.fallback = Fallback { hold, per_second, fill, ..on };
    }
    set(&mut rules.fallback.fill, s.given(f, "fallback_capacity", values::share));
    set(&mut rules.prefer_zone, s.given(f, "prefer_zone", values::flag));
    set(&mut rules.regions, s.given(f, "regions", regions));
    set(&mut rules.balance, s.given(f, "balance", balance));
    if let Some(percent) = s.given(f, "bounded_load", |v, k| values::whole(v, k).map(small)) {
        rules.bounded_load = Some(percent);
    }
    if let Some(after) = s.given(f, "silent_after", values::span) {
        rules.silent_after = Some(after).filter(|after| !after.is_zero());
    }
    set(&mut rules.spread, s.given(f, "spread", spread));
    set(&mut rules.pin, s.given(f, "pin", pin));
    if let Some(above) = s.given(f, "spread_above", |v, k| values::whole(v, k).map(small)) {
        rules.spread_above = Some(above);
    }
    set(&mut rules.spread_over, s.given(f, "spread_over", |v, k| values::whole(v, k).map(small)));
    set(&mut rules.signals, s.given(f, "signals", values::flag));
    set(&mut rules.slow_start, s.given(f, "slow_start", values::span));
    let breaker = &rules.breaker;
    if breaker.failures > breaker.of {
        let (failures, of) = (breaker.failures, breaker.of);
        let reason = format!("{failures} of the last {of} can never be reached");
        s.fault(f, "breaker_failures", Wrong::new(reason, format!("lower it to {of} or raise breaker_of")));
    }
    if breaker.open > breaker.open_max {
        let (open, most) = (format_duration(breaker.open), format_duration(breaker.open_max));
        let reason = format!("{open} is longer than breaker_open_max ({most}), up to which it doubles");
        s.fault(f, "breaker_open", Wrong::new(reason, format!("lower it to {most} or raise breaker_open_max")));
    }
    rules
}

fn set<T>(place: &mut T, given: Option<T>) {
    if let Some(value) = given {
        *place = value;
    }
}

/// Into the type of a field whose key's range fits it.
fn small<T: TryFrom<u64>>(n: u64) -> T {
    T::try_from(n).unwrap_or_else(|_| unreachable!("{n} is within its key's range, which fits the field"))
}

fn balance(value: &Value, key: &Key) -> Parsed<Balance> {
    Ok(match values::choice(value, key)? {
        "least-loaded" => Balance::LeastLoaded,
        "keyless-least-loaded" => Balance::KeylessLeastLoaded,
        _ => Balance::Ring,
    })
}

/// Names of regions.
fn regions(value: &Value, key: &Key) -> Parsed<Vec<Region>> {
    let read =
        |text: &str| Region::new(text).map_err(|error| Wrong::new(error.to_string(), "write names, such as \"eu\""));
    values::texts(value, key)?.into_iter().map(read).collect()
}

/// `KEY=NUMBER`, each.
fn spread(value: &Value, key: &Key) -> Parsed<Vec<(String, u8)>> {
    let one = |text: &str| {
        let (name, over) = text.rsplit_once('=')?;
        let over = over.trim().parse().ok().filter(|over| (2..=MOST_SPREAD).contains(over))?;
        (!name.trim().is_empty()).then(|| (name.trim().to_owned(), over))
    };
    let read = |text: &str| {
        one(text).ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            let cure = format!("write KEY=NUMBER, the number from 2 to {MOST_SPREAD}, such as \"tenant-7=4\"");
            Wrong::new(format!("`{shown}` says of no key over how many instances it is spread"), cure)
        })
    };
    once(values::texts(value, key)?.into_iter().map(read).collect::<Parsed<_>>()?)
}

/// Entries by key, of which none may be said twice: which of the two would count is anybody's guess.
fn once<T>(entries: Vec<(String, T)>) -> Parsed<Vec<(String, T)>> {
    for (at, (name, _)) in entries.iter().enumerate() {
        if entries[..at].iter().any(|(before, _)| before == name) {
            let shown: String = name.chars().take(40).collect();
            return Err(Wrong::new(format!("`{shown}` is there twice"), "leave one entry for each key".to_owned()));
        }
    }
    Ok(entries)
}

/// `KEY=INSTANCE` or `KEY=INSTANCE+INSTANCE`, each.
fn pin(value: &Value, key: &Key) -> Parsed<Vec<(String, Vec<InstanceId>)>> {
    let one = |text: &str| {
        let (name, named) = text.rsplit_once('=')?;
        let named: Vec<InstanceId> = named.split('+').map(|id| id.trim().parse().ok()).collect::<Option<_>>()?;
        (!name.trim().is_empty() && named.len() <= MOST_PINNED).then(|| (name.trim().to_owned(), named))
    };
    let read = |text: &str| {
        one(text).ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            let cure = format!(
                "write KEY=INSTANCE, or up to {MOST_PINNED} of them as KEY=INSTANCE+INSTANCE, such as \"tenant-7=orders-3\""
            );
            Wrong::new(format!("`{shown}` does not pin a key to instances"), cure)
        })
    };
    once(values::texts(value, key)?.into_iter().map(read).collect::<Parsed<_>>()?)
}

/// Most instances that a key is pinned to.
const MOST_PINNED: usize = 16;
/// Most instances that a key is spread over.
const MOST_SPREAD: u8 = 64;

/// The causes; the rest is not read.
fn fallback_on(value: &Value, key: &Key) -> Parsed<Fallback> {
    let (absent, unhealthy, draining, sick, saturated) = (false, false, false, false, false);
    let (hold, per_second, fill) = (Duration::ZERO, None, 0.0);
    let mut on = Fallback { absent, unhealthy, draining, sick, saturated, hold, per_second, fill };
    for text in values::texts(value, key)? {
        match text {
            "absent" => on.absent = true,
            "unhealthy" => on.unhealthy = true,
            "draining" => on.draining = true,
            "sick" => on.sick = true,
            "saturated" => on.saturated = true,
            other => {
                let shown: String = other.chars().take(40).collect();
                let cure = "write absent, unhealthy, draining, sick or saturated";
                return Err(Wrong::new(format!("`{shown}` is no cause"), cure));
            }
        }
    }
    Ok(on)
}

fn counts(value: &Value, key: &Key) -> Parsed<Counts> {
    let (statuses, grpc) = (Statuses::default(), GrpcCodes::default());
    let mut counts = Counts { connect: false, reset: false, timeout: false, statuses, grpc };
    let (mut statuses, mut codes) = (Vec::new(), Vec::new());
    for text in values::texts(value, key)? {
        match text {
            "connect" => counts.connect = true,
            "reset" => counts.reset = true,
            "timeout" => counts.timeout = true,
            "5xx" => statuses.extend(500..600),
            "grpc" => codes.extend(GRPC_FAILURES),
            other => match (other.parse(), other.strip_prefix("grpc:").and_then(grpc_code)) {
                (Ok(status @ 500..600), _) => statuses.push(status),
                (_, Some(code)) => codes.push(code),
                _ => {
                    let shown: String = other.chars().take(40).collect();
                    let cure = "write connect, reset, timeout, 5xx, statuses from 500 to 599, such as \"503\", or gRPC codes, such as \
                                \"grpc:unavailable\"";
                    return Err(Wrong::new(format!("`{shown}` is no kind of failure"), cure));
                }
            },
        }
    }
    counts.statuses = Statuses::of(&statuses);
    counts.grpc = GrpcCodes::of(&codes);
    Ok(counts)
}
