//! A simulated application: it listens or not, answers fast, slowly, wrongly or not at all, and has a version.

use lanemesh::{health::Gate, types::InstanceId};

use crate::{
    chance::Chance,
    queue::{MILLI, SECOND, Time},
};

/// How it behaves while it listens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mood {
    /// Answers in some milliseconds.
    Well,
    /// Accepts and never answers.
    Hang,
    /// Answers after so much more.
    Slow(Time),
    /// Answers this share with 503.
    Fails(f64),
}

/// One application.
#[derive(Debug)]
pub struct App {
    /// Its instance.
    pub id: InstanceId,
    /// Index of its service.
    pub service: usize,
    /// Its port.
    pub port: u16,
    /// Version it runs.
    pub version: String,
    /// Whether it is of the canary lane.
    pub canary: bool,
    /// Whether it listens.
    pub listening: bool,
    /// Whether an operator or a fault keeps it from starting.
    pub held_down: bool,
    /// Counts its starts: a connection to an earlier one is dead.
    pub start: u32,
    /// How it behaves.
    pub mood: Mood,
    /// When it was last taken out of or put back into rotation by an order, and which.
    pub drained: Option<Time>,
    /// Since when it listens, is well, and is not drained.
    pub well_since: Option<Time>,
    /// Its weight; 0 takes it out of rotation.
    pub weight: u16,
    /// Whether it was taken out of the mesh.
    pub withdrawn: bool,
    /// Whether its checks see no more than that it listens.
    pub shallow: bool,
    /// Requests a second that it serves; 0: no limit.
    pub most_rate: u32,
    /// Until when it works on what it has taken.
    pub busy_until: Time,
    /// Its sidecar's checks.
    pub gate: Gate,
    /// What it can do, in parts of what an ordinary one can.
    pub strength: f64,
    /// Requests since the last measurement of its load, and when that was.
    pub asked: (u32, Time),
}

impl App {
    /// How long it works on a request, and with which status it answers; `None`: it never does.
    pub fn serve(&mut self, now: Time, chance: &mut Chance) -> Option<(Time, u16)> {
        let work = (chance.between(1.0, 15.0) * MILLI as f64) as Time;
        if let (Mood::Well, Some(each)) = (self.mood, SECOND.checked_div(u64::from(self.most_rate))) {
            // One that has more to do than it gets done soon says so at once.
            if self.busy_until > now + LONGEST_QUEUE {
                return Some((MILLI, 503));
            }
            self.busy_until = self.busy_until.max(now) + each;
            return Some((self.busy_until - now + work, 200));
        }
        match self.mood {
            Mood::Well => Some((work, 200)),
            Mood::Hang => None,
            Mood::Slow(more) => Some((work + more, 200)),
            Mood::Fails(share) => Some((work, if chance.hits(share) { 503 } else { 200 })),
        }
    }

    /// How busy it was since the last time this was asked; `capacity`: requests a second of an ordinary one.
    pub fn load(&mut self, capacity: f64, now: Time) -> Option<f64> {
        let (asked, since) = std::mem::replace(&mut self.asked, (0, now));
        let passed = now.saturating_sub(since) as f64 / SECOND as f64;
        (passed > 0.0).then(|| f64::from(asked) / passed / (capacity * self.strength))
    }

    /// Whether it listens and behaves.
    pub fn is_well(&self) -> bool {
        self.listening && self.mood == Mood::Well
    }

    /// Notes the truth after a change.
    pub fn note(&mut self, now: Time) {
        self.well_since = self.is_well().then(|| self.well_since.unwrap_or(now));
    }

    /// What a check of its sidecar finds: `None` when it takes until the check's time is up.
    pub fn checked(&self, chance: &mut Chance) -> Option<bool> {
        if !self.listening || self.shallow {
            return Some(self.listening);
        }
        match self.mood {
            Mood::Well => Some(true),
            Mood::Hang => None,
            Mood::Slow(more) => (more < CHECK_TIMEOUT).then_some(true),
            Mood::Fails(share) => Some(!chance.hits(share)),
        }
    }
}

/// Work that waits, beyond which an application that has a limit refuses more.
const LONGEST_QUEUE: Time = 100 * MILLI;
/// A check's time.
pub const CHECK_TIMEOUT: Time = 500 * MILLI;
