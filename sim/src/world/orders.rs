//! What operators order: shares of lanes, selectors and reserves, rules, rollbacks. Each is asked of one sidecar, as `lanemesh lane` does.

use lanemesh::{
    lanes::PolicyChange,
    types::{Condition, Lane, LanePolicy, MatchRule, PolicyVersion, ServiceName, Wanted},
};

use super::{World, traffic::TESTERS_HEADER};
use crate::{invariants::Order, scenario::Step};

impl World {
    fn service_named(&self, step: &Step) -> Option<ServiceName> {
        step.service.as_ref().and_then(|name| name.parse().ok())
    }

    pub(super) fn set_policy(&mut self, step: &Step, hosts: &[u32]) {
        let (Some(host), Some(service)) = (hosts.first(), self.service_named(step)) else { return };
        let lane = step.lane.as_ref().and_then(|lane| lane.parse().ok()).unwrap_or_else(canary);
        let points = |percent: f64| (percent * 100.0) as u16;
        let traits = |select: &Vec<String>| select.iter().filter_map(|one| one.parse().ok()).collect();
        let change = PolicyChange {
            sizes: [(lane.clone(), points(step.value.unwrap_or(0.0)))].into(),
            reserve: step.reserve.map(|reserve| (lane.clone(), points(reserve))).into_iter().collect(),
            select: step.select.as_ref().map(|select| (lane, traits(select))).into_iter().collect(),
            rules: match step.how.as_deref() {
                Some("testers") => Some(vec![testers_rule()]),
                Some(_) => Some(Vec::new()),
                None => None,
            },
            reason: "the scenario says so".into(),
            force: true,
            ..PolicyChange::default()
        };
        let entry = &mut self.hosts[*host as usize];
        let now = entry.now(self.now);
        let Some(node) = &mut entry.node else { return };
        let base = node.catalog().policy(&service).map(|entry| entry.policy.version.clone());
        match node.set_policy(now, &service, &change) {
            Ok(policy) => self.ordered(*host, policy, base, false),
            Err(error) => self.log.note(self.now, || format!("policy refused: {error}")),
        }
        self.drain(*host);
    }

    fn ordered(&mut self, by: u32, policy: LanePolicy, base: Option<PolicyVersion>, rollback: bool) {
        let (service, version) = (policy.service.clone(), policy.version.clone());
        self.stats.lineage.push(Order { service, version, base, rollback });
        self.stats.orders.push((self.now, by, policy));
    }

    pub(super) fn roll_back(&mut self, step: &Step, hosts: &[u32]) {
        let (Some(host), Some(service)) = (hosts.first(), self.service_named(step)) else { return };
        let entry = &mut self.hosts[*host as usize];
        let now = entry.now(self.now);
        let Some(node) = &mut entry.node else { return };
        let base = node.catalog().policy(&service).map(|entry| entry.policy.version.clone());
        match node.rollback(now, &service, "the scenario says so") {
            Ok(policy) => self.ordered(*host, policy, base, true),
            Err(error) => self.log.note(self.now, || format!("rollback refused: {error}")),
        }
        self.drain(*host);
    }
}

/// Testers go to the canary.
fn testers_rule() -> MatchRule {
    let (name, value) = TESTERS_HEADER;
    let when = Condition::Header(name.into(), Wanted::Is(value.into()));
    MatchRule { lane: canary(), when: vec![when] }
}

/// The lane of a step that names none.
fn canary() -> Lane {
    Lane::new("canary").expect("a valid name")
}
