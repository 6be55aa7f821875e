//! Floor 3: the sidecar's brain, sans-io. Inputs go in with the time, outputs are polled out; the agent's loop and the
//! simulator drive the same code.

mod membership;

pub use membership::{Action, FORGET_AFTER, Membership, MembershipConfig};
