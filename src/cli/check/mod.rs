//! `lanemesh check`: is everything as it must be, before a sidecar starts and while it runs, and if not, what to do about it.
//!
//! A check has a name, `group.name`, and ends as `ok`, `warn`, `FAIL` or `skip`; what could not be looked at is said, with the
//! reason. Names, verdicts and the keys of `--json` stay the same; the sentences may change. Exit code 0: nothing failed (there
//! may be warnings); 1: something failed; 3: nothing of what was asked for could be looked at.
//!
//! Nothing is changed by a check. Before a start ports are bound for a moment, and seeds are called with the sidecar's own
//! certificate; a running sidecar is asked what it knows, and gets one request on its proxy port.
//!
//! Not here: repairing anything.

mod files;
mod finding;
mod holder;
mod mesh;
mod ports;
mod seeds;
mod traffic;

use std::{net::IpAddr, path::PathBuf, process::ExitCode, time::Duration};

use serde::de::DeserializeOwned;

use self::finding::{Finding, Report, Verdict, fail, ok, skip};
pub(super) use self::ports::unbindable;
use super::{
    Failure,
    client::{self, Client, Sidecar},
    config::load,
    output,
};
use crate::{
    admin::{OutcomeInfo, ServiceInfo},
    agent::{Diagnostics, InstanceInfo, MemberInfo, NodeInfo},
    config::{Config, ENVIRONMENT_PREFIX, Fault, RESERVED_ENVIRONMENT, Source},
    node::PeerView,
    routing::SignalsReport,
    telemetry::Clock,
};

/// Check everything that a sidecar needs, before it starts or while it runs: a line for each, with what was seen and the cure
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Args {
    /// Only these: groups (`seeds`) or single checks (`ports.proxy`)
    #[arg(value_name = "CHECK", value_parser = known)]
    only: Vec<String>,
    /// Print the names of all checks and what each looks at
    #[arg(long, conflicts_with = "only")]
    list: bool,
    /// Configuration file of the sidecar [env: LANEMESH_CONFIG]
    #[arg(long, short, value_name = "FILE", env = "LANEMESH_CONFIG", hide_env = true)]
    config: Option<PathBuf>,
    /// A key that the sidecar is given as a flag; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = super::values::tag)]
    set: Vec<(String, String)>,
    #[command(flatten)]
    sidecar: Sidecar,
}

/// Every check in order, and what it looks at.
const CHECKS: &[(&str, &str)] = &[
    ("sidecar.answers", "whether the sidecar runs, and is the configured one"),
    ("configuration.file", "file, environment and flags: every fault"),
    ("configuration.warnings", "what is allowed but odd"),
    ("configuration.in-force", "whether the running sidecar is the configured one"),
    ("identity.files", "certificate, key and authority can be read"),
    ("identity.key", "the key belongs to the certificate"),
    ("identity.chain", "the authority issued the certificate"),
    ("identity.validity", "dates, and how long it still lasts"),
    ("identity.names", "node, mesh and services are those of the configuration"),
    ("identity.modes", "nobody else can read the secrets; the data directory can be written to"),
    ("identity.in-force", "the running sidecar uses the certificate that is on disk, and it lasts"),
    ("ports.mesh", "UDP port of the mesh: free, or held by the sidecar"),
    ("ports.proxy", "proxy port"),
    ("ports.admin", "admin port"),
    ("ports.services", "dedicated ports"),
    ("ports.tcp", "TCP ports"),
    ("ports.exposure", "who else can reach them"),
    ("clock.sane", "the wall clock did not go back since the last run"),
    ("clock.steady", "the wall clock was not set since the sidecar started"),
    ("clock.peers", "the wall clock beside the peers'"),
    ("seeds.resolve", "what the seeds' names resolve to"),
    ("seeds.answer", "who answers there, with which certificate"),
    ("membership.ready", "what readiness waits for"),
    ("membership.size", "members alive"),
    ("membership.doubtful", "members in doubt or down, and why"),
    ("membership.own-health", "whether the sidecar itself misses answers"),
    ("catalog.peers", "who of the members holds something else (two looks)"),
    ("proxy.listens", "the proxy's ports take connections"),
    ("proxy.request", "a request through the proxy is answered"),
    ("app.check", "each application passes its check, or why not"),
    ("views.local", "mesh view and local view: requests are routed by what the mesh says"),
    ("views.lanes", "every lane with users has an instance that takes traffic"),
    ("views.requests", "local view and reality: what requests met at each instance, and whether peers met the same"),
    ("views.peers", "what peers see fail, and who of them is probably sick itself"),
];

