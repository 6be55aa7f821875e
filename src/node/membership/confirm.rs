//! Confirm, with a control: what happens between a missed ack and an accusation.
//!
//! Order matters. The byte on the connected UDP socket goes out before anything else and QUIC rests for a moment, since a
//! kernel answers only a few packets to a dead port a second. Then the ping is repeated as a new datagram until the
//! deadline. From the second miss on the nearest members are asked to look too. In every round random members are asked
//! for an ack until one came: the control. Without it the failure is this node's own, and it counts against its own
//! health instead.

use std::collections::BTreeMap;

use super::{
    Action, Membership,
    engine::Probe,
    history::Happened,
    roster::{ME, Slot},
    timers::Timer,
};
use crate::{
    types::{Mono, NodeId, Planted, Trust},
    wire::{Ctl, Evidence},
};

/// One member being asked again.
struct Confirm {
    life: (u64, u16),
    started: Mono,
    deadline: Mono,
    /// When the next round is due.
    next: Mono,
    round: u32,
    /// What the member itself answers.
    token: u64,
    /// Who is asked to look, with the token that acknowledges it; worked out when it is time to ask.
    helpers: Option<Vec<(Slot, u64)>>,
    /// Somebody else answered meanwhile.
    control: bool,
    /// Somebody else was asked at all.
    control_asked: bool,
    /// The port has refused; nothing more to find out.
    refused: bool,
    why: Why,
}

/// Why a member is asked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// It missed an ack.
    Missed,
    /// Somebody else asks to look.
    ForAnother,
    /// So many went at once that all are asked (`heal`). Those that answer are each other's controls.
    Sweep,
}

/// Whose answer a token is, and about whom.
struct Asked {
    about: Slot,
    whom: Slot,
}

/// All confirms under way, one per member.
pub(super) struct Confirms {
    running: BTreeMap<Slot, Confirm>,
    tokens: BTreeMap<u64, Asked>,
    last_token: u64,
}

impl Confirms {
    pub(super) fn new(seed: u64) -> Self {
        // Tokens of different runs should not meet; 0 belongs to questions whose answer is not waited for.
        Self { running: BTreeMap::new(), tokens: BTreeMap::new(), last_token: seed >> 16 }
    }

    /// Whether one runs that nobody has shown to be the member's fault yet.
    pub(super) fn lack_control(&self) -> bool {
        self.running.values().any(|confirm| !confirm.control)
    }

    /// Whether a timer for this moment is the one that counts.
    pub(super) fn is_due(&self, about: Slot, at: Mono) -> bool {
        self.running.get(&about).is_some_and(|confirm| confirm.next == at)
    }

    pub(super) fn is_running(&self, about: Slot) -> bool {
        self.running.contains_key(&about)
    }

    /// The member was heard, has gone, or has another life.
    pub(super) fn end(&mut self, about: Slot) {
        if self.running.remove(&about).is_some() {
            self.tokens.retain(|_, asked| asked.about != about);
        }
    }

    /// A slot is given up: nothing may name it any more.
    pub(super) fn forget(&mut self, slot: Slot) {
        self.end(slot);
        self.tokens.retain(|_, asked| asked.whom != slot);
        for confirm in self.running.values_mut() {
            confirm.helpers.iter_mut().for_each(|helpers| helpers.retain(|(helper, _)| *helper != slot));
        }
    }

    pub(super) fn clear(&mut self) {
        self.running.clear();
        self.tokens.clear();
    }

    fn token(&mut self, about: Slot, whom: Slot) -> u64 {
        self.last_token += 1;
        self.tokens.insert(self.last_token, Asked { about, whom });
        self.last_token
    }
}

