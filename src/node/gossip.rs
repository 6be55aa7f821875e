//! What waits to be spread: by priority, then fewest sent, then smallest.
//!
//! Invariant: one item per thing said; a newer statement of the same thing replaces the older one and starts again.

use std::{collections::BTreeSet, ops::Bound};

use rustc_hash::FxHashMap;

use crate::{
    types::{NodeId, Planted},
    wire::{Body, Envelope, Frame, Kind, MAX_DATAGRAM, Statement},
};

/// Sends of one item per node, at every mesh size: enough that under 30 % loss holes are rare (notes: 6 leave some).
const SENDS: u8 = 16;
/// Sends of an item that needs a datagram or stream of its own; anti-entropy does the rest.
const SENDS_LARGE: u8 = 4;
/// So many peers in a row hold the same: everybody does.
const AGREED: u32 = 16;
/// Sends of a signal: it is old after some seconds, and the next one says it anew.
const SENDS_SIGNAL: u8 = 6;
/// Room an envelope has for frames.
const ROOM: usize = MAX_DATAGRAM - 16;

/// More than so many datagrams to one peer at once go on streams: a burst overruns buffers.
const FEW_DATAGRAMS: usize = 4;
/// Room of an envelope on a stream.
const ROOM_ON_STREAM: usize = 32 << 10;

/// No statement is smaller.
const SMALLEST: usize = 90;

/// What an item is about; the same key means the same thing said anew.
type Key = (u8, NodeId, String);
/// Order of sending: priority, sends so far, size, arrival.
type Rank = (u8, u8, usize, u64);

/// One thing that is to be said.
#[derive(Debug)]
struct Item {
    key: Key,
    rank: Rank,
    statement: Statement,
}

/// The queue of one node. An item is named by its arrival, so that sending it moves a few numbers and nothing else.
#[derive(Debug, Default)]
pub(super) struct Queue {
    ranked: BTreeSet<Rank>,
    items: FxHashMap<u64, Item>,
    arrival_of: FxHashMap<Key, u64>,
    /// Those that accuse somebody.
    accusations: BTreeSet<u64>,
    arrivals: u64,
    /// So many have said since the last arrival that they hold what this node holds, and who said so last.
    agreed: (u32, Option<NodeId>),
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
        if let Some(arrival) = self.arrival_of.get(&key).copied() {
            if self.items.get(&arrival).is_some_and(|held| held.statement == statement) {
                return;
            }
            self.remove(arrival);
        }
        if let Body::Alive(alive) = body {
            self.drop_refuted(&alive.node);
        }
        self.arrivals += 1;
        self.agreed = (0, None);
        let rank = (priority(body.kind()), 0, statement.size(), self.arrivals);
        if body.kind() == Kind::Accusation {
            self.accusations.insert(self.arrivals);
        }
        self.arrival_of.insert(key.clone(), self.arrivals);
        self.ranked.insert(rank);
        self.items.insert(self.arrivals, Item { key, rank, statement });
    }

    /// A peer's digest is this node's own. When that was so with many since anything came, who lacks something is rare, and a
    /// digest that differs will find it sooner than what is sent to everybody: rumours that all know are let go (Demers et al.,
    /// "Epidemic algorithms for replicated database maintenance", 1987). Accusations and goodbyes, of which no digest tells,
    /// stay.
    pub fn peer_agrees(&mut self, peer: &NodeId) {
        if self.is_empty() || self.agreed.1.as_ref() == Some(peer) || Planted::GossipWithoutEnd.is_on() {
            return;
        }
        self.agreed = (self.agreed.0 + 1, Some(peer.clone()));
        if self.agreed.0 >= AGREED {
            let settled = |kind: u8| kind != Kind::Accusation as u8 && kind != Kind::Left as u8;
            let waiting = self.ranked.iter().map(|(_, _, _, arrival)| *arrival);
            let known: Vec<u64> =
                waiting.filter(|arrival| self.items.get(arrival).is_some_and(|item| settled(item.key.0))).collect();
            for arrival in known {
                self.remove(arrival);
            }
        }
    }

    /// Takes what fits into the room that `used` bytes leave, and counts it as sent once more.
    pub fn fill(&mut self, used: usize) -> Vec<Frame> {
        let mut room = ROOM.saturating_sub(used);
        let mut picked: Vec<Rank> = Vec::new();
        let mut next = self.ranked.first();
        while let Some(rank) = next {
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
        let (priority, sends, size, arrival) = rank;
        let kind = self.items.get(&arrival)?.statement.kind;
        let limit = match kind {
            _ if size > ROOM => SENDS_LARGE,
            kind if kind == Kind::Signal as u8 => SENDS_SIGNAL,
            _ => SENDS,
        };
        if sends + 1 >= limit && !Planted::GossipWithoutEnd.is_on() {
            return self.remove(arrival).map(|item| Frame::Statement(item.statement));
        }
        let item = self.items.get_mut(&arrival)?;
        item.rank = (priority, sends.saturating_add(1), size, arrival);
        self.ranked.remove(&rank);
        self.ranked.insert(item.rank);
        Some(Frame::Statement(item.statement.clone()))
    }

    fn remove(&mut self, arrival: u64) -> Option<Item> {
        let item = self.items.remove(&arrival)?;
        self.ranked.remove(&item.rank);
        self.arrival_of.remove(&item.key);
        self.accusations.remove(&arrival);
        Some(item)
    }

    /// Accusations of a node that has just refuted have nothing more to say.
    pub fn drop_refuted(&mut self, node: &NodeId) {
        let about = |arrival: &u64| self.items.get(arrival).is_some_and(|item| item.key.2 == node.as_str());
        let refuted: Vec<u64> = self.accusations.iter().copied().filter(about).collect();
        for arrival in refuted {
            self.remove(arrival);
        }
    }
}

