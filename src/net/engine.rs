//! What all tasks of an endpoint share, and the paths that must not wait: sending, retiring, closing.

use std::{
    collections::BTreeMap,
    future::Future,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use quinn::{Connection, Endpoint, Runtime};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{
    NetConfig, NetEvent, NetFault, NetLimits, NetStats, RefusalProbe,
    accept::SelfTest,
    config::{self, DATAGRAM_BUFFER, Tls},
    link::Goodbye,
    pool::{Pool, push_bounded},
    report::Reports,
    timer::{self, Elapsed},
};
use crate::{pki::Identity, types::NodeId, wire};

/// One endpoint.
pub(super) struct Engine {
    pub node: NodeId,
    pub endpoint: Endpoint,
    pub runtime: Arc<dyn Runtime>,
    pub limits: NetLimits,
    pub stats: NetStats,
    pub events: mpsc::Sender<NetEvent>,
    pub reports: Reports,
    pub self_test: SelfTest,
    pub dial_slots: Semaphore,
    pub handshake_slots: Arc<Semaphore>,
    pub sync_slots: Semaphore,
    /// Syncs that wait for the agent's reply.
    pub replies: Mutex<BTreeMap<u64, oneshot::Sender<Bytes>>>,
    pub started: Instant,
    tls: Mutex<Arc<Tls>>,
    seed: Option<[u8; 32]>,
    pool: Mutex<Pool<Connection>>,
    probe: Arc<dyn RefusalProbe>,
    probe_slots: Semaphore,
    ids: AtomicU64,
    closing: AtomicBool,
}

impl Engine {
    pub(super) fn start(config: NetConfig, events: mpsc::Sender<NetEvent>) -> io::Result<Arc<Self>> {
        let NetConfig { identity, socket, runtime, reset_key, limits, probe, seed } = config;
        let node = identity.facts().node.clone();
        let tls = Arc::new(Tls::new(identity, &limits, seed)?);
        let endpoint = Endpoint::new_with_abstract_socket(
            config::endpoint(&reset_key, seed)?,
            Some(tls.server.clone()),
            socket,
            runtime.clone(),
        )?;
        let simultaneous = limits.dial_deadline + limits.grace;
        let engine = Arc::new(Self {
            endpoint,
            stats: NetStats::default(),
            events,
            reports: Reports::new(limits.report_every),
            self_test: SelfTest::default(),
            dial_slots: Semaphore::new(limits.dials),
            handshake_slots: Arc::new(Semaphore::new(limits.handshakes)),
            sync_slots: Semaphore::new(limits.syncs),
            replies: Mutex::default(),
            started: runtime.now(),
            tls: Mutex::new(tls),
            seed,
            pool: Mutex::new(Pool::new(node.clone(), limits.connections, simultaneous)),
            probe,
            probe_slots: Semaphore::new(limits.probes),
            ids: AtomicU64::new(1),
            closing: AtomicBool::new(false),
            node,
            runtime,
            limits,
        });
        engine.spawn(engine.clone().accept_all());
        Ok(engine)
    }

    /// Runs a task on the runtime that the endpoint was started with.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(Box::pin(task));
    }

    /// Waits for so long, by the endpoint's own clock.
    pub(super) async fn sleep(&self, span: Duration) {
        timer::sleep(&*self.runtime, span).await;
    }

    /// What `future` comes to within so long.
    pub(super) async fn timeout<F: Future>(&self, span: Duration, future: F) -> Result<F::Output, Elapsed> {
        timer::timeout(&*self.runtime, span, future).await
    }

    /// The book of connections. Hold it for a moment only, never across an await.
    pub(super) fn pool(&self) -> MutexGuard<'_, Pool<Connection>> {
        // A panic elsewhere leaves the book consistent: every change to it is a plain collection operation.
        self.pool.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The current certificates.
    pub(super) fn tls(&self) -> Arc<Tls> {
        self.tls.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// A number that was not given out before.
    pub(super) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Relaxed)
    }

    /// Milliseconds since the start, for [`Heard`](super::pool::Heard).
    pub(super) fn millis(&self) -> u64 {
        let passed = self.runtime.now().saturating_duration_since(self.started);
        u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }

    /// Tells the agent of an envelope; drops it if the agent does not keep up: the next one is fresher.
    pub(super) fn deliver(&self, from: &NodeId, addr: SocketAddr, bytes: Bytes) {
        let event = NetEvent::Envelope { from: from.clone(), addr, bytes };
        if self.events.try_send(event).is_err() {
            self.stats.dropped_inbox_full.one();
        }
    }

    /// See [`Net::send`](super::Net::send).
    pub(super) fn send(self: &Arc<Self>, to: &NodeId, addr: SocketAddr, bytes: Bytes, reliable: bool) {
        if bytes.len() > wire::MAX_STREAM {
            return self.stats.dropped_too_large.one();
        }
        if self.is_closing() || *to == self.node {
            return self.stats.dropped_unreachable.one();
        }
        let now = self.runtime.now();
        let mut pool = self.pool();
        let peer = pool.peer(to);
        for closed in peer.links.extract_if(.., |link| link.conn.close_reason().is_some()) {
            // What it did not deliver gets another chance.
            peer.queue.extend(closed.outbox);
        }
        let Some(link) = peer.links.first_mut() else {
            let dropped = peer.enqueue(bytes, self.limits.queue);
            self.stats.dropped_queue_full.add(dropped);
            return self.dial_unless_dialing(&mut pool, to, addr);
        };
        let seen = link.conn.stats();
        link.confirmed |= seen.frame_rx.handshake_done > 0;
        let silent = link.silence.on_send(seen.udp_rx.datagrams, now, self.limits.stale_after);
        let fits = link.conn.max_datagram_size().is_some_and(|most| bytes.len() <= most);
        let size = bytes.len();
        if link.confirmed && fits && !reliable {
            if link.conn.datagram_send_buffer_space() < size {
                // quinn makes room by dropping the oldest.
                self.stats.dropped_queue_full.one();
            }
            if link.conn.send_datagram(bytes).is_ok() {
                self.stats.datagrams_out.one();
                self.stats.bytes_out.add(size);
            } else {
                self.stats.dropped_unreachable.one();
            }
        } else {
            let dropped = push_bounded(&mut link.outbox, bytes, self.limits.queue);
            self.stats.dropped_queue_full.add(dropped);
            self.flush(to, link);
        }
        if silent {
            self.race(&mut pool, to, addr, now);
        }
    }

    /// Dials beside a connection that has gone silent, at most once in two dial deadlines; see `settle`.
    fn race(self: &Arc<Self>, pool: &mut Pool<Connection>, node: &NodeId, addr: SocketAddr, now: Instant) {
        let pause = 2 * self.limits.dial_deadline;
        let peer = pool.peer(node);
        if peer.raced.is_some_and(|at| now.saturating_duration_since(at) < pause) {
            return;
        }
        peer.raced = Some(now);
        self.stats.dials_of_silent.one();
        self.dial_unless_dialing(pool, node, addr);
    }

    /// See [`Net::retire`](super::Net::retire).
    pub(super) fn retire(self: &Arc<Self>, node: &NodeId) {
        let links: Vec<(u64, Connection)> = match self.pool().peers.get(node) {
            Some(peer) => peer.links.iter().map(|link| (link.id, link.conn.clone())).collect(),
            None => return,
        };
        for (id, conn) in links {
            let (engine, node) = (self.clone(), node.clone());
            self.spawn(async move {
                if !engine.answers(&conn, engine.limits.grace).await {
                    engine.pool().remove(&node, id);
                    Goodbye::Retired.say(&conn);
                }
            });
        }
    }

    /// See [`Net::udp_probe`](super::Net::udp_probe).
    pub(super) fn udp_probe(self: &Arc<Self>, token: u64, addr: SocketAddr) {
        let engine = self.clone();
        self.spawn(async move {
            // Over the limit nothing is known, as when nothing is heard.
            let Ok(_slot) = engine.probe_slots.try_acquire() else { return };
            engine.stats.probes.one();
            if engine.probe.refused(addr).await {
                engine.stats.probes_refused.one();
                // An agent that is gone has no use for it.
                let _ = engine.events.send(NetEvent::Refused { token }).await;
            }
        });
    }

    /// Whether no UDP probe is under way.
    #[cfg(test)]
    pub(super) fn probes_idle(&self) -> bool {
        self.probe_slots.available_permits() == self.limits.probes
    }

    /// See [`Net::renew`](super::Net::renew).
    pub(super) fn renew(&self, identity: Arc<Identity>) -> Result<(), NetFault> {
        let (old, new) = (self.tls().identity.clone(), identity.facts().clone());
        if (&new.node, &new.mesh) != (&old.facts().node, &old.facts().mesh) {
            return Err(NetFault::NotRenewal { node: new.node, mesh: new.mesh });
        }
        let tls = Tls::new(identity, &self.limits, self.seed).expect("the same crypto provider as before");
        self.endpoint.set_server_config(Some(tls.server.clone()));
        *self.tls.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(tls);
        Ok(())
    }

    /// See [`Net::close`](super::Net::close).
    pub(super) async fn close(&self) {
        self.closing.store(true, Relaxed);
        let bound = self.limits.close_deadline;
        // Nobody waits for us longer than this, delivered or not.
        let flushed = async {
            while !self.is_flushed() {
                self.sleep(Duration::from_millis(2)).await;
            }
        };
        let _ = self.timeout(bound, flushed).await;
        self.endpoint.close(Goodbye::Shutdown.code(), b"shutting down");
        let _ = self.timeout(bound, self.endpoint.wait_idle()).await;
    }

    /// Whether nothing waits to be sent on an open connection or one that is being opened.
    pub(super) fn is_flushed(&self) -> bool {
        self.pool().peers.values().all(|peer| {
            let sent = |c: &Connection| c.datagram_send_buffer_space() >= NO_DATAGRAM || c.close_reason().is_some();
            let idle = peer.links.iter().all(|link| !link.flushing && link.outbox.is_empty() && sent(&link.conn));
            idle && (peer.dialing.is_none() || peer.queue.is_empty())
        })
    }

    /// Whether the far end is heard within `grace` of being spoken to. An empty datagram means nothing to it, but QUIC
    /// acknowledges it.
    pub(super) async fn answers(&self, conn: &Connection, grace: Duration) -> bool {
        let before = conn.stats().udp_rx.datagrams;
        if conn.send_datagram(Bytes::new()).is_err() {
            return false;
        }
        let heard = async {
            while conn.stats().udp_rx.datagrams == before {
                self.sleep(Duration::from_millis(5)).await;
            }
        };
        self.timeout(grace, heard).await.is_ok() && conn.close_reason().is_none()
    }
}

/// Space for datagrams when none waits: quinn subtracts what one more would cost beside its bytes, and one byte costs more.
const NO_DATAGRAM: usize = DATAGRAM_BUFFER - 64;
