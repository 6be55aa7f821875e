//! Floor 2: where. Filter, ring, walk; one code path for the proxy and for `route`.
//!
//! [`Builder`] turns the candidate table that `node` publishes into a [`Snapshot`]; [`choose`] decides on it, pure, without a
//! lock or an allocation; [`Attempts`] is the life of one request after that, sans-io.

mod attempts;
mod cell;
mod choose;
mod ring;
mod snapshot;
mod table;

pub use attempts::{Attempts, AttemptsConfig, GiveUp, Method, MethodClass, Outcome, Step};
pub use cell::InstanceCell;
pub use choose::{Decision, Explanation, FallbackReason, Request, SkipReason, Skipped, choose};
pub use ring::{POINTS_AT_NORMAL_WEIGHT, Ring, RingReport, key_hash};
pub use snapshot::{Builder, Exclusion, InstanceEntry, Locality, ServiceView, Snapshot};
pub use table::{Candidate, CandidateTable};
