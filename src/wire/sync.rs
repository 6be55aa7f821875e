//! Anti-entropy over one bidirectional stream: a summary goes, what is missing comes back, with the list of what the
//! answering side lacks (sent afterwards as an ordinary envelope).

use serde::{Deserialize, Serialize};

use super::Statement;
use crate::types::NodeId;

/// First byte of a two-way stream that carries a question between agents, and no sync: never a version of [`SyncRequest`].
pub const QUESTION: u8 = b'?';

/// Names one entry of the catalog: a hash of its kind and key.
pub type EntryKey = u64;

/// Stands for all entries. Alone in a summary, with the settled digest for its version, it asks whether both hold the same;
/// alone among what is wanted it answers that they do not, and that the whole summary is wanted.
pub const WHOLE: EntryKey = 0;

/// What I hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncRequest {
    /// First version of this message is 1.
    pub version: u8,
    /// Statements about myself, so that the first contact introduces.
    pub hello: Vec<Statement>,
    /// (entry, hash of its version) of everything settled here, sorted by entry; or only [`WHOLE`].
    pub summary: Vec<(EntryKey, u64)>,
}

/// What you lack, and what I do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncReply {
    /// First version of this message is 1.
    pub version: u8,
    /// Newer or unknown to the asker; members first.
    pub statements: Vec<Statement>,
    /// Entries the answering side lacks or holds older; or only [`WHOLE`].
    pub wanted: Vec<EntryKey>,
    /// Generation of the asker's own name as known here, and where it lives, when that is not the asker itself.
    pub namesake: Option<Namesake>,
    /// Whom the answering side holds dead: (node, generation, incarnation).
    pub down: Vec<(NodeId, u64, u16)>,
    /// The answering side's wall time, milliseconds since 1970-01-01 UTC; 0 says nothing.
    pub wall: u64,
}

/// Somebody already known by the asker's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namesake {
    /// Its generation.
    pub generation: u64,
    /// Its address.
    pub addr: std::net::SocketAddr,
    /// Its run.
    pub nonce: u64,
}

macro_rules! postcard_message {
    ($name:ident) => {
        impl $name {
            /// Bytes to send.
            pub fn encode(&self) -> Vec<u8> {
                postcard::to_allocvec(self).expect("plain data always encodes")
            }

            /// Reads what a peer sent; `None` when it can't be read. Bytes after what this version knows are ignored.
            pub fn decode(bytes: &[u8]) -> Option<Self> {
                postcard::take_from_bytes(bytes).ok().map(|(message, _newer)| message)
            }
        }
    };
}

postcard_message!(SyncRequest);
postcard_message!(SyncReply);
