//! Anti-entropy: with the first peer at join, on a digest mismatch that lasts, after a partition, and now and then anyway: then
//! digests are compared first, since a summary is 20 bytes for every entry and nearly always the same.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use bytes::Bytes;
use rand::RngExt;

use super::{DialError, Node, Now, Output, Phase};
use crate::{
    types::{Mono, NodeId, Planted},
    wire::{Namesake, SyncReply, SyncRequest, WHOLE},
};

/// A digest mismatch must last this long: what is under way by gossip arrives sooner.
const MISMATCH_LASTS: Duration = Duration::from_millis(1000);
/// At most one sync in this time because of mismatches.
const BETWEEN: Duration = Duration::from_millis(1000);
/// How long it must last, and how much must lie between two such syncs, while a split ends: many things are said at once, some of it
/// misses some, and users wait for it.
const WHILE_HEALING: Duration = Duration::from_millis(250);
/// Shortest time between syncs with a random peer when nothing seems wrong.
const IDLE_LEAST: Duration = Duration::from_secs(10);
/// Longest.
const IDLE_MOST: Duration = Duration::from_secs(15);
/// One in so many of them is with any member rather than with a contact.
const STRANGERS: u32 = 4;
/// One in so many compares summaries at once while there are members that have gone: of these no digest tells.
const WITH_THE_GONE: u32 = 4;
/// A sync without an end after this time is given up.
const GIVE_UP: Duration = Duration::from_secs(8);
/// At most one sync with the same unintroduced peer in this time.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// So many requests wait for the first write, which takes some milliseconds; further ones are answered at once.
const MOST_EARLY: usize = 1024;

/// Why a sync was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    Seed(SocketAddr),
    Challenge,
    Peer(NodeId),
    /// Asks only whether the peer holds the same.
    Glance(NodeId),
    /// Wants to know how the peer's view differs.
    Compare(NodeId),
    /// Tells a peer goodbye and waits for its answer.
    Goodbye,
}

/// Syncs in flight and when the next is due.
#[derive(Debug)]
pub(super) struct Syncs {
    open: BTreeMap<u64, (Purpose, Mono)>,
    tokens: u64,
    idle_at: Mono,
    mismatch: Option<Mono>,
    last: Option<Mono>,
    asked: BTreeMap<NodeId, Mono>,
    /// Requests that came before the generation was on disk: the reply would tell it.
    early: Vec<(u64, NodeId, SocketAddr, Bytes)>,
    pub(super) goodbyes: u32,
}

impl Syncs {
    pub fn new(now: Mono) -> Self {
        Self {
            open: BTreeMap::new(),
            tokens: 0,
            idle_at: now + IDLE_LEAST,
            mismatch: None,
            last: None,
            asked: BTreeMap::new(),
            early: Vec::new(),
            goodbyes: 0,
        }
    }

    pub fn begin(&mut self, now: Mono, purpose: Purpose) -> u64 {
        self.tokens += 1;
        self.open.insert(self.tokens, (purpose, now));
        self.tokens
    }

    /// A statement came whose signer is unknown: do not wait for the mismatch to last.
    pub fn hurry(&mut self, now: Mono) {
        let since = now - MISMATCH_LASTS;
        self.mismatch = Some(self.mismatch.map_or(since, |at| at.min(since)));
    }

    pub fn due(&self) -> Mono {
        let oldest = self.open.values().map(|(_, at)| *at + GIVE_UP).min();
        oldest.map_or(self.idle_at, |at| at.min(self.idle_at))
    }

    fn with(&self, node: &NodeId) -> bool {
        let is_with =
            |purpose: &Purpose| matches!(purpose, Purpose::Peer(peer) | Purpose::Glance(peer) if peer == node);
        self.open.values().any(|(purpose, _)| is_with(purpose))
    }
}

impl Node {
    /// For how long somebody's view has differed from this node's; zero while all that was heard agrees.
    pub fn differs_for(&self, now: Now) -> Duration {
        self.syncs.mismatch.map_or(Duration::ZERO, |since| now.mono.since(since))
    }

