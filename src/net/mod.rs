//! Floor 4: the QUIC endpoint and the pool of peer connections.
//!
//! One endpoint dials and accepts. Every connection is mutually authenticated; what comes in is tagged with the node that
//! the peer's certificate names. The agent sends by node and address and never waits here.
//!
//! Per peer at most one connection is used. It is cold (none), dialing (what is sent waits in a bounded queue), warm, or
//! silent (packets went out and none came back: a new dial races it). The first data of a dialled connection goes on a
//! stream, because datagrams that overtake the handshake are lost; afterwards envelopes are datagrams, and streams only
//! when they don't fit.
//!
//! Invariants: nothing is awaited under a lock; every dial, stream and handshake has a deadline; every queue has a bound,
//! and what is dropped is counted by reason; whatever one peer sends can end its own connection and nobody else's.
//!
//! The clock, the socket, the task spawner and the UDP probe are arguments ([`NetConfig`]); the simulator gives its own.
//!
//! Not here: what envelopes mean (`wire`, `node`), who is a member, retries beyond one dial, and early data, which an
//! attacker could replay.

mod accept;
mod config;
mod dial;
mod engine;
#[cfg(target_os = "linux")]
mod frugal;
mod link;
mod pool;
mod probe;
mod report;
mod stats;
mod sync;
#[cfg(test)]
mod tests;
mod timer;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::{
    pki::Identity,
    types::{CertFacts, MeshName, NodeId},
};
pub use config::{NetConfig, NetLimits, bind, runtime};
use engine::Engine;
pub use probe::{RefusalProbe, SystemProbe};
pub use stats::{Counter, NetStats};
pub use timer::Alarm;

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
        result: Result<(NodeId, Bytes), NetFault>,
    },
    /// The port of a UDP probe refused.
    Refused {
        /// As given to [`Net::udp_probe`].
        token: u64,
    },
    /// A handshake failed in a way that a person should know (another mesh, unknown authority, own name
    /// at the dialled address).
    HandshakeRefused {
        /// The peer's address.
        addr: SocketAddr,
        /// Why, with the cure. Partly the peer's words.
        reason: String,
    },
    /// Another process dialled with this node's own certificate, and was turned away.
    NameClaimed {
        /// Where it dialled from.
        addr: SocketAddr,
    },
}

/// Why there is no connection or no answer. Each message names the address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetFault {
    /// The address leads back here, as a seed list may.
    #[error("{0} is this node itself")]
    Itself(SocketAddr),
    /// Another process carries this node's name.
    #[error(
        "another process at {addr} uses the certificate of this node, `{node}`: give each sidecar a certificate of its own"
    )]
    OwnName {
        /// Where it is.
        addr: SocketAddr,
        /// The name.
        node: NodeId,
    },
    /// Nothing was heard.
    #[error("{0} did not answer within {1:?}")]
    Silent(SocketAddr, Duration),
    /// The certificates do not fit; the text is one side's explanation.
    #[error("handshake with {addr} failed: {reason}")]
    Handshake {
        /// With whom.
        addr: SocketAddr,
        /// Why.
        reason: String,
    },
    /// There was a connection, and it ended.
    #[error("the connection with {addr} ended: {reason}")]
    Lost {
        /// With whom.
        addr: SocketAddr,
        /// Why.
        reason: String,
    },
    /// The peer sent more than is read.
    #[error("{addr} answered more than {limit} bytes")]
    TooLarge {
        /// Who.
        addr: SocketAddr,
        /// The limit.
        limit: usize,
    },
    /// Own limit reached.
    #[error("{0} syncs are under way already")]
    Busy(usize),
    /// The identity given to [`Net::renew`] is somebody else's.
    #[error("the new certificate is for node `{node}` of mesh `{mesh}`: the name of a running node cannot change")]
    NotRenewal {
        /// Whose it is.
        node: NodeId,
        /// Of which mesh.
        mesh: MeshName,
    },
    /// This endpoint is closing.
    #[error("this node is shutting down")]
    Closing,
}

