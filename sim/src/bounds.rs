//! How long what a fault leaves behind may show, computed from the constants of the membership that is simulated. Invariants
//! take their patience from here, so that another profile has another.

use std::time::Duration;

use lanemesh::node::MembershipConfig;

use crate::queue::{SECOND, Time};

/// Worst times. In brackets what they come to with the LAN's constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// A node that was stopped judges nobody for so long (3 s).
    pub held_back: Time,
    /// Whom nobody can reach, and was well before, has come to the end of what it had begun by then: a member was being asked
    /// again while others still answered, and what two say counts once nothing was heard for a moment (1.9 s).
    pub left_alone: Time,
    /// From the end of contact to a verdict that was due to it: it is probed, asked again, accused by one, waited for as long as
    /// one accuser makes anybody wait, and asked once more (12.2 s).
    pub decided: Time,
    /// After a fault is over, what was begun by those who were stopped in it is over, too (15.2 s).
    pub settled: Time,
    /// The same, where a member is held down because it flapped (45.2 s).
    pub released: Time,
    /// After the last of all faults everybody is held for what it is: a verdict that must still fall, a hold, and contact that
    /// must be made again (60.3 s).
    pub converged: Time,
}

impl Bounds {
    /// Of a configuration.
    pub fn of(config: &MembershipConfig) -> Self {
        let time = |duration: Duration| duration.as_nanos() as Time;
        let held_back = time(config.pause + config.hold);
        let left_alone = time(config.confirm + config.veto + config.probe_rtt * 2);
        let probed = config.probe_period * PERIODS + config.probe_rtt;
        let decided = time(probed + config.confirm + config.wait_max + config.last_look) + SECOND;
        let settled = decided + held_back;
        let hold = time(config.flap_hold);
        Self { held_back, left_alone, decided, settled, released: settled + hold, converged: 2 * settled + hold }
    }
}

/// So many probe periods pass without a probe of a given member less than once in a thousand times.
const PERIODS: u32 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_network_is_given_more_time_and_nobody_is_released_before_a_verdict() {
        let (lan, wan) = (Bounds::of(&MembershipConfig::lan()), Bounds::of(&MembershipConfig::wan()));
        assert_eq!(lan.settled / SECOND, 15);
        for (near, far) in [(lan.held_back, wan.held_back), (lan.decided, wan.decided), (lan.converged, wan.converged)]
        {
            assert!(near < far, "{lan:?} {wan:?}");
        }
        for bounds in [lan, wan] {
            assert!(bounds.decided < bounds.settled && bounds.settled < bounds.released, "{bounds:?}");
            assert!(bounds.released < bounds.converged, "{bounds:?}");
        }
    }
}
