//! Real sidecars: processes of the binary that cargo built beside the benchmark, with a throw-away authority.

use std::{
    fs::File,
    net::{SocketAddr, TcpListener, UdpSocket},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use lanemesh::{
    pki::{Authority, LeafRequest},
    types::{MeshName, NodeId, ServiceName, Wall},
};
use serde_json::Value;

use super::{
    http::{self, Connection},
    process::Owned,
    until,
};

/// The program under test: the one that cargo built beside the benchmark, or what `LANEMESH_BENCH_BINARY` names (an older one to
/// compare with, or one of another profile).
pub fn binary() -> String {
    std::env::var("LANEMESH_BENCH_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_lanemesh").to_owned())
}
/// Longest wait for a process.
const START: Duration = Duration::from_secs(20);

/// An application to announce.
#[derive(Clone)]
pub struct Announced {
    pub port: u16,
    /// As in the configuration: `none`, `tcp`, `http:/`.
    pub check: &'static str,
}

/// One sidecar of service `orders`, or a pure client.
pub struct Sidecar {
    pub name: String,
    pub gossip: SocketAddr,
    pub admin: SocketAddr,
    pub proxy: SocketAddr,
    pub app: Option<Announced>,
    /// Further keys, `key=value`.
    pub set: Vec<String>,
    /// Further text of the configuration file.
    pub more: String,
    dir: PathBuf,
    process: Option<Owned>,
}

/// A directory, an authority, and sidecars that know the first of them as seeds.
pub struct Mesh {
    dir: PathBuf,
    authority: Authority,
    pub sidecars: Vec<Sidecar>,
}

impl Mesh {
    /// An empty one.
    pub fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("lanemesh-bench-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        let authority = Authority::create(&dir.join("ca"), &MeshName::new("bench").expect("a name"), wall(), true);
        Self { authority: authority.expect("an authority"), dir, sidecars: Vec::new() }
    }

    /// Adds a sidecar; it is not started.
    pub fn add(&mut self, name: &str, app: Option<Announced>) -> &mut Sidecar {
        let dir = self.dir.join(name);
        let request = LeafRequest {
            node: NodeId::new(name).expect("a name"),
            services: ["orders", "calls"].map(|name| ServiceName::new(name).expect("a name")).into(),
            any_service: false,
            valid_for: Duration::from_secs(24 * 3600),
        };
        self.authority.issue(&request, &dir, wall(), true).expect("a certificate");
        let sidecar = Sidecar {
            name: name.to_owned(),
            gossip: free_port(),
            admin: free_port(),
            proxy: free_port(),
            app,
            set: Vec::new(),
            more: String::new(),
            dir,
            process: None,
        };
        self.sidecars.push(sidecar);
        self.sidecars.last_mut().expect("just added")
    }

    /// Starts one; returns the moment before `exec`.
    pub fn start(&mut self, at: usize) -> Instant {
        let seeds: Vec<String> = self.sidecars.iter().take(SEEDS).map(|seed| seed.gossip.to_string()).collect();
        self.sidecars[at].start(&seeds)
    }

    /// Starts all in one go; returns the moment after the last one was started.
    pub fn start_all(&mut self) -> Instant {
        for at in 0..self.sidecars.len() {
            self.start(at);
        }
        Instant::now()
    }

