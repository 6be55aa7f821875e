//! From a candidate table to a snapshot, off the request path and off the gossip loop.
//!
//! Filter on gossiped facts, one ring per (service, lane) of the own environment. What did not change is reused: whole
//! services, compiled policies, rings (by content; a changed one is made from the one before), instance cells. A service that
//! is over a limit keeps its last good view and is reported at every build until it is mended.
//!
//! Not here: when to build (the agent coalesces), zones (a later issue).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use xxhash_rust::xxh3::Xxh3;

use super::{
    Candidate, CandidateTable, Exclusion, FallbackReason, InstanceCell, InstanceEntry, LaneView, Locality, MAX_MEMBERS,
    Member, Ring, RingFault, ServiceView, Snapshot, key_hash,
};
use crate::{
    lanes::CompiledPolicy,
    types::{Lane, LanePolicy, MemberState, Mono, ServiceName},
};

/// Builds snapshots; keeps rings and cells that did not change.
pub struct Builder {
    locality: Locality,
    version: u64,
    kept: BTreeMap<ServiceName, Kept>,
    rings: RingCache,
    sample: Vec<u64>,
}

/// What the last build made of one service.
struct Kept {
    candidates: Vec<Candidate>,
    policy: Option<Arc<LanePolicy>>,
    view: Arc<ServiceView>,
    fault: Option<String>,
}

impl Builder {
    /// For a sidecar that stands at `locality`.
    pub fn new(locality: Locality) -> Self {
        let sample = (0..SAMPLED_KEYS).map(|key| key_hash(&key.to_le_bytes())).collect();
        Self { locality, version: 0, kept: BTreeMap::new(), rings: RingCache::default(), sample }
    }

    /// The next snapshot. Over-limit services keep their last good view; the faults say which and why.
    pub fn build(&mut self, table: &CandidateTable, now: Mono) -> (Arc<Snapshot>, Vec<String>) {
        let mut moved = 0;
        let mut before = std::mem::take(&mut self.kept);
        for (name, candidates) in by_service(table) {
            let policy = table.policies.get(name);
            let last = before.remove(name);
            let kept = match last {
                Some(last) if last.is_of(&candidates, policy) => last,
                last => {
                    let next = self.service(name, candidates, policy, last.as_ref());
                    if let Some(last) = last {
                        moved = moved.max(self.moved(&last.view, &next.view));
                    }
                    next
                }
            };
            self.kept.insert(name.clone(), kept);
        }
        drop(before);
        self.version += 1;
        let services = self.kept.values().map(|kept| kept.view.clone()).collect();
        let mut snapshot = Snapshot::new(self.version, now, services);
        snapshot.moved_basis_points = moved;
        let faults = self.kept.values().filter_map(|kept| kept.fault.clone()).collect();
        self.rings.sweep();
        (Arc::new(snapshot), faults)
    }

    fn service(
        &mut self,
        name: &ServiceName,
        candidates: Vec<&Candidate>,
        policy: Option<&Arc<LanePolicy>>,
        last: Option<&Kept>,
    ) -> Kept {
        let last_view = last.map(|last| &*last.view);
        let compiled = policy.map(|policy| compiled(policy, last_view));
        let mut instances = entries(&candidates, &self.locality, last_view);
        spare_the_last(&mut instances);
        let (view, fault) = match self.lanes(&instances, compiled.as_deref(), last_view) {
            Ok(lanes) => (view(name, instances, compiled, lanes), None),
            Err((lane, fault)) => {
                let until = if last.is_some() { "its last good view stays in force" } else { "it has no candidate" };
                let fault = format!("service `{name}`, lane `{lane}`: {fault}; until then {until}");
                (last_good(name, last_view, compiled), Some(fault))
            }
        };
        let view = Arc::new(view);
        let candidates = candidates.into_iter().cloned().collect();
        Kept { candidates, policy: policy.cloned(), view, fault }
    }

