//! Between the nodes and the network: what the agent and `net` do in life.

use std::net::SocketAddr;

use bytes::Bytes;
use lanemesh::{
    node::{DialError, Event as NodeEvent, Input, Output},
    types::NodeId,
    wire::MAX_DATAGRAM,
};

use super::{Asker, World, boot::host_at};
use crate::{
    conns::Standing,
    cpu::Work,
    host::{Disk, Off, Written},
    queue::{Event, MILLI, Run, SECOND, Time},
    record::Turn,
};

impl World {
    /// Gives a node an input, and carries out what it wants.
    pub(super) fn feed(&mut self, host: u32, input: Input) {
        let entry = &mut self.hosts[host as usize];
        let now = entry.now(self.now);
        if let Some(node) = &mut entry.node {
            entry.cpu.charge(Work::Decode(size(&input)));
            node.handle(now, input);
            self.drain(host);
            self.settle_cpu(host);
        }
    }

    /// A node's timer.
    pub(super) fn wake(&mut self, host: u32) {
        let entry = &mut self.hosts[host as usize];
        let now = entry.now(self.now);
        let Some(node) = &mut entry.node else { return };
        entry.wake = None;
        let second = self.now / SECOND;
        entry.wakes = if entry.wakes.0 == second { (second, entry.wakes.1 + 1) } else { (second, 1) };
        if entry.wakes.1 == SPINS {
            let text = format!("{} runs its timer {SPINS} times in one second", entry.id);
            self.findings.add("node-rests", text);
        }
        // A timer that was planned and is no longer due does nothing, as in life.
        entry.cpu.charge(Work::Timer);
        node.handle_timeout(now);
        self.drain(host);
        self.settle_cpu(host);
    }

    /// Carries out what a node wants, and plans its next timer.
    pub(super) fn drain(&mut self, host: u32) {
        loop {
            let Some(output) = self.hosts[host as usize].node.as_mut().and_then(|node| node.poll_output()) else {
                break;
            };
            let Some(output) = self.carry(host, output) else { continue };
            match output {
                Output::Send { to, addr, bytes } => self.send(host, &to, addr, bytes),
                Output::OpenSync { token, node, addr, request } => self.open_sync(host, token, node, addr, request),
                Output::SyncReply { id, bytes } => self.sync_reply(id, bytes),
                Output::UdpProbe { token, addr } => self.udp_probe(host, token, addr),
                Output::Retire(node) => {
                    if let Some(peer) = self.host_of(&node) {
                        self.conns.close(host, peer);
                    }
                }
                Output::Publish(table) => {
                    self.stats.publications += 1;
                    self.hosts[host as usize].cpu.charge(Work::View(table.instances.len()));
                    self.hosts[host as usize].table = Some(table);
                }
                Output::Persist { generation, stored } => {
                    let entry = &mut self.hosts[host as usize];
                    if entry.disk == Disk::Works {
                        entry.stored = Some(Written::Whole(stored));
                    }
                    // A disk that fails says so as well.
                    let now = entry.now(self.now);
                    entry.node.iter_mut().for_each(|node| node.handle(now, Input::Persisted { generation }));
                }
                Output::Signal(signal) => self.signal_heard(host, signal),
                Output::Event(event) => self.node_event(host, event),
            }
        }
        self.plan_wake(host);
    }

    pub(super) fn plan_wake(&mut self, host: u32) {
        let entry = &mut self.hosts[host as usize];
        let Some(node) = &entry.node else { return };
        let Some(due) = node.poll_timeout() else { return };
        // A timer in the past is run as soon as the loop comes round.
        let due = due.0.max(self.now + LOOP);
        if entry.wake.is_none_or(|planned| due < planned) {
            entry.wake = Some(due);
            let run = entry.run();
            self.queue.plan(due, Event::Wake(run));
        }
    }

    pub(super) fn node_event(&mut self, host: u32, event: NodeEvent) {
        self.log.note(self.now, || format!("{} {event:?}", self.hosts[host as usize].id));
        match event {
            NodeEvent::Member { node, state } => {
                let Some(subject) = self.host_of(&node) else { return };
                let at = self.now;
                let turn = Turn { at, observer: host, subject, state };
                self.record.iter_mut().for_each(|record| record.turns.push(turn));
                self.note_verdict(host, subject, state);
                self.with_checks(|checks, world, found| {
                    checks.iter_mut().for_each(|check| check.member(world, host, subject, state, found));
                });
            }
            NodeEvent::NameTaken { .. } => {
                self.stats.names_taken += 1;
                self.with_checks(|checks, world, found| {
                    checks.iter_mut().for_each(|check| check.name_taken(world, host, found));
                });
                self.end_run(host, Off::NameTaken);
            }
            NodeEvent::Refused { from, times, .. } => {
                self.stats.refused += times;
                self.record.iter_mut().for_each(|record| record.named.extend([from.clone()]));
            }
            NodeEvent::Malformed { from, times, .. } => {
                self.stats.malformed += times;
                self.record.iter_mut().for_each(|record| record.named.extend([from.clone()]));
            }
            NodeEvent::Report(_) => self.stats.reports += 1,
            NodeEvent::Joined { .. } | NodeEvent::NameClaimed { .. } | NodeEvent::Compared(_) => {}
        }
    }

