//! lanemesh-sim: chaos for lanemesh's real code, in virtual time, from one seed.
//!
//! Level 1: discrete events over the sans-io `Node`, with each sidecar's real `choose` and `Attempts`. Level 2: the same, with the
//! real QUIC, TLS and connection pool between the nodes. Nothing here reads a clock, a socket or the system's randomness while a
//! world plays; the command line measures CPU time around it.
//!
//! Not here: HTTP.

pub mod app;
pub mod bounds;
pub mod chance;
pub mod conns;
pub mod corpus;
pub mod cpu;
pub mod figures;
pub mod host;
pub mod invariants;
pub mod level2;
pub mod library;
pub mod links;
pub mod log;
pub mod parallel;
pub mod pick;
#[cfg(feature = "planted")]
pub mod planted;
pub mod play;
pub mod queue;
pub mod readout;
pub mod record;
pub mod report;
pub mod scenario;
pub mod shrink;
pub mod stats;
pub mod swarm;
pub mod terminal;
pub mod trust;
pub mod world;
