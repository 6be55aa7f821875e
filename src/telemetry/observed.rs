//! Subjects under observation: every request of theirs is logged, whatever the sample says, until their time is over (REQUIREMENTS O4).
//!
//! Read by every request that ends: while nobody is observed, that is one look at an empty list.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};

use crate::types::Mono;

/// Most subjects at a time.
pub const MOST_OBSERVED: usize = 16;
/// Longest observation.
pub const LONGEST_OBSERVATION: Duration = Duration::from_secs(3_600);
/// Longest subject, bytes.
pub const MAX_SUBJECT: usize = 256;

/// An observation as it is ordered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observe {
    /// Whose requests.
    pub subject: String,
    /// For how long, from when the order is heard; 0 ends it.
    pub for_ms: u64,
    /// Who wants it; goes to the log.
    #[serde(default)]
    pub by: String,
}

/// One that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedSubject {
    /// Whose requests.
    pub subject: String,
    /// What is left of it.
    pub left_ms: u64,
    /// Who wanted it.
    pub by: String,
}

#[derive(Debug, Clone)]
struct Entry {
    subject: Box<str>,
    by: Box<str>,
    until: Mono,
}

/// All that are under way here; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Observed(Arc<ArcSwap<Vec<Entry>>>);

impl Observed {
    /// Whether a subject's request is logged for this.
    pub fn holds(&self, subject: Option<&str>, now: Mono) -> bool {
        let list = self.0.load();
        !list.is_empty()
            && subject.is_some_and(|subject| list.iter().any(|entry| &*entry.subject == subject && now < entry.until))
    }

    /// Begins, prolongs or ends one. The error says what is wrong with it.
    pub fn order(&self, order: &Observe, now: Mono) -> Result<(), String> {
        let Observe { subject, for_ms, by } = order;
        let lasts = Duration::from_millis(*for_ms);
        if subject.is_empty() || subject.len() > MAX_SUBJECT {
            return Err(format!("a subject has 1 to {MAX_SUBJECT} bytes, this one {}", subject.len()));
        }
        if lasts > LONGEST_OBSERVATION {
            return Err(format!("an observation lasts at most {} s", LONGEST_OBSERVATION.as_secs()));
        }
        let mut full = false;
        self.0.rcu(|list| {
            let other = |entry: &&Entry| *entry.subject != **subject && now < entry.until;
            let mut next: Vec<Entry> = list.iter().filter(other).cloned().collect();
            full = !lasts.is_zero() && next.len() >= MOST_OBSERVED;
            if !lasts.is_zero() && !full {
                next.push(Entry { subject: subject.as_str().into(), by: by.as_str().into(), until: now + lasts });
            }
            next
        });
        if full { Err(format!("{MOST_OBSERVED} subjects are under observation, which is the most")) } else { Ok(()) }
    }

    /// Those under way.
    pub fn list(&self, now: Mono) -> Vec<ObservedSubject> {
        let list = self.0.load();
        let entry = |entry: &Entry| ObservedSubject {
            subject: entry.subject.to_string(),
            left_ms: u64::try_from(entry.until.since(now).as_millis()).unwrap_or(u64::MAX),
            by: entry.by.to_string(),
        };
        list.iter().filter(|entry| now < entry.until).map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(subject: &str, for_ms: u64) -> Observe {
        Observe { subject: subject.into(), for_ms, by: "ann".into() }
    }

    #[test]
    fn an_observation_begins_is_prolonged_ends_and_runs_out() {
        let (observed, at) = (Observed::default(), Mono::from_millis);
        assert!(!observed.holds(Some("u1"), at(0)));
        observed.order(&order("u1", 1_000), at(0)).unwrap();
        observed.order(&order("u2", 5_000), at(0)).unwrap();
        assert!(observed.holds(Some("u1"), at(999)) && !observed.holds(Some("u1"), at(1_000)));
        assert!(!observed.holds(Some("u3"), at(0)) && !observed.holds(None, at(0)));
        observed.order(&order("u1", 3_000), at(900)).unwrap();
        assert_eq!(
            observed.list(at(1_000)).iter().map(|one| (one.subject.as_str(), one.left_ms)).collect::<Vec<_>>(),
            [("u2", 4_000), ("u1", 2_900)]
        );
        observed.order(&order("u1", 0), at(1_000)).unwrap();
        assert!(!observed.holds(Some("u1"), at(1_000)) && observed.holds(Some("u2"), at(1_000)));
    }

    #[test]
    fn what_cannot_be_observed_is_refused_with_its_reason() {
        let observed = Observed::default();
        let refused = |order: &Observe| observed.order(order, Mono::ZERO).unwrap_err();
        assert!(refused(&order("", 1)).contains("1 to 256"));
        assert!(refused(&order(&"u".repeat(300), 1)).contains("300"));
        assert!(refused(&order("u", 3_600_001)).contains("3600 s"));
        (0..MOST_OBSERVED).for_each(|at| observed.order(&order(&format!("u{at}"), 10), Mono::ZERO).unwrap());
        assert!(refused(&order("one-more", 10)).contains("16 subjects"));
        observed.order(&order("u3", 20), Mono::ZERO).unwrap();
        // Those that have run out make room.
        observed.order(&order("one-more", 10), Mono::from_millis(10)).unwrap();
    }
}
