//! Floor 4: readiness is a set of names. What is still waited for is told, not just that something is.

use std::sync::atomic::{AtomicU8, Ordering};

/// What readiness can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Blocker {
    /// The node has not yet taken part in the mesh.
    Membership = 1,
    /// No routing view is in force yet.
    View = 2,
    /// No seed has answered, and nothing is known from an earlier run. Waited for only a few seconds: the first node of a
    /// mesh must become ready without others.
    Seeds = 4,
    /// The process is ending.
    Shutdown = 8,
}

const ALL: [(Blocker, &str); 4] = [
    (Blocker::Membership, "membership"),
    (Blocker::View, "view"),
    (Blocker::Seeds, "seeds"),
    (Blocker::Shutdown, "shutdown"),
];

/// The set; shared by who clears it and who asks.
#[derive(Debug)]
pub struct Ready {
    blocked: AtomicU8,
}

impl Default for Ready {
    /// Waits for everything but the end.
    fn default() -> Self {
        let start = Blocker::Membership as u8 | Blocker::View as u8 | Blocker::Seeds as u8;
        Self { blocked: AtomicU8::new(start) }
    }
}

impl Ready {
    /// No longer waits for this.
    pub fn clear(&self, blocker: Blocker) {
        // Only a flag: nothing else is published by it.
        self.blocked.fetch_and(!(blocker as u8), Ordering::Relaxed);
    }

    /// Waits for this.
    pub fn block(&self, blocker: Blocker) {
        self.blocked.fetch_or(blocker as u8, Ordering::Relaxed);
    }

    /// Names of what is waited for; empty when ready.
    pub fn waiting_for(&self) -> Vec<String> {
        let blocked = self.blocked.load(Ordering::Relaxed);
        ALL.iter().filter(|(blocker, _)| blocked & *blocker as u8 != 0).map(|(_, name)| (*name).to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_what_it_waits_for() {
        let ready = Ready::default();
        assert_eq!(ready.waiting_for(), ["membership", "view", "seeds"]);
        [Blocker::Membership, Blocker::View, Blocker::Seeds].into_iter().for_each(|blocker| ready.clear(blocker));
        assert!(ready.waiting_for().is_empty());
        ready.block(Blocker::Shutdown);
        assert_eq!(ready.waiting_for(), ["shutdown"]);
    }
}
