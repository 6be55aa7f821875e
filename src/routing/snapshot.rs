//! The immutable routing view, and how it is built from a candidate table, off the request path and off the gossip loop.

use std::sync::Arc;

use serde::Serialize;

use super::{CandidateTable, InstanceCell};
use crate::{
    lanes::CompiledPolicy,
    types::{Env, InstanceRecord, MemberState, Mono, Region, ServiceName, Zone},
};

/// Where this sidecar stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locality {
    /// Requests never leave it.
    pub env: Env,
    /// Region.
    pub region: Region,
    /// Zone.
    pub zone: Zone,
}

/// Why an instance is no candidate at all, for anybody: gossiped facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exclusion {
    /// Another environment.
    OtherEnv,
    /// Its own checks fail, or none has passed yet.
    Critical,
    /// Taken out of rotation.
    Draining,
    /// Weight 0.
    WeightZero,
    /// Its sidecar is down.
    OwnerDown,
    /// Its sidecar has left.
    OwnerLeft,
    /// Another node announces the same id; the smaller node id keeps it.
    DuplicateId,
}

/// One instance in a snapshot.
pub struct InstanceEntry {
    /// The record.
    pub record: Arc<InstanceRecord>,
    /// State of its sidecar.
    pub owner: MemberState,
    /// See [`super::Candidate::stale`].
    pub stale: bool,
    /// Why it is no candidate; `None` when it is one.
    pub excluded: Option<Exclusion>,
    /// What the data path knows of it.
    pub cell: Arc<InstanceCell>,
}

/// One service in a snapshot.
pub struct ServiceView {
    /// Its name.
    pub name: ServiceName,
    /// All its known instances, candidates or not, by instance id.
    pub instances: Vec<InstanceEntry>,
    /// Its policy, if it has one.
    pub policy: Option<Arc<CompiledPolicy>>,
}

/// The immutable routing view.
pub struct Snapshot {
    /// Counts this node's snapshots.
    pub version: u64,
    /// Equal on every node with the same content.
    pub digest: u64,
    /// When it was published.
    pub published: Mono,
    /// Share of sampled keys (basis points) that moved against the one before.
    pub moved_basis_points: u16,
}

impl Snapshot {
    /// No services yet.
    pub fn empty() -> Self {
        Self { version: 0, digest: 0, published: Mono::ZERO, moved_basis_points: 0 }
    }

    /// A service by name; no allocation.
    pub fn service(&self, name: &str) -> Option<&ServiceView> {
        let _ = name;
        None
    }

    /// All services, by name.
    pub fn services(&self) -> impl Iterator<Item = &ServiceView> {
        std::iter::empty()
    }
}

/// Builds snapshots; keeps rings and cells that did not change.
pub struct Builder {}

impl Builder {
    /// For a sidecar that stands at `locality`.
    pub fn new(locality: Locality) -> Self {
        todo!()
    }

    /// The next snapshot. Over-limit services keep their last good view; the faults say which and why.
    pub fn build(&mut self, table: &CandidateTable, now: Mono) -> (Arc<Snapshot>, Vec<String>) {
        todo!()
    }
}
