//! Samples by name, and the table at the end.

use std::{collections::BTreeMap, time::Duration};

/// What was measured, in the order in which it was first named.
#[derive(Default)]
pub struct Figures {
    order: Vec<&'static str>,
    rows: BTreeMap<&'static str, Row>,
}

struct Row {
    unit: &'static str,
    goal: Option<f64>,
    samples: Vec<f64>,
    missing: usize,
}

impl Figures {
    /// Adds a time; `None` when what was waited for did not come. Goal in seconds.
    pub fn time(&mut self, name: &'static str, goal: impl Into<Option<f64>>, took: Option<Duration>) {
        self.add(name, "ms", goal.into().map(|seconds| seconds * 1e3), took.map(|took| took.as_secs_f64() * 1e3));
    }

    /// Adds a figure.
    pub fn add(&mut self, name: &'static str, unit: &'static str, goal: impl Into<Option<f64>>, value: Option<f64>) {
        if !self.rows.contains_key(name) {
            self.order.push(name);
        }
        let fresh = || Row { unit, goal: goal.into(), samples: Vec::new(), missing: 0 };
        let row = self.rows.entry(name).or_insert_with(fresh);
        match value {
            Some(value) => row.samples.push(value),
            None => row.missing += 1,
        }
    }

    /// The table: median, smallest and largest of the samples beside the goal.
    pub fn print(&self) {
        println!("{:<64} {:>9} {:>9} {:>9} {:>4}  goal", "", "median", "min", "max", "n");
        for name in &self.order {
            let Row { unit, goal, samples, missing } = &self.rows[name];
            let (low, middle, high) = spread(samples);
            let verdict = match goal {
                Some(goal) if *missing > 0 || middle > *goal => format!("<= {goal} {unit}  MISSED"),
                Some(goal) => format!("<= {goal} {unit}  ok"),
                None => String::new(),
            };
            let absent = if *missing > 0 { format!("  ({missing} did not come)") } else { String::new() };
            let name = format!("{name}, {unit}");
            println!("{name:<64} {middle:>9.1} {low:>9.1} {high:>9.1} {:>4}  {verdict}{absent}", samples.len());
        }
    }
}

/// Smallest, median, largest; not a number where there are none.
pub fn spread(samples: &[f64]) -> (f64, f64, f64) {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => (f64::NAN, f64::NAN, f64::NAN),
        n => (sorted[0], (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0, sorted[n - 1]),
    }
}

/// The median.
pub fn median(samples: &[f64]) -> f64 {
    spread(samples).1
}
