//! What is proved of an instance by this sidecar's own requests: that it has nothing to give, and that it is slow.
//!
//! An instance that is overloaded fails as well, and would be well if it were asked less. So failures alone prove nothing: an
//! instance has nothing to give when it failed [`FEW`] requests in a row, the last of them by a try after it was left alone for an open
//! time, in which any queue empties. One success, of whatever request, takes the proof away. Others' signals are no part of it.
//!
//! Where the lane's floor waits for a proof, and a try fails that is not enough for one, the next comes soon.
//!
//! What follows from a proof is the lane's matter (`floor`).

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use super::{
    AT_BITS, AT_MASK, InstanceCell, Place, Ticket,
    record::Recent,
    word::{Phase, Word},
};
use crate::{
    config::{Breaker, Routing},
    routing::pace::{LANE, OWN, Usual},
    types::Mono,
};

impl InstanceCell {
    /// When a request last went well there.
    pub(in crate::routing) fn last_good(&self) -> Option<Mono> {
        Some(self.counts.0.good.load(Relaxed)).filter(|millis| *millis > 0).map(Mono::from_millis)
    }

    /// Whether it gives nothing, although it is used: not one request went well in a whole window, and [`MANY`] failed in a row.
    pub(in crate::routing) fn gives_nothing(&self, now: Mono, rules: &Routing) -> bool {
        self.only_fails() && self.last_good().is_none_or(|good| now.since(good) >= rules.breaker.window)
    }

    /// Whether so many failed in a row that it may be one that gives nothing.
    pub(in crate::routing) fn only_fails(&self) -> bool {
        self.failed_in_a_row() >= MANY
    }

    /// The try has failed: open again, for longer, or for a moment where that is to prove something.
    pub(super) fn try_failed(&self, place: &Place, now: Mono, rules: &Breaker) {
        let tries = self.tried.load(Relaxed) >> AT_BITS;
        let proves = self.failed_in_a_row() + tries as u32 + 1 >= FEW;
        let word = Word::unpack(place.word);
        let next = match proves || !self.load.wants_proof(now, rules.window) {
            true => word.opened(self.seed, now, rules),
            false => word.opened_for(rules.open / 10, now),
        };
        if self.word.0.compare_exchange(place.word, next.pack(), Relaxed, Relaxed).is_ok() {
            let tries = (tries + 1).min(u64::from(FEW));
            self.tried.store(tries << AT_BITS | now.millis() & AT_MASK, Relaxed);
        }
    }

    /// An answer says that it must stay away; where it was the try's, for longer than before.
    pub(in crate::routing) fn stays_away(&self, ticket: &Ticket, now: Mono, rules: &Routing) {
        if let Some(place) = &ticket.place {
            let next = Word::unpack(place.word).opened(self.seed, now, &rules.breaker);
            // On failure the place was given to somebody else, who will tell.
            let _ = self.word.0.compare_exchange(place.word, next.pack(), Relaxed, Relaxed);
        }
    }

    /// When a try last proved that it has nothing to give; `None` where none did, or a request went well since.
    pub(in crate::routing) fn proved(&self) -> Option<Mono> {
        let tried = self.tried.load(Relaxed);
        let (tries, at) = ((tried >> AT_BITS) as u32, Mono::from_millis(tried & AT_MASK));
        let proved = tries > 0 && self.failed_in_a_row() + tries >= FEW;
        (proved && self.last_good().is_none_or(|good| good < at)).then_some(at)
    }

    /// An answer took so long: whether the instance has become `times` as slow as its lane.
    pub(in crate::routing) fn is_slow(&self, took: Duration, times: u32, now: Mono) -> bool {
        let lane = self.load.pace.note(took, LANE);
        let (own, this) = (self.counts.0.pace.note(took, OWN), Usual::of(took));
        let lately = self.is_slow_in_a_row(this.is_slow(lane, times), now);
        let slow = own.is_slow(lane, times) || lately;
        if slow && this.is_slower(own) {
            // What it took before says nothing any more; and a median that has just come to the limit would be below it again with the
            // lane's next answers, and the next try would be taken for a recovery.
            self.counts.0.pace.replace(took);
        }
        slow
    }

    /// Where one answer in a second is slow, a median takes long to follow: so [`ROW`] of them without a quick one count as well, if they
    /// came over [`A_WHILE`]. Where many are asked for, that is hundreds.
    fn is_slow_in_a_row(&self, slow: bool, now: Mono) -> bool {
        let row = &self.counts.0.slow;
        let before = row.load(Relaxed);
        if !slow {
            if before != 0 {
                row.store(0, Relaxed);
            }
            return false;
        }
        let centis = (now.millis() / 10) as u32 & CENTIS;
        let (count, since) = match before >> CENTIS_BITS {
            0 => (1, centis),
            count => ((count + 1).min(ROW), before & CENTIS),
        };
        // Of two at a time one may be lost: the next will do.
        row.store(count << CENTIS_BITS | since, Relaxed);
        count >= ROW && Duration::from_millis(10) * (centis.wrapping_sub(since) & CENTIS) >= A_WHILE
    }

    /// Whether it is kept away for being slow, and an answer that took so long says that it is so still. Where it was kept away for
    /// failures, its first answer may take its time.
    pub(in crate::routing) fn is_slow_still(&self, took: Duration, times: u32) -> bool {
        let phase = Word::unpack(self.word.0.load(Relaxed)).phase;
        let (lane, own) = (self.load.pace.read(), self.counts.0.pace.read());
        matches!(phase, Phase::Open | Phase::Probing)
            && own.is_slow(lane, times)
            && own.taking(took).is_slow(lane, times)
    }

    fn failed_in_a_row(&self) -> u32 {
        Recent::unpack(self.counts.0.recent.load(Relaxed)).in_a_row()
    }
}

/// Failures in a row that are no matter of chance, when the last of them was a try.
const FEW: u32 = 4;
/// Failures in a row of one that is used.
const MANY: u32 = 6;
/// Slow answers in a row: where one in ten takes long for its key's sake, so many come together once in a million.
const ROW: u32 = 6;
/// And over such a time: longer than what a runtime that cleans up its memory, or a network, usually stands still.
const A_WHILE: Duration = Duration::from_secs(3);
/// Bits of a time in hundredths of a second.
const CENTIS_BITS: u32 = 24;
const CENTIS: u32 = (1 << CENTIS_BITS) - 1;
