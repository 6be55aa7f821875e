//! Whom a node keeps in touch with where the mesh is larger than its pool of connections.
//!
//! Up to `contacts` members everybody probes everybody in turn, over connections that stay open. In a larger mesh that would
//! be a cold handshake a second and node, and the pool would turn over for ever. There each member has a few fixed
//! *watchers*: the members that are nearest to it by a hash of the pair. A node probes only those it watches, and talks
//! (gossip, controls, syncs) to its *contacts*: those it watches and those that watch it. As random as the hash, this graph
//! joins everybody in three or four steps, and a member that comes or goes changes only the few edges at its own place.
//!
//! Everybody computes the same watchers for the same members, so whom to ask about a suspect is known without a word: its
//! watchers, who have a connection with it.
//!
//! The pair's hash is the same from both ends. That makes it cheap: this node watches X as long as fewer than `watchers`
//! others are nearer to X than it is, and that number is kept up to date by one pass over the members for each that comes or
//! goes. What that pass reads lies side by side in arrays, in the order of the roster's active members: a thousand members
//! are a few microseconds.

use super::roster::{ME, Roster, Slot, hash, mix};
use crate::types::NodeId;

/// The part of a roster that is about contacts.
pub(super) struct Circle {
    /// More others than these are a large mesh.
    most: usize,
    watchers: usize,
    large: bool,
    /// Of each active member, in the order of the roster's list.
    ranks: Vec<Rank>,
    /// Whom to watch may have changed.
    stirred: Stirred,
    /// Who is in touch may have changed.
    stale: bool,
    contacts: Vec<Slot>,
}

/// What is kept of an active member.
#[derive(Clone, Copy)]
struct Rank {
    hash: u64,
    /// How far it is from this node.
    apart: u64,
    /// In a large mesh: how many others are nearer to it than this node.
    nearer: u32,
}

/// Whose watchers may have changed since that was last asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Stirred {
    #[default]
    Nobody,
    /// These, each once or several times; some may have gone since.
    Some(Vec<Slot>),
    Everybody,
}

impl Circle {
    /// `most` members are kept in touch with directly; above, each has so many watchers.
    pub(super) fn new(most: usize, watchers: usize) -> Self {
        let (large, stale) = (false, true);
        Self { most, watchers, large, ranks: Vec::new(), stirred: Stirred::Nobody, stale, contacts: Vec::new() }
    }

    fn stir(&mut self, slot: Slot) {
        match &mut self.stirred {
            Stirred::Nobody => self.stirred = Stirred::Some(vec![slot]),
            Stirred::Some(slots) => slots.push(slot),
            Stirred::Everybody => {}
        }
    }
}

impl Roster {
    /// Whether there are too many others to be in touch with all of them.
    pub(super) fn is_large(&self) -> bool {
        self.circle.large
    }

    /// Whether this node probes a member. Nobody watches those who have gone from a large mesh.
    pub(super) fn is_watched(&self, slot: Slot) -> bool {
        let near = |place: usize| (self.circle.ranks[place].nearer as usize) < self.circle.watchers;
        !self.circle.large || self.place_of(slot).is_some_and(near)
    }

    /// Whose watchers may have changed since this was last asked.
    pub(super) fn take_stirred(&mut self) -> Stirred {
        std::mem::take(&mut self.circle.stirred)
    }

    /// Those that this node talks to: all others that are active in a small mesh.
    pub(super) fn contacts(&mut self) -> &[Slot] {
        if !self.circle.large {
            return &self.active;
        }
        if std::mem::take(&mut self.circle.stale) {
            let mut contacts = self.watchers_of(ME);
            let watched = self.active.iter().zip(&self.circle.ranks);
            let watched = watched.filter(|(_, rank)| (rank.nearer as usize) < self.circle.watchers);
            contacts.extend(watched.map(|(slot, _)| *slot));
            contacts.sort_unstable();
            contacts.dedup();
            self.circle.contacts = contacts;
        }
        &self.circle.contacts
    }

    /// Active members and this node, without one, each with its hash.
    pub(super) fn hashes_without(&self, about: Slot) -> impl Iterator<Item = (u64, Slot)> {
        let others = self.circle.ranks.iter().zip(&self.active).map(|(rank, slot)| (rank.hash, *slot));
        others.chain([(self.get(ME).hash, ME)]).filter(move |(_, slot)| *slot != about)
    }

