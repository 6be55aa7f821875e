//! A small deterministic world: nodes with a [`Membership`] and the least of what `Node` does around it (gossip queue,
//! newest `Alive` of everybody, exchange on request and on digest mismatch), over links with delay and independent loss.
//!
//! One seed, one thread, virtual time. Exchanges are streams: not lost, but slower; the rest is datagrams.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::{
    node::{Action, Membership, MembershipConfig},
    types::{FakeTrust, MemberState, Mono, NodeId},
    wire::{Accusation, Body, Envelope, Frame, Kind, Statement},
};

pub(super) type Index = usize;

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) fn name(index: Index) -> NodeId {
    NodeId::new(&format!("n{index:04}")).unwrap()
}

/// What is wrong with a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Life {
    Up,
    /// Killed; its host answers with port unreachable.
    Refusing,
    /// Gone with its host.
    Silent,
    /// Stopped until then; what arrives is kept.
    Paused(Mono),
}

pub(super) struct Node {
    pub(super) m: Membership,
    trust: FakeTrust,
    pub(super) life: Life,
    generation: u64,
    /// Kept for `SendLatest` and exchanges: newest `Alive`, by node.
    alive: BTreeMap<NodeId, (u64, u16, Statement)>,
    queue: Vec<(Statement, u32)>,
    mismatch: Option<Mono>,
    exchanged: Mono,
    inbox: Vec<Event>,
    /// The next `Timeout` event, so that there is one.
    armed: Option<Mono>,
    pub(super) reports: Vec<String>,
    pub(super) bytes: u64,
    rng: Pcg64Mcg,
}

/// An exchange, as far as membership is concerned.
#[derive(Debug, Clone)]
pub(super) struct Exchange {
    members: Vec<(NodeId, u64)>,
    statements: Vec<Statement>,
    down: Vec<(NodeId, u64, u16)>,
    left: Vec<(NodeId, u64)>,
    reply: bool,
}

#[derive(Debug, Clone)]
enum Event {
    Datagram { from: Index, to: Index, envelope: Envelope },
    Exchange { from: Index, to: Index, exchange: Exchange },
    Refused { to: Index, token: u64 },
    Timeout(Index),
    Gossip(Index),
    Resume(Index),
}

/// What a member's state became: when, at whom, whose, what.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Turn {
    pub(super) at: Mono,
    pub(super) observer: Index,
    pub(super) member: Index,
    pub(super) state: MemberState,
}

pub(super) struct World {
    pub(super) now: Mono,
    pub(super) nodes: Vec<Node>,
    events: BTreeMap<(Mono, u64), Event>,
    sequence: u64,
    pub(super) loss: f64,
    /// Nodes below this index and the others do not reach each other.
    pub(super) split: Option<Index>,
    /// Everything towards these nodes takes so much longer.
    pub(super) slow: BTreeMap<Index, Duration>,
    /// (from, to) pairs that lose everything.
    pub(super) cut: BTreeSet<(Index, Index)>,
    pub(super) turns: Vec<Turn>,
    config: MembershipConfig,
    icmp: BTreeMap<(Index, Index), (f64, Mono)>,
    rng: Pcg64Mcg,
    seed: u64,
}

impl World {
    /// `count` nodes that know each other, after two quiet seconds.
    pub(super) fn new(count: usize, seed: u64) -> Self {
        let mut world = Self {
            now: Mono::from_millis(1_000),
            nodes: Vec::new(),
            events: BTreeMap::new(),
            sequence: 0,
            loss: 0.0,
            split: None,
            slow: BTreeMap::new(),
            cut: BTreeSet::new(),
            turns: Vec::new(),
            config: MembershipConfig::lan(),
            icmp: BTreeMap::new(),
            rng: Pcg64Mcg::seed_from_u64(seed),
            seed,
        };
        for index in 0..count {
            let node = world.fresh(index, 1);
            world.nodes.push(node);
            for other in (0..count).filter(|other| *other != index) {
                world.nodes[index].m.alive(world.now, &name(other), 1, 0);
            }
            world.after_input(index);
        }
        world.run(ms(2_000) + ms(seed % 7 * 97));
        world.turns.clear();
        world
    }

