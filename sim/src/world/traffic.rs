//! The data path: users' requests through each sidecar's real `choose` and `Attempts`, applications that answer or do not,
//! and the checks of a sidecar on its own application.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use lanemesh::{
    lanes::{Head, PlainHead},
    node::Input,
    routing::{
        Attempts, AttemptsConfig, Decision, GiveUp, InFlight, MethodClass, Outcome, Request, ServiceView, Snapshot,
        Step, choose,
    },
    types::{Health, Mono},
};

use super::{
    World,
    boot::{FIRST_PORT, host_at},
};
use crate::{
    app::CHECK_TIMEOUT,
    invariants::Try,
    queue::{Event, MILLI, Run, SECOND, Time},
    record::Landed,
};

/// Time limits of a request, as the configuration's defaults have them.
pub const TIMEOUTS: AttemptsConfig =
    AttemptsConfig { max_retries: 2, per_try: Duration::from_secs(5), total: Duration::from_secs(15) };

/// An application that a try goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The host that lives at the record's address now.
    pub host: u32,
    /// Its application.
    pub app: u8,
}

/// One request on its way.
pub struct Flight {
    /// Whose sidecar handles it.
    pub at: Run,
    /// The view it was decided on.
    pub snapshot: Arc<Snapshot>,
    /// Index of its service.
    pub service: usize,
    /// Who sent it.
    pub user: u32,
    /// Its method's class.
    pub class: MethodClass,
    /// What was decided.
    pub decision: Decision,
    /// When it came.
    pub begun: Time,
    /// Where it went, in order; `None` where nobody lives at the address.
    pub tries: Vec<Option<Target>>,
    /// How often it was sent: tries that were refused don't count.
    pub sent: u32,
    /// How its tries ended, in order; also those over a pooled connection that had closed.
    pub outcomes: Vec<Outcome>,
    attempts: Attempts,
    /// The instance that it waits for.
    waits: Option<(u16, InFlight)>,
    /// Start of the application that the current try went to.
    app_start: u32,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With an answer of this status, from there.
    Answered(u16, Target),
    /// Without one.
    GaveUp(GiveUp),
}

