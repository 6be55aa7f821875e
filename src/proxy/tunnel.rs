//! Connections that have stopped being HTTP: after an `Upgrade` (RFC 9110 7.8) or a `CONNECT` (9.3.6), and on TCP ports.
//!
//! Bytes go both ways as they come, each end's "no more from me" is passed on by itself (half-close), and a reset on one side is
//! a reset on the other. No byte is lost: what either side sent right behind its head goes first, and bytes already taken are
//! delivered before an end is. A tunnel counts as a request in flight at its instance and in this sidecar until it ends, so
//! that a shutdown waits for it (up to its limit) and then closes it.
//!
//! An idle tunnel holds no buffer: all tunnels of a thread read through one, and only what the receiver does not take at once is
//! copied. Nothing inside a tunnel is looked at; another instance can take over only before it.

use std::{
    cell::{Cell, RefCell},
    io::{self, ErrorKind},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::sleep_until;

use super::{client::Client, flight::Flight, io::Socket};
use crate::{routing::InFlight, telemetry::Clock, types::Mono};

/// What a client connection becomes once its response is written.
pub(super) struct Tunnel {
    /// The request that asked for it; ends with the tunnel.
    pub(super) flight: Box<Flight>,
    /// The connection to the instance.
    pub(super) instance: Socket,
    /// What the instance sent right behind its answer.
    pub(super) early: Bytes,
    /// Counts it as in flight at the instance.
    pub(super) in_flight: InFlight,
}

impl Tunnel {
    /// Carries bytes until both sides have finished, one has broken off, nothing moves any more, or the sidecar stops. `early`
    /// is what the client sent right behind its request.
    pub(super) async fn carry(self, client: &Client, early: Bytes) {
        let Self { mut flight, instance, early: answer, in_flight } = self;
        let worker = flight.worker.clone();
        worker.metrics.tunnels.inc();
        let timeouts = &worker.config.timeouts;
        let ends = Ends {
            client: client.socket(),
            instance: &instance,
            broken: [Cell::new(false), Cell::new(false)],
            finished: Cell::new(false),
            moved: Cell::new(worker.clock.mono()),
            clock: worker.clock,
            to_client: Cell::new(0),
        };
        let both = async { tokio::try_join!(ends.pump(Side::Client, early), ends.pump(Side::Instance, answer)) };
        let error = tokio::select! {
            ended = both => match ended {
                Ok(_) => None,
                Err(Side::Client) => Some("client_aborted"),
                Err(Side::Instance) => Some("upstream_reset"),
            },
            () = ends.quiet(timeouts.tunnel_idle, timeouts.idle) => Some("tunnel_idle"),
            () = client.told_to_end() => {
                if client.cut_off() { Some("client_aborted") } else { Some("shutdown") }
            }
        };
        if let Some("client_aborted" | "upstream_reset") = error {
            // Whoever is left must not take a broken stream for a whole one.
            instance.reset_on_close();
            client.socket().reset_on_close();
        }
        flight.bytes += ends.to_client.get();
        flight.error = error;
        worker.metrics.tunnels.dec();
        drop(in_flight);
    }
}

/// The two ends of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Client = 0,
    Instance = 1,
}

/// The state that both directions share.
struct Ends<'a> {
    client: &'a Socket,
    instance: &'a Socket,
    /// By [`Side`]: it refused bytes, so that an end of its own is not an orderly one.
    broken: [Cell<bool>; 2],
    /// One direction has ended in order.
    finished: Cell<bool>,
    /// When bytes moved last.
    moved: Cell<Mono>,
    clock: Clock,
    to_client: Cell<u64>,
}

/// What one look at a socket brought.
enum Shift {
    /// So many bytes went straight through.
    Through(usize),
    /// So many came, and these the other side did not take yet.
    Rest(usize, Vec<u8>),
    /// As many came, and the other side takes no more.
    Refused(usize),
    /// The sender has finished.
    End,
    /// There was nothing to read after all.
    Nothing,
}

impl Ends<'_> {
    /// Moves bytes from one side to the other until it has finished; an error names the side that broke off.
    async fn pump(&self, from: Side, early: Bytes) -> Result<(), Side> {
        let (source, target, to) = match from {
            Side::Client => (self.client, self.instance, Side::Instance),
            Side::Instance => (self.instance, self.client, Side::Client),
        };
        self.note(to, early.len());
        self.send(target, to, &early).await;
        loop {
            source.readable().await.map_err(|_| from)?;
            match shift(source, target, self.broken[to as usize].get()).map_err(|_| from)? {
                Shift::Through(count) => self.note(to, count),
                Shift::Rest(count, rest) => {
                    self.note(to, count);
                    self.send(target, to, &rest).await;
                }
                Shift::Refused(count) => {
                    self.note(to, count);
                    self.broken[to as usize].set(true);
                }
                // Linux tells of a reset once: if the write heard of it, the read sees a mere end.
                Shift::End if self.broken[from as usize].get() => return Err(from),
                Shift::End => break,
                Shift::Nothing => {}
            }
        }
        target.finish();
        self.finished.set(true);
        Ok(())
    }

    /// Delivers bytes that were taken. A side that refuses them is only noted: what it sent before is still to be read.
    async fn send(&self, target: &Socket, to: Side, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.broken[to as usize].get() {
            let sent = match target.writable().await {
                Ok(()) => target.try_write(bytes),
                Err(error) => Err(error),
            };
            match sent {
                Ok(count) => {
                    bytes = &bytes[count..];
                    self.moved.set(self.clock.mono());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.broken[to as usize].set(true),
            }
        }
    }

    fn note(&self, to: Side, count: usize) {
        self.moved.set(self.clock.mono());
        if to == Side::Client {
            self.to_client.set(self.to_client.get() + count as u64);
        }
    }

    /// Returns when nothing has moved for `limit`, or, once one side has finished, for `half_closed` where that is shorter.
    async fn quiet(&self, limit: Duration, half_closed: Duration) {
        loop {
            let limit = if self.finished.get() { limit.min(half_closed) } else { limit };
            let end = self.moved.get() + limit;
            if self.clock.mono() >= end {
                return;
            }
            // Looked at often enough that one side's finishing shortens the wait.
            let next = end.min(self.clock.mono() + half_closed);
            sleep_until(self.clock.instant(next).into()).await;
        }
    }
}

/// Reads once and writes once. `discard`: the other side takes nothing any more, and the bytes go nowhere.
fn shift(source: &Socket, target: &Socket, discard: bool) -> io::Result<Shift> {
    SCRATCH.with_borrow_mut(|buffer| {
        buffer.resize(SCRATCH_BYTES, 0);
        let count = match source.try_read(buffer) {
            Ok(0) => return Ok(Shift::End),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Shift::Nothing),
            Err(error) => return Err(error),
        };
        if discard {
            return Ok(Shift::Refused(count));
        }
        let sent = match target.try_write(&buffer[..count]) {
            Ok(sent) => sent,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(_) => return Ok(Shift::Refused(count)),
        };
        if sent == count { Ok(Shift::Through(count)) } else { Ok(Shift::Rest(count, buffer[sent..count].to_vec())) }
    })
}

/// Bytes that are read at once.
const SCRATCH_BYTES: usize = 64 * 1024;

thread_local! {
    /// One buffer for all tunnels of a data thread.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}
