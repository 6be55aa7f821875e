//! What is done to a cluster, and what is measured of it.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    cluster::{Cluster, Kind},
    journal::Word,
    network::{Far, Network, side_of},
    rows::{Line, Rows},
    support::process,
};

/// Options of a run.
pub struct Options {
    /// Repetitions of crash, leave, restart and pause.
    pub rounds: usize,
    /// How long a quiet cluster is watched.
    pub watch: Duration,
    /// How long a partition lasts.
    pub split: Duration,
    /// Words on the command line; everything when empty.
    pub parts: Vec<String>,
}

impl Options {
    /// Whether a part was asked for.
    pub fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|word| word == part)
    }
}

/// Everything that needs no divided network, with one cluster.
pub fn run(kind: Kind, size: usize, network: &Network, options: &Options, rows: &mut Rows) {
    let mut cluster = Cluster::new(kind, size, None);
    let mut scene = Scene { rows, kind };
    if !scene.storm(&mut cluster) {
        println!("  {kind:?}, {size} at once: not whole after {} s; once more, {BATCH} at a time", STORM.as_secs());
        // The first ends before the second is made in its place.
        drop(cluster);
        cluster = Cluster::new(kind, size, None);
        if !in_batches(&mut cluster) {
            println!("  {kind:?}, {size}: not whole in batches either; nothing more is measured of it");
            return;
        }
    }
    sleep(SETTLE);
    if options.wants("idle") {
        scene.idle(&cluster, options);
    }
    if options.wants("change") {
        scene.changes(&cluster, options);
    }
    if options.wants("leave") {
        scene.leaves(&mut cluster, options);
    }
    if options.wants("crash") {
        scene.crashes(&mut cluster, options);
    }
    if options.wants("pause") {
        scene.pauses(&cluster, options);
    }
    scene.put(Line::FalseDeaths, Some(cluster.journal.false_deaths() as f64));
    if options.wants("loss") {
        scene.losses(&cluster, network, options);
    }
}

/// A cluster whose halves are cut apart for a while.
pub fn partition(kind: Kind, size: usize, far: &Far, options: &Options, rows: &mut Rows) {
    let mut cluster = Cluster::new(kind, size, Some(far));
    let mut scene = Scene { rows, kind };
    if !in_batches(&mut cluster) {
        return scene.put(Line::Heal, None);
    }
    sleep(SETTLE);
    for round in 0..options.rounds.min(2) {
        let all = cluster.others(&[]);
        all.iter().for_each(|at| cluster.journal.guilty(*at, true));
        let mark = cluster.journal.mark();
        assert!(far.cut(true), "the cable can be cut");
        sleep(options.split);
        // Somebody of one half says so of somebody of the other: otherwise nothing was cut.
        let parted = (0..size).any(|of| cluster.journal.first_says(mark, of, &[Word::Down]).is_some());
        let healed = Instant::now();
        assert!(far.cut(false), "the cable can be joined");
        let whole = cluster.journal.all_whole(&all, HEAL);
        scene.put(Line::Heal, whole.filter(|_| parted).map(|at| at.saturating_duration_since(healed).as_secs_f64()));
        println!(
            "  {kind:?}, {size}: partition {} of {} s, {} of {size} whole again",
            round + 1,
            options.split.as_secs(),
            cluster.journal.count_whole(&all)
        );
        sleep(SETTLE);
    }
    debug_assert!((0..size).any(|at| side_of(at, size) == 1));
}

fn in_batches(cluster: &mut Cluster) -> bool {
    let mut started = Vec::new();
    for at in 0..cluster.size {
        cluster.start(at);
        started.push(at);
        if started.len().is_multiple_of(BATCH) {
            // Each sees at least those that were started so far.
            sleep(Duration::from_secs(3));
        }
    }
    cluster.journal.all_whole(&started, STORM).is_some()
}

struct Scene<'a> {
    rows: &'a mut Rows,
    kind: Kind,
}

