//! One request from its head to the end of its response: what is counted and logged when it ends, however it ends.

use std::{net::SocketAddr, rc::Rc, sync::Arc};

use http::{Method, Uri};

use super::{view::{Service, View}, worker::Worker};
use crate::{
    routing::{Decision, InstanceEntry, MethodClass},
    telemetry::{AccessEntry, InstanceSeries},
    types::{Mono, Wall},
};

/// Dropping it ends the request.
pub(super) struct Flight {
    pub(super) worker: Rc<Worker>,
    pub(super) view: Rc<View>,
    pub(super) client: SocketAddr,
    pub(super) begun: Mono,
    pub(super) random: u64,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) class: MethodClass,
    pub(super) service: Option<Rc<Service>>,
    pub(super) decision: Option<Decision>,
    /// Index of the instance tried last.
    pub(super) instance: Option<u16>,
    /// Whether an instance's answer is what the client gets.
    pub(super) answered: bool,
    pub(super) subject: Option<String>,
    pub(super) route_key: Option<String>,
    pub(super) retries: u32,
    pub(super) status: Option<u16>,
    pub(super) bytes: u64,
    pub(super) error: Option<&'static str>,
}

impl Flight {
    /// The instance tried last.
    pub(super) fn target(&self) -> Option<&InstanceEntry> {
        let service = self.service.as_ref()?.view(&self.view)?;
        service.instances.get(usize::from(self.instance?))
    }

    /// Whether this request is logged even if it ends well; its subject has to be kept then.
    pub(super) fn sampled(&self) -> bool {
        self.worker.access.as_ref().is_some_and(|access| access.wants(self.random, false))
    }

    fn series(&self) -> Arc<InstanceSeries> {
        match (&self.service, self.instance.filter(|_| self.answered)) {
            (Some(service), Some(at)) => service.series(&self.view, at, &self.worker.metrics),
            (Some(service), None) => {
                let lane = self.decision.as_ref().map_or("other", |d| service.lane(&self.view, d).unwrap_or("other"));
                self.worker.metrics.unanswered(service.name.as_str(), lane)
            }
            (None, _) => self.worker.metrics.unknown_service(),
        }
    }

    fn entry(&self, now: Mono) -> AccessEntry {
        let took = now.since(self.begun);
        let wall = self.worker.clock.wall();
        let snapshot = &self.view.snapshot;
        let target = self.target();
        let policy = self.service.as_ref().and_then(|service| service.view(&self.view)?.policy.as_ref());
        let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        AccessEntry {
            time: Wall(wall.0.saturating_sub(millis(took))),
            client: self.client,
            method: self.method.to_string(),
            service: self.service.as_ref().map(|service| service.name.clone()),
            path: self.uri.to_string(),
            status: self.status,
            bytes: self.bytes,
            duration_ms: took.as_secs_f64() * 1e3,
            route_key: self.route_key.clone(),
            user_id: self.subject.clone(),
            gray_result: self.decision.as_ref().map(|decision| super::explain::lane_reason(decision.lane.reason)),
            bucket: self.decision.as_ref().and_then(|decision| decision.lane.bucket),
            hash_value: self.decision.as_ref().map(|decision| decision.key_hash),
            target_instance: target.map(|entry| entry.record.id.clone()),
            target_version: target.map(|entry| entry.record.version.clone()),
            target_lane: target.map(|entry| entry.record.lane.clone()),
            ring_version: Some(snapshot.digest),
            snapshot_version: snapshot.version,
            snapshot_age_ms: millis(now.since(snapshot.published)),
            policy_version: policy.map(|policy| policy.policy.version.clone()),
            retry_count: self.retries,
            fallback_reason: self.decision.as_ref().and_then(|decision| decision.fallback).map(super::explain::fallback),
            error: self.error,
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let now = self.worker.clock.mono();
        self.series().finished(self.class, self.status, now.since(self.begun));
        self.worker.request_ended();
        let Some(access) = &self.worker.access else { return };
        let failed = self.error.is_some() || self.status.is_none_or(|status| status >= 500);
        if access.wants(self.random, failed) {
            access.log(Box::new(self.entry(now)));
        }
    }
}
