//! How fast a mesh of real processes on loopback agrees, and what a sidecar costs while it has nothing to do.
//!
//! `cargo bench --bench mesh [-- PART ... --rounds N]`; parts: `agree`, `idle`, `fifty`. Times run from the moment before the
//! cause (exec, order sent, signal) until the last sidecar says so itself over its admin API, asked every 4 ms. "Routed"
//! means the routing snapshot that requests are decided on.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock and waits")]

mod support;

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::Value;
use support::{
    option, parts, process,
    sidecar::{Announced, Mesh, free_port},
    table::Figures,
    until,
};

/// Sidecars of the small mesh.
const SMALL: usize = 10;
/// Sidecars of the large one.
const LARGE: usize = 50;
/// Longest wait for one agreement.
const LIMIT: Duration = Duration::from_secs(30);
/// Between two measurements, so that each starts in a mesh at rest (changes are collected for 500 ms).
const REST: Duration = Duration::from_millis(1500);
/// How long an idle mesh is watched.
const WATCH: Duration = Duration::from_secs(20);

fn main() {
    let rounds = option("--rounds").and_then(|number| number.parse().ok()).unwrap_or(3);
    let wanted = parts();
    let runs = |part: &str| wanted.is_empty() || wanted.iter().any(|word| word == part);
    println!("mesh: {}; {rounds} rounds", process::machine());
    let (mut figures, began, busy) = (Figures::default(), Instant::now(), process::machine_busy());
    for round in 1..=rounds {
        if runs("agree") {
            agree(&mut figures);
        }
        if runs("idle") {
            idle(&mut figures);
        }
        if runs("fifty") {
            fifty(&mut figures);
        }
        println!("round {round} of {rounds} done, load {:.2}", process::load());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let share = (process::machine_busy() - busy).as_secs_f64() / began.elapsed().as_secs_f64() / cores as f64;
    println!("\nmachine {:.0} % busy on average, this benchmark included\n", share * 100.0);
    figures.print();
}

/// A mesh of ten: start, changes, deaths, returns, goodbye.
fn agree(figures: &mut Figures) {
    let mut apps: Vec<App> = (0..SMALL).map(|_| App::start(free_port().port())).collect();
    let mut mesh = Mesh::new("agree");
    for (at, app) in apps.iter().enumerate() {
        mesh.add(&format!("n{at}"), Some(Announced { port: app.port, check: "tcp" }));
    }
    let last = mesh.start_all();
    let seen = mesh.all(last, LIMIT, "/v1/info", |info| info["members"] == SMALL);
    figures.time("10 processes: last start -> everybody sees everybody", 1.0, seen);
    let routed = mesh.all(last, LIMIT, "/v1/services", |services| candidates(services) == SMALL);
    figures.time("10 processes: last start -> everybody routes to all", None, routed);
    sleep(REST);
    changes(figures, &mesh);
    deaths(figures, &mut mesh, &mut apps);

    sleep(REST);
    let leaver = mesh.sidecars.remove(SMALL - 1);
    let from = Instant::now();
    let told = std::thread::scope(|scope| {
        // The answer comes when the leave is over.
        scope.spawn(|| leaver.order("POST", "/v1/leave", "{}"));
        mesh.all(from, LIMIT, "/v1/members", |members| member(members, &leaver.name)["state"] == "left")
    });
    figures.time("leave -> everybody knows", 0.3, told);
}

fn changes(figures: &mut Figures, mesh: &Mesh) {
    let changed = &mesh.sidecars[3];
    let path = format!("/v1/instances/{}", changed.name);
    let points = |wanted: u64| move |route: &Value| route["ring_points"] == wanted;
    let mut weight = |name, weight: u64| {
        let from = Instant::now();
        changed.order("PATCH", &path, &format!("{{\"weight\": {weight}}}"));
        // 256 points at weight 100.
        let wanted = 256 * (SMALL as u64 - 1) + 256 * weight / 100;
        figures.time(name, 0.4, mesh.all(from, LIMIT, "/v1/route/orders?key=u1", points(wanted)));
    };
    weight("weight change -> in every routing snapshot", 50);
    sleep(REST);
    weight("weight change -> in every routing snapshot", 100);
    weight("weight change right after another -> in every snapshot", 150);
    sleep(REST);
    weight("weight change -> in every routing snapshot", 100);
    sleep(REST);

    for (lane, count) in [("canary", 1), ("stable", 0)] {
        let from = Instant::now();
        changed.order("PATCH", &path, &format!("{{\"lane\": {lane:?}}}"));
        let seen = mesh.all(from, LIMIT, "/v1/services", |services| {
            services[0]["lanes"]["canary"]["candidates"].as_u64().unwrap_or(0) == count
        });
        figures.time("lane change -> in every routing snapshot", 0.4, seen);
        sleep(REST);
    }

    let from = Instant::now();
    changed.order("PATCH", "/v1/policies/orders", r#"{"sizes": {"canary": 500}, "force": true}"#);
    let set = mesh.all(from, LIMIT, "/v1/services", |services| services[0]["lanes"]["canary"]["size"] == 500);
    figures.time("policy set -> in every routing snapshot", None, set);
    sleep(REST);
    let from = Instant::now();
    changed.order("POST", "/v1/rollback/orders", r#"{"reason": "measured"}"#);
    let back = mesh.all(from, LIMIT, "/v1/services", |services| services[0]["off"] == true);
    figures.time("rollback -> in every routing snapshot", 1.0, back);
    sleep(REST);
}

fn deaths(figures: &mut Figures, mesh: &mut Mesh, apps: &mut [App]) {
    let port = apps[5].port;
    let from = Instant::now();
    apps[5].stop();
    let critical = mesh.all(from, LIMIT, "/v1/services", |services| candidates(services) == SMALL - 1);
    figures.time("app dies -> routed to by nobody", 2.0, critical);
    let from = Instant::now();
    apps[5] = App::start(port);
    let back = mesh.all(from, LIMIT, "/v1/services", |services| candidates(services) == SMALL);
    figures.time("app is back -> routed to by everybody", None, back);
    sleep(REST);

    let (victim, name) = (6, mesh.sidecars[6].name.clone());
    let state = |wanted: &'static [&'static str]| {
        let name = name.clone();
        move |members: &Value| wanted.iter().any(|word| member(members, &name)["state"] == *word)
    };
    let generation = {
        let mut admin = support::http::Connection::new(mesh.sidecars[0].admin);
        let members = admin.json("/v1/members").unwrap_or_default();
        member(&members, &name)["generation"].as_u64().unwrap_or(0)
    };
    let from = Instant::now();
    mesh.sidecars[victim].kill();
    let doubt = mesh.all(from, LIMIT, "/v1/members", state(&["doubtful", "down"]));
    figures.time("sidecar killed -9 -> passed over by everybody", None, doubt);
    let down = mesh.all(from, LIMIT, "/v1/members", state(&["down"]));
    figures.time("sidecar killed -9 -> everybody says down", None, down);
    sleep(REST);

    let from = mesh.start(victim);
    let back = mesh.all(from, LIMIT, "/v1/members", |members| {
        let member = member(members, &name);
        member["state"] == "alive" && member["generation"].as_u64() > Some(generation)
    });
    figures.time("restart of the dead -> everybody sees the new generation", None, back);
    let routed = mesh.all(from, LIMIT, "/v1/services", |services| candidates(services) == SMALL);
    figures.time("restart of the dead -> everybody routes to it", None, routed);
    sleep(REST);

    mesh.sidecars[victim].kill();
    let from = mesh.start(victim);
    let back = mesh.all(from, LIMIT, "/v1/members", |members| {
        let member = member(members, &name);
        member["state"] == "alive" && member["generation"].as_u64() > Some(generation + 1)
    });
    figures.time("killed and restarted at once -> everybody sees it", None, back);
}

/// A mesh of ten left alone: memory, processor time, wake-ups, bytes; then a newcomer's time to readiness.
fn idle(figures: &mut Figures) {
    let app = App::start(free_port().port());
    let mut mesh = Mesh::new("idle");
    for at in 0..SMALL {
        mesh.add(&format!("n{at}"), Some(Announced { port: app.port, check: "tcp" }));
    }
    let last = mesh.start_all();
    mesh.all(last, LIMIT, "/v1/info", |info| info["members"] == SMALL);
    // Pools fill, first statements are spread.
    sleep(Duration::from_secs(10));
    let each = |of: fn(u32) -> f64| mesh.sidecars.iter().map(|sidecar| of(sidecar.pid())).collect::<Vec<f64>>();
    let cpu = |pid| process::cpu(pid).as_secs_f64();
    let (ran, slept, sent, from) = (each(cpu), each(process::sleeps), process::loopback_bytes(), Instant::now());
    sleep(WATCH);
    let seconds = from.elapsed().as_secs_f64();
    let per_second =
        |now: Vec<f64>, then: Vec<f64>| now.into_iter().zip(then).map(|(n, t)| (n - t) / seconds).sum::<f64>();
    let average = |sum: f64| Some(sum / SMALL as f64);
    let busy = per_second(each(cpu), ran) * 100.0;
    figures.add("idle in a mesh of 10: processor, one core = 100", "%", None, average(busy));
    figures.add("idle: times a thread is woken", "/s", None, average(per_second(each(process::sleeps), slept)));
    let bytes = (process::loopback_bytes() - sent) / seconds / 1024.0;
    figures.add("idle: sent, with UDP/IP headers and health checks", "KiB/s", None, average(bytes));
    for sidecar in &mesh.sidecars {
        figures.add("idle: resident memory", "MiB", 12.0, Some(process::rss_mib(sidecar.pid())));
        figures.add(
            "idle: of it not shared with other processes",
            "MiB",
            None,
            Some(process::anonymous_mib(sidecar.pid())),
        );
        figures.add("idle: threads", "", None, Some(process::threads(sidecar.pid()) as f64));
    }

    mesh.add("late", Some(Announced { port: app.port, check: "tcp" }));
    for _ in 0..5 {
        mesh.sidecars[SMALL].forget();
        let ready = |mesh: &mut Mesh| {
            let from = mesh.start(SMALL);
            let took = mesh.sidecars[SMALL].ready(from);
            mesh.sidecars[SMALL].terminate();
            took
        };
        figures.time("exec -> ready, nothing stored", 0.2, ready(&mut mesh));
        figures.time("exec -> ready, with stored state", 0.2, ready(&mut mesh));
    }
}

/// Fifty processes started in one go.
fn fifty(figures: &mut Figures) {
    let app = App::start(free_port().port());
    let mut mesh = Mesh::new("fifty");
    for at in 0..LARGE {
        mesh.add(&format!("n{at}"), Some(Announced { port: app.port, check: "none" }));
    }
    let first = Instant::now();
    let last = mesh.start_all();
    figures.time("50 processes: to start them all", None, Some(last - first));
    let seen = mesh.all(last, LIMIT, "/v1/info", |info| info["members"] == LARGE);
    figures.time("50 processes: last start -> everybody sees everybody", 5.0, seen);
    let routed = mesh.all(last, LIMIT, "/v1/services", |services| candidates(services) == LARGE);
    figures.time("50 processes: last start -> everybody routes to all", 5.0, routed);
    let mut digests = Vec::new();
    let one = until(LIMIT, Duration::from_millis(50), || {
        digests.clear();
        mesh.all(last, Duration::ZERO, "/v1/info", |info| {
            digests.push(info["digest"].to_string());
            true
        })?;
        digests.iter().all(|digest| *digest == digests[0]).then(|| last.elapsed())
    });
    figures.time("50 processes: last start -> all digests equal", None, one);
    sleep(Duration::from_secs(5));
    for sidecar in &mesh.sidecars {
        figures.add("50 processes: resident memory", "MiB", None, Some(process::rss_mib(sidecar.pid())));
    }
}

/// Candidates of the one service, as a snapshot has them.
fn candidates(services: &Value) -> usize {
    services[0]["candidates"].as_u64().unwrap_or(0) as usize
}

fn member<'a>(members: &'a Value, name: &str) -> &'a Value {
    members.as_array().into_iter().flatten().find(|member| member["node"] == name).unwrap_or(&Value::Null)
}

/// The least that passes a TCP check: a listener.
struct App {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl App {
    fn start(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the application's port is free");
        let port = listener.local_addr().expect("a bound port").port();
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let thread = std::thread::spawn(move || {
            while let Ok(accepted) = listener.accept() {
                drop(accepted);
                if asked.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        Self { port, stop, thread: Some(thread) }
    }

    /// From here on its port refuses.
    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = std::net::TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.stop();
    }
}
