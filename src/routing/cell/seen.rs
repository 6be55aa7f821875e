//! What is seen of an instance here: results worth telling other sidecars, and silence.
//!
//! An instance that answers nothing has results only when time limits are up. So requests that wait count as well, once they
//! have waited clearly longer than nearly all of its answers take and nothing else was heard from it: several after a moment, a single
//! one, which may be a slow request, only after longer. Before enough is known of an instance itself, it is what nearly all of its
//! lane's take.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use super::{
    AT_BITS, AT_MASK, Counts, InstanceCell,
    record::{Recent, Window},
};
use crate::{config::Routing, routing::pace::NEARLY_ALL, types::Mono};

impl InstanceCell {
    /// A request is sent there.
    #[inline]
    pub(in crate::routing) fn asked(&self, now: Mono) {
        let before = self.counts.0.unheard.load(Relaxed);
        let after = if before == 0 { now.millis() & AT_MASK } else { before }.saturating_add(1 << AT_BITS);
        // On failure somebody else asked or heard at this moment: one more or less says nothing.
        let _ = self.counts.0.unheard.compare_exchange(before, after, Relaxed, Relaxed);
    }

    /// A request was answered, after so long.
    #[inline]
    pub(in crate::routing) fn answered(&self, took: Duration) {
        self.counts.0.unheard.store(0, Relaxed);
        if !self.counts.0.longest.note(took, NEARLY_ALL).is_enough() {
            self.load.longest.note(took, NEARLY_ALL);
        }
    }

    /// Whether a request that can't be repeated is better not sent there: several wait unheard of, for at least `after`.
    pub(in crate::routing) fn is_silent(&self, now: Mono, after: Duration) -> bool {
        self.unheard(now, Silence { waiting: 3, times: 3, after }) > 0
    }

    /// Whether its silence is worth telling others.
    pub(in crate::routing) fn is_silence_news(&self, now: Mono) -> bool {
        self.told_unheard(now) > 0
    }

    /// What this sidecar saw of its last requests there, if one of them failed lately: how many it looked at, and how many of
    /// those failed. Where the last ones all failed, only those: what went well before a fault says nothing about it. Of an
    /// instance that has fallen silent those that wait count as failed.
    pub(in crate::routing) fn seen(&self, now: Mono, rules: &Routing) -> Option<(u16, u16)> {
        let (ended, waiting) = (self.seen_to_end(now, rules), self.told_unheard(now));
        match ended {
            _ if waiting == 0 => ended,
            Some((attempts, failures)) if attempts == failures && failures > waiting => ended,
            _ => Some((waiting, waiting)),
        }
    }

    fn seen_to_end(&self, now: Mono, rules: &Routing) -> Option<(u16, u16)> {
        let recent = Recent::unpack(self.counts.0.recent.load(Relaxed));
        if rules.breaker.failures == 0 {
            let window = Window::unpack(self.counts.0.window.load(Relaxed));
            return recent.is_news(now).then(|| window.counts());
        }
        recent.seen(now, &rules.breaker)
    }

    fn told_unheard(&self, now: Mono) -> u16 {
        self.unheard(now, SEVERAL).max(self.unheard(now, SINGLE))
    }

    /// Requests sent there since it last answered one, if that is a silence.
    fn unheard(&self, now: Mono, silence: Silence) -> u16 {
        let Counts { in_flight, unheard, longest, .. } = &self.counts.0;
        let word = unheard.load(Relaxed);
        let count = word >> AT_BITS;
        // Those that were sent may have been given up by their callers.
        if count < u64::from(silence.waiting) || in_flight.load(Relaxed) < silence.waiting {
            return 0;
        }
        let waited = now.since(Mono::from_millis(word & AT_MASK));
        // Nearly every request ends here.
        if waited < silence.after {
            return 0;
        }
        // Before it is known what answers take, nothing is.
        let Some(usual) = longest.usual().or_else(|| self.load.longest.usual()) else { return 0 };
        if waited < usual * silence.times { 0 } else { u16::try_from(count).unwrap_or(u16::MAX) }
    }
}

/// When nothing heard means something.
#[derive(Debug, Clone, Copy)]
struct Silence {
    /// So many requests wait, or more: fewer may be slow ones.
    waiting: u32,
    /// The first of them so many times as long as nearly all answers take,
    times: u32,
    /// and for at least so long.
    after: Duration,
}

/// Longer than what a runtime that cleans up its memory usually stands still.
const SEVERAL: Silence = Silence { waiting: 2, times: 6, after: Duration::from_millis(300) };
/// One alone weighs little: three are needed, seen by two sidecars at least.
const SINGLE: Silence = Silence { waiting: 1, times: 10, after: Duration::from_millis(900) };
