//! Shared failure signals (REQUIREMENTS M10): what several sidecars saw of an instance, added up, keeps it away from users
//! whose own sidecar has not met its fault yet.
//!
//! A sidecar tells what fails at its instances ([`Signals::tell`]) when two requests in a row failed, or as many of its last
//! ones as open a breaker. Two or more that wait at an instance which has answered nothing for clearly longer than nearly all of its
//! answers take (and 300 ms) count as failed: a hanging instance is known before the first time limit. So does a single one, after
//! 900 ms and ten times as long: it takes three such, of two sidecars at least, and makes hanging instances known of which each
//! sidecar asks little. Anybody may have a slow request, and where networks lose packets many have: a single one is told to the
//! whole mesh, so that the larger it is, the more rarely one sidecar tells of such ([`SINGLES`]); what it sees counts here in any case.
//!
//! What was told is not told again before [`AGAIN`], unless clearly more failed since: where an instance can't be kept away, for the
//! floor of its lane, every request to it fails, and each failure would be news to nobody. Where a sidecar tells, it tells all that it
//! sees, since its newer word replaces the older one.
//!
//! Whoever hears it ([`Signals::hear`]) adds up what was said in the last seconds and what it saw itself. Where at least two saw
//! it, and the sum reaches the breaker's own threshold, the instance's breaker opens here as well, within the floor of its lane.
//! From there on it goes the breaker's way: one request tries it, then its users return by the ramp.
//!
//! Whom nobody believes: one observer alone; one that accuses most of a lane (it is rather that one's network, and this
//! sidecar does not say such things itself); one that went on accusing instances after they had come back and answered here,
//! [`MOST_STRIKES`] times. Each of them is reported as probably sick itself. An instance that has answered this sidecar
//! since its return, and failed nothing here, is kept whatever is said, and so is one that is kept away on others' word and answers what
//! was sent there before. Two liars can thus keep half of a lane away for one open time, and no more.
//!
//! The two seconds of M10 are how old a failure may be when it is told; the attempts told are those that the breaker looks at,
//! since the successes of two seconds would hide a fault for as long.
//!
//! Not here: signatures and the way (`node`), when to tell (whoever answers the [`Bell`]).

mod report;

use std::{
    collections::BTreeMap,
    fmt,
    sync::atomic::{AtomicBool, Ordering::AcqRel},
    time::Duration,
};

pub use report::{DoubtReport, ObserverReport, SignalsReport, Standing};

use super::{InstanceCell, LaneView, ServiceView, Snapshot, floor};
use crate::{
    config::{Breaker, Routing},
    types::{InstanceId, MAX_OBSERVATIONS, Mono, NodeId, Observation, ServiceName, Signal},
};

/// Rung by the data path when it has something to tell; wakes whoever tells it, once until it is answered.
pub struct Bell {
    rung: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Bell {
    /// `wake` is called on the data path: it must be quick and wait for nothing.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { rung: AtomicBool::new(false), wake: Box::new(wake) }
    }

    /// Whether it was rung since the last answer. What the data path wrote before it rang is seen afterwards.
    pub fn answer(&self) -> bool {
        self.rung.swap(false, AcqRel)
    }

    pub(super) fn ring(&self) {
        if !self.rung.swap(true, AcqRel) {
            (self.wake)();
        }
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell").field("rung", &self.rung).finish_non_exhaustive()
    }
}

/// Whether a failure just noted there is worth telling others.
pub(super) fn is_worth_telling(cell: &InstanceCell, now: Mono, rules: &Routing) -> bool {
    rules.signals && cell.seen(now, rules).is_some_and(|seen| weighs(seen, &rules.breaker))
}

/// What came of signals so far, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SignalCounts {
    /// Signals that this sidecar sent.
    pub told: u64,
    /// Own observations that were not told, since most of a lane failed here.
    pub withheld: u64,
    /// Signals of others.
    pub heard: u64,
    /// Instances kept away because of them.
    pub doubted: u64,
    /// Signals that ran out, or were said for as long, without anybody else having seen the same, while the instance answered here.
    pub alone: u64,
    /// Observations of somebody who accused most of a lane.
    pub most: u64,
    /// Observations of instances that had come back and answered here.
    pub contradicted: u64,
    /// Signals of observers that are not believed for the time being.
    pub discredited: u64,
}

