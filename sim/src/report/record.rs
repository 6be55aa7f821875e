//! What is noted while a run is played, in at most so many columns of time.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use lanemesh::{
    routing::{GiveUp, Outcome, Snapshot},
    types::MemberState,
};
use serde::Serialize;

use crate::{
    host::Off,
    invariants::{Findings, Invariant},
    queue::{MILLI, SECOND, Time},
    readout::letter,
    scenario::Scenario,
    world::{End, Flight, World},
};

/// Everything that the page shows.
#[derive(Debug, Default, Serialize)]
pub struct Recording {
    /// Seconds of a column.
    column: u64,
    /// Names of the hosts.
    names: Vec<String>,
    /// For each host its letter in each column, as in the readout.
    states: Vec<String>,
    /// Members with a right view, and members.
    right: Vec<(u32, u32)>,
    /// Requests that ended: at once, after a retry, slowly, in another lane, failed.
    requests: Vec<[u32; 5]>,
    /// Milliseconds: half of the requests, 9 of 10, the slowest.
    latency: Vec<[u32; 3]>,
    /// Views built, and the greatest share of keys that one of them moved (basis points).
    moved: Vec<(u32, u16)>,
    /// Bytes a second: of a node on average, of the node that sent most.
    bytes: Vec<(u32, u32)>,
    /// Connections of a node on average.
    connections: Vec<f32>,
    /// For each host all bytes that it sent.
    sent: Vec<u64>,
    /// Faults.
    faults: Vec<Fault>,
    #[serde(skip)]
    pub(super) refused: Deaths,
    #[serde(skip)]
    pub(super) silent: Deaths,
    #[serde(skip)]
    pub(super) left: Deaths,
    #[serde(skip)]
    pub(super) starts: Deaths,
    #[serde(skip)]
    took: Vec<u32>,
    #[serde(skip)]
    sent_before: Vec<u64>,
    #[serde(skip)]
    stories: BTreeMap<u32, Vec<Request>>,
    #[serde(skip)]
    services: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Fault {
    what: String,
    begun: f64,
    ended: Option<f64>,
    hosts: Vec<u32>,
    to: Vec<u32>,
}

/// A user, and what became of its requests.
#[derive(Debug, Serialize)]
pub(super) struct Story {
    user: String,
    requests: usize,
    failed: usize,
    slow: usize,
    /// The bad ones and those around them.
    shown: Vec<Request>,
}

#[derive(Debug, Clone, Serialize)]
struct Request {
    at: f64,
    via: String,
    service: String,
    lane: String,
    class: String,
    tries: Vec<String>,
    took: u32,
    end: String,
    bad: bool,
}

impl Request {
    fn failed(&self) -> bool {
        self.end.starts_with("failed")
    }
}

/// Times after which others noticed that somebody went, or came.
#[derive(Debug, Default)]
pub(super) struct Deaths {
    /// Host and run; and how many there were to notice.
    cases: BTreeMap<(u32, u32), usize>,
    seen: BTreeSet<(u32, u32, u32, u32)>,
    delays: Vec<Time>,
}

impl Deaths {
    pub fn times(&self) -> usize {
        self.cases.len()
    }

    /// Share of those who were to notice that did.
    pub fn share(&self) -> f64 {
        let all = self.cases.values().sum::<usize>().max(self.delays.len());
        self.delays.len() as f64 / all.max(1) as f64
    }

    /// Seconds in order; of many every n-th.
    pub fn thinned(&self) -> Vec<f64> {
        let mut delays = self.delays.clone();
        delays.sort_unstable();
        let points = delays.len().min(CURVE_POINTS);
        (0..points).map(|at| delays[at * delays.len() / points]).map(seconds).collect()
    }

    fn noticed(&mut self, case: (u32, u32), by: (u32, u32), watching: usize, after: Time) {
        self.cases.entry(case).or_insert(watching);
        if self.seen.insert((case.0, case.1, by.0, by.1)) {
            self.delays.push(after);
        }
    }
}

impl Recording {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let total = (scenario.seconds + scenario.settle).ceil() as u64;
        Self { column: total.div_ceil(COLUMNS).max(1), ..Self::default() }
    }

