//! How many of a lane's users the lane in its place can take (REQUIREMENTS L7): a dead canary must not drown `stable`.
//!
//! Told by what instances announce: `capacity`, requests a second, and how much of it they use (`load`; half where they do not
//! say). The lane that takes over may be filled up to `fallback_capacity` of its capacity; what is left of that beside its own
//! users is for those of the lanes that were lost, in proportion to what these had to do. A user is taken when a hash of the key is
//! below that share, so that sets are nested: they are the same users on every node, and when room comes or goes nobody moves to
//! and fro. Where an instance of either lane announces no capacity, nothing is known, and everybody is taken.
//!
//! What both lanes had to do is looked at before the loss and then kept until the lost lane is back: the load of the
//! lane that has taken over holds the others' users already.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{InstanceEntry, LaneView, ServiceView};
use crate::{
    lanes::CompiledPolicy,
    types::{EmptyLaneRule, InstanceRecord, Planted},
};

/// What a lane can do and has to do, in requests a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Work {
    capacity: f64,
    used: f64,
    /// Every instance says how much it uses.
    told: bool,
    /// What it could do when it was whole: `used` does not fall before it can do as much again.
    whole: f64,
}

impl Work {
    /// Of a lane's candidates; `None` where one of them announces no capacity, or there is none. Whose instances have just ceased to
    /// say what they use is taken to use what it did: they are about to be lost. A lane that loses one instance after another has
    /// the same users all the while, whatever the last of them still gets done.
    fn of<'a>(candidates: impl Iterator<Item = &'a InstanceRecord>, before: Option<Self>) -> Option<Self> {
        let mut work = Self { capacity: 0.0, used: 0.0, told: true, whole: 0.0 };
        for record in candidates {
            let capacity = f64::from(record.capacity?);
            let busy = record.load.map(|load| f64::from(load.percent) / 100.0);
            work.capacity += capacity;
            work.used += capacity * busy.unwrap_or(UNTOLD);
            work.told &= busy.is_some();
        }
        if let Some(before) = before.filter(|before| before.told && !work.told) {
            (work.used, work.told) = (before.used, true);
        }
        work.whole = work.capacity;
        if let Some(before) = before.filter(|before| work.capacity < before.whole) {
            (work.used, work.whole) = (work.used.max(before.used), before.whole);
        }
        (work.capacity > 0.0).then_some(work)
    }
}

impl LaneView {
    /// Whether the lane in its place takes a key of this one.
    #[inline]
    pub(super) fn is_taken(&self, key_hash: u64) -> bool {
        self.taken == u32::MAX
            || Planted::RoomIgnored.is_on()
            || (xxh3_64_with_seed(&key_hash.to_le_bytes(), TAKEN_SEED) >> 32) as u32 <= self.taken
    }

    /// For how many of a hundred of its users the lane in its place has room.
    pub fn room_percent(&self) -> u8 {
        // At most 100.
        (u64::from(self.taken) * 100 / u64::from(u32::MAX)) as u8
    }

    /// It had somebody, and has nobody.
    fn is_lost(&self) -> bool {
        self.empty.is_some() && self.had_one
    }
}

/// Works out, for each of a service's new lanes, what it has to do and which share of its users the lane in its place takes.
pub(super) fn settle(
    lanes: &mut [LaneView],
    instances: &[InstanceEntry],
    policy: Option<&Arc<CompiledPolicy>>,
    last: Option<&ServiceView>,
    fill: f64,
) {
    let stands_in: Vec<Option<usize>> = (0..lanes.len()).map(|at| stand_in(lanes, at, policy)).collect();
    for (at, lane) in lanes.iter_mut().enumerate() {
        let before = last.and_then(|last| last.lane(lane.name.as_str())).and_then(|lane| lane.work);
        let candidates = lane.members.iter().map(|at| &*instances[usize::from(*at)].record);
        lane.work = if lane.is_lost() { before } else { Work::of(candidates, before) };
        let takes_over = stands_in.iter().enumerate().any(|(other, to)| *to == Some(at) && other != at);
        debug_assert!(!takes_over || lane.empty.is_none(), "who has nobody takes nobody");
    }
    for at in 0..lanes.len() {
        let lost = |other: &usize| stands_in[*other] == Some(at) && lanes[*other].is_lost();
        let lost: Vec<usize> = (0..lanes.len()).filter(lost).collect();
        if !lost.is_empty()
            && let Some(before) = last.and_then(|last| last.lane(lanes[at].name.as_str())).and_then(|lane| lane.work)
            && let Some(work) = &mut lanes[at].work
        {
            work.used = before.used;
        }
    }
    for at in 0..lanes.len() {
        lanes[at].taken = stands_in[at].map_or(u32::MAX, |to| taken(lanes, &stands_in, at, to, fill));
    }
}

