//! `lanemesh members`.

use super::{
    Outcome,
    client::{Sidecar, with_query},
    output::table,
    shown,
};
use crate::{agent::MemberInfo, types::MemberState};

/// List the members of the mesh as one sidecar sees them: state, and why it is that
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Also those that have left
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    sidecar: Sidecar,
}

pub(super) async fn run(args: &Args, json: bool) -> Outcome {
    let state = if args.all { None } else { Some("alive,doubtful,down") };
    let answer = args.sidecar.client()?.get(&with_query("/v1/members", &[("state", state)])).await?;
    shown(json, answer, |members: &Vec<MemberInfo>| render(members))
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
