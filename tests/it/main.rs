//! The one integration binary: what a user, a gateway or a peer relies on, through public faces only.

mod allocations;
mod counting;
mod fleet;
mod proxy;
mod skip;
mod support;
mod vectors;
