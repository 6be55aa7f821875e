//! How long a dead member can keep getting traffic, computed from the constants (REQUIREMENTS R4).
//!
//! The bounds hold on a network that loses nothing, for nodes that are well themselves. They are for operators, who want
//! to know before they start what a configuration trades, and for tests: what is measured must stay below them.
//! Most cases are far quicker, since the data path passes over a refusing instance by itself, at once.
//!
//! Not here: the application's own death, which its sidecar's checks find (`probe`).

use std::time::Duration;

use super::{MembershipConfig, suspicion::RECHECK};

/// Worst times from a member's end until every node acts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removal {
    /// A word of its own (drain, leave, critical) has reached everybody.
    pub spread: Duration,
    /// Its process was killed: the port refuses, and nobody sends it a new request any more.
    pub killed: Duration,
    /// Its host went silent: nobody sends it a new request any more.
    pub silent: Duration,
    /// Its host went silent: everybody holds it down, and its keys have their new owner on every ring.
    pub down: Duration,
}

impl MembershipConfig {
    /// Bounds for a mesh of so many members (two at least); `spread` is how long gossip needs to reach all of them.
    pub fn removal(&self, members: usize, spread: Duration) -> Removal {
        let others = members.saturating_sub(1).max(1);
        let missed = self.first_look(others) + self.probe_rtt;
        // A second accuser begins to look when the first has a result (a refusal) or a while before it (silence), and
        // either needs an answer of somebody else as proof of its own health.
        let killed = missed + (self.rest + self.probe_rtt) * 2 + spread;
        let silent = missed + self.help_after + self.confirm + self.probe_rtt + spread;
        let accusers = others.min(self.accusers_enough);
        let down = missed + self.confirm + self.wait(accusers, others) + self.last_look + RECHECK + spread;
        Removal { spread, killed, silent, down: down.max(silent) }
    }

    /// Until some node has probed a given member. Each of the others asks everybody once in `others` periods, in an order
    /// of its own: the chance that none has after k periods is below e^-k, and after twice round there is none.
    fn first_look(&self, others: usize) -> Duration {
        let certain = u32::try_from(2 * others - 1).unwrap_or(u32::MAX);
        self.probe_period * certain.min(PERIODS)
    }
}

/// So many periods without a probe of a given member happen less than once in a thousand times.
const PERIODS: u32 = 7;
