//! No live, reachable member is declared dead.

use lanemesh::types::MemberState;

use super::{Findings, Invariant, secs};
use crate::world::World;

pub const NAME: &str = "no-false-death";
pub const DOC: &str = "A node that runs, is not starved, can reach and be reached by everybody on its side, and was so for \
the last 15 s (with the LAN's constants), is not declared down by another of which the same is true. Losses count against it up to 15 % on every link; \
above, 20 verdicts in 1,000 node-minutes are allowed (REQUIREMENTS M5, S3).";

#[derive(Default)]
pub struct Check {
    lossy: u64,
}

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn member(&mut self, world: &World, observer: u32, subject: u32, state: MemberState, found: &mut Findings) {
        if state != MemberState::Down || !world.all_well(observer, subject, world.bounds.settled) {
            return;
        }
        if world.links.base.loss > CALM_LOSS {
            self.lossy += 1;
            let minutes = world.hosts.len() as f64 * secs(world.now) / 60.0;
            if self.lossy as f64 <= (minutes * ALLOWED).max(1.0) {
                return;
            }
        }
        let (by, of) = (&world.hosts[observer as usize], &world.hosts[subject as usize]);
        found.add(
            NAME,
            format!(
                "{} declares {} dead, which has run without a fault since {} s",
                by.id,
                of.id,
                secs(of.clean_since)
            ),
        );
    }
}

/// Up to this loss nobody may be declared dead.
const CALM_LOSS: f64 = 0.15;
/// Verdicts a node-minute above it.
const ALLOWED: f64 = 0.02;
