//! Real-process chaos (REQUIREMENTS S5): scenario files of the simulator, played with real sidecars and applications, each
//! pair in a network namespace of its own behind one switch.
//!
//! Ways are cut by `iptables` in the namespace of the side that is not to hear, hosts fall silent by their cable, processes
//! are stopped and killed by signals. What can't be done here (clocks, disks, delays, liars) is refused by name before
//! anything starts; so a scenario never seems to have passed what it was not put to.
//!
//! What must hold: no safe request of a host that no step names fails, and after the last fault everybody sees everybody.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use lanemesh_sim::{
    chance::Chance,
    pick::Pick,
    play::play,
    scenario::{Do, Scenario, Step},
};
use nix::sys::signal::Signal;
use serde_json::json;

use super::networks::{inside, ip};
use crate::{
    skip::{skip, works},
    support::{
        load::{Load, failures},
        process::{App, Mesh, Pod, wait},
    },
};

const FAULTS: &str = include_str!("../../../sim/scenarios/real-faults.toml");
const GOSSIP_PORT: u16 = 7946;

#[test]
fn killed_silent_stopped_deaf_and_gone() {
    real("killed_silent_stopped_deaf_and_gone", FAULTS, 1);
}

#[test]
fn what_can_not_be_done_here_is_refused_by_name() {
    let text = "name = \"x\"\nseconds = 9\n[[step]]\nt = 1\ndo = \"clock\"\nnodes = \"1\"\nvalue = 5\n\
                [[step]]\nt = 2\ndo = \"worsen\"\nnodes = \"1\"\n[step.link]\ndelay_ms = 40\n";
    let refused = unfit(&Scenario::parse(text).unwrap());
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert!(refused[0].starts_with("step 1: Clock") && refused[1].starts_with("step 2: Worsen"), "{refused:?}");
}

/// What of a scenario can't be done with real processes.
fn unfit(scenario: &Scenario) -> Vec<String> {
    let fault = |(at, step): (usize, &Step)| {
        let why = match step.act.0 {
            Do::Crash if step.disk == Some(false) || step.address.as_deref() == Some("new") => {
                "comes back with its disk and at its address only"
            }
            Do::Crash | Do::Pause | Do::Leave | Do::OneWay | Do::Partition | Do::FlipFlop => return None,
            Do::Policy | Do::Rollback => return None,
            Do::Worsen => {
                let link = step.link.unwrap_or_default();
                let only_loss = link.delay_ms + link.jitter_ms + link.duplicate + link.reorder == 0.0;
                if only_loss {
                    return None;
                }
                "the kernel's packet filter loses packets; it does not delay, double or reorder them"
            }
            _ => "there is no such fault for real processes",
        };
        Some(format!("step {}: {:?}: {why}", at + 1, step.act.0))
    };
    scenario.step.iter().enumerate().filter_map(fault).collect()
}

/// Plays a scenario with real processes, and in the simulator.
fn real(test: &str, text: &str, number: u8) {
    let scenario = Scenario::parse(text).unwrap();
    let refused = unfit(&scenario);
    assert!(refused.is_empty(), "{}: not with real processes: {refused:#?}", scenario.name);
    let simulated = play(&scenario, 1, Default::default());
    assert!(simulated.violations.is_empty(), "in the simulator: {:#?}", simulated.violations);
    let probe = format!("lanemesh-probe{number}");
    if !works("ip", &["netns", "add", &probe]) {
        return skip(test, "run as root on Linux with `ip` (iproute2) installed");
    }
    let lossy = "iptables -w -A INPUT -m statistic --mode random --probability 0.1 -j DROP";
    let filters = works("ip", &[&["netns", "exec", &probe][..], &lossy.split(' ').collect::<Vec<_>>()].concat());
    ip(&format!("netns del {probe}"));
    if !filters {
        return skip(test, "install `iptables`, on a kernel that has its `statistic` match");
    }
    let mut stage = Stage::new(&scenario, number);
    stage.play(&scenario);
    stage.settle(&scenario);
}

