//! After a split: contact with those held dead.
//!
//! As long as somebody is down, a few nodes at a time try to reach one of them, for ever: four attempts a second in the
//! whole mesh for every four that are down, and at most two a second from one node.

use rand::RngExt;

use super::{Action, Membership, roster::ME, timers::Timer};
use crate::types::{Mono, Planted};

impl Membership {
    /// Starts the attempts, if they are not under way.
    pub(super) fn heal_while_needed(&mut self, now: Mono) {
        if !std::mem::replace(&mut self.losses.healing, true) {
            self.timers.set(now, self.config.heal_every, Timer::Heal);
        }
    }

    pub(super) fn heal(&mut self, now: Mono) {
        self.losses.healing = false;
        let down = self.roster.down();
        if down.is_empty() || Planted::NeverHeal.is_on() {
            return;
        }
        let share = ATTEMPTS * (down.len() as f64 / 4.0).max(1.0) / (self.roster.others() + 1) as f64;
        let chance = (share * self.config.heal_every.as_secs_f64()).min(1.0);
        if self.rng.random_bool(chance)
            && let Some(slot) = down.iter().nth(self.rng.random_range(0..down.len()))
        {
            debug_assert_ne!(*slot, ME);
            let with = self.roster.get(*slot).name.clone();
            self.actions.push_back(Action::Sync { with });
        }
        self.heal_while_needed(now);
    }
}

/// Attempts a second in the whole mesh for every four members down.
const ATTEMPTS: f64 = 4.0;
