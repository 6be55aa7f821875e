//! Why a member is in its state, in words.

use super::{
    Membership,
    roster::{ME, Member},
};
use crate::{
    types::{MemberState, Mono, NodeId},
    wire::Evidence,
};

impl Membership {
    /// Why a member is in its state, for `members`: short lines, the most telling first.
    pub fn why(&self, node: &NodeId, now: Mono) -> Vec<String> {
        let Some(slot) = self.lookup(node) else { return Vec::new() };
        let member = self.roster.get(slot);
        let mut lines = Vec::new();
        if slot == ME {
            lines.push("this node".to_owned());
            if self.health.score > 0 {
                lines.push(format!("own health {} of 8 (0 is well): probes are slower", self.health.score));
            }
        } else {
            lines.extend(standing(member, now));
            lines.extend(self.accusers(member, now));
            if self.is_last_resort(node).is_some_and(|until| now < until) {
                lines.push("went with many others: its instances are kept as a last resort".to_owned());
            }
            lines.push(match member.heard {
                Some(at) => format!("heard {} ago", ago(now, at)),
                None => "not heard directly yet".to_owned(),
            });
        }
        match member.refutations {
            0 => {}
            1 => lines.push("refuted once".to_owned()),
            times => lines.push(format!("refuted {times} times")),
        }
        if member.credit.is_spent(now) {
            lines.push(format!("not listened to: {} of its accusations were refuted", member.credit.refuted()));
        }
        lines
    }

    fn accusers(&self, member: &Member, now: Mono) -> Option<String> {
        let mut last = None;
        let mut names = Vec::new();
        for (by, charge) in member.case.charges() {
            let what = if charge.evidence == Evidence::Refused { "port refused" } else { "silent" };
            names.push(format!("{} ({what})", self.roster.get(by).name));
            last = last.max(Some(charge.at));
        }
        let private = if member.case.public { "" } else { ", not confirmed by anybody else" };
        last.map(|at| format!("accused by {} {} ago{private}", names.join(", "), ago(now, at)))
    }
}

fn standing(member: &Member, now: Mono) -> Option<String> {
    let since = ago(now, member.since);
    match member.state {
        MemberState::Alive => None,
        MemberState::Doubtful => Some(format!("doubtful for {since}")),
        MemberState::Left => Some(format!("left {since} ago")),
        MemberState::Down => Some(match member.held_until.filter(|until| now < *until) {
            Some(until) => format!(
                "down for {since}, held down for {:.0} s more: {} deaths in a row",
                until.since(now).as_secs_f64(),
                member.flaps.0
            ),
            None => format!("down for {since}"),
        }),
    }
}

fn ago(now: Mono, at: Mono) -> String {
    format!("{:.1} s", now.since(at).as_secs_f64())
}
