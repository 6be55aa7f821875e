//! What happened between this node and each member, as far as it is worth telling: for `members why`, and for metrics.
//!
//! Nothing here decides anything. Probes that were answered are counted only; the rest is kept for the last few events.

use std::{collections::VecDeque, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    Membership,
    roster::{ME, Slot},
};
use crate::{
    types::{MemberState, Mono, NodeId},
    wire::Evidence,
};

/// One thing that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Happened {
    /// It did not answer a probe in time.
    Missed,
    /// Another member, or a sync, made this node ask it again.
    AskedForOthers,
    /// It answered when it was asked again.
    Answered,
    /// It did not answer when it was asked again, while others did: this node accused it.
    Silent,
    /// Its port refused: this node accused it.
    Refused,
    /// It did not answer, but neither did anybody else: this node's own fault.
    OwnFault,
    /// It refuted, with this incarnation.
    Refuted(u16),
    /// It restarted, in this generation.
    Restarted(u64),
    /// Its state changed.
    Became(MemberState),
}

/// The last few events of one member, oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    events: VecDeque<(Mono, Happened)>,
    /// Probes of this node's own.
    pub(super) probes: u32,
    /// Those that were not answered in time.
    pub(super) missed: u32,
    /// How long the last answer took.
    pub(super) round_trip: Option<Duration>,
}

/// Counts since the start, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tallies {
    /// Probes sent.
    pub probes: u64,
    /// Probes not answered in time.
    pub missed: u64,
    /// Probes answered in time, and how long all of them took together, in microseconds.
    pub answered: (u64, u64),
    /// Own accusations of silence.
    pub accused_silent: u64,
    /// Own accusations since a port refused.
    pub accused_refused: u64,
    /// Members that did not answer while nobody else did either: nobody was accused.
    pub own_fault: u64,
    /// Refutations of others that lifted a doubt or an accusation.
    pub refuted: u64,
    /// Refutations of others that lifted a death: it was a false one, or a partition that healed.
    pub revived: u64,
    /// Times that this process stood still.
    pub pauses: u64,
}

/// What this node knows of a member, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Story {
    /// Milliseconds since it is in its state.
    pub since_ms: u64,
    /// Whether this node probes it; in a large mesh its watchers do.
    pub probed_here: bool,
    /// Who watches it, where not everybody does.
    pub watchers: Vec<NodeId>,
    /// Milliseconds since something came straight from it.
    pub heard_ms: Option<u64>,
    /// Probes that this node sent to it.
    pub probes: u32,
    /// Of them not answered in time.
    pub missed: u32,
    /// How long the last answer in time took, in microseconds.
    pub round_trip_us: Option<u64>,
    /// Who accuses its present life.
    pub accusers: Vec<Accuser>,
    /// Whether two distinct accusers have made the case the whole mesh's.
    pub public: bool,
    /// How often it refuted accusations in this generation.
    pub refutations: u32,
    /// Accusations of its own that were refuted lately.
    pub wrong_accusations: u32,
    /// Whether its accusations are ignored for that.
    pub ignored_as_accuser: bool,
    /// This node's own health: 0 is well, 8 the worst.
    pub own_health: u32,
    /// The last events, newest first.
    pub events: Vec<StoryEvent>,
}

/// One accuser of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accuser {
    /// Who.
    pub node: NodeId,
    /// `silent` or `port refused`.
    pub evidence: String,
    /// Milliseconds since this node heard of it.
    pub ago_ms: u64,
}

/// One event of a [`Story`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoryEvent {
    /// Milliseconds since it happened.
    pub ago_ms: u64,
    /// What, in words.
    pub what: String,
}

impl History {
    pub(super) fn note(&mut self, now: Mono, what: Happened) {
        if self.events.len() == KEPT {
            self.events.pop_front();
        }
        self.events.push_back((now, what));
    }
}

