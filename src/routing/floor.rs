//! The floor of a lane: how many of its instances breakers may keep away (REQUIREMENTS R5, case C79).
//!
//! Looked at when a breaker wants to open, counting that one in; never when a request is decided. One instance always stays, and
//! never more than `breaker_max_share` of the lane is kept away: if most of a lane fails, passing over its instances one by one
//! would only pile its load onto the last ones. Members that are doubted by the mesh count as away as well.
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
    let (most, others) = (most(service, lane), || others_away(service, lane, instance, now));
    if others() >= most {
        if cell.epoch() == epoch && cell.hold() {
            service.state.count_held();
        }
        return;
    }
    if !cell.open(epoch, false, now, &service.rules) {
        return;
    }
    // Two that open at the same moment may each have missed the other. Both then stay; the next failure asks again.
    if others() >= most {
        cell.hold();
        service.state.count_held();
    } else {
        service.state.count_opened();
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
    use proptest::prelude::*;

    use super::*;
    use crate::routing::testing::*;

    #[test]
    fn half_of_a_lane_and_never_the_last() {
        let at_half = [0, 1, 2, 3, 4, 5, 10].map(|count| most_away(count, 0.5));
        assert_eq!(at_half, [0, 0, 1, 1, 2, 2, 5]);
        assert_eq!([1, 2, 3].map(|count| most_away(count, 1.0)), [0, 1, 2]);
        assert_eq!([1, 10].map(|count| most_away(count, 0.0)), [0, 0]);
    }

    proptest! {
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
