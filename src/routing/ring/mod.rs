//! The consistent-hash ring (REQUIREMENTS R2): where a key goes, and where it goes next.
//!
//! A point is xxh3-64(instance id bytes ‖ index u32 little-endian), 256 of them at weight 100 and in proportion; a key is
//! xxh3-64 with the seed [`KEY_SEED`] of its raw bytes and belongs to the first point at or after it, clockwise. Nothing but
//! an instance's own id and weight moves its points, so every node agrees for the same membership, and a change of one
//! instance moves no key between others. Equal points are ordered by instance id. Golden vectors: `tests/vectors.json`.
//!
//! Lookup: an index over the top bits of the hash leads to the key's first point; the entry there carries the next few
//! distinct owners (heirs), so that a decision reads one index word and one cache line. After the heirs the points are walked.
//!
//! Not here: who is on the ring (`builder`), who is skipped while walking it (`choose`).

mod build;
mod order;
#[cfg(test)]
mod tests;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub(crate) use order::Cursor;
pub use order::Order;

use crate::types::{InstanceId, NORMAL_WEIGHT, Planted};

/// Points of an instance at weight 100.
pub const POINTS_AT_NORMAL_WEIGHT: u32 = 256;
/// Most points one ring may have; a service that needs more is refused.
pub const MAX_POINTS: usize = 1_000_000;
/// Most instances one ring may have; slots are 16 bits.
pub const MAX_MEMBERS: usize = NOBODY as usize;
/// Seed of [`key_hash`]: `lanemesh` in ASCII, big-endian.
pub const KEY_SEED: u64 = 0x6c61_6e65_6d65_7368;
/// Seed of [`admission_hash`]: `lm-admit` in ASCII, big-endian.
pub const ADMISSION_SEED: u64 = 0x6c6d_2d61_646d_6974;

/// Hash of a route key: xxh3-64 with the seed [`KEY_SEED`] over the raw bytes.
#[inline]
pub fn key_hash(key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, KEY_SEED)
}

/// Where an instance's point `index` lies.
pub fn point_hash(id: &InstanceId, index: u32) -> u64 {
    let id = id.as_str().as_bytes();
    let mut input = [0; 64 + 4];
    input[..id.len()].copy_from_slice(id);
    input[id.len()..id.len() + 4].copy_from_slice(&index.to_le_bytes());
    xxh3_64(&input[..id.len() + 4])
}

/// Place of a (key, instance) pair in everything that grows or shrinks gently: the pair is admitted when this is below the
/// share (of 2^32). The top 32 bits of xxh3-64 with the seed [`ADMISSION_SEED`] over key hash u64 little-endian ‖ instance
/// id. Admitted sets are nested: a growing share only adds keys.
pub fn admission_hash(key_hash: u64, id: &InstanceId) -> u32 {
    let id = id.as_str().as_bytes();
    let mut input = [0; 8 + 64];
    input[..8].copy_from_slice(&key_hash.to_le_bytes());
    input[8..8 + id.len()].copy_from_slice(id);
    (xxh3_64_with_seed(&input[..8 + id.len()], ADMISSION_SEED) >> 32) as u32
}

/// Points of an instance: 256 at weight 100, in proportion, to the nearest; at least one above weight 0.
pub fn points_of(weight: u16) -> u32 {
    let normal = NORMAL_WEIGHT as u32;
    let weight = if weight > 0 && Planted::WeightsIgnored.is_on() { NORMAL_WEIGHT } else { weight };
    let points = (POINTS_AT_NORMAL_WEIGHT * weight as u32 + normal / 2) / normal;
    if points == 0 && weight > 0 { 1 } else { points }
}

/// One instance on a ring. All that a ring depends on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// Its id, unique on the ring.
    pub id: InstanceId,
    /// 1..=1600; at 0 it has no point.
    pub weight: u16,
}

/// Why a ring is not built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingFault {
    /// Too many points.
    #[error("its ring would have {0} points, at most 1000000 are built: lower the weights of its instances")]
    TooManyPoints(usize),
    /// Too many instances.
    #[error("it has {0} instances in one lane, at most 65535 are routed: split it into several services")]
    TooManyMembers(usize),
}