/// What there is of a configuration.
pub(super) enum Loaded {
    /// None was named; why that is so.
    Nothing(&'static str),
    /// The file can't be read.
    Unreadable(Failure),
    /// It has faults.
    Faulty(Vec<Fault>),
    /// It is good.
    Good {
        config: Box<Config>,
        /// The file, or where else it comes from.
        name: String,
    },
}

impl Loaded {
    fn of(args: &Args) -> Self {
        let key = |name: &str| name.starts_with(ENVIRONMENT_PREFIX) && !RESERVED_ENVIRONMENT.contains(&name);
        let by_environment = std::env::vars_os().any(|(name, _)| name.to_str().is_some_and(key));
        if args.config.is_none() && args.set.is_empty() && !by_environment {
            return Self::Nothing("no configuration is named (--config FILE)");
        }
        let flags = args.set.iter().map(|(key, value)| (key.clone(), value.clone(), Source::Flag("--set".to_owned())));
        match load(args.config.as_deref(), &flags.collect()) {
            Err(failure) => Self::Unreadable(failure),
            Ok(Err(faults)) => Self::Faulty(faults),
            Ok(Ok(config)) => {
                let file = args.config.as_ref().map(|file| file.display().to_string());
                Self::Good { config: Box::new(config), name: file.unwrap_or_else(|| "the environment".to_owned()) }
            }
        }
    }

    /// Why what needs a configuration can't be looked at.
    fn why_not(&self) -> &'static str {
        match self {
            Self::Nothing(why) => why,
            Self::Unreadable(_) => "the configuration can't be read",
            Self::Faulty(_) | Self::Good { .. } => "the configuration has faults",
        }
    }

    /// What a sidecar of it has written down about itself; there while it runs, or after it was killed.
    fn run_file(&self) -> Option<NodeInfo> {
        let Self::Good { config, .. } = self else { return None };
        let bytes = std::fs::read(config.data_dir.join(crate::app::RUN_FILE)).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Where its sidecar would be asked.
    fn admin(&self) -> Option<String> {
        let Self::Good { config, .. } = self else { return None };
        let bound = self.run_file().map(|info| info.admin);
        bound.or(Some(config.admin.bind).filter(|addr| addr.port() > 0)).map(|addr| addr.to_string())
    }
}

/// What the running sidecar says; every page, or why there is none.
pub(super) struct Live {
    /// Where it was asked.
    address: String,
    /// It runs on this machine, so that its ports can be looked at.
    here: bool,
    info: Result<NodeInfo, String>,
    diagnostics: Result<Diagnostics, String>,
    members: Result<Vec<MemberInfo>, String>,
    instances: Result<Vec<InstanceInfo>, String>,
    /// As they were at a first look, where there was a second.
    before: Option<Vec<InstanceInfo>>,
    outcomes: Result<Vec<OutcomeInfo>, String>,
    services: Result<Vec<ServiceInfo>, String>,
    signals: Result<SignalsReport, String>,
}

impl Live {
    /// Nobody to ask.
    fn absent(address: String, why: &str) -> Self {
        let why = why.to_owned();
        Self {
            address,
            here: false,
            info: Err(why.clone()),
            diagnostics: Err(why.clone()),
            members: Err(why.clone()),
            instances: Err(why.clone()),
            before: None,
            outcomes: Err(why.clone()),
            services: Err(why.clone()),
            signals: Err(why),
        }
    }

    async fn ask(client: &mut Client, info: NodeInfo) -> Self {
        let mut live = Self {
            address: client.address().to_owned(),
            here: is_here(client.address()),
            info: Ok(info),
            diagnostics: page(client, "/v1/diagnostics").await,
            members: page(client, "/v1/members?state=alive,doubtful,down").await,
            services: page(client, "/v1/services").await,
            signals: page(client, "/v1/signals").await,
            instances: page(client, "/v1/instances").await,
            before: None,
            outcomes: page(client, "/v1/outcomes").await,
        };
        if traffic::unsettled(&live) {
            // A change that was on its way has arrived by then.
            tokio::time::sleep(SETTLE).await;
            client.renew();
            live.before = live.instances.ok();
            live.instances = page(client, "/v1/instances").await;
            live.outcomes = page(client, "/v1/outcomes").await;
        }
        live
    }
}

async fn page<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, String> {
    client.get(path).await.and_then(client::parse).map_err(|failure| failure.error)
}

/// Whether an admin address is this machine's own.
fn is_here(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost"
        || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback() || std::net::UdpSocket::bind((ip, 0)).is_ok())
}

