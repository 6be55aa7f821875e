//! The ring is a pure function of the view.

use std::collections::BTreeMap;

use lanemesh::routing::{Ring, key_hash};

use super::{Findings, Invariant};
use crate::world::World;

pub const NAME: &str = "ring-is-pure";
pub const DOC: &str = "Nodes whose views of a service have the same digest send every key to the same owner; and the ring that a \
node reached by many small changes is the one made anew from its members (REQUIREMENTS R2, case C22).";

pub struct Check;

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
                        let owner = lane.order(*key).next();
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
                        made_anew(host, service, &keys, found);
                    }
                }
            }
        }
    }
}

fn made_anew(host: &crate::host::Host, service: &lanemesh::routing::ServiceView, keys: &[u64], found: &mut Findings) {
    for lane in &service.lanes {
        let Ok(anew) = Ring::new(lane.ring.members().to_vec()) else { continue };
        if keys.iter().any(|key| anew.owner(*key) != lane.ring.owner(*key)) {
            found.add(
                NAME,
                format!("{}: the ring of {} {} depends on how it came about", host.id, service.name, lane.name),
            );
        }
    }
}

fn env_hash(env: &str) -> u64 {
    key_hash(env.as_bytes())
}

const KEYS: u32 = 16;
const EVERY: u64 = 7;
