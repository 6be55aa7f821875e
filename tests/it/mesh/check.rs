//! `lanemesh check` as an operator runs it: before a start and beside a running sidecar, on a mesh that is well and on those that are
//! not. Each fault gives exactly its FAIL, with the cure, and the exit code.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use lanemesh::{
    pki::{Authority, LeafRequest},
    types::{MeshName, NodeId, ServiceName, Wall},
};
use serde_json::{Value, json};

use crate::support::{
    Act, Upstream,
    process::{App, Mesh, Pod, run, said, start_together, wait},
};

/// What a check reported, and how it ended.
struct Checked {
    report: Value,
    exit: Option<i32>,
}

impl Checked {
    fn of(arguments: &[&str]) -> Self {
        let output = run(["check", "--json"].iter().chain(arguments));
        let report = serde_json::from_slice(&output.stdout);
        let report: Value = report.unwrap_or_else(|error| panic!("{arguments:?}: {error}: {}", said(&output)));
        let exit = output.status.code();
        assert_eq!(report["exit"].as_i64(), exit.map(i64::from), "{report:#}");
        Self { report, exit }
    }

    /// Of a pod's own file; its sidecar is found by what it wrote down.
    fn pod(pod: &Pod, more: &[&str]) -> Self {
        pod.arguments();
        let file = pod.dir.join("lanemesh.toml").display().to_string();
        Self::of(&[&["--config", &file][..], more].concat())
    }

    fn lines(&self) -> impl Iterator<Item = &Value> {
        self.report["checks"].as_array().into_iter().flatten()
    }

    fn names(&self, result: &str) -> Vec<&str> {
        self.lines().filter(|line| line["result"] == result).map(|line| line["name"].as_str().unwrap()).collect()
    }

    /// What was seen and the cure, of the only line with this result.
    fn only(&self, result: &str) -> (String, String, String) {
        let found: Vec<&Value> = self.lines().filter(|line| line["result"] == result).collect();
        let [line] = found[..] else { panic!("one {result} is expected: {:#}", self.report) };
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        (text("name"), text("seen"), text("cure"))
    }

    /// One FAIL and nothing else but what is well or could not be looked at.
    #[track_caller]
    fn fails(&self, name: &str, seen: &str, cure: &str) {
        let (found, text, mended) = self.only("fail");
        assert!(found == name && text.contains(seen), "{found}: {text}");
        assert!(mended.contains(cure), "{found}: {text}: {mended}");
        assert_eq!(self.exit, Some(1));
        assert_eq!(self.report["ok"], false);
    }
}

fn pods(mesh: &Mesh, count: usize) -> Vec<Pod> {
    let mut pods: Vec<Pod> = (1..=count).map(|at| pod(mesh, &format!("orders-{at}"))).collect();
    start_together(&mut pods);
    for pod in &pods {
        wait("each routes to all", || pod.candidates("orders").len() == count);
    }
    pods
}

fn pod(mesh: &Mesh, name: &str) -> Pod {
    let mut pod = mesh.pod(name, &["orders"]);
    let app = App::start(name, "v1");
    pod.instance("orders", app.addr, "version = \"v1\"\ncheck = \"http:/healthz\"");
    pod.app = Some(app);
    pod
}