/// Prints the report; the exit code is its verdict.
pub(super) async fn run(args: &Args, json: bool) -> Result<(String, ExitCode), Failure> {
    if args.list {
        let rows = CHECKS.iter().map(|(name, about)| vec![(*name).to_owned(), (*about).to_owned()]).collect();
        return Ok((output::table(&["CHECK", "LOOKS AT"], rows, ""), ExitCode::SUCCESS));
    }
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| belongs(name, only));
    let loaded = Loaded::of(args);
    let (live, sidecar) = sidecar(args, &loaded).await?;
    let mut findings = groups(&loaded, &live, &wanted).await;
    findings.push(sidecar);
    findings.retain(|finding| wanted(finding.name) || finding.name == SIDECAR && finding.result == Verdict::Fail);
    findings.sort_by_key(|finding| CHECKS.iter().position(|(name, _)| *name == finding.name));
    let node = live.info.as_ref().ok().map(|info| info.node.to_string());
    let report = Report { node, sidecar: live.info.is_ok().then(|| live.address.clone()), findings };
    let text = if json { output::json(&report.json()) } else { report.text() };
    Ok((text, ExitCode::from(report.exit())))
}

/// Asks the sidecar. Whoever names an address beside a configuration means that it runs there; else its absence only leaves out
/// what can't be looked at.
async fn sidecar(args: &Args, loaded: &Loaded) -> Result<(Live, Finding), Failure> {
    let named = args.sidecar.admin.as_deref().is_some_and(|address| !address.is_empty());
    let mut asked = args.sidecar.clone();
    if !named && let Some(admin) = loaded.admin() {
        asked.admin = Some(admin);
    }
    let mut client = asked.client()?;
    let info: Result<NodeInfo, Failure> = client.get("/v1/info").await.and_then(client::parse);
    let address = client.address().to_owned();
    let why = match info {
        Ok(info) => match another(&info, loaded) {
            None => {
                let line = ok(SIDECAR, format!("`{}` {} at {address} (pid {})", info.node, info.version, info.pid));
                return Ok((Live::ask(&mut client, info).await, line));
            }
            Some(wrong) => format!("at {address} another sidecar answers: {wrong}"),
        },
        Err(failure) => failure.error,
    };
    let line = match (named, loaded) {
        (true, Loaded::Good { .. }) => {
            fail(SIDECAR, why.clone(), "start it with `lanemesh run`, or name its admin port with --admin HOST:PORT")
        }
        _ => skip(SIDECAR, why.clone()),
    };
    Ok((Live::absent(address, &why), line))
}

/// Why what answers is not the sidecar that is configured.
fn another(info: &NodeInfo, loaded: &Loaded) -> Option<String> {
    let Loaded::Good { config, .. } = loaded else { return None };
    let node = config.node.as_ref().filter(|node| **node != info.node)?;
    Some(format!("`{}`, and the configuration is that of `{node}`", info.node))
}

/// The groups of which something is wanted.
async fn groups(loaded: &Loaded, live: &Live, wanted: &impl Fn(&str) -> bool) -> Vec<Finding> {
    let any = |group: &str| CHECKS.iter().any(|(name, _)| belongs(name, group) && wanted(name));
    let mut findings = files::configuration(loaded);
    findings.push(in_force(loaded, live));
    let files = files::identity(loaded);
    findings.extend(files.findings);
    findings.push(certificate_in_force(files.identity.as_deref(), live));
    if any("ports") {
        findings.extend(ports::ports(loaded, live));
    }
    findings.extend(mesh::clock(loaded, live, Clock::start().wall()));
    if any("seeds") {
        findings.extend(seeds::seeds(loaded, files.identity.as_ref(), live).await);
    }
    findings.extend(mesh::membership(live));
    if any("catalog") {
        findings.extend(mesh::catalog(&compared(live).await));
    }
    if any("proxy") {
        findings.extend(traffic::proxy(loaded, live).await);
    }
    if any("app") {
        findings.extend(traffic::app(loaded, live).await);
    }
    findings.extend(traffic::views(live));
    findings
}