/// The lane that serves in place of another: as `choose` takes it, whatever methods and causes are allowed.
fn stand_in(lanes: &[LaneView], at: usize, policy: Option<&Arc<CompiledPolicy>>) -> Option<usize> {
    let find = |wanted: &dyn Fn(&LaneView) -> bool| lanes.iter().position(|lane| lane.empty.is_none() && wanted(lane));
    if !lanes[at].name.is_stable() {
        return find(&|lane| lane.name.is_stable());
    }
    let rule = policy.map_or(EmptyLaneRule::default(), |compiled| compiled.policy.empty);
    let of_policy = |lane: &LaneView| policy.is_some_and(|compiled| compiled.policy.lanes.contains_key(&lane.name));
    find(&|lane| rule.stable_to_others && !lane.name.is_stable() && of_policy(lane))
}

/// Of 2^32, for a lane whose users `to` takes.
fn taken(lanes: &[LaneView], stands_in: &[Option<usize>], at: usize, to: usize, fill: f64) -> u32 {
    let (Some(own), Some(there)) = (lanes[at].work, lanes[to].work) else { return u32::MAX };
    // All that are lost share the room; one that is not lost yet would come beside them.
    let with_it = |other: &usize| *other == at || (stands_in[*other] == Some(to) && lanes[*other].is_lost());
    let others = (0..lanes.len()).filter(with_it).filter_map(|other| lanes[other].work);
    let demand: f64 = others.map(|work| work.used).sum::<f64>().max(own.used);
    let room = (fill * there.capacity - there.used).max(0.0);
    if demand <= room {
        return u32::MAX;
    }
    // From floating point to integers, `as` saturates.
    (room / demand * f64::from(u32::MAX)) as u32
}

