//! What `Node` has to do for the membership.

use crate::{
    types::{MemberState, NodeId},
    wire::{Frame, Statement},
};

/// What `Node` has to do for the membership.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Send these frames to one node, in one datagram.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        frames: Vec<Frame>,
    },
    /// Send one node the newest of what the catalog holds of another (its introduction, its signed `Alive`): it was seen
    /// to be behind.
    SendLatest {
        /// To whom.
        to: NodeId,
        /// Of whom.
        about: NodeId,
    },
    /// Spread a statement: queue it for gossip; `eager` also sends it to a few at once. Not back to `except`.
    Gossip {
        /// What.
        statement: Statement,
        /// At once to a few.
        eager: bool,
        /// To every open connection (refutation of a death).
        flood: bool,
        /// From whom it came.
        except: Option<NodeId>,
    },
    /// Accusations of this node that wait in the gossip queue say nothing any more: drop them.
    Retract {
        /// Of whom.
        accused: NodeId,
    },
    /// Send one byte from a connected UDP socket and report a refusal with this token.
    UdpProbe {
        /// Echoed in `refused`.
        token: u64,
        /// Whom.
        node: NodeId,
    },
    /// Exchange catalogs with this node: it is held dead and may be back, or it and this node do not know each other's
    /// life.
    Sync {
        /// With whom.
        with: NodeId,
    },
    /// A member's state changed; the view must be published.
    Changed {
        /// Whose.
        node: NodeId,
        /// To what.
        state: MemberState,
    },
    /// All incarnations of this generation are used up: take the next generation, introduce it, and call
    /// `set_generation`. Until then this node cannot refute.
    TakeNextGeneration,
    /// Something a person should know (an accuser that keeps being refuted, an own pause).
    Report(String),
}
