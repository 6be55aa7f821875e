//! Floor 2: who. A subject's bucket and the lane that a policy gives it; the same answer on every node, for ever.

mod bucket;
mod decide;

pub use bucket::{Bucket, Prefix};
pub use decide::{CompiledPolicy, Entry, LaneDecision, LaneReason};
