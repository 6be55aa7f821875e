//! How busy an application is (REQUIREMENTS R10): what its health reply says of itself, or what the kernel counts for its control group
//! (cgroup v2, <https://docs.kernel.org/admin-guide/cgroup-v2.html>). 1.0 is all that it can do.
//!
//! Not here: what follows from it (`health::easing`).

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::Instant;

/// Header of a health reply: `0.6`, `60%`, or requests a second, `300/s`, of the instance's capacity.
pub(super) const HEADER: &str = "x-lanemesh-load";

/// What a health reply's header says; `None` when that is no load.
pub(super) fn said(text: &str, capacity: Option<u32>) -> Option<f64> {
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    if let Some(rate) = text.trim().strip_suffix("/s") {
        return number(rate).zip(capacity).map(|(rate, capacity)| rate / f64::from(capacity.max(1)));
    }
    match text.trim().strip_suffix('%') {
        Some(percent) => number(percent).map(|percent| percent / 100.0),
        None => number(text),
    }
}

/// A control group between two looks.
#[derive(Debug)]
pub(super) struct Group {
    dir: PathBuf,
    /// Processor time used until then.
    last: Option<(Duration, Instant)>,
}

impl Group {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), last: None }
    }

    /// The larger of the shares of processor time since the last look and of memory that are used; `None` at the first look, and
    /// where the group can't be read or has no limits.
    pub(super) fn look(&mut self) -> Option<f64> {
        let cpu = self.cpu();
        let memory = self.memory();
        cpu.into_iter().chain(memory).reduce(f64::max)
    }

    fn cpu(&mut self) -> Option<f64> {
        let (now, used) = (Instant::now(), usage(&self.read("cpu.stat")?)?);
        let before = self.last.replace((used, now))?;
        let (used, passed) = (used.saturating_sub(before.0), now.duration_since(before.1));
        let processors = quota(&self.read("cpu.max")?)?;
        (!passed.is_zero()).then(|| used.as_secs_f64() / passed.as_secs_f64() / processors)
    }

    fn memory(&self) -> Option<f64> {
        let most: f64 = self.read("memory.max")?.trim().parse().ok()?;
        // Without the page cache, which gives way by itself.
        let used = field(&self.read("memory.stat")?, "anon")?;
        (most > 0.0).then(|| used as f64 / most)
    }

    /// Files of the kernel's memory: reading them waits for no disk.
    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.dir.join(file)).ok()
    }
}

/// Of `cpu.stat`.
fn usage(text: &str) -> Option<Duration> {
    field(text, "usage_usec").map(Duration::from_micros)
}

/// Of `cpu.max`: quota over period, in processors; `None` for `max`.
fn quota(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// `NAME NUMBER` on a line of its own.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|number| number.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applications_say_shares_or_rates() {
        for (text, load) in [("0.6", 0.6), (" 60% ", 0.6), ("300/s", 0.6), ("0", 0.0), ("1.5", 1.5)] {
            assert_eq!(said(text, Some(500)), Some(load), "{text}");
        }
        for text in ["", "much", "-1", "NaN", "inf", "%", "/s", "0,6"] {
            assert_eq!(said(text, Some(500)), None, "{text}");
        }
        assert_eq!(said("300/s", None), None, "of a capacity that nobody gave");
    }

    #[tokio::test(start_paused = true)]
    async fn a_control_group_is_as_busy_as_its_scarcer_resource() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(dir.path().join(file), text).unwrap();
        let mut group = Group::new(dir.path());
        assert_eq!(group.look(), None, "nothing there");
        write("cpu.stat", "usage_usec 1000000\nuser_usec 900000\n");
        write("cpu.max", "50000 100000\n");
        assert_eq!(group.look(), None, "the first look");
        tokio::time::advance(Duration::from_secs(2)).await;
        write("cpu.stat", "usage_usec 1800000\nuser_usec 900000\n");
        let load = group.look().unwrap();
        assert!((load - 0.8).abs() < 1e-9, "0.4 of the half processor that it may have: {load}");
        write("memory.max", "1000\n");
        write("memory.stat", "anon 950\nfile 5000\n");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(group.look(), Some(0.95));
        write("memory.max", "max\n");
        write("cpu.max", "max 100000\n");
        assert_eq!(group.look(), None, "no limits, no shares of them");
    }
}
