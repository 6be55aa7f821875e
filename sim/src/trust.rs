//! Cheap certificates and signatures, and a register of everything that was ever honestly signed.
//!
//! A signature is a keyed xxh3 hash: a changed bit fails as it would with Ed25519, and it costs nanoseconds. It is not
//! secret; whoever lies in a simulation is made to lie with what a real liar would have, its own key. The register is how an
//! invariant can tell that nobody believes what nobody said.

use std::sync::{Arc, Mutex, PoisonError};

use lanemesh::{
    types::{CertFacts, MeshName, NodeId, PublicKey, ServiceName, Signature, Trust, TrustError, Wall},
    wire::{KeyId, key_id},
};
use rustc_hash::FxHashSet;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

use crate::cpu::{Cpu, Work};

/// Everything that was honestly signed in one simulation.
#[derive(Debug, Default)]
pub struct Register {
    said: Mutex<FxHashSet<(u64, u64)>>,
}

impl Register {
    fn note(&self, key: &PublicKey, message: &[u8]) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.insert((xxh3_64(key), xxh3_64(message)));
    }

    /// A node honestly says something, whatever its real key.
    pub fn said(&self, node: &NodeId, message: &[u8]) {
        self.note(&key_of(node), message);
    }

    /// Whether the holder of this node's key ever honestly said these bytes.
    pub fn was_said(&self, node: &NodeId, message: &[u8]) -> bool {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.contains(&(xxh3_64(&key_of(node)), xxh3_64(message)))
    }
}

/// The trust of one node.
#[derive(Debug, Clone)]
pub struct SimTrust {
    key: PublicKey,
    certificate: Vec<u8>,
    register: Option<Arc<Register>>,
    cpu: Option<Arc<Cpu>>,
}

impl SimTrust {
    /// An honest node, whose signatures are registered. Its certificate names the mesh, the node and its services.
    pub fn honest(mesh: &str, node: &NodeId, services: &[ServiceName], register: Arc<Register>) -> Self {
        Self { register: Some(register), ..Self::liar(mesh, node, services) }
    }

    /// By what a node's key is named in statements.
    pub fn key_id(node: &NodeId) -> KeyId {
        key_id(&key_of(node))
    }

    /// Its work is charged there.
    pub fn on(self, cpu: Arc<Cpu>) -> Self {
        Self { cpu: Some(cpu), ..self }
    }

    fn charge(&self, work: Work) {
        if let Some(cpu) = &self.cpu {
            cpu.charge(work);
        }
    }

    /// The same key in a liar's hands: what it signs is not registered.
    pub fn liar(mesh: &str, node: &NodeId, services: &[ServiceName]) -> Self {
        let services: Vec<&str> = services.iter().map(ServiceName::as_str).collect();
        let certificate = format!("{mesh}/{node}/{}", services.join("/")).into_bytes();
        Self { key: key_of(node), certificate, register: None, cpu: None }
    }
}

/// The key that a node's statements are signed with.
fn key_of(node: &NodeId) -> PublicKey {
    let mut key = [0; 32];
    for (half, seed) in key.chunks_exact_mut(16).zip(0..) {
        half.copy_from_slice(&xxh3_128_with_seed(node.as_str().as_bytes(), seed).to_le_bytes());
    }
    key
}

fn signature(key: &PublicKey, message: &[u8]) -> Signature {
    let mut signature = [0; 64];
    signature[..16].copy_from_slice(&xxh3_128_with_seed(message, xxh3_64(key)).to_le_bytes());
    signature
}

impl Trust for SimTrust {
    fn check_certificate(&self, der: &[u8], _at: Wall) -> Result<CertFacts, TrustError> {
        self.charge(Work::Certificate);
        self.charge(Work::Verify);
        let fault = |what: &str| TrustError(format!("certificate: {what}"));
        let text = std::str::from_utf8(der).map_err(|_| fault("unreadable"))?;
        let own = std::str::from_utf8(&self.certificate).unwrap_or_default();
        let mut parts = text.split('/');
        let mesh = parts.next().unwrap_or_default();
        if own.split('/').next() != Some(mesh) {
            return Err(fault("of another mesh"));
        }
        let node = NodeId::new(parts.next().unwrap_or_default()).map_err(|_| fault("names no node"))?;
        let services = parts.map(ServiceName::new).collect::<Result<_, _>>().map_err(|_| fault("names no service"))?;
        Ok(CertFacts {
            key: key_of(&node),
            node,
            mesh: MeshName::new(mesh).map_err(|_| fault("names no mesh"))?,
            services,
            any_service: false,
            not_before: Wall(0),
            not_after: Wall(u64::MAX),
        })
    }

    fn verify(&self, key: &PublicKey, message: &[u8], made: &Signature) -> bool {
        self.charge(Work::Verify);
        signature(key, message) == *made
    }

    fn sign(&self, message: &[u8]) -> Signature {
        self.charge(Work::Sign);
        if let Some(register) = &self.register {
            register.note(&self.key, message);
        }
        signature(&self.key, message)
    }

    fn own_certificate(&self) -> &[u8] {
        &self.certificate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_bit_or_another_key_fails_and_only_honest_words_are_registered() {
        let (a, b) = (NodeId::new("a").unwrap(), NodeId::new("b").unwrap());
        let orders = ServiceName::new("orders").unwrap();
        let register = Arc::new(Register::default());
        let honest = SimTrust::honest("m", &a, std::slice::from_ref(&orders), register.clone());
        let facts = honest.check_certificate(honest.own_certificate(), Wall(0)).unwrap();
        assert_eq!((facts.node.clone(), facts.services), (a.clone(), vec![orders]));
        let signed = honest.sign(b"x");
        assert!(honest.verify(&facts.key, b"x", &signed) && !honest.verify(&facts.key, b"y", &signed));
        let liar = SimTrust::liar("m", &b, &[]);
        assert!(!honest.verify(&facts.key, b"x", &liar.sign(b"x")));
        assert!(register.was_said(&a, b"x") && !register.was_said(&b, b"x"));
        assert!(SimTrust::liar("other", &b, &[]).check_certificate(honest.own_certificate(), Wall(0)).is_err());
    }
}
