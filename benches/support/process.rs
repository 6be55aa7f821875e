//! What Linux says about processes and the machine.

use std::{
    os::unix::process::CommandExt,
    process::{Child, Command},
    time::Duration,
};

use nix::sys::{prctl::set_pdeathsig, signal::Signal};

/// A child that is killed when this is dropped, and by the kernel when this program ends in any other way. Start it from a
/// thread that lives as long as the program: the kernel means the thread.
pub struct Owned(Option<Child>);

impl Owned {
    /// Starts it.
    pub fn spawn(command: &mut Command) -> std::io::Result<Self> {
        // SAFETY: between fork and exec only one system call is made.
        unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
        Ok(Self(Some(command.spawn()?)))
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }

    /// The child itself.
    pub fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it is there until it is dropped")
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> bool {
        !matches!(self.child().try_wait(), Ok(None))
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // One that has ended by itself needs no killing.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Resident memory of a process in MiB (`VmRSS`).
pub fn rss_mib(pid: u32) -> f64 {
    status(pid, "VmRSS:") / 1024.0
}

/// The part of it that no other process shares, in MiB (`RssAnon`): the rest is the program file, one copy for all.
pub fn anonymous_mib(pid: u32) -> f64 {
    status(pid, "RssAnon:") / 1024.0
}

fn status(pid: u32, field: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    number_after(&text, field)
}

fn number_after(text: &str, field: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

/// Time that all threads of a process have run so far, user and system (`schedstat`, nanoseconds in the kernel's books).
pub fn cpu(pid: u32) -> Duration {
    let ran = |file: std::path::PathBuf| {
        let text = std::fs::read_to_string(file.join("schedstat")).unwrap_or_default();
        text.split_whitespace().next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
    };
    Duration::from_nanos(tasks(pid).into_iter().map(ran).sum())
}

/// Times that threads of a process went to sleep so far, and so had to be woken.
pub fn sleeps(pid: u32) -> f64 {
    let of = |file: std::path::PathBuf| {
        number_after(&std::fs::read_to_string(file.join("status")).unwrap_or_default(), "voluntary_ctxt_switches:")
    };
    tasks(pid).into_iter().map(of).sum()
}

/// Threads of a process.
pub fn threads(pid: u32) -> usize {
    tasks(pid).len()
}

fn tasks(pid: u32) -> Vec<std::path::PathBuf> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Bytes sent over loopback by everybody so far.
pub fn loopback_bytes() -> f64 {
    let text = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|bytes| bytes.parse().ok()).unwrap_or(0.0)
}

/// Processes that wanted a core, over the last minute.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// Time that all cores were busy so far, whoever with.
pub fn machine_busy() -> Duration {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: Vec<u64> =
        text.lines().next().unwrap_or_default().split_whitespace().skip(1).flat_map(str::parse).collect();
    // user, nice, system; then idle and waiting; then interrupts.
    let busy: u64 = ticks.iter().enumerate().filter(|(at, _)| !matches!(at, 3 | 4)).map(|(_, ticks)| ticks).sum();
    Duration::from_millis(busy * 10)
}

/// One line about the machine.
pub fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown processor");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{cores} cores, {}, load {:.2}", model.trim_start_matches([' ', '\t', ':']), load())
}
