//! What the running sidecar says of the mesh: its clock beside its peers', its members, and what they hold that it does not.

use std::{path::Path, time::Duration};

use super::{
    Live, Loaded,
    finding::{Finding, fail, ok, skip, warn},
};
use crate::{
    agent::MemberInfo,
    config::format_duration,
    node::PeerView,
    types::{MemberState, NodeId, Wall},
};

/// The group `clock`. Wall clocks order policies and date certificates; nothing else here depends on them.
pub(super) fn clock(loaded: &Loaded, live: &Live, now: Wall) -> Vec<Finding> {
    let sane = match loaded {
        Loaded::Good { config, .. } => not_back(&config.data_dir, now),
        _ => skip(SANE, loaded.why_not()),
    };
    let (steady, peers) = match &live.diagnostics {
        Err(why) => (skip(STEADY, why.clone()), skip(PEERS, why.clone())),
        Ok(told) => {
            let set = told.clock.set_ms;
            let steady = match set.unsigned_abs() {
                0..1_000 => ok(STEADY, "it has not been set since the sidecar started"),
                by => {
                    let way = if set > 0 { "forward" } else { "back" };
                    let text = format!("it was set {way} by {} since the sidecar started", millis(by));
                    warn(STEADY, text, "have one time service, and let it slew the clock")
                }
            };
            (steady, beside_peers(told.clock.ahead_ms))
        }
    };
    vec![sane, steady, peers]
}

/// What an earlier run wrote can't be of the future.
fn not_back(data_dir: &Path, now: Wall) -> Finding {
    let written = std::fs::metadata(data_dir.join(crate::agent::STATE)).and_then(|meta| meta.modified());
    let since = written.ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    let ahead = since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX).saturating_sub(now.0));
    if ahead > 60_000 {
        let text =
            format!("{} was written {} in the future: the clock was set back", data_dir.display(), millis(ahead));
        return fail(SANE, text, "set the clock right (NTP): peers refuse policies and certificates of another time");
    }
    ok(SANE, format!("it is {}", super::output::time(now)))
}

fn beside_peers(ahead: Option<i64>) -> Finding {
    let Some(ahead) = ahead else { return skip(PEERS, "no peer has told its time yet") };
    let (by, way) = (ahead.unsigned_abs(), if ahead > 0 { "ahead of" } else { "behind" });
    let text = format!("{} {way} the middle of its peers", millis(by));
    let cure = "have one time service for all machines (chrony, NTP)";
    match by {
        0..1_000 => ok(PEERS, "within a second of its peers'"),
        by if by <= crate::catalog::MAX_AHEAD_MS => warn(PEERS, text, cure),
        _ if ahead > 0 => fail(PEERS, format!("{text}: policies set here are refused by everybody"), cure),
        _ => fail(PEERS, format!("{text}: policies set elsewhere are refused here"), cure),
    }
}

/// The group `membership`.
pub(super) fn membership(live: &Live) -> Vec<Finding> {
    let ready = match &live.info {
        Err(why) => return [READY, SIZE, DOUBTFUL, HEALTH].map(|name| skip(name, why.clone())).into(),
        Ok(info) if info.waiting_for.is_empty() => ok(READY, "the sidecar is ready"),
        Ok(info) => {
            let text = format!("the sidecar is not ready: it waits for {}", info.waiting_for.join(", "));
            fail(READY, text, "see `seeds`, and the sidecar's log")
        }
    };
    let mut findings = vec![ready];
    match &live.members {
        Err(why) => findings.extend([SIZE, DOUBTFUL].map(|name| skip(name, why.clone()))),
        Ok(members) => {
            findings.push(size(members, live));
            findings.extend(doubtful(members));
        }
    }
    findings.push(match &live.diagnostics {
        Err(why) => skip(HEALTH, why.clone()),
        Ok(told) if told.own_health == 0 => ok(HEALTH, "well"),
        Ok(told) => warn(
            HEALTH,
            format!("own health {} of 8 (0 is well): this sidecar misses answers that others get, and accuses nobody for it", told.own_health),
            "look for a starved processor, a lossy link or a full UDP buffer on this machine",
        ),
    });
    findings
}

