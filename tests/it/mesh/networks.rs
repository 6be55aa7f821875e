//! Other networks than IPv4 loopback: IPv6, and (as root, with `ip`) namespaces whose links go down.

use std::{
    fs::File,
    net::{IpAddr, SocketAddr, UdpSocket},
    process::Command,
    time::{Duration, Instant},
};

use nix::sched::CloneFlags;
use serde_json::json;

use crate::{
    skip::{skip, works},
    support::{
        load::{Load, failures},
        process::{App, Mesh, Pod, measured, start_together, wait},
    },
};

#[test]
fn a_mesh_on_ipv6() {
    if UdpSocket::bind("[::1]:0").is_err() {
        return skip("a_mesh_on_ipv6", "this machine has no IPv6 loopback address ([::1])");
    }
    let mesh = Mesh::new("prod");
    let mut pods: Vec<Pod> = (1..=3).map(|at| mesh.pod(&format!("n{at}"), &["orders"])).collect();
    for pod in &mut pods {
        pod.gossip = "[::1]:0".parse().unwrap();
        let app = App::on("[::1]:0".parse().unwrap(), &pod.name, "v1");
        pod.instance("orders", app.addr, "check = \"http:/\"");
        pod.app = Some(app);
        pod.flags = ["--proxy", "[::1]:0", "--admin", "[::1]:0"].map(str::to_owned).into();
    }
    start_together(&mut pods);
    for pod in &pods {
        wait("all three", || pod.candidates("orders").len() == 3);
        let mut client = pod.client();
        for n in 0..20 {
            assert_eq!(client.get("orders", &format!("u{n}"), "/").unwrap().status, 200);
        }
        assert!(pod.must_cli(&["members"]).contains("[::1]:"));
    }
    assert_eq!(pods.remove(2).stop(), Some(0));
    wait("it has left", || pods.iter().all(|pod| pod.state_of("n3") == "left"));
}

/// Two network namespaces joined by a cable; removed when dropped.
pub(super) struct Namespaces {
    pub(super) names: [String; 2],
    pub(super) links: [String; 2],
}

pub(super) fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Namespaces {
    /// `tag`, one letter, keeps apart those of tests that run at the same time.
    pub(super) fn new(tag: char) -> Self {
        let pid = std::process::id();
        let names = ["a", "b"].map(|side| format!("lm{pid}{tag}{side}"));
        let links = ["a", "b"].map(|side| format!("lv{pid}{tag}{side}"));
        let made = Self { names, links };
        for name in &made.names {
            ip(&format!("netns add {name}"));
        }
        let [(a, la), (b, lb)] = [0, 1].map(|at| (&made.names[at], &made.links[at]));
        ip(&format!("link add {la} netns {a} type veth peer name {lb} netns {b}"));
        for at in 0..2 {
            let (name, link) = (&made.names[at], &made.links[at]);
            ip(&format!("-n {name} addr add {}/24 dev {link}", address(at)));
            ip(&format!("-n {name} link set {link} up"));
            ip(&format!("-n {name} link set lo up"));
        }
        made
    }

    /// Unplugs or plugs the cable.
    fn cable(&self, up: bool) {
        ip(&format!("-n {} link set {} {}", self.names[0], self.links[0], if up { "up" } else { "down" }));
    }

    /// Runs something inside; sockets, processes and threads that it makes stay there.
    pub(super) fn inside<T: Send>(&self, at: usize, what: impl FnOnce() -> T + Send) -> T {
        inside(&self.names[at], what)
    }
}

