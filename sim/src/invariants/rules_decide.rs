//! Match rules decide for those whom they name, and for nobody else.

use lanemesh::lanes::LaneReason;

use super::{Findings, Invariant};
use crate::world::{Flight, World, is_tester};

pub const NAME: &str = "rules-decide";
pub const DOC: &str = "While a policy in force has a match rule, whoever meets it is decided into the rule's lane for that reason, whatever the \
bucket; nobody else is, and nobody at all once the policy is off, rolled back, or without the rule (REQUIREMENTS L4).";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decided(&mut self, world: &World, flight: &Flight, found: &mut Findings) {
        let Some(view) = flight.snapshot.service(world.services[flight.service].as_str()) else { return };
        let policy = view.policy.as_ref().map(|compiled| &compiled.policy).filter(|policy| !policy.off);
        // The simulation's only rule.
        let rule = policy.and_then(|policy| policy.rules.first()).filter(|_| is_tester(flight.user));
        let (lane, reason) = (&view.decided(&flight.decision.lane).name, flight.decision.lane.reason);
        let right = match rule {
            Some(rule) => reason == LaneReason::Rule && *lane == rule.lane,
            None => reason != LaneReason::Rule,
        };
        if !right {
            let (user, service) = (flight.user, &view.name);
            let named = rule.map_or("named by no rule".to_owned(), |rule| format!("named by `{rule}`"));
            found.add(NAME, format!("user {user} of {service}, {named}, goes to {lane}: {}", reason.as_str()));
        }
    }
}
