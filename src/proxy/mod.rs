//! Floor 5: the data path. Takes the application's HTTP requests (1.1 and 2, gRPC) on loopback and sends each to the
//! instance that [`crate::routing`] chooses (REQUIREMENTS P1, P2, P4 to P7).
//!
//! Threads share nothing that a request waits for: each has its own listening socket (`SO_REUSEPORT`), runtime, timers and
//! connections to instances. A request reads one snapshot; counters are atomics; the access log is a bounded channel.
//!
//! One file per concern: `worker` (threads and listeners), `client` (one client connection), `forward` (one request), `exchange` (its tries), `target`
//! (which service), `head` (what routing reads), `headers` (all header rules), `framing` (what hyper's parser hides), `body`, `replay`, `pool`,
//! `tunnel` (what is no longer HTTP), `errors` (every response that the proxy makes itself), `detect` (HTTP/1.1 or 2), `h2_serve`
//! and `h2_pool` (HTTP/2 towards clients and instances), `grpc`. `plain` does all of it for requests without surprises, which nearly
//! all are, and hands every other one on to these.
//!
//! Bodies are streamed both ways with backpressure. Two are held whole so that a failure stays invisible: request bodies of
//! known length up to 64 KiB (they can be sent again), and responses to safe methods up to 8 KiB (until they are whole,
//! nothing was given to the client and another instance can answer).
//!
//! Each side speaks its own version: the client's is told by its first bytes, the instance's by its record, and what lies between
//! is translated by the one set of header rules.
//! What is no longer HTTP is a `tunnel`: an `Upgrade` that the instance grants, a `connect`, a connection to a `tcp` port;
//! `reach` finds the instance for the latter two.
//!
//! Not here: TLS.

mod ahead;
mod body;
mod class;
mod client;
mod connect;
mod deadline;
mod detect;
mod errors;
mod exchange;
mod files;
mod flight;
mod forward;
mod framing;
#[cfg(any(fuzzing, test))]
pub mod fuzzed;
mod grpc;
mod h2_pool;
mod h2_serve;
mod head;
mod headers;
mod hints;
mod io;
mod plain;
mod pool;
mod reach;
mod replay;
mod target;
mod tcp;
mod tunnel;
mod upload;
mod view;
mod worker;

pub use errors::Reason;
pub use worker::{ProxyConfig, Running, StartFault, start};
