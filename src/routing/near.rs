//! Nearness (REQUIREMENTS R7): requests stay in their sidecar's zone while it has enough healthy capacity, then in its region, then
//! go anywhere in the lane.
//!
//! A zone is expected to carry its even part of the lane: all known weight over the number of zones. As long as its candidates make
//! up that part divided by [`OVERPROVISION`], everybody stays; below, a share of the keys in proportion does. Which keys
//! stay is told by a hash of the key alone, so that kept sets are nested: a key leaves once and comes back once. All of it follows
//! from gossiped facts, so that sidecars of one zone agree.
//!
//! The ring of the region holds the own zone too, so that some of those who begin there still stay at home.
//!
//! Failover goes on from there: the rest of the own zone, the region, the lane; nobody twice. Environments are other rings.

use std::{collections::BTreeSet, sync::Arc};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Exclusion, InstanceEntry, LaneView, Locality, Order, Ring, ring::Cursor};
use crate::types::{Lane, MemberState};

/// The candidates of a lane that are near.
#[derive(Clone)]
pub struct Near {
    /// Ring over them.
    pub ring: Arc<Ring>,
    /// Of every slot of the ring: its index into [`super::ServiceView::instances`]; ascending.
    pub members: Vec<u16>,
    /// Keys that begin here, of 2^32.
    pub share: u32,
}

/// How near.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Range {
    Zone,
    Region,
}

impl Range {
    /// Whether an instance is that near.
    pub(super) fn holds(self, entry: &InstanceEntry, here: &Locality) -> bool {
        let region = entry.record.region == here.region;
        region && (self == Self::Region || entry.record.zone == here.zone)
    }

    /// Where an instance stands, as far as this range tells places apart.
    fn place(self, entry: &InstanceEntry) -> (&str, &str) {
        let zone = if self == Self::Zone { entry.record.zone.as_str() } else { "" };
        (entry.record.region.as_str(), zone)
    }
}

/// Share of the keys that begin in the range: all while its healthy weight is enough for its even part.
pub(super) fn share(range: Range, here: &Locality, lane: &Lane, instances: &[InstanceEntry]) -> u32 {
    let known = || {
        let gone =
            [Exclusion::OtherEnv, Exclusion::OtherRegion, Exclusion::OwnerLeft, Exclusion::DuplicateId].map(Some);
        instances.iter().filter(move |entry| entry.record.lane == *lane && !gone.contains(&entry.excluded))
    };
    let weight = |entry: &InstanceEntry| f64::from(entry.record.weight);
    let total: f64 = known().map(weight).sum();
    let places = known().map(|entry| range.place(entry)).collect::<BTreeSet<_>>().len().max(1);
    let healthy = |entry: &&InstanceEntry| {
        entry.excluded.is_none() && entry.owner != MemberState::Doubtful && range.holds(entry, here)
    };
    let own: f64 = known().filter(healthy).map(weight).sum();
    let even = total / places as f64;
    if even <= 0.0 {
        return u32::MAX;
    }
    // From floating point to integers, `as` saturates.
    (own / even * OVERPROVISION * f64::from(u32::MAX)) as u32
}

impl LaneView {
    /// Failover order from a key: indices into [`super::ServiceView::instances`], each candidate once, those that it is pinned to
    /// first, then near ones.
    #[inline]
    pub fn order(&self, key_hash: u64) -> Failover<'_> {
        let level = self.first_level(key_hash);
        let pinned = self.pinned(key_hash);
        let order = self.level(level).0.order(key_hash);
        Failover { lane: self, pinned, ahead: pinned, first: level, level, order, key_hash }
    }

    /// The level where a key begins: an index into `near`, or its length for the whole lane.
    #[inline]
    pub(super) fn first_level(&self, key_hash: u64) -> usize {
        // While the own zone is enough, which is usual, every key begins there.
        let all_near = self.near.first().is_none_or(|near| near.share == u32::MAX);
        if all_near { 0 } else { self.first_near(key_hash) }
    }

    #[cold]
    fn first_near(&self, key_hash: u64) -> usize {
        let place = (xxh3_64_with_seed(&key_hash.to_le_bytes(), NEAR_SEED) >> 32) as u32;
        self.near.iter().position(|near| place <= near.share).unwrap_or(self.near.len())
    }

    #[inline]
    fn level(&self, level: usize) -> (&Ring, &[u16]) {
        self.near.get(level).map_or((&*self.ring, &self.members[..]), |near| (&*near.ring, &near.members[..]))
    }

    /// Whether a candidate was met on a level from `first` to before `level`.
    fn met(&self, first: usize, level: usize, instance: u16) -> bool {
        self.near[first.min(level)..level].iter().any(|near| near.members.binary_search(&instance).is_ok())
    }
}

