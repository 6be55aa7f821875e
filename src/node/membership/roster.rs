//! Everybody this node has ever been introduced to, and what is held of each.
//!
//! A member has a slot, a small number local to this process, so that foca and our timers compare integers. Slot
//! [`ME`] is this node. Lists of active and of down members, and the digest, are kept as states change, so that nothing
//! on a datagram's way walks over all members.

use std::collections::{BTreeMap, BTreeSet};

use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{case::Case, circle::Circle, credit::Credit, history::History};
use crate::types::{MemberState, Mono, NodeId};

/// Index of a member in this process.
pub(super) type Slot = u32;

/// This node's own slot.
pub(super) const ME: Slot = 0;

/// What is held of one member.
pub(super) struct Member {
    pub(super) name: NodeId,
    pub(super) generation: u64,
    pub(super) incarnation: u16,
    pub(super) state: MemberState,
    /// Since when it is in this state.
    pub(super) since: Mono,
    /// Last direct, authenticated contact in this life.
    pub(super) heard: Option<Mono>,
    /// What is held against this life.
    pub(super) case: Case,
    /// How much this member is worth as an accuser.
    pub(super) credit: Credit,
    /// Verdicts in a row, and when the last one fell.
    pub(super) flaps: (u32, Mono),
    /// Held down until then, although it may refute.
    pub(super) held_until: Option<Mono>,
    /// It refuted while it was held down; taken back at the first contact after that.
    pub(super) refuted_while_held: bool,
    /// How often it refuted accusations.
    pub(super) refutations: u32,
    /// When it was last told that it is held dead, or asked to prove otherwise.
    pub(super) told: Option<Mono>,
    /// When somebody was last told that accusations of it are out of date.
    pub(super) corrected: Option<Mono>,
    /// When this node last looked at it for somebody else.
    pub(super) helped: Option<Mono>,
    /// When its case is next looked at; a timer for another moment is void.
    pub(super) review_at: Option<Mono>,
    /// When it is next asked again; likewise.
    pub(super) again_at: Option<Mono>,
    /// What happened between it and this node, once anything did.
    pub(super) history: Option<Box<History>>,
    /// The generation that foca probes it at; `None` while it is left to others (`circle`).
    pub(super) probed: Option<u64>,
    pub(super) hash: u64,
    place: Option<usize>,
    mark: u64,
}

impl Member {
    /// Neither down nor left.
    pub(super) fn is_active(&self) -> bool {
        !self.is_gone()
    }

    /// Down or left.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.state, MemberState::Down | MemberState::Left)
    }

    /// (generation, incarnation).
    pub(super) fn life(&self) -> (u64, u16) {
        (self.generation, self.incarnation)
    }

    fn digest_mark(&self) -> u64 {
        // Those who have gone count nothing: a newcomer that never met them holds the same view as who buried them. One
        // that is held down only for flapping counts as alive, as it does for everybody else.
        if self.is_gone() && !self.refuted_while_held {
            return 0;
        }
        let mut bytes = Vec::with_capacity(80);
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&self.incarnation.to_le_bytes());
        bytes.extend_from_slice(self.name.as_str().as_bytes());
        xxh3_64_with_seed(&bytes, DIGEST_SEED)
    }
}

/// All members.
pub(super) struct Roster {
    members: Vec<Option<Member>>,
    free: Vec<Slot>,
    names: BTreeMap<NodeId, Slot>,
    /// The same, for looking up: every datagram does.
    by_name: FxHashMap<NodeId, Slot>,
    pub(super) active: Vec<Slot>,
    down: BTreeSet<Slot>,
    digest: u64,
    pub(super) circle: Circle,
}

impl Roster {
    /// Holds this node alone.
    pub(super) fn new(me: NodeId, generation: u64, now: Mono, circle: Circle) -> Self {
        let (members, free, names) = (Vec::new(), Vec::new(), BTreeMap::new());
        let by_name = FxHashMap::default();
        let (active, down) = (Vec::new(), BTreeSet::new());
        let mut roster = Self { members, free, names, by_name, active, down, digest: 0, circle };
        let slot = roster.add(me, generation, 0, now);
        debug_assert_eq!(slot, ME);
        roster
    }

    pub(super) fn slot(&self, name: &NodeId) -> Option<Slot> {
        self.by_name.get(name).copied()
    }

