//! Nobody believes what its owner never said.

use lanemesh::wire::{Body, Statement};
use rustc_hash::FxHashSet;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

use super::{Findings, Invariant};
use crate::world::World;

pub const NAME: &str = "only-owners-words";
pub const DOC: &str = "Every statement that a node holds (introductions, lives, goodbyes, records, policies) is one that its signer \
honestly signed, to the byte; whatever a lying peer forges, changes or replays (REQUIREMENTS M1, C2, S3). What a liar says of \
itself is its own affair.";

/// What was found right: what a node holds, others hold as well, and nothing that was honestly said ceases to be.
#[derive(Default)]
pub struct Check {
    right: FxHashSet<u128>,
}

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sample(&mut self, world: &World, found: &mut Findings) {
        // One host each second, in turn; everybody at the end.
        let second = (world.now / crate::queue::SECOND) as usize;
        self.look(world, second % world.hosts.len(), found);
    }

    fn end(&mut self, world: &World, found: &mut Findings) {
        let mut looked = FxHashSet::default();
        for (at, host) in world.hosts.iter().enumerate() {
            let catalog = host.node.as_ref().map(|node| node.catalog());
            // Of those who have gone no digest tells.
            let whole = catalog.filter(|catalog| catalog.gone().next().is_none());
            if whole.is_none_or(|catalog| looked.insert(catalog.digest())) {
                self.look(world, at, found);
            }
        }
    }
}

impl Check {
    fn look(&mut self, world: &World, host: usize, found: &mut Findings) {
        let Some(node) = &world.hosts[host].node else { return };
        for statement in node.catalog().each_statement() {
            let words = fingerprint(statement);
            if self.right.contains(&words) {
                continue;
            }
            let speaker = Body::decode(statement).map(|body| body.speaker().to_owned());
            let mut right = true;
            if speaker.as_deref() != Ok(statement.signer.as_str()) {
                let text = format!("{} holds what {} says of {speaker:?}", world.hosts[host].id, statement.signer);
                found.add(NAME, text);
                right = false;
            }
            let message = Statement::message(statement.kind, &statement.body);
            let said = world.register.was_said(&statement.signer, &message);
            let lied = || world.host_of(&statement.signer).is_some_and(|signer| ever_lied(world, signer));
            if !said && !lied() {
                found.add(NAME, format!("{} holds {statement:?}, which was never said", world.hosts[host].id));
            }
            if right && said {
                self.right.insert(words);
            }
        }
    }
}

fn fingerprint(statement: &Statement) -> u128 {
    let signer = xxh3_64(statement.signer.as_str().as_bytes());
    xxh3_128_with_seed(&statement.body, signer.wrapping_add(statement.kind.into()))
}

fn ever_lied(world: &World, host: u32) -> bool {
    let lies = |step: u32| world.scenario.step[step as usize].act.0 == crate::scenario::Do::Lie;
    world.faults.iter().any(|fault| lies(fault.step) && fault.hosts.contains(&host))
}
