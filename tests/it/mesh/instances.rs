//! Instances at run time: registering, withdrawing, draining, checking, and how large they may be.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{
    Act, Upstream,
    load::{Load, failures},
    process::{App, Mesh, Pod, run, said, wait, within},
};

use super::together::everywhere;

fn new(id: &str, addr: std::net::SocketAddr, check: &str) -> Value {
    json!({
        "id": id, "service": "orders", "host": addr.ip().to_string(), "port": addr.port(), "version": "v1", "check": check,
    })
}

/// C28: an instance that is withdrawn stays withdrawn, whatever its checks say at that moment.
#[test]
fn what_was_withdrawn_never_comes_back_by_itself() {
    let mesh = Mesh::new("prod");
    let pods = mesh.service("orders", 3);
    let app = App::start("x", "v1");
    for round in 0..50_u32 {
        pods[0].must("POST", "/v1/instances", &new("x", app.addr, "http:/"));
        // Before, at and after the first results of the check, which come within milliseconds.
        std::thread::sleep(Duration::from_millis(u64::from(round * 7 % 40)));
        pods[0].must("DELETE", "/v1/instances/x", &json!({}));
        assert_eq!(pods[0].excluded("x"), "absent");
    }
    everywhere("the last withdrawal", &pods, |pod| pod.excluded("x") == "absent");
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2500) {
        for pod in &pods {
            assert_eq!(pod.excluded("x"), "absent", "it came back at {}", pod.name);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let answer = pods[0].order("DELETE", "/v1/instances/x", &json!({}));
    assert_eq!(answer.status, 404, "{}", answer.text());
    pods[0].must("POST", "/v1/instances", &new("x", app.addr, "http:/"));
    everywhere("registered anew, it serves", &pods, |pod| pod.candidates("orders").contains("x"));
}

/// C88: announced at once, routed to only when its application answers.
#[test]
fn a_canary_that_is_not_ready_gets_nothing() {
    let mesh = Mesh::new("prod");
    let pods = mesh.service("orders", 2);
    let mut shop = mesh.pod("shop", &[]);
    shop.seeds = vec![pods[0].run().gossip];
    shop.start();
    wait("the shop routes", || shop.candidates("orders").len() == 2);
    let half = json!({ "sizes": { "canary": 5000 }, "force": true, "reason": "test" });
    shop.must("PATCH", "/v1/policies/orders", &half);
    let load = Load::start(shop.run().proxy, "orders", 200);
    let addr = Upstream::refusing();
    let mut canary = new("c1", addr, "http:/");
    canary["lane"] = json!("canary");
    pods[0].must("POST", "/v1/instances", &canary);
    wait("announced", || shop.excluded("c1") == "critical");
    load.run_for(200);
    let ready = Instant::now();
    let listener = TcpListener::bind(addr).unwrap();
    // Any HTTP answer will do.
    let served = Upstream::on(listener, |_, _| vec![Act::ok("canary")]);
    let took = wait("it takes traffic", || shop.candidates("orders").contains("c1"));
    within("from listening to candidate", took, Duration::from_secs(3), 5);
    load.run_for(200);
    let outcomes = load.finish();
    let failed = failures(&outcomes);
    assert!(failed.is_empty(), "{} of {} failed: {:#?}", failed.len(), outcomes.len(), &failed[..failed.len().min(5)]);
    assert!(outcomes.iter().all(|o| o.instance != "c1" || o.to > ready), "nothing before it listened");
    let tail = &outcomes[outcomes.len() - 150..];
    let share = tail.iter().filter(|o| o.instance == "c1").count();
    assert!((35..115).contains(&share), "{share} of 150 at 50 %");
    assert!(!served.seen().is_empty());
}

/// C95: an operator's drain stands whatever happens to the instance, until an operator takes it back.
#[test]
fn a_drain_survives_everything_but_undrain() {
    let mesh = Mesh::new("prod");
    let mut pods = mesh.service("orders", 3);
    let app = pods[1].app.as_ref().unwrap().addr;
    pods[1].must_cli(&["drain", "orders-2", "--reason", "disk swap", "--by", "ann"]);
    let out = |pod: &Pod| pod.excluded("orders-2") == "draining" && !pod.candidates("orders").contains("orders-2");
    let took = everywhere("drained", [&pods[0], &pods[2]], out);
    within("a drain in every snapshot", took, Duration::from_millis(400), 5);
    let stays = |pods: &[Pod], what: &str| {
        everywhere(what, pods, |pod| {
            let candidates = pod.candidates("orders");
            assert!(!candidates.contains("orders-2"), "{what} put it back at {}", pod.name);
            out(pod)
        });
    };

    pods[1].must("POST", "/v1/instances", &new("orders-2", app, "http:/"));
    stays(&pods, "registering it again");
    pods[1].must("PATCH", "/v1/instances/orders-2", &json!({ "weight": 5 }));
    everywhere("the weight", &pods, |pod| pod.instances()["orders-2"]["record"]["weight"] == 5);
    stays(&pods, "a weight");
    pods[1].app.as_mut().unwrap().kill9();
    let health = |pod: &Pod| pod.instances()["orders-2"]["record"]["health"].clone();
    everywhere("critical", &pods, |pod| health(pod) == "critical");
    pods[1].app.as_mut().unwrap().restart("v1");
    everywhere("passing", &pods, |pod| health(pod) == "passing");
    stays(&pods, "health down and up");
    pods[1].signal(Signal::SIGHUP);
    wait("the file was read again", || pods[1].log().contains("configuration read again"));
    stays(&pods, "a reload");
    for how in ["kill -9", "SIGTERM"] {
        if how == "kill -9" {
            pods[1].kill9();
        } else {
            assert_eq!(pods[1].stop(), Some(0));
        }
        pods[1].start();
        everywhere("passing", &pods, |pod| pod.instances().contains_key("orders-2") && health(pod) == "passing");
        stays(&pods, how);
    }
    let shown = pods[0].must_cli(&["instances", "--service", "orders"]);
    assert!(shown.contains("ann") && shown.contains("disk swap"), "{shown}");
    pods[1].must_cli(&["undrain", "orders-2"]);
    everywhere("back", &pods, |pod| pod.candidates("orders").contains("orders-2"));
}

/// C15: metadata of any size is carried whole or refused with the limit; nothing is cut, nothing crashes.
#[test]
fn metadata_arrives_whole_or_is_refused() {
    let mesh = Mesh::new("prod");
    let pods = mesh.service("orders", 3);
    let addr = Upstream::refusing();
    let register = |tags: Value| {
        let mut order = new("tagged", addr, "none");
        order["tags"] = tags;
        pods[0].order("POST", "/v1/instances", &order)
    };
    let held = |pod: &Pod| pod.instances().get("tagged").map(|instance| instance["record"]["tags"].clone());
    let mut last = json!(null);
    for (size, carried) in
        [(511, true), (512, true), (513, true), (1200, true), (4096, true), (65_536, false), (1 << 20, false)]
    {
        let value: String = (0..size).map(|at| char::from(b'a' + (at % 26) as u8)).collect();
        let answer = register(json!({ "blob": value }));
        assert_eq!(answer.status == 201, carried, "{size}: {} {}", answer.status, answer.text());
        if carried {
            last = json!({ "blob": value });
            everywhere(&format!("{size} bytes"), &pods, |pod| held(pod).as_ref() == Some(&last));
        } else {
            assert!(matches!(answer.status, 413 | 422), "{size}: {}", answer.status);
            let text = answer.text();
            assert!(["4096", "8192", "8 KiB", "65536"].iter().any(|limit| text.contains(limit)), "{size}: {text}");
        }
    }
    // Two values that fit, one record that does not: limit and actual size are named.
    let answer = register(json!({ "a": "x".repeat(4096), "b": "y".repeat(4096) }));
    assert_eq!(answer.status, 422, "{}", answer.text());
    assert!(answer.text().contains("at most 8192") && answer.text().contains("bytes"), "{}", answer.text());
    for bad in [json!({ "a\nb": "1" }), json!({ "a": "x\u{0}y" }), json!({ "": "1" })] {
        let answer = register(bad.clone());
        assert_eq!(answer.status, 422, "{bad}: {}", answer.text());
    }
    for pod in &pods {
        assert_eq!(held(pod).as_ref(), Some(&last), "what was refused changed nothing at {}", pod.name);
    }
    let odd = json!({ "größe": "æøå ✓", "empty": "", "a=b;c": "\"quoted\" \\ back" });
    assert_eq!(register(odd.clone()).status, 201);
    everywhere("UTF-8, empty and quotes", &pods, |pod| held(pod).as_ref() == Some(&odd));
    // Many of the largest, as one joiner needs them all.
    let mut joiner = mesh.pod("late", &[]);
    joiner.seeds = vec![pods[1].run().gossip];
    for at in 0..20 {
        let mut order = new(&format!("big-{at}"), addr, "none");
        order["tags"] = json!({ "a": "x".repeat(4096), "b": "y".repeat(3600) });
        let answer = pods[0].order("POST", "/v1/instances", &order);
        assert_eq!(answer.status, 201, "{}", answer.text());
    }
    joiner.start();
    let all: Vec<String> = (0..20).map(|at| format!("big-{at}")).collect();
    everywhere("160 KB of metadata", pods.iter().chain([&joiner]), |pod| {
        let instances = pod.instances();
        all.iter().all(|id| instances.get(id).is_some_and(|i| i["record"]["tags"]["b"] == "y".repeat(3600)))
    });
}

/// The application dies, its sidecar lives: out of every snapshot soon. Then drains that keep a minimum.
#[test]
fn a_dead_application_is_critical_everywhere_and_drains_keep_a_minimum() {
    let mesh = Mesh::new("prod");
    let mut pods = mesh.service("orders", 3);
    let died = Instant::now();
    pods[2].app.as_mut().unwrap().kill9();
    everywhere("critical", &pods, |pod| {
        pod.excluded("orders-3") == "critical" && !pod.candidates("orders").contains("orders-3")
    });
    within("a dead application critical in every snapshot", died.elapsed(), Duration::from_secs(2), 5);
    assert!(pods.iter().all(|pod| pod.state_of("orders-3") == "alive"), "its sidecar lives");

    // orders-2 is the only other one that is ready.
    let refused = pods[0].cli(&["drain", "--min-ready", "2"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("wait for the replacement"), "{}", said(&refused));
    assert!(pods[0].candidates("orders").contains("orders-1"), "nothing was changed");
    pods[0].must_cli(&["drain", "--min-ready", "1"]);
    everywhere("drained", &pods, |pod| pod.candidates("orders") == ["orders-2".to_owned()].into());

    // Waits for the replacement.
    let admin = pods[1].run().admin.to_string();
    let waiting = std::thread::spawn(move || run(["drain", "--min-ready", "1", "--wait=25s", "--admin", &admin]));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!waiting.is_finished());
    pods[2].app.as_mut().unwrap().restart("v2");
    let done = waiting.join().unwrap();
    assert!(done.status.success(), "{}", said(&done));
    everywhere("the replacement serves", &pods, |pod| pod.candidates("orders") == ["orders-3".to_owned()].into());
}
