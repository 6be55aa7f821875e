//! Tells HTTP/2 from HTTP/1.1 on one port, by the connection preface (RFC 9113 3.4).
//!
//! A connection begins as HTTP/1.1, as it always did. The bytes of its first read are compared with the preface; what differs
//! goes on to the HTTP/1.1 parser where it lies, so that HTTP/1.1 pays one comparison per connection. What agrees is held back,
//! however slowly it comes, until it differs or the preface is whole; then the connection is served as HTTP/2, from these bytes on.
//!
//! Not here: `Upgrade: h2c` (RFC 9113 3.1 made it obsolete; such a request is answered over HTTP/1.1) and ALPN, which needs TLS.

use std::{
    cell::{Cell, RefCell},
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};

/// What every HTTP/2 client sends first.
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How a connection begins.
#[derive(Debug, Default)]
pub(super) struct Opening {
    state: Cell<State>,
    /// Bytes that agree with the preface so far; once it is whole, with all that was read behind it.
    held: RefCell<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// All bytes so far agree with the preface.
    #[default]
    Open,
    /// HTTP/1.1, or nothing known.
    Other,
    /// The preface was whole.
    Http2,
}

impl Opening {
    /// Whether it is decided that this is not HTTP/2; asked at every read.
    pub(super) fn passed(&self) -> bool {
        self.state.get() == State::Other
    }

    /// Whether it has begun to look like HTTP/2 and is not decided.
    pub(super) fn under_way(&self) -> bool {
        self.state.get() == State::Open && !self.held.borrow().is_empty()
    }

    /// Whether the preface came whole, and nobody has taken the connection on yet.
    pub(super) fn is_http2(&self) -> bool {
        self.state.get() == State::Http2
    }

    /// The bytes of an HTTP/2 connection, once; `None` when it is none.
    pub(super) fn take(&self) -> Option<Bytes> {
        self.is_http2().then(|| {
            self.skip();
            std::mem::take(&mut *self.held.borrow_mut()).into()
        })
    }

    /// It is known what this is.
    pub(super) fn skip(&self) {
        self.state.set(State::Other);
    }

    /// Reads until it is decided. Ready with bytes in `buf` for the HTTP/1.1 parser, or with an error, which ends it, when the
    /// preface is whole.
    pub(super) fn poll_read<I: AsyncRead + Unpin>(
        &self,
        socket: &mut I,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut held = self.held.borrow_mut();
        if held.is_empty() {
            let before = buf.filled().len();
            ready!(Pin::new(&mut *socket).poll_read(cx, buf))?;
            let read = &buf.filled()[before..];
            let common = read.len().min(PREFACE.len());
            if common == 0 || read[..common] != PREFACE[..common] {
                self.state.set(State::Other);
                return Poll::Ready(Ok(()));
            }
            held.extend_from_slice(read);
            buf.set_filled(before);
        }
        while held.len() < PREFACE.len() {
            let mut space = [MaybeUninit::uninit(); PREFACE.len()];
            let mut piece = ReadBuf::uninit(&mut space[held.len()..]);
            ready!(Pin::new(&mut *socket).poll_read(cx, &mut piece))?;
            let begin = held.len();
            held.extend_from_slice(piece.filled());
            if held.len() == begin || held[begin..] != PREFACE[begin..held.len()] {
                self.state.set(State::Other);
                buf.put_slice(&held);
                held.clear();
                return Poll::Ready(Ok(()));
            }
        }
        self.state.set(State::Http2);
        Poll::Ready(Err(io::Error::other("this is HTTP/2")))
    }
}

/// A stream whose first bytes were read before.
#[derive(Debug)]
pub(super) struct Rewound<I> {
    first: Bytes,
    inner: I,
}

impl<I> Rewound<I> {
    pub(super) fn new(first: Bytes, inner: I) -> Self {
        Self { first, inner }
    }

    /// The stream itself.
    pub(super) fn inner(&self) -> &I {
        &self.inner
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Rewound<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buf);
        }
        let n = self.first.len().min(buf.remaining());
        buf.put_slice(&self.first.split_to(n));
        Poll::Ready(Ok(()))
    }
}

impl<I: tokio::io::AsyncWrite + Unpin> tokio::io::AsyncWrite for Rewound<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
