//! The command line: play a scenario, draw many, shrink one that fails.

#[cfg(feature = "planted")]
mod plant;

use std::{
    fs,
    io::BufWriter,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use lanemesh_sim::{
    corpus::corpus,
    figures, invariants,
    level2::Totals,
    library::LIBRARY,
    log::Log,
    parallel,
    play::{Options, play},
    report, say,
    scenario::Scenario,
    shrink::shrink,
    stats::Summary,
    swarm::{Size, draw},
    terminal::{Progress, print},
};
use serde::{Deserialize, Serialize};

/// Chaos for lanemesh's real code, in virtual time, from one seed.
///
/// Exit codes: 0 nothing is wrong; 1 an invariant is violated (`plant`: a fault is not caught); 2 the command or a file can't
/// be used; 141 the reader of the output has gone (`| head`).
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Plays one scenario (a name from `list`, or a file).
    Run {
        /// Name or file.
        scenario: String,
        /// Seed; the same seed gives the same history.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Another number of hosts than the scenario says.
        #[arg(long)]
        nodes: Option<u32>,
        /// All have run for long when it begins, and hold the same (level 1).
        #[arg(long)]
        warm: bool,
        /// Another level than the scenario says: 1, or 2 for real QUIC and TLS between the nodes.
        #[arg(long, value_parser = clap::value_parser!(u8).range(1..=2))]
        level: Option<u8>,
        #[command(flatten)]
        show: Show,
    },
    /// Draws a scenario from each seed, and plays it.
    Swarm {
        /// First and last seed, as in 1..500 (the last is played, too).
        #[arg(long, value_parser = seeds)]
        seeds: (u64, u64),
        /// Hosts in most runs.
        #[arg(long, default_value_t = 50)]
        nodes: u32,
        /// Virtual minutes of each run.
        #[arg(long, default_value_t = 5.0)]
        minutes: f64,
        /// 1, or 2 for real QUIC and TLS between the nodes (20 to 50 of them).
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
        level: u8,
        /// Where histories that fail are written, for `replay` and `shrink`.
        #[arg(long, default_value = "sim-failures")]
        keep: PathBuf,
        /// Seeds that are played at a time; as many as there are processors, when it is not given.
        #[arg(long)]
        jobs: Option<usize>,
        /// One JSON object for each seed.
        #[arg(long)]
        json: bool,
    },
    /// Plays what must pass before a change lands: the library, the seeds that found something once, and some of the swarm.
    Check {
        /// Seeds of the swarm.
        #[arg(long, default_value = "1..100", value_parser = seeds)]
        seeds: (u64, u64),
        /// Histories that are played at a time; as many as there are processors, when it is not given.
        #[arg(long)]
        jobs: Option<usize>,
        /// Where histories that fail are written, for `replay` and `shrink`.
        #[arg(long, default_value = "sim-failures")]
        keep: PathBuf,
    },
    /// Prints the scenario that `swarm` draws from a seed.
    Draw {
        /// The seed.
        seed: u64,
        /// As for `swarm`.
        #[arg(long, default_value_t = 50)]
        nodes: u32,
        /// As for `swarm`.
        #[arg(long, default_value_t = 5.0)]
        minutes: f64,
    },
    /// Plays a kept history again.
    Replay {
        /// The file.
        file: PathBuf,
        #[command(flatten)]
        show: Show,
    },
    /// Finds a shorter history with the same failure, and writes it beside the file.
    Shrink {
        /// The file.
        file: PathBuf,
        /// Most runs.
        #[arg(long, default_value_t = 200)]
        runs: u32,
    },
    /// Plants small mistakes into the code under test, to see whether they are found.
    #[cfg(feature = "planted")]
    #[command(subcommand)]
    Plant(plant::Plant),
    /// Measures what membership promises: goal beside what this build does.
    Figures {
        /// Which, by name or group (membership, routing); all, when none is named.
        names: Vec<String>,
        /// Meshes of more nodes are left out.
        #[arg(long, default_value_t = 100)]
        most: u32,
        /// Trials of each kind, or seeds.
        #[arg(long, default_value_t = 10)]
        trials: u32,
        /// First seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Virtual node-hours of each calm run; from 100 on the partition of an hour is measured, too.
        #[arg(long, default_value_t = 10.0)]
        node_hours: f64,
    },
    /// Names scenarios and invariants.
    List,
    /// Describes an invariant.
    Explain {
        /// Its name.
        invariant: String,
    },
}

