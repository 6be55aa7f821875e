//! The failure signal: what one sidecar saw of instances that fail (REQUIREMENTS M10).

use serde::{Deserialize, Serialize};

use super::{InstanceId, NodeId, ServiceName};

/// Most instances in one signal; further ones wait for the next.
pub const MAX_OBSERVATIONS: usize = 16;
/// Largest signal, encoded, in bytes: it always travels in one datagram.
pub const MAX_SIGNAL_BYTES: usize = 800;

/// What one sidecar saw of one instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// The instance's service.
    pub service: ServiceName,
    /// The sidecar that announces the instance.
    pub owner: NodeId,
    /// The instance.
    pub instance: InstanceId,
    /// Requests looked at: its last ones from this observer; where two or more failed in a row, only those.
    pub attempts: u16,
    /// Of those, failures as the observer's breaker counts them.
    pub failures: u16,
}

/// All that one sidecar sees fail now; a newer one replaces it whole. Newer is a higher (`generation`, `number`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signal {
    /// Who saw it.
    pub observer: NodeId,
    /// The observer's generation.
    pub generation: u64,
    /// Counts its signals in this generation.
    pub number: u64,
    /// At most [`MAX_OBSERVATIONS`].
    pub seen: Vec<Observation>,
}

impl Observation {
    /// Whether the counts can be.
    pub const fn is_sound(&self) -> bool {
        self.failures > 0 && self.failures <= self.attempts
    }
}
