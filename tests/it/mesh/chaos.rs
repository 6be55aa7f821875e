//! Real-process chaos (REQUIREMENTS S5): scenario files of the simulator, played with real sidecars and applications, each
//! pair in a network namespace of its own behind one switch.
//!
//! The switch has the simulator's own links between its ports, so that ways are cut, lose, delay, double and reorder as they do
//! there; processes are stopped and killed by signals. What can't be done here (clocks, disks, starvation, liars) is refused by
//! name before anything starts; so a scenario never seems to have passed what it was not put to.
//!
//! What must hold: no safe request of a host that no step names fails, and after the last fault everybody sees everybody.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr, UdpSocket},
    process::Command,
    sync::MutexGuard,
    thread::sleep,
    time::{Duration, Instant},
};

use lanemesh_sim::{
    chance::Chance,
    links::{Links, Quality},
    pick::Pick,
    play::play,
    scenario::{Do, Scenario, Step},
};
use nix::sys::signal::Signal;
use serde_json::json;

use super::{
    networks::{inside, ip},
    switch::Switch,
};
use crate::{
    skip::{skip, works},
    support::{
        load::{Load, failures},
        process::{App, Mesh, Pod, wait},
    },
};

const FAULTS: &str = include_str!("../../../sim/scenarios/real-faults.toml");
const SPLIT: &str = include_str!("../../../sim/scenarios/real-split.toml");
const SLOW_LINKS: &str = include_str!("../../../sim/scenarios/real-links.toml");
const GOSSIP_PORT: u16 = 7946;
/// Faults from here on are pulled cables; those before are steps.
const CABLES: u32 = 1_000;

#[test]
fn killed_silent_stopped_deaf_and_gone() {
    real("killed_silent_stopped_deaf_and_gone", FAULTS, 1);
}

#[test]
fn lossy_cut_off_and_cut_off_by_turns() {
    real("lossy_cut_off_and_cut_off_by_turns", SPLIT, 2);
}

#[test]
fn far_away_out_of_order_and_twice() {
    real("far_away_out_of_order_and_twice", SLOW_LINKS, 3);
}

/// What a link of the switch is told happens to packets on it, and on no other.
#[test]
fn the_switch_does_what_its_links_say() {
    if !may("the_switch_does_what_its_links_say", 4) {
        return;
    }
    let net = Net::new(4, 3);
    let socket = |at: usize| {
        let socket = inside(&net.name(at), || UdpSocket::bind((net.address(at), 0)).unwrap());
        socket.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
        socket
    };
    let [a, b, c] = [0, 1, 2].map(socket);
    let heard = |from: &UdpSocket, to: &UdpSocket| {
        let began = Instant::now();
        from.send_to(b"x", to.local_addr().unwrap()).unwrap();
        let mut times = Vec::new();
        while to.recv(&mut [0; 8]).is_ok() {
            times.push(began.elapsed());
        }
        times
    };
    for pair in [(&a, &b), (&b, &a), (&a, &c)] {
        assert_eq!(heard(pair.0, pair.1).len(), 1, "a link without faults");
    }
    let late = Quality { delay_ms: 150.0, jitter_ms: 0.0, duplicate: 1.0, ..Quality::default() };
    net.links().worsen(1, &[0], &[1], late);
    let times = heard(&a, &b);
    assert!(times.len() == 2 && times[0] >= Duration::from_millis(150), "{times:?}");
    assert_eq!(heard(&b, &a).len(), 1, "the way back is another link");
    net.links().mend(1);
    net.links().cut(2, &[0], &[1]);
    assert_eq!((heard(&a, &b).len(), heard(&b, &a).len(), heard(&a, &c).len()), (0, 1, 1));
    net.links().mend(2);
    assert_eq!(heard(&a, &b).len(), 1);
}

#[test]
fn what_can_not_be_done_here_is_refused_by_name() {
    let text = "name = \"x\"\nseconds = 9\n[[step]]\nt = 1\ndo = \"clock\"\nnodes = \"1\"\nvalue = 5\n\
                [[step]]\nt = 2\ndo = \"starve\"\nnodes = \"1\"\nfor = 1\nrun = 0.1\nstop = 0.5\n";
    let refused = unfit(&Scenario::parse(text).unwrap());
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert!(refused[0].starts_with("step 1: Clock") && refused[1].starts_with("step 2: Starve"), "{refused:?}");
}

