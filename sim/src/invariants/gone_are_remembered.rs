//! The gone are remembered for an hour, and stay gone.

use std::collections::BTreeMap;

use lanemesh::types::MemberState;

use super::{Findings, Invariant, secs};
use crate::{
    queue::{SECOND, Time},
    world::World,
};

pub const NAME: &str = "gone-are-remembered";
pub const DOC: &str = "Who saw a member go down or leave still knows so 55 minutes later, unless either ran again meanwhile: without \
that, whatever old is still on its way would bring the dead back, and two halves of a long split would forget each other \
(REQUIREMENTS M11, cases C03 and C07).";

/// (observer, its run, subject, its run) and since when it has been gone for that observer.
#[derive(Default)]
pub struct Check {
    gone: BTreeMap<(u32, u32, u32, u32), Time>,
}

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn member(&mut self, world: &World, observer: u32, subject: u32, state: MemberState, _found: &mut Findings) {
        let epoch = |host: u32| world.hosts[host as usize].epoch;
        let key = (observer, epoch(observer), subject, epoch(subject));
        match state {
            MemberState::Down | MemberState::Left => {
                self.gone.entry(key).or_insert(world.now);
            }
            MemberState::Alive | MemberState::Doubtful => {
                self.gone.remove(&key);
            }
        }
    }

    fn sample(&mut self, world: &World, found: &mut Findings) {
        if !(world.now / SECOND).is_multiple_of(EVERY) {
            return;
        }
        self.gone.retain(|(observer, run, subject, its), since| {
            let (host, gone) = (&world.hosts[*observer as usize], &world.hosts[*subject as usize]);
            let Some(node) = host.node.as_ref().filter(|_| host.epoch == *run) else { return false };
            if gone.epoch != *its || *since + REMEMBERED < world.now {
                return false;
            }
            if node.membership().state(&gone.id).is_none() {
                let text = format!("{} has forgotten {}, which went at {} s", host.id, gone.id, secs(*since));
                found.add(NAME, text);
                return false;
            }
            true
        });
    }
}

const EVERY: u64 = 10;
const REMEMBERED: Time = 55 * 60 * SECOND;
