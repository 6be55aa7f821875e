//! What answers usually take. Slow instances: with `breaker_slow` an instance whose answers take that many times what its lane's
//! usually take is kept away like one that fails. Silent instances: of each instance it is known what nearly all of its answers
//! take, so that a longer silence means something (see [`super::cell`]).
//!
//! What is usual is a running median: every answer moves it by a fixed part towards itself, whatever it took, so that a few very slow
//! ones, or one instance of many, hardly count. Frugal streaming (Ma, Muthukrishnan, Sandler 2013) with steps in proportion.
//! Where steps up are longer than those down, it settles at a higher quantile instead of the median.
//! Where little is asked for, a few slow answers in a row say as much (see `cell::proof`).
//! Times are up to the response's head. Slowness is off unless asked for: where keys differ much in what they cost, an instance can be slow for
//! its keys' sake.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// A running median or higher quantile, and of how many.
#[derive(Debug, Default)]
pub(super) struct Pace(AtomicU64);

/// By which part of itself a pace moves with an answer: up with one that took longer, down with one that did not. It settles where
/// the two are in balance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parts {
    up: u32,
    down: u32,
}

/// What a pace says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usual {
    answers: u32,
    micros: u32,
}

impl Pace {
    /// An answer took so long.
    pub(super) fn note(&self, took: Duration, parts: Parts) -> Usual {
        let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX).max(1);
        let mut after = Usual { answers: 0, micros: 0 };
        let always = self.0.fetch_update(Relaxed, Relaxed, |word| {
            let (answers, micros) = ((word >> 32) as u32, word as u32);
            let micros = match micros {
                0 => took,
                micros if took > micros => micros.saturating_add((micros / parts.up).max(1)),
                micros if took < micros => micros.saturating_sub((micros / parts.down).max(1)).max(1),
                micros => micros,
            };
            after = Usual { answers: answers.saturating_add(1), micros };
            Some(u64::from(after.answers) << 32 | u64::from(after.micros))
        });
        debug_assert!(always.is_ok(), "the closure never refuses");
        after
    }

    /// What it says now.
    pub(super) fn read(&self) -> Usual {
        let word = self.0.load(Relaxed);
        Usual { answers: (word >> 32) as u32, micros: word as u32 }
    }

    /// What it says now; `None` before there were enough answers.
    pub(super) fn usual(&self) -> Option<Duration> {
        let usual = self.read();
        usual.is_enough().then(|| Duration::from_micros(usual.micros.into()))
    }

    /// From now on it says this, as if enough answers had taken that long.
    pub(super) fn replace(&self, took: Duration) {
        let Usual { answers, micros } = Usual::of(took);
        self.0.store(u64::from(answers) << 32 | u64::from(micros), Relaxed);
    }

    pub(super) fn forget(&self) {
        self.0.store(0, Relaxed);
    }
}

impl Usual {
    /// If enough answers had taken that long.
    pub(super) fn of(took: Duration) -> Self {
        Self { answers: ENOUGH, micros: 0 }.taking(took)
    }

    /// Whether there were enough answers to say something.
    pub(super) const fn is_enough(self) -> bool {
        self.answers >= ENOUGH
    }

    /// If all of them had taken that long.
    pub(super) fn taking(self, took: Duration) -> Self {
        Self { micros: u32::try_from(took.as_micros()).unwrap_or(u32::MAX), ..self }
    }

    /// Whether it is the longer of two.
    pub(super) const fn is_slower(self, other: Self) -> bool {
        self.micros > other.micros
    }

    /// Whether one instance's is `times` as long as its lane's, by enough answers and by more than a moment.
    pub(super) fn is_slow(self, lane: Self, times: u32) -> bool {
        self.is_enough()
            && lane.is_enough()
            && u64::from(self.micros) >= u64::from(lane.micros) * u64::from(times)
            && self.micros.saturating_sub(lane.micros) >= A_MOMENT_MICROS
    }
}

