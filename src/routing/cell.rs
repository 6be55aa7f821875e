//! What the data path knows of one instance: one atomic word, shared by threads and by successive snapshots.
//!
//! Two refused connections in a row make an instance doubtful for 5 s; the walk skips it, the ring stays as it is. After that
//! one real request may try it (the trial). If that is refused too, the pause doubles, up to 30 s; any answer clears the doubt.
//! Refusals that come in while it is doubtful, from requests sent before, don't lengthen the pause.
//!
//! Memory order: everything is `Relaxed`. The word and the counter each mean something by themselves; no other memory is
//! published through them, and a thread that reads a word some nanoseconds old makes a decision that was right then.
//!
//! Not here: failures after something was sent (the breaker's, in a later issue).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::types::Mono;

/// Local state of one instance.
#[derive(Debug, Default)]
pub struct InstanceCell {
    word: Line<AtomicU64>,
    in_flight: Line<AtomicU32>,
}

/// A cache line of its own: the word is read by every decision, the counter written by every request.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line<T>(T);

/// The word, unpacked: `until` in milliseconds (48 bits), refusals in a row (8), pause level (7), trial (1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word {
    until: u64,
    refusals: u8,
    level: u8,
    trial: bool,
}

impl InstanceCell {
    /// Whether the walk skips it now.
    #[inline]
    pub fn doubtful(&self, now: Mono) -> bool {
        let word = self.word.0.load(Relaxed);
        word != 0 && Word::unpack(word).doubtful(now)
    }

    /// Whether a request may go to it now. Differs from [`doubtful`](Self::doubtful) in that it takes the place of the trial:
    /// of several requests that ask after the pause, one is admitted. A trial that never ends gives its place up after 1 s.
    pub fn admit(&self, now: Mono) -> bool {
        let admitted = self.word.0.fetch_update(Relaxed, Relaxed, |word| {
            let old = Word::unpack(word);
            match (old.level, old.doubtful(now)) {
                (0, _) => Some(word),
                (_, true) => None,
                (_, false) => Some(Word { until: (now + TRIAL).millis(), trial: true, ..old }.pack()),
            }
        });
        admitted.is_ok()
    }

    /// A connection was refused (or could not be made).
    pub fn refused(&self, now: Mono) {
        let next = |word| Some(Word::unpack(word).refused(now).pack());
        let always = self.word.0.fetch_update(Relaxed, Relaxed, next);
        debug_assert!(always.is_ok(), "the closure never refuses");
    }

    /// It answered, or its owner announced it anew: nothing that was held against it counts any more.
    #[inline]
    pub fn answered(&self) {
        // Read first: the line stays shared by all cores while all is well.
        if self.word.0.load(Relaxed) != 0 {
            self.word.0.store(0, Relaxed);
        }
    }

    /// Until when the walk skips it, if it does.
    pub fn doubtful_until(&self, now: Mono) -> Option<Mono> {
        let word = Word::unpack(self.word.0.load(Relaxed));
        word.doubtful(now).then(|| Mono::from_millis(word.until))
    }

    /// Requests in flight from this sidecar.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.0.load(Relaxed)
    }

    /// Counts a request as in flight until the guard is dropped.
    pub fn enter(self: &Arc<Self>) -> InFlight {
        self.in_flight.0.fetch_add(1, Relaxed);
        InFlight { cell: self.clone() }
    }
}

/// One request in flight; dropping it ends it.
#[derive(Debug)]
pub struct InFlight {
    cell: Arc<InstanceCell>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.cell.in_flight.0.fetch_sub(1, Relaxed);
    }
}

impl Word {
    fn unpack(word: u64) -> Self {
        Self {
            until: word & UNTIL_MASK,
            refusals: (word >> 48) as u8,
            level: (word >> 56) as u8 & 0x7f,
            trial: word >> 63 == 1,
        }
    }

    fn pack(self) -> u64 {
        self.until & UNTIL_MASK
            | u64::from(self.refusals) << 48
            | u64::from(self.level & 0x7f) << 56
            | u64::from(self.trial) << 63
    }

    fn doubtful(self, now: Mono) -> bool {
        self.level > 0 && now.millis() < self.until
    }

    fn refused(self, now: Mono) -> Self {
        let refusals = self.refusals.saturating_add(1);
        let rises = if self.level == 0 { refusals >= REFUSALS } else { self.trial || !self.doubtful(now) };
        if !rises {
            return Self { refusals, ..self };
        }
        let level = (self.level + 1).min(PAUSES.len() as u8);
        let until = (now + PAUSES[usize::from(level - 1)]).millis();
        Self { until, refusals, level, trial: false }
    }
}

const UNTIL_MASK: u64 = (1 << 48) - 1;
/// Refused connections in a row that make an instance doubtful.
const REFUSALS: u8 = 2;
/// How long it is skipped the first, second, ... time.
const PAUSES: [Duration; 4] =
    [Duration::from_secs(5), Duration::from_secs(10), Duration::from_secs(20), Duration::from_secs(30)];
/// How long a trial keeps others away.
const TRIAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Mono {
        Mono::from_millis(ms)
    }

    #[test]
    fn two_refusals_in_a_row_make_doubtful_for_five_seconds() {
        let cell = InstanceCell::default();
        cell.refused(at(1_000));
        assert!(!cell.doubtful(at(1_000)));
        cell.answered();
        cell.refused(at(1_100));
        assert!(!cell.doubtful(at(1_100)), "an answer lay between");
        cell.refused(at(1_200));
        assert!(cell.doubtful(at(1_200)) && cell.doubtful(at(6_199)));
        assert_eq!(cell.doubtful_until(at(1_200)), Some(at(6_200)));
        assert!(!cell.doubtful(at(6_200)));
        assert!(!cell.admit(at(6_199)));
    }

    #[test]
    fn after_the_pause_one_request_tries_it_and_the_pause_doubles_while_it_refuses() {
        let cell = InstanceCell::default();
        cell.refused(at(0));
        cell.refused(at(0));
        let mut now = 5_000;
        for pause in [10_000, 20_000, 30_000, 30_000] {
            assert!(cell.admit(at(now)), "the trial");
            assert!(!cell.admit(at(now)) && cell.doubtful(at(now + 999)), "others wait for it");
            cell.refused(at(now));
            assert!(cell.doubtful(at(now + pause - 1)) && !cell.doubtful(at(now + pause)), "pause {pause}");
            now += pause;
        }
        assert!(cell.admit(at(now)));
        cell.answered();
        assert!(cell.admit(at(now)) && cell.admit(at(now)));
    }

    #[test]
    fn refusals_of_requests_sent_before_do_not_lengthen_the_pause() {
        let cell = InstanceCell::default();
        for ms in 0..100 {
            cell.refused(at(ms));
        }
        assert_eq!(cell.doubtful_until(at(100)), Some(at(5_001)));
    }

    #[test]
    fn a_trial_without_an_end_gives_its_place_up() {
        let cell = InstanceCell::default();
        cell.refused(at(0));
        cell.refused(at(0));
        assert!(cell.admit(at(5_000)));
        assert!(!cell.admit(at(5_999)));
        assert!(cell.admit(at(6_000)));
    }

    #[test]
    fn in_flight_counts_guards() {
        let cell = Arc::new(InstanceCell::default());
        let guards = [cell.enter(), cell.enter()];
        assert_eq!(cell.in_flight(), 2);
        drop(guards);
        assert_eq!(cell.in_flight(), 0);
    }
}