    fn lanes(
        &mut self,
        instances: &[InstanceEntry],
        policy: Option<&CompiledPolicy>,
        last: Option<&ServiceView>,
    ) -> Result<Vec<LaneView>, (Lane, RingFault)> {
        let here = instances.iter().filter(|entry| entry.record.env == self.locality.env);
        let names = lane_names(policy, here.map(|entry| &entry.record.lane));
        if instances.len() > MAX_MEMBERS {
            return Err((Lane::stable(), RingFault::TooManyMembers(instances.len())));
        }
        names.into_iter().map(|name| self.lane(name, instances, last)).collect()
    }

    fn lane(
        &mut self,
        name: Lane,
        instances: &[InstanceEntry],
        last: Option<&ServiceView>,
    ) -> Result<LaneView, (Lane, RingFault)> {
        let candidates =
            (0_u16..).zip(instances).filter(|(_, entry)| entry.excluded.is_none() && entry.record.lane == name);
        // Instances are in the order of their ids and a candidate's id is unique, so slots and members agree.
        let (members, on_ring): (Vec<u16>, Vec<Member>) = candidates
            .map(|(at, entry)| (at, Member { id: entry.record.id.clone(), weight: entry.record.weight }))
            .unzip();
        let near = last.and_then(|view| view.lane(name.as_str())).map(|lane| &lane.ring);
        let ring = self.rings.get(on_ring, near).map_err(|fault| (name.clone(), fault))?;
        let empty = ring.is_empty().then(|| why_empty(&name, instances));
        Ok(LaneView { name, ring, members, empty })
    }

    /// Share of the sampled keys (basis points) that lost their owner, in the lane where it is largest.
    fn moved(&self, before: &ServiceView, after: &ServiceView) -> u16 {
        let lanes = before.lanes.iter().map(|old| match after.lane(old.name.as_str()) {
            Some(new) if Arc::ptr_eq(&old.ring, &new.ring) => 0,
            new => moved_keys(&self.sample, &old.ring, new.map(|new| &*new.ring)),
        });
        (lanes.max().unwrap_or(0) * 10_000 / self.sample.len()) as u16
    }
}

impl Kept {
    fn is_of(&self, candidates: &[&Candidate], policy: Option<&Arc<LanePolicy>>) -> bool {
        self.policy.as_ref() == policy && self.candidates.iter().eq(candidates.iter().copied())
    }
}

/// Services that have an instance or a policy, each with its candidates by (instance id, owner).
fn by_service(table: &CandidateTable) -> BTreeMap<&ServiceName, Vec<&Candidate>> {
    let mut services: BTreeMap<&ServiceName, Vec<&Candidate>> = BTreeMap::new();
    for candidate in &table.instances {
        services.entry(&candidate.record.service).or_default().push(candidate);
    }
    for candidates in services.values_mut() {
        candidates.sort_by(|a, b| (&a.record.id, &a.record.owner).cmp(&(&b.record.id, &b.record.owner)));
    }
    for service in table.policies.keys() {
        services.entry(service).or_default();
    }
    services
}

fn compiled(policy: &Arc<LanePolicy>, last: Option<&ServiceView>) -> Arc<CompiledPolicy> {
    match last.and_then(|view| view.policy.as_ref()) {
        Some(last) if last.policy == *policy => last.clone(),
        _ => Arc::new(CompiledPolicy::new(policy.clone())),
    }
}

fn entries<'a>(candidates: &[&'a Candidate], locality: &Locality, last: Option<&ServiceView>) -> Vec<InstanceEntry> {
    let mut claimed = None;
    let entry = |&candidate: &&'a Candidate| {
        let record = &candidate.record;
        let gone = gone(candidate, locality);
        let duplicate = gone.is_none() && claimed == Some(&record.id);
        if gone.is_none() {
            claimed = Some(&record.id);
        }
        let excluded = gone.or(duplicate.then_some(Exclusion::DuplicateId)).or(out_of_rotation(candidate));
        InstanceEntry {
            record: record.clone(),
            owner: candidate.owner,
            stale: candidate.stale,
            excluded,
            cell: cell(candidate, excluded.is_none(), last),
        }
    };
    candidates.iter().map(entry).collect()
}

