//! Floor 3: the sidecar's brain, sans-io. Inputs go in with the time, outputs are polled out; the agent's loop and the
//! simulator drive the same code.
//!
//! [`Node`] joins (`join`), exchanges what peers lack (`sync`), spreads what is new (`gossip`), says what this sidecar
//! announces (`local`), passes on what sidecars see fail (`signals`), publishes the candidate table (`view`) and writes down
//! what must survive (`stored`). Who is alive is `membership`'s to say. Bad bytes from a peer are an event, never an error.
//!
//! Not here: sockets, files, names to resolve, and any decision about a request.

mod asked;
mod clocks;
mod compare;
mod complaints;
mod gossip;
mod ingress;
mod io;
mod join;
mod local;
mod membership;
mod seasoned;
mod signals;
mod stored;
mod sync;
mod view;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use crate::{
    catalog::Catalog,
    types::{Drain, InstanceId, InstanceRecord, MemberState, Mono, NodeId, Planted, Trust},
    wire::{Body, Envelope, Frame, KeyId, Kind, Statement, key_id},
};

pub use compare::{Difference, PeerView};
pub use io::{Counters, DialError, Event, Input, NodeConfig, Now, Output};
pub use join::SeedState;
pub use local::{InstanceChange, InstanceSpec, OrderError, SHUTDOWN};
pub use membership::{
    Accuser, Action, FORGET_AFTER, Membership, MembershipConfig, Removal, Story, StoryEvent, Tallies,
};
pub use seasoned::Seasoned;
pub use stored::{Stored, StoredFault};

/// One sidecar, without its sockets.
pub struct Node {
    config: NodeConfig,
    trust: Arc<dyn Trust>,
    key: KeyId,
    generation: u64,
    written: join::Written,
    revision: u32,
    nonce: u64,
    phase: Phase,
    catalog: Catalog,
    membership: Membership,
    queue: gossip::Queue,
    /// News that is to be passed on, all of it together.
    fresh: Vec<Statement>,
    /// When news was passed on last, and when the rest is.
    passed_at: Option<Mono>,
    pass_at: Option<Mono>,
    view: view::View,
    local: local::Local,
    seeds: BTreeMap<SocketAddr, join::Seed>,
    /// Whether it was told its seeds; before that an empty list says nothing.
    seeds_told: bool,
    challenges: BTreeMap<u64, crate::wire::Namesake>,
    syncs: sync::Syncs,
    forgotten: BTreeMap<NodeId, (u64, Mono)>,
    rng: Pcg64,
    outputs: VecDeque<Output>,
    spoken_since: Option<Mono>,
    gossip_at: Option<Mono>,
    join_until: Mono,
    control_at: Mono,
    tidy_at: Mono,
    persist_at: Option<Mono>,
    persisted_at: Option<Mono>,
    counters: Counters,
    clocks: clocks::Clocks,
    complaints: complaints::Complaints,
    signals: signals::Heard,
    asked: asked::Asked,
}

/// Where the node is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Asking seeds what they know of its name, before it says anything.
    Joining,
    Member,
    Left,
    /// Another live process has its name.
    Refused,
}

