//! `lanemesh instances [list|set|register|deregister]`.

use http::Method;

use super::{
    Exit, Failure, Outcome,
    client::{Sidecar, encode, with_query},
    members::state,
    output::{pairs, table, time},
    shown, values,
};
use crate::{
    admin::Nothing,
    agent::{InstanceChange, InstanceInfo, NewInstance},
    types::{
        Drain, Health, InstanceId, InstanceRecord, Lane, MAX_WEIGHT, NORMAL_WEIGHT, NodeId, Protocol, ServiceName,
        VersionName,
    },
};

/// List instances, or change those of the asked sidecar
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    list: List,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List instances: lane, version, weight, health, drain (who, when, why), and why one takes no traffic
    List(List),
    /// Change an instance of the asked sidecar until it restarts; only what is given changes
    Set(Set),
    /// Announce a further instance from the asked sidecar until it restarts
    Register(Register),
    /// Withdraw an instance of the asked sidecar
    Deregister(Deregister),
}

#[derive(Debug, clap::Args)]
struct List {
    /// Only those of this service
    #[arg(long)]
    service: Option<ServiceName>,
    /// Only those of this lane
    #[arg(long)]
    lane: Option<Lane>,
    /// Only those that this node announces
    #[arg(long)]
    node: Option<NodeId>,
    #[command(flatten)]
    sidecar: Sidecar,
}

#[derive(Debug, clap::Args)]
struct Set {
    /// Instance id
    id: InstanceId,
    /// 0 to 1600; 100 is normal, 0 takes no new traffic
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(..=i64::from(MAX_WEIGHT)))]
    weight: Option<u16>,
    /// Lane
    #[arg(long)]
    lane: Option<Lane>,
    /// Version of the application
    #[arg(long)]
    version: Option<VersionName>,
    /// Label; may be repeated; together they replace all labels
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = values::tag)]
    tags: Vec<(String, String)>,
    /// Remove all labels
    #[arg(long, conflicts_with = "tags")]
    no_tags: bool,
    /// Requests a second that it can serve
    #[arg(long)]
    capacity: Option<u32>,
    #[command(flatten)]
    sidecar: Sidecar,
}

#[derive(Debug, clap::Args)]
struct Register {
    /// Instance id, stable over restarts
    id: InstanceId,
    /// Service; the sidecar's certificate must list it
    #[arg(long, value_parser = values::service)]
    service: ServiceName,
    /// Port of the application
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Host of the application [default: the sidecar's own address]
    #[arg(long)]
    host: Option<String>,
    /// http1, h2c, grpc or tcp
    #[arg(long, default_value = "http1", value_parser = protocol)]
    protocol: Protocol,
    /// Version of the application
    #[arg(long, default_value = "unknown")]
    version: VersionName,
    /// Lane
    #[arg(long, default_value = Lane::STABLE)]
    lane: Lane,
    /// 0 to 1600
    #[arg(
        long,
        default_value_t = NORMAL_WEIGHT,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u16).range(..=i64::from(MAX_WEIGHT))
    )]
    weight: u16,
    /// Label; may be repeated
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = values::tag)]
    tags: Vec<(String, String)>,
    /// Requests a second that it can serve
    #[arg(long)]
    capacity: Option<u32>,
    /// Health check: none, tcp, or http:/path [default: tcp]
    #[arg(long)]
    check: Option<String>,
    #[command(flatten)]
    sidecar: Sidecar,
}

#[derive(Debug, clap::Args)]
struct Deregister {
    /// Instance id
    id: InstanceId,
    #[command(flatten)]
    sidecar: Sidecar,
}

pub(super) async fn run(args: &Args, json: bool) -> Outcome {
    match &args.verb {
        None => list(&args.list, json).await,
        Some(Verb::List(args)) => list(args, json).await,
        Some(Verb::Set(args)) => set(args, json).await,
        Some(Verb::Register(args)) => register(args, json).await,
        Some(Verb::Deregister(args)) => deregister(args, json).await,
    }
}

async fn list(args: &List, json: bool) -> Outcome {
    let filter = [
        ("service", args.service.as_ref().map(ServiceName::as_str)),
        ("lane", args.lane.as_ref().map(Lane::as_str)),
        ("node", args.node.as_ref().map(NodeId::as_str)),
    ];
    let answer = args.sidecar.client()?.get(&with_query("/v1/instances", &filter)).await?;
    shown(json, answer, |instances: &Vec<InstanceInfo>| render(instances))
}

