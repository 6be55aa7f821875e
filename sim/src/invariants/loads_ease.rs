//! An overloaded instance gives way gently, and nobody swings.

use std::collections::BTreeMap;

use lanemesh::{
    health::easing::{BUSY, DWELL, LEAST, STEP},
    types::{InstanceId, InstanceRecord, LoadFigure},
};

use super::{Findings, Invariant, secs};
use crate::{
    queue::{SECOND, Time},
    world::World,
};

pub const NAME: &str = "loads-ease";
pub const DOC: &str = "Where loads are measured, an instance keeps at least half of its weight, gives or takes a tenth at a time, not sooner \
than 20 s after the last, and not the other way within a minute. One that has more to do than it can, and clearly more than its lane, has given \
way after two and a half minutes, as far as it may (REQUIREMENTS R10).";

#[derive(Default)]
pub struct Check {
    seen: BTreeMap<InstanceId, Seen>,
}

struct Seen {
    generation: u64,
    share: u8,
    stepped: Time,
    rises: Option<bool>,
    overloaded: Option<Time>,
}

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sample(&mut self, world: &World, found: &mut Findings) {
        if world.scenario.mesh.capacity <= 0.0 {
            return;
        }
        let nodes = world.hosts.iter().filter_map(|host| host.node.as_ref());
        let records: Vec<InstanceRecord> = nodes.flat_map(|node| node.own_instances().cloned()).collect();
        for record in &records {
            let Some(figure) = record.load else { continue };
            let limit = 1.1 * BUSY.max(1.15 * others(&records, record));
            let fresh = Seen {
                generation: record.generation,
                share: figure.share,
                stepped: world.now,
                rises: None,
                overloaded: None,
            };
            let seen = self.seen.entry(record.id.clone()).or_insert(fresh);
            if seen.generation != record.generation {
                (seen.generation, seen.share, seen.rises, seen.overloaded) =
                    (record.generation, figure.share, None, None);
            }
            if let Some(what) = seen.step(figure, world.now).or_else(|| seen.overload(figure, limit, world.now)) {
                found.add(NAME, format!("{}: {what}", record.id));
            }
        }
    }
}

impl Seen {
    fn step(&mut self, figure: LoadFigure, now: Time) -> Option<String> {
        if figure.share == self.share {
            return None;
        }
        let (since, rises) = (now - self.stepped, figure.share > self.share);
        let by = figure.share.abs_diff(self.share);
        let turned = self.rises.is_some_and(|before| before != rises) && since < 60 * SECOND;
        let soon = self.rises.is_some() && since + SECOND < DWELL.as_nanos() as u64;
        let text =
            format!("from {} % of its weight to {} %, {} s after the last step", self.share, figure.share, secs(since));
        (self.share, self.stepped, self.rises) = (figure.share, now, Some(rises));
        (turned || soon || by != STEP || !(LEAST..=100).contains(&figure.share)).then_some(text)
    }

    fn overload(&mut self, figure: LoadFigure, limit: f64, now: Time) -> Option<String> {
        let over = f64::from(figure.percent) / 100.0 > limit && figure.share > LEAST;
        if !over {
            self.overloaded = None;
            return None;
        }
        let since = *self.overloaded.get_or_insert(now);
        (now - since > 150 * SECOND)
            .then(|| format!("overloaded for long ({} %), and keeps {} %", figure.percent, figure.share))
    }
}

/// Mean load of the others of its lane.
fn others(records: &[InstanceRecord], of: &InstanceRecord) -> f64 {
    let same = |other: &&InstanceRecord| other.id != of.id && (&other.service, &other.lane) == (&of.service, &of.lane);
    let figures: Vec<LoadFigure> = records.iter().filter(same).filter_map(|record| record.load).collect();
    let sum: f64 = figures.iter().map(|figure| f64::from(figure.percent) / 100.0).sum();
    sum / figures.len().max(1) as f64
}
