//! Between the node and the network: what the one says, in the words of the other. Shared by the agent's loop and the
//! simulator's, so that both mean the same.

use std::{net::SocketAddr, sync::Arc};

use crate::{
    net::{Net, NetEvent, NetFault},
    node::{DialError, Event, Input, Output, Stored},
    routing::CandidateTable,
    types::Signal,
};

/// What the network says that is nothing to the node, and something to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForPeople {
    /// Another process has this node's certificate.
    NameClaimed {
        /// Where.
        addr: SocketAddr,
    },
    /// A handshake failed over the certificates.
    HandshakeRefused {
        /// With whom.
        addr: SocketAddr,
        /// Why.
        reason: String,
    },
}

/// What a node wants of whoever runs it, beside the network.
#[derive(Debug)]
pub enum ForShell {
    /// See [`Output::Publish`].
    Publish(Arc<CandidateTable>),
    /// See [`Output::Persist`].
    Persist {
        /// As in [`Output::Persist`].
        generation: u64,
        /// As in [`Output::Persist`].
        stored: Box<Stored>,
    },
    /// See [`Output::Signal`].
    Signal(Signal),
    /// See [`Output::Event`].
    Event(Event),
}

/// What an event of the network is to the node, or to people.
pub fn input(event: NetEvent) -> Result<Input, ForPeople> {
    Ok(match event {
        NetEvent::Envelope { from, addr, bytes } => Input::Envelope { from, addr, bytes },
        NetEvent::SyncRequest { id, from, addr, bytes } => Input::SyncRequest { id, from, addr, bytes },
        NetEvent::SyncReply { token, result } => Input::SyncEnded { token, result: result.map_err(dial_error) },
        NetEvent::Refused { token } => Input::Refused { token },
        NetEvent::NameClaimed { addr } => return Err(ForPeople::NameClaimed { addr }),
        NetEvent::HandshakeRefused { addr, reason } => return Err(ForPeople::HandshakeRefused { addr, reason }),
    })
}

/// Has the network do what is its to do; everything else comes back.
pub fn carry(net: &Net, output: Output) -> Option<ForShell> {
    match output {
        Output::Send { to, addr, bytes } => net.send(&to, addr, bytes),
        Output::OpenSync { token, node, addr, request } => net.open_sync(token, node.as_ref(), addr, request),
        Output::SyncReply { id, bytes } => net.reply(id, bytes),
        Output::UdpProbe { token, addr } => net.udp_probe(token, addr),
        Output::Retire(node) => net.retire(&node),
        Output::Publish(table) => return Some(ForShell::Publish(table)),
        Output::Persist { generation, stored } => return Some(ForShell::Persist { generation, stored }),
        Output::Signal(signal) => return Some(ForShell::Signal(signal)),
        Output::Event(event) => return Some(ForShell::Event(event)),
    }
    None
}

fn dial_error(fault: NetFault) -> DialError {
    match fault {
        NetFault::Itself(_) => DialError::Itself,
        NetFault::OwnName { .. } => DialError::OwnName,
        other => DialError::Other(other.to_string()),
    }
}
