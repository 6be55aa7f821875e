//! A signed statement: who says it, which kind of thing it says, the bytes that were signed.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::types::{NodeId, PublicKey, Signature, Trust};

/// First 8 bytes, big-endian, of the SHA-256 of a public key: tells an owner's keys apart while certificates rotate.
pub type KeyId = u64;

/// The [`KeyId`] of a public key.
pub fn key_id(key: &PublicKey) -> KeyId {
    let digest = Sha256::digest(key);
    u64::from_be_bytes(digest[..8].try_into().expect("a digest has 32 bytes"))
}

/// What a statement's body is. Numbers are for ever; unknown ones are skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A node introduces itself: address, generation, certificate.
    Member = 1,
    /// A node says it lives, at a higher incarnation.
    Alive = 2,
    /// A node says goodbye.
    Left = 3,
    /// A node says that another does not answer.
    Accusation = 4,
    /// An instance record.
    Instance = 5,
    /// A lane policy.
    Policy = 6,
    /// What a node saw of instances that fail; never kept.
    Signal = 7,
}

impl Kind {
    /// The kind with this number, if this version knows it.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Member, Self::Alive, Self::Left, Self::Accusation, Self::Instance, Self::Policy, Self::Signal]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

/// Signed bytes of one node, passed on unchanged.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// Number of its [`Kind`].
    pub kind: u8,
    /// Who signed it.
    pub signer: NodeId,
    /// With which key.
    pub key: KeyId,
    /// Ed25519 over [`Statement::message`].
    #[serde(with = "signature")]
    pub signature: Signature,
    /// The signer's certificate (DER), where a reader may not have it: members and policies.
    pub certificate: Option<Bytes>,
    /// The signed body.
    pub body: Bytes,
}

/// A statement where it lies in the bytes that brought it: what can be told of it before anything is copied.
#[derive(Deserialize)]
pub(super) struct Glance<'a> {
    pub(super) kind: u8,
    signer: &'a str,
    key: KeyId,
    signature: &'a [u8],
    #[serde(borrow)]
    certificate: Option<&'a [u8]>,
    pub(super) body: &'a [u8],
}

impl Glance<'_> {
    /// A statement of its own; `None` when it is none.
    pub(super) fn statement(&self) -> Option<Statement> {
        Some(Statement {
            kind: self.kind,
            signer: NodeId::new(self.signer).ok()?,
            key: self.key,
            signature: self.signature.try_into().ok()?,
            certificate: self.certificate.map(Bytes::copy_from_slice),
            body: Bytes::copy_from_slice(self.body),
        })
    }
}

impl std::fmt::Debug for Statement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Statement({:?} by {}, {} bytes)", Kind::from_number(self.kind), self.signer, self.body.len())
    }
}

impl Statement {
    /// Signs a body with this node's key.
    pub fn sign(
        trust: &dyn Trust,
        signer: &NodeId,
        key: KeyId,
        kind: Kind,
        body: Vec<u8>,
        with_certificate: bool,
    ) -> Self {
        let signature = trust.sign(&Self::message(kind as u8, &body));
        let certificate = with_certificate.then(|| Bytes::copy_from_slice(trust.own_certificate()));
        Self { kind: kind as u8, signer: signer.clone(), key, signature, certificate, body: body.into() }
    }

    /// The bytes that are signed: a context string, the kind, the body. The certificate is checked by its own issuer.
    pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut message = Vec::with_capacity(body.len() + 12);
        message.extend_from_slice(b"lanemesh/1\0");
        message.push(kind);
        message.extend_from_slice(body);
        message
    }

    /// Bytes it takes in an envelope, rounded up.
    pub fn size(&self) -> usize {
        self.body.len() + self.certificate.as_ref().map_or(0, Bytes::len) + self.signer.as_str().len() + 96
    }
}

mod signature {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &[u8; 64], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(value)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<[u8; 64], D::Error> {
        let bytes = <&[u8]>::deserialize(d)?;
        bytes.try_into().map_err(|_| D::Error::custom("a signature has 64 bytes"))
    }
}
