//! Cases of the log that are tables: what routing decides, over whole populations of users (part 4).

use std::{collections::BTreeMap, sync::Arc};

use lanemesh::{
    routing::{Builder, CandidateTable, Request, Snapshot, choose},
    types::LanePolicy,
};

use crate::fleet;

const USERS: usize = 10_000;

/// `orders` in `stable`, instances `a0..` with these weights, no policy.
fn weighted(weights: &[u16]) -> CandidateTable {
    let one = |(at, weight): (usize, &u16)| {
        let mut candidate = fleet::candidate(&format!("a{at:03}"), "stable");
        Arc::make_mut(&mut candidate.record).weight = *weight;
        candidate
    };
    CandidateTable { instances: weights.iter().enumerate().map(one).collect(), ..CandidateTable::default() }
}

/// Whose each user is; `None`: nobody's.
fn owners(snapshot: &Snapshot) -> Vec<Option<String>> {
    let service = snapshot.service("orders").unwrap();
    let owner = |user: usize| {
        let decision = choose(snapshot, service, &fleet::get(&format!("user-{user}")), fleet::NOW);
        decision.target(service).map(|entry| entry.record.id.to_string())
    };
    (0..USERS).map(owner).collect()
}

fn counts(owners: &[Option<String>]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    owners.iter().flatten().for_each(|owner| *counts.entry(owner.as_str()).or_default() += 1);
    counts
}

/// C83: an instance's points follow from its own weight alone.
#[test]
fn c83_a_change_moves_no_key_between_two_that_did_not_change() {
    let five_hundred = vec![100; 500];
    let mut more = five_hundred.clone();
    more.push(100);
    for (before, after) in [
        (&[100, 100][..], &[100, 100, 100][..]),
        (&[100, 100, 100], &[100, 100]),
        (&[100, 100, 100], &[100, 200, 100]),
        (&[100, 200, 100], &[100, 100, 100]),
        (&[100, 100, 100], &[100, 1_000, 100]),
        (&[100, 100, 100], &[100, 0, 100]),
        (&five_hundred, &more),
    ] {
        let [was, is] = [before, after].map(|weights| owners(&fleet::snapshot(&weighted(weights))));
        let weight = |weights: &[u16], id: &str| weights.get(id[1..].parse::<usize>().unwrap()).copied().unwrap_or(0);
        let mut moved = 0;
        for (from, to) in was.iter().zip(&is).filter(|(from, to)| from != to) {
            let (from, to) = (from.as_ref().unwrap(), to.as_ref().unwrap());
            moved += 1;
            let changed = |id: &str| weight(before, id) != weight(after, id);
            assert!(changed(from) || changed(to), "a key moved from {from} to {to}: {before:?} to {after:?}");
        }
        // What each gains or loses in proportion; everything that moves does so once.
        let total = |weights: &[u16]| weights.iter().map(|weight| f64::from(*weight)).sum::<f64>();
        let share = |weights: &[u16], at: usize| f64::from(weights.get(at).copied().unwrap_or(0)) / total(weights);
        let theory: f64 =
            (0..before.len().max(after.len())).map(|at| (share(after, at) - share(before, at)).abs()).sum::<f64>()
                / 2.0;
        // Points are placed by chance: with 256 each, a share is true to some per cent of itself.
        let most = 1.15 * theory * USERS as f64 + 4.0 * (theory * USERS as f64).sqrt();
        assert!(f64::from(moved) <= most, "{moved} keys moved, {most} at most");
        if before.len() < 10 {
            let counts = counts(&is);
            for (at, weight) in after.iter().enumerate() {
                let has = counts.get(&*format!("a{at:03}")).copied().unwrap_or(0) as f64;
                let due = share(after, at) * USERS as f64;
                assert!(
                    if *weight == 0 { has == 0.0 } else { (has / due - 1.0).abs() < 0.15 },
                    "{has} keys of {due}: {after:?}"
                );
            }
        }
    }
    let nobody = fleet::snapshot(&weighted(&[0, 0]));
    assert!(owners(&nobody).iter().all(Option::is_none), "weights of nothing but 0 divide nothing by it");
}

/// 5 % on `canary`, and whoever else may be there.
fn at_five_percent() -> CandidateTable {
    fleet::table(3)
}

/// C85: both sides are sticky, whoever asks, however often, and after a restart.
#[test]
fn c85_no_user_is_ever_seen_on_both_sides() {
    let table = at_five_percent();
    let restarted = || Builder::new(fleet::locality()).build(&table, fleet::NOW).0;
    let sidecars = [restarted(), restarted(), restarted(), restarted()];
    let mut on_canary = 0;
    for user in 0..USERS {
        let name = format!("user-{user}");
        let mut seen = [false; 2];
        for request in 0..50_u64 {
            let snapshot = &sidecars[request as usize % sidecars.len()];
            let service = snapshot.service("orders").unwrap();
            let request = Request { random: request.wrapping_mul(0x9e37_79b9_7f4a_7c15), ..fleet::get(&name) };
            let decision = choose(snapshot, service, &request, fleet::NOW);
            seen[usize::from(service.decided(&decision.lane).name.as_str() == "canary")] = true;
        }
        assert_ne!(seen, [true, true], "{name} was on both sides");
        on_canary += usize::from(seen[1]);
    }
    assert!((440..=560).contains(&on_canary), "{on_canary} of {USERS} users on canary at 5 %");
}

/// C87: the lane is decided first; only its own emptiness is looked at.
#[test]
fn c87_a_full_canary_needs_no_stable_and_an_empty_one_follows_its_rule() {
    let mut table = fleet::table(2);
    table.instances.retain(|candidate| candidate.record.lane.as_str() == "canary");
    let policy: &mut LanePolicy = Arc::make_mut(table.policies.values_mut().next().unwrap());
    policy.lanes.values_mut().next().unwrap().size = 10_000;
    let mut listed = fleet::snapshot(&table);
    assert_eq!(owners(&listed).iter().flatten().count(), USERS, "100 % canary, no stable: everybody is served");

    // An explicit lane of one who may name it, with nobody there: falls back for a GET, and says so.
    table.instances = vec![fleet::candidate("s1", "stable")];
    listed = fleet::snapshot(&table);
    let service = listed.service("orders").unwrap();
    let request = Request { explicit_lane: Some("canary"), ..fleet::get("tester-1") };
    let decision = choose(&listed, service, &request, fleet::NOW);
    assert_eq!(decision.fallback.map(|why| why.as_str()), Some("absent"));
    assert_eq!(decision.served_lane(service).unwrap().name.as_str(), "stable");
}