async fn set(args: &Set, json: bool) -> Outcome {
    let tags = (args.no_tags || !args.tags.is_empty()).then(|| args.tags.iter().cloned().collect());
    let (weight, lane, version, capacity) = (args.weight, args.lane.clone(), args.version.clone(), args.capacity);
    let change = InstanceChange { weight, lane, version, tags, capacity };
    if change == InstanceChange::default() {
        return Err(Failure::new(Exit::Usage, "nothing to change")
            .cure("give at least one of --weight, --lane, --version, --tag, --no-tags, --capacity"));
    }
    let path = format!("/v1/instances/{}", encode(args.id.as_str()));
    let answer = args.sidecar.client()?.order(Method::PATCH, &path, &change).await?;
    shown(json, answer, record)
}

async fn register(args: &Register, json: bool) -> Outcome {
    let new = NewInstance {
        id: args.id.clone(),
        service: args.service.clone(),
        host: args.host.clone(),
        port: args.port,
        protocol: args.protocol,
        version: args.version.clone(),
        lane: args.lane.clone(),
        weight: args.weight,
        tags: args.tags.iter().cloned().collect(),
        capacity: args.capacity,
        check: args.check.clone(),
    };
    let answer = args.sidecar.client()?.order(Method::POST, "/v1/instances", &new).await?;
    shown(json, answer, record)
}

async fn deregister(args: &Deregister, json: bool) -> Outcome {
    let path = format!("/v1/instances/{}", encode(args.id.as_str()));
    let answer = args.sidecar.client()?.order(Method::DELETE, &path, &Nothing {}).await?;
    shown(json, answer, |Nothing {}| format!("{} is withdrawn\n", args.id))
}

pub(super) fn render(instances: &[InstanceInfo]) -> String {
    let row = |info: &InstanceInfo| {
        let record = &info.record;
        let owner = match state(info.owner_state) {
            "alive" => record.owner.to_string(),
            other => format!("{} ({other})", record.owner),
        };
        let stale = if info.stale { ", stale" } else { "" };
        vec![
            record.service.to_string(),
            record.id.to_string(),
            owner,
            record.authority(),
            info.selected.as_ref().map_or_else(|| record.lane.to_string(), |lane| format!("{lane} (selected)")),
            record.version.to_string(),
            weight(record),
            format!("{}{stale}", health(record.health)),
            record.drain.as_ref().map(drain).unwrap_or_default(),
            excluded(info),
        ]
    };
    table(
        &["SERVICE", "ID", "NODE", "ADDRESS", "LANE", "VERSION", "WEIGHT", "HEALTH", "DRAINED", "EXCLUDED"],
        instances.iter().map(row).collect(),
        "no instances",
    )
}

/// Why it takes no traffic; of one's own also what its check met.
fn excluded(info: &InstanceInfo) -> String {
    match (&info.excluded, &info.failing) {
        (Some(why), Some(reason)) => format!("{why}: {reason}"),
        (Some(why), None) => why.clone(),
        (None, Some(reason)) => format!("last check: {reason}"),
        (None, None) => String::new(),
    }
}

/// One record after a change.
fn record(record: &InstanceRecord) -> String {
    let tags: Vec<String> = record.tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs(&[
        ("instance", record.id.to_string()),
        ("service", record.service.to_string()),
        ("address", record.authority()),
        ("lane", record.lane.to_string()),
        ("version", record.version.to_string()),
        ("weight", weight(record)),
        ("load", record.load.map(|load| format!("{} %", load.percent)).unwrap_or_default()),
        ("health", health(record.health).to_owned()),
        ("drained", record.drain.as_ref().map(drain).unwrap_or_default()),
        ("tags", tags.join(", ")),
        ("capacity", record.capacity.map(|capacity| format!("{capacity}/s")).unwrap_or_default()),
    ])
}

/// As set, and what is left of it while the instance is overloaded.
fn weight(record: &InstanceRecord) -> String {
    match record.ring_weight() {
        eased if eased != record.weight => format!("{} ({eased} by load)", record.weight),
        _ => record.weight.to_string(),
    }
}

/// Who, when, why.
fn drain(drain: &Drain) -> String {
    let reason = if drain.reason.is_empty() { String::new() } else { format!(": {}", drain.reason) };
    format!("by {} at {}{reason}", drain.by, time(drain.at))
}

fn health(health: Health) -> &'static str {
    match health {
        Health::Passing => "passing",
        Health::Warning => "warning",
        Health::Critical => "critical",
    }
}

fn protocol(text: &str) -> Result<Protocol, String> {
    match text {
        "http1" => Ok(Protocol::Http1),
        "h2c" => Ok(Protocol::H2c),
        "grpc" => Ok(Protocol::Grpc),
        "tcp" => Ok(Protocol::Tcp),
        _ => Err("protocols are http1, h2c, grpc and tcp".to_owned()),
    }
}
