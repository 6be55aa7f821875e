//! Load that this sidecar puts on instances: bounded load (REQUIREMENTS R8) and instances that are full.
//!
//! With `bounded_load` no instance has more of this sidecar's requests in flight than that share of what it would have if all of
//! its lane had theirs by weight; further ones go on in ring order. That is consistent hashing with bounded loads (Mirrokni,
//! Thorup, Zadimoghaddam 2016), with this sidecar's own counts: each one bounds what it sends itself. Below [`FREE`] requests
//! nobody is passed over, since a mean of less than that says nothing.
//!
//! An instance whose sidecar says that it has more to do than it can (`load` above 100 %) has so much less of that: at 200 % half. It
//! then goes by what all sidecars together ask of it, which none of them sees by itself.
//!
//! An instance that has `proxy.max_requests_per_instance` is full whatever the mean is.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use super::{InstanceEntry, LaneView, SkipReason, pace::Pace};
use crate::{config::Routing, types::Mono};

/// What this sidecar knows of all of a lane: requests in flight and usual times, each only where it is asked for, and what its floor
/// waits for.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Load {
    wanted: AtomicBool,
    total: AtomicU32,
    /// What answers of the lane usually take.
    pub(super) pace: Pace,
    /// What nearly all of its answers take, by the first ones of each instance: for those of which too few are known.
    pub(super) longest: Pace,
    /// When its floor last waited for a proof that an instance has nothing to give, in milliseconds; 0: never.
    proof_wanted: AtomicU64,
}

impl Load {
    /// The lane's floor waits for a proof that an instance has nothing to give.
    pub(super) fn want_proof(&self, now: Mono) {
        self.proof_wanted.store(now.millis(), Relaxed);
    }

    /// Whether it did so lately.
    pub(super) fn wants_proof(&self, now: Mono, lately: Duration) -> bool {
        let at = self.proof_wanted.load(Relaxed);
        at > 0 && now.since(Mono::from_millis(at)) <= lately
    }

    /// Whether requests that begin from now on are counted.
    pub(super) fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Relaxed);
    }

    /// A request begins; whether it was counted, and is to be taken off again.
    #[inline]
    pub(super) fn enter(&self) -> bool {
        let wanted = self.wanted.load(Relaxed);
        if wanted {
            self.total.fetch_add(1, Relaxed);
        }
        wanted
    }

    pub(super) fn leave(&self) {
        self.total.fetch_sub(1, Relaxed);
    }
}

/// What one walk through a lane allows an instance; made once for the walk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Requests at which an instance is full.
    full: u32,
    /// Per cent allowed, times requests in flight with the present one; an instance of weight `w` may have `w` of
    /// `hundred_weights` of it. 0: no bound.
    allowed: u64,
    /// A hundred times the lane's weight.
    hundred_weights: u64,
}

impl Room {
    /// For everybody.
    #[cfg(test)]
    pub(super) const ENDLESS: Self = Self { full: u32::MAX, allowed: 0, hundred_weights: 0 };

    #[inline]
    pub(super) fn of(lane: &LaneView, rules: &Routing) -> Self {
        let Some(percent) = rules.bounded_load else {
            let full = if rules.fallback.saturated { rules.most_in_flight } else { u32::MAX };
            return Self { full, allowed: 0, hundred_weights: 0 };
        };
        let with_this = u64::from(lane.load.total.load(Relaxed)) + 1;
        Self {
            full: rules.most_in_flight,
            allowed: u64::from(percent) * with_this,
            hundred_weights: 100 * u64::from(lane.weight),
        }
    }

    /// Why an instance gets no more now, if it does not.
    #[inline]
    pub(super) fn speaks_against(&self, entry: &InstanceEntry) -> Option<SkipReason> {
        if self.full == u32::MAX && self.allowed == 0 {
            return None;
        }
        let in_flight = entry.cell.in_flight();
        if in_flight >= self.full {
            return Some(SkipReason::Full);
        }
        if self.allowed == 0 || in_flight < FREE {
            return None;
        }
        let (has, may) =
            (u64::from(in_flight) * self.hundred_weights, self.allowed * u64::from(entry.record.ring_weight()));
        let says = entry.record.load.map_or(0, |load| u64::from(load.percent));
        match (has >= may, has * says >= may * 100) {
            (true, _) => Some(SkipReason::Loaded),
            (false, true) => Some(SkipReason::SaysFull),
            (false, false) => None,
        }
    }
}

