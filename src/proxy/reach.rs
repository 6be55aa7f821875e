//! Plain connections to instances, for `CONNECT` and TCP ports: in the order of any request, and by the same rule that what was
//! not sent may go elsewhere.

use std::time::Duration;

use super::{
    Reason,
    exchange::{blame, not_connected},
    flight::Flight,
    forward::{Refusal, refusal},
    io::Socket,
    worker::Worker,
};
use crate::routing::{
    Attempts, AttemptsConfig, Decision, InFlight, InstanceEntry, MethodClass, Outcome, ServiceView, Step,
};

/// A connection to an instance.
pub(super) struct Reached {
    pub(super) socket: Socket,
    /// Counts what it carries as in flight there.
    pub(super) in_flight: InFlight,
}

/// The walk through the instances of one decision.
pub(super) struct Reach<'a> {
    worker: &'a Worker,
    routed: &'a ServiceView,
    decision: Decision,
    attempts: Attempts,
    /// The last failure in words.
    blame: Option<(Reason, String)>,
}

impl<'a> Reach<'a> {
    /// `limit`: the caller's own, if it has one.
    pub(super) fn new(
        worker: &'a Worker,
        routed: &'a ServiceView,
        decision: Decision,
        limit: Option<Duration>,
    ) -> Self {
        let timeouts = &worker.config.timeouts;
        let total = limit.map_or(timeouts.total, |limit| limit.min(timeouts.total));
        let limits = AttemptsConfig { max_retries: 0, per_try: timeouts.per_try, total };
        let attempts = Attempts::new(&decision, MethodClass::Other, false, limits, worker.clock.mono());
        Self { worker, routed, decision, attempts, blame: None }
    }

    /// The next instance that takes a connection.
    pub(super) async fn next(&mut self, flight: &mut Flight) -> Result<Reached, Refusal> {
        loop {
            match self.attempts.next(self.routed, self.worker.clock.mono()) {
                Step::Try { instance, until, .. } => {
                    flight.instance = Some(instance);
                    flight.retries = u32::from(self.attempts.retries());
                    let entry = &self.routed.instances[usize::from(instance)];
                    if entry.cell.in_flight() as usize >= self.worker.config.max_requests_per_instance {
                        self.failed(Reason::Overloaded, entry, "full", Outcome::Full);
                        continue;
                    }
                    let limit = self.worker.clock.mono() + self.worker.config.timeouts.connect;
                    match self.worker.pool.stream(entry, until.min(limit)).await {
                        Ok(stream) => {
                            // Small pieces must not wait for an acknowledgement of the one before.
                            let _ = stream.set_nodelay(true);
                            return Ok(Reached { socket: Socket::new(stream), in_flight: entry.cell.enter() });
                        }
                        Err(fault) => {
                            let (outcome, blame) = not_connected(&fault, entry);
                            self.blame = Some(blame);
                            self.attempts.ended(outcome, self.routed, self.worker.clock.mono());
                        }
                    }
                }
                Step::Wait(until) => tokio::time::sleep_until(self.worker.clock.instant(until).into()).await,
                Step::GiveUp(why) => return Err(refusal(why, &self.decision, self.routed, self.blame.take())),
            }
        }
    }

    /// The instance that was reached carries: no other one is asked any more.
    pub(super) fn settled(&mut self) {
        self.attempts.ended(Outcome::Answered(200), self.routed, self.worker.clock.mono());
    }

    /// The instance that was reached closed before a byte was exchanged, which is as good as refusing.
    pub(super) fn closed_at_once(&mut self, flight: &Flight) {
        if let Some(entry) = flight.instance.map(|at| &self.routed.instances[usize::from(at)]) {
            self.failed(Reason::AllRefused, entry, "it closed the connection at once", Outcome::ConnectFailed);
        }
    }

    fn failed(&mut self, reason: Reason, entry: &InstanceEntry, what: &str, outcome: Outcome) {
        self.blame = Some(blame(reason, entry, what));
        self.attempts.ended(outcome, self.routed, self.worker.clock.mono());
    }
}
