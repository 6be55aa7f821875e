//! SIGHUP: what can change in a running sidecar does, what cannot is said, and a file with faults changes nothing (O7, C102).

use std::fs;

use nix::sys::signal::Signal;

use crate::support::process::{App, Mesh, Pod, wait};

use super::together::everywhere;

/// Rewrites the pod's file, sends SIGHUP, and waits until that was dealt with.
fn reload(pod: &Pod, edit: impl FnOnce(String) -> String) -> String {
    let file = pod.dir.join("lanemesh.toml");
    fs::write(&file, edit(fs::read_to_string(&file).unwrap())).unwrap();
    let before = pod.log();
    pod.signal(Signal::SIGHUP);
    let said = || pod.log().split_off(before.len());
    wait("the reload is over", || {
        said().contains("configuration read again") || said().contains("the configuration in force stays")
    });
    said()
}

#[test]
fn a_hangup_puts_the_file_in_force_without_a_restart() {
    let mesh = Mesh::new("prod");
    let mut pods = mesh.service("orders", 2);
    let log = pods[0].dir.join("requests");
    pods[0].stop();
    pods[0].flags = ["--set".into(), format!("access_log.path={}", log.display())].into();
    pods[0].flags.extend(["--set".into(), "access_log.sample=1.0".into()]);
    pods[0].start();
    everywhere("two candidates", &pods, |pod| pod.candidates("orders").len() == 2);
    let pid = pods[0].pid();
    // A connection from before the reload follows the new settings as well.
    let mut client = pods[0].client();
    let mut told = || client.get("orders", "u1", "/").unwrap().header("x-lanemesh-instance").to_owned();
    assert!(!told().is_empty());
    let lines = |path: &std::path::Path| fs::read_to_string(path).unwrap_or_default().lines().count();
    wait("a line", || lines(&log) == 1);

    let extra = App::start("extra", "v2");
    let rotated = pods[0].dir.join("requests.1");
    fs::rename(&log, &rotated).unwrap();
    let said = reload(&pods[0], |text| {
        let (host, port) = (extra.addr.ip(), extra.addr.port());
        text.replace("expose_decision = true", "expose_decision = false\nworkers = 1")
            .replace("version = \"v1\"", "version = \"v1\"\nweight = 50")
            + &format!("[[instance]]\nid = \"extra\"\nservice = \"orders\"\nhost = \"{host}\"\nport = {port}\n")
    });
    assert!(said.contains("proxy.workers") && !said.contains("proxy.bind"), "what needs a restart is named: {said}");
    everywhere("weight and a further instance", &pods, |pod| {
        let ring = pod.ring("orders");
        ring.get("orders-1").is_some_and(|i| i.2 == 50) && ring.contains_key("extra")
    });
    wait("no decision told any more", || told().is_empty());
    wait("lines in a new file", || lines(&log) > 0);
    assert!(lines(&rotated) >= 1);

    // What operators order meanwhile stands where the file says nothing new.
    pods[0].must_cli(&["instances", "set", "extra", "--weight", "70"]);
    let said = reload(&pods[0], |text| text.replace("expose_decision = false", "expose_decision = true"));
    assert!(!said.contains("announced"), "{said}");
    wait("decisions told again", || !told().is_empty());
    assert_eq!(pods[0].instances()["extra"]["record"]["weight"], 70);

    let said = reload(&pods[0], |text| text.replace("weight = 50", "weight = 5000\nlane = 7"));
    assert!(said.contains("lanemesh.toml:") && said.contains("weight") && said.contains("lane"), "every fault: {said}");
    assert_eq!(pods[0].instances()["orders-1"]["record"]["weight"], 50);
    assert!(!told().is_empty());

    reload(&pods[0], |text| {
        let text = text.replace("weight = 5000\nlane = 7", "weight = 50");
        text[..text.rfind("[[instance]]").unwrap()].to_owned()
    });
    everywhere("withdrawn", &pods, |pod| !pod.candidates("orders").contains("extra"));
    // What an editor or a full disk cut short is no wish to withdraw everything.
    let said = reload(&pods[0], |_| String::new());
    assert!(said.contains("stays"), "{said}");
    assert!(pods[1].candidates("orders").contains("orders-1"));
    assert_eq!(pods[0].pid(), pid);
    assert_eq!(pods[0].instances()["orders-1"]["record"]["generation"], pods[0].get("/v1/info")["generation"]);
}