impl Node {
    /// Starts with what an earlier run wrote down. Call [`Node::handle_timeout`] next.
    pub fn new(
        config: NodeConfig,
        trust: Arc<dyn Trust>,
        stored: Stored,
        now: Now,
    ) -> Result<Self, crate::types::TrustError> {
        let facts = trust.check_certificate(trust.own_certificate(), now.wall)?;
        let key = key_id(&facts.key);
        let mut rng = Pcg64::seed_from_u64(config.seed);
        let (nonce, generation) =
            (rng.next_u64(), stored.generation.saturating_add(u64::from(!Planted::GenerationNotRaised.is_on())));
        let membership =
            Membership::new(config.membership.clone(), config.node.clone(), generation, key, rng.next_u64(), now.mono);
        let mut node = Self {
            key,
            generation,
            written: join::Written::new(stored.generation, now.mono),
            revision: 0,
            nonce,
            phase: Phase::Joining,
            catalog: Catalog::new(),
            membership,
            queue: gossip::Queue::default(),
            fresh: Vec::new(),
            passed_at: None,
            pass_at: None,
            view: view::View::new(config.coalesce.min(Duration::from_secs(2))),
            local: local::Local::new(stored.drains, facts),
            seeds: BTreeMap::new(),
            seeds_told: false,
            challenges: BTreeMap::new(),
            syncs: sync::Syncs::new(now.mono),
            forgotten: BTreeMap::new(),
            rng,
            outputs: VecDeque::new(),
            spoken_since: None,
            gossip_at: None,
            join_until: now.mono + JOIN_WAIT,
            control_at: Mono::ZERO,
            tidy_at: now.mono + TIDY_EVERY,
            persist_at: None,
            persisted_at: None,
            counters: Counters::default(),
            clocks: clocks::Clocks::default(),
            complaints: complaints::Complaints::default(),
            signals: signals::Heard::default(),
            asked: asked::Asked::default(),
            config,
            trust,
        };
        node.introduce(now);
        node.restore(stored.statements, now);
        node.persist_at = Some(now.mono);
        node.view.changed(view::Urgency::Now);
        Ok(node)
    }

    /// Takes an input.
    pub fn handle(&mut self, now: Now, input: Input) {
        match input {
            Input::Envelope { from, addr, bytes } => self.envelope(now, &from, addr, bytes),
            Input::SyncRequest { id, from, addr, bytes } => self.sync_request(now, id, &from, addr, bytes),
            Input::SyncEnded { token, result } => self.sync_ended(now, token, result),
            // The port of a seed that is no member: its host answered, so this node's network works.
            Input::Refused { token: join::CONTROL } => self.membership.control(now.mono),
            Input::Refused { token } => self.membership.refused(now.mono, token, &*self.trust),
            Input::Seeds(addrs) => self.set_seeds(now, addrs),
            Input::Control => self.membership.control(now.mono),
            Input::Persisted { generation } => self.persisted(now, generation),
        }
        self.settle(now);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Now) {
        self.membership.timeout(now.mono, &*self.trust);
        self.written_anyway(now);
        self.drive_join(now);
        self.ask_seeds_for_control(now);
        self.drive_sync(now);
        if self.pass_at.is_some_and(|at| now.mono >= at) {
            self.pass_on_now(now, None);
        }
        if self.gossip_at.is_some_and(|at| now.mono >= at) {
            self.gossip_round(now);
        }
        if now.mono >= self.tidy_at {
            self.tidy(now);
        }
        if self.persist_at.is_some_and(|at| now.mono >= at) {
            self.persist(now);
        }
        self.settle(now);
    }

