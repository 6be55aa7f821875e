//! What the data path knows of one instance: its breaker, its last results, its requests in flight. Atomic words, shared by
//! threads and by successive snapshots.
//!
//! A request takes a [`Ticket`] before it goes to the instance and gives it back with what came of it. The ticket knows in which
//! epoch of the breaker the request began, so that results of requests sent before an opening do not count; and it holds the one
//! place of a try on an opened breaker, which is free again when it is dropped, however the request ends (case C76).
//!
//! [`InstanceCell::failed`] only says that the breaker should open; whether it may is decided by the lane (`floor`).
//!
//! Memory order: everything is `Relaxed`. Each word means something by itself; no other memory is published through them, and a
//! thread that reads a word some nanoseconds old makes a decision that was right then.

mod proof;
mod record;
mod seen;
mod word;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use record::{Recent, Window};
use serde::{Deserialize, Serialize};
use word::{Phase, Word};

use super::{Load, pace::Pace};
use crate::{
    config::{Breaker, Routing},
    types::Mono,
};

/// Local state of one instance.
#[derive(Debug, Default)]
pub struct InstanceCell {
    word: Line<AtomicU64>,
    counts: Line<Counts>,
    /// Of its lane.
    load: Arc<Load>,
    /// Makes its open times differ from other sidecars' and other instances'.
    seed: u64,
    /// Failed tries since it was last well. See `proof`.
    tried: AtomicU64,
}

/// A cache line of its own: the word is read by every decision, the counts are written by every request.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line<T>(T);

#[derive(Debug, Default)]
struct Counts {
    in_flight: AtomicU32,
    /// Slow answers in a row, and since when: 8 bits and 24, the latter hundredths of a second, wrapping. See `proof`.
    slow: AtomicU32,
    recent: AtomicU64,
    window: AtomicU64,
    pace: Pace,
    /// What nearly all of its answers take; kept whatever happens.
    longest: Pace,
    /// Requests sent since it last answered one. See `seen`.
    unheard: AtomicU64,
    /// When it last answered anything, in milliseconds; 0: never.
    heard: AtomicU64,
    /// When a request last went well there, in milliseconds; 0: never.
    good: AtomicU64,
}

/// What a decision sees of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nothing speaks against it.
    Well,
    /// Its breaker is open, or a try is under way.
    Shut {
        /// Other sidecars' signals opened it, not failures here.
        signalled: bool,
    },
    /// Its breaker has been open for long enough: one request may try it. `overdue`: nobody whose failure could be repaired has
    /// come for a while, so any request may.
    MayTry {
        /// See above.
        overdue: bool,
    },
    /// It takes the keys whose admission hash is at most this.
    Ramping {
        /// Of 2^32.
        share: u32,
        /// It is new, and starts slowly.
        fresh: bool,
    },
}

/// The state of a breaker in a word, for people and metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BreakerState {
    /// Takes all of its keys.
    #[default]
    Closed,
    /// Kept away.
    Open,
    /// Waits for the answer to one request, or for that request.
    HalfOpen,
    /// Its keys come back.
    Ramping,
    /// New: its keys come slowly.
    SlowStart,
    /// Should be open, but too much of the lane is kept away already.
    Held,
    /// Kept away because other sidecars saw it fail.
    Signalled,
}

impl BreakerState {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Closed, Self::Open, Self::HalfOpen, Self::Ramping, Self::SlowStart, Self::Held, Self::Signalled];

    /// As it is labelled.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
            Self::Ramping => "ramping",
            Self::SlowStart => "slow-start",
            Self::Held => "held",
            Self::Signalled => "signalled",
        }
    }
}

/// A request's right to go to an instance. Dropped without a result it says nothing about the instance.
#[derive(Debug)]
pub struct Ticket {
    epoch: u16,
    place: Option<Place>,
}

/// The place of the one request that tries an opened instance.
#[derive(Debug)]
struct Place {
    cell: Arc<InstanceCell>,
    /// The word by which it was taken; another one there means that the place was given to somebody else.
    word: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let free = Word { phase: Phase::Open, at: 0, ..Word::unpack(self.word) };
        // On failure the place is not this one's any more: used, or lost to time.
        let _ = self.cell.word.0.compare_exchange(self.word, free.pack(), Relaxed, Relaxed);
    }
}

impl InstanceCell {
    /// Of an instance of a lane on one sidecar; open times differ by `seed`.
    pub fn new(seed: u64, load: Arc<Load>) -> Self {
        Self { seed, load, ..Self::default() }
    }

