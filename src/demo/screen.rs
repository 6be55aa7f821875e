//! What people see: on a terminal a table that is redrawn in place, elsewhere a line per act.

use std::{
    collections::BTreeMap,
    future::Future,
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

use super::{
    load::{Load, Seen},
    story::Summary,
};

/// Between drawings.
const REDRAW: Duration = Duration::from_millis(150);
/// Width of the bars.
const BAR: usize = 30;

/// The screen, or what stands in for one. With `--json` everything goes to standard error.
pub struct Screen {
    to_stderr: bool,
    live: bool,
    drawn: usize,
    began: Instant,
}

impl Screen {
    /// A live one where the output is a terminal.
    pub fn new(json: bool) -> Self {
        let live = if json { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() };
        Self { to_stderr: json, live, drawn: 0, began: Instant::now() }
    }

    /// A line that stays.
    pub fn say(&mut self, text: &str) {
        self.drawn = 0;
        self.put(&format!("{text}\n"));
    }

    /// The beginning of an act.
    pub fn title(&mut self, text: &str) {
        let at = self.began.elapsed().as_secs_f64();
        self.say(&format!("\n[{at:5.1} s] {text}"));
    }

    /// Draws the load while something is waited for; leaves the last picture.
    pub async fn watch(&mut self, load: &Load, what: impl Future<Output = ()>) {
        tokio::pin!(what);
        let mut redraw = tokio::time::interval(REDRAW);
        loop {
            tokio::select! {
                () = &mut what => break,
                _ = redraw.tick(), if self.live => self.draw(load),
            }
        }
        self.draw(load);
        self.drawn = 0;
    }

    /// The summary, claim by claim.
    pub fn summary(&mut self, summary: &Summary) {
        let mut text = format!("\nWhat was measured ({} requests, {:.0} s)\n\n", summary.requests, summary.seconds);
        for claim in &summary.claims {
            let mark = if claim.passed { "  ok  " } else { " FAIL " };
            text += &format!("{mark} {}: {}\n", claim.claim, claim.measured);
        }
        let failed = summary.claims.iter().filter(|claim| !claim.passed).count();
        text += &match failed {
            0 => format!("\nall {} claims hold\n", summary.claims.len()),
            n => format!("\n{n} of {} claims do not hold\n", summary.claims.len()),
        };
        self.say(&text);
    }

    fn draw(&mut self, load: &Load) {
        let text = load.look(picture);
        let up = if self.live && self.drawn > 0 { format!("\x1b[{}A\x1b[J", self.drawn) } else { String::new() };
        self.drawn = text.lines().count();
        self.put(&format!("{up}{text}"));
    }

    fn put(&mut self, text: &str) {
        // A reader that went away (`| head`) ends the show, not the demo.
        let _ = if self.to_stderr {
            std::io::stderr().write_all(text.as_bytes())
        } else {
            std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush())
        };
    }
}

fn picture(seen: &Seen) -> String {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (served, _) in seen.users.iter().flatten() {
        *counts.entry((&served.lane, &served.instance)).or_default() += 1;
    }
    let most = counts.values().copied().max().unwrap_or(1);
    let mut text = String::new();
    for ((lane, instance), users) in counts.iter().rev() {
        let bar = "#".repeat((users * BAR).div_ceil(most));
        text += &format!("    {lane:<8} {instance:<10} {users:>5} users  {bar}\n");
    }
    let lane_changes = seen.moves.iter().filter(|m| m.from.lane != m.to.lane).count();
    text += &format!(
        "    {} requests, {} failed; so far {} changes of instance, {lane_changes} of lane\n",
        seen.requests,
        seen.failures,
        seen.moves.len()
    );
    text
}