    /// When [`Node::handle_timeout`] wants to be called next.
    pub fn poll_timeout(&self) -> Option<Mono> {
        // An open challenge ends by itself, and so does a write; until then the waiting time says nothing.
        let waits = self.phase == Phase::Joining && self.challenges.is_empty() && self.may_use_generation();
        let joining = waits.then_some(self.join_until);
        [
            self.membership.poll_timeout(),
            self.gossip_at,
            self.pass_at,
            self.view.due(),
            self.persist_at,
            joining,
            self.written.due(),
            self.seed_due(),
            Some(self.syncs.due()),
            Some(self.tidy_at),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The next thing to do outside.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// This node's id.
    pub fn id(&self) -> &NodeId {
        &self.config.node
    }

    /// The generation of this run.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether it takes part: joined, and not gone.
    pub fn is_member(&self) -> bool {
        self.phase == Phase::Member
    }

    /// Whether it knows others, or was told of none.
    pub fn met_mesh(&self) -> bool {
        self.alone_by_plan() || self.catalog.members().nth(1).is_some()
    }

    /// What it holds.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Who is alive.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Counts since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Statements waiting to be spread.
    pub fn gossip_backlog(&self) -> usize {
        self.queue.len()
    }

    /// Digest of everything that settles: equal on two nodes that hold the same and think the same of everybody.
    pub fn digest(&self) -> u64 {
        self.catalog.digest().wrapping_add(self.membership.digest())
    }

    /// Signs and merges a statement of this node's own, and spreads it.
    fn say(&mut self, now: Now, body: &Body, urgency: Spread) {
        let with_certificate = matches!(body.kind(), Kind::Member | Kind::Policy);
        let statement =
            Statement::sign(&*self.trust, &self.config.node, self.key, body.kind(), body.encode(), with_certificate);
        self.catalog.merge(&statement, &*self.trust, now.wall);
        self.touch(now);
        if self.phase == Phase::Member {
            self.spread(statement, body, urgency, None);
        }
    }

    /// Says who and where this node is.
    fn introduce(&mut self, now: Now) {
        let member = crate::wire::Member {
            node: self.config.node.clone(),
            generation: self.generation,
            revision: self.revision,
            addr: self.config.addr,
            nonce: self.nonce,
            program: self.config.program.clone(),
        };
        self.say(now, &Body::Member(member), Spread::Eager);
    }

    /// Queues a statement, and sends it at once to a few (`Eager`) or to every active member (`Flood`).
    fn spread(&mut self, statement: Statement, body: &Body, spread: Spread, except: Option<&NodeId>) {
        self.queue.push(statement.clone(), body);
        let count = match spread {
            Spread::Queue => return,
            Spread::Eager => EAGER,
            Spread::Flood => FLOOD_MOST,
        };
        let envelope = Envelope { digest: self.digest(), frames: vec![Frame::Statement(statement)] };
        let bytes = envelope.encode();
        for to in self.some_active(count, except) {
            self.send_bytes(&to, bytes.clone());
        }
    }

    /// Passes what was news to a few others: at once, or with what else comes in the next moment where much does. Not while
    /// this node joins: what it lacks then is what everybody else has.
    fn pass_on(&mut self, now: Now, from: &NodeId) {
        if self.phase != Phase::Member {
            self.fresh.clear();
        }
        if self.fresh.is_empty() {
            return;
        }
        match self.passed_at.map(|at| at + PASS_ON_EVERY).filter(|rested| now.mono < *rested) {
            None => self.pass_on_now(now, Some(from)),
            rested => self.pass_at = rested,
        }
    }

    fn pass_on_now(&mut self, now: Now, from: Option<&NodeId>) {
        (self.passed_at, self.pass_at) = (Some(now.mono), None);
        let fresh = std::mem::take(&mut self.fresh);
        let envelopes = gossip::pack(fresh, self.digest());
        let envelopes: Vec<Bytes> = envelopes.iter().map(Envelope::encode).collect();
        for to in self.some_active(EAGER, from) {
            envelopes.iter().for_each(|bytes| self.send_bytes(&to, bytes.clone()));
        }
    }

    /// Up to `count` active members, at random.
    fn some_active(&mut self, count: usize, except: Option<&NodeId>) -> Vec<NodeId> {
        self.membership.random_active(count, except)
    }

    fn send_bytes(&mut self, to: &NodeId, bytes: Bytes) {
        if let Some(entry) = self.catalog.member(to) {
            self.outputs.push_back(Output::Send { to: to.clone(), addr: entry.member.addr, bytes });
        }
    }

    /// Sends frames to one node, with whatever waits to be spread in the room that is left.
    fn send_frames(&mut self, to: &NodeId, mut frames: Vec<Frame>) {
        let waiting = self.queue.fill(gossip::size_of(&frames).max(1));
        let fresh: Vec<Frame> = waiting.into_iter().filter(|frame| !frames.contains(frame)).collect();
        frames.extend(fresh);
        let bytes = Envelope { digest: self.digest(), frames }.encode();
        self.send_bytes(to, bytes);
    }

    fn send_statements(&mut self, to: &NodeId, statements: Vec<Statement>) {
        let digest = self.digest();
        for envelope in gossip::pack(statements, digest) {
            self.send_bytes(to, envelope.encode());
        }
    }

    fn gossip_round(&mut self, now: Now) {
        self.gossip_at = None;
        for to in self.some_active(GOSSIP_FANOUT, None) {
            if self.queue.is_empty() {
                break;
            }
            let frames = self.queue.fill(0);
            let bytes = Envelope { digest: self.digest(), frames }.encode();
            self.send_bytes(&to, bytes);
        }
        if self.membership.active_count() == 0 {
            return;
        }
        self.arm_gossip(now);
    }

    fn arm_gossip(&mut self, now: Now) {
        if self.gossip_at.is_none() && !self.queue.is_empty() && self.phase == Phase::Member {
            self.gossip_at = Some(now.mono + GOSSIP_EVERY);
        }
    }

    /// Carries out what the membership wants, then publishes if it is time.
    fn settle(&mut self, now: Now) {
        while let Some(action) = self.membership.poll() {
            self.carry_out(now, action);
        }
        self.arm_gossip(now);
        if let Some(table) = self.view.publish(now.mono, &self.config.node, &self.catalog, &mut self.membership) {
            self.counters.publications += 1;
            self.outputs.push_back(Output::Publish(Arc::new(table)));
        }
    }

    fn carry_out(&mut self, now: Now, action: Action) {
        match action {
            // A probe's packet names the generation, which is not settled yet.
            Action::Send { frames, .. } if self.phase == Phase::Joining && frames.iter().any(is_probe) => {}
            Action::Send { to, frames } => self.send_frames(&to, frames),
            Action::SendLatest { to, about } => {
                let latest = self.catalog.member(&about).map(|entry| {
                    let alive = entry.alive.iter().map(|(_, _, alive)| alive.clone());
                    std::iter::once(entry.statement.clone()).chain(alive).collect()
                });
                self.send_statements(&to, latest.unwrap_or_default());
            }
            Action::Retract { accused } => self.queue.drop_refuted(&accused),
            Action::TakeNextGeneration => self.outdo(now, self.generation),
            Action::Gossip { statement, eager, flood, except } => {
                let Ok(body) = Body::decode(&statement) else { return };
                // Our own refutation belongs into the catalog as well.
                if body.kind() == Kind::Alive {
                    self.catalog.merge(&statement, &*self.trust, now.wall);
                    self.touch(now);
                }
                let spread = match (flood, eager) {
                    (true, _) => Spread::Flood,
                    (_, true) => Spread::Eager,
                    _ => Spread::Queue,
                };
                self.spread(statement, &body, spread, except.as_ref());
            }
            Action::UdpProbe { token, node } => {
                if let Some(entry) = self.catalog.member(&node) {
                    self.outputs.push_back(Output::UdpProbe { token, addr: entry.member.addr });
                }
            }
            Action::Sync { with } => self.open_sync(now, &with),
            Action::Changed { node, state } => {
                self.note_gone(&node);
                let urgency = if state == MemberState::Alive { view::Urgency::Coalesced } else { view::Urgency::Now };
                if !Planted::DeathUnseen.is_on() {
                    self.view.changed(urgency);
                }
                self.event(Event::Member { node, state });
            }
            Action::Report(text) => self.event(Event::Report(text)),
        }
    }

    /// Tells the catalog whether a member has gone: see [`Catalog::set_gone`].
    fn note_gone(&mut self, node: &NodeId) {
        if *node != self.config.node {
            let left = self.catalog.member(node).is_some_and(|entry| entry.has_left());
            self.catalog.set_gone(node, left || self.membership.has_gone(node));
        }
    }

    fn event(&mut self, event: Event) {
        self.outputs.push_back(Output::Event(event));
    }

    /// Something that must survive a restart has changed.
    fn touch(&mut self, now: Now) {
        let rest = PERSIST_AFTER + PERSIST_PER_MEMBER * self.membership.active_count() as u32;
        let rested = self.persisted_at.map_or(Mono::ZERO, |at| at + rest);
        self.persist_at.get_or_insert(rested.max(now.mono + PERSIST_AFTER));
    }

    fn persist(&mut self, now: Now) {
        self.persist_at = None;
        self.persisted_at = Some(now.mono);
        let generation = self.written.wanted().unwrap_or(self.generation);
        let stored = Stored { generation, drains: self.local.drains(), statements: self.catalog.statements() };
        self.outputs.push_back(Output::Persist { generation, stored: Box::new(stored) });
    }

    /// Loads what was known before the restart; each statement is checked again like any other.
    fn restore(&mut self, statements: Vec<Statement>, now: Now) {
        for statement in statements {
            if statement.signer == self.config.node && statement.kind != Kind::Policy as u8 {
                continue;
            }
            self.catalog.merge(&statement, &*self.trust, now.wall);
        }
        self.catalog.mark_stale();
        self.catalog.confirm(&self.config.node.clone());
        let lives: Vec<(NodeId, u64, u16)> = self
            .catalog
            .members()
            .filter(|(node, entry)| **node != self.config.node && !entry.has_left())
            .map(|(node, entry)| (node.clone(), entry.life().0, entry.life().1))
            .collect();
        for (node, generation, incarnation) in lives {
            self.membership.alive(now.mono, &node, generation, incarnation);
        }
        let left: Vec<NodeId> =
            self.catalog.members().filter(|(_, e)| e.has_left()).map(|(id, _)| id.clone()).collect();
        left.iter().for_each(|node| self.note_gone(node));
    }

    /// Forgets members that have been gone for long, and names that were forgotten a while ago.
    fn tidy(&mut self, now: Now) {
        self.tidy_at = now.mono + TIDY_EVERY;
        self.tidy_signals();
        self.asked.tidy(now.mono);
        self.forgotten.retain(|_, (_, at)| now.mono.since(*at) < REMEMBER_FORGOTTEN);
        let over = |node: &NodeId| {
            self.membership.gone_since(node).filter(|since| now.mono.since(*since) > forget_after())?;
            Some((node.clone(), self.catalog.member(node)?.member.generation))
        };
        let gone: Vec<(NodeId, u64)> = self.catalog.gone().filter_map(over).collect();
        for (node, generation) in gone {
            self.catalog.forget(&node);
            self.membership.forget(&node);
            self.forgotten.insert(node, (generation, now.mono));
            self.view.changed(view::Urgency::Coalesced);
            self.touch(now);
        }
    }
}

/// How long the gone are remembered.
fn forget_after() -> Duration {
    match (Planted::ForgetTombstones.is_on(), Planted::NeverForget.is_on()) {
        (true, _) => Duration::ZERO,
        (_, true) => FORGET_AFTER * 1000,
        _ => FORGET_AFTER,
    }
}

/// Worst times from the end of a member until nobody sends it a new request, in a healthy mesh of so many members.
pub fn removal(membership: &MembershipConfig, members: usize) -> Removal {
    // News goes on to `EAGER` others from whoever hears it, so it needs as many rounds as the mesh has powers of that.
    let rounds = members.max(2).ilog(EAGER) + 1;
    membership.removal(members, GOSSIP_EVERY * rounds)
}

fn is_probe(frame: &Frame) -> bool {
    matches!(frame, Frame::Foca(_))
}

/// How far a statement is carried at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spread {
    Queue,
    Eager,
    Flood,
}

/// How long a node waits for the first seed before it takes part alone.
const JOIN_WAIT: Duration = Duration::from_millis(400);
/// Members that hear news at once from whoever hears it.
const EAGER: usize = 4;
/// Between two times that this is done. News comes alone or by hundreds, as when many start at once; then it travels in company.
const PASS_ON_EVERY: Duration = Duration::from_millis(10);
/// Most members that hear a leave, drain or rollback at once from its author.
const FLOOD_MOST: usize = 64;
/// Members per gossip round.
const GOSSIP_FANOUT: usize = 3;
/// Between gossip rounds while something waits.
const GOSSIP_EVERY: Duration = Duration::from_millis(100);
/// Between looks for members to forget.
const TIDY_EVERY: Duration = Duration::from_secs(5);
/// How long a forgotten member's old generation is not taken back from peers that have yet to forget it.
const REMEMBER_FORGOTTEN: Duration = Duration::from_secs(60);
/// Changes are collected this long before they are written down.
const PERSIST_AFTER: Duration = Duration::from_secs(1);
/// And so much longer between two writes for every member: each write is of everything.
const PERSIST_PER_MEMBER: Duration = Duration::from_millis(10);

/// Drained instances by id, as they are kept over a restart.
type Drains = Vec<(InstanceId, Drain)>;
/// Own records by id.
type Records = BTreeMap<InstanceId, InstanceRecord>;