    /// Whether its requests count for that lane.
    pub(super) fn is_of(&self, load: &Arc<Load>) -> bool {
        Arc::ptr_eq(&self.load, load)
    }

    /// What a decision sees.
    #[inline]
    pub fn look(&self, now: Mono, rules: &Routing) -> Look {
        let packed = self.word.0.load(Relaxed);
        if Word::is_closed(packed) { Look::Well } else { look(Word::unpack(packed), now, rules) }
    }

    /// The breaker's state.
    pub fn state(&self, now: Mono, rules: &Routing) -> BreakerState {
        let word = Word::unpack(self.word.0.load(Relaxed));
        match (word.phase, look(word, now, rules)) {
            (Phase::Closed, _) if word.held => BreakerState::Held,
            (_, Look::Well) => BreakerState::Closed,
            (Phase::Open, Look::Shut { signalled: true }) => BreakerState::Signalled,
            (Phase::Open, Look::Shut { .. }) => BreakerState::Open,
            (_, Look::Shut { .. } | Look::MayTry { .. }) => BreakerState::HalfOpen,
            (_, Look::Ramping { fresh: true, .. }) => BreakerState::SlowStart,
            (_, Look::Ramping { .. }) => BreakerState::Ramping,
        }
    }

    /// Until when an open breaker keeps it away.
    pub fn open_until(&self, now: Mono) -> Option<Mono> {
        let word = Word::unpack(self.word.0.load(Relaxed));
        (word.phase == Phase::Open && word.is_shut(now)).then(|| Mono::from_millis(word.at))
    }

    /// A ticket, if a request may go to it now. Of several that ask an opened one, one gets it; if nothing is heard of that
    /// request for an open time, another.
    pub fn admit(self: &Arc<Self>, now: Mono, rules: &Routing) -> Option<Ticket> {
        let packed = self.word.0.load(Relaxed);
        let word = Word::unpack(packed);
        if matches!(word.phase, Phase::Closed | Phase::Ramping) {
            return Some(Ticket { epoch: word.epoch, place: None });
        }
        if word.is_shut(now) {
            return None;
        }
        // At least a millisecond, or the place would be taken and free at once.
        let lease = rules.breaker.open.max(Duration::from_millis(1));
        let taken = Word { phase: Phase::Probing, at: (now + lease).millis(), ..word };
        let taken = taken.pack();
        self.word.0.compare_exchange(packed, taken, Relaxed, Relaxed).ok()?;
        Some(Ticket { epoch: word.epoch, place: Some(Place { cell: self.clone(), word: taken }) })
    }

    /// A ticket for a request that goes there whatever speaks against it.
    pub fn force(&self) -> Ticket {
        Ticket { epoch: Word::unpack(self.word.0.load(Relaxed)).epoch, place: None }
    }

    /// A request failed in a way that counts. True when the breaker should open: see [`open`](Self::open).
    pub fn failed(&self, ticket: Ticket, now: Mono, rules: &Routing) -> bool {
        let rules = &rules.breaker;
        let packed = self.word.0.load(Relaxed);
        let word = Word::unpack(packed);
        if ticket.epoch != word.epoch {
            return false;
        }
        if let Some(place) = &ticket.place {
            self.try_failed(place, now, rules);
            return false;
        }
        let recent = self.update_recent(|recent| recent.failure(now, rules.window));
        let window = self.update_window(true, now, rules);
        matches!(word.phase, Phase::Closed | Phase::Ramping) && (recent.opens(rules) || window.opens(rules))
    }

    /// A request was answered as it should be. True when the instance starts to come back by this.
    pub fn succeeded(&self, ticket: Ticket, now: Mono, rules: &Routing) -> bool {
        let packed = self.word.0.load(Relaxed);
        self.counts.0.good.store(now.millis(), Relaxed);
        if rules.breaker.volume > 0 {
            self.update_window(false, now, &rules.breaker);
        }
        let word = Word::unpack(packed);
        if ticket.epoch != word.epoch {
            // Others' word keeps it away, and it answers what was sent before: where nothing failed here, that speaks louder.
            let doubted = word.phase == Phase::Open && word.fresh && word.epoch == ticket.epoch.wrapping_add(1);
            let failed_here = self.counts.0.recent.load(Relaxed) != 0;
            return doubted && !failed_here && self.comes_back(packed, word.ramping(now));
        }
        if packed & NOTEWORTHY == 0 {
            // Read first: the usual case writes nothing more.
            if self.counts.0.recent.load(Relaxed) != 0 {
                self.update_recent(|recent| recent.success(false));
            }
            return false;
        }
        if matches!(word.phase, Phase::Open | Phase::Probing) {
            return self.comes_back(packed, word.ramping(now));
        }
        self.confirmed(packed, word, now, rules);
        false
    }