    /// Notices a lasting difference between two views, and opens a sync.
    pub(super) fn compare_digest(&mut self, now: Now, from: &NodeId, digest: u64) {
        if digest == self.digest() {
            self.syncs.mismatch = None;
            self.queue.peer_agrees(from);
            return;
        }
        let since = *self.syncs.mismatch.get_or_insert(now.mono);
        let healing = self.membership.is_healing(now.mono);
        let (lasts, between) = if healing { (WHILE_HEALING, WHILE_HEALING) } else { (MISMATCH_LASTS, BETWEEN) };
        let rested = self.syncs.last.is_none_or(|last| now.mono.since(last) >= between);
        if now.mono.since(since) >= lasts && rested {
            self.syncs.mismatch = Some(now.mono);
            self.open_sync(now, from);
        }
    }

    /// Opens a sync with a known member, unless one is under way.
    pub(super) fn open_sync(&mut self, now: Now, with: &NodeId) {
        if let Some(addr) = self.may_sync_at(with) {
            self.open_sync_at(now, with, addr);
        }
    }

    fn may_sync_at(&self, with: &NodeId) -> Option<SocketAddr> {
        if self.syncs.with(with) || self.phase != Phase::Member || Planted::NoAntiEntropy.is_on() {
            return None;
        }
        self.catalog.member(with).map(|entry| entry.member.addr)
    }

    /// Asks a known member whether it holds the same; if it does not, everything is compared.
    pub(super) fn glance_at(&mut self, now: Now, with: &NodeId) {
        let Some(addr) = self.may_sync_at(with) else { return };
        self.counters.syncs_opened += 1;
        let token = self.syncs.begin(now.mono, Purpose::Glance(with.clone()));
        let request = self.request_bytes(vec![(WHOLE, self.digest())]);
        self.outputs.push_back(Output::OpenSync { token, node: Some(with.clone()), addr, request });
    }

    fn open_sync_at(&mut self, now: Now, with: &NodeId, addr: SocketAddr) {
        self.syncs.last = Some(now.mono);
        self.counters.syncs_opened += 1;
        let token = self.syncs.begin(now.mono, Purpose::Peer(with.clone()));
        let request = self.sync_request_bytes();
        self.outputs.push_back(Output::OpenSync { token, node: Some(with.clone()), addr, request });
    }

    /// An authenticated peer that nobody has introduced: exchange everything with it.
    pub(super) fn introduce_me_to(&mut self, now: Now, peer: &NodeId, addr: SocketAddr) {
        let recently = self.syncs.asked.get(peer).is_some_and(|at| now.mono.since(*at) < ASK_AGAIN);
        if recently || self.syncs.with(peer) || self.phase != Phase::Member {
            return;
        }
        self.syncs.asked.retain(|_, at| now.mono.since(*at) < ASK_AGAIN);
        self.syncs.asked.insert(peer.clone(), now.mono);
        self.open_sync_at(now, peer, addr);
    }

    /// Opens the syncs that are due anyway, and gives up those that hang.
    pub(super) fn drive_sync(&mut self, now: Now) {
        let hung: Vec<u64> = self
            .syncs
            .open
            .iter()
            .filter(|(_, (_, at))| now.mono.since(*at) >= GIVE_UP)
            .map(|(token, _)| *token)
            .collect();
        for token in hung {
            self.sync_ended(now, token, Err(DialError::Other("no answer".into())));
        }
        if now.mono < self.syncs.idle_at {
            return;
        }
        self.syncs.idle_at = now.mono + self.rng.random_range(IDLE_LEAST..IDLE_MOST);
        // Contacts, for which there is a connection; now and then anybody, which in a large mesh costs a handshake.
        let stranger = self.membership.has_strangers() && self.rng.random_ratio(1, STRANGERS);
        let peer = if stranger { self.membership.random_stranger() } else { self.some_active(1, None).pop() };
        let Some(peer) = peer else { return };
        if self.catalog.gone().next().is_some() && self.rng.random_ratio(1, WITH_THE_GONE) {
            self.open_sync(now, &peer);
        } else {
            self.glance_at(now, &peer);
        }
    }

    /// Answers those who asked before this node could say who it is.
    pub(super) fn answer_early_requests(&mut self, now: Now) {
        for (id, from, addr, bytes) in std::mem::take(&mut self.syncs.early) {
            self.sync_request(now, id, &from, addr, bytes);
        }
    }

