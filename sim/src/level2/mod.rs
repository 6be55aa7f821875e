//! Level 2: the real `lanemesh::net` (quinn endpoint, rustls with mutual authentication, pool, dials, syncs, probes) and the
//! real `lanemesh::pki`, on simulated UDP sockets in virtual time.
//!
//! Scenario, faults, links, users, applications and invariants are those of level 1; what differs is that an envelope does not
//! go from node to node by itself: it is a datagram or a stream of a QUIC connection that somebody dialled, with handshake,
//! certificates, acknowledgements, retransmission, idle limit and eviction as in life. Between `Node` and `Net` stands
//! `lanemesh::agent::{input, carry}`, which the agent uses, too.
//!
//! Deterministic to the byte: the log's hash covers every UDP packet with its content. What quinn, rustls and ring would take
//! from the system (time, random numbers, key exchange) is an argument; see [`crypto`] and [`reactor`].
//!
//! Not here: the agent's select loop and its threads for rings and the state file (the world does what they do, in order), DNS,
//! HTTP.

pub mod crypto;
pub mod reactor;
pub mod socket;
pub mod trust;

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use lanemesh::{
    net::{Net, NetConfig, NetEvent, NetLimits, NetStats},
    pki::Identity,
    types::{NodeId, ServiceName},
};
use quinn::Runtime;
use serde::Serialize;
use tokio::sync::mpsc;

use self::{
    crypto::Memo,
    reactor::{Process, Reactor, Virtual},
    socket::{Probe, Socket, Wire},
    trust::Issuer,
};
use crate::{
    chance::Chance,
    cpu::Cpu,
    queue::{Run, Time},
};

/// The real network of all simulated hosts.
pub struct Level2 {
    /// Tasks and timers.
    pub reactor: Arc<Reactor>,
    /// Sockets.
    pub wire: Arc<Wire>,
    /// For when a look at the timers is planned.
    pub armed: Option<Time>,
    /// What ended runs had counted.
    ended: Totals,
    memo: Arc<Memo>,
    issuer: Issuer,
    seed: u64,
    limits: NetLimits,
    sidecars: BTreeMap<u32, Sidecar>,
    strangers: BTreeMap<SocketAddr, Sidecar>,
    lost_disks: BTreeMap<u32, u64>,
}

/// The network side of one run of one host.
pub struct Sidecar {
    /// Its tasks.
    pub process: Arc<Process>,
    /// Its endpoint.
    pub net: Net,
    /// Its certificate.
    pub identity: Arc<Identity>,
    /// Where it listens.
    pub addr: SocketAddr,
    events: mpsc::Receiver<NetEvent>,
}

/// What is counted at this level, over all hosts.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// UDP packets sent.
    pub packets: u64,
    /// Dials begun.
    pub dials: u64,
    /// Dials that led to no connection.
    pub dials_failed: u64,
    /// Dials begun because an open connection had gone silent.
    pub dials_of_silent: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections closed because the pair had two.
    pub superseded: u64,
    /// Connections closed because the pool was full.
    pub evicted: u64,
    /// Handshakes that failed over certificates.
    pub handshakes_failed: u64,
    /// Envelopes lost on the way to a connection or in its queues.
    pub dropped: u64,
    /// Packets that found a receive buffer full.
    pub overflown: u64,
    /// UDP probes that were refused.
    pub refused: u64,
    /// Open connections at the end, counted at both ends.
    pub connections: u64,
}

impl Totals {
    fn add(&mut self, stats: &NetStats) {
        let NetStats { dials, dials_failed, dials_of_silent, accepted, superseded, evicted, .. } = stats;
        self.dials += dials.get();
        self.dials_failed += dials_failed.get();
        self.dials_of_silent += dials_of_silent.get();
        self.accepted += accepted.get();
        self.superseded += superseded.get();
        self.evicted += evicted.get();
        self.handshakes_failed += stats.handshakes_failed.get();
        self.refused += stats.probes_refused.get();
        self.dropped += stats.dropped_queue_full.get()
            + stats.dropped_unreachable.get()
            + stats.dropped_stream.get()
            + stats.dropped_inbox_full.get();
    }
}

impl Level2 {
    /// A network without hosts.
    pub fn new(seed: u64, mesh: &str, services: &[ServiceName], limits: NetLimits) -> Self {
        Self {
            reactor: Reactor::new(),
            wire: Arc::default(),
            armed: None,
            ended: Totals::default(),
            memo: Arc::default(),
            issuer: Issuer::new(mesh, services, seed),
            seed,
            limits,
            sidecars: BTreeMap::new(),
            strangers: BTreeMap::new(),
            lost_disks: BTreeMap::new(),
        }
    }

    /// Starts the network side of a host's run. What was left of an earlier one ends.
    pub fn start(&mut self, run: Run, node: &NodeId, addr: SocketAddr, cpu: Arc<Cpu>) {
        self.kill(run.host);
        if let Some(stranger) = self.strangers.remove(&addr) {
            self.end(stranger);
        }
        let chance = Chance::of(self.seed, &[RANDOM, u64::from(run.host), u64::from(run.epoch)]);
        let process = Process::new(self.reactor.clone(), run, cpu, self.memo.clone(), chance);
        let identity = self.issuer.identity(node, &process);
        let lost = self.lost_disks.get(&run.host).copied().unwrap_or_default();
        let reset_key = trust::bytes(self.seed, &format!("reset key {node} {lost}"));
        let sidecar = self.open(process, identity, addr, reset_key);
        self.sidecars.insert(run.host, sidecar);
    }

