//! One request from its head to the end of its response: what is counted and logged when it ends, however it ends.

use std::{rc::Rc, sync::Arc, time::Duration};

use http::{HeaderValue, Method, Uri, Version, request::Parts};

use super::{
    client::Client,
    grpc,
    view::{Service, View},
    worker::Worker,
};
use crate::{
    routing::{Decision, InstanceEntry, MethodClass, Outcome, Pending},
    telemetry::{AccessEntry, InstanceSeries},
    types::{Mono, Wall},
};

/// What a client asked for, for the access log.
pub(super) enum Asked {
    /// As hyper parsed it.
    Uri(Uri),
    /// The path alone.
    Path(Box<str>),
}

impl Asked {
    /// Without the query: tokens and personal data travel there.
    fn path(&self) -> String {
        match self {
            // Of a `CONNECT`: the authority, which is all that it has.
            Self::Uri(uri) if uri.path().is_empty() => uri.to_string(),
            Self::Uri(uri) => uri.path().to_owned(),
            Self::Path(path) => path.to_string(),
        }
    }
}

/// Dropping it ends the request.
pub(super) struct Flight {
    pub(super) worker: Rc<Worker>,
    pub(super) view: Rc<View>,
    pub(super) client: Rc<Client>,
    begun: Mono,
    pub(super) random: u64,
    method: Method,
    asked: Asked,
    /// The client speaks HTTP/2.
    pub(super) http2: bool,
    /// It is a gRPC call.
    pub(super) grpc: bool,
    pub(super) class: MethodClass,
    pub(super) service: Option<Rc<Service>>,
    pub(super) decision: Option<Decision>,
    /// Index of the instance tried last.
    pub(super) instance: Option<u16>,
    /// Whether an instance's answer is what the client gets.
    pub(super) answered: bool,
    pub(super) subject: Option<Box<str>>,
    pub(super) route_key: Option<Box<str>>,
    pub(super) retries: u32,
    pub(super) status: Option<u16>,
    pub(super) bytes: u64,
    pub(super) error: Option<&'static str>,
    /// What the client wants to upgrade to, if it does.
    pub(super) upgrade: Option<HeaderValue>,
    /// A call of which nothing has come yet that says how it went.
    pub(super) pending: Option<Pending>,
    /// How long it took until the connection was switched to a tunnel, which may then last for days.
    pub(super) switched: Option<Duration>,
}

impl Flight {
    pub(super) fn new(worker: Rc<Worker>, client: Rc<Client>, parts: &Parts, class: MethodClass) -> Self {
        let mut flight = Self::begin(worker, client, parts.method.clone(), Asked::Uri(parts.uri.clone()), class);
        flight.http2 = parts.version == Version::HTTP_2;
        flight.grpc = grpc::is_call(parts.version, &parts.headers);
        flight
    }

    /// Of HTTP/1.1.
    pub(super) fn begin(
        worker: Rc<Worker>,
        client: Rc<Client>,
        method: Method,
        asked: Asked,
        class: MethodClass,
    ) -> Self {
        worker.request_began();
        client.entered();
        Self {
            view: worker.view(),
            begun: worker.clock.mono(),
            random: worker.random(),
            method,
            asked,
            http2: false,
            grpc: false,
            worker,
            client,
            class,
            service: None,
            decision: None,
            instance: None,
            answered: false,
            subject: None,
            route_key: None,
            retries: 0,
            status: None,
            bytes: 0,
            error: None,
            upgrade: None,
            pending: None,
            switched: None,
        }
    }

    /// The connection is no longer HTTP from here on: the request took as long as that, whatever follows.
    pub(super) fn switches(&mut self) {
        self.switched = Some(self.worker.clock.mono().since(self.begun));
    }

    /// The first that says how a call went.
    pub(super) fn called(&mut self, outcome: Outcome) {
        let Some(pending) = self.pending.take() else { return };
        if let Some(routed) = self.service.as_ref().and_then(|service| service.view(&self.view)) {
            pending.ended(outcome, routed, self.worker.clock.mono());
        }
    }

    /// The instance tried last.
    fn target(&self) -> Option<&InstanceEntry> {
        let service = self.service.as_ref()?.view(&self.view)?;
        service.instances.get(usize::from(self.instance?))
    }

    fn series(&self) -> Arc<InstanceSeries> {
        match (&self.service, self.instance.filter(|_| self.answered)) {
            (Some(service), Some(at))
                if let Some(prepared) = service.prepared(&self.view, at, &self.worker.metrics) =>
            {
                prepared.series.clone()
            }
            (Some(service), _) => {
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
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        AccessEntry {
            time: Wall(wall.0.saturating_sub(millis(took))),
            client: self.client.address,
            method: self.method.to_string(),
            service: self.service.as_ref().map(|service| service.name.clone()),
            path: self.asked.path(),
            status: self.status,
            bytes: self.bytes,
            duration_ms: (took.as_secs_f64() * 1e6).round() / 1e3,
            route_key: self.route_key.as_deref().or(self.subject.as_deref()).map(str::to_owned),
            user_id: self.subject.as_deref().map(str::to_owned),
            gray_result: self.decision.as_ref().map(|decision| decision.lane.reason.as_str()),
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
            fallback_reason: self
                .decision
                .as_ref()
                .and_then(|decision| decision.fallback)
                .map(|reason| reason.as_str()),
            error: self.error,
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let now = self.worker.clock.mono();
        if self.status.is_none() {
            self.error = Some("client_aborted");
        }
        if let (Some(streams), Some("client_aborted")) = (self.client.http2.get(), self.error) {
            streams.given_up(now.since(self.begun), &self.client, &self.worker);
        }
        self.series().finished(self.class, self.status, self.switched.unwrap_or_else(|| now.since(self.begun)));
        self.worker.request_ended();
        self.client.left(now);
        let access = &self.worker.access;
        let failed = self.error.is_some() || self.status.is_none_or(|status| status >= 500);
        if access.wants(self.random, failed) {
            access.log(Box::new(self.entry(now)));
        }
    }
}
