//! The data path on real sockets. Numbers in test names are those of the case log.

mod breakers;
mod clients;
mod failover;
mod limits;
mod matrix;
mod observe;
mod plain;
mod upgrade;
mod wire;
