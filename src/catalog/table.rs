//! The tables, their digest, and what a sync needs of them.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::named::Named;
use crate::{
    types::{CertFacts, InstanceId, InstanceRecord, LanePolicy, NodeId, Planted, ServiceName},
    wire::{EntryKey, KeyId, Kind, Member, Statement},
};

/// A member as it introduced itself, with what it has said of its life since.
#[derive(Debug, Clone)]
pub struct MemberEntry {
    /// The introduction.
    pub member: Member,
    /// As signed.
    pub statement: Statement,
    /// What its certificate says.
    pub facts: CertFacts,
    /// Key that signs its statements.
    pub key: KeyId,
    /// Highest (generation, incarnation) it has claimed.
    pub alive: Option<(u64, u16, Statement)>,
    /// Highest generation it has said goodbye for.
    pub left: Option<(u64, Statement)>,
    /// Known from disk only, not confirmed in this run.
    pub stale: bool,
}

impl MemberEntry {
    /// (generation, incarnation) it claims now.
    pub fn life(&self) -> (u64, u16) {
        match &self.alive {
            Some((generation, incarnation, _)) if *generation == self.member.generation => (*generation, *incarnation),
            _ => (self.member.generation, 0),
        }
    }

    /// Whether it has said goodbye for its present generation.
    pub fn has_left(&self) -> bool {
        self.left.as_ref().is_some_and(|(generation, _)| *generation >= self.member.generation)
    }
}

/// An instance record as signed.
#[derive(Debug, Clone)]
pub struct InstanceEntry {
    /// The record.
    pub record: Arc<InstanceRecord>,
    /// As signed.
    pub statement: Statement,
}

/// A policy as signed.
#[derive(Debug, Clone)]
pub struct PolicyEntry {
    /// The policy.
    pub policy: Arc<LanePolicy>,
    /// As signed.
    pub statement: Statement,
}

/// What a merge changed.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A member introduced itself (anew).
    Member(NodeId),
    /// A member claims a higher incarnation.
    Alive(NodeId),
    /// A member said goodbye.
    Left(NodeId),
    /// An instance record.
    Instance {
        /// Its service.
        service: ServiceName,
        /// What was held before.
        before: Option<Arc<InstanceRecord>>,
        /// What is held now.
        after: Arc<InstanceRecord>,
    },
    /// A policy.
    Policy(ServiceName),
}

/// Somebody else speaks in this node's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// What it says of itself.
    pub member: Member,
}

/// The replicated tables of one node. A clone shares the entries until either changes them.
#[derive(Debug, Default, Clone)]
pub struct Catalog {
    pub(super) members: Named<NodeId, Arc<MemberEntry>>,
    pub(super) instances: Named<NodeId, Arc<BTreeMap<InstanceId, InstanceEntry>>>,
    pub(super) policies: BTreeMap<ServiceName, PolicyEntry>,
    settled: BTreeMap<EntryKey, (u64, Place)>,
    /// What is held, by its hash, as kind and body: most of what gossip brings is held already, and need not be read to find
    /// out.
    versions: FxHashMap<u64, (u8, Bytes)>,
    digest: u64,
    /// Members that are down or have left: kept, but no part of the digest, and told only to who knows them.
    gone: BTreeSet<NodeId>,
}

/// Where a settled entry is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Member(NodeId),
    Alive(NodeId),
    Left(NodeId),
    Instance(NodeId, InstanceId),
    Policy(ServiceName),
}

impl Place {
    /// Whose it is; a policy is the mesh's.
    fn owner(&self) -> Option<&NodeId> {
        match self {
            Self::Member(node) | Self::Alive(node) | Self::Left(node) | Self::Instance(node, _) => Some(node),
            Self::Policy(_) => None,
        }
    }

