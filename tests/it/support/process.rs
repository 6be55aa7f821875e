//! Real processes of the binary: a mesh's authority, sidecars, applications, commands. Everything that was started is killed
//! by its own id when it is dropped; a failing test prints the end of each sidecar's log.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{BufRead, BufReader},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    time::{Duration, Instant},
};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use serde_json::Value;

use super::http::{Answer, Http};

/// The program under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_lanemesh");
/// Longest wait for anything that must happen. Far above what it takes: other tests and builds share the machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Between looks.
const LOOK: Duration = Duration::from_millis(5);

/// Waits until `done` is true and returns how long that took; panics with `what` after [`PATIENCE`].
pub fn wait(what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(LOOK);
    }
    began.elapsed()
}

/// Prints a measured time beside the one that the issue asks for, and fails when it is beyond `slack` times that.
pub fn within(what: &str, took: Duration, goal: Duration, slack: u32) {
    measured(what, took, goal);
    assert!(took <= goal * slack, "{what} took {took:?}: more than {slack} times {goal:?}");
}

/// Prints a measured time beside the one that the issue asks for.
pub fn measured(what: &str, took: Duration, goal: Duration) {
    println!("MEASURED {what}: {} ms (goal {} ms)", took.as_millis(), goal.as_millis());
}

/// A loopback address that nothing else in this test run binds: a port freed by a kill is then not taken by anybody
/// before the restart. Linux answers on all of 127.0.0.0/8, others on 127.0.0.1 alone.
fn own_address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    if !cfg!(target_os = "linux") {
        return Ipv4Addr::LOCALHOST.into();
    }
    let (at, pid) = (NEXT.fetch_add(1, SeqCst), std::process::id());
    Ipv4Addr::new(127, 64 + (pid % 128) as u8, (at / 250) as u8, (at % 250 + 1) as u8).into()
}

/// A command of the binary without this process's `LANEMESH_*` variables.
pub fn lanemesh<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(BINARY);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LANEMESH_")) {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub fn run<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    lanemesh(arguments).output().expect("the binary can be started")
}

/// What a command said on both ways, for messages.
pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// One mesh's authority, made through the command line, and the directory that its pods live in.
pub struct Mesh {
    pub dir: tempfile::TempDir,
    ca: PathBuf,
    /// Environment of the commands that issue certificates.
    env: Vec<(String, String)>,
}

impl Mesh {
    /// A new authority for a mesh of this name.
    pub fn new(name: &str) -> Self {
        Self::with(name, Vec::new())
    }

    /// The same, made by commands with this environment.
    pub fn with(name: &str, env: Vec<(String, String)>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca");
        let mut make = lanemesh(["ca", "init", "--mesh", name, "--dir", ca.to_str().unwrap()]);
        let made = make.envs(env.iter().cloned()).output().unwrap();
        assert!(made.status.success(), "{}", said(&made));
        Self { dir, ca, env }
    }

    /// A pod whose certificate lists these services; nothing runs yet.
    pub fn pod(&self, node: &str, services: &[&str]) -> Pod {
        let dir = self.dir.path().join(node);
        self.issue(node, services, &dir);
        Pod::new(node, dir)
    }

    /// Another process that has the same certificate, with a directory of its own.
    pub fn twin(&self, of: &Pod) -> Pod {
        let dir = self.dir.path().join(format!("{}-twin", of.name));
        fs::create_dir_all(&dir).unwrap();
        for file in [format!("{}.pem", of.name), format!("{}-key.pem", of.name), "ca.pem".into()] {
            fs::copy(of.dir.join(&file), dir.join(&file)).unwrap();
        }
        Pod::new(&of.name, dir)
    }

    fn issue(&self, node: &str, services: &[&str], out: &Path) {
        let (ca, out) = (self.ca.to_str().unwrap(), out.to_str().unwrap());
        let mut arguments = vec!["ca", "issue", "--dir", ca, "--out", out, "--node", node];
        for service in services {
            arguments.extend(["--service", service]);
        }
        let issued = lanemesh(arguments).envs(self.env.iter().cloned()).output().unwrap();
        assert!(issued.status.success(), "{}", said(&issued));
    }

