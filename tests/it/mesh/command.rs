//! The binary as scripts and browsers meet it: exit codes, deadlines, closed pipes, bad configurations, the admin port.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{
    http::Http,
    process::{BINARY, Mesh, lanemesh, run, said, wait},
};

/// Every command that asks a sidecar, with arguments that make sense.
const COMMANDS: [&[&str]; 19] = [
    &["members"],
    &["members", "why", "orders-1"],
    &["members", "--compare"],
    &["services"],
    &["instances"],
    &["route", "orders", "--key", "u1"],
    &["route", "orders", "--header", "x-user-id: u1", "--mesh"],
    &["ring", "orders"],
    &["observe", "--subject", "u1", "--for", "1s"],
    &["policy", "show"],
    &["policy", "set", "orders", "--canary", "5%", "--force"],
    &["policy", "show", "orders"],
    &["rollback", "orders"],
    &["info"],
    &["instances", "set", "orders-1", "--weight", "100"],
    &["instances", "register", "x", "--service", "orders", "--port", "9", "--version", "v1"],
    &["instances", "deregister", "x"],
    &["drain"],
    &["undrain"],
];

/// C104: each command ends in time and says how it went: sidecar running, stopped, gone, somebody else's; pipe closed.
#[test]
fn every_command_ends_and_says_how() {
    let mesh = Mesh::new("prod");
    let mut pods = mesh.service("orders", 1);
    let admin = pods[0].run().admin.to_string();
    let ask = |command: &[&str], more: &[&str]| run(command.iter().chain(more).chain(&["--admin", &admin]));
    let limit = |what: &str, began: Instant| {
        // 5 s are promised; the machine may be busy.
        assert!(began.elapsed() < Duration::from_secs(10), "{what} took {:?}", began.elapsed());
    };
    for command in COMMANDS {
        let began = Instant::now();
        let output = ask(command, &["--json"]);
        assert_eq!(output.status.code(), Some(0), "{command:?}: {}", said(&output));
        let parsed: Result<serde_json::Value, _> = serde_json::from_slice(&output.stdout);
        assert!(parsed.is_ok(), "{command:?}: {}", said(&output));
        limit(&format!("{command:?}"), began);
    }
    for (command, code) in [
        (&["route", "nosuch", "--key", "u1"][..], 4),
        (&["instances", "set", "nosuch", "--weight", "5"], 4),
        (&["policy", "show", "nosuch"], 4),
        (&["members", "why", "nosuch"], 4),
        (&["policy", "set", "orders", "--canary", "99%"], 1),
        (&["policy", "set", "orders", "--canary", "101%"], 2),
        (&["nosuch"], 2),
    ] {
        let output = ask(command, &[]);
        assert_eq!(output.status.code(), Some(code), "{command:?}: {}", said(&output));
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{command:?}: errors go to standard error");
    }
    let wrong = lanemesh(["drain", "--admin", &admin]).env("LANEMESH_TOKEN", "wrong").output().unwrap();
    assert_eq!(wrong.status.code(), Some(5), "{}", said(&wrong));

    a_closed_pipe_is_no_crash(&admin);

    // Stopped as by a debugger: the kernel still accepts, nobody answers. All at once, since each waits its time out.
    pods[0].pause();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for command in COMMANDS {
            let ask = &ask;
            scope.spawn(move || {
                let output = ask(command, &[]);
                assert_eq!(output.status.code(), Some(3), "{command:?}: {}", said(&output));
                assert!(said(&output).contains("does not answer in time"), "{command:?}: {}", said(&output));
            });
        }
    });
    limit("a stopped sidecar", began);
    pods[0].signal(Signal::SIGCONT);
    wait("it goes on", || pods[0].get("/v1/info")["node"] == "orders-1");

    let output = ask(&["leave"], &["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(pods[0].await_exit().code(), Some(0));
    for command in COMMANDS {
        let output = ask(command, &[]);
        assert_eq!(output.status.code(), Some(3), "{command:?}: {}", said(&output));
        assert!(said(&output).contains("is `lanemesh run` running?"), "{command:?}: {}", said(&output));
    }
}

/// The reader goes away at the first line, or before it.
fn a_closed_pipe_is_no_crash(admin: &str) {
    for (command, reader) in [
        ("config reference", "head -1"),
        ("config reference", "true"),
        (&*format!("ring orders --json --admin {admin}"), "true"),
        (&*format!("members --admin {admin}"), "true"),
    ] {
        // The first command's own exit code and complaint are written down; the pipe's is the reader's.
        let script = format!("{{ {BINARY} {command} 2>&3; echo $? >&3; }} 3>&2 | {reader}");
        let output = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!text.contains("panicked"), "{command} | {reader}: {text}");
        assert!(text.trim().lines().count() == 1, "{command} | {reader}: {text}");
        assert!(output.status.success());
    }
}

