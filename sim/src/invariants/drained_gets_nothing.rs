//! What is drained or has left gets no new request.

use super::{Findings, Invariant, Try, secs};
use crate::{
    queue::{SECOND, Time},
    world::{Target, World},
};

pub const NAME: &str = "drained-gets-nothing";
pub const DOC: &str = "2 s after an instance was drained or its sidecar said goodbye, no sidecar that nothing is wrong with sends \
it another request (10 s where links lose more than 5 %): drain and goodbye are pushed at once and never held back \
(REQUIREMENTS M7, P6, case C07).";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn tried(&mut self, world: &World, Try { flight, entry, target }: &Try<'_>, found: &mut Findings) {
        let Some(Target { host, app }) = *target else { return };
        let there = &world.hosts[host as usize];
        let Some(drained) = there.apps.get(usize::from(app)).and_then(|app| app.drained) else { return };
        let spread = if world.links.base.loss > 0.05 { 10 * SECOND } else { SPREAD };
        let asker = &world.hosts[flight.at.host as usize];
        let was_well =
            asker.is_clean(world.now, world.bounds.settled) && asker.island_since + world.bounds.settled <= world.now;
        let could_tell = there.trouble == 0
            && there.clean_since + world.bounds.settled <= drained
            && there.island_since + world.bounds.settled <= drained;
        // A request that was decided before goes on as it was decided.
        if drained + spread < flight.begun && was_well && could_tell && asker.island == there.island.or(asker.island) {
            found.add(
                NAME,
                format!(
                    "{} sends to {}, which was taken out of rotation at {} s",
                    asker.id,
                    entry.record.id,
                    secs(drained)
                ),
            );
        }
    }
}

const SPREAD: Time = 2 * SECOND;
