//! What is held against one life of one member.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::roster::{ME, Slot};
use crate::{
    types::{Mono, Planted},
    wire::{Evidence, Statement},
};

/// One accuser's word.
#[derive(Debug, Clone)]
pub(super) struct Charge {
    pub(super) evidence: Evidence,
    pub(super) at: Mono,
    /// As it is passed on.
    pub(super) statement: Statement,
}

/// Accusations of one life. Empty for nearly everybody, nearly always.
#[derive(Debug, Clone, Default)]
pub(super) struct Case {
    charges: BTreeMap<Slot, Charge>,
    /// This node's own confirm failed, and nothing was heard since.
    pub(super) own: bool,
    /// Two distinct accusers have been seen: the case is the whole mesh's.
    pub(super) public: bool,
    /// When the wait began.
    pub(super) opened: Mono,
    /// When the last accusation came.
    last: Mono,
    /// When others were asked whether they know better.
    pub(super) looked: Option<Mono>,
}

/// Members that something is or was held against lately: those whose cases are worth a look. In a large mesh nobody wants to
/// look at all for the few.
#[derive(Default)]
pub(super) struct Accused {
    slots: BTreeSet<Slot>,
    /// So many were left by the last sweep.
    swept: usize,
}

impl Accused {
    /// Something is held against a member. Those of whom `is_empty` says that nothing is any more are let go when they may be as
    /// many as the others.
    pub(super) fn note(&mut self, slot: Slot, is_empty: impl Fn(Slot) -> bool) {
        self.slots.insert(slot);
        if self.slots.len() > 2 * self.swept.max(FEW) {
            self.slots.retain(|slot| !is_empty(*slot));
            self.swept = self.slots.len();
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Slot> {
        self.slots.iter().copied()
    }
}

/// Not worth a sweep.
const FEW: usize = 16;

impl Case {
    pub(super) fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// Distinct accusers.
    pub(super) fn accusers(&self) -> usize {
        self.charges.len() * if Planted::DoubleCount.is_on() { 2 } else { 1 }
    }

    /// Those who saw the port refuse.
    pub(super) fn refusals(&self) -> usize {
        self.charges.values().filter(|charge| charge.evidence == Evidence::Refused).count()
    }

    pub(super) fn charges(&self) -> impl Iterator<Item = (Slot, &Charge)> {
        self.charges.iter().map(|(slot, charge)| (*slot, charge))
    }

    /// Adds an accuser's word; `false` when it says nothing new. Seeing a refusal is more than silence.
    pub(super) fn add(&mut self, now: Mono, by: Slot, evidence: Evidence, statement: &Statement, most: usize) -> bool {
        self.last = now;
        if self.charges.is_empty() {
            self.opened = now;
            self.looked = None;
        }
        let known = self.charges.get(&by);
        if known.is_some_and(|charge| charge.evidence >= evidence) {
            return false;
        }
        // Beyond what shortens the wait, more voices only cost traffic; one's own always counts.
        if known.is_none() && by != ME && self.charges.len() >= most && evidence == Evidence::Silent {
            return false;
        }
        self.charges.insert(by, Charge { evidence, at: now, statement: statement.clone() });
        true
    }

    /// When a lone accusation of somebody else's stops counting.
    pub(super) fn lone_until(&self, expires: Duration) -> Option<Mono> {
        (!self.public && !self.charges.is_empty()).then(|| self.last + expires)
    }

    /// Forgets lone accusations of others that nobody has confirmed in time.
    pub(super) fn expire(&mut self, now: Mono, expires: Duration) {
        if self.lone_until(expires).is_some_and(|until| until <= now) {
            let own = self.own;
            self.charges.retain(|by, _| own && *by == ME);
        }
    }

    /// Something came straight from the member: this node's own doubt is over.
    pub(super) fn heard(&mut self) {
        self.own = false;
        if !self.public {
            self.charges.remove(&ME);
        }
    }

    /// This node's own lone accusation, when it is time to say it again.
    pub(super) fn remind(&mut self, now: Mono, due: Duration) -> Option<Statement> {
        let charge = self.charges.get_mut(&ME).filter(|charge| !self.public && now.since(charge.at) >= due)?;
        charge.at = now;
        Some(charge.statement.clone())
    }

    /// An accuser is forgotten.
    pub(super) fn drop_accuser(&mut self, by: Slot) {
        self.charges.remove(&by);
    }
}