/// C102: a configuration that is wrong is refused at the start with file and line, every fault at once; nothing is left behind.
#[test]
fn a_bad_configuration_is_refused_with_file_and_line() {
    let mesh = Mesh::new("prod");
    let pod = mesh.pod("n1", &["orders"]);
    let file = pod.dir.join("bad.toml");
    let good = format!("data_dir = {:?}\n", pod.data_dir().display().to_string());
    let many: String = (0..10_001)
        .map(|at| format!("[[instance]]\nid = \"i{at}\"\nservice = \"orders\"\nport = 9\nweight = 9999\n"))
        .collect();
    let instance = "[[instance]]\nservice = \"orders\"\nport = 9\n";
    for (what, text, line) in [
        ("unknown key", format!("{good}nonsense = 1\n"), 2),
        ("share over 1", format!("{good}[access_log]\nsample = 1.01\n"), 3),
        ("percentage over 100", format!("{good}[access_log]\nsample = \"101%\"\n"), 3),
        ("negative", format!("{good}[access_log]\nsample = -1.0\n"), 3),
        ("not a number", format!("{good}[access_log]\nsample = nan\n"), 3),
        ("duration with a space of nothing", format!("{good}[proxy.timeouts]\ntotal = \"5 m x\"\n"), 3),
        ("duration without a unit", format!("{good}[proxy.timeouts]\ntotal = 5\n"), 3),
        ("syntax", format!("{good}[gossip\nseeds = 1\n"), 2),
        ("trailing comma twice", format!("{good}[gossip]\nseeds = [\"a:1\",,]\n"), 3),
        ("CRLF", format!("{good}\r\nport = 1\r\n"), 3),
        ("BOM and unknown key", format!("\u{feff}{good}nonsense = 1\n"), 2),
        ("two instances of one id", format!("{good}{instance}id = \"a\"\n{instance}id = \"a\"\n"), 9),
        ("weight", format!("{good}{instance}weight = 1601\n"), 5),
        ("more instances than are taken", format!("{good}{many}"), 2),
        ("binary", "\u{0}\u{1}\u{2}".to_owned(), 1),
    ] {
        std::fs::write(&file, text).unwrap();
        for command in [&["run", "--config"][..], &["config", "check"]] {
            let began = Instant::now();
            let output = run(command.iter().copied().chain([file.to_str().unwrap()]));
            let text = said(&output);
            assert_eq!(output.status.code(), Some(1), "{what}: {text}");
            let place = format!("bad.toml:{line}");
            assert!(text.contains(&place), "{what}: no {place} in {}", text.chars().take(2000).collect::<String>());
            assert!(!text.contains("panicked") && text.len() < 64 * 1024, "{what}: {} bytes", text.len());
            assert!(began.elapsed() < Duration::from_secs(10), "{what} took {:?}", began.elapsed());
        }
    }
    assert!(!pod.data_dir().exists(), "nothing was made");
    let gone = run(["run", "--config", "/nonexistent/x.toml"]);
    assert_eq!(gone.status.code(), Some(1), "{}", said(&gone));
    let flag = run(["run", "--set", "proxy.max_retries=11"]);
    assert!(flag.status.code() == Some(1) && said(&flag).contains("--set"), "{}", said(&flag));
    let variable = lanemesh(["run"]).env("LANEMESH_PROXY_MAX_RETRIES", "x").output().unwrap();
    assert!(said(&variable).contains("LANEMESH_PROXY_MAX_RETRIES"), "{}", said(&variable));
}

/// A port that somebody else has ends a start with who that is, and every such port at once.
#[test]
fn a_taken_port_is_told_with_its_holder() {
    let mesh = Mesh::new("prod");
    let pod = mesh.pod("n1", &["orders"]);
    let taken = [(), ()].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let [proxy, admin] = taken.each_ref().map(|port| port.local_addr().unwrap());
    let mut arguments = pod.arguments();
    arguments.extend(["--set".into(), format!("proxy.bind={proxy}"), "--set".into(), format!("admin.bind={admin}")]);
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    for (key, port) in [("proxy.bind", proxy), ("admin.bind", admin)] {
        let told = said(&output);
        let line = told.lines().find(|line| line.contains(&format!("{key} {port} is taken by "))).expect(&told);
        assert!(line.contains(&format!("set {key} to another port")), "{line}");
        assert!(!cfg!(target_os = "linux") || line.contains(&format!("(pid {})", std::process::id())), "{line}");
    }
}