    /// A sidecar of another mesh takes an address over, if nobody is there, and asks `seeds` of this mesh to let it in.
    pub fn start_stranger(&mut self, host: u32, addr: SocketAddr, seeds: &[SocketAddr]) {
        if self.sidecars.values().any(|sidecar| sidecar.addr == addr) || self.strangers.contains_key(&addr) {
            return;
        }
        let node = NodeId::new(&format!("stranger-{host}")).expect("a valid name");
        let chance = Chance::of(self.seed, &[STRANGER, u64::from(host)]);
        // No run has epoch 0.
        let run = Run { host, epoch: 0 };
        let process = Process::new(self.reactor.clone(), run, Arc::default(), self.memo.clone(), chance);
        let identity = Issuer::new("another", &[], self.seed).identity(&node, &process);
        let reset_key = trust::bytes(self.seed, node.as_str());
        let stranger = self.open(process, identity, addr, reset_key);
        for (token, seed) in seeds.iter().filter(|seed| **seed != addr).enumerate() {
            stranger.process.enter(|| stranger.net.open_sync(token as u64, None, *seed, Bytes::new()));
        }
        self.strangers.insert(addr, stranger);
    }

    fn open(&self, process: Arc<Process>, identity: Arc<Identity>, addr: SocketAddr, reset_key: [u8; 32]) -> Sidecar {
        let runtime: Arc<dyn Runtime> = Arc::new(Virtual(process.clone()));
        let mut seed = [0; 32];
        process.fill(&mut seed);
        let config = NetConfig {
            identity: identity.clone(),
            socket: Socket::bind(self.wire.clone(), process.clone(), addr),
            runtime,
            reset_key,
            limits: self.limits.clone(),
            probe: Arc::new(Probe { wire: self.wire.clone(), process: process.clone(), ip: addr.ip() }),
            seed: Some(seed),
        };
        let (out, events) = mpsc::channel(EVENTS);
        let (net, _) = process.enter(|| Net::start(config, out)).expect("nothing here can be refused");
        Sidecar { process, net, identity, addr, events }
    }

    /// A host's network side.
    pub fn sidecar(&self, host: u32) -> Option<&Sidecar> {
        self.sidecars.get(&host)
    }

    /// The next thing that a host's network has to say.
    pub fn event(&mut self, run: Run) -> Option<NetEvent> {
        let sidecar = self.sidecars.get_mut(&run.host).filter(|sidecar| sidecar.process.run == run)?;
        sidecar.events.try_recv().ok()
    }

    /// A host's disk is lost, and its reset key with it.
    pub fn lose_disk(&mut self, host: u32) {
        *self.lost_disks.entry(host).or_default() += 1;
    }

    /// A host says goodbye to its peers; [`Level2::kill`] ends it afterwards.
    pub fn close(&self, host: u32) {
        if let Some(Sidecar { process, net, .. }) = self.sidecars.get(&host) {
            let net = net.clone();
            process.spawn(async move { net.close().await });
        }
    }

    /// A host's process ends without a word.
    pub fn kill(&mut self, host: u32) {
        if let Some(sidecar) = self.sidecars.remove(&host) {
            self.end(sidecar);
        }
    }

    /// The same, if it is still that run's.
    pub fn kill_run(&mut self, run: Run) {
        if self.sidecars.get(&run.host).is_some_and(|sidecar| sidecar.process.run == run) {
            self.kill(run.host);
        }
    }

    /// All of another mesh's sidecars at a host's addresses end.
    pub fn end_strangers(&mut self, host: u32) {
        let (gone, stay) =
            std::mem::take(&mut self.strangers).into_iter().partition(|(_, s)| s.process.run.host == host);
        self.strangers = stay;
        let gone: BTreeMap<SocketAddr, Sidecar> = gone;
        gone.into_values().for_each(|stranger| self.end(stranger));
    }

    fn end(&mut self, sidecar: Sidecar) {
        self.ended.add(sidecar.net.stats());
        self.wire.unbind(sidecar.addr);
        sidecar.process.kill();
        // Handles wake tasks that are no more.
        let process = sidecar.process.clone();
        process.enter(|| drop(sidecar));
    }

    /// Everything counted so far.
    pub fn totals(&self) -> Totals {
        let mut totals = self.ended.clone();
        self.sidecars.values().for_each(|sidecar| {
            totals.add(sidecar.net.stats());
            totals.connections += sidecar.net.connections() as u64;
        });
        totals.overflown = self.wire.overflown();
        totals
    }
}

impl Drop for Level2 {
    fn drop(&mut self) {
        let hosts: Vec<u32> = self.sidecars.keys().copied().collect();
        hosts.into_iter().for_each(|host| self.kill(host));
        let strangers = std::mem::take(&mut self.strangers);
        strangers.into_values().for_each(|stranger| self.end(stranger));
        self.reactor.clear();
    }
}

/// As the application has it: events that wait for the agent.
const EVENTS: usize = 1024;
const RANDOM: u64 = 61;
const STRANGER: u64 = 62;
