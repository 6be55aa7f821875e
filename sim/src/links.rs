//! The network between hosts: quality per link and direction, cuts, and the fate of every packet.
//!
//! The fate of packet k from a to b is a function of (seed, a, b, k): a packet more elsewhere changes nothing here. Streams
//! and dials are made of packets that are repeated until they arrive or time is up.
//!
//! Not here: connections (`conns`), bandwidth (a link is as wide as it must be), clocks.

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::{
    chance::Chance,
    queue::{MILLI, SECOND, Time},
};

/// How good a link is, in one direction. Probabilities from 0 to 1, times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quality {
    /// A packet is lost.
    pub loss: f64,
    /// Least delay.
    pub delay_ms: f64,
    /// Each packet is late by up to this much more, evenly: so packets overtake each other.
    pub jitter_ms: f64,
    /// A packet arrives twice.
    pub duplicate: f64,
    /// A packet is held back by `reorder_ms`.
    pub reorder: f64,
    /// See `reorder`.
    pub reorder_ms: f64,
    /// Loss comes in bursts of this length: for each the whole link is lost or is not. 0: every packet by itself.
    pub burst_ms: f64,
}

impl Default for Quality {
    /// A LAN without faults.
    fn default() -> Self {
        Self { loss: 0.0, delay_ms: 0.5, jitter_ms: 1.5, duplicate: 0.0, reorder: 0.0, reorder_ms: 5.0, burst_ms: 0.0 }
    }
}

impl Quality {
    /// Both faults together.
    fn and(self, other: Self) -> Self {
        let either = |a: f64, b: f64| 1.0 - (1.0 - a) * (1.0 - b);
        Self {
            loss: either(self.loss, other.loss),
            delay_ms: self.delay_ms + other.delay_ms,
            jitter_ms: self.jitter_ms + other.jitter_ms,
            duplicate: either(self.duplicate, other.duplicate),
            reorder: either(self.reorder, other.reorder),
            reorder_ms: self.reorder_ms.max(other.reorder_ms),
            burst_ms: self.burst_ms.max(other.burst_ms),
        }
    }
}

/// A one-way cut: nothing goes from these hosts to those.
#[derive(Debug, Clone)]
struct Cut {
    fault: u32,
    from: Vec<bool>,
    to: Vec<bool>,
}

/// What becomes of a packet: its delays, one for each copy that arrives.
pub type Fate = [Option<Time>; 2];

/// All links of one simulation.
pub struct Links {
    seed: u64,
    /// Of every link.
    pub base: Quality,
    worse: FxHashMap<(u32, u32), Vec<(u32, Quality)>>,
    cuts: Vec<Cut>,
    counts: FxHashMap<(u32, u32), u64>,
    /// Packets sent and lost.
    pub packets: (u64, u64),
    /// The present moment, for losses that last.
    pub now: Time,
}

impl Links {
    /// Links of this quality.
    pub fn new(seed: u64, base: Quality) -> Self {
        Self {
            seed,
            base,
            worse: FxHashMap::default(),
            cuts: Vec::new(),
            counts: FxHashMap::default(),
            now: 0,
            packets: (0, 0),
        }
    }

    /// A fault cuts all ways from some hosts to others; a host's way to itself stays.
    pub fn cut(&mut self, fault: u32, from: &[u32], to: &[u32]) {
        let set = |hosts: &[u32]| {
            let mut set = vec![false; hosts.iter().max().map_or(0, |most| *most as usize + 1)];
            hosts.iter().for_each(|host| set[*host as usize] = true);
            set
        };
        self.cuts.push(Cut { fault, from: set(from), to: set(to) });
    }

    /// A fault makes the ways from some hosts to others worse.
    pub fn worsen(&mut self, fault: u32, from: &[u32], to: &[u32], by: Quality) {
        for pair in from.iter().flat_map(|a| to.iter().map(move |b| (*a, *b))).filter(|(a, b)| a != b) {
            self.worse.entry(pair).or_default().push((fault, by));
        }
    }

    /// A fault ends.
    pub fn mend(&mut self, fault: u32) {
        self.cuts.retain(|cut| cut.fault != fault);
        // Each entry by itself: order means nothing.
        self.worse.retain(|_, faults| {
            faults.retain(|(by, _)| *by != fault);
            !faults.is_empty()
        });
    }

    /// Whether anything can go this way.
    pub fn open(&self, from: u32, to: u32) -> bool {
        let has = |set: &[bool], host: u32| set.get(host as usize).copied().unwrap_or(false);
        from == to || !self.cuts.iter().any(|cut| has(&cut.from, from) && has(&cut.to, to))
    }

    /// Whether anything can go both ways.
    pub fn open_both(&self, a: u32, b: u32) -> bool {
        self.cuts.is_empty() || (self.open(a, b) && self.open(b, a))
    }

    /// Whether any cut is in force.
    pub fn is_cut(&self) -> bool {
        !self.cuts.is_empty()
    }