/// A lane that would be empty without its flapping instances keeps them: an unsteady one is better than none.
fn spare_the_last(instances: &mut [InstanceEntry]) {
    for at in 0..instances.len() {
        if instances[at].excluded != Some(Exclusion::Flapping) {
            continue;
        }
        let lane = &instances[at].record.lane;
        if !instances.iter().any(|entry| entry.excluded.is_none() && entry.record.lane == *lane) {
            instances[at].excluded = None;
        }
    }
}

/// Facts by which an instance does not exist here: it then leaves its id to others.
fn gone(candidate: &Candidate, locality: &Locality) -> Option<Exclusion> {
    match candidate.owner {
        _ if candidate.record.env != locality.env => Some(Exclusion::OtherEnv),
        MemberState::Left => Some(Exclusion::OwnerLeft),
        MemberState::Down if !candidate.stale => Some(Exclusion::OwnerDown),
        MemberState::Down | MemberState::Alive | MemberState::Doubtful => None,
    }
}

fn out_of_rotation(candidate: &Candidate) -> Option<Exclusion> {
    let record = &candidate.record;
    if record.drain.is_some() {
        Some(Exclusion::Draining)
    } else if record.health == crate::types::Health::Critical {
        Some(Exclusion::Critical)
    } else {
        let zero = (record.weight == 0).then_some(Exclusion::WeightZero);
        zero.or(candidate.held.then_some(Exclusion::Flapping))
    }
}

/// The instance's cell, kept from the last view. What was held against it is dropped when its owner has newer news than that:
/// a new run, another address, or a return into rotation.
fn cell(candidate: &Candidate, is_candidate: bool, last: Option<&ServiceView>) -> Arc<InstanceCell> {
    let record = &candidate.record;
    let before = last.and_then(|view| {
        let key = (&record.id, &record.owner);
        let found = view.instances.binary_search_by(|entry| (&entry.record.id, &entry.record.owner).cmp(&key));
        found.ok().map(|at| &view.instances[at])
    });
    let Some(before) = before else { return Arc::default() };
    let same_run = before.record.generation == record.generation;
    let same_address = before.record.port == record.port && before.record.host == record.host;
    if !same_run || !same_address || (is_candidate && before.excluded.is_some()) {
        before.cell.answered();
    }
    before.cell.clone()
}

/// `stable`, the policy's lanes, and the given ones; in order, each once.
fn lane_names<'a>(policy: Option<&CompiledPolicy>, others: impl IntoIterator<Item = &'a Lane>) -> BTreeSet<Lane> {
    let of_policy = policy.into_iter().flat_map(CompiledPolicy::lanes);
    of_policy.cloned().chain(others.into_iter().cloned()).chain([Lane::stable()]).collect()
}

fn why_empty(lane: &Lane, instances: &[InstanceEntry]) -> FallbackReason {
    let mut reason = FallbackReason::Absent;
    for entry in instances.iter().filter(|entry| entry.record.lane == *lane) {
        match entry.excluded {
            Some(Exclusion::Critical | Exclusion::OwnerDown | Exclusion::Flapping) => return FallbackReason::Unhealthy,
            Some(Exclusion::Draining | Exclusion::WeightZero) => reason = FallbackReason::Draining,
            Some(Exclusion::OtherEnv | Exclusion::OwnerLeft | Exclusion::DuplicateId) | None => {}
        }
    }
    reason
}

