//! Operators' slips of the pen: an order that names what nobody knows is refused, and says what there is.

use serde_json::json;

use crate::support::process::{App, Mesh, said, wait};

use super::together::everywhere;

#[test]
fn an_order_about_something_unknown_is_refused_unless_forced() {
    let mesh = Mesh::new("prod");
    let pods = mesh.service("orders", 2);
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let output = pods[0].cli(arguments);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(words), "{arguments:?}: {text}");
    };
    refused(&["rollback", "ordres", "--reason", "incident"], 4, "orders");
    refused(&["policy", "set", "ordres", "--canary", "5%"], 4, "--force");
    refused(&["policy", "set", "orders", "--lane", "cannary=5%"], 1, "cannary");
    refused(&["policy", "set", "orders", "--subject", "header:x-request-id", "--force"], 1, "x-request-id");
    assert_eq!(pods[0].get("/v1/policies"), json!([]), "nothing was set");
    pods[0].must_cli(&["policy", "set", "orders", "--lane", "cannary=5%", "--force", "--reason", "comes later"]);
    // Less of it, or none, is never refused; neither is the way back.
    pods[0].must_cli(&["policy", "set", "orders", "--lane", "cannary=1%"]);
    pods[0].must_cli(&["rollback", "orders", "--reason", "test"]);
}

/// Two instances of one id share the users of one: the operator hears of it at both ends.
#[test]
fn an_id_that_another_node_announces_is_refused_or_said() {
    let mesh = Mesh::new("prod");
    let mut pods = mesh.service("orders", 2);
    let app = App::start("x", "v1");
    let order = json!({
        "id": "orders-2", "service": "orders", "host": app.addr.ip().to_string(), "port": app.addr.port(), "version": "v1",
    });
    let answer = pods[0].order("POST", "/v1/instances", &order);
    assert!(answer.status == 422, "{} {}", answer.status, answer.text());
    assert!(answer.text().contains("orders-2"), "{}", answer.text());
    everywhere("nothing has changed", &pods, |pod| pod.candidates("orders").len() == 2);

    // A copied file: both are told, since neither can know which one is meant.
    pods[0].stop();
    pods[0].instance("orders", app.addr, "id = \"orders-2\"");
    pods[0].start();
    for pod in &pods {
        wait(&format!("{} is warned", pod.name), || {
            pod.log().contains("another node announces an instance of this id")
        });
    }
}

/// The reason of a drain is what its operator said last.
#[test]
fn a_drain_can_be_explained_later() {
    let mesh = Mesh::new("prod");
    let pods = mesh.service("orders", 2);
    pods[0].must_cli(&["drain", "orders-1"]);
    pods[0].must_cli(&["drain", "orders-1", "--reason", "kernel update", "--by", "ann"]);
    pods[0].must_cli(&["drain", "orders-1"]);
    let drain = &pods[0].instances()["orders-1"]["record"]["drain"];
    assert_eq!((&drain["reason"], &drain["by"]), (&json!("kernel update"), &json!("ann")));
}
