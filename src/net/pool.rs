//! The book of connections: who has which, what waits for whom, and which of two stays. No IO here; `C` is a connection.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::NetFault;
use crate::types::NodeId;

/// When a connection was last heard; shared with its reader. Milliseconds since the endpoint started.
pub(super) type Heard = Arc<AtomicU64>;

/// One open connection.
pub(super) struct Link<C> {
    /// Counts up: later is newer.
    pub id: u64,
    pub conn: C,
    /// Whether this side dialled.
    pub by_us: bool,
    pub addr: SocketAddr,
    pub opened: Instant,
    pub heard: Heard,
    /// Our data may overtake the handshake's last packet until this is true.
    pub confirmed: bool,
    pub silence: Silence,
    /// Envelopes that go on a stream.
    pub outbox: VecDeque<Bytes>,
    /// Whether a task empties the outbox.
    pub flushing: bool,
}

/// Whether the peer is heard after we send.
#[derive(Debug, Clone, Copy)]
pub(super) struct Silence {
    received: u64,
    since: Instant,
    sends: u32,
}

impl Silence {
    pub(super) fn new(now: Instant) -> Self {
        Self { received: u64::MAX, since: now, sends: 0 }
    }

    /// Notes a send while `received` packets had come in; says whether the peer has been silent for `limit` since the
    /// first of at least two sends.
    pub(super) fn on_send(&mut self, received: u64, now: Instant, limit: Duration) -> bool {
        if received != self.received {
            *self = Self { received, since: now, sends: 1 };
            return false;
        }
        let silent = self.sends >= 2 && now.saturating_duration_since(self.since) > limit;
        self.sends += 1;
        silent
    }
}

/// What is known of one peer.
pub(super) struct Peer<C> {
    /// The first is used; others are on their way out.
    pub links: Vec<Link<C>>,
    /// Waits for a connection.
    pub queue: VecDeque<Bytes>,
    /// Where a dial under way should go; the latest address wins.
    pub dialing: Option<SocketAddr>,
    pub waiting: Vec<oneshot::Sender<Result<C, NetFault>>>,
    /// When a silent connection was last given a rival.
    pub raced: Option<Instant>,
}

impl<C> Default for Peer<C> {
    fn default() -> Self {
        Self { links: Vec::new(), queue: VecDeque::new(), dialing: None, waiting: Vec::new(), raced: None }
    }
}

impl<C> Peer<C> {
    /// Queues an envelope; returns how many old ones had to go.
    pub(super) fn enqueue(&mut self, bytes: Bytes, limit: usize) -> usize {
        push_bounded(&mut self.queue, bytes, limit)
    }
}

/// Appends; returns how many had to go at the front.
pub(super) fn push_bounded(queue: &mut VecDeque<Bytes>, bytes: Bytes, limit: usize) -> usize {
    queue.push_back(bytes);
    let over = queue.len().saturating_sub(limit);
    queue.drain(..over);
    over
}

/// What came of adding a connection.
pub(super) struct Added<C> {
    /// To be closed now: the pool is full, or one peer has too many.
    pub close: Vec<Link<C>>,
    /// Others wait for the outcome of a dial.
    pub waiting: Vec<oneshot::Sender<Result<C, NetFault>>>,
    /// The peer now has two; after a grace one has to go.
    pub rivals: bool,
}

/// All peers, ordered, so that everything that iterates does so the same way each time.
pub(super) struct Pool<C> {
    pub peers: BTreeMap<NodeId, Peer<C>>,
    own: NodeId,
    limit: usize,
    simultaneous: Duration,
}

impl<C: Clone> Pool<C> {
    /// At most `limit` peers have connections; two connections opened within `simultaneous` count as one double dial.
    pub(super) fn new(own: NodeId, limit: usize, simultaneous: Duration) -> Self {
        Self { peers: BTreeMap::new(), own, limit, simultaneous }
    }