impl World {
    /// A user of a host sends a request, and will send another.
    pub(super) fn client(&mut self, run: Run) {
        self.stats.requests += 1;
        let number = self.stats.requests;
        let mut chance = self.chance(&[CLIENT, u64::from(run.host), self.now]);
        let wait = chance.waiting(self.scenario.mesh.rate);
        self.after((wait * SECOND as f64) as Time + 1, Event::Client(run));
        if self.hosts[run.host as usize].leaving || self.hosts[run.host as usize].ready_since.is_none() {
            // Its application is not sent users any more, or not yet.
            self.stats.requests -= 1;
            return;
        }
        let called = self.called_by(run.host);
        let Some(service) = chance.pick(&called).copied() else {
            self.stats.requests -= 1;
            return;
        };
        let user = match chance.hits(self.scenario.mesh.hot) {
            true => 0,
            false => chance.below(self.scenario.mesh.users.max(1) as usize) as u32,
        };
        let class = match chance.below(10) {
            0 => MethodClass::Other,
            1 | 2 => MethodClass::Idempotent,
            _ => MethodClass::Safe,
        };
        let snapshot = self.view(run.host);
        let subject = subject(user);
        let head = is_tester(user).then(testers_head);
        let request = Request {
            subject: Some(&subject),
            route_key: None,
            explicit_lane: None,
            method: class,
            random: chance.next(),
            head: head.as_ref().map(|head| head as &dyn Head),
        };
        let now = Mono(self.now);
        let Some(view) = snapshot.service(self.services[service].as_str()) else {
            return self.unknown_service(run, service);
        };
        let decision = choose(&snapshot, view, &request, now);
        let attempts = Attempts::new(&decision, class, true, TIMEOUTS, now);
        let flight = Flight {
            at: run,
            snapshot,
            service,
            user,
            class,
            decision,
            begun: self.now,
            tries: Vec::new(),
            sent: 0,
            outcomes: Vec::new(),
            attempts,
            waits: None,
            app_start: 0,
        };
        self.with_checks(|checks, world, found| {
            checks.iter_mut().for_each(|check| check.decided(world, &flight, found));
        });
        let at = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() as u32 - 1
        });
        self.flights[at as usize] = Some(Box::new(flight));
        debug_assert!(number > 0);
        self.fly(at);
    }

    /// The services that somebody in the host's environment serves.
    fn called_by(&mut self, host: u32) -> Arc<[usize]> {
        let (env, foreign) = (&self.hosts[host as usize].locality.env, self.hosts[host as usize].foreign);
        let key = (env.clone(), foreign, self.hosts.len());
        if let Some(known) = self.called.get(&key) {
            return known.clone();
        }
        let here = |host: &&crate::host::Host| host.locality.env == *env && host.foreign == foreign;
        let mut served = vec![false; self.services.len()];
        for app in self.hosts.iter().filter(here).flat_map(|host| &host.apps) {
            served[app.service] |= !app.canary;
        }
        let served: Arc<[usize]> = (0..served.len()).filter(|service| served[*service]).collect();
        self.called.insert(key, served.clone());
        served
    }

    /// A host's view; what a newer one moved is looked at.
    pub fn view(&mut self, host: u32) -> Arc<Snapshot> {
        let now = self.now;
        let entry = &mut self.hosts[host as usize];
        if entry.table.is_none() {
            return entry.snapshot.clone();
        }
        let before = entry.snapshot.clone();
        let after = entry.view(now);
        self.stats.snapshots += 1;
        self.with_checks(|checks, world, found| {
            checks.iter_mut().for_each(|check| check.published(world, host, &before, &after, found));
        });
        after
    }

    fn unknown_service(&mut self, run: Run, service: usize) {
        self.stats.failed += 1;
        self.stats.unknown_service += 1;
        self.with_checks(|checks, world, found| {
            checks.iter_mut().for_each(|check| check.unknown_service(world, run.host, service, found));
        });
    }

    /// Does what `Attempts` says.
    pub(super) fn fly(&mut self, at: u32) {
        let Some(mut flight) = self.flights[at as usize].take() else { return };
        if self.hosts[flight.at.host as usize].epoch != flight.at.epoch || !self.hosts[flight.at.host as usize].is_up()
        {
            // Its sidecar is gone, and its user with it.
            self.free.push(at);
            return;
        }
        let snapshot = flight.snapshot.clone();
        let view = snapshot.service(self.services[flight.service].as_str()).expect("it was decided on this view");
        match flight.attempts.next(view, Mono(self.now)) {
            Step::Wait(until) => self.queue.plan(until.0, Event::Flight(at)),
            Step::GiveUp(why) => {
                let end = match why {
                    // The last answer is passed on where there is one.
                    GiveUp::RetriesUsedUp => {
                        flight.tries.last().copied().flatten().map(|target| End::Answered(503, target))
                    }
                    _ => None,
                };
                self.landed(&flight, end.unwrap_or(End::GaveUp(why)));
                self.free.push(at);
                return;
            }
            Step::Try { instance, until, fresh } => {
                let entry = &view.instances[usize::from(instance)];
                let ip: Option<Ipv4Addr> = entry.record.host.parse().ok();
                let host = ip.and_then(|ip| host_at(ip, &self.hosts));
                let target = host.map(|host| Target { host, app: (entry.record.port - FIRST_PORT) as u8 });
                flight.tries.push(target);
                if let (Some(record), Some(host), [_]) = (&mut self.record, host, &flight.tries[..]) {
                    record.firsts.push((flight.begun, host));
                }
                let attempt = Try { flight: &flight, entry, target };
                self.with_checks(|checks, world, found| {
                    checks.iter_mut().for_each(|check| check.tried(world, &attempt, found));
                });
                let (delay, outcome, status) = self.exchange(&mut flight, target, fresh, until.0 - self.now);
                flight.waits = Some((instance, entry.cell.enter()));
                self.wait(at, self.now + delay, (outcome, status), elsewhere(&flight, view));
            }
        }
        self.flights[at as usize] = Some(flight);
    }

    /// A try goes on until it ends, or until it is time to see whether anybody hears of the instance.
    fn wait(&mut self, at: u32, end: Time, (outcome, status): (Outcome, u16), elsewhere: bool) {
        let since = self.now;
        match elsewhere && since + SILENCE < end {
            true => self.queue.plan(since + SILENCE, Event::Waited { flight: at, since, end, outcome, status }),
            false => self.queue.plan(end, Event::Tried { flight: at, outcome, status }),
        }
    }

    /// An instance that has several waiting and answers nobody is left, as the proxy does (`proxy.timeouts.silence`).
    pub(super) fn waited(&mut self, at: u32, since: Time, end: Time, (outcome, status): (Outcome, u16)) {
        let Some(flight) = &self.flights[at as usize] else { return };
        let view =
            flight.snapshot.service(self.services[flight.service].as_str()).expect("it was decided on this view");
        let (host, now) = (flight.at.host, Mono(self.now));
        let silent = flight.waits.as_ref().is_some_and(|(instance, _)| {
            let entry = &view.instances[usize::from(*instance)];
            view.still_waits(entry, now);
            let alone = entry.cell.in_flight() < WAITING && entry.cell.open_until(now).is_none();
            !alone && entry.cell.last_heard().is_none_or(|heard| heard.0 <= since)
        });
        self.look_for_failures(host);
        match silent {
            true => self.tried(at, Outcome::Timeout, 0),
            false => self.wait(at, end, (outcome, status), true),
        }
    }

    /// A try ends.
    pub(super) fn tried(&mut self, at: u32, outcome: Outcome, status: u16) {
        let Some(mut flight) = self.flights[at as usize].take() else { return };
        let target = flight.tries.last().copied().flatten();
        let outcome = self.as_it_came(&flight, target, outcome);
        let snapshot = flight.snapshot.clone();
        let view = snapshot.service(self.services[flight.service].as_str()).expect("it was decided on this view");
        let waited = flight.waits.take();
        if let (Some((instance, _)), Outcome::Answered(_) | Outcome::RetryableStatus(_)) = (&waited, outcome) {
            view.instances[usize::from(*instance)].cell.heard(Mono(self.now));
        }
        flight.outcomes.push(outcome);
        if matches!(outcome, Outcome::Reset | Outcome::Timeout | Outcome::RetryableStatus(_)) {
            flight.sent += 1;
        }
        if outcome == Outcome::StaleConnection {
            // The same instance again: not another try.
            flight.tries.pop();
        }
        flight.attempts.ended(outcome, view, Mono(self.now));
        self.look_for_failures(flight.at.host);
        if matches!(outcome, Outcome::Answered(_)) {
            if let Some(target) = target {
                self.control(flight.at.host, target.host);
                self.landed(&flight, End::Answered(status, target));
            }
            self.free.push(at);
            return;
        }
        self.flights[at as usize] = Some(flight);
        self.fly(at);
    }

    /// What happened on the way may have changed the end that was foreseen.
    fn as_it_came(&self, flight: &Flight, target: Option<Target>, outcome: Outcome) -> Outcome {
        let Some(Target { host, app }) = target else { return outcome };
        let answered = matches!(outcome, Outcome::Answered(_) | Outcome::RetryableStatus(_) | Outcome::Timeout);
        let broke = self.hosts[host as usize].apps.get(usize::from(app)).is_none_or(|a| a.start != flight.app_start);
        if answered && broke { Outcome::Reset } else { outcome }
    }

    /// One try: how long it takes, how it ends, and the answer's status.
    fn exchange(
        &mut self,
        flight: &mut Flight,
        target: Option<Target>,
        fresh: bool,
        limit: Time,
    ) -> (Time, Outcome, u16) {
        let from = flight.at.host;
        let connect = CONNECT.min(limit);
        let Some(Target { host: to, app }) = target else { return (connect, Outcome::ConnectFailed, 0) };
        let there = &self.hosts[to as usize];
        let silent = there.off == Some(crate::host::Off::Silent);
        let Some(state) = there.apps.get(usize::from(app)) else { return (MILLI, Outcome::ConnectFailed, 0) };
        let (listening, start) = (state.listening, state.start);
        flight.app_start = start;
        let way = (from, to, app);
        let pooled = self.pooled.get(&way).copied().filter(|(_, used)| self.now - used < POOL_IDLE);
        let mut took = 0;
        match pooled.filter(|_| !fresh) {
            Some((run, _)) if run == start && listening => {}
            Some(_) => {
                // The other end is gone; where it could say so, the pool has noticed.
                self.pooled.remove(&way);
                let heard = !silent && self.links.open_both(from, to);
                return if heard { (MILLI, Outcome::StaleConnection, 0) } else { (limit, Outcome::Timeout, 0) };
            }
            None => {
                let shake = if silent { None } else { self.links.handshake(from, to, connect) };
                match shake {
                    None => return (connect, Outcome::ConnectFailed, 0),
                    Some(delay) if !listening => return (delay.min(connect), Outcome::ConnectFailed, 0),
                    Some(delay) => took = delay.min(connect),
                }
            }
        }
        self.pooled.insert(way, (start, self.now));
        let frozen = self.hosts[to as usize].frozen.then(|| self.hosts[to as usize].paused).flatten();
        let mut chance = self.chance(&[SERVE, u64::from(to), self.now, u64::from(flight.user)]);
        let now = self.now;
        let state = &mut self.hosts[to as usize].apps[usize::from(app)];
        state.asked.0 += 1;
        let served = state.serve(now, &mut chance);
        let sent = self.links.repeated(from, to, 200 * MILLI, limit);
        let back = self.links.repeated(to, from, 200 * MILLI, limit);
        let (Some((work, status)), Some(sent), Some(back)) = (served, sent, back) else {
            return (limit, Outcome::Timeout, 0);
        };
        let stands = frozen.map_or(0, |until| until.saturating_sub(self.now));
        let total = took + sent + stands + work + back;
        match (total > limit, status) {
            (true, _) => (limit, Outcome::Timeout, 0),
            (false, 502..=504) => (total, Outcome::RetryableStatus(status), status),
            (false, _) => (total, Outcome::Answered(status), status),
        }
    }

    /// A request is over.
    fn landed(&mut self, flight: &Flight, end: End) {
        let took = self.now - flight.begun;
        self.stats.landed(flight, end, took, self.now);
        if let Some(record) = &mut self.record {
            let by = match end {
                End::Answered(status, target) if status < 500 => Some(target.host),
                _ => None,
            };
            let (from, tries) = (flight.at.host, flight.sent.max(1));
            let (service, user, class, begun) = (flight.service, flight.user, flight.class, flight.begun);
            record.landed.push(Landed { begun, took, from, service, user, class, by, tries });
        }
        self.with_checks(|checks, world, found| {
            checks.iter_mut().for_each(|check| check.landed(world, flight, end, found));
        });
    }

    /// Plans an application's start.
    pub(super) fn start_app(&mut self, host: u32, app: u8, delay: Time) {
        let entry = &mut self.hosts[host as usize];
        let run = entry.run();
        let state = &mut entry.apps[usize::from(app)];
        if state.listening || state.held_down {
            return;
        }
        let start = state.start;
        self.after(delay, Event::Listen { at: run, app, start });
    }

    /// An application begins to listen, unless it was started or stopped meanwhile.
    pub(super) fn listen(&mut self, at: Run, app: u8, start: u32) {
        let now = self.now;
        let entry = &mut self.hosts[at.host as usize];
        let state = &mut entry.apps[usize::from(app)];
        if state.listening || state.held_down || state.start != start {
            return;
        }
        state.listening = true;
        state.start += 1;
        state.note(now);
    }

    /// An application ends; its connections with it.
    pub(super) fn stop_app(&mut self, host: u32, app: u8, held: bool) {
        let now = self.now;
        let state = &mut self.hosts[host as usize].apps[usize::from(app)];
        state.held_down = held;
        if state.listening {
            state.listening = false;
            state.start += 1;
        }
        state.note(now);
    }

    pub(super) fn stop_apps(&mut self, host: u32, held: bool) {
        (0..self.hosts[host as usize].apps.len()).for_each(|app| self.stop_app(host, app as u8, held));
        if held {
            // A crash is over when somebody starts it again; `start_again` says so.
            self.hosts[host as usize].apps.iter_mut().for_each(|app| app.drained = None);
        }
    }

    /// A sidecar checks its application, as `probe` does.
    pub(super) fn check_app(&mut self, at: Run, app: u8) {
        let mut chance = self.chance(&[CHECK, u64::from(at.host), u64::from(app), self.now]);
        let entry = &mut self.hosts[at.host as usize];
        let now = entry.now(self.now);
        let frozen = entry.frozen;
        let state = &mut entry.apps[usize::from(app)];
        let found = if frozen { None } else { state.checked(&mut chance) };
        let changed = state.gate.record(found.unwrap_or(false));
        let starting = self.now < entry.started + 30 * SECOND && state.gate.health() == Health::Critical;
        let soon = state.gate.undecided() || starting;
        let (id, took) = (state.id.clone(), if found.is_none() { CHECK_TIMEOUT } else { 0 });
        let wait = if soon { SECOND / 10 } else { SECOND };
        self.after(wait.max(took + 10 * MILLI), Event::Check { at, app });
        let measured = self.scenario.mesh.capacity > 0.0 && found == Some(true);
        let entry = &mut self.hosts[at.host as usize];
        let load = measured.then(|| entry.apps[usize::from(app)].load(self.scenario.mesh.capacity, self.now)).flatten();
        let Some(node) = entry.node.as_mut().filter(|_| changed.is_some() || load.is_some()) else { return };
        if let Some(health) = changed {
            node.set_health(now, &id, health);
        }
        if load.is_some() {
            node.set_load(now, &id, load);
        }
        self.drain(at.host);
    }

    /// An instance of another host answered: a sign that this one's network works, where its node asks for one.
    fn control(&mut self, host: u32, answered: u32) {
        let wanted = |node: &lanemesh::node::Node| node.membership().wants_control();
        if answered != host && self.hosts[host as usize].node.as_ref().is_some_and(wanted) {
            self.feed(host, Input::Control);
        }
    }
}