/// Handle to the endpoint; cheap to clone. The endpoint ends with its last handle, or with [`Net::close`].
#[derive(Clone)]
pub struct Net {
    engine: Arc<Engine>,
    _last: Arc<Last>,
}

/// Ends the endpoint's tasks when the last handle goes.
struct Last(quinn::Endpoint);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.close(link::Goodbye::Shutdown.code(), b"shutting down");
    }
}

impl Net {
    /// Starts the endpoint; what it hears goes to `events`. Returns the address that the socket is bound to.
    pub fn start(config: NetConfig, events: mpsc::Sender<NetEvent>) -> io::Result<(Self, SocketAddr)> {
        let engine = Engine::start(config, events)?;
        let addr = engine.endpoint.local_addr()?;
        let last = Arc::new(Last(engine.endpoint.clone()));
        Ok((Self { engine, _last: last }, addr))
    }

    /// Sends an envelope to a node. Dials when there is no connection: then the first data goes on a stream. Never waits;
    /// what can't be sent in time is dropped and counted. An open connection is used whatever its address: a peer with
    /// several addresses is still one peer.
    pub fn send(&self, to: &NodeId, addr: SocketAddr, bytes: Bytes) {
        self.engine.send(to, addr, bytes, false);
    }

    /// The same, always on a stream: it arrives if the connection lives.
    pub fn send_reliable(&self, to: &NodeId, addr: SocketAddr, bytes: Bytes) {
        self.engine.send(to, addr, bytes, true);
    }

    /// Opens a sync with whoever listens at `addr`, which must be `node` where one is given. One
    /// [`NetEvent::SyncReply`] follows.
    pub fn open_sync(&self, token: u64, node: Option<&NodeId>, addr: SocketAddr, request: Bytes) {
        self.engine.open_sync(token, node.cloned(), addr, request);
    }

    /// Answers a sync; one that has ended meanwhile is passed over.
    pub fn reply(&self, id: u64, bytes: Bytes) {
        self.engine.reply(id, bytes);
    }

    /// Who answers at an address, and accepts this node's certificate: a connection is opened, and closed at once. For the program's
    /// checks before a sidecar runs; a running one has connections of its own to look at.
    pub async fn who_answers(&self, addr: SocketAddr) -> Result<CertFacts, NetFault> {
        self.engine.who_answers(addr).await
    }

    /// A few bytes from a connected UDP socket; a refusal comes back as an event within some 100 ms, anything else does not.
    pub fn udp_probe(&self, token: u64, addr: SocketAddr) {
        self.engine.udp_probe(token, addr);
    }

    /// Puts the connections to a node to the test, because its generation ended or it moved: those that are not heard
    /// from within the grace are closed. A connection that a new process has just opened passes, an old one does not.
    pub fn retire(&self, node: &NodeId) {
        self.engine.retire(node);
    }

    /// Uses a renewed certificate, or renewed authorities, for handshakes from now on; open connections stay.
    pub fn renew(&self, identity: Arc<Identity>) -> Result<(), NetFault> {
        self.engine.renew(identity)
    }

    /// Peers with an open connection.
    pub fn connections(&self) -> usize {
        self.engine.pool().connected()
    }

    /// Peers with an open connection, in order.
    pub fn peers(&self) -> Vec<NodeId> {
        let pool = self.engine.pool();
        pool.peers.iter().filter(|(_, peer)| !peer.links.is_empty()).map(|(node, _)| node.clone()).collect()
    }

    /// A deadline by the clock of this endpoint.
    pub fn alarm(&self) -> Alarm {
        Alarm::new(&*self.engine.runtime)
    }

    /// Counters since the start.
    pub fn stats(&self) -> &NetStats {
        &self.engine.stats
    }

    /// Delivers what is under way, tells every peer, and ends. Bounded by twice [`NetLimits::close_deadline`].
    pub async fn close(&self) {
        self.engine.close().await;
    }
}
