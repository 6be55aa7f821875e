//! `lanemesh run`: reads file, environment and flags, resolves them together, and hands over to `app`.

use std::{path::PathBuf, process::ExitCode};

use super::{Exit, Failure, check, config};
use crate::config::{Config, Overrides, Source};

/// Run a sidecar
#[derive(Debug, Default, clap::Args)]
#[command(
    after_help = "Flags win over LANEMESH_* variables, which win over the file. `lanemesh config reference` lists every key."
)]
pub(super) struct Args {
    /// Configuration file (TOML) [env: LANEMESH_CONFIG]
    #[arg(long, short, value_name = "FILE", env = "LANEMESH_CONFIG", hide_env = true)]
    pub config: Option<PathBuf>,
    /// Node id (key `node`)
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// HOST:PORT of other members; may be repeated (`gossip.seeds`)
    #[arg(long = "seed", value_name = "HOST:PORT")]
    pub seeds: Vec<String>,
    /// UDP address of the mesh side (`gossip.bind`)
    #[arg(long, value_name = "IP:PORT")]
    pub gossip: Option<String>,
    /// Address that peers use (`gossip.advertise`)
    #[arg(long, value_name = "IP:PORT")]
    pub advertise: Option<String>,
    /// TCP address for applications (`proxy.bind`)
    #[arg(long, value_name = "IP:PORT")]
    pub proxy: Option<String>,
    /// TCP address of the admin API (`admin.bind`)
    #[arg(long, value_name = "IP:PORT")]
    pub admin: Option<String>,
    /// Where generation, known peers and the write token are kept (`data_dir`)
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,
    /// Add x-lanemesh-* response headers that tell the decision (`proxy.expose_decision`)
    #[arg(long)]
    pub expose_decision: bool,
    /// Log level or filter, such as `debug` or `info,lanemesh::proxy=debug` (`log.filter`)
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// Any other key; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = super::values::tag)]
    pub set: Vec<(String, String)>,
    /// End when the process that started this one ends
    #[arg(long, value_name = "PID", hide = true)]
    pub end_with_parent: Option<u32>,
}

impl Args {
    /// The flags as values over file and environment.
    pub fn overrides(&self, json: bool) -> Overrides {
        let mut overrides = Overrides::new();
        let mut add = |key: &str, value: &str, flag: &str| {
            overrides.push((key.to_owned(), value.to_owned(), Source::Flag(flag.to_owned())));
        };
        for (key, value) in &self.set {
            add(key, value, "--set");
        }
        let named = [
            ("node", &self.node, "--node"),
            ("gossip.bind", &self.gossip, "--gossip"),
            ("gossip.advertise", &self.advertise, "--advertise"),
            ("proxy.bind", &self.proxy, "--proxy"),
            ("admin.bind", &self.admin, "--admin"),
            ("data_dir", &self.data_dir, "--data-dir"),
            ("log.filter", &self.log, "--log"),
        ];
        for (key, value, flag) in named {
            if let Some(value) = value {
                add(key, value, flag);
            }
        }
        if !self.seeds.is_empty() {
            add("gossip.seeds", &self.seeds.join(","), "--seed");
        }
        if self.expose_decision {
            add("proxy.expose_decision", "true", "--expose-decision");
        }
        if json {
            add("log.format", "json", "--json");
        }
        overrides
    }
}

/// Runs until the sidecar ends.
pub(super) fn run(args: &Args, json: bool) -> Result<ExitCode, Failure> {
    if args.end_with_parent.is_some_and(|parent| !crate::demo::end_with_parent(parent)) {
        return Err(Failure::new(Exit::Failed, "the process that was to start this one has ended"));
    }
    let config =
        config::load(args.config.as_deref(), &args.overrides(json))?.map_err(|faults| config::refused(&faults))?;
    // Gossip, admin and metrics have this thread; data-path threads are `app`'s own. One is enough, and wakes for less.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Failed, format!("no runtime: {error}")))?;
    let wanted = config.clone();
    runtime.block_on(crate::app::run(config, || reread(args, json))).map_err(|error| {
        let failure = Failure::from(error);
        // What a start needs most often and lacks is a port. Who holds it, the system's error does not say.
        match check::unbindable(&wanted) {
            Some(cure) => failure.cure(cure),
            None => failure,
        }
    })
}

/// File, environment and flags once more; an error names every fault in one line each.
fn reread(args: &Args, json: bool) -> Result<Config, String> {
    match config::load(args.config.as_deref(), &args.overrides(json)) {
        Ok(Ok(config)) => Ok(config),
        Ok(Err(faults)) => Err(config::refused(&faults).to_string()),
        Err(failure) => Err(failure.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_values_that_name_their_flag() {
        let args = Args {
            node: Some("n1".into()),
            seeds: vec!["a:1".into(), "b:2".into()],
            expose_decision: true,
            set: vec![("proxy.timeouts.total".into(), "3s".into())],
            ..Args::default()
        };
        let text: Vec<String> = args
            .overrides(true)
            .into_iter()
            .map(|(key, value, source)| match source {
                Source::Flag(flag) => format!("{flag} {key}={value}"),
                _ => unreachable!(),
            })
            .collect();
        assert_eq!(
            text,
            [
                "--set proxy.timeouts.total=3s",
                "--node node=n1",
                "--seed gossip.seeds=a:1,b:2",
                "--expose-decision proxy.expose_decision=true",
                "--json log.format=json",
            ]
        );
    }
}
