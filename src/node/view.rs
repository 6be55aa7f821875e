//! When the candidate table is published, and what is in it (REQUIREMENTS R4).
//!
//! A lone change publishes at once; further ones inside the coalescing time wait for its end. What takes an instance out of
//! traffic (death, doubt, drain, critical, weight 0, policy, rollback) is never held. Returns of an instance that keeps
//! leaving and coming back within one generation are held for a growing time, so that it cannot shake the ring; its first
//! arrival is no return.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use rustc_hash::FxHashMap;

use crate::{
    catalog::Catalog,
    routing::{Candidate, CandidateTable},
    types::{Health, InstanceId, InstanceRecord, MemberState, Mono, NodeId, Planted, ServiceName},
};

use super::Membership;

/// Window in which returns count as flapping.
const FLAP_WINDOW: Duration = Duration::from_secs(60);
/// Returns inside the window that are not held.
const FREE_RETURNS: u32 = 2;
/// First hold; doubles with every further return.
const FIRST_HOLD: Duration = Duration::from_secs(5);
/// Longest hold.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// How soon a change must be seen by the data path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    Coalesced,
    Now,
}

/// Those who went with many others of one service are its last resort, as those are who went with much of the mesh: at least
/// three, and 15 % of the service's sidecars.
fn keep_lost_services(now: Mono, catalog: &Catalog, membership: &mut Membership) {
    if !membership.lost_any_lately(now) {
        return;
    }
    let mut services: BTreeMap<&ServiceName, (BTreeSet<&NodeId>, BTreeSet<&NodeId>)> = BTreeMap::new();
    for record in catalog.instances().map(|entry| &entry.record).filter(|record| !record.removed) {
        if membership.lost_lately(&record.owner, now) {
            services.entry(&record.service).or_default().0.insert(&record.owner);
        }
    }
    if services.values().all(|(lost, _)| lost.len() < LOST_LEAST) {
        return;
    }
    for record in catalog.instances().map(|entry| &entry.record).filter(|record| !record.removed) {
        services.entry(&record.service).or_default().1.insert(&record.owner);
    }
    for (lost, all) in services.values() {
        if lost.len() >= LOST_LEAST && lost.len() * 100 >= all.len() * LOST_SHARE {
            lost.iter().for_each(|owner| membership.keep_as_last_resort(owner));
        }
    }
}

/// So many of a service's sidecars, and this share of them in per cent, are a mass loss.
const LOST_LEAST: usize = 3;
const LOST_SHARE: usize = 15;

/// Paces publications and damps flapping instances.
#[derive(Debug)]
pub(super) struct View {
    coalesce: Duration,
    dirty: Option<Urgency>,
    last: Option<Mono>,
    version: u64,
    /// Looked up, never walked in an order that shows.
    flaps: FxHashMap<(NodeId, InstanceId), Flap>,
    held_until: Option<Mono>,
}

#[derive(Debug)]
struct Flap {
    generation: u64,
    routable: bool,
    /// It has been routable in this generation: from then on becoming routable is a return.
    arrived: bool,
    returns: u32,
    last_return: Mono,
    held_until: Mono,
}

impl View {
    pub fn new(coalesce: Duration) -> Self {
        Self { coalesce, dirty: None, last: None, version: 0, flaps: FxHashMap::default(), held_until: None }
    }

    pub fn changed(&mut self, urgency: Urgency) {
        self.dirty = self.dirty.max(Some(urgency));
    }

    /// When the next publication is due.
    pub fn due(&self) -> Option<Mono> {
        let pending = self.dirty.map(|urgency| match (urgency, self.last) {
            (Urgency::Now, _) | (_, None) => Mono::ZERO,
            (Urgency::Coalesced, Some(last)) => last + self.coalesce,
        });
        [pending, self.held_until].into_iter().flatten().min()
    }

