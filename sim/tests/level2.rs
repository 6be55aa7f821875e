//! Level 2: the same seed gives the same packets, to the byte, in every process; and what only real QUIC and TLS can show.

use std::process::Command;

use lanemesh_sim::{
    level2::Totals,
    library::LIBRARY,
    play::{Options, play},
    scenario::Scenario,
    stats::Summary,
};

const SIM: &str = env!("CARGO_BIN_EXE_lanemesh-sim");

fn hash(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(SIM);
    command.args(arguments).args(["--level", "2", "--json"]).env_clear().envs(environment.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, rest) = text.split_once("\"hash\":\"").unwrap_or_else(|| panic!("no hash in {text:?}"));
    rest.split('"').next().unwrap().to_owned()
}

/// Plays a scenario of the library at level 2 as `change` has it; nothing may be wrong.
fn played(name: &str, seed: u64, change: impl FnOnce(&mut Scenario)) -> (Summary, Totals) {
    let (_, text) = LIBRARY.iter().find(|(known, _)| *known == name).unwrap();
    let mut scenario = Scenario::parse(text).unwrap();
    scenario.level = 2;
    change(&mut scenario);
    let summary = play(&scenario, seed, Options::default());
    assert_eq!(summary.violations, [], "{name} seed {seed}");
    let network = summary.network.clone().unwrap();
    (summary, network)
}

/// Case C105. The hash covers every packet with its content: time, random numbers and order of tasks are all from the seed.
#[test]
fn one_seed_is_one_history_in_every_process() {
    let keep = std::env::temp_dir();
    let keep = keep.to_str().unwrap();
    for seed in ["4", "9"] {
        let swarm = ["swarm", "--seeds", seed, "--nodes", "6", "--minutes", "0.8", "--keep", keep];
        let plain = hash(&swarm, &[]);
        let other = [("RUST_LOG", "trace"), ("TZ", "Asia/Tokyo"), ("LANG", "tr_TR.UTF-8"), ("HOSTNAME", "elsewhere")];
        assert_eq!(plain, hash(&swarm, &other), "seed {seed}");
    }
    let log = format!("{keep}/lanemesh-sim-2-{}.log", std::process::id());
    let loss =
        |log: &[&str]| hash(&[&["run", "q04-handshakes-under-loss", "--nodes", "4", "--seed", "5"], log].concat(), &[]);
    assert_eq!(loss(&[]), loss(&["--log", &log, "--log-all"]));
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains(" packet 10.0.0."), "packets are logged");
    std::fs::remove_file(&log).unwrap();
}

#[test]
fn seeds_differ_and_a_second_run_in_one_process_is_the_same() {
    let small = |seed| played("calm", seed, |s| (s.mesh.nodes, s.seconds, s.settle) = (5, 8.0, 5.0)).0.hash;
    let first = small(1);
    assert_ne!(first, small(2));
    assert_eq!(first, small(1));
}

#[test]
fn in_peace_every_pair_ends_with_one_connection_and_nothing_is_lost() {
    let (summary, network) = played("calm", 3, |s| (s.mesh.nodes, s.seconds, s.settle) = (8, 20.0, 10.0));
    assert_eq!(network.connections, 8 * 7, "{network:?}");
    assert!(network.superseded > 0, "some pairs dialled each other at once: {network:?}");
    assert_eq!((network.dials_of_silent, network.overflown, network.dropped), (0, 0, 0), "{network:?}");
    assert_eq!((summary.members, summary.right), (8, 8));
}

#[test]
fn a_restart_at_the_same_address_leaves_no_stale_connection_behind_whether_the_reset_key_is_kept_or_lost() {
    for disk in [true, false] {
        let (_, network) = played("q03-restarts", 2, |s| {
            s.step.truncate(1);
            (s.step[0].disk, s.step[0].t) = (Some(disk), 10.0);
            (s.mesh.nodes, s.seconds, s.settle) = (6, 12.0, 16.0);
        });
        assert_eq!(network.connections, 6 * 5, "disk kept: {disk}, {network:?}");
        assert!(network.superseded > 0, "{network:?}");
    }
}

