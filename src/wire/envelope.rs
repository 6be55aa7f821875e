//! The envelope of datagrams and one-way streams.
//!
//! Layout: version (1 byte), settled digest (8, little-endian), then frames: kind (1), length (3, little-endian), bytes.

use bytes::{Buf, Bytes};
use serde::{Deserialize, Serialize};

use super::{Statement, statement::Glance};
use crate::types::{InstanceId, NodeId};

/// Version of the envelope. Readers refuse others; the ALPN carries it as well.
pub const VERSION: u8 = 1;
/// Largest datagram payload, in bytes: what QUIC carries at its minimum MTU of 1,200, with some to spare.
pub const MAX_DATAGRAM: usize = 1100;
/// Most instances of one [`Frame::Asked`]: with the longest names they fit into a datagram.
pub const MAX_ASKED: usize = 7;
/// Largest envelope on a stream, in bytes.
pub const MAX_STREAM: usize = 4 << 20;

const HEAD: usize = 9;
const FRAME_HEAD: usize = 4;

/// One piece of an envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A packet of foca's, emptied of third-party entries.
    Foca(Bytes),
    /// A signed statement.
    Statement(Statement),
    /// A control message between two neighbours.
    Ctl(Ctl),
    /// Requests that the sender has in flight at instances of the receiver, at most [`MAX_ASKED`]; never passed on.
    Asked(Vec<(InstanceId, u32)>),
}

/// Control messages of the membership layer; never passed on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ctl {
    /// Asks for an `Ack` with the same token.
    Ping {
        /// Echoed.
        token: u64,
    },
    /// Answers a `Ping` or a `Check`.
    Ack {
        /// The asker's.
        token: u64,
    },
    /// Asks the receiver to look at a third node; acknowledged at once.
    Check {
        /// Whom to look at.
        accused: NodeId,
        /// In which generation.
        generation: u64,
        /// At which incarnation.
        incarnation: u16,
        /// Echoed.
        token: u64,
    },
    /// Tells a node that the sender holds it dead, so that it can refute.
    Condemned {
        /// The generation held dead.
        generation: u64,
        /// The incarnation held dead.
        incarnation: u16,
    },
    /// Answers a private accusation: I am here.
    Here,
    /// Asks whether the receiver knows better than that a third node is dead.
    Verify {
        /// The third node.
        accused: NodeId,
        /// Its generation.
        generation: u64,
        /// Its incarnation.
        incarnation: u16,
    },
}

/// Why bytes from a peer are not an envelope. Counted and dropped; the connection lives on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireFault {
    /// Ends too early.
    #[error("truncated at byte {0}")]
    Truncated(usize),
    /// Another version.
    #[error("version {0}, this node speaks {VERSION}")]
    Version(u8),
    /// A known frame with a body that can't be read.
    #[error("malformed frame of kind {0}")]
    Malformed(u8),
    /// More than a stream may carry.
    #[error("{0} bytes, at most {MAX_STREAM} are read")]
    TooLarge(usize),
}

/// What one datagram or one-way stream carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The sender's settled digest.
    pub digest: u64,
    /// In order.
    pub frames: Vec<Frame>,
}

impl Frame {
    /// Writes it behind what is there.
    fn encode(&self, mut out: Vec<u8>) -> Vec<u8> {
        let kind = match self {
            Self::Foca(_) => 1,
            Self::Statement(_) => 2,
            Self::Ctl(_) => 3,
            Self::Asked(_) => 4,
        };
        let head = out.len();
        out.extend_from_slice(&[kind, 0, 0, 0]);
        out = match self {
            Self::Foca(packet) => {
                out.extend_from_slice(packet);
                out
            }
            Self::Statement(statement) => postcard::to_extend(statement, out).expect("plain data always encodes"),
            Self::Ctl(ctl) => postcard::to_extend(ctl, out).expect("plain data always encodes"),
            Self::Asked(counts) => postcard::to_extend(counts, out).expect("plain data always encodes"),
        };
        let length = (out.len() - head - FRAME_HEAD) as u64;
        out[head + 1..head + FRAME_HEAD].copy_from_slice(&length.to_le_bytes()[..FRAME_HEAD - 1]);
        out
    }

