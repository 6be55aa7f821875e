//! A kill under load: four instances of an application behind lanemesh's proxy, one of them (and its sidecar) killed with
//! SIGKILL in the middle of 2,000 GET/s; beside it HAProxy in front of the same four, in turns. Then what a request costs each
//! proxy in processor time.
//!
//! `cargo bench --bench failover [-- PART ... --rounds N]`; parts: `kill`, `cost`. Needs `haproxy`, and `nginx` for `cost`;
//! without them their columns are skipped.
//!
//! Load: 32 kept-open connections, each with a fixed timetable (16 ms apart), 2,000 users. Latency runs from sending to the
//! last byte of the answer; what a late answer delays on its own connection is not counted a second time.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock and waits")]

mod support;

use std::{
    net::SocketAddr,
    path::PathBuf,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use support::{
    http::Connection,
    option, parts,
    process::{self, Owned},
    sidecar::{Announced, Mesh, binary, free_port},
    table::{Figures, median, spread},
    until,
};

/// Instances of the application.
const APPS: usize = 4;
/// Client connections of the paced load.
const CLIENTS: usize = 32;
/// Requests a second.
const RATE: u32 = 2_000;
/// Users; each always goes to the same instance.
const USERS: usize = 2_000;
/// Load before the kill, and after it.
const BEFORE: Duration = Duration::from_millis(1_500);
const AFTER: Duration = Duration::from_millis(2_500);
/// Connections of the closed load that costs are measured under.
const CLOSED: usize = 64;
/// How long costs are measured at a time.
const COST: Duration = Duration::from_secs(2);
/// Longest wait for a process.
const START: Duration = Duration::from_secs(20);

fn main() {
    let rounds = option("--rounds").and_then(|number| number.parse().ok()).unwrap_or(5);
    let wanted = parts();
    let runs = |part: &str| wanted.is_empty() || wanted.iter().any(|word| word == part);
    println!("failover: {}; {rounds} rounds", process::machine());
    if runs("kill") {
        kills(rounds);
    }
    if runs("cost") {
        costs(rounds);
    }
}

/// Four applications, their sidecars, and `shop`, whose proxy takes the load.
struct Stage {
    apps: Vec<(SocketAddr, Option<Owned>)>,
    mesh: Mesh,
}

impl Stage {
    fn new(workers: usize) -> Self {
        let mut apps: Vec<(SocketAddr, Option<Owned>)> = (0..APPS).map(|_| (free_port(), None)).collect();
        let mut mesh = Mesh::new("failover");
        for (at, (addr, process)) in apps.iter_mut().enumerate() {
            *process = Some(start_app(*addr, at));
            mesh.add(&format!("orders-{at}"), Some(Announced { port: addr.port(), check: "http:/" }));
        }
        mesh.add("shop", None).set.push(format!("proxy.workers={workers}"));
        mesh.start_all();
        let stage = Self { apps, mesh };
        stage.whole();
        stage
    }

    fn proxy(&self) -> SocketAddr {
        self.mesh.sidecars[APPS].proxy
    }

    fn kill(&mut self, at: usize) {
        self.apps[at].1 = None;
        self.mesh.sidecars[at].kill();
    }

    fn restart(&mut self, at: usize) {
        self.apps[at].1 = Some(start_app(self.apps[at].0, at));
        self.mesh.start(at);
        self.whole();
    }

    /// Waits until the shop routes to all four.
    fn whole(&self) {
        let mut admin = Connection::new(self.mesh.sidecars[APPS].admin);
        let all = until(START, Duration::from_millis(20), || {
            let services = admin.json("/v1/services")?;
            (services[0]["candidates"] == APPS).then_some(())
        });
        all.expect("the shop routes to all four");
    }
}

/// The demo's application. Its name fills the body up to 256 bytes.
fn start_app(addr: SocketAddr, at: usize) -> Owned {
    let version = format!("v1-{}", "x".repeat(195));
    let mut command = Command::new(binary());
    command.args([
        "demo-app",
        "--listen",
        &addr.to_string(),
        "--instance",
        &format!("orders-{at}"),
        "--version",
        &version,
    ]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let app = Owned::spawn(&mut command).expect("the application starts");
    listens(addr);
    app
}

fn listens(addr: SocketAddr) {
    let answers = || Connection::new(addr).get("/").is_ok().then_some(());
    until(START, Duration::from_millis(5), answers).expect("the process answers");
}

/// Another proxy in front of the same applications.
struct Peer {
    name: &'static str,
    addr: SocketAddr,
    process: Owned,
    dir: PathBuf,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Peer {
    fn haproxy(apps: &[(SocketAddr, Option<Owned>)]) -> Option<Self> {
        let servers: String = apps
            .iter()
            .enumerate()
            .map(|(at, (addr, _))| format!("  server s{at} {addr} id {} check inter 1s fall 2 rise 2\n", at + 1))
            .collect();
        let addr = free_port();
        let config = format!(
            "global\n  nbthread 1\n  maxconn 8000\ndefaults\n  mode http\n  option http-keep-alive\n  option redispatch 1\n  \
             retries 3\n  retry-on all-retryable-errors\n  http-reuse always\n  timeout connect 1s\n  timeout client 60s\n  \
             timeout server 15s\nfrontend f\n  bind {addr}\n  default_backend b\nbackend b\n  balance hdr(x-user-id)\n  \
             hash-type consistent\n{servers}"
        );
        Self::start("haproxy", addr, "haproxy.cfg", &config, &["-db", "-f"])
    }

    fn nginx(apps: &[(SocketAddr, Option<Owned>)]) -> Option<Self> {
        let servers: String = apps.iter().map(|(addr, _)| format!("server {addr};")).collect();
        let addr = free_port();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {kind};"))
            .concat();
        // Without a master there is one process to measure.
        let config = format!(
            "daemon off; master_process off; pid pid; error_log error.log error;\nevents {{ worker_connections 8000; }}\n\
             http {{ access_log off; keepalive_requests 100000000; keepalive_timeout 300s; {temporary}\n\
             upstream up {{ hash $http_x_user_id consistent; {servers} keepalive 256; keepalive_requests 100000000; }}\n\
             server {{ listen {addr} backlog=4096; location / {{ proxy_pass http://up; proxy_http_version 1.1; \
             proxy_set_header Connection \"\"; proxy_set_header Host $http_host; \
             proxy_next_upstream error timeout http_502 http_503; }} }} }}\n"
        );
        Self::start("nginx", addr, "nginx.conf", &config, &["-e", "error.log", "-p", ".", "-c"])
    }

    fn start(name: &'static str, addr: SocketAddr, file: &str, config: &str, flags: &[&str]) -> Option<Self> {
        let dir = std::env::temp_dir().join(format!("lanemesh-bench-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        std::fs::write(dir.join(file), config).expect("the configuration can be written");
        // Where Debian has them; a user's path often lacks it.
        let program = [format!("/usr/sbin/{name}"), format!("/usr/local/sbin/{name}")]
            .into_iter()
            .find(|path| std::path::Path::new(path).exists())
            .unwrap_or_else(|| name.to_owned());
        let mut command = Command::new(program);
        command.args(flags).arg(file).current_dir(&dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(process) = Owned::spawn(&mut command) else {
            println!("SKIPPED: {name} is not installed: apt-get install {name}");
            return None;
        };
        listens(addr);
        Some(Self { name, addr, process, dir })
    }
}

/// One request as the load saw it.
struct Seen {
    sent: Instant,
    took: Duration,
    failed: bool,
}

/// Runs the paced load until `end`.
fn paced(proxy: SocketAddr, end: Instant) -> Vec<Seen> {
    let pace = Duration::from_secs(1) * CLIENTS as u32 / RATE;
    let start = Instant::now() + Duration::from_millis(20);
    let client = |client: usize| {
        let mut connection = Connection::new(proxy);
        let mut due = start + pace * client as u32 / CLIENTS as u32;
        let (mut user, mut seen) = (client, Vec::new());
        while due < end {
            sleep(due.saturating_duration_since(Instant::now()));
            let sent = Instant::now();
            let failed = !ask(&mut connection, user);
            seen.push(Seen { sent, took: sent.elapsed(), failed });
            user = (user + CLIENTS) % USERS;
            // A late one does not make the following ones hurry.
            due = (due + pace).max(Instant::now());
        }
        seen
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|at| scope.spawn(move || client(at))).collect();
        clients.into_iter().flat_map(|client| client.join().expect("no client panics")).collect()
    })
}

fn request(user: usize) -> String {
    format!("GET / HTTP/1.1\r\nhost: orders\r\nx-user-id: u{user}\r\n\r\n")
}

fn ask(connection: &mut Connection, user: usize) -> bool {
    connection.send(request(user).as_bytes()).is_ok() && connection.receive().is_ok_and(|answer| answer.status == 200)
}

/// What one kill did to the load.
struct Outcome {
    requests: usize,
    failed: usize,
    median: f64,
    slowest_before: f64,
    slowest_after: f64,
}

fn kills(rounds: usize) {
    let mut stage = Stage::new(0);
    let haproxy = Peer::haproxy(&stage.apps);
    let mut outcomes: [Vec<Outcome>; 2] = [Vec::new(), Vec::new()];
    println!(
        "\nkill -9 of 1 of {APPS} under {RATE} GET/s; milliseconds; slowest of the {BEFORE:?} before and the {AFTER:?} after"
    );
    for round in 0..rounds {
        for turn in 0..2 {
            let of = (round + turn) % 2;
            let addr = match (of, &haproxy) {
                (0, _) => stage.proxy(),
                (_, Some(peer)) => peer.addr,
                (_, None) => continue,
            };
            let outcome = one_kill(&mut stage, addr, round % APPS);
            let Outcome { requests, failed, median, slowest_before, slowest_after } = &outcome;
            println!(
                "round {} {:<8} load {:>5.2}: {requests} requests, {failed} failed, median {median:.2}, slowest before \
                 {slowest_before:.1}, after {slowest_after:.1}",
                round + 1,
                NAMES[of],
                process::load(),
            );
            outcomes[of].push(outcome);
        }
    }
    let of = |which: usize, what: fn(&Outcome) -> f64| outcomes[which].iter().map(what).collect::<Vec<f64>>();
    for (which, name) in NAMES.iter().enumerate().filter(|(which, _)| !outcomes[*which].is_empty()) {
        let failed: usize = outcomes[which].iter().map(|outcome| outcome.failed).sum();
        let requests: usize = outcomes[which].iter().map(|outcome| outcome.requests).sum();
        let (low, middle, high) = spread(&of(which, |outcome| outcome.slowest_after));
        println!(
            "{name:<8} failed {failed} of {requests}; median {:.2} ms; slowest after the kill: median {middle:.1} ms ({low:.1} to {high:.1})",
            median(&of(which, |outcome| outcome.median)),
        );
    }
    let (ours, theirs) = (of(0, |outcome| outcome.slowest_after), of(1, |outcome| outcome.slowest_after));
    let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
    let above = median(&of(0, |outcome| outcome.slowest_after - outcome.median));
    let failed: usize = outcomes[0].iter().map(|outcome| outcome.failed).sum();
    let good = failed == 0 && (above <= 25.0 || (!ratios.is_empty() && median(&ratios) <= 1.5));
    println!(
        "goal: 0 failed, slowest within 25 ms of the median or 1.5x HAProxy's: {failed} failed, {above:.1} ms above, {:.2}x: {}",
        median(&ratios),
        if good { "ok" } else { "MISSED" }
    );
}

const NAMES: [&str; 2] = ["lanemesh", "haproxy"];

fn one_kill(stage: &mut Stage, proxy: SocketAddr, victim: usize) -> Outcome {
    let began = Instant::now();
    let load = std::thread::spawn(move || paced(proxy, began + BEFORE + AFTER));
    sleep(BEFORE);
    let killed = Instant::now();
    stage.kill(victim);
    let seen = load.join().expect("the load ends");
    stage.restart(victim);
    // HAProxy takes it back after two checks.
    sleep(Duration::from_millis(2_500));

    let milliseconds = |seen: &Seen| seen.took.as_secs_f64() * 1e3;
    // The first requests open connections.
    let warm = began + BEFORE / 5;
    let slowest =
        |counts: &dyn Fn(&Seen) -> bool| seen.iter().filter(|seen| counts(seen)).map(milliseconds).fold(0.0, f64::max);
    Outcome {
        requests: seen.len(),
        failed: seen.iter().filter(|seen| seen.failed).count(),
        median: median(&seen.iter().map(milliseconds).collect::<Vec<f64>>()),
        // A request that is under way at the kill belongs to the time after it.
        slowest_before: slowest(&|seen| seen.sent > warm && seen.sent + seen.took < killed),
        slowest_after: slowest(&|seen| seen.sent + seen.took > killed),
    }
}

/// Processor time of the proxy per request: one thread each, 64 connections without a pause, 256-byte bodies.
fn costs(rounds: usize) {
    let stage = Stage::new(1);
    let peers: Vec<Peer> = [Peer::haproxy(&stage.apps), Peer::nginx(&stage.apps)].into_iter().flatten().collect();
    let mut proxies = vec![("lanemesh", stage.proxy(), stage.mesh.sidecars[APPS].pid())];
    proxies.extend(peers.iter().map(|peer| (peer.name, peer.addr, peer.process.pid())));
    let mut figures = Figures::default();
    let mut ratios: Vec<Vec<f64>> = vec![Vec::new(); proxies.len()];
    for round in 0..rounds {
        let mut costs = vec![0.0; proxies.len()];
        for turn in 0..proxies.len() {
            let which = (round + turn) % proxies.len();
            let (name, addr, pid) = proxies[which];
            let before = process::cpu(pid);
            let (done, failed, took) = closed(addr, Instant::now() + COST);
            let spent = process::cpu(pid) - before;
            costs[which] = spent.as_secs_f64() * 1e6 / done as f64;
            assert!(failed == 0, "{failed} requests through {name} failed");
            figures.add(COST_ROWS[which], "us", None, Some(costs[which]));
            figures.add(RATE_ROWS[which], "/s", None, Some(done as f64 / took.as_secs_f64()));
        }
        for (which, cost) in costs.iter().enumerate() {
            ratios[which].push(costs[0] / cost);
        }
        println!("cost: round {} of {rounds}, load {:.2}", round + 1, process::load());
    }
    println!("\nprocessor time of the proxy per request, one thread, {CLOSED} connections, 256-byte bodies");
    figures.print();
    for (which, (name, ..)) in proxies.iter().enumerate().skip(1) {
        println!("lanemesh / {name}: {:.2} (median of the ratios inside a round)", median(&ratios[which]));
    }
}

const COST_ROWS: [&str; 3] = ["lanemesh: processor time per request", "haproxy: the same", "nginx: the same"];
const RATE_ROWS: [&str; 3] = ["lanemesh: requests", "haproxy: requests", "nginx: requests"];

/// A closed load: four threads with sixteen connections each; every connection always has one request under way.
fn closed(addr: SocketAddr, end: Instant) -> (usize, usize, Duration) {
    const THREADS: usize = 4;
    let began = Instant::now();
    let client = |thread: usize| {
        let mut connections: Vec<Connection> = (0..CLOSED / THREADS).map(|_| Connection::new(addr)).collect();
        let (mut user, mut done, mut failed) = (thread, 0, 0);
        let mut next = || {
            user = (user + THREADS) % USERS;
            request(user)
        };
        connections
            .iter_mut()
            .for_each(|connection| failed += usize::from(connection.send(next().as_bytes()).is_err()));
        while Instant::now() < end && failed == 0 {
            for connection in &mut connections {
                failed += usize::from(!connection.receive().is_ok_and(|answer| answer.status == 200));
                failed += usize::from(connection.send(next().as_bytes()).is_err());
                done += 1;
            }
        }
        connections.iter_mut().for_each(|connection| failed += usize::from(connection.receive().is_err()));
        (done, failed)
    };
    let (done, failed) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || client(thread))).collect();
        clients
            .into_iter()
            .map(|client| client.join().expect("no client panics"))
            .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    });
    (done, failed, began.elapsed())
}
