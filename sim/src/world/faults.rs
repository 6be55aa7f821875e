//! A scenario's steps, carried out and undone.

use lanemesh::routing::Locality;

use super::{World, boot::new_gate};
use crate::{
    app::Mood,
    host::{Disk, Off, Written},
    pick::Pick,
    queue::{Event, MILLI, Run, SECOND, Time, seconds},
    scenario::{Do, Step},
};

/// A step that was begun.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Its index.
    pub step: u32,
    /// The hosts that it struck.
    pub hosts: Vec<u32>,
    /// The other side.
    pub to: Vec<u32>,
    /// When.
    pub begun: Time,
    /// When it ended.
    pub ended: Option<Time>,
    /// Whether a flip-flop is on.
    pub on: bool,
}

impl Fault {
    /// Whether a host is on one of its sides.
    pub fn touches(&self, host: u32) -> bool {
        self.hosts.contains(&host) || self.to.contains(&host)
    }
}

impl World {
    /// A step begins.
    pub(super) fn begin(&mut self, index: u32) {
        let step = self.scenario.step[index as usize].clone();
        let (hosts, to) = self.sides(index, &step);
        self.log.note(self.now, || format!("begins: {:?} {hosts:?} {to:?}", step.act.0));
        self.stats.marks.push((self.now, letter(step.act.0), hosts.clone()));
        let fault = Fault { step: index, hosts: hosts.clone(), to: to.clone(), begun: self.now, ended: None, on: true };
        self.faults.push(fault);
        for host in &hosts {
            self.strike(index, &step, *host);
        }
        self.strike_all(index, &step, &hosts, &to);
        if let Some(lasts) = step.lasts {
            self.after(seconds(lasts), Event::End(index));
        }
    }

    fn sides(&self, index: u32, step: &Step) -> (Vec<u32>, Vec<u32>) {
        let there: Vec<u32> = match step.act.0 {
            Do::Start | Do::Squat => self.hosts.iter().filter(|host| !host.is_up()).map(|host| host.index).collect(),
            _ => self.hosts.iter().filter(|host| host.is_up()).map(|host| host.index).collect(),
        };
        let mut chance = self.chance(&[STEP, u64::from(index)]);
        let mut pick = |text: &Option<String>, none: Pick, other: &[u32]| {
            let pick = text.as_ref().and_then(|text| text.parse().ok()).unwrap_or(none);
            if let Pick::In(place) = &pick {
                let at = |host: &u32| {
                    let Locality { region, zone, .. } = &self.hosts[*host as usize].locality;
                    region.as_str() == place || zone.as_str() == place
                };
                return there.iter().copied().filter(at).collect();
            }
            pick.resolve(&there, self.scenario.mesh.seeds, other, &mut chance)
        };
        let none = match step.act.0 {
            Do::Policy | Do::Rollback => Pick::Random(1),
            _ => Pick::These(Vec::new()),
        };
        let hosts = pick(&step.nodes, none, &[]);
        let other = match step.act.0 {
            Do::Partition | Do::FlipFlop => Pick::Rest,
            Do::Worsen => Pick::All,
            _ => Pick::These(Vec::new()),
        };
        let to = pick(&step.to, other, &hosts);
        (hosts, to)
    }

