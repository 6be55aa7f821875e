//! What an endpoint is started with, and the QUIC settings.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use quinn::{
    AsyncUdpSocket, ClientConfig, ConnectionId, ConnectionIdGenerator, EndpointConfig, Runtime, ServerConfig,
    TimeSource, TransportConfig, VarInt,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use ring::{
    hkdf, hmac,
    rand::{SecureRandom, SystemRandom},
};
use socket2::{Domain, Protocol, Socket, Type};

use super::probe::{RefusalProbe, SystemProbe};
use crate::pki::Identity;

/// Bounds and deadlines; the default fits a LAN and a mesh of a few hundred.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetLimits {
    /// Peers with an open connection, about 30 KiB each; beyond, the least recently heard one is closed.
    pub connections: usize,
    /// Dials under way at once; further ones wait, within their own deadline.
    pub dials: usize,
    /// For a dial, waiting included. What was to be sent is dropped then.
    pub dial_deadline: Duration,
    /// Envelopes waiting for one peer; beyond, the oldest is dropped.
    pub queue: usize,
    /// Incoming handshakes under way at once; beyond half of it strangers must prove their address first.
    pub handshakes: usize,
    /// For an incoming handshake.
    pub handshake_deadline: Duration,
    /// For the bytes of one stream, and for one sync as a whole.
    pub stream_deadline: Duration,
    /// Own syncs under way at once.
    pub syncs: usize,
    /// Silence after two sends that makes a connection doubtful: another dial is raced against it.
    pub stale_after: Duration,
    /// How long the loser of two connections stays open.
    pub grace: Duration,
    /// Silence after which a connection is closed. In a mesh of 256 a pair meets again after 153 s at worst.
    pub idle: Duration,
    /// UDP probes under way at once.
    pub probes: usize,
    /// Between two reports of a failed handshake with one address.
    pub report_every: Duration,
    /// To deliver what is under way when closing.
    pub close_deadline: Duration,
}

impl Default for NetLimits {
    fn default() -> Self {
        Self {
            connections: 256,
            dials: 32,
            dial_deadline: Duration::from_secs(1),
            queue: 64,
            handshakes: 64,
            handshake_deadline: Duration::from_secs(3),
            stream_deadline: Duration::from_secs(5),
            syncs: 64,
            stale_after: Duration::from_millis(400),
            grace: Duration::from_millis(500),
            idle: Duration::from_secs(180),
            probes: 64,
            report_every: Duration::from_secs(30),
            close_deadline: Duration::from_millis(500),
        }
    }
}

/// What an endpoint is started with. Socket, runtime (with its clock), randomness and UDP probe are arguments, so that the
/// simulator can drive the very same code.
pub struct NetConfig {
    /// Who this node is and whom it trusts.
    pub identity: Arc<Identity>,
    /// The UDP socket; see [`bind`].
    pub socket: Arc<dyn AsyncUdpSocket>,
    /// Spawns tasks and tells the time.
    pub runtime: Arc<dyn Runtime>,
    /// Kept on disk: with it a restarted process can tell its peers that their old connections are gone.
    pub reset_key: [u8; 32],
    /// Bounds and deadlines.
    pub limits: NetLimits,
    /// How ports are probed.
    pub probe: Arc<dyn RefusalProbe>,
    /// `Some` makes QUIC's own random choices repeatable (simulator only: connection ids become guessable).
    pub seed: Option<[u8; 32]>,
}

impl NetConfig {
    /// With default limits. `runtime` is [`runtime`]'s, and `socket` was bound with it.
    pub fn new(
        identity: Arc<Identity>,
        runtime: Arc<dyn Runtime>,
        socket: Arc<dyn AsyncUdpSocket>,
        reset_key: [u8; 32],
    ) -> Self {
        Self {
            identity,
            socket,
            runtime,
            reset_key,
            limits: NetLimits::default(),
            probe: Arc::new(SystemProbe),
            seed: None,
        }
    }
}

/// Timers, sockets and tasks of an endpoint; call it inside a tokio runtime.
pub fn runtime() -> io::Result<Arc<dyn Runtime>> {
    #[cfg(target_os = "linux")]
    return Ok(Arc::new(super::frugal::Frugal::new()?));
    #[cfg(not(target_os = "linux"))]
    Ok(Arc::new(quinn::TokioRuntime))
}

/// Binds the UDP socket of a mesh endpoint: both IP versions where `addr` is `[::]`, and as large a receive buffer as the
/// system allows up to 4 MiB, since a full one looks like a dead node. Call it inside a tokio runtime.
pub fn bind(addr: SocketAddr, runtime: &dyn Runtime) -> io::Result<Arc<dyn AsyncUdpSocket>> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
    if addr.is_ipv6() {
        // Some hosts have no IPv4 or forbid sharing; IPv6 alone is still useful.
        let _ = socket.set_only_v6(false);
    }
    // The system may grant less; then bursts are lost earlier, which QUIC repairs.
    let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    runtime.wrap_udp_socket(socket.into())
}

