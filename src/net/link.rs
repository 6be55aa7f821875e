//! The life of one connection: admitted to the pool, read until it ends, its outbox emptied, its rival settled.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use quinn::{Connection, ConnectionError, RecvStream, VarInt};

use super::{
    engine::Engine,
    pool::{Heard, Link, Silence},
    report,
};
use crate::{
    types::{CertFacts, NodeId, Wall},
    wire,
};

/// Why this side closes a connection; the peer sees code and text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goodbye {
    Shutdown,
    Evicted,
    Duplicate,
    Retired,
    Expired,
    OwnName,
    Asked,
}

impl Goodbye {
    pub(super) fn code(self) -> VarInt {
        VarInt::from_u32(self as u32)
    }

    fn text(self) -> &'static [u8] {
        match self {
            Self::Shutdown => b"shutting down",
            Self::Evicted => b"too many connections, this one was heard from least recently",
            Self::Duplicate => b"another connection between the two of us is in use",
            Self::Retired => b"superseded",
            Self::Expired => b"certificate expired",
            Self::OwnName => b"both ends have the same node name",
            Self::Asked => b"only asked who answers here",
        }
    }

    pub(super) fn say(self, conn: &Connection) {
        conn.close(self.code(), self.text());
    }
}

/// What a reader needs to know of its connection.
struct Reader {
    node: NodeId,
    addr: SocketAddr,
    id: u64,
    conn: Connection,
    heard: Heard,
    not_after: Wall,
}

impl Engine {
    /// Takes a connection into use whose peer was checked.
    pub(super) fn admit(self: &Arc<Self>, conn: Connection, facts: &CertFacts, by_us: bool) {
        let node = facts.node.clone();
        let addr = plain(conn.remote_address());
        let id = self.next_id();
        let now = self.runtime.now();
        let heard = Heard::default();
        heard.store(self.millis(), Relaxed);
        let link = Link {
            id,
            conn: conn.clone(),
            by_us,
            addr,
            opened: now,
            heard: heard.clone(),
            // The side that accepts has read the last packet of the handshake, so nothing of its can come too early.
            confirmed: !by_us,
            silence: Silence::new(now),
            outbox: Default::default(),
            flushing: false,
        };
        // After a double dial the one in use may be the other.
        let (added, used) = {
            let mut pool = self.pool();
            let added = pool.add(&node, link);
            let front = pool.front(&node).expect("just added");
            self.flush(&node, front);
            (added, front.conn.clone())
        };
        for waiting in added.waiting {
            // Whoever waited may have reached its deadline.
            let _ = waiting.send(Ok(used.clone()));
        }
        for old in &added.close {
            self.stats.evicted.one();
            self.stats.dropped_stream.add(old.outbox.len());
            Goodbye::Evicted.say(&old.conn);
        }
        if added.rivals {
            self.spawn(self.clone().settle(node.clone()));
        }
        self.spawn(self.clone().read(Reader { node, addr, id, conn, heard, not_after: facts.not_after }));
    }

    /// After a grace, closes what a peer has too much: all but the first connection, or the first if it does not answer.
    /// What is opened meanwhile has a settling of its own.
    async fn settle(self: Arc<Self>, node: NodeId) {
        let grace = self.limits.grace;
        let newest = self.next_id();
        let front = self.pool().front(&node).map(|link| (link.id, link.conn.clone()));
        let Some((first, conn)) = front else { return };
        let alive = self.answers(&conn, grace).await;
        // The other end may still be sending on the loser.
        self.sleep(grace).await;
        let losers: Vec<Link<Connection>> = match self.pool().peers.get_mut(&node) {
            Some(peer) if alive => peer.links.extract_if(.., |link| link.id != first && link.id < newest).collect(),
            Some(peer) => peer.links.extract_if(.., |link| link.id == first).collect(),
            None => return,
        };
        for loser in losers {
            self.stats.superseded.one();
            self.stats.dropped_stream.add(loser.outbox.len());
            Goodbye::Duplicate.say(&loser.conn);
        }
    }

    /// Reads until the connection ends.
    async fn read(self: Arc<Self>, r: Reader) {
        let expiry = self.expired(r.not_after);
        tokio::pin!(expiry);
        let end = loop {
            tokio::select! { biased;
                datagram = r.conn.read_datagram() => match datagram {
                    Ok(bytes) => self.on_datagram(&r, bytes),
                    Err(end) => break end,
                },
                stream = r.conn.accept_uni() => match stream {
                    Ok(stream) => self.spawn(self.clone().read_envelopes(r.node.clone(), r.addr, r.heard.clone(), stream)),
                    Err(end) => break end,
                },
                stream = r.conn.accept_bi() => match stream {
                    Ok((out, input)) => {
                        r.heard.store(self.millis(), Relaxed);
                        self.spawn(self.clone().serve_sync(r.node.clone(), r.addr, out, input));
                    }
                    Err(end) => break end,
                },
                () = &mut expiry => {
                    self.stats.expired.one();
                    Goodbye::Expired.say(&r.conn);
                    break ConnectionError::LocallyClosed;
                }
            }
        };
        self.ended(&r, &end);
    }