    /// `None` for what is not wanted: a kind that this version does not know, or a statement that is held.
    fn decode(kind: u8, bytes: Bytes, held: impl Fn(u8, &[u8]) -> bool) -> Option<Result<Self, WireFault>> {
        let malformed = |_| WireFault::Malformed(kind);
        Some(match kind {
            1 => Ok(Self::Foca(bytes)),
            2 => match postcard::from_bytes::<Glance<'_>>(&bytes) {
                Ok(glance) if held(glance.kind, glance.body) => return None,
                Ok(glance) => glance.statement().ok_or(WireFault::Malformed(kind)).map(Self::Statement),
                Err(error) => Err(malformed(error)),
            },
            3 => postcard::from_bytes(&bytes).map(Self::Ctl).map_err(malformed),
            4 => postcard::from_bytes(&bytes).map(Self::Asked).map_err(malformed),
            _ => return None,
        })
    }
}

impl Envelope {
    /// Bytes to send. Size is the caller's to keep: see [`Packer`](crate::node).
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(HEAD + self.frames.iter().map(Self::frame_size).sum::<usize>());
        out.push(VERSION);
        out.extend_from_slice(&self.digest.to_le_bytes());
        self.frames.iter().fold(out, |out, frame| frame.encode(out)).into()
    }

    /// Reads what a peer sent. Unknown frames are skipped; a malformed one spoils only itself and is reported beside the rest.
    pub fn decode(bytes: Bytes) -> Result<(Self, Vec<WireFault>), WireFault> {
        Self::decode_unless(bytes, |_, _| false)
    }

    /// As [`Envelope::decode`], without the statements that are held already, by their kind and body: most of what gossip
    /// brings is held, and need not be copied to find out.
    pub fn decode_unless(
        mut bytes: Bytes,
        held: impl Fn(u8, &[u8]) -> bool,
    ) -> Result<(Self, Vec<WireFault>), WireFault> {
        let total = bytes.len();
        if total > MAX_STREAM {
            return Err(WireFault::TooLarge(total));
        }
        if total < HEAD {
            return Err(WireFault::Truncated(total));
        }
        let version = bytes.get_u8();
        if version != VERSION {
            return Err(WireFault::Version(version));
        }
        let digest = bytes.get_u64_le();
        let (mut frames, mut faults) = (Vec::new(), Vec::new());
        while bytes.has_remaining() {
            if bytes.remaining() < FRAME_HEAD {
                faults.push(WireFault::Truncated(total - bytes.remaining()));
                break;
            }
            let kind = bytes.get_u8();
            let length = bytes.get_uint_le(3) as usize;
            if bytes.remaining() < length {
                faults.push(WireFault::Truncated(total - bytes.remaining()));
                break;
            }
            match Frame::decode(kind, bytes.split_to(length), &held) {
                Some(Ok(frame)) => frames.push(frame),
                Some(Err(fault)) => faults.push(fault),
                None => {}
            }
        }
        Ok((Self { digest, frames }, faults))
    }

    /// Bytes a frame takes, to pack datagrams without encoding twice.
    pub fn frame_size(frame: &Frame) -> usize {
        FRAME_HEAD
            + match frame {
                Frame::Foca(packet) => packet.len(),
                Frame::Statement(statement) => statement.size(),
                Frame::Ctl(_) => 100,
                // A name's length and a number have at most 2 and 5 bytes.
                Frame::Asked(counts) => 2 + counts.iter().map(|(id, _)| id.as_str().len() + 7).sum::<usize>(),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_passed_over_and_a_broken_frame_spoils_only_itself() {
        let statement = |name: &str| Statement {
            kind: 2,
            signer: NodeId::new(name).unwrap(),
            key: 7,
            signature: [9; 64],
            certificate: (name == "b").then(|| Bytes::from_static(b"certificate")),
            body: Bytes::copy_from_slice(name.as_bytes()),
        };
        let frames = vec![
            Frame::Statement(statement("a")),
            Frame::Foca(Bytes::from_static(b"packet")),
            Frame::Statement(statement("b")),
            Frame::Ctl(Ctl::Ping { token: 5 }),
            Frame::Asked(vec![(InstanceId::new("orders-1").unwrap(), 70_000)]),
        ];
        let sent = Envelope { digest: 3, frames };
        let bytes = sent.encode();
        assert_eq!(Envelope::decode(bytes.clone()), Ok((sent.clone(), Vec::new())));
        let (envelope, faults) =
            Envelope::decode_unless(bytes.clone(), |kind, body| (kind, body) == (2, b"a")).unwrap();
        assert_eq!((&envelope.frames[..], faults.len()), (&sent.frames[1..], 0));
        // The signer of the first statement becomes a name that no node can have.
        let mut broken = bytes.to_vec();
        broken[HEAD + FRAME_HEAD + 2] = b'/';
        let (envelope, faults) = Envelope::decode(broken.into()).unwrap();
        assert_eq!((&envelope.frames[..], faults), (&sent.frames[1..], vec![WireFault::Malformed(2)]));
    }
}