/// QUIC settings of every connection.
fn transport(limits: &NetLimits) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(PEER_STREAMS))
        .max_concurrent_uni_streams(VarInt::from_u32(PEER_STREAMS))
        .max_idle_timeout(Some(limits.idle.try_into().unwrap_or_else(|_| VarInt::from_u32(180_000).into())))
        // The prober decides what is sent when; keep-alives would double it.
        .keep_alive_interval(None)
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(2 * STREAM_WINDOW))
        .send_window(2 * u64::from(STREAM_WINDOW))
        // quinn assumes 333 ms until it has measured: a lost handshake packet would cost a second.
        .initial_rtt(Duration::from_millis(50))
        // Black-hole detection drops what no longer fits (quinn#2212), so the size never changes.
        .initial_mtu(MTU)
        .min_mtu(MTU)
        .mtu_discovery_config(None)
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER))
        .datagram_send_buffer_size(DATAGRAM_BUFFER)
        // Some network cards and kernels fail on bursts (quinn#1128, #2399); there are no bursts worth it here.
        .enable_segmentation_offload(false);
    transport
}

/// Configurations that follow from the identity; replaced when it is renewed.
pub(super) struct Tls {
    pub identity: Arc<Identity>,
    pub client: ClientConfig,
    pub server: ServerConfig,
}

impl Tls {
    pub(super) fn new(identity: Arc<Identity>, limits: &NetLimits, seed: Option<[u8; 32]>) -> io::Result<Self> {
        let fault = |_| io::Error::other("the crypto provider lacks TLS13_AES_128_GCM_SHA256, which QUIC needs");
        let crypto = Arc::new(QuicClientConfig::try_from(identity.client_config()).map_err(fault)?);
        let mut client = ClientConfig::new(crypto);
        let transport = Arc::new(transport(limits));
        client.transport_config(transport.clone());
        let crypto = Arc::new(QuicServerConfig::try_from(identity.server_config()).map_err(fault)?);
        let mut server = match seed {
            None => ServerConfig::with_crypto(crypto),
            Some(seed) => {
                let dice = Arc::new(Dice::new(seed, b"initial cid"));
                client.initial_dst_cid_provider(Arc::new(move || ConnectionId::new(&dice.roll()[..16])));
                let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, b"lanemesh token key").extract(&seed);
                ServerConfig::new(crypto, Arc::new(prk))
            }
        };
        server
            .transport_config(transport)
            .time_source(Arc::new(Clock(identity.clone())))
            // Members do not move while connected; a new address is a new connection, and its identity is looked at again.
            .migration(false)
            .max_incoming(limits.handshakes)
            .incoming_buffer_size(16 << 10)
            .incoming_buffer_size_total(1 << 20);
        Ok(Self { identity, client, server })
    }
}

/// Settings of the endpoint itself.
pub(super) fn endpoint(reset_key: &[u8; 32], seed: Option<[u8; 32]>) -> io::Result<EndpointConfig> {
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, reset_key)));
    config.rng_seed(seed);
    let ids = match seed {
        Some(seed) => seed,
        None => {
            let mut random = [0; 32];
            let fault = |_| io::Error::other("the operating system gives no random numbers");
            SystemRandom::new().fill(&mut random).map_err(fault)?;
            random
        }
    };
    // quinn's own generator ignores ids that another process has made, and with them every occasion for a reset.
    config.cid_generator(move || Box::new(Ids(Dice::new(ids, b"cid"))));
    Ok(config)
}

/// The identity's clock, for the lifetime of address tokens.
struct Clock(Arc<Identity>);

impl TimeSource for Clock {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.0.now().0)
    }
}

/// A sequence that only its seed tells: HMAC-SHA-256 of a counter.
struct Dice {
    key: hmac::Key,
    rolls: AtomicU64,
}

impl Dice {
    fn new(seed: [u8; 32], label: &[u8]) -> Self {
        let key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &seed), label);
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()), rolls: AtomicU64::new(0) }
    }

    fn roll(&self) -> [u8; 32] {
        let count = self.rolls.fetch_add(1, Relaxed);
        let tag = hmac::sign(&self.key, &count.to_le_bytes());
        tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}

struct Ids(Dice);

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&self.0.roll()[..8])
    }

    fn cid_len(&self) -> usize {
        8
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Streams of each kind that a peer may have open.
const PEER_STREAMS: u32 = 4;
/// Bytes of one stream that may be under way; 4 MiB pass in 1.6 s at 100 ms round trip.
const STREAM_WINDOW: u32 = 256 << 10;
/// QUIC's minimum; every path carries it.
const MTU: u16 = 1200;
/// Datagrams that wait in either direction, in bytes.
pub(super) const DATAGRAM_BUFFER: usize = 64 << 10;
const RECEIVE_BUFFER: usize = 4 << 20;