fn size(members: &[MemberInfo], live: &Live) -> Finding {
    let alive = members.iter().filter(|member| member.state == MemberState::Alive).count();
    let others = live
        .diagnostics
        .as_ref()
        .is_ok_and(|told| told.seeds.iter().flat_map(|seed| &seed.addrs).any(|addr| !addr.own));
    match (alive, others) {
        (0 | 1, true) => fail(
            SIZE,
            "nobody of the mesh but this sidecar is alive",
            "see `seeds`: none of them has answered, or those that did have gone",
        ),
        (0 | 1, false) => ok(SIZE, "this sidecar alone, and no seeds to find others by"),
        (alive, _) => ok(SIZE, format!("{alive} members are alive")),
    }
}

fn doubtful(members: &[MemberInfo]) -> Vec<Finding> {
    let why = |member: &MemberInfo| member.why.first().map_or(String::new(), |why| format!(" ({why})"));
    let of = |state: MemberState| members.iter().filter(move |member| member.state == state);
    let named = |state: MemberState, word: &str| {
        let names: Vec<String> = of(state).map(|member| format!("{}{}", member.node, why(member))).collect();
        let shown = super::output::first_few(names.iter(), SHOWN);
        let cure = "`lanemesh members why NODE` says all that is known of it; one that will not come back is forgotten by itself";
        (!names.is_empty()).then(|| warn(DOUBTFUL, format!("{word}: {shown}"), cure))
    };
    let found: Vec<Finding> =
        [named(MemberState::Doubtful, "doubtful"), named(MemberState::Down, "down")].into_iter().flatten().collect();
    if found.is_empty() { vec![ok(DOUBTFUL, "nobody is doubtful or down")] } else { found }
}

/// The check `catalog.peers`: who of the members holds something else, twice in a row.
pub(super) fn catalog(views: &Result<Vec<PeerView>, String>) -> Vec<Finding> {
    let views = match views {
        Err(why) => return vec![skip(CATALOG, why.clone())],
        Ok(views) => views,
    };
    let mut findings: Vec<Finding> = views.iter().filter(|view| !view.is_same()).map(differing).collect();
    let same = views.len() - findings.len();
    if findings.is_empty() || same > 0 {
        findings.insert(
            0,
            ok(
                CATALOG,
                match same {
                    0 => "there is no peer to compare with".to_owned(),
                    1 => "1 peer holds the same".to_owned(),
                    same => format!("{same} peers hold the same"),
                },
            ),
        );
    }
    findings
}

fn differing(view: &PeerView) -> Finding {
    let node: &NodeId = &view.node;
    if let Some(fault) = &view.fault {
        let cure = format!("see its log; `lanemesh members why {node}` says what is known of it");
        return fail(CATALOG, format!("{node} did not tell its view: {fault}"), cure);
    }
    let of = |difference: &crate::node::Difference| {
        format!("{} is {} here, {} there", difference.member, difference.here, difference.there)
    };
    let mut parts: Vec<String> = view.differences.iter().take(SHOWN).map(of).collect();
    if view.differences.len() > SHOWN {
        parts.push(format!("and {} more", view.differences.len() - SHOWN));
    }
    if view.newer_there > 0 {
        parts.push(format!("newer there: {}", view.newer_there));
    }
    if view.older_there > 0 {
        parts.push(format!("older there or absent: {}", view.older_there));
    }
    let cure = format!(
        "`lanemesh members --compare` follows it; ask {node} too: it may refuse what it is told (clock, certificate)"
    );
    fail(CATALOG, format!("{node} differs: {}", parts.join("; ")), cure)
}

/// Both looks: who differs in both, as it was in the second.
pub(super) fn still_differing(first: &[PeerView], second: Vec<PeerView>) -> Vec<PeerView> {
    let before = |node: &NodeId| first.iter().any(|view| view.node == *node && !view.is_same());
    let settle = |view: PeerView| {
        if view.is_same() || before(&view.node) {
            return view;
        }
        // What has begun to differ since the first look is on its way.
        PeerView { fault: None, differences: Vec::new(), newer_there: 0, older_there: 0, ..view }
    };
    second.into_iter().map(settle).collect()
}

fn millis(count: u64) -> String {
    format_duration(Duration::from_millis(if count < 10_000 { count } else { count / 1000 * 1000 }))
}

const SANE: &str = "clock.sane";
const STEADY: &str = "clock.steady";
const PEERS: &str = "clock.peers";
const READY: &str = "membership.ready";
const SIZE: &str = "membership.size";
const DOUBTFUL: &str = "membership.doubtful";
const HEALTH: &str = "membership.own-health";
const CATALOG: &str = "catalog.peers";
/// Names in a line.
const SHOWN: usize = 4;
