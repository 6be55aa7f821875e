//! One name, many lives: fast restarts, new ports, lost and damaged data directories.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{
    load::{Load, failures},
    process::{Mesh, Pod, measured, wait, within},
};

use super::together::everywhere;

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn generation(pod: &Pod) -> u64 {
    pod.get("/v1/info")["generation"].as_u64().unwrap()
}

fn has_no_error(pod: &Pod) {
    let log = pod.log();
    let errors: Vec<&str> = log.lines().filter(|line| line.contains("ERROR") || line.contains("panicked")).collect();
    assert!(errors.is_empty(), "{} logged {errors:#?}", pod.name);
}

/// C09: kill -9 and start again within moments, same name and address, the application with another version. The client
/// routes to the new version, never to both, and nobody logs an error.
#[test]
fn a_fast_restart_is_one_life_after_the_other() {
    let mesh = Mesh::new("prod");
    let mut pods = mesh.service("orders", 2);
    let mut slowest = Duration::ZERO;
    for round in 0..8 {
        let version = format!("r{round}");
        pods[1].kill9();
        pods[1].app.as_mut().unwrap().restart(&version);
        let addr = pods[1].app.as_ref().unwrap().addr;
        pods[1].no_instances();
        pods[1].instance("orders", addr, &format!("version = {version:?}\ncheck_interval = \"100ms\""));
        pods[1].spawn();
        let began = Instant::now();
        let mut new_was_seen = false;
        wait("the client routes to the new version", || {
            let records = pods[0].get("/v1/instances?node=orders-2");
            let records = records.as_array().unwrap();
            assert!(records.len() <= 1, "two records of one instance: {records:#?}");
            let now = pods[0].ring("orders").get("orders-2").map(|instance| instance.0.clone());
            assert!(!new_was_seen || now.as_deref().is_none_or(|now| now == version), "back to {now:?}");
            new_was_seen |= now.as_deref() == Some(&*version);
            new_was_seen
        });
        slowest = slowest.max(began.elapsed());
        pods[1].await_ready();
    }
    within("a restarted instance routable with its new version", slowest, Duration::from_secs(2), 5);
    pods.iter().for_each(has_no_error);
    assert_eq!(generation(&pods[1]), 9);
}

/// C08: five quick restarts leave one current entry, and the restarted node hears of changes as everybody does. (A life that was
/// killed before anybody heard of it may share its generation with the next one.)
#[test]
fn many_lives_leave_one_entry() {
    let mesh = Mesh::new("prod");
    let mut pods = mesh.service("orders", 4);
    for _ in 0..5 {
        pods[1].kill9();
        pods[1].start();
    }
    everywhere("the fifth life", &pods, |pod| {
        let list = pod.get("/v1/members");
        let all: Vec<_> = list.as_array().unwrap().iter().filter(|member| member["node"] == "orders-2").collect();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0]["generation"] == generation(&pods[1]) && all[0]["state"] == "alive"
    });
    assert!(generation(&pods[1]) > 1);
    let mut slowest = Duration::ZERO;
    for weight in 101..=105 {
        pods[3].must("PATCH", "/v1/instances/orders-4", &json!({ "weight": weight }));
        let seen = |pod: &Pod| pod.instances()["orders-4"]["record"]["weight"] == weight;
        slowest = slowest.max(everywhere("the weight", &pods[1..2], seen));
    }
    within("a change heard by the often restarted node", slowest, Duration::from_millis(400), 5);
    pods.iter().for_each(has_no_error);
}

/// C18: after a leave the name is free at once, also on another port; after kill -9 as well.
#[test]
fn a_name_moves_to_another_port() {
    let mesh = Mesh::new("prod");
    let mut pods = mesh.service("orders", 4);
    let all = names(&["orders-1", "orders-2", "orders-3", "orders-4"]);
    for (how, goal) in [("leave", Duration::from_secs(3)), ("kill -9", Duration::from_secs(8))] {
        let before = pods[2].run().gossip;
        if how == "leave" {
            pods[2].must_cli(&["leave"]);
            assert_eq!(pods[2].await_exit().code(), Some(0));
            everywhere("it has left", [&pods[0], &pods[1], &pods[3]], |pod| pod.state_of("orders-3") == "left");
        } else {
            pods[2].kill9();
        }
        pods[2].new_port();
        let began = Instant::now();
        pods[2].start();
        let after = pods[2].run().gossip;
        assert_ne!(before, after);
        everywhere("it routes again", &pods, |pod| {
            let list = pod.get("/v1/members");
            let found = list.as_array().unwrap().iter().find(|member| member["node"] == "orders-3").unwrap().clone();
            found["addr"] == after.to_string() && found["state"] == "alive" && pod.candidates("orders") == all
        });
        within(&format!("{how}, then the same name on another port: routable"), began.elapsed(), goal, 3);
    }
    pods.iter().for_each(has_no_error);
}