    pub(super) fn send(&mut self, from: u32, to: &NodeId, addr: SocketAddr, bytes: Bytes) {
        let size = bytes.len() as u64;
        let entry = &mut self.hosts[from as usize];
        entry.sent = (entry.sent.0 + size, entry.sent.1 + 1);
        let epoch = entry.epoch;
        if self.real.is_some() {
            self.carry(from, Output::Send { to: to.clone(), addr, bytes });
            return;
        }
        let Some(peer) = self.reachable_as(addr, to) else { return };
        let ends = ((from, epoch), (peer, self.hosts[peer as usize].epoch));
        match self.conns.standing(self.now, ends.0, ends.1) {
            // What goes into a dead connection is lost; the next one dials.
            Standing::Dead | Standing::Dialing(Err(_)) => self.stats.lost += 1,
            Standing::Warm => self.send_warm(from, peer, bytes),
            Standing::Dialing(Ok(ready)) => self.send_stream(from, peer, ready - self.now, bytes),
            Standing::Cold => match self.dial(from, peer) {
                Ok(delay) => self.send_stream(from, peer, delay, bytes),
                Err(_) => self.stats.lost += 1,
            },
        }
    }

    /// The host that lives at an address, if it is the one meant; its certificate would give another one away.
    fn reachable_as(&self, addr: SocketAddr, node: &NodeId) -> Option<u32> {
        let peer = *self.addrs.get(&addr)?;
        (self.hosts[peer as usize].id == *node).then_some(peer)
    }

    /// Dials; how long it takes, or until when it is tried in vain.
    fn dial(&mut self, from: u32, to: u32) -> Result<Time, Time> {
        let awake = self.hosts[to as usize].is_awake(self.now);
        let took = if awake { self.links.handshake(from, to, DIAL) } else { None };
        self.charge(from, HANDSHAKE);
        if took.is_some() {
            self.charge(to, HANDSHAKE);
        }
        let (a, b) = (&self.hosts[from as usize], &self.hosts[to as usize]);
        let outcome = took.map(|delay| self.now + delay).ok_or(self.now + DIAL);
        self.conns.dial((from, a.epoch), (to, b.epoch), outcome);
        took.ok_or(DIAL)
    }

    fn send_warm(&mut self, from: u32, to: u32, bytes: Bytes) {
        if bytes.len() > MAX_DATAGRAM {
            return self.send_stream(from, to, 0, bytes);
        }
        self.stats.datagrams += 1;
        let fate = self.links.packet(from, to);
        if fate[0].is_none() {
            self.stats.lost += 1;
        }
        for delay in fate.into_iter().flatten() {
            self.deliver(from, to, delay, bytes.clone());
        }
    }

    fn send_stream(&mut self, from: u32, to: u32, after: Time, bytes: Bytes) {
        self.stats.streams += 1;
        match self.links.stream(from, to, bytes.len()) {
            Some(delay) => self.deliver(from, to, after + delay, bytes),
            None => self.stats.lost += 1,
        }
    }

    /// Work that the sockets and QUIC charge at level 2.
    fn charge(&self, host: u32, work: &[Work]) {
        if self.real.is_none() {
            work.iter().for_each(|work| self.hosts[host as usize].cpu.charge(*work));
        }
    }

    fn deliver(&mut self, from: u32, to: u32, delay: Time, bytes: Bytes) {
        self.charge(from, &[Work::Packet]);
        let addr = self.hosts[from as usize].addr;
        let to = self.hosts[to as usize].run();
        let delay = delay + self.hosts[from as usize].lateness(self.now);
        self.after(delay, Event::Envelope { to, from, addr, bytes });
    }

    pub(super) fn envelope(&mut self, to: u32, from: u32, addr: SocketAddr, bytes: Bytes) {
        self.overhear(&bytes);
        self.charge(to, &[Work::Packet]);
        let from = self.hosts[from as usize].id.clone();
        self.feed(to, Input::Envelope { from, addr, bytes });
    }

