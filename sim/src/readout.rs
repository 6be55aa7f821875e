//! The readout: one line every few seconds, one letter for each host, and what happened since the line before.
//!
//! ```text
//!   12 s |..::.P.x..| 10/12 right |  23 req   0 bad | X7 P5
//! ```
//!
//! Columns: virtual seconds; a letter for each host (the first 100); members whose view is right, of all members; requests
//! ended since the last line and those that failed; steps that began (capital) or ended (small), each with its hosts.
//!
//! Letters of hosts:
//!
//! | letter | the host |
//! | --- | --- |
//! | `.` | runs and sees everybody rightly |
//! | `:` | runs and is wrong about somebody |
//! | `j` | is joining |
//! | `p` | stands still |
//! | `x` | has crashed, its port refuses |
//! | `o` | has crashed, nothing answers |
//! | `l` | has left |
//! | `n` | ended because its name was taken |
//! | `-` | was not started yet |
//!
//! Letters of steps: `X` crash, `S` start, `J` join, `L` leave, `D` drain, `P` pause, `H` starve (hunger), `O` one-way, `C`
//! partition (cut), `F` flip-flop, `W` worsen, `T` clock (time), `K` disk, `A` app, `R` roll, `V` an instance gets its version,
//! `G` policy (grows), `B` rollback (back), `N` churn, `Z` lie, `Q` squat, `M` slow machine, `Y` weigh, `U` drift,
//! `E` withdraw (erase).

use std::fmt::Write;

use crate::{
    host::{Host, Off},
    queue::{SECOND, Time},
    world::World,
};

/// What was shown last.
pub struct Readout {
    on: bool,
    at: Time,
    marks: usize,
    requests: (u64, u64),
    violations: usize,
}

impl Readout {
    /// Prints, or not.
    pub fn new(on: bool) -> Self {
        Self { on, at: 0, marks: 0, requests: (0, 0), violations: 0 }
    }

    /// A second has passed: prints a line when something happened, and every 10 s.
    pub fn second(&mut self, world: &World) {
        if !self.on {
            return;
        }
        let news = world.stats.marks.len() > self.marks || world.findings.all().len() > self.violations;
        if news || world.now >= self.at + 10 * SECOND {
            self.line(world);
        }
    }

    /// The run is over.
    pub fn end(&mut self, world: &World) {
        if self.on {
            self.line(world);
        }
    }

    fn line(&mut self, world: &World) {
        let letters: String = world.hosts.iter().take(MOST_LETTERS).map(|host| letter(world, host)).collect();
        let members = world.members();
        let ended = (world.stats.answered + world.stats.failed, world.stats.failed);
        let mut marks = String::new();
        for (_, step, hosts) in &world.stats.marks[self.marks..] {
            let list: Vec<String> = hosts.iter().take(8).map(u32::to_string).collect();
            let more = if hosts.len() > 8 { ",.." } else { "" };
            let _ = write!(marks, " {step}{}{more}", list.join(","));
        }
        let (requests, bad) = (ended.0 - self.requests.0, ended.1 - self.requests.1);
        let seconds = world.now / SECOND;
        crate::say!(
            "{seconds:>5} s |{letters}| {:>3}/{} right | {requests:>5} req {bad:>3} bad |{marks}",
            members.right,
            members.up
        );
        for violation in &world.findings.all()[self.violations..] {
            crate::say!("        VIOLATION {} at {:.3} s: {}", violation.invariant, violation.at, violation.what);
        }
        self.at = world.now;
        (self.marks, self.requests, self.violations) = (world.stats.marks.len(), ended, world.findings.all().len());
    }
}

/// One letter for a host.
pub(crate) fn letter(world: &World, host: &Host) -> char {
    match (&host.node, host.off) {
        (Some(_), _) if !host.is_awake(world.now) => 'p',
        (Some(node), _) if !node.is_member() && !host.leaving => 'j',
        (Some(_), _) if world.view_is_right(host.index) => '.',
        (Some(_), _) => ':',
        (None, Some(Off::Refused)) => 'x',
        (None, Some(Off::Silent)) => 'o',
        (None, Some(Off::Left)) => 'l',
        (None, Some(Off::NameTaken)) => 'n',
        (None, Some(Off::Never) | None) => '-',
    }
}

const MOST_LETTERS: usize = 100;
