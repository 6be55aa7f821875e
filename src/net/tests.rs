//! The endpoint on loopback: what a user of the floor can rely on. Every wait is for a condition, never for a time.

mod hostile;
mod recovery;
mod traffic;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use quinn::{AsyncUdpSocket, UdpPoller, udp};
use rustls_pki_types::UnixTime;
use tokio::sync::mpsc;

use super::{Net, NetConfig, NetEvent, NetLimits, bind, runtime};
use crate::{
    pki::{Authority, Identity, IdentityParts, LeafRequest},
    types::{MeshName, NodeId, Wall},
};

const LOOPBACK: &str = "127.0.0.1:0";
/// Far more than anything takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(20);

fn now() -> Wall {
    Wall(UnixTime::now().as_secs() * 1000)
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn authority() -> Authority {
    Authority::new(&MeshName::new("prod").unwrap(), [7; 32], now())
}

/// An identity of `name`, with a key of its own each time, valid from `issued` for `valid`.
fn identity_from(authority: &Authority, name: &str, issued: Wall, valid: Duration) -> Arc<Identity> {
    static KEYS: AtomicU64 = AtomicU64::new(0);
    let mut seed = [1; 32];
    seed[..8].copy_from_slice(&KEYS.fetch_add(1, Relaxed).to_le_bytes());
    let request = LeafRequest { node: node(name), services: vec![], any_service: false, valid_for: valid };
    let leaf = authority.sign(&request, seed, issued).unwrap();
    let parts = IdentityParts {
        certificate: leaf.certificate,
        key: leaf.key,
        authorities: vec![authority.certificate().clone()],
        provider: Arc::new(rustls::crypto::ring::default_provider()),
        clock: Arc::new(rustls::time_provider::DefaultTimeProvider),
    };
    Arc::new(Identity::from_parts(parts).unwrap())
}

fn identity(authority: &Authority, name: &str) -> Arc<Identity> {
    identity_from(authority, name, now(), LeafRequest::DEFAULT_VALIDITY)
}

/// One endpoint and what it heard.
struct Peer {
    net: Net,
    events: mpsc::Receiver<NetEvent>,
    addr: SocketAddr,
    node: NodeId,
}

impl Peer {
    fn start(authority: &Authority, name: &str) -> Self {
        Self::with(identity(authority, name), LOOPBACK.parse().unwrap(), |_| {})
    }

    fn with(identity: Arc<Identity>, addr: SocketAddr, change: impl FnOnce(&mut NetConfig)) -> Self {
        let runtime = runtime().unwrap();
        let socket = bind(addr, &*runtime).unwrap();
        let node = identity.facts().node.clone();
        let mut config = NetConfig::new(identity, runtime, socket, [3; 32]);
        change(&mut config);
        let (sender, events) = mpsc::channel(1024);
        let (net, addr) = Net::start(config, sender).unwrap();
        Self { net, events, addr, node }
    }

    fn send(&self, to: &Peer, text: &str) {
        self.net.send(&to.node, to.addr, Bytes::copy_from_slice(text.as_bytes()));
    }

    async fn event(&mut self) -> NetEvent {
        tokio::time::timeout(PATIENCE, self.events.recv()).await.expect("an event in time").expect("a living endpoint")
    }

    /// The next envelope; other events are passed over.
    async fn envelope(&mut self) -> (NodeId, Bytes) {
        loop {
            if let NetEvent::Envelope { from, bytes, .. } = self.event().await {
                return (from, bytes);
            }
        }
    }

    async fn sync_reply(&mut self) -> (u64, Result<(NodeId, Bytes), super::NetFault>) {
        loop {
            match self.event().await {
                NetEvent::SyncReply { token, result } => return (token, result),
                NetEvent::SyncRequest { id, bytes, .. } => self.net.reply(id, bytes),
                _ => {}
            }
        }
    }

    async fn refusal(&mut self) -> String {
        loop {
            if let NetEvent::HandshakeRefused { reason, .. } = self.event().await {
                return reason;
            }
        }
    }
}

/// Two peers with one open connection, dialled by the first, over which something has gone each way.
async fn pair(authority: &Authority) -> (Peer, Peer) {
    let (mut a, mut b) = (Peer::start(authority, "a"), Peer::start(authority, "b"));
    meet(&mut a, &mut b).await;
    (a, b)
}

async fn meet(a: &mut Peer, b: &mut Peer) {
    a.send(b, "hello");
    assert_eq!(b.envelope().await.1, "hello");
    b.send(a, "hello back");
    assert_eq!(a.envelope().await.1, "hello back");
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Answers every sync with its own request until the endpoint closes.
fn echo(mut peer: Peer) -> SocketAddr {
    let addr = peer.addr;
    tokio::spawn(async move {
        while let Some(event) = peer.events.recv().await {
            if let NetEvent::SyncRequest { id, bytes, .. } = event {
                peer.net.reply(id, bytes);
            }
        }
    });
    addr
}

/// A socket that sends every third packet late and loses every `lose`th.
#[derive(Debug)]
struct Shuffle {
    inner: Arc<dyn AsyncUdpSocket>,
    sent: AtomicU64,
    lose: u64,
}

impl Shuffle {
    fn bind(lose: u64) -> Arc<dyn AsyncUdpSocket> {
        let inner = bind(LOOPBACK.parse().unwrap(), &*runtime().unwrap()).unwrap();
        Arc::new(Self { inner, sent: AtomicU64::new(0), lose })
    }
}

impl AsyncUdpSocket for Shuffle {
    fn create_io_poller(self: Arc<Self>) -> std::pin::Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &udp::Transmit) -> std::io::Result<()> {
        let count = self.sent.fetch_add(1, Relaxed) + 1;
        if count.is_multiple_of(self.lose) {
            return Ok(());
        }
        if !count.is_multiple_of(3) {
            return self.inner.try_send(transmit);
        }
        let (inner, destination, contents) = (self.inner.clone(), transmit.destination, transmit.contents.to_vec());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(3)).await;
            let late = udp::Transmit { destination, ecn: None, contents: &contents, segment_size: None, src_ip: None };
            let _ = inner.try_send(&late);
        });
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut std::task::Context,
        bufs: &mut [std::io::IoSliceMut<'_>],
        meta: &mut [udp::RecvMeta],
    ) -> std::task::Poll<std::io::Result<usize>> {
        self.inner.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

/// Limits with a small number somewhere.
fn limits(change: impl FnOnce(&mut NetLimits)) -> NetLimits {
    let mut limits = NetLimits::default();
    change(&mut limits);
    limits
}