    /// The user to whom the worst happened.
    pub(super) fn worst(&self) -> Option<Story> {
        let cost = |requests: &[Request]| -> u64 {
            let cost = |r: &Request| u64::from(r.took) + if r.failed() { FAILURE_COSTS } else { 0 };
            requests.iter().filter(|r| r.bad).map(cost).sum()
        };
        let (user, requests) = self.stories.iter().max_by_key(|(user, requests)| (cost(requests), u32::MAX - *user))?;
        if cost(requests) == 0 {
            return None;
        }
        let near = |at: usize| requests[at.saturating_sub(2)..(at + 3).min(requests.len())].iter().any(|r| r.bad);
        let shown = (0..requests.len()).filter(|at| near(*at)).take(STORY).map(|at| requests[at].clone()).collect();
        let failed = requests.iter().filter(|request| request.failed()).count();
        let slow = requests.iter().filter(|request| request.bad).count() - failed;
        Some(Story { user: crate::world::subject(*user), requests: requests.len(), failed, slow, shown })
    }

    fn column(&mut self, world: &World) {
        let hosts = world.hosts.len();
        let columns = self.right.len();
        self.states.resize_with(hosts, || "-".repeat(columns));
        self.sent_before.resize(hosts, 0);
        self.sent.resize(hosts, 0);
        let (mut right, mut up, mut most, mut sum) = (0, 0, 0, 0);
        for (at, host) in world.hosts.iter().enumerate() {
            if self.names.len() <= at {
                self.names.push(host.id.to_string());
            }
            let letter = letter(world, host);
            self.states[at].push(letter);
            let member = host.is_member();
            up += u32::from(member);
            right += u32::from(member && letter == '.');
            let sent = host.sent.0 - self.sent_before[at];
            (self.sent_before[at], self.sent[at]) = (host.sent.0, host.sent.0);
            (most, sum) = (most.max(sent), sum + sent);
        }
        self.right.push((right, up));
        let nodes = u64::from(up.max(1));
        self.bytes.push(((sum / self.column / nodes) as u32, (most / self.column) as u32));
        let epoch = |host: u32| world.hosts[host as usize].node.as_ref().map(|_| world.hosts[host as usize].epoch);
        self.connections.push((world.conns.open(world.now, epoch) * 2) as f32 / nodes as f32);
        self.took.sort_unstable();
        let place =
            |part: usize| self.took.get((self.took.len() * part / 100).min(self.took.len().max(1) - 1)).copied();
        self.latency.push([50, 90, 100].map(|part| place(part).unwrap_or(0)));
        self.took.clear();
        self.requests.resize(self.right.len() + 1, [0; 5]);
        self.moved.resize(self.right.len() + 1, (0, 0));
        self.services = world.services.iter().map(ToString::to_string).collect();
    }

    fn end(&mut self, world: &World) {
        self.requests.truncate(self.right.len());
        self.moved.truncate(self.right.len());
        self.faults = world
            .faults
            .iter()
            .map(|fault| {
                let step = &world.scenario.step[fault.step as usize];
                Fault {
                    what: step.in_words(),
                    begun: seconds(fault.begun),
                    ended: fault.ended.filter(|_| step.lasts_a_while()).map(seconds),
                    hosts: fault.hosts.clone(),
                    to: fault.to.clone(),
                }
            })
            .collect();
    }

    fn now<T: Clone + Default>(of: &mut Vec<T>) -> &mut T {
        if of.is_empty() {
            of.push(T::default());
        }
        of.last_mut().expect("there is one")
    }
}

/// Looks on, and notes.
pub struct Recorder {
    recording: Rc<RefCell<Recording>>,
}

impl Recorder {
    pub(super) fn new(recording: Rc<RefCell<Recording>>) -> Self {
        Self { recording }
    }
}