#[derive(Args)]
struct Show {
    /// The summary as JSON, and nothing else.
    #[arg(long)]
    json: bool,
    /// Writes what happens to a file.
    #[arg(long)]
    log: Option<PathBuf>,
    /// Every event goes there, not only what nodes report.
    #[arg(long)]
    log_all: bool,
    /// Writes a page that shows what happened.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// No readout.
    #[arg(long)]
    quiet: bool,
}

/// A kept history.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct History {
    seed: u64,
    scenario: Scenario,
}

fn main() -> ExitCode {
    match run(Cli::parse().verb) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("lanemesh-sim: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(verb: Verb) -> anyhow::Result<bool> {
    match verb {
        Verb::Run { scenario, seed, nodes, warm, level, show } => {
            let mut scenario = find(&scenario)?;
            scenario.mesh.nodes = nodes.unwrap_or(scenario.mesh.nodes);
            scenario.mesh.warm |= warm;
            scenario.level = level.unwrap_or(scenario.level);
            scenario.check()?;
            one(&scenario, seed, &show)
        }
        Verb::Swarm { seeds: (first, last), nodes, minutes, level, keep, jobs, json } => {
            if !json {
                say!(
                    "swarm of seeds {first}..{last} at level {level}: up to {nodes} nodes, {minutes} virtual minutes each"
                );
            }
            let size = Size { nodes, minutes };
            let histories: Vec<History> = (first..=last).map(|seed| drawn(seed, size, level)).collect();
            play_all(&histories, jobs, &keep, json)
        }
        Verb::Check { seeds, jobs, keep } => {
            let histories = gate(seeds)?;
            say!("{} histories: the library, the corpus, and swarm seeds {}..{}", histories.len(), seeds.0, seeds.1);
            play_all(&histories, jobs, &keep, false)
        }
        Verb::Draw { seed, nodes, minutes } => {
            let scenario = draw(seed, Size { nodes, minutes });
            print(format_args!("{}", text_of(&scenario, seed)?));
            Ok(true)
        }
        Verb::Replay { file, show } => {
            let History { seed, scenario } = read(&file)?;
            one(&scenario, seed, &show)
        }
        Verb::Shrink { file, runs } => shorten(&file, runs),
        #[cfg(feature = "planted")]
        Verb::Plant(plant) => plant::run(plant),
        Verb::Figures { names, most, trials, seed, node_hours } => {
            measure(&names, figures::Size { most, trials: trials.max(1), seed, node_hours })
        }
        Verb::List => list(),
        Verb::Explain { invariant } => {
            let found = invariants::ALL.iter().find(|(name, _)| *name == invariant);
            let Some((name, doc)) = found else {
                bail!("there is no invariant `{invariant}`; there are: {}", invariants::names().join(", "))
            };
            say!("{name}\n\n{doc}");
            Ok(true)
        }
    }
}

/// Prints each figure as it comes; whether all goals are met.
fn measure(names: &[String], size: figures::Size) -> anyhow::Result<bool> {
    let called = |case: &figures::Case, name: &str| case.name == name || case.group == name;
    if let Some(unknown) = names.iter().find(|name| !figures::CASES.iter().any(|case| called(case, name))) {
        let known: Vec<&str> = figures::CASES.iter().map(|case| case.name).collect();
        bail!("there are no figures `{unknown}`; there are: {}", known.join(", "));
    }
    say!("up to {} nodes, {} trials, first seed {}", size.most, size.trials, size.seed);
    let mut missed = 0;
    for case in figures::CASES.iter().filter(|case| names.is_empty() || names.iter().any(|name| called(case, name))) {
        say!("\n{}: {}", case.name, case.about);
        (case.run)(size, &mut |figure| {
            missed += u32::from(!figure.met);
            let mark = if figure.met { "    " } else { "MISS" };
            say!("  {mark} {:<62} goal {:<14} ours {}", figure.what, figure.goal, figure.ours);
        });
    }
    say!("\n{missed} goals missed");
    Ok(missed == 0)
}

fn list() -> anyhow::Result<bool> {
    let mut text = String::from("scenarios:\n");
    for (name, source) in LIBRARY {
        let scenario = Scenario::parse(source).with_context(|| format!("scenario {name}"))?;
        let cases = if scenario.cases.is_empty() { String::new() } else { format!(" [{}]", scenario.cases.join(", ")) };
        text += &format!("  {name:<22} {}{cases}\n", scenario.about);
    }
    text += "\ninvariants (`explain` describes them):\n";
    invariants::names().iter().for_each(|name| text += &format!("  {name}\n"));
    print(format_args!("{text}"));
    Ok(true)
}

fn find(name: &str) -> anyhow::Result<Scenario> {
    if let Some((_, text)) = LIBRARY.iter().find(|(known, _)| *known == name) {
        return Scenario::parse(text).with_context(|| format!("scenario {name}"));
    }
    let path = Path::new(name);
    if !path.exists() {
        bail!("`{name}` is neither a scenario of `list` nor a file");
    }
    let text = fs::read_to_string(path).with_context(|| name.to_owned())?;
    Scenario::parse(&text).with_context(|| name.to_owned())
}

fn read(file: &Path) -> anyhow::Result<History> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let history: History = toml::from_str(&text).with_context(|| file.display().to_string())?;
    history.scenario.check().with_context(|| file.display().to_string())?;
    Ok(history)
}