    fn fresh(&mut self, index: Index, generation: u64) -> Node {
        let seed = self.seed.wrapping_mul(0x9e37_79b9).wrapping_add(index as u64).wrapping_add(generation << 32);
        let trust = FakeTrust::new(&name(index));
        let m = Membership::new(self.config.clone(), name(index), generation, 7, seed, self.now);
        Node {
            m,
            trust,
            life: Life::Up,
            generation,
            alive: BTreeMap::new(),
            queue: Vec::new(),
            mismatch: None,
            exchanged: Mono::ZERO,
            inbox: Vec::new(),
            armed: None,
            reports: Vec::new(),
            bytes: 0,
            rng: Pcg64Mcg::seed_from_u64(seed ^ 1),
        }
    }

    /// Stops a node for ever (or until `restart`).
    pub(super) fn kill(&mut self, index: Index, life: Life) {
        self.nodes[index].life = life;
    }

    pub(super) fn pause(&mut self, index: Index, time: Duration) {
        let until = self.now + time;
        self.nodes[index].life = Life::Paused(until);
        self.push(until, Event::Resume(index));
    }

    /// Starts a node again with the next generation: it exchanges with one peer and is introduced everywhere.
    pub(super) fn restart(&mut self, index: Index, introduce: bool) {
        let generation = self.nodes[index].generation + 1;
        self.nodes[index] = self.fresh(index, generation);
        for other in (0..self.nodes.len()).filter(|other| *other != index) {
            let theirs = self.nodes[other].generation;
            self.nodes[index].m.alive(self.now, &name(other), theirs, 0);
            if introduce && matches!(self.nodes[other].life, Life::Up) {
                self.nodes[other].m.alive(self.now, &name(index), generation, 0);
                self.after_input(other);
            }
        }
        self.after_input(index);
    }

    pub(super) fn leave(&mut self, index: Index) {
        let generation = self.nodes[index].generation;
        self.kill(index, Life::Silent);
        for other in (0..self.nodes.len()).filter(|other| *other != index) {
            self.nodes[other].m.left(self.now, &name(index), generation);
            self.after_input(other);
        }
    }

    pub(super) fn state(&self, observer: Index, member: Index) -> Option<MemberState> {
        self.nodes[observer].m.state(&name(member))
    }

