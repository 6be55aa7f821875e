//! Requests stay near while there is enough.

use std::collections::BTreeSet;

use lanemesh::{
    config::Balance,
    routing::{Exclusion, InstanceEntry},
    types::MemberState,
};

use super::{Findings, Invariant};
use crate::{
    host::Host,
    world::{Flight, World, subject},
};

pub const NAME: &str = "near-first";
pub const DOC: &str = "Where sidecars prefer their zone: while the healthy weight of the own zone is 5/7 of its even part of the lane or more, every key goes to an \
instance there that nothing speaks against; else the same holds for the own region; and while it has nobody at all, or not enough, keys go \
on (REQUIREMENTS R7). Pinned and spread keys go where they belong.";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decided(&mut self, world: &World, flight: &Flight, found: &mut Findings) {
        let (rules, decision) = (&world.routing, &flight.decision);
        if !rules.prefer_zone || rules.balance != Balance::Ring || decision.panic || decision.spread > 1 {
            return;
        }
        let subject = subject(flight.user);
        let Some(view) = flight.snapshot.service(world.services[flight.service].as_str()) else { return };
        let (Some(lane), Some(chosen)) = (decision.served_lane(view), decision.target(view)) else { return };
        // Only the first few that were passed over are known.
        if rules.pin.iter().any(|(key, _)| *key == subject) || decision.skipped.more() > 0 {
            return;
        }
        let host = &world.hosts[flight.at.host as usize];
        let passed = |at: u16| decision.skipped.iter().any(|skipped| skipped.instance == at);
        for range in [Range::Zone, Range::Region] {
            if range.holds(host, chosen) {
                return;
            }
            let free = |at: &&u16| range.holds(host, &view.instances[usize::from(**at)]) && !passed(**at);
            if let Some(nearer) = lane.members.iter().find(free)
                && range.is_enough(host, lane.name.as_str(), &view.instances)
            {
                let record = &view.instances[usize::from(*nearer)].record;
                let text = format!(
                    "{} in {} sends {subject} of {} {} to {} in {}, past {} in {}",
                    host.id,
                    host.locality.zone,
                    view.name,
                    lane.name,
                    chosen.record.id,
                    chosen.record.zone,
                    record.id,
                    record.zone
                );
                return found.add(NAME, text);
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Range {
    Zone,
    Region,
}

impl Range {
    fn holds(self, host: &Host, entry: &InstanceEntry) -> bool {
        let (record, here) = (&entry.record, &host.locality);
        record.region == here.region && (self == Self::Region || record.zone == here.zone)
    }

    /// Whether what is healthy here is 5/7 of what a zone or region has of the lane on average, and a little more, so that no rounding
    /// matters.
    fn is_enough(self, host: &Host, lane: &str, instances: &[InstanceEntry]) -> bool {
        let gone =
            [Exclusion::OtherEnv, Exclusion::OtherRegion, Exclusion::OwnerLeft, Exclusion::DuplicateId].map(Some);
        let known =
            || instances.iter().filter(|entry| entry.record.lane.as_str() == lane && !gone.contains(&entry.excluded));
        let place = |entry: &InstanceEntry| match self {
            Self::Zone => (entry.record.region.to_string(), entry.record.zone.to_string()),
            Self::Region => (entry.record.region.to_string(), String::new()),
        };
        let places = known().map(place).collect::<BTreeSet<_>>().len() as f64;
        let weight = |entry: &InstanceEntry| f64::from(entry.record.weight);
        let healthy = known().filter(|entry| entry.excluded.is_none() && entry.owner != MemberState::Doubtful);
        let own: f64 = healthy.filter(|entry| self.holds(host, entry)).map(weight).sum();
        own * places * 7.0 > known().map(weight).sum::<f64>() * 5.0 * 1.001
    }
}