    /// Opens the breaker, for results of that epoch, or because of other sidecars' signals; false when something else happened
    /// meanwhile.
    pub(super) fn open(&self, epoch: u16, signalled: bool, now: Mono, rules: &Routing) -> bool {
        let packed = self.word.0.load(Relaxed);
        let word = Word::unpack(packed);
        let opens = word.epoch == epoch && matches!(word.phase, Phase::Closed | Phase::Ramping);
        let open = Word { fresh: signalled, ..word.opened(self.seed, now, &rules.breaker) }.pack();
        opens && self.word.0.compare_exchange(packed, open, Relaxed, Relaxed).is_ok()
    }

    /// It should be open but must stay: noted, until a success. True when it was not so before.
    pub(super) fn hold(&self) -> bool {
        let held = |packed| {
            let word = Word::unpack(packed);
            Some(Word { phase: Phase::Closed, held: true, ..word }.pack())
        };
        self.word.0.fetch_update(Relaxed, Relaxed, held).is_ok_and(|before| !Word::unpack(before).held)
    }

    /// Requests from this sidecar that ended lately, and failures among them. What happened before a breaker closed again is
    /// forgotten.
    pub fn outcomes(&self, now: Mono, rules: &Routing) -> (u16, u16) {
        Window::unpack(self.counts.0.window.load(Relaxed)).at(now, rules.breaker.window).counts()
    }

    /// Whether other sidecars' signals keep it away.
    pub(super) fn is_signalled(&self) -> bool {
        let word = Word::unpack(self.word.0.load(Relaxed));
        matches!(word.phase, Phase::Open | Phase::Probing) && word.fresh
    }

    /// Whether it has answered several requests of the present window, and failed none.
    pub(super) fn is_well(&self, now: Mono, rules: &Routing) -> bool {
        let (total, failures) = self.outcomes(now, rules);
        total >= 5 && failures == 0
    }

    /// Requests that went well there in a row, where that is counted: after failures, until they are forgiven.
    pub(super) fn clean(&self) -> u16 {
        let counted = Word::unpack(self.word.0.load(Relaxed)).level > 0;
        if counted { Recent::unpack(self.counts.0.recent.load(Relaxed)).successes() } else { 0 }
    }

    /// The epoch of results that count now.
    pub(super) fn epoch(&self) -> u16 {
        Word::unpack(self.word.0.load(Relaxed)).epoch
    }

    /// Whether its breaker keeps it away, or keeps some of its keys away.
    pub(super) fn is_away(&self, now: Mono, rules: &Routing) -> bool {
        !matches!(self.look(now, rules), Look::Well | Look::Ramping { fresh: true, .. })
    }

    /// Its owner announced it anew: nothing that was held against it counts any more.
    pub fn renew(&self) {
        let renewed = |packed| Some(Word::unpack(packed).renewed().pack());
        let always = self.word.0.fetch_update(Relaxed, Relaxed, renewed);
        debug_assert!(always.is_ok(), "the closure never refuses");
        self.forget();
    }

    /// It is new, or is back in rotation: its keys come slowly, from `begin` on.
    pub fn start_slowly(&self, begin: Mono) {
        let slowly = |packed| Some(Word { fresh: true, ..Word::unpack(packed).renewed().ramping(begin) }.pack());
        let always = self.word.0.fetch_update(Relaxed, Relaxed, slowly);
        debug_assert!(always.is_ok(), "the closure never refuses");
        self.forget();
    }

    /// A response's head came from it, whatever it says.
    #[inline]
    pub fn heard(&self, now: Mono) {
        self.counts.0.heard.store(now.millis(), Relaxed);
    }

    /// When that was last.
    pub fn last_heard(&self) -> Option<Mono> {
        Some(self.counts.0.heard.load(Relaxed)).filter(|millis| *millis > 0).map(Mono::from_millis)
    }

