//! Nobody is declared dead on one node's word.

use lanemesh::types::MemberState;

use super::{Findings, Invariant, secs};
use crate::{queue::SECOND, scenario::Do, world::World};

pub const NAME: &str = "one-word-is-not-enough";
pub const DOC: &str = "In a mesh of four and more, a member that runs well, and that everybody but one can reach, is not declared \
down by anybody, that one included, be it a liar or cut off from it alone; and it is doubtful for nobody else (REQUIREMENTS \
M5: two distinct accusers). What others said of it before the observer was cut off from everybody counts.";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn member(&mut self, world: &World, observer: u32, subject: u32, state: MemberState, found: &mut Findings) {
        let other = &world.hosts[subject as usize];
        let calm = other.is_clean(world.now, world.bounds.settled) && other.started + world.bounds.settled <= world.now;
        let judged = matches!(state, MemberState::Down | MemberState::Doubtful);
        if !judged || !calm || world.links.base.loss > 0.05 {
            return;
        }
        // Whoever was in trouble a moment ago may have accused it then.
        let since = world.now.saturating_sub(5 * SECOND);
        let troubled = |host: &crate::host::Host| {
            host.trouble > 0 || host.clean_since > since || host.slow_at > since || host.started > since
        };
        let against = world.hosts.iter().filter(|host| {
            host.is_member() && host.index != subject && (troubled(host) || !world.links.open_both(host.index, subject))
        });
        // What was said before somebody stopped lying is still about.
        let lied = |host: &crate::host::Host| {
            host.lies
                || world.faults.iter().any(|fault| {
                    let act = world.scenario.step[fault.step as usize].act.0;
                    act == Do::Lie && fault.ended.is_some_and(|ended| ended > since) && fault.touches(host.index)
                })
        };
        let liars = world.hosts.iter().filter(|host| lied(host)).count();
        let before = world.accused_before_island(&world.hosts[observer as usize], subject);
        let recent = world.faults.iter().any(|fault| {
            let act = world.scenario.step[fault.step as usize].act.0;
            // A flip-flop is off half of the time, and its accusations stay.
            let lately = fault.ended.map_or(act == Do::FlipFlop, |ended| ended > since);
            act.cuts() && lately && fault.touches(subject)
        });
        let by = &world.hosts[observer as usize];
        let own = by.lies || troubled(by) || !world.links.open_both(observer, subject);
        if state == MemberState::Doubtful && own {
            return;
        }
        let members = world.hosts.iter().filter(|host| host.is_member()).count();
        if members >= 4 && !recent && !before && against.count() + liars <= 1 {
            let text = format!(
                "{} takes {} for {state:?}, which has run well since {} s and which everybody else can reach",
                by.id,
                other.id,
                secs(other.clean_since)
            );
            found.add(NAME, text);
        }
    }
}