    /// What a step does to one host.
    fn strike(&mut self, index: u32, step: &Step, host: u32) {
        let at = host as usize;
        match step.act.0 {
            Do::Crash => self.crash(step, host),
            Do::Start => self.start_again(step, host),
            Do::Leave => self.leave(host),
            Do::Drain => self.drain_apps(host, true),
            Do::Pause => {
                let until = self.now + seconds(step.lasts.unwrap_or(1.0));
                self.trouble(host);
                self.pause(host, until, step.what.as_deref() == Some("pod"));
            }
            Do::Starve => {
                self.trouble(host);
                let at = self.hosts[at].run();
                self.starve(at, index);
            }
            Do::Clock => {
                let by = (step.value.unwrap_or(0.0) * 1000.0) as i64;
                self.hosts[at].clock += by;
            }
            Do::Drift => self.hosts[at].drift = (step.value.unwrap_or(0.0), self.now),
            Do::Withdraw => self.withdraw(host),
            Do::Disk => match step.how.as_deref() {
                Some("full") => self.hosts[at].disk = Disk::Full,
                Some("stale") => self.hosts[at].disk = Disk::Stale,
                _ => self.damage_disk(host),
            },
            Do::App => self.set_mood(step, host),
            Do::Lie => {
                self.hosts[at].lies = true;
                self.liars += 1;
                self.hosts[at].ever_lied = true;
                self.after(MILLI, Event::Part { step: index, part: host });
            }
            Do::Worsen => self.trouble(host),
            Do::Weigh => self.weigh(host, step.value.unwrap_or(100.0) as u16),
            Do::Squat => self.squat(host),
            Do::Slow => {
                self.trouble(host);
                self.hosts[at].cpu.slow_down(step.value.unwrap_or(1.0));
            }
            Do::Join | Do::OneWay | Do::Partition | Do::FlipFlop | Do::Roll | Do::Policy | Do::Rollback | Do::Churn => {
            }
        }
    }

    /// What a step does to the mesh as a whole.
    fn strike_all(&mut self, index: u32, step: &Step, hosts: &[u32], to: &[u32]) {
        match step.act.0 {
            Do::OneWay => self.links.cut(index, hosts, to),
            Do::Partition => self.cut_both(index, hosts, to),
            Do::FlipFlop => {
                self.cut_both(index, hosts, to);
                self.after(seconds(step.period.unwrap_or(1.0)), Event::Part { step: index, part: 1 });
            }
            Do::Worsen => {
                let link = step.link.unwrap_or_default();
                self.links.worsen(index, hosts, to, link);
                // The way back of pairs that were not named in both directions already.
                let only: Vec<u32> = to.iter().copied().filter(|host| !hosts.contains(host)).collect();
                self.links.worsen(index, &only, hosts, link);
                only.iter().for_each(|host| self.trouble(*host));
                self.faults.last_mut().into_iter().for_each(|fault| fault.hosts.extend(&only));
            }
            Do::Join | Do::Churn => {
                for part in 0..step.count.unwrap_or(0) {
                    let at = seconds(step.every.unwrap_or(0.0) * f64::from(part));
                    self.after(at, Event::Part { step: index, part });
                }
            }
            Do::Roll => {
                for part in 0..self.rolled(index, step).len() as u32 {
                    let at = seconds(step.every.unwrap_or(0.0) * f64::from(part));
                    self.after(at, Event::Part { step: index, part });
                }
            }
            Do::Policy => self.set_policy(step, hosts),
            Do::Rollback => self.roll_back(step, hosts),
            _ => return,
        }
        self.islands_changed();
    }

    fn cut_both(&mut self, fault: u32, a: &[u32], b: &[u32]) {
        self.links.cut(fault, a, b);
        self.links.cut(fault, b, a);
    }

    /// A step ends; the one after the last means all of them.
    pub(super) fn finish(&mut self, index: u32) {
        if index as usize == self.scenario.step.len() {
            return self.calm();
        }
        let Some(at) = self.faults.iter().position(|fault| fault.step == index && fault.ended.is_none()) else {
            return;
        };
        self.faults[at].ended = Some(self.now);
        let (hosts, step) = (self.faults[at].hosts.clone(), self.scenario.step[index as usize].clone());
        self.log.note(self.now, || format!("ends: {:?} {hosts:?}", step.act.0));
        self.stats.marks.push((self.now, letter(step.act.0).to_ascii_lowercase(), hosts.clone()));
        self.links.mend(index);
        for host in hosts {
            self.mend(&step, host);
        }
        self.islands_changed();
    }

