//! Heard by nobody: this node's way out is cut while its way in is not.
//!
//! A link that fails one way and comes back again and again would have everybody bury this node and take it back each time
//! (Suresh et al., "Stable and consistent membership at scale with Rapid", 2018, figure 9). Nobody else can tell that from a
//! split that ends; this node can, since it hears others and none of them answers. It then refutes nothing before it has been
//! answered for as long as a flapping member is held down; and whatever raises its incarnation waits until somebody hears
//! it: an incarnation that nobody heard of would lift the verdict by itself later.
//!
//! Shorter than the shortest wait for a verdict it is no matter: then nobody has buried this node.
//!
//! Not here: a split (nothing is heard), a pause (the process stood still), and slowness (answers come, late).

use std::time::Duration;

use super::{
    Action, Membership,
    roster::{ME, Slot},
};
use crate::{types::Mono, wire::Ctl};

/// What this node knows of being heard.
pub(super) struct Unheard {
    /// When somebody last answered anything of this node's, in time or late.
    answered: Mono,
    /// Since when it has heard others without a gap, and when it last did.
    hears: Option<(Mono, Mono)>,
    /// When it last was heard by nobody.
    until: Option<Mono>,
    /// When it was last late itself.
    late: Option<Mono>,
    /// When somebody was last asked who had just been heard.
    asked: Option<Mono>,
    /// A refutation waits for an answer.
    waits: bool,
}

impl Unheard {
    pub fn new(now: Mono) -> Self {
        Self { answered: now, hears: None, until: None, late: None, asked: None, waits: false }
    }
}

impl Membership {
    /// Something came from somebody. Where that happens for long without an answer, those who are heard are asked: others whom this
    /// node has asked may be dead.
    pub(super) fn hears(&mut self, now: Mono, from: Slot) {
        let gap = self.config.veto;
        let run = self.unheard.hears.filter(|(_, last)| now.since(*last) <= gap);
        self.unheard.hears = Some((run.map_or(now, |(since, _)| since), now));
        let unanswered = self.unanswered_for(now);
        if unanswered < self.config.wait_min / 2 {
            return;
        }
        if self.unheard.asked.is_none_or(|at| now.since(at) >= self.config.again_min) {
            self.unheard.asked = Some(now);
            self.send_to(from, Ctl::Ping { token: 0 });
        }
        if unanswered < self.config.wait_min {
            return;
        }
        if self.unheard.until.replace(now).is_none_or(|until| now.since(until) > self.config.flap_hold) {
            self.actions.push_back(Action::Report(format!(
                "others are heard and none of them answers: nothing that this node sends seems to arrive; once it does, the mesh takes it back after {} s",
                self.config.flap_hold.as_secs()
            )));
        }
    }

    /// Somebody answered this node, in time or late. That somebody calls it dead shows nothing: perhaps it was told by others.
    pub(super) fn is_heard(&mut self, now: Mono) {
        let silence = now.since(std::mem::replace(&mut self.unheard.answered, now));
        if self.unheard.until.is_some() && silence >= self.config.wait_min {
            self.unheard.until = Some(now);
        }
        if std::mem::take(&mut self.unheard.waits) {
            self.refute_in(now, Duration::ZERO);
        }
    }

    /// This node's own timers are late: the answers may be waiting here to be read.
    pub(super) fn is_late(&mut self, now: Mono) {
        self.unheard.late = Some(now);
    }

    /// For how long others have been heard of whom none answers; zero while that may be for this node's own slowness.
    fn unanswered_for(&self, now: Mono) -> Duration {
        if self.unheard.late.is_some_and(|at| now.since(at) <= self.config.wait_min) {
            return Duration::ZERO;
        }
        let run = self.unheard.hears.filter(|(_, last)| now.since(*last) <= self.config.veto);
        run.map_or(Duration::ZERO, |(since, _)| now.since(since.max(self.unheard.answered)))
    }

    /// In what time a refutation may go out: at once, or later; then this node asks some whether they hear it.
    pub(super) fn refutes_in(&mut self, now: Mono) -> Duration {
        let held = self.unheard.until.map_or(Duration::ZERO, |until| (until + self.config.flap_hold).since(now));
        // After such a time it takes an answer, since by then hardly anybody speaks to this node.
        let known = self.unheard.until.is_some();
        let silence = if known { now.since(self.unheard.answered) } else { self.unanswered_for(now) };
        if held.is_zero() && silence < self.config.probe_period * 2 {
            self.unheard.until = None;
            return Duration::ZERO;
        }
        // Those who hold this node dead answer none of its probes, but this.
        for other in self.roster.random(&mut self.rng, ASKS, ME) {
            self.send_to(other, Ctl::Ping { token: 0 });
        }
        if held.is_zero() {
            self.unheard.waits = true;
            return self.config.again_min;
        }
        held.min(self.config.veto)
    }
}

/// So many are asked whether they hear this node.
const ASKS: usize = 3;
