//! The simulated world: hosts, network, users, faults, and the loop over the future.
//!
//! One thread, one queue, one seed. Invariant: everything that happens is an [`Event`] at a time, handled in order; the log's
//! hash covers each. Not here: what is right and wrong (`invariants`).

mod boot;
mod faults;
mod lies;
mod oracle;
mod orders;
mod real;
mod signals;
mod traffic;
mod warm;
mod wire;

use std::{collections::VecDeque, net::SocketAddr, sync::Arc};

use lanemesh::{
    config::Routing,
    node::{Node, Now},
    routing::Rings,
    types::{Env, InstanceId, NodeId, ServiceName},
};
use rustc_hash::FxHashMap;

pub use self::{
    faults::Fault,
    oracle::Members,
    traffic::{End, Flight, TIMEOUTS, Target, is_tester, subject},
};
use crate::{
    bounds::Bounds,
    chance::Chance,
    conns::Conns,
    host::Host,
    invariants::{Findings, Invariant},
    level2::Level2,
    links::Links,
    log::Log,
    queue::{Event, Queue, Run, SECOND, Time, seconds},
    record::Record,
    scenario::Scenario,
    stats::Stats,
    trust::Register,
};

/// One simulation.
pub struct World {
    /// The seed.
    pub seed: u64,
    /// What is played.
    pub scenario: Scenario,
    /// How long what a fault leaves behind may show.
    pub bounds: Bounds,
    /// Virtual time.
    pub now: Time,
    /// Everybody, also those who are gone.
    pub hosts: Vec<Host>,
    /// The network.
    pub links: Links,
    /// Connections between sidecars.
    pub conns: Conns,
    /// What every sidecar is told about routing.
    pub routing: Arc<Routing>,
    /// Service names by index.
    pub services: Vec<ServiceName>,
    /// Everything honestly signed.
    pub register: Arc<Register>,
    /// Faults that were begun, by step.
    pub faults: Vec<Fault>,
    /// Rings that hosts share: pure by content. What each makes of its own is charged to it all the same.
    pub rings: Rings,
    /// What is counted.
    pub stats: Stats,
    /// What is written down for figures, if anything.
    pub record: Option<Record>,
    /// What happened.
    pub log: Log,
    /// What is wrong.
    pub findings: Findings,
    /// When links were last cut.
    pub cut_at: Option<Time>,
    /// The real network, at level 2.
    pub(crate) real: Option<Level2>,
    /// When all faults ended, once they have.
    pub calm_since: Option<Time>,
    queue: Queue,
    names: FxHashMap<NodeId, u32>,
    addrs: FxHashMap<SocketAddr, u32>,
    syncs: FxHashMap<u64, Asker>,
    next_sync: u64,
    flights: Vec<Option<Box<Flight>>>,
    /// Who calls what, by environment, mesh, and how many hosts there ever were: what a host serves is decided when it is made.
    called: FxHashMap<(Env, bool, usize), Arc<[usize]>>,
    free: Vec<u32>,
    pooled: FxHashMap<(u32, u32, u8), (u32, Time)>,
    overheard: VecDeque<lanemesh::wire::Statement>,
    /// Lies that are being told: only then somebody listens.
    liars: usize,
    checks: Vec<Box<dyn Invariant>>,
    stop_at_first: bool,
}

/// Who waits for a sync's answer.
struct Asker {
    asker: Run,
    token: u64,
    by: u32,
}