/// What of a scenario can't be done with real processes.
fn unfit(scenario: &Scenario) -> Vec<String> {
    let fault = |(at, step): (usize, &Step)| {
        let why = match step.act.0 {
            Do::Crash if step.disk == Some(false) || step.address.as_deref() == Some("new") => {
                "comes back with its disk and at its address only"
            }
            _ if [&step.nodes, &step.to].into_iter().flatten().any(|nodes| nodes.starts_with("in ")) => {
                "all stand in one place"
            }
            Do::Policy if step.lane.is_some() || step.select.is_some() || step.reserve.is_some() => {
                "sets the canary's share and the testers' rule only"
            }
            Do::Crash | Do::Pause | Do::Leave | Do::OneWay | Do::Partition | Do::FlipFlop | Do::Worsen => return None,
            Do::Policy | Do::Rollback => return None,
            _ => "there is no such fault for real processes",
        };
        Some(format!("step {}: {:?}: {why}", at + 1, step.act.0))
    };
    let mesh = &scenario.mesh;
    let told = mesh.regions > 1 || mesh.racks > 0 || !mesh.routing.is_empty();
    let told = told.then(|| "mesh: regions, racks and routing are the simulator's alone".to_owned());
    told.into_iter().chain(scenario.step.iter().enumerate().filter_map(fault)).collect()
}

/// Plays a scenario with real processes, and in the simulator.
fn real(test: &str, text: &str, number: u8) {
    let scenario = Scenario::parse(text).unwrap();
    let refused = unfit(&scenario);
    assert!(refused.is_empty(), "{}: not with real processes: {refused:#?}", scenario.name);
    let simulated = play(&scenario, 1, Default::default());
    assert!(simulated.violations.is_empty(), "in the simulator: {:#?}", simulated.violations);
    if !may(test, number) {
        return;
    }
    let mut stage = Stage::new(&scenario, number);
    stage.play(&scenario);
    stage.settle(&scenario);
}

/// Whether namespaces can be made here; if not, the test is skipped.
fn may(test: &str, number: u8) -> bool {
    let probe = format!("lanemesh-probe{number}");
    if !works("ip", &["netns", "add", &probe]) {
        skip(test, "run as root on Linux with `ip` (iproute2) installed");
        return false;
    }
    ip(&format!("netns del {probe}"));
    true
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
    switch: Option<Switch>,
}

impl Net {
    fn new(number: u8, hosts: usize) -> Self {
        let mut net = Self { number, hosts, switch: None };
        let switch = net.switch_name();
        ip(&format!("netns add {switch}"));
        for at in 0..hosts {
            let host = net.name(at);
            ip(&format!("netns add {host}"));
            ip(&format!("link add v{at} netns {switch} type veth peer name eth0 netns {host}"));
            ip(&format!("-n {switch} link set v{at} up"));
            ip(&format!("-n {host} addr add {}/24 dev eth0", net.address(at)));
            // One frame is one packet: the switch could not cut what the kernel left in one piece.
            ip(&format!("-n {host} link set eth0 gso_max_segs 1"));
            ip(&format!("-n {host} link set eth0 up"));
            ip(&format!("-n {host} link set lo up"));
        }
        let started = inside(&switch, || {
            let index = |at: usize| nix::net::if_::if_nametoindex(format!("v{at}").as_str()).unwrap();
            Switch::new(&(0..hosts).map(index).collect::<Vec<_>>(), 1)
        });
        net.switch = Some(started.unwrap());
        net
    }

    fn switch_name(&self) -> String {
        format!("lmc{}-{}s", std::process::id(), self.number)
    }

    fn name(&self, at: usize) -> String {
        format!("lmc{}-{}h{at}", std::process::id(), self.number)
    }

    fn address(&self, at: usize) -> IpAddr {
        format!("10.23{}.78.{}", self.number, at + 1).parse().unwrap()
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.switch.as_ref().unwrap().links()
    }

    /// A step about links begins, or ends.
    fn strike(&self, fault: u32, step: &Step, hosts: &[usize], to: &[usize], on: bool) {
        let [hosts, to] = [hosts, to].map(|hosts| hosts.iter().map(|host| *host as u32).collect::<Vec<_>>());
        let mut links = self.links();
        if !on {
            return links.mend(fault);
        }
        if step.act.0 == Do::Worsen {
            let by = step.link.unwrap_or_default();
            links.worsen(fault, &hosts, &to, by);
            let back: Vec<u32> = to.iter().copied().filter(|host| !hosts.contains(host)).collect();
            return links.worsen(fault, &back, &hosts, by);
        }
        links.cut(fault, &hosts, &to);
        if step.act.0 != Do::OneWay {
            links.cut(fault, &to, &hosts);
        }
    }

    /// Pulls a host's cable, or puts it back.
    fn cable(&self, at: usize, up: bool) {
        let (host, fault) = (at as u32, CABLES + at as u32);
        let others: Vec<u32> = (0..self.hosts as u32).filter(|other| *other != host).collect();
        let mut links = self.links();
        if up {
            links.mend(fault);
        } else {
            links.cut(fault, &[host], &others);
            links.cut(fault, &others, &[host]);
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.switch = None;
        let names = (0..self.hosts).map(|at| self.name(at)).chain([self.switch_name()]);
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
        net.links().base = scenario.mesh.link;
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
            let others = match step.act.0 {
                Do::Worsen => Pick::All,
                act if act.cuts() => Pick::Rest,
                _ => Pick::These(Vec::new()),
            };
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
            Do::OneWay | Do::Partition | Do::FlipFlop | Do::Worsen => self.net.strike(at as u32, step, &hosts, &to, on),
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
