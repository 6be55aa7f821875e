//! The floor of a lane: how many of its instances breakers may keep away (REQUIREMENTS R5, case C79).
//!
//! Looked at when a breaker wants to open, counting that one in; never when a request is decided. One instance always stays, and
//! never more than `breaker_max_share` of the lane is kept away: if most of a lane fails, passing over its instances one by one
//! would only pile its load onto the last ones. Members that are doubted by the mesh count as away as well.
//!
//! The floor is there so that capacity is not thrown away by a judgement. An instance that has nothing to give has none to keep:
//! where three quarters of a lane are dead, the floor would have half of the users fail for nothing. So one that gives nothing at all
//! (not one request went well in a whole window) may be kept away beyond the floor, and then those do not count that are away and
//! *proved* to have nothing to give: left alone for an open time, so that it was not load, they failed the request that tried them
//! (`cell::proof`; while the floor waits for such proofs, tries that fail are repeated soon). The rest of the lane keeps the floor's
//! share and its last instance, so that it goes by halves, an open time each, and whoever fails only partly, as the overloaded do, is
//! protected as before. Nothing of that where nobody else of the lane has served this sidecar since: then the fault may be its own.
//! Own requests alone prove it: what other sidecars say never moves the floor.
//!
//! A lane that may be left for `stable` (REQUIREMENTS L7) has no floor: its users are better off there than with its last instance.
//!
//! An instance that may not be kept away is used as it is; each further failure asks again.

use super::{InstanceEntry, LaneView, ServiceView};
use crate::{
    config::Routing,
    types::{MemberState, Mono},
};

/// How many of so many instances may be kept away.
pub(super) fn most_away(candidates: usize, share: f64) -> usize {
    // An exact half of an even number must not be lost to rounding.
    let share = (candidates as f64 * share + 1e-9) as usize;
    share.min(candidates.saturating_sub(1))
}

/// Opens the breaker of a member of `lane`, for results of that epoch, if the floor allows it.
pub(super) fn open(service: &ServiceView, lane: &LaneView, instance: u16, epoch: u16, now: Mono) {
    let cell = &service.instances[usize::from(instance)].cell;
    let room = || room(service, lane, instance, now);
    if room() == Room::None {
        if cell.epoch() == epoch && cell.hold() {
            service.state.count_held();
        }
        return;
    }
    if !cell.open(epoch, false, now, &service.rules) {
        return;
    }
    // Two that open at the same moment may each have missed the other. Both then stay; the next failure asks again.
    match room() {
        Room::None => {
            cell.hold();
            service.state.count_held();
        }
        Room::Left => service.state.count_opened(),
        Room::Beyond => {
            service.state.count_opened();
            service.state.count_beyond();
        }
    }
}

/// Keeps a member of `lane` away because other sidecars saw it fail (`signalled`) or because it is slow, if the floor allows it;
/// whether it did. Where it does not, nothing is noted: it has failed nothing here.
pub(super) fn keep_away(service: &ServiceView, lane: &LaneView, instance: u16, signalled: bool, now: Mono) -> bool {
    let cell = &service.instances[usize::from(instance)].cell;
    let room = others_away(service, lane, instance, now) < most(service, lane);
    let opened = room && cell.open(cell.epoch(), signalled, now, &service.rules);
    match (opened, signalled) {
        (true, true) => service.state.count_signalled(),
        (true, false) => service.state.count_opened(),
        (false, _) => {}
    }
    opened
}

/// Whether one more of a lane may be kept away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// The floor binds.
    None,
    /// It does not.
    Left,
    /// It does, and keeps nothing by this one.
    Beyond,
}

fn room(service: &ServiceView, lane: &LaneView, instance: u16, now: Mono) -> Room {
    let away = others_away(service, lane, instance, now);
    if away < most(service, lane) {
        return Room::Left;
    }
    let cell = &service.instances[usize::from(instance)].cell;
    if cell.gives_nothing(now, &service.rules) && is_room_beyond(service, lane, instance, away, now) {
        return Room::Beyond;
    }
    if cell.only_fails() {
        lane.load.want_proof(now);
    }
    Room::None
}

