//! After a split: contact with those held dead, and not burying half a mesh.
//!
//! As long as somebody is down, a few nodes at a time try to reach one of them, for ever: four attempts a second in the
//! whole mesh for every four that are down, and at most two a second from one node. When many go at once, `mass_loss`
//! says so: `Node` then keeps what it has instead of removing it, and single accusations are no longer gossiped.

use std::collections::BTreeMap;

use rand::RngExt;

use super::{
    Action, Membership,
    roster::{ME, Slot},
    timers::Timer,
};
use crate::types::{MemberState, Mono, Planted};

/// Members that went lately.
#[derive(Default)]
pub(super) struct Losses {
    since: BTreeMap<Slot, Mono>,
    mass: bool,
    healing: bool,
}

impl Losses {
    pub(super) fn forget(&mut self, slot: Slot) {
        self.since.remove(&slot);
    }
}

impl Membership {
    /// Whether so many members went inside one window (at least three, and more than 30 % of the mesh) that the likely
    /// cause is this node's side of a split, not their deaths. Ends when at most 15 % are still missing, or when the
    /// window has passed without more.
    pub fn mass_loss(&self) -> bool {
        self.losses.mass
    }

    /// Keeps count after a member's state may have changed. A public case counts already: once the verdicts fall it is
    /// late to freeze anything.
    pub(super) fn note_loss(&mut self, now: Mono, slot: Slot) {
        let member = self.roster.get(slot);
        let lost = match member.state {
            MemberState::Down => true,
            MemberState::Doubtful => member.case.public,
            MemberState::Alive | MemberState::Left => false,
        };
        let known = self.losses.since.contains_key(&slot);
        if lost && !known {
            self.losses.since.insert(slot, now);
            self.timers.set(now, self.config.mass_window, Timer::Mass);
        } else if !lost && known {
            self.losses.since.remove(&slot);
        }
        if lost != known {
            self.count_losses(now);
        }
    }

    pub(super) fn count_losses(&mut self, now: Mono) {
        let window = self.config.mass_window;
        let lost = self.losses.since.values().filter(|since| now.since(**since) < window).count();
        let mesh = 1 + self.roster.others() + self.roster.down().len();
        let per_cent = lost * 100;
        let mass = if self.losses.mass { per_cent > mesh * MASS_ENDS } else { lost >= 3 && per_cent > mesh * MASS };
        if mass != std::mem::replace(&mut self.losses.mass, mass) {
            self.actions.push_back(Action::Report(if mass {
                format!("{lost} of {mesh} members went within {} s: nothing is removed until they come back or the window has passed; if they live, this node is on the small side of a split", window.as_secs())
            } else {
                "no longer a mass loss: members that stay away are removed as usual".to_owned()
            }));
        }
    }

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
/// A mass loss begins above this share of the mesh, in per cent.
const MASS: usize = 30;
/// And ends at this one.
const MASS_ENDS: usize = 15;
