//! What a run writes down for `figures`: who turned to what, when, and where new requests went. Off unless asked for.

use std::collections::BTreeSet;

use lanemesh::{
    routing::MethodClass,
    types::{MemberState, NodeId},
};

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

/// A request that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landed {
    /// When it came.
    pub begun: Time,
    /// How long it took.
    pub took: Time,
    /// Whose sidecar handled it.
    pub from: u32,
    /// Index of its service.
    pub service: usize,
    /// Who sent it.
    pub user: u32,
    /// Its method's class.
    pub class: MethodClass,
    /// The host whose application answered below 500; `None`: it failed.
    pub by: Option<u32>,
    /// How often it was sent, at least once.
    pub tries: u32,
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
    /// Requests, by their end.
    pub landed: Vec<Landed>,
}
