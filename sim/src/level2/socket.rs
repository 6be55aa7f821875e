//! Simulated UDP: sockets with a bounded receive buffer, ports that refuse, and the probe that hears of it.
//!
//! As Linux has it: what comes to a bound port is queued while there is room, and lost otherwise; a machine that runs and has
//! nobody on a port answers with ICMP, of which only connected sockets hear (the probe's; QUIC's is not connected), and not
//! more often than [`ICMP_BURST`] and then one a second to each asking address. A packet that the system would not send is lost,
//! as `quinn-udp` treats every error of `sendmsg`. Not here: fragments (the MTU is QUIC's minimum), offload (it is switched off
//! by the product; one packet a call), checksums.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    future::{Future, poll_fn},
    io::{self, IoSliceMut},
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use lanemesh::net::RefusalProbe;
use quinn::{
    AsyncUdpSocket, Runtime, UdpPoller,
    udp::{EcnCodepoint, RecvMeta, Transmit},
};

use super::reactor::{Process, Virtual};
use crate::{
    cpu::Work,
    queue::{SECOND, Time},
};

/// A UDP packet, or the ICMP answer to one.
#[derive(Debug, Clone)]
pub struct Packet {
    /// Sender.
    pub from: SocketAddr,
    /// Receiver.
    pub to: SocketAddr,
    /// Congestion bits.
    pub ecn: Option<EcnCodepoint>,
    /// Payload; empty for ICMP.
    pub bytes: Bytes,
    /// Whether it says that nobody is on the port that `from` stands for.
    pub refusal: bool,
}

/// All ports, and what has been sent and not yet taken to the network.
#[derive(Default)]
pub struct Wire(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    ports: BTreeMap<SocketAddr, Port>,
    sent: Vec<(Time, Packet)>,
    answered: BTreeMap<(IpAddr, IpAddr), Allowance>,
    next_port: u16,
    /// Packets that found a receive buffer full.
    overflown: u64,
}

#[derive(Default)]
struct Port {
    packets: VecDeque<Packet>,
    waker: Option<Waker>,
    /// Hears of refusals, as a connected socket does.
    connected: bool,
}

/// ICMP answers that may still be sent to somebody.
struct Allowance {
    left: u32,
    since: Time,
}

/// What became of a packet at its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Queued.
    Taken,
    /// The receive buffer was full.
    Overflow,
    /// Nobody is on that port.
    Nobody,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything sent since the last time, with its sender's delay.
    pub fn take_sent(&self) -> Vec<(Time, Packet)> {
        std::mem::take(&mut self.lock().sent)
    }

    /// Packets that found a receive buffer full so far.
    pub fn overflown(&self) -> u64 {
        self.lock().overflown
    }

    /// A packet comes to its receiver's machine.
    pub fn arrive(&self, packet: Packet) -> Arrival {
        let mut inner = self.lock();
        let Some(port) = inner.ports.get_mut(&packet.to) else { return Arrival::Nobody };
        if packet.refusal && !port.connected {
            return Arrival::Taken;
        }
        if port.packets.len() >= RECEIVE_BUFFER {
            inner.overflown += 1;
            return Arrival::Overflow;
        }
        port.packets.push_back(packet);
        let waker = port.waker.take();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
        Arrival::Taken
    }

    /// Whether a machine may tell another one now that it refuses.
    pub fn may_refuse(&self, now: Time, by: IpAddr, to: IpAddr) -> bool {
        let mut inner = self.lock();
        let allowance = inner.answered.entry((by, to)).or_insert(Allowance { left: ICMP_BURST, since: now });
        let earned = (now - allowance.since) / SECOND;
        allowance.since += earned * SECOND;
        allowance.left = (u64::from(allowance.left) + earned).min(u64::from(ICMP_BURST)) as u32;
        let may = allowance.left > 0;
        allowance.left = allowance.left.saturating_sub(1);
        may
    }

    /// Closes a port.
    pub fn unbind(&self, addr: SocketAddr) {
        let port = self.lock().ports.remove(&addr);
        drop(port);
    }

    fn bind(&self, addr: SocketAddr, connected: bool) {
        let before = self.lock().ports.insert(addr, Port { connected, ..Port::default() });
        // Not under the lock: its waker may be the last that holds a task.
        drop(before);
    }

    fn send(&self, process: &Process, packet: Packet) {
        if process.is_alive() {
            process.cpu.charge(Work::Packet);
            // It leaves when the work so far is done.
            self.lock().sent.push((process.cpu.due(), packet));
        }
    }
}

