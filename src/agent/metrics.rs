//! Metrics of the mesh side: members, records, gossip, sync, snapshots, connections.

use std::{sync::atomic::AtomicU64, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

use crate::{
    net::{Net, NetStats},
    node::{Counters, Event, Node, Now},
    routing::{SignalCounts, Snapshot},
    telemetry::Metrics,
    types::MemberState,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct State {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Direction {
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Probed {
    result: &'static str,
}

/// Counts and gauges of one agent.
#[derive(Debug)]
pub struct MeshMetrics {
    members: Family<State, Gauge>,
    instances: Gauge,
    health: Gauge,
    mass_loss: Gauge,
    sweeps: Counter,
    backlog: Gauge,
    connections: Gauge,
    silence: Gauge<f64, AtomicU64>,
    clock_ahead: Gauge<f64, AtomicU64>,
    snapshot: Gauge,
    snapshot_age: Gauge<f64, AtomicU64>,
    moved: Gauge,
    build_micros: Gauge,
    build_faults: Counter,
    changes: Family<State, Counter>,
    refused: Counter,
    malformed: Counter,
    name_claims: Counter,
    handshakes_failed: Counter,
    dials: Counter,
    dials_failed: Counter,
    evicted: Counter,
    bytes: Family<Direction, Counter>,
    dropped: Family<Reason, Counter>,
    syncs_opened: Counter,
    syncs_answered: Counter,
    publications: Counter,
    signals: Family<Outcome, Counter>,
    policies: Gauge,
    probes: Family<Probed, Counter>,
    round_trips: Counter<f64, AtomicU64>,
    accusations: Family<Reason, Counter>,
    lifted: Family<State, Counter>,
    pauses: Counter,
    watched: Gauge,
    held: Gauge,
    differs: Gauge<f64, AtomicU64>,
}

impl MeshMetrics {
    /// Registers everything.
    pub fn register(metrics: &Metrics) -> Self {
        let members = Family::<State, Gauge>::default();
        metrics.register("members", "Members by state as this node sees them", members.clone());
        let changes = Family::<State, Counter>::default();
        metrics.register("member_changes", "Changes of members' states, by the new state", changes.clone());
        let bytes = Family::<Direction, Counter>::default();
        metrics.register("gossip_bytes", "Bytes of envelopes and syncs, QUIC's own left out", bytes.clone());
        let dropped = Family::<Reason, Counter>::default();
        let help =
            "Envelopes dropped: queue_full, unreachable or stream on the way out, inbox_full on the way in, too_large";
        metrics.register("gossip_dropped", help, dropped.clone());
        let snapshot_age = Gauge::<f64, AtomicU64>::default();
        let help = "Age of the routing snapshot in force; old is well while nothing changes";
        metrics.register("snapshot_age_seconds", help, snapshot_age.clone());
        let [silence, clock_ahead, differs] = [(); 3].map(|()| Gauge::<f64, AtomicU64>::default());
        let help = "For how long the view of a peer that was heard has differed from this node's; 0 while all agree";
        metrics.register("view_differs_seconds", help, differs.clone());
        let probes = Family::<Probed, Counter>::default();
        let help = "Probes of members: answered in time, missed (the member is then asked again), or unheard (nobody else answered either: own fault)";
        metrics.register("probes", help, probes.clone());
        let round_trips = Counter::<f64, AtomicU64>::default();
        let help = "Time that all probes answered in time took together; by the number of them the mean round trip";
        metrics.register("probe_round_trip_seconds", help, round_trips.clone());
        let accusations = Family::<Reason, Counter>::default();
        let help = "Members that this node accused: silent, or their port refused";
        metrics.register("accusations", help, accusations.clone());
        let lifted = Family::<State, Counter>::default();
        let help = "Members that refuted, by the state that this lifted; many from `down` are false deaths or healed partitions";
        metrics.register("member_refutations", help, lifted.clone());
        let help = "Time since any peer was heard of; 0 while none is known. A view that nobody refreshes is old";
        metrics.register("peer_silence_seconds", help, silence.clone());
        let help = "How far this node's clock is ahead of the middle of its peers' (negative: behind)";
        metrics.register("clock_ahead_seconds", help, clock_ahead.clone());
        let signals = Family::<Outcome, Counter>::default();
        let help = "Failure signals: told and heard ones; instances doubted for them; what was withheld since most of a lane failed \
                    here; what was disregarded: alone, most (of a lane accused), contradicted (by answers here), discredited";
        metrics.register("failure_signals", help, signals.clone());
        let gauge = |name, help| metrics.register_gauge(name, help);
        let counter = |name, help| metrics.register_counter(name, help);
        Self {
            members,
            changes,
            bytes,
            dropped,
            snapshot_age,
            signals,
            silence,
            clock_ahead,
            differs,
            probes,
            round_trips,
            accusations,
            lifted,
            pauses: counter("own_pauses", "Times that this process stood still and held back its judgement"),
            watched: gauge(
                "members_watched",
                "Members that this node probes itself; above 256 members each has 16 watchers",
            ),
            held: gauge("members_held_down", "Members that live but are kept out for a while since they flap"),
            dials: counter("peer_dials", "Connections to peers begun"),
            dials_failed: counter("peer_dials_failed", "Dials that led to no connection"),
            evicted: counter("peer_connections_evicted", "Connections closed to keep the pool within its limit"),
            instances: gauge("instances", "Instance records held, withdrawn ones left out"),
            policies: gauge("policies", "Lane policies held"),
            health: gauge("health_score", "Local health score: 0 is well, higher waits longer before it accuses"),
            mass_loss: gauge("mass_loss", "1 while so many members are gone that this node may be cut off"),
            sweeps: counter("member_sweeps", "Times that all members were asked at once, since several had just gone"),
            backlog: gauge("gossip_backlog", "Statements waiting to be spread"),
            connections: gauge("peer_connections", "Open QUIC connections to peers"),
            snapshot: gauge("snapshot_version", "Version of the routing snapshot in force"),
            moved: gauge("snapshot_keys_moved_basis_points", "Share of sampled keys that the last snapshot moved"),
            build_micros: gauge("snapshot_build_microseconds", "Time that the last snapshot took to build"),
            build_faults: counter(
                "snapshot_build_faults",
                "Services whose new view was refused, the last good one kept",
            ),
            refused: counter("statements_refused", "Statements of peers that were not believed"),
            malformed: counter("malformed", "Envelopes or frames of peers that could not be read"),
            name_claims: counter("name_claims", "Other processes that claimed this node's name"),
            handshakes_failed: counter(
                "handshakes_failed",
                "Handshakes that failed over a certificate: another mesh, authority, name, or expired",
            ),
            syncs_opened: counter("syncs_opened", "Catalog syncs opened"),
            syncs_answered: counter("syncs_answered", "Catalog syncs answered"),
            publications: counter("publications", "Candidate tables published"),
        }
    }

    /// Counts an event.
    pub fn count(&self, event: &Event) {
        match event {
            Event::Member { state, .. } => {
                self.changes.get_or_create(&State { state: word(*state) }).inc();
            }
            Event::NameClaimed { .. } => {
                self.name_claims.inc();
            }
            // These are told once a minute; what is counted is in the node's own counters.
            Event::Refused { .. } | Event::Malformed { .. } => {}
            Event::Joined { .. } | Event::NameTaken { .. } | Event::Compared(_) | Event::Report(_) => {}
        }
    }

    /// Takes the present numbers; called about once a second.
    pub fn observe(&self, now: Now, node: &Node, net: &Net) {
        let mut by_state =
            [MemberState::Alive, MemberState::Doubtful, MemberState::Down, MemberState::Left].map(|s| (s, 0));
        for (id, entry) in node.catalog().members() {
            let state = match node.membership().state(id) {
                _ if entry.has_left() => MemberState::Left,
                _ if id == node.id() => MemberState::Alive,
                state => state.unwrap_or(MemberState::Down),
            };
            by_state.iter_mut().filter(|(s, _)| *s == state).for_each(|(_, count)| *count += 1);
        }
        for (state, count) in by_state {
            self.members.get_or_create(&State { state: word(state) }).set(count);
        }
        let held = node.catalog().instances().filter(|entry| !entry.record.removed).count();
        self.instances.set(held as i64);
        self.policies.set(node.catalog().policies().count() as i64);
        let silence = node.membership().last_heard().map(|heard| now.mono.since(heard));
        self.silence.set(silence.unwrap_or_default().as_secs_f64());
        self.clock_ahead.set(node.clock_ahead(now).unwrap_or(0) as f64 / 1000.0);
        self.health.set(i64::from(node.membership().health_score()));
        self.mass_loss.set(i64::from(node.membership().mass_loss()));
        raise(&self.sweeps, node.membership().sweeps());
        self.observe_membership(now, node);
        self.backlog.set(node.gossip_backlog() as i64);
        self.connections.set(net.connections() as i64);
        let Counters { syncs_opened, syncs_answered, publications, statements_refused, malformed, .. } =
            node.counters();
        raise(&self.refused, statements_refused);
        raise(&self.malformed, malformed);
        self.observe_net(net.stats());
        raise(&self.syncs_opened, syncs_opened);
        raise(&self.syncs_answered, syncs_answered);
        raise(&self.publications, publications);
    }

    /// Takes what came of failure signals; called about once a second.
    pub fn observe_signals(&self, counts: SignalCounts) {
        let SignalCounts { told, withheld, heard, doubted, alone, most, contradicted, discredited } = counts;
        for (outcome, total) in [
            ("told", told),
            ("withheld", withheld),
            ("heard", heard),
            ("doubted", doubted),
            ("alone", alone),
            ("most", most),
            ("contradicted", contradicted),
            ("discredited", discredited),
        ] {
            raise(&self.signals.get_or_create(&Outcome { outcome }), total);
        }
    }

    fn observe_membership(&self, now: Now, node: &Node) {
        let (membership, tallies) = (node.membership(), node.membership().tallies());
        let (answered, micros) = tallies.answered;
        for (result, total) in [("answered", answered), ("missed", tallies.missed), ("unheard", tallies.own_fault)] {
            raise(&self.probes.get_or_create(&Probed { result }), total);
        }
        let spent = micros as f64 / 1e6;
        self.round_trips.inc_by((spent - self.round_trips.get()).max(0.0));
        for (reason, total) in [("silent", tallies.accused_silent), ("refused", tallies.accused_refused)] {
            raise(&self.accusations.get_or_create(&Reason { reason }), total);
        }
        for (state, total) in [("doubtful", tallies.refuted), ("down", tallies.revived)] {
            raise(&self.lifted.get_or_create(&State { state }), total);
        }
        raise(&self.pauses, tallies.pauses);
        self.watched.set(membership.watched() as i64);
        self.held.set(membership.held_down() as i64);
        self.differs.set(node.differs_for(now).as_secs_f64());
    }

    fn observe_net(&self, stats: &NetStats) {
        raise(&self.handshakes_failed, stats.handshakes_failed.get());
        raise(&self.dials, stats.dials.get());
        raise(&self.dials_failed, stats.dials_failed.get());
        raise(&self.evicted, stats.evicted.get());
        for (direction, total) in [("in", &stats.bytes_in), ("out", &stats.bytes_out)] {
            raise(&self.bytes.get_or_create(&Direction { direction }), total.get());
        }
        for (reason, total) in [
            ("queue_full", &stats.dropped_queue_full),
            ("unreachable", &stats.dropped_unreachable),
            ("stream", &stats.dropped_stream),
            ("inbox_full", &stats.dropped_inbox_full),
            ("too_large", &stats.dropped_too_large),
        ] {
            raise(&self.dropped.get_or_create(&Reason { reason }), total.get());
        }
    }

    /// The metrics are about to be read: how old the routing snapshot in force is. Not by the agent's own beat, so that it
    /// is true also when the agent stands still.
    pub fn snapshot_age(&self, age: Duration) {
        self.snapshot_age.set(age.as_secs_f64());
    }

    /// A snapshot was built.
    pub fn built(&self, snapshot: &Snapshot, took: Duration, faults: usize) {
        self.snapshot.set(snapshot.version as i64);
        self.moved.set(i64::from(snapshot.moved_basis_points));
        self.build_micros.set(took.as_micros() as i64);
        self.build_faults.inc_by(faults as u64);
    }
}

/// Brings a counter up to a total that is counted elsewhere.
fn raise(counter: &Counter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

fn word(state: MemberState) -> &'static str {
    match state {
        MemberState::Alive => "alive",
        MemberState::Doubtful => "doubtful",
        MemberState::Down => "down",
        MemberState::Left => "left",
    }
}
