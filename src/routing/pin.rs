//! Pinned keys (REQUIREMENTS R8): a key that the rules name has the instances that they name for it first in its failover order, in
//! the ring's own order among themselves; after them the ring goes on as for any key. So its requests stay with them while one of them
//! takes any, and nobody else's requests move.
//!
//! Where none of them is a candidate of the lane, the key is an ordinary one there: a pin moves nobody to another lane.

use super::{InstanceEntry, LaneView, Ring, key_hash};
use crate::{config::Routing, types::InstanceId};

/// A pinned key in one lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pin {
    /// Of the key.
    hash: u64,
    /// Candidates that it is pinned to: indices into [`super::ServiceView::instances`], in ring order.
    members: Box<[u16]>,
}

/// The pins that hold in a lane, by hash of their keys.
pub(super) fn of_lane(rules: &Routing, ring: &Ring, members: &[u16], instances: &[InstanceEntry]) -> Vec<Pin> {
    let pin = |(key, named): &(String, Vec<InstanceId>)| {
        let hash = key_hash(key.as_bytes());
        let is_named = |at: &u16| named.contains(&instances[usize::from(*at)].record.id);
        let order = ring.order(hash).map(|slot| members[usize::from(slot)]);
        Pin { hash, members: order.filter(is_named).take(named.len()).collect() }
    };
    let mut pins: Vec<Pin> = rules.pin.iter().map(pin).filter(|pin| !pin.members.is_empty()).collect();
    pins.sort_by_key(|pin| pin.hash);
    pins
}

/// The instances that the rules name for a key.
pub(super) fn named(rules: &Routing, hash: u64) -> &[InstanceId] {
    let found = rules.pin.iter().find(|(key, _)| key_hash(key.as_bytes()) == hash);
    found.map_or(&[], |(_, named)| &named[..])
}

impl LaneView {
    /// Candidates that come before all others for this key.
    #[inline]
    pub(super) fn pinned(&self, key_hash: u64) -> &[u16] {
        if self.pins.is_empty() { &[] } else { self.pinned_to(key_hash) }
    }

    #[cold]
    fn pinned_to(&self, key_hash: u64) -> &[u16] {
        let found = self.pins.binary_search_by_key(&key_hash, |pin| pin.hash);
        found.map_or(&[], |at| &self.pins[at].members)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use proptest::prelude::*;

    use super::*;
    use crate::{
        routing::{
            Attempts, AttemptsConfig, Builder, CandidateTable, MethodClass, Outcome, Rules, Snapshot, Step, choose,
            testing::*,
        },
        types::{Health, Zone},
    };

    fn id(name: &str) -> InstanceId {
        InstanceId::new(name).unwrap()
    }

    fn pinned(table: &CandidateTable, key: &str, to: &[&str], routing: Routing) -> Arc<Snapshot> {
        let pin = vec![(key.to_owned(), to.iter().map(|name| id(name)).collect())];
        let rules = Rules::new(0, Routing { pin, ..routing }.into(), &BTreeMap::new());
        Builder::with(locality(), rules).build(table, NOW).0
    }

    fn order(snapshot: &Snapshot, subject: &str) -> Vec<String> {
        let service = snapshot.service("orders").unwrap();
        let decision = choose(snapshot, service, &get(subject), NOW);
        let order = decision.served_lane(service).unwrap().order(decision.key_hash);
        order.map(|at| service.instances[usize::from(at)].record.id.to_string()).collect()
    }

    fn target(snapshot: &Snapshot, subject: &str) -> String {
        let service = snapshot.service("orders").unwrap();
        choose(snapshot, service, &get(subject), NOW).target(service).unwrap().record.id.to_string()
    }

    #[test]
    fn a_pinned_key_stays_with_its_instances_and_goes_on_in_ring_order() {
        let mut table = fleet(6, 0);
        let plain = order(&built(&table), "tenant-7");
        let last = &plain[5];
        let snapshot = pinned(&table, "tenant-7", &[last], Routing::default());
        let expected: Vec<String> = [last].into_iter().chain(&plain[..5]).cloned().collect();
        assert_eq!(order(&snapshot, "tenant-7"), expected);
        edit(&mut table, last, |record| record.health = Health::Critical);
        assert_eq!(
            target(&pinned(&table, "tenant-7", &[last], Routing::default()), "tenant-7"),
            plain[0],
            "it is gone"
        );
    }

    /// It wins over nearness, and a full one is left in order.
    #[test]
    fn a_pin_is_kept_to_from_another_zone_and_left_when_full() {
        let mut table = fleet(4, 0);
        edit(&mut table, "a3", |record| record.zone = Zone::new("eu-9").unwrap());
        let near = Routing { prefer_zone: true, bounded_load: Some(100), most_in_flight: 3, ..Routing::default() };
        let snapshot = pinned(&table, "tenant-7", &["a3"], near);
        assert_eq!(target(&snapshot, "tenant-7"), "a3");
        let service = snapshot.service("orders").unwrap();
        let entry = service.instances.iter().find(|entry| entry.record.id == id("a3")).unwrap();
        let flying: Vec<_> = (0..3).map(|_| entry.cell.enter()).collect();
        assert_eq!(target(&snapshot, "tenant-7"), order(&snapshot, "tenant-7")[1]);
        drop(flying);
        assert_eq!(target(&snapshot, "tenant-7"), "a3");
    }

    #[test]
    fn a_pin_to_another_lane_pins_nothing() {
        let table = with_policy(fleet(4, 2), policy(10_000));
        let snapshot = pinned(&table, "tenant-7", &["a1"], Routing::default());
        let canaries = order(&snapshot, "tenant-7");
        assert_eq!((canaries.len(), canaries), (2, order(&built(&table), "tenant-7")));
    }

    #[test]
    fn refusals_go_through_the_pinned_ones_and_then_through_all_others_once() {
        let snapshot = pinned(&fleet(5, 0), "tenant-7", &["a1", "a4"], Routing::default());
        let service = snapshot.service("orders").unwrap();
        let decision = choose(&snapshot, service, &get("tenant-7"), NOW);
        let second = std::time::Duration::from_secs(1);
        let config = AttemptsConfig { max_retries: 2, per_try: second, total: second * 9 };
        let mut attempts = Attempts::new(&decision, MethodClass::Safe, true, config, NOW);
        let mut tried = Vec::new();
        while let Step::Try { instance, .. } = attempts.next(service, NOW) {
            tried.push(service.instances[usize::from(instance)].record.id.to_string());
            attempts.ended(Outcome::ConnectFailed, service, NOW);
        }
        assert_eq!(tried, order(&snapshot, "tenant-7"));
    }

    proptest! {
        /// Whatever is pinned to whom: everybody comes once, the named ones first, all others in the order of a ring without pins; and
        /// the order of another key is what it was.
        #[test]
        fn a_pin_moves_its_own_key_alone(count in 1_usize..9, named in prop::collection::btree_set(0_usize..12, 1..5), other in "[a-z]{1,8}") {
            let table = fleet(count, 0);
            let named: Vec<String> = named.into_iter().map(|at| format!("a{at}")).collect();
            let names: Vec<&str> = named.iter().map(String::as_str).collect();
            let (plain, with) = (built(&table), pinned(&table, "tenant-7", &names, Routing::default()));
            let (before, after) = (order(&plain, "tenant-7"), order(&with, "tenant-7"));
            let (first, rest): (Vec<String>, Vec<String>) = before.into_iter().partition(|id| named.contains(id));
            prop_assert_eq!(after, [first, rest].concat());
            prop_assert_eq!(order(&plain, &other), order(&with, &other));
        }
    }
}
