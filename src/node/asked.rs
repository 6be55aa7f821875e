//! Requests in flight at this sidecar's instances, as those tell who send them (REQUIREMENTS R10): each sidecar knows its own, and none
//! knows all of them.
//!
//! Told to the owner alone, over the connection that says who the teller is: not signed, not passed on, not kept. What is not told anew
//! within [`STALE`] is over. Who lies moves at most half the weight of an instance (`health::easing`), and is one of those that could
//! send it as many requests.

use std::{collections::BTreeMap, time::Duration};

use super::{Node, Now};
use crate::{
    types::{InstanceId, InstanceRecord, MemberState, Mono, NodeId},
    wire::{Frame, MAX_ASKED},
};

/// After this nothing is in flight that is not told of again; three times as long as tellers are silent.
pub const STALE: Duration = Duration::from_secs(6);

/// What others have in flight at own instances, by instance and teller.
#[derive(Debug, Default)]
pub(super) struct Asked {
    by: BTreeMap<InstanceId, BTreeMap<NodeId, (u32, Mono)>>,
}

impl Asked {
    fn note(&mut self, id: InstanceId, from: &NodeId, count: u32, now: Mono) {
        let tellers = self.by.entry(id).or_default();
        if count == 0 {
            tellers.remove(from);
        } else {
            tellers.insert(from.clone(), (count, now));
        }
    }

    fn total(&self, id: &InstanceId, now: Mono) -> u32 {
        let fresh = |(count, at): &(u32, Mono)| (now.since(*at) < STALE).then_some(*count);
        let told = self.by.get(id).into_iter().flat_map(BTreeMap::values).filter_map(fresh);
        told.fold(0, u32::saturating_add)
    }

    /// Forgets what is over.
    pub fn tidy(&mut self, now: Mono) {
        self.by.retain(|_, tellers| {
            tellers.retain(|_, (_, at)| now.since(*at) < STALE);
            !tellers.is_empty()
        });
    }
}

impl Node {
    /// Tells the owners of instances that want to know (`counted`) how many of this sidecar's requests are in flight there. To be called
    /// every two seconds while there are any, and once when there are none any more.
    pub fn tell_in_flight(&mut self, now: Now, counts: Vec<(NodeId, InstanceId, u32)>) {
        let mut by_owner: BTreeMap<NodeId, Vec<(InstanceId, u32)>> = BTreeMap::new();
        for (owner, id, count) in counts {
            by_owner.entry(owner).or_default().push((id, count));
        }
        for (owner, counts) in by_owner {
            if owner == self.config.node {
                self.asked_heard(now, &owner, counts);
                continue;
            }
            if self.membership.state(&owner) != Some(MemberState::Alive) {
                continue;
            }
            for part in counts.chunks(MAX_ASKED) {
                self.send_frames(&owner, vec![Frame::Asked(part.to_vec())]);
            }
        }
        self.settle(now);
    }

    /// A member tells; of instances that are not this sidecar's nothing is noted.
    pub(super) fn asked_heard(&mut self, now: Now, from: &NodeId, counts: Vec<(InstanceId, u32)>) {
        for (id, count) in counts.into_iter().take(MAX_ASKED) {
            if self.own_instances().any(|record| record.id == id) {
                self.asked.note(id, from, count, now.mono);
            }
        }
    }

    /// Requests in flight at an own instance, as far as their senders have told.
    pub fn in_flight(&self, id: &InstanceId, now: Mono) -> u32 {
        self.asked.total(id, now)
    }

    /// An instance can have `most` requests in flight: its load is told by how many it has. From the first call on the mesh is asked to
    /// tell. Unknown ids are ignored.
    pub fn set_load_by_in_flight(&mut self, now: Now, id: &InstanceId, most: u32) {
        let Some(record) = self.own_instances().find(|record| record.id == *id).cloned() else { return };
        if !record.counted
            && let Err(error) = self.put(now, InstanceRecord { counted: true, ..record })
        {
            return self.event(super::Event::Report(format!("`{id}` does not ask for requests in flight: {error}")));
        }
        let load = f64::from(self.in_flight(id, now.mono)) / f64::from(most.max(1));
        self.set_load(now, id, Some(load));
    }
}
