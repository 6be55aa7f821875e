//! Opening connections: by node, with a queue behind each dial, or by address, to whoever answers.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use quinn::Connection;
use rustls_pki_types::CertificateDer;
use tokio::sync::oneshot;

use super::{
    NetEvent, NetFault,
    engine::Engine,
    link::{Goodbye, plain},
    pool::Pool,
    report,
};
use crate::{
    pki::PeerName,
    types::{CertFacts, NodeId},
};

impl Engine {
    /// Starts a dial to a node, or gives the one under way a newer address.
    pub(super) fn dial_unless_dialing(self: &Arc<Self>, pool: &mut Pool<Connection>, node: &NodeId, addr: SocketAddr) {
        if pool.peer(node).dialing.replace(addr).is_none() {
            self.spawn(self.clone().dial_node(node.clone(), addr));
        }
    }

    /// A connection to a node: the open one, or a new one. Also says whether it is new.
    pub(super) async fn connection(
        self: &Arc<Self>,
        node: &NodeId,
        addr: SocketAddr,
        fresh: bool,
    ) -> Result<(Connection, bool), NetFault> {
        let waiting = {
            let mut pool = self.pool();
            let open = pool.front(node).map(|link| link.conn.clone()).filter(|conn| conn.close_reason().is_none());
            match open {
                Some(conn) if !fresh => return Ok((conn, false)),
                _ => {}
            }
            let (done, waiting) = oneshot::channel();
            pool.peer(node).waiting.push(done);
            self.dial_unless_dialing(&mut pool, node, addr);
            waiting
        };
        waiting.await.unwrap_or(Err(NetFault::Closing)).map(|conn| (conn, true))
    }

    async fn dial_node(self: Arc<Self>, node: NodeId, mut addr: SocketAddr) {
        let name = PeerName::node(&node);
        for _ in 0..DIALS_IN_A_ROW {
            let result = self.dial(addr, &name).await;
            let fault = match result {
                Ok((conn, facts)) => return self.admit(conn, &facts, true),
                Err(fault) => fault,
            };
            let mut pool = self.pool();
            match pool.peer(&node).dialing {
                Some(newer) if newer != addr && !self.is_closing() => addr = newer,
                _ => return self.give_up(&mut pool, &node, &fault),
            }
        }
        let fault = NetFault::Silent(addr, self.limits.dial_deadline);
        self.give_up(&mut self.pool(), &node, &fault);
    }

    /// Nobody was reached: what waited is dropped, unless the peer has connected to us meanwhile (then nothing waits).
    fn give_up(&self, pool: &mut Pool<Connection>, node: &NodeId, fault: &NetFault) {
        let peer = pool.peer(node);
        peer.dialing = None;
        self.stats.dropped_unreachable.add(peer.queue.len());
        peer.queue.clear();
        for waiting in peer.waiting.drain(..) {
            // Whoever waited may have reached its deadline.
            let _ = waiting.send(Err(fault.clone()));
        }
        pool.tidy(node);
    }

    /// Opens a connection within the dial's deadline and checks who answered.
    pub(super) async fn dial(
        self: &Arc<Self>,
        addr: SocketAddr,
        name: &PeerName,
    ) -> Result<(Connection, CertFacts), NetFault> {
        let deadline = self.limits.dial_deadline;
        let result = self
            .timeout(deadline, async {
                // Closed never; the queue for it is first come, first served.
                let _slot = self.dial_slots.acquire().await.map_err(|_| NetFault::Closing)?;
                self.stats.dials.one();
                self.connect(addr, name).await
            })
            .await
            .unwrap_or(Err(NetFault::Silent(addr, deadline)));
        if let Err(fault) = &result {
            self.stats.dials_failed.one();
            if let NetFault::Handshake { reason, .. } = fault {
                self.report(addr, reason.clone());
            } else if let NetFault::OwnName { .. } = fault {
                self.report(addr, fault.to_string());
            }
        }
        result
    }

    /// See [`Net::who_answers`](super::Net::who_answers).
    pub(super) async fn who_answers(self: &Arc<Self>, addr: SocketAddr) -> Result<CertFacts, NetFault> {
        let (conn, facts) = self.dial(addr, &PeerName::address(addr)).await?;
        // In TLS 1.3 this side is done before the other has looked at the certificate; what it thinks of it comes later.
        let confirmed = self.timeout(self.limits.dial_deadline, async {
            while conn.stats().frame_rx.handshake_done == 0 && conn.close_reason().is_none() {
                self.sleep(Duration::from_millis(2)).await;
            }
        });
        if confirmed.await.is_err() {
            return Err(NetFault::Silent(addr, self.limits.dial_deadline));
        }
        if let Some(error) = conn.close_reason() {
            return Err(match report::certificate_fault(&error) {
                Some(reason) => NetFault::Handshake { addr, reason },
                None => NetFault::Lost { addr, reason: error.to_string() },
            });
        }
        Goodbye::Asked.say(&conn);
        Ok(facts)
    }

    async fn connect(self: &Arc<Self>, addr: SocketAddr, name: &PeerName) -> Result<(Connection, CertFacts), NetFault> {
        let client = self.tls().client.clone();
        let connecting = self.endpoint.connect_with(client, addr, name.as_str()).map_err(|error| match error {
            quinn::ConnectError::EndpointStopping => NetFault::Closing,
            other => NetFault::Lost { addr, reason: other.to_string() },
        })?;
        let conn = connecting.await.map_err(|error| match report::certificate_fault(&error) {
            Some(reason) => NetFault::Handshake { addr, reason },
            None => NetFault::Lost { addr, reason: error.to_string() },
        })?;
        let facts = self.check(&conn).await?;
        Ok((conn, facts))
    }

    /// Who is at the other end of a connection that is about to be used: the certificate as of now, and not this node.
    pub(super) async fn check(&self, conn: &Connection) -> Result<CertFacts, NetFault> {
        let addr = plain(conn.remote_address());
        let chain = conn.peer_identity().and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok());
        let leaf = chain.as_ref().and_then(|chain| chain.first());
        let facts = match leaf.map(|leaf| self.tls().identity.peer(leaf)) {
            Some(Ok(facts)) => facts,
            fault => {
                Goodbye::Expired.say(conn);
                let reason =
                    fault.map_or("no certificate".into(), |f| f.map_or_else(|e| e.to_string(), |_| String::new()));
                return Err(NetFault::Handshake { addr, reason });
            }
        };
        if facts.node != self.node {
            return Ok(facts);
        }
        let itself = self.self_test.meets_itself(conn, &*self.runtime).await;
        Goodbye::OwnName.say(conn);
        Err(if itself { NetFault::Itself(addr) } else { NetFault::OwnName { addr, node: facts.node } })
    }

    /// Counts a failed handshake and tells the agent, if this address was not reported lately.
    pub(super) fn report(&self, addr: SocketAddr, reason: String) {
        self.tell(addr, NetEvent::HandshakeRefused { addr, reason });
    }

    /// Counts a failed handshake with `addr`, and tells of it unless that was done a moment ago.
    pub(super) fn tell(&self, addr: SocketAddr, event: NetEvent) {
        self.stats.handshakes_failed.one();
        if self.reports.may_report(addr, self.runtime.now()) {
            // An agent that does not keep up has other worries.
            let _ = self.events.try_send(event);
        }
    }
}

/// Dials to addresses that became known while one was under way.
const DIALS_IN_A_ROW: usize = 3;
