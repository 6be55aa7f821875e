//! What a run writes down for `figures`: who turned to what, when, and which tries went where. Off unless asked for.

use lanemesh::types::MemberState;

use crate::queue::Time;

/// A member's state changed at an observer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// When.
    pub at: Time,
    /// At whom.
    pub observer: u32,
    /// Whose.
    pub subject: u32,
    /// To what.
    pub state: MemberState,
}

/// The turns and tries of a run, in order.
#[derive(Debug, Default)]
pub struct Record {
    /// Members' states.
    pub turns: Vec<Turn>,
    /// Requests' tries: when, and to which host.
    pub tries: Vec<(Time, u32)>,
}