/// Something people should hear; the same about the same node at most once a minute.
pub type Remark = String;

/// What every observer said last, and what is thought of it.
#[derive(Debug)]
pub struct Signals {
    me: NodeId,
    said: BTreeMap<NodeId, Said>,
    credits: BTreeMap<NodeId, Credit>,
    doubts: BTreeMap<Key, Doubt>,
    remarked: BTreeMap<NodeId, Mono>,
    counts: SignalCounts,
    /// When it last told of a single request that waits.
    single_told: Mono,
    /// What it told of each instance: when, and how many failures.
    told: BTreeMap<Key, (Mono, u16)>,
}

/// Service, owner and instance.
type Key = (ServiceName, NodeId, InstanceId);

#[derive(Debug)]
struct Said {
    at: Mono,
    /// Since when it has been saying so without anybody else.
    since: Mono,
    seen: Vec<Observation>,
    /// Somebody else saw some of it.
    agreed: bool,
}

/// How often an observer was proved wrong.
#[derive(Debug, Clone, Copy)]
struct Credit {
    strikes: u32,
    last: Mono,
}

/// Why an instance is kept away.
#[derive(Debug, Clone)]
struct Doubt {
    at: Mono,
    attempts: u32,
    failures: u32,
    observers: Vec<NodeId>,
}

impl Signals {
    /// Of this sidecar; nothing was said yet.
    pub fn new(me: NodeId) -> Self {
        Self {
            me,
            said: BTreeMap::new(),
            credits: BTreeMap::new(),
            doubts: BTreeMap::new(),
            remarked: BTreeMap::new(),
            counts: SignalCounts::default(),
            single_told: Mono::ZERO,
            told: BTreeMap::new(),
        }
    }

    /// What came of signals so far.
    pub fn counts(&self) -> SignalCounts {
        self.counts
    }

    /// What this sidecar has to tell now, what is new first; nothing where none of it is news. What is kept away on others' word already
    /// is not told again.
    pub fn tell(&mut self, snapshot: &Snapshot, now: Mono) -> (Vec<Observation>, Vec<Remark>) {
        let (mut told, mut known, mut remarks) = (Vec::new(), Vec::new(), Vec::new());
        for view in snapshot.services().filter(|view| view.rules.signals) {
            for lane in &view.lanes {
                let failing = failing(view, lane, now);
                if is_most(failing.len(), lane.members.len()) {
                    self.counts.withheld += failing.len() as u64;
                    let (count, of) = (failing.len(), lane.members.len());
                    let text = format!(
                        "{count} of {of} instances of `{}` ({}) fail at once here: it is not told to others, since it may be \
                         this sidecar's network or what its users send",
                        view.name, lane.name
                    );
                    let me = self.me.clone();
                    self.remark(&me, now, text, &mut remarks);
                    continue;
                }
                for (instance, observation) in failing {
                    if is_single(observation.attempts, observation.failures) {
                        told.extend(self.may_tell_single(snapshot, now).then_some(observation));
                    } else if self.is_news(&observation, now) {
                        told.push(observation);
                    } else {
                        known.push(observation);
                    }
                    self.judge(view, lane, instance, now);
                }
            }
        }
        if !told.is_empty() {
            self.counts.told += 1;
            told.append(&mut known);
            told.truncate(MAX_OBSERVATIONS);
            self.told.extend(told.iter().map(|observation| (key(observation), (now, observation.failures))));
        }
        (told, remarks)
    }

    /// Whether it was not told lately, or clearly more has failed since.
    fn is_news(&self, observation: &Observation, now: Mono) -> bool {
        let told = self.told.get(&key(observation));
        told.is_none_or(|(at, failures)| {
            now.since(*at) >= AGAIN || u32::from(observation.failures) * 2 >= u32::from(*failures) * 3
        })
    }

