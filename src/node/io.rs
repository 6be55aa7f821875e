//! What goes into a node and what comes out of it: closed sets of plain values.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{MembershipConfig, Stored};
use crate::{
    routing::CandidateTable,
    types::{MemberState, Mono, NodeId, Signal, Wall},
};

/// The time of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// For everything that waits or expires.
    pub mono: Mono,
    /// For what people read, and for the validity of certificates.
    pub wall: Wall,
}

/// What a node is told at its start.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Its id, as its certificate names it.
    pub node: NodeId,
    /// Where peers reach its gossip endpoint.
    pub addr: SocketAddr,
    /// Version of the program, for people.
    pub program: String,
    /// Timers of the membership.
    pub membership: MembershipConfig,
    /// How long changes after a publication are collected, at most 2 s (REQUIREMENTS R4).
    pub coalesce: Duration,
    /// This node's source of chance; also the nonce of this run.
    pub seed: u64,
}

/// What happened outside.
#[derive(Debug)]
pub enum Input {
    /// A datagram or one-way stream of an authenticated peer.
    Envelope {
        /// Whom its certificate names.
        from: NodeId,
        /// Where it came from.
        addr: SocketAddr,
        /// Its bytes.
        bytes: Bytes,
    },
    /// A peer opened a sync; an [`Output::SyncReply`] with this id answers it.
    SyncRequest {
        /// Names the stream.
        id: u64,
        /// Whom its certificate names.
        from: NodeId,
        /// Where it came from.
        addr: SocketAddr,
        /// Its bytes.
        bytes: Bytes,
    },
    /// A sync that this node opened has ended.
    SyncEnded {
        /// As in [`Output::OpenSync`].
        token: u64,
        /// Who answered, and what.
        result: Result<(NodeId, Bytes), DialError>,
    },
    /// The port of a UDP probe refused.
    Refused {
        /// As in [`Output::UdpProbe`].
        token: u64,
    },
    /// The configured seeds resolve to these addresses now.
    Seeds(Vec<SocketAddr>),
    /// Something else than gossip shows that this node's network works (an upstream on another host answered).
    Control,
    /// An [`Output::Persist`] with this generation is safely on disk, or could not be written and never will be.
    Persisted {
        /// As in [`Output::Persist`].
        generation: u64,
    },
}

/// Why nobody answered a dial.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// The address leads back here.
    #[error("its address leads to this node itself")]
    Itself,
    /// A second process with this node's certificate answered.
    #[error("another process with this node's name answers at its address")]
    OwnName,
    /// Anything else, for people.
    #[error("{0}")]
    Other(String),
}

/// What has to be done outside.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Send an envelope to a peer: a datagram, or a stream where it is larger.
    Send {
        /// To whom.
        to: NodeId,
        /// Where it is reached.
        addr: SocketAddr,
        /// What.
        bytes: Bytes,
    },
    /// Open a sync.
    OpenSync {
        /// Echoed in [`Input::SyncEnded`].
        token: u64,
        /// With whom; `None` with whoever is there (a seed).
        node: Option<NodeId>,
        /// Where.
        addr: SocketAddr,
        /// What to say.
        request: Bytes,
    },
    /// Answer a sync.
    SyncReply {
        /// As in [`Input::SyncRequest`].
        id: u64,
        /// What to say.
        bytes: Bytes,
    },
    /// Send one byte from a connected UDP socket.
    UdpProbe {
        /// Echoed in [`Input::Refused`].
        token: u64,
        /// Where.
        addr: SocketAddr,
    },
    /// Close the connection to a peer that moved.
    Retire(NodeId),
    /// The routing view changed.
    Publish(Arc<CandidateTable>),
    /// Write this down; a restart begins with it. [`Input::Persisted`] is wanted when the generation is a new one: it is not
    /// used before.
    Persist {
        /// The generation in it.
        generation: u64,
        /// What the file is made from: not by the node, which has better things to do than to encode everything it knows.
        stored: Box<Stored>,
    },
    /// A member that lives says what it sees fail.
    Signal(Signal),
    /// Something people or metrics want to know.
    Event(Event),
}

/// Something people or metrics want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The node takes part in the mesh now; with how many others.
    Joined {
        /// Members known beside itself.
        peers: usize,
        /// The generation of this run.
        generation: u64,
    },
    /// A member's state changed here.
    Member {
        /// Whose.
        node: NodeId,
        /// To what.
        state: MemberState,
    },
    /// Another live process has this node's name; this one, the newcomer, must end.
    NameTaken {
        /// Where the other one lives.
        addr: SocketAddr,
    },
    /// Another process tried to take this node's name, and was refused.
    NameClaimed {
        /// Where it said it lives.
        addr: SocketAddr,
    },
    /// A peer passed on something that is not believed. The same of the same signer is told once a minute.
    Refused {
        /// Who sent it.
        from: NodeId,
        /// Who had signed it.
        signer: NodeId,
        /// Why it is not believed.
        reason: String,
        /// How often since it was told last.
        times: u64,
    },
    /// Bytes from a peer that can't be read; told once a minute for each peer.
    Malformed {
        /// Who sent them.
        from: NodeId,
        /// What is wrong with them.
        reason: String,
        /// How often since it was told last.
        times: u64,
    },
    /// What came of [`Node::compare_with`](super::Node::compare_with).
    Compared(super::PeerView),
    /// Anything else worth a log line.
    Report(String),
}

/// Counts since the start, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Syncs that this node opened.
    pub syncs_opened: u64,
    /// Syncs that this node answered.
    pub syncs_answered: u64,
    /// Statements taken as news.
    pub statements_news: u64,
    /// Statements not believed.
    pub statements_refused: u64,
    /// Envelopes or frames that could not be read.
    pub malformed: u64,
    /// Publications of the candidate table.
    pub publications: u64,
}