impl Membership {
    /// Asks a member again, for a while.
    pub(super) fn confirm(&mut self, now: Mono, slot: Slot, why: Why) {
        let member = self.roster.get(slot);
        let fresh = member.heard.is_some_and(|heard| now.since(heard) < self.config.fresh);
        let settled = member.is_gone() || member.case.own || member.case.accusers() >= self.config.accusers_enough;
        let helped = member.helped.is_some_and(|at| now.since(at) < self.config.help_gap());
        if slot == ME || fresh || settled || self.confirms.is_running(slot) || (why == Why::ForAnother && helped) {
            return;
        }
        let life = member.life();
        if why == Why::ForAnother {
            self.roster.get_mut(slot).helped = Some(now);
            self.note(now, slot, Happened::AskedForOthers);
        }
        let token = self.confirms.token(slot, slot);
        let deadline = now + self.config.confirm * (1 + self.health.score);
        let confirm = Confirm {
            life,
            started: now,
            deadline,
            next: now,
            round: 0,
            token,
            helpers: None,
            control: false,
            control_asked: false,
            refused: false,
            why,
        };
        self.confirms.running.insert(slot, confirm);
        self.ask(now, slot);
    }

    /// The members that everybody asks and tells about this one, without this node.
    pub(super) fn nearest_others(&self, accused: Slot) -> Vec<Slot> {
        let nearest = self.roster.nearest(accused, self.config.helpers + 1);
        nearest.into_iter().filter(|slot| *slot != ME).take(self.config.helpers).collect()
    }

    /// The next round, or the end.
    pub(super) fn confirm_round(&mut self, now: Mono, slot: Slot, trust: &dyn Trust) {
        let Some(confirm) = self.confirms.running.get(&slot) else { return };
        let member = self.roster.get(slot);
        if member.life() != confirm.life || member.is_gone() || confirm.refused {
            return self.confirms.end(slot);
        }
        if now < confirm.deadline {
            return self.ask(now, slot);
        }
        let inside = confirm.control || self.health.answered.is_some_and(|at| at > confirm.started);
        let outside = self.has_outside_sign(confirm.started);
        let (asked, why) = (confirm.control_asked, confirm.why);
        self.confirms.end(slot);
        let careless = Planted::NoControl.is_on() || Planted::SlowConvicts.is_on();
        if !inside && !outside && !careless {
            // Nobody answers: that is this node's fault. With nobody to ask it says nothing.
            self.note(now, slot, Happened::OwnFault);
            self.health.worse(u32::from(asked));
        } else if (self.health.score < TOO_SICK_TO_ACCUSE || outside || careless) && now >= self.hold_until {
            self.note(now, slot, Happened::Silent);
            self.accuse(now, slot, Evidence::Silent, why, trust);
        }
    }

    /// Whether something outside the mesh answered since shortly before `started`, and that counts.
    pub(super) fn has_outside_sign(&self, started: Mono) -> bool {
        self.witnesses() <= 1 && self.health.outside.is_some_and(|at| at + self.config.veto >= started)
    }

    /// Sends one round of questions.
    fn ask(&mut self, now: Mono, slot: Slot) {
        let Some(confirm) = self.confirms.running.get_mut(&slot) else { return };
        let round = confirm.round;
        // Most of those that are swept live: a ping comes first, and the rest only for who does not answer it.
        let first = confirm.why == Why::Sweep && round == 0;
        confirm.round += 1;
        let (token, life, control, deadline) = (confirm.token, confirm.life, confirm.control, confirm.deadline);
        let late = now.since(confirm.started) >= self.config.help_after && confirm.why == Why::Missed;
        if round.is_multiple_of(2) && !first {
            let node = self.roster.get(slot).name.clone();
            self.actions.push_back(Action::UdpProbe { token, node });
        }
        if round > 0 || first {
            self.send_to(slot, Ctl::Ping { token });
        }
        let accused = self.roster.get(slot).name.clone();
        let helpers = if late { self.helpers_for(slot) } else { Vec::new() };
        for (helper, token) in helpers {
            let accused = accused.clone();
            self.send_to(helper, Ctl::Check { accused, generation: life.0, incarnation: life.1, token });
        }
        if !control && !first {
            self.ask_controls(slot);
        }
        let pause = if round == 0 && !first { self.config.rest } else { self.config.retry }.min(deadline.since(now));
        if let Some(confirm) = self.confirms.running.get_mut(&slot) {
            confirm.next = now + pause;
        }
        self.timers.set(now, pause, Timer::Confirm(slot));
    }