    /// Requests in flight from this sidecar.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.counts.0.in_flight.load(Relaxed)
    }

    /// Counts a request as in flight until the guard is dropped.
    pub fn enter(self: &Arc<Self>) -> InFlight {
        self.counts.0.in_flight.fetch_add(1, Relaxed);
        InFlight { cell: self.clone(), in_lane: self.load.enter() }
    }

    /// The try's answer: from open to ramping, with nothing else on record.
    fn comes_back(&self, packed: u64, next: Word) -> bool {
        let won = self.word.0.compare_exchange(packed, next.pack(), Relaxed, Relaxed).is_ok();
        if won {
            self.forget();
            self.update_recent(|recent| recent.success(true));
        }
        won
    }

    /// A success while something is still noted: the ramp's end, an open time that shortens, a floor that is not needed.
    fn confirmed(&self, packed: u64, word: Word, now: Mono, rules: &Routing) {
        let recent = self.update_recent(|recent| recent.success(word.level > 0));
        let mut next = word;
        if look(word, now, rules) == Look::Well {
            next = Word { phase: Phase::Closed, fresh: false, at: 0, ..next };
        }
        next.held &= recent.opens(&rules.breaker);
        if let Some(counted) = recent.lowers()
            && next.phase == Phase::Closed
        {
            self.counts.0.recent.store(counted.pack(), Relaxed);
            next.level = next.level.saturating_sub(1);
        }
        if next != word {
            // On failure somebody else changed it, and the next success comes by here again.
            let _ = self.word.0.compare_exchange(packed, next.pack(), Relaxed, Relaxed);
        }
    }

    fn forget(&self) {
        self.counts.0.recent.store(0, Relaxed);
        self.counts.0.window.store(0, Relaxed);
        self.counts.0.pace.forget();
        self.counts.0.slow.store(0, Relaxed);
        self.counts.0.unheard.store(0, Relaxed);
        self.tried.store(0, Relaxed);
    }

    fn update_recent(&self, change: impl Fn(Recent) -> Recent) -> Recent {
        let mut old = self.counts.0.recent.load(Relaxed);
        loop {
            let new = change(Recent::unpack(old));
            match self.counts.0.recent.compare_exchange_weak(old, new.pack(), Relaxed, Relaxed) {
                Ok(_) => return new,
                Err(now) => old = now,
            }
        }
    }

    #[inline]
    fn update_window(&self, failed: bool, now: Mono, rules: &Breaker) -> Window {
        let mut old = self.counts.0.window.load(Relaxed);
        loop {
            let new = Window::unpack(old).with(failed, now, rules.window);
            match self.counts.0.window.compare_exchange_weak(old, new.pack(), Relaxed, Relaxed) {
                Ok(_) => return new,
                Err(now) => old = now,
            }
        }
    }
}

impl Ticket {
    /// The epoch in which it was taken.
    pub(super) fn epoch(&self) -> u16 {
        self.epoch
    }

    /// Whether it holds the place of the try.
    pub fn is_try(&self) -> bool {
        self.place.is_some()
    }
}

/// One request in flight; dropping it ends it.
#[derive(Debug)]
pub struct InFlight {
    cell: Arc<InstanceCell>,
    /// It is counted in the lane as well.
    in_lane: bool,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.cell.counts.0.in_flight.fetch_sub(1, Relaxed);
        if self.in_lane {
            self.cell.load.leave();
        }
    }
}

#[cold]
fn look(word: Word, now: Mono, rules: &Routing) -> Look {
    match word.phase {
        Phase::Closed => Look::Well,
        Phase::Ramping => {
            let length = if word.fresh { rules.slow_start } else { rules.breaker.ramp };
            word.ramp_share(now, length).map_or(Look::Well, |share| Look::Ramping { share, fresh: word.fresh })
        }
        Phase::Open | Phase::Probing if word.is_shut(now) => Look::Shut { signalled: word.fresh },
        Phase::Open | Phase::Probing => {
            let overdue = Mono::from_millis(word.at) + PATIENCE <= now;
            Look::MayTry { overdue }
        }
    }
}

/// For so long only requests that can be repeated elsewhere try an instance.
const PATIENCE: Duration = Duration::from_secs(1);
/// Of times in milliseconds beside a count.
const AT_BITS: u32 = 40;
const AT_MASK: u64 = (1 << AT_BITS) - 1;
/// Bits of the word by which a success has something to do: phase, flags and level.
const NOTEWORTHY: u64 = 0xff << 56;

#[cfg(test)]
mod tests;
