//! What requests see of drains and empty lanes, and what the views that people read have to do with it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{
    Act, Upstream,
    http::Http,
    load::{Load, failures},
    process::{Mesh, Pod, run, wait, within},
};

/// C93: a drain lets what is in flight finish and sends nothing new; then SIGTERM with a request in flight waits for it.
#[test]
fn drain_and_sigterm_let_requests_in_flight_finish() {
    let mesh = Mesh::new("prod");
    let mut pods = mesh.service("orders", 2);
    let mut shop = mesh.pod("shop", &[]);
    shop.seeds = vec![pods[0].run().gossip];
    shop.start();
    // A third instance whose application answers when it is told to.
    let go = Arc::new(AtomicBool::new(false));
    let told = go.clone();
    let slow = Upstream::start(move |seen, _| {
        let began = Instant::now();
        while seen.line().contains("/slow") && !told.load(SeqCst) && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        vec![Act::ok("done")]
    });
    let mut slow_pod = mesh.pod("slow", &["orders"]);
    slow_pod.instance("orders", slow.addr, "check = \"http:/\"\ncheck_interval = \"200ms\"");
    slow_pod.seeds = vec![pods[0].run().gossip];
    slow_pod.start();
    wait("the shop routes to three", || shop.candidates("orders").len() == 3);
    let key = (0..).map(|n| format!("k{n}")).find(|key| routed(&shop, key) == "slow").unwrap();

    for how in ["drain", "SIGTERM"] {
        go.store(false, SeqCst);
        if how == "SIGTERM" {
            slow_pod.must_cli(&["undrain"]);
            wait("back", || shop.candidates("orders").contains("slow"));
        }
        let load = Load::start(shop.run().proxy, "orders", 200);
        load.run_for(50);
        let (proxy, user) = (shop.run().proxy, key.clone());
        let in_flight = std::thread::spawn(move || Http::new(proxy).get("orders", &user, "/slow").unwrap());
        let waiting = |path: &str| slow.seen().iter().filter(|seen| seen.line().contains(path)).count();
        wait("in flight", || waiting("/slow") == if how == "drain" { 1 } else { 2 });
        if how == "drain" {
            slow_pod.must_cli(&["drain"]);
        } else {
            // Its sidecar goes; the application beside it lives until its work is done.
            assert_eq!(slow_pod.stop(), Some(0));
        }
        wait("no candidate", || !shop.candidates("orders").contains("slow"));
        let spread = Instant::now();
        load.run_for(150);
        assert!(!in_flight.is_finished());
        go.store(true, SeqCst);
        let answer = in_flight.join().unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (200, "done"), "{how}");
        let outcomes = load.finish();
        let failed = failures(&outcomes);
        assert!(failed.is_empty(), "{how}: {} failed: {:#?}", failed.len(), &failed[..failed.len().min(5)]);
        let late = outcomes.iter().filter(|o| o.instance == "slow" && o.from > spread).count();
        assert_eq!(late, 0, "{how}: new requests to what is out of rotation");
    }
    // A request through a sidecar that is told to end is finished first.
    let seed = shop.run().gossip;
    slow_pod.seeds = vec![seed];
    slow_pod.start();
    wait("back", || pods[1].candidates("orders").contains("slow") && routed(&pods[1], &key) == "slow");
    go.store(false, SeqCst);
    let (proxy, user) = (pods[1].run().proxy, key);
    let before = slow.seen().len();
    let in_flight = std::thread::spawn(move || Http::new(proxy).get("orders", &user, "/slow").unwrap());
    wait("in flight", || slow.seen()[before..].iter().any(|seen| seen.line().contains("/slow")));
    pods[1].signal(nix::sys::signal::Signal::SIGTERM);
    wait("out of rotation", || !shop.candidates("orders").contains("orders-2"));
    assert!(shop.state_of("orders-2") == "alive" && !in_flight.is_finished(), "it waits for the request");
    go.store(true, SeqCst);
    assert_eq!(in_flight.join().unwrap().status, 200);
    assert_eq!(pods[1].await_exit().code(), Some(0));
    wait("it has left", || shop.state_of("orders-2") == "left");
}

fn routed(pod: &Pod, key: &str) -> String {
    pod.get(&format!("/v1/route/orders?key={key}"))["instance"]["id"].as_str().unwrap_or_default().to_owned()
}