    fn running(&self) -> impl Iterator<Item = Index> + '_ {
        (0..self.nodes.len()).filter(|index| self.nodes[*index].life == Life::Up)
    }

    /// Whether every running node holds this of a member.
    pub(super) fn all_hold(&self, member: Index, state: MemberState) -> bool {
        self.running().filter(|index| *index != member).all(|index| self.state(index, member) == Some(state))
    }

    /// Whether every running node trusts every running node, and all agree.
    pub(super) fn whole(&self) -> bool {
        self.running().all(|member| self.all_hold(member, MemberState::Alive))
    }

    pub(super) fn digests(&self) -> BTreeSet<u64> {
        self.running().map(|index| self.nodes[index].m.digest()).collect()
    }

    /// Runs until it holds; how long that took.
    pub(super) fn until(&mut self, most: Duration, holds: impl Fn(&Self) -> bool) -> Option<Duration> {
        let start = self.now;
        while !holds(self) {
            if self.now.since(start) > most {
                return None;
            }
            self.run(ms(10));
        }
        Some(self.now.since(start))
    }

    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= end) {
            self.now = entry.key().0;
            let event = entry.remove();
            self.handle(event);
        }
        self.now = end;
    }

    fn push(&mut self, at: Mono, event: Event) {
        self.sequence += 1;
        self.events.insert((at, self.sequence), event);
    }

    fn handle(&mut self, event: Event) {
        let index = match &event {
            Event::Datagram { to, .. } | Event::Exchange { to, .. } | Event::Refused { to, .. } => *to,
            Event::Timeout(index) | Event::Gossip(index) | Event::Resume(index) => *index,
        };
        if let (Event::Resume(_), Life::Paused(_)) = (&event, self.nodes[index].life) {
            self.nodes[index].life = Life::Up;
            for kept in std::mem::take(&mut self.nodes[index].inbox) {
                self.handle(kept);
            }
            return;
        }
        match self.nodes[index].life {
            Life::Up => {}
            Life::Paused(_) => return self.nodes[index].inbox.push(event),
            Life::Refusing | Life::Silent => return,
        }
        match event {
            Event::Datagram { from, envelope, .. } => self.receive(from, index, envelope),
            Event::Exchange { from, exchange, .. } => self.merge(from, index, exchange),
            Event::Refused { token, .. } => {
                let (now, node) = (self.now, &mut self.nodes[index]);
                node.m.refused(now, token, &node.trust);
            }
            Event::Timeout(_) => {
                let (now, node) = (self.now, &mut self.nodes[index]);
                node.armed = None;
                if node.m.poll_timeout().is_some_and(|at| at <= now) {
                    node.m.timeout(now, &node.trust);
                }
            }
            Event::Gossip(_) => self.gossip(index),
            Event::Resume(_) => {}
        }
        self.after_input(index);
    }

    fn receive(&mut self, from: Index, to: Index, envelope: Envelope) {
        let (now, sender) = (self.now, name(from));
        for frame in &envelope.frames {
            if let Frame::Statement(statement) = frame {
                self.believe(to, &sender, statement);
            }
        }
        let node = &mut self.nodes[to];
        let only_probe = envelope.frames.iter().all(|frame| matches!(frame, Frame::Foca(_)));
        for frame in &envelope.frames {
            match frame {
                Frame::Foca(packet) => node.m.foca(now, &sender, packet.clone()),
                Frame::Ctl(ctl) => node.m.ctl(now, &sender, ctl.clone(), &node.trust),
                Frame::Statement(_) | Frame::Asked(_) => {}
            }
        }
        node.m.heard(now, &sender);
        if only_probe {
            self.compare(from, to, envelope.digest);
        }
    }

    fn compare(&mut self, from: Index, to: Index, digest: u64) {
        let (now, node) = (self.now, &mut self.nodes[to]);
        if digest == node.m.digest() {
            node.mismatch = None;
        } else if now.since(*node.mismatch.get_or_insert(now)) > ms(1_000) && now.since(node.exchanged) > ms(1_000) {
            node.mismatch = None;
            self.exchange(to, from, false);
        }
    }

    /// A statement came; it is passed on when it is news.
    fn believe(&mut self, to: Index, sender: &NodeId, statement: &Statement) {
        let (now, node) = (self.now, &mut self.nodes[to]);
        match Body::decode(statement) {
            Ok(Body::Alive(alive)) => {
                let life = (alive.generation, alive.incarnation);
                let newest = node.alive.get(&alive.node).map(|(g, i, _)| (*g, *i));
                if newest < Some(life) {
                    node.alive.insert(alive.node.clone(), (life.0, life.1, statement.clone()));
                }
                if node.m.alive(now, &alive.node, life.0, life.1) {
                    let except = Some(sender.clone());
                    self.spread(to, statement.clone(), true, false, except);
                }
            }
            Ok(Body::Accusation(accusation)) => {
                node.m.accusation(now, &accusation, statement, sender, &node.trust);
            }
            _ => {}
        }
    }

    fn after_input(&mut self, index: Index) {
        while let Some(action) = self.nodes[index].m.poll() {
            self.act(index, action);
        }
        let Some(at) = self.nodes[index].m.poll_timeout().map(|at| at.max(self.now)) else { return };
        if self.nodes[index].armed.is_none_or(|armed| at < armed) {
            self.nodes[index].armed = Some(at);
            self.push(at, Event::Timeout(index));
        }
    }

    fn act(&mut self, index: Index, action: Action) {
        let number = |node: &NodeId| node.as_str()[1..].parse::<Index>().unwrap();
        match action {
            Action::Send { to, frames } => self.send(index, number(&to), frames),
            Action::SendLatest { to, about } => {
                if let Some((_, _, statement)) = self.nodes[index].alive.get(&about).cloned() {
                    self.send(index, number(&to), vec![Frame::Statement(statement)]);
                }
            }
            Action::Gossip { statement, eager, flood, except } => self.spread(index, statement, eager, flood, except),
            Action::Retract { accused } => {
                self.nodes[index].queue.retain(|(statement, _)| {
                    !matches!(Body::decode(statement), Ok(Body::Accusation(a)) if a.accused == accused)
                });
            }
            Action::UdpProbe { token, node } => self.udp(index, number(&node), token),
            Action::Sync { with } => self.exchange(index, number(&with), false),
            Action::Changed { node, state } => {
                self.turns.push(Turn { at: self.now, observer: index, member: number(&node), state });
            }
            Action::TakeNextGeneration => self.nodes[index].reports.push("next generation".into()),
            Action::Report(text) => self.nodes[index].reports.push(text),
        }
    }

    fn spread(&mut self, index: Index, statement: Statement, eager: bool, flood: bool, except: Option<NodeId>) {
        let node = &mut self.nodes[index];
        if let Ok(Body::Alive(alive)) = Body::decode(&statement) {
            node.alive.insert(alive.node.clone(), (alive.generation, alive.incarnation, statement.clone()));
        }
        if !node.queue.iter().any(|(queued, _)| *queued == statement) {
            node.queue.push((statement.clone(), 0));
            if node.queue.len() == 1 {
                let at = self.now + ms(self.nodes[index].rng.random_range(0..100));
                self.push(at, Event::Gossip(index));
            }
        }
        let frame = Frame::Statement(statement);
        if flood {
            for to in (0..self.nodes.len()).filter(|to| *to != index) {
                self.send(index, to, vec![frame.clone()]);
            }
        } else if eager {
            for to in self.some_active(index, 4, except.as_ref()) {
                self.send(index, to, vec![frame.clone()]);
            }
        }
    }

    fn some_active(&mut self, index: Index, count: usize, except: Option<&NodeId>) -> Vec<Index> {
        let node = &mut self.nodes[index];
        let mut active = node.m.active();
        active.retain(|name| Some(name) != except);
        let count = count.min(active.len());
        (0..count)
            .map(|_| active.swap_remove(node.rng.random_range(0..active.len())).as_str()[1..].parse().unwrap())
            .collect()
    }

    /// The 100 ms tick: three random members get what was sent least often. Sixteen sends each.
    fn gossip(&mut self, index: Index) {
        for to in self.some_active(index, 3, None) {
            let node = &mut self.nodes[index];
            node.queue.sort_by_key(|(_, sent)| *sent);
            let frames = node.queue.iter_mut().take(8).map(|(statement, sent)| {
                *sent += 1;
                Frame::Statement(statement.clone())
            });
            let frames = frames.collect();
            node.queue.retain(|(_, sent)| *sent < 16);
            self.send(index, to, frames);
        }
        if !self.nodes[index].queue.is_empty() {
            self.push(self.now + ms(100), Event::Gossip(index));
        }
    }

    fn send(&mut self, from: Index, to: Index, frames: Vec<Frame>) {
        if frames.is_empty() {
            return;
        }
        let envelope = Envelope { digest: self.nodes[from].m.digest(), frames };
        let size: usize = 9 + envelope.frames.iter().map(Envelope::frame_size).sum::<usize>();
        self.nodes[from].bytes += size as u64;
        if let Some(delay) = self.route(from, to) {
            self.push(self.now + delay, Event::Datagram { from, to, envelope });
        }
    }

    /// The delay of one datagram, if it arrives.
    fn route(&mut self, from: Index, to: Index) -> Option<Duration> {
        let lost = self.loss > 0.0 && self.rng.random_bool(self.loss);
        if lost || !self.connected(from, to) {
            return None;
        }
        let delay = Duration::from_micros(self.rng.random_range(500..2_000));
        Some(delay + self.slow.get(&to).copied().unwrap_or_default())
    }

    fn connected(&self, from: Index, to: Index) -> bool {
        let split = self.split.is_some_and(|at| (from < at) != (to < at));
        !split && !self.cut.contains(&(from, to))
    }

    /// A byte to a dead port: Linux refuses six, then one a second, per asking address.
    fn udp(&mut self, from: Index, to: Index, token: u64) {
        let now = self.now;
        let Some(delay) = self.route(from, to) else { return };
        if self.nodes[to].life != Life::Refusing {
            return;
        }
        let (tokens, at) = self.icmp.entry((from, to)).or_insert((6.0, now));
        *tokens = (*tokens + now.since(*at).as_secs_f64()).min(6.0);
        *at = now;
        if *tokens >= 1.0 {
            *tokens -= 1.0;
            if let Some(back) = self.route(to, from) {
                self.push(now + delay + back, Event::Refused { to: from, token });
            }
        }
    }

    fn exchange(&mut self, from: Index, with: Index, reply: bool) {
        self.nodes[from].exchanged = self.now;
        let node = &self.nodes[from];
        let mut members = vec![(name(from), node.generation)];
        let mut left = Vec::new();
        for other in 0..self.nodes.len() {
            match (node.m.state(&name(other)), node.m.life(&name(other))) {
                (Some(MemberState::Left), Some((generation, _))) => left.push((name(other), generation)),
                (Some(_), Some((generation, _))) => members.push((name(other), generation)),
                _ => {}
            }
        }
        let alive = node.alive.values().map(|(_, _, statement)| statement.clone());
        let statements = alive.chain(node.m.public_accusations()).collect();
        let exchange = Exchange { members, statements, down: node.m.down(), left, reply };
        if self.connected(from, with) && self.connected(with, from) {
            let delay = ms(10) + self.slow.get(&with).copied().unwrap_or_default();
            self.push(self.now + delay, Event::Exchange { from, to: with, exchange });
        }
    }

    fn merge(&mut self, from: Index, to: Index, exchange: Exchange) {
        let (now, sender) = (self.now, name(from));
        for (member, generation) in &exchange.members {
            self.nodes[to].m.alive(now, member, *generation, 0);
        }
        for (member, generation) in &exchange.left {
            self.nodes[to].m.left(now, member, *generation);
        }
        for statement in &exchange.statements {
            self.believe(to, &sender, statement);
        }
        let node = &mut self.nodes[to];
        for (member, generation, incarnation) in &exchange.down {
            node.m.held_dead_by_peer(now, member, *generation, *incarnation, &node.trust);
        }
        node.m.heard(now, &sender);
        if !exchange.reply {
            self.exchange(to, from, true);
        }
    }

    /// An accusation that `liar` makes up and sends to these nodes.
    pub(super) fn lie(&mut self, liar: Index, accusation: &Accusation, to: &[Index]) {
        let node = &self.nodes[liar];
        let body = Body::Accusation(accusation.clone());
        let statement = Statement::sign(&node.trust, &name(liar), 7, Kind::Accusation, body.encode(), false);
        for to in to {
            self.send(liar, *to, vec![Frame::Statement(statement.clone())]);
        }
    }

    /// Bytes that a liar puts into a probe frame.
    pub(super) fn forge_probe(&mut self, liar: Index, to: Index, packet: &[u8]) {
        self.send(liar, to, vec![Frame::Foca(Bytes::copy_from_slice(packet))]);
    }

    /// How long after `start` the last running node first held this of a member; `None` if one never did.
    pub(super) fn last_turn(&self, start: Mono, member: Index, state: MemberState) -> Option<Duration> {
        let mut last = Duration::ZERO;
        for observer in self.running().filter(|observer| *observer != member) {
            let turn = self
                .turns
                .iter()
                .find(|t| t.observer == observer && t.member == member && t.state == state && t.at >= start)?;
            last = last.max(turn.at.since(start));
        }
        Some(last)
    }

    /// Verdicts of death on members other than these.
    pub(super) fn wrong_deaths(&self, dead: &[Index]) -> Vec<&Turn> {
        self.turns.iter().filter(|t| t.state == MemberState::Down && !dead.contains(&t.member)).collect()
    }

    pub(super) fn doubts(&self, member: Index) -> usize {
        self.turns.iter().filter(|t| t.state == MemberState::Doubtful && t.member == member).count()
    }
}
