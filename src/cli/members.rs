//! `lanemesh members [why NODE] [--compare]`.

use super::{
    Outcome,
    client::{Sidecar, encode, with_query},
    output::{pairs, table},
    shown,
};
use crate::{
    agent::{MemberInfo, MemberStory},
    node::PeerView,
    types::{MemberState, NodeId},
};

/// List the members of the mesh as one sidecar sees them: state, and why it is that
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Also those that have left
    #[arg(long)]
    all: bool,
    /// Ask every other member for its view, and show who differs from this sidecar in what
    #[arg(long, conflicts_with = "all")]
    compare: bool,
    #[command(flatten)]
    sidecar: Sidecar,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Show all that the asked sidecar knows of one member: who accuses it, its probes, what happened
    Why(Why),
}

#[derive(Debug, clap::Args)]
struct Why {
    /// Node id
    node: NodeId,
    #[command(flatten)]
    sidecar: Sidecar,
}

pub(super) async fn run(args: &Args, json: bool) -> Outcome {
    if let Some(Verb::Why(why)) = &args.verb {
        let path = format!("/v1/members/{}", encode(why.node.as_str()));
        return shown(json, why.sidecar.client()?.get(&path).await?, render_story);
    }
    if args.compare {
        let answer = args.sidecar.client()?.get("/v1/compare").await?;
        return shown(json, answer, |views: &Vec<PeerView>| render_views(views));
    }
    let state = if args.all { None } else { Some("alive,doubtful,down") };
    let answer = args.sidecar.client()?.get(&with_query("/v1/members", &[("state", state)])).await?;
    shown(json, answer, |members: &Vec<MemberInfo>| render(members))
}

fn render_story(MemberStory { info, story }: &MemberStory) -> String {
    let names = |nodes: &[NodeId]| nodes.iter().map(|node| node.as_str()).collect::<Vec<_>>().join(", ");
    let accusers: Vec<String> = story
        .accusers
        .iter()
        .map(|accuser| format!("{} ({}, {} ago)", accuser.node, accuser.evidence, span(accuser.ago_ms)))
        .collect();
    let accused = match (accusers.is_empty(), story.public) {
        (true, _) => String::new(),
        (false, true) => format!("by {}", accusers.join(", ")),
        (false, false) => format!("by {}; nobody has confirmed it, so it is not spread", accusers.join(", ")),
    };
    let probed = match (info.this, story.probed_here) {
        (true, _) => String::new(),
        (false, true) => {
            let took = story
                .round_trip_us
                .map_or(String::new(), |us| format!(", the last answer took {:.1} ms", us as f64 / 1e3));
            format!("{} by this sidecar, {} missed{took}", story.probes, story.missed)
        }
        (false, false) if story.watchers.is_empty() => "not while it is gone".to_owned(),
        (false, false) => "not by this sidecar: by its watchers".to_owned(),
    };
    let wrong = match (story.wrong_accusations, story.ignored_as_accuser) {
        (0, _) => String::new(),
        (count, false) => format!("{count} of its accusations were refuted"),
        (count, true) => format!("{count} of its accusations were refuted: it is not listened to"),
    };
    let health = if info.this || story.own_health > 0 {
        format!("health {} of 8 (0 is well, more makes its probes slower)", story.own_health)
    } else {
        String::new()
    };
    let mut text = pairs(&[
        ("member", info.node.to_string()),
        ("state", format!("{} for {}", state(info.state), span(story.since_ms))),
        ("address", info.addr.to_string()),
        ("life", format!("generation {}, incarnation {}", info.generation, info.incarnation)),
        ("heard", story.heard_ms.map_or(String::new(), |ms| format!("{} ago", span(ms)))),
        ("probed", probed),
        ("watched by", names(&story.watchers)),
        ("accused", accused),
        ("refuted", times(story.refutations)),
        ("as accuser", wrong),
        ("asked sidecar", health),
        ("summary", info.why.join("; ")),
    ]);
    let rows: Vec<Vec<String>> =
        story.events.iter().map(|event| vec![span(event.ago_ms), event.what.clone()]).collect();
    text.push('\n');
    text.push_str(&table(&["AGO", "WHAT HAPPENED HERE"], rows, "nothing else happened"));
    text
}

fn render_views(views: &[PeerView]) -> String {
    let row = |view: &PeerView| {
        let mut parts: Vec<String> = view.fault.iter().map(|fault| format!("no answer: {fault}")).collect();
        let differ = |d: &crate::node::Difference| format!("{}: {} here, {} there", d.member, d.here, d.there);
        parts.extend(view.differences.iter().map(differ));
        for (count, what) in [(view.newer_there, "newer there"), (view.older_there, "newer here")] {
            if count > 0 {
                parts.push(format!("{count} {} {what}", if count == 1 { "entry" } else { "entries" }));
            }
        }
        vec![view.node.to_string(), if view.is_same() { "same".into() } else { parts.join("; ") }]
    };
    let same = views.iter().filter(|view| view.is_same()).count();
    let mut text = table(&["MEMBER", "ITS VIEW"], views.iter().map(row).collect(), "no other members");
    if !views.is_empty() {
        text.push_str(&format!("\n{same} of {} see what this sidecar sees\n", views.len()));
    }
    text
}

fn times(count: u32) -> String {
    match count {
        0 => String::new(),
        1 => "once".to_owned(),
        more => format!("{more} times"),
    }
}

fn span(millis: u64) -> String {
    match millis {
        0..100_000 => format!("{:.1} s", millis as f64 / 1e3),
        _ => format!("{} min", millis / 60_000),
    }
}

pub(super) fn render(members: &[MemberInfo]) -> String {
    let row = |member: &MemberInfo| {
        let mark = if member.this { " (this)" } else { "" };
        let stale = if member.stale { ", stale" } else { "" };
        let services: Vec<&str> = member.services.iter().map(|service| service.as_str()).collect();
        vec![
            format!("{}{mark}", member.node),
            format!("{}{stale}", state(member.state)),
            member.addr.to_string(),
            format!("{}.{}", member.generation, member.incarnation),
            services.join(","),
            member.program.clone(),
            member.why.join("; "),
        ]
    };
    table(
        &["NAME", "STATE", "ADDRESS", "GENERATION", "SERVICES", "PROGRAM", "WHY"],
        members.iter().map(row).collect(),
        "no members",
    )
}

/// As it is written in JSON.
pub(super) fn state(state: MemberState) -> &'static str {
    match state {
        MemberState::Alive => "alive",
        MemberState::Doubtful => "doubtful",
        MemberState::Down => "down",
        MemberState::Left => "left",
    }
}