/// L7 through the real proxy: everybody to a canary that has no instance. Safe methods fall back, others are refused.
#[test]
fn an_empty_lane_falls_back_for_safe_methods_only() {
    let mesh = Mesh::new("prod");
    let pods = mesh.service("orders", 1);
    let all = json!({ "sizes": { "canary": 10000 }, "force": true, "reason": "test" });
    pods[0].must("PATCH", "/v1/policies/orders", &all);
    wait("the policy is in force", || pods[0].get("/v1/route/orders?key=u1")["lane"] == "canary");
    let mut client = pods[0].client();
    let answer = client.get("orders", "u1", "/").unwrap();
    assert_eq!((answer.status, answer.header("x-lanemesh-lane")), (200, "stable"), "{answer:?}");
    let post = b"POST / HTTP/1.1\r\nHost: orders\r\nx-user-id: u1\r\ncontent-length: 2\r\n\r\nhi";
    let answer = client.send(post).unwrap();
    assert_eq!((answer.status, answer.header("x-lanemesh-error")), (503, "no_instance"), "{answer:?}");
    assert!(answer.text().contains("lanemesh route"), "the cure: {}", answer.text());

    pods[0].must_cli(&["policy", "set", "orders", "--empty-unsafe", "fallback"]);
    wait("POST falls back now", || client.send(post).unwrap().status == 200);
    pods[0].must_cli(&["policy", "set", "orders", "--empty-safe", "fail"]);
    wait("GET fails now", || client.get("orders", "u1", "/").unwrap().status == 503);
    // The other direction: stable empty, canary serves only if the policy says so.
    pods[0].must_cli(&["instances", "set", "orders-1", "--lane", "canary"]);
    wait("canary is there", || client.get("orders", "u1", "/").unwrap().status == 200);
    pods[0].must_cli(&["policy", "set", "orders", "--canary", "0%", "--empty-safe", "fallback"]);
    wait("stable is empty", || client.get("orders", "u1", "/").unwrap().status == 503);
    pods[0].must_cli(&["policy", "set", "orders", "--empty-stable", "fallback"]);
    wait("canary serves for stable", || client.get("orders", "u1", "/").unwrap().status == 200);
    pods[0].must_cli(&["rollback", "orders"]);
    wait("after a rollback nobody is on canary, whatever it costs", || {
        client.get("orders", "u1", "/").unwrap().status == 503
    });
}

/// C25: admin API, command line, metrics and routing tell of a death and of a leave together.
#[test]
fn all_views_change_together() {
    let mesh = Mesh::new("prod");
    let mut pods = mesh.service("orders", 4);
    for (name, how) in [("orders-4", "down"), ("orders-3", "left")] {
        let mut victim = pods.pop().unwrap();
        let key = (0..).map(|n| format!("k{n}")).find(|key| routed(&pods[0], key) == name).unwrap();
        victim.app.take();
        if how == "down" {
            victim.kill9();
        } else {
            victim.signal(nix::sys::signal::Signal::SIGTERM);
        }
        let began = Instant::now();
        let mut seen: [Option<Duration>; 5] = [None; 5];
        wait(&format!("{name} {how} in all views"), || {
            let state = |list: &Value| {
                let found = list.as_array().into_iter().flatten().find(|member| member["node"] == name);
                found.is_some_and(|member| member["state"] == how)
            };
            let pod = &pods[0];
            let admin = pod.run().admin.to_string();
            let cli = || run(["members", "--all", "--json", "--admin", &admin]);
            let checks: [&dyn Fn() -> bool; 5] = [
                &|| state(&pod.get("/v1/members")),
                &|| state(&serde_json::from_slice(&cli().stdout).unwrap_or_default()),
                &|| {
                    let label = format!("state=\"{how}\"");
                    pod.metric("lanemesh_members", &[&label]).is_some_and(|count| count >= 1.0)
                },
                &|| !pod.candidates("orders").contains(name),
                &|| {
                    let answer = pod.client().get("orders", &key, "/").unwrap();
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    answer.header("x-lanemesh-instance") != name
                },
            ];
            for (check, at) in checks.iter().zip(&mut seen) {
                if at.is_none() && check() {
                    *at = Some(began.elapsed());
                }
            }
            seen.iter().all(Option::is_some)
        });
        let seen = seen.map(Option::unwrap);
        // Routing may know first (a refused connection, a drain before the goodbye); the views that people read go together.
        let (first, last) = (seen[..3].iter().min().unwrap(), seen[..3].iter().max().unwrap());
        let apart = *last - *first;
        within(&format!("{how}: members, command line and metrics apart"), apart, Duration::from_millis(300), 3);
        assert!(seen[3] <= *last + Duration::from_millis(1500), "{how}: routing hears last: {seen:?}");
        if how == "left" {
            assert_eq!(victim.await_exit().code(), Some(0));
        }
    }
}