/// Part of its capacity that an instance uses which does not say.
const UNTOLD: f64 = 0.5;
/// `lm-take!` in ASCII, big-endian.
const TAKEN_SEED: u64 = 0x6c6d_2d74_616b_6521;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use crate::{
        config::{Fallback, Routing},
        routing::{
            Attempts, AttemptsConfig, Builder, CandidateTable, FallbackReason, GiveUp, MethodClass, Rules, Snapshot,
            Step, choose, testing::*,
        },
        types::{Health, LoadFigure},
    };

    /// Everybody on the canary. `stable` and `canary`: capacity, and load in per cent where it is told.
    fn lanes(stable: &[(u32, Option<u16>)], canary: &[(u32, Option<u16>)]) -> CandidateTable {
        let mut table = with_policy(fleet(stable.len(), canary.len()), policy(10_000));
        let named = [("a", stable), ("c", canary)];
        for (letter, (at, (capacity, load))) in
            named.into_iter().flat_map(|(letter, of)| of.iter().enumerate().map(move |one| (letter, one)))
        {
            edit(&mut table, &format!("{letter}{at}"), |record| {
                record.capacity = Some(*capacity).filter(|capacity| *capacity > 0);
                record.load = load.map(|percent| LoadFigure { percent, share: 100 });
            });
        }
        table
    }

    fn lose_canary(table: &mut CandidateTable, canaries: usize) {
        (0..canaries).for_each(|at| edit(table, &format!("c{at}"), |record| record.health = Health::Critical));
    }

    /// Of 2,000 users, those whom stable serves.
    fn served(snapshot: &Snapshot) -> BTreeSet<String> {
        let service = snapshot.service("orders").unwrap();
        let users = (0..2_000).map(|user| format!("u{user}"));
        let by_stable = |user: &String| {
            let decision = choose(snapshot, service, &get(user), NOW);
            assert_eq!(decision.capped, decision.instance.is_none());
            decision.served_lane(service).is_some_and(|lane| lane.name.is_stable())
        };
        users.filter(by_stable).collect()
    }

    /// The builder after the canary was there, and the snapshot after its loss.
    fn lost(table: &mut CandidateTable, canaries: usize) -> (Builder, std::sync::Arc<Snapshot>) {
        let mut builder = Builder::new(locality());
        builder.build(table, NOW);
        lose_canary(table, canaries);
        let snapshot = builder.build(table, NOW).0;
        (builder, snapshot)
    }

    #[test]
    fn stable_takes_as_many_as_it_has_room_for() {
        // 800 of 1,000 a second may be used, 600 are: room for 200 of the canary's 400.
        let mut table = lanes(&[(500, Some(60)), (500, Some(60))], &[(500, Some(80))]);
        let (mut builder, snapshot) = lost(&mut table, 1);
        let half = served(&snapshot);
        assert!((900..1_100).contains(&half.len()), "{}", half.len());
        // Its load rises by those whom it took: they stay.
        (0..2).for_each(|at| {
            edit(&mut table, &format!("a{at}"), |record| record.load = Some(LoadFigure { percent: 80, share: 100 }));
        });
        assert_eq!(served(&builder.build(&table, NOW).0), half);
        // A third instance comes: room for 600, so for all.
        let mut more = record("a9", "stable");
        more.capacity = Some(500);
        table.instances.push(alive(more));
        assert_eq!(served(&builder.build(&table, NOW).0).len(), 2_000);
    }

    #[test]
    fn who_is_not_taken_is_told_so() {
        let mut table = lanes(&[(100, Some(90))], &[(100, Some(50))]);
        let (_, snapshot) = lost(&mut table, 1);
        let service = snapshot.service("orders").unwrap();
        let decision = choose(&snapshot, service, &get("u1"), NOW);
        assert_eq!((decision.instance, decision.fallback), (None, Some(FallbackReason::Unhealthy)));
        let second = std::time::Duration::from_secs(1);
        let config = AttemptsConfig { max_retries: 2, per_try: second, total: second * 9 };
        let mut attempts = Attempts::new(&decision, MethodClass::Safe, true, config, NOW);
        assert_eq!(attempts.next(service, NOW), Step::GiveUp(GiveUp::FallbackLimit));
    }

    #[test]
    fn without_capacities_everybody_is_taken() {
        for (stable, canary) in [((0, Some(90)), (500, Some(90))), ((100, Some(90)), (0, None))] {
            let mut table = lanes(&[stable], &[canary]);
            assert_eq!(served(&lost(&mut table, 1).1).len(), 2_000);
        }
        let mut table = lanes(&[(100, None)], &[(100, None)]);
        let few = served(&lost(&mut table, 1).1).len();
        assert!((1_100..1_300).contains(&few), "both half busy: room for 30 of 50, {few}");
    }

    /// A dying application ceases to tell its load before it fails its check.
    #[test]
    fn what_was_told_last_counts() {
        let mut table = lanes(&[(1_000, Some(40))], &[(500, Some(100))]);
        let mut builder = Builder::new(locality());
        builder.build(&table, NOW);
        edit(&mut table, "c0", |record| record.load = None);
        builder.build(&table, NOW);
        lose_canary(&mut table, 1);
        let served = served(&builder.build(&table, NOW).0).len();
        assert!((1_500..1_700).contains(&served), "room for 400 of 500: {served}");
    }

    /// A lane that is sick but there keeps whom stable does not take.
    #[test]
    fn a_sick_lane_keeps_whom_stable_has_no_room_for() {
        let table = lanes(&[(100, Some(60))], &[(100, Some(40))]);
        let snapshot = built(&table);
        let service = snapshot.service("orders").unwrap();
        open_breaker(service.instances.iter().find(|entry| entry.record.id.as_str() == "c0").unwrap());
        let users = (0..2_000).map(|user| format!("u{user}"));
        let stays = |user: &String| {
            let decision = choose(&snapshot, service, &get(user), NOW);
            assert!(decision.instance.is_some());
            decision.fallback.is_none()
        };
        let stay = users.filter(stays).count();
        assert!((900..1_100).contains(&stay), "room for 20 of 40: {stay} stay");
    }

    proptest! {
        /// The more room, the more users, and all of those before; what is taken never passes the room.
        #[test]
        fn who_is_taken_stays_taken_when_there_is_more_room(
            stable in prop::collection::vec((1_u32..1_000, prop::option::of(0_u16..200)), 1..4),
            canary in prop::collection::vec((1_u32..1_000, prop::option::of(0_u16..200)), 1..4),
            fills in [0.1_f64..1.0, 0.1_f64..1.0],
        ) {
            let [less, more] = if fills[0] < fills[1] { fills } else { [fills[1], fills[0]] };
            let at = |fill: f64| {
                let fallback = Fallback { fill, ..Routing::default().fallback };
                let rules = Rules::new(0, Routing { fallback, ..Routing::default() }.into(), &BTreeMap::new());
                let mut builder = Builder::with(locality(), rules);
                let mut table = lanes(&stable, &canary);
                builder.build(&table, NOW);
                lose_canary(&mut table, canary.len());
                builder.build(&table, NOW).0
            };
            let (few, many) = (at(less), at(more));
            prop_assert!(served(&few).is_subset(&served(&many)));
            let work = |of: &[(u32, Option<u16>)]| -> (f64, f64) {
                let used = |load: &Option<u16>| load.map_or(0.5, |percent| f64::from(percent) / 100.0);
                of.iter().fold((0.0, 0.0), |(sum, busy), (capacity, load)| {
                    (sum + f64::from(*capacity), busy + f64::from(*capacity) * used(load))
                })
            };
            let ((capacity, used), (_, demand)) = (work(&stable), work(&canary));
            let share = f64::from(many.service("orders").unwrap().lane("canary").unwrap().taken) / f64::from(u32::MAX);
            prop_assert!(share == 1.0 && demand <= more * capacity - used + 1e-6 || share * demand <= (more * capacity - used).max(0.0) + 1e-3);
        }
    }
}