/// Bytes of some frames in an envelope.
pub(super) fn size_of(frames: &[Frame]) -> usize {
    frames.iter().map(Envelope::frame_size).sum()
}

/// Packs statements into envelopes of at most a datagram each, or of a few dozen kilobytes (for streams) where those would be
/// many. One that is larger goes alone.
pub(super) fn pack(statements: Vec<Statement>, digest: u64) -> Vec<Envelope> {
    let total: usize = statements.iter().map(|statement| statement.size() + 4).sum();
    let most = if total > FEW_DATAGRAMS * ROOM { ROOM_ON_STREAM } else { ROOM };
    let mut packed: Vec<Envelope> = Vec::new();
    let mut room = 0;
    for statement in statements {
        let size = statement.size() + 4;
        if size > room {
            packed.push(Envelope { digest, frames: Vec::new() });
            room = most;
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
    fn what_many_peers_in_a_row_hold_is_let_go_but_not_a_goodbye() {
        let mut queue = Queue::default();
        let goodbye = Body::Left(Left { node: node("b"), generation: 1 });
        queue.push(statement(&alive("a", 1), 0), &alive("a", 1));
        queue.push(statement(&goodbye, 0), &goodbye);
        for peer in 0..AGREED {
            assert_eq!(queue.len(), 2, "after {peer} peers");
            queue.peer_agrees(&node(&format!("p{peer}")));
        }
        assert_eq!(queue.len(), 1);
        queue.push(statement(&alive("a", 2), 0), &alive("a", 2));
        (0..100).for_each(|_| queue.peer_agrees(&node("p1")));
        assert_eq!(queue.len(), 2, "one peer that says so again and again is one");
    }

    #[test]
    fn few_statements_go_in_datagrams_and_many_on_streams() {
        let bodies: Vec<Body> = (0..200).map(|at| alive(&format!("n{at}"), 1)).collect();
        let statements: Vec<Statement> = bodies.iter().map(|body| statement(body, 0)).collect();
        let few = pack(statements[..12].to_vec(), 1);
        assert!(few.len() > 1 && few.iter().all(|envelope| envelope.encode().len() <= MAX_DATAGRAM));
        let many = pack(statements, 1);
        assert_eq!(many.len(), 1);
        assert_eq!(many[0].frames.len(), 200);
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
