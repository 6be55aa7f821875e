//! The lines of the comparison, their goals, and the table.

use std::collections::BTreeMap;

use crate::{cluster::Kind, support::table::spread};

macro_rules! lines {
    ($($line:ident $text:literal),+ $(,)?) => {
        /// One line of the table.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Line { $($line),+ }

        impl Line {
            const ALL: &[Self] = &[$(Self::$line),+];

            fn text(self) -> &'static str {
                match self { $(Self::$line => $text),+ }
            }
        }
    };
}

lines! {
    Storm "all started at once: last start -> everybody sees everybody, s",
    KilledFirst "killed (port refuses): first suspicion, s",
    KilledDoubt "killed: nobody routes to it any more, s",
    KilledDown "killed: everybody says down, s",
    SilentFirst "silent (stopped for good): first suspicion, s",
    SilentDoubt "silent: nobody routes to it any more, s",
    SilentDown "silent: everybody says down, s",
    Leave "graceful leave: everybody knows, s",
    ChangeHalf "a change of metadata: half have it, s",
    ChangeAll "a change of metadata: everybody has it, s",
    Restart "restart under the same name: everybody sees it, s",
    Pause3Failed "paused 3 s: wrongly declared dead (1: yes)",
    Pause3Back "paused 3 s: in use everywhere after it goes on, s",
    Pause15Failed "paused 15 s: declared dead (1: yes)",
    Pause15Back "paused 15 s: alive everywhere after it goes on, s",
    FalseDeaths "deaths of others that lived, in all of the above",
    Cpu "quiet: processor of one agent, % of a core",
    Memory "quiet: resident memory of one agent, MiB",
    Bytes "quiet: sent by one agent, all headers included, B/s",
    Loss10Late "10 % loss: changes that somebody had after 2 s, % of all",
    Loss10Worst "10 % loss: longest until everybody had a change, s",
    Loss10False "10 % loss: deaths of agents that lived",
    Loss30Late "30 % loss: changes that somebody had after 2 s, % of all",
    Loss30Worst "30 % loss: longest until everybody had a change, s",
    Loss30False "30 % loss: deaths of agents that lived",
    Heal "partition into halves heals -> everybody sees everybody, s",
}

impl Line {
    /// Goals for the median and for the worst case.
    fn goal(self, size: usize) -> (Option<f64>, Option<f64>) {
        match self {
            Self::Storm if size <= 100 => (Some(2.0), None),
            Self::Storm => (Some(15.0), None),
            Self::KilledFirst | Self::SilentFirst => (Some(1.0), None),
            Self::KilledDown => (Some(1.0), Some(2.2)),
            Self::KilledDoubt => (Some(1.0), Some(2.2)),
            Self::SilentDoubt => (None, Some(2.5)),
            Self::SilentDown => (None, Some(5.2)),
            Self::Leave => (Some(0.2), None),
            Self::ChangeHalf => (Some(0.15), None),
            Self::ChangeAll => (Some(0.4), None),
            Self::Restart => (Some(0.5), None),
            Self::Pause3Back | Self::Pause15Back => (Some(0.3), None),
            Self::Heal => (Some(1.0), None),
            Self::Cpu => (Some(0.2), None),
            Self::Memory => (Some(if size <= 10 { 10.0 } else { 12.0 }), None),
            Self::Bytes => (Some(1000.0), None),
            Self::Pause3Failed
            | Self::FalseDeaths
            | Self::Loss10Late
            | Self::Loss10False
            | Self::Loss30Late
            | Self::Loss30False => (None, Some(0.0)),
            Self::Pause15Failed | Self::Loss10Worst | Self::Loss30Worst => (None, None),
        }
    }
}

/// Samples of one size.
#[derive(Default)]
pub struct Rows {
    samples: BTreeMap<(Line, Kind), Samples>,
}

#[derive(Default)]
struct Samples {
    values: Vec<f64>,
    missing: usize,
}

impl Rows {
    /// Adds a figure; `None` where it did not come in time.
    pub fn put(&mut self, line: Line, kind: Kind, value: Option<f64>) {
        let samples = self.samples.entry((line, kind)).or_default();
        match value {
            Some(value) => samples.values.push(value),
            None => samples.missing += 1,
        }
    }

    /// The table: median and worst of both, Serf's median over ours, and whether the goal is met.
    pub fn print(&self, size: usize) {
        println!(
            "\n{:<64} {:>16} {:>16} {:>7}  goal (median; worst)",
            format!("{size} agents: median (worst)"),
            "Serf",
            "lanemesh",
            "Serf/us"
        );
        for line in Line::ALL {
            let [serf, ours] = [Kind::Serf, Kind::Ours].map(|kind| self.samples.get(&(*line, kind)));
            if serf.is_none() && ours.is_none() {
                continue;
            }
            let ratio = match (serf, ours) {
                (Some(serf), Some(ours)) if ours.median() > 0.0 => format!("{:.1}", serf.median() / ours.median()),
                _ => String::new(),
            };
            let shown = [serf, ours].map(|samples| samples.map_or("-".to_owned(), Samples::shown));
            let verdict = ours.map_or(String::new(), |ours| ours.verdict(line.goal(size)));
            println!("{:<64} {:>16} {:>16} {:>7}  {verdict}", line.text(), shown[0], shown[1], ratio);
        }
    }
}

impl Samples {
    fn median(&self) -> f64 {
        spread(&self.values).1
    }

    fn worst(&self) -> f64 {
        if self.missing > 0 { f64::INFINITY } else { spread(&self.values).2 }
    }

    fn shown(&self) -> String {
        if self.values.is_empty() {
            return "did not come".to_owned();
        }
        let digits = |value: f64| if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
        let worst = if self.missing > 0 { "never".to_owned() } else { digits(self.worst()) };
        format!("{} ({worst})", digits(self.median()))
    }

    fn verdict(&self, goal: (Option<f64>, Option<f64>)) -> String {
        let text = match goal {
            (Some(median), Some(worst)) => format!("<= {median}; {worst}"),
            (Some(median), None) => format!("<= {median}"),
            (None, Some(worst)) => format!("always <= {worst}"),
            (None, None) => return String::new(),
        };
        let met = goal.0.is_none_or(|goal| self.missing == 0 && self.median() <= goal)
            && goal.1.is_none_or(|goal| self.worst() <= goal);
        format!("{text}  {}", if met { "ok" } else { "MISSED" })
    }
}