    fn mend(&mut self, step: &Step, host: u32) {
        let at = host as usize;
        match step.act.0 {
            Do::Crash | Do::Leave if step.lasts.is_some() => self.start_again(step, host),
            Do::Drain => self.drain_apps(host, false),
            Do::Pause | Do::Starve | Do::Worsen => self.relieve(host),
            Do::Clock => self.hosts[at].clock -= (step.value.unwrap_or(0.0) * 1000.0) as i64,
            Do::Drift => self.hosts[at].drift = (0.0, self.now),
            Do::Withdraw => self.announce_again(host),
            Do::Disk => self.hosts[at].disk = Disk::Works,
            Do::App => self.app_well_again(host),
            Do::Lie => {
                self.hosts[at].lies = false;
                self.liars = self.liars.saturating_sub(1);
            }
            Do::Weigh => self.weigh(host, 100),
            Do::Squat => self.end_squat(host),
            Do::Slow => {
                self.hosts[at].cpu.slow_down(self.scenario.cpu());
                self.relieve(host);
            }
            _ => {}
        }
    }

    /// All faults end. Clocks and what was ordered stay as they are.
    fn calm(&mut self) {
        for index in 0..self.scenario.step.len() as u32 {
            let ends =
                !matches!(self.scenario.step[index as usize].act.0, Do::Drain | Do::Clock | Do::Leave | Do::Withdraw);
            if ends {
                self.finish(index);
            }
        }
        self.calm_since = Some(self.now);
        self.log.note(self.now, || "all faults have ended".into());
    }

    /// A planned part of a step.
    pub(super) fn part(&mut self, index: u32, part: u32) {
        let step = self.scenario.step[index as usize].clone();
        match step.act.0 {
            Do::Join => self.come(format!("j{index}-{part}"), None),
            Do::Churn if part >= GOES => self.goes(&step, part - GOES),
            Do::Churn => {
                let host = self.come(format!("c{index}-{part}"), Some(()));
                let lives = seconds(step.value.unwrap_or(1.0));
                self.after(lives, Event::Part { step: index, part: GOES + host });
                host
            }
            Do::Roll => self.roll_one(index, &step, part),
            Do::FlipFlop => self.flip(index, &step),
            Do::Lie => self.tell_lies(index, &step, part),
            _ => 0,
        };
    }

    fn come(&mut self, name: String, _short: Option<()>) -> u32 {
        let host = self.add_host(Some(name));
        self.stats.marks.push((self.now, 'J', vec![host]));
        self.boot(host, true, false);
        host
    }

    fn goes(&mut self, step: &Step, host: u32) -> u32 {
        if step.how.as_deref() == Some("leave") {
            self.leave(host);
        } else {
            self.crash(step, host);
        }
        host
    }

    fn crash(&mut self, step: &Step, host: u32) {
        let what = step.what.as_deref().unwrap_or("pod");
        if what != "sidecar" {
            self.stop_apps(host, true);
        }
        if what != "app" {
            let silent = step.how.as_deref() == Some("silent");
            self.end_run(host, if silent { Off::Silent } else { Off::Refused });
        }
    }

    fn start_again(&mut self, step: &Step, host: u32) {
        self.hosts[host as usize].apps.iter_mut().for_each(|app| app.held_down = false);
        if self.hosts[host as usize].is_up() {
            (0..self.hosts[host as usize].apps.len()).for_each(|app| self.start_app(host, app as u8, SECOND / 4));
        } else {
            self.boot(host, step.disk.unwrap_or(true), step.address.as_deref() == Some("new"));
        }
    }

    /// As `lanemesh leave` and a shutdown do it: drain, say goodbye, wait for answers for up to a second, end.
    fn leave(&mut self, host: u32) {
        let entry = &mut self.hosts[host as usize];
        let now = entry.now(self.now);
        let well = entry.is_clean(self.now, self.bounds.settled) && entry.is_awake(self.now) && entry.island.is_some();
        let settled = entry.island_since + self.bounds.settled <= self.now && entry.ready_since.is_some();
        let Some(node) = &mut entry.node else { return };
        entry.leaving = true;
        entry.said_goodbye = well && settled;
        entry.left_at = self.now;
        // A host without instances has nothing to drain.
        let _ = node.drain(now, &[], lanemesh::node::SHUTDOWN, "", None);
        node.leave(now);
        let at = self.now;
        entry.apps.iter_mut().for_each(|app| app.drained = Some(at));
        let run = entry.run();
        self.drain(host);
        self.after(SECOND, Event::Starve { at: run, fault: GONE });
    }

