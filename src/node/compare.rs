//! How a peer's view differs from this node's, asked with an ordinary sync: what comes back says what each side lacks and whom
//! the peer holds dead. The sync then repairs what it found, as any other does.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{DialError, Event, Node, Now, Output, Phase, sync::Purpose};
use crate::{
    types::{MemberState, NodeId},
    wire::{Kind, SyncReply},
};

/// One peer's view beside this node's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerView {
    /// Whose.
    pub node: NodeId,
    /// Why it did not answer; `None` when it did.
    pub fault: Option<String>,
    /// Members of which the two think differently.
    pub differences: Vec<Difference>,
    /// Entries (introductions, records, policies, goodbyes) that it holds newer than this node, or alone.
    pub newer_there: usize,
    /// Entries that it lacks or holds older.
    pub older_there: usize,
}

/// A member of which two nodes think differently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Which.
    pub member: NodeId,
    /// What this node thinks: a state, or `unknown`.
    pub here: String,
    /// What the peer thinks.
    pub there: String,
}

impl PeerView {
    /// Whether both hold the same and think the same of everybody.
    pub fn is_same(&self) -> bool {
        self.fault.is_none() && self.differences.is_empty() && self.newer_there + self.older_there == 0
    }
}

impl Node {
    /// Asks a member for its view; an [`Event::Compared`] follows, also where nobody answers. `false` when it can't be asked:
    /// not a member, or this node is none.
    pub fn compare_with(&mut self, now: Now, peer: &NodeId) -> bool {
        let addr = self.catalog.member(peer).map(|entry| entry.member.addr);
        let Some(addr) = addr.filter(|_| self.phase == Phase::Member && *peer != self.config.node) else {
            return false;
        };
        let token = self.syncs.begin(now.mono, Purpose::Compare(peer.clone()));
        let request = self.sync_request_bytes();
        self.counters.syncs_opened += 1;
        self.outputs.push_back(Output::OpenSync { token, node: Some(peer.clone()), addr, request });
        true
    }

    /// A peer has answered, or has not; called before what it said is taken over.
    pub(super) fn compared(&mut self, node: NodeId, reply: Result<&SyncReply, &DialError>) {
        let view = match reply {
            Ok(reply) => self.view_of(node, reply),
            Err(error) => PeerView {
                node,
                fault: Some(error.to_string()),
                differences: Vec::new(),
                newer_there: 0,
                older_there: 0,
            },
        };
        self.event(Event::Compared(view));
    }

    fn view_of(&self, node: NodeId, reply: &SyncReply) -> PeerView {
        let mut differences = Vec::new();
        let mut differ = |member: &NodeId, here: &str, there: &str| {
            differences.push(Difference { member: member.clone(), here: here.to_owned(), there: there.to_owned() });
        };
        let dead_there: BTreeSet<&NodeId> = reply.down.iter().map(|(member, ..)| member).collect();
        for member in &dead_there {
            match self.membership.state(member) {
                _ if **member == self.config.node => differ(member, "alive", "down"),
                Some(MemberState::Alive) => differ(member, "alive", "down"),
                // Whom two accusers doubt is in the same list.
                Some(MemberState::Doubtful | MemberState::Down | MemberState::Left) | None => {}
            }
        }
        for (member, _) in self.catalog.members().filter(|(member, entry)| **member != node && !entry.has_left()) {
            if self.membership.state(member) == Some(MemberState::Down) && !dead_there.contains(member) {
                differ(member, "down", "not down, or unknown");
            }
        }
        let settled = reply.statements.iter().filter(|statement| statement.kind != Kind::Accusation as u8);
        for statement in settled.clone() {
            let known = self.catalog.member(&statement.signer);
            if statement.kind == Kind::Member as u8 && known.is_none() {
                differ(&statement.signer, "unknown", "known");
            } else if statement.kind == Kind::Left as u8 && known.is_some_and(|entry| !entry.has_left()) {
                differ(&statement.signer, "not left", "left");
            }
        }
        let wanted = self.catalog.statements_of(&reply.wanted);
        for statement in wanted.iter().filter(|statement| statement.kind == Kind::Member as u8) {
            differ(&statement.signer, "known", "unknown, or in an older life");
        }
        let newer_there = settled.count();
        PeerView { node, fault: None, differences, newer_there, older_there: reply.wanted.len() }
    }
}
