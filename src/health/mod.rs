//! Floor 2: what an application's own sidecar makes of what it sees: rise and fall over check results, and how much of its weight
//! an overloaded one keeps (`easing`). Pure state machines; `probe` does the checking.

pub mod easing;

pub use easing::Easing;

use crate::types::Health;

/// Turns check results into a health state: `rise` successes in a row make it passing, `fall` failures critical.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    rise: u8,
    fall: u8,
    health: Health,
    streak: u8,
}

impl Gate {
    /// Starts critical: an instance is a candidate only after its checks passed.
    pub fn new(rise: u8, fall: u8) -> Self {
        Self { rise: rise.max(1), fall: fall.max(1), health: Health::Critical, streak: 0 }
    }

    /// The present state.
    pub fn health(&self) -> Health {
        self.health
    }

    /// Whether the last result spoke against the present state: the next check should come soon.
    pub fn undecided(&self) -> bool {
        self.streak > 0
    }

    /// Takes a result; the new state when it changed.
    pub fn record(&mut self, passed: bool) -> Option<Health> {
        let against = passed != (self.health == Health::Passing);
        if !against {
            self.streak = 0;
            return None;
        }
        self.streak += 1;
        let needed = if passed { self.rise } else { self.fall };
        if self.streak < needed {
            return None;
        }
        self.streak = 0;
        self.health = if passed { Health::Passing } else { Health::Critical };
        Some(self.health)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_and_falls_only_on_streaks() {
        let mut gate = Gate::new(2, 2);
        assert_eq!(gate.health(), Health::Critical);
        assert_eq!([true, false, true, true].map(|r| gate.record(r)), [None, None, None, Some(Health::Passing)]);
        assert_eq!([false, true, false, false].map(|r| gate.record(r)), [None, None, None, Some(Health::Critical)]);
        assert!(!gate.undecided());
        gate.record(true);
        assert!(gate.undecided());
    }
}
