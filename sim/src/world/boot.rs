//! Hosts come, run and go.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use lanemesh::{
    health::Gate,
    node::{Input, InstanceSpec, Node, NodeConfig},
    routing::{Bell, Builder, Locality, Signals, Snapshot},
    types::{Env, InstanceId, Lane, NodeId, Protocol, Region, VersionName, Zone},
};

use super::World;
use crate::{
    app::{App, Mood},
    cpu::Cpu,
    host::{Disk, Host, Off},
    queue::{Event, MILLI, Run, SECOND, Time, seconds},
    scenario::Mesh,
    trust::SimTrust,
};

impl World {
    /// Everything that a scenario says from the start.
    pub(super) fn plan_start(&mut self) {
        let mesh = self.scenario.mesh.clone();
        for host in 0..mesh.nodes {
            self.add_host(None);
            if mesh.warm && !self.hosts[host as usize].foreign {
                continue;
            }
            let at = seconds(self.chance(&[START, u64::from(host)]).unit() * mesh.start);
            self.hosts[host as usize].started = at;
            self.queue.plan(at, Event::Resume(Run { host, epoch: 0 }));
        }
        for (index, step) in self.scenario.step.iter().enumerate() {
            self.queue.plan(seconds(step.t), Event::Begin(index as u32));
        }
        let calm = self.scenario.step.len() as u32;
        self.queue.plan(seconds(self.scenario.seconds), Event::End(calm));
        self.queue.plan(SECOND, Event::Sample);
        if mesh.warm {
            self.start_warm();
        }
    }

    /// A new host, not started. `name` for those that come late.
    pub(super) fn add_host(&mut self, name: Option<String>) -> u32 {
        let index = self.hosts.len() as u32;
        let id = NodeId::new(&name.unwrap_or_else(|| format!("n{index}"))).expect("a valid name");
        let mesh = &self.scenario.mesh;
        let foreign = index < mesh.nodes && index >= mesh.nodes - mesh.foreign;
        let cpu = self.scenario.cpu();
        let mut chance = self.chance(&[HOST, u64::from(index)]);
        let env = if chance.hits(mesh.staging) { "staging" } else { "prod" };
        let (region, zone) = mesh.place(index);
        let locality = Locality {
            env: Env::new(env).expect("a valid name"),
            region: Region::new(region).expect("a valid name"),
            zone: Zone::new(&format!("{region}-{zone}")).expect("a valid name"),
            tags: Default::default(),
        };
        // By turns, so that every service has its share of canaries.
        let turn = f64::from(index / mesh.services);
        let canary = ((turn + 1.0) * mesh.canary).floor() > (turn * mesh.canary).floor();
        let mut apps = vec![new_app(index, 0, &self.services, canary, mesh)];
        if index == 0 {
            apps.extend(
                (0..mesh.extra_instances.min(250)).map(|at| new_app(0, at as u8 + 1, &self.services, false, mesh)),
            );
        }
        self.hosts.push(Host {
            index,
            addr: address(index, 0),
            node: None,
            off: Some(Off::Never),
            epoch: 0,
            moves: 0,
            stored: None,
            disk: Disk::Works,
            paused: None,
            frozen: false,
            leaving: false,
            inbox: VecDeque::new(),
            foreign,
            clock: 0,
            drift: (0.0, 0),
            builder: Builder::new(locality.clone()).sharing(&self.rings),
            signals: Signals::new(id.clone()),
            bell: Arc::new(Bell::new(|| {})),
            told: 0,
            locality,
            snapshot: Arc::new(Snapshot::empty()),
            table: None,
            wake: None,
            apps,
            started: 0,
            ended: 0,
            lies: false,
            ever_lied: false,
            blank: true,
            said_goodbye: false,
            left_at: 0,
            slow_at: 0,
            ready_since: None,
            trouble: 0,
            clean_since: 0,
            island: None,
            island_since: 0,
            sent: (0, 0),
            cpu: Arc::new(Cpu::new(cpu)),
            busy_until: 0,
            free_at: None,
            wakes: (0, 0),
            id: id.clone(),
        });
        self.names.insert(id, index);
        index
    }