/// Peers' views; where somebody differs, once more after a moment, since news takes a moment.
async fn compared(live: &Live) -> Result<Vec<PeerView>, String> {
    live.info.as_ref().map_err(Clone::clone)?;
    let ask = || async {
        let client = Client::new(&live.address, None).map_err(|failure| failure.error)?;
        page::<Vec<PeerView>>(&client, "/v1/compare").await
    };
    let first = ask().await?;
    if first.iter().all(PeerView::is_same) {
        return Ok(first);
    }
    tokio::time::sleep(SETTLE).await;
    Ok(mesh::still_differing(&first, ask().await?))
}

/// Whether what is bound is what the configuration says.
fn in_force(loaded: &Loaded, live: &Live) -> Finding {
    let (Loaded::Good { config, .. }, Ok(info)) = (loaded, &live.info) else {
        return skip(IN_FORCE, live.info.as_ref().err().map_or(loaded.why_not(), String::as_str));
    };
    let same = |wanted: std::net::SocketAddr, bound: std::net::SocketAddr| {
        wanted.ip() == bound.ip() && (wanted.port() == 0 || wanted.port() == bound.port())
    };
    let shared = [("proxy.bind", config.proxy.bind, info.proxy), ("admin.bind", config.admin.bind, info.admin)];
    let mut differ: Vec<String> = shared
        .iter()
        .filter(|(_, wanted, bound)| !same(*wanted, *bound))
        .map(|(key, wanted, bound)| format!("{key} is {wanted} in the configuration, {bound} in the sidecar"))
        .collect();
    for (table, wanted, bound) in [
        ("proxy.ports", &config.proxy.ports, &info.ports),
        ("proxy.tcp_ports", &config.proxy.tcp_ports, &info.tcp_ports),
    ] {
        let held = |service, addr: &std::net::SocketAddr| bound.get(service).is_some_and(|bound| same(*addr, *bound));
        if wanted.len() != bound.len() || !wanted.iter().all(|(service, addr)| held(service, addr)) {
            differ.push(format!("{table} differs"));
        }
    }
    if differ.is_empty() {
        return ok(IN_FORCE, format!("`{}` runs as configured", info.node));
    }
    finding::warn(IN_FORCE, differ.join("; "), "restart it, or give this command the sidecar's own file and --set")
}

/// The certificate that the sidecar uses, beside the one on disk.
fn certificate_in_force(identity: Option<&crate::pki::Identity>, live: &Live) -> Finding {
    let told = match &live.diagnostics {
        Err(why) => return skip(CERTIFICATE, why.clone()),
        Ok(told) => told,
    };
    let (until, now) = (told.certificate_until, Clock::start().wall());
    let at = output::time(until);
    if now > until {
        let cure = "issue a new one with `lanemesh ca issue --force` and restart the sidecar";
        return fail(CERTIFICATE, format!("the sidecar's certificate expired at {at}: every peer refuses it"), cure);
    }
    match identity.map(|identity| identity.facts().not_after) {
        Some(disk) if disk != until => finding::warn(
            CERTIFICATE,
            format!("the sidecar uses a certificate until {at}, on disk is one until {}", output::time(disk)),
            "restart the sidecar: certificates are read at its start",
        ),
        Some(_) => ok(CERTIFICATE, "the sidecar uses the certificate on disk"),
        None => ok(CERTIFICATE, format!("the sidecar's certificate is valid until {at}")),
    }
}

/// A check belongs to its own name and to its group's.
fn belongs(name: &str, to: &str) -> bool {
    name == to || name.strip_prefix(to).is_some_and(|rest| rest.starts_with('.'))
}

fn known(text: &str) -> Result<String, String> {
    if CHECKS.iter().any(|(name, _)| belongs(name, text)) {
        return Ok(text.to_owned());
    }
    let mut groups: Vec<&str> = CHECKS.iter().filter_map(|(name, _)| name.split('.').next()).collect();
    groups.dedup();
    Err(format!("no such check; groups are {}, and --list prints every name", groups.join(", ")))
}

/// Between two looks at what differs.
const SETTLE: Duration = Duration::from_secs(1);
const SIDECAR: &str = "sidecar.answers";
const IN_FORCE: &str = "configuration.in-force";
const CERTIFICATE: &str = "identity.in-force";
const AFTER_HELP: &str = "\
Without --config only the running sidecar is looked at. The configuration is read as `run` reads it: file, LANEMESH_* over it, --set
over that. Exit codes: 0 nothing failed, 1 something did, 2 usage, 3 nothing of what was asked for could be looked at. It takes
up to 15 s where peers do not answer.";
