//! Failure signals between real sidecars (REQUIREMENTS M10), and rules that change while they run (R5, O7).

use std::fs;

use nix::sys::signal::Signal;

use crate::support::{
    Act, Upstream,
    process::{Mesh, Pod, wait},
};

const BUSY: &str = "HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy";

/// Three instances, `sick` among them, announced by one pod; and three pods that only send.
fn stage(mesh: &Mesh, sick: &Upstream, well: &[Upstream; 2]) -> Vec<Pod> {
    let mut owner = mesh.pod("owner", &["orders"]);
    for (id, up) in [("sick", sick), ("well-1", &well[0]), ("well-2", &well[1])] {
        owner.instance("orders", up.addr, &format!("id = \"{id}\"\ncheck = \"none\""));
    }
    let mut pods = vec![owner];
    pods.extend((0..3).map(|n| mesh.pod(&format!("shop-{n}"), &[])));
    crate::support::process::start_together(&mut pods);
    for pod in &pods {
        wait("three candidates", || pod.candidates("orders").len() == 3);
    }
    pods
}

/// Keys whose first instance is that one, on every sidecar.
fn keys_of<'a>(pod: &'a Pod, id: &'a str) -> impl Iterator<Item = String> + 'a {
    let first = move |key: &String| pod.get(&format!("/v1/route/orders?key={key}"))["failover"][0].as_str() == Some(id);
    (0..).map(|n| format!("k{n}")).filter(first)
}

#[test]
fn what_two_sidecars_saw_keeps_the_third_ones_users_away() {
    let sick = Upstream::start(|_, _| vec![Act::send(BUSY)]);
    let well = [(); 2].map(|()| Upstream::start(|_, _| vec![Act::ok("ok")]));
    let mesh = Mesh::new("prod");
    let pods = stage(&mesh, &sick, &well);
    let keys: Vec<String> = keys_of(&pods[1], "sick").take(4).collect();

    // One sidecar's failures, however many, are nobody else's.
    let mut client = pods[1].client();
    for _ in 0..3 {
        assert_eq!(client.get("orders", &keys[0], "/").unwrap().status, 200, "repeated at the next one");
    }
    wait("the first one's word is heard", || pods[3].get("/v1/signals")["observers"][0]["standing"] == "alone");
    assert_eq!(pods[3].get("/v1/signals")["doubts"], serde_json::json!([]));
    assert!(pods[3].must_cli(&["observe"]).contains("nobody else sees it: nothing follows"));

    // Two failures of a second one's users are enough for all.
    let mut client = pods[2].client();
    for key in &keys[..2] {
        assert_eq!(client.get("orders", key, "/").unwrap().status, 200);
    }
    wait("the third one keeps it away", || pods[3].get("/v1/signals")["doubts"][0]["instance"] == "sick");
    let before = sick.seen().len();
    let mut client = pods[3].client();
    for key in &keys {
        let post = format!("POST / HTTP/1.1\r\nhost: orders\r\nx-user-id: {key}\r\ncontent-length: 4\r\n\r\nonce");
        let answer = client.send(post.as_bytes()).unwrap();
        assert_eq!(answer.status, 200, "a POST is sent once, and met nothing");
        assert_ne!(answer.header("x-lanemesh-instance"), "sick");
    }
    assert_eq!(sick.seen().len(), before);
    let route = pods[3].must_cli(&["route", "orders", "--key", &keys[0]]);
    assert!(route.contains("skipped    sick: other sidecars saw it fail a moment ago"), "{route}");
    let said = pods[3].must_cli(&["observe"]);
    assert!(said.contains("kept away  sick of orders"), "{said}");
    assert_eq!(pods[3].metric("lanemesh_breaker_signalled_total", &[]), Some(1.0));
    wait("it is counted", || pods[3].metric("lanemesh_failure_signals_total", &["outcome=\"doubted\""]) == Some(1.0));
}

/// A breaker that stays open for long is told to be shorter, and the state of the instances is kept.
#[test]
fn a_hangup_changes_routing_rules_and_what_is_known_of_instances_stays() {
    let sick = Upstream::start(|_, _| vec![Act::send(BUSY)]);
    let well = [(); 2].map(|()| Upstream::start(|_, _| vec![Act::ok("ok")]));
    let mesh = Mesh::new("prod");
    let pods = stage(&mesh, &sick, &well);
    let key = keys_of(&pods[1], "sick").next().unwrap();
    let skipped = |pod: &Pod| pod.get(&format!("/v1/route/orders?key={key}"))["skipped"][0]["why"].clone();
    let mut client = pods[1].client();
    for _ in 0..3 {
        client.get("orders", &key, "/").unwrap();
    }
    assert_eq!(skipped(&pods[1]), "breaker-open");
    let file = pods[1].dir.join("lanemesh.toml");
    let text =
        fs::read_to_string(&file).unwrap() + "\n[routing]\nbreaker_max_share = 0.0\nbalance = \"least-loaded\"\n";
    fs::write(&file, text).unwrap();
    pods[1].signal(Signal::SIGHUP);
    wait("the reload", || pods[1].log().contains("configuration read again"));
    assert!(!pods[1].log().contains("only the next start takes it"), "{}", pods[1].log());
    assert_eq!(pods[1].get("/v1/ring/orders")["lanes"][0]["instances"][0]["breaker"], "open", "its state is kept");
    // By load, every key goes anywhere.
    let mut seen = std::collections::BTreeSet::new();
    wait("the new rules", || {
        seen.insert(client.get("orders", &key, "/").unwrap().header("x-lanemesh-instance").to_owned());
        seen.len() == 2
    });
}
