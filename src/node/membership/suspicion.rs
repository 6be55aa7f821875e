//! From accusations to verdicts: when a member is doubtful, when it is down.
//!
//! Doubtful: an own failed confirm, or two distinct accusers; direct contact less than a second ago outweighs both, unless
//! two saw the port refuse and nothing was heard since. Down: two distinct accusers (or, where no second can exist, an
//! own failed confirm), after a wait that shrinks with their number. Shortly before a verdict a few others are asked
//! whether they know better. A verdict waits while this node is unwell or has just stood still.
//!
//! Everything is computed from the case each time it is looked at; a timer only says when to look.

use std::time::Duration;

use super::{
    Membership,
    roster::{ME, Member, Slot},
    timers::Timer,
};
use crate::{
    types::{MemberState, Mono, NodeId, Planted, Trust},
    wire::Ctl,
};

/// What a look at a case finds.
enum Verdict {
    /// Nothing yet; look again then, unless something happens before.
    NotBefore(Mono),
    /// It is time to ask others whether they know better.
    Look,
    /// Dead.
    Down,
}

impl Membership {
    /// Looks at what is held against a member.
    pub(super) fn review(&mut self, now: Mono, slot: Slot) {
        let expires = self.config.lone_expires;
        let member = self.roster.get_mut(slot);
        if slot == ME || member.is_gone() {
            return;
        }
        member.case.expire(now, expires);
        let doubtful = self.is_doubtful(now, self.roster.get(slot));
        let state = if doubtful { MemberState::Doubtful } else { MemberState::Alive };
        self.changed(now, slot, state);
        if self.roster.get(slot).case.is_empty() {
            return;
        }
        match self.verdict(now, self.roster.get(slot)) {
            Verdict::NotBefore(at) => self.review_again(now, slot, at),
            Verdict::Down => self.convict(now, slot),
            Verdict::Look => {
                self.roster.get_mut(slot).case.looked = Some(now);
                self.ask_who_knows_better(slot);
                if let Verdict::NotBefore(at) = self.verdict(now, self.roster.get(slot)) {
                    self.review_again(now, slot, at);
                }
            }
        }
    }

    fn is_doubtful(&self, now: Mono, member: &Member) -> bool {
        let evidence = member.case.own || member.case.accusers() >= 2;
        evidence && (!self.heard_lately(now, member) || is_refused(member))
    }

    fn heard_lately(&self, now: Mono, member: &Member) -> bool {
        member.heard.is_some_and(|heard| heard + self.config.veto > now)
    }

    fn verdict(&self, now: Mono, member: &Member) -> Verdict {
        let (case, config) = (&member.case, &self.config);
        let refused = is_refused(member);
        let wait = if refused { config.wait_refused } else { config.wait(case.accusers(), self.witnesses() + 1) };
        let end = case.opened + wait;
        let look_at = if refused { case.opened } else { end - config.last_look };
        let confirmed = case.accusers() >= 2;
        // A state that time alone changes: a veto that ends, or a lone accusation that expires.
        let turns = member.heard.map(|heard| heard + config.veto).filter(|at| *at > now);
        let turns = turns.into_iter().chain(case.lone_until(config.lone_expires).filter(|at| *at > now)).min();
        let sooner = |at: Mono| Verdict::NotBefore(turns.map_or(at, |turn| turn.min(at)));
        if confirmed && case.looked.is_none() {
            return if now >= look_at { Verdict::Look } else { sooner(look_at) };
        }
        // Whoever was asked late gets the same time to answer.
        let end = case.looked.map_or(end, |looked| end.max(looked + config.last_look));
        if now < end {
            return sooner(end);
        }
        let alone = case.own && (self.witnesses() < 2 || Planted::OwnWordIsEnough.is_on());
        if !(confirmed || alone) {
            return sooner(now + RECHECK * 2);
        }
        let vetoed = self.heard_lately(now, member) && member.heard > Some(case.opened);
        let unwell = self.health.score >= TOO_SICK_TO_CONVICT && now.since(end) < MOST_PATIENCE;
        if (vetoed || unwell || now < self.hold_until) && !Planted::SlowConvicts.is_on() {
            return sooner(now + RECHECK);
        }
        Verdict::Down
    }

