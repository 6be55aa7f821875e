//! What a configuration promises about removal, for the log at start and for `lanemesh config check` (REQUIREMENTS R4).
//!
//! The times come from where they are made: the mesh's from `node`, the application's checks from `probe`.

use std::time::Duration;

use crate::{
    config::{self, Config, Profile},
    node::{self, MembershipConfig},
    probe,
};

/// One way for an instance to end, and the longest until no sidecar sends it a new request (0 to some 10 s).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorstCase {
    /// What happened, in few words.
    pub event: String,
    /// Until nobody chooses the instance any more, on a network that loses nothing.
    pub within: Duration,
}

/// The constants of a profile.
pub(super) fn membership(profile: Profile) -> MembershipConfig {
    match profile {
        Profile::Lan => MembershipConfig::lan(),
        Profile::Wan => MembershipConfig::wan(),
    }
}

/// Worst removal times of this configuration, in a mesh of [`MEMBERS`].
pub fn worst_removal(config: &Config) -> Vec<WorstCase> {
    let bounds = node::removal(&membership(config.gossip.profile), MEMBERS);
    let checks = config.instances.iter().filter_map(|instance| probe::worst(&instance.check));
    let longest = checks.reduce(|(a, b), (c, d)| (a.max(c), b.max(d)));
    let application = longest.map(|(refusing, hanging)| {
        [("application dead (refuses)", refusing + bounds.spread), ("application hangs", hanging + bounds.spread)]
    });
    let mesh = [
        ("drained or left", bounds.spread),
        ("process killed, sidecar too", bounds.killed),
        ("host silent", bounds.silent),
        ("host silent: taken off the ring", bounds.down),
    ];
    let cases = application.into_iter().flatten().chain(mesh);
    cases.map(|(event, within)| WorstCase { event: event.to_owned(), within }).collect()
}

/// The same in one line, for the log.
pub(super) fn in_words(config: &Config) -> String {
    let cases: Vec<String> = worst_removal(config)
        .into_iter()
        .map(|case| format!("{} {}", case.event, config::format_duration(case.within)))
        .collect();
    cases.join(", ")
}

/// The size of mesh that the times are given for; ten times as many take 0.2 s longer.
pub const MEMBERS: usize = 100;
