//! Floor 2: the replicated tables (members, instance records, policies) and the laws by which they merge.
//!
//! Every entry is a signed statement of its owner; newest wins, the same way everywhere: merging is commutative, associative
//! and idempotent. A relay can't change anything, since only what the owner signed is taken. What is refused is refused by
//! every node: another's signature, a service that the owner's certificate does not list, an over-long record.
//!
//! Not here: who is alive (`node::membership`), when and to whom statements travel (`node`), accusations (they are no
//! settled state). A table never holds what was not verified.

mod merge;
mod named;
mod table;

#[cfg(test)]
mod tests;

pub use merge::{MAX_AHEAD_MS, Merge, Refusal};
pub use table::{Catalog, Change, Conflict, InstanceEntry, MemberEntry, PolicyEntry};
