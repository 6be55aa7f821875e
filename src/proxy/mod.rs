//! Floor 5: the data path. Takes the application's HTTP/1.1 requests on loopback and sends each to the instance that
//! [`crate::routing`] chooses (REQUIREMENTS P1, P2, P4 to P7).
//!
//! Threads share nothing that a request waits for: each has its own listening socket (`SO_REUSEPORT`), runtime, timers and
//! connections to instances. A request reads one snapshot; counters are atomics; the access log is a bounded channel.
//!
//! One file per concern: `worker` (threads and listeners), `client` (one client connection), `forward` (one request), `exchange` (its tries), `target`
//! (which service), `subject` (who), `headers` (all header rules), `framing` (what hyper's parser hides), `body`, `pool`,
//! `tunnel` (what is no longer HTTP), `errors` (every response that the proxy makes itself).
//!
//! Bodies are streamed both ways with backpressure. Two are held whole so that a failure stays invisible: request bodies of
//! known length up to 64 KiB (they can be sent again), and responses to safe methods up to 8 KiB (until they are whole,
//! nothing was given to the client and another instance can answer).
//!
//! An `Upgrade` that the instance grants makes client and instance one connection (`tunnel`).
//!
//! Not here: HTTP/2, `CONNECT`, TLS.

mod body;
mod class;
mod client;
mod deadline;
mod errors;
mod exchange;
mod flight;
mod forward;
mod framing;
mod headers;
mod io;
mod pool;
mod subject;
mod target;
mod tunnel;
mod view;
mod worker;

pub use errors::Reason;
pub use worker::{ProxyConfig, Running, StartFault, start};
