//! Joining: seeds are asked what they know of this node's name before it says anything, and tried for as long as it lives.
//!
//! A generation is one more than the highest that disk or mesh remember; no clock. It is on disk before anybody hears of it:
//! two lives that share one could not be told apart. The write runs beside the questions to the seeds, so that a start waits
//! for the slower of both only. Two live processes with one name: the
//! newcomer finds the other one answering at its address, and ends; neither flaps.

use std::{net::SocketAddr, time::Duration};

use rand::RngExt;

use super::{DialError, Event, Node, Now, Output, Phase, Spread, sync::Purpose};
use crate::{
    types::{MemberState, Mono, NodeId, Planted},
    wire::{EntryKey, Namesake, SyncRequest},
};

/// First pause between tries of a seed; doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause between tries of a seed that does not answer.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Names the UDP probes of seeds; the membership's own tokens count up from a random start far below.
pub(super) const CONTROL: u64 = u64::MAX;
/// Between questions to the seeds for a sign that this node's network works.
const CONTROL_EVERY: Duration = Duration::from_millis(250);
/// How long a generation waits to be written.
const WRITE_WAIT: Duration = Duration::from_secs(1);

/// One address that a configured seed resolves to.
#[derive(Debug, Clone, Default)]
pub(super) struct Seed {
    next: Mono,
    pause: Duration,
    in_flight: bool,
    /// Who was found there last.
    node: Option<NodeId>,
    /// It turned out to be this node itself.
    own: bool,
    /// What came of the last try.
    last: Option<Result<NodeId, String>>,
}

/// What is known of an address that a seed resolves to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeedState {
    /// The address.
    pub addr: SocketAddr,
    /// It is this node's own.
    pub own: bool,
    /// Who answered the last time that it was asked, or why nobody did; `None` while nothing has come back. An active member's
    /// address is not asked again.
    pub last: Option<Result<NodeId, String>>,
}

/// Which generations are safely on disk.
#[derive(Debug)]
pub(super) struct Written {
    generation: u64,
    /// To be taken as soon as it is written.
    wanted: Option<u64>,
    /// A disk that hangs is waited for until then.
    until: Option<Mono>,
}

impl Written {
    /// `generation` is that of an earlier run; the next one is being written.
    pub fn new(generation: u64, now: Mono) -> Self {
        Self { generation, wanted: None, until: Some(now + WRITE_WAIT) }
    }

    pub fn wanted(&self) -> Option<u64> {
        self.wanted
    }

    pub fn due(&self) -> Option<Mono> {
        self.until
    }
}

impl Node {
    /// Whether the present generation is on disk, and no higher one is about to replace it.
    pub(super) fn may_use_generation(&self) -> bool {
        self.written.wanted.is_none() && self.written.generation >= self.generation
    }

    /// A generation is on disk: what waited for it goes on.
    pub(super) fn persisted(&mut self, now: Now, generation: u64) {
        self.written.generation = self.written.generation.max(generation);
        if let Some(wanted) = self.written.wanted.filter(|wanted| *wanted <= self.written.generation) {
            self.written.wanted = None;
            self.take_generation(now, wanted);
        }
        if self.may_use_generation() {
            self.written.until = None;
            self.answer_early_requests(now);
            self.drive_join(now);
        }
    }

    /// A disk that hangs must not keep a node out of its mesh.
    pub(super) fn written_anyway(&mut self, now: Now) {
        if self.written.until.is_some_and(|until| now.mono >= until) {
            let text = "the data directory takes long to write: going on, but a restart may be taken for this run";
            self.event(Event::Report(text.to_owned()));
            self.persisted(now, self.written.wanted.unwrap_or(self.generation));
        }
    }

    pub(super) fn set_seeds(&mut self, now: Now, addrs: Vec<SocketAddr>) {
        self.seeds_told = true;
        self.seeds.retain(|addr, _| addrs.contains(addr));
        for addr in addrs {
            let own = addr == self.config.addr;
            self.seeds.entry(addr).or_insert(Seed { next: now.mono, pause: FIRST_PAUSE, own, ..Seed::default() });
        }
        self.drive_join(now);
    }