    /// Pods `<prefix>-1` to `<prefix>-<count>` of one service, each with an application of version `v1`; started together, the
    /// first is everybody's seed. Returns when all are ready and each routes to all.
    pub fn service(&self, service: &str, count: usize) -> Vec<Pod> {
        let mut pods: Vec<Pod> = (1..=count)
            .map(|at| {
                let name = format!("{service}-{at}");
                let mut pod = self.pod(&name, &[service]);
                pod.app = Some(App::start(&name, "v1"));
                let app = pod.app.as_ref().unwrap().addr;
                pod.instance(service, app, "version = \"v1\"");
                pod
            })
            .collect();
        start_together(&mut pods);
        let all: BTreeSet<String> = pods.iter().map(|pod| pod.name.clone()).collect();
        for pod in &pods {
            wait(&format!("{} routes to all of {service}", pod.name), || pod.candidates(service) == all);
        }
        pods
    }
}

/// Starts all at once: the first without a seed, the others with it. Returns when each is ready.
pub fn start_together(pods: &mut [Pod]) {
    pods[0].start();
    let seed = pods[0].run().gossip;
    for pod in &mut pods[1..] {
        pod.seeds = vec![seed];
        pod.spawn();
    }
    for pod in &mut pods[1..] {
        pod.await_ready();
    }
}

/// The built-in demo application as a process.
pub struct App {
    pub addr: SocketAddr,
    instance: String,
    child: Option<Child>,
}

impl App {
    pub fn start(instance: &str, version: &str) -> Self {
        Self::on(SocketAddr::new(own_address(), 0), instance, version)
    }

    pub fn on(addr: SocketAddr, instance: &str, version: &str) -> Self {
        let mut app = Self { addr, instance: instance.into(), child: None };
        app.restart(version);
        app
    }

    /// On the same address, maybe with another version.
    pub fn restart(&mut self, version: &str) {
        self.kill9();
        let listen = self.addr.to_string();
        let mut child = lanemesh(["demo-app", "--listen", &listen, "--instance", &self.instance, "--version", version])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary can be started");
        let mut line = String::new();
        let read = BufReader::new(child.stdout.take().unwrap()).read_line(&mut line);
        self.child = Some(child);
        read.unwrap();
        self.addr = line.trim().parse().unwrap_or_else(|_| panic!("the application said {line:?}"));
    }

