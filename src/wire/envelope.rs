//! The envelope of datagrams and one-way streams.
//!
//! Layout: version (1 byte), settled digest (8, little-endian), then frames: kind (1), length (3, little-endian), bytes.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use super::Statement;
use crate::types::NodeId;

/// Version of the envelope. Readers refuse others; the ALPN carries it as well.
pub const VERSION: u8 = 1;
/// Largest datagram payload, in bytes: what QUIC carries at its minimum MTU of 1,200, with some to spare.
pub const MAX_DATAGRAM: usize = 1100;
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
    fn encode(&self) -> (u8, Vec<u8>) {
        let plain = |value: Result<Vec<u8>, postcard::Error>| value.expect("plain data always encodes");
        match self {
            Self::Foca(packet) => (1, packet.to_vec()),
            Self::Statement(statement) => (2, plain(postcard::to_allocvec(statement))),
            Self::Ctl(ctl) => (3, plain(postcard::to_allocvec(ctl))),
        }
    }

    fn decode(kind: u8, bytes: Bytes) -> Option<Result<Self, WireFault>> {
        let malformed = |_| WireFault::Malformed(kind);
        Some(match kind {
            1 => Ok(Self::Foca(bytes)),
            2 => postcard::from_bytes(&bytes).map(Self::Statement).map_err(malformed),
            3 => postcard::from_bytes(&bytes).map(Self::Ctl).map_err(malformed),
            _ => return None,
        })
    }
}

impl Envelope {
    /// Bytes to send. Size is the caller's to keep: see [`Packer`](crate::node).
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(256);
        out.put_u8(VERSION);
        out.put_u64_le(self.digest);
        for frame in &self.frames {
            let (kind, bytes) = frame.encode();
            out.put_u8(kind);
            out.put_uint_le(bytes.len() as u64, 3);
            out.put_slice(&bytes);
        }
        out.freeze()
    }

    /// Reads what a peer sent. Unknown frames are skipped; a malformed one spoils only itself and is reported beside the rest.
    pub fn decode(mut bytes: Bytes) -> Result<(Self, Vec<WireFault>), WireFault> {
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
            match Frame::decode(kind, bytes.split_to(length)) {
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
            }
    }
}