impl World {
    /// A world in which nothing has happened yet. The scenario must have passed its check.
    pub fn new(scenario: Scenario, seed: u64, log: Log) -> Self {
        let services = (0..scenario.mesh.services)
            .map(|at| SERVICES[at as usize % SERVICES.len()].parse().expect("a valid name"))
            .collect();
        let mut world = Self {
            seed,
            bounds: Bounds::of(&scenario.membership()),
            now: 0,
            hosts: Vec::new(),
            links: Links::new(seed, scenario.mesh.link),
            conns: Conns::default(),
            routing: Arc::new(scenario.mesh.rules().unwrap_or_default()),
            services,
            register: Arc::default(),
            faults: Vec::new(),
            rings: Rings::default(),
            stats: Stats::default(),
            record: None,
            log,
            findings: Findings::default(),
            cut_at: None,
            real: None,
            calm_since: None,
            queue: Queue::default(),
            names: FxHashMap::default(),
            addrs: FxHashMap::default(),
            syncs: FxHashMap::default(),
            next_sync: 0,
            flights: Vec::new(),
            called: FxHashMap::default(),
            free: Vec::new(),
            pooled: FxHashMap::default(),
            overheard: VecDeque::new(),
            liars: 0,
            checks: crate::invariants::all(&scenario),
            stop_at_first: false,
            scenario,
        };
        if world.scenario.level == 2 {
            world.make_real();
        }
        world.plan_start();
        world
    }

    /// Ends a run at the first violation (for shrinking).
    pub fn stop_at_first(&mut self) {
        self.stop_at_first = true;
    }

    /// Lets somebody look on as an invariant does.
    pub fn watch(&mut self, watcher: Box<dyn Invariant>) {
        self.checks.push(watcher);
    }

    /// When it ends.
    pub fn end(&self) -> Time {
        seconds(self.scenario.seconds) + seconds(self.scenario.settle)
    }

    /// Plays everything, calling `each_second` once a virtual second.
    pub fn play(&mut self, mut each_second: impl FnMut(&mut Self)) {
        let end = self.end();
        let mut this_second = 0;
        while let Some((at, event)) = self.queue.next(end) {
            let sampled = matches!(event, Event::Sample);
            this_second = if sampled { 0 } else { this_second + 1 };
            if this_second > STORM + STORM_PER_HOST * self.hosts.len() {
                self.findings.add("no-storm", format!("{this_second} events within one virtual second"));
                self.findings.stamp(at);
                return;
            }
            self.step(at, event);
            if sampled {
                each_second(self);
            }
            if self.stop_at_first && !self.findings.is_empty() {
                return;
            }
        }
        self.now = end;
        self.with_checks(|checks, world, found| checks.iter_mut().for_each(|check| check.end(world, found)));
    }

    /// Plays until then, and no further.
    pub fn advance(&mut self, until: Time) {
        while let Some((at, event)) = self.queue.next(until) {
            self.step(at, event);
        }
        self.now = self.now.max(until);
    }

    fn step(&mut self, at: Time, event: Event) {
        debug_assert!(at >= self.now);
        self.now = at;
        self.links.now = at;
        self.log.stamp(at, &event);
        self.stats.events += 1;
        self.happen(event);
        self.turn();
    }

    /// Has a host's operator do something to its first instance.
    pub fn order(&mut self, host: u32, what: impl FnOnce(&mut Node, Now, &InstanceId)) {
        let entry = &mut self.hosts[host as usize];
        let (now, id) = (entry.now(self.now), entry.apps[0].id.clone());
        if let Some(node) = &mut entry.node {
            what(node, now, &id);
            self.drain(host);
        }
    }

    /// A chance of its own for whatever the parts name.
    pub fn chance(&self, parts: &[u64]) -> Chance {
        Chance::of(self.seed, parts)
    }

    /// Plans an event after some time.
    pub fn after(&mut self, delay: Time, event: Event) {
        self.queue.plan(self.now + delay, event);
    }

    /// The host of a name.
    pub fn host_of(&self, node: &NodeId) -> Option<u32> {
        self.names.get(node).copied()
    }