    pub fn kill9(&mut self) {
        end(&mut self.child);
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// kill -9 of a child that may have ended, and its exit taken.
fn end(child: &mut Option<Child>) {
    if let Some(mut child) = child.take() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// What a sidecar bound, from its `run.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    pub gossip: SocketAddr,
    pub proxy: SocketAddr,
    pub admin: SocketAddr,
}

/// One sidecar, running or not, and maybe the application beside it.
pub struct Pod {
    pub name: String,
    pub dir: PathBuf,
    pub app: Option<App>,
    pub seeds: Vec<SocketAddr>,
    /// Gossip address to bind; after the first start the one that was bound, so that a restart comes back to it.
    pub gossip: SocketAddr,
    /// Further flags of `run`.
    pub flags: Vec<String>,
    /// Environment of the process.
    pub env: Vec<(String, String)>,
    instances: String,
    child: Option<Child>,
    bound: Option<Bound>,
}

impl Pod {
    fn new(name: &str, dir: PathBuf) -> Self {
        Self {
            name: name.into(),
            dir,
            app: None,
            seeds: Vec::new(),
            gossip: SocketAddr::new(own_address(), 0),
            flags: Vec::new(),
            env: Vec::new(),
            instances: String::new(),
            child: None,
            bound: None,
        }
    }

    /// Adds an `[[instance]]` with these further lines.
    pub fn instance(&mut self, service: &str, app: SocketAddr, rest: &str) {
        let (host, port) = (app.ip(), app.port());
        self.instances += &format!("[[instance]]\nservice = {service:?}\nhost = \"{host}\"\nport = {port}\n{rest}\n");
    }

    /// Announces nothing any more, from the next start.
    pub fn no_instances(&mut self) {
        self.instances.clear();
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// The arguments of `run`.
    pub fn arguments(&self) -> Vec<String> {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let name = &self.name;
        let seeds: Vec<String> = self.seeds.iter().map(ToString::to_string).collect();
        let config = format!(
            "node = {name:?}\ndata_dir = {data:?}\n\n[identity]\ncertificate = {cert:?}\nkey = {key:?}\nca = {ca:?}\n\n\
             [gossip]\nbind = \"{gossip}\"\nseeds = {seeds:?}\n\n[proxy]\nbind = \"127.0.0.1:0\"\nexpose_decision = true\n\n\
             [admin]\nbind = \"127.0.0.1:0\"\n\n{instances}",
            data = file("data"),
            cert = file(&format!("{name}.pem")),
            key = file(&format!("{name}-key.pem")),
            ca = file("ca.pem"),
            gossip = self.gossip,
            instances = self.instances,
        );
        fs::write(self.dir.join("lanemesh.toml"), config).unwrap();
        let mut arguments = vec!["run".into(), "--config".into(), file("lanemesh.toml")];
        arguments.extend(self.flags.iter().cloned());
        arguments
    }

    /// Starts the process; it is not yet ready when this returns.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "{} runs already", self.name);
        // Its presence will say that the new process has bound everything.
        let _ = fs::remove_file(self.data_dir().join("run.json"));
        self.bound = None;
        let arguments = self.arguments();
        let mut command = lanemesh(&arguments);
        let file = |name| File::options().create(true).append(true).open(self.dir.join(name)).unwrap();
        command.envs(self.env.iter().cloned());
        let child = command.stdout(file("access-log")).stderr(file("log")).spawn();
        self.child = Some(child.expect("the binary can be started"));
    }

    /// Waits until the process has bound its ports and says that it is ready.
    pub fn await_ready(&mut self) {
        self.await_bound();
        wait(&format!("{} is ready", self.name), || self.ask("/ready").is_some_and(|answer| answer.status == 200));
    }

    /// Waits until the process has bound its ports.
    pub fn await_bound(&mut self) {
        let file = self.data_dir().join("run.json");
        let name = self.name.clone();
        let mut found = None;
        wait(&format!("{name} has started"), || {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().unwrap());
            assert!(ended.is_none(), "{name} ended at once: {ended:?}\n{}", self.log());
            found = fs::read(&file).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
            found.is_some()
        });
        let found = found.unwrap();
        let addr = |key: &str| found[key].as_str().unwrap().parse().unwrap();
        let bound = Bound { gossip: addr("gossip"), proxy: addr("proxy"), admin: addr("admin") };
        self.gossip = bound.gossip;
        self.bound = Some(bound);
    }

    pub fn start(&mut self) {
        self.spawn();
        self.await_ready();
    }

    /// From now on another port.
    pub fn new_port(&mut self) {
        self.gossip.set_port(0);
    }

    /// What the running process bound.
    pub fn run(&self) -> Bound {
        self.bound.unwrap_or_else(|| panic!("{} does not run", self.name))
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap_or_else(|| panic!("{} does not run", self.name)).id()
    }

    /// Sends a signal to the sidecar.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).unwrap();
    }

    /// SIGSTOP; returns when every thread has stopped.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
        let stopped = waitpid(Pid::from_raw(self.pid() as i32), Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert!(matches!(stopped, WaitStatus::Stopped(..)), "{} was to be stopped: {stopped:?}", self.name);
    }

    /// kill -9 of the sidecar alone.
    pub fn kill9(&mut self) {
        assert!(self.child.is_some(), "{} does not run", self.name);
        end(&mut self.child);
    }