    /// It was told of no seed but itself: the first of its mesh, with nobody to ask.
    pub(super) fn alone_by_plan(&self) -> bool {
        self.seeds_told && self.seeds.values().all(|seed| seed.own)
    }

    /// When a seed is to be tried next.
    pub(super) fn seed_due(&self) -> Option<Mono> {
        if matches!(self.phase, Phase::Left | Phase::Refused) {
            return None;
        }
        self.seeds.values().filter(|seed| !seed.own && !seed.in_flight).map(|seed| seed.next).min()
    }

    /// Tries the seeds that are due and not active members; ends the joining phase when it has lasted long enough. While
    /// joining, every seed is asked: that it is an active member is then only what the disk says.
    pub(super) fn drive_join(&mut self, now: Now) {
        if self.seed_due().is_some_and(|due| now.mono >= due) {
            let due: Vec<SocketAddr> = self
                .seeds
                .iter()
                .filter(|(_, seed)| !seed.own && !seed.in_flight && now.mono >= seed.next)
                .map(|(addr, _)| *addr)
                .collect();
            for addr in due {
                if self.phase != Phase::Joining && self.is_active_at(addr) {
                    self.postpone(now, addr);
                } else {
                    self.try_seed(now, addr);
                }
            }
        }
        if self.phase != Phase::Joining {
            return;
        }
        let waited = now.mono >= self.join_until || self.alone_by_plan();
        if waited && self.challenges.is_empty() && self.may_use_generation() {
            self.take_part(now);
        }
    }

    /// With nobody else in the mesh to show that this node's own network works, the seeds that are no members are asked: one
    /// that answers, or whose port refuses, is the control without which nobody may be accused.
    pub(super) fn ask_seeds_for_control(&mut self, now: Now) {
        if !self.membership.wants_control() || now.mono < self.control_at {
            return;
        }
        self.control_at = now.mono + CONTROL_EVERY;
        let there = self.catalog.members().filter(|(node, _)| !self.membership.has_gone(node));
        let members: Vec<SocketAddr> = there.map(|(_, entry)| entry.member.addr).collect();
        let outside: Vec<(SocketAddr, bool)> = self
            .seeds
            .iter()
            .filter(|(addr, seed)| !seed.own && !members.contains(addr))
            .map(|(addr, seed)| (*addr, seed.in_flight))
            .collect();
        for (addr, in_flight) in outside {
            self.outputs.push_back(Output::UdpProbe { token: CONTROL, addr });
            if !in_flight {
                self.try_seed(now, addr);
            }
        }
    }

