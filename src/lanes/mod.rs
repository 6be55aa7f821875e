//! Floor 2: who. A subject's bucket and the lane that a policy gives it; the same answer on every node, for ever.

mod bucket;
mod change;
mod decide;

pub use bucket::{Bucket, Prefix};
pub use change::{ChangeFault, PolicyChange, UNFORCED_RAISE, rollback};
pub use decide::{CompiledPolicy, Entry, LaneDecision, LaneReason};