    /// The member in a slot that was just looked up, or that an own list names.
    pub(super) fn get(&self, slot: Slot) -> &Member {
        self.members[slot as usize].as_ref().expect("slots are given up only with everything that names them")
    }

    /// See [`Roster::get`].
    pub(super) fn get_mut(&mut self, slot: Slot) -> &mut Member {
        self.members[slot as usize].as_mut().expect("slots are given up only with everything that names them")
    }

    /// The member in a slot that a timer names, if it is still there.
    pub(super) fn find(&self, slot: Slot) -> Option<&Member> {
        self.members.get(slot as usize)?.as_ref()
    }

    pub(super) fn me(&self) -> &Member {
        self.get(ME)
    }

    /// Adds an active member that was not known.
    pub(super) fn add(&mut self, name: NodeId, generation: u64, incarnation: u16, now: Mono) -> Slot {
        let slot = self.enter(name, generation, incarnation, now);
        self.set_state(slot, MemberState::Alive, now);
        slot
    }

    /// Adds active members to a roster that has none but this node.
    pub(super) fn add_all<'a>(&mut self, all: impl Iterator<Item = (&'a (NodeId, u64, u16), Option<u32>)>, now: Mono) {
        debug_assert!(self.active.is_empty());
        let mut ranks = Vec::new();
        for ((name, generation, incarnation), nearer) in all {
            let slot = self.enter(name.clone(), *generation, *incarnation, now);
            self.get_mut(slot).state = MemberState::Alive;
            self.get_mut(slot).place = Some(self.active.len());
            self.active.push(slot);
            self.remark(slot);
            ranks.push(nearer);
        }
        self.came_all(ranks);
    }

    /// Gives a slot to a member that was not known; it is not active yet.
    fn enter(&mut self, name: NodeId, generation: u64, incarnation: u16, now: Mono) -> Slot {
        let slot = self.free.pop().unwrap_or(self.members.len() as Slot);
        let member = Member {
            hash: hash(&name),
            name: name.clone(),
            generation,
            incarnation,
            state: MemberState::Left,
            since: now,
            heard: None,
            case: Case::default(),
            credit: Credit::default(),
            flaps: (0, Mono::ZERO),
            held_until: None,
            refuted_while_held: false,
            refutations: 0,
            told: None,
            corrected: None,
            helped: None,
            review_at: None,
            again_at: None,
            history: None,
            probed: None,
            place: None,
            mark: 0,
        };
        if slot as usize == self.members.len() {
            self.members.push(Some(member));
        } else {
            self.members[slot as usize] = Some(member);
        }
        self.by_name.insert(name.clone(), slot);
        self.names.insert(name, slot);
        slot
    }

    /// Changes a state; whether it was another.
    pub(super) fn set_state(&mut self, slot: Slot, state: MemberState, now: Mono) -> bool {
        let member = self.get_mut(slot);
        if member.state == state {
            return false;
        }
        member.state = state;
        member.since = now;
        self.list(slot);
        self.remark(slot);
        true
    }

    /// Takes a member into another life.
    pub(super) fn set_life(&mut self, slot: Slot, generation: u64, incarnation: u16) {
        let member = self.get_mut(slot);
        (member.generation, member.incarnation) = (generation, incarnation);
        self.remark(slot);
    }

    /// Notes that a held member has refuted, or that it is no longer held.
    pub(super) fn set_refuted_while_held(&mut self, slot: Slot, refuted: bool) {
        self.get_mut(slot).refuted_while_held = refuted;
        self.remark(slot);
    }

    /// Removes a member with everything that names its slot.
    pub(super) fn remove(&mut self, slot: Slot) {
        let now = self.get(slot).since;
        self.set_state(slot, MemberState::Left, now);
        self.set_refuted_while_held(slot, false);
        if let Some(member) = self.members[slot as usize].take() {
            self.names.remove(&member.name);
            self.by_name.remove(&member.name);
            self.free.push(slot);
        }
        for member in self.members.iter_mut().flatten() {
            member.case.drop_accuser(slot);
        }
    }

    /// Keeps the lists in step with a member's state.
    fn list(&mut self, slot: Slot) {
        let (active, down) = (self.get(slot).is_active(), self.get(slot).state == MemberState::Down);
        if down {
            self.down.insert(slot);
        } else {
            self.down.remove(&slot);
        }
        let place = self.get(slot).place;
        match (active && slot != ME, place) {
            (true, None) => {
                self.get_mut(slot).place = Some(self.active.len());
                self.active.push(slot);
                self.came(slot);
            }
            (false, Some(place)) => {
                self.get_mut(slot).place = None;
                self.active.swap_remove(place);
                if let Some(moved) = self.active.get(place).copied() {
                    self.get_mut(moved).place = Some(place);
                }
                self.went(slot, place);
            }
            _ => {}
        }
    }

    /// Where an active member is in the list.
    pub(super) fn place_of(&self, slot: Slot) -> Option<usize> {
        self.get(slot).place
    }

    fn remark(&mut self, slot: Slot) {
        let (old, new) = (self.get(slot).mark, self.get(slot).digest_mark());
        self.get_mut(slot).mark = new;
        self.digest = self.digest.wrapping_sub(old).wrapping_add(new);
    }

    /// See [`Membership::digest`](super::Membership::digest).
    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    /// Active members beside this node.
    pub(super) fn others(&self) -> usize {
        self.active.len()
    }

    /// Members held dead.
    pub(super) fn down(&self) -> &BTreeSet<Slot> {
        &self.down
    }

    /// All but this node, in name order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, &Member)> {
        self.names.values().filter(|slot| **slot != ME).map(|slot| (*slot, self.get(*slot)))
    }

    /// Up to `count` random contacts, without this node and `not`: all that are active, but in a large mesh only those with
    /// which there is a connection.
    pub(super) fn random(&mut self, rng: &mut Pcg64Mcg, count: usize, not: Slot) -> Vec<Slot> {
        some_of(rng, self.contacts(), count, not)
    }

    /// The same of all that are active, however large the mesh.
    pub(super) fn random_of_all(&self, rng: &mut Pcg64Mcg, count: usize, not: Slot) -> Vec<Slot> {
        some_of(rng, &self.active, count, not)
    }

    /// The `count` members (this node included) nearest to an accused life, of a large mesh among its watchers: everybody
    /// computes the same few, so that two who doubt the same member meet.
    pub(super) fn nearest(&self, accused: Slot, count: usize) -> Vec<Slot> {
        let target = self.get(accused);
        let life = mix(target.hash, target.incarnation.into());
        let mut all: Vec<(u64, Slot)> = if self.is_large() {
            self.watchers_of(accused).into_iter().map(|slot| (mix(life, self.get(slot).hash), slot)).collect()
        } else {
            self.hashes_without(accused).map(|(hash, slot)| (mix(life, hash), slot)).collect()
        };
        let count = count.min(all.len());
        if count == 0 {
            return Vec::new();
        }
        all.select_nth_unstable(count - 1);
        all.truncate(count);
        all.sort_unstable();
        all.into_iter().map(|(_, slot)| slot).collect()
    }
}