/// M9: everything stopped, one started alone: it routes at once on the view from its disk. Then a damaged state file, and a
/// lost data directory: never fatal, and the generation still grows, since the mesh remembers it.
#[test]
fn the_view_survives_on_disk_and_its_loss_is_survived() {
    let mesh = Mesh::new("prod");
    let mut pods = mesh.service("orders", 3);
    // The state file is written a moment after the view.
    wait("everything is on disk", || {
        let text = fs::read(pods[0].data_dir().join("state")).unwrap_or_default();
        ["orders-2", "orders-3"].iter().all(|name| text.windows(8).any(|bytes| bytes == name.as_bytes()))
    });
    for pod in &mut pods {
        pod.kill9();
    }
    // The applications live on; only their sidecars are gone.
    let began = Instant::now();
    pods[0].start();
    let mut client = pods[0].client();
    let mut answered = BTreeSet::new();
    for user in 0..60 {
        let answer = client.get("orders", &format!("u{user}"), "/").unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        answered.insert(answer.header("x-lanemesh-instance").to_owned());
    }
    measured("60 requests on the stored view, process start included", began.elapsed(), Duration::from_secs(1));
    assert!(answered.contains("orders-2") && answered.contains("orders-3"), "{answered:?}");
    let list = pods[0].get("/v1/members");
    let stale = |name: &str| list.as_array().unwrap().iter().any(|m| m["node"] == name && m["stale"] == true);
    assert!(stale("orders-2") && stale("orders-3"), "{list:#}");
    assert_eq!(generation(&pods[0]), 2);

    // A damaged file is set aside; the mesh still knows the generation.
    let seed = pods[0].run().gossip;
    let state = pods[1].data_dir().join("state");
    let mut bytes = fs::read(&state).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&state, &bytes).unwrap();
    pods[1].seeds = vec![seed];
    pods[1].start();
    assert!(pods[1].log().contains("its checksum does not fit"), "{}", pods[1].log());
    assert_eq!(fs::read(pods[1].data_dir().join("state.damaged")).unwrap(), bytes, "kept for whoever wants to look");
    wait("the generation grows past the lost one", || generation(&pods[1]) == 2);

    // A lost directory.
    fs::remove_dir_all(pods[2].data_dir()).unwrap();
    pods[2].seeds = vec![seed];
    pods[2].start();
    wait("the generation is learnt from the seed", || generation(&pods[2]) == 2);
    let all = names(&["orders-1", "orders-2", "orders-3"]);
    let whole = |pod: &Pod| {
        let list = pod.get("/v1/members");
        let fine = |m: &serde_json::Value| m["state"] == "alive" && m["stale"] == false && m["generation"] == 2;
        pod.candidates("orders") == all && list.as_array().unwrap().iter().all(fine)
    };
    everywhere("all are back, nothing stale", &pods, whole);

    // The first one, which has no seed to ask: the others find it at its address, and it learns that it has lived before.
    pods[0].kill9();
    fs::remove_dir_all(pods[0].data_dir()).unwrap();
    pods[0].spawn();
    pods[0].await_bound();
    everywhere("the first one is back", &pods, |pod| {
        let list = pod.get("/v1/members");
        let fine = |m: &serde_json::Value| {
            let lives = if m["node"] == "orders-1" { 3 } else { 2 };
            m["state"] == "alive" && m["stale"] == false && m["generation"] == lives
        };
        pod.candidates("orders") == all
            && list.as_array().unwrap().len() == 3
            && list.as_array().unwrap().iter().all(fine)
    });
    pods.iter().for_each(has_no_error);
}