    /// A peer tells what it holds: take its introduction, answer with what it lacks.
    pub(super) fn sync_request(&mut self, now: Now, id: u64, from: &NodeId, addr: SocketAddr, bytes: Bytes) {
        if self.phase == Phase::Joining && !self.may_use_generation() && self.syncs.early.len() < MOST_EARLY {
            self.syncs.early.push((id, from.clone(), addr, bytes));
            return;
        }
        let Some(request) = SyncRequest::decode(&bytes) else {
            self.outputs.push_back(Output::SyncReply { id, bytes: Bytes::new() });
            return self.malformed(now, from, "unreadable sync request".into());
        };
        self.counters.syncs_answered += 1;
        if from == &self.config.node {
            // A second process with this name asks: the one that was here first keeps it.
            self.event(super::Event::NameClaimed { addr });
            self.outputs.push_back(Output::SyncReply { id, bytes: Bytes::new() });
            return;
        }
        self.statements(now, from, request.hello);
        let (mut statements, wanted) = match request.summary[..] {
            [(WHOLE, digest)] if digest == self.digest() => Default::default(),
            [(WHOLE, _)] => (Vec::new(), vec![WHOLE]),
            _ => self.catalog.difference(&request.summary),
        };
        statements.extend(self.membership.public_accusations());
        let namesake = self.catalog.member(from).map(|entry| Namesake {
            generation: entry.member.generation,
            addr: entry.member.addr,
            nonce: entry.member.nonce,
        });
        let down = self.membership.down();
        let reply = SyncReply { version: 1, statements, wanted, namesake, down, wall: now.wall.0 };
        self.outputs.push_back(Output::SyncReply { id, bytes: reply.encode().into() });
        if self.catalog.member(from).is_some() {
            self.heard(now, from);
        }
    }

    /// A sync of ours ended.
    pub(super) fn sync_ended(&mut self, now: Now, token: u64, result: Result<(NodeId, Bytes), DialError>) {
        let Some((purpose, _)) = self.syncs.open.remove(&token) else { return };
        let reply = match &result {
            Ok((from, bytes)) => match SyncReply::decode(bytes) {
                Some(reply) => Some((from.clone(), reply)),
                None => {
                    self.malformed(now, &from.clone(), "unreadable sync reply".into());
                    None
                }
            },
            Err(_) => None,
        };
        if let Purpose::Compare(peer) = &purpose {
            let unreadable = DialError::Other("its answer can't be read".to_owned());
            let answer = match (&reply, &result) {
                (Some((_, reply)), _) => Ok(reply),
                (None, Err(error)) => Err(error),
                (None, Ok(_)) => Err(&unreadable),
            };
            self.compared(peer.clone(), answer);
        }
        let differs = reply.as_ref().is_some_and(|(_, reply)| reply.wanted == [WHOLE]);
        if let Some((from, reply)) = reply {
            self.sync_reply(now, &from, reply);
        }
        let outcome = result.as_ref().map(|(from, _)| from);
        match purpose {
            Purpose::Seed(addr) => self.seed_answered(now, addr, outcome),
            Purpose::Challenge => self.challenged(now, token, outcome),
            Purpose::Goodbye => self.syncs.goodbyes += u32::from(outcome.is_ok()),
            Purpose::Glance(peer) if differs => self.open_sync(now, &peer),
            Purpose::Peer(_) | Purpose::Glance(_) | Purpose::Compare(_) => {}
        }
    }

    fn sync_reply(&mut self, now: Now, from: &NodeId, reply: SyncReply) {
        if let Some(namesake) = reply.namesake {
            self.namesake(now, namesake);
        }
        self.peer_clock(now, from, reply.wall);
        self.statements(now, from, reply.statements);
        for (node, generation, incarnation) in reply.down {
            self.membership.held_dead_by_peer(now.mono, &node, generation, incarnation, &*self.trust);
        }
        let wanted = self.catalog.statements_of(&reply.wanted);
        if !wanted.is_empty() && self.phase == Phase::Member {
            self.send_statements(from, wanted);
        }
        if self.catalog.member(from).is_some() {
            self.heard(now, from);
        }
    }
}
