//! An instance's share of the ring follows from its own weight.

use super::{Findings, Invariant};
use crate::world::World;

pub const NAME: &str = "shares-follow-weights";
pub const DOC: &str = "Every candidate has as many points on its lane's ring as its own weight (eased by its own load) gives it, 256 at weight 100 and \
in proportion, whatever other instances there are (REQUIREMENTS R2, case C83).";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sample(&mut self, world: &World, found: &mut Findings) {
        // One host each second, in turn.
        let second = (world.now / crate::queue::SECOND) as usize;
        let host = &world.hosts[second % world.hosts.len()];
        if !host.is_up() {
            return;
        }
        for service in host.snapshot.services() {
            for lane in &service.lanes {
                let mut points = vec![0_u32; lane.members.len()];
                lane.ring.iter().for_each(|(_, slot)| {
                    if let Some(count) = points.get_mut(usize::from(slot)) {
                        *count += 1;
                    }
                });
                for (at, points) in lane.members.iter().zip(points) {
                    let record = &service.instances[usize::from(*at)].record;
                    let due = (256 * u32::from(record.ring_weight()) + 50) / 100;
                    if points != due.max(1) {
                        let text = format!(
                            "{}: {} of weight {} has {points} points in {}, not {due}",
                            host.id,
                            record.id,
                            record.ring_weight(),
                            lane.name
                        );
                        return found.add(NAME, text);
                    }
                }
            }
        }
    }
}
