//! The breaker's state in one word, and its transitions as pure functions (REQUIREMENTS R5).
//!
//! ```text
//!  closed ──failures──► open ──time──► (one request asks) probing ──answer──► ramping ──time──► closed
//!    ▲                   ▲                                  │                    │
//!    │                   └────────── failure ◄──────────────┴──── failures ◄─────┘
//! ```
//!
//! An epoch counts the openings. A result belongs to the epoch in which its request began; one of an earlier epoch says
//! nothing about the instance as it is now and is dropped.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{config::Breaker, types::Mono};

/// Where the breaker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// All is well, or as well as it has to be.
    Closed,
    /// Kept away until [`Word::at`]; then it waits for a request to try it.
    Open,
    /// One request tries it, at most until [`Word::at`]; others are kept away.
    Probing,
    /// Its keys come back since [`Word::at`].
    Ramping,
}

/// The word, unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) phase: Phase,
    /// Of a ramp: it is a new instance's slow start, not a return after failures. Of an open breaker: other sidecars' signals
    /// opened it, not failures here.
    pub(super) fresh: bool,
    /// It should be open, but the floor of its lane keeps it.
    pub(super) held: bool,
    /// How often the open time has doubled. 4 bits.
    pub(super) level: u8,
    /// Openings so far, wrapping.
    pub(super) epoch: u16,
    /// Milliseconds; what of depends on the phase. 40 bits, 34 years.
    pub(super) at: u64,
}

impl Word {
    /// Whether a packed word says that nothing speaks against the instance.
    #[inline]
    pub(super) const fn is_closed(packed: u64) -> bool {
        packed >> 62 == 0
    }

    pub(super) const fn unpack(packed: u64) -> Self {
        let phase = match packed >> 62 {
            0 => Phase::Closed,
            1 => Phase::Open,
            2 => Phase::Probing,
            _ => Phase::Ramping,
        };
        Self {
            phase,
            fresh: packed >> 61 & 1 == 1,
            held: packed >> 60 & 1 == 1,
            level: (packed >> 56 & 0xf) as u8,
            epoch: (packed >> 40) as u16,
            at: packed & AT_MASK,
        }
    }

    pub(super) const fn pack(self) -> u64 {
        (self.phase as u64) << 62
            | (self.fresh as u64) << 61
            | (self.held as u64) << 60
            | (self.level as u64 & 0xf) << 56
            | (self.epoch as u64) << 40
            | self.at & AT_MASK
    }

    /// Nothing is held against it. The epoch stays, so that older results are still told apart.
    pub(super) const fn renewed(self) -> Self {
        Self { phase: Phase::Closed, fresh: false, held: false, level: 0, at: 0, ..self }
    }

    /// Opens: what began before says nothing any more.
    pub(super) fn opened(self, seed: u64, now: Mono, rules: &Breaker) -> Self {
        let pause = pause(self.level, self.epoch.wrapping_add(1), seed, rules);
        let level = if pause >= rules.open_max { self.level } else { (self.level + 1).min(MAX_LEVEL) };
        Self { level, ..self.opened_for(pause, now) }
    }

    /// Opens for so long; the next open time is not longer for it.
    pub(super) fn opened_for(self, pause: Duration, now: Mono) -> Self {
        let epoch = self.epoch.wrapping_add(1);
        Self { phase: Phase::Open, fresh: false, held: false, epoch, at: (now + pause).millis(), ..self }
    }

    /// Starts to come back.
    pub(super) fn ramping(self, now: Mono) -> Self {
        Self { phase: Phase::Ramping, fresh: false, held: false, at: now.millis(), ..self }
    }

    /// Whether the walk must pass it over, whatever the key.
    pub(super) fn is_shut(self, now: Mono) -> bool {
        matches!(self.phase, Phase::Open | Phase::Probing) && now.millis() < self.at
    }

