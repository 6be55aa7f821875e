//! Who is itself unwell judges nobody.

use lanemesh::types::MemberState;

use super::{Findings, Invariant, secs};
use crate::{scenario::Do, world::World};

pub const NAME: &str = "unwell-judge-nobody";
pub const DOC: &str = "A node that stood still within the last 3 s (with the LAN's constants, as below; stopped, starved) does not declare down a member that runs well; \
one that nobody can reach for 1.9 s (3 s, where something else was wrong with it) does not even find it doubtful, and after 12 s declares nobody down but whom others had accused before: both take their own trouble for their own (REQUIREMENTS M5, case C06).";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn member(&mut self, world: &World, observer: u32, subject: u32, state: MemberState, found: &mut Findings) {
        let bounds = &world.bounds;
        let (host, other) = (&world.hosts[observer as usize], &world.hosts[subject as usize]);
        let judged = matches!(state, MemberState::Down | MemberState::Doubtful);
        if !judged || !other.is_clean(world.now, world.bounds.settled) || !other.is_up() {
            return;
        }
        if world.hosts.iter().filter(|host| host.is_member()).count() < 4 {
            return;
        }
        let slow = state == MemberState::Down
            && host.slow_at > 0
            && host.slow_at + bounds.held_back > world.now
            && world.links.open_both(observer, subject);
        let was_well = host.is_clean(world.now, bounds.settled) && host.is_awake(world.now);
        let patience = match state {
            MemberState::Down => bounds.decided,
            _ if was_well => bounds.left_alone,
            _ => bounds.held_back,
        };
        let deaf = world.links.is_cut()
            && host.island_since + patience <= world.now
            && world.hosts.iter().all(|from| from.index == observer || !world.links.open(from.index, observer));
        // Two who could not reach it said so while they could be heard, and nothing to the contrary can arrive since.
        let deaf = deaf && !(state == MemberState::Down && world.accused_before_island(host, subject));
        // What others, cut off from it a moment ago, said of it is heard by who comes back.
        let since = world.now.saturating_sub(bounds.held_back);
        let cut_lately = world.faults.iter().any(|fault| {
            let act = world.scenario.step[fault.step as usize].act.0;
            // A flip-flop is off half of the time.
            let lately = fault.ended.map_or(act == Do::FlipFlop, |ended| ended > since);
            act.cuts() && lately && fault.touches(subject)
        });
        // Links that lose most of what is sent are no sign of one's own trouble.
        let clear = world.links.base.loss <= 0.05 && !world.links.is_cut() && !cut_lately;
        if (slow && clear && !world.is_worse(observer, subject)) || deaf {
            let why = if deaf { "hears nobody" } else { "stood still" };
            let text = format!(
                "{} {why} and takes {} for {state:?}, which has run well since {} s",
                host.id,
                other.id,
                secs(other.clean_since)
            );
            found.add(NAME, text);
        }
    }
}
