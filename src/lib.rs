//! lanemesh: a sidecar mesh without registry or leader.
//!
//! The floor plan is in `tests/it/floors.rs`: a module uses only floors below its own, and below the IO line there is no
//! socket, clock, file, environment, operating-system randomness or hash-ordered map.

pub mod types;

pub mod config;
pub mod wire;

pub mod catalog;
pub mod health;
pub mod lanes;
pub mod routing;

pub mod node;

// The IO line.

pub mod net;
pub mod pki;
pub mod ready;
pub mod telemetry;

pub mod admin;
pub mod agent;
pub mod probe;
pub mod proxy;

pub mod app;
pub mod cli;
pub mod client;
pub mod demo;