    fn may_tell_single(&mut self, snapshot: &Snapshot, now: Mono) -> bool {
        let instances: usize = snapshot.services().map(|view| view.instances.len()).sum();
        let pause = SINGLES.saturating_mul(u32::try_from(instances).unwrap_or(u32::MAX));
        let may = now.since(self.single_told) >= pause;
        if may {
            self.single_told = now;
        }
        may
    }

    /// Somebody else says what it saw; it must be verified.
    pub fn hear(&mut self, signal: Signal, snapshot: &Snapshot, now: Mono) -> Vec<Remark> {
        let Signal { observer, seen, .. } = signal;
        let mut remarks = Vec::new();
        if observer == self.me {
            return remarks;
        }
        self.counts.heard += 1;
        let named: Vec<(&ServiceView, &LaneView, u16)> =
            seen.iter().filter_map(|observation| find(snapshot, observation)).collect();
        let before = self.said.get(&observer).filter(|said| !said.agreed && now.since(said.at) <= LIFE);
        let since = before.map_or(now, |said| said.since);
        self.said.insert(observer.clone(), Said { at: now, since, seen, agreed: false });
        if self.is_discredited(&observer, now) {
            self.counts.discredited += 1;
            return remarks;
        }
        let answers = |(view, _, at): &&(&ServiceView, &LaneView, u16)| answers_here(view, *at);
        let contradicted = named.iter().filter(answers).count();
        if contradicted > 0 {
            self.counts.contradicted += contradicted as u64;
            self.strike(&observer, now, &mut remarks);
        }
        for (view, lane, instance) in named {
            if self.accuses_most(&observer, view, lane) {
                self.counts.most += 1;
                let text = format!(
                    "`{observer}` says that most instances of `{}` ({}) fail: not believed, it is probably sick itself",
                    view.name, lane.name
                );
                self.remark(&observer, now, text, &mut remarks);
            } else {
                self.judge(view, lane, instance, now);
            }
        }
        let goes_on = |said: &&mut Said| !said.agreed && now.since(said.since) > LIFE;
        if let Some(said) = self.said.get_mut(&observer).filter(goes_on) {
            said.since = now;
            let seen = said.seen.clone();
            self.alone(&observer, &seen, snapshot, now, &mut remarks);
        }
        remarks
    }

    /// Time has passed: what is old is forgotten. Once a second or so.
    pub fn tidy(&mut self, snapshot: &Snapshot, now: Mono) -> Vec<Remark> {
        let (mut remarks, mut old) = (Vec::new(), BTreeMap::new());
        let is_old = |said: &Said| now.since(said.at) > LIFE;
        while let Some(observer) = self.said.iter().find(|(_, said)| is_old(said)).map(|(observer, _)| observer.clone())
        {
            old.extend(self.said.remove_entry(&observer));
        }
        for (observer, said) in old.iter().filter(|(_, said)| !said.agreed) {
            self.alone(observer, &said.seen, snapshot, now, &mut remarks);
        }
        self.told.retain(|_, (at, _)| now.since(*at) < AGAIN);
        self.credits.retain(|_, credit| now.since(credit.last) < MEMORY);
        self.remarked.retain(|_, at| now.since(*at) < PAUSE);
        self.doubts.retain(|key, _| {
            snapshot
                .service(key.0.as_str())
                .and_then(|view| view.instance(&key.1, &key.2).map(|at| (view, at)))
                .is_some_and(|(view, at)| view.instances[usize::from(at)].cell.is_signalled())
        });
        remarks
    }

    /// Nobody else sees what an observer has been saying: reported, if it is well here.
    fn alone(
        &mut self,
        observer: &NodeId,
        seen: &[Observation],
        snapshot: &Snapshot,
        now: Mono,
        remarks: &mut Vec<Remark>,
    ) {
        let Some(observation) = seen.iter().find(|seen| denied(seen, snapshot, now)) else { return };
        self.counts.alone += 1;
        let text = format!(
            "`{observer}` alone sees `{}` of `{}` fail, which answers here: not believed, `{observer}` or its way there is probably \
             sick itself",
            observation.instance, observation.service
        );
        self.remark(observer, now, text, remarks);
    }

