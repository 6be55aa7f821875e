//! Ten processes: finding each other, spreading changes, and leaving.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{
    load::{Load, failures},
    process::{App, Mesh, Pod, wait, within},
};

/// Waits until all of `pods` satisfy `done`, and returns how long the slowest took.
pub fn everywhere<'a>(
    what: &str,
    pods: impl IntoIterator<Item = &'a Pod>,
    done: impl Fn(&Pod) -> bool + Sync,
) -> Duration {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for pod in pods {
            let done = &done;
            scope.spawn(move || wait(&format!("{what} at {}", pod.name), || done(pod)));
        }
    });
    began.elapsed()
}

fn all_alive(count: usize) -> impl Fn(&Pod) -> bool {
    move |pod| {
        let members = pod.members();
        members.len() == count && members.values().all(|state| state == "alive")
    }
}

/// A policy's ranges as one node holds them.
fn policy(pod: &Pod, service: &str) -> BTreeMap<String, u64> {
    let policy = pod.get(&format!("/v1/policies/{service}"));
    let lanes = policy["policy"]["lanes"].as_object().cloned().unwrap_or_default();
    lanes.iter().map(|(lane, rule)| (lane.clone(), rule["size"].as_u64().unwrap())).collect()
}

/// Waits until no snapshot was replaced for longer than the coalescing time (R4: 500 ms), so that the next change is a lone one.
fn settled(pods: &[Pod]) {
    let versions = || pods.iter().map(|pod| pod.get("/v1/info")["snapshot"].as_u64()).collect::<Vec<_>>();
    let (mut seen, mut since) = (versions(), Instant::now());
    wait("quiet snapshots", || {
        let now = versions();
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        since.elapsed() > Duration::from_millis(600)
    });
}

/// The whole life of ten: start at once, changes reach every routing snapshot, a leave is heard by all, also while a peer
/// restarts (C07).
#[test]
fn ten_processes_find_each_other_and_hear_of_every_change() {
    let mesh = Mesh::new("prod");
    let mut pods: Vec<Pod> = (1..=10).map(|at| mesh.pod(&format!("n{at}"), &["orders"])).collect();
    for pod in &mut pods[..3] {
        let app = App::start(&pod.name, "v1");
        pod.instance("orders", app.addr, "version = \"v1\"\ncheck_interval = \"200ms\"");
        pod.app = Some(app);
    }
    // The seed is there first, as a headless service name would give it; all others start together.
    pods[0].spawn();
    pods[0].await_bound();
    let seed = pods[0].run().gossip;
    for pod in &mut pods[1..] {
        pod.seeds = vec![seed];
        pod.spawn();
    }
    for pod in &mut pods[1..] {
        pod.await_bound();
    }
    let took = everywhere("ten members", &pods, all_alive(10));
    within("10 processes see each other after the last start", took, Duration::from_secs(1), 5);

    let orders = ["n1", "n2", "n3"].map(str::to_owned).into();
    everywhere("three candidates", &pods, |pod| pod.candidates("orders") == orders);

    settled(&pods);
    pods[1].must("PATCH", "/v1/instances/n2", &json!({ "weight": 50 }));
    let took =
        everywhere("weight 50 on the ring", &pods, |pod| pod.ring("orders").get("n2").is_some_and(|i| i.2 == 50));
    within("a weight in every snapshot", took, Duration::from_millis(400), 5);
    settled(&pods);
    pods[2].must_cli(&["instances", "set", "n3", "--lane", "canary"]);
    let took = everywhere("n3 on the canary ring", &pods, |pod| {
        pod.ring("orders").get("n3").is_some_and(|instance| instance.1 == "canary")
    });
    within("a lane in every snapshot", took, Duration::from_millis(400), 5);

    // Any node takes a policy, also one that announces nothing of the service.
    for (at, size) in [(9, 1000), (4, 2500)] {
        pods[at].must("PATCH", "/v1/policies/orders", &json!({ "sizes": { "canary": size } }));
        let took = everywhere("the policy", &pods, |pod| policy(pod, "orders") == [("canary".into(), size)].into());
        within("a policy at every node", took, Duration::from_millis(400), 5);
    }
    let lanes: Vec<String> =
        pods.iter().map(|pod| pod.get("/v1/route/orders?key=u7")["lane"].as_str().unwrap().to_owned()).collect();
    assert!(lanes.iter().all(|lane| *lane == lanes[0]), "everybody decides alike: {lanes:?}");
    pods[6].must_cli(&["rollback", "orders", "--reason", "test"]);
    let took = everywhere("the rollback", &pods, |pod| {
        pod.get("/v1/policies/orders")["policy"]["off"] == true && pod.get("/v1/services")[0]["off"] == true
    });
    within("a rollback in every snapshot", took, Duration::from_secs(1), 5);

    leave_while_a_peer_restarts(&mut pods);
}

/// n2, which serves, gets SIGTERM under load while n5 restarts: no request fails, everybody sees `left`, nobody ever `down`, and n2 stays left.
fn leave_while_a_peer_restarts(pods: &mut [Pod]) {
    let load = Load::start(pods[0].run().proxy, "orders", 200);
    load.run_for(50);
    pods[4].kill9();
    pods[1].signal(Signal::SIGTERM);
    pods[4].spawn();
    let others: Vec<usize> = (0..pods.len()).filter(|at| !matches!(at, 1 | 4)).collect();
    let mut left_at: BTreeMap<usize, Instant> = BTreeMap::new();
    let mut exit = None;
    wait("all others see n2 as left, and it ends", || {
        for &at in &others {
            let state = pods[at].state_of("n2");
            assert!(matches!(state.as_str(), "alive" | "left"), "{} sees n2 as {state}", pods[at].name);
            if state == "left" {
                left_at.entry(at).or_insert_with(Instant::now);
            }
        }
        if exit.is_none() && left_at.len() == others.len() {
            exit = Some(pods[1].await_exit());
        }
        exit.is_some()
    });
    let (first, last) = (left_at.values().min().unwrap(), left_at.values().max().unwrap());
    within("a leave known everywhere after the first heard it", *last - *first, Duration::from_millis(300), 5);
    assert_eq!(exit.unwrap().code(), Some(0));

    load.run_for(50);
    let outcomes = load.finish();
    let failed = failures(&outcomes);
    assert!(failed.is_empty(), "{} of {} failed: {:#?}", failed.len(), outcomes.len(), &failed[..failed.len().min(5)]);
    assert!(outcomes[..50].iter().any(|o| o.instance == "n2"), "it had traffic to lose");
    pods[4].await_ready();
    let here = |pod: &Pod| {
        let members = pod.members();
        members["n2"] == "left" && members.iter().all(|(name, state)| name == "n2" || state == "alive")
    };
    everywhere("nine alive and n2 left", pods.iter().filter(|pod| pod.name != "n2"), here);
    // What came back with n5's stored view was not believed over the goodbye.
    assert!(pods.iter().filter(|pod| pod.name != "n2").all(here));
}
