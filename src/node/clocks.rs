//! How this node's clock stands to its peers' (REQUIREMENTS C3: policies are ordered by clocks, and one that is far ahead is
//! refused by everybody).
//!
//! Every sync reply tells the answering side's time. A node that is ahead of the middle of its peers must not set a policy: they
//! would refuse it, and this node alone would follow it. Nothing else here depends on wall clocks, and nothing is corrected.
//!
//! A peer that lies about its time is one voice among up to [`MOST`]; where it is the only peer there is nobody to outvote it.

use std::collections::VecDeque;

use super::{Event, Node, Now};
use crate::{
    catalog::MAX_AHEAD_MS,
    types::{NodeId, Wall},
};

/// The latest word of some peers.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// Peer, and its wall time at this node's monotonic time zero, in milliseconds; the latest last.
    peers: VecDeque<(NodeId, i64)>,
    warned: bool,
}

impl Clocks {
    fn learn(&mut self, peer: &NodeId, zero: i64) {
        self.peers.retain(|(known, _)| known != peer);
        if self.peers.len() == MOST {
            self.peers.pop_front();
        }
        self.peers.push_back((peer.clone(), zero));
    }

    /// By how many milliseconds `zero` is ahead of the middle of the peers; of two middles the one that is nearer.
    fn ahead(&self, zero: i64) -> Option<i64> {
        let mut all: Vec<i64> = self.peers.iter().map(|(_, theirs)| zero.saturating_sub(*theirs)).collect();
        all.sort_unstable();
        let middle = [all.get(all.len().checked_sub(1)? / 2), all.get(all.len() / 2)];
        middle.into_iter().flatten().copied().min_by_key(|ahead| ahead.unsigned_abs())
    }
}

impl Node {
    /// How far this node's wall clock is ahead of its peers' (negative: behind), in milliseconds; `None` before any has told.
    pub fn clock_ahead(&self, now: Now) -> Option<i64> {
        self.clocks.ahead(zero(now, now.wall.0))
    }

    /// This node's wall time, or its peers' where it is far ahead of them: whatever builds on it would be refused for as long.
    pub(super) fn believable_wall(&self, now: Now) -> Wall {
        let ahead = u64::try_from(self.clock_ahead(now).unwrap_or(0)).unwrap_or(0);
        if ahead > MAX_AHEAD_MS { Wall(now.wall.0.saturating_sub(ahead)) } else { now.wall }
    }

    /// A peer has told its time.
    pub(super) fn peer_clock(&mut self, now: Now, from: &NodeId, wall: u64) {
        if wall == 0 {
            return; // it does not say
        }
        self.clocks.learn(from, zero(now, wall));
        let Some(ahead) = self.clock_ahead(now) else { return };
        let wrong = ahead.unsigned_abs() > MAX_AHEAD_MS;
        if wrong && !self.clocks.warned {
            let (seconds, way) = (ahead.unsigned_abs() / 1000, if ahead > 0 { "ahead of" } else { "behind" });
            let effect =
                if ahead > 0 { "policies set here are refused" } else { "policies set elsewhere are refused here" };
            self.event(Event::Report(format!(
                "the clock here is {seconds} s {way} the peers': {effect}; set it right"
            )));
        }
        self.clocks.warned = wrong;
    }
}

fn zero(now: Now, wall: u64) -> i64 {
    let since = i64::try_from(now.mono.millis()).unwrap_or(i64::MAX);
    i64::try_from(wall).unwrap_or(i64::MAX).saturating_sub(since)
}

/// Peers that are remembered.
pub(super) const MOST: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_counts_and_the_nearer_of_two() {
        let mut clocks = Clocks::default();
        assert_eq!(clocks.ahead(0), None);
        let peer = |at: usize| NodeId::new(&format!("n{at}")).unwrap();
        clocks.learn(&peer(0), -5_000);
        assert_eq!(clocks.ahead(0), Some(5_000));
        clocks.learn(&peer(1), 10);
        assert_eq!(clocks.ahead(0), Some(-10), "of two, one may lie");
        clocks.learn(&peer(2), 0);
        assert_eq!(clocks.ahead(0), Some(0));
        (3..100).for_each(|at| clocks.learn(&peer(at), 7));
        assert_eq!((clocks.ahead(0), clocks.peers.len()), (Some(-7), MOST));
        clocks.learn(&peer(99), 1 << 60);
        assert_eq!(clocks.ahead(0), Some(-7), "one voice");
    }
}
