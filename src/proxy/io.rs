//! Sockets as hyper sees them: shared inside one thread, so that others can look at a socket that hyper holds.
//!
//! Needed twice: before a pooled connection carries a request that must not be repeated, its socket is asked whether the
//! other end has closed (hyper only knows what the last poll saw); and a client's bytes pass the [`Follower`].

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    io::{self, IoSlice},
    mem::MaybeUninit,
    net::Shutdown,
    os::fd::AsFd,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::{
    Reason,
    detect::{Opening, Rewound},
    forward::Refusal,
    framing::Follower,
};
use crate::{telemetry::Clock, types::Mono};

/// A socket that hyper holds and others may look at, on one thread.
#[derive(Debug, Clone)]
pub(super) struct Socket(Rc<RefCell<TcpStream>>);

impl Socket {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self(Rc::new(RefCell::new(stream)))
    }

    /// Whether the other end has closed, reset, or sent something unasked. One system call.
    pub(super) fn spent(&self) -> bool {
        spent(&self.0.borrow())
    }

    /// Whether the other end has closed or reset, and sent nothing before that is still unread. One system call.
    pub(super) fn closed(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        match SockRef::from(&*self.0.borrow()).peek(&mut byte) {
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            Ok(length) => length == 0,
        }
    }

    /// Whether the other end has closed or reset, be it behind bytes that nobody has read yet. One system call.
    pub(super) fn ended(&self) -> bool {
        let socket = self.0.borrow();
        // nix has no name for it.
        const POLLRDHUP: PollFlags = PollFlags::from_bits_retain(0x2000);
        poll(&mut [PollFd::new(socket.as_fd(), POLLRDHUP)], PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Whether the other end has reset the connection (a mere end of its sending does not count).
    pub(super) fn reset(&self) -> bool {
        matches!(SockRef::from(&*self.0.borrow()).take_error(), Ok(Some(_)) | Err(_))
    }

    /// Waits until there is something to read, an end or an error.
    pub(super) async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_readable(cx)).await
    }

    /// Ready when there is something to read, an end or an error.
    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow().poll_read_ready(cx)
    }

    /// Waits until there are bytes (a positive number), an end (0) or an error, and leaves them where they are.
    pub(super) async fn peek(&self) -> io::Result<usize> {
        poll_fn(|cx| {
            let mut byte = [MaybeUninit::uninit()];
            self.0.borrow().poll_peek(cx, &mut ReadBuf::uninit(&mut byte))
        })
        .await
    }

    /// Waits until something can be written, or an error.
    pub(super) async fn writable(&self) -> io::Result<()> {
        poll_fn(|cx| self.0.borrow().poll_write_ready(cx)).await
    }

    /// Reads what is there; `WouldBlock` when that is nothing.
    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.borrow().try_read(buffer)
    }

    /// Writes what fits; `WouldBlock` when that is nothing.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow().try_write(bytes)
    }

    /// Tells the other end that nothing more comes from here.
    pub(super) fn finish(&self) {
        // It fails only when the connection is gone, and then there is nobody to tell.
        let _ = SockRef::from(&*self.0.borrow()).shutdown(Shutdown::Write);
    }

    /// Makes closing a reset: the other end must not take what it got for all of it.
    pub(super) fn reset_on_close(&self) {
        // It fails only when the connection is gone.
        let _ = SockRef::from(&*self.0.borrow()).set_linger(Some(Duration::ZERO));
    }

    /// Reads to the end, and keeps nothing of it.
    pub(super) async fn discard(&self) {
        let mut buffer = vec![0; 16 * 1024];
        while self.readable().await.is_ok() {
            match self.try_read(&mut buffer) {
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => return,
            }
        }
    }

    /// Writes what fits, for last words on a connection that is closed next.
    pub(super) fn last_words(&self, text: &str) {
        // Nothing is owed to a client that does not take them.
        let _ = self.0.borrow().try_write(text.as_bytes());
    }
}

/// Whether the other end has closed, reset, or sent something unasked. One system call.
pub(super) fn spent(stream: &TcpStream) -> bool {
    let mut byte = [MaybeUninit::uninit()];
    match SockRef::from(stream).peek(&mut byte) {
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        Ok(_) => true,
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.borrow().is_write_vectored()
    }
}

/// Most headers of an HTTP/1.1 answer.
pub(super) const MAX_RESPONSE_HEADERS: usize = 256;

/// An instance's socket. What it takes no more is let go instead of being an error: it may have answered before it closed, as to
/// an upload that is too large (RFC 9112 9.5), and hyper would throw that answer away. Reading says how it ended: the answer first, then
/// the end or the error.
#[derive(Debug)]
pub(super) struct InstanceIo {
    socket: Socket,
    /// It takes nothing more.
    gone: bool,
}

impl InstanceIo {
    pub(super) fn new(socket: Socket) -> Self {
        Self { socket, gone: false }
    }