    /// Starts a host's sidecar, and its applications if they do not run.
    pub(super) fn boot(&mut self, host: u32, with_disk: bool, moves: bool) {
        let at = host as usize;
        if self.hosts[at].is_up() {
            return;
        }
        if moves {
            self.hosts[at].moves += 1;
        }
        let addr = address(host, self.hosts[at].moves);
        if !with_disk {
            self.hosts[at].stored = None;
        }
        self.hosts[at].addr = addr;
        self.hosts[at].epoch += 1;
        self.hosts[at].blank = self.hosts[at].stored.is_none();
        self.hosts[at].said_goodbye = false;
        self.start_real(host, with_disk);
        let Some(node) = self.new_node(host) else { return };
        let (now, run) = (self.now, self.hosts[at].run());
        let entry = &mut self.hosts[at];
        entry.node = Some(node);
        (entry.off, entry.paused, entry.frozen, entry.leaving) = (None, None, false, false);
        (entry.started, entry.ready_since, entry.clean_since) = (now, None, now);
        (entry.wake, entry.table) = (None, None);
        (entry.busy_until, entry.free_at) = (0, None);
        entry.inbox.clear();
        entry.snapshot = Arc::new(Snapshot::empty());
        super::signals::begin(entry, &self.routing, &self.rings);
        self.addrs.insert(addr, host);
        self.announce_all(host);
        let clock = self.hosts[at].now(now);
        if let Some(node) = &mut self.hosts[at].node {
            node.handle_timeout(clock);
        }
        self.drain(host);
        self.after(MILLI, Event::Seeds(run));
        let mut chance = self.chance(&[BOOT, u64::from(host), u64::from(run.epoch)]);
        for app in 0..self.hosts[at].apps.len() {
            self.hosts[at].apps[app].gate = new_gate();
            self.hosts[at].apps[app].withdrawn = false;
            self.start_app(host, app as u8, seconds(chance.between(0.05, 0.4)));
            self.after(seconds(chance.between(0.01, 0.1)), Event::Check { at: run, app: app as u8 });
        }
        if self.scenario.mesh.rate > 0.0 {
            let wait = seconds(chance.waiting(self.scenario.mesh.rate));
            self.after(wait, Event::Client(run));
        }
        self.islands_changed();
    }

    fn new_node(&mut self, host: u32) -> Option<Node> {
        let entry = &self.hosts[host as usize];
        let services = self.certified(host);
        let config = NodeConfig {
            node: entry.id.clone(),
            addr: entry.addr,
            program: "sim".into(),
            membership: self.scenario.membership(),
            coalesce: COALESCE,
            seed: self.chance(&[NODE, u64::from(host), u64::from(entry.epoch)]).next(),
        };
        let mesh = if entry.foreign { OTHER_MESH } else { MESH };
        let trust = self.real_trust(host, true).unwrap_or_else(|| {
            Arc::new(SimTrust::honest(mesh, &entry.id, &services, self.register.clone()).on(entry.cpu.clone()))
        });
        match Node::new(config, trust, entry.load(), entry.now(self.now)) {
            Ok(node) => Some(node),
            Err(error) => {
                self.findings.add("node-starts", format!("{} does not start: {error}", entry.id));
                None
            }
        }
    }

    /// Services that a host's certificate lists: those of its applications.
    pub fn certified(&self, host: u32) -> Vec<lanemesh::types::ServiceName> {
        let served = self.hosts[host as usize].apps.iter().map(|app| app.service);
        let served: std::collections::BTreeSet<usize> = served.collect();
        served.into_iter().map(|service| self.services[service].clone()).collect()
    }

    pub(super) fn announce_all(&mut self, host: u32) {
        let specs: Vec<InstanceSpec> = self.hosts[host as usize].apps.iter().map(|app| self.spec(host, app)).collect();
        let entry = &mut self.hosts[host as usize];
        let now = entry.now(self.now);
        for spec in specs {
            if let Some(Err(error)) = entry.node.as_mut().map(|node| node.announce(now, spec)) {
                self.findings.add("node-starts", format!("{} can't announce: {error}", entry.id));
            }
        }
    }

    pub(super) fn spec(&self, host: u32, app: &App) -> InstanceSpec {
        let entry = &self.hosts[host as usize];
        InstanceSpec {
            id: app.id.clone(),
            service: self.services[app.service].clone(),
            host: entry.addr.ip().to_string(),
            port: app.port,
            protocol: Protocol::Http1,
            env: entry.locality.env.clone(),
            region: entry.locality.region.clone(),
            zone: entry.locality.zone.clone(),
            version: VersionName::new(&app.version).expect("a valid version"),
            lane: if app.canary { Lane::new("canary").expect("a valid name") } else { Lane::stable() },
            weight: app.weight,
            tags: self.tags(host),
            capacity: Some(self.scenario.mesh.capacity as u32).filter(|capacity| *capacity > 0),
        }
    }

    /// Tags of a host's instances.
    pub fn tags(&self, host: u32) -> BTreeMap<String, String> {
        let Mesh { tag_bytes, racks, services, .. } = &self.scenario.mesh;
        let padding = (*tag_bytes > 0).then(|| ("padding".to_owned(), "x".repeat(*tag_bytes as usize)));
        let rack = (host / services).checked_rem(*racks).map(|rack| ("rack".to_owned(), format!("r{rack}")));
        padding.into_iter().chain(rack).collect()
    }

