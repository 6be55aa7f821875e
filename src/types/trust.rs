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

/// A cheap [`Trust`] for unit tests: no cryptography, but a statement changed by one bit fails all the same.
#[cfg(test)]
pub mod fake {
    use sha2::{Digest, Sha256};

    use super::{CertFacts, PublicKey, Signature, Trust, TrustError};
    use crate::types::{MeshName, NodeId, Wall};

    /// Signatures are hashes over the (public) key, so anybody could make them; certificates are readable text.
    #[derive(Debug, Clone)]
    pub struct FakeTrust {
        key: PublicKey,
        certificate: Vec<u8>,
    }

    impl FakeTrust {
        /// The trust of one node that may announce any service, in mesh `test`.
        pub fn new(node: &NodeId) -> Self {
            Self::with_services(node, "test", &["*"])
        }

        /// The trust of one node; the service `*` stands for any.
        pub fn with_services(node: &NodeId, mesh: &str, services: &[&str]) -> Self {
            let certificate = format!("{mesh} {node} {}", services.join(",")).into_bytes();
            Self { key: Self::key(node), certificate }
        }

        /// The key that a node's statements are signed with.
        pub fn key(node: &NodeId) -> PublicKey {
            Sha256::digest(node.as_str().as_bytes()).into()
        }

        fn hash(key: &PublicKey, message: &[u8]) -> Signature {
            let mut signature = [0; 64];
            for (part, half) in signature.chunks_exact_mut(32).enumerate() {
                let digest = Sha256::new().chain_update([part as u8]).chain_update(key).chain_update(message);
                half.copy_from_slice(&digest.finalize());
            }
            signature
        }
    }

    impl Trust for FakeTrust {
        fn check_certificate(&self, der: &[u8], _at: Wall) -> Result<CertFacts, TrustError> {
            let fault = || TrustError("not a fake certificate".into());
            let text = std::str::from_utf8(der).map_err(|_| fault())?;
            let [mesh, node, services] = text.split(' ').collect::<Vec<_>>()[..] else { return Err(fault()) };
            let own = std::str::from_utf8(&self.certificate).unwrap_or_default();
            if own.split(' ').next() != Some(mesh) {
                return Err(TrustError(format!("certificate of another mesh: {mesh}")));
            }
            let node = NodeId::new(node).map_err(|_| fault())?;
            let named = services.split(',').filter(|service| !matches!(*service, "*" | ""));
            Ok(CertFacts {
                key: Self::key(&node),
                node,
                mesh: MeshName::new(mesh).map_err(|_| fault())?,
                services: named.map(|name| name.parse().map_err(|_| fault())).collect::<Result<_, _>>()?,
                any_service: services.split(',').any(|service| service == "*"),
                not_before: Wall(0),
                not_after: Wall(u64::MAX),
            })
        }

        fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
            Self::hash(key, message) == *signature
        }

        fn sign(&self, message: &[u8]) -> Signature {
            Self::hash(&self.key, message)
        }

        fn own_certificate(&self) -> &[u8] {
            &self.certificate
        }
    }

    #[test]
    fn what_is_signed_verifies_and_what_was_changed_does_not() {
        let (a, b) = (NodeId::new("a").unwrap(), NodeId::new("b").unwrap());
        let trust = FakeTrust::with_services(&a, "test", &["orders"]);
        let facts = FakeTrust::new(&b).check_certificate(trust.own_certificate(), Wall(0)).unwrap();
        assert_eq!((facts.node, facts.any_service, facts.services.len()), (a, false, 1));
        let signature = trust.sign(b"hello");
        assert!(trust.verify(&facts.key, b"hello", &signature));
        assert!(!trust.verify(&facts.key, b"hallo", &signature));
        assert!(!trust.verify(&FakeTrust::key(&b), b"hello", &signature));
        assert!(
            FakeTrust::with_services(&b, "other", &[]).check_certificate(trust.own_certificate(), Wall(0)).is_err()
        );
    }
}