    fn written(&mut self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match polled {
            Poll::Ready(Err(error)) if is_closed(&error) => {
                self.gone = true;
                // Nobody is woken for this: the reading side is ready as well.
                Poll::Pending
            }
            polled => polled,
        }
    }
}

/// The other end has closed and takes nothing more.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

impl AsyncRead for InstanceIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl AsyncWrite for InstanceIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.gone {
            return Poll::Pending;
        }
        let polled = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.written(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.gone {
            return Poll::Pending;
        }
        let polled = Pin::new(&mut self.socket).poll_write_vectored(cx, bytes);
        self.written(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

/// What is known of a client connection from its bytes.
#[derive(Debug)]
pub(super) struct Wire {
    /// Whether it is HTTP/2.
    pub(super) opening: Opening,
    pub(super) follower: RefCell<Follower>,
    /// Whether a head has begun and not ended, while nothing but plain requests came.
    pub(super) plain_head: Cell<bool>,
    /// When the present head began, or the last bytes came.
    pub(super) since: Cell<Mono>,
    /// Since when the client takes no bytes, if it does not.
    pub(super) blocked: Cell<Option<Mono>>,
    /// Whether the last response handed to hyper was a 400 and is not on the wire yet: then the next one there is not hyper's own.
    pub(super) answered_400: Cell<bool>,
}

impl Wire {
    /// Why hyper could not make a request of what came.
    pub(super) fn unparsed(&self) -> Refusal {
        let follower = self.follower.borrow();
        let syntax = || Refusal { reason: Reason::BadSyntax, detail: follower.oddity().unwrap_or_default().to_owned() };
        // Some of what is framed twice hyper refuses by itself.
        follower.fault(u64::MAX).map_or_else(syntax, Refusal::from)
    }

    /// Whether a head (or the preface of HTTP/2) has begun and not ended.
    pub(super) fn in_head(&self) -> bool {
        self.plain_head.get() || self.follower.borrow().in_head() || self.opening.under_way()
    }
}

/// A client's socket: every byte read passes the follower.
#[derive(Debug)]
pub(super) struct ClientIo {
    pub(super) socket: Rewound<Socket>,
    pub(super) wire: Rc<Wire>,
    pub(super) clock: Clock,
}

impl AsyncRead for ClientIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let me = &mut *self;
        if me.wire.opening.passed() {
            if me.wire.follower.borrow().stuck().is_some() {
                return Poll::Ready(Err(beyond()));
            }
            ready!(Pin::new(&mut me.socket).poll_read(cx, buf))?;
        } else {
            ready!(me.wire.opening.poll_read(&mut me.socket, cx, buf))?;
        }
        let mut follower = self.wire.follower.borrow_mut();
        // A head's time runs from its first byte, so later bytes of it don't move the mark.
        if !follower.in_head() {
            self.wire.since.set(self.clock.mono());
        }
        let count = buf.filled().len() - before;
        let passed = follower.feed(&buf.filled()[before..]);
        buf.set_filled(before + passed);
        if passed == 0 && count > 0 {
            return Poll::Ready(Err(beyond()));
        }
        Poll::Ready(Ok(()))
    }
}

/// hyper has all that comes before a head beyond the limits, and asks for more of that head: an error ends it without an answer
/// of its own.
fn beyond() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

impl ClientIo {
    fn note(&self, blocked: bool) {
        match (blocked, self.wire.blocked.get()) {
            (true, None) => self.wire.blocked.set(Some(self.clock.mono())),
            (false, Some(_)) => self.wire.blocked.set(None),
            _ => {}
        }
    }
}

impl ClientIo {
    /// hyper answers what it cannot parse by itself, without a word of why, and closes. This is written in its place.
    fn explained(&self, bytes: &[u8]) -> bool {
        let bare =
            bytes.starts_with(b"HTTP/1.1 400 Bad Request\r\n") && bytes.len() < BARE && bytes.ends_with(b"\r\n\r\n");
        if bytes.starts_with(b"HTTP/1.1 400 ") && self.wire.answered_400.replace(false) {
            return false;
        }
        if bare {
            let Refusal { reason, detail } = self.wire.unparsed();
            self.socket.inner().last_words(&reason.last_words(&detail));
        }
        bare
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.explained(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.note(written.is_pending());
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.wire.opening.is_http2() || self.wire.follower.borrow().stuck().is_some() {
            // Only the HTTP/1.1 side of it ends; or the answer is still to come.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [first, rest @ ..] = bytes
            && self.explained(first)
        {
            // hyper's own has no body.
            return Poll::Ready(Ok(first.len() + rest.iter().map(|part| part.len()).sum::<usize>()));
        }
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bytes);
        self.note(written.is_pending());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

/// hyper's own answers are shorter than this.
const BARE: usize = 200;
