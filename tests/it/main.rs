//! The one integration binary: what a user, a gateway or a peer relies on, through public faces only. Real sockets on port 0,
//! and no sleeps that hope.

mod allocations;
mod counting;
mod fleet;
mod floors;
mod mesh;
mod proxy;
mod skip;
mod support;
mod vectors;
