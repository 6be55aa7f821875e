//! Signals for people: what `lanemesh observe` prints.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{LIFE, Signals, denied, find};
use crate::{
    routing::Snapshot,
    types::{InstanceId, Mono, NodeId, Observation, ServiceName},
};

/// What sidecars say of instances that fail, and what follows here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalsReport {
    /// This sidecar.
    pub node: NodeId,
    /// What requests from here meet now.
    pub own: Vec<Observation>,
    /// What others said in the last seconds.
    pub observers: Vec<ObserverReport>,
    /// Instances that are kept away here because others saw them fail.
    pub doubts: Vec<DoubtReport>,
}

/// What one sidecar said last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObserverReport {
    /// Who.
    pub observer: NodeId,
    /// How long ago, in milliseconds.
    pub age_ms: u64,
    /// What is thought of it.
    pub standing: Standing,
    /// What it saw.
    pub seen: Vec<Observation>,
}

/// What is thought of an observer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Its word counts, and others saw the same.
    Agreed,
    /// Nobody else saw the same so far: nothing follows.
    Alone,
    /// Nobody else sees the same for some time, and what it accuses answers here: it is probably sick itself.
    AnswersHere,
    /// It accuses most of a lane: it is probably sick itself.
    AccusesMost,
    /// It was proved wrong again and again: it is probably sick itself.
    Discredited,
}

impl Standing {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Agreed => "others see the same",
            Self::Alone => "nobody else sees it: nothing follows",
            Self::AnswersHere => "nobody else sees it, and it answers here: not believed, probably sick itself",
            Self::AccusesMost => "accuses most of a lane: not believed, probably sick itself",
            Self::Discredited => "was wrong again and again: not believed, probably sick itself",
        }
    }
}

/// An instance that is kept away on others' word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoubtReport {
    /// Its service.
    pub service: ServiceName,
    /// Instance id.
    pub instance: InstanceId,
    /// Its sidecar.
    pub owner: NodeId,
    /// Requests added up.
    pub attempts: u32,
    /// Failures among them.
    pub failures: u32,
    /// Who saw them; this sidecar may be one.
    pub observers: Vec<NodeId>,
    /// Since when, in milliseconds.
    pub age_ms: u64,
}

impl Signals {
    /// What is known now.
    pub fn report(&self, snapshot: &Snapshot, now: Mono) -> SignalsReport {
        let age = |at: Mono| u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX);
        let lanes = snapshot.services().flat_map(|view| view.lanes.iter().map(move |lane| (view, lane)));
        let own = lanes.flat_map(|(view, lane)| super::failing(view, lane, now)).map(|(_, observation)| observation);
        let observers = self.said.iter().filter(|(_, said)| now.since(said.at) <= LIFE).map(|(observer, said)| {
            let most = |observation: &Observation| {
                find(snapshot, observation).is_some_and(|(view, lane, _)| self.accuses_most(observer, view, lane))
            };
            let standing = if self.is_discredited(observer, now) {
                Standing::Discredited
            } else if said.seen.iter().any(most) {
                Standing::AccusesMost
            } else if said.agreed {
                Standing::Agreed
            } else if self.remarked.contains_key(observer) && said.seen.iter().any(|seen| denied(seen, snapshot, now)) {
                Standing::AnswersHere
            } else {
                Standing::Alone
            };
            ObserverReport { observer: observer.clone(), age_ms: age(said.at), standing, seen: said.seen.clone() }
        });
        let kept = |(service, owner, id): &super::Key| {
            let view = snapshot.service(service.as_str());
            let at = view.and_then(|view| view.instance(owner, id).map(|at| (view, at)));
            at.is_some_and(|(view, at)| view.instances[usize::from(at)].cell.is_signalled())
        };
        let doubts = self.doubts.iter().filter(|(key, _)| kept(key)).map(|((service, owner, id), doubt)| DoubtReport {
            service: service.clone(),
            instance: id.clone(),
            owner: owner.clone(),
            attempts: doubt.attempts,
            failures: doubt.failures,
            observers: doubt.observers.clone(),
            age_ms: age(doubt.at),
        });
        SignalsReport {
            node: self.me.clone(),
            own: own.collect(),
            observers: observers.collect(),
            doubts: doubts.collect(),
        }
    }
}

impl fmt::Display for SignalsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen =
            |o: &Observation| format!("{} of {}: {} of {} failed", o.instance, o.service, o.failures, o.attempts);
        if self.own.is_empty() && self.observers.is_empty() && self.doubts.is_empty() {
            return writeln!(f, "no sidecar says that an instance fails");
        }
        for doubt in &self.doubts {
            let names: Vec<&str> = doubt.observers.iter().map(NodeId::as_str).collect();
            let (failures, attempts, seconds) = (doubt.failures, doubt.attempts, doubt.age_ms / 1000);
            let (instance, service) = (&doubt.instance, &doubt.service);
            writeln!(
                f,
                "kept away  {instance} of {service} for {seconds} s: {failures} of {attempts} failed, seen by {}",
                names.join(", ")
            )?;
        }
        for own in &self.own {
            writeln!(f, "seen here  {}", seen(own))?;
        }
        for observer in &self.observers {
            let said: Vec<String> = observer.seen.iter().map(seen).collect();
            let (name, seconds) = (&observer.observer, observer.age_ms as f64 / 1000.0);
            writeln!(f, "says       {name}, {seconds:.1} s ago: {} ({})", said.join("; "), observer.standing.words())?;
        }
        Ok(())
    }
}
