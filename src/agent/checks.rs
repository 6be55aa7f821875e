//! What an operator's order is held against before it is carried out: names that nobody knows are slips of the pen, and in an
//! incident a rollback of `ordres` that reports success is worse than none.
//!
//! Only orders are checked, and only against what this sidecar knows: a statement of a peer is judged by the catalog alone.

use std::collections::{BTreeMap, BTreeSet};

use super::{CommandError, run::Agent};
use crate::{
    config::request_id_in,
    lanes::PolicyChange,
    types::{InstanceId, InstanceRecord, Lane, MemberState, NodeId, Selectors, ServiceName, selected},
};

impl Agent {
    /// A service is known when somebody announces an instance of it, or there is a policy for it.
    pub(super) fn known_service(&self, service: &ServiceName) -> Result<(), CommandError> {
        let services: BTreeSet<&ServiceName> = self.announced().map(|record| &record.service).collect();
        if services.contains(service) || self.node.catalog().policy(service).is_some() {
            return Ok(());
        }
        let text = format!("nobody announces an instance of `{service}` (services here: {})", listed(&services));
        Err(CommandError::NotFound(text))
    }

    /// A policy for a service nobody announces, a lane that nobody serves, or a subject that changes with every request needs
    /// `force`, or makes no sense at all.
    pub(super) fn sensible(&self, service: &ServiceName, change: &PolicyChange) -> Result<(), CommandError> {
        if let Some(header) = change.subject.as_ref().and_then(request_id_in) {
            let text = format!(
                "`{header}` changes with every request, so nobody would stay in a lane; use a header that stays with the user"
            );
            return Err(CommandError::Refused(text));
        }
        if change.force {
            return Ok(());
        }
        self.known_service(service).map_err(|error| match error {
            CommandError::NotFound(text) => CommandError::NotFound(format!("{text}; --force sets it all the same")),
            other => other,
        })?;
        let held = self.node.catalog().policy(service).map(|entry| entry.policy.clone());
        let then = change.select.clone();
        let selectors = held.iter().flat_map(|policy| policy.selectors.clone()).chain(then).collect();
        let served = self.lanes_with(service, &selectors);
        if !change.select.is_empty() && !served.contains(&Lane::stable()) && !served.is_empty() {
            return Err(CommandError::Refused(format!(
                "the selectors would take every instance of `{service}` from stable (lanes then: {}): its users would \
                 fail; --force sets it all the same",
                listed(&served.iter().collect())
            )));
        }
        let size = |lane: &Lane| held.as_ref().and_then(|policy| policy.lanes.get(lane)).map_or(0, |rule| rule.size);
        let grown = change.sizes.iter().filter(|(lane, to)| **to > size(lane)).map(|(lane, _)| lane);
        let listed_lanes = change.allow.iter().filter(|(_, subjects)| !subjects.is_empty()).map(|(lane, _)| lane);
        let ruled = change.rules.iter().flatten().map(|rule| &rule.lane).filter(|lane| !lane.is_stable());
        match grown.chain(listed_lanes).chain(ruled).find(|lane| !served.contains(*lane)) {
            None => Ok(()),
            Some(lane) => Err(CommandError::Refused(format!(
                "no instance of `{service}` serves lane `{lane}` (lanes there: {}): its users would fall back or fail; \
                 --force sets it all the same",
                listed(&served.iter().collect())
            ))),
        }
    }

    /// The lanes that a service's instances serve under these selectors.
    fn lanes_with(&self, service: &ServiceName, selectors: &Selectors) -> BTreeSet<Lane> {
        let of_service = self.announced().filter(|record| &record.service == service);
        of_service.map(|record| selected(selectors, record).unwrap_or(&record.lane).clone()).collect()
    }

    /// The living member that announces an instance of this id already.
    pub(super) fn other_owner(&self, id: &InstanceId) -> Option<&NodeId> {
        self.of_living_others().find(|record| &record.id == id).map(|record| &record.owner)
    }

    fn of_living_others(&self) -> impl Iterator<Item = &InstanceRecord> {
        let (me, membership) = (self.node.id(), self.node.membership());
        let lives = |owner| matches!(membership.state(owner), Some(MemberState::Alive | MemberState::Doubtful));
        self.announced().filter(move |record| &record.owner != me && lives(&record.owner))
    }

    fn announced(&self) -> impl Iterator<Item = &InstanceRecord> {
        self.node.catalog().instances().map(|entry| &*entry.record).filter(|record| !record.removed)
    }

    /// Says once of each own instance that another member's has its id: only one of them gets traffic.
    pub(super) fn warn_of_twins(&mut self) {
        let own: BTreeSet<&InstanceId> = self.node.own_instances().map(|record| &record.id).collect();
        let twins: BTreeMap<InstanceId, NodeId> = self
            .of_living_others()
            .filter(|record| own.contains(&record.id))
            .map(|record| (record.id.clone(), record.owner.clone()))
            .collect();
        for (id, other) in twins.iter().filter(|(id, _)| !self.twins.contains_key(*id)) {
            tracing::warn!(
                instance = %id, %other,
                "another node announces an instance of this id: one of the two gets no traffic. Give each its own `id`"
            );
        }
        self.twins = twins;
    }
}

fn listed<T: std::fmt::Display>(names: &BTreeSet<&T>) -> String {
    let shown: Vec<String> = names.iter().take(SHOWN).map(ToString::to_string).collect();
    match names.len() {
        0 => "none".into(),
        count if count > SHOWN => format!("{}, and {} more", shown.join(", "), count - SHOWN),
        _ => shown.join(", "),
    }
}

/// Names in an error text.
const SHOWN: usize = 12;