/// Iterator over [`LaneView::order`].
pub struct Failover<'a> {
    lane: &'a LaneView,
    pinned: &'a [u16],
    /// Of the pinned ones, those to come.
    ahead: &'a [u16],
    first: usize,
    level: usize,
    order: Order<'a>,
    key_hash: u64,
}

impl Iterator for Failover<'_> {
    type Item = u16;

    #[inline]
    fn next(&mut self) -> Option<u16> {
        if let Some((first, rest)) = self.ahead.split_first() {
            self.ahead = rest;
            return Some(*first);
        }
        loop {
            let Some(slot) = self.order.next() else {
                if self.level >= self.lane.near.len() {
                    return None;
                }
                self.level += 1;
                self.order = self.lane.level(self.level).0.order(self.key_hash);
                continue;
            };
            let instance = self.lane.level(self.level).1[usize::from(slot)];
            let met = self.level != self.first && self.lane.met(self.first, self.level, instance);
            if !met && !self.pinned.contains(&instance) {
                return Some(instance);
            }
        }
    }
}

/// Where a walk through [`LaneView::order`] stands; owns nothing of the lane, so that a request may keep it between tries. Comes by
/// pinned and near candidates again in the wider rings: whoever keeps it knows whom it has tried.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// Pinned ones that came.
    pinned: usize,
    level: usize,
    cursor: Cursor,
}

impl Place {
    pub(super) fn start(lane: &LaneView, key_hash: u64) -> Self {
        let level = lane.first_level(key_hash);
        Self { pinned: 0, level, cursor: lane.level(level).0.cursor(key_hash) }
    }

    pub(super) fn next(&mut self, lane: &LaneView, key_hash: u64) -> Option<u16> {
        if let Some(pinned) = lane.pinned(key_hash).get(self.pinned) {
            self.pinned += 1;
            return Some(*pinned);
        }
        loop {
            let (ring, members) = lane.level(self.level);
            if let Some(slot) = self.cursor.next(ring) {
                return Some(members[usize::from(slot)]);
            }
            if self.level >= lane.near.len() {
                return None;
            }
            self.level += 1;
            self.cursor = lane.level(self.level).0.cursor(key_hash);
        }
    }
}