    /// A sidecar's process is gone: nothing of it is left but what it wrote down.
    pub(super) fn end_run(&mut self, host: u32, why: Off) {
        let now = self.now;
        let entry = &mut self.hosts[host as usize];
        if entry.node.take().is_none() {
            return;
        }
        let run = entry.run();
        self.addrs.remove(&entry.addr);
        (entry.off, entry.ended, entry.paused, entry.frozen) = (Some(why), now, None, false);
        entry.inbox.clear();
        entry.table = None;
        if !self.hosts.iter().any(|host| host.is_member()) {
            // Nobody is left; what they held may be gone with their disks.
            self.stats.orders.clear();
            self.stats.lineage.clear();
        }
        self.end_real(run, why);
        self.islands_changed();
    }

    /// The configured seeds' addresses now; their names are looked up again every 5 s.
    pub(super) fn resolve_seeds(&mut self, run: Run) {
        let foreign = self.hosts[run.host as usize].foreign;
        // Another mesh was given these, and knows some of its own.
        let of_other = self.hosts.iter().filter(|host| foreign && host.foreign).take(3).map(|host| host.addr);
        let seeds = self.seeds().into_iter().chain(of_other).collect();
        self.feed(run.host, Input::Seeds(seeds));
        self.after(5 * SECOND, Event::Seeds(run));
    }

    /// The present addresses of the configured seeds.
    pub(super) fn seeds(&self) -> Vec<SocketAddr> {
        self.hosts.iter().take(self.scenario.mesh.seeds as usize).map(|seed| seed.addr).collect()
    }

    /// A stopped process goes on; a host's first start is one as well.
    pub(super) fn resume(&mut self, run: Run) {
        let (now, at) = (self.now, run.host as usize);
        if self.hosts[at].off == Some(Off::Never) {
            return self.boot(run.host, true, false);
        }
        let entry = &mut self.hosts[at];
        if entry.epoch != run.epoch || entry.paused.is_none_or(|until| until > now) {
            return;
        }
        (entry.paused, entry.frozen) = (None, false);
        let waiting = std::mem::take(&mut entry.inbox);
        // The agent takes what came before it looks at the clock.
        for event in waiting {
            self.happen(event);
        }
        self.wake(run.host);
        self.release_real(run.host);
    }

    /// A host's process stands still until then.
    pub(super) fn pause(&mut self, host: u32, until: Time, with_apps: bool) {
        let entry = &mut self.hosts[host as usize];
        if !entry.is_up() || entry.paused.is_some_and(|already| already >= until) {
            return;
        }
        entry.paused = Some(until);
        entry.slow_at = entry.slow_at.max(until);
        entry.frozen |= with_apps;
        let run = entry.run();
        self.queue.plan(until, Event::Resume(run));
    }
}

/// Rise and fall as the configuration's defaults have them.
pub(super) fn new_gate() -> Gate {
    Gate::new(2, 2)
}

fn new_app(host: u32, number: u8, services: &[lanemesh::types::ServiceName], canary: bool, mesh: &Mesh) -> App {
    let service = (host as usize + usize::from(number)) % services.len();
    let id = match number {
        0 => format!("{}-{host}", services[service]),
        _ => format!("{}-{host}-{number}", services[service]),
    };
    App {
        id: InstanceId::new(&id).expect("a valid name"),
        service,
        port: FIRST_PORT + u16::from(number),
        version: if canary { "v2" } else { "v1" }.into(),
        canary,
        listening: false,
        held_down: false,
        start: 0,
        mood: Mood::Well,
        drained: None,
        well_since: None,
        weight: 100,
        withdrawn: false,
        shallow: mesh.shallow,
        most_rate: mesh.most_rate,
        busy_until: 0,
        gate: new_gate(),
        strength: 1.0,
        asked: (0, 0),
    }
}

/// Of a host after so many moves: the machine and its address are one.
pub(super) fn address(host: u32, moves: u8) -> SocketAddr {
    let ip = Ipv4Addr::new(10, moves, (host >> 8) as u8, host as u8);
    SocketAddr::from((ip, GOSSIP_PORT))
}

/// The host of an address, if it is its present one.
pub(super) fn host_at(ip: Ipv4Addr, hosts: &[Host]) -> Option<u32> {
    machine_of(ip, hosts).filter(|host| hosts[*host as usize].moves == ip.octets()[1])
}

/// The host whose address it is or was.
pub(super) fn machine_of(ip: Ipv4Addr, hosts: &[Host]) -> Option<u32> {
    let [_, _, high, low] = ip.octets();
    let host = u32::from(high) << 8 | u32::from(low);
    hosts.get(host as usize).map(|entry| entry.index)
}

pub(super) const MESH: &str = "sim";
const OTHER_MESH: &str = "other";
const GOSSIP_PORT: u16 = 7946;
/// Port of a host's first application.
pub(super) const FIRST_PORT: u16 = 8000;
const COALESCE: std::time::Duration = std::time::Duration::from_millis(300);
const START: u64 = 10;
const HOST: u64 = 11;
const BOOT: u64 = 12;
const NODE: u64 = 13;
