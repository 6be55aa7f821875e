//! The registry as a value, and the metrics of the data path.
//!
//! Names carry the prefix `lanemesh_`; counters end in `_total` in the exposition (OpenMetrics 1.0).

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use prometheus_client::{
    encoding::text,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Metric, Registry},
};

use super::{
    Clock, Observed,
    series::{InstanceKey, InstanceSeries, SeriesTable},
    view::ViewCollector,
};
use crate::{
    routing::{InstanceEntry, Snapshot},
    types::Mono,
};

/// How long a departed instance's series stay.
const GRACE: Duration = Duration::from_secs(300);
/// Stands for everything that the sidecar does not know by name.
const OTHER: &str = "other";
/// Stands for the instance of a request that no instance answered.
const NONE: &str = "none";

type Labels<const N: usize> = [(&'static str, String); N];

/// All metrics of one sidecar.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    series: Arc<SeriesTable>,
    /// Client connections that are open.
    pub client_connections: Gauge,
    /// Client connections refused because of `proxy.max_connections`.
    pub client_connections_refused: Counter,
    /// Client connections that the system would not let us accept.
    pub accept_failed: Counter,
    /// Requests in flight.
    pub in_flight: Gauge,
    /// Tunnels that are open: upgrades, `CONNECT`, TCP ports.
    pub tunnels: Gauge,
    /// Connections opened to instances.
    pub upstream_opened: Counter,
    /// Requests sent on a pooled connection.
    pub upstream_reused: Counter,
    /// Connections opened before a request needed them.
    pub upstream_ahead: Counter,
    /// Pooled connections that turned out closed when they were to be used; never a failure by itself.
    pub upstream_stale: Counter,
    /// Connections to instances that could not be made.
    pub upstream_connect_failed: Counter,
    /// Access-log lines dropped because the writer could not keep up.
    pub access_log_dropped: Counter,
    /// Subjects whose requests are all logged.
    pub observed: Observed,
    retries: Family<Labels<2>, Counter>,
    fallbacks: Family<Labels<4>, Counter>,
    errors: Family<Labels<1>, Counter>,
    lane_probes: Family<Labels<1>, Counter>,
    panics: Family<Labels<1>, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// An own registry with the data path's metrics in it.
    pub fn new() -> Self {
        let metrics = Self {
            registry: Mutex::new(Registry::with_prefix("lanemesh")),
            series: Arc::default(),
            client_connections: Gauge::default(),
            client_connections_refused: Counter::default(),
            accept_failed: Counter::default(),
            in_flight: Gauge::default(),
            tunnels: Gauge::default(),
            upstream_opened: Counter::default(),
            upstream_reused: Counter::default(),
            upstream_ahead: Counter::default(),
            upstream_stale: Counter::default(),
            upstream_connect_failed: Counter::default(),
            access_log_dropped: Counter::default(),
            observed: Observed::default(),
            retries: Family::default(),
            fallbacks: Family::default(),
            errors: Family::default(),
            lane_probes: Family::default(),
            panics: Family::default(),
        };
        metrics.register_all();
        metrics.register_more();
        metrics
    }

    fn register_all(&self) {
        self.registry().register_collector(Box::new(self.series.clone()));
        self.register("client_connections", "Open client connections", self.client_connections.clone());
        self.register(
            "client_connections_refused",
            "Client connections refused because proxy.max_connections was reached",
            self.client_connections_refused.clone(),
        );
        self.register(
            "accept_failed",
            "Client connections that the system would not let this process accept",
            self.accept_failed.clone(),
        );
        self.register("requests_in_flight", "Requests in flight", self.in_flight.clone());
        self.register("tunnels", "Open tunnels: upgrades, CONNECT, TCP ports", self.tunnels.clone());
        self.register("upstream_connections_opened", "Connections to instances", self.upstream_opened.clone());
        self.register("upstream_connections_reused", "Requests on pooled connections", self.upstream_reused.clone());
        self.register(
            "upstream_connections_ahead",
            "Connections opened to instances that came into rotation, before a request needed them",
            self.upstream_ahead.clone(),
        );
        self.register(
            "upstream_connections_stale",
            "Pooled connections found closed; not a failure of the instance",
            self.upstream_stale.clone(),
        );
        self.register(
            "upstream_connect_failed",
            "Connections to instances that could not be made",
            self.upstream_connect_failed.clone(),
        );
        self.register(
            "access_log_dropped",
            "Access-log lines lost: the writer could not keep up, or the file took no more",
            self.access_log_dropped.clone(),
        );
        self.register("retries", "Tries after the first, by what made them necessary", self.retries.clone());
        self.register("lane_fallback", "Requests served by another lane than decided", self.fallbacks.clone());
        self.register("proxy_errors", "Responses made by the proxy itself, by reason", self.errors.clone());
        self.register(
            "lane_probes",
            "Explicit lane headers from subjects that may not use them",
            self.lane_probes.clone(),
        );
    }

    fn register_more(&self) {
        self.register(
            "routing_panics",
            "Requests sent to the ring's owner although local state spoke against every candidate",
            self.panics.clone(),
        );
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a metric of another part of the sidecar. Keep a clone of it to change it; `help` without a full stop.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        self.registry().register(name, help, metric);
    }

    /// Adds and returns a gauge.
    pub fn register_gauge(&self, name: &str, help: &str) -> Gauge {
        let gauge = Gauge::default();
        self.register(name, help, gauge.clone());
        gauge
    }

    /// Adds and returns a counter; the exposition appends `_total` to its name.
    pub fn register_counter(&self, name: &str, help: &str) -> Counter {
        let counter = Counter::default();
        self.register(name, help, counter.clone());
        counter
    }

    /// Everything in OpenMetrics text (`application/openmetrics-text; version=1.0.0; charset=utf-8`).
    pub fn encode(&self) -> String {
        let mut out = String::new();
        // Writing to a `String` cannot fail; a collector's own failure leaves the text short, without `# EOF`.
        if let Err(error) = text::encode(&mut out, &self.registry()) {
            tracing::warn!(%error, "metrics could not be encoded");
        }
        out
    }

    /// The series of an instance. Takes a lock: resolve once per instance and thread, not per request.
    pub fn instance(&self, entry: &InstanceEntry) -> Arc<InstanceSeries> {
        let record = &entry.record;
        self.series.instance(InstanceKey {
            service: record.service.to_string(),
            lane: record.lane.to_string(),
            version: record.version.to_string(),
            instance: record.id.to_string(),
        })
    }

    /// The series of requests to a known service that no instance answered.
    pub fn unanswered(&self, service: &str, lane: &str) -> Arc<InstanceSeries> {
        self.series.instance(InstanceKey {
            service: service.to_owned(),
            lane: lane.to_owned(),
            version: NONE.to_owned(),
            instance: NONE.to_owned(),
        })
    }

    /// The series of requests that name no known service: one for all, whatever clients invent.
    pub fn unknown_service(&self) -> Arc<InstanceSeries> {
        self.unanswered(OTHER, OTHER)
    }

    /// Removes the series of instances that are gone from the routing view for five minutes. Call it every few seconds.
    pub fn retire(&self, snapshot: &Snapshot, now: Mono) {
        self.series.retire(|key| known(snapshot, key), now, GRACE);
    }

    /// Counts a try after the first; `service` must be a known one.
    pub fn retried(&self, service: &str, reason: &'static str) {
        self.retries.get_or_create(&[("service", service.to_owned()), ("reason", reason.to_owned())]).inc();
    }

    /// Counts a request that left its decided lane for another.
    pub fn fell_back(&self, service: &str, lane: &str, served: &str, reason: &'static str) {
        let labels = [
            ("service", service.to_owned()),
            ("lane", lane.to_owned()),
            ("served", served.to_owned()),
            ("reason", reason.to_owned()),
        ];
        self.fallbacks.get_or_create(&labels).inc();
    }

    /// Counts a request whose every candidate was spoken against.
    pub fn panicked(&self, service: &str) {
        self.panics.get_or_create(&[("service", service.to_owned())]).inc();
    }

    /// Adds what the routing view itself counts: breakers and retry budgets of its services.
    pub fn watch(&self, snapshots: Arc<ArcSwap<Snapshot>>, clock: Clock) {
        self.registry().register_collector(Box::new(ViewCollector::new(snapshots, clock)));
    }

    /// Counts a response that the proxy made itself.
    pub fn proxy_error(&self, reason: &'static str) {
        self.errors.get_or_create(&[("reason", reason.to_owned())]).inc();
    }

    /// Counts an explicit lane header from a subject that may not use it.
    pub fn lane_probe(&self, service: &str) {
        self.lane_probes.get_or_create(&[("service", service.to_owned())]).inc();
    }
}

fn known(snapshot: &Snapshot, key: &InstanceKey) -> bool {
    if key.service == OTHER && key.instance == NONE {
        return true;
    }
    let Some(service) = snapshot.service(&key.service) else { return false };
    if key.instance == NONE {
        return true;
    }
    // Instances are sorted by id; two owners may announce the same.
    let first = service.instances.partition_point(|entry| entry.record.id.as_str() < key.instance.as_str());
    service.instances[first..]
        .iter()
        .take_while(|entry| entry.record.id.as_str() == key.instance)
        .any(|entry| entry.record.lane.as_str() == key.lane && entry.record.version.as_str() == key.version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::MethodClass;

    #[test]
    fn unknown_services_share_one_series() {
        let metrics = Metrics::new();
        let before = metrics.encode().lines().count();
        for _ in 0..1_000 {
            metrics.unknown_service().finished(MethodClass::Other, Some(404), Duration::ZERO);
        }
        let text = metrics.encode();
        assert!(text.contains(r#"lanemesh_requests_total{service="other",lane="other",version="none",instance="none",code="4xx",method="other"} 1000"#), "{text}");
        assert!(text.lines().count() - before < 25);
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn other_parts_add_their_own() {
        let metrics = Metrics::new();
        metrics.register_gauge("members", "Members alive").set(3);
        metrics.register_counter("gossip_frames", "Frames").inc();
        let text = metrics.encode();
        assert!(text.contains("lanemesh_members 3") && text.contains("lanemesh_gossip_frames_total 1"), "{text}");
    }
}
