//! What waits to be spread: by priority, then fewest sent, then smallest.
//!
//! Invariant: one item per thing said; a newer statement of the same thing replaces the older one and starts again.

use std::{collections::BTreeMap, ops::Bound};

use crate::{
    types::{NodeId, Planted},
    wire::{Body, Envelope, Frame, Kind, MAX_DATAGRAM, Statement},
};

/// Sends of one item per node, at every mesh size: enough that under 30 % loss holes are rare (notes: 6 leave some).
const SENDS: u8 = 16;
/// Sends of an item that needs a datagram or stream of its own; anti-entropy does the rest.
const SENDS_LARGE: u8 = 4;
/// Sends of a signal: it is old after some seconds, and the next one says it anew.
const SENDS_SIGNAL: u8 = 6;
/// Room an envelope has for frames.
const ROOM: usize = MAX_DATAGRAM - 16;

/// No statement is smaller.
const SMALLEST: usize = 90;

/// What an item is about; the same key means the same thing said anew.
type Key = (u8, NodeId, String);
/// Order of sending: priority, sends so far, size, arrival.
type Rank = (u8, u8, usize, u64);

/// The queue of one node.
#[derive(Debug, Default)]
pub(super) struct Queue {
    ranked: BTreeMap<Rank, (Key, Statement)>,
    ranks: BTreeMap<Key, Rank>,
    arrivals: u64,
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.ranked.is_empty()
    }

    /// Items waiting.
    pub fn len(&self) -> usize {
        self.ranked.len()
    }

    /// Adds an item, in place of an older one about the same thing. `body` must be the statement's.
    pub fn push(&mut self, statement: Statement, body: &Body) {
        let key = key_of(&statement, body);
        if let Some(rank) = self.ranks.get(&key) {
            if self.ranked.get(rank).is_some_and(|(_, held)| held == &statement) {
                return;
            }
            self.remove(&key);
        }
        if let Body::Alive(alive) = body {
            self.drop_refuted(&alive.node);
        }
        self.arrivals += 1;
        let rank = (priority(body.kind()), 0, statement.size(), self.arrivals);
        self.ranks.insert(key.clone(), rank);
        self.ranked.insert(rank, (key, statement));
    }

    /// Takes what fits into the room that `used` bytes leave, and counts it as sent once more.
    pub fn fill(&mut self, used: usize) -> Vec<Frame> {
        let mut room = ROOM.saturating_sub(used);
        let mut picked: Vec<Rank> = Vec::new();
        let mut next = self.ranked.first_key_value();
        while let Some((rank, _)) = next {
            let (priority, sends, bytes, _) = *rank;
            let size = bytes + 4;
            let alone = used == 0 && picked.is_empty();
            let from = if size <= room || alone {
                picked.push(*rank);
                room = room.saturating_sub(size);
                Bound::Excluded(*rank)
            } else {
                // Those of this priority that were sent as often are no smaller.
                Bound::Excluded((priority, sends, usize::MAX, u64::MAX))
            };
            if room < SMALLEST {
                break;
            }
            next = self.ranked.range((from, Bound::Unbounded)).next();
        }
        picked.into_iter().filter_map(|rank| self.sent(rank)).collect()
    }

    fn sent(&mut self, rank: Rank) -> Option<Frame> {
        let (key, statement) = self.ranked.remove(&rank)?;
        let (priority, sends, size, arrival) = rank;
        let limit = match statement.kind {
            _ if size > ROOM => SENDS_LARGE,
            kind if kind == Kind::Signal as u8 => SENDS_SIGNAL,
            _ => SENDS,
        };
        if sends + 1 < limit || Planted::GossipWithoutEnd.is_on() {
            let rank = (priority, sends.saturating_add(1), size, arrival);
            self.ranks.insert(key.clone(), rank);
            self.ranked.insert(rank, (key, statement.clone()));
        } else {
            self.ranks.remove(&key);
        }
        Some(Frame::Statement(statement))
    }

    fn remove(&mut self, key: &Key) {
        if let Some(rank) = self.ranks.remove(key) {
            self.ranked.remove(&rank);
        }
    }

    /// Accusations of a node that has just refuted have nothing more to say.
    pub fn drop_refuted(&mut self, node: &NodeId) {
        let refuted: Vec<Key> = self
            .ranks
            .keys()
            .filter(|(kind, _, about)| *kind == Kind::Accusation as u8 && about == node.as_str())
            .cloned()
            .collect();
        refuted.iter().for_each(|key| self.remove(key));
    }
}

