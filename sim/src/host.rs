//! A simulated host: a sidecar's real [`Node`] with its disk and clock, and an application beside it.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use lanemesh::{
    node::{Node, Now, Stored},
    routing::{Bell, Builder, CandidateTable, Locality, Signals, Snapshot},
    types::{Mono, NodeId, Wall},
};

use crate::{
    app::App,
    cpu::Cpu,
    queue::{Event, Run, Time},
};

/// What is written down goes where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Disk {
    /// It is kept.
    #[default]
    Works,
    /// It is lost.
    Full,
    /// It stays as it was.
    Stale,
}

/// A state file.
#[derive(Debug, Clone)]
pub enum Written {
    /// As the sidecar wrote it. Encoding is left out: it is for the disk, and reading gives the same back.
    Whole(Box<Stored>),
    /// As bytes, since some of them are not what was written.
    Damaged(Bytes),
}

/// Why a host's sidecar does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Off {
    /// Not started yet.
    Never,
    /// Ended without a word; the machine refuses what comes to its port.
    Refused,
    /// Ended without a word, the machine with it.
    Silent,
    /// Said goodbye.
    Left,
    /// Ended by itself: another process has its name.
    NameTaken,
}

/// One host.
pub struct Host {
    /// Its index.
    pub index: u32,
    /// Its sidecar's name.
    pub id: NodeId,
    /// Where its sidecar is reached.
    pub addr: SocketAddr,
    /// The sidecar, while it runs.
    pub node: Option<Node>,
    /// Why it does not run.
    pub off: Option<Off>,
    /// Counts starts of the sidecar.
    pub epoch: u32,
    /// How many addresses it has had.
    pub moves: u8,
    /// What the last run wrote down.
    pub stored: Option<Written>,
    /// Where that goes.
    pub disk: Disk,
    /// Until when the process stands still.
    pub paused: Option<Time>,
    /// Whether its applications stand still with it.
    pub frozen: bool,
    /// Whether it is soon to end: it has said goodbye.
    pub leaving: bool,
    /// What came while it stood still.
    pub inbox: VecDeque<Event>,
    /// Whether it is of another mesh than the one that is looked at.
    pub foreign: bool,
    /// What its wall clock is off by, in milliseconds.
    pub clock: i64,
    /// By how many milliseconds a second it goes wrong, and since when.
    pub drift: (f64, Time),
    /// Where it stands.
    pub locality: Locality,
    /// The routing view, and what it is to be built from.
    pub builder: Builder,
    /// The view in force.
    pub snapshot: Arc<Snapshot>,
    /// The newest table, if no view was built from it yet.
    pub table: Option<Arc<CandidateTable>>,
    /// What others say of instances that fail.
    pub signals: Signals,
    /// Rung when there is something to tell them, and when that was last told.
    pub bell: Arc<Bell>,
    /// See `bell`.
    pub told: Time,
    /// When its timer is planned.
    pub wake: Option<Time>,
    /// Its applications.
    pub apps: Vec<App>,
    /// When it started.
    pub started: Time,
    /// When it stopped running, if it does not.
    pub ended: Time,
    /// Whether it tells lies.
    pub lies: bool,
    /// Whether it ever did.
    pub ever_lied: bool,
    /// Whether its present run began with nothing written down.
    pub blank: bool,
    /// Whether its last run ended with a goodbye, said while nothing was wrong with it.
    pub said_goodbye: bool,
    /// When it last said goodbye; 0: never.
    pub left_at: Time,
    /// When it last stood still; 0: never.
    pub slow_at: Time,
    /// Whether it was ready: joined, with a view, and met the mesh or waited long enough.
    pub ready_since: Option<Time>,
    /// Faults on it now.
    pub trouble: u32,
    /// Since when there is none.
    pub clean_since: Time,
    /// Which hosts it can reach, as a fingerprint; `None` when they can't all reach each other.
    pub island: Option<u64>,
    /// Since when.
    pub island_since: Time,
    /// Bytes and envelopes sent.
    pub sent: (u64, u64),
    /// What its process has worked and not yet waited for.
    pub cpu: Arc<Cpu>,
    /// Until when it works on that.
    pub busy_until: Time,
    /// For when a look at what waits for it is planned.
    pub free_at: Option<Time>,
    /// Timers run in the present second, to notice a node that spins.
    pub wakes: (Time, u32),
}

impl Host {
    /// Its present run.
    pub fn run(&self) -> Run {
        Run { host: self.index, epoch: self.epoch }
    }

    /// Whether its sidecar runs (standing still counts).
    pub fn is_up(&self) -> bool {
        self.node.is_some()
    }

    /// Whether it runs and does not stand still.
    pub fn is_awake(&self, now: Time) -> bool {
        self.node.is_some() && self.paused.is_none_or(|until| until <= now)
    }

    /// Whether it takes part: neither gone nor on its way out.
    pub fn is_member(&self) -> bool {
        self.is_up() && !self.leaving
    }

    /// Whether nothing has been wrong with it for so long.
    pub fn is_clean(&self, now: Time, lasting: Time) -> bool {
        self.is_member() && self.trouble == 0 && self.clean_since + lasting <= now
    }

    /// The time as this host sees it.
    pub fn now(&self, now: Time) -> Now {
        let (rate, since) = self.drift;
        let drifted = (rate * (now.saturating_sub(since) / 1_000_000) as f64 / 1000.0) as i64;
        let wall = (EPOCH_MS + now / 1_000_000).saturating_add_signed(self.clock + drifted);
        Now { mono: Mono(now), wall: Wall(wall) }
    }

    /// By how much what it sends now is late: it leaves when the work before it is done.
    pub fn lateness(&self, now: Time) -> Time {
        self.busy_until.saturating_sub(now) + self.cpu.due()
    }

    /// What a start begins with.
    pub fn load(&self) -> Stored {
        match &self.stored {
            Some(Written::Whole(stored)) => (**stored).clone(),
            Some(Written::Damaged(bytes)) => Stored::decode(bytes).unwrap_or_default(),
            None => Stored::default(),
        }
    }

    /// The view, built now if a newer table waits.
    pub fn view(&mut self, now: Time) -> Arc<Snapshot> {
        if let Some(table) = self.table.take() {
            let (snapshot, _faults) = self.builder.build(&table, Mono(now));
            self.snapshot = snapshot;
        }
        self.snapshot.clone()
    }
}

/// 2026-01-01, when every simulation begins.
pub const EPOCH_MS: u64 = 1_767_225_600_000;