    /// What is known of the seeds' addresses, in their order.
    pub fn seeds(&self) -> impl Iterator<Item = SeedState> + '_ {
        let state =
            |(addr, seed): (&SocketAddr, &Seed)| SeedState { addr: *addr, own: seed.own, last: seed.last.clone() };
        self.seeds.iter().map(state)
    }

    /// Whether a seed is an active member. Whoever was found there last is asked after first: the rest of the mesh is many.
    fn is_active_at(&mut self, addr: SocketAddr) -> bool {
        let lives = |node: &NodeId| self.membership.state(node) == Some(MemberState::Alive);
        let is_there = |node: &NodeId| self.catalog.member(node).is_some_and(|entry| entry.member.addr == addr);
        let Some(seed) = self.seeds.get_mut(&addr) else { return false };
        if seed.node.as_ref().is_some_and(|node| is_there(node) && lives(node)) {
            return true;
        }
        let mut there = self.catalog.members().filter(|(_, entry)| entry.member.addr == addr);
        seed.node = there.find(|(node, _)| lives(node)).map(|(node, _)| node.clone());
        seed.node.is_some()
    }

    fn postpone(&mut self, now: Now, addr: SocketAddr) {
        let jitter = self.rng.random_range(0.8..1.2);
        if let Some(seed) = self.seeds.get_mut(&addr) {
            (seed.next, seed.pause) = (now.mono + LONGEST_PAUSE.mul_f64(jitter), FIRST_PAUSE);
        }
    }

    fn try_seed(&mut self, now: Now, addr: SocketAddr) {
        let token = self.syncs.begin(now.mono, Purpose::Seed(addr));
        let request = self.sync_request_bytes();
        if let Some(seed) = self.seeds.get_mut(&addr) {
            seed.in_flight = true;
        }
        self.counters.syncs_opened += 1;
        self.outputs.push_back(Output::OpenSync { token, node: None, addr, request });
    }

    /// What a sync of ours says.
    pub(super) fn sync_request_bytes(&self) -> bytes::Bytes {
        self.request_bytes(self.catalog.summary())
    }

    /// The same with another summary. While joining it does not introduce: the generation is not settled yet.
    pub(super) fn request_bytes(&self, summary: Vec<(EntryKey, u64)>) -> bytes::Bytes {
        let hello = if self.phase == Phase::Joining { Vec::new() } else { self.catalog.hello(&self.config.node) };
        SyncRequest { version: 1, hello, summary }.encode().into()
    }

    /// A seed answered (`Ok`) or did not.
    pub(super) fn seed_answered(&mut self, now: Now, addr: SocketAddr, outcome: Result<&NodeId, &DialError>) {
        let jitter = self.rng.random_range(0.8..1.2);
        let Some(seed) = self.seeds.get_mut(&addr) else { return };
        seed.in_flight = false;
        seed.last = Some(outcome.cloned().map_err(DialError::to_string));
        match outcome {
            Ok(_) => {
                seed.next = now.mono + LONGEST_PAUSE;
                self.membership.control(now.mono);
            }
            Err(DialError::Itself) => seed.own = true,
            Err(DialError::OwnName) if self.phase == Phase::Joining => {
                // The one that was here first keeps the name.
                self.phase = Phase::Refused;
                self.event(Event::NameTaken { addr });
                return;
            }
            Err(DialError::OwnName | DialError::Other(_)) => {
                let pause = if Planted::SeedsOnce.is_on() { super::FORGET_AFTER } else { seed.pause };
                seed.next = now.mono + pause.mul_f64(jitter);
                seed.pause = (seed.pause * 2).min(LONGEST_PAUSE);
            }
        }
        if outcome.is_ok() && self.phase == Phase::Joining {
            self.join_until = now.mono;
            self.drive_join(now);
        }
    }

    /// From here on the node is a member: it introduces itself.
    pub(super) fn take_part(&mut self, now: Now) {
        self.phase = Phase::Member;
        // Nobody was probed in earnest so far; what seemed silent then says nothing.
        self.membership.set_generation(now.mono, self.generation);
        let me = self.config.node.clone();
        for statement in self.catalog.hello(&me) {
            if let Ok(body) = crate::wire::Body::decode(&statement) {
                self.spread(statement, &body, Spread::Eager, None);
            }
        }
        let (peers, generation) = (self.membership.active_count(), self.generation);
        self.event(Event::Joined { peers, generation });
        self.touch(now);
    }

    /// The mesh knows this name in another run. An earlier one of this node (same address, or silent) is outdone by a higher
    /// generation; one that answers elsewhere keeps the name.
    pub(super) fn namesake(&mut self, now: Now, namesake: Namesake) {
        if namesake.nonce == self.nonce || namesake.generation < self.generation || self.phase == Phase::Refused {
            return;
        }
        if Planted::GenerationNotRaised.is_on() {
            return;
        }
        if namesake.addr == self.config.addr {
            return self.outdo(now, namesake.generation);
        }
        if self.challenges.values().any(|open| open.nonce == namesake.nonce) {
            return;
        }
        let addr = namesake.addr;
        let token = self.syncs.begin(now.mono, Purpose::Challenge);
        self.challenges.insert(token, namesake);
        let request = self.sync_request_bytes();
        self.outputs.push_back(Output::OpenSync { token, node: None, addr, request });
    }

    /// A challenged namesake answered or did not.
    pub(super) fn challenged(&mut self, now: Now, token: u64, outcome: Result<&NodeId, &DialError>) {
        let Some(namesake) = self.challenges.remove(&token) else { return };
        match outcome {
            Err(DialError::OwnName) => {
                let addr = namesake.addr;
                // Two that met only after a partition are both members: the higher run keeps the name, the other ends.
                let theirs = (namesake.generation, namesake.nonce) > (self.generation, self.nonce);
                if self.phase == Phase::Joining || theirs {
                    self.phase = Phase::Refused;
                    self.event(Event::NameTaken { addr });
                } else {
                    self.event(Event::NameClaimed { addr });
                }
            }
            // Nobody, or somebody else, lives there now.
            Ok(_) | Err(DialError::Itself | DialError::Other(_)) => {
                self.outdo(now, namesake.generation);
                self.drive_join(now);
            }
        }
    }

    /// Takes a generation above `generation`, as soon as it is on disk, and says everything anew.
    pub(super) fn outdo(&mut self, now: Now, generation: u64) {
        self.spoken_since = None;
        let next = generation.saturating_add(1).max(self.written.wanted.unwrap_or(0));
        if next <= self.written.generation {
            return self.take_generation(now, next);
        }
        if self.written.wanted != Some(next) {
            self.written.wanted = Some(next);
            self.written.until = Some(now.mono + WRITE_WAIT);
            self.persist_at = Some(now.mono);
        }
    }

    fn take_generation(&mut self, now: Now, generation: u64) {
        self.generation = generation;
        self.membership.set_generation(now.mono, self.generation);
        self.introduce(now);
        self.restate(now);
        self.touch(now);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        node::{Input, MembershipConfig, NodeConfig, Stored},
        types::{FakeTrust, Wall},
    };

    fn node() -> Node {
        let name = NodeId::new("n1").unwrap();
        let config = NodeConfig {
            node: name.clone(),
            addr: "127.0.0.1:7000".parse().unwrap(),
            program: "test".into(),
            membership: MembershipConfig::lan(),
            coalesce: Duration::ZERO,
            seed: 1,
        };
        Node::new(config, Arc::new(FakeTrust::new(&name)), Stored::default(), at(0)).unwrap()
    }

    fn at(millis: u64) -> Now {
        Now { mono: Mono::from_millis(millis), wall: Wall(1_000_000 + millis) }
    }

    /// Seeds are resolved while the node already runs. It would otherwise speak under a generation that the mesh knows from
    /// an earlier run, or in the name of another live process.
    #[test]
    fn it_does_not_take_part_before_it_was_told_its_seeds() {
        let mut first = node();
        first.handle_timeout(at(1));
        first.handle(at(1), Input::Persisted { generation: 1 });
        assert!(!first.is_member() && !first.met_mesh());
        first.handle(at(2), Input::Seeds(vec!["127.0.0.1:7000".parse().unwrap()]));
        assert!(first.is_member() && first.met_mesh(), "only itself: nobody to ask");

        let mut later = node();
        later.handle_timeout(at(1));
        later.handle(at(1), Input::Persisted { generation: 1 });
        later.handle(at(2), Input::Seeds(vec!["127.0.0.1:7001".parse().unwrap()]));
        assert!(!later.is_member() && !later.met_mesh(), "a seed is asked first");
    }

    /// A life that was killed before its generation was written would share it with the next one.
    #[test]
    fn a_generation_is_not_used_before_it_is_on_disk() {
        let mut node = node();
        node.handle_timeout(at(1));
        node.handle(at(2), Input::Seeds(Vec::new()));
        assert!(!node.is_member(), "nobody to ask, but not written yet");
        node.handle(at(8), Input::Persisted { generation: 1 });
        assert!(node.is_member());

        // The mesh knows a higher one of an earlier run: the node goes on in its own until the next is written.
        node.outdo(at(10), 5);
        node.handle_timeout(at(10));
        assert_eq!(node.generation(), 1);
        let asked =
            std::iter::from_fn(|| node.poll_output()).any(|o| matches!(o, Output::Persist { generation: 6, .. }));
        assert!(asked);
        node.handle(at(14), Input::Persisted { generation: 6 });
        assert_eq!((node.generation(), node.is_member()), (6, true));
    }

    #[test]
    fn a_disk_that_hangs_keeps_nobody_out_for_longer_than_a_second() {
        let mut node = node();
        node.handle_timeout(at(1));
        node.handle(at(2), Input::Seeds(Vec::new()));
        assert_eq!(node.poll_timeout().map(|due| due <= Mono::from_millis(1_000)), Some(true));
        node.handle_timeout(at(999));
        assert!(!node.is_member());
        node.handle_timeout(at(1_000));
        assert!(node.is_member());
    }
}