fn text_of(scenario: &Scenario, seed: u64) -> anyhow::Result<String> {
    Ok(toml::to_string(&History { seed, scenario: scenario.clone() })?)
}

/// Plays one and prints what came of it.
fn one(scenario: &Scenario, seed: u64, show: &Show) -> anyhow::Result<bool> {
    let mesh = &scenario.mesh;
    if !show.json {
        say!(
            "scenario {} seed {seed} level {}: {} nodes, {} seeds, {} services, {} requests/s a node, loss {} %, {} + {} s",
            scenario.name,
            scenario.level,
            mesh.nodes,
            mesh.seeds,
            mesh.services,
            mesh.rate,
            mesh.link.loss * 100.0,
            scenario.seconds,
            scenario.settle
        );
    }
    let log = match &show.log {
        Some(path) => {
            let file = fs::File::create(path).with_context(|| path.display().to_string())?;
            Log::to(Box::new(BufWriter::new(file)), show.log_all)
        }
        None => Log::quiet(),
    };
    let readout = !show.json && !show.quiet;
    let mut bar = Progress::new(!readout);
    let progress = Box::new(move |done: f64| bar.at(done, "of the virtual time"));
    let recorder = show.report.is_some().then(|| report::recorder(scenario)).unzip();
    let watcher = recorder.0.map(|recorder| Box::new(recorder) as _);
    let options = Options { log, readout, progress: Some(progress), watcher, last: true, ..Options::default() };
    let summary = play(scenario, seed, options);
    if let (Some(file), Some(recording)) = (&show.report, recorder.1) {
        let page = report::page(scenario, &summary, &recording.borrow());
        fs::write(file, page).with_context(|| file.display().to_string())?;
    }
    if show.json {
        say!("{}", serde_json::to_string(&summary)?);
    } else {
        print_summary(&summary);
    }
    Ok(summary.violations.is_empty())
}

fn print_summary(summary: &Summary) {
    let Summary { members, right, events, requests, failed, slow, moved, fell_back, .. } = summary;
    let converged = summary.converged_after.map_or("never".to_owned(), |s| format!("{s:.0} s after the last fault"));
    say!("\n{members} members, {right} with a right view; all agree: {converged}");
    say!("verdicts on members in contact: {} down, {} doubtful", summary.down_in_contact, summary.doubts_in_contact);
    say!(
        "requests: {requests}, {failed} failed {:?}, {slow} slow, {moved} moved, {fell_back} in another lane",
        summary.reasons
    );
    say!("{} bytes a node and second; {events} events, hash {}", summary.bytes_per_node_second, summary.hash);
    if let Some(network) = &summary.network {
        let Totals { packets, dials, dials_failed, accepted, superseded, evicted, dropped, overflown, .. } = network;
        say!(
            "network: {packets} packets; {dials} dials, {dials_failed} in vain, {} of silent peers; {accepted} accepted, \
             {superseded} superseded, {evicted} evicted, {} open; {} refused over certificates; {dropped} envelopes dropped, \
             {overflown} packets overflown",
            network.dials_of_silent,
            network.connections,
            network.handshakes_failed
        );
    }
    for violation in &summary.violations {
        say!(
            "VIOLATION {} ({} times, first at {:.3} s): {}",
            violation.invariant,
            violation.times,
            violation.at,
            violation.what
        );
    }
    if summary.violations.is_empty() {
        say!("nothing is wrong");
    }
}