/// Whether a request could be answered by another instance than the one it is at, as the proxy sees it.
fn elsewhere(flight: &Flight, view: &ServiceView) -> bool {
    let lane = flight.decision.served.and_then(|served| view.lanes.get(usize::from(served)));
    let others = lane.map_or(0, |lane| lane.members.len()).min(usize::from(TIMEOUTS.max_retries) + 1);
    flight.class != MethodClass::Other && others > flight.tries.len()
}

/// A user's subject.
pub fn subject(user: u32) -> String {
    format!("user-{user}")
}

/// Every tenth user is a tester, and says so with each request.
pub fn is_tester(user: u32) -> bool {
    user % 10 == 3
}

fn testers_head() -> PlainHead {
    let (name, value) = TESTERS_HEADER;
    PlainHead { method: "GET".into(), path: "/".into(), headers: vec![(name.into(), value.into())] }
}

/// What testers say.
pub const TESTERS_HEADER: (&str, &str) = ("x-tester", "1");

const CLIENT: u64 = 20;
const SERVE: u64 = 21;
const CHECK: u64 = 22;
/// Silence of an instance, after which another is asked where that is safe (the configuration's default).
const SILENCE: Time = SECOND;
/// Requests that must wait for a silence to count, as in the proxy.
const WAITING: u32 = 2;
/// To connect to an instance.
const CONNECT: Time = SECOND;
/// How long a connection to an instance is kept.
const POOL_IDLE: Time = 30 * SECOND;