    fn review_again(&mut self, now: Mono, slot: Slot, at: Mono) {
        let after = at.since(now).max(Duration::from_millis(1));
        let at = now + after;
        let member = self.roster.get_mut(slot);
        if member.review_at.is_none_or(|set| set > at || set <= now) {
            member.review_at = Some(at);
            self.timers.set(now, after, Timer::Review(slot));
        }
    }

    fn ask_who_knows_better(&mut self, accused: Slot) {
        let member = self.roster.get(accused);
        let (generation, incarnation) = member.life();
        let accused_name = member.name.clone();
        for other in self.roster.random(&mut self.rng, LAST_LOOK_ASKS, accused) {
            let accused = accused_name.clone();
            self.send_to(other, Ctl::Verify { accused, generation, incarnation });
        }
    }

    /// A peer is about to declare this life of a member dead: correct it, or warn the member.
    pub(super) fn knows_better(
        &mut self,
        now: Mono,
        from: Slot,
        accused: &NodeId,
        life: (u64, u16),
        trust: &dyn Trust,
    ) {
        let Some(slot) = self.lookup(accused) else { return };
        let member = self.roster.get(slot);
        if member.life() > life {
            self.correct(now, from, slot);
        } else if slot == ME {
            self.accused_myself(now, life, false, trust);
        } else if member.life() == life && member.is_active() && self.heard_lately(now, member) {
            self.warn(now, slot);
        }
    }

    /// Tells a member that its present life is held dead somewhere, so that it can refute.
    pub(super) fn warn(&mut self, now: Mono, slot: Slot) {
        let member = self.roster.get_mut(slot);
        if member.told.is_some_and(|at| now.since(at) < WARN_GAP) {
            return;
        }
        member.told = Some(now);
        let (generation, incarnation) = member.life();
        self.send_to(slot, Ctl::Condemned { generation, incarnation });
    }

    fn convict(&mut self, now: Mono, slot: Slot) {
        let (window, flaps, hold) = (self.config.flap_window, self.config.flaps, self.config.flap_hold);
        let member = self.roster.get_mut(slot);
        let (count, last) = member.flaps;
        member.flaps = if count > 0 && now.since(last) <= window { (count + 1, now) } else { (1, now) };
        member.held_until = (member.flaps.0 >= flaps).then(|| now + hold);
        self.confirms.end(slot);
        self.stop_probing(now, slot);
        self.changed(now, slot, MemberState::Down);
        self.heal_while_needed(now);
    }

    /// All waits begin anew: this process stood still and may just have missed the answers.
    pub(super) fn restart_waits(&mut self, now: Mono) {
        let open: Vec<Slot> =
            self.roster.iter().filter(|(_, m)| m.is_active() && !m.case.is_empty()).map(|(slot, _)| slot).collect();
        for slot in open {
            let case = &mut self.roster.get_mut(slot).case;
            case.opened = now;
            case.looked = None;
            self.review_again(now, slot, now);
        }
    }
}

/// Two saw the port refuse, and nothing was heard since.
fn is_refused(member: &Member) -> bool {
    member.case.refusals() >= 2 && member.heard.is_none_or(|heard| heard < member.case.opened)
}

/// From this own score on verdicts wait, for `MOST_PATIENCE` at most.
const TOO_SICK_TO_CONVICT: u32 = 2;
const MOST_PATIENCE: Duration = Duration::from_secs(10);
/// How soon a verdict that had to wait is looked at again.
pub(super) const RECHECK: Duration = Duration::from_millis(250);
/// How many others are asked before a verdict.
const LAST_LOOK_ASKS: usize = 3;
/// At least this much between two warnings to the same member.
const WARN_GAP: Duration = Duration::from_millis(300);
