//! Many members lost at once: told from single deaths, found out about quickly, and not taken for the truth.
//!
//! Single deaths are found by probing in turn. When several go inside a few seconds, every node that learns of it asks
//! everybody else at once (a *sweep*), since half a mesh cannot be probed in turn: with half of it dead, probing power halves
//! too. What a sweep finds is told to a few others in bulk, each accuser's own words only and never passed on by gossip: with
//! thousands of single accusations about, gossip would carry nothing else (notes: 114 kB/s and node at 1,000).
//!
//! `mass_loss` says that so many are gone that this node's own isolation is the likelier cause. What they announced is then
//! kept as a last resort for a while ([`Membership::is_last_resort`]). Nothing here delays a verdict, a leave or a drain.

use std::{collections::BTreeMap, time::Duration};

use super::{Action, Membership, confirm::Why, roster::Slot, timers::Timer};
use crate::{
    types::{MemberState, Mono, NodeId},
    wire::{Frame, Statement},
};

/// Members that went lately.
#[derive(Default)]
pub(super) struct Losses {
    /// Since when each is down or doubtful.
    since: BTreeMap<Slot, Loss>,
    mass: bool,
    swept: Option<Mono>,
    sweeps: u64,
    bulk: Vec<Statement>,
    pub(super) healing: bool,
    /// When deaths began to be lifted lately, and how many were since.
    lifted: Option<(Mono, usize)>,
}

#[derive(Debug, Clone, Copy)]
struct Loss {
    at: Mono,
    /// It went while many did.
    in_mass: bool,
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

    /// How often this node has asked everybody at once.
    pub fn sweeps(&self) -> u64 {
        self.losses.sweeps
    }

    /// Until when what a dead member announced is a last resort: it went while many did, and perhaps it is this node that is
    /// cut off. `None` where it is not.
    pub fn is_last_resort(&self, node: &NodeId) -> Option<Mono> {
        let slot = self.roster.slot(node)?;
        let loss = self.losses.since.get(&slot).filter(|loss| loss.in_mass)?;
        (self.roster.get(slot).state == MemberState::Down).then_some(loss.at + self.config.mass_keep)
    }

    /// Since when a member is doubtful or down, if that began inside the window of a mass loss.
    pub fn lost_lately(&self, node: &NodeId, now: Mono) -> bool {
        let loss = self.roster.slot(node).and_then(|slot| self.losses.since.get(&slot));
        loss.is_some_and(|loss| now.since(loss.at) < self.config.mass_window)
    }

    /// Whether that is so of anybody.
    pub fn lost_any_lately(&self, now: Mono) -> bool {
        self.losses.since.values().any(|loss| now.since(loss.at) < self.config.mass_window)
    }

    /// Whether many deaths are being lifted: a split has just ended, and views differ by more than what is under way.
    pub fn is_healing(&self, now: Mono) -> bool {
        self.losses.lifted.is_some_and(|(since, lifted)| lifted >= LEAST && now.since(since) < HEALS)
    }

    /// A member held dead has refuted.
    pub(super) fn note_lifted(&mut self, now: Mono) {
        let lately = self.losses.lifted.filter(|(since, _)| now.since(*since) < HEALS);
        self.losses.lifted = Some(lately.map_or((now, 1), |(since, lifted)| (since, lifted + 1)));
    }

    /// Many of one service went: they are a last resort, however large the rest of the mesh is.
    pub fn keep_as_last_resort(&mut self, node: &NodeId) {
        if let Some(loss) = self.roster.slot(node).and_then(|slot| self.losses.since.get_mut(&slot)) {
            loss.in_mass = true;
        }
    }

    /// Keeps count after a member's state may have changed. A doubt counts already: once the verdicts fall it is late.
    pub(super) fn note_loss(&mut self, now: Mono, slot: Slot) {
        let lost = matches!(self.roster.get(slot).state, MemberState::Down | MemberState::Doubtful);
        let known = self.losses.since.contains_key(&slot);
        if lost == known {
            return;
        }
        if lost {
            self.losses.since.insert(slot, Loss { at: now, in_mass: self.losses.mass });
            self.timers.set(now, self.config.mass_window, Timer::Mass);
        } else {
            self.losses.since.remove(&slot);
        }
        self.count_losses(now);
        if lost {
            self.sweep_if_many(now);
        }
    }

    pub(super) fn count_losses(&mut self, now: Mono) {
        let lost = self.lost_within(now, self.config.mass_window);
        let mesh = self.mesh_size();
        let per_cent = lost * 100;
        let mass = if self.losses.mass { per_cent > mesh * MASS_ENDS } else { lost >= LEAST && per_cent > mesh * MASS };
        if mass {
            // Those who went just before it was noticed went with the rest.
            let window = self.config.mass_window;
            let lately = self.losses.since.values_mut().filter(|loss| now.since(loss.at) < window);
            lately.for_each(|loss| loss.in_mass = true);
        }
        if mass != std::mem::replace(&mut self.losses.mass, mass) {
            self.actions.push_back(Action::Report(if mass {
                format!("{lost} of {mesh} members went within {} s: what they announced is kept as a last resort; if they live, this node is on the small side of a split", self.config.mass_window.as_secs())
            } else {
                "no longer a mass loss".to_owned()
            }));
        }
    }

    fn mesh_size(&self) -> usize {
        1 + self.roster.others() + self.roster.down().len()
    }

    fn lost_within(&self, now: Mono, window: Duration) -> usize {
        self.losses.since.values().filter(|loss| now.since(loss.at) < window).count()
    }

    /// Asks everybody at once, where several have just gone.
    fn sweep_if_many(&mut self, now: Mono) {
        let few = LEAST.max(self.mesh_size() / SWEEP_SHARE);
        let rested = self.losses.swept.is_none_or(|at| now.since(at) >= self.config.sweep_gap);
        if !rested || now < self.hold_until || self.lost_within(now, self.config.sweep_window) < few {
            return;
        }
        self.losses.swept = Some(now);
        self.losses.sweeps += 1;
        for slot in self.roster.random_of_all(&mut self.rng, self.config.sweep_most, super::ME) {
            self.confirm(now, slot, Why::Sweep);
        }
    }

    /// An own accusation that is not told by itself.
    pub(super) fn add_to_bulk(&mut self, now: Mono, statement: Statement) {
        if self.losses.bulk.is_empty() {
            self.timers.set(now, BULK_GATHERS, Timer::Bulk);
        }
        self.losses.bulk.push(statement);
    }

    /// Tells a few others everything that a sweep has found.
    pub(super) fn tell_in_bulk(&mut self) {
        let frames: Vec<Frame> = std::mem::take(&mut self.losses.bulk).into_iter().map(Frame::Statement).collect();
        for slot in self.roster.random_of_all(&mut self.rng, BULK_TO, super::ME) {
            self.send(self.roster.get(slot).name.clone(), frames.clone());
        }
    }
}

/// Fewer are single deaths.
const LEAST: usize = 3;
/// A mass loss begins above this share of the mesh, in per cent.
const MASS: usize = 30;
/// And ends at this one.
const MASS_ENDS: usize = 15;
/// How long after its first sign a split that ends is taken to be ending.
const HEALS: Duration = Duration::from_secs(5);
/// Everybody is asked when one in so many went in a moment.
const SWEEP_SHARE: usize = 20;
/// How long an own accusation waits for others to be told with.
const BULK_GATHERS: Duration = Duration::from_millis(50);
/// How many are told. Everybody tells that many, so everybody hears about as many accusers.
const BULK_TO: usize = 8;
