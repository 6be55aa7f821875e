//! pki.

use std::{path::Path, time::Duration};

use crate::types::{MeshName, NodeId, ServiceName};

/// Placeholder.
pub struct Authority {}

#[allow(unused_variables)]
impl Authority {
    /// Placeholder.
    pub fn create(dir: &Path, mesh: &MeshName) -> anyhow::Result<Self> {
        todo!()
    }
    /// Placeholder.
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        todo!()
    }
    /// Placeholder.
    pub fn issue(
        &self,
        node: &NodeId,
        services: &[ServiceName],
        any: bool,
        valid_for: Duration,
        out_dir: &Path,
    ) -> anyhow::Result<()> {
        todo!()
    }
}