    /// The kind is a byte of what is hashed, not the seed: with short texts xxh3 lets a seed and a character cancel out, and
    /// `Member("n11")` would be the same entry as some `Alive("n1x")`.
    fn key(&self) -> EntryKey {
        // Neither name of an instance can hold a slash, so no two pairs share a text.
        let (kind, text, rest) = match self {
            Self::Member(node) => (Kind::Member, node.as_str(), None),
            Self::Alive(node) => (Kind::Alive, node.as_str(), None),
            Self::Left(node) => (Kind::Left, node.as_str(), None),
            Self::Instance(node, id) => (Kind::Instance, node.as_str(), Some(id.as_str())),
            Self::Policy(service) => (Kind::Policy, service.as_str(), None),
        };
        let mut bytes = Vec::with_capacity(2 + text.len() + rest.map_or(0, str::len));
        bytes.push(kind as u8);
        bytes.extend_from_slice(text.as_bytes());
        if let Some(rest) = rest {
            bytes.push(b'/');
            bytes.extend_from_slice(rest.as_bytes());
        }
        xxh3_64(&bytes)
    }
}

fn weigh(key: EntryKey, version: u64) -> u64 {
    xxh3_64_with_seed(&version.to_le_bytes(), key)
}

impl Catalog {
    /// No entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// All members known, by node id; this node included.
    pub fn members(&self) -> impl Iterator<Item = (&NodeId, &MemberEntry)> {
        self.members.iter().map(|(node, entry)| (node, &**entry))
    }

    /// One member.
    pub fn member(&self, node: &NodeId) -> Option<&MemberEntry> {
        self.members.get(node).map(|entry| &**entry)
    }

    /// All instance records held, withdrawn ones included, by (owner, id).
    pub fn instances(&self) -> impl Iterator<Item = &InstanceEntry> {
        self.instances.iter().flat_map(|(_, owned)| owned.values())
    }

    /// One instance record.
    pub fn instance(&self, owner: &NodeId, id: &InstanceId) -> Option<&InstanceEntry> {
        self.instances.get(owner)?.get(id)
    }

    /// All policies, by service.
    pub fn policies(&self) -> impl Iterator<Item = &PolicyEntry> {
        self.policies.values()
    }

    /// The policy of one service.
    pub fn policy(&self, service: &ServiceName) -> Option<&PolicyEntry> {
        self.policies.get(service)
    }

    /// Whether this very statement is held: merging it would change nothing.
    pub fn holds(&self, statement: &Statement) -> bool {
        self.holds_body(statement.kind, &statement.body)
    }

    /// Whether a statement of this kind with this body is held.
    pub fn holds_body(&self, kind: u8, body: &[u8]) -> bool {
        let held = self.versions.get(&xxh3_64(body));
        held.is_some_and(|(of, held)| *of == kind && held[..] == *body)
    }

    /// Order-free digest of everything held of those who are there: equal on two nodes that hold the same of them.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// (entry, hash of its version) of everything held, sorted by entry.
    pub fn summary(&self) -> Vec<(EntryKey, u64)> {
        self.settled.iter().map(|(key, (version, _))| (*key, *version)).collect()
    }

    /// What a peer with this summary lacks or holds in another version, members first; and the entries that only the peer
    /// has. Which of two versions is newer the merge on the peer's side finds out: it sends the winner back.
    ///
    /// The gone are told only to who knows them: a newcomer would take them for alive, bury them itself, and hold them for
    /// longer than everybody else, so that they were never forgotten.
    pub fn difference(&self, summary: &[(EntryKey, u64)]) -> (Vec<Statement>, Vec<EntryKey>) {
        // A summary comes sorted, each entry once; one that does not is its sender's mistake and only costs time.
        let mut theirs: Cow<'_, [(EntryKey, u64)]> = summary.into();
        if !theirs.is_sorted_by(|(one, _), (next, _)| one < next) {
            theirs.to_mut().sort_unstable_by_key(|(key, _)| *key);
            theirs.to_mut().dedup_by_key(|(key, _)| *key);
        }
        let known =
            |node: &NodeId| theirs.binary_search_by_key(&Place::Member(node.clone()).key(), |(key, _)| *key).is_ok();
        // Both are walked side by side: nearly all is the same.
        let (mut places, mut wanted, mut next) = (Vec::new(), Vec::new(), 0);
        for (key, (version, place)) in &self.settled {
            while let Some((other, _)) = theirs.get(next).filter(|(other, _)| other < key) {
                wanted.push(*other);
                next += 1;
            }
            let same = theirs.get(next).filter(|(other, _)| other == key);
            next += usize::from(same.is_some());
            if same.is_none_or(|(_, theirs)| theirs != version) && self.is_of_the_living(place, known) {
                places.push(place);
            }
        }
        wanted.extend(theirs[next..].iter().map(|(key, _)| *key));
        (self.in_order(places), wanted)
    }