/// A zone is enough for its part with a little more than two thirds of it; Envoy's factor for priorities.
const OVERPROVISION: f64 = 1.4;
/// `lm-near!` in ASCII, big-endian.
const NEAR_SEED: u64 = 0x6c6d_2d6e_6561_7221;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use crate::{
        config::Routing,
        routing::{
            Attempts, AttemptsConfig, Builder, CandidateTable, MethodClass, Outcome, Rules, Snapshot, Step, choose,
            testing::*,
        },
        types::{Health, Region, Zone},
    };

    /// Built with zone preference on.
    fn near(table: &CandidateTable) -> std::sync::Arc<Snapshot> {
        let routing = Routing { prefer_zone: true, ..Routing::default() };
        let rules = Rules::new(0, routing.into(), &Default::default());
        Builder::with(locality(), rules).build(table, NOW).0
    }

    /// Instances a0.. in zones of the own region, and the last ones in another region.
    fn zones(zones: &[&str], far: usize) -> CandidateTable {
        let mut table = fleet(zones.len() + far, 0);
        for (at, zone) in zones.iter().enumerate() {
            edit(&mut table, &format!("a{at}"), |record| record.zone = Zone::new(zone).unwrap());
        }
        for at in zones.len()..zones.len() + far {
            edit(&mut table, &format!("a{at}"), |record| record.region = Region::new("us").unwrap());
        }
        table
    }

    /// Share of 2,000 users by instance.
    fn served(snapshot: &Snapshot, by: impl Fn(&crate::types::InstanceRecord) -> bool) -> BTreeSet<String> {
        let service = snapshot.service("orders").unwrap();
        let users = (0..2_000).map(|user| format!("u{user}"));
        users.filter(|user| by(&choose(snapshot, service, &get(user), NOW).target(service).unwrap().record)).collect()
    }

    #[test]
    fn who_is_near_serves_everybody_while_there_are_enough() {
        let table = zones(&["eu-1", "eu-1", "eu-1", "eu-2", "eu-2", "eu-2"], 3);
        assert_eq!(
            served(&near(&table), |record| record.zone.as_str() == "eu-1" && record.region.as_str() == "eu").len(),
            2_000
        );
        let far = served(&built(&table), |record| record.zone.as_str() != "eu-1").len();
        assert!(far > 500, "without the preference they go anywhere: {far}");
    }

    /// The fewer are left, the fewer keys stay; those that stay are among those that stayed before, and the rest stays in the region.
    #[test]
    fn keys_spill_over_little_by_little_and_stay_in_the_region() {
        let mut table = zones(&["eu-1", "eu-1", "eu-1", "eu-1", "eu-2", "eu-2", "eu-2", "eu-2"], 4);
        let own =
            |record: &crate::types::InstanceRecord| record.zone.as_str() == "eu-1" && record.region.as_str() == "eu";
        let mut before = served(&near(&table), own);
        for (gone, expected) in [(0, 2_000.0), (1, 1_600.0), (2, 960.0), (3, 0.0)] {
            edit(&mut table, &format!("a{gone}"), |record| record.health = Health::Critical);
            let snapshot = near(&table);
            let now = served(&snapshot, own);
            // Three zones of four known instances each, 1.4 times over: with two gone 70 % begin at home, and of the rest those whom
            // the region's ring sends to one of the two that are left of six.
            assert!((now.len() as f64 - expected).abs() < 150.0, "{} stay with {} gone", now.len(), gone + 1);
            assert!(now.is_subset(&before));
            let abroad = served(&snapshot, |record| record.region.as_str() == "us").len();
            assert!(abroad == 0 || gone == 3, "with three gone the region still has enough");
            before = now;
        }
    }

    /// It was the whole region's share that counted then, and users left a zone in which nothing had changed.
    #[test]
    fn a_zone_that_is_left_alone_in_its_region_keeps_its_users() {
        let mut table = zones(&[["eu-1"; 4].as_slice(), ["eu-2"; 8].as_slice()].concat(), 4);
        (4..12).for_each(|at| edit(&mut table, &format!("a{at}"), |record| record.health = Health::Critical));
        let own =
            |record: &crate::types::InstanceRecord| record.zone.as_str() == "eu-1" && record.region.as_str() == "eu";
        assert_eq!(served(&near(&table), own).len(), 2_000);
    }

    proptest! {
        /// Whatever the places: every candidate comes once, own zone, region and the rest in that order for keys that stay.
        #[test]
        fn everybody_comes_once_and_near_ones_first(places in prop::collection::vec(0_usize..3, 1..12), key in any::<u64>()) {
            let names: Vec<&str> = places.iter().filter(|place| **place < 2).map(|place| ["eu-1", "eu-2"][*place]).collect();
            let far = places.iter().filter(|place| **place == 2).count();
            let table = zones(&names, far);
            let snapshot = near(&table);
            let service = snapshot.service("orders").unwrap();
            let lane = service.lane("stable").unwrap();
            let order: Vec<u16> = lane.order(key).collect();
            let all: BTreeSet<u16> = order.iter().copied().collect();
            prop_assert_eq!((all.len(), order.len()), (places.len(), places.len()));
            let distance = |at: &u16| {
                let record = &service.instances[usize::from(*at)].record;
                if record.region.as_str() != "eu" { 2 } else { usize::from(record.zone.as_str() != "eu-1") }
            };
            if lane.first_level(key) == 0 && lane.near.len() == 2 {
                prop_assert!(order.is_sorted_by_key(distance), "{:?}", order.iter().map(distance).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn refusals_walk_from_near_to_far() {
        let snapshot = near(&zones(&["eu-1", "eu-1", "eu-2", "eu-2"], 2));
        let service = snapshot.service("orders").unwrap();
        let decision = choose(&snapshot, service, &get("u"), NOW);
        let second = std::time::Duration::from_secs(1);
        let config = AttemptsConfig { max_retries: 2, per_try: second, total: second * 9 };
        let mut attempts = Attempts::new(&decision, MethodClass::Safe, true, config, NOW);
        let mut tried = Vec::new();
        while let Step::Try { instance, .. } = attempts.next(service, NOW) {
            tried.push(instance);
            attempts.ended(Outcome::ConnectFailed, service, NOW);
        }
        let lane = decision.served_lane(service).unwrap();
        assert_eq!(tried, lane.order(decision.key_hash).collect::<Vec<_>>());
    }
}
