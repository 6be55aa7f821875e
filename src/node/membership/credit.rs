//! What an accuser's word is worth. Every accusation of its that was refuted costs; the debt fades by six a minute. Above
//! twenty the accuser is not listened to: a pair of certified liars can otherwise keep anybody doubtful.

use std::time::Duration;

use crate::types::Mono;

/// An accuser's debt, as the moment when it is paid off.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Credit {
    paid_at: Mono,
    refuted: u32,
    spent: bool,
}

impl Credit {
    /// One more of its accusations was refuted. True when just now it lost its credit, for a report.
    pub(super) fn charge(&mut self, now: Mono) -> bool {
        let was_spent = std::mem::replace(&mut self.spent, false) && self.is_spent(now);
        self.paid_at = self.paid_at.max(now) + FADES_IN;
        self.refuted = self.refuted.saturating_add(1);
        self.spent = self.is_spent(now);
        self.spent && !was_spent
    }

    /// Whether it is not listened to.
    pub(super) fn is_spent(&self, now: Mono) -> bool {
        self.paid_at.since(now) > FADES_IN * MOST
    }

    /// How many of its accusations were refuted, ever.
    pub(super) fn refuted(&self) -> u32 {
        self.refuted
    }
}

const FADES_IN: Duration = Duration::from_secs(10);
const MOST: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refuted_too_often_is_ignored_for_a_while_and_reported_once() {
        let mut credit = Credit::default();
        let now = Mono::from_millis(1_000);
        let reports = (0..30).filter(|_| credit.charge(now)).count();
        assert_eq!(reports, 1);
        assert!(credit.is_spent(now));
        assert!(!credit.is_spent(now + Duration::from_secs(101)));
        assert_eq!(credit.refuted(), 30);
    }

    #[test]
    fn an_honest_mistake_now_and_then_costs_nothing() {
        let mut credit = Credit::default();
        for minute in 0..600 {
            for _ in 0..5 {
                assert!(!credit.charge(Mono::from_millis(minute * 60_000)));
            }
            assert!(!credit.is_spent(Mono::from_millis(minute * 60_000)));
        }
    }
}