/// Bytes of some frames in an envelope.
pub(super) fn size_of(frames: &[Frame]) -> usize {
    frames.iter().map(Envelope::frame_size).sum()
}

/// Packs statements into envelopes of at most a datagram each; one that is larger goes alone (on a stream).
pub(super) fn pack(statements: Vec<Statement>, digest: u64) -> Vec<Envelope> {
    let mut packed: Vec<Envelope> = Vec::new();
    let mut room = 0;
    for statement in statements {
        let size = statement.size() + 4;
        if size > room {
            packed.push(Envelope { digest, frames: Vec::new() });
            room = ROOM;
        }
        room = room.saturating_sub(size);
        if let Some(envelope) = packed.last_mut() {
            envelope.frames.push(Frame::Statement(statement));
        }
    }
    packed
}

fn key_of(statement: &Statement, body: &Body) -> Key {
    let about = match body {
        Body::Member(_) | Body::Alive(_) | Body::Left(_) | Body::Signal(_) => String::new(),
        Body::Accusation(accusation) => accusation.accused.to_string(),
        Body::Instance(record) => record.id.to_string(),
        // A policy has one owner, the service, whoever wrote it.
        Body::Policy(policy) => return (statement.kind, policy_owner(), policy.service.to_string()),
    };
    (statement.kind, statement.signer.clone(), about)
}

fn policy_owner() -> NodeId {
    NodeId::new("policy").expect("a valid name")
}

/// Life and death first, then policies, then the rest.
fn priority(kind: Kind) -> u8 {
    match kind {
        Kind::Left | Kind::Alive | Kind::Accusation => 0,
        Kind::Policy | Kind::Signal => 1,
        Kind::Member | Kind::Instance => 2,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::{Alive, Left};

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn statement(body: &Body, padding: usize) -> Statement {
        let mut bytes = body.encode();
        bytes.extend(vec![0; padding]);
        let signer = node(body.speaker());
        let kind = body.kind() as u8;
        Statement { kind, signer, key: 1, signature: [0; 64], certificate: None, body: Bytes::from(bytes) }
    }

    fn alive(name: &str, incarnation: u16) -> Body {
        Body::Alive(Alive { node: node(name), generation: 1, incarnation })
    }

    #[test]
    fn an_item_is_sent_sixteen_times_and_a_newer_one_replaces_it() {
        let mut queue = Queue::default();
        queue.push(statement(&alive("a", 1), 0), &alive("a", 1));
        queue.push(statement(&alive("a", 2), 0), &alive("a", 2));
        assert_eq!(queue.len(), 1);
        let mut sends = 0;
        while !queue.is_empty() {
            sends += queue.fill(0).len();
        }
        assert_eq!(sends, 16);
    }

    #[test]
    fn the_less_often_sent_goes_first_and_a_datagram_is_never_overfilled() {
        let mut queue = Queue::default();
        for i in 0..40 {
            let body = alive(&format!("n{i}"), 1);
            queue.push(statement(&body, 0), &body);
        }
        let (first, second) = (queue.fill(0), queue.fill(0));
        assert!(size_of(&first) <= ROOM && first.len() > 4);
        assert!(first.iter().all(|frame| !second.contains(frame)), "the second datagram holds what the first did not");
    }

    #[test]
    fn an_item_that_never_fits_beside_others_goes_alone_and_ends() {
        let mut queue = Queue::default();
        let big = Body::Left(Left { node: node("big"), generation: 1 });
        queue.push(statement(&big, 5000), &big);
        assert!(queue.fill(200).is_empty(), "no room beside other frames");
        let mut sends = 0;
        while !queue.is_empty() {
            sends += queue.fill(0).len();
        }
        assert_eq!(sends, usize::from(SENDS_LARGE));
    }
}
