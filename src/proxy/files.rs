//! What the system lets this process open, and what to do when that is used up.
//!
//! Running out of files must not look like an instance's failure, and must not turn into a busy loop or a flood of log lines. So
//! the number of client connections is held to what fits, each with a connection to an instance; where that was not enough,
//! requests are answered with the reason, idle connections are given up, and it is said once a minute.

use std::{
    cell::Cell,
    io,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::resource::{Resource, getrlimit},
};

use crate::{telemetry::Clock, types::Mono};

/// How many client connections fit, of the `wanted`.
pub(super) fn connections(wanted: usize) -> usize {
    let Ok((files, _)) = getrlimit(Resource::RLIMIT_NOFILE) else { return wanted };
    let fit = fitting(files);
    // Every data thread asks, and every reload; it is said once.
    if fit < wanted && SAID.swap(fit, Relaxed) != fit {
        tracing::info!(
            files,
            "proxy.max_connections = {wanted}, but the process may open {files} files and each connection may need two: {fit} \
             are taken; raise the limit (ulimit -n, LimitNOFILE=) or lower the key"
        );
    }
    fit.min(wanted)
}

fn fitting(files: u64) -> usize {
    usize::try_from(files.saturating_sub(RESERVED) / 2).unwrap_or(usize::MAX).max(FEWEST)
}

/// Whether an error is this host's want of something, and says nothing about whoever was to be reached.
pub(super) fn is_local(error: &io::Error) -> bool {
    let local = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM, Errno::EADDRNOTAVAIL];
    error.raw_os_error().is_some_and(|code| local.contains(&Errno::from_raw(code)))
}

/// Says something once a minute at most.
#[derive(Debug)]
pub(super) struct Complaint {
    clock: Clock,
    last: Cell<Option<Mono>>,
}

impl Complaint {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, last: Cell::new(None) }
    }

    /// Whether it is time to say it.
    pub(super) fn due(&self) -> bool {
        let now = self.clock.mono();
        let due = self.last.get().is_none_or(|last| now.since(last) >= BETWEEN);
        if due {
            self.last.set(Some(now));
        }
        due
    }
}

/// What was said last.
static SAID: AtomicUsize = AtomicUsize::new(0);
/// For gossip, admin, logs, health checks and the program itself.
const RESERVED: u64 = 64;
/// Below this nothing works anyway.
const FEWEST: usize = 8;
/// Between two complaints about the same.
const BETWEEN: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_has_room_for_two_files() {
        assert_eq!(
            (fitting(1_024), fitting(1_048_576), fitting(10), fitting(u64::MAX)),
            (480, 524_256, 8, usize::MAX / 2 - 32)
        );
        assert!(is_local(&io::Error::from_raw_os_error(Errno::EMFILE as i32)));
        assert!(!is_local(&io::Error::from_raw_os_error(Errno::ECONNREFUSED as i32)));
        assert!(!is_local(&io::ErrorKind::TimedOut.into()));
    }

    #[test]
    fn the_same_is_said_once() {
        let complaint = Complaint::new(Clock::start());
        assert_eq!([complaint.due(), complaint.due()], [true, false]);
    }
}
