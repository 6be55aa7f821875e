//! What survives a restart: generation, drains, and the signed statements of everybody known.
//!
//! Layout: magic, SHA-256 of the rest, postcard. A file that does not check out is refused whole, with the reason.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    types::{Drain, InstanceId},
    wire::Statement,
};

const MAGIC: &[u8; 4] = b"LMS1";
const HEAD: usize = 4 + 32;

/// Contents of the state file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Generation of the run that wrote it.
    pub generation: u64,
    /// Instances that an operator has drained: a restart does not undo that.
    pub drains: Vec<(InstanceId, Drain)>,
    /// Everything the catalog held, members first.
    pub statements: Vec<Statement>,
}

/// Why a state file can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoredFault {
    /// Not such a file, or of another version.
    #[error("it does not begin like a state file of this version")]
    Magic,
    /// Cut or damaged.
    #[error("its checksum does not fit: it was cut or damaged")]
    Checksum,
    /// Checksum right, content unreadable.
    #[error("its content can't be read")]
    Content,
}

impl Stored {
    /// Bytes for the file.
    pub fn encode(&self) -> Vec<u8> {
        let body = postcard::to_allocvec(self).expect("plain data always encodes");
        let mut out = Vec::with_capacity(HEAD + body.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&Sha256::digest(&body));
        out.extend_from_slice(&body);
        out
    }

    /// Reads a file's bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, StoredFault> {
        if bytes.len() < HEAD || &bytes[..4] != MAGIC {
            return Err(StoredFault::Magic);
        }
        let body = &bytes[HEAD..];
        if Sha256::digest(body)[..] != bytes[4..HEAD] {
            return Err(StoredFault::Checksum);
        }
        postcard::take_from_bytes(body).map(|(stored, _newer)| stored).map_err(|_| StoredFault::Content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_anywhere_is_noticed() {
        let stored = Stored { generation: 7, ..Stored::default() };
        let good = stored.encode();
        assert_eq!(Stored::decode(&good), Ok(stored));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(Stored::decode(&bad).is_err(), "byte {at}");
            assert!(Stored::decode(&good[..at]).is_err(), "cut at {at}");
        }
    }
}
