//! Floor 0: the words of the product. Ids that parse once, time as a value, and the plain data of the mesh.
//!
//! Invariant: whatever exists as one of these types is valid; nothing inside checks it again.
//! Not here: merging (`catalog`), encoding (`wire`), deciding (`lanes`, `routing`).

mod id;
mod planted;
mod policy;
mod record;
mod rule;
mod selector;
mod signal;
mod time;
mod trust;

pub use id::{Env, InstanceId, Lane, MeshName, NameError, NodeId, Region, ServiceName, VersionName, Zone};
pub use planted::Planted;
#[cfg(feature = "planted")]
pub use planted::plant;
pub use policy::{
    AnonymousRule, BasisPoints, BucketScheme, EmptyLane, EmptyLaneRule, LanePolicy, LaneRule, PolicyFault,
    PolicyVersion, SubjectPart, SubjectSource,
};
pub use record::{
    Drain, Health, InstanceRecord, LoadFigure, MAX_RECORD_BYTES, MAX_WEIGHT, MemberState, NORMAL_WEIGHT, Protocol,
    RecordFault,
};
pub use rule::{Condition, ConditionError, MAX_CONDITIONS, MAX_RULES, MatchRule, Wanted};
pub use selector::{MAX_TRAITS, Selectors, Trait, selected};
pub use signal::{MAX_OBSERVATIONS, MAX_SIGNAL_BYTES, Observation, Signal};
pub use time::{Mono, Wall};
pub use trust::{CertFacts, PublicKey, Signature, Trust, TrustError};

#[cfg(test)]
pub use trust::fake::FakeTrust;
