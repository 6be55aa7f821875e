//! Floor 5: the one task that owns `Node`, and the handle through which everybody else asks it.

#[cfg(test)]
pub(crate) mod fake;
mod handle;

pub use handle::{
    CommandError, Handle, InstanceChange, InstanceInfo, MemberInfo, NewInstance, NodeInfo, PolicyChange, PolicyInfo,
};
