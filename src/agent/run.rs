//! The loop.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    NodeInfo, StateDir,
    compare::Comparison,
    handle::{Ask, Handle},
    in_flight::InFlightTold,
    metrics::MeshMetrics,
    post::{self, ForPeople, ForShell},
    questions::Questions,
    seeds,
    signals::Telling,
    views,
};
use crate::{
    config::Check,
    net::{Net, NetEvent},
    node::{Event, Input, InstanceSpec, Node, Now, SHUTDOWN, Stored},
    ready::{Blocker, Ready},
    routing::{self, Locality, Rules, Snapshot},
    telemetry::{Clock, Observed},
    types::{InstanceId, Mono, NodeId, Wall},
};

/// Questions waiting for the agent.
const ASKS: usize = 256;
/// Longest time that readiness waits for a seed.
const SEEDS_WAIT: Duration = Duration::from_secs(3);
/// Shortest time between looks at the node for metrics. While nothing happens nobody is woken for one: probes do that several
/// times a second.
const OBSERVE_EVERY: Duration = Duration::from_secs(1);
/// After a member's state changed a look is worth a wake; several changes of one moment are one look.
const OBSERVE_SOON: Duration = Duration::from_millis(50);
/// Longest time without a look at the clock.
const REST: Duration = Duration::from_secs(3600);
/// Between looks at what the proxy has heard, while a sign of the own network is wanted.
const CONTROL_EVERY: Duration = Duration::from_millis(100);
/// What was heard before says nothing of now.
const CONTROL_FRESH: Duration = Duration::from_millis(500);
/// Longest time that a goodbye waits for peers' answers.
const GOODBYE: Duration = Duration::from_millis(1000);

/// An instance that this sidecar announces from the start.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalInstance {
    /// What is announced.
    pub spec: InstanceSpec,
    /// How its application is checked.
    pub check: Check,
}

/// Tells the prober what to check.
#[derive(Debug, Clone)]
pub enum Watch {
    /// Check this instance from now on.
    Start {
        /// Which.
        id: InstanceId,
        /// Where its application listens.
        host: String,
        /// Its port.
        port: u16,
        /// How.
        check: Check,
    },
    /// No longer.
    Stop(InstanceId),
}

/// What an agent is made of.
pub struct AgentConfig {
    /// The brain.
    pub node: Node,
    /// The network.
    pub net: Net,
    /// What the network says.
    pub events: mpsc::Receiver<NetEvent>,
    /// The clock.
    pub clock: Clock,
    /// Where state is kept.
    pub state: StateDir,
    /// `host:port`, resolved again and again.
    pub seeds: Vec<String>,
    /// The last moment in which the own certificate is valid.
    pub certificate_until: Wall,
    /// Where this sidecar stands.
    pub locality: Locality,
    /// How its requests are routed.
    pub rules: Rules,
    /// What to announce.
    pub instances: Vec<LocalInstance>,
    /// The way to the prober.
    pub watch: mpsc::UnboundedSender<Watch>,
    /// What does not change about this sidecar, for `info`; set when everything is bound.
    pub info: Arc<OnceLock<NodeInfo>>,
    /// Where IP addresses of announced instances default to.
    pub host: String,
    /// Counts.
    pub metrics: Arc<MeshMetrics>,
    /// Subjects whose requests are all logged.
    pub observed: Observed,
    /// What readiness waits for.
    pub ready: Arc<Ready>,
}

/// Why an agent ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to leave, and has.
    Left,
    /// Another live process has this node's name.
    NameTaken(SocketAddr),
}

