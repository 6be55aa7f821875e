//! Floor 2: who. A subject's bucket and the lane that a policy gives it; the same answer on every node, for ever.
//!
//! Pure: a [`CompiledPolicy`] and an [`Entry`] give one [`LaneDecision`], without a lock or an allocation. A [`Head`]
//! is all it sees of a request. Where the request then goes is `routing`'s.

mod bucket;
mod change;
mod decide;
mod head;
mod rules;

pub use bucket::{BUCKETS, Bucket, Prefix};
pub use change::{ChangeFault, PolicyChange, UNFORCED_RAISE, rollback};
pub use decide::{CompiledPolicy, Entry, LaneDecision, LaneReason};
pub use head::{Head, PlainHead, subject};
pub use rules::Here;