#[test]
fn a_mesh_that_is_well_has_nothing_to_say_before_and_after_the_start() {
    let mesh = Mesh::new("prod");
    let mut pods = pods(&mesh, 2);
    let mut third = pod(&mesh, "orders-3");
    third.seeds = vec![pods[0].run().gossip];

    let before = Checked::pod(&third, &[]);
    assert_eq!(
        (before.exit, before.names("fail").len(), before.names("warn").len()),
        (Some(0), 0, 0),
        "{:#}",
        before.report
    );
    let offline = [
        "configuration.file",
        "configuration.warnings",
        "identity.files",
        "identity.key",
        "identity.chain",
        "identity.validity",
        "identity.names",
        "identity.modes",
        "ports.mesh",
        "ports.proxy",
        "ports.admin",
        "ports.services",
        "ports.tcp",
        "ports.exposure",
        "clock.sane",
        "seeds.resolve",
        "seeds.answer",
        "app.check",
    ];
    assert_eq!(before.names("ok"), offline);
    let answer = before.lines().find(|line| line["name"] == "seeds.answer").unwrap();
    assert_eq!(answer["seen"], format!("{} is `orders-1`", pods[0].run().gossip));
    assert_eq!(before.report["sidecar"], json!(null));
    let mut skipped = before.lines().filter(|line| line["result"] == "skip");
    assert!(
        skipped.all(|line| line["seen"].as_str().unwrap().contains("no sidecar answers at")),
        "{:#}",
        before.report
    );
    // Being called has done nothing to the seed, nor made the caller a member.
    assert_eq!(pods[0].state_of("orders-3"), "");

    third.start();
    pods.push(third);
    for pod in &pods {
        wait("each routes to all", || pod.candidates("orders").len() == 3);
    }
    let after = Checked::pod(&pods[2], &[]);
    let all: Vec<&str> = after.lines().map(|line| line["name"].as_str().unwrap()).collect();
    assert_eq!((after.exit, after.names("ok")), (Some(0), all.clone()), "{:#}", after.report);
    // What there is to check is what `--list` says, and the keys are those that scripts know.
    let list = String::from_utf8(run(["check", "--list"]).stdout).unwrap();
    assert_eq!(list.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect::<Vec<_>>(), all);
    let keys: Vec<&String> = after.report.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["checks", "counts", "exit", "node", "ok", "sidecar"]);
    assert_eq!(after.report["counts"], json!({ "ok": 34, "warn": 0, "fail": 0, "skip": 0 }));
    assert_eq!(after.report["node"], "orders-3");

    // Without the file only the sidecar itself is looked at.
    let bare = Checked::of(&["--admin", &pods[2].run().admin.to_string()]);
    assert_eq!((bare.exit, bare.names("fail").len(), bare.names("warn").len()), (Some(0), 0, 0), "{:#}", bare.report);
    assert!(
        bare.names("skip")
            .iter()
            .all(|name| name.starts_with("configuration.") || name.starts_with("identity.") || *name == "clock.sane"),
        "{:#}",
        bare.report
    );
}

