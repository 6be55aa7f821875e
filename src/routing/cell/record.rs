//! What an instance's last results were: two words, and the rules by which they open the breaker.
//!
//! Not here: the breaker's state (`word`).

use std::time::Duration;

use crate::{config::Breaker, types::Mono};

/// The last 16 results, when the last failure was, and successes in a row towards a shorter open time. A zero word says that
/// nothing went wrong lately, so that an instance that is well costs no write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Recent {
    /// Newest in the lowest bit; 1 is a failure. What was never recorded counts as success.
    results: u16,
    /// Since the last failure or lowering.
    successes: u16,
    /// Last failure, in sixteenths of a second. 32 bits, 8 years.
    failed: u32,
}

impl Recent {
    pub(super) const fn unpack(packed: u64) -> Self {
        Self { results: packed as u16, successes: (packed >> 16) as u16, failed: (packed >> 32) as u32 }
    }

    pub(super) const fn pack(self) -> u64 {
        self.results as u64 | (self.successes as u64) << 16 | (self.failed as u64) << 32
    }

    pub(super) fn failure(self, now: Mono, window: Duration) -> Self {
        let now = sixteenths(now);
        let old = u64::from(now.wrapping_sub(self.failed)) * 1000 / 16 > window.as_millis() as u64;
        let results = if old { 0 } else { self.results };
        Self { results: results << 1 | 1, successes: 0, failed: now }
    }

    /// `counting`: successes are counted towards a shorter open time.
    pub(super) fn success(self, counting: bool) -> Self {
        let successes = if counting { self.successes.saturating_add(1) } else { 0 };
        let results = self.results << 1;
        Self { results, successes, failed: if results == 0 { 0 } else { self.failed } }
    }

    /// Failures since the last success; 16 at most, and none that lie further apart than a window.
    pub(super) const fn in_a_row(self) -> u32 {
        self.results.trailing_ones()
    }

    /// Successes in a row, where they are counted.
    pub(super) const fn successes(self) -> u16 {
        self.successes
    }

    /// Whether it failed lately enough to be told to others.
    pub(super) fn is_news(self, now: Mono) -> bool {
        self.results != 0 && u64::from(sixteenths(now).wrapping_sub(self.failed)) <= NEWS_SIXTEENTHS
    }

    /// Results and failures among them, of those that failed in a row or else of the last `of`; `None` when nothing failed lately.
    pub(super) fn seen(self, now: Mono, rules: &Breaker) -> Option<(u16, u16)> {
        if !self.is_news(now) {
            return None;
        }
        let in_a_row = self.in_a_row() as u16;
        let of = u16::from(rules.of.clamp(1, 16));
        let failures = (self.results & (u16::MAX >> (16 - of))).count_ones() as u16;
        if in_a_row >= 2 { Some((in_a_row, in_a_row)) } else { (failures > 0).then_some((of, failures)) }
    }

    /// Whether `failures` of the last `of` are reached.
    pub(super) fn opens(self, rules: &Breaker) -> bool {
        let looked_at = self.results & (u16::MAX >> (16 - u32::from(rules.of.clamp(1, 16))));
        rules.failures > 0 && looked_at.count_ones() >= u32::from(rules.failures)
    }

    /// Whether there were enough successes in a row to shorten the open time by one step; counts anew then.
    pub(super) fn lowers(self) -> Option<Self> {
        (self.successes >= SUCCESSES_PER_LEVEL).then_some(Self { successes: 0, ..self })
    }
}

/// Results and failures of a window. When it is over, half of it is carried into the next, so that its edges are no blind spots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Window {
    /// Number of the window, 24 bits.
    slot: u32,
    /// 20 bits, saturating.
    total: u32,
    /// 20 bits, at most `total`.
    failures: u32,
}

impl Window {
    pub(super) const fn unpack(packed: u64) -> Self {
        Self {
            slot: (packed >> 40) as u32,
            total: (packed >> 20) as u32 & COUNT_MASK,
            failures: packed as u32 & COUNT_MASK,
        }
    }

    pub(super) const fn pack(self) -> u64 {
        (self.slot as u64) << 40 | (self.total as u64) << 20 | self.failures as u64
    }

