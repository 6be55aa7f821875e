//! The event log: a hash over everything that happens, and lines for people who want to read it.

use std::{
    io::Write,
    net::{IpAddr, SocketAddr},
};

use lanemesh::{node::Input, routing::Outcome};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::queue::{Event, MILLI, SECOND, Time};

/// The log of one run.
#[derive(Default)]
pub struct Log {
    hash: Xxh3,
    out: Option<Box<dyn Write>>,
    everything: bool,
    /// Whether a line could not be written: the disk is full, say. The run goes on.
    pub broken: bool,
}

impl Log {
    /// Only the hash.
    pub fn quiet() -> Self {
        Self::default()
    }

    /// Lines go there; with `everything` also one for each event.
    pub fn to(out: Box<dyn Write>, everything: bool) -> Self {
        Self { out: Some(out), everything, ..Self::default() }
    }

    /// An event happens.
    pub fn stamp(&mut self, at: Time, event: &Event) {
        let mut parts = [at, 0, 0, 0];
        let [_, kind, who, what] = &mut parts;
        (*kind, *who, *what) = match event {
            Event::Wake(run) => (1, u64::from(run.host), 0),
            Event::Envelope { to, from, bytes, .. } => (2, pair(*from, to.host), xxh3_64(bytes)),
            Event::SyncAsked { to, sync, bytes } => (3, u64::from(to.host), xxh3_64(bytes) ^ sync),
            Event::SyncEnded { to, token, result } => {
                let bytes = result.as_ref().map_or(0, |(_, bytes)| xxh3_64(bytes));
                (4, u64::from(to.host), bytes ^ token)
            }
            Event::Refused { to, token } => (5, u64::from(to.host), *token),
            Event::Seeds(run) => (6, u64::from(run.host), 0),
            Event::Check { at, app } => (7, u64::from(at.host), u64::from(*app)),
            Event::Listen { at, app, start } => (8, pair(at.host, u32::from(*app)), u64::from(*start)),
            Event::Client(run) => (9, u64::from(run.host), 0),
            Event::Flight(flight) => (10, u64::from(*flight), 0),
            Event::Tried { flight, outcome, status } => (11, pair(*flight, u32::from(*status)), kind_of(*outcome)),
            Event::Resume(run) => (12, pair(run.host, run.epoch), 0),
            Event::Starve { at, fault } => (13, pair(at.host, at.epoch), u64::from(*fault)),
            Event::Begin(step) => (14, u64::from(*step), 0),
            Event::End(step) => (15, u64::from(*step), 0),
            Event::Part { step, part } => (16, pair(*step, *part), 0),
            Event::Sample => (17, 0, 0),
            Event::Packet(packet) => {
                let ports = u64::from(packet.from.port()) << 16 | u64::from(packet.to.port());
                (18, xxh3_64(&packet.bytes), ip(packet.from) << 32 | ip(packet.to) ^ ports << 8)
            }
            Event::Due => (19, 0, 0),
            Event::Free(run) => (20, pair(run.host, run.epoch), 0),
            Event::Gone(run) => (21, pair(run.host, run.epoch), 0),
            Event::Waited { flight, outcome, end, .. } => (23, u64::from(*flight) ^ kind_of(*outcome), *end),
            Event::Tell(run) => (22, pair(run.host, run.epoch), 0),
        };
        let mut bytes = [0; 32];
        for (place, part) in bytes.chunks_exact_mut(8).zip(parts) {
            place.copy_from_slice(&part.to_le_bytes());
        }
        self.hash.update(&bytes);
        if self.everything {
            let line = match event {
                Event::Envelope { to, from, bytes, .. } => {
                    format!("envelope {from} -> {} of {} bytes {:016x}", to.host, bytes.len(), parts[3])
                }
                Event::SyncAsked { to, bytes, .. } => format!("sync asked of {} with {} bytes", to.host, bytes.len()),
                Event::SyncEnded { to, token, result } => {
                    let result = result.as_ref().map(|(by, bytes)| (by, bytes.len()));
                    format!("sync {token} of {} ended: {result:?}", to.host)
                }
                Event::Packet(packet) => {
                    let what = if packet.refusal { "refusal" } else { "packet" };
                    format!("{what} {} -> {} of {} bytes {:016x}", packet.from, packet.to, packet.bytes.len(), parts[2])
                }
                Event::Due => return,
                other => format!("{other:?}"),
            };
            self.line(at, &line);
        }
    }

    /// A node hears something from its endpoint (level 2). Its packets are in the hash already; this is for people.
    pub fn input(&mut self, at: Time, host: u32, input: &Input) {
        if self.everything {
            let text = match input {
                Input::Envelope { from, bytes, .. } => format!("envelope {from} -> {host} of {} bytes", bytes.len()),
                Input::SyncRequest { from, bytes, .. } => {
                    format!("sync asked of {host} by {from} with {} bytes", bytes.len())
                }
                Input::SyncEnded { token, result } => {
                    let result = result.as_ref().map(|(by, bytes)| (by.as_str(), bytes.len()));
                    format!("sync {token} of {host} ended: {result:?}")
                }
                other => format!("{host} {other:?}"),
            };
            self.line(at, &text);
        }
    }

    /// Something worth a line.
    pub fn note(&mut self, at: Time, text: impl FnOnce() -> String) {
        if self.out.is_some() {
            self.line(at, &text());
        }
    }

    fn line(&mut self, at: Time, text: &str) {
        let (seconds, rest) = (at / SECOND, at % SECOND);
        if let Some(out) = &mut self.out {
            self.broken |= writeln!(out, "{seconds:>5}.{:03} {text}", rest / MILLI).is_err();
        }
    }

    /// Hash of everything so far.
    pub fn hash(&self) -> u64 {
        self.hash.digest()
    }
}

/// An address' last four bytes.
fn ip(addr: SocketAddr) -> u64 {
    match addr.ip() {
        IpAddr::V4(ip) => u64::from(u32::from(ip)),
        IpAddr::V6(ip) => u64::from(u128::from(ip) as u32),
    }
}

fn pair(a: u32, b: u32) -> u64 {
    u64::from(a) << 32 | u64::from(b)
}

/// The kind of an outcome; its status is written beside it.
fn kind_of(outcome: Outcome) -> u64 {
    match outcome {
        Outcome::ConnectFailed => 0,
        Outcome::StaleConnection => 1,
        Outcome::Reset => 2,
        Outcome::Timeout => 3,
        Outcome::RetryableStatus(_) => 4,
        Outcome::Answered(_) => 5,
        Outcome::Full => 6,
        Outcome::Called(_) => 7,
        Outcome::MaybeStale => 8,
    }
}