/// The socket of a QUIC endpoint.
#[derive(Debug)]
pub struct Socket {
    wire: Arc<Wire>,
    process: Arc<Process>,
    addr: SocketAddr,
}

impl Socket {
    /// Binds a port; whoever had it loses it.
    pub fn bind(wire: Arc<Wire>, process: Arc<Process>, addr: SocketAddr) -> Arc<Self> {
        wire.bind(addr, false);
        Arc::new(Self { wire, process, addr })
    }
}

#[derive(Debug)]
struct Writable;

impl UdpPoller for Writable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable)
    }

    fn try_send(&self, transmit: &Transmit) -> io::Result<()> {
        let size = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        for contents in transmit.contents.chunks(size) {
            let packet = Packet {
                from: self.addr,
                to: transmit.destination,
                ecn: transmit.ecn,
                bytes: Bytes::copy_from_slice(contents),
                refusal: false,
            };
            self.wire.send(&self.process, packet);
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.wire.lock();
        let Some(port) = inner.ports.get_mut(&self.addr) else { return Poll::Pending };
        let mut count = 0;
        for (buf, meta) in bufs.iter_mut().zip(meta.iter_mut()) {
            let Some(packet) = port.packets.pop_front() else { break };
            // A longer one is cut off, as by `recvmsg`.
            let len = packet.bytes.len().min(buf.len());
            buf[..len].copy_from_slice(&packet.bytes[..len]);
            *meta = RecvMeta { addr: packet.from, len, stride: len, ecn: packet.ecn, dst_ip: Some(self.addr.ip()) };
            self.process.cpu.charge(Work::Packet);
            count += 1;
        }
        if count > 0 {
            return Poll::Ready(Ok(count));
        }
        port.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addr)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

/// The UDP probe of `lanemesh::net`, on simulated sockets: three bytes, 100 ms each, as the real one.
#[derive(Debug)]
pub struct Probe {
    /// Where packets go.
    pub wire: Arc<Wire>,
    /// Whose probe it is.
    pub process: Arc<Process>,
    /// Its machine.
    pub ip: IpAddr,
}

impl RefusalProbe for Probe {
    fn refused(&self, addr: SocketAddr) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(async move {
            let port = Ephemeral::bind(self);
            for _ in 0..BYTES {
                let bytes = Bytes::from_static(&[0]);
                let packet = Packet { from: port.addr, to: addr, ecn: None, bytes, refusal: false };
                self.wire.send(&self.process, packet);
                if let Some(refused) = port.hears().await {
                    return refused;
                }
            }
            false
        })
    }
}

/// A connected socket; its port is closed with it.
struct Ephemeral<'a> {
    probe: &'a Probe,
    addr: SocketAddr,
}

impl<'a> Ephemeral<'a> {
    fn bind(probe: &'a Probe) -> Self {
        let mut inner = probe.wire.lock();
        inner.next_port = (inner.next_port + 1) % 20_000;
        let addr = SocketAddr::new(probe.ip, 40_000 + inner.next_port);
        drop(inner);
        probe.wire.bind(addr, true);
        Self { probe, addr }
    }

    /// What comes within 100 ms: a refusal, or something else.
    async fn hears(&self) -> Option<bool> {
        let runtime = Virtual(self.probe.process.clone());
        let mut timer = runtime.new_timer(runtime.now() + WAIT);
        poll_fn(|cx| {
            let mut inner = self.probe.wire.lock();
            let port = inner.ports.get_mut(&self.addr);
            match port.and_then(|port| port.packets.pop_front()) {
                Some(packet) => return Poll::Ready(Some(packet.refusal)),
                None => {
                    inner.ports.get_mut(&self.addr).into_iter().for_each(|port| port.waker = Some(cx.waker().clone()))
                }
            }
            drop(inner);
            timer.as_mut().poll(cx).map(|()| None)
        })
        .await
    }
}

impl Drop for Ephemeral<'_> {
    fn drop(&mut self) {
        self.probe.wire.unbind(self.addr);
    }
}

/// Packets: 4 MiB, as the product asks for, at the 2,304 bytes that Linux counts for one of 1,200.
const RECEIVE_BUFFER: usize = (4 << 20) / 2304;
const BYTES: usize = 3;
const WAIT: Duration = Duration::from_millis(100);
/// Linux, `icmp_ratelimit` and its bucket of six.
const ICMP_BURST: u32 = 6;