/// What `swarm` draws from a seed.
fn drawn(seed: u64, size: Size, level: u8) -> History {
    History { seed, scenario: Scenario { level, ..draw(seed, size) } }
}

/// What must pass before a change lands.
fn gate((first, last): (u64, u64)) -> anyhow::Result<Vec<History>> {
    let library = LIBRARY.iter().map(|(name, text)| {
        let scenario = Scenario::parse(text).with_context(|| format!("scenario {name}"))?;
        Ok(History { seed: 1, scenario })
    });
    let mut histories = library.collect::<anyhow::Result<Vec<_>>>()?;
    histories.extend(corpus().iter().map(|kept| {
        let mut history = drawn(kept.seed, kept.size(), kept.level);
        history.scenario.name = format!("corpus-{}", kept.seed);
        history
    }));
    histories.extend((first..=last).map(|seed| drawn(seed, Size::default(), 1)));
    // What takes longest goes first, so that no thread ends alone.
    histories.sort_by_cached_key(|history| std::cmp::Reverse(history.scenario.work()));
    Ok(histories)
}

/// Plays them, several at a time; tells of each that is not right, and keeps it.
fn play_all(histories: &[History], jobs: Option<usize>, keep: &Path, json: bool) -> anyhow::Result<bool> {
    let mut progress = Progress::new(true);
    let (mut at, mut bad, mut fault) = (0, 0, None);
    let play_one = |history: &History| play(&history.scenario, history.seed, Options::default());
    let total = histories.len();
    parallel::in_order(histories, jobs.unwrap_or_else(parallel::threads), play_one, |done, summary| {
        let history = &histories[at];
        at += 1;
        progress.at(done as f64 / total as f64, &format!("{} seed {}, {bad} bad", summary.scenario, summary.seed));
        if json || !summary.violations.is_empty() {
            progress.wipe();
        }
        if json {
            say!("{}", serde_json::to_string(&summary).expect("plain data"));
        }
        if !summary.violations.is_empty() {
            bad += 1;
            match kept_as(history, keep) {
                Ok(file) if !json => print_bad(&summary, &file),
                Ok(_) => {}
                Err(error) => fault = Some(error),
            }
        }
    });
    drop(progress);
    if !json {
        say!("{total} histories, {bad} with violations");
    }
    fault.map_or(Ok(bad == 0), Err)
}

/// Writes a history down.
fn kept_as(history: &History, keep: &Path) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(keep).with_context(|| keep.display().to_string())?;
    let name = &history.scenario.name;
    // What is drawn has its seed in its name.
    let drawn = name.ends_with(&format!("-{}", history.seed));
    let file = keep.join(if drawn { format!("{name}.toml") } else { format!("{name}-{}.toml", history.seed) });
    fs::write(&file, text_of(&history.scenario, history.seed)?).with_context(|| file.display().to_string())?;
    Ok(file)
}

fn print_bad(summary: &Summary, file: &Path) {
    say!("{} seed {}: kept as {}", summary.scenario, summary.seed, file.display());
    for violation in &summary.violations {
        say!("    {} at {:.3} s ({} times): {}", violation.invariant, violation.at, violation.times, violation.what);
    }
}

fn shorten(file: &Path, runs: u32) -> anyhow::Result<bool> {
    let History { seed, scenario } = read(file)?;
    say!("shrinking {} with seed {seed}: {} steps", scenario.name, scenario.step.len());
    let Some(shrunk) = shrink(&scenario, seed, runs, |line| say!("  {line}")) else {
        say!("nothing is wrong with it");
        return Ok(true);
    };
    let target = file.with_extension("short.toml");
    fs::write(&target, text_of(&shrunk.scenario, seed)?).with_context(|| target.display().to_string())?;
    say!("{} steps after {} runs: {}", shrunk.scenario.step.len(), shrunk.runs, target.display());
    Ok(false)
}

fn seeds(text: &str) -> Result<(u64, u64), String> {
    let fault = || format!("`{text}` is no range of seeds: write 1..500, or 7 for one");
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let pair = (first.parse().map_err(|_| fault())?, last.trim_start_matches('=').parse().map_err(|_| fault())?);
    if pair.0 > pair.1 { Err(fault()) } else { Ok(pair) }
}