    fn withdraw(&mut self, host: u32) {
        let at = self.now;
        let entry = &mut self.hosts[host as usize];
        let now = entry.now(at);
        let Some(node) = &mut entry.node else { return };
        for app in &mut entry.apps {
            // Whoever is leaving takes no orders; whoever was withdrawn stays so.
            if node.withdraw(now, &app.id).is_ok() {
                (app.drained, app.withdrawn) = (Some(at), true);
            }
        }
        self.drain(host);
    }

    fn announce_again(&mut self, host: u32) {
        let entry = &mut self.hosts[host as usize];
        if !entry.is_up() || entry.leaving {
            return;
        }
        let at = self.now;
        for app in entry.apps.iter_mut().filter(|app| app.withdrawn) {
            (app.drained, app.withdrawn) = (None, false);
            // Passing only after its checks have said so again.
            app.gate = new_gate();
            app.well_since = app.is_well().then_some(at);
        }
        self.announce_all(host);
        self.drain(host);
    }

    fn weigh(&mut self, host: u32, weight: u16) {
        let at = self.now;
        let entry = &mut self.hosts[host as usize];
        let now = entry.now(at);
        for app in 0..entry.apps.len() {
            let state = &mut entry.apps[app];
            state.weight = weight;
            // Back in rotation only since now.
            state.well_since = state.is_well().then_some(at);
            let change = lanemesh::node::InstanceChange { weight: Some(weight), ..Default::default() };
            if let Some(node) = &mut entry.node {
                // A node that is leaving takes no orders.
                let _ = node.change_instance(now, &state.id, change);
            }
        }
        self.drain(host);
    }

    fn drain_apps(&mut self, host: u32, on: bool) {
        let at = self.now;
        let entry = &mut self.hosts[host as usize];
        let now = entry.now(at);
        let Some(node) = &mut entry.node else { return };
        let done = if on { node.drain(now, &[], "operator", "", None) } else { node.undrain(now, &[]) };
        if done.is_ok() {
            for app in &mut entry.apps {
                app.drained = on.then_some(at);
                // Back in rotation only since now.
                app.well_since = app.is_well().then_some(at);
            }
            self.drain(host);
        }
    }

    /// Takes a starving process's turn away; or ends one that has said goodbye.
    pub(super) fn starve(&mut self, at: Run, fault: u32) {
        let entry = &self.hosts[at.host as usize];
        if entry.epoch != at.epoch || !entry.is_up() {
            return;
        }
        if fault == GONE {
            self.stop_apps(at.host, true);
            return self.end_run(at.host, Off::Left);
        }
        let over = self.faults.iter().any(|begun| begun.step == fault && begun.ended.is_some());
        if over {
            return;
        }
        let step = &self.scenario.step[fault as usize];
        let (run, stop) = (seconds(step.run.unwrap_or(1.0)), seconds(step.stop.unwrap_or(1.0)));
        self.pause(at.host, self.now + stop, false);
        self.after(run + stop, Event::Starve { at, fault });
    }

    fn damage_disk(&mut self, host: u32) {
        let mut chance = self.chance(&[DAMAGE, u64::from(host), self.now]);
        let entry = &mut self.hosts[host as usize];
        if let Some(stored) = &entry.stored {
            let mut bytes = match stored {
                Written::Whole(stored) => stored.encode(),
                Written::Damaged(bytes) => bytes.to_vec(),
            };
            let at = chance.below(bytes.len());
            bytes[at] ^= 1 << chance.below(8);
            entry.stored = Some(Written::Damaged(bytes.into()));
        }
        entry.disk = Disk::Stale;
    }

    fn set_mood(&mut self, step: &Step, host: u32) {
        let value = step.value.unwrap_or(0.0);
        let mood = match step.how.as_deref() {
            Some("hang") => Mood::Hang,
            Some("slow") => Mood::Slow((value * MILLI as f64) as Time),
            Some("fail") => Mood::Fails(value),
            Some("down") => return self.stop_apps(host, true),
            Some("weak") => {
                let apps = &mut self.hosts[host as usize].apps;
                return apps.iter_mut().for_each(|app| app.strength = value.max(0.01));
            }
            _ => return self.app_well_again(host),
        };
        let now = self.now;
        for app in &mut self.hosts[host as usize].apps {
            app.mood = mood;
            app.note(now);
        }
    }