/// The view of a service that is over a limit: the candidates as they were (none if it was over the limit from the first),
/// under the present policy, so that a rollback is never held up.
fn last_good(name: &ServiceName, last: Option<&ServiceView>, policy: Option<Arc<CompiledPolicy>>) -> ServiceView {
    let instances = last.map_or_else(Vec::new, |last| last.instances.clone());
    let mut lanes = last.map_or_else(Vec::new, |last| last.lanes.clone());
    let nobody = Arc::new(Ring::empty());
    for name in lane_names(policy.as_deref(), []) {
        if let Err(at) = lanes.binary_search_by(|lane| lane.name.cmp(&name)) {
            let empty = Some(FallbackReason::Absent);
            lanes.insert(at, LaneView { name, ring: nobody.clone(), members: Vec::new(), empty });
        }
    }
    view(name, instances, policy, lanes)
}

fn view(
    name: &ServiceName,
    instances: Vec<InstanceEntry>,
    policy: Option<Arc<CompiledPolicy>>,
    lanes: Vec<LaneView>,
) -> ServiceView {
    let stable = [Lane::stable()];
    let decided = policy.as_ref().map_or(&stable[..], |policy| policy.lanes());
    let index = |name: &Lane| {
        let found = lanes.binary_search_by(|lane| lane.name.cmp(name));
        found.expect("every lane of the policy has a view") as u16
    };
    let lane_of = decided.iter().map(index).collect();
    let digest = digest(name, &instances, policy.as_deref(), &lanes);
    ServiceView { name: name.clone(), instances, policy, lanes, digest, lane_of }
}

/// Texts are followed by a zero byte, which none of them contains, and lists by their length.
fn digest(name: &ServiceName, instances: &[InstanceEntry], policy: Option<&CompiledPolicy>, lanes: &[LaneView]) -> u64 {
    let mut hash = Xxh3::new();
    let mut text = |text: &str| {
        hash.update(text.as_bytes());
        hash.update(&[0]);
    };
    text(name.as_str());
    for lane in lanes.iter().filter(|lane| !lane.members.is_empty()) {
        text(lane.name.as_str());
        for at in &lane.members {
            let record = &instances[usize::from(*at)].record;
            text(record.id.as_str());
            text(record.version.as_str());
            text(&record.authority());
            text(&record.weight.to_string());
        }
        text("");
    }
    if let Some(policy) = policy {
        let version = &policy.policy.version;
        text(&format!("{} {} {}", version.epoch, version.clock, version.author));
    }
    hash.digest()
}

fn moved_keys(sample: &[u64], before: &Ring, after: Option<&Ring>) -> usize {
    let changed = |key: &&u64| {
        let Some(old) = before.owner(**key) else { return false };
        let new = after.and_then(|ring| ring.owner(**key).map(|slot| &ring.members()[usize::from(slot)].id));
        new != Some(&before.members()[usize::from(old)].id)
    };
    sample.iter().filter(changed).count()
}

/// Rings by content.
#[derive(Default)]
struct RingCache {
    rings: BTreeMap<u64, Arc<Ring>>,
}

impl RingCache {
    /// The ring of these members (in id order): a known one, one made from `near`, or a new one.
    fn get(&mut self, members: Vec<Member>, near: Option<&Arc<Ring>>) -> Result<Arc<Ring>, RingFault> {
        let key = content(&members);
        if let Some(known) = self.rings.get(&key).filter(|ring| ring.members() == members) {
            return Ok(known.clone());
        }
        let ring = match near {
            Some(near) => near.changed(members)?,
            None => Ring::new(members)?,
        };
        let ring = Arc::new(ring);
        self.rings.insert(key, ring.clone());
        Ok(ring)
    }

    /// Forgets rings that no snapshot holds.
    fn sweep(&mut self) {
        self.rings.retain(|_, ring| Arc::strong_count(ring) > 1);
    }
}

fn content(members: &[Member]) -> u64 {
    let mut hash = Xxh3::new();
    for member in members {
        hash.update(member.id.as_str().as_bytes());
        hash.update(&[0]);
        hash.update(&member.weight.to_le_bytes());
    }
    hash.digest()
}