    /// The table, if one is due.
    pub fn publish(
        &mut self,
        now: Mono,
        me: &NodeId,
        catalog: &Catalog,
        membership: &mut Membership,
    ) -> Option<CandidateTable> {
        if self.due().is_none_or(|due| now < due) {
            return None;
        }
        (self.dirty, self.last, self.held_until) = (None, Some(now), None);
        self.version += 1;
        keep_lost_services(now, catalog, membership);
        let mut by_service: BTreeMap<&ServiceName, Vec<Candidate>> = BTreeMap::new();
        for record in catalog.instances().map(|entry| &entry.record).filter(|record| !record.removed) {
            if let Some(candidate) = self.candidate(now, me, record.clone(), catalog, membership) {
                by_service.entry(&record.service).or_default().push(candidate);
            }
        }
        // They come by owner; ids mostly go the same way, and a stable sort is quick with what is nearly in order.
        let by_name =
            |a: &Candidate, b: &Candidate| (&a.record.id, &a.record.owner).cmp(&(&b.record.id, &b.record.owner));
        by_service.values_mut().for_each(|candidates| candidates.sort_by(by_name));
        let instances: Vec<Candidate> = by_service.into_values().flatten().collect();
        if self.flaps.len() > instances.len() {
            self.flaps.retain(|(owner, id), _| catalog.instance(owner, id).is_some());
        }
        let policies = catalog.policies().map(|entry| (entry.policy.service.clone(), entry.policy.clone())).collect();
        Some(CandidateTable { version: self.version, digest: catalog.digest(), instances, policies })
    }

    fn candidate(
        &mut self,
        now: Mono,
        me: &NodeId,
        record: Arc<InstanceRecord>,
        catalog: &Catalog,
        membership: &Membership,
    ) -> Option<Candidate> {
        let member = catalog.member(&record.owner)?;
        let owner = match membership.state(&record.owner) {
            _ if &record.owner == me => MemberState::Alive,
            _ if member.has_left() => MemberState::Left,
            Some(state) => state,
            None => MemberState::Down,
        };
        let held = self.held(now, &record, owner);
        // A view from disk counts until its owner is heard of or found dead.
        let from_disk = member.stale && matches!(owner, MemberState::Alive | MemberState::Doubtful);
        let last_resort = match owner {
            MemberState::Down => membership.is_last_resort(&record.owner).filter(|until| now < *until),
            MemberState::Alive | MemberState::Doubtful | MemberState::Left => None,
        };
        if let Some(until) = last_resort {
            self.held_until = Some(self.held_until.map_or(until, |at| at.min(until)));
        }
        let stale = from_disk || last_resort.is_some();
        Some(Candidate { record, owner, stale, held })
    }

    /// Whether the return of an instance is held back because it flaps.
    fn held(&mut self, now: Mono, record: &InstanceRecord, owner: MemberState) -> bool {
        // Only what happens to an instance counts; what its operator does (drain, weight) is never held back.
        let routable = record.health != Health::Critical && matches!(owner, MemberState::Alive | MemberState::Doubtful);
        let fresh = || Flap {
            generation: record.generation,
            routable,
            arrived: routable,
            returns: 0,
            last_return: now,
            held_until: now,
        };
        let flap = self.flaps.entry((record.owner.clone(), record.id.clone())).or_insert_with(fresh);
        if flap.generation != record.generation {
            // A restart is no flapping: a new generation starts with a clean slate.
            *flap = fresh();
        }
        let returns = routable && !flap.routable && flap.arrived;
        flap.arrived |= routable;
        if returns {
            let settled = now.since(flap.last_return) > FLAP_WINDOW;
            flap.returns = if settled { 1 } else { flap.returns + 1 };
            flap.last_return = now;
            let excess = flap.returns.saturating_sub(FREE_RETURNS);
            if excess > 0 {
                flap.held_until = now + FIRST_HOLD.saturating_mul(1 << (excess - 1).min(8)).min(LONGEST_HOLD);
            }
        }
        flap.routable = routable;
        let held = routable && now < flap.held_until && !Planted::FlapsNotHeld.is_on();
        if held {
            self.held_until = Some(self.held_until.map_or(flap.held_until, |at| at.min(flap.held_until)));
        }
        held
    }
}
