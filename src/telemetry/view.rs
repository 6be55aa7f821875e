//! What the routing view counts itself, read at each scrape: states of breakers, what they did, room for lost lanes, retry budgets.
//!
//! Labels are services, lanes and states of the view in force, so their number is bounded by it; a service that leaves the view
//! takes its series along.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    sync::Arc,
};

use arc_swap::ArcSwap;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, LabelSetEncoder, NoLabelSet},
    metrics::{MetricType, exemplar::Exemplar},
};

use super::Clock;
use crate::routing::{BreakerState, ServiceView, Snapshot};

/// Reads the view in force.
pub(super) struct ViewCollector {
    snapshots: Arc<ArcSwap<Snapshot>>,
    clock: Clock,
}

impl ViewCollector {
    pub(super) fn new(snapshots: Arc<ArcSwap<Snapshot>>, clock: Clock) -> Self {
        Self { snapshots, clock }
    }
}

impl fmt::Debug for ViewCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ViewCollector").finish_non_exhaustive()
    }
}

/// Name, help and reading of a counter by service.
type CounterOf = (&'static str, &'static str, fn(&ServiceView) -> u64);

const COUNTERS: [CounterOf; 7] = [
    ("breaker_opened", "Breakers of instances that opened", |service| service.state.breakers().opened),
    ("breaker_held", "Breakers that should have opened, but too much of the lane was kept away already", |service| {
        service.state.breakers().held
    }),
    (
        "breaker_beyond_floor",
        "Breakers that opened although too much of the lane was kept away, since their instance gave nothing at all",
        |service| service.state.breakers().beyond,
    ),
    ("breaker_returned", "Instances that began to come back after an open breaker", |service| {
        service.state.breakers().returned
    }),
    ("breaker_signalled", "Instances kept away because other sidecars saw them fail", |service| {
        service.state.breakers().signalled
    }),
    (
        "silent_avoided",
        "Requests that could not be repeated and passed over an instance where several waited unheard of",
        |service| service.state.silent_avoided(),
    ),
    ("retries_denied", "Retries that the service's retry budget did not allow", |service| {
        service.state.retries_denied()
    }),
];

impl Collector for ViewCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.snapshots.load();
        let help = "Candidates by the state of their breaker on this sidecar";
        let mut family = encoder.encode_descriptor("breakers", help, None, MetricType::Gauge)?;
        for service in snapshot.services() {
            for lane in &service.lanes {
                let mut states: BTreeMap<BreakerState, i64> = BreakerState::ALL.map(|state| (state, 0)).into();
                for at in &lane.members {
                    let cell = &service.instances[usize::from(*at)].cell;
                    *states.entry(cell.state(self.clock.mono(), &service.rules)).or_default() += 1;
                }
                for (state, count) in states {
                    let labels = Texts([
                        ("service", service.name.as_str()),
                        ("lane", lane.name.as_str()),
                        ("state", state.as_str()),
                    ]);
                    family.encode_family(&labels)?.encode_gauge(&count)?;
                }
            }
        }
        let help = "Of a lane's users, should it be lost: for how many of a hundred the lane in its place has room";
        let mut family = encoder.encode_descriptor("lane_room_percent", help, None, MetricType::Gauge)?;
        for service in snapshot.services() {
            for lane in &service.lanes {
                let labels = Texts([("service", service.name.as_str()), ("lane", lane.name.as_str())]);
                family.encode_family(&labels)?.encode_gauge(&i64::from(lane.room_percent()))?;
            }
        }
        for (name, help, read) in COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for service in snapshot.services() {
                let none: Option<&Exemplar<NoLabelSet, u64>> = None;
                let labels = Texts([("service", service.name.as_str())]);
                family.encode_family(&labels)?.encode_counter(&read(service), none)?;
            }
        }
        Ok(())
    }
}

/// Labels as plain texts.
struct Texts<'a, const N: usize>([(&'static str, &'a str); N]);

impl<const N: usize> EncodeLabelSet for Texts<'_, N> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        for (name, value) in self.0 {
            let mut label = encoder.encode_label();
            let mut key = label.encode_label_key()?;
            key.write_str(name)?;
            let mut out = key.encode_label_value()?;
            EncodeLabelValue::encode(&value, &mut out)?;
            out.finish()?;
        }
        Ok(())
    }
}
