//! The data path on real sockets. Numbers in test names are those of the case log.

mod failover;
mod limits;
mod observe;
mod upgrade;
mod wire;
