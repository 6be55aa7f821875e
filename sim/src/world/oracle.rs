//! What is true, as nobody inside the world can know it: who lives, who can reach whom, since when nothing is wrong.

use std::collections::BTreeMap;

use lanemesh::types::MemberState;

use super::World;
use crate::{
    chance::mix,
    host::Host,
    queue::{SECOND, Time},
    scenario::Do,
};

/// How long readiness waits for a seed.
const SEEDS_WAIT: Time = 3 * SECOND;

/// Who is who, for the readout and for invariants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Members {
    /// Hosts that take part.
    pub up: usize,
    /// Those of them whose view is right: all members alive, nobody else.
    pub right: usize,
}

impl World {
    /// Whether a cut kept others from a member just before nobody could reach the observer any more: what they said of it then is
    /// held there, and no refutation arrives.
    pub fn accused_before_island(&self, observer: &Host, subject: u32) -> bool {
        let (from, to) = (observer.island_since.saturating_sub(self.bounds.held_back), observer.island_since);
        let alone =
            self.hosts.iter().all(|host| host.index == observer.index || !self.links.open(host.index, observer.index));
        alone
            && self.faults.iter().any(|fault| {
                let cuts = self.scenario.step[fault.step as usize].act.0.cuts();
                cuts && fault.touches(subject) && fault.begun < to && fault.ended.is_none_or(|ended| ended > from)
            })
    }

    /// Whether a host is up and awake, and both can reach each other.
    pub fn in_contact(&self, a: u32, b: u32) -> bool {
        let awake = |host: u32| self.hosts[host as usize].is_awake(self.now);
        awake(a) && awake(b) && self.links.open_both(a, b)
    }

    /// Whether nothing is or was lately wrong with either, nor with the ways between everybody around them.
    pub fn all_well(&self, a: u32, b: u32, lasting: Time) -> bool {
        let (one, other) = (&self.hosts[a as usize], &self.hosts[b as usize]);
        let islands = one.island.is_some() && one.island == other.island;
        let since = one.island_since.max(other.island_since);
        islands && since + lasting <= self.now && one.is_clean(self.now, lasting) && other.is_clean(self.now, lasting)
    }

    /// A fault begins on a host.
    pub(super) fn trouble(&mut self, host: u32) {
        self.hosts[host as usize].trouble += 1;
    }

    /// A fault on a host ends.
    pub(super) fn relieve(&mut self, host: u32) {
        let now = self.now;
        let entry = &mut self.hosts[host as usize];
        entry.trouble = entry.trouble.saturating_sub(1);
        entry.clean_since = now;
    }

    /// Finds out anew who can reach whom. Hosts that can all reach each other, and nobody else, share an island.
    pub(super) fn islands_changed(&mut self) {
        let now = self.now;
        let cut = self.links.is_cut();
        self.cut_at = if cut { Some(now) } else { self.cut_at };
        let up: Vec<u32> = self.hosts.iter().filter(|host| host.is_up()).map(|host| host.index).collect();
        let mut islands: Vec<Option<u64>> = vec![None; self.hosts.len()];
        if cut {
            // Hosts that reach the same are an island if those they reach are themselves, all of them and nobody else.
            let mut alike: BTreeMap<Vec<u32>, Vec<u32>> = BTreeMap::new();
            for a in &up {
                let reach = up.iter().copied().filter(|b| self.links.open_both(*a, *b)).collect();
                alike.entry(reach).or_default().push(*a);
            }
            for (reach, hosts) in alike.iter().filter(|(reach, hosts)| reach == hosts) {
                // The least member's number stands for the island, so that coming and going does not make a new one.
                hosts.iter().for_each(|host| islands[*host as usize] = Some(mix(u64::from(reach[0]) + 1)));
            }
        } else {
            up.iter().for_each(|host| islands[*host as usize] = Some(0));
        }
        for (host, island) in self.hosts.iter_mut().zip(islands) {
            let island = island.map(|island| if host.foreign { !island } else { island });
            if host.island != island && host.is_up() {
                (host.island, host.island_since) = (island, now);
            }
        }
    }

    /// Counts verdicts on members that could be reached.
    pub(super) fn note_verdict(&mut self, observer: u32, subject: u32, state: MemberState) {
        if !self.in_contact(observer, subject) {
            return;
        }
        match state {
            MemberState::Down => self.stats.down_in_contact += 1,
            MemberState::Doubtful => self.stats.doubts_in_contact += 1,
            MemberState::Alive | MemberState::Left => {}
        }
    }

    /// Whether a fault makes the link between two hosts worse now.
    pub fn is_worse(&self, a: u32, b: u32) -> bool {
        self.faults.iter().any(|fault| {
            let act = self.scenario.step[fault.step as usize].act.0;
            act == Do::Worsen && fault.ended.is_none() && fault.touches(a) && fault.touches(b)
        })
    }

    /// Whether an observer would send new requests to what a member announces.
    pub fn trusts(&self, observer: u32, member: u32) -> bool {
        let node = self.hosts[observer as usize].node.as_ref();
        node.is_some_and(|node| node.membership().state(&self.hosts[member as usize].id) == Some(MemberState::Alive))
    }

    /// Whether an observer's view of everybody is what is true.
    pub fn view_is_right(&self, observer: u32) -> bool {
        self.wrong_about(observer).is_none()
    }

    /// The first member that an observer is wrong about, and how it sees it.
    pub fn wrong_about(&self, observer: u32) -> Option<(u32, Option<MemberState>)> {
        let node = self.hosts[observer as usize].node.as_ref()?;
        let others = self.hosts.iter().filter(|other| other.index != observer);
        let wrong = others.filter_map(|other| {
            let state = node.membership().state(&other.id);
            let routable = state == Some(MemberState::Alive);
            let held = matches!(state, Some(MemberState::Alive | MemberState::Doubtful));
            let one_of_us = other.is_member() && other.foreign == self.hosts[observer as usize].foreign;
            let right = if one_of_us { routable } else { !held };
            (!right).then_some((other.index, state))
        });
        wrong.into_iter().next()
    }

    /// How many take part, and how many of them see everybody rightly.
    pub fn members(&self) -> Members {
        let up: Vec<u32> = self.hosts.iter().filter(|host| host.is_member()).map(|host| host.index).collect();
        Members { up: up.len(), right: up.iter().filter(|host| self.view_is_right(**host)).count() }
    }

    /// Readiness as the agent tells it.
    pub(super) fn note_ready(&mut self) {
        let now = self.now;
        for host in &mut self.hosts {
            let Some(node) = &host.node else { continue };
            let met = node.met_mesh() || host.started + SEEDS_WAIT <= now;
            if host.ready_since.is_none() && node.is_member() && met {
                host.ready_since = Some(now);
            }
        }
    }
}