    /// The peer's entry, made if need be.
    pub(super) fn peer(&mut self, node: &NodeId) -> &mut Peer<C> {
        if !self.peers.contains_key(node) {
            self.peers.insert(node.clone(), Peer::default());
        }
        self.peers.get_mut(node).expect("just made")
    }

    /// The connection in use.
    pub(super) fn front(&mut self, node: &NodeId) -> Option<&mut Link<C>> {
        self.peers.get_mut(node)?.links.first_mut()
    }

    /// One particular connection.
    pub(super) fn link(&mut self, node: &NodeId, id: u64) -> Option<&mut Link<C>> {
        self.peers.get_mut(node)?.links.iter_mut().find(|link| link.id == id)
    }

    /// Peers with an open connection.
    pub(super) fn connected(&self) -> usize {
        self.peers.values().filter(|peer| !peer.links.is_empty()).count()
    }

    /// Adds a connection. What waited for one moves to its outbox.
    pub(super) fn add(&mut self, node: &NodeId, link: Link<C>) -> Added<C> {
        let (own, simultaneous) = (self.own.clone(), self.simultaneous);
        let peer = self.peer(node);
        if link.by_us {
            peer.dialing = None;
        }
        let first = peer.links.first().is_none_or(|old| newcomer_wins(&own, node, old, &link, simultaneous));
        let at = if first { 0 } else { 1 };
        peer.links.insert(at, link);
        let waiting = std::mem::take(&mut peer.waiting);
        let queue = std::mem::take(&mut peer.queue);
        peer.links[0].outbox.extend(queue);
        let mut close: Vec<Link<C>> = peer.links.drain(PER_PEER.min(peer.links.len())..).collect();
        let rivals = peer.links.len() > 1;
        while self.connected() > self.limit {
            close.extend(self.evict(node));
        }
        Added { close, waiting, rivals }
    }

    /// Takes out the least recently heard peer other than `keep`.
    fn evict(&mut self, keep: &NodeId) -> Vec<Link<C>> {
        let heard = |peer: &Peer<C>| peer.links.iter().map(|link| link.heard.load(Relaxed)).max();
        let oldest = self
            .peers
            .iter()
            .filter(|(node, _)| *node != keep)
            .filter_map(|(node, peer)| Some((heard(peer)?, node)))
            .min()
            .map(|(_, node)| node.clone());
        let Some(peer) = oldest.and_then(|node| self.peers.get_mut(&node)) else { return Vec::new() };
        std::mem::take(&mut peer.links)
    }

    /// Takes out one connection.
    pub(super) fn remove(&mut self, node: &NodeId, id: u64) -> Option<Link<C>> {
        let peer = self.peers.get_mut(node)?;
        let at = peer.links.iter().position(|link| link.id == id);
        let link = at.map(|at| peer.links.remove(at));
        self.tidy(node);
        link
    }

    /// Forgets a peer of whom nothing is left.
    pub(super) fn tidy(&mut self, node: &NodeId) {
        let empty =
            |p: &Peer<C>| p.links.is_empty() && p.dialing.is_none() && p.queue.is_empty() && p.waiting.is_empty();
        if self.peers.get(node).is_some_and(empty) {
            self.peers.remove(node);
        }
    }
}

/// Which of two connections to one peer is used. Both ends must come to the same answer.
///
/// A side dials only when it has no connection (or one that is silent), so a later connection means that the earlier one
/// is lost at the other end: the later wins. Only where both ends dialled at about the same time does the name decide: the
/// one opened by the smaller node id stays.
fn newcomer_wins<C>(own: &NodeId, peer: &NodeId, old: &Link<C>, new: &Link<C>, simultaneous: Duration) -> bool {
    let both_dialled = old.by_us != new.by_us && new.opened.saturating_duration_since(old.opened) < simultaneous;
    !both_dialled || new.by_us == (own < peer)
}

/// The connection in use, its rival, and one more that arrives before they are settled.
const PER_PEER: usize = 3;
