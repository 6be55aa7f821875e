//! What work costs in virtual time, so that an overloaded node is late in the simulator as it would be in life.
//!
//! Costs are charged where the work is asked for, whether or not the simulator does it (a signature that the memo knows is
//! charged as if it were verified). A host has one core: while it is busy, nothing of it runs, and what comes waits where it
//! would wait in life. `mesh.cpu` and the step `slow` multiply; 0 makes work free.
//!
//! Sources of the figures: Ed25519 and X25519 of `ring` on a machine of 2023 (2 to 3 GHz), QUIC packets from a benchmark of
//! quinn over a simulated socket (4.8 us for one datagram sent, received and acknowledged), rings from `benches/choose.rs`.
//!
//! Not here: the system's own work (interrupts, other processes), memory, and whoever shares the machine.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::queue::Time;

/// Something that takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// An Ed25519 signature is made.
    Sign,
    /// One is verified.
    Verify,
    /// Half of an X25519 key exchange: a key made, or a secret computed.
    KeyExchange,
    /// A certificate is parsed and its names are read (its signature is a [`Work::Verify`]).
    Certificate,
    /// A UDP packet is received or sent: system call, decryption or encryption, and QUIC's own work.
    Packet,
    /// An envelope or a sync of so many bytes is decoded and thought about.
    Decode(usize),
    /// A routing view of so many instances is built.
    View(usize),
    /// A timer of the node is run.
    Timer,
}

impl Work {
    /// Nanoseconds at `mesh.cpu = 1`.
    pub const fn cost(self) -> Time {
        match self {
            Self::Sign => 25_000,
            Self::Verify => 55_000,
            Self::KeyExchange => 45_000,
            Self::Certificate => 15_000,
            Self::Packet => 3_000,
            Self::Decode(bytes) => 3_000 + 4 * bytes as Time,
            // 256 points an instance, hashed and merged into rings that are kept.
            Self::View(instances) => 10_000 + 3_000 * instances as Time,
            Self::Timer => 2_000,
        }
    }
}

/// What one host's process has worked and not yet waited for.
#[derive(Debug, Default)]
pub struct Cpu {
    due: AtomicU64,
    /// Thousandths: 1000 is a machine as described above.
    slowness: AtomicU64,
}

impl Cpu {
    /// A machine so many times as slow; 0 works for nothing.
    pub fn new(slowness: f64) -> Self {
        let cpu = Self::default();
        cpu.slow_down(slowness);
        cpu
    }

    /// From now on it is so many times as slow.
    pub fn slow_down(&self, slowness: f64) {
        self.slowness.store((slowness * 1000.0) as u64, Relaxed);
    }

    /// Work is done.
    pub fn charge(&self, work: Work) {
        let cost = work.cost() * self.slowness.load(Relaxed) / 1000;
        self.due.fetch_add(cost, Relaxed);
    }

    /// What is due.
    pub fn due(&self) -> Time {
        self.due.load(Relaxed)
    }

    /// What is due, which is nothing afterwards.
    pub fn take(&self) -> Time {
        self.due.swap(0, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_machine_takes_longer_and_a_free_one_no_time() {
        let cpu = Cpu::new(1.0);
        cpu.charge(Work::Verify);
        assert_eq!((cpu.due(), cpu.take(), cpu.due()), (55_000, 55_000, 0));
        cpu.slow_down(20.0);
        cpu.charge(Work::Verify);
        assert_eq!(cpu.take(), 1_100_000);
        cpu.slow_down(0.0);
        cpu.charge(Work::Verify);
        assert_eq!(cpu.take(), 0);
    }
}