    /// Waits for the sidecar's own end.
    pub fn await_exit(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap_or_else(|| panic!("{} does not run", self.name));
        let began = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if began.elapsed() > PATIENCE {
                self.child = Some(child);
                panic!("{} does not end", self.name);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// SIGTERM, and the exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        self.await_exit().code()
    }

    /// Asks the admin API; `None` when nobody answers.
    pub fn ask(&self, path: &str) -> Option<Answer> {
        let admin = self.bound?.admin;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\nconnection: close\r\n\r\n");
        Http::new(admin).patience(Duration::from_secs(5)).send(request.as_bytes()).ok()
    }

    /// The JSON that the admin API answers; `null` when nobody does.
    pub fn get(&self, path: &str) -> Value {
        self.ask(path).map(|answer| answer.json()).unwrap_or_default()
    }

    /// An order with the write token.
    pub fn order(&self, method: &str, path: &str, body: &Value) -> Answer {
        let token = fs::read_to_string(self.get("/v1/info")["token_file"].as_str().unwrap()).unwrap();
        let (admin, body) = (self.run().admin, body.to_string());
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {admin}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            token.trim(),
            body.len()
        );
        Http::new(admin).send(request.as_bytes()).unwrap()
    }

    /// An order that must be carried out.
    pub fn must(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.order(method, path, body);
        assert!(answer.status < 300, "{method} {path}: {} {}", answer.status, answer.text());
        answer.json()
    }

    /// A command that asks this sidecar.
    pub fn cli(&self, arguments: &[&str]) -> Output {
        let admin = self.run().admin.to_string();
        run(arguments.iter().copied().chain(["--admin", &admin]))
    }

    /// The same, which must succeed.
    pub fn must_cli(&self, arguments: &[&str]) -> String {
        let output = self.cli(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Members' states as this sidecar sees them.
    pub fn members(&self) -> BTreeMap<String, String> {
        let word = |member: &Value, key: &str| member[key].as_str().unwrap().to_owned();
        let list = self.get("/v1/members");
        list.as_array().into_iter().flatten().map(|member| (word(member, "node"), word(member, "state"))).collect()
    }

    /// The state of one member, empty when it is unknown.
    pub fn state_of(&self, node: &str) -> String {
        self.members().remove(node).unwrap_or_default()
    }

    /// Instances by id.
    pub fn instances(&self) -> BTreeMap<String, Value> {
        let list = self.get("/v1/instances");
        let id = |instance: &Value| instance["record"]["id"].as_str().unwrap().to_owned();
        list.as_array().into_iter().flatten().map(|instance| (id(instance), instance.clone())).collect()
    }

    /// Why an instance takes no traffic: empty when it does, `absent` when it is unknown.
    pub fn excluded(&self, id: &str) -> String {
        match self.instances().get(id) {
            None => "absent".into(),
            Some(instance) => instance["excluded"].as_str().unwrap_or_default().to_owned(),
        }
    }

    /// Ids of the instances that requests to a service may go to, from the routing snapshot.
    pub fn candidates(&self, service: &str) -> BTreeSet<String> {
        self.ring(service).into_keys().collect()
    }

    /// Instances on the rings of a service with version, lane and weight, from the routing snapshot.
    pub fn ring(&self, service: &str) -> BTreeMap<String, (String, String, u64)> {
        let report = self.get(&format!("/v1/ring/{service}"));
        let mut found = BTreeMap::new();
        for lane in report["lanes"].as_array().into_iter().flatten() {
            for instance in lane["instances"].as_array().into_iter().flatten() {
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                let facts = (text(&instance["version"]), text(&lane["lane"]), instance["weight"].as_u64().unwrap());
                found.insert(text(&instance["id"]), facts);
            }
        }
        found
    }

    /// A value of `/metrics`, summed over the series that contain all of `parts`.
    pub fn metric(&self, name: &str, parts: &[&str]) -> Option<f64> {
        let text = self.ask("/metrics")?.text();
        let lines = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
        let values = lines.filter(|line| parts.iter().all(|part| line.contains(part)));
        Some(values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    /// A client of its proxy.
    pub fn client(&self) -> Http {
        Http::new(self.run().proxy)
    }

    /// The access logs of all its runs.
    pub fn access_log(&self) -> String {
        fs::read_to_string(self.dir.join("access-log")).unwrap_or_default()
    }

    /// Everything that all its runs have logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        end(&mut self.child);
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(40)..];
            eprintln!("--- end of the log of {} ---\n{}", self.name, tail.join("\n"));
        }
    }
}
