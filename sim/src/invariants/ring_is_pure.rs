//! The ring is a pure function of the view.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use lanemesh::routing::{Ring, ServiceView, key_hash};
use rustc_hash::FxHashMap;

use super::{Findings, Invariant};
use crate::{host::Host, world::World};

pub const NAME: &str = "ring-is-pure";
pub const DOC: &str = "Nodes whose views of a service have the same digest send every key to the same owner; and the ring that a \
node reached by many small changes is the one made anew from its members (REQUIREMENTS R2, case C22).";

#[derive(Default)]
pub struct Check {
    /// Rings that were made anew and found the same; looked up, never iterated. Most hosts share theirs.
    compared: FxHashMap<*const Ring, Weak<Ring>>,
}

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sample(&mut self, world: &World, found: &mut Findings) {
        let mut owners: BTreeMap<u64, (u32, Vec<Option<String>>)> = BTreeMap::new();
        let keys: Vec<u64> = (0..KEYS).map(|key| key_hash(format!("user-{key}").as_bytes())).collect();
        let second = world.now / crate::queue::SECOND;
        for host in world.hosts.iter().filter(|host| host.is_up()) {
            // A few each second, so that a large mesh does not pay for all of them every time.
            if !(u64::from(host.index) + second).is_multiple_of(EVERY) {
                continue;
            }
            for service in host.snapshot.services() {
                let mut ours = Vec::new();
                // Whether an empty lane is still known is no part of the digest.
                for lane in service.lanes.iter().filter(|lane| !lane.members.is_empty()) {
                    for key in &keys {
                        // Of the lane's ring: who is near or pinned comes before it, and near is another one in each place.
                        let owner = lane.ring.owner(*key).map(|slot| lane.members[usize::from(slot)]);
                        ours.push(owner.map(|at| service.instances[usize::from(at)].record.id.to_string()));
                    }
                }
                let key = service.digest ^ env_hash(host.locality.env.as_str());
                match owners.get(&key) {
                    Some((other, theirs)) if *theirs != ours => {
                        let other = &world.hosts[*other as usize].id;
                        found.add(
                            NAME,
                            format!(
                                "{} and {other} hold the same candidates of {} and send keys elsewhere",
                                host.id, service.name
                            ),
                        );
                    }
                    Some(_) => {}
                    None => {
                        owners.insert(key, (host.index, ours));
                        self.made_anew(host, service, &keys, found);
                    }
                }
            }
        }
    }
}

impl Check {
    fn made_anew(&mut self, host: &Host, service: &ServiceView, keys: &[u64], found: &mut Findings) {
        for lane in &service.lanes {
            // While a weak reference is kept, no other ring can be where this one is or was.
            let compared = self.compared.insert(Arc::as_ptr(&lane.ring), Arc::downgrade(&lane.ring));
            if compared.is_some() {
                continue;
            }
            let Ok(anew) = Ring::new(lane.ring.members().to_vec()) else { continue };
            if keys.iter().any(|key| anew.owner(*key) != lane.ring.owner(*key)) {
                found.add(
                    NAME,
                    format!("{}: the ring of {} {} depends on how it came about", host.id, service.name, lane.name),
                );
            }
        }
    }
}

fn env_hash(env: &str) -> u64 {
    key_hash(env.as_bytes())
}

const KEYS: u32 = 16;
const EVERY: u64 = 7;
