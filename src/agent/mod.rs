//! Floor 5: the one task that owns `Node`, and the handle through which everybody else asks it.

mod handle;

pub use handle::{CommandError, Handle, InstanceInfo, MemberInfo, NewInstance, NodeInfo, PolicyInfo};

pub use crate::{lanes::PolicyChange, node::InstanceChange};