#[test]
fn a_small_pool_evicts_and_keeps_its_bound_and_nobody_is_declared_dead() {
    let (summary, network) = played("q02-small-pool", 1, |s| {
        (s.mesh.nodes, s.mesh.connections, s.seconds, s.settle) = (8, 4, 10.0, 14.0);
        s.step.clear();
    });
    assert!(network.evicted > 20, "{network:?}");
    assert!(network.connections <= 8 * 4, "{network:?}");
    assert_eq!(summary.down_in_contact, 0);
}

/// A mesh with more members than connections: each is watched by a few fixed others, and the pool is at rest. (Probing all in
/// turn, these 32 dialled ten times a second.)
#[test]
fn a_mesh_larger_than_the_pool_does_not_dial_for_ever() {
    let (summary, network) = played("calm", 5, |s| {
        (s.mesh.nodes, s.mesh.connections, s.seconds, s.settle) = (32, 12, 60.0, 20.0);
        (s.mesh.rate, s.step) = (0.0, Vec::new());
    });
    assert_eq!((summary.members, summary.right), (32, 32));
    assert!(network.dials < 32 * 30, "{network:?}");
    assert!(network.connections <= 32 * 12, "{network:?}");
}

#[test]
fn another_mesh_at_a_known_address_is_refused_and_never_a_member() {
    let (summary, network) = played("q01-address-of-another-mesh", 1, |s| {
        (s.mesh.nodes, s.seconds, s.settle) = (7, 105.0, 25.0);
    });
    assert!(network.handshakes_failed > 10, "{network:?}");
    assert_eq!((summary.members, summary.right), (7, 7));
}

#[test]
fn handshakes_come_through_loss_duplication_and_reordering() {
    let (summary, network) = played("q04-handshakes-under-loss", 2, |s| {
        (s.mesh.nodes, s.seconds, s.settle) = (8, 33.0, 20.0);
    });
    assert_eq!((summary.members, summary.right), (8, 8));
    assert_eq!(network.connections, 8 * 7, "{network:?}");
}

#[test]
fn a_port_that_refuses_is_heard_of_through_icmp_and_a_silent_one_is_not() {
    let crash = |how: &str| {
        played("crash", 1, |s| {
            s.step.truncate(1);
            s.step[0].how = Some(how.to_owned());
            (s.mesh.nodes, s.seconds, s.settle) = (5, 32.0, 10.0);
        })
    };
    assert!(crash("refused").1.refused > 0);
    assert_eq!(crash("silent").1.refused, 0);
}

#[test]
fn a_step_that_needs_level_2_says_so_at_level_1() {
    let output = Command::new(SIM).args(["run", "q01-address-of-another-mesh", "--level", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("needs `level = 2`"));
}

/// A log that can be read afterwards.
#[derive(Clone, Default)]
struct Paper(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Work takes virtual time: an overloaded machine is late, at both levels, and takes nobody else for dead.
#[test]
fn an_overloaded_machine_is_missed_and_misses_nobody() {
    let (_, text) = LIBRARY.iter().find(|(name, _)| *name == "slow-machines").unwrap();
    for level in [1, 2] {
        let mut scenario = Scenario::parse(text).unwrap();
        scenario.level = level;
        scenario.step.truncate(1);
        (scenario.step[0].t, scenario.step[0].value) = (5.0, Some(40_000.0));
        (scenario.mesh.nodes, scenario.seconds, scenario.settle) = (6, 25.0, 30.0);
        let paper = Paper::default();
        let log = lanemesh_sim::log::Log::to(Box::new(paper.clone()), false);
        let summary = play(&scenario, 1, Options { log, ..Options::default() });
        assert_eq!(summary.violations, [], "level {level}");
        let text = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
        let verdicts: Vec<&str> = text.lines().filter(|line| line.contains("state: Down")).collect();
        assert!(!verdicts.is_empty(), "level {level}: it answers in time");
        let of_others: Vec<&&str> = verdicts.iter().filter(|line| !line.contains("node: n3,")).collect();
        assert!(of_others.is_empty(), "level {level}: {of_others:?}");
    }
}