    fn app_well_again(&mut self, host: u32) {
        let now = self.now;
        for app in 0..self.hosts[host as usize].apps.len() {
            let entry = &mut self.hosts[host as usize].apps[app];
            (entry.mood, entry.held_down, entry.strength) = (Mood::Well, false, 1.0);
            entry.note(now);
            if !entry.listening && self.hosts[host as usize].is_up() {
                self.start_app(host, app as u8, SECOND / 4);
            }
        }
    }

    /// Instances that a rolling deploy restarts, one after another.
    fn rolled(&self, index: u32, step: &Step) -> Vec<(u32, u8)> {
        let begun = self.faults.iter().find(|fault| fault.step == index && step.nodes.is_some());
        let service = self.services.iter().position(|name| Some(name.as_str()) == step.service.as_deref());
        let mut rolled = Vec::new();
        let hosts = self.hosts.iter().filter(|host| begun.is_none_or(|fault| fault.hosts.contains(&host.index)));
        for host in hosts {
            for (at, app) in host.apps.iter().enumerate() {
                if Some(app.service) == service {
                    rolled.push((host.index, at as u8));
                }
            }
        }
        rolled
    }

    /// Stops one application, and starts its new version a second later.
    fn roll_one(&mut self, index: u32, step: &Step, part: u32) -> u32 {
        let Some((host, app)) = self.rolled(index, step).get(part as usize).copied() else { return 0 };
        if !self.hosts[host as usize].is_up() {
            return 0;
        }
        self.stats.marks.push((self.now, 'V', vec![host]));
        self.stop_app(host, app, false);
        self.hosts[host as usize].apps[app as usize].version = step.version.clone().unwrap_or_default();
        let entry = &mut self.hosts[host as usize];
        let now = entry.now(self.now);
        let change = lanemesh::node::InstanceChange {
            version: step.version.as_ref().and_then(|version| version.parse().ok()),
            ..Default::default()
        };
        let id = entry.apps[app as usize].id.clone();
        if let Some(node) = &mut entry.node {
            // A node that is leaving takes no orders.
            let _ = node.change_instance(now, &id, change);
        }
        self.drain(host);
        self.start_app(host, app, SECOND);
        host
    }

    fn flip(&mut self, index: u32, step: &Step) -> u32 {
        let Some(at) = self.faults.iter().position(|fault| fault.step == index && fault.ended.is_none()) else {
            return 0;
        };
        self.faults[at].on = !self.faults[at].on;
        if self.faults[at].on {
            let (hosts, to) = (self.faults[at].hosts.clone(), self.faults[at].to.clone());
            self.cut_both(index, &hosts, &to);
        } else {
            self.links.mend(index);
        }
        self.islands_changed();
        self.after(seconds(step.period.unwrap_or(1.0)), Event::Part { step: index, part: 1 });
        0
    }
}

/// One letter per kind of step, for the readout; small where it ends.
pub fn letter(act: Do) -> char {
    match act {
        Do::Crash => 'X',
        Do::Start => 'S',
        Do::Join => 'J',
        Do::Leave => 'L',
        Do::Drain => 'D',
        Do::Pause => 'P',
        Do::Starve => 'H',
        Do::OneWay => 'O',
        Do::Partition => 'C',
        Do::FlipFlop => 'F',
        Do::Worsen => 'W',
        Do::Clock => 'T',
        Do::Disk => 'K',
        Do::App => 'A',
        Do::Roll => 'R',
        Do::Policy => 'G',
        Do::Rollback => 'B',
        Do::Churn => 'N',
        Do::Lie => 'Z',
        Do::Weigh => 'Y',
        Do::Drift => 'U',
        Do::Withdraw => 'E',
        Do::Squat => 'Q',
        Do::Slow => 'M',
    }
}

const STEP: u64 = 30;
const DAMAGE: u64 = 31;
/// Stands for a host that has said goodbye.
const GONE: u32 = u32::MAX;
/// Parts of a churn from here on are hosts that go.
const GOES: u32 = 1 << 24;