    /// Adds up what is said of an instance, and keeps it away where that is enough.
    fn judge(&mut self, view: &ServiceView, lane: &LaneView, instance: u16, now: Mono) {
        if !view.rules.signals || answers_here(view, instance) {
            return;
        }
        let entry = &view.instances[usize::from(instance)];
        let (owner, id) = (&entry.record.owner, &entry.record.id);
        let mut doubt = Doubt { at: now, attempts: 0, failures: 0, observers: Vec::new() };
        for (observer, said) in &self.said {
            let about = |o: &&Observation| o.instance == *id && o.owner == *owner && o.service == view.name;
            let Some(observation) = said.seen.iter().find(about).filter(|_| now.since(said.at) <= LIFE) else {
                continue;
            };
            let seen = (observation.attempts, observation.failures);
            if weighs(seen, &view.rules.breaker)
                && !self.is_discredited(observer, now)
                && !self.accuses_most(observer, view, lane)
            {
                doubt.add(observer, seen);
            }
        }
        if doubt.observers.is_empty() {
            return;
        }
        if let Some(seen) = entry.cell.seen(now, &view.rules) {
            doubt.add(&self.me, seen);
        }
        if doubt.observers.len() < FEWEST_OBSERVERS {
            return;
        }
        for observer in &doubt.observers {
            self.said.get_mut(observer).into_iter().for_each(|said| said.agreed = true);
        }
        if doubt.reaches(&view.rules.breaker) && floor::keep_away(view, lane, instance, true, now) {
            self.counts.doubted += 1;
            self.doubts.insert((view.name.clone(), owner.clone(), id.clone()), doubt);
        }
    }

    /// Whether the observer's last word accuses most of a lane.
    fn accuses_most(&self, observer: &NodeId, view: &ServiceView, lane: &LaneView) -> bool {
        let Some(said) = self.said.get(observer) else { return false };
        let of_lane = |observation: &&Observation| {
            observation.service == view.name
                && view
                    .instance(&observation.owner, &observation.instance)
                    .is_some_and(|at| lane.members.binary_search(&at).is_ok())
        };
        is_most(said.seen.iter().filter(of_lane).count(), lane.members.len())
    }

    fn is_discredited(&self, observer: &NodeId, now: Mono) -> bool {
        let credit = self.credits.get(observer);
        credit.is_some_and(|credit| credit.strikes >= MOST_STRIKES && now.since(credit.last) < MEMORY)
    }

    fn strike(&mut self, observer: &NodeId, now: Mono, remarks: &mut Vec<Remark>) {
        let credit = self.credits.entry(observer.clone()).or_insert(Credit { strikes: 0, last: now });
        // What is said several times of one moment is one mistake.
        if credit.strikes > 0 && now.since(credit.last) < LIFE {
            return;
        }
        *credit = Credit { strikes: credit.strikes + 1, last: now };
        if credit.strikes == MOST_STRIKES {
            let minutes = MEMORY.as_secs() / 60;
            let text = format!(
                "`{observer}` keeps saying that instances fail which answer here: it is not believed for {minutes} minutes, and \
                 is probably sick itself"
            );
            self.remark(observer, now, text, remarks);
        }
    }

    fn remark(&mut self, about: &NodeId, now: Mono, text: String, remarks: &mut Vec<Remark>) {
        if self.remarked.get(about).is_none_or(|at| now.since(*at) >= PAUSE) {
            self.remarked.insert(about.clone(), now);
            remarks.push(text);
        }
    }
}

impl Doubt {
    fn add(&mut self, observer: &NodeId, (attempts, failures): (u16, u16)) {
        self.attempts += u32::from(attempts);
        self.failures += u32::from(failures);
        self.observers.push(observer.clone());
    }

