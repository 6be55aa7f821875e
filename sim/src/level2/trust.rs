//! Real certificates and signatures for simulated nodes: one authority, a key for each name, all made from the seed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lanemesh::{
    pki::{Authority, Identity, IdentityParts, Leaf, LeafRequest},
    types::{CertFacts, MeshName, NodeId, PublicKey, ServiceName, Signature, Trust, TrustError, Wall},
};
use rustls::{pki_types::UnixTime, time_provider::TimeProvider};

use super::{crypto, reactor::Process};
use crate::{chance::Chance, cpu::Work, host::EPOCH_MS, trust::Register};

/// Issues certificates for a mesh.
pub struct Issuer {
    authority: Authority,
    services: Vec<ServiceName>,
    seed: u64,
    leaves: BTreeMap<NodeId, Leaf>,
}

impl Issuer {
    /// An authority whose key follows from the seed and the mesh's name.
    pub fn new(mesh: &str, services: &[ServiceName], seed: u64) -> Self {
        let mesh = MeshName::new(mesh).expect("a valid name");
        let key = bytes(seed, mesh.as_str());
        Self {
            authority: Authority::new(&mesh, key, ISSUED),
            services: services.to_vec(),
            seed,
            leaves: BTreeMap::new(),
        }
    }

    /// The identity of a node in one process: its certificate stays the same over restarts.
    pub fn identity(&mut self, node: &NodeId, process: &Arc<Process>) -> Arc<Identity> {
        let Self { authority, services, seed, leaves } = self;
        let leaf = leaves.entry(node.clone()).or_insert_with(|| {
            let request = LeafRequest {
                node: node.clone(),
                services: services.clone(),
                any_service: false,
                valid_for: LeafRequest::DEFAULT_VALIDITY,
            };
            let key = bytes(*seed, &format!("{}/{node}", authority.mesh()));
            authority.sign(&request, key, ISSUED).expect("a well-formed request")
        });
        let parts = IdentityParts {
            certificate: leaf.certificate.clone(),
            key: leaf.key.clone_key(),
            authorities: vec![authority.certificate().clone()],
            provider: crypto::provider(),
            clock: Arc::new(Clock(process.clone())),
        };
        Arc::new(process.enter(|| Identity::from_parts(parts)).expect("made to fit each other"))
    }
}

/// 32 bytes from the seed and a name.
pub(super) fn bytes(seed: u64, name: &str) -> [u8; 32] {
    let mut chance = Chance::of(seed, &[KEYS, xxhash_rust::xxh3::xxh3_64(name.as_bytes())]);
    let mut bytes = [0; 32];
    bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&chance.next().to_le_bytes()));
    bytes
}

/// A process's wall clock.
#[derive(Debug)]
struct Clock(Arc<Process>);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_millis(self.0.wall())))
    }
}

/// What a node trusts: its real identity, which charges its process, with signatures memoized, and honest words registered.
pub struct RealTrust {
    node: NodeId,
    identity: Arc<Identity>,
    process: Arc<Process>,
    register: Option<Arc<Register>>,
}

impl RealTrust {
    /// What an honest node signs is registered.
    pub fn honest(identity: Arc<Identity>, process: Arc<Process>, register: Arc<Register>) -> Self {
        Self { register: Some(register), ..Self::liar(identity, process) }
    }

    /// What a liar signs is not.
    pub fn liar(identity: Arc<Identity>, process: Arc<Process>) -> Self {
        Self { node: identity.facts().node.clone(), identity, process, register: None }
    }
}

impl Trust for RealTrust {
    fn check_certificate(&self, der: &[u8], at: Wall) -> Result<CertFacts, TrustError> {
        self.process.cpu.charge(Work::Certificate);
        self.process.enter(|| self.identity.check_certificate(der, at))
    }

    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
        self.process.cpu.charge(Work::Verify);
        self.process.memo.verify(key, message, signature)
    }

    fn sign(&self, message: &[u8]) -> Signature {
        self.process.cpu.charge(Work::Sign);
        if let Some(register) = &self.register {
            register.said(&self.node, message);
        }
        let made = self.identity.sign(message);
        self.process.memo.note(&self.identity.facts().key, message, &made);
        made
    }

    fn own_certificate(&self) -> &[u8] {
        self.identity.own_certificate()
    }
}

/// A month before every simulation begins, so that clocks may be wrong by weeks.
const ISSUED: Wall = Wall(EPOCH_MS - 30 * 24 * 60 * 60 * 1000);
const KEYS: u64 = 60;