#[test]
fn names_choose_and_what_is_not_possible_is_said() {
    let mesh = Mesh::new("prod");
    let pod = pod(&mesh, "orders-1");
    let some = Checked::pod(&pod, &["identity", "ports.proxy"]);
    let groups: Vec<&str> = some.lines().map(|line| line["name"].as_str().unwrap()).collect();
    assert_eq!(groups.len(), 8, "{groups:?}");
    assert!(groups.iter().all(|name| name.starts_with("identity.") || *name == "ports.proxy"), "{groups:?}");
    assert_eq!(Checked::pod(&pod, &["views", "catalog"]).exit, Some(3), "nothing could be looked at");
    assert_eq!(Checked::of(&["--admin", "127.0.0.1:1"]).exit, Some(3), "nothing there, and no configuration");
    let wrong = run(["check", "seed"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", said(&wrong));
    assert!(said(&wrong).contains("groups are sidecar, configuration, identity"), "{}", said(&wrong));
    // Whoever names an address means that a sidecar is there.
    Checked::pod(&pod, &["--admin", "127.0.0.1:1"]).fails("sidecar.answers", "no sidecar answers", "--admin");
    let text = run(["check", "--config", pod.dir.join("lanemesh.toml").to_str().unwrap()]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.starts_with("ok    configuration.file") && text.contains("\nskip  not possible, no sidecar answers at "),
        "{text}"
    );
    assert!(text.lines().last().unwrap().starts_with("18 ok, 0 to look at, 0 failed, "), "{text}");
}

/// Issued two days ago for a day, by an authority of the same mesh.
fn expired(dir: &Path, node: &str) {
    let now = UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    let then = Wall(now - 2 * 86_400_000);
    let authority = Authority::create(&dir.join("old-ca"), &MeshName::new("prod").unwrap(), then, true).unwrap();
    let request = LeafRequest {
        node: NodeId::new(node).unwrap(),
        services: vec![ServiceName::new("orders").unwrap()],
        any_service: false,
        valid_for: Duration::from_secs(86_400),
    };
    authority.issue(&request, dir, then, true).unwrap();
}

#[test]
fn certificates_that_do_not_do_are_told_apart() {
    let mesh = Mesh::new("prod");
    let other = Mesh::new("prod");
    let [mine, theirs] = [&mesh, &other].map(|mesh| pod(mesh, "orders-1"));
    let file = |pod: &Pod, name: &str| pod.dir.join(name);
    let copy = |name: &str, from: &Pod| fs::copy(file(from, name), file(&mine, name)).map(drop).unwrap();
    let kept: BTreeMap<&str, Vec<u8>> = ["ca.pem", "orders-1.pem", "orders-1-key.pem"]
        .into_iter()
        .map(|name| (name, fs::read(file(&mine, name)).unwrap()))
        .collect();
    let restore = || kept.iter().for_each(|(name, bytes)| fs::write(file(&mine, name), bytes).unwrap());

    copy("ca.pem", &theirs);
    let checked = Checked::pod(&mine, &[]);
    checked.fails(
        "identity.chain",
        "comes from an authority that is not trusted here",
        "both sides need the same ca.pem",
    );
    assert!(checked.names("skip").contains(&"identity.names") && checked.names("ok").contains(&"identity.key"));
    restore();

    copy("orders-1-key.pem", &theirs);
    Checked::pod(&mine, &[]).fails("identity.key", "does not belong to the certificate", "`lanemesh ca issue`");
    restore();

    fs::remove_file(file(&mine, "orders-1-key.pem")).unwrap();
    Checked::pod(&mine, &[]).fails("identity.files", "orders-1-key.pem", "lanemesh ca issue");
    restore();

    expired(&mine.dir, "orders-1");
    Checked::pod(&mine, &[]).fails("identity.validity", "expired on ", "issue a new one");
    restore();

    let checked = Checked::pod(&mine, &["--set", "mesh=test"]);
    checked.fails("identity.names", "is for mesh `prod`", "change one of them");

    fs::set_permissions(file(&mine, "orders-1-key.pem"), fs::Permissions::from_mode(0o644)).unwrap();
    let checked = Checked::pod(&mine, &[]);
    let (name, seen, cure) = checked.only("warn");
    assert!(
        name == "identity.modes" && seen.contains("mode 644") && cure.starts_with("chmod 600 "),
        "{name} {seen} {cure}"
    );
    assert_eq!(checked.exit, Some(0), "a warning fails nothing");
}

#[test]
fn a_configuration_with_faults_names_each() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.toml");
    fs::write(&file, "node = \"n1\"\n[proxy]\nbind = \"nowhere\"\nbindd = 1\n").unwrap();
    let checked = Checked::of(&["--config", file.to_str().unwrap(), "configuration"]);
    assert_eq!((checked.names("fail"), checked.exit), (vec!["configuration.file"; 2], Some(1)), "{:#}", checked.report);
    let absent = Checked::of(&["--config", "/nonexistent.toml"]);
    absent.fails("configuration.file", "/nonexistent.toml", "lanemesh config reference");
}

#[test]
fn seeds_that_are_dead_or_strangers() {
    let mesh = Mesh::new("prod");
    let mut mine = pod(&mesh, "orders-1");
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    mine.seeds = vec![nobody.local_addr().unwrap()];
    Checked::pod(&mine, &[]).fails("seeds.answer", "did not answer within 1s", "take it out of gossip.seeds");

    let named = "gossip.seeds=no-such-host.invalid:7946";
    Checked::pod(&mine, &["--set", named]).fails(
        "seeds.resolve",
        "`no-such-host.invalid:7946` does not resolve",
        "DNS",
    );

    let other = Mesh::new("prod");
    let mut stranger = pod(&other, "orders-9");
    stranger.start();
    mine.seeds = vec![stranger.run().gossip];
    Checked::pod(&mine, &[]).fails("seeds.answer", "an authority that is not trusted here", "the same ca.pem");

    // One of two that answers is enough; the other is worth a word. Afterwards the sidecar itself tells the same.
    let mut friend = pod(&mesh, "orders-2");
    friend.start();
    mine.seeds = vec![friend.run().gossip, nobody.local_addr().unwrap()];
    let before = Checked::pod(&mine, &[]);
    assert_eq!((before.exit, before.only("warn").0.as_str()), (Some(0), "seeds.answer"), "{:#}", before.report);
    mine.start();
    wait("the dead seed was tried", || mine.get("/v1/diagnostics")["seeds"][1]["addrs"][0]["fault"].is_string());
    wait("it is settled", || mine.candidates("orders").len() == 2);
    let after = Checked::pod(&mine, &[]);
    assert_eq!((after.exit, after.only("warn").0.as_str()), (Some(0), "seeds.answer"), "{:#}", after.report);
}

#[test]
fn a_port_that_somebody_else_holds() {
    let mesh = Mesh::new("prod");
    let pod = pod(&mesh, "orders-1");
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let by = if cfg!(target_os = "linux") { format!("(pid {})", std::process::id()) } else { "another process".into() };
    let taken = format!("proxy.bind={}", holder.local_addr().unwrap());
    Checked::pod(&pod, &["--set", &taken]).fails("ports.proxy", &by, "set proxy.bind to another port");
    let elsewhere = Checked::pod(&pod, &["--set", "proxy.bind=192.0.2.1:15001", "ports.proxy"]);
    elsewhere.fails("ports.proxy", "is no address of this machine", "set proxy.bind");

    // Ports of services are looked at as well, and who can reach them.
    let file = pod.dir.join("lanemesh.toml");
    let with = |line: String| {
        pod.arguments();
        fs::write(&file, fs::read_to_string(&file).unwrap() + &line).unwrap();
        file.to_str().unwrap()
    };
    let taken = with(format!("[proxy.tcp_ports]\norders = \"{}\"\n", holder.local_addr().unwrap()));
    Checked::of(&["--config", taken]).fails("ports.tcp", &by, "set proxy.tcp_ports.orders to another port");
    let open = with("[proxy.tcp_ports]\norders = \"0.0.0.0:0\"\n".into());
    let (name, seen, _) = Checked::of(&["--config", open]).only("warn");
    assert!(name == "ports.exposure" && seen.contains("proxy.tcp_ports.orders: 0.0.0.0:0 is not loopback"), "{seen}");
    let warned = run(["config", "check", open]);
    assert!(said(&warned).contains("warning: proxy.tcp_ports.orders: 0.0.0.0:0 is not loopback"), "{}", said(&warned));
}

#[test]
fn an_application_that_is_down_says_why_here() {
    let mesh = Mesh::new("prod");
    let mut pods = pods(&mesh, 2);
    pods[1].app.as_mut().unwrap().kill9();
    wait("it is out", || pods[0].excluded("orders-2") == "critical" && pods[1].excluded("orders-2") == "critical");
    let checked = Checked::pod(&pods[1], &[]);
    checked.fails("app.check", "is out of traffic: cannot connect to ", "start the application");
    let listed = pods[1].must_cli(&["instances"]);
    assert!(listed.contains("critical: cannot connect to "), "{listed}");
    assert!(
        !pods[0].must_cli(&["instances"]).contains("cannot connect"),
        "others are told that it is critical, not why"
    );

    // Where nobody is left for users, the lane itself is named.
    pods[0].app.as_mut().unwrap().kill9();
    wait("the other one is out", || pods[1].candidates("orders").is_empty());
    let checked = Checked::pod(&pods[1], &["views"]);
    checked.fails(
        "views.lanes",
        "lane `stable` of `orders` has users and none of its 2 instances takes traffic",
        "lanemesh instances --service orders",
    );
    let request = Checked::pod(&pods[1], &["proxy.request"]);
    request.fails(
        "proxy.request",
        "GET /healthz of `orders`: the proxy answers 503, no_instance",
        "lanemesh route orders",
    );
}

/// The middle one trusts two authorities, its neighbours one each: they refuse each other's certificates, and what it holds of the
/// one is not believed by the other.
#[test]
fn a_peer_that_holds_something_else_is_named() {
    let (mesh, other) = (Mesh::new("prod"), Mesh::new("prod"));
    let mut first = pod(&mesh, "orders-1");
    first.start();
    let mut middle = pod(&mesh, "orders-2");
    let far = pod(&other, "orders-3");
    let [ours, theirs] = [&first, &far].map(|pod| fs::read_to_string(pod.dir.join("ca.pem")).unwrap());
    fs::write(middle.dir.join("ca.pem"), format!("{ours}{theirs}")).unwrap();
    middle.seeds = vec![first.run().gossip];
    middle.start();
    let mut far = far;
    fs::write(far.dir.join("ca.pem"), format!("{theirs}{ours}")).unwrap();
    far.seeds = vec![middle.run().gossip];
    far.start();
    wait("the middle one routes to all", || middle.candidates("orders").len() == 3);
    let checked = Checked::pod(&middle, &["catalog"]);
    checked.fails("catalog.peers", "orders-1 differs: orders-3 is known here, unknown", "ask orders-1 too");
}

#[test]
fn a_peer_that_does_not_answer_is_named() {
    let mesh = Mesh::new("prod");
    let pods = pods(&mesh, 2);
    pods[1].pause();
    // Of two, the other one can't tell whose fault the silence is: the peer stays a member, and is asked.
    let checked = Checked::pod(&pods[0], &["catalog"]);
    checked.fails("catalog.peers", "orders-2 did not tell its view: ", "lanemesh members why orders-2");
    // Beside the one that stands still: its ports are held, by a lanemesh that does not answer.
    let admin = format!("admin.bind={}", pods[1].run().admin);
    let checked = Checked::pod(&pods[1], &["--set", &admin, "ports.admin"]);
    checked.fails("ports.admin", "is taken by ", "stop it");
    let seen = checked.only("fail").1;
    assert!(!cfg!(target_os = "linux") || seen.contains(&format!("lanemesh (pid {})", pods[1].pid())), "{seen}");
    pods[1].signal(nix::sys::signal::Signal::SIGCONT);
}

#[test]
fn members_that_are_gone_are_worth_a_word() {
    let mesh = Mesh::new("prod");
    let mut pods = pods(&mesh, 3);
    pods[2].kill9();
    wait("it is gone", || pods[0].state_of("orders-3") == "down");
    let checked = Checked::pod(&pods[0], &["membership", "catalog"]);
    let (name, seen, cure) = checked.only("warn");
    assert!(name == "membership.doubtful" && seen.contains("down: orders-3") && cure.contains("members why"), "{seen}");
    assert_eq!(checked.exit, Some(0));
}

/// The application accepts connections, which is all that its check asks for, and answers 503.
#[test]
fn what_requests_really_hit_is_held_against_what_the_mesh_says() {
    let mesh = Mesh::new("prod");
    let sick = Upstream::start(|_, _| vec![Act::send("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n")]);
    let mut pods = pods(&mesh, 1);
    let mut other = mesh.pod("orders-2", &["orders"]);
    other.instance("orders", sick.addr, "check = \"tcp\"");
    other.seeds = vec![pods[0].run().gossip];
    other.start();
    pods.push(other);
    wait("both are routed to", || pods[0].candidates("orders").len() == 2);
    assert_eq!(Checked::pod(&pods[0], &["views"]).exit, Some(0));

    let mut client = pods[0].client();
    for user in 0..40 {
        assert_eq!(client.get("orders", &format!("u{user}"), "/").unwrap().status, 200, "repeated elsewhere");
    }
    let checked = Checked::pod(&pods[0], &["views"]);
    checked.fails(
        "views.requests",
        "the mesh has `orders-2` of `orders` in rotation, which passes its check; ",
        "look at the way from here to it",
    );
    let (_, seen, _) = checked.only("fail");
    assert!(seen.contains("breaker open; no other sidecar says so"), "{seen}");

    // Its own sidecar meets the same: then it is the application.
    let mut client = pods[1].client();
    for user in 0..40 {
        assert_eq!(client.get("orders", &format!("u{user}"), "/").unwrap().status, 200, "repeated elsewhere");
    }
    wait("its word is heard", || pods[0].get("/v1/signals")["observers"][0]["observer"] == "orders-2");
    let checked = Checked::pod(&pods[0], &["views.requests"]);
    checked.fails("views.requests", "so say orders-2", "see the application's log");
}