    /// Whether the sum would open a breaker.
    fn reaches(&self, rules: &Breaker) -> bool {
        let share = f64::from(self.failures) / f64::from(self.attempts.max(1));
        let in_number = rules.failures > 0
            && self.failures >= u32::from(rules.failures)
            && share >= f64::from(rules.failures) / f64::from(rules.of.max(1));
        in_number || (rules.volume > 0 && self.attempts >= rules.volume && share >= rules.share)
    }
}

/// What fails here and is worth telling, by index; without what is kept away on others' word.
fn failing(view: &ServiceView, lane: &LaneView, now: Mono) -> Vec<(u16, Observation)> {
    let one = |at: &u16| {
        let entry = &view.instances[usize::from(*at)];
        let seen = entry.cell.seen(now, &view.rules).filter(|seen| weighs(*seen, &view.rules.breaker))?;
        let (attempts, failures) = seen;
        let (owner, instance) = (entry.record.owner.clone(), entry.record.id.clone());
        let observation = Observation { service: view.name.clone(), owner, instance, attempts, failures };
        (!entry.cell.is_signalled()).then_some((*at, observation))
    };
    lane.members.iter().filter_map(one).collect()
}

/// Whether an observation says more than that mistakes happen: two failures, and the breaker's own share; or nothing but one that
/// has been waiting for long.
fn weighs((attempts, failures): (u16, u16), rules: &Breaker) -> bool {
    let share = if rules.failures > 0 { f64::from(rules.failures) / f64::from(rules.of.max(1)) } else { rules.share };
    is_single(attempts, failures) || failures >= 2 && f64::from(failures) >= share * f64::from(attempts)
}

/// A single request that waits, and may be a slow one.
const fn is_single(attempts: u16, failures: u16) -> bool {
    attempts == 1 && failures == 1
}

/// More than half, and not a single one.
const fn is_most(count: usize, of: usize) -> bool {
    count >= 2 && count * 2 > of
}

fn key(of: &Observation) -> Key {
    (of.service.clone(), of.owner.clone(), of.instance.clone())
}

/// The candidate that an observation is about.
fn find<'a>(snapshot: &'a Snapshot, observation: &Observation) -> Option<(&'a ServiceView, &'a LaneView, u16)> {
    let view = snapshot.service(observation.service.as_str())?;
    let at = view.instance(&observation.owner, &observation.instance)?;
    let lane = view.lane(view.instances[usize::from(at)].record.lane.as_str())?;
    lane.members.binary_search(&at).ok().map(|_| (view, lane, at))
}

/// It has come back by an answer to this sidecar, and has failed nothing here since.
fn answers_here(view: &ServiceView, instance: u16) -> bool {
    view.instances[usize::from(instance)].cell.clean() >= CLEAN
}

fn is_well_here(view: &ServiceView, instance: u16, now: Mono) -> bool {
    view.instances[usize::from(instance)].cell.is_well(now, &view.rules)
}

/// Whether what is said of an instance is not so here. Anybody may have one slow request.
fn denied(seen: &Observation, snapshot: &Snapshot, now: Mono) -> bool {
    !is_single(seen.attempts, seen.failures)
        && find(snapshot, seen).is_some_and(|(view, _, at)| is_well_here(view, at, now))
}

/// Between two single requests that one sidecar tells of, for each instance of the mesh: all together tell of about two a second,
/// however many they are.
const SINGLES: Duration = Duration::from_millis(500);
/// Until the same is told again: twice before it would run out, so that one lost datagram does no harm.
const AGAIN: Duration = Duration::from_secs(2);
/// How long a signal counts.
const LIFE: Duration = Duration::from_secs(5);
/// Independent observers, this sidecar among them.
const FEWEST_OBSERVERS: usize = 2;
/// Answers in a row, counted from the one by which it came back, that speak louder than others' words.
const CLEAN: u16 = 1;
/// Times that an observer may be proved wrong.
const MOST_STRIKES: u32 = 3;
/// For how long that is remembered.
const MEMORY: Duration = Duration::from_secs(300);
/// Between two remarks about one node.
const PAUSE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
