//! Lanes as an operator lays them out: reserves, selectors, pins, and room for a lost lane (REQUIREMENTS L5, L7, R8).

use serde_json::Value;

use crate::support::process::{App, Mesh, Pod, said, wait};

use super::together::everywhere;

/// A mesh of three `orders` of stable, the last of another version, and the sidecar of a caller with rules of its own.
fn three(mesh: &Mesh, flags: &[&str]) -> (Vec<Pod>, Pod) {
    let mut pods = mesh.service("orders", 2);
    let app = App::start("orders-3", "v2.1");
    let mut pod = mesh.pod("orders-3", &["orders"]);
    pod.instance("orders", app.addr, "version = \"v2.1\"\ntags = { track = \"beta\" }\ncapacity = 100");
    pod.seeds = vec![pods[0].run().gossip];
    pod.app = Some(app);
    pod.start();
    pods.push(pod);
    let mut shop = mesh.pod("shop-1", &["shop"]);
    shop.no_instances();
    shop.seeds = vec![pods[0].run().gossip];
    shop.flags.extend(flags.iter().flat_map(|flag| ["--set".to_owned(), (*flag).to_owned()]));
    shop.start();
    wait("all candidates", || shop.candidates("orders").len() == 3);
    (pods, shop)
}

fn served(pod: &Pod, user: &str) -> (String, String) {
    let answer = pod.client().get("orders", user, "/").unwrap();
    (answer.header("x-lanemesh-lane").to_owned(), answer.header("x-lanemesh-instance").to_owned())
}

#[test]
fn instances_are_of_a_lane_for_their_version_and_lanes_keep_their_buckets_free() {
    let mesh = Mesh::new("prod");
    let (pods, shop) = three(&mesh, &[]);
    let refused = |arguments: &[&str], part: &str| {
        let output = shop.cli(arguments);
        assert!(!output.status.success() && said(&output).contains(part), "{arguments:?}: {}", said(&output));
    };
    let set = ["policy", "set", "orders"];
    let with = |more: &[&'static str]| [&set[..], more].concat();
    refused(&with(&["--canary", "5%"]), "no instance of `orders` serves lane `canary`");
    refused(&with(&["--select", "canary:version:v*"]), "would take every instance of `orders` from stable");
    let shown = pods[0].must_cli(&with(&[
        "--reserve",
        "canary=20%",
        "--select",
        "canary:version:v2*,tag:track=beta",
        "--canary",
        "20%",
    ]));
    assert!(shown.contains("0 to 1999 of 0 to 1999"), "{shown}");
    assert!(shown.contains("canary  version:v2*, tag:track=beta"), "{shown}");
    everywhere("the selector", &pods, |pod| pod.get("/v1/services")[0]["lanes"]["canary"]["candidates"] == 1);
    wait("the caller too", || shop.get("/v1/services")[0]["lanes"]["canary"]["candidates"] == 1);
    let list = shop.must_cli(&["instances"]);
    assert!(list.contains("canary (selected)"), "{list}");
    assert_eq!(shop.get("/v1/instances?lane=canary").as_array().map(Vec::len), Some(1));
    for user in 0..60 {
        let user = format!("u{user}");
        let (lane, instance) = served(&shop, &user);
        assert_eq!(lane == "canary", instance == "orders-3", "{user}: {lane} by {instance}");
    }
    refused(&with(&["--canary", "21%"]), "2000 are reserved for it");
    pods[1].must_cli(&with(&["--lane", "beta=1%", "--force"]));
    wait("it is known", || shop.get("/v1/policies/orders")["policy"]["lanes"]["beta"]["start"] == 2_000);
    refused(&with(&["--reserve", "canary=21%"]), "lane `beta` begins at bucket 2000");

    // A rollback sends everybody to stable, of which the other version is no part.
    shop.must_cli(&["rollback", "orders"]);
    wait("nobody is on canary", || (0..60).all(|user| served(&shop, &format!("u{user}")).0 == "stable"));
    assert!((0..60).all(|user| served(&shop, &format!("u{user}")).1 != "orders-3"));
    shop.must_cli(&with(&["--unselect", "canary"]));
    wait("it is of stable again", || shop.get("/v1/services")[0]["lanes"]["stable"]["candidates"] == 3);
}

#[test]
fn a_pinned_key_goes_to_its_instance_and_on_when_that_is_gone() {
    let mesh = Mesh::new("prod");
    let (mut pods, shop) = three(&mesh, &["routing.pin=tenant-7=orders-2+orders-9"]);
    let order = |key: &str| -> Vec<String> {
        let answer = shop.get(&format!("/v1/route/orders?key={key}"));
        answer["failover"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((order("tenant-7")[0].as_str(), served(&shop, "tenant-7").1.as_str()), ("orders-2", "orders-2"));
    let text = shop.must_cli(&["route", "orders", "--key", "tenant-7"]);
    assert!(text.contains("its key is pinned: orders-2, orders-9 before all others"), "{text}");
    assert!(text.contains("of those, nobody announces orders-9\n"), "{text}");
    let next = order("tenant-7")[1].clone();
    pods[1].app.as_mut().unwrap().kill9();
    assert_eq!(served(&shop, "tenant-7").1, next, "at once");
    // Whoever has no pin sends it by the ring alone, and the difference is named.
    let answers = shop.must_cli(&["route", "orders", "--key", "tenant-7", "--mesh", "--json"]);
    let answers: Value = serde_json::from_str(&answers).unwrap();
    assert_eq!(answers["answers"].as_array().map(Vec::len), Some(4), "{answers}");
}