impl Happened {
    fn words(self) -> String {
        match self {
            Self::Missed => "missed an ack: asked again, and the nearest members with it".to_owned(),
            Self::AskedForOthers => "others doubt it: asked again for them".to_owned(),
            Self::Answered => "answered when asked again".to_owned(),
            Self::Silent => "did not answer when asked again, while others did: accused".to_owned(),
            Self::Refused => "its port refused: accused".to_owned(),
            Self::OwnFault => "did not answer, but nobody else did either: this node's own fault".to_owned(),
            Self::Refuted(incarnation) => format!("refuted, incarnation {incarnation}"),
            Self::Restarted(generation) => format!("restarted, generation {generation}"),
            Self::Became(state) => format!("became {}", format!("{state:?}").to_lowercase()),
        }
    }
}

impl Membership {
    /// Counts since the start.
    pub fn tallies(&self) -> Tallies {
        self.tallies
    }

    /// Members that this node probes itself: all that are active, but in a large mesh only those it watches.
    pub fn watched(&self) -> usize {
        self.roster.iter().filter(|(_, member)| member.is_active() && member.probed.is_some()).count()
    }

    /// Members held down only because they flap.
    pub fn held_down(&self) -> usize {
        self.roster.iter().filter(|(_, member)| member.refuted_while_held).count()
    }

    /// Everything that this node knows of a member; `None` for one it was never introduced to.
    pub fn story(&self, node: &NodeId, now: Mono) -> Option<Story> {
        let slot = self.lookup(node)?;
        let member = self.roster.get(slot);
        let ago = |at: Mono| u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX);
        let accusers = member.case.charges().map(|(by, charge)| Accuser {
            node: self.roster.get(by).name.clone(),
            evidence: if charge.evidence == Evidence::Refused { "port refused" } else { "silent" }.to_owned(),
            ago_ms: ago(charge.at),
        });
        let watchers = if self.roster.is_large() { self.roster.watchers_of(slot) } else { Vec::new() };
        let mut watchers: Vec<NodeId> = watchers.into_iter().map(|slot| self.roster.get(slot).name.clone()).collect();
        watchers.sort();
        let history = member.history.as_deref();
        let events = history.into_iter().flat_map(|history| history.events.iter().rev());
        Some(Story {
            since_ms: ago(member.since),
            probed_here: slot != ME && member.is_active() && member.probed.is_some(),
            watchers,
            heard_ms: member.heard.map(ago),
            probes: history.map_or(0, |history| history.probes),
            missed: history.map_or(0, |history| history.missed),
            round_trip_us: history
                .and_then(|history| history.round_trip)
                .map(|span| u64::try_from(span.as_micros()).unwrap_or(u64::MAX)),
            accusers: accusers.collect(),
            public: member.case.public,
            refutations: member.refutations,
            wrong_accusations: member.credit.refuted(),
            ignored_as_accuser: member.credit.is_spent(now),
            own_health: self.health.score,
            events: events.map(|(at, what)| StoryEvent { ago_ms: ago(*at), what: what.words() }).collect(),
        })
    }

    /// Keeps an event of a member.
    pub(super) fn note(&mut self, now: Mono, slot: Slot, what: Happened) {
        match what {
            Happened::Missed => self.tallies.missed += 1,
            Happened::Silent => self.tallies.accused_silent += 1,
            Happened::Refused => self.tallies.accused_refused += 1,
            Happened::OwnFault => self.tallies.own_fault += 1,
            Happened::AskedForOthers
            | Happened::Answered
            | Happened::Refuted(_)
            | Happened::Restarted(_)
            | Happened::Became(_) => {}
        }
        self.history(slot).note(now, what);
    }

    /// Of most members nothing happens but probes.
    pub(super) fn history(&mut self, slot: Slot) -> &mut History {
        self.roster.get_mut(slot).history.get_or_insert_default()
    }
}

/// Events kept of each member.
const KEPT: usize = 12;
