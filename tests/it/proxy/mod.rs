//! The data path on real sockets. Numbers in test names are those of the case log.

mod failover;
mod limits;
mod observe;
mod plain;
mod upgrade;
mod wire;
