//! Nobody introduces the dead to a newcomer.

use lanemesh::types::MemberState;

use super::{Findings, Invariant, secs};
use crate::{
    queue::{SECOND, Time},
    world::World,
};

pub const NAME: &str = "newcomers-meet-the-living";
pub const DOC: &str = "A node that starts without a memory is not told of members that had gone 30 s before: it would take them for \
alive, send to them, convict them by itself and hold them for an hour of its own, so that a mesh whose hosts come and go \
never forgets anybody (REQUIREMENTS M11, case C11). Not held against runs with liars, who may replay, nor after somebody stood \
still since, who may not know yet.";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn member(&mut self, world: &World, observer: u32, subject: u32, state: MemberState, found: &mut Findings) {
        let (host, gone) = (&world.hosts[observer as usize], &world.hosts[subject as usize]);
        if state != MemberState::Alive || gone.is_up() || !host.blank || gone.ended + KNOWN > host.started {
            return;
        }
        let since = gone.ended.saturating_sub(KNOWN);
        let excused = world.hosts.iter().any(|other| other.ever_lied || other.slow_at >= since || other.trouble > 0)
            || world.cut_at.is_some_and(|at| at >= since)
            || world.links.is_cut();
        if !excused {
            let text = format!("{}, new, takes {} for alive, which ended at {} s", host.id, gone.id, secs(gone.ended));
            found.add(NAME, text);
        }
    }
}

const KNOWN: Time = 30 * SECOND;
