//! `lanemesh-sim plant`: the test of the tests, from the command line.

use std::{fs, path::PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;
use lanemesh::types::Planted;
use lanemesh_sim::{
    parallel::{in_order, threads},
    planted::{Catch, Healthy, Kept, SIZE, check, kept, search},
    say,
    swarm::Size,
};

#[derive(Subcommand)]
pub enum Plant {
    /// Names the faults, and which invariant caught each when it was last searched.
    List,
    /// Looks for the first seed at which each fault is caught: for nights.
    Search {
        /// Faults; all of them when none is named.
        faults: Vec<String>,
        /// Seeds that are tried.
        #[arg(long, default_value_t = 200)]
        seeds: u64,
        /// Hosts of each mesh.
        #[arg(long, default_value_t = SIZE.nodes)]
        nodes: u32,
        /// Virtual minutes of each run.
        #[arg(long, default_value_t = SIZE.minutes)]
        minutes: f64,
        /// Where what was found is kept, beside what the file holds of other faults.
        #[arg(long)]
        keep: Option<PathBuf>,
    },
    /// Plays the seeds that caught them again.
    Check,
}

/// Whether every fault is caught.
pub fn run(plant: Plant) -> anyhow::Result<bool> {
    match plant {
        Plant::List => {
            let kept = kept();
            for fault in Planted::ALL {
                let catch = kept.catch.iter().find(|catch| catch.fault == fault.name());
                let by = catch.map_or("never searched".to_owned(), |catch| format!("caught by {}", catch.by));
                say!("{:<26} {} ({by})", fault.name(), fault.what());
            }
            Ok(true)
        }
        Plant::Search { faults, seeds, nodes, minutes, keep } => {
            let faults = faults
                .iter()
                .map(|name| {
                    Planted::named(name).with_context(|| format!("there is no fault `{name}`; see `plant list`"))
                })
                .collect::<anyhow::Result<Vec<_>>>()?;
            let faults = if faults.is_empty() { Planted::ALL.to_vec() } else { faults };
            let size = Size { nodes, minutes };
            say!("{} faults, up to {seeds} seeds each: {nodes} nodes, {minutes} virtual minutes", faults.len());
            let healthy = Healthy::default();
            let mut found = Vec::new();
            let look = |fault: &Planted| (*fault, search(*fault, size, seeds, &healthy));
            in_order(&faults, threads(), look, |_, (fault, catch)| {
                row(fault.name(), catch.as_ref());
                found.push(catch);
            });
            let missed = found.iter().filter(|catch| catch.is_none()).count();
            if let Some(file) = keep {
                keep_in(&file, size, found)?;
            }
            say!("{} of {} faults caught", faults.len() - missed, faults.len());
            Ok(missed == 0)
        }
        Plant::Check => {
            let kept = kept();
            let size = Size { nodes: kept.nodes, minutes: kept.minutes };
            let healthy = Healthy::default();
            let (mut caught, mut moved) = (0, 0);
            let look = |catch: &Catch| (catch.clone(), check(catch, size, &healthy));
            in_order(&kept.catch, threads(), look, |_, (before, now)| {
                row(&before.fault, now.as_ref());
                caught += usize::from(now.is_some());
                moved += usize::from(now.is_some_and(|now| (now.seed, now.scenario) != (before.seed, before.scenario)));
            });
            if moved > 0 {
                say!(
                    "{moved} are caught by another seed than the kept one: `plant search --keep` brings the file up to date"
                );
            }
            say!("{caught} of {} faults caught", Planted::ALL.len());
            Ok(caught == Planted::ALL.len())
        }
    }
}

fn row(fault: &str, catch: Option<&Catch>) {
    match catch {
        Some(catch) => {
            let history = catch.scenario.clone().unwrap_or_else(|| format!("seed {}", catch.seed));
            say!("{fault:<26} {:<26} {history:<16} after {:>7.2} s: {}", catch.by, catch.at, catch.what);
        }
        None => say!("{fault:<26} NOT CAUGHT"),
    }
}

fn keep_in(file: &PathBuf, size: Size, found: Vec<Option<Catch>>) -> anyhow::Result<()> {
    let at = || file.display().to_string();
    let mut kept = match fs::read_to_string(file) {
        Ok(text) => toml::from_str::<Kept>(&text).with_context(at)?,
        Err(_) => Kept::default(),
    };
    if !kept.catch.is_empty() && (kept.nodes, kept.minutes) != (size.nodes, size.minutes) {
        bail!("{} holds seeds of {} nodes and {} minutes", at(), kept.nodes, kept.minutes);
    }
    (kept.nodes, kept.minutes) = (size.nodes, size.minutes);
    for catch in found.into_iter().flatten() {
        kept.catch.retain(|other| other.fault != catch.fault);
        kept.catch.push(catch);
    }
    let place = |catch: &Catch| Planted::ALL.iter().position(|fault| fault.name() == catch.fault);
    kept.catch.sort_by_key(place);
    fs::write(file, toml::to_string(&kept)?).with_context(at)
}
