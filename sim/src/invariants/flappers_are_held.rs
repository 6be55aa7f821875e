//! An instance that keeps failing and coming back does not shake the ring.

use std::collections::BTreeMap;

use lanemesh::{
    routing::{Exclusion, Snapshot},
    types::InstanceId,
};

use super::{Findings, Invariant};
use crate::{
    queue::{SECOND, Time},
    world::World,
};

pub const NAME: &str = "flappers-are-held";
pub const DOC: &str = "Within one generation an instance comes back into a sidecar's ring at most 7 times in 60 s by itself, however \
often its checks fail and pass: two returns are free, the next are held for 5, 10, 20, 40 s. The last candidate of a lane \
is spared (REQUIREMENTS R4).";

/// Observer, instance, its generation; and its returns in the last minute.
#[derive(Default)]
pub struct Check {
    returns: BTreeMap<(u32, InstanceId, u64), Vec<Time>>,
}

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn published(&mut self, world: &World, host: u32, before: &Snapshot, after: &Snapshot, found: &mut Findings) {
        for new in after.services() {
            let Some(old) = before.service(new.name.as_str()).filter(|old| old.digest != new.digest) else { continue };
            for lane in new.lanes.iter().filter(|lane| lane.members.len() > 1) {
                for at in &lane.members {
                    let record = &new.instances[usize::from(*at)].record;
                    let was = old.instances.iter().find(|entry| entry.record.id == record.id);
                    let back = was.is_some_and(|was| {
                        let failed = matches!(
                            was.excluded,
                            Some(Exclusion::Critical | Exclusion::OwnerDown | Exclusion::Flapping)
                        );
                        failed && was.record.generation == record.generation && was.record.owner == record.owner
                    });
                    if !back {
                        continue;
                    }
                    let returns = self.returns.entry((host, record.id.clone(), record.generation)).or_default();
                    returns.retain(|at| at + 60 * SECOND > world.now);
                    returns.push(world.now);
                    if returns.len() > MOST {
                        let text = format!(
                            "{}: {} came back {} times in a minute",
                            world.hosts[host as usize].id,
                            record.id,
                            returns.len()
                        );
                        found.add(NAME, text);
                    }
                }
            }
        }
    }
}

const MOST: usize = 7;