/// Answers that say something.
const ENOUGH: u32 = 24;
/// Five milliseconds: less is nobody's concern.
const A_MOMENT_MICROS: u32 = 5_000;
/// An instance's median.
pub(super) const OWN: Parts = Parts { up: 8, down: 8 };
/// A lane's median.
pub(super) const LANE: Parts = Parts { up: 64, down: 64 };
/// What nearly all of an instance's answers take: about 49 of 50 are below it.
pub(super) const NEARLY_ALL: Parts = Parts { up: 8, down: 8 * 49 };

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use proptest::prelude::*;

    use super::*;
    use crate::{
        config::{Breaker, Routing},
        routing::{Attempts, AttemptsConfig, Builder, MethodClass, Outcome, Rules, Snapshot, Step, choose, testing::*},
        types::Mono,
    };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    proptest! {
        /// Wherever it starts, it comes to lie among the middle half, and one answer in ten that takes an hour changes little.
        #[test]
        fn it_finds_the_middle(first in 1_u64..10_000_000, low in 1_000_u64..50_000, outliers in any::<bool>()) {
            let pace = Pace::default();
            pace.note(Duration::from_micros(first), LANE);
            let mut usual = 0;
            for n in 0..2_000_u64 {
                let took = if outliers && n % 10 == 0 { 3_600_000_000 } else { low + n * 7_919 % low };
                usual = pace.note(Duration::from_micros(took), LANE).micros;
            }
            prop_assert!((low - low / 10..=2 * low + low / 10).contains(&u64::from(usual)), "{} of {}", usual, low);
        }
    }

    #[test]
    fn nearly_all_answers_are_below() {
        let pace = Pace::default();
        assert_eq!(pace.usual(), None);
        let mut above = 0;
        for n in 0..20_000_u64 {
            let took = Duration::from_micros(10_000 + n * 7_919 % 10_000);
            above += u32::from(n >= 10_000 && pace.usual().is_some_and(|usual| took > usual));
            pace.note(took, NEARLY_ALL);
        }
        assert!((100..=300).contains(&above), "{above} of 10,000, and 200 are one in 50");
    }

    fn snapshot(slow: Option<u32>) -> Arc<Snapshot> {
        let breaker = Breaker { slow, ..Routing::default().breaker };
        let rules = Rules::new(0, Arc::new(Routing { breaker, ..Routing::default() }), &BTreeMap::new());
        Builder::with(locality(), rules).build(&fleet(10, 0), NOW).0
    }

    /// Requests of many users; those to a1 take `slow`, all others 3 ms. How many went to a1.
    fn play(snapshot: &Snapshot, slow: Duration, requests: u32, from: Mono) -> u32 {
        let service = snapshot.service("orders").unwrap();
        let config = AttemptsConfig { max_retries: 0, per_try: ms(1_000), total: ms(3_000) };
        let mut count = 0;
        for n in 0..requests {
            let now = from + ms(u64::from(n));
            let subject = format!("u{}", n % 500);
            let decision = choose(snapshot, service, &get(&subject), now);
            let mut attempts = Attempts::new(&decision, MethodClass::Safe, true, config, now);
            let Step::Try { instance, .. } = attempts.next(service, now) else { panic!("a try") };
            let is_slow = service.instances[usize::from(instance)].record.id.as_str() == "a1";
            count += u32::from(is_slow);
            attempts.ended(Outcome::Answered(200), service, now + if is_slow { slow } else { ms(3) });
        }
        count
    }

    #[test]
    fn one_that_is_ten_times_as_slow_is_kept_away_and_tried_again() {
        let snapshot = snapshot(Some(4));
        let before = play(&snapshot, ms(3), 2_000, NOW);
        assert!(before > 100, "{before}");
        assert!(play(&snapshot, ms(30), 3_000, NOW + ms(2_000)) < 50, "a few answers are enough");
        let service = snapshot.service("orders").unwrap();
        assert_eq!(service.state.breakers().opened, 1);
        // It is well again: one answer, the ramp, and everybody is back.
        play(&snapshot, ms(3), 40_000, NOW + ms(20_000));
        assert_eq!(play(&snapshot, ms(3), 2_000, NOW + ms(62_000)), before);
        assert_eq!(service.state.breakers().opened, 1);
    }

    /// A slow answer to the try is no reason to come back; one that is twice as slow, or only sometimes slow, is never kept away.
    #[test]
    fn it_stays_away_while_it_is_slow() {
        let snapshot = snapshot(Some(4));
        let service = snapshot.service("orders").unwrap();
        let before = play(&snapshot, ms(3), 2_000, NOW);
        play(&snapshot, ms(30), 3_000, NOW + ms(2_000));
        assert!(play(&snapshot, ms(30), 30_000, NOW + ms(5_000)) < 10, "only tries");
        assert_eq!((service.state.breakers().opened, service.state.breakers().returned), (1, 0));
        play(&snapshot, ms(3), 90_000, NOW + ms(35_000));
        assert_eq!(play(&snapshot, ms(3), 2_000, NOW + ms(125_000)), before);
        play(&snapshot, ms(9), 20_000, NOW + ms(130_000));
        (0..200)
            .for_each(|n| _ = play(&snapshot, ms(if n % 5 == 0 { 300 } else { 3 }), 20, NOW + ms(150_000 + n * 20)));
        assert_eq!(service.state.breakers().opened, 1);
    }

    /// One request a second: the median alone would take half a minute, with the answers that it needs before it says anything.
    #[test]
    fn one_of_which_little_is_asked_is_kept_away_within_seconds() {
        // Positions of the answers that say so: of these, so many milliseconds apart.
        let said = |took: &[u64], apart: u64| {
            let snapshot = snapshot(Some(4));
            play(&snapshot, ms(3), 300, NOW);
            let cell = &snapshot.service("orders").unwrap().instances[1].cell;
            let times = (1..).map(|n| NOW + ms(1_000 + apart * n));
            let says = times.zip(took).map(|(at, took)| cell.is_slow(ms(*took), 4, at));
            (1..).zip(says).filter_map(|(place, says)| says.then_some(place)).collect::<Vec<usize>>()
        };
        const NONE: [usize; 0] = [];
        assert_eq!(said(&[30; 7], 1_000), [6, 7]);
        assert_eq!(said(&[30, 30, 30, 30, 30, 3, 30, 30, 30, 30, 30], 1_000), NONE, "one quick one in between");
        assert_eq!(said(&[30; 8], 300), NONE, "two seconds are a moment");
        assert_eq!(said(&[9; 60], 1_000), NONE, "three times as slow");
    }

    #[test]
    fn not_unless_it_is_asked_for_and_not_for_a_moment() {
        let off = snapshot(None);
        assert!(play(&off, ms(30), 3_000, NOW) > 150);
        let little = snapshot(Some(2));
        assert!(play(&little, ms(7), 3_000, NOW) > 150, "4 ms more are nobody's concern");
    }
}
