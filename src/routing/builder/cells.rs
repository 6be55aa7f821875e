//! Instances' cells across snapshots: kept, cleared when the owner has news, and started slowly when an instance is new.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Time;
use crate::{
    config::Routing,
    routing::{FallbackReason, InstanceCell, InstanceEntry, Load, ServiceView},
    types::{InstanceRecord, Lane},
};

/// Of every lane: what is in flight there. One that is there is kept.
pub(super) fn loads<'a>(
    lanes: impl Iterator<Item = &'a Lane>,
    last: Option<&ServiceView>,
) -> BTreeMap<Lane, Arc<Load>> {
    let of = |lane: &Lane| {
        let before = last.and_then(|last| last.lane(lane.as_str()));
        (lane.clone(), before.map_or_else(Arc::default, |lane| lane.load.clone()))
    };
    lanes.map(of).collect()
}

/// The instance's cell: the one of the last view, or a new one. Who changes its lane begins anew there; what is in flight
/// goes on in the lane that it was sent to.
pub(super) fn of(
    record: &InstanceRecord,
    seed: u64,
    load: Option<&Arc<Load>>,
    last: Option<&ServiceView>,
) -> Arc<InstanceCell> {
    let load = load.cloned().unwrap_or_default();
    match last.and_then(|last| before(record, last)).filter(|before| before.cell.is_of(&load)) {
        Some(before) => before.cell.clone(),
        None => Arc::new(InstanceCell::new(xxh3_64_with_seed(record.id.as_str().as_bytes(), seed), load)),
    }
}

/// What was held against an instance is dropped when its owner has newer news than that: a new run, another address, or a return
/// into rotation. An instance that is new to its lane, at another address, or back in rotation starts slowly, unless
/// nobody else is there to take its keys, or this sidecar itself has only just begun to hear of instances.
///
/// Nor does a lane that had nobody begin slowly, with one exception: where its users were at home in `stable` meanwhile, they go back
/// little by little, and not before it has held for a while, so that nobody moves to and fro with an instance that comes and goes.
pub(super) fn follow(instances: &[InstanceEntry], last: &ServiceView, rules: &Routing, time: Time) {
    let knows_the_mesh = time.now.since(time.born) >= rules.slow_start;
    let candidates = || instances.iter().filter(|entry| entry.excluded.is_none());
    let arrivals: Vec<Arrival> = candidates().map(|entry| arrival(entry, last)).collect();
    let settled: BTreeSet<&Lane> = candidates()
        .zip(&arrivals)
        .filter(|(_, arrival)| **arrival != Arrival::New)
        .map(|(entry, _)| &entry.record.lane)
        .collect();
    for (entry, arrival) in candidates().zip(&arrivals) {
        match arrival {
            Arrival::None => {}
            Arrival::New if knows_the_mesh && settled.contains(&entry.record.lane) && !rules.slow_start.is_zero() => {
                entry.cell.start_slowly(time.now);
            }
            Arrival::New if was_left(&entry.record.lane, last) => {
                entry.cell.start_slowly(time.now + rules.fallback.hold);
            }
            Arrival::NewRun | Arrival::New => entry.cell.renew(),
        }
    }
}

/// Whether a lane had lost its last candidate, and its users were served by `stable`. One whose first instance becomes ready has
/// lost nothing: its users come at once.
fn was_left(lane: &Lane, last: &ServiceView) -> bool {
    let why = last.lane(lane.as_str()).filter(|lane| lane.had_one).and_then(|lane| lane.empty);
    matches!(why, Some(FallbackReason::Unhealthy | FallbackReason::Draining)) && last.may_be_left(lane)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// It was there before.
    None,
    /// Its sidecar has restarted; the application may not have.
    NewRun,
    New,
}

fn arrival(entry: &InstanceEntry, last: &ServiceView) -> Arrival {
    let record = &entry.record;
    let Some(before) = before(record, last) else { return Arrival::New };
    let moved =
        before.record.port != record.port || before.record.host != record.host || before.record.lane != record.lane;
    if before.excluded.is_some() || moved {
        Arrival::New
    } else if before.record.generation != record.generation {
        Arrival::NewRun
    } else {
        Arrival::None
    }
}

fn before<'a>(record: &InstanceRecord, last: &'a ServiceView) -> Option<&'a InstanceEntry> {
    last.instance(&record.owner, &record.id).map(|at| &last.instances[usize::from(at)])
}
