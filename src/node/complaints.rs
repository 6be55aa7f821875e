//! The same complaint is made once a minute, with how often it came meanwhile: one refused statement arrives in dozens of
//! copies a second for as long as gossip carries it, and a liar can send garbage as fast as the network lets it.
//!
//! Bounded: while more different complaints than [`MOST`] are remembered, further ones are only counted.

use std::{collections::BTreeMap, time::Duration};

use crate::types::{Mono, NodeId};

/// Pause between two reports of the same.
const PAUSE: Duration = Duration::from_secs(60);
/// Complaints remembered.
const MOST: usize = 256;

/// Whose fault, and which kind of fault.
type Key = (NodeId, &'static str, u8);

/// What was complained of lately.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    made: BTreeMap<Key, (Mono, u64)>,
}

impl Complaints {
    /// Notes one; how many there were since the last report, when it is time for one.
    pub fn note(&mut self, now: Mono, about: &NodeId, class: &'static str, kind: u8) -> Option<u64> {
        let key = (about.clone(), class, kind);
        if let Some((at, held_back)) = self.made.get_mut(&key) {
            *held_back += 1;
            if now.since(*at) < PAUSE {
                return None;
            }
            *at = now;
            return Some(std::mem::take(held_back));
        }
        if self.made.len() >= MOST {
            self.made.retain(|_, (at, _)| now.since(*at) < PAUSE);
        }
        if self.made.len() >= MOST {
            return None;
        }
        self.made.insert(key, (now, 0));
        Some(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_a_minute_and_others_are_not_held_back() {
        let mut complaints = Complaints::default();
        let (a, b) = (NodeId::new("a").unwrap(), NodeId::new("b").unwrap());
        let at = |seconds: u64| Mono::from_millis(seconds * 1_000);
        assert_eq!(complaints.note(at(1), &a, "content", 5), Some(1));
        for _ in 0..40 {
            assert_eq!(complaints.note(at(2), &a, "content", 5), None);
        }
        assert_eq!(complaints.note(at(2), &a, "content", 4), Some(1));
        assert_eq!(complaints.note(at(2), &b, "content", 5), Some(1));
        assert_eq!(complaints.note(at(62), &a, "content", 5), Some(41));
        assert_eq!(complaints.note(at(63), &a, "content", 5), None);
    }

    #[test]
    fn a_crowd_of_liars_costs_no_memory() {
        let mut complaints = Complaints::default();
        let told = (0..10_000).filter(|n| {
            let liar = NodeId::new(&format!("liar-{n}")).unwrap();
            complaints.note(Mono::from_millis(5), &liar, "signature", 1).is_some()
        });
        assert_eq!(told.count(), MOST);
        assert_eq!(complaints.made.len(), MOST);
        let later = Mono::from_millis(120_000);
        assert_eq!(complaints.note(later, &NodeId::new("late").unwrap(), "signature", 1), Some(1));
    }
}