    /// Ends when a certificate has expired. Looks now and then, since wall clocks are set and timers have a longest span.
    async fn expired(&self, not_after: Wall) {
        loop {
            let now = self.tls().identity.now();
            if now > not_after {
                return;
            }
            // Certificates count seconds, and are valid during their last.
            self.sleep((not_after.since(now) + Duration::from_secs(1)).min(HOUR)).await;
        }
    }

    fn on_datagram(&self, r: &Reader, bytes: Bytes) {
        r.heard.store(self.millis(), Relaxed);
        // An empty one only asks for QUIC's acknowledgement.
        if !bytes.is_empty() {
            self.stats.datagrams_in.one();
            self.stats.bytes_in.add(bytes.len());
            self.deliver(&r.node, r.addr, bytes);
        }
    }

    fn ended(&self, r: &Reader, end: &ConnectionError) {
        if let Some(link) = self.pool().remove(&r.node, r.id) {
            self.stats.dropped_stream.add(link.outbox.len());
        }
        // The server checks our certificate after the client side believes itself connected.
        if let Some(reason) = report::certificate_fault(end) {
            self.report(r.addr, reason);
        }
    }

    /// Reads a one-way stream: envelopes, each after its length (4 bytes, little-endian).
    async fn read_envelopes(self: Arc<Self>, node: NodeId, addr: SocketAddr, heard: Heard, mut stream: RecvStream) {
        let reading = async {
            let mut buffer = BytesMut::new();
            while let Some(chunk) = stream.read_chunk(CHUNK, true).await.ok()? {
                heard.store(self.millis(), Relaxed);
                buffer.extend_from_slice(&chunk.bytes);
                while let Some(length) = buffer.first_chunk::<4>().map(|head| u32::from_le_bytes(*head) as usize) {
                    if length > wire::MAX_STREAM {
                        self.stats.dropped_too_large.one();
                        // The peer learns it by the stream's end; its other streams live on.
                        let _ = stream.stop(VarInt::from_u32(STOP_TOO_LARGE));
                        return None;
                    }
                    if buffer.len() < 4 + length {
                        break;
                    }
                    buffer.advance(4);
                    let bytes = buffer.split_to(length).freeze();
                    self.stats.stream_envelopes_in.one();
                    self.stats.bytes_in.add(length);
                    self.deliver(&node, addr, bytes);
                }
            }
            Some(())
        };
        // A stream that breaks off or stalls loses what was not complete; its sender counts it.
        let _ = self.timeout(self.limits.stream_deadline, reading).await;
    }

    /// Makes sure that a task empties the outbox of a connection.
    pub(super) fn flush(self: &Arc<Self>, node: &NodeId, link: &mut Link<Connection>) {
        if !link.flushing && !link.outbox.is_empty() {
            link.flushing = true;
            self.spawn(self.clone().empty_outbox(node.clone(), link.id, link.conn.clone()));
        }
    }

    async fn empty_outbox(self: Arc<Self>, node: NodeId, id: u64, conn: Connection) {
        loop {
            let batch: Vec<Bytes> = {
                let mut pool = self.pool();
                let Some(link) = pool.link(&node, id) else { return };
                if link.outbox.is_empty() {
                    link.flushing = false;
                    return;
                }
                link.outbox.drain(..).collect()
            };
            let count = batch.len();
            let size: usize = batch.iter().map(Bytes::len).sum();
            match self.timeout(self.limits.stream_deadline, write_envelopes(&conn, batch)).await {
                Ok(Some(())) => {
                    self.stats.stream_envelopes_out.add(count);
                    self.stats.bytes_out.add(size);
                }
                _ => self.stats.dropped_stream.add(count),
            }
        }
    }
}

/// Writes envelopes on one stream and waits until the peer's QUIC has them.
async fn write_envelopes(conn: &Connection, batch: Vec<Bytes>) -> Option<()> {
    let mut stream = conn.open_uni().await.ok()?;
    let mut parts = Vec::with_capacity(2 * batch.len());
    for bytes in batch {
        let length = u32::try_from(bytes.len()).ok()?;
        parts.push(Bytes::copy_from_slice(&length.to_le_bytes()));
        parts.push(bytes);
    }
    stream.write_all_chunks(&mut parts).await.ok()?;
    stream.finish().ok()?;
    match stream.stopped().await {
        Ok(None) => Some(()),
        _ => None,
    }
}

/// An address as configured: IPv4 that came in on an IPv6 socket is IPv4.
pub(super) fn plain(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

const CHUNK: usize = 64 << 10;
const STOP_TOO_LARGE: u32 = 1;
const HOUR: Duration = Duration::from_secs(60 * 60);
