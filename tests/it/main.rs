//! The one integration binary: what a user, a gateway or a peer relies on, through public faces only. Real sockets on port 0,
//! and no sleeps that hope.

mod allocations;
mod cases;
mod counting;
mod fleet;
mod floors;
#[expect(clippy::disallowed_methods, reason = "real processes are timed and waited for")]
mod mesh;
#[expect(clippy::disallowed_methods, reason = "real sockets are timed, and scripted peers pause on cue")]
mod proxy;
mod skip;
#[expect(clippy::disallowed_methods, reason = "real sockets are timed, and scripted peers pause on cue")]
mod support;
mod vectors;
