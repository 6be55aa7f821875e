//! The demo's processes: one authority, five sidecars of `orders` with an application each, one sidecar of `shop`.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use super::place::Place;
use crate::{
    client::Client,
    pki::{Authority, LeafRequest},
    types::{MeshName, NodeId, ServiceName, Wall},
};

/// Longest wait for a process to be ready.
const READY_WAIT: Duration = Duration::from_secs(20);
/// Between looks at something that is waited for.
const LOOK: Duration = Duration::from_millis(10);

/// One pod: a sidecar, and beside it an application (the shop has none: its users come from outside).
pub struct Pod {
    /// Node id, and instance id of its application.
    pub name: String,
    /// Version of its application.
    pub version: &'static str,
    /// Lane of its application.
    pub lane: &'static str,
    /// Admin address of its sidecar.
    pub admin: String,
    /// Proxy address of its sidecar.
    pub proxy: String,
    gossip: Option<String>,
    app_addr: Option<String>,
    sidecar: Option<Child>,
    app: Option<Child>,
}

/// All of them.
pub struct Mesh {
    place: Place,
    binary: PathBuf,
    /// `orders-1` to `orders-5`, then `shop-1`.
    pub pods: Vec<Pod>,
    keep_logs: bool,
}

impl Mesh {
    /// Makes a directory and a throw-away authority.
    pub fn new() -> Result<Self> {
        let place = Place::new()?;
        let binary = std::env::current_exe().context("can't find this program's own file")?;
        let pod = |name: &str, version, lane| Pod {
            name: name.to_owned(),
            version,
            lane,
            admin: String::new(),
            proxy: String::new(),
            gossip: None,
            app_addr: None,
            sidecar: None,
            app: None,
        };
        let pods = vec![
            pod("orders-1", "v1", "stable"),
            pod("orders-2", "v1", "stable"),
            pod("orders-3", "v1", "stable"),
            pod("orders-4", "v2", "canary"),
            pod("orders-5", "v2", "canary"),
            pod("shop-1", "v1", "stable"),
        ];
        Ok(Self { place, binary, pods, keep_logs: false })
    }

    /// The sidecar that the users' traffic goes through.
    pub fn shop(&self) -> &Pod {
        self.pods.last().expect("the shop is there from the start")
    }

    /// Issues certificates, starts every process, and waits until the shop routes to all five instances.
    pub async fn start(&mut self) -> Result<Duration> {
        self.issue_certificates()?;
        for at in 0..self.pods.len() {
            self.start_app(at).await?;
        }
        let began = Instant::now();
        self.start_sidecar(0).await?;
        for at in 1..self.pods.len() {
            self.spawn_sidecar(at)?;
        }
        for at in 1..self.pods.len() {
            self.await_sidecar(at).await?;
        }
        self.await_candidates(5).await?;
        Ok(began.elapsed())
    }

    fn issue_certificates(&self) -> Result<()> {
        let authority = Authority::create(&self.place.dir().join("ca"), &MeshName::new("demo")?, wall(), false)?;
        for pod in &self.pods {
            let services = if pod.name.starts_with("orders") { vec![ServiceName::new("orders")?] } else { Vec::new() };
            let request = LeafRequest {
                node: NodeId::new(&pod.name)?,
                services,
                any_service: false,
                valid_for: Duration::from_secs(24 * 3600),
            };
            authority.issue(&request, &self.pod_dir(&pod.name), wall(), false)?;
        }
        Ok(())
    }

    fn pod_dir(&self, name: &str) -> PathBuf {
        self.place.dir().join(name)
    }

