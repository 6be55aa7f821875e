//! Syncs: one request and one reply on a two-way stream.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use quinn::{Connection, ReadToEndError, RecvStream, SendStream, VarInt};
use tokio::sync::oneshot;

use super::{NetEvent, NetFault, engine::Engine, link::plain};
use crate::{pki::PeerName, types::NodeId, wire};

impl Engine {
    /// See [`Net::open_sync`](super::Net::open_sync).
    pub(super) fn open_sync(self: &Arc<Self>, token: u64, node: Option<NodeId>, addr: SocketAddr, request: Bytes) {
        let engine = self.clone();
        self.spawn(async move {
            engine.stats.syncs_out.one();
            let deadline = engine.limits.stream_deadline;
            let result = match engine.sync_slots.try_acquire() {
                Ok(_slot) => engine.timeout(deadline, engine.sync(node.as_ref(), addr, request)).await,
                Err(_) => Ok(Err(NetFault::Busy(engine.limits.syncs))),
            };
            let result = result.unwrap_or(Err(NetFault::Silent(addr, deadline)));
            if result.is_err() {
                engine.stats.syncs_failed.one();
            }
            // An agent that is gone has no use for it.
            let _ = engine.events.send(NetEvent::SyncReply { token, result }).await;
        });
    }

    async fn sync(
        self: &Arc<Self>,
        node: Option<&NodeId>,
        addr: SocketAddr,
        request: Bytes,
    ) -> Result<(NodeId, Bytes), NetFault> {
        let (who, conn, fresh) = self.reach(node, addr, false).await?;
        if fresh {
            return self.exchange(&conn, request).await.map(|reply| (who, reply));
        }
        // An open connection may be one with a process that is gone.
        let result = tokio::select! { biased;
            result = self.exchange(&conn, request.clone()) => result,
            () = self.silent(&conn, self.limits.stale_after) => Err(lost(&conn, "silent")),
        };
        match result {
            Err(NetFault::Lost { .. }) => {
                let (who, conn, _) = self.reach(node, addr, true).await?;
                self.exchange(&conn, request).await.map(|reply| (who, reply))
            }
            result => result.map(|reply| (who, reply)),
        }
    }

    /// A connection to `node`, or to whoever is at `addr`; whether it was opened for this.
    async fn reach(
        self: &Arc<Self>,
        node: Option<&NodeId>,
        addr: SocketAddr,
        fresh: bool,
    ) -> Result<(NodeId, Connection, bool), NetFault> {
        if let Some(node) = node {
            if *node == self.node {
                return Err(NetFault::Itself(addr));
            }
            return self.connection(node, addr, fresh).await.map(|(conn, fresh)| (node.clone(), conn, fresh));
        }
        let open = {
            let pool = self.pool();
            pool.peers.iter().find_map(|(node, peer)| {
                let link = peer.links.first().filter(|link| link.addr == addr && link.conn.close_reason().is_none())?;
                Some((node.clone(), link.conn.clone()))
            })
        };
        if let Some((node, conn)) = open.filter(|_| !fresh) {
            return Ok((node, conn, false));
        }
        let (conn, facts) = self.dial(addr, &PeerName::address(addr)).await?;
        self.admit(conn.clone(), &facts, true);
        Ok((facts.node, conn, true))
    }

    async fn exchange(&self, conn: &Connection, request: Bytes) -> Result<Bytes, NetFault> {
        let addr = plain(conn.remote_address());
        let (mut out, mut input) = conn.open_bi().await.map_err(|e| lost(conn, &e.to_string()))?;
        self.stats.bytes_out.add(request.len());
        out.write_chunk(request).await.map_err(|e| lost(conn, &e.to_string()))?;
        // Fails only where the peer has stopped reading, which the reply tells.
        let _ = out.finish();
        match input.read_to_end(wire::MAX_STREAM).await {
            Ok(reply) => {
                self.stats.bytes_in.add(reply.len());
                Ok(reply.into())
            }
            Err(ReadToEndError::TooLong) => Err(NetFault::TooLarge { addr, limit: wire::MAX_STREAM }),
            Err(ReadToEndError::Read(error)) => Err(lost(conn, &error.to_string())),
        }
    }

    /// Takes a peer's request to the agent and its reply back.
    pub(super) async fn serve_sync(
        self: Arc<Self>,
        from: NodeId,
        addr: SocketAddr,
        mut out: SendStream,
        mut input: RecvStream,
    ) {
        let id = self.next_id();
        let served = self
            .timeout(self.limits.stream_deadline, async {
                let bytes: Bytes = input.read_to_end(wire::MAX_STREAM).await.ok()?.into();
                self.stats.syncs_in.one();
                self.stats.bytes_in.add(bytes.len());
                let (reply, waiting) = oneshot::channel();
                self.replies().insert(id, reply);
                self.events.send(NetEvent::SyncRequest { id, from, addr, bytes }).await.ok()?;
                let reply = waiting.await.ok()?;
                self.stats.bytes_out.add(reply.len());
                out.write_chunk(reply).await.ok()?;
                out.finish().ok()?;
                out.stopped().await.ok()
            })
            .await;
        self.replies().remove(&id);
        if !matches!(served, Ok(Some(_))) {
            // Dropping the stream would end it as if the reply were complete.
            let _ = out.reset(VarInt::from_u32(RESET_NO_REPLY));
        }
    }

    /// See [`Net::reply`](super::Net::reply).
    pub(super) fn reply(&self, id: u64, bytes: Bytes) {
        let waiting = self.replies().remove(&id);
        if bytes.len() > wire::MAX_STREAM {
            // Without an answer the stream is reset, and the peer hears that there is none.
            return self.stats.dropped_too_large.one();
        }
        if let Some(waiting) = waiting {
            // The stream may have ended in this moment.
            let _ = waiting.send(bytes);
        }
    }

    /// Ends after `limit` if no packet has come in by then. Once the peer has acknowledged the request, this never ends: it
    /// may think about its reply as long as the deadline lets it.
    async fn silent(&self, conn: &Connection, limit: Duration) {
        let before = conn.stats().udp_rx.datagrams;
        self.sleep(limit).await;
        if conn.stats().udp_rx.datagrams != before {
            std::future::pending::<()>().await;
        }
    }

    fn replies(&self) -> std::sync::MutexGuard<'_, std::collections::BTreeMap<u64, oneshot::Sender<Bytes>>> {
        self.replies.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn lost(conn: &Connection, reason: &str) -> NetFault {
    NetFault::Lost { addr: plain(conn.remote_address()), reason: reason.into() }
}

const RESET_NO_REPLY: u32 = 2;
