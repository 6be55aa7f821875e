//! The UDP probe: one byte from a connected socket tells within a millisecond whether a port refuses.
//!
//! A QUIC socket is not connected and never hears of ICMP refusals, so this needs a socket of its own. A refusal is no
//! proof of death (a firewall's reject looks the same), and silence is none of life. ICMP answers are limited to about six,
//! then one a second, per asking address: the first byte counts, two more follow in case it was lost.

use std::{future::Future, io, net::SocketAddr, pin::Pin, time::Duration};

use tokio::{net::UdpSocket, time::timeout};

/// How ports are probed; the simulator has its own.
pub trait RefusalProbe: Send + Sync {
    /// Whether the port says that nobody listens there; `false` as well when nothing is heard in time.
    fn refused(&self, addr: SocketAddr) -> Pin<Box<dyn Future<Output = bool> + Send + '_>>;
}

/// The operating system's sockets.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemProbe;

impl RefusalProbe for SystemProbe {
    fn refused(&self, addr: SocketAddr) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        // Out of sockets, or no route: nothing is known then, which is what `false` says.
        Box::pin(async move { probe(addr).await.unwrap_or(false) })
    }
}

async fn probe(addr: SocketAddr) -> io::Result<bool> {
    let any: SocketAddr =
        if addr.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { (std::net::Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(addr).await?;
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    for _ in 0..BYTES {
        // Also reports the refusal of an earlier byte.
        if let Err(error) = socket.send(&[0]).await {
            return Ok(refused(error));
        }
        match timeout(WAIT, socket.recv(&mut [0; 16])).await {
            Ok(Err(error)) => return Ok(refused(error)),
            // Something answers.
            Ok(Ok(_)) => return Ok(false),
            Err(_) => {}
        }
    }
    Ok(false)
}

const BYTES: usize = 3;
const WAIT: Duration = Duration::from_millis(100);