    /// As it stands at some time.
    pub(super) fn at(self, now: Mono, length: Duration) -> Self {
        let slot = (now.millis() / u64::try_from(length.as_millis()).unwrap_or(u64::MAX).max(1)) as u32 & SLOT_MASK;
        match slot.wrapping_sub(self.slot) & SLOT_MASK {
            0 => self,
            1 => Self { slot, total: self.total / 2, failures: self.failures / 2 },
            _ => Self { slot, total: 0, failures: 0 },
        }
    }

    pub(super) fn with(self, failed: bool, now: Mono, length: Duration) -> Self {
        let kept = self.at(now, length);
        if kept.total == COUNT_MASK {
            return Self { total: kept.total / 2, failures: kept.failures / 2, ..kept };
        }
        Self { total: kept.total + 1, failures: kept.failures + u32::from(failed), ..kept }
    }

    /// Results, and failures among them.
    pub(super) fn counts(self) -> (u16, u16) {
        let most = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
        (most(self.total), most(self.failures))
    }

    /// Whether the share of failures is reached, by enough results.
    pub(super) fn opens(self, rules: &Breaker) -> bool {
        rules.volume > 0
            && self.total >= rules.volume
            && self.failures > 0
            && f64::from(self.failures) >= rules.share * f64::from(self.total)
    }
}

fn sixteenths(at: Mono) -> u32 {
    (at.millis() * 16 / 1000) as u32
}

const COUNT_MASK: u32 = (1 << 20) - 1;
const SLOT_MASK: u32 = (1 << 24) - 1;
/// Two seconds: what is older is no news for others.
const NEWS_SIXTEENTHS: u64 = 32;
/// Evidence for one halving of the open time.
const SUCCESSES_PER_LEVEL: u16 = 50;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::Routing;

    fn rules() -> Breaker {
        Routing::default().breaker
    }

    fn at(ms: u64) -> Mono {
        Mono::from_millis(ms)
    }

    #[test]
    fn old_failures_are_forgotten() {
        let two =
            [0, 1_000].iter().fold(Recent::default(), |recent, ms| recent.failure(at(100_000 + ms), rules().window));
        assert!(two.failure(at(105_000), rules().window).opens(&rules()));
        assert!(!two.failure(at(112_000), rules().window).opens(&rules()));
    }

    #[test]
    fn a_share_needs_its_volume() {
        let rules = Breaker { failures: 0, ..rules() };
        let run = |failures: u32, total: u32| {
            (0..total).fold(Window::default(), |w, n| w.with(n < failures, at(50_000), rules.window))
        };
        assert!(!run(9, 19).opens(&rules) && !run(19, 19).opens(&rules));
        assert!(run(10, 20).opens(&rules) && !run(9, 20).opens(&rules));
        assert!(!Window::default().with(true, at(1), rules.window).opens(&Breaker { volume: 0, ..rules }));
    }

    #[test]
    fn half_of_a_window_is_carried_into_the_next_and_no_further() {
        let full = (0..40).fold(Window::default(), |w, _| w.with(true, at(19_000), rules().window));
        assert_eq!(full.with(false, at(20_001), rules().window).total, 21);
        assert_eq!(full.with(false, at(30_001), rules().window).total, 1);
    }

    proptest! {
        /// Against the plain rule over a list.
        #[test]
        fn three_of_six_as_a_list_has_it(results in prop::collection::vec(any::<bool>(), 0..40), failures in 1_u8..=6, of in 6_u8..=16) {
            let rules = Breaker { failures, of, ..rules() };
            let mut recent = Recent::default();
            for (count, failed) in results.iter().enumerate() {
                recent = if *failed { recent.failure(at(1_000), rules.window) } else { recent.success(false) };
                let last = &results[..=count];
                let last = &last[last.len().saturating_sub(usize::from(of))..];
                let expected = last.iter().filter(|failed| **failed).count() >= usize::from(failures);
                prop_assert_eq!(recent.opens(&rules), expected);
                prop_assert_eq!(Recent::unpack(recent.pack()), recent);
            }
        }

        #[test]
        fn counts_stay_in_their_bits(steps in prop::collection::vec((any::<bool>(), 0_u64..40_000), 0..200), start in 0_u32..=COUNT_MASK) {
            let mut window = Window { slot: 0, total: start, failures: start / 2 };
            let mut now = 0;
            for (failed, wait) in steps {
                now += wait;
                window = window.with(failed, at(now), rules().window);
                prop_assert!(window.failures <= window.total && window.total <= COUNT_MASK);
                prop_assert_eq!(Window::unpack(window.pack()), window);
            }
        }
    }
}
