//! What the core needs of certificates and signatures. `pki` implements it; the simulator has a cheap one.

use super::{MeshName, NodeId, ServiceName, Wall};

/// Ed25519 public key (RFC 8032).
pub type PublicKey = [u8; 32];
/// Ed25519 signature (RFC 8032).
pub type Signature = [u8; 64];

/// What a checked certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertFacts {
    /// The node it names.
    pub node: NodeId,
    /// The mesh it belongs to.
    pub mesh: MeshName,
    /// Services it may announce.
    pub services: Vec<ServiceName>,
    /// Whether it may announce any service (a gateway, or a sidecar for remote instances).
    pub any_service: bool,
    /// The key that signs its statements.
    pub key: PublicKey,
    /// From when it is valid.
    pub not_before: Wall,
    /// Until when it is valid.
    pub not_after: Wall,
}

impl CertFacts {
    /// Whether the holder may announce instances of `service`.
    pub fn may_announce(&self, service: &ServiceName) -> bool {
        self.any_service || self.services.contains(service)
    }
}

/// Why a certificate is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TrustError(pub String);

/// Certificates and signatures as the core sees them. Pure: the same answer for the same bytes and time.
pub trait Trust: Send + Sync {
    /// Checks that `der` was issued by a trusted authority of this mesh and is valid at `at`.
    fn check_certificate(&self, der: &[u8], at: Wall) -> Result<CertFacts, TrustError>;
    /// Whether `signature` over `message` was made by the holder of `key`.
    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool;
    /// Signs with this node's own key.
    fn sign(&self, message: &[u8]) -> Signature;
    /// This node's own certificate.
    fn own_certificate(&self) -> &[u8];
}
