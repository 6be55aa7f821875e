//! Building a ring: whole, or from the one before it by filter and merge.
//!
//! Hashes are uniform, so the points are sorted by counting their top bits, which yields the lookup index on the way; what
//! falls into one bucket (about one point) is sorted by comparison, so that unlucky ids cost time but never correctness.

use super::{Entry, HEIRS, Heirs, MAX_MEMBERS, MAX_POINTS, Member, NOBODY, Ring, RingFault, point_hash, points_of};
use crate::types::Planted;

/// A point before its heirs are known.
type Point = (u64, u16);

impl Ring {
    /// A ring of these instances, in any order. Of two with one id the lighter is dropped; weight 0 has no point.
    ///
    /// # Errors
    ///
    /// More than a million points, or more than 65,535 instances.
    pub fn new(members: impl IntoIterator<Item = Member>) -> Result<Self, RingFault> {
        let members = canonical(members);
        let count = check(&members)?;
        let mut points = Vec::with_capacity(count);
        for (slot, member) in (0..).zip(&members) {
            push_points(&mut points, member, slot);
        }
        Ok(Self::from_points(members, &points))
    }

    /// A ring of nobody.
    pub fn empty() -> Self {
        Self::from_points(Vec::new(), &[])
    }

    /// The same as `Ring::new(members)`, made from this ring: cheaper when few instances differ.
    ///
    /// # Errors
    ///
    /// As [`Ring::new`].
    pub fn changed(&self, members: impl IntoIterator<Item = Member>) -> Result<Self, RingFault> {
        let members = canonical(members);
        let count = check(&members)?;
        let (kept, added) = difference(&self.members, &members);
        if added.iter().map(|(member, _)| points_of(member.weight) as usize).sum::<usize>() > count / 2 {
            return Self::new(members);
        }
        let mut new = Vec::new();
        for (member, slot) in added {
            push_points(&mut new, member, slot);
        }
        if !Planted::RingUnsorted.is_on() {
            new.sort_unstable();
        }
        let entries = self.merge(&kept, &new, count);
        Ok(Self::from_sorted(members, entries))
    }

    /// From points in any order.
    pub(super) fn from_points(members: Vec<Member>, points: &[Point]) -> Self {
        let shift = shift_for(points.len());
        let bucket = |hash: u64| (hash >> shift) as usize;
        let mut index = vec![0_u32; buckets(shift)];
        for (hash, _) in points {
            index[bucket(*hash)] += 1;
        }
        let mut next = 0;
        for start in &mut index {
            next += std::mem::replace(start, next);
        }
        let mut entries = vec![bare(0, NOBODY); points.len()];
        let mut free = index.clone();
        for (hash, slot) in points {
            let place = &mut free[bucket(*hash)];
            entries[*place as usize] = bare(*hash, *slot);
            *place += 1;
        }
        for (start, end) in index.iter().zip(&free) {
            if end - start > 1 {
                entries[*start as usize..*end as usize].sort_unstable_by_key(|entry| (entry.hash, entry.owner()));
            }
        }
        fill_heirs(&mut entries);
        Self { members, entries, index, shift }
    }

    /// From entries in ring order.
    fn from_sorted(members: Vec<Member>, mut entries: Vec<Entry>) -> Self {
        let shift = shift_for(entries.len());
        // First where each bucket ends, by its last entry; then, from that, where it starts. No branch hangs on the hashes.
        let mut index = vec![0_u32; buckets(shift)];
        for (end, entry) in (1..).zip(&entries) {
            index[(entry.hash >> shift) as usize] = end;
        }
        let mut next = 0;
        for start in &mut index {
            let end = next.max(*start);
            *start = std::mem::replace(&mut next, end);
        }
        fill_heirs(&mut entries);
        Self { members, entries, index, shift }
    }

    /// This ring's points without the slots that `kept` drops, and the new ones, in ring order.
    fn merge(&self, kept: &[u16], new: &[Point], count: usize) -> Vec<Entry> {
        let mut merged = Vec::with_capacity(count);
        let mut new = new.iter().copied().peekable();
        for entry in &self.entries {
            let slot = kept[usize::from(entry.owner())];
            if slot == NOBODY {
                continue;
            }
            while let Some((hash, added)) = new.next_if(|point| *point < (entry.hash, slot)) {
                merged.push(bare(hash, added));
            }
            merged.push(bare(entry.hash, slot));
        }
        merged.extend(new.map(|(hash, slot)| bare(hash, slot)));
        merged
    }
}

/// By id, each once, those with a point only.
fn canonical(members: impl IntoIterator<Item = Member>) -> Vec<Member> {
    let mut members: Vec<Member> = members.into_iter().filter(|member| member.weight > 0).collect();
    members.sort_unstable_by(|a, b| a.id.cmp(&b.id).then(b.weight.cmp(&a.weight)));
    members.dedup_by(|a, b| a.id == b.id);
    members
}

fn check(members: &[Member]) -> Result<usize, RingFault> {
    let points = members.iter().map(|member| points_of(member.weight) as usize).sum();
    if members.len() > MAX_MEMBERS {
        return Err(RingFault::TooManyMembers(members.len()));
    }
    if points > MAX_POINTS { Err(RingFault::TooManyPoints(points)) } else { Ok(points) }
}

fn push_points(points: &mut Vec<Point>, member: &Member, slot: u16) {
    let place = if Planted::RingByPlace.is_on() { u32::from(slot) << 16 } else { 0 };
    points.extend((0..points_of(member.weight)).map(|index| (point_hash(&member.id, index ^ place), slot)));
}

/// The new slot of every old one ([`NOBODY`] when its points go), and the members whose points come. A changed weight is both.
fn difference<'a>(old: &[Member], new: &'a [Member]) -> (Vec<u16>, Vec<(&'a Member, u16)>) {
    let mut kept = vec![NOBODY; old.len()];
    let mut added = Vec::new();
    let mut at = 0;
    for (slot, member) in (0..).zip(new) {
        while old.get(at).is_some_and(|before| before.id < member.id) {
            at += 1;
        }
        if old.get(at) == Some(member) {
            kept[at] = slot;
        } else {
            added.push((member, slot));
        }
    }
    (kept, added)
}

fn bare(hash: u64, slot: u16) -> Entry {
    Entry { hash, heirs: Heirs::only(slot) }
}

/// Fills in the heirs, backwards: an entry's heirs are its own owner and then the next entry's heirs without that owner. As
/// the next entry knows four, three are always left. The last entry's are found by walking on from the start.
fn fill_heirs(entries: &mut [Entry]) {
    let Some(last) = entries.last() else { return };
    let mut first_seen: Vec<u16> = Vec::new();
    for owner in std::iter::once(last.owner()).chain(entries.iter().map(Entry::owner)) {
        if !first_seen.contains(&owner) {
            first_seen.push(owner);
        }
        if first_seen.len() == HEIRS as usize {
            break;
        }
    }
    let mut heirs = Heirs(u64::MAX);
    for owner in first_seen.into_iter().rev() {
        heirs = heirs.with_first(owner);
    }
    for entry in entries.iter_mut().rev() {
        heirs = heirs.with_first(entry.owner());
        entry.heirs = heirs;
    }
}

/// About one point to a bucket; at least two buckets, so that the shift stays below 64.
fn shift_for(points: usize) -> u32 {
    64 - points.next_power_of_two().trailing_zeros().max(1)
}

fn buckets(shift: u32) -> usize {
    1 << (64 - shift)
}