/// A rolling restart under load: each sidecar with SIGTERM, one after the other. Nobody sees a failure.
#[test]
fn sigterm_under_load_fails_nobody() {
    let mesh = Mesh::new("prod");
    let mut pods = mesh.service("orders", 3);
    let mut shop = mesh.pod("shop", &[]);
    shop.seeds = vec![pods[1].run().gossip];
    shop.start();
    let all = names(&["orders-1", "orders-2", "orders-3"]);
    wait("the shop routes to all", || shop.candidates("orders") == all);
    let load = Load::start(shop.run().proxy, "orders", 300);
    load.run_for(150);
    let victim = &mut pods[2];
    let began = Instant::now();
    let gone = {
        assert_eq!(victim.stop(), Some(0));
        victim.app.as_mut().unwrap().kill9();
        Instant::now()
    };
    measured("SIGTERM to exit, idle proxy", gone - began, Duration::from_millis(1500));
    load.run_for(150);
    victim.app.as_mut().unwrap().restart("v1");
    victim.start();
    wait("it is back", || shop.candidates("orders") == all);
    load.run_for(150);
    let outcomes = load.finish();
    let failed = failures(&outcomes);
    assert!(failed.is_empty(), "{} of {} failed: {:#?}", failed.len(), outcomes.len(), &failed[..failed.len().min(5)]);
    let late = outcomes.iter().filter(|o| o.instance == "orders-3" && o.from > began + Duration::from_millis(500));
    let late = late.filter(|o| o.from < gone).count();
    assert_eq!(late, 0, "new requests after the drain had spread");
    assert!(outcomes.iter().any(|o| o.instance == "orders-3" && o.from > gone), "it took traffic again");
}

/// kill -9 of application and sidecar together under load: no GET fails, and each user of the dead one has one new place.
#[test]
fn kill_9_under_load_fails_no_get() {
    let mesh = Mesh::new("prod");
    let mut pods = mesh.service("orders", 4);
    let mut shop = mesh.pod("shop", &[]);
    shop.seeds = vec![pods[0].run().gossip];
    shop.start();
    wait("the shop routes to all", || shop.candidates("orders").len() == 4);
    let load = Load::start(shop.run().proxy, "orders", 300);
    load.run_for(300);
    let killed = Instant::now();
    pods[1].app.as_mut().unwrap().kill9();
    pods[1].kill9();
    wait("the dead one is no candidate", || !shop.candidates("orders").contains("orders-2"));
    measured("kill -9 to out of the ring", killed.elapsed(), Duration::from_secs(8));
    load.run_for(150);
    let outcomes = load.finish();
    let failed = failures(&outcomes);
    assert!(failed.is_empty(), "{} of {} failed: {:#?}", failed.len(), outcomes.len(), &failed[..failed.len().min(5)]);
    let of = |user: &str, before: bool| -> BTreeSet<&str> {
        let own = outcomes.iter().filter(|o| o.user == user && (o.to < killed) == before);
        own.filter(|o| before || o.instance != "orders-2").map(|o| o.instance.as_str()).collect()
    };
    for user in (0..200).map(|n| format!("u{n}")) {
        let (before, after) = (of(&user, true), of(&user, false));
        assert!(before.len() <= 1 && after.len() <= 1, "{user}: {before:?}, then {after:?}");
        if !before.contains("orders-2") && !before.is_empty() && !after.is_empty() {
            assert_eq!(before, after, "{user} moved, though its instance lives");
        }
    }
}

/// C06: a starved sidecar (stopped and continued again and again) accuses nobody, and requests through the others go on.
#[test]
fn a_paused_sidecar_accuses_nobody() {
    let mesh = Mesh::new("prod");
    let pods = mesh.service("orders", 5);
    let load = Load::start(pods[0].run().proxy, "orders", 200);
    for _ in 0..3 {
        pods[2].pause();
        load.run_for(400);
        pods[2].signal(Signal::SIGCONT);
        load.run_for(100);
        assert!(!pods[2].candidates("orders").is_empty(), "it still has somewhere to go");
    }
    let outcomes = load.finish();
    everywhere("all alive", &pods, |pod| pod.members().values().all(|state| state == "alive"));
    let failed = failures(&outcomes);
    assert!(failed.is_empty(), "{} of {} failed: {:#?}", failed.len(), outcomes.len(), &failed[..failed.len().min(5)]);
    for pod in &pods {
        let log = pod.log();
        let accused = |line: &&str| line.contains("state=Down") && !line.contains("node=orders-3");
        let verdicts: Vec<&str> = log.lines().filter(accused).collect();
        assert!(verdicts.is_empty(), "{} convicted the healthy: {verdicts:#?}", pod.name);
    }
    pods.iter().for_each(has_no_error);
}
