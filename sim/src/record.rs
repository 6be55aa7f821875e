//! What a run writes down for `figures`: who turned to what, when, and where new requests went. Off unless asked for.

use std::collections::BTreeSet;

use lanemesh::types::{MemberState, NodeId};

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

/// What was written down, in order.
#[derive(Debug, Default)]
pub struct Record {
    /// Members' states.
    pub turns: Vec<Turn>,
    /// New requests: when, and to which host they went first.
    pub firsts: Vec<(Time, u32)>,
    /// Who was named for what is not believed.
    pub named: BTreeSet<NodeId>,
}