    fn happen(&mut self, event: Event) {
        let Some(event) = self.admit(event) else { return };
        match event {
            // One that was planned before an earlier one came up is not run.
            Event::Wake(run) if self.hosts[run.host as usize].wake != Some(self.now) => {}
            Event::Wake(run) => self.wake(run.host),
            Event::Envelope { to, from, addr, bytes } => self.envelope(to.host, from, addr, bytes),
            Event::SyncAsked { to, sync, bytes } => self.sync_asked(to.host, sync, bytes),
            Event::SyncEnded { to, token, result } => self.sync_ended(to.host, token, result),
            Event::Refused { to, token } => self.feed(to.host, lanemesh::node::Input::Refused { token }),
            Event::Seeds(run) => self.resolve_seeds(run),
            Event::Tell(run) => self.tell(run),
            Event::Check { at, app } => self.check_app(at, app),
            Event::Listen { at, app, start } => self.listen(at, app, start),
            Event::Client(run) => self.client(run),
            Event::Flight(flight) => self.fly(flight),
            Event::Tried { flight, outcome, status } => self.tried(flight, outcome, status),
            Event::Waited { flight, since, end, outcome, status } => self.waited(flight, since, end, (outcome, status)),
            Event::Resume(run) => self.resume(run),
            Event::Starve { at, fault } => self.starve(at, fault),
            Event::Begin(step) => self.begin(step),
            Event::End(step) => self.finish(step),
            Event::Part { step, part } => self.part(step, part),
            Event::Sample => self.sample(),
            Event::Packet(packet) => self.packet(*packet),
            Event::Due => self.due(),
            Event::Free(run) => self.free(run),
            Event::Gone(run) => self.gone(run),
        }
    }

    /// Drops what is for a run that ended; keeps back what is for a process that stands still.
    fn admit(&mut self, event: Event) -> Option<Event> {
        let (run, waits) = match &event {
            Event::Wake(run) => (*run, false),
            Event::Envelope { to, .. } => (*to, true),
            Event::SyncAsked { to, .. } | Event::SyncEnded { to, .. } | Event::Refused { to, .. } => (*to, true),
            Event::Seeds(run) | Event::Client(run) | Event::Tell(run) => (*run, true),
            Event::Check { at, .. } => (*at, true),
            _ => return Some(event),
        };
        let now = self.now;
        let host = &mut self.hosts[run.host as usize];
        if host.epoch != run.epoch || host.node.is_none() {
            return None;
        }
        let paused = host.paused.is_some_and(|until| until > now);
        if !paused && host.busy_until <= now {
            return Some(event);
        }
        if matches!(event, Event::Wake(_)) {
            // Its timer is run when it goes on, or has done what it is at.
            host.wake = None;
        } else if waits && host.inbox.len() < INBOX {
            host.inbox.push_back(event);
        }
        if !paused {
            self.plan_free(run.host);
        }
        None
    }

    fn sample(&mut self) {
        self.after(SECOND, Event::Sample);
        self.note_ready();
        self.with_checks(|checks, world, found| checks.iter_mut().for_each(|check| check.sample(world, found)));
    }

    /// Lets every invariant look.
    fn with_checks(&mut self, look: impl FnOnce(&mut [Box<dyn Invariant>], &World, &mut Findings)) {
        let mut checks = std::mem::take(&mut self.checks);
        let mut found = std::mem::take(&mut self.findings);
        look(&mut checks, self, &mut found);
        found.stamp(self.now);
        self.checks = checks;
        self.findings = found;
    }
}

/// Events in one virtual second that only a storm brings about: ten times what a cold start of 1,000 hosts takes.
const STORM: usize = 20_000;
const STORM_PER_HOST: usize = 5_000;
/// What a socket's buffer and the agent's channel hold while a process stands still or is at work.
const INBOX: usize = 1024;
const SERVICES: [&str; 26] = [
    "orders", "users", "carts", "stock", "pay", "mail", "search", "media", "geo", "auth", "prices", "tax", "ship",
    "rates", "notes", "feed", "chat", "maps", "logs", "jobs", "flags", "tags", "docs", "keys", "sync", "edge",
];
