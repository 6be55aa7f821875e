//! The candidate table: everything routing needs of the catalog and the membership, as `node` publishes it.

use std::{collections::BTreeMap, sync::Arc};

use crate::types::{InstanceRecord, LanePolicy, MemberState, ServiceName};

/// One instance record and what is held of its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The record.
    pub record: Arc<InstanceRecord>,
    /// State of the sidecar that announces it.
    pub owner: MemberState,
    /// Known only from disk or kept as a last resort: routable, but not confirmed by its owner in this run.
    pub stale: bool,
    /// Its return is held back for a moment because it keeps leaving and coming back.
    pub held: bool,
}

/// One version of it; equal tables have equal digests on every node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CandidateTable {
    /// Counts this node's publications.
    pub version: u64,
    /// Settled digest of the catalog it was made from.
    pub digest: u64,
    /// Sorted by (service, instance id, owner). Records that are withdrawn are absent.
    pub instances: Vec<Candidate>,
    /// Policies by service.
    pub policies: BTreeMap<ServiceName, Arc<LanePolicy>>,
}