/// Whether there is room where those do not count that are away and proved to have nothing to give.
fn is_room_beyond(service: &ServiceView, lane: &LaneView, instance: u16, away: usize, now: Mono) -> bool {
    let rules = &service.rules;
    let others = || {
        let others = lane.members.iter().filter(|at| **at != instance);
        others.map(|at| &service.instances[usize::from(*at)])
    };
    let in_use = others().filter(|entry| !is_away(entry, now, rules));
    let served = in_use.filter_map(|entry| entry.cell.last_good()).max();
    // A success of long ago says nothing about this sidecar's way there now.
    let Some(served) = served.filter(|at| now.since(*at) < rules.breaker.window / 2) else { return false };
    let is_dead = |entry: &&InstanceEntry| {
        is_away(entry, now, rules) && entry.cell.proved().is_some_and(|proved| proved < served)
    };
    let dead = others().filter(is_dead).count();
    // Somebody may have come back between the two counts.
    away.saturating_sub(dead) < most_away(lane.members.len() - dead, rules.breaker.max_share)
}

fn most(service: &ServiceView, lane: &LaneView) -> usize {
    if service.may_be_left(&lane.name) {
        return lane.members.len();
    }
    most_away(lane.members.len(), service.rules.breaker.max_share)
}

fn others_away(service: &ServiceView, lane: &LaneView, instance: u16, now: Mono) -> usize {
    let others = lane.members.iter().filter(|at| **at != instance);
    others.filter(|at| is_away(&service.instances[usize::from(**at)], now, &service.rules)).count()
}

