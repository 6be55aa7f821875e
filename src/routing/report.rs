//! How keys are spread over instances: what `lanemesh ring SERVICE` prints (REQUIREMENTS R12).

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{BreakerState, LaneView, ServiceView, key_hash, points_of};
use crate::types::{InstanceId, Lane, Mono, ServiceName, VersionName};

/// The rings of one service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RingReport {
    /// The service.
    pub service: ServiceName,
    /// Its lanes by name, also empty ones.
    pub lanes: Vec<LaneReport>,
}

/// The ring of one lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneReport {
    /// The lane.
    pub lane: Lane,
    /// Points on its ring.
    pub points: usize,
    /// Keys that were sampled.
    pub sampled_keys: u32,
    /// Most keys of an instance, in proportion to its weight, over the mean: 1.0 is even.
    pub peak_to_mean: f64,
    /// For how many of a hundred of its users the lane in its place has room, should it be lost.
    #[serde(default = "all")]
    pub room_percent: u8,
    /// Its candidates, by id.
    pub instances: Vec<InstanceShare>,
}

/// One instance's part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstanceShare {
    /// Instance id.
    pub id: InstanceId,
    /// Version of the application.
    pub version: VersionName,
    /// Its weight, eased by its load.
    pub weight: u16,
    /// Its points.
    pub points: u32,
    /// Share of the ring that it owns, 0.0..=1.0.
    pub ring_share: f64,
    /// Share of the sampled keys that it owns, 0.0..=1.0.
    pub key_share: f64,
    /// Its breaker on this sidecar.
    #[serde(default)]
    pub breaker: BreakerState,
}

impl RingReport {
    /// Of a service, with its breakers as they are now; takes some milliseconds.
    pub fn of(service: &ServiceView, now: Mono) -> Self {
        let lanes = service.lanes.iter().map(|lane| lane_report(service, lane, now)).collect();
        Self { service: service.name.clone(), lanes }
    }
}

fn lane_report(service: &ServiceView, lane: &LaneView, now: Mono) -> LaneReport {
    let mut keys = vec![0_u32; lane.members.len()];
    for key in 0..SAMPLED_KEYS {
        if let Some(slot) = lane.ring.owner(key_hash(&key.to_le_bytes())) {
            keys[usize::from(slot)] += 1;
        }
    }
    let rows = lane.members.iter().zip(lane.ring.shares()).zip(&keys);
    let instances: Vec<InstanceShare> = rows
        .map(|((at, ring_share), keys)| {
            let entry = &service.instances[usize::from(*at)];
            let record = &entry.record;
            InstanceShare {
                id: record.id.clone(),
                version: record.version.clone(),
                weight: record.ring_weight(),
                points: points_of(record.ring_weight()),
                ring_share,
                key_share: f64::from(*keys) / f64::from(SAMPLED_KEYS),
                breaker: entry.cell.state(now, &service.rules),
            }
        })
        .collect();
    let weight: f64 = instances.iter().map(|share| f64::from(share.weight)).sum();
    let peak = instances.iter().map(|share| share.key_share * weight / f64::from(share.weight));
    LaneReport {
        lane: lane.name.clone(),
        points: lane.ring.points(),
        sampled_keys: SAMPLED_KEYS,
        peak_to_mean: peak.fold(0.0, f64::max),
        room_percent: lane.room_percent(),
        instances,
    }
}

impl fmt::Display for RingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service {}", self.service)?;
        for lane in &self.lanes {
            let (count, points) = (lane.instances.len(), lane.points);
            write!(f, "\n\nlane {}: {count} candidates, {points} points", lane.lane)?;
            if lane.room_percent < 100 {
                write!(f, ", room for {} % of its users elsewhere", lane.room_percent)?;
            }
            if lane.instances.is_empty() {
                continue;
            }
            write!(f, ", peak/mean {:.2} over {} keys", lane.peak_to_mean, lane.sampled_keys)?;
            let wide =
                |text: fn(&InstanceShare) -> usize, least| lane.instances.iter().map(text).fold(least, usize::max);
            let id = wide(|share| share.id.as_str().len(), 8);
            let version = wide(|share| share.version.as_str().len(), 7);
            write!(f, "\n  {:id$}  {:version$}  weight  points    ring    keys", "instance", "version")?;
            for share in &lane.instances {
                let InstanceShare { weight, points, .. } = share;
                let (ring, keys) = (share.ring_share * 100.0, share.key_share * 100.0);
                let (name, of) = (&share.id, &share.version);
                write!(f, "\n  {name:id$}  {of:version$}  {weight:>6}  {points:>6}  {ring:>5.2} %  {keys:>5.2} %")?;
                if share.breaker != BreakerState::Closed {
                    write!(f, "  breaker {}", share.breaker.as_str())?;
                }
            }
        }
        Ok(())
    }
}

fn all() -> u8 {
    100
}

/// Keys that a report samples.
const SAMPLED_KEYS: u32 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::testing::*;

    #[test]
    fn shares_of_points_ring_and_keys_agree() {
        let mut table = fleet(4, 1);
        edit(&mut table, "a3", |record| record.weight = 300);
        let snapshot = built(&table);
        open_breaker(&snapshot.service("orders").unwrap().instances[1]);
        let report = RingReport::of(snapshot.service("orders").unwrap(), NOW);
        let [canary, stable] = &report.lanes[..] else { panic!("two lanes") };
        assert_eq!((canary.instances[0].key_share, canary.peak_to_mean), (1.0, 1.0));
        assert_eq!((stable.points, stable.instances[3].points), (6 * 256, 768));
        for share in &stable.instances {
            assert!((share.ring_share - share.key_share).abs() < 0.01, "{share:?}");
        }
        assert!((1.0..1.2).contains(&stable.peak_to_mean));
        let text = report.to_string();
        assert!(text.contains("lane stable: 4 candidates, 1536 points, peak/mean 1.") && text.contains("a3"), "{text}");
        assert_eq!(text.matches("breaker open").count(), 1, "{text}");
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<RingReport>(&json).unwrap(), report);
    }
}
