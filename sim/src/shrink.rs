//! A shorter history with the same failure: steps are left out, and the run shortened, as long as the same invariant breaks.
//!
//! Greedy halves first (Zeller's ddmin, simplified). The fates of packets hang on their link and number only, so that leaving
//! out one step leaves the rest of the history mostly as it was.

use crate::{
    play::{Options, play},
    scenario::Scenario,
    stats::Summary,
};

/// What shrinking came to.
pub struct Shrunk {
    /// The shortest history found.
    pub scenario: Scenario,
    /// Runs it took.
    pub runs: u32,
}

/// Shrinks; `None` when nothing is wrong with the history. `most` bounds the runs.
pub fn shrink(scenario: &Scenario, seed: u64, most: u32, mut tell: impl FnMut(&str)) -> Option<Shrunk> {
    let run = |scenario: &Scenario| -> Summary {
        play(scenario, seed, Options { stop_at_first: true, ..Options::default() })
    };
    let wanted = run(scenario).violations.first()?.invariant;
    let mut best = scenario.clone();
    let mut runs = 1;
    let fails = |scenario: &Scenario, runs: &mut u32| {
        *runs += 1;
        run(scenario).violations.iter().any(|violation| violation.invariant == wanted)
    };
    let mut size = best.step.len().div_ceil(2);
    while size > 0 && runs < most {
        let mut at = 0;
        while at < best.step.len() && runs < most {
            let mut fewer = best.clone();
            fewer.step.drain(at..(at + size).min(best.step.len()));
            if fails(&fewer, &mut runs) {
                tell(&format!("{} steps are enough ({runs} runs)", fewer.step.len()));
                best = fewer;
            } else {
                at += size;
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    // Then without requests, and with fewer seconds after the last step.
    let last = best.step.iter().map(|step| step.t + step.lasts.unwrap_or(0.0)).fold(0.0, f64::max);
    let quiet = Scenario { mesh: crate::scenario::Mesh { rate: 0.0, ..best.mesh.clone() }, ..best.clone() };
    let short = Scenario { seconds: (last + 1.0).min(best.seconds), ..best.clone() };
    for smaller in [quiet, short] {
        if runs < most && smaller.check().is_ok() && fails(&smaller, &mut runs) {
            best = smaller;
        }
    }
    Some(Shrunk { scenario: best, runs })
}