    /// Share of its keys (of 2^32) that a ramp lets through, `None` when all.
    pub(super) fn ramp_share(self, now: Mono, length: Duration) -> Option<u32> {
        if self.phase != Phase::Ramping {
            return None;
        }
        // It may begin in the future: a return that is held for a while.
        let Some(passed) = now.millis().checked_sub(self.at) else { return Some(0) };
        let length = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        if passed >= length {
            return None;
        }
        let risen = (u128::from(passed) * u128::from(u32::MAX - FIRST_SHARE) / u128::from(length)) as u32;
        Some(FIRST_SHARE + risen)
    }
}

/// Open time of a level: doubles up to the longest, and differs by a fifth either way between sidecars and openings, so that
/// they do not all try at once.
fn pause(level: u8, epoch: u16, seed: u64, rules: &Breaker) -> Duration {
    let full = rules.open.saturating_mul(1 << u32::from(level.min(MAX_LEVEL))).min(rules.open_max);
    let chance = xxh3_64_with_seed(&epoch.to_le_bytes(), seed) >> 32;
    let fifth = u64::try_from(full.as_nanos() / 5).unwrap_or(u64::MAX / 2);
    let jitter = (u128::from(fifth) * 2 * u128::from(chance)) >> 32;
    full - Duration::from_nanos(fifth) + Duration::from_nanos(jitter as u64)
}

const AT_MASK: u64 = (1 << 40) - 1;
/// Doubles at most so often; the longest open time is reached before.
const MAX_LEVEL: u8 = 15;
/// A tenth: share of keys at the start of a ramp, of 2^32.
const FIRST_SHARE: u32 = u32::MAX / 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::Routing;

    fn any_word() -> impl Strategy<Value = Word> {
        let phase = prop::sample::select(vec![Phase::Closed, Phase::Open, Phase::Probing, Phase::Ramping]);
        (phase, any::<bool>(), any::<bool>(), 0_u8..16, any::<u16>(), 0..=AT_MASK)
            .prop_map(|(phase, fresh, held, level, epoch, at)| Word { phase, fresh, held, level, epoch, at })
    }

    proptest! {
        #[test]
        fn packing_loses_nothing(word in any_word()) {
            prop_assert_eq!(Word::unpack(word.pack()), word);
            prop_assert_eq!(Word::is_closed(word.pack()), word.phase == Phase::Closed);
        }

        /// A ramp only rises, from a tenth to everything.
        #[test]
        fn a_ramp_only_rises(at in 0_u64..1 << 39, length in 1_u64..3_600_000, a in 0_u64..4_000_000, b in 0_u64..4_000_000) {
            let word = Word { phase: Phase::Ramping, fresh: false, held: false, level: 0, epoch: 0, at };
            let share = |passed: u64| word.ramp_share(Mono::from_millis(at + passed), Duration::from_millis(length)).unwrap_or(u32::MAX);
            let (early, late) = (a.min(b), a.max(b));
            prop_assert!(share(early) >= FIRST_SHARE && share(early) <= share(late));
            prop_assert_eq!(share(length), u32::MAX);
        }

        /// Open times double, within a fifth, and never pass the longest by more than that.
        #[test]
        fn open_times_double_up_to_the_longest(level in 0_u8..16, epoch in any::<u16>(), seed in any::<u64>()) {
            let rules = Routing::default().breaker;
            let full = rules.open * 2_u32.pow(u32::from(level));
            let (pause, full) = (pause(level, epoch, seed, &rules), full.min(rules.open_max));
            prop_assert!(pause >= full * 4 / 5 && pause <= full * 6 / 5, "{:?} of {:?}", pause, full);
        }
    }

    #[test]
    fn a_ramp_may_begin_later() {
        let word = Word { phase: Phase::Ramping, fresh: true, held: false, level: 0, epoch: 0, at: 1_000 };
        let share = |ms| word.ramp_share(Mono::from_millis(ms), Duration::from_secs(1));
        assert_eq!((share(999), share(1_000), share(2_000)), (Some(0), Some(FIRST_SHARE), None));
    }

    #[test]
    fn sidecars_do_not_all_try_at_once() {
        let rules = Routing::default().breaker;
        let pauses: std::collections::BTreeSet<Duration> = (0..100).map(|seed| pause(0, 1, seed, &rules)).collect();
        assert!(pauses.len() > 90);
    }
}