impl Invariant for Recorder {
    fn name(&self) -> &'static str {
        "report"
    }

    fn member(&mut self, world: &World, observer: u32, subject: u32, state: MemberState, _found: &mut Findings) {
        let mut recording = self.recording.borrow_mut();
        let (host, by) = (&world.hosts[subject as usize], &world.hosts[observer as usize]);
        let (case, by) = ((subject, host.epoch), (observer, by.epoch));
        let watching = world.hosts.iter().filter(|other| other.is_member() && other.index != subject).count();
        let after = world.now.saturating_sub(host.ended);
        match (state, host.off) {
            (MemberState::Down, Some(Off::Refused)) => recording.refused.noticed(case, by, watching, after),
            (MemberState::Down, Some(Off::Silent)) => recording.silent.noticed(case, by, watching, after),
            (MemberState::Left, _) => {
                let after = if host.is_up() { world.now.saturating_sub(host.left_at) } else { after + SECOND };
                recording.left.noticed(case, by, watching, after);
            }
            (MemberState::Alive, None) if host.is_member() && world.now < host.started + 60 * SECOND => {
                let after = world.now.saturating_sub(host.started);
                recording.starts.noticed(case, by, 0, after);
            }
            _ => {}
        }
    }

    fn published(&mut self, _world: &World, _host: u32, _before: &Snapshot, after: &Snapshot, _: &mut Findings) {
        let mut recording = self.recording.borrow_mut();
        let moved = Recording::now(&mut recording.moved);
        (moved.0, moved.1) = (moved.0 + 1, moved.1.max(after.moved_basis_points));
    }

    fn landed(&mut self, world: &World, flight: &Flight, end: End, _found: &mut Findings) {
        let mut recording = self.recording.borrow_mut();
        let took = ((world.now - flight.begun) / MILLI) as u32;
        let failed = !matches!(end, End::Answered(status, _) if status < 500);
        let class = match () {
            () if failed => 4,
            () if flight.decision.fallback.is_some() => 3,
            () if took > 1000 => 2,
            () if flight.outcomes.len() > 1 => 1,
            () => 0,
        };
        Recording::now(&mut recording.requests)[class] += 1;
        recording.took.push(took);
        let view = flight.snapshot.service(world.services[flight.service].as_str());
        let lane = view.map_or(String::new(), |view| view.decided(&flight.decision.lane).name.to_string());
        let to =
            flight.tries.iter().map(|target| target.map(|target| world.hosts[target.host as usize].id.to_string()));
        // A try over a pooled connection that had closed is not among the targets.
        let ends = flight.outcomes.iter().filter(|outcome| **outcome != Outcome::StaleConnection);
        let tries = to.zip(ends).map(|(to, end)| format!("{}: {}", to.unwrap_or("nobody".into()), outcome(*end)));
        let request = Request {
            at: seconds(flight.begun),
            via: world.hosts[flight.at.host as usize].id.to_string(),
            service: world.services[flight.service].to_string(),
            lane,
            class: format!("{:?}", flight.class).to_lowercase(),
            tries: tries.collect(),
            took,
            end: match end {
                End::Answered(status, _) if failed => format!("failed: {status}"),
                End::Answered(status, _) => status.to_string(),
                End::GaveUp(why) => format!("failed: {}", GiveUp::as_str(why).replace('_', " ")),
            },
            bad: failed || took > 1000,
        };
        recording.stories.entry(flight.user).or_default().push(request);
    }

    fn unknown_service(&mut self, _world: &World, _host: u32, _service: usize, _found: &mut Findings) {
        Recording::now(&mut self.recording.borrow_mut().requests)[4] += 1;
    }

    fn sample(&mut self, world: &World, _found: &mut Findings) {
        let mut recording = self.recording.borrow_mut();
        if (world.now / SECOND).is_multiple_of(recording.column) {
            recording.column(world);
        }
    }

    fn end(&mut self, world: &World, _found: &mut Findings) {
        self.recording.borrow_mut().end(world);
    }
}

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::ConnectFailed => "refused",
        Outcome::StaleConnection | Outcome::MaybeStale => "closed",
        Outcome::Reset => "reset",
        Outcome::Timeout => "no answer",
        Outcome::RetryableStatus(_) => "502-504",
        Outcome::Answered(_) | Outcome::Called(_) => "answered",
        Outcome::Full => "full",
    }
}

fn seconds(at: Time) -> f64 {
    (at / MILLI) as f64 / 1000.0
}

/// Columns of time, at most.
const COLUMNS: u64 = 600;
const CURVE_POINTS: usize = 300;
/// Milliseconds that a failure counts for, beside those that it took.
const FAILURE_COSTS: u64 = 20_000;
/// Requests of a story that are shown, at most.
const STORY: usize = 60;