    /// The members nearest to one, this node perhaps among them: who watches it in a large mesh.
    pub(super) fn watchers_of(&self, about: Slot) -> Vec<Slot> {
        let target = self.get(about).hash;
        let mut all: Vec<(u64, Slot)> =
            self.hashes_without(about).map(|(hash, slot)| (tie(target, hash), slot)).collect();
        let count = self.circle.watchers.min(all.len());
        if count == 0 {
            return Vec::new();
        }
        all.select_nth_unstable(count - 1);
        all.truncate(count);
        all.into_iter().map(|(_, slot)| slot).collect()
    }

    /// A member is active now: the last of the list.
    pub(super) fn came(&mut self, slot: Slot) {
        let hash = self.get(slot).hash;
        let apart = tie(self.get(ME).hash, hash);
        let large = self.active.len() > self.circle.most;
        let grew = large && !self.circle.large;
        let nearer = if large && !grew { self.count(hash, apart, true) } else { 0 };
        self.circle.ranks.push(Rank { hash, apart, nearer });
        if grew {
            self.count_all();
        }
        self.noted(slot, large);
    }

    /// A member is active no longer; it was at this place of the list, where now the last is.
    pub(super) fn went(&mut self, slot: Slot, place: usize) {
        let gone = self.circle.ranks.swap_remove(place);
        let large = self.active.len() > self.circle.most;
        if large {
            self.count(gone.hash, gone.apart, false);
        }
        self.noted(slot, large);
    }

    /// Many come at once, and it is known how many others are nearer to each than this node, where they are too many.
    pub(super) fn came_all(&mut self, ranks: Vec<Option<u32>>) {
        let me = self.get(ME).hash;
        let of = |(slot, nearer): (&Slot, Option<u32>)| {
            let hash = self.get(*slot).hash;
            Rank { hash, apart: tie(me, hash), nearer: nearer.unwrap_or(0) }
        };
        self.circle.ranks = self.active.iter().zip(ranks).map(of).collect();
        (self.circle.large, self.circle.stale) = (self.active.len() > self.circle.most, true);
        self.circle.stirred = Stirred::Everybody;
    }

    fn noted(&mut self, slot: Slot, large: bool) {
        if large != self.circle.large {
            self.circle.stirred = Stirred::Everybody;
        } else if large {
            self.circle.stir(slot);
        }
        (self.circle.large, self.circle.stale) = (large, true);
    }

    /// Counts one in or out of everybody's distances to this node; returns how many are nearer to it than this node.
    fn count(&mut self, hash: u64, own: u64, came: bool) -> u32 {
        let (mut nearer, edge) = (0, self.circle.watchers as u32);
        for at in 0..self.circle.ranks.len() {
            let rank = &mut self.circle.ranks[at];
            let apart = tie(rank.hash, hash);
            nearer += u32::from(apart < own);
            if apart < rank.apart {
                rank.nearer = if came { rank.nearer + 1 } else { rank.nearer - 1 };
                // The last place that watches was lost, or won.
                if rank.nearer == if came { edge } else { edge - 1 } {
                    self.circle.stir(self.active[at]);
                }
            }
        }
        nearer
    }

    fn count_all(&mut self) {
        let all = self.circle.ranks.clone();
        for (at, rank) in self.circle.ranks.iter_mut().enumerate() {
            // Its hash with itself is no distance.
            let nearer =
                all.iter().enumerate().filter(|(o, other)| *o != at && tie(rank.hash, other.hash) < rank.apart);
            rank.nearer = nearer.count() as u32;
        }
    }
}

/// By each member, how many others are nearer to it than each of the others: what every roster of them would count.
pub(super) fn ranks(names: &[&NodeId]) -> Vec<Vec<u32>> {
    let hashes: Vec<u64> = names.iter().map(|name| hash(name)).collect();
    let of = |(about, target): (usize, &u64)| {
        let others = hashes.iter().enumerate().filter(|(other, _)| *other != about);
        let mut all: Vec<(u64, usize)> = others.map(|(other, hash)| (tie(*target, *hash), other)).collect();
        all.sort_unstable();
        let mut ranks = vec![0; hashes.len()];
        all.iter().zip(0..).for_each(|((_, other), rank)| ranks[*other] = rank);
        ranks
    };
    hashes.iter().enumerate().map(of).collect()
}