    fn open_sync(&mut self, host: u32, token: u64, node: Option<NodeId>, addr: SocketAddr, request: Bytes) {
        self.stats.syncs += 1;
        let asker = self.hosts[host as usize].run();
        let ends = |world: &mut Self, delay: Time, result| {
            world.after(delay, Event::SyncEnded { to: asker, token, result });
        };
        let other = |text: &str| Err(DialError::Other(text.to_owned()));
        if addr == self.hosts[host as usize].addr {
            return ends(self, MILLI, Err(DialError::Itself));
        }
        let Some(peer) = self.addrs.get(&addr).copied() else { return ends(self, DIAL, other("nobody answers")) };
        let id = &self.hosts[peer as usize].id;
        if node.is_some_and(|node| *id != node) {
            return ends(self, 3 * MILLI, other("somebody else lives there"));
        }
        if *id == self.hosts[host as usize].id {
            return ends(self, 3 * MILLI, Err(DialError::OwnName));
        }
        let epochs = (asker.epoch, self.hosts[peer as usize].epoch);
        let dialled = match self.conns.standing(self.now, (host, epochs.0), (peer, epochs.1)) {
            Standing::Warm => Ok(0),
            Standing::Dialing(Ok(ready)) => Ok(ready - self.now),
            Standing::Dialing(Err(until)) => Err(until - self.now),
            Standing::Cold | Standing::Dead => self.dial(host, peer),
        };
        let after = match dialled {
            Ok(after) => after,
            Err(after) => return ends(self, after, other("no answer")),
        };
        let Some(delay) = self.links.stream(host, peer, request.len()) else {
            return ends(self, STREAM, other("the connection does not answer"));
        };
        self.next_sync += 1;
        let sync = self.next_sync;
        self.syncs.insert(sync, Asker { asker, token, by: peer });
        let to = self.hosts[peer as usize].run();
        let delay = delay + self.hosts[host as usize].lateness(self.now);
        self.after(after + delay, Event::SyncAsked { to, sync, bytes: request });
        // If the peer ends or stands still, its answer never comes; `Node` takes the first end and ignores others.
        ends(self, after + STREAM, other("no answer in time"));
    }

    pub(super) fn sync_asked(&mut self, host: u32, sync: u64, bytes: Bytes) {
        let Some(asker) = self.syncs.get(&sync).map(|asker| asker.asker.host) else { return };
        let (from, addr) = (self.hosts[asker as usize].id.clone(), self.hosts[asker as usize].addr);
        self.stats.sync_bytes += bytes.len() as u64;
        self.feed(host, Input::SyncRequest { id: sync, from, addr, bytes });
        self.syncs.remove(&sync);
    }

    fn sync_reply(&mut self, sync: u64, bytes: Bytes) {
        let Some(Asker { asker, token, by }) = self.syncs.remove(&sync) else { return };
        self.stats.sync_bytes += bytes.len() as u64;
        if let Some(delay) = self.links.stream(by, asker.host, bytes.len()) {
            let delay = delay + self.hosts[by as usize].lateness(self.now);
            self.after(delay, Event::SyncEnded { to: asker, token, result: Ok((by, bytes)) });
        }
    }

    pub(super) fn sync_ended(&mut self, host: u32, token: u64, result: Result<(u32, Bytes), DialError>) {
        let result = result.map(|(by, bytes)| (self.hosts[by as usize].id.clone(), bytes));
        self.feed(host, Input::SyncEnded { token, result });
    }

    /// One byte: a port that refuses says so, if the way there and back lets it.
    fn udp_probe(&mut self, host: u32, token: u64, addr: SocketAddr) {
        let SocketAddr::V4(v4) = addr else { return };
        let Some(peer) = host_at(*v4.ip(), &self.hosts) else { return };
        let refuses = matches!(self.hosts[peer as usize].off, Some(Off::Refused | Off::Left | Off::NameTaken));
        if !refuses || self.addrs.contains_key(&addr) {
            return;
        }
        let Some(there) = self.links.packet(host, peer)[0] else { return };
        let Some(back) = self.links.packet(peer, host)[0] else { return };
        let to: Run = self.hosts[host as usize].run();
        self.after(there + back, Event::Refused { to, token });
    }
}

/// What either end of a handshake with mutual authentication works.
const HANDSHAKE: &[Work] = &[
    Work::Sign,
    Work::Verify,
    Work::Verify,
    Work::Certificate,
    Work::KeyExchange,
    Work::KeyExchange,
    Work::Packet,
    Work::Packet,
    Work::Packet,
];

/// Bytes that a node has to read.
fn size(input: &Input) -> usize {
    match input {
        Input::Envelope { bytes, .. } | Input::SyncRequest { bytes, .. } => bytes.len(),
        Input::SyncEnded { result, .. } => result.as_ref().map_or(0, |(_, bytes)| bytes.len()),
        Input::Refused { .. } | Input::Seeds(_) | Input::Persisted { .. } | Input::Control => 0,
    }
}

/// A dial's time.
pub(super) const DIAL: Time = SECOND;
/// A stream's time.
const STREAM: Time = 5 * SECOND;
/// The agent's loop is not quicker than this.
const LOOP: Time = MILLI / 20;
/// So many timers in one second are a loop without an end.
const SPINS: u32 = 2000;