    /// The statements of these entries, members first; of the gone only what a peer asks for that knows them.
    pub fn statements_of(&self, keys: &[EntryKey]) -> Vec<Statement> {
        let unknown: BTreeSet<EntryKey> = keys.iter().copied().collect();
        let known = |node: &NodeId| !unknown.contains(&Place::Member(node.clone()).key());
        let places = keys.iter().filter_map(|key| self.settled.get(key)).map(|(_, place)| place);
        self.in_order(places.filter(|place| self.is_of_the_living(place, known)).collect())
    }

    fn is_of_the_living(&self, place: &Place, known: impl Fn(&NodeId) -> bool) -> bool {
        Planted::DeadToNewcomers.is_on() || place.owner().is_none_or(|owner| !self.gone.contains(owner) || known(owner))
    }

    fn in_order(&self, mut places: Vec<&Place>) -> Vec<Statement> {
        places.sort_by_key(|place| !matches!(place, Place::Member(_)));
        places.into_iter().filter_map(|place| self.statement_at(place)).cloned().collect()
    }

    /// Every statement held, members first: what is written to disk.
    pub fn statements(&self) -> Vec<Statement> {
        self.in_order(self.settled.values().map(|(_, place)| place).collect())
    }

    /// Every statement held, to look at: members and their lives, instances, policies, each by name.
    pub fn each_statement(&self) -> impl Iterator<Item = &Statement> {
        let members = self.members().flat_map(|(_, entry)| {
            let alive = entry.alive.as_ref().map(|(_, _, alive)| alive);
            let left = entry.left.as_ref().map(|(_, left)| left);
            std::iter::once(&entry.statement).chain(alive).chain(left)
        });
        let instances = self.instances().map(|entry| &entry.statement);
        members.chain(instances).chain(self.policies().map(|entry| &entry.statement))
    }

    /// Notes that a member is down or has left, or is back: the digest counts only those who are there, so that a newcomer
    /// that never met the gone holds the same as who buried them.
    pub fn set_gone(&mut self, node: &NodeId, gone: bool) {
        if gone == self.gone.contains(node) {
            return;
        }
        let mut places: Vec<Place> =
            self.owned_by(node).map(|e| Place::Instance(node.clone(), e.record.id.clone())).collect();
        places.extend([Place::Member(node.clone()), Place::Alive(node.clone()), Place::Left(node.clone())]);
        for key in places.iter().map(Place::key) {
            let Some((version, _)) = self.settled.get(&key) else { continue };
            let weight = weigh(key, *version);
            self.digest = if gone { self.digest.wrapping_sub(weight) } else { self.digest.wrapping_add(weight) };
        }
        if gone {
            self.gone.insert(node.clone());
        } else {
            self.gone.remove(node);
        }
    }

    /// Of whom that was noted, by node id.
    pub fn gone(&self) -> impl Iterator<Item = &NodeId> {
        self.gone.iter()
    }

    /// Whether that was noted of a member.
    pub fn is_gone(&self, node: &NodeId) -> bool {
        self.gone.contains(node)
    }

    /// Statements that introduce one node: itself, its life, its instances.
    pub fn hello(&self, node: &NodeId) -> Vec<Statement> {
        let Some(entry) = self.members.get(node) else { return Vec::new() };
        let mut hello = vec![entry.statement.clone()];
        hello.extend(entry.alive.iter().map(|(_, _, statement)| statement.clone()));
        hello.extend(self.owned_by(node).map(|entry| entry.statement.clone()));
        hello
    }

    /// Instance records of one owner, withdrawn ones included.
    pub fn owned_by(&self, owner: &NodeId) -> impl Iterator<Item = &InstanceEntry> {
        self.instances.get(owner).into_iter().flat_map(|owned| owned.values())
    }