impl Scene<'_> {
    fn put(&mut self, line: Line, value: Option<f64>) {
        self.rows.put(line, self.kind, value);
    }

    fn time(&mut self, line: Line, from: Instant, at: Option<Instant>) {
        self.put(line, at.map(|at| at.saturating_duration_since(from).as_secs_f64()));
    }

    fn storm(&mut self, cluster: &mut Cluster) -> bool {
        for at in 0..cluster.size {
            cluster.start(at);
        }
        let last = Instant::now();
        let whole = cluster.journal.all_whole(&cluster.others(&[]), STORM);
        self.time(Line::Storm, last, whole);
        whole.is_some()
    }

    fn idle(&mut self, cluster: &Cluster, options: &Options) {
        // First statements are spread, connections opened.
        sleep(Duration::from_secs(10));
        let size = cluster.size as f64;
        let busy =
            |cluster: &Cluster| (0..cluster.size).map(|at| process::cpu(cluster.pid(at)).as_secs_f64()).sum::<f64>();
        let (ran, sent, from) = (busy(cluster), process::loopback_bytes(), Instant::now());
        sleep(options.watch);
        let seconds = from.elapsed().as_secs_f64();
        let bytes = (process::loopback_bytes() - sent) / seconds / size;
        self.put(Line::Cpu, Some((busy(cluster) - ran) / seconds / size * 100.0));
        self.put(Line::Bytes, Some(bytes));
        let mut memory: Vec<f64> = (0..cluster.size).map(|at| process::rss_mib(cluster.pid(at))).collect();
        memory.sort_by(f64::total_cmp);
        self.put(Line::Memory, Some(memory[memory.len() / 2]));
    }

    fn changes(&mut self, cluster: &Cluster, options: &Options) {
        for round in 0..options.rounds + 2 {
            let times = cluster.change(cluster.size / 2, round, Duration::from_secs(30));
            self.put(Line::ChangeHalf, times.map(|(half, _)| half.as_secs_f64()));
            self.put(Line::ChangeAll, times.map(|(_, all)| all.as_secs_f64()));
            sleep(REST);
        }
    }

    fn leaves(&mut self, cluster: &mut Cluster, options: &Options) {
        for round in 0..options.rounds {
            let at = victim(cluster, round);
            let (others, mark) = (cluster.others(&[at]), cluster.journal.mark());
            cluster.journal.guilty(at, true);
            let before = cluster.leave(at);
            let told = cluster.journal.each_says(mark, &others, at, &[Word::Left], LIMIT);
            self.time(Line::Leave, before, told.and_then(|times| times.last().copied()));
            cluster.ended(at, Duration::from_secs(10));
            self.back(cluster, at, None);
        }
    }

    /// Killed, which shows in its refusing port; then stopped, which is silence, and killed in its sleep.
    fn crashes(&mut self, cluster: &mut Cluster, options: &Options) {
        for round in 0..options.rounds {
            let at = victim(cluster, round);
            let lines = [Line::KilledFirst, Line::KilledDoubt, Line::KilledDown];
            self.crash(cluster, at, lines, |cluster| cluster.kill(at));
            self.back(cluster, at, Some(Line::Restart));
        }
        for round in 0..options.rounds {
            let at = victim(cluster, round);
            let lines = [Line::SilentFirst, Line::SilentDoubt, Line::SilentDown];
            self.crash(cluster, at, lines, |cluster| cluster.pause(at, true));
            cluster.kill(at);
            self.back(cluster, at, None);
        }
    }

    fn crash(&mut self, cluster: &mut Cluster, at: usize, lines: [Line; 3], how: impl FnOnce(&mut Cluster)) {
        let others = cluster.others(&[at]);
        let mark = cluster.journal.mark();
        cluster.journal.guilty(at, true);
        let before = Instant::now();
        how(cluster);
        let down = cluster.journal.each_says(mark, &others, at, &[Word::Down], LIMIT);
        let first = cluster.journal.first_says(mark, at, &[Word::Suspect, Word::Doubtful, Word::Down]);
        let none = [Word::Doubtful, Word::Down];
        let doubt = cluster.journal.each_says(mark, &others, at, &none, Duration::ZERO);
        self.time(lines[0], before, first);
        self.time(lines[1], before, doubt.and_then(|times| times.last().copied()));
        self.time(lines[2], before, down.and_then(|times| times.last().copied()));
    }

    /// Starts one again under its name.
    fn back(&mut self, cluster: &mut Cluster, at: usize, line: Option<Line>) {
        let (others, mark) = (cluster.others(&[at]), cluster.journal.mark());
        let before = cluster.start(at);
        let seen = cluster.journal.each_says(mark, &others, at, &[Word::Alive], LIMIT);
        if let Some(line) = line {
            self.time(line, before, seen.and_then(|times| times.last().copied()));
        }
        // It has to know everybody before the next is done to anybody.
        cluster.journal.all_whole(&[at], LIMIT);
        cluster.journal.guilty(at, false);
        sleep(REST);
    }

    fn pauses(&mut self, cluster: &Cluster, options: &Options) {
        let cases = [(3, Line::Pause3Failed, Line::Pause3Back), (15, Line::Pause15Failed, Line::Pause15Back)];
        for (seconds, failed, back) in cases {
            for round in 0..options.rounds {
                let at = victim(cluster, round);
                let mark = cluster.journal.mark();
                // Not dead: who says so is wrong, but that has a line of its own.
                cluster.journal.guilty(at, true);
                cluster.pause(at, true);
                sleep(Duration::from_secs(seconds));
                let (before, wrong) = (Instant::now(), cluster.journal.who_does_not_say_alive(at));
                let resumed = cluster.journal.mark();
                cluster.pause(at, false);
                let again = cluster.journal.each_says(resumed, &wrong, at, &[Word::Alive], LIMIT);
                self.time(back, before, again.map(|times| times.last().copied().unwrap_or(before)));
                let said = cluster.journal.first_says(mark, at, &[Word::Down]).is_some();
                self.put(failed, Some(f64::from(u8::from(said))));
                sleep(REST * 2);
                cluster.journal.guilty(at, false);
            }
        }
    }

    fn losses(&mut self, cluster: &Cluster, network: &Network, options: &Options) {
        let cases = [
            (10, Line::Loss10Late, Line::Loss10Worst, Line::Loss10False),
            (30, Line::Loss30Late, Line::Loss30Worst, Line::Loss30False),
        ];
        for (per_cent, late, worst, wrong) in cases {
            if !network.lose(per_cent) {
                return;
            }
            let before = cluster.journal.false_deaths();
            let mut times = Vec::new();
            for round in 0..options.rounds * 5 {
                let took = cluster.change(cluster.size / 2, round, Duration::from_secs(40));
                times.push(took.map_or(f64::INFINITY, |(_, all)| all.as_secs_f64()));
                sleep(REST);
            }
            let too_late = times.iter().filter(|time| **time > 2.0).count();
            self.put(late, Some(too_late as f64 / times.len() as f64 * 100.0));
            self.put(worst, times.iter().copied().reduce(f64::max).filter(|time| time.is_finite()));
            self.put(wrong, Some((cluster.journal.false_deaths() - before) as f64));
        }
        network.lose(0);
    }
}

/// Another one each time, and never a seed.
fn victim(cluster: &Cluster, round: usize) -> usize {
    cluster.size - 1 - round % (cluster.size / 2)
}

/// Longest wait for all to see all.
const STORM: Duration = Duration::from_secs(60);
/// Longest wait for one agreement.
const LIMIT: Duration = Duration::from_secs(40);
/// Longest wait after a partition.
const HEAL: Duration = Duration::from_secs(120);
/// After a start.
const SETTLE: Duration = Duration::from_secs(5);
/// Between two measurements.
const REST: Duration = Duration::from_millis(1500);
/// So many start at a time where all at once are too many.
const BATCH: usize = 20;