/// The task's own state.
pub struct Agent {
    pub(super) node: Node,
    pub(super) net: Net,
    pub(super) clock: Clock,
    pub(super) locality: Locality,
    pub(super) watch: mpsc::UnboundedSender<Watch>,
    pub(super) snapshot: Arc<ArcSwap<Snapshot>>,
    pub(super) info: Arc<OnceLock<NodeInfo>>,
    pub(super) ready: Arc<Ready>,
    pub(super) host: String,
    pub(super) state: StateDir,
    /// Own instances whose id another living member announces as well, as last said.
    pub(super) twins: BTreeMap<InstanceId, NodeId>,
    pub(super) comparison: Option<Comparison>,
    /// Why the last check of an own instance's application failed.
    pub(super) failing: BTreeMap<InstanceId, String>,
    /// The seeds as they were resolved last.
    pub(super) seeds: Vec<seeds::Resolved>,
    pub(super) certificate_until: Wall,
    /// The wall time at monotonic time zero as it was at the start, in milliseconds.
    pub(super) wall_zero: i64,
    pub(super) questions: Questions,
    pub(super) observed: Observed,
    /// The highest generation that the writer has been given; told when it is on disk.
    written: watch::Sender<u64>,
    writing: u64,
    pub(super) builder: views::Builder,
    pub(super) telling: Telling,
    pub(super) in_flight_told: InFlightTold,
    metrics: Arc<MeshMetrics>,
    leaving: Option<(Vec<oneshot::Sender<()>>, tokio::time::Instant)>,
    ended: Option<Ended>,
    observe_at: Mono,
    observe_soon: Option<Mono>,
    control_at: Mono,
    seeds_until: Mono,
}

impl Agent {
    /// Starts the agent as a task of the present runtime; the receiver tells how it ended.
    pub fn start(config: AgentConfig) -> (Handle, oneshot::Receiver<Ended>) {
        let (asks, inbox) = mpsc::channel(ASKS);
        let (done, ended) = oneshot::channel();
        let snapshot = Arc::new(ArcSwap::from_pointee(Snapshot::empty()));
        let telling = Telling::new(config.node.id().clone());
        let rules = config.rules.ringing(telling.bell.clone());
        let builder = views::Builder::start(
            routing::Builder::with(config.locality.clone(), rules),
            config.clock,
            snapshot.clone(),
            config.metrics.clone(),
            config.ready.clone(),
        );
        let seeds = seeds::watch(config.seeds);
        let mut agent = Self {
            node: config.node,
            net: config.net,
            clock: config.clock,
            locality: config.locality,
            watch: config.watch,
            snapshot: snapshot.clone(),
            info: config.info,
            ready: config.ready,
            host: config.host,
            state: config.state,
            twins: BTreeMap::new(),
            comparison: None,
            failing: BTreeMap::new(),
            seeds: Vec::new(),
            certificate_until: config.certificate_until,
            wall_zero: wall_zero(config.clock),
            questions: Questions::default(),
            observed: config.observed,
            written: watch::Sender::new(0),
            writing: 0,
            builder,
            telling,
            in_flight_told: InFlightTold::default(),
            metrics: config.metrics,
            leaving: None,
            ended: None,
            observe_at: Mono::ZERO,
            observe_soon: None,
            control_at: Mono::ZERO,
            seeds_until: config.clock.mono() + SEEDS_WAIT,
        };
        agent.announce_all(config.instances);
        tokio::spawn(async move {
            let how = agent.run(inbox, config.events, seeds).await;
            // Nobody waits for the end any more when the whole process is being torn down.
            let _ = done.send(how);
        });
        (Handle { asks, snapshot }, ended)
    }

    fn announce_all(&mut self, instances: Vec<LocalInstance>) {
        for instance in instances {
            let id = instance.spec.id.clone();
            if let Err(error) = self.announce(instance) {
                tracing::error!(instance = %id, "not announced: {error}");
            }
        }
    }