/// Runs something in a namespace; sockets, processes and threads that it makes stay there.
pub(super) fn inside<T: Send>(name: &str, what: impl FnOnce() -> T + Send) -> T {
    let path = format!("/run/netns/{name}");
    std::thread::scope(|scope| {
        let run = scope.spawn(move || {
            let namespace = File::open(path).unwrap();
            // Of this thread alone, which ends with the closure.
            nix::sched::setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            what()
        });
        run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

pub(super) fn address(at: usize) -> IpAddr {
    format!("10.231.77.{}", at + 1).parse().unwrap()
}

/// A pod on one side, its application beside it; its proxy gives up on silence soon.
pub(super) fn pod(mesh: &Mesh, name: &str, at: usize, seeds: &[SocketAddr]) -> Pod {
    let mut pod = mesh.pod(name, &["orders"]);
    let addr = SocketAddr::new(address(at), 0);
    let app = App::on(addr, name, "v1");
    pod.instance("orders", app.addr, "check = \"http:/\"");
    pod.app = Some(app);
    pod.gossip = addr;
    pod.seeds = seeds.to_vec();
    let set = ["proxy.timeouts.connect=300ms", "proxy.timeouts.per_try=1s", "proxy.timeouts.total=8s"];
    pod.flags = set.iter().flat_map(|value| ["--set".to_owned(), (*value).to_owned()]).collect();
    pod.start();
    pod
}

/// Whether a node sees all of these alive, and routes to them.
pub(super) fn sees(pod: &Pod, count: usize) -> bool {
    pod.candidates("orders").len() == count && pod.members().values().filter(|state| *state == "alive").count() == count
}

/// A host falls silent (its cable is pulled): it is doubted, then down, while requests move on to the others. It comes back,
/// another joins it, the cable is pulled again while both sides go on changing things; after the heal they hold the same.
#[test]
fn a_pulled_cable_and_a_partition_that_heals() {
    if !works("ip", &["netns", "add", "lanemesh-probe"]) {
        return skip(
            "a_pulled_cable_and_a_partition_that_heals",
            "run as root on Linux with `ip` (iproute2) installed",
        );
    }
    ip("netns del lanemesh-probe");
    let world = Namespaces::new('p');
    let mesh = Mesh::new("prod");
    let mut here: Vec<Pod> = Vec::new();
    world.inside(0, || {
        for at in 1..=4 {
            let seeds: Vec<SocketAddr> = here.first().map(|pod| pod.run().gossip).into_iter().collect();
            here.push(pod(&mesh, &format!("a{at}"), 0, &seeds));
        }
    });
    let seed = here[0].run().gossip;
    let mut there = vec![world.inside(1, || pod(&mesh, "b1", 1, &[seed]))];
    let all_see = |here: &[Pod], there: &[Pod]| {
        let count = here.len() + there.len();
        let all = |pods: &[Pod]| wait("all alive and routed to", || pods.iter().all(|pod| sees(pod, count)));
        world.inside(0, || all(here));
        world.inside(1, || all(there));
    };
    all_see(&here, &there);

    world.inside(0, || {
        let load = Load::start(here[0].run().proxy, "orders", 200);
        load.run_for(100);
        world.cable(false);
        let pulled = Instant::now();
        wait("b1 is doubted everywhere", || here.iter().all(|pod| pod.state_of("b1") != "alive"));
        measured("pulled cable to doubted everywhere", pulled.elapsed(), Duration::from_millis(2500));
        wait("b1 is down everywhere", || here.iter().all(|pod| pod.state_of("b1") == "down"));
        measured("pulled cable to down everywhere", pulled.elapsed(), Duration::from_millis(5200));
        wait("no ring has it", || here.iter().all(|pod| !pod.candidates("orders").contains("b1")));
        load.run_for(100);
        let outcomes = load.finish();
        let failed = failures(&outcomes);
        assert!(failed.is_empty(), "{} of {}: {:#?}", failed.len(), outcomes.len(), &failed[..failed.len().min(5)]);
        let slowest = outcomes.iter().map(|o| o.to - o.from).max().unwrap();
        measured("slowest request meanwhile", slowest, Duration::from_secs(1));
    });
    world.inside(1, || {
        assert_eq!(there[0].state_of("b1"), "alive");
        let answer = there[0].client().get("orders", "u1", "/").unwrap();
        assert!(answer.status == 200, "the cut-off node serves what it can reach: {answer:?}");
    });
    world.cable(true);
    let healed = Instant::now();
    all_see(&here, &there);
    measured("plugged in to all alive everywhere", healed.elapsed(), Duration::from_secs(3));

    there.push(world.inside(1, || pod(&mesh, "b2", 1, &[seed])));
    all_see(&here, &there);
    world.cable(false);
    world.inside(0, || {
        here[1].must("PATCH", "/v1/policies/orders", &json!({ "sizes": { "canary": 700 }, "force": true }));
        here[1].must("PATCH", "/v1/instances/a2", &json!({ "weight": 77 }));
        wait("the other side is lost", || {
            here.iter().all(|pod| ["b1", "b2"].iter().all(|b| pod.state_of(b) == "down"))
        });
    });
    world.inside(1, || there[1].must("PATCH", "/v1/instances/b2", &json!({ "weight": 33 })));
    world.cable(true);
    let healed = Instant::now();
    all_see(&here, &there);
    measured("healed partition to all alive everywhere", healed.elapsed(), Duration::from_secs(3));
    let merged = |pod: &Pod| {
        let ring = pod.ring("orders");
        let policy = pod.get("/v1/policies/orders");
        ring["a2"].2 == 77 && ring["b2"].2 == 33 && policy["policy"]["lanes"]["canary"]["size"] == 700
    };
    world.inside(0, || wait("what changed meanwhile", || here.iter().all(merged)));
    world.inside(1, || wait("what changed meanwhile", || there.iter().all(merged)));
    measured("healed partition to one view", healed.elapsed(), Duration::from_secs(3));
}
