//! A goodbye reaches everybody.

use lanemesh::types::MemberState;

use super::{Findings, Invariant, secs};
use crate::{
    queue::{SECOND, Time},
    world::World,
};

pub const NAME: &str = "goodbye-is-heard";
pub const DOC: &str = "A member that said goodbye while nothing was wrong with it is `left`, not alive and not down, for every \
member that nothing was wrong with, 10 s later and for as long as it stays away (REQUIREMENTS M7, case C07).";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sample(&mut self, world: &World, found: &mut Findings) {
        for gone in world.hosts.iter().filter(|host| host.said_goodbye) {
            let due = gone.ended + SPREAD;
            if gone.is_up() || !(due..due + 3 * SECOND).contains(&world.now) {
                continue;
            }
            for host in world.hosts.iter() {
                let well = host.is_clean(world.now, world.bounds.settled + SPREAD)
                    && host.started + world.bounds.settled <= gone.ended
                    && host.island.is_some()
                    && host.island == gone.island
                    && host.island_since + world.bounds.settled <= gone.ended;
                let Some(node) = host.node.as_ref().filter(|_| well) else { continue };
                let state = node.membership().state(&gone.id);
                if state.is_some_and(|state| state != MemberState::Left) {
                    let text = format!(
                        "{} holds {} {state:?}, which said goodbye at {} s",
                        host.id,
                        gone.id,
                        secs(gone.ended)
                    );
                    found.add(NAME, text);
                }
            }
        }
    }
}

const SPREAD: Time = 10 * SECOND;
