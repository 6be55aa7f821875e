//! What the benchmarks against real processes share: sidecars of the release binary on loopback, a small blocking HTTP
//! client, what `/proc` says, and tables.
//!
//! Everything here is bounded in time, and every child dies with its parent, however that ends.

// Each benchmark is a program of its own and uses its part of this.
#![allow(dead_code)]

pub mod http;
pub mod process;
pub mod sidecar;
pub mod table;

use std::time::{Duration, Instant};

/// Looks again and again until `look` gives something; `None` after `limit`.
pub fn until<T>(limit: Duration, every: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(every);
    }
}

/// Value of `--name VALUE` on the command line.
pub fn option(name: &str) -> Option<String> {
    let mut args = std::env::args().skip_while(|arg| arg != name);
    args.next()?;
    args.next()
}

/// Words on the command line that are no options: which parts to run; all when empty.
pub fn parts() -> Vec<String> {
    let mut parts = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            // cargo says this to every benchmark.
            "--bench" => {}
            option if option.starts_with("--") => drop(args.next()),
            _ => parts.push(arg),
        }
    }
    parts
}
