//! `route`, asked of one sidecar and of all of them.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::process::{App, Mesh, Pod, said, wait};

use super::together::everywhere;

fn json(pod: &Pod, arguments: &[&str]) -> Value {
    let output = pod.cli(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// One answer per node; what breakers, policies and views make different is named, and who is silent too.
#[test]
fn every_node_is_asked_and_differences_are_named() {
    let mesh = Mesh::new("prod");
    let mut pods = mesh.service("orders", 3);
    let canary = App::start("orders-canary", "v2");
    let mut pod = mesh.pod("orders-4", &["orders"]);
    pod.instance("orders", canary.addr, "version = \"v2\"\nlane = \"canary\"");
    pod.seeds = vec![pods[0].run().gossip];
    pod.app = Some(canary);
    pod.start();
    pods.push(pod);
    everywhere("all candidates", &pods, |pod| pod.candidates("orders").len() == 4);
    let answer = pods[0].must_cli(&["policy", "set", "orders", "--rule", "canary:header:x-beta=1,path:/v2"]);
    assert!(answer.contains("canary  header:x-beta=1, path:/v2"), "{answer}");
    everywhere("the policy", &pods, |pod| pod.get("/v1/policies")[0]["policy"]["rules"].as_array().is_some());

    let beta = ["route", "orders", "--key", "u1", "--header", "X-Beta: 1", "--path", "/v2/carts", "--mesh"];
    wait("all answer the same", || {
        let answers = json(&pods[0], &beta)["answers"].as_array().unwrap().clone();
        let same = |answer: &Value| {
            answer["differences"].as_array().unwrap().is_empty()
                && answer["explanation"]["instance"]["id"] == "orders-4"
        };
        answers.len() == 4 && answers.iter().all(same)
    });
    let text = pods[1].must_cli(&beta);
    assert!(text.contains("lane       canary: rule 1 of the policy matches: header:x-beta=1, path:/v2"), "{text}");
    assert!(text.ends_with("all 4 nodes answer the same\n"), "{text}");
    let plain = json(&pods[1], &["route", "orders", "--header", "x-user-id: u1"]);
    assert_eq!((&plain["subject"], &plain["lane"]), (&"u1".into(), &"stable".into()));

    // Its process stands still: it says nothing, and the command says so in time.
    pods[3].pause();
    let text = pods[0].must_cli(&beta);
    assert!(text.contains("3 answer as orders-1, 0 differ, 1 did not answer") && text.contains("orders-4: "), "{text}");
    pods[3].signal(Signal::SIGCONT);

    // One sidecar's breaker for the key's owner is open: only that one sends the key elsewhere.
    let route = ["route", "orders", "--key", "u1", "--mesh"];
    let target = |answer: &Value| answer["explanation"]["instance"]["id"].as_str().unwrap_or("none").to_owned();
    let owner = target(&json(&pods[0], &route)["answers"][0]);
    let at = pods.iter().position(|pod| pod.name == owner).unwrap();
    let asker = (at + 1) % 3;
    pods[at].app.as_mut().unwrap().kill9();
    let proxy = pods[asker].run().proxy;
    let mut http = crate::support::http::Http::new(proxy);
    wait("a request that meets the dead application", || {
        let answer = http.get("orders", "u1", "/").unwrap();
        answer.status == 200 && answer.header("x-lanemesh-instance") != owner
    });
    wait("it is left out or passed over everywhere, and the difference has its reason until then", || {
        let answers = json(&pods[asker], &route)["answers"].as_array().unwrap().clone();
        let told = |answer: &Value| !answer["differences"].as_array().unwrap().is_empty();
        answers.iter().all(|answer| answer["fault"].is_null() && (target(answer) != owner || told(answer)))
            && answers.iter().all(|answer| target(answer) != owner)
    });
}
