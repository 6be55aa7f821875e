//! Counters of the data path, as structures that requests hold, not as maps that requests search.
//!
//! prometheus-client's `Family` hashes a label set under a lock for every increment. Here a data thread resolves an
//! instance once ([`super::Metrics::instance`]) and afterwards touches only atomics. A series whose instance has gone
//! from the routing view is kept for a grace, so that its last increments are still scraped, and then removed; no counter
//! ever decreases while it exists.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, LabelSetEncoder, NoLabelSet},
    metrics::{MetricType, exemplar::Exemplar},
};

use crate::{routing::MethodClass, types::Mono};

/// Status codes by class, as the label `code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeClass {
    /// 100 to 199.
    Informational,
    /// 200 to 299.
    Success,
    /// 300 to 399.
    Redirect,
    /// 400 to 499.
    ClientError,
    /// 500 to 599.
    ServerError,
    /// No response was given: the client went away first.
    Aborted,
}

impl CodeClass {
    const ALL: [(Self, &'static str); 6] = [
        (Self::Informational, "1xx"),
        (Self::Success, "2xx"),
        (Self::Redirect, "3xx"),
        (Self::ClientError, "4xx"),
        (Self::ServerError, "5xx"),
        (Self::Aborted, "aborted"),
    ];

    /// The class of a status; `None` when no response was given.
    pub fn of(status: Option<u16>) -> Self {
        match status {
            None => Self::Aborted,
            Some(100..=199) => Self::Informational,
            Some(200..=299) => Self::Success,
            Some(300..=399) => Self::Redirect,
            Some(400..=499) => Self::ClientError,
            Some(_) => Self::ServerError,
        }
    }
}

/// Method classes, as the label `method`; what clients invent is `other`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodLabel(pub MethodClass);

impl MethodLabel {
    const NAMES: [&'static str; 3] = ["safe", "idempotent", "other"];

    fn index(self) -> usize {
        match self.0 {
            MethodClass::Safe => 0,
            MethodClass::Idempotent => 1,
            MethodClass::Other => 2,
        }
    }
}

/// Labels of one instance's series. All parts come from the routing view, or are `none` or `other`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InstanceKey {
    /// Service, `other` when it is unknown.
    pub service: String,
    /// Lane that served.
    pub lane: String,
    /// Version of the instance.
    pub version: String,
    /// Instance, `none` when no instance answered.
    pub instance: String,
}

/// Counters of one instance under its present lane and version.
#[derive(Debug)]
pub struct InstanceSeries {
    requests: [[AtomicU64; 3]; 6],
    lane: Arc<LaneSeries>,
}

impl InstanceSeries {
    fn new(lane: Arc<LaneSeries>) -> Self {
        Self { requests: Default::default(), lane }
    }

    /// Counts one finished request.
    pub fn finished(&self, method: MethodClass, status: Option<u16>, took: Duration) {
        let class = CodeClass::of(status) as usize;
        self.requests[class][MethodLabel(method).index()].fetch_add(1, Relaxed);
        self.lane.observe(took);
    }

    /// Requests counted so far, of all classes.
    pub fn total(&self) -> u64 {
        self.requests.iter().flatten().map(|count| count.load(Relaxed)).sum()
    }
}

/// Upper bounds of the latency buckets in seconds; fine around a millisecond, where a mesh lives.
const BOUNDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Latency of one service's lane, request head to end of the response body.
#[derive(Debug, Default)]
pub struct LaneSeries {
    /// One more than the bounds: the last is `+Inf`.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl LaneSeries {
    fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let slot = BOUNDS.partition_point(|bound| *bound < seconds);
        self.buckets[slot].fetch_add(1, Relaxed);
        self.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    fn read(&self) -> (f64, u64, Vec<(f64, u64)>) {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        let bounds = BOUNDS.iter().copied().chain([f64::MAX]);
        let total = counts.iter().sum();
        (Duration::from_nanos(self.nanos.load(Relaxed)).as_secs_f64(), total, bounds.zip(counts).collect())
    }
}

/// All series of the data path, and since when the gone ones are gone.
#[derive(Debug, Default)]
pub(super) struct SeriesTable {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    instances: BTreeMap<InstanceKey, (Arc<InstanceSeries>, Option<Mono>)>,
    lanes: BTreeMap<(String, String), Arc<LaneSeries>>,
}

impl SeriesTable {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // A panic elsewhere while counting leaves valid counters behind.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The series of an instance; made when it is new.
    pub(super) fn instance(&self, key: InstanceKey) -> Arc<InstanceSeries> {
        let inner = &mut *self.lock();
        if let Some((series, gone)) = inner.instances.get_mut(&key) {
            *gone = None;
            return series.clone();
        }
        let lane = inner.lanes.entry((key.service.clone(), key.lane.clone())).or_default().clone();
        let series = Arc::new(InstanceSeries::new(lane));
        inner.instances.insert(key, (series.clone(), None));
        series
    }

