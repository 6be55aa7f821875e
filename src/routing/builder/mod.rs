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
    types::{Lane, LanePolicy, MemberState, Mono, Planted, ServiceName},
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
        _ if candidate.record.env != locality.env && !Planted::ForeignEnv.is_on() => Some(Exclusion::OtherEnv),
        MemberState::Left | MemberState::Down if Planted::KeepDead.is_on() => None,
        MemberState::Left => Some(Exclusion::OwnerLeft),
        MemberState::Down if !candidate.stale => Some(Exclusion::OwnerDown),
        MemberState::Down | MemberState::Alive | MemberState::Doubtful => None,
    }
}

fn out_of_rotation(candidate: &Candidate) -> Option<Exclusion> {
    let record = &candidate.record;
    if record.drain.is_some() && !Planted::KeepDrained.is_on() {
        Some(Exclusion::Draining)
    } else if record.health == crate::types::Health::Critical && !Planted::KeepCritical.is_on() {
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
        if let Some(known) =
            self.rings.get(&key).filter(|ring| Planted::RingsByNames.is_on() || ring.members() == members)
        {
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
        if !Planted::RingsByNames.is_on() {
            hash.update(&member.weight.to_le_bytes());
        }
    }
    hash.digest()
}

/// Keys sampled to measure how many moved.
const SAMPLED_KEYS: u32 = 4_096;

#[cfg(test)]
mod tests;
