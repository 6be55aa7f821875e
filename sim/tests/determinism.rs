//! Case C105: the same seed gives the same history, in another process, with another environment, at any log level; another
//! seed gives another one.

use std::{collections::BTreeSet, process::Command};

const SIM: &str = env!("CARGO_BIN_EXE_lanemesh-sim");

fn hash(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(SIM);
    command.args(arguments).arg("--json").env_clear().envs(environment.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, rest) = text.split_once("\"hash\":\"").unwrap_or_else(|| panic!("no hash in {text:?}"));
    rest.split('"').next().unwrap().to_owned()
}

#[test]
fn one_seed_is_one_history_in_every_process() {
    let keep = std::env::temp_dir();
    let keep = keep.to_str().unwrap();
    for seed in ["3", "8"] {
        let swarm = ["swarm", "--seeds", seed, "--nodes", "14", "--minutes", "2", "--keep", keep];
        let plain = hash(&swarm, &[]);
        let other = [("RUST_LOG", "trace"), ("TZ", "Asia/Tokyo"), ("LANG", "tr_TR.UTF-8"), ("HOSTNAME", "elsewhere")];
        assert_eq!(plain, hash(&swarm, &other), "seed {seed}");
    }
    let canary = |log: &[&str]| hash(&[&["run", "canary", "--seed", "5"], log].concat(), &[]);
    let log = format!("{keep}/lanemesh-sim-{}.log", std::process::id());
    assert_eq!(canary(&[]), canary(&["--log", &log, "--log-all"]));
    assert!(std::fs::metadata(&log).unwrap().len() > 100_000, "everything was logged");
    std::fs::remove_file(&log).unwrap();
}

#[test]
fn seeds_differ_and_a_second_run_in_one_process_is_the_same() {
    let play = |seed| {
        let size = lanemesh_sim::swarm::Size { nodes: 6, minutes: 0.7 };
        let scenario = lanemesh_sim::swarm::draw(seed, size);
        lanemesh_sim::play::play(&scenario, seed, Default::default()).hash
    };
    let hashes: Vec<String> = (1..=40).map(play).collect();
    assert_eq!(hashes.iter().collect::<BTreeSet<_>>().len(), 40);
    assert_eq!(play(17), hashes[16]);
}

#[test]
fn every_scenario_of_the_library_is_in_order_and_every_case_is_named() {
    let output = Command::new(SIM).arg("list").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios")).unwrap();
    for file in files {
        let name = file.unwrap().file_name().into_string().unwrap().replace(".toml", "");
        assert!(text.contains(&name), "{name} is in the directory and not in the library");
    }
}

#[test]
fn a_mistake_is_exit_code_2_and_says_what_there_is() {
    let output = Command::new(SIM).args(["explain", "nothing"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-false-death"));
}

#[test]
fn a_reader_that_goes_away_ends_a_run_quietly() {
    use std::{io::Read, process::Stdio};
    for arguments in [&["run", "crash"][..], &["swarm", "--seeds", "1..30", "--nodes", "4", "--minutes", "1", "--json"]]
    {
        let mut command = Command::new(SIM);
        let mut child = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0; 10]).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
        assert_eq!(output.status.code(), Some(lanemesh_sim::terminal::READER_GONE), "{arguments:?}");
    }
}
