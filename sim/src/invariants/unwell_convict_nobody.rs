//! Who is itself unwell declares nobody dead.

use lanemesh::types::MemberState;

use super::{Findings, Invariant, secs};
use crate::{
    queue::{SECOND, Time},
    world::{SETTLED, World},
};

pub const NAME: &str = "unwell-convict-nobody";
pub const DOC: &str = "A node that stood still within the last 3 s (stopped, starved), or that nobody can reach, does not declare \
down a member that runs well among the others: it takes its own trouble for its own (REQUIREMENTS M5, case C06).";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn member(&mut self, world: &World, observer: u32, subject: u32, state: MemberState, found: &mut Findings) {
        let (host, other) = (&world.hosts[observer as usize], &world.hosts[subject as usize]);
        let members = world.hosts.iter().filter(|host| host.is_member()).count();
        if state != MemberState::Down || members < 4 || !other.is_clean(world.now, SETTLED) || !other.is_up() {
            return;
        }
        let slow = host.slow_at > 0 && host.slow_at + LATELY > world.now && world.links.open_both(observer, subject);
        let deaf = world.links.is_cut()
            && world.hosts.iter().all(|from| from.index == observer || !world.links.open(from.index, observer));
        // Links that lose most of what is sent are no sign of one's own trouble.
        if (slow && world.links.base.loss <= 0.05 && !world.links.is_cut() && !world.is_worse(observer, subject))
            || deaf
        {
            let why = if deaf { "hears nobody" } else { "stood still" };
            let text = format!(
                "{} {why} and declares {} dead, which has run well since {} s",
                host.id,
                other.id,
                secs(other.clean_since)
            );
            found.add(NAME, text);
        }
    }
}

const LATELY: Time = 3 * SECOND;
