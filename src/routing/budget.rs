//! The retry budget of one service on this sidecar (REQUIREMENTS R6): a share of its requests, and a few beyond that.
//!
//! What counts is the last five to ten seconds: requests and retries are counted in windows of five, and half of a window is
//! carried into the next. Only what was sent is charged: a refused connection costs the service nothing, and walks on freely.
//! Charged when it is decided, so that a retry that still waits is in the account (Envoy issue 30205 tells what happens else).
//!
//! The numbers are Finagle's `RetryBudget` (20 %, ten seconds), with one retry a second for quiet services.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{config::Routing, types::Mono};

/// An account, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Budget(AtomicU64);

/// The word, unpacked: number of the window (24 bits), requests (20), retries (20).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Account {
    slot: u32,
    requests: u32,
    retries: u32,
}

impl Budget {
    /// A request begins.
    pub(super) fn request(&self, now: Mono) {
        let count = |word| Some(Account::unpack(word).at(now).with_request().pack());
        let always = self.0.fetch_update(Relaxed, Relaxed, count);
        debug_assert!(always.is_ok(), "the closure never refuses");
    }

    /// A retry is wanted; false when the budget is used up.
    pub(super) fn retry(&self, now: Mono, rules: &Routing) -> bool {
        let charge = |word| {
            let account = Account::unpack(word).at(now);
            let free = f64::from(rules.retries_per_second) * FREE_SECONDS;
            let allowed = f64::from(account.requests) * rules.retry_share + free;
            (f64::from(account.retries) + 1.0 <= allowed)
                .then(|| Account { retries: (account.retries + 1).min(MASK), ..account }.pack())
        };
        self.0.fetch_update(Relaxed, Relaxed, charge).is_ok()
    }
}

impl Account {
    const fn unpack(word: u64) -> Self {
        Self { slot: (word >> 40) as u32, requests: (word >> 20) as u32 & MASK, retries: word as u32 & MASK }
    }

    const fn pack(self) -> u64 {
        (self.slot as u64) << 40 | (self.requests as u64) << 20 | self.retries as u64
    }

    /// As it stands now.
    fn at(self, now: Mono) -> Self {
        let slot = (now.millis() / WINDOW_MS) as u32 & SLOT_MASK;
        match slot.wrapping_sub(self.slot) & SLOT_MASK {
            0 => self,
            1 => Self { slot, requests: self.requests / 2, retries: self.retries / 2 },
            _ => Self { slot, requests: 0, retries: 0 },
        }
    }

    fn with_request(self) -> Self {
        if self.requests == MASK {
            return Self { requests: self.requests / 2, retries: self.retries / 2, ..self };
        }
        Self { requests: self.requests + 1, ..self }
    }
}

const MASK: u32 = (1 << 20) - 1;
const SLOT_MASK: u32 = (1 << 24) - 1;
const WINDOW_MS: u64 = 5_000;
/// What a window stands for, with what it carries over.
const FREE_SECONDS: f64 = 10.0;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Mono {
        Mono::from_millis(ms)
    }

    #[test]
    fn a_quiet_service_has_ten_and_then_one_a_second() {
        let (budget, rules) = (Budget::default(), Routing::default());
        assert_eq!((0..50).filter(|_| budget.retry(at(0), &rules)).count(), 10);
        let later = (0..100).filter(|second| budget.retry(at(second * 1_000), &rules)).count();
        assert!((85..=100).contains(&later), "{later}");
    }

    #[test]
    fn a_busy_service_has_a_fifth_of_its_requests() {
        let (budget, rules) = (Budget::default(), Routing::default());
        let mut retries = 0;
        for ms in 0..60_000 {
            budget.request(at(ms));
            retries += u32::from(budget.retry(at(ms), &rules));
        }
        assert!((11_000..=12_500).contains(&retries), "{retries} of 60,000");
    }

    #[test]
    fn none_at_all_when_so_told() {
        let rules = Routing { retry_share: 0.0, retries_per_second: 0, ..Routing::default() };
        assert!(!Budget::default().retry(at(0), &rules));
    }

    proptest! {
        /// Over any stretch, whatever the traffic: a fifth, one a second, and the ten at the start.
        #[test]
        fn never_more_than_the_share(steps in prop::collection::vec((0_u64..2_000, 0_u32..50, 0_u32..50), 1..80)) {
            let (budget, rules) = (Budget::default(), Routing::default());
            let (mut now, mut requests, mut retries) = (0, 0_u32, 0_u32);
            for (wait, asked, failed) in steps {
                now += wait;
                (0..asked).for_each(|_| budget.request(at(now)));
                requests += asked;
                retries += (0..failed).filter(|_| budget.retry(at(now), &rules)).count() as u32;
                // What is carried over halves both sides, so that a rounding per window is on top.
                let most = f64::from(requests) * 0.2 + 10.0 + 2.0 * now as f64 / 1_000.0;
                prop_assert!(f64::from(retries) <= most + 1.0, "{} of {} in {} ms", retries, requests, now);
            }
        }
    }
}