    fn quality(&self, from: u32, to: u32) -> Quality {
        let worse = if self.worse.is_empty() { None } else { self.worse.get(&(from, to)) };
        worse.into_iter().flatten().fold(self.base, |quality, (_, by)| quality.and(*by))
    }

    fn chance(&mut self, from: u32, to: u32) -> Chance {
        let count = self.counts.entry((from, to)).or_default();
        *count += 1;
        Chance::of(self.seed, &[LINK, u64::from(from) << 32 | u64::from(to), *count])
    }

    /// The next packet on this way.
    pub fn packet(&mut self, from: u32, to: u32) -> Fate {
        self.packet_after(from, to, 0)
    }

    fn packet_after(&mut self, from: u32, to: u32, waited: Time) -> Fate {
        let mut chance = self.chance(from, to);
        self.packets.0 += 1;
        if from == to {
            return [Some(MILLI / 20), None];
        }
        let quality = self.quality(from, to);
        if !self.open(from, to) || self.is_lost(&mut chance, (from, to), quality, waited) {
            self.packets.1 += 1;
            return [None, None];
        }
        let mut delay = || {
            let held = if chance.hits(quality.reorder) { quality.reorder_ms } else { 0.0 };
            let ms = quality.delay_ms + quality.jitter_ms * chance.unit() + held;
            (ms * MILLI as f64) as Time
        };
        let first = delay();
        let again = chance.hits(quality.duplicate);
        [Some(first), again.then(|| first + MILLI / 2)]
    }

    fn is_lost(&self, chance: &mut Chance, (from, to): (u32, u32), quality: Quality, waited: Time) -> bool {
        if quality.burst_ms <= 0.0 {
            return chance.hits(quality.loss);
        }
        let slice = (self.now + waited) / (quality.burst_ms * MILLI as f64) as Time;
        Chance::of(self.seed, &[BURST, u64::from(from) << 32 | u64::from(to), slice]).hits(quality.loss)
    }

    /// How long until one packet of several tries arrives; `None` if none does within `limit`. A try follows another after
    /// `patience`, doubling.
    pub fn repeated(&mut self, from: u32, to: u32, patience: Time, limit: Time) -> Option<Time> {
        let (mut waited, mut patience) = (0, patience.max(1));
        while waited < limit {
            if let Some(delay) = self.packet_after(from, to, waited)[0] {
                return Some(waited + delay).filter(|total| *total <= limit);
            }
            if !self.open(from, to) {
                // What will be mended in the middle of a dial is not foreseen; the next dial will find out.
                return None;
            }
            waited += patience;
            patience *= 2;
        }
        None
    }

    /// A stream's bytes: repeated until they arrive, with answers needed on the way back.
    pub fn stream(&mut self, from: u32, to: u32, bytes: usize) -> Option<Time> {
        if !self.open_both(from, to) {
            return None;
        }
        let flights = (bytes / FLIGHT).min(64) as Time;
        let mut total = 0;
        for _ in 0..=flights.min(4) {
            total += self.repeated(from, to, 20 * MILLI, 5 * SECOND)?;
        }
        Some(total + bytes as Time * NANOS_PER_BYTE)
    }

    /// A question and its answer, three flights in all as a handshake has them; `None` after `limit`.
    pub fn handshake(&mut self, from: u32, to: u32, limit: Time) -> Option<Time> {
        let there = self.repeated(from, to, 150 * MILLI, limit)?;
        let back = self.repeated(to, from, 150 * MILLI, limit)?;
        Some(there + back).filter(|total| *total <= limit)
    }
}

const LINK: u64 = 1;
const BURST: u64 = 2;
/// Bytes that go in one round trip.
const FLIGHT: usize = 14_000;
/// 100 MB a second.
const NANOS_PER_BYTE: Time = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fates_do_not_depend_on_other_links() {
        let lossy = Quality { loss: 0.3, duplicate: 0.1, reorder: 0.1, ..Quality::default() };
        let fates = |noise: bool| {
            let mut links = Links::new(9, lossy);
            let mut fates = Vec::new();
            for _ in 0..500 {
                if noise {
                    links.packet(2, 1);
                }
                fates.push(links.packet(1, 2));
            }
            fates
        };
        assert_eq!(fates(false), fates(true));
        let lost = fates(false).iter().filter(|fate| fate[0].is_none()).count();
        assert!((110..190).contains(&lost), "{lost}");
    }

    #[test]
    fn a_cut_is_one_way_and_ends_with_its_fault() {
        let mut links = Links::new(1, Quality::default());
        links.cut(4, &[0, 1], &[2]);
        assert!(!links.open(0, 2) && links.open(2, 0) && !links.open_both(1, 2));
        assert_eq!(links.stream(2, 0, 10), None);
        assert_eq!(links.handshake(2, 0, SECOND), None);
        links.mend(4);
        assert!(links.handshake(2, 0, SECOND).is_some());
    }
}