/// C98: a page in a local browser can neither read nor order anything, and no request through the proxy reaches the admin API.
#[test]
fn the_admin_port_is_for_people_on_this_machine() {
    let mesh = Mesh::new("prod");
    let pods = mesh.service("orders", 2);
    let bound = pods[0].run();
    let admin = bound.admin;
    let token = std::fs::read_to_string(pods[0].data_dir().join("admin.token"))
        .or_else(|_| std::fs::read_to_string(pods[0].get("/v1/info")["token_file"].as_str().unwrap()))
        .unwrap();
    let ask = |request: String| Http::new(admin).send(request.as_bytes()).unwrap();
    let post = |host: &str, more: &str| {
        ask(format!("POST /v1/drain HTTP/1.1\r\nHost: {host}\r\n{more}content-length: 2\r\n\r\n{{}}"))
    };
    let host = admin.to_string();
    let bearer = format!("authorization: Bearer {}\r\n", token.trim());
    let json_type = "content-type: application/json\r\n";

    let rebound = ask(format!("GET /v1/members HTTP/1.1\r\nHost: evil.example:{}\r\n\r\n", admin.port()));
    assert_eq!(rebound.status, 403, "{}", rebound.text());
    assert_eq!(post("evil.example", &format!("{bearer}{json_type}")).status, 403);
    let foreign = post(&host, &format!("{bearer}content-type: text/plain\r\nOrigin: http://evil.example\r\n"));
    assert!(matches!(foreign.status, 403 | 415), "{}", foreign.status);
    assert_eq!(post(&host, &format!("{bearer}content-type: text/plain\r\n")).status, 415);
    assert_eq!(post(&host, json_type).status, 401);
    assert_eq!(ask(format!("GET /v1/drain HTTP/1.1\r\nHost: {host}\r\n\r\n")).status, 405);
    assert!(pods[1].candidates("orders").len() == 2, "nothing was drained");

    // Through the proxy: by name, as a URL, and as an instance of a service.
    for request in [
        format!("GET /v1/members HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("GET http://{host}/v1/members HTTP/1.1\r\nHost: {host}\r\n\r\n"),
    ] {
        let answer = pods[0].client().send(request.as_bytes()).unwrap();
        assert_eq!((answer.status, answer.header("x-lanemesh-error")), (404, "unknown_service"), "{}", answer.text());
    }
    let order = |port: u16, host: &str| json!({ "id": "trap", "service": "orders", "host": host, "port": port, "version": "v1", "check": "none" });
    for name in ["127.0.0.1", "localhost", "0.0.0.0"] {
        let answer = pods[0].order("POST", "/v1/instances", &order(admin.port(), name));
        assert_eq!(answer.status, 422, "{name}: {}", answer.text());
    }
    // A peer can announce this one's admin port: its own proxy still does not go there.
    pods[1].must("POST", "/v1/instances", &order(admin.port(), "127.0.0.1"));
    wait("the trap is set", || pods[0].candidates("orders").contains("trap"));
    let mut client = pods[0].client();
    for n in 0..60 {
        let answer = client.get("orders", &format!("u{n}"), "/v1/members").unwrap();
        assert!(answer.status == 200 || !answer.header("x-lanemesh-error").is_empty(), "{answer:?}");
        assert!(!answer.text().contains("incarnation"), "the admin API answered through the proxy");
    }
}

/// A demo that was killed without a chance to clean up leaves its directory; the next one removes it, and only such.
#[test]
fn a_killed_demo_leaves_nothing_behind_for_long() {
    let temporary = tempfile::tempdir().unwrap();
    let start = || {
        let mut demo = lanemesh(["demo", "--json"]);
        demo.env("TMPDIR", temporary.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let place = |demo: &std::process::Child| temporary.path().join(format!("lanemesh-demo-{}", demo.id()));
    let mut killed = start();
    let left = place(&killed);
    wait("its sidecars run", || left.join("shop-1/data/run.json").exists());
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(left.exists());

    let mut next = start();
    let own = place(&next);
    wait("the next one has started, and cleaned up", || own.join("ca").exists() && !left.exists());
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(next.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(next.wait().unwrap().code(), Some(130));
    assert!(!own.exists());
}
