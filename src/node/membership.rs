//! Which sidecars are alive: foca as the probe engine, fed only what it should believe, and our own accusations around it.
//!
//! Sans-io; `Node` feeds it and carries out its actions.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    types::{MemberState, Mono, NodeId, Trust},
    wire::{Accusation, Ctl, Frame, KeyId, Statement},
};

/// Constants; each trades detection time against traffic or calm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MembershipConfig {}

impl MembershipConfig {
    /// Round trips of a few milliseconds.
    pub fn lan() -> Self {
        todo!()
    }

    /// Round trips up to some hundred milliseconds.
    pub fn wan() -> Self {
        todo!()
    }
}

/// What `Node` has to do for the membership.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Send these frames to one node, in one datagram (`reliable`: on a stream).
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        frames: Vec<Frame>,
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
    /// Send one byte from a connected UDP socket and report a refusal with this token.
    UdpProbe {
        /// Echoed in `refused`.
        token: u64,
        /// Whom.
        node: NodeId,
    },
    /// Exchange catalogs with this node (heal, digest mismatch).
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
    /// Something a person should know (an accuser that keeps being refuted, own isolation).
    Report(String),
}

/// The membership machine of one node.
pub struct Membership {}

#[allow(unused_variables)]
impl Membership {
    /// `seed` is this node's own source of chance.
    pub fn new(config: MembershipConfig, me: NodeId, generation: u64, key: KeyId, seed: u64, now: Mono) -> Self {
        todo!()
    }

    /// Own incarnation.
    pub fn incarnation(&self) -> u16 {
        todo!()
    }

    /// The own generation changed before anybody knew us (join found a higher one).
    pub fn set_generation(&mut self, now: Mono, generation: u64) {
        todo!()
    }

    /// A member is known (its signed introduction or `Alive` was accepted): add it, or lift what is held of a lower
    /// (generation, incarnation). Whether it was news.
    pub fn alive(&mut self, now: Mono, node: &NodeId, generation: u64, incarnation: u16) -> bool {
        todo!()
    }

    /// A member said goodbye.
    pub fn left(&mut self, now: Mono, node: &NodeId, generation: u64) {
        todo!()
    }

    /// A member is forgotten: drop everything about it.
    pub fn forget(&mut self, node: &NodeId) {
        todo!()
    }

    /// Something authenticated came straight from this node. Called after all frames of an envelope were handled.
    pub fn heard(&mut self, now: Mono, from: &NodeId) {
        todo!()
    }

    /// A foca packet from this node.
    pub fn foca(&mut self, now: Mono, from: &NodeId, packet: Bytes, trust: &dyn Trust) {
        todo!()
    }

    /// A control message from this node.
    pub fn ctl(&mut self, now: Mono, from: &NodeId, ctl: Ctl, trust: &dyn Trust) {
        todo!()
    }

    /// A verified accusation, heard from `from` (or made by us). The statement is what is passed on.
    pub fn accusation(
        &mut self,
        now: Mono,
        accusation: &Accusation,
        statement: &Statement,
        from: &NodeId,
        trust: &dyn Trust,
    ) {
        todo!()
    }

    /// A peer's sync says that it holds this node dead.
    pub fn held_dead_by_peer(
        &mut self,
        now: Mono,
        node: &NodeId,
        generation: u64,
        incarnation: u16,
        trust: &dyn Trust,
    ) {
        todo!()
    }

    /// Something else than gossip shows that this node's network works.
    pub fn control(&mut self, now: Mono) {
        todo!()
    }

    /// The port of a UDP probe refused.
    pub fn refused(&mut self, now: Mono, token: u64, trust: &dyn Trust) {
        todo!()
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: Mono, trust: &dyn Trust) {
        todo!()
    }

    /// When `timeout` wants to be called next.
    pub fn poll_timeout(&self) -> Option<Mono> {
        todo!()
    }

    /// The next action.
    pub fn poll(&mut self) -> Option<Action> {
        todo!()
    }

    /// What is held of a member; `None` for an unknown one.
    pub fn state(&self, node: &NodeId) -> Option<MemberState> {
        todo!()
    }

    /// (generation, incarnation) held of a member.
    pub fn life(&self, node: &NodeId) -> Option<(u64, u16)> {
        todo!()
    }

    /// Members that are neither down nor left, this node excluded, in name order.
    pub fn active(&self) -> Vec<NodeId> {
        todo!()
    }

    /// Part of the settled digest: (member, generation, incarnation, down) of everybody, order-free.
    pub fn digest(&self) -> u64 {
        todo!()
    }

    /// Whom this node holds dead, for a sync reply.
    pub fn down(&self) -> Vec<(NodeId, u64, u16)> {
        todo!()
    }

    /// Public accusations in force, for a sync reply.
    pub fn public_accusations(&self) -> Vec<Statement> {
        todo!()
    }

    /// Since when a member is down or has left, for forgetting.
    pub fn gone_since(&self, node: &NodeId) -> Option<Mono> {
        todo!()
    }

    /// Why a member is in its state, for `members`: short lines.
    pub fn why(&self, node: &NodeId, now: Mono) -> Vec<String> {
        todo!()
    }

    /// Own health score: 0 is well.
    pub fn health_score(&self) -> u32 {
        todo!()
    }
}

/// How long a member that has gone is remembered by default.
pub const FORGET_AFTER: Duration = Duration::from_secs(3600);
