//! Floor 2: where. Filter, ring, walk; one code path for the proxy and for `route`.
//!
//! [`Builder`] turns the candidate table that `node` publishes into a [`Snapshot`]; [`choose`] decides on it, pure, without a
//! lock or an allocation; [`Attempts`] is the life of one request after that, sans-io. [`Explanation`] and [`RingReport`] say
//! in words what those did.

mod attempts;
mod budget;
mod builder;
mod cell;
mod choose;
mod explain;
mod floor;
mod hot;
mod load;
mod near;
mod pace;
mod pin;
mod question;
mod reading;
mod report;
mod ring;
mod rules;
mod signals;
mod snapshot;
mod state;
mod table;
mod takeover;
#[cfg(test)]
mod testing;

pub use attempts::{Attempts, AttemptsConfig, GiveUp, Method, MethodClass, Outcome, Pending, Step};
pub use builder::{Builder, Rings};
pub use cell::{BreakerState, InFlight, InstanceCell, Look, Ticket};
pub use choose::{Decision, FallbackReason, Request, SkipReason, Skipped, SkippedList, choose};
pub use explain::{ExcludedInstance, Explanation, SkippedInstance, Target};
pub use load::Load;
pub use near::{Failover, Near};
pub use question::{MeshAnswer, NodeAnswer, Question};
pub use reading::{Reading, Who};
pub use report::{InstanceShare, LaneReport, RingReport};
pub use ring::{
    ADMISSION_SEED, KEY_SEED, MAX_MEMBERS, MAX_POINTS, Member, Order, POINTS_AT_NORMAL_WEIGHT, Ring, RingFault,
    admission_hash, key_hash, point_hash, points_of,
};
pub use rules::Rules;
pub use signals::{Bell, DoubtReport, ObserverReport, Remark, SignalCounts, Signals, SignalsReport, Standing};
pub use snapshot::{Exclusion, InstanceEntry, LaneView, Locality, ServiceView, Snapshot};
pub use state::{BreakerCounts, ServiceState};
pub use table::{Candidate, CandidateTable};
