//! What is written to people: standard output, and a progress bar on a terminal.
//!
//! Everything that a run prints goes through [`say!`](crate::say). When its reader has gone (`| head`), there is nothing left
//! to say: the process ends at once with the exit code that a shell gives to a program ended by SIGPIPE.

#![expect(
    clippy::disallowed_methods,
    reason = "the command line's own: a bar shows real time, and when its reader has gone there is nothing left to end in order"
)]

use std::{
    fmt,
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

/// Exit code when the reader of standard output has gone: 128 + SIGPIPE.
pub const READER_GONE: i32 = 141;

/// Prints a line.
#[macro_export]
macro_rules! say {
    ($($part:tt)*) => { $crate::terminal::print(format_args!("{}\n", format_args!($($part)*))) };
}

/// Prints as it is.
pub fn print(text: fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_fmt(text).and_then(|()| out.flush())
        && error.kind() == io::ErrorKind::BrokenPipe
    {
        std::process::exit(READER_GONE);
    }
}

/// A bar on standard error, drawn a few times a second; nothing where that is no terminal.
pub struct Progress {
    on: bool,
    begun: Instant,
    drawn: Option<Instant>,
}

impl Progress {
    /// `wanted` is whether there is nothing else that shows how far it is.
    pub fn new(wanted: bool) -> Self {
        Self { on: wanted && io::stderr().is_terminal(), begun: Instant::now(), drawn: None }
    }

    /// So much is done, 0 to 1.
    pub fn at(&mut self, done: f64, what: &str) {
        if !self.on || self.drawn.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.drawn = Some(Instant::now());
        let _ = write!(io::stderr(), "\r{}\x1b[K", bar(done, self.begun.elapsed(), what));
    }

    /// Wipes it, so that a line can be printed.
    pub fn wipe(&mut self) {
        if self.on && self.drawn.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.wipe();
    }
}

fn bar(done: f64, took: Duration, what: &str) -> String {
    let done = done.clamp(0.0, 1.0);
    let full = (done * WIDTH as f64) as usize;
    let left =
        if done > 0.02 { format!(", {:.0} s left", took.as_secs_f64() * (1.0 / done - 1.0)) } else { String::new() };
    format!("[{}{}] {:>3.0} % {what}{left}", "#".repeat(full), ".".repeat(WIDTH - full), done * 100.0)
}

const WIDTH: usize = 30;
const EVERY: Duration = Duration::from_millis(120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_how_far_and_how_long() {
        let half = bar(0.5, Duration::from_secs(10), "3 bad");
        assert!(half.starts_with("[###############...............]  50 % 3 bad, 10 s left"), "{half}");
        assert!(!bar(0.0, Duration::ZERO, "").contains("left") && bar(7.0, Duration::ZERO, "").contains("100 %"));
    }
}