    /// Who is asked to look at a member, without those that have answered.
    fn helpers_for(&mut self, about: Slot) -> Vec<(Slot, u64)> {
        if let Some(known) = self.confirms.running.get(&about).and_then(|confirm| confirm.helpers.clone()) {
            return known;
        }
        let nearest = self.nearest_others(about);
        let helpers: Vec<(Slot, u64)> =
            nearest.into_iter().map(|helper| (helper, self.confirms.token(about, helper))).collect();
        if let Some(confirm) = self.confirms.running.get_mut(&about) {
            confirm.helpers = Some(helpers.clone());
        }
        helpers
    }

    fn ask_controls(&mut self, about: Slot) {
        for other in self.roster.random(&mut self.rng, self.config.controls, about) {
            let token = self.confirms.token(about, other);
            self.send_to(other, Ctl::Ping { token });
            if let Some(confirm) = self.confirms.running.get_mut(&about) {
                confirm.control_asked = true;
            }
        }
    }

    /// An ack to foca's ping: only one in time is a sign of this node's health.
    pub(super) fn acked(&mut self, now: Mono, from: Slot, probe: Probe) {
        let Probe::Ack(number) = probe else { return };
        self.is_heard(now);
        let Some(ping) = self.ping.as_mut().filter(|ping| ping.to.slot == from && ping.number == number) else {
            return;
        };
        ping.acked = true;
        let took = now.since(ping.at);
        if took <= self.config.probe_rtt * 2 {
            self.tallies.answered.0 += 1;
            self.tallies.answered.1 += u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            self.history(from).round_trip = Some(took);
            self.health.answered = Some(now);
            self.health.score = self.health.score.saturating_sub(1);
        }
    }

    /// An ack came. From the member itself it ends the confirm (`heard` sees to that); from anybody else, to whom the
    /// token was given, it is the control.
    pub(super) fn answered(&mut self, now: Mono, from: Slot, token: u64) {
        let Some(asked) = self.confirms.tokens.get(&token).filter(|asked| asked.whom == from) else { return };
        let about = asked.about;
        if from == about {
            let in_time = self.config.probe_rtt * 2;
            let swept = |confirm: &Confirm| confirm.why == Why::Sweep && now.since(confirm.started) <= in_time;
            if self.confirms.running.get(&about).is_some_and(swept) {
                self.health.answered = Some(now);
            }
            return;
        }
        self.confirms.tokens.remove(&token);
        self.health.answered = Some(now);
        if let Some(confirm) = self.confirms.running.get_mut(&about) {
            confirm.control = true;
            confirm.helpers.iter_mut().for_each(|helpers| helpers.retain(|(_, of)| *of != token));
        }
    }

    /// The port of a UDP probe refused. Whoever answers thus has no such process, or a firewall that says so: evidence,
    /// no proof. It needs no control, since something did answer.
    pub fn refused(&mut self, now: Mono, token: u64, trust: &dyn Trust) {
        self.enter(now);
        let Some(asked) = self.confirms.tokens.get(&token).filter(|asked| asked.about == asked.whom) else { return };
        let slot = asked.about;
        let Some(confirm) = self.confirms.running.get_mut(&slot).filter(|confirm| !confirm.refused) else { return };
        confirm.refused = true;
        let why = confirm.why;
        let same_life = confirm.life == self.roster.get(slot).life();
        if same_life && now >= self.hold_until {
            self.note(now, slot, Happened::Refused);
            self.accuse(now, slot, Evidence::Refused, why, trust);
        }
    }

    /// `from` asks this node to look at a third one.
    pub(super) fn look_for(&mut self, now: Mono, from: Slot, accused: &NodeId, life: (u64, u16)) {
        let Some(slot) = self.lookup(accused) else { return };
        if self.roster.get(slot).life() > life {
            self.correct(now, from, slot);
        } else if slot != ME && self.roster.get(slot).life() == life {
            self.confirm(now, slot, Why::ForAnother);
        }
    }
}

/// From this own score on nobody is accused.
const TOO_SICK_TO_ACCUSE: u32 = 4;