    async fn start_app(&mut self, at: usize) -> Result<()> {
        if !self.pods[at].name.starts_with("orders") {
            return Ok(());
        }
        let listen = self.pods[at].app_addr.clone().unwrap_or_else(|| "127.0.0.1:0".into());
        let pod = &mut self.pods[at];
        let mut child = Command::new(&self.binary)
            .args([
                "demo-app",
                "--end-with-parent",
                &std::process::id().to_string(),
                "--listen",
                &listen,
                "--instance",
                &pod.name,
                "--version",
                pod.version,
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("can't start the demo's application")?;
        let out = child.stdout.take().context("no standard output")?;
        let mut lines = BufReader::new(out).lines();
        let addr =
            tokio::time::timeout(READY_WAIT, lines.next_line()).await.context("the application does not start")??;
        pod.app_addr = Some(addr.context("the application ended at once")?);
        pod.app = Some(child);
        Ok(())
    }

    async fn start_sidecar(&mut self, at: usize) -> Result<()> {
        self.spawn_sidecar(at)?;
        self.await_sidecar(at).await
    }

    fn spawn_sidecar(&mut self, at: usize) -> Result<()> {
        let config = self.write_config(at)?;
        let pod = &self.pods[at];
        let log = File::create(self.pod_dir(&pod.name).join("log")).context("can't make the sidecar's log")?;
        let run_file = self.pod_dir(&pod.name).join("data/run.json");
        // Its presence says that the new process is ready.
        let _ = std::fs::remove_file(run_file);
        let child = Command::new(&self.binary)
            .args(["run", "--end-with-parent", &std::process::id().to_string(), "--config"])
            .arg(&config)
            .env_clear()
            .envs(std::env::vars().filter(|(name, _)| !name.starts_with("LANEMESH_")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("can't start a sidecar")?;
        self.pods[at].sidecar = Some(child);
        Ok(())
    }

    fn write_config(&self, at: usize) -> Result<PathBuf> {
        let (pod, dir) = (&self.pods[at], self.pod_dir(&self.pods[at].name));
        let seeds: Vec<String> =
            self.pods.iter().filter(|p| p.name != pod.name).filter_map(|p| p.gossip.clone()).collect();
        let path = |file: &str| dir.join(file).display().to_string();
        // No slow start: who comes back must be seen to have everybody back within the act.
        let mut text = format!(
            "node = {name:?}\ndata_dir = {data:?}\n\n[identity]\ncertificate = {cert:?}\nkey = {key:?}\nca = {ca:?}\n\n\
             [gossip]\nbind = {gossip:?}\nseeds = {seeds:?}\n\n[proxy]\nbind = \"127.0.0.1:0\"\nexpose_decision = true\n\n\
             [admin]\nbind = \"127.0.0.1:0\"\n\n[routing]\nslow_start = \"0ms\"\n",
            name = pod.name,
            data = path("data"),
            cert = path(&format!("{}.pem", pod.name)),
            key = path(&format!("{}-key.pem", pod.name)),
            ca = path("ca.pem"),
            gossip = pod.gossip.as_deref().unwrap_or("127.0.0.1:0"),
        );
        if let Some(addr) = &pod.app_addr {
            let port = addr.rsplit(':').next().unwrap_or_default();
            text += &format!(
                "\n[[instance]]\nservice = \"orders\"\nhost = \"127.0.0.1\"\nport = {port}\nversion = {:?}\nlane = {:?}\ncheck = \"http:/\"\n",
                pod.version, pod.lane
            );
        }
        let file = dir.join("lanemesh.toml");
        std::fs::write(&file, text).with_context(|| format!("can't write {}", file.display()))?;
        Ok(file)
    }

    /// Waits until a sidecar has written down what it bound.
    async fn await_sidecar(&mut self, at: usize) -> Result<()> {
        let file = self.pod_dir(&self.pods[at].name).join("data/run.json");
        let until = Instant::now() + READY_WAIT;
        loop {
            if let Some(run) = read_json(&file) {
                let text = |key: &str| run[key].as_str().unwrap_or_default().to_owned();
                let pod = &mut self.pods[at];
                (pod.admin, pod.proxy, pod.gossip) = (text("admin"), text("proxy"), Some(text("gossip")));
                return Ok(());
            }
            let pod = &mut self.pods[at];
            let ended = pod.sidecar.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if ended.is_some() || Instant::now() > until {
                self.keep_logs = true;
                bail!("the sidecar of {} did not start", self.pods[at].name);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until the shop routes to this many instances.
    pub async fn await_candidates(&self, wanted: usize) -> Result<()> {
        let until = Instant::now() + READY_WAIT;
        loop {
            let found = self.ask(self.shop(), "/v1/instances").await.map(|list| candidates(&list)).unwrap_or_default();
            if found == wanted {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("the shop routes to {found} instances of {wanted}");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Asks a pod's sidecar.
    pub async fn ask(&self, pod: &Pod, path: &str) -> Result<Value> {
        Ok(Client::new(&pod.admin, None)?.get(path).await?)
    }

    /// Orders something of a pod's sidecar.
    pub async fn order(&self, pod: &Pod, method: http::Method, path: &str, body: &Value) -> Result<Value> {
        Ok(Client::new(&pod.admin, None)?.order(method, path, body).await?)
    }

    /// kill -9 of a pod: sidecar and application.
    pub async fn kill(&mut self, at: usize) -> Result<()> {
        let pod = &mut self.pods[at];
        for child in [pod.app.as_mut(), pod.sidecar.as_mut()].into_iter().flatten() {
            child.start_kill().context("can't kill")?;
        }
        for mut child in [pod.app.take(), pod.sidecar.take()].into_iter().flatten() {
            child.wait().await?;
        }
        Ok(())
    }

    /// Starts a killed pod again, under its name and addresses.
    pub async fn restart(&mut self, at: usize) -> Result<()> {
        self.start_app(at).await?;
        self.start_sidecar(at).await
    }

    /// Ends every process and removes the directory.
    pub async fn stop(&mut self) {
        for pod in &mut self.pods {
            for child in [pod.sidecar.as_mut(), pod.app.as_mut()].into_iter().flatten() {
                // One that has ended by itself needs no killing.
                let _ = child.start_kill();
            }
        }
        for pod in &mut self.pods {
            for mut child in [pod.sidecar.take(), pod.app.take()].into_iter().flatten() {
                let _ = child.wait().await;
            }
        }
        if self.keep_logs { self.place.keep() } else { self.place.remove() }
    }

    /// Where to look when something went wrong.
    pub fn hint(&self) -> String {
        if self.keep_logs {
            format!("the sidecars' logs are in {}", self.place.dir().display())
        } else {
            "the demo could not run".into()
        }
    }

    /// Lines to paste while the mesh is left running.
    pub fn things_to_try(&self) -> String {
        let (shop, stable, me) = (self.shop(), &self.pods[0], self.binary.display());
        format!(
            "\nThe mesh runs until Ctrl-C. In another terminal:\n\n  \
             curl -i -H 'Host: orders' -H 'x-user-id: u1' http://{proxy}/\n  \
             curl -x http://{proxy} http://orders/\n  \
             {me} members --admin {admin}\n  \
             {me} route orders --key u1 --admin {admin}\n  \
             {me} policy set orders --canary 10% --admin {admin}\n  \
             {me} drain --admin {stable_admin}\n  \
             {me} rollback orders --admin {admin}\n",
            proxy = shop.proxy,
            admin = shop.admin,
            stable_admin = stable.admin,
        )
    }
}

fn candidates(list: &Value) -> usize {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter(|instance| instance["excluded"].is_null()).count()
}

fn read_json(file: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

fn wall() -> Wall {
    crate::telemetry::Clock::start().wall()
}
