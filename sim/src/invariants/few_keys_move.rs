//! A change moves only the keys it must.

use std::{cmp::Ordering, iter::zip};

use lanemesh::routing::{LaneView, ServiceView, Snapshot, key_hash};

use super::{Findings, Invariant};
use crate::{host::Host, world::World};

pub const NAME: &str = "few-keys-move";
pub const DOC: &str = "When a view is replaced, a key of a lane gets another owner only if its old owner is no longer a candidate \
or has another weight, or its new owner was none before or had another weight (REQUIREMENTS R2). Where near ones are preferred, a key also \
leaves for farther ones when the share that stays near has shrunk, and comes back when it has grown (R7).";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn published(&mut self, world: &World, host: u32, before: &Snapshot, after: &Snapshot, found: &mut Findings) {
        for new in after.services() {
            let Some(old) = before.service(new.name.as_str()) else { continue };
            if old.digest == new.digest {
                continue;
            }
            for lane in &new.lanes {
                let Some(was) = old.lane(lane.name.as_str()) else { continue };
                for key in 0..KEYS {
                    let key = key_hash(&u64::from(key).to_le_bytes());
                    let (from, to) = (owner(old, was, key), owner(new, lane, key));
                    let (Some(from), Some(to)) = (from, to) else { continue };
                    if from.0 != to.0
                        && weight(new, lane, from.0) == Some(from.1)
                        && weight(old, was, to.0) == Some(to.1)
                        && !may_go(&world.hosts[host as usize], (was, lane), (old, from.0), (new, to.0))
                    {
                        let text = format!(
                            "{}: a key of {} moves from {} to {}, neither of which changed",
                            world.hosts[host as usize].id, new.name, from.0, to.0
                        );
                        return found.add(NAME, text);
                    }
                }
            }
        }
    }
}

/// Whether the shares of the near ones have changed in such a way that a key may go from one place to another.
fn may_go(
    host: &Host,
    (was, is): (&LaneView, &LaneView),
    from: (&ServiceView, &str),
    to: (&ServiceView, &str),
) -> bool {
    let shares = |lane: &LaneView| lane.near.iter().map(|near| near.share).collect::<Vec<_>>();
    let (before, after) = (shares(was), shares(is));
    if before.len() != after.len() {
        // A place has its last instance no more, or its first.
        return true;
    }
    let (shrank, grew) = (zip(&before, &after).any(|(b, a)| a < b), zip(&before, &after).any(|(b, a)| a > b));
    match distance(host, to).cmp(&distance(host, from)) {
        Ordering::Greater => shrank,
        Ordering::Less => grew,
        Ordering::Equal => shrank || grew,
    }
}

/// 0 in the own zone, 1 in the own region, 2 elsewhere.
fn distance(host: &Host, (service, id): (&ServiceView, &str)) -> u8 {
    let found = service.instances.iter().find(|entry| entry.record.id.as_str() == id && entry.excluded.is_none());
    let here = &host.locality;
    match found.map(|entry| (&entry.record.region, &entry.record.zone)) {
        Some((region, zone)) if (region, zone) == (&here.region, &here.zone) => 0,
        Some((region, _)) if *region == here.region => 1,
        _ => 2,
    }
}

fn owner<'a>(service: &'a ServiceView, lane: &LaneView, key: u64) -> Option<(&'a str, u16)> {
    let at = lane.order(key).next()?;
    let record = &service.instances[usize::from(at)].record;
    Some((record.id.as_str(), record.ring_weight()))
}

fn weight(service: &ServiceView, lane: &LaneView, id: &str) -> Option<u16> {
    let records = lane.members.iter().map(|at| &service.instances[usize::from(*at)].record);
    records.into_iter().find(|record| record.id.as_str() == id).map(|record| record.ring_weight())
}

const KEYS: u32 = 32;