/// Sorted points with an index on their top bits.
pub struct Ring {
    /// By id. A slot is an index into it.
    members: Vec<Member>,
    /// By (hash, slot).
    entries: Vec<Entry>,
    /// Of every value of the top bits: its first entry, or where that would stand.
    index: Vec<u32>,
    /// How far a hash is shifted to leave the top bits.
    shift: u32,
}

/// One point: 16 bytes, four to a cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    hash: u64,
    heirs: Heirs,
}

/// The next distinct owners from a point, the point's own first, 16 bits each from the lowest; [`NOBODY`] when there are fewer.
/// One word, since the pass that fills them in is a chain from point to point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Heirs(u64);

impl Heirs {
    /// Nobody but the owner.
    const fn only(owner: u16) -> Self {
        Self(u64::MAX << 16 | owner as u64)
    }

    /// The heir at a place below [`HEIRS`].
    #[inline]
    fn get(self, place: u32) -> u16 {
        (self.0 >> (16 * place)) as u16
    }

    fn contains(self, slot: u16) -> bool {
        (0..HEIRS).any(|place| self.get(place) == slot)
    }

    /// With `owner` first, and without its later mention; the last falls off if there is none.
    #[inline]
    fn with_first(self, owner: u16) -> Self {
        match (0..HEIRS - 1).find(|place| self.get(*place) == owner) {
            None => Self(self.0 << 16 | u64::from(owner)),
            Some(place) => self.moved_first(place),
        }
    }

    /// Rare on a large ring; out of line, so that the usual case stays a short chain without a variable shift.
    #[cold]
    fn moved_first(self, place: u32) -> Self {
        let before = self.0 & !(u64::MAX << (16 * place));
        let behind = self.0 & (u64::MAX << (16 * (place + 1)));
        Self(behind | before << 16 | u64::from(self.get(place)))
    }
}

impl Entry {
    fn owner(&self) -> u16 {
        self.heirs.get(0)
    }
}

impl Ring {
    /// Instances, by id; a slot is an index into this.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Number of points.
    pub fn points(&self) -> usize {
        self.entries.len()
    }

    /// The points in ring order: hash and owner's slot.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u64, u16)> {
        self.entries.iter().map(|entry| (entry.hash, entry.owner()))
    }

    /// Whether no instance has a point.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The slot that owns a key; `None` on an empty ring.
    #[inline]
    pub fn owner(&self, key_hash: u64) -> Option<u16> {
        self.entries.get(self.position(key_hash)).map(Entry::owner)
    }

    /// Distinct slots in clockwise order from a key: the owner, then the failover order. Every member with a point comes once.
    #[inline]
    pub fn order(&self, key_hash: u64) -> Order<'_> {
        Order::new(self, self.position(key_hash))
    }

    /// Share of the whole ring that each slot owns, 0.0..=1.0.
    pub fn shares(&self) -> Vec<f64> {
        let mut owned = vec![0_u128; self.members.len()];
        let Some(last) = self.entries.last() else { return vec![0.0; self.members.len()] };
        let mut before = last.hash;
        for entry in &self.entries {
            owned[usize::from(entry.owner())] += u128::from(entry.hash.wrapping_sub(before));
            before = entry.hash;
        }
        if self.entries.len() == 1 {
            owned[usize::from(last.owner())] = WHOLE;
        }
        owned.into_iter().map(|part| part as f64 / WHOLE as f64).collect()
    }

    /// The entry that a key belongs to. On an empty ring: 0, which is no entry.
    #[inline]
    fn position(&self, key_hash: u64) -> usize {
        let mut at = self.index[(key_hash >> self.shift) as usize] as usize;
        while let Some(entry) = self.entries.get(at) {
            if entry.hash >= key_hash {
                return at;
            }
            at += 1;
        }
        0
    }
}

/// Distinct owners that an entry carries.
const HEIRS: u32 = 4;
/// No slot.
const NOBODY: u16 = u16::MAX;
/// Length of the ring.
const WHOLE: u128 = 1 << 64;
