//! rustls' cryptography with randomness from the seed, and without work that only an eavesdropper would notice missing.
//!
//! Handshakes, certificates, transcripts, key schedule and packet protection are real (`ring`). Three things differ:
//!
//! - Random bytes are the running process's own ([`Process::fill`](super::reactor::Process::fill)).
//! - The key exchange is an X25519 on the wire (32 bytes each way, one flight) whose arithmetic is a hash over both public
//!   values: `ring` takes no seeded randomness for it, and nobody listens in here.
//! - A signature that was honestly made in this process, or verified before, is known to be good by its content ([`Memo`]).
//!   Whatever else comes is really verified, so a forged one fails as in life.
//!
//! All of it is charged to the process's virtual CPU as if it had been done.

use std::sync::{Arc, Mutex, PoisonError};

use ring::{hmac, signature};
use rustc_hash::FxHashSet;
use rustls::{
    Error, NamedGroup, SignatureAlgorithm, SignatureScheme,
    crypto::{
        ActiveKeyExchange, CryptoProvider, GetRandomFailed, KeyProvider, SecureRandom, SharedSecret, SupportedKxGroup,
        WebPkiSupportedAlgorithms,
    },
    pki_types::{
        AlgorithmIdentifier, InvalidSignature, PrivateKeyDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer,
        alg_id,
    },
    sign::{Signer, SigningKey},
};
use xxhash_rust::xxh3::Xxh3;

use super::reactor::current;
use crate::cpu::Work;

/// Signatures known to be good, by content; shared by all processes of a simulation. What it forgets is verified anew, so that
/// its size changes nothing that happens.
#[derive(Default)]
pub struct Memo(Mutex<FxHashSet<u128>>);

impl std::fmt::Debug for Memo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memo")
    }
}

impl Memo {
    fn key(public: &[u8], message: &[u8], made: &[u8]) -> u128 {
        let mut hash = Xxh3::new();
        for part in [public, made, message] {
            hash.update(&part.len().to_le_bytes());
            hash.update(part);
        }
        hash.digest128()
    }

    /// Notes a good one.
    pub fn note(&self, public: &[u8], message: &[u8], made: &[u8]) {
        let mut good = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if good.len() >= MOST_KNOWN {
            good.clear();
        }
        good.insert(Self::key(public, message, made));
    }

    /// Whether an Ed25519 signature is good.
    pub fn verify(&self, public: &[u8], message: &[u8], made: &[u8]) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&Self::key(public, message, made));
        if known {
            return true;
        }
        let good = really_verify(public, message, made);
        if good {
            self.note(public, message, made);
        }
        good
    }
}

fn really_verify(public: &[u8], message: &[u8], made: &[u8]) -> bool {
    signature::UnparsedPublicKey::new(&signature::ED25519, public).verify(message, made).is_ok()
}

/// The provider of every simulated process.
pub fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    // The cheaper one comes first, as it does on machines with AES instructions.
    provider.secure_random = &Seeded;
    provider.kx_groups = vec![&Exchange];
    provider.key_provider = &Keys;
    provider.signature_verification_algorithms =
        WebPkiSupportedAlgorithms { all: &[&Verifier], mapping: &[(SignatureScheme::ED25519, &[&Verifier])] };
    Arc::new(provider)
}

fn charge(work: Work) {
    if let Some(process) = current() {
        process.cpu.charge(work);
    }
}

#[derive(Debug)]
struct Seeded;

impl SecureRandom for Seeded {
    fn fill(&self, buf: &mut [u8]) -> Result<(), GetRandomFailed> {
        // Outside of a process nothing may be random.
        current().ok_or(GetRandomFailed)?.fill(buf);
        Ok(())
    }
}

#[derive(Debug)]
struct Exchange;

impl SupportedKxGroup for Exchange {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        charge(Work::KeyExchange);
        let mut public = [0; 32];
        Seeded.fill(&mut public)?;
        Ok(Box::new(Exchanging(public)))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

struct Exchanging([u8; 32]);

impl ActiveKeyExchange for Exchanging {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        charge(Work::KeyExchange);
        let peer: &[u8; 32] = peer.try_into().map_err(|_| rustls::PeerMisbehaved::InvalidKeyShare)?;
        let (low, high) = if self.0 <= *peer { (&self.0, peer) } else { (peer, &self.0) };
        let key = hmac::Key::new(hmac::HMAC_SHA256, low);
        Ok(SharedSecret::from(hmac::sign(&key, high).as_ref()))
    }

    fn pub_key(&self) -> &[u8] {
        &self.0
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

#[derive(Debug)]
struct Verifier;

impl SignatureVerificationAlgorithm for Verifier {
    fn verify_signature(&self, public_key: &[u8], message: &[u8], made: &[u8]) -> Result<(), InvalidSignature> {
        let good = match current() {
            Some(process) => {
                process.cpu.charge(Work::Verify);
                process.memo.verify(public_key, message, made)
            }
            None => really_verify(public_key, message, made),
        };
        if good { Ok(()) } else { Err(InvalidSignature) }
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ED25519
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ED25519
    }
}

#[derive(Debug)]
struct Keys;

impl KeyProvider for Keys {
    fn load_private_key(&self, key: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, Error> {
        rustls::crypto::ring::sign::any_eddsa_type(match &key {
            PrivateKeyDer::Pkcs8(key) => key,
            _ => return Err(Error::General("not a PKCS #8 key".into())),
        })
        .map(|key| Arc::new(Key(key)) as Arc<dyn SigningKey>)
    }
}

/// A real key that notes what it signs.
#[derive(Debug)]
struct Key(Arc<dyn SigningKey>);

impl SigningKey for Key {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let signer = self.0.choose_scheme(offered)?;
        // RFC 8410: the key is the last 32 bytes.
        let public = self.0.public_key().map(|info| info[info.len() - 32..].to_vec()).unwrap_or_default();
        Some(Box::new(Noting { signer, public }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.0.public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.algorithm()
    }
}

#[derive(Debug)]
struct Noting {
    signer: Box<dyn Signer>,
    public: Vec<u8>,
}

impl Signer for Noting {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let made = self.signer.sign(message)?;
        if let Some(process) = current() {
            process.cpu.charge(Work::Sign);
            process.memo.note(&self.public, message, &made);
        }
        Ok(made)
    }

    fn scheme(&self) -> SignatureScheme {
        self.signer.scheme()
    }
}

/// About 50 MB.
const MOST_KNOWN: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_key_exchange_come_to_the_same_secret_and_no_other() {
        let exchange = |own: u8, peer: u8| {
            let done = Box::new(Exchanging([own; 32])).complete(&[peer; 32]).unwrap();
            done.secret_bytes().to_vec()
        };
        assert_eq!(exchange(1, 2), exchange(2, 1));
        assert_ne!(exchange(1, 2), exchange(1, 3));
        assert!(Box::new(Exchanging([1; 32])).complete(&[2; 31]).is_err());
    }

    #[test]
    fn what_is_not_known_is_really_verified() {
        let pair = signature::Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let public = signature::KeyPair::public_key(&pair).as_ref().to_vec();
        let made = pair.sign(b"x");
        let memo = Memo::default();
        assert!(memo.verify(&public, b"x", made.as_ref()) && memo.verify(&public, b"x", made.as_ref()));
        assert!(!memo.verify(&public, b"y", made.as_ref()));
        let mut forged = made.as_ref().to_vec();
        forged[0] ^= 1;
        assert!(!memo.verify(&public, b"x", &forged));
    }
}