/// Keys sampled to measure how many moved.
const SAMPLED_KEYS: u32 = 4_096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        routing::testing::*,
        types::{Env, Health},
    };

    fn excluded(snapshot: &Snapshot, id: &str) -> Option<Exclusion> {
        let service = snapshot.service("orders").unwrap();
        service.instances.iter().find(|entry| entry.record.id.as_str() == id).unwrap().excluded
    }

    fn ring(snapshot: &Snapshot, lane: &str) -> Arc<Ring> {
        snapshot.service("orders").unwrap().lane(lane).unwrap().ring.clone()
    }

    #[test]
    fn gossiped_facts_exclude_each_with_its_reason() {
        let mut table = fleet(10, 0);
        edit(&mut table, "a0", |record| record.env = Env::new("staging").unwrap());
        edit(&mut table, "a1", |record| record.health = Health::Critical);
        edit(&mut table, "a2", |record| record.drain = drain());
        edit(&mut table, "a3", |record| record.weight = 0);
        edit(&mut table, "a4", |record| record.health = Health::Warning);
        owner(&mut table, "a5", MemberState::Down);
        owner(&mut table, "a6", MemberState::Left);
        owner(&mut table, "a7", MemberState::Doubtful);
        owner(&mut table, "a8", MemberState::Down);
        table.instances[8].stale = true;
        let snapshot = built(&table);
        let found: Vec<_> = (0..10).map(|i| excluded(&snapshot, &format!("a{i}"))).collect();
        use Exclusion::*;
        let expected =
            [Some(OtherEnv), Some(Critical), Some(Draining), Some(WeightZero), None, Some(OwnerDown), Some(OwnerLeft)];
        assert_eq!(found[..7], expected);
        assert_eq!(found[7..], [None, None, None]);
        assert_eq!(ring(&snapshot, "stable").members().len(), 4);
    }

    #[test]
    fn a_flapping_instance_waits_unless_its_lane_has_nobody_else() {
        let mut table = fleet(2, 0);
        table.instances[0].held = true;
        let owners = |table: &CandidateTable| [excluded(&built(table), "a0"), excluded(&built(table), "a1")];
        assert_eq!(owners(&table), [Some(Exclusion::Flapping), None]);
        edit(&mut table, "a1", |record| record.health = Health::Critical);
        assert_eq!(owners(&table), [None, Some(Exclusion::Critical)]);
    }

    #[test]
    fn the_smaller_node_id_keeps_a_doubled_instance_id_while_it_is_there() {
        let mut table = fleet(2, 0);
        let mut other = record("a0", "stable");
        other.owner = crate::types::NodeId::new("a-smaller-node").unwrap();
        table.instances.push(alive(other));
        let owners = |table: &CandidateTable| {
            let snapshot = built(table);
            let service = snapshot.service("orders").unwrap();
            let pair = service.instances.iter().filter(|entry| entry.record.id.as_str() == "a0");
            pair.map(|entry| (entry.record.owner.to_string(), entry.excluded)).collect::<Vec<_>>()
        };
        let (small, large) = ("a-smaller-node".to_owned(), "node-a0".to_owned());
        assert_eq!(owners(&table), [(small.clone(), None), (large.clone(), Some(Exclusion::DuplicateId))]);
        table.instances[2].owner = MemberState::Down;
        assert_eq!(owners(&table), [(small, Some(Exclusion::OwnerDown)), (large, None)]);
    }

    #[test]
    fn what_did_not_change_is_kept() {
        let mut builder = Builder::new(locality());
        let mut table = with_policy(fleet(4, 2), policy(500));
        let (first, _) = builder.build(&table, NOW);
        let (second, _) = builder.build(&table, NOW);
        assert!(std::ptr::eq(first.service("orders").unwrap(), second.service("orders").unwrap()));
        assert_eq!((second.version, second.digest, second.moved_basis_points), (2, first.digest, 0));

        edit(&mut table, "c0", |record| record.weight = 200);
        let (third, _) = builder.build(&table, NOW);
        assert!(Arc::ptr_eq(&ring(&first, "stable"), &ring(&third, "stable")));
        assert!(!Arc::ptr_eq(&ring(&first, "canary"), &ring(&third, "canary")));
        let cell = |snapshot: &Snapshot| snapshot.service("orders").unwrap().instances[0].cell.clone();
        assert!(Arc::ptr_eq(&cell(&first), &cell(&third)));
        let compiled = |snapshot: &Snapshot| snapshot.service("orders").unwrap().policy.clone().unwrap();
        assert!(Arc::ptr_eq(&compiled(&first), &compiled(&third)));
        assert_ne!(third.digest, first.digest);
    }

    #[test]
    fn news_from_the_owner_clear_what_was_held_against_an_instance() {
        let changes: [fn(&mut crate::types::InstanceRecord); 3] =
            [|record| record.generation = 2, |record| record.port = 1, |record| record.host = "10.0.0.9".into()];
        for change in changes {
            let (mut builder, mut table) = (Builder::new(locality()), fleet(2, 0));
            let cell = builder.build(&table, NOW).0.service("orders").unwrap().instances[0].cell.clone();
            cell.refused(NOW);
            cell.refused(NOW);
            edit(&mut table, "a0", |record| record.sequence = 2);
            builder.build(&table, NOW);
            assert!(cell.doubtful(NOW), "not by any news");
            edit(&mut table, "a0", change);
            builder.build(&table, NOW);
            assert!(!cell.doubtful(NOW));
        }
    }

    #[test]
    fn a_return_into_rotation_clears_too() {
        let (mut builder, mut table) = (Builder::new(locality()), fleet(2, 0));
        let cell = builder.build(&table, NOW).0.service("orders").unwrap().instances[0].cell.clone();
        edit(&mut table, "a0", |record| record.health = Health::Critical);
        builder.build(&table, NOW);
        cell.refused(NOW);
        cell.refused(NOW);
        edit(&mut table, "a0", |record| record.health = Health::Passing);
        builder.build(&table, NOW);
        assert!(!cell.doubtful(NOW));
    }

    #[test]
    fn the_digest_is_equal_for_equal_content_whatever_the_history() {
        let (mut builder, mut table) = (Builder::new(locality()), with_policy(fleet(5, 2), policy(500)));
        let fresh = built(&table).digest;
        edit(&mut table, "a1", |record| record.health = Health::Critical);
        let without = builder.build(&table, NOW).0.digest;
        assert_ne!(without, fresh);
        edit(&mut table, "a1", |record| record.health = Health::Passing);
        assert_eq!(builder.build(&table, NOW).0.digest, fresh);
        let changes: [fn(&mut CandidateTable); 4] = [
            |table| edit(table, "a1", |record| record.weight = 99),
            |table| edit(table, "a1", |record| record.port = 1),
            |table| edit(table, "a1", |record| record.lane = Lane::new("canary").unwrap()),
            |table| *table = with_policy(std::mem::take(table), policy(501)),
        ];
        for change in changes {
            let mut other = table.clone();
            change(&mut other);
            assert_ne!(built(&other).digest, fresh);
        }
    }

    #[test]
    fn moved_keys_are_measured() {
        let (mut builder, mut table) = (Builder::new(locality()), fleet(10, 0));
        assert_eq!(builder.build(&table, NOW).0.moved_basis_points, 0, "nothing was there before");
        owner(&mut table, "a3", MemberState::Down);
        let moved = builder.build(&table, NOW).0.moved_basis_points;
        assert!((800..=1_200).contains(&moved), "a tenth, but {moved}");
        for i in 0..10 {
            owner(&mut table, &format!("a{i}"), MemberState::Down);
        }
        assert_eq!(builder.build(&table, NOW).0.moved_basis_points, 10_000);
    }

    #[test]
    fn a_service_over_the_limit_keeps_its_last_good_view_under_the_present_policy() {
        let (mut builder, mut table) = (Builder::new(locality()), with_policy(fleet(3, 1), policy(500)));
        let (good, _) = builder.build(&table, NOW);
        for i in 0..250 {
            let mut heavy = record(&format!("x{i}"), "stable");
            heavy.weight = 1600;
            table.instances.push(alive(heavy));
        }
        let mut off = policy(0);
        off.off = true;
        let table = with_policy(table, off);
        for _ in 0..2 {
            let (snapshot, faults) = builder.build(&table, NOW);
            assert_eq!(faults.len(), 1);
            assert!(
                faults[0].contains("service `orders`, lane `stable`") && faults[0].contains("last good view"),
                "{faults:?}"
            );
            assert!(Arc::ptr_eq(&ring(&snapshot, "stable"), &ring(&good, "stable")));
            assert!(snapshot.service("orders").unwrap().policy.as_ref().unwrap().policy.off);
        }
        let (first, faults) = Builder::new(locality()).build(&table, NOW);
        assert!(faults[0].contains("no candidate") && ring(&first, "stable").is_empty());
    }

    #[test]
    fn services_come_from_instances_and_policies_in_name_order() {
        let mut table = fleet(1, 0);
        let mut cart = record("cart-0", "stable");
        cart.service = ServiceName::new("cart").unwrap();
        table.instances.push(alive(cart));
        let mut other = policy(1);
        other.service = ServiceName::new("zoo").unwrap();
        let snapshot = built(&with_policy(table, other));
        let names: Vec<_> = snapshot.services().map(|service| service.name.to_string()).collect();
        assert_eq!(names, ["cart", "orders", "zoo"]);
        assert!(snapshot.service("zoo").unwrap().lane("canary").unwrap().ring.is_empty());
        assert!(snapshot.service("nobody").is_none() && Snapshot::empty().service("orders").is_none());
    }

    /// One change to one of six instances.
    fn any_change() -> impl Strategy<Value = (usize, u8)> {
        (0_usize..6, 0_u8..10)
    }

    fn apply(table: &mut CandidateTable, (at, what): (usize, u8)) {
        let id = format!("a{at}");
        match what {
            0 => owner(table, &id, MemberState::Down),
            1 => owner(table, &id, MemberState::Alive),
            2 => owner(table, &id, MemberState::Left),
            3 => owner(table, &id, MemberState::Doubtful),
            4 => edit(table, &id, |record| record.drain = drain()),
            5 => edit(table, &id, |record| record.drain = None),
            6 => edit(table, &id, |record| record.weight = 0),
            7 => edit(table, &id, |record| record.weight = 70),
            8 => edit(table, &id, |record| record.lane = Lane::new("canary").unwrap()),
            _ => edit(table, &id, |record| record.health = Health::Critical),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// C22: the ring is a pure function of the table, whatever came before.
        #[test]
        fn a_view_after_many_changes_is_the_view_of_a_new_builder(changes in prop::collection::vec(any_change(), 1..20)) {
            let (mut builder, mut table) = (Builder::new(locality()), fleet(6, 0));
            for change in changes {
                apply(&mut table, change);
                let (kept, fresh) = (builder.build(&table, NOW).0, built(&table));
                prop_assert_eq!(kept.digest, fresh.digest);
                let (kept, fresh) = (kept.service("orders").unwrap(), fresh.service("orders").unwrap());
                for (kept, fresh) in kept.lanes.iter().zip(&fresh.lanes) {
                    prop_assert_eq!(kept.ring.iter().collect::<Vec<_>>(), fresh.ring.iter().collect::<Vec<_>>());
                    prop_assert_eq!((&kept.members, kept.empty), (&fresh.members, fresh.empty));
                }
                let on_rings: usize = kept.lanes.iter().map(|lane| lane.ring.members().len()).sum();
                prop_assert_eq!(on_rings, kept.instances.iter().filter(|entry| entry.excluded.is_none()).count());
            }
        }
    }
}