/// Requests in flight at an instance that are nobody's concern.
const FREE: u32 = 4;

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use proptest::prelude::*;

    use super::*;
    use crate::{
        config::{Fallback, Routing},
        routing::{Builder, FallbackReason, Rules, ServiceView, Snapshot, choose, testing::*},
    };

    fn bounded(count: usize, routing: Routing) -> Arc<Snapshot> {
        let rules = Rules::new(0, routing.into(), &BTreeMap::new());
        Builder::with(locality(), rules).build(&fleet(count, 0), NOW).0
    }

    fn by(percent: u16) -> Routing {
        Routing { bounded_load: Some(percent), ..Routing::default() }
    }

    fn target(snapshot: &Snapshot, subject: &str) -> usize {
        let service = snapshot.service("orders").unwrap();
        usize::from(choose(snapshot, service, &get(subject), NOW).instance.unwrap())
    }

    fn loads(service: &ServiceView) -> Vec<u32> {
        service.instances.iter().map(|entry| entry.cell.in_flight()).collect()
    }

    /// One key that everybody asks for fills its owner up to the bound, and goes on in ring order.
    #[test]
    fn a_hot_key_overflows_in_ring_order() {
        let snapshot = bounded(4, by(125));
        let service = snapshot.service("orders").unwrap();
        let order: Vec<usize> = {
            let decision = choose(&snapshot, service, &get("hot"), NOW);
            service.lanes[0].order(decision.key_hash).map(usize::from).collect()
        };
        let mut flying = Vec::new();
        for _ in 0..40 {
            flying.push(service.instances[target(&snapshot, "hot")].cell.enter());
        }
        let loads = loads(service);
        let in_order: Vec<u32> = order.iter().map(|at| loads[*at]).collect();
        assert!(in_order.is_sorted_by(|a, b| a >= b), "{in_order:?}");
        assert_eq!((in_order[0], in_order.iter().sum::<u32>()), (13, 40), "{in_order:?}");
        drop(flying);
        assert_eq!(target(&snapshot, "hot"), order[0], "at home again");
    }

    proptest! {
        /// Whatever the keys: nobody has more than the bound, and everybody is served.
        #[test]
        fn nobody_is_above_the_bound(keys in prop::collection::vec(0_u8..6, 1..150), count in 1_usize..6, percent in 100_u16..300) {
            let snapshot = bounded(count, by(percent));
            let service = snapshot.service("orders").unwrap();
            let mut flying = Vec::new();
            for (before, key) in keys.iter().enumerate() {
                let at = target(&snapshot, &format!("k{key}"));
                let most = f64::from(percent) / 100.0 * (before as f64 + 1.0) / count as f64;
                let has = service.instances[at].cell.in_flight();
                prop_assert!(f64::from(has) < most.max(f64::from(FREE)), "{} of {}", has, most);
                flying.push(service.instances[at].cell.enter());
            }
        }
    }

    /// Its sidecar says 200 %: half of its part, and what is above goes on; when all say so, nobody is better off elsewhere.
    #[test]
    fn who_says_that_it_is_full_has_a_smaller_part() {
        let hot = |full: &[&str]| {
            let mut table = fleet(4, 0);
            let says = Some(crate::types::LoadFigure { percent: 200, share: 100 });
            full.iter().for_each(|id| edit(&mut table, id, |record| record.load = says));
            let rules = Rules::new(0, by(200).into(), &BTreeMap::new());
            let snapshot = Builder::with(locality(), rules).build(&table, NOW).0;
            let service = snapshot.service("orders").unwrap();
            let flying: Vec<_> = (0..40).map(|_| service.instances[target(&snapshot, "hot")].cell.enter()).collect();
            let decision = choose(&snapshot, service, &get("hot"), NOW);
            let order = service.lanes[0].order(decision.key_hash);
            let found: Vec<_> =
                order.map(|at| (service.instances[usize::from(at)].record.id.to_string(), at)).collect();
            let loads = loads(service);
            drop(flying);
            found.into_iter().map(|(id, at)| (id, loads[usize::from(at)])).collect::<Vec<_>>()
        };
        let calm = hot(&[]);
        assert_eq!((calm[0].1, calm[1].1), (20, 20));
        let owner = calm[0].0.clone();
        let full = hot(&[&owner]);
        assert_eq!((full[0].1, full[1].1, full[2].1), (10, 20, 10), "{full:?}");
        let all = hot(&["a0", "a1", "a2", "a3"]);
        assert!(all[0].1 >= 10 && all.iter().all(|(_, load)| *load <= 20), "{all:?}");
    }

    #[test]
    fn without_a_bound_nothing_is_counted_and_nobody_passed_over() {
        let snapshot = bounded(3, Routing::default());
        let service = snapshot.service("orders").unwrap();
        let home = target(&snapshot, "hot");
        let flying: Vec<_> = (0..100).map(|_| service.instances[home].cell.enter()).collect();
        assert_eq!((target(&snapshot, "hot"), service.lanes[0].load.total.load(Relaxed)), (home, 0));
        drop(flying);
    }

    /// What is in flight when the bound is switched on or off is taken off exactly if it was put on.
    #[test]
    fn switching_it_on_and_off_loses_no_count() {
        let mut builder = Builder::new(locality());
        let rules = |routing: Routing| Rules::new(0, routing.into(), &BTreeMap::new());
        let first = builder.build(&fleet(2, 0), NOW).0;
        let enter = |snapshot: &Snapshot| snapshot.service("orders").unwrap().instances[0].cell.enter();
        let before = enter(&first);
        builder.set_rules(rules(by(150)));
        let second = builder.build(&fleet(2, 0), NOW).0;
        let counted = enter(&second);
        builder.set_rules(rules(Routing::default()));
        let third = builder.build(&fleet(2, 0), NOW).0;
        let service = third.service("orders").unwrap();
        assert_eq!(service.lanes[0].load.total.load(Relaxed), 1);
        drop((before, counted));
        assert_eq!((service.lanes[0].load.total.load(Relaxed), loads(service)), (0, vec![0, 0]));
    }

    /// A lane that is full sends its users to `stable` only where that is asked for: a saturated canary takes nothing from it.
    #[test]
    fn a_full_lane_is_left_only_where_the_rules_say_so() {
        for saturated in [false, true] {
            let fallback = Fallback { saturated, ..Routing::default().fallback };
            let routing = Routing { most_in_flight: 2, fallback, ..by(1_000) };
            let rules = Rules::new(0, routing.into(), &BTreeMap::new());
            let table = with_policy(fleet(2, 2), policy(10_000));
            let snapshot = Builder::with(locality(), rules).build(&table, NOW).0;
            let service = snapshot.service("orders").unwrap();
            let canaries = service.instances.iter().filter(|entry| entry.record.lane.as_str() == "canary");
            let flying: Vec<_> = canaries.flat_map(|entry| [entry.cell.enter(), entry.cell.enter()]).collect();
            let decision = choose(&snapshot, service, &get("u"), NOW);
            let (lane, why) = if saturated { ("stable", Some(FallbackReason::Saturated)) } else { ("canary", None) };
            assert_eq!(decision.served_lane(service).unwrap().name.as_str(), lane);
            assert_eq!((decision.fallback, decision.panic), (why, false));
            let unsafe_one = choose(&snapshot, service, &post("u"), NOW);
            assert_eq!(
                unsafe_one.served_lane(service).unwrap().name.as_str(),
                "canary",
                "its policy keeps unsafe methods"
            );
            drop(flying);
        }
    }

    #[test]
    fn there_is_room_without_end() {
        let snapshot = bounded(1, Routing::default());
        assert_eq!(Room::ENDLESS.speaks_against(&snapshot.service("orders").unwrap().instances[0]), None);
    }
}