    /// A peer confirmed in this run what was known from disk. Whether that was news.
    pub fn confirm(&mut self, node: &NodeId) -> bool {
        let stale = self.members.get_mut(node).filter(|entry| entry.stale);
        stale.is_some_and(|entry| std::mem::take(&mut Arc::make_mut(entry).stale))
    }

    /// Marks everything held as known from disk only.
    pub fn mark_stale(&mut self) {
        self.members.each_mut().for_each(|entry| Arc::make_mut(entry).stale = true);
    }

    /// Drops a member and its records. Policies stay: they belong to the mesh.
    pub fn forget(&mut self, node: &NodeId) {
        if self.members.remove(node).is_none() {
            return;
        }
        for place in [Place::Member(node.clone()), Place::Alive(node.clone()), Place::Left(node.clone())] {
            self.unsettle(&place);
        }
        self.drop_records(node, u64::MAX);
        self.gone.remove(node);
    }

    /// Drops records of an owner from generations before `generation`.
    pub(super) fn drop_records(&mut self, owner: &NodeId, generation: u64) {
        let old: Vec<InstanceId> = self
            .owned_by(owner)
            .filter(|entry| entry.record.generation < generation)
            .map(|entry| entry.record.id.clone())
            .collect();
        for id in old {
            if let Some(owned) = self.instances.get_mut(owner) {
                Arc::make_mut(owned).remove(&id);
            }
            self.unsettle(&Place::Instance(owner.clone(), id));
        }
        if self.instances.get(owner).is_some_and(|owned| owned.is_empty()) {
            self.instances.remove(owner);
        }
    }

    /// Notes an entry's present version in the digest.
    pub(super) fn settle(&mut self, place: Place, statement: &Statement) {
        let (key, version) = (place.key(), xxh3_64(&statement.body));
        if Planted::PoliciesNotSynced.is_on() && matches!(place, Place::Policy(_)) {
            return;
        }
        self.unsettle(&place);
        if self.counts(&place) {
            self.digest = self.digest.wrapping_add(weigh(key, version));
        }
        self.versions.insert(version, (statement.kind, statement.body.clone()));
        self.settled.insert(key, (version, place));
    }

    fn unsettle(&mut self, place: &Place) {
        let key = place.key();
        let Some((version, _)) = self.settled.remove(&key) else { return };
        self.versions.remove(&version);
        if self.counts(place) {
            self.digest = self.digest.wrapping_sub(weigh(key, version));
        }
    }

    fn counts(&self, place: &Place) -> bool {
        place.owner().is_none_or(|owner| !self.gone.contains(owner))
    }

    fn statement_at(&self, place: &Place) -> Option<&Statement> {
        match place {
            Place::Member(node) => self.members.get(node).map(|e| &e.statement),
            Place::Alive(node) => self.members.get(node)?.alive.as_ref().map(|(_, _, s)| s),
            Place::Left(node) => self.members.get(node)?.left.as_ref().map(|(_, s)| s),
            Place::Instance(node, id) => self.instance(node, id).map(|e| &e.statement),
            Place::Policy(service) => self.policies.get(service).map(|e| &e.statement),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_entries_share_a_key_however_short_their_names() {
        let names = ('a'..='z')
            .flat_map(|a| (0..120).flat_map(move |n| [format!("{a}"), format!("{a}{n}"), format!("{a}-{n}")]));
        let names: std::collections::BTreeSet<String> = names.collect();
        let mut seen = BTreeMap::new();
        for name in &names {
            let (node, id) = (NodeId::new(name).unwrap(), InstanceId::new(name).unwrap());
            let places = [
                Place::Member(node.clone()),
                Place::Alive(node.clone()),
                Place::Left(node.clone()),
                Place::Instance(node, id),
                Place::Policy(ServiceName::new(name).unwrap()),
            ];
            for place in places {
                let before = seen.insert(place.key(), place.clone());
                assert_eq!(before, None, "shares its key with {place:?}");
            }
        }
    }
}
