//! A few nodes, links with delay and loss, and time that jumps to what comes next. One seed, one order.

use std::{
    collections::{BTreeMap, BinaryHeap},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::{
    node::{DialError, Event, Input, InstanceSpec, MembershipConfig, Node, NodeConfig, Now, Output, Stored},
    routing::CandidateTable,
    types::{FakeTrust, Health, Lane, MemberState, Mono, NodeId, Protocol, ServiceName, Signal, VersionName, Wall},
};

/// The wall clock when virtual time starts.
const EPOCH: u64 = 1_700_000_000_000;
/// How long a write takes.
const FSYNC: Duration = Duration::from_millis(3);

enum What {
    Wake,
    Input(Input),
    /// A request for a sync, with whoever listens there by then.
    Dial {
        from: usize,
        token: u64,
        node: Option<NodeId>,
        request: Bytes,
    },
    Written {
        generation: u64,
        bytes: Bytes,
    },
    Reply {
        token: u64,
        from: NodeId,
        bytes: Bytes,
    },
}

struct Due {
    at: Mono,
    order: u64,
    /// The run that it is for: what was under way to a killed run is lost.
    run: u64,
    to: usize,
    what: What,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// One place where a node runs, or ran.
struct Host {
    addr: SocketAddr,
    node: Option<Node>,
    run: u64,
    woken: Option<Mono>,
    disk: Stored,
    table: Arc<CandidateTable>,
    events: Vec<Event>,
    signals: Vec<Signal>,
    silent: bool,
}

/// All of them.
pub struct World {
    now: Mono,
    hosts: Vec<Host>,
    names: Vec<NodeId>,
    queue: BinaryHeap<Due>,
    order: u64,
    chance: Pcg64,
    loss: f64,
    split: Option<usize>,
    syncs: BTreeMap<u64, (usize, u64, u64)>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self {
            now: Mono::from_millis(1000),
            hosts: Vec::new(),
            names: Vec::new(),
            queue: BinaryHeap::new(),
            order: 0,
            chance: Pcg64::seed_from_u64(seed),
            loss: 0.0,
            split: None,
            syncs: BTreeMap::new(),
        }
    }

    /// A mesh of `n` nodes named n0, n1, ...; n0 is everybody's seed. Each announces a passing instance of `orders`.
    pub fn mesh(n: usize, seed: u64) -> Self {
        let mut world = Self::new(seed);
        for at in 0..n {
            world.add(&format!("n{at}"), &["orders"]);
        }
        for at in 0..n {
            world.start(at);
        }
        world.run(Duration::from_millis(1500));
        world
    }

    /// A further host with a node's certificate; not started yet.
    pub fn add(&mut self, name: &str, _services: &[&str]) -> usize {
        let port = 7000 + self.hosts.len() as u16;
        self.hosts.push(Host {
            addr: ([127, 0, 0, 1], port).into(),
            node: None,
            run: 0,
            woken: None,
            disk: Stored::default(),
            table: Arc::default(),
            events: Vec::new(),
            signals: Vec::new(),
            silent: false,
        });
        self.names.push(NodeId::new(name).unwrap());
        self.hosts.len() - 1
    }

    pub fn start(&mut self, at: usize) {
        let seed = self.chance.next_u64();
        let config = NodeConfig {
            node: self.names[at].clone(),
            addr: self.hosts[at].addr,
            program: "test".into(),
            membership: MembershipConfig::lan(),
            coalesce: Duration::from_millis(500),
            seed,
        };
        let trust = Arc::new(FakeTrust::new(&self.names[at]));
        let now = self.time();
        let node = Node::new(config, trust, self.hosts[at].disk.clone(), now).unwrap();
        let host = &mut self.hosts[at];
        (host.node, host.run, host.woken, host.silent) = (Some(node), host.run + 1, None, false);
        host.events.clear();
        let seed_addr = self.hosts[0].addr;
        self.give(at, Input::Seeds(vec![seed_addr]));
        let id = self.names[at].as_str().to_owned();
        self.announce(at, &id, "v1");
    }

    pub fn announce(&mut self, at: usize, id: &str, version: &str) {
        let spec = InstanceSpec {
            id: id.parse().unwrap(),
            service: ServiceName::new("orders").unwrap(),
            host: "127.0.0.1".into(),
            port: 8000 + at as u16,
            protocol: Protocol::Http1,
            env: "prod".parse().unwrap(),
            region: "r".parse().unwrap(),
            zone: "z".parse().unwrap(),
            version: VersionName::new(version).unwrap(),
            lane: Lane::stable(),
            weight: 100,
            tags: BTreeMap::new(),
            capacity: None,
        };
        self.order_of(at, |node, now| {
            let id = spec.id.clone();
            node.announce(now, spec).unwrap();
            node.set_health(now, &id, Health::Passing);
        });
    }

    /// kill -9: nothing is said any more, and the port refuses.
    pub fn kill(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        (host.node, host.run, host.silent) = (None, host.run + 1, false);
    }

    /// The host is gone: not even its port refuses.
    pub fn vanish(&mut self, at: usize) {
        self.kill(at);
        self.hosts[at].silent = true;
    }

    pub fn lose_disk(&mut self, at: usize) {
        self.hosts[at].disk = Stored::default();
    }

    pub fn moves_to(&mut self, at: usize, port: u16) {
        self.hosts[at].addr.set_port(port);
    }

    pub fn set_loss(&mut self, loss: f64) {
        self.loss = loss;
    }

    /// Cuts the network between the hosts before this one and the rest.
    pub fn split_at(&mut self, at: Option<usize>) {
        self.split = at;
    }

    /// Something is asked of a node, outside of the network.
    pub fn order_of<T>(&mut self, at: usize, what: impl FnOnce(&mut Node, Now) -> T) -> T {
        let now = self.time();
        let result = what(self.hosts[at].node.as_mut().unwrap(), now);
        self.carry_out(at);
        result
    }

    pub fn give(&mut self, at: usize, input: Input) {
        self.order_of(at, |node, now| node.handle(now, input));
    }

    pub fn node(&self, at: usize) -> &Node {
        self.hosts[at].node.as_ref().unwrap()
    }

    pub fn name(&self, at: usize) -> &NodeId {
        &self.names[at]
    }

    pub fn events(&self, at: usize) -> &[Event] {
        &self.hosts[at].events
    }

    /// Signals that a node handed out.
    pub fn signals(&self, at: usize) -> &[Signal] {
        &self.hosts[at].signals
    }

    pub fn table(&self, at: usize) -> &CandidateTable {
        &self.hosts[at].table
    }

    pub fn running(&self) -> Vec<usize> {
        (0..self.hosts.len()).filter(|at| self.hosts[*at].node.is_some()).collect()
    }

    /// What `at` holds of `other`.
    pub fn state(&self, at: usize, other: usize) -> Option<MemberState> {
        let entry = self.node(at).catalog().member(&self.names[other])?;
        if entry.has_left() { Some(MemberState::Left) } else { self.node(at).membership().state(&self.names[other]) }
    }

    /// Whether all running nodes hold each other alive and everything else the same.
    pub fn converged(&self) -> bool {
        let running = self.running();
        running.iter().all(|at| {
            let others = running.iter().filter(|other| *other != at);
            self.node(*at).digest() == self.node(running[0]).digest()
                && others.clone().all(|other| self.state(*at, *other) == Some(MemberState::Alive))
        })
    }

    fn time(&self) -> Now {
        Now { mono: self.now, wall: Wall(EPOCH + self.now.millis()) }
    }

    pub fn run(&mut self, how_long: Duration) {
        self.run_until(how_long, |_| false);
    }

    /// Runs until it holds; how long it took, or `None` when it never did.
    pub fn run_until(&mut self, most: Duration, mut holds: impl FnMut(&Self) -> bool) -> Option<Duration> {
        let (began, end) = (self.now, self.now + most);
        loop {
            if holds(self) {
                return Some(self.now.since(began));
            }
            let Some(due) = self.queue.pop_if_before(end) else {
                self.now = end;
                return holds(self).then_some(most);
            };
            self.now = self.now.max(due.at);
            self.deliver(due);
        }
    }

    fn deliver(&mut self, due: Due) {
        let to = due.to;
        match due.what {
            What::Dial { from, token, node, request } => self.dialled(to, due.run, from, token, node, request),
            _ if due.run != self.hosts[to].run || self.hosts[to].node.is_none() => {}
            What::Wake => {
                self.hosts[to].woken = None;
                self.order_of(to, |node, now| {
                    if node.poll_timeout().is_some_and(|at| at <= now.mono) {
                        node.handle_timeout(now);
                    }
                });
            }
            What::Input(input) => self.give(to, input),
            What::Written { generation, bytes } => {
                self.hosts[to].disk = Stored::decode(&bytes).unwrap();
                self.give(to, Input::Persisted { generation });
            }
            What::Reply { token, from, bytes } => self.give(to, Input::SyncEnded { token, result: Ok((from, bytes)) }),
        }
    }

    /// A dial arrives at a host, where somebody may listen.
    fn dialled(&mut self, to: usize, run: u64, from: usize, token: u64, node: Option<NodeId>, request: Bytes) {
        if self.hosts[from].run != run {
            return;
        }
        let name = self.names[to].clone();
        let fault = if to == from {
            Some(DialError::Itself)
        } else if self.hosts[to].node.is_none() || self.cut(from, to) {
            return self.later(
                Duration::from_secs(1),
                from,
                What::Input(Input::SyncEnded { token, result: Err(DialError::Other("silence".into())) }),
            );
        } else if name == self.names[from] {
            Some(DialError::OwnName)
        } else if node.is_some_and(|node| node != name) {
            Some(DialError::Other("somebody else".into()))
        } else {
            None
        };
        if let Some(fault) = fault {
            return self.give(from, Input::SyncEnded { token, result: Err(fault) });
        }
        self.order += 1;
        let id = self.order;
        self.syncs.insert(id, (from, self.hosts[from].run, token));
        let (from, addr) = (self.names[from].clone(), self.hosts[from].addr);
        self.give(to, Input::SyncRequest { id, from, addr, bytes: request });
    }

    fn cut(&self, a: usize, b: usize) -> bool {
        self.split.is_some_and(|at| (a < at) != (b < at))
    }

    fn carry_out(&mut self, at: usize) {
        while let Some(output) = self.hosts[at].node.as_mut().and_then(Node::poll_output) {
            match output {
                Output::Send { addr, bytes, to } => self.send(at, &to, addr, bytes),
                Output::OpenSync { token, node, addr, request } => {
                    let to = self.host_at(addr);
                    match to {
                        Some(to) => {
                            let run = self.hosts[at].run;
                            let delay = self.delay() * 3;
                            self.push(delay, to, run, What::Dial { from: at, token, node, request });
                        }
                        None => self.later(
                            Duration::from_secs(1),
                            at,
                            What::Input(Input::SyncEnded {
                                token,
                                result: Err(DialError::Other("nobody there".into())),
                            }),
                        ),
                    }
                }
                Output::SyncReply { id, bytes } => {
                    if let Some((to, run, token)) = self.syncs.remove(&id) {
                        let (delay, from) = (self.delay(), self.names[at].clone());
                        self.push(delay, to, run, What::Reply { token, from, bytes });
                    }
                }
                Output::UdpProbe { token, addr } => {
                    let refused = self
                        .host_at(addr)
                        .is_some_and(|to| self.hosts[to].node.is_none() && !self.hosts[to].silent && !self.cut(at, to));
                    if refused {
                        self.later(Duration::from_micros(200), at, What::Input(Input::Refused { token }));
                    }
                }
                Output::Publish(table) => self.hosts[at].table = table,
                Output::Signal(signal) => self.hosts[at].signals.push(signal),
                Output::Persist { generation, stored } => {
                    // What a kill before the write is done leaves is the earlier file.
                    self.later(FSYNC, at, What::Written { generation, bytes: stored.encode().into() });
                }
                Output::Event(event) => self.hosts[at].events.push(event),
                Output::Retire(_) => {}
            }
        }
        let Some(due) = self.hosts[at].node.as_ref().and_then(Node::poll_timeout) else { return };
        if self.hosts[at].woken.is_none_or(|woken| due < woken) {
            self.hosts[at].woken = Some(due);
            self.later(due.since(self.now), at, What::Wake);
        }
    }

    fn send(&mut self, from: usize, name: &NodeId, addr: SocketAddr, bytes: Bytes) {
        let Some(to) = self.host_at(addr).filter(|to| &self.names[*to] == name) else { return };
        // What is too large for a datagram goes on a stream, which is not lost.
        let lost = bytes.len() <= crate::wire::MAX_DATAGRAM && self.chance.random_bool(self.loss);
        if self.cut(from, to) || lost {
            return;
        }
        let (from, addr, delay) = (self.names[from].clone(), self.hosts[from].addr, self.delay());
        self.later(delay, to, What::Input(Input::Envelope { from, addr, bytes }));
    }

    fn host_at(&self, addr: SocketAddr) -> Option<usize> {
        self.hosts.iter().rposition(|host| host.addr == addr)
    }

    fn delay(&mut self) -> Duration {
        Duration::from_micros(self.chance.random_range(500..2000))
    }

    fn later(&mut self, delay: Duration, to: usize, what: What) {
        let run = self.hosts[to].run;
        self.push(delay, to, run, what);
    }

    fn push(&mut self, delay: Duration, to: usize, run: u64, what: What) {
        self.order += 1;
        self.queue.push(Due { at: self.now + delay, order: self.order, run, to, what });
    }
}

trait PopIfBefore {
    fn pop_if_before(&mut self, end: Mono) -> Option<Due>;
}

impl PopIfBefore for BinaryHeap<Due> {
    fn pop_if_before(&mut self, end: Mono) -> Option<Due> {
        if self.peek().is_some_and(|due| due.at <= end) { self.pop() } else { None }
    }
}
