//! A mesh that has been one for long, to begin with.
//!
//! What a thousand nodes cost when they all start at once is one question; what they cost day after day another, and who asks
//! the second should not have to wait for the first to be over. [`Seasoned`] is what everybody knows in the end, worked out
//! once; a node that takes it over is a member that has heard of all others, with nothing left to say.
//!
//! Not for sidecars: these learn what there is from peers and from disk. For simulations and benchmarks.

use std::collections::BTreeMap;

use super::{Membership, MembershipConfig, Node, Now, Phase, view};
use crate::{catalog::Catalog, types::NodeId};

/// What everybody knows.
pub struct Seasoned {
    catalog: Catalog,
    lives: Vec<Life>,
    /// Who watches whom, where there are too many for everybody to watch everybody: by the watched one, how many others are
    /// nearer to it than each of the others.
    ranks: Option<Vec<Vec<u32>>>,
    watchers: usize,
    /// Places in `lives`.
    places: BTreeMap<NodeId, usize>,
}

/// A member's name, generation and incarnation.
pub(super) type Life = (NodeId, u64, u16);

impl Seasoned {
    /// From a catalog that holds every member's own words. All of them are taken for alive.
    pub fn of(catalog: Catalog, config: &MembershipConfig) -> Self {
        let lives: Vec<Life> = catalog
            .members()
            .map(|(node, entry)| {
                let (generation, incarnation) = entry.life();
                (node.clone(), generation, incarnation)
            })
            .collect();
        let names: Vec<&NodeId> = lives.iter().map(|(node, ..)| node).collect();
        let ranks = (names.len() > config.contacts + 1).then(|| Membership::ranks(&names));
        let places = names.into_iter().cloned().zip(0..).collect();
        Self { catalog, lives, ranks, watchers: config.watchers(), places }
    }

    /// Pairs that keep in touch, each once: the watched one and who watches it.
    pub fn in_touch(&self) -> impl Iterator<Item = (&NodeId, &NodeId)> {
        let watches = move |watched: usize, by: usize| match &self.ranks {
            Some(ranks) => (ranks[watched][by] as usize) < self.watchers,
            None => watched < by,
        };
        let all = self.lives.len();
        (0..all).flat_map(move |watched| {
            let watchers = (0..all).filter(move |by| *by != watched && watches(watched, *by));
            watchers.map(move |by| (&self.lives[watched].0, &self.lives[by].0))
        })
    }

    /// Everybody but `me`, and how many others are nearer to each of them than `me`, where that counts.
    pub(super) fn others(&self, me: &NodeId) -> impl Iterator<Item = (&Life, Option<u32>)> {
        let me = self.places.get(me).copied();
        let rank = move |other: usize| Some(self.ranks.as_ref()?[other][me?]);
        self.lives.iter().enumerate().filter(move |(at, _)| Some(*at) != me).map(move |(at, life)| (life, rank(at)))
    }
}

impl Node {
    /// Makes a node that was just made, is on disk, and has announced what `mesh` has of it, a member of that mesh.
    pub fn grow_into(&mut self, now: Now, mesh: &Seasoned) {
        self.catalog = mesh.catalog.clone();
        self.membership.acquaint(now.mono, mesh.others(&self.config.node));
        self.phase = Phase::Member;
        self.view.changed(view::Urgency::Now);
        self.touch(now);
        self.settle(now);
    }
}
