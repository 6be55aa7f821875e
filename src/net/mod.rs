//! Floor 4: the QUIC endpoint and the pool of peer connections.
//!
//! One endpoint dials and accepts. Every connection is mutually authenticated; what comes in is tagged with the node that
//! the peer's certificate names. The agent sends by node and address and never waits here.

use std::net::SocketAddr;

use bytes::Bytes;

use crate::types::NodeId;

/// What the network tells the agent.
#[derive(Debug)]
pub enum NetEvent {
    /// An envelope (datagram or one-way stream).
    Envelope {
        /// Authenticated sender.
        from: NodeId,
        /// Where it came from.
        addr: SocketAddr,
        /// Its bytes.
        bytes: Bytes,
    },
    /// A peer opened a sync; answer with [`Net::reply`].
    SyncRequest {
        /// Names the stream for the reply.
        id: u64,
        /// Authenticated sender.
        from: NodeId,
        /// Where it came from.
        addr: SocketAddr,
        /// Its bytes.
        bytes: Bytes,
    },
    /// A sync that we opened ended.
    SyncReply {
        /// As given to [`Net::open_sync`].
        token: u64,
        /// Who answered and what, or why nobody did.
        result: Result<(NodeId, Bytes), String>,
    },
    /// The port of a UDP probe refused.
    Refused {
        /// As given to [`Net::udp_probe`].
        token: u64,
    },
    /// A handshake failed in a way that a person should know (another mesh, unknown authority, own name).
    HandshakeRefused {
        /// The peer's address.
        addr: SocketAddr,
        /// Why, with the cure.
        reason: String,
    },
}

/// Handle to the endpoint; cheap to clone.
#[derive(Clone)]
pub struct Net {}

#[allow(unused_variables)]
impl Net {
    /// Sends an envelope to a node. Dials when there is no connection: then the first data goes on a stream. Never waits;
    /// what can't be sent in time is dropped and counted.
    pub fn send(&self, to: &NodeId, addr: SocketAddr, bytes: Bytes) {
        todo!()
    }

    /// Opens a sync with whoever listens at `addr`, which must be `node` where one is given.
    pub fn open_sync(&self, token: u64, node: Option<&NodeId>, addr: SocketAddr, request: Bytes) {
        todo!()
    }

    /// Answers a sync.
    pub fn reply(&self, id: u64, bytes: Bytes) {
        todo!()
    }

    /// One byte from a connected UDP socket; a refusal comes back as an event.
    pub fn udp_probe(&self, token: u64, addr: SocketAddr) {
        todo!()
    }

    /// Closes the connection to a node whose generation ended or that moved.
    pub fn retire(&self, node: &NodeId) {
        todo!()
    }

    /// Open connections.
    pub fn connections(&self) -> usize {
        todo!()
    }
}