fn is_away(entry: &InstanceEntry, now: Mono, rules: &Routing) -> bool {
    entry.owner == MemberState::Doubtful || entry.cell.is_away(now, rules)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use proptest::prelude::*;

    use super::*;
    use crate::routing::{
        Attempts, AttemptsConfig, MethodClass, Outcome, Snapshot, Step, choose, key_hash, testing::*,
    };

    #[test]
    fn half_of_a_lane_and_never_the_last() {
        let at_half = [0, 1, 2, 3, 4, 5, 10].map(|count| most_away(count, 0.5));
        assert_eq!(at_half, [0, 0, 1, 1, 2, 2, 5]);
        assert_eq!([1, 2, 3].map(|count| most_away(count, 1.0)), [0, 1, 2]);
        assert_eq!([1, 10].map(|count| most_away(count, 0.0)), [0, 0]);
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A request as it goes, with its retries; who served it.
    fn request(snapshot: &Snapshot, subject: &str, now: Mono, fails: &dyn Fn(u16) -> bool) -> Option<u16> {
        let service = snapshot.service("orders").unwrap();
        let decision = choose(snapshot, service, &get(subject), now);
        let config = AttemptsConfig { max_retries: 2, per_try: ms(1_000), total: ms(3_000) };
        let mut attempts = Attempts::new(&decision, MethodClass::Safe, true, config, now);
        let mut now = now;
        loop {
            match attempts.next(service, now) {
                Step::Try { instance, .. } if fails(instance) => {
                    attempts.ended(Outcome::RetryableStatus(503), service, now);
                }
                Step::Try { instance, .. } => {
                    attempts.ended(Outcome::Answered(200), service, now);
                    return Some(instance);
                }
                Step::Wait(until) => now = until,
                Step::GiveUp(_) => return None,
            }
        }
    }

    /// Two hundred requests a second of three hundred users, from `from` to `to` in seconds. Who served each of them last, and how
    /// many requests failed.
    fn play(
        snapshot: &Snapshot,
        (from, to): (u64, u64),
        fails: &dyn Fn(u16, u64) -> bool,
    ) -> (BTreeMap<u64, Option<u16>>, u64) {
        let (mut last, mut failed) = (BTreeMap::new(), 0);
        for n in from * 200..to * 200 {
            let served = request(snapshot, &format!("u{}", n % 300), NOW + ms(n * 5), &|at| fails(at, n));
            failed += u64::from(served.is_none());
            last.insert(n % 300, served);
        }
        (last, failed)
    }

    fn away(snapshot: &Snapshot, seconds: u64) -> usize {
        let service = snapshot.service("orders").unwrap();
        let now = NOW + Duration::from_secs(seconds);
        service.instances.iter().filter(|entry| is_away(entry, now, &service.rules)).count()
    }

    /// Three quarters of twelve are dead: half of the lane is kept away at once, the rest of the dead once it is proved that nothing
    /// is lost by it; their users go to their next and come back.
    #[test]
    fn the_dead_are_not_kept_for_the_floors_sake() {
        let snapshot = built(&fleet(12, 0));
        let service = snapshot.service("orders").unwrap();
        let (before, _) = play(&snapshot, (0, 10), &|_, _| false);
        let dead = |at: u16, _: u64| at < 9;
        let (_, failed) = play(&snapshot, (10, 15), &dead);
        assert!(away(&snapshot, 15) == 6 && failed > 50, "the floor binds: {failed}");
        assert!(service.state.breakers().held >= 3 && service.state.breakers().beyond == 0);
        play(&snapshot, (15, 40), &dead);
        assert_eq!((away(&snapshot, 40), service.state.breakers().beyond), (9, 3));
        let (during, failed) = play(&snapshot, (40, 50), &dead);
        assert_eq!(failed, 0);
        let lane = service.lane("stable").unwrap();
        for (user, served) in &during {
            let mut order = lane.order(key_hash(format!("u{user}").as_bytes()));
            assert_eq!(*served, order.find(|at| *at >= 9), "the first that is well in its order");
        }
        play(&snapshot, (50, 200), &|_, _| false);
        assert_eq!(play(&snapshot, (200, 210), &|_, _| false), (before, 0), "all are back");
    }

    /// What fails in part is protected from being taken off one after another, however many are dead beside it.
    #[test]
    fn the_overloaded_keep_the_floor() {
        for dead in [0, 6, 9] {
            let snapshot = built(&fleet(12, 0));
            let fails = |at: u16, n: u64| at < dead || (n * 7_919 + u64::from(at) * 104_729) % 1_000 < 500;
            play(&snapshot, (0, 90), &fails);
            let (away, dead) = (away(&snapshot, 90), usize::from(dead));
            assert!(away <= dead + most_away(12 - dead, 0.5), "{away}, and {dead} are dead");
        }
    }

    /// Where nothing goes well at all the fault may be this sidecar's own.
    #[test]
    fn nothing_is_proved_while_nobody_serves() {
        let snapshot = built(&fleet(12, 0));
        play(&snapshot, (0, 5), &|_, _| false);
        play(&snapshot, (5, 95), &|_, _| true);
        assert_eq!((away(&snapshot, 95), snapshot.service("orders").unwrap().state.breakers().beyond), (6, 0));
    }

    /// Others' word opens no more than the floor allows, whatever was proved.
    #[test]
    fn signals_do_not_move_the_floor() {
        let snapshot = built(&fleet(12, 0));
        let service = snapshot.service("orders").unwrap();
        play(&snapshot, (0, 60), &|at, _| at < 8);
        assert_eq!(away(&snapshot, 60), 8);
        let lane = service.lane("stable").unwrap();
        assert!(!keep_away(service, lane, 9, true, NOW + ms(60_000)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        /// Whoever fails for however long, and how much of what it gets: one always stays, and beyond the floor only who gives nothing is kept
        /// away.
        #[test]
        fn one_always_stays(shares in prop::collection::vec(prop::sample::select(vec![0_u64, 0, 300, 900, 1_000, 1_000]), 1..10)) {
            let snapshot = built(&fleet(shares.len(), 0));
            let fails = |at: u16, n: u64| (n * 7_919 + u64::from(at) * 104_729) % 1_000 < shares[usize::from(at)];
            play(&snapshot, (0, 5), &|_, _| false);
            for round in 0..8 {
                let from = 5 + round * 5;
                play(&snapshot, (from, from + 5), &fails);
                let away = away(&snapshot, from + 5);
                // By chance, who hardly gives anything may be taken for dead.
                let sick = shares.iter().filter(|share| **share >= 900).count();
                let most = most_away(shares.len(), 0.5).max(sick + most_away(shares.len() - sick, 0.5));
                prop_assert!(away < shares.len() && away <= most, "{} of {:?}", away, shares);
            }
        }

        /// Whoever fails in whatever order: the floor is kept, and what is counted is what happened.
        #[test]
        fn the_floor_is_kept(count in 1_usize..9, failing in prop::collection::vec(0_u16..9, 0..40), doubted in 0_usize..4) {
            let mut table = fleet(count, 0);
            for candidate in table.instances.iter_mut().take(doubted) {
                candidate.owner = MemberState::Doubtful;
            }
            let snapshot = built(&table);
            let service = snapshot.service("orders").unwrap();
            let lane = service.lane("stable").unwrap();
            for instance in failing.into_iter().filter(|at| usize::from(*at) < count) {
                let cell = &service.instances[usize::from(instance)].cell;
                if cell.failed(cell.force(), NOW, &service.rules) {
                    open(service, lane, instance, cell.epoch(), NOW);
                }
            }
            let open = service.instances.iter().filter(|entry| entry.cell.open_until(NOW).is_some()).count();
            let away = service.instances.iter().filter(|entry| is_away(entry, NOW, &service.rules)).count();
            prop_assert_eq!(service.state.breakers().opened, open as u64);
            prop_assert!(open == 0 || away <= most_away(count, 0.5), "{} away of {}", away, count);
        }
    }
}
