//! Failover order: distinct instances clockwise from a key, without allocation, for any number of instances.
//!
//! The first few are read from the entry (heirs). After them the points are walked, and an owner is new when its bit in a
//! filter of 4096 is not set. Up to 4096 members that is exact; above (which takes weights below normal, a ring having at
//! most a million points) a set bit is confirmed by looking back along the walk.

use super::{HEIRS, Heirs, NOBODY, Ring};

/// Where an iteration over [`Ring::order`] stands; owns nothing of the ring, so that a request may keep it between tries.
#[derive(Debug, Clone)]
pub(crate) struct Cursor {
    /// Entry of the key.
    start: u32,
    /// Heirs yielded; when they are through, the number of entries walked, with [`Seen`].
    step: u32,
    seen: Option<Seen>,
}

/// Owners that were yielded.
#[derive(Debug, Clone)]
struct Seen {
    bits: [u64; FILTER_BITS / 64],
    left: u32,
}

/// Iterator over distinct slots in clockwise order.
pub struct Order<'a> {
    ring: &'a Ring,
    cursor: Cursor,
}

impl<'a> Order<'a> {
    #[inline]
    pub(super) fn new(ring: &'a Ring, start: usize) -> Self {
        // A ring has at most a million points.
        Self { ring, cursor: Cursor { start: start as u32, step: 0, seen: None } }
    }
}

impl Iterator for Order<'_> {
    type Item = u16;

    #[inline]
    fn next(&mut self) -> Option<u16> {
        self.cursor.next(self.ring)
    }
}

impl Ring {
    /// [`Ring::order`] in a form that is kept between tries. Works only with the ring that it came from.
    pub(crate) fn cursor(&self, key_hash: u64) -> Cursor {
        self.order(key_hash).cursor
    }
}

impl Cursor {
    /// The next distinct slot.
    #[inline]
    pub(crate) fn next(&mut self, ring: &Ring) -> Option<u16> {
        if self.seen.is_none() && self.step < HEIRS {
            let entry = ring.entries.get(self.start as usize)?;
            let heir = entry.heirs.get(self.step);
            self.step += 1;
            return (heir != NOBODY).then_some(heir);
        }
        self.walk(ring)
    }

    #[cold]
    fn walk(&mut self, ring: &Ring) -> Option<u16> {
        let start = self.start as usize;
        let heirs = ring.entries.get(start)?.heirs;
        if heirs.contains(NOBODY) {
            return None;
        }
        if self.seen.is_none() {
            self.step = 1;
        }
        let seen = self.seen.get_or_insert_with(|| Seen::of(heirs, ring.members.len()));
        while seen.left > 0 && (self.step as usize) < ring.entries.len() {
            let at = self.step as usize;
            self.step += 1;
            let owner = ring.at(start + at).owner();
            let new = seen.is_new(owner, ring.members.len(), || {
                heirs.contains(owner) || (1..at).any(|back| ring.at(start + at - back).owner() == owner)
            });
            if new {
                return Some(owner);
            }
        }
        None
    }
}

impl Ring {
    /// The entry at a position that may have passed the end once.
    fn at(&self, position: usize) -> &super::Entry {
        let count = self.entries.len();
        &self.entries[if position < count { position } else { position - count }]
    }
}

impl Seen {
    fn of(heirs: Heirs, members: usize) -> Self {
        let mut seen = Self { bits: [0; FILTER_BITS / 64], left: members as u32 - HEIRS };
        for place in 0..HEIRS {
            seen.set(heirs.get(place));
        }
        seen
    }

    fn set(&mut self, slot: u16) -> bool {
        let bit = usize::from(slot) % FILTER_BITS;
        let mask = 1 << (bit % 64);
        let word = &mut self.bits[bit / 64];
        let was = *word & mask != 0;
        *word |= mask;
        was
    }

    fn is_new(&mut self, slot: u16, members: usize, look_back: impl FnOnce() -> bool) -> bool {
        if self.set(slot) && (members <= FILTER_BITS || look_back()) {
            return false;
        }
        self.left -= 1;
        true
    }
}

const FILTER_BITS: usize = 4096;
