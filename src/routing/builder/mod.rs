//! From a candidate table to a snapshot, off the request path and off the gossip loop.
//!
//! Filter on gossiped facts, one ring per (service, lane) of the own environment. What did not change is reused: whole
//! services, compiled policies, rings (by content; a changed one is made from the one before), instance cells. A service that
//! is over a limit keeps its last good view and is reported at every build until it is mended.
//!
//! Not here: when to build (the agent coalesces).

mod cells;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::Xxh3;

use super::{
    Candidate, CandidateTable, Exclusion, FallbackReason, InstanceEntry, LaneView, Load, Locality, MAX_MEMBERS, Member,
    Near, Reading, Ring, RingFault, Rules, ServiceState, ServiceView, Snapshot, hot, key_hash,
    near::{self, Range},
    pin, takeover,
};
use crate::{
    config::Routing,
    lanes::CompiledPolicy,
    types::{Lane, LanePolicy, MemberState, Mono, Planted, ServiceName},
};

/// Builds snapshots; keeps rings and cells that did not change.
pub struct Builder {
    locality: Locality,
    rules: Rules,
    /// When the first snapshot was built.
    born: Option<Mono>,
    version: u64,
    kept: BTreeMap<ServiceName, Kept>,
    rings: Rings,
    sample: Vec<u64>,
}

/// What a view has beside what the mesh says.
struct Own {
    rules: Arc<Routing>,
    reading: Arc<Reading>,
    state: Arc<ServiceState>,
}

/// When a build takes place.
#[derive(Debug, Clone, Copy)]
struct Time {
    /// The first build.
    born: Mono,
    now: Mono,
}

/// What the last build made of one service.
struct Kept {
    candidates: Vec<Candidate>,
    policy: Option<Arc<LanePolicy>>,
    view: Arc<ServiceView>,
    fault: Option<String>,
    /// Of the rules that it was made by.
    rules: u64,
}

impl Builder {
    /// For a sidecar that stands at `locality`, by default rules.
    pub fn new(locality: Locality) -> Self {
        Self::with(locality, Rules::default())
    }

    /// For a sidecar that stands at `locality`.
    pub fn with(locality: Locality, rules: Rules) -> Self {
        let sample = (0..SAMPLED_KEYS).map(|key| key_hash(&key.to_le_bytes())).collect();
        Self { locality, rules, born: None, version: 0, kept: BTreeMap::new(), rings: Rings::default(), sample }
    }

    /// It takes rings that others made, and leaves its own to them.
    #[must_use]
    pub fn sharing(self, rings: &Rings) -> Self {
        Self { rings: rings.clone(), ..self }
    }

    /// Builds by other rules from now on; seed and bell stay, and so does what is known of instances.
    pub fn set_rules(&mut self, rules: Rules) {
        self.rules.replace(rules);
    }

