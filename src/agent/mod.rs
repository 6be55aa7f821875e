//! Floor 5: the one task that owns `Node`, and the handle through which everybody else asks it.
//!
//! The loop is small: an event comes in, the node thinks, outputs are carried out; nothing in it waits for the network, the
//! disk or a ring. Rings are built by a thread of their own; the state file is written by another.

mod answers;
mod checks;
mod compare;
mod diagnostics;
#[cfg(test)]
pub(crate) mod fake;
mod handle;
mod in_flight;
mod metrics;
mod post;
mod questions;
mod run;
mod seeds;
mod signals;
mod state;
mod survey;
mod views;

pub use diagnostics::{ClockInfo, Diagnostics, SeedAddr, SeedInfo};
pub use handle::{
    CommandError, Handle, InstanceInfo, MemberInfo, MemberStory, NewInstance, NodeDone, NodeInfo, PolicyInfo,
};
pub use metrics::MeshMetrics;
pub use post::{ForPeople, ForShell, carry, input};
pub use run::{Agent, AgentConfig, Ended, LocalInstance, Watch};
pub use state::{STATE, StateDir, StateError};

pub use crate::{lanes::PolicyChange, node::InstanceChange};
