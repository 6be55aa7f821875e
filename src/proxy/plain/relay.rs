//! An answer on its way to the client: head and what has come of the body in one write, the rest as it comes.
//!
//! What the client takes at once is written from where it was read. Nothing more is read from the instance before that is written.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{io::AsyncWrite, net::TcpStream};

use super::{
    super::io::{Socket, Wire},
    buffer::Buffer,
    chunks::{Chunks, LAST, add_chunk},
    response::{Facts, Framing},
    timer::Timer,
};
use crate::{telemetry::Clock, types::Mono};

/// How passing on ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relayed {
    /// The client has all of it.
    Whole,
    /// The instance broke off.
    Cut,
    /// The instance sent nothing for too long.
    Silent,
    /// The client went away.
    ClientGone,
}

enum Body {
    None,
    Length(u64),
    Chunks(Chunks),
    Close,
}

/// An answer on its way.
pub(super) struct Relay<'a> {
    client: &'a mut Socket,
    wire: &'a Wire,
    clock: Clock,
    /// Head, and body in chunks, to be written; and how much of it was.
    out: &'a mut Vec<u8>,
    written: usize,
    buffer: Option<Buffer>,
    /// Bytes of the buffer to be written as they are.
    at: usize,
    to: usize,
    body: Body,
    /// All of the body has come.
    ended: bool,
    /// What came is no body.
    cut: bool,
    /// More came than the answer has.
    pub(super) beyond: bool,
    /// Bytes of the body.
    pub(super) bytes: u64,
    silence: Duration,
    since: Mono,
}

impl<'a> Relay<'a> {
    /// `out` is the head for the client, `buffer` the instance's with what came behind it by `since`.
    pub(super) fn new(
        client: &'a mut Socket,
        wire: &'a Wire,
        clock: Clock,
        out: &'a mut Vec<u8>,
        buffer: Buffer,
        (facts, since): (Facts, Mono),
        silence: Duration,
    ) -> Self {
        let body = match facts.framing {
            Framing::None => Body::None,
            Framing::Length(length) => Body::Length(length),
            Framing::Chunked => Body::Chunks(Chunks::new()),
            Framing::Close => Body::Close,
        };
        let at = facts.size;
        let ended = matches!(body, Body::None | Body::Length(0));
        let mut relay = Self {
            client,
            wire,
            clock,
            out,
            written: 0,
            buffer: Some(buffer),
            at,
            to: at,
            body,
            ended,
            cut: false,
            beyond: false,
            bytes: 0,
            silence,
            since,
        };
        relay.take_in();
        relay
    }

    /// Reads and writes until the answer has ended, one way or another.
    pub(super) fn poll(&mut self, instance: &mut TcpStream, timer: &mut Timer, cx: &mut Context<'_>) -> Poll<Relayed> {
        loop {
            match self.poll_write(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Relayed::ClientGone),
                Poll::Pending => return Poll::Pending,
            }
            if self.cut {
                return Poll::Ready(Relayed::Cut);
            }
            if self.ended {
                return Poll::Ready(Relayed::Whole);
            }
            match self.poll_read(instance, cx) {
                Poll::Ready(Ok(0)) => self.cut = !self.end(),
                Poll::Ready(Ok(_)) => {
                    self.since = self.clock.mono();
                    self.take_in();
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Relayed::Cut),
                Poll::Pending => {
                    ready!(timer.poll(self.since + self.silence, cx));
                    return Poll::Ready(Relayed::Silent);
                }
            }
        }
    }

    /// Decides what becomes of the bytes in the buffer that were not looked at yet.
    fn take_in(&mut self) {
        let Some(buffer) = &self.buffer else { return };
        let new = &buffer[self.to..];
        if new.is_empty() {
            return;
        }
        let taken = match &mut self.body {
            Body::None => 0,
            Body::Length(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(new.len());
                *left -= taken as u64;
                self.ended = *left == 0;
                self.bytes += taken as u64;
                self.to += taken;
                taken
            }
            Body::Chunks(chunks) => {
                let (out, bytes) = (&mut *self.out, &mut self.bytes);
                let taken = chunks.take(new, |data| {
                    *bytes += data.len() as u64;
                    add_chunk(out, data);
                });
                self.cut = taken.is_err();
                if chunks.ended() {
                    self.out.extend_from_slice(LAST);
                    self.ended = true;
                }
                taken.unwrap_or(0)
            }
            Body::Close => {
                self.bytes += new.len() as u64;
                add_chunk(self.out, new);
                new.len()
            }
        };
        self.beyond |= taken < new.len();
        if self.at == self.to {
            // All of it is in `out`, or nobody's.
            (self.at, self.to) = (0, 0);
            if let Some(buffer) = &mut self.buffer {
                buffer.clear();
            }
        }
    }

    /// The instance has closed: whether that is the end of the body.
    fn end(&mut self) -> bool {
        self.ended = matches!(self.body, Body::Close);
        if self.ended {
            self.out.extend_from_slice(LAST);
        }
        self.ended
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let direct = self.buffer.as_ref().map_or(&[][..], |buffer| &buffer[self.at..self.to]);
            let first = &self.out[self.written..];
            let parts = [IoSlice::new(first), IoSlice::new(direct)];
            let parts = match (first.is_empty(), direct.is_empty()) {
                (true, true) => break,
                (true, false) => &parts[1..],
                (false, true) => &parts[..1],
                (false, false) => &parts[..],
            };
            match Pin::new(&mut *self.client).poll_write_vectored(cx, parts) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => {
                    let of_out = count.min(first.len());
                    self.written += of_out;
                    self.at += count - of_out;
                    self.wire.blocked.set(None);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    if self.wire.blocked.get().is_none() {
                        self.wire.blocked.set(Some(self.clock.mono()));
                    }
                    self.hold_little();
                    return Poll::Pending;
                }
            }
        }
        self.out.clear();
        self.written = 0;
        if let Some(buffer) = &mut self.buffer {
            buffer.clear();
        }
        (self.at, self.to) = (0, 0);
        Poll::Ready(Ok(()))
    }

    /// The client does not take bytes: what little is left is held without the large buffer.
    fn hold_little(&mut self) {
        if let Some(buffer) = self.buffer.as_ref().filter(|_| self.to - self.at <= LITTLE) {
            self.out.drain(..self.written);
            self.written = 0;
            self.out.extend_from_slice(&buffer[self.at..self.to]);
            (self.at, self.to, self.buffer) = (0, 0, None);
        }
    }

    fn poll_read(&mut self, instance: &mut TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let buffer = match &mut self.buffer {
            Some(buffer) => buffer,
            none => {
                ready!(instance.poll_read_ready(cx))?;
                none.insert(Buffer::take())
            }
        };
        let read = buffer.poll_read(instance, cx);
        if read.is_pending() {
            self.buffer = None;
        }
        read
    }
}

/// What is held for a client that does not take it is copied when it is at most this.
const LITTLE: usize = 48 * 1024;