    /// Waits until a question to every running sidecar is answered as wanted; the time since `from` when the last one was. A
    /// sidecar that has answered so is not asked again, so that asking costs little.
    pub fn all(
        &self,
        from: Instant,
        limit: Duration,
        path: &str,
        mut wanted: impl FnMut(&Value) -> bool,
    ) -> Option<Duration> {
        let running = self.sidecars.iter().filter(|sidecar| sidecar.runs());
        let mut left: Vec<Connection> = running.map(|sidecar| Connection::new(sidecar.admin)).collect();
        until(limit, LOOK, || {
            left.retain_mut(|connection| !connection.json(path).is_some_and(|answer| wanted(&answer)));
            left.is_empty().then(|| from.elapsed())
        })
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.sidecars.clear();
        if std::env::var_os("KEEP_LOGS").is_none() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

impl Sidecar {
    fn start(&mut self, seeds: &[String]) -> Instant {
        let log = File::options().create(true).append(true).open(self.dir.join("log")).expect("a log file");
        let mut command = self.command(seeds);
        command.stdout(Stdio::null()).stderr(log);
        let before = Instant::now();
        self.process = Some(Owned::spawn(&mut command).expect("a sidecar starts"));
        before
    }

    /// What starts it, for whoever wants to own the process and read its log.
    pub fn command(&self, seeds: &[String]) -> Command {
        let config = self.write_config(seeds);
        let mut command = Command::new(binary());
        command.args(["run", "--config"]).arg(config);
        for set in &self.set {
            command.args(["--set", set]);
        }
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("LANEMESH_")) {
            command.env_remove(name);
        }
        command.stdin(Stdio::null());
        command
    }

    fn write_config(&self, seeds: &[String]) -> PathBuf {
        let path = |file: &str| self.dir.join(file).display().to_string();
        let name = &self.name;
        let mut text = format!(
            "node = {name:?}\ndata_dir = {:?}\n\n[identity]\ncertificate = {:?}\nkey = {:?}\nca = {:?}\n\n\
             [gossip]\nbind = \"{}\"\nseeds = {seeds:?}\n\n[proxy]\nbind = \"{}\"\n\n[admin]\nbind = \"{}\"\n",
            path("data"),
            path(&format!("{name}.pem")),
            path(&format!("{name}-key.pem")),
            path("ca.pem"),
            self.gossip,
            self.proxy,
            self.admin,
        );
        if let Some(Announced { port, check }) = &self.app {
            text += &format!(
                "\n[[instance]]\nservice = \"orders\"\nhost = \"127.0.0.1\"\nport = {port}\nversion = \"v1\"\ncheck = {check:?}\n"
            );
        }
        text += &self.more;
        let file = self.dir.join("lanemesh.toml");
        std::fs::write(&file, text).expect("the configuration can be written");
        file
    }

    /// Whether it was started, and not ended from here.
    pub fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Owned::pid)
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// SIGTERM, and waits for the end.
    pub fn terminate(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        let pid = nix::unistd::Pid::from_raw(i32::try_from(process.pid()).expect("a process id"));
        // It may have ended by itself.
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        until(START, Duration::from_millis(5), || process.ended().then_some(()));
    }

    /// Forgets what earlier runs wrote down.
    pub fn forget(&self) {
        let _ = std::fs::remove_dir_all(self.dir.join("data"));
    }

    /// An order to its admin API, with its token.
    pub fn order(&self, method: &str, path: &str, body: &str) {
        let token = std::fs::read_to_string(self.token()).expect("the token can be read");
        http::order(self.admin, method, path, token.trim(), body).expect("the order is carried out");
    }

    fn token(&self) -> PathBuf {
        let data: &Path = &self.dir.join("data");
        data.join(lanemesh::admin::token::FILE_NAME)
    }

    /// Waits until `/ready` says 200; the time since `from`.
    pub fn ready(&self, from: Instant) -> Option<Duration> {
        until(START, Duration::from_millis(1), || {
            let answer = Connection::new(self.admin).get("/ready").ok()?.status;
            (answer == 200).then(|| from.elapsed())
        })
    }
}

/// A port of loopback that is free at this moment, below those that the system gives to outgoing connections (32768 and up by
/// default) and never given out twice here: between this and the bind of a process nobody takes it by accident.
pub fn free_port() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        // Two benchmarks at a time begin at different places.
        let offset = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add((std::process::id() % 500) as u16 * 20);
        let addr = SocketAddr::from(([127, 0, 0, 1], 20_000 + offset % 12_000));
        if TcpListener::bind(addr).is_ok() && UdpSocket::bind(addr).is_ok() {
            return addr;
        }
    }
}

fn wall() -> Wall {
    lanemesh::telemetry::Clock::start().wall()
}

/// Sidecars that all others have as seeds.
const SEEDS: usize = 3;
/// Between looks at what is waited for; what is measured is known to this and the time of one round of questions.
const LOOK: Duration = Duration::from_millis(4);
