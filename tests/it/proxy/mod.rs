//! The data path on real sockets. Numbers in test names are those of the case log.

mod ahead;
mod breakers;
mod clients;
mod failover;
mod grpc;
mod h2;
mod h2_clients;
mod h2_limits;
mod h2_upstream;
mod handover;
mod limits;
mod matrix;
mod observe;
mod plain;
mod rules;
mod upgrade;
mod uploads;
mod wire;
