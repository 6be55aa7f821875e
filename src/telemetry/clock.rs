//! The process's only clock. Everything below the IO line gets its readings as arguments.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::types::{Mono, Wall};

/// Monotonic and wall time of this process; cheap to copy, equal for all copies.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts it. Once per process, so that all readings can be compared.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Time since the start; never goes back.
    pub fn mono(&self) -> Mono {
        Mono::ZERO + self.start.elapsed()
    }

    /// The wall clock; may jump, so it never decides liveness. A clock before 1970 reads as 1970.
    pub fn wall(&self) -> Wall {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Wall(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// The moment as the operating system counts it, for timers.
    pub fn instant(&self, at: Mono) -> Instant {
        // A moment too far to express is as good as a day: every timer here is re-armed long before.
        self.start.checked_add(Duration::from_nanos(at.0)).unwrap_or_else(|| Instant::now() + DAY)
    }
}

const DAY: Duration = Duration::from_secs(86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_agree_and_time_never_goes_back() {
        let clock = Clock::start();
        let copy = clock;
        let (a, b) = (clock.mono(), copy.mono());
        assert!(b >= a);
        assert_eq!(clock.instant(Mono::from_millis(5)) - clock.instant(Mono::ZERO), Duration::from_millis(5));
        assert!(clock.wall() > Wall(1_600_000_000_000));
    }
}
