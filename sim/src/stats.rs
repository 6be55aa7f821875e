//! What is counted over a run.

use std::collections::BTreeMap;

use lanemesh::{
    routing::{GiveUp, Outcome},
    types::LanePolicy,
};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::{
    queue::{SECOND, Time},
    world::{End, Flight},
};

/// Counts, and what the readout and the invariants remember.
#[derive(Debug, Default)]
pub struct Stats {
    /// Events handled.
    pub events: u64,
    /// Datagrams, one-way streams, syncs, and what did not arrive.
    pub datagrams: u64,
    /// See `datagrams`.
    pub streams: u64,
    /// See `datagrams`.
    pub syncs: u64,
    /// Bytes of syncs.
    pub sync_bytes: u64,
    /// See `datagrams`.
    pub lost: u64,
    /// Candidate tables published, and views built from them.
    pub publications: u64,
    /// See `publications`.
    pub snapshots: u64,
    /// Statements that some node did not believe.
    pub refused: u64,
    /// Bytes that some node could not read.
    pub malformed: u64,
    /// Handshakes refused over certificates (level 2).
    pub handshakes_refused: u64,
    /// Reports for people.
    pub reports: u64,
    /// Requests of which a try failed.
    pub met: u64,
    /// Failure signals sent by honest sidecars.
    pub signals: u64,
    /// Lies told.
    pub lies: u64,
    /// Nodes that ended because their name was taken.
    pub names_taken: u64,
    /// Verdicts on members that were in contact at that moment.
    pub down_in_contact: u64,
    /// Doubts about the same.
    pub doubts_in_contact: u64,
    /// Requests begun.
    pub requests: u64,
    /// Requests that ended with an answer below 500.
    pub answered: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Of those, by reason.
    pub reasons: BTreeMap<String, u64>,
    /// Requests for a service that the sidecar does not know.
    pub unknown_service: u64,
    /// Answered requests that took more than a second.
    pub slow: u64,
    /// Requests whose instance was another one than that user's last.
    pub moved: u64,
    /// Requests that a lane other than the decided one served.
    pub fell_back: u64,
    /// Requests retried.
    pub retried: u64,
    /// Failed requests in this second of the readout.
    pub second: (Time, u64, u64),
    /// When a step began or ended: letter and hosts.
    pub marks: Vec<(Time, char, Vec<u32>)>,
    /// Policies ordered: when, by which host, what.
    pub orders: Vec<(Time, u32, LanePolicy)>,
    /// The same, each with what its author held before.
    pub lineage: Vec<crate::invariants::Order>,
    /// When views and digests agreed everywhere for good, after the last fault.
    pub converged: Option<Time>,
    last: FxHashMap<(usize, u32, u32), u32>,
}

/// What a run prints at its end.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Scenario.
    pub scenario: String,
    /// Seed.
    pub seed: u64,
    /// Hash of everything that happened.
    pub hash: String,
    /// Hosts at the end: members, and members with a right view.
    pub members: usize,
    /// See `members`.
    pub right: usize,
    /// Virtual seconds.
    pub seconds: f64,
    /// Events handled.
    pub events: u64,
    /// Seconds after the last fault until everybody agreed.
    pub converged_after: Option<f64>,
    /// Verdicts and doubts about members in contact.
    pub down_in_contact: u64,
    /// See `down_in_contact`.
    pub doubts_in_contact: u64,
    /// Requests and what became of them.
    pub requests: u64,
    /// See `requests`.
    pub failed: u64,
    /// Failed requests by reason.
    pub reasons: BTreeMap<String, u64>,
    /// Over a second.
    pub slow: u64,
    /// To another instance than that user's last.
    pub moved: u64,
    /// To another lane than decided.
    pub fell_back: u64,
    /// Bytes a node sends a second, on average and syncs included.
    pub bytes_per_node_second: f64,
    /// What is counted at level 2 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<crate::level2::Totals>,
    /// Violations: invariant, times, first seen at, and what was seen.
    pub violations: Vec<crate::invariants::Violation>,
}

impl Stats {
    /// A request is over.
    pub fn landed(&mut self, flight: &Flight, end: End, took: Time, now: Time) {
        if flight.tries.len() > 1 {
            self.retried += 1;
        }
        let failed = |outcome: &Outcome| !matches!(outcome, Outcome::StaleConnection | Outcome::Answered(0..500));
        self.met += u64::from(flight.outcomes.iter().any(failed));
        if self.second.0 != now / SECOND {
            self.second = (now / SECOND, 0, 0);
        }
        self.second.1 += 1;
        match end {
            End::Answered(status, target) if status < 500 => {
                self.answered += 1;
                self.slow += u64::from(took > SECOND);
                self.fell_back += u64::from(flight.decision.fallback.is_some());
                let key = (flight.service, flight.user, flight.at.host);
                let instance = target.host << 8 | u32::from(target.app);
                if self.last.insert(key, instance).is_some_and(|last| last != instance) {
                    self.moved += 1;
                }
            }
            End::Answered(status, _) => self.fail(&format!("status {status}")),
            End::GaveUp(why) => self.fail(GiveUp::as_str(why)),
        }
    }

    fn fail(&mut self, reason: &str) {
        self.failed += 1;
        self.second.2 += 1;
        *self.reasons.entry(reason.to_owned()).or_default() += 1;
    }
}
