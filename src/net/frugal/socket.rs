//! A UDP socket that is listened to for what comes in.
//!
//! A socket that is listened to for both directions wakes its process after each packet that has left it. Room to write is
//! missing only when a burst has filled the buffer: whoever meets that listens for it then, with a second descriptor of the
//! same socket, for as long as it lasts.

use std::{
    future::Future,
    io::{self, ErrorKind::WouldBlock, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, ready},
};

use quinn::{
    AsyncUdpSocket, UdpPoller,
    udp::{RecvMeta, Transmit, UdpSocketState},
};
use tokio::io::{Interest, unix::AsyncFd};

/// The socket.
#[derive(Debug)]
pub(super) struct Socket {
    io: AsyncFd<UdpSocket>,
    state: UdpSocketState,
    /// There was no room to write, and nobody has seen any since.
    full: AtomicBool,
}

impl Socket {
    /// Takes over a socket that does not block.
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self { io: listen(socket, Interest::READABLE)?, state, full: AtomicBool::new(false) })
    }

    /// Waits until there is room.
    async fn room(self: Arc<Self>) -> io::Result<()> {
        let second = listen(self.io.get_ref().try_clone()?, Interest::WRITABLE)?;
        drop(second.writable().await?);
        self.full.store(false, SeqCst);
        Ok(())
    }
}

fn listen(socket: UdpSocket, interest: Interest) -> io::Result<AsyncFd<UdpSocket>> {
    // SAFETY: the standard library's sockets own one descriptor, the same for all their life.
    Ok(unsafe { AsyncFd::register_with_interest(socket, interest) }?)
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Room { socket: self, waits: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let sent = self.state.send(self.io.get_ref().into(), transmit);
        if sent.as_ref().is_err_and(|error| error.kind() == WouldBlock) {
            self.full.store(true, SeqCst);
        }
        sent
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.io.poll_read_ready(cx))?;
            match self.state.recv(self.io.get_ref().into(), buffers, meta) {
                Ok(count) => {
                    // Fewer than there was room for: that was all. What comes from now on is reported anew.
                    if count < buffers.len() {
                        guard.clear_ready();
                    }
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == WouldBlock => guard.clear_ready(),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.get_ref().local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

/// What one connection waits with.
struct Room {
    socket: Arc<Socket>,
    waits: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>>,
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room").field("waits", &self.waits.is_some()).finish_non_exhaustive()
    }
}

impl UdpPoller for Room {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.socket.full.load(SeqCst) {
            this.waits = None;
            return Poll::Ready(Ok(()));
        }
        let waits = this.waits.get_or_insert_with(|| Box::pin(this.socket.clone().room()));
        let room = ready!(waits.as_mut().poll(cx));
        this.waits = None;
        Poll::Ready(room)
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use super::*;

    fn socket() -> Arc<Socket> {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        Arc::new(Socket::new(socket).unwrap())
    }

    fn packet(to: SocketAddr, contents: &[u8]) -> Transmit<'_> {
        Transmit { destination: to, ecn: None, contents, segment_size: None, src_ip: None }
    }

    async fn receive(socket: &Socket, room: usize) -> Vec<Vec<u8>> {
        let mut buffers = vec![[0; 64]; room];
        let mut meta = vec![RecvMeta::default(); room];
        let count = poll_fn(|cx| {
            let mut slices: Vec<IoSliceMut<'_>> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
            socket.poll_recv(cx, &mut slices, &mut meta)
        });
        let count = tokio::time::timeout(Duration::from_secs(10), count).await.expect("in time").unwrap();
        (0..count).map(|at| buffers[at][..meta[at].len].to_vec()).collect()
    }

    #[tokio::test]
    async fn whatever_comes_in_is_read_also_right_after_the_last_of_before() {
        let (a, b) = (socket(), socket());
        let to = b.local_addr().unwrap();
        for round in 0..200_u8 {
            for part in 0..3 {
                a.try_send(&packet(to, &[round, part])).unwrap();
            }
            let mut got = Vec::new();
            while got.len() < 3 {
                got.extend(receive(&b, if round % 2 == 0 { 2 } else { 8 }).await);
            }
            assert_eq!(got, [[round, 0], [round, 1], [round, 2]]);
        }
    }

    #[tokio::test]
    async fn who_finds_no_room_waits_until_there_is_some() {
        let a = socket();
        let mut room = a.clone().create_io_poller();
        poll_fn(|cx| room.as_mut().poll_writable(cx)).await.unwrap();
        // As after a send that found the buffer full, which loopback empties at once.
        a.full.store(true, SeqCst);
        let waited = poll_fn(|cx| room.as_mut().poll_writable(cx));
        tokio::time::timeout(Duration::from_secs(10), waited).await.expect("in time").unwrap();
        assert!(!a.full.load(SeqCst));
        a.try_send(&packet(a.local_addr().unwrap(), b"x")).unwrap();
        assert_eq!(receive(&a, 4).await, [b"x"]);
    }
}