/// The switch and its hosts; namespaces are removed when dropped.
struct Stage {
    net: Net,
    // Kept for its directory.
    _mesh: Mesh,
    pods: Vec<Pod>,
    /// Hosts of each step, and of its other side.
    sides: Vec<(Vec<usize>, Vec<usize>)>,
    load: Option<(usize, Load)>,
}

/// Namespaces by number, and the addresses in them.
struct Net {
    number: u8,
    hosts: usize,
}

impl Net {
    fn new(number: u8, hosts: usize) -> Self {
        let net = Self { number, hosts };
        let switch = net.switch();
        ip(&format!("netns add {switch}"));
        ip(&format!("-n {switch} link add br0 type bridge"));
        ip(&format!("-n {switch} link set br0 up"));
        for at in 0..hosts {
            let host = net.name(at);
            ip(&format!("netns add {host}"));
            ip(&format!("link add v{at} netns {switch} type veth peer name eth0 netns {host}"));
            ip(&format!("-n {switch} link set v{at} master br0 up"));
            ip(&format!("-n {host} addr add {}/24 dev eth0", net.address(at)));
            ip(&format!("-n {host} link set eth0 up"));
            ip(&format!("-n {host} link set lo up"));
        }
        net
    }

    fn switch(&self) -> String {
        format!("lmc{}-{}s", std::process::id(), self.number)
    }

    fn name(&self, at: usize) -> String {
        format!("lmc{}-{}h{at}", std::process::id(), self.number)
    }

    fn address(&self, at: usize) -> IpAddr {
        format!("10.23{}.78.{}", self.number, at + 1).parse().unwrap()
    }

    fn cable(&self, at: usize, up: bool) {
        ip(&format!("-n {} link set v{at} {}", self.switch(), if up { "up" } else { "down" }));
    }

