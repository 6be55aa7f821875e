//! The endpoint under a runtime, a network and a clock that are not the system's: what the simulator needs of it.
//!
//! Virtual time, one thread, one seed. Key exchanges are ring's and not seeded here, so contents differ between runs;
//! who sends how much to whom and when must not.

use std::{
    collections::VecDeque,
    future::Future,
    io::{self, IoSliceMut},
    pin::Pin,
    sync::Mutex,
    task::{Context, Poll, Waker},
    time::Instant,
};

use quinn::{AsyncTimer, Runtime, udp::RecvMeta};

use super::*;
use crate::net::RefusalProbe;

/// Time of the run in microseconds, sender's and receiver's port, length.
type Trace = Vec<(u128, u16, u16, usize)>;

#[derive(Debug, Default)]
struct Inbox {
    packets: VecDeque<(SocketAddr, Vec<u8>)>,
    waker: Option<Waker>,
}

/// A network on which every packet takes one millisecond, and every seventh never arrives.
#[derive(Debug)]
struct Wire {
    start: tokio::time::Instant,
    inboxes: Mutex<std::collections::BTreeMap<SocketAddr, Inbox>>,
    trace: Mutex<Trace>,
}

#[derive(Debug)]
struct Port(Arc<Wire>, SocketAddr);

#[derive(Debug)]
struct AlwaysReady;

impl UdpPoller for AlwaysReady {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for Port {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysReady)
    }

    fn try_send(&self, transmit: &udp::Transmit) -> io::Result<()> {
        let (wire, from, to, bytes) = (self.0.clone(), self.1, transmit.destination, transmit.contents.to_vec());
        let mut trace = wire.trace.lock().unwrap();
        trace.push((wire.start.elapsed().as_micros(), from.port(), to.port(), bytes.len()));
        if trace.len().is_multiple_of(7) {
            return Ok(());
        }
        drop(trace);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            if let Some(inbox) = wire.inboxes.lock().unwrap().get_mut(&to) {
                inbox.packets.push_back((from, bytes));
                inbox.waker.take().into_iter().for_each(Waker::wake);
            }
        });
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut inboxes = self.0.inboxes.lock().unwrap();
        let inbox = inboxes.get_mut(&self.1).unwrap();
        let Some((addr, bytes)) = inbox.packets.pop_front() else {
            inbox.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        bufs[0][..bytes.len()].copy_from_slice(&bytes);
        meta[0] = RecvMeta { addr, len: bytes.len(), stride: bytes.len(), ecn: None, dst_ip: None };
        Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.1)
    }
}

/// Tokio with a paused clock; counts what is spawned through it.
#[derive(Debug, Default)]
struct Virtual(AtomicU64);

impl Runtime for Virtual {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(tokio::time::sleep_until(at.into()))
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.fetch_add(1, Relaxed);
        tokio::spawn(task);
    }

    fn wrap_udp_socket(&self, _: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Err(io::Error::other("there is no real socket in here"))
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

/// Says that odd ports refuse.
struct Oracle;

impl RefusalProbe for Oracle {
    fn refused(&self, addr: SocketAddr) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(async move { addr.port() % 2 == 1 })
    }
}

/// Two peers on a lossy network meet, talk for a while, sync, probe and part.
async fn run() -> (Trace, u64) {
    let wire =
        Arc::new(Wire { start: tokio::time::Instant::now(), inboxes: Mutex::default(), trace: Mutex::default() });
    let runtime = Arc::new(Virtual::default());
    let authority = authority();
    let start = |name: &str, port: u16| {
        let addr = SocketAddr::from(([10, 0, 0, 1], port));
        wire.inboxes.lock().unwrap().insert(addr, Inbox::default());
        let socket = Arc::new(Port(wire.clone(), addr));
        let mut config = NetConfig::new(identity(&authority, name), runtime.clone(), socket, [3; 32]);
        config.probe = Arc::new(Oracle);
        config.seed = Some([port as u8; 32]);
        config.limits.dial_deadline = Duration::from_secs(10);
        let (sender, events) = mpsc::channel(1024);
        let (net, addr) = Net::start(config, sender).unwrap();
        Peer { net, events, addr, node: node(name) }
    };
    let (mut a, mut b) = (start("a", 10), start("b", 20));
    a.send(&b, "hello");
    assert_eq!(b.envelope().await.1, "hello");
    for _ in 0..50 {
        a.send(&b, "ping");
        b.send(&a, "pong");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (b_node, b_addr) = (b.node.clone(), b.addr);
    let b_net = b.net.clone();
    echo(b);
    a.net.open_sync(1, Some(&b_node), b_addr, Bytes::from(vec![1; 50_000]));
    assert_eq!(a.sync_reply().await.1.unwrap().1.len(), 50_000);
    a.net.udp_probe(2, ([10, 0, 0, 1], 21).into());
    while !matches!(a.event().await, NetEvent::Refused { token: 2 }) {}
    a.net.close().await;
    until("b knows", || b_net.connections() == 0).await;
    let trace = wire.trace.lock().unwrap().clone();
    (trace, runtime.0.load(Relaxed))
}

#[test]
fn the_same_seed_sends_the_same_packets_at_the_same_virtual_time() {
    let real = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(run())
    };
    let (first, tasks) = real();
    assert!(tasks > 10, "tasks go through the runtime that was given");
    assert!(first.last().unwrap().0 > 5_000_000, "time is virtual: {:?}", first.last());
    let (second, _) = real();
    let differs = first.iter().zip(&second).position(|(a, b)| a != b);
    assert_eq!((differs, first.len()), (None, second.len()), "{:?}", differs.map(|at| (first[at], second[at])));
}