/// How far apart two members are; the same from both ends.
fn tie(a: u64, b: u64) -> u64 {
    mix(a.min(b), a.max(b))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::types::{MemberState, Mono, NodeId};

    fn name(at: usize) -> NodeId {
        NodeId::new(&format!("n{at}")).unwrap()
    }

    /// A roster of `me` that knows all of these.
    fn roster(me: usize, all: impl IntoIterator<Item = usize>, most: usize, watchers: usize) -> Roster {
        let mut roster = Roster::new(name(me), 1, Mono::ZERO, Circle::new(most, watchers));
        for other in all.into_iter().filter(|other| *other != me) {
            roster.add(name(other), 1, 0, Mono::ZERO);
        }
        roster
    }

    fn watched(roster: &Roster) -> BTreeSet<NodeId> {
        let all = roster.iter().filter(|(slot, member)| member.is_active() && roster.is_watched(*slot));
        all.map(|(_, member)| member.name.clone()).collect()
    }

    proptest! {
        /// However members come and go, a node watches those to which it belongs to the nearest, and nobody else.
        #[test]
        fn who_is_watched_follows_from_who_is_there(changes in prop::collection::vec((1usize..24, any::<bool>()), 1..80)) {
            let mut kept = roster(0, 0..1, 6, 3);
            let mut there = BTreeSet::new();
            for (at, comes) in changes {
                let slot = kept.slot(&name(at));
                match (comes, slot) {
                    (true, None) => drop(kept.add(name(at), 1, 0, Mono::ZERO)),
                    (true, Some(slot)) => drop(kept.set_state(slot, MemberState::Alive, Mono::ZERO)),
                    (false, Some(slot)) if at % 2 == 0 => kept.remove(slot),
                    (false, Some(slot)) => drop(kept.set_state(slot, MemberState::Down, Mono::ZERO)),
                    (false, None) => {}
                }
                if comes { there.insert(at); } else { there.remove(&at); }
                let fresh = roster(0, there.iter().copied(), 6, 3);
                prop_assert_eq!(watched(&kept), watched(&fresh));
                prop_assert_eq!(kept.is_large(), there.len() > 6);
                if kept.is_large() {
                    let mine = |slot: &Slot| fresh.watchers_of(*slot).contains(&ME);
                    let by_hand = fresh.iter().filter(|(slot, _)| mine(slot)).map(|(_, member)| member.name.clone());
                    prop_assert_eq!(watched(&fresh), by_hand.collect());
                }
            }
        }
    }

    /// Nobody is left out, nobody has too much to do, and what one says reaches everybody in a few steps.
    #[test]
    fn a_large_mesh_is_watched_evenly_and_hangs_together() {
        const ALL: usize = 400;
        let mut graph: Vec<Vec<usize>> = Vec::new();
        let mut watchers = vec![0; ALL];
        let number = |name: &NodeId| name.as_str()[1..].parse::<usize>().unwrap();
        for me in 0..ALL {
            let mut roster = roster(me, 0..ALL, 64, 16);
            for name in watched(&roster) {
                watchers[number(&name)] += 1;
            }
            let contacts = roster.contacts().to_vec();
            graph.push(contacts.iter().map(|slot| number(&roster.get(*slot).name)).collect());
        }
        assert!(watchers.iter().all(|count| *count == 16), "each has its watchers");
        let degrees: Vec<usize> = graph.iter().map(Vec::len).collect();
        assert!(degrees.iter().all(|degree| (16..64).contains(degree)), "{:?}", degrees.iter().max());
        for (me, contacts) in graph.iter().enumerate() {
            assert!(contacts.iter().all(|other| graph[*other].contains(&me)), "both ends call it a contact");
        }
        let mut reached = BTreeSet::from([0]);
        let mut steps = 0;
        while reached.len() < ALL {
            reached = reached.iter().flat_map(|at| graph[*at].iter().copied().chain([*at])).collect();
            steps += 1;
            assert!(steps <= 4, "{} reached", reached.len());
        }
    }
}