    /// Adds (`A`) or takes away (`D`) the rule that `to` does not hear `from`, or hears only a part.
    fn deafen(&self, rule: char, from: usize, to: usize, loss: Option<f64>) {
        let (host, source) = (self.name(to), self.address(from));
        let part = loss.map_or(String::new(), |loss| format!(" -m statistic --mode random --probability {loss}"));
        ip(&format!("netns exec {host} iptables -w -{rule} INPUT -s {source}{part} -j DROP"));
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let names = (0..self.hosts).map(|at| self.name(at)).chain([self.switch()]);
        for name in names {
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}

impl Stage {
    /// Everybody runs and sees everybody.
    fn new(scenario: &Scenario, number: u8) -> Self {
        let hosts = scenario.mesh.nodes as usize;
        let net = Net::new(number, hosts);
        let mesh = Mesh::new("prod");
        let seeds: Vec<SocketAddr> =
            (0..scenario.mesh.seeds as usize).map(|at| SocketAddr::new(net.address(at), GOSSIP_PORT)).collect();
        let mut pods = Vec::new();
        for at in 0..hosts {
            let mut pod = mesh.pod(&format!("n{at}"), &["orders"]);
            pod.gossip = SocketAddr::new(net.address(at), GOSSIP_PORT);
            pod.seeds = seeds.clone();
            let set = ["proxy.timeouts.connect=500ms", "proxy.timeouts.per_try=2s", "proxy.timeouts.total=10s"];
            pod.flags = set.iter().flat_map(|value| ["--set".to_owned(), (*value).to_owned()]).collect();
            inside(&net.name(at), || {
                let app = App::on(SocketAddr::new(net.address(at), 0), &pod.name, "v1");
                pod.instance("orders", app.addr, "check = \"http:/\"");
                pod.app = Some(app);
                pod.spawn();
            });
            pods.push(pod);
        }
        for (at, pod) in pods.iter_mut().enumerate() {
            inside(&net.name(at), || pod.await_ready());
        }
        let mut chance = Chance::of(1, &[]);
        let there: Vec<u32> = (0..scenario.mesh.nodes).collect();
        let sides = scenario.step.iter().map(|step| {
            let mut pick = |text: &Option<String>, other: &[u32], none: Pick| {
                let pick = text.as_ref().map_or(none, |text| text.parse().unwrap());
                pick.resolve(&there, scenario.mesh.seeds, other, &mut chance)
            };
            let hosts = pick(&step.nodes, &[], Pick::These(vec![0]));
            let others =
                if step.act.0.cuts() || step.act.0 == Do::Worsen { Pick::Rest } else { Pick::These(Vec::new()) };
            let to = pick(&step.to, &hosts, others);
            let place = |hosts: Vec<u32>| hosts.into_iter().map(|host| host as usize).collect::<Vec<_>>();
            (place(hosts), place(to))
        });
        let sides = sides.collect();
        let mut stage = Self { net, _mesh: mesh, pods, sides, load: None };
        stage.await_all_see((0..hosts).collect());
        stage.load = stage.start_load(scenario);
        stage
    }

    /// Users of a host that no step strikes; the other side of a cut is not struck, it loses somebody.
    fn start_load(&self, scenario: &Scenario) -> Option<(usize, Load)> {
        let ordered = |step: &Step| matches!(step.act.0, Do::Policy | Do::Rollback);
        let struck: BTreeSet<usize> = scenario
            .step
            .iter()
            .zip(&self.sides)
            .filter(|(step, _)| !ordered(step))
            .flat_map(|(_, (hosts, _))| hosts.iter().copied())
            .collect();
        let at = (0..self.pods.len()).find(|at| !struck.contains(at))?;
        let rate = scenario.mesh.rate as u32 * self.pods.len() as u32;
        let load = inside(&self.net.name(at), || Load::start(self.pods[at].run().proxy, "orders", rate));
        Some((at, load))
    }

    fn play(&mut self, scenario: &Scenario) {
        let began = Instant::now();
        let mut plan: Vec<(f64, usize, bool)> = Vec::new();
        for (at, step) in scenario.step.iter().enumerate() {
            let end = step.lasts.map_or(scenario.seconds, |lasts| (step.t + lasts).min(scenario.seconds));
            let period = step.period.filter(|_| step.act.0 == Do::FlipFlop).unwrap_or(f64::INFINITY);
            let turns = (0..).map(|turn| step.t + period * f64::from(turn)).take_while(|t| *t < end);
            let turns: Vec<f64> = if period.is_finite() { turns.collect() } else { vec![step.t] };
            plan.extend(turns.iter().zip([true, false].iter().cycle()).map(|(t, on)| (*t, at, *on)));
            if turns.len() % 2 == 1 {
                plan.push((end, at, false));
            }
        }
        plan.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (t, at, on) in plan {
            sleep((began + Duration::from_secs_f64(t)).saturating_duration_since(Instant::now()));
            let step = &scenario.step[at];
            println!(
                "{:>6.2} s {} {:?} {:?}",
                began.elapsed().as_secs_f64(),
                if on { "begins" } else { "ends" },
                step.act.0,
                self.sides[at]
            );
            self.turn(at, step, on);
        }
    }

    /// A step begins, or ends.
    fn turn(&mut self, at: usize, step: &Step, on: bool) {
        let (hosts, to) = self.sides[at].clone();
        match step.act.0 {
            Do::Crash => hosts.iter().for_each(|host| self.crash(*host, step, on)),
            Do::Leave => hosts.iter().for_each(|host| self.leave(*host, on || step.lasts.is_none())),
            Do::Pause => hosts.iter().for_each(|host| {
                let signal = if on { Signal::SIGSTOP } else { Signal::SIGCONT };
                self.pods[*host].signal(signal);
            }),
            Do::OneWay | Do::Partition | Do::FlipFlop | Do::Worsen => {
                let loss = step.link.map(|link| link.loss).filter(|_| step.act.0 == Do::Worsen);
                for (from, to) in hosts.iter().flat_map(|host| to.iter().map(move |to| (*host, *to))) {
                    let rule = if on { 'A' } else { 'D' };
                    self.net.deafen(rule, from, to, loss);
                    if step.act.0 != Do::OneWay {
                        self.net.deafen(rule, to, from, loss);
                    }
                }
            }
            Do::Policy if on => {
                let size = (step.value.unwrap_or(0.0) * 100.0) as u64;
                let body = json!({ "sizes": { "canary": size }, "force": true, "reason": "the scenario" });
                let pod = &self.pods[hosts[0]];
                inside(&self.net.name(hosts[0]), || pod.must("PATCH", "/v1/policies/orders", &body));
            }
            Do::Rollback if on => {
                let pod = &self.pods[hosts[0]];
                inside(&self.net.name(hosts[0]), || pod.must_cli(&["rollback", "orders", "--reason", "the scenario"]));
            }
            Do::Policy | Do::Rollback => {}
            other => unreachable!("{other:?} was refused before"),
        }
    }

    /// The host's processes are killed; its cable is pulled as well, if it is to be silent. What ends is started again.
    fn crash(&mut self, at: usize, step: &Step, on: bool) {
        let what = step.what.as_deref().unwrap_or("pod");
        let silent = step.how.as_deref() == Some("silent");
        let pod = &mut self.pods[at];
        if on {
            if silent {
                self.net.cable(at, false);
            }
            if what != "sidecar" {
                pod.app.as_mut().unwrap().kill9();
            }
            if what != "app" {
                pod.kill9();
            }
        } else if step.lasts.is_some() {
            if silent {
                self.net.cable(at, true);
            }
            inside(&self.net.name(at), || {
                if what != "sidecar" {
                    pod.app.as_mut().unwrap().restart("v1");
                }
                if what != "app" {
                    pod.spawn();
                    pod.await_bound();
                }
            });
        }
    }

    /// SIGTERM, and a new start.
    fn leave(&mut self, at: usize, on: bool) {
        let pod = &mut self.pods[at];
        if on {
            assert_eq!(pod.stop(), Some(0), "{} leaves", pod.name);
        } else {
            inside(&self.net.name(at), || pod.start());
        }
    }

    /// All faults have ended: within a while everybody that runs sees everybody that runs; and nobody's request failed.
    fn settle(&mut self, scenario: &Scenario) {
        let for_good = |step: &Step| step.lasts.is_none() && matches!(step.act.0, Do::Crash | Do::Leave);
        let gone: BTreeSet<usize> = scenario
            .step
            .iter()
            .zip(&self.sides)
            .filter(|(step, _)| for_good(step))
            .flat_map(|(_, (hosts, _))| hosts.iter().copied())
            .collect();
        self.await_all_see((0..self.pods.len()).filter(|at| !gone.contains(at)).collect());
        let Some((at, load)) = self.load.take() else { return };
        let outcomes = load.finish();
        let failed = failures(&outcomes);
        println!("{} requests through n{at}, {} failed", outcomes.len(), failed.len());
        assert!(failed.is_empty(), "{} of {}: {:#?}", failed.len(), outcomes.len(), &failed[..failed.len().min(5)]);
        assert!(outcomes.len() > 100, "only {} requests ended", outcomes.len());
    }

    fn await_all_see(&self, running: Vec<usize>) {
        let names: BTreeSet<String> = running.iter().map(|at| self.pods[*at].name.clone()).collect();
        let began = Instant::now();
        for at in &running {
            let pod = &self.pods[*at];
            inside(&self.net.name(*at), || {
                wait(&format!("{} sees and routes to {names:?}", pod.name), || {
                    let members = pod.members();
                    let alive: BTreeSet<String> =
                        members.into_iter().filter(|(_, state)| state == "alive").map(|(name, _)| name).collect();
                    alive == names && pod.candidates("orders") == names
                });
            });
        }
        println!("everybody sees everybody after {:.1} s", began.elapsed().as_secs_f64());
    }
}
