//! Metrics of the mesh side: members, records, gossip, sync, snapshots, connections.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

use crate::{
    net::Net,
    node::{Counters, Event, Node},
    routing::Snapshot,
    telemetry::Metrics,
    types::MemberState,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct State {
    state: &'static str,
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
    snapshot: Gauge,
    moved: Gauge,
    build_micros: Gauge,
    build_faults: Counter,
    changes: Family<State, Counter>,
    refused: Counter,
    malformed: Counter,
    name_claims: Counter,
    handshakes_failed: Counter,
    syncs_opened: Counter,
    syncs_answered: Counter,
    publications: Counter,
    policies: Gauge,
}

impl MeshMetrics {
    /// Registers everything.
    pub fn register(metrics: &Metrics) -> Self {
        let members = Family::<State, Gauge>::default();
        metrics.register("members", "Members by state as this node sees them", members.clone());
        let changes = Family::<State, Counter>::default();
        metrics.register("member_changes", "Changes of members' states, by the new state", changes.clone());
        let gauge = |name, help| metrics.register_gauge(name, help);
        let counter = |name, help| metrics.register_counter(name, help);
        Self {
            members,
            changes,
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
            Event::Joined { .. } | Event::NameTaken { .. } | Event::Report(_) => {}
        }
    }

    /// Takes the present numbers; called about once a second.
    pub fn observe(&self, node: &Node, net: &Net) {
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
        self.health.set(i64::from(node.membership().health_score()));
        self.mass_loss.set(i64::from(node.membership().mass_loss()));
        raise(&self.sweeps, node.membership().sweeps());
        self.backlog.set(node.gossip_backlog() as i64);
        self.connections.set(net.connections() as i64);
        let Counters { syncs_opened, syncs_answered, publications, statements_refused, malformed, .. } =
            node.counters();
        raise(&self.refused, statements_refused);
        raise(&self.malformed, malformed);
        raise(&self.handshakes_failed, net.stats().handshakes_failed.get());
        raise(&self.syncs_opened, syncs_opened);
        raise(&self.syncs_answered, syncs_answered);
        raise(&self.publications, publications);
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