    /// Marks what `known` does not know any more, and removes what was gone for `grace`.
    pub(super) fn retire(&self, known: impl Fn(&InstanceKey) -> bool, now: Mono, grace: Duration) {
        let inner = &mut *self.lock();
        inner.instances.retain(|key, (_, gone)| {
            if known(key) {
                *gone = None;
                return true;
            }
            now.since(*gone.get_or_insert(now)) < grace
        });
        let used: Vec<(String, String)> =
            inner.instances.keys().map(|key| (key.service.clone(), key.lane.clone())).collect();
        inner.lanes.retain(|key, _| used.contains(key));
    }
}

struct RequestLabels<'a> {
    key: &'a InstanceKey,
    code: &'static str,
    method: &'static str,
}

fn label(encoder: &mut LabelSetEncoder<'_>, name: &str, value: &str) -> fmt::Result {
    let mut label = encoder.encode_label();
    let mut key = label.encode_label_key()?;
    key.write_str(name)?;
    let mut out = key.encode_label_value()?;
    EncodeLabelValue::encode(&value, &mut out)?;
    out.finish()
}

impl EncodeLabelSet for RequestLabels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        label(encoder, "service", &self.key.service)?;
        label(encoder, "lane", &self.key.lane)?;
        label(encoder, "version", &self.key.version)?;
        label(encoder, "instance", &self.key.instance)?;
        label(encoder, "code", self.code)?;
        label(encoder, "method", self.method)
    }
}

struct LaneLabels<'a>(&'a str, &'a str);

impl EncodeLabelSet for LaneLabels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        label(encoder, "service", self.0)?;
        label(encoder, "lane", self.1)
    }
}

impl Collector for SeriesTable {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Copied out, so that a slow scraper never holds up a data thread that meets a new instance.
        let (instances, lanes) = {
            let inner = self.lock();
            let instances: Vec<_> = inner.instances.iter().map(|(k, (s, _))| (k.clone(), s.clone())).collect();
            let lanes: Vec<_> = inner.lanes.iter().map(|(k, s)| (k.clone(), s.clone())).collect();
            (instances, lanes)
        };
        let help = "Requests by the instance that answered, class of code and class of method";
        let mut family = encoder.encode_descriptor("requests", help, None, MetricType::Counter)?;
        for (key, series) in &instances {
            for (class, (_, code)) in CodeClass::ALL.iter().enumerate() {
                for (at, method) in MethodLabel::NAMES.iter().enumerate() {
                    let count = series.requests[class][at].load(Relaxed);
                    if count > 0 {
                        let labels = RequestLabels { key, code, method };
                        let none: Option<&Exemplar<NoLabelSet, u64>> = None;
                        family.encode_family(&labels)?.encode_counter(&count, none)?;
                    }
                }
            }
        }
        let help = "Request head to end of response body";
        let unit = prometheus_client::registry::Unit::Seconds;
        let mut family = encoder.encode_descriptor("request_duration", help, Some(&unit), MetricType::Histogram)?;
        for ((service, lane), series) in &lanes {
            let (sum, count, buckets) = series.read();
            family
                .encode_family(&LaneLabels(service, lane))?
                .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(instance: &str) -> InstanceKey {
        InstanceKey { service: "orders".into(), lane: "stable".into(), version: "v1".into(), instance: instance.into() }
    }

    #[test]
    fn a_gone_instance_keeps_its_series_for_the_grace_and_no_longer() {
        let table = SeriesTable::default();
        let grace = Duration::from_secs(60);
        table.instance(key("a")).finished(MethodClass::Safe, Some(200), Duration::from_millis(1));
        table.instance(key("b"));
        let only_b = |key: &InstanceKey| key.instance == "b";
        let count = |table: &SeriesTable| table.lock().instances.len();
        table.retire(only_b, Mono::from_millis(1_000), grace);
        table.retire(only_b, Mono::from_millis(60_000), grace);
        assert_eq!(count(&table), 2);
        table.retire(only_b, Mono::from_millis(61_000), grace);
        assert_eq!(count(&table), 1);
    }

    #[test]
    fn an_instance_that_comes_back_goes_on_counting() {
        let table = SeriesTable::default();
        let first = table.instance(key("a"));
        first.finished(MethodClass::Other, Some(503), Duration::ZERO);
        table.retire(|_| false, Mono::from_millis(1), Duration::from_secs(60));
        let again = table.instance(key("a"));
        assert!(Arc::ptr_eq(&first, &again));
        table.retire(|_| false, Mono::from_millis(50_000), Duration::from_secs(60));
        table.retire(|_| true, Mono::from_millis(59_000), Duration::from_secs(60));
        table.retire(|_| false, Mono::from_millis(70_000), Duration::from_secs(60));
        assert_eq!(table.instance(key("a")).total(), 1);
    }

    #[test]
    fn latency_falls_into_the_bucket_that_bounds_it() {
        let series = LaneSeries::default();
        for millis in [0, 1, 2, 20_000] {
            series.observe(Duration::from_millis(millis));
        }
        let (sum, count, buckets) = series.read();
        assert!((sum - 20.003).abs() < 1e-6);
        assert_eq!(count, 4);
        let filled: Vec<usize> = buckets.iter().enumerate().filter(|(_, b)| b.1 > 0).map(|(at, _)| at).collect();
        assert_eq!(filled, [0, 1, 2, BOUNDS.len()]);
    }
}