/// Up to `count` of some, at random, without `not`.
fn some_of(rng: &mut Pcg64Mcg, all: &[Slot], count: usize, not: Slot) -> Vec<Slot> {
    if count > all.len() / 2 {
        return most_of(rng, all, count, not);
    }
    let mut chosen = Vec::with_capacity(count);
    // Drawing may repeat; with so many draws a small mesh is exhausted nearly always, and who asks asks again.
    for _ in 0..count * 6 {
        if chosen.len() == count || all.is_empty() {
            break;
        }
        let slot = all[rng.random_range(0..all.len())];
        if slot != not && !chosen.contains(&slot) {
            chosen.push(slot);
        }
    }
    chosen
}

/// The same where so many are wanted that drawing would miss some: a goodbye to everybody must reach everybody.
fn most_of(rng: &mut Pcg64Mcg, all: &[Slot], count: usize, not: Slot) -> Vec<Slot> {
    let mut all: Vec<Slot> = all.iter().copied().filter(|slot| *slot != not).collect();
    let count = count.min(all.len());
    for at in 0..count {
        let other = rng.random_range(at..all.len());
        all.swap(at, other);
    }
    all.truncate(count);
    all
}

/// What decides who is near to whom.
pub(super) fn hash(name: &NodeId) -> u64 {
    xxh3_64_with_seed(name.as_str().as_bytes(), NEAREST_SEED)
}

/// Stirs two hashes into one (the finaliser of MurmurHash3 over both).
pub(super) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.rotate_left(32);
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

const NEAREST_SEED: u64 = 0x6e65_6172;
const DIGEST_SEED: u64 = 0x7669_6577;
