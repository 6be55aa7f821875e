//! lanemesh's membership beside Serf's, on this machine, in one run: real processes of both, one per agent, on addresses of
//! their own. Prints both columns, the ratio and the goal for each size.
//!
//! ```text
//! cargo bench --bench serf [-- PART ... --agents 10,50 --rounds 3 --watch 30 --split 30]
//! ```
//!
//! `LANEMESH_BENCH_BINARY=PATH` measures another build of the sidecar.
//!
//! Parts: `idle`, `change`, `leave`, `crash`, `pause`, `loss`, `partition`, and `ours` or `serf` for only one of the two; all of
//! both without any. The start of all at once is always measured.
//!
//! Needs Linux and Serf: on Debian `apt-get install --no-install-recommends serf` (0.8 of HashiCorp, with memberlist and
//! Lifeguard; it runs with its LAN profile). As root, with `ip` (iproute2) and `iptables`, everything happens in a network
//! namespace of its own: nobody else's bytes are counted, and datagrams can be lost and halves cut apart. Otherwise those
//! parts are left out.
//!
//! What is compared is what each says itself, in its log, about its *view*: Serf tells a subscriber of it a second later, which
//! is not held against it. A change of metadata counts with lanemesh when it is in the routing snapshot, which is asked for
//! every few milliseconds at every sidecar and so costs processor time beside what is measured. Serf runs without encryption
//! (its default), lanemesh with mutual TLS (its only way).

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock and waits")]

mod cluster;
mod journal;
mod network;
mod rows;
mod scenes;
#[path = "../support/mod.rs"]
mod support;

use std::{process::Command, time::Duration};

use cluster::Kind;
use network::Network;
use rows::Rows;
use scenes::Options;
use support::{option, parts, process};

fn main() {
    // Before any thread: a namespace is of the thread, and inherited.
    let network = Network::new();
    raise_file_limit();
    let number = |name, default: u64| option(name).and_then(|number| number.parse().ok()).unwrap_or(default);
    let seconds = |name, default| Duration::from_secs(number(name, default));
    let (kinds, parts): (Vec<String>, Vec<String>) =
        parts().into_iter().partition(|word| matches!(word.as_str(), "ours" | "serf"));
    let options = Options {
        rounds: number("--rounds", 3) as usize,
        watch: seconds("--watch", 30),
        split: seconds("--split", 30),
        parts,
    };
    let wanted = |word: &str| kinds.is_empty() || kinds.iter().any(|kind| kind == word);
    let mut compared = vec![];
    if wanted("serf") {
        if Command::new("serf").arg("version").output().is_ok_and(|output| output.status.success()) {
            compared.push(Kind::Serf);
        } else {
            println!(
                "Serf is not installed (Debian: apt-get install --no-install-recommends serf): only lanemesh is measured"
            );
        }
    }
    if wanted("ours") {
        compared.push(Kind::Ours);
    }
    if !network.is_private() {
        println!(
            "no network namespace of its own (root on Linux with `ip`): no loss, no partition, and bytes are everybody's"
        );
    }
    println!("serf: {}; {} rounds", process::machine(), options.rounds);
    let sizes = option("--agents").unwrap_or_else(|| "10,50".into());
    for size in sizes.split(',').map(|size| size.parse::<usize>().expect("--agents is a list of numbers")) {
        assert!((4..=400).contains(&size), "4 to 400 agents");
        let mut rows = Rows::default();
        for kind in &compared {
            println!("  {kind:?}, {size} agents, load {:.2}", process::load());
            scenes::run(*kind, size, &network, &options, &mut rows);
        }
        if options.wants("partition") {
            for kind in &compared {
                // A namespace of its own for each: nothing of the first is left.
                if let Some(far) = network.divide(size) {
                    scenes::partition(*kind, size, &far, &options, &mut rows);
                }
            }
        }
        rows.print(size);
    }
}

/// Two pipes and a connection for each of hundreds of agents.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Fewer agents fit otherwise, and that is then said when one cannot be started.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}