    /// The next snapshot. Over-limit services keep their last good view; the faults say which and why.
    pub fn build(&mut self, table: &CandidateTable, now: Mono) -> (Arc<Snapshot>, Vec<String>) {
        let born = *self.born.get_or_insert(now);
        let mut moved = 0;
        let mut before = std::mem::take(&mut self.kept);
        for (name, candidates) in by_service(table) {
            let policy = table.policies.get(name);
            let last = before.remove(name);
            let kept = match last {
                Some(last) if last.is_of(&candidates, policy, self.rules.version) => last,
                last => {
                    let next = self.service(name, candidates, policy, last.as_ref(), Time { born, now });
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
        time: Time,
    ) -> Kept {
        let last_view = last.map(|last| &*last.view);
        let compiled = policy.map(|policy| compiled(policy, last_view, &self.locality));
        let reading = Arc::new(self.rules.reading_of(name, policy.map(|policy| &**policy)));
        let rules = self.rules.of(name).clone();
        let placed: Vec<Candidate> = candidates.iter().map(|candidate| in_its_lane(candidate, policy)).collect();
        let lanes = lane_names(compiled.as_deref(), placed.iter().map(|candidate| &candidate.record.lane));
        let loads = cells::loads(lanes.iter(), last_view);
        loads.values().for_each(|load| load.want(rules.bounded_load.is_some()));
        let own = (&self.locality, &*rules);
        let mut instances = entries(&placed, own, self.rules.seed, &loads, last_view);
        spare_the_last(&mut instances);
        if let Some(last) = last_view {
            cells::follow(&instances, last, &rules, time);
        }
        let fresh = || Arc::new(ServiceState::new(self.rules.bell.clone()));
        let state = last_view.map_or_else(fresh, |last| last.state.clone());
        let own = Own { rules, reading, state };
        let (view, fault) = match self.lanes(&instances, compiled.as_deref(), last_view, (&own.rules, &loads)) {
            Ok(mut lanes) => {
                takeover::settle(&mut lanes, &instances, compiled.as_ref(), last_view, own.rules.fallback.fill);
                (view(name, instances, compiled, lanes, own), None)
            }
            Err((lane, fault)) => {
                let until = if last.is_some() { "its last good view stays in force" } else { "it has no candidate" };
                let fault = format!("service `{name}`, lane `{lane}`: {fault}; until then {until}");
                (last_good(name, last_view, compiled, own), Some(fault))
            }
        };
        let view = Arc::new(view);
        let candidates = candidates.into_iter().cloned().collect();
        Kept { candidates, policy: policy.cloned(), view, fault, rules: self.rules.version }
    }

    fn lanes(
        &mut self,
        instances: &[InstanceEntry],
        policy: Option<&CompiledPolicy>,
        last: Option<&ServiceView>,
        own: (&Routing, &BTreeMap<Lane, Arc<Load>>),
    ) -> Result<Vec<LaneView>, (Lane, RingFault)> {
        let here = instances.iter().filter(|entry| entry.record.env == self.locality.env);
        let names = lane_names(policy, here.map(|entry| &entry.record.lane));
        if instances.len() > MAX_MEMBERS {
            return Err((Lane::stable(), RingFault::TooManyMembers(instances.len())));
        }
        names.into_iter().map(|name| self.lane(name, instances, last, own)).collect()
    }

    fn lane(
        &mut self,
        name: Lane,
        instances: &[InstanceEntry],
        last: Option<&ServiceView>,
        (rules, loads): (&Routing, &BTreeMap<Lane, Arc<Load>>),
    ) -> Result<LaneView, (Lane, RingFault)> {
        let last = last.and_then(|view| view.lane(name.as_str()));
        let here = |entry: &InstanceEntry| entry.excluded.is_none() && entry.record.lane == name;
        let fault = |fault| (name.clone(), fault);
        let (ring, members) = self.ring(instances, here, last.map(|lane| &lane.ring)).map_err(fault)?;
        let mut near: Vec<Near> = Vec::new();
        let ranges = [Range::Region, Range::Zone];
        for range in ranges.into_iter().filter(|_| rules.prefer_zone) {
            let locality = self.locality.clone();
            let is_near = |entry: &InstanceEntry| here(entry) && range.holds(entry, &locality);
            let wider = near.first().map_or(&members, |region| &region.members);
            let count = instances.iter().filter(|entry| is_near(entry)).count();
            let ignored = range == Range::Region && Planted::RegionIgnored.is_on();
            if count == 0 || ignored {
                continue;
            }
            let share = near::share(range, &locality, &name, instances);
            if count == wider.len() {
                // The same ring: who begins in either begins there. A zone that is left alone in its region keeps its users.
                near.iter_mut().take(1).for_each(|region| region.share = region.share.max(share));
                continue;
            }
            // A ring made from a similar one: the lane's is at hand, and near enough.
            let (ring, members) = self.ring(instances, is_near, Some(&ring)).map_err(fault)?;
            near.insert(0, Near { ring, members, share });
        }
        let empty = ring.is_empty().then(|| why_empty(&name, instances));
        let had_one = empty.is_none() || last.is_some_and(|lane| lane.had_one);
        let weight = ring.members().iter().map(|member| u32::from(member.weight)).sum();
        let load = loads.get(&name).cloned().unwrap_or_default();
        let pins = match last.is_some_and(|last| last.had_one && last.pins.is_empty()) && Planted::PinForgotten.is_on()
        {
            true => Vec::new(),
            false => pin::of_lane(rules, &ring, &members, instances),
        };
        let (work, taken) = (None, u32::MAX);
        Ok(LaneView { name, ring, members, near, empty, weight, load, work, taken, pins, had_one })
    }

    /// The ring of some instances, and of every slot its index.
    fn ring(
        &mut self,
        instances: &[InstanceEntry],
        wanted: impl Fn(&InstanceEntry) -> bool,
        similar: Option<&Arc<Ring>>,
    ) -> Result<(Arc<Ring>, Vec<u16>), RingFault> {
        // Instances are in the order of their ids and a candidate's id is unique, so slots and members agree.
        let (members, on_ring): (Vec<u16>, Vec<Member>) = (0_u16..)
            .zip(instances)
            .filter(|(_, entry)| wanted(entry))
            .map(|(at, entry)| (at, Member { id: entry.record.id.clone(), weight: entry.record.ring_weight() }))
            .unzip();
        Ok((self.rings.lock().get(on_ring, similar)?, members))
    }

    /// Share of the sampled keys (basis points) that lost their owner, in the lane where it is largest.
    fn moved(&self, before: &ServiceView, after: &ServiceView) -> u16 {
        let lanes = before.lanes.iter().map(|old| match after.lane(old.name.as_str()) {
            Some(new) if Arc::ptr_eq(&old.ring, &new.ring) => 0,
            new => self.rings.lock().moved(&self.sample, &old.ring, new.map(|new| &*new.ring)),
        });
        (lanes.max().unwrap_or(0) * 10_000 / self.sample.len()) as u16
    }
}

impl Kept {
    fn is_of(&self, candidates: &[&Candidate], policy: Option<&Arc<LanePolicy>>, rules: u64) -> bool {
        self.rules == rules && self.policy.as_ref() == policy && self.candidates.iter().eq(candidates.iter().copied())
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

fn compiled(policy: &Arc<LanePolicy>, last: Option<&ServiceView>, here: &Locality) -> Arc<CompiledPolicy> {
    match last.and_then(|view| view.policy.as_ref()) {
        Some(last) if last.policy == *policy => last.clone(),
        _ => Arc::new(CompiledPolicy::at(policy.clone(), here.here())),
    }
}

/// As it is routed: an instance that a selector of the policy takes is of that lane, whatever it announces (REQUIREMENTS L5).
fn in_its_lane(candidate: &Candidate, policy: Option<&Arc<LanePolicy>>) -> Candidate {
    let mut candidate = candidate.clone();
    if let Some(lane) = policy.map(|policy| policy.lane_of(&candidate.record))
        && !Planted::SelectorIgnored.is_on()
        && *lane != candidate.record.lane
    {
        let lane = lane.clone();
        Arc::make_mut(&mut candidate.record).lane = lane;
    }
    candidate
}

fn entries(
    candidates: &[Candidate],
    own: (&Locality, &Routing),
    seed: u64,
    loads: &BTreeMap<Lane, Arc<Load>>,
    last: Option<&ServiceView>,
) -> Vec<InstanceEntry> {
    let mut claimed = None;
    // Those whose sidecars went while many did serve only where the service has nobody else: perhaps it is this node that is
    // cut off, and they can be reached.
    let living = |candidate: &&Candidate| {
        candidate.owner != MemberState::Down && gone(candidate, own, false).or(out_of_rotation(candidate)).is_none()
    };
    let served = candidates.iter().any(|candidate| living(&candidate));
    let mut entry = |candidate: &Candidate| {
        let record = &candidate.record;
        let gone = gone(candidate, own, served);
        let duplicate = gone.is_none() && claimed.as_ref() == Some(&record.id);
        if gone.is_none() {
            claimed = Some(record.id.clone());
        }
        let excluded = gone.or(duplicate.then_some(Exclusion::DuplicateId)).or(out_of_rotation(candidate));
        InstanceEntry {
            record: record.clone(),
            owner: candidate.owner,
            stale: candidate.stale,
            excluded,
            cell: cells::of(record, seed, loads.get(&record.lane), last),
        }
    };
    candidates.iter().map(&mut entry).collect()
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

/// Facts by which an instance does not exist here: it then leaves its id to others. `served`: the service has somebody who
/// lives.
fn gone(candidate: &Candidate, (here, rules): (&Locality, &Routing), served: bool) -> Option<Exclusion> {
    match candidate.owner {
        _ if candidate.record.env != here.env && !Planted::ForeignEnv.is_on() => Some(Exclusion::OtherEnv),
        _ if !rules.regions.is_empty() && !rules.regions.contains(&candidate.record.region) => {
            Some(Exclusion::OtherRegion)
        }
        MemberState::Left | MemberState::Down if Planted::KeepDead.is_on() => None,
        MemberState::Left => Some(Exclusion::OwnerLeft),
        MemberState::Down if served || !candidate.stale => Some(Exclusion::OwnerDown),
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
            Some(Exclusion::OtherEnv | Exclusion::OtherRegion | Exclusion::OwnerLeft | Exclusion::DuplicateId)
            | None => {}
        }
    }
    reason
}

/// The view of a service that is over a limit: the candidates as they were (none if it was over the limit from the first),
/// under the present policy, so that a rollback is never held up.
fn last_good(
    name: &ServiceName,
    last: Option<&ServiceView>,
    policy: Option<Arc<CompiledPolicy>>,
    own: Own,
) -> ServiceView {
    let instances = last.map_or_else(Vec::new, |last| last.instances.clone());
    let mut lanes = last.map_or_else(Vec::new, |last| last.lanes.clone());
    let nobody = Arc::new(Ring::empty());
    for name in lane_names(policy.as_deref(), []) {
        if let Err(at) = lanes.binary_search_by(|lane| lane.name.cmp(&name)) {
            let empty = Some(FallbackReason::Absent);
            let (ring, members, near, load) = (nobody.clone(), Vec::new(), Vec::new(), Arc::default());
            let (work, taken, pins, had_one) = (None, u32::MAX, Vec::new(), false);
            let lane = LaneView { name, ring, members, near, empty, weight: 0, load, work, taken, pins, had_one };
            lanes.insert(at, lane);
        }
    }
    view(name, instances, policy, lanes, own)
}

fn view(
    name: &ServiceName,
    instances: Vec<InstanceEntry>,
    policy: Option<Arc<CompiledPolicy>>,
    lanes: Vec<LaneView>,
    own: Own,
) -> ServiceView {
    let stable = [Lane::stable()];
    let decided = policy.as_ref().map_or(&stable[..], |policy| policy.lanes());
    let index = |name: &Lane| {
        let found = lanes.binary_search_by(|lane| lane.name.cmp(name));
        found.expect("every lane of the policy has a view") as u16
    };
    let lane_of = decided.iter().map(index).collect();
    let digest = digest(name, &instances, policy.as_deref(), &lanes);
    let Own { rules, reading, state } = own;
    let named = hot::named(&rules);
    ServiceView { name: name.clone(), instances, policy, lanes, digest, rules, reading, state, named, lane_of }
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
            text(&record.ring_weight().to_string());
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

/// Rings by content, shared by all that were given a clone: a ring is a pure function of its members, so the sidecars of a
/// simulation need not each make their own.
#[derive(Clone, Default)]
pub struct Rings(Arc<Mutex<RingCache>>);

impl Rings {
    fn lock(&self) -> MutexGuard<'_, RingCache> {
        // Whatever a panic left behind is whole: a ring is put in when it is done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets rings that no snapshot holds; those of many, when there may be as many of them as of the others.
    fn sweep(&self) {
        let alone = Arc::strong_count(&self.0) == 1;
        let mut cache = self.lock();
        if alone || cache.rings.len() > 2 * cache.swept {
            cache.sweep();
        }
    }
}

#[derive(Default)]
struct RingCache {
    rings: BTreeMap<u64, Arc<Ring>>,
    /// So many were left by the last sweep.
    swept: usize,
    /// Sampled keys that moved, from ring to ring; looked up, never iterated.
    moved: FxHashMap<(u64, u64), usize>,
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

    /// How many of the sampled keys have another owner.
    fn moved(&mut self, sample: &[u64], before: &Ring, after: Option<&Ring>) -> usize {
        let change = (content(before.members()), after.map_or(0, |after| content(after.members())));
        *self.moved.entry(change).or_insert_with(|| moved_keys(sample, before, after))
    }

    fn sweep(&mut self) {
        self.rings.retain(|_, ring| Arc::strong_count(ring) > 1);
        self.swept = self.rings.len();
        self.moved.clear();
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
