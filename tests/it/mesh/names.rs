//! Who may speak as whom: mesh names, authorities, services of a certificate, two processes with one name.

use std::time::Duration;

use serde_json::json;

use crate::support::process::{Mesh, Pod, lanemesh, said, wait};

/// Something that must not happen is given this long: several rounds of everything that would bring it about.
const LONG_ENOUGH: Duration = Duration::from_secs(2);

fn stays(what: &str, holds: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while began.elapsed() < LONG_ENOUGH {
        assert!(holds(), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// C16: one authority directory per mesh name; here the same authority's key signs for both, as when an environment is copied.
/// And an authority that nobody knows. Both are turned away in the handshake, with the reason in the log.
#[test]
fn meshes_never_mix() {
    let (prod, stage) = (Mesh::new("prod"), Mesh::new("stage"));
    let mut pods = prod.service("orders", 2);
    let mut theirs = stage.service("billing", 2);
    // Of mesh `stage`, but it trusts both authorities, and so does what it dials: only the name is left to tell them apart.
    let trust_both = |pod: &Pod| {
        let own = std::fs::read_to_string(pod.dir.join("ca.pem")).unwrap();
        let both: Vec<String> =
            [&prod, &stage].map(|mesh| std::fs::read_to_string(mesh.dir.path().join("ca/ca.pem")).unwrap()).into();
        assert!(both.contains(&own));
        std::fs::write(pod.dir.join("ca.pem"), both.concat()).unwrap();
    };
    let mut lost = stage.pod("lost", &["orders"]);
    trust_both(&lost);
    trust_both(&pods[1]);
    let (app, seed) = (pods[0].app.as_ref().unwrap().addr, pods[0].run().gossip);
    pods[1].kill9();
    pods[1].start();
    lost.instance("orders", app, "check = \"none\"");
    lost.seeds = vec![pods[1].run().gossip, seed, theirs[0].run().gossip];
    // It finds its own mesh, though two of its three seeds are of another.
    lost.start();
    wait("the lost one is in its own mesh", || theirs[1].state_of("lost") == "alive");

    stays("no mesh has members of the other", || {
        let ours = pods.iter().all(|pod| pod.members().keys().all(|name| name.starts_with("orders-")));
        let others = theirs.iter().all(|pod| pod.members().keys().all(|name| !name.starts_with("orders-")));
        ours && others && pods[0].instances().keys().all(|id| id.starts_with("orders-"))
    });
    // Towards the one that trusts both authorities the mesh name decides; towards the other the authority.
    wait("the reasons are in the log", || {
        let log = lost.log();
        log.contains("belongs to mesh `prod`, this one is mesh `stage`")
            && log.matches("handshake refused").count() >= 2
    });
    wait("and counted", || lost.metric("lanemesh_handshakes_failed_total", &[]).is_some_and(|count| count >= 2.0));

    // A member of `stage` takes over the address of one of `prod`.
    let address = pods[1].run().gossip;
    pods[1].kill9();
    theirs[1].kill9();
    theirs[1].gossip = address;
    theirs[1].start();
    wait("stage has its member back at the new address", || theirs[0].state_of("billing-2") == "alive");
    stays("prod does not take it in", || pods[0].members().keys().all(|name| name.starts_with("orders-")));
    // And its own member comes back elsewhere.
    pods[1].new_port();
    pods[1].start();
    wait("prod is two again", || pods[0].state_of("orders-2") == "alive");
}

/// A service that the certificate does not list is refused where it is typed: in the configuration, and at run time.
#[test]
fn a_service_outside_of_the_certificate_is_refused_with_the_cure() {
    let mesh = Mesh::new("prod");
    let mut pods = mesh.service("orders", 2);
    let answer = pods[0].order(
        "POST",
        "/v1/instances",
        &json!({ "id": "x", "service": "payments", "host": "127.0.0.1", "port": 9, "version": "v1", "check": "none" }),
    );
    assert_eq!(answer.status, 422, "{}", answer.text());
    assert!(answer.text().contains("lanemesh ca issue --node orders-1 --service payments"), "{}", answer.text());
    pods[1].kill9();
    let app = pods[1].app.as_ref().unwrap().addr;
    pods[1].instance("payments", app, "id = \"p\"\ncheck = \"none\"");
    pods[1].start();
    wait("the log names the cure", || pods[1].log().contains("lanemesh ca issue --node orders-2 --service payments"));
    stays("nobody knows the service", || pods[0].instances().len() == 2 && !pods[0].instances().contains_key("p"));
    wait("what it may announce is announced", || pods[0].candidates("orders").len() == 2);
}

/// M6: two live processes with one name: the newcomer ends with code 4, the old one serves on, both say why. And two processes
/// on one data directory.
#[test]
fn of_two_with_one_name_the_newcomer_is_refused() {
    let mesh = Mesh::new("prod");
    let mut pods = mesh.service("orders", 3);
    let generation = |pod: &Pod| pod.get("/v1/info")["generation"].clone();
    let before = generation(&pods[1]);
    // Seeded by a third party, and by the very process whose name it has.
    for seed in [0, 1] {
        let mut twin = mesh.twin(&pods[1]);
        twin.seeds = vec![pods[seed].run().gossip];
        twin.spawn();
        assert_eq!(twin.await_exit().code(), Some(4), "{}", twin.log());
        let log = twin.log();
        assert!(log.contains("another live process has this node's name"), "{log}");
        assert!(log.contains("Give each process its own certificate"), "{log}");
        assert!(!twin.data_dir().join("run.json").exists(), "nothing runs there");
    }
    wait("the old one reports it", || pods[1].log().contains("another process claims this node's name"));
    assert!(pods[1].log().contains("give it a certificate of its own"));
    wait("and counts it", || pods[1].metric("lanemesh_name_claims_total", &[]).is_some_and(|count| count >= 1.0));
    stays("nobody flaps", || {
        pods.iter().all(|pod| pod.state_of("orders-2") == "alive" && pod.candidates("orders").len() == 3)
    });
    assert_eq!(generation(&pods[1]), before, "the old one did not have to move");

    let second = lanemesh(pods[1].arguments()).output().unwrap();
    assert_eq!(second.status.code(), Some(1), "{}", said(&second));
    assert!(said(&second).contains("is in use by another lanemesh process"), "{}", said(&second));
    assert!(pods[1].data_dir().join("run.json").exists(), "the refused one leaves the other's files alone");
    pods[1].kill9();
    pods[1].start();
    wait("a true restart is welcome", || pods[0].candidates("orders").len() == 3);
}
