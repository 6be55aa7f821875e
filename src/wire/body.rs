//! Bodies of statements and their canonical bytes.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Kind, Statement};
use crate::types::{InstanceRecord, LanePolicy, NodeId, Signal};

/// A node introduces itself. Newer is a higher (`generation`, `revision`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// One more than in its last run.
    pub generation: u64,
    /// Counts changes (address, certificate) within a generation.
    pub revision: u32,
    /// Where its gossip endpoint is reached.
    pub addr: SocketAddr,
    /// Random per run: tells a node that meets itself from two nodes with one name.
    pub nonce: u64,
    /// Version of the program, for people.
    pub program: String,
}

/// A node says it lives. Refutes everything said of it at a lower incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alive {
    /// The node.
    pub node: NodeId,
    /// Its generation.
    pub generation: u64,
    /// Raised to refute.
    pub incarnation: u16,
}

/// A node says goodbye; final for this generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// The node.
    pub node: NodeId,
    /// The generation that ends.
    pub generation: u64,
}

/// What an accuser saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Evidence {
    /// No answer in time, while others answered.
    Silent,
    /// Its port refuses: the process is gone, or a firewall says so.
    Refused,
}

/// One node says that another does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accusation {
    /// Who says so.
    pub accuser: NodeId,
    /// Of whom.
    pub accused: NodeId,
    /// Of which of its generations.
    pub generation: u64,
    /// At which of its incarnations.
    pub incarnation: u16,
    /// What was seen.
    pub evidence: Evidence,
}

/// A statement's body, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// See [`Member`].
    Member(Member),
    /// See [`Alive`].
    Alive(Alive),
    /// See [`Left`].
    Left(Left),
    /// See [`Accusation`].
    Accusation(Accusation),
    /// See [`InstanceRecord`].
    Instance(InstanceRecord),
    /// See [`LanePolicy`].
    Policy(LanePolicy),
    /// See [`Signal`].
    Signal(Signal),
}

/// Why a body can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyFault {
    /// A kind of a newer version; skipped.
    #[error("unknown kind {0}")]
    UnknownKind(u8),
    /// Not what the kind says.
    #[error("malformed {0:?}")]
    Malformed(Kind),
}

impl Body {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Member(_) => Kind::Member,
            Self::Alive(_) => Kind::Alive,
            Self::Left(_) => Kind::Left,
            Self::Accusation(_) => Kind::Accusation,
            Self::Instance(_) => Kind::Instance,
            Self::Policy(_) => Kind::Policy,
            Self::Signal(_) => Kind::Signal,
        }
    }

    /// The node that alone may say this. For a policy: its author, which is a node until operators sign.
    pub fn speaker(&self) -> &str {
        match self {
            Self::Member(b) => b.node.as_str(),
            Self::Alive(b) => b.node.as_str(),
            Self::Left(b) => b.node.as_str(),
            Self::Accusation(b) => b.accuser.as_str(),
            Self::Instance(b) => b.owner.as_str(),
            Self::Policy(b) => &b.version.author,
            Self::Signal(b) => b.observer.as_str(),
        }
    }

    /// Canonical bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Member(b) => bytes(b),
            Self::Alive(b) => bytes(b),
            Self::Left(b) => bytes(b),
            Self::Accusation(b) => bytes(b),
            Self::Instance(b) => bytes(b),
            Self::Policy(b) => bytes(b),
            Self::Signal(b) => bytes(b),
        }
    }

    /// Reads a statement's body. Bytes after what this version knows are ignored.
    pub fn decode(statement: &Statement) -> Result<Self, BodyFault> {
        let kind = Kind::from_number(statement.kind).ok_or(BodyFault::UnknownKind(statement.kind))?;
        let raw = &statement.body[..];
        match kind {
            Kind::Member => read(raw).map(Self::Member),
            Kind::Alive => read(raw).map(Self::Alive),
            Kind::Left => read(raw).map(Self::Left),
            Kind::Accusation => read(raw).map(Self::Accusation),
            Kind::Instance => read_older(raw, 2).map(Self::Instance),
            Kind::Policy => read_older(raw, 3).map(Self::Policy),
            Kind::Signal => read(raw).map(Self::Signal),
        }
        .ok_or(BodyFault::Malformed(kind))
    }
}

fn bytes<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).expect("plain data always encodes")
}

fn read<T: DeserializeOwned>(raw: &[u8]) -> Option<T> {
    postcard::take_from_bytes(raw).ok().map(|(value, _newer)| value)
}

/// The same of a body that may come from a version whose record ends up to `grown` bytes earlier: the fields that came since read
/// as zeros, which are "none" and "empty".
fn read_older<T: DeserializeOwned>(raw: &[u8], grown: usize) -> Option<T> {
    match postcard::take_from_bytes(raw) {
        Ok((value, _newer)) => Some(value),
        Err(postcard::Error::DeserializeUnexpectedEnd) => {
            let padded = |by: usize| {
                let padded = [raw, &vec![0; by]].concat();
                // All of it, so that nothing shorter passes for an older body.
                postcard::take_from_bytes(&padded).ok().filter(|(_, rest)| rest.is_empty()).map(|(value, _)| value)
            };
            (1..=grown).find_map(padded)
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{lanes::PolicyChange, types::Wall};

    /// A policy of the versions before match rules, reserves and selectors: one byte shorter for each, and read as one without them.
    #[test]
    fn an_older_body_is_read_and_a_torn_one_is_not() {
        let policy = PolicyChange::default().apply(&"orders".parse().unwrap(), None, "n1", Wall(7)).unwrap();
        let bytes = Body::Policy(policy.clone()).encode();
        let whole = |length: usize| read_older::<LanePolicy>(&bytes[..length], 3);
        for older in 0..=3 {
            assert_eq!(whole(bytes.len() - older), Some(policy.clone()), "{older} fields ago");
        }
        assert_eq!(whole(bytes.len() - 4), None);
        let newer = [&bytes[..], &[1, 2, 3]].concat();
        assert!(read_older::<LanePolicy>(&newer, 1).is_some());
    }
}
