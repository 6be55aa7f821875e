//! The test of the tests: every planted fault is caught where `planted.toml` says, or near it. Only with the feature `planted`;
//! `lanemesh-sim plant search` looks for new seeds.
#![cfg(feature = "planted")]

use lanemesh::types::Planted;
use lanemesh_sim::{
    parallel::in_order,
    planted::{Healthy, check, kept},
    swarm::Size,
};

#[test]
fn every_planted_fault_is_caught() {
    let kept = kept();
    let listed: Vec<&str> = kept.catch.iter().map(|catch| catch.fault.as_str()).collect();
    let all: Vec<&str> = Planted::ALL.iter().map(|fault| fault.name()).collect();
    assert_eq!(listed, all, "planted.toml is to name each fault: `lanemesh-sim plant search --keep sim/planted.toml`");
    let size = Size { nodes: kept.nodes, minutes: kept.minutes };
    let healthy = Healthy::default();
    let mut missed = Vec::new();
    in_order(
        &kept.catch,
        2,
        |catch| (&catch.fault, check(catch, size, &healthy)),
        |_, (fault, now)| {
            missed.extend(now.is_none().then_some(fault));
        },
    );
    assert!(missed.is_empty(), "nobody notices {missed:?}: strengthen an invariant, or search for new seeds");
}