    async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Ask>,
        mut events: mpsc::Receiver<NetEvent>,
        mut seeds: mpsc::Receiver<Vec<seeds::Resolved>>,
    ) -> Ended {
        let mut written = self.written.subscribe();
        let failures = self.telling.failures.clone();
        let mut alarm = self.net.alarm();
        self.node.handle_timeout(self.now());
        self.carry_out();
        self.note_ready();
        loop {
            if let Some(ended) = self.ended.take() {
                return ended;
            }
            alarm.set(self.wake_at());
            tokio::select! {
                biased;
                () = failures.notified() => self.telling.rung(self.clock.mono()),
                Some(event) = events.recv() => self.net_event(event),
                Ok(()) = written.changed() => {
                    let generation = *written.borrow_and_update();
                    self.feed(Input::Persisted { generation });
                }
                Some(ask) = inbox.recv() => {
                    self.answer(ask);
                    self.observe_in_time();
                }
                Some(resolved) = seeds.recv() => {
                    self.feed(Input::Seeds(seeds::addresses(&resolved)));
                    self.seeds = resolved;
                }
                () = alarm.ring() => self.node.handle_timeout(self.now()),
            }
            self.tell_failures();
            self.offer_control();
            self.carry_out();
            self.note_ready();
            self.compare_on();
            self.questions_on();
            self.say_goodbye();
        }
    }

    /// Readiness does not wait for seeds for ever: the first node of a mesh has nobody to wait for.
    fn note_ready(&mut self) {
        // A view from an earlier run is a view: requests can be routed while the seeds are still being asked.
        if self.node.is_member() || self.node.met_mesh() {
            self.ready.clear(Blocker::Membership);
        }
        if self.node.met_mesh() || self.clock.mono() >= self.seeds_until {
            self.ready.clear(Blocker::Seeds);
        }
    }

    fn wake_at(&self) -> Instant {
        let timers = [self.node.poll_timeout(), self.telling.due(), self.observe_soon].into_iter().flatten();
        // A node that waits for nothing at all has been refused or has left; what ends it comes by another way.
        let due = self.clock.instant(timers.min().unwrap_or(self.clock.mono() + REST));
        let goodbye = self.leaving.as_ref().map(|(_, until)| until.into_std());
        let compared = self.comparison.as_ref().map(|comparison| comparison.survey.until.into_std());
        let asked = self.questions.until().map(|until| until.into_std());
        [goodbye, compared, asked].into_iter().flatten().fold(due, Ord::min)
    }

    pub(super) fn now(&self) -> Now {
        Now { mono: self.clock.mono(), wall: self.clock.wall() }
    }

    fn feed(&mut self, input: Input) {
        self.node.handle(self.now(), input);
    }

    /// In a mesh of two or three nobody may be left to show that this node's own network works; an upstream on another host
    /// that has just answered the proxy shows it as well.
    fn offer_control(&mut self) {
        let now = self.clock.mono();
        if !self.node.membership().wants_control() || now < self.control_at {
            return;
        }
        self.control_at = now + CONTROL_EVERY;
        let snapshot = self.snapshot.load();
        let mut instances = snapshot.services().flat_map(|service| &service.instances);
        let heard = instances.any(|entry| {
            let recent = entry.cell.last_heard().is_some_and(|at| now.since(at) <= CONTROL_FRESH);
            recent && is_elsewhere(&entry.record.host, &self.host)
        });
        if heard {
            self.feed(Input::Control);
        }
    }

    fn net_event(&mut self, event: NetEvent) {
        let Some(event) = self.question_or(event) else { return };
        match post::input(event) {
            Ok(input) => self.feed(input),
            Err(ForPeople::NameClaimed { addr }) => self.event(Event::NameClaimed { addr }),
            Err(ForPeople::HandshakeRefused { addr, reason }) => tracing::warn!(%addr, "handshake refused: {reason}"),
        }
    }

    /// Carries out what the node wants.
    pub(super) fn carry_out(&mut self) {
        while let Some(output) = self.node.poll_output() {
            match post::carry(&self.net, output) {
                Some(ForShell::Publish(table)) => {
                    self.observe_in_time();
                    self.builder.build(table);
                    self.warn_of_twins();
                }
                Some(ForShell::Persist { generation, stored }) => self.persist(generation, stored),
                Some(ForShell::Signal(signal)) => self.signal_heard(signal),
                Some(ForShell::Event(event)) => self.event(event),
                None => {}
            }
        }
        let now = self.clock.mono();
        if now >= self.observe_soon.map_or(self.observe_at, |soon| soon.min(self.observe_at)) {
            (self.observe_at, self.observe_soon) = (now + OBSERVE_EVERY, None);
            self.tidy_signals();
            self.tell_in_flight();
            self.metrics.observe(self.now(), &self.node, &self.net);
            self.metrics.observe_signals(self.telling.signals.counts());
        }
    }

    /// Something changed that gauges tell of: a look is worth a wake as soon as the last one is old enough.
    fn observe_in_time(&mut self) {
        self.observe_soon.get_or_insert(self.observe_at);
    }

    /// A generation is used only when it is on disk; of later writes nobody waits for the end.
    fn persist(&mut self, generation: u64, stored: Box<Stored>) {
        self.state.write(stored);
        if generation > self.writing {
            self.writing = generation;
            let written = self.written.clone();
            self.state.when_written(move || {
                written.send_replace(generation);
            });
        }
    }

    fn event(&mut self, event: Event) {
        self.metrics.count(&event);
        match event {
            Event::Joined { peers: 0, generation } => {
                tracing::info!(
                    generation,
                    "takes part; nobody of the mesh has answered so far, seeds are asked again and again"
                );
            }
            Event::Joined { peers, generation } => tracing::info!(peers, generation, "joined the mesh"),
            Event::Member { node, state } => {
                tracing::info!(%node, ?state, "member");
                // The gauges tell of it when everything else does.
                let soon = self.clock.mono() + OBSERVE_SOON;
                self.observe_soon = Some(self.observe_soon.map_or(soon, |at| at.min(soon)));
            }
            Event::NameTaken { addr } => {
                tracing::error!(%addr, "another live process has this node's name: this one ends. Give each process its own certificate");
                self.ended = Some(Ended::NameTaken(addr));
            }
            Event::NameClaimed { addr } => {
                tracing::error!(%addr, "another process claims this node's name, and was refused: give it a certificate of its own");
            }
            Event::Refused { from, signer, reason, times } => {
                tracing::warn!(%from, %signer, times, "not believed: {reason}");
            }
            Event::Malformed { from, reason, times } => tracing::warn!(%from, times, "unreadable: {reason}"),
            Event::Compared(view) => self.compared(view),
            Event::Report(text) => tracing::warn!("{text}"),
        }
    }

    pub(super) fn watch(&self, watch: Watch) {
        // The prober ends with the process; then nothing is checked any more.
        let _ = self.watch.send(watch);
    }

    /// Leaves the mesh; `back` hears when enough peers know, or after a second.
    pub(super) fn leave(&mut self, back: oneshot::Sender<()>) {
        if self.leaving.is_none() {
            tracing::info!("leaves the mesh");
        }
        self.node.leave(self.now());
        let (waiting, _) = self.leaving.get_or_insert_with(|| (Vec::new(), tokio::time::Instant::now() + GOODBYE));
        waiting.push(back);
    }

    fn say_goodbye(&mut self) {
        let Some((_, until)) = &self.leaving else { return };
        if !self.node.goodbye_heard() && tokio::time::Instant::now() < *until {
            return;
        }
        if let Some((waiting, _)) = self.leaving.take() {
            // Whoever asked may have gone; the leave stands.
            for back in waiting {
                let _ = back.send(());
            }
        }
        self.ended = Some(Ended::Left);
    }

    /// Drains everything for the shutdown.
    pub(super) fn drain_for_shutdown(&mut self) {
        // Nothing to drain is fine: this sidecar announces nothing.
        let _ = self.node.drain(self.now(), &[], SHUTDOWN, "", None);
    }
}

/// The wall time at monotonic time zero, in milliseconds, by the clocks as they are now.
pub(super) fn wall_zero(clock: Clock) -> i64 {
    let millis = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    millis(clock.wall().0).saturating_sub(millis(clock.mono().millis()))
}

/// Whether what listens at `host` is reached over the network, from a sidecar that is reached at `own`.
fn is_elsewhere(host: &str, own: &str) -> bool {
    let here = host == own || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    !here && host != "localhost"
}

#[cfg(test)]
mod tests {
    use super::is_elsewhere;

    #[test]
    fn what_is_on_this_host_says_nothing_of_the_network() {
        assert!(is_elsewhere("10.0.0.2", "10.0.0.1") && is_elsewhere("db.internal", "10.0.0.1"));
        for here in ["10.0.0.1", "127.0.0.1", "127.0.0.9", "::1", "localhost"] {
            assert!(!is_elsewhere(here, "10.0.0.1"), "{here}");
        }
    }
}
