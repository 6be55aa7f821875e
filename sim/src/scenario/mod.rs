//! The scenario format: a mesh, and what happens to it when. A file is checked whole before anything runs; a fault that the
//! simulator can't do, or a field that a step does not use, is an error.
//!
//! README.md shows how to write one. The swarm draws values of the same type, so every drawn run can be printed, replayed and
//! shrunk.

mod mesh;

use std::{collections::BTreeMap, fmt};

use lanemesh::{
    node::MembershipConfig,
    types::{Lane, Trait},
};
use serde::{Deserialize, Serialize};

use self::mesh::MOST_ZONES;
pub use self::mesh::{Mesh, Profile, REGIONS};
use crate::{links::Quality, pick::Pick};

/// A mesh and what happens to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// As it is called on the command line.
    pub name: String,
    /// What it shows, in a sentence or two.
    #[serde(default)]
    pub about: String,
    /// Cases of the case log that it plays.
    #[serde(default)]
    pub cases: Vec<String>,
    /// 1: envelopes go from node to node; 2: real QUIC and TLS carry them. `run --level` plays it at another one.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub level: u8,
    /// Seconds during which faults may happen. Then all faults end.
    pub seconds: f64,
    /// Seconds after that, in which everything must become right again.
    #[serde(default = "settle")]
    pub settle: f64,
    /// The mesh.
    #[serde(default)]
    pub mesh: Mesh,
    /// Invariants that are not held against this scenario: name, and why.
    #[serde(default)]
    pub allow: BTreeMap<String, String>,
    /// What happens when.
    #[serde(default)]
    pub step: Vec<Step>,
}

fn one() -> u8 {
    1
}

fn is_one(level: &u8) -> bool {
    *level == 1
}

fn settle() -> f64 {
    90.0
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Do {
    /// The whole pod (or `what`) ends without a word; after `for` it starts again. `how`: `refused` or `silent`.
    Crash,
    /// What has ended starts again: `disk` kept or not, `address` same or new.
    Start,
    /// New hosts start.
    Join,
    /// Says goodbye and ends; after `for` it starts again.
    Leave,
    /// Drains all instances; after `for` they are put back.
    Drain,
    /// The process (or `what = "pod"`) stands still for `for`.
    Pause,
    /// For `for` the process gets `run` seconds of every `run + stop`.
    Starve,
    /// Nothing goes from `nodes` to `to`; the way back stays.
    OneWay,
    /// Nothing goes between `nodes` and `to` (the rest, when not given).
    Partition,
    /// As `partition`, on and off every `period`.
    FlipFlop,
    /// Links from `nodes` to `to` (all, when not given) get worse by `link`, both ways.
    Worsen,
    /// The wall clock jumps by `value` seconds.
    Clock,
    /// The wall clock goes wrong by `value` ms each second, and is set right after `for`.
    Drift,
    /// All instances are taken out of the mesh while their checks go on; after `for` they are announced again.
    Withdraw,
    /// What is written down is lost (`how = "full"`), damaged (`corrupt`) or as old as now for ever (`stale`).
    Disk,
    /// The application: `how` is `down`, `hang`, `slow` (`value` ms), `fail` (share `value` of 503), `ok`.
    App,
    /// The instances get weight `value`, and 100 again after `for`.
    Weigh,
    /// Restarts the applications of `service` (on `nodes` only, when given) one after another with `version`, `every` seconds.
    Roll,
    /// Sets the canary lane of `service` (or `lane`) to `value` per cent, asked of the first of `nodes`; `reserve`: most that it may ever
    /// have, in per cent; `select`: traits of instances that serve it whatever they announce, none: only those that announce it. `how`: `testers` sends those who ask with
    /// the testers' header there whatever their bucket, `no-testers` takes that rule away.
    Policy,
    /// Rolls `service` back, asked of the first of `nodes`.
    Rollback,
    /// `count` hosts with names of their own come, live `value` seconds, and go (by `how`: crash or leave), one `every` seconds.
    Churn,
    /// The machine gets slower: its work takes `value` times as long as in `cpu`.
    Slow,
    /// A sidecar of another mesh runs at the address of each of `nodes`, which have ended (level 2).
    Squat,
    /// `nodes` tell lies for `for`: `how` is `death`, `record`, `generation`, `replay`, `garbage`, `service`, `signal`, or all of
    /// them but that.
    Lie,
}

impl Do {
    /// Whether it takes ways between hosts away.
    pub fn cuts(self) -> bool {
        matches!(self, Self::OneWay | Self::Partition | Self::FlipFlop)
    }
}

/// Something that happens. Which fields a step uses depends on `do`; others are an error.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Seconds after the start.
    pub t: f64,
    /// What.
    #[serde(rename = "do")]
    pub act: Act,
    /// Which hosts; see [`crate::pick`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
    /// The other side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Seconds until it ends; otherwise it lasts until all faults end.
    #[serde(rename = "for", default, skip_serializing_if = "Option::is_none")]
    pub lasts: Option<f64>,
    /// In which way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
    /// Which part: `pod`, `sidecar` or `app`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// How much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Which service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Which version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// How many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Seconds between one and the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<f64>,
    /// Seconds of one on and one off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<f64>,
    /// Seconds that it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<f64>,
    /// Seconds that it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<f64>,
    /// Whether the disk is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<bool>,
    /// Whether the address is the same or new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Which lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// Traits of instances that serve a lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<Vec<String>>,
    /// Most that a lane may ever have, in per cent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<f64>,
    /// By what a link gets worse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Quality>,
}

/// [`Do`] with a default, so that a step can be written field by field in code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Act(pub Do);

impl Default for Act {
    fn default() -> Self {
        Self(Do::Crash)
    }
}

/// What is wrong with a scenario; every fault of it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults(pub Vec<String>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Faults {}

impl Scenario {
    /// Reads and checks.
    pub fn parse(text: &str) -> Result<Self, Faults> {
        let scenario: Self = toml::from_str(text).map_err(|error| Faults(vec![error.to_string()]))?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Every fault of it.
    pub fn check(&self) -> Result<(), Faults> {
        let mut faults = Vec::new();
        if self.mesh.nodes == 0 || self.mesh.nodes > MOST_NODES {
            faults.push(format!("mesh.nodes is {}: 1 to {MOST_NODES} can be simulated", self.mesh.nodes));
        }
        if self.mesh.seeds == 0 || self.mesh.seeds > self.mesh.nodes {
            faults.push(format!("mesh.seeds is {}: at least 1, at most mesh.nodes", self.mesh.seeds));
        }
        if self.mesh.foreign > 0 && self.level == 2 {
            faults.push(
                "mesh.foreign needs level 1: at level 2 `do = \"squat\"` starts a sidecar of another mesh".into(),
            );
        }
        if self.mesh.warm && self.level == 2 {
            faults.push("mesh.warm needs level 1: real connections have to be opened".into());
        }
        if self.mesh.foreign + self.mesh.seeds > self.mesh.nodes {
            faults.push(format!("mesh.foreign is {}: the seeds are of this mesh", self.mesh.foreign));
        }
        if self.mesh.services == 0 || self.mesh.services > 26 {
            faults.push(format!("mesh.services is {}: 1 to 26", self.mesh.services));
        }
        if ![1, 2].contains(&self.level) {
            faults.push(format!("level is {}: 1 or 2", self.level));
        }
        if self.mesh.connections == 0 || !(self.mesh.idle >= 1.0 && self.cpu() >= 0.0) {
            faults.push("mesh.connections and mesh.idle must be at least 1, mesh.cpu at least 0".into());
        }
        if self.mesh.regions == 0 || self.mesh.regions as usize > REGIONS.len() {
            faults.push(format!("mesh.regions is {}: 1 to {}", self.mesh.regions, REGIONS.len()));
        }
        if self.mesh.zones == 0 || self.mesh.zones > MOST_ZONES {
            faults.push(format!("mesh.zones is {}: 1 to {MOST_ZONES} in each region", self.mesh.zones));
        }
        faults.extend(self.mesh.rules().err().into_iter().flatten());
        for name in self.allow.keys() {
            if !crate::invariants::names().contains(&name.as_str()) {
                faults.push(format!("allow.{name}: there is no such invariant; `list` names them"));
            }
        }
        for (at, step) in self.step.iter().enumerate() {
            step.check(self).into_iter().for_each(|fault| faults.push(format!("step {}: {fault}", at + 1)));
        }
        if faults.is_empty() { Ok(()) } else { Err(Faults(faults)) }
    }

    /// How slow machines are; see [`Mesh::cpu`].
    pub fn cpu(&self) -> f64 {
        self.mesh.cpu.unwrap_or(if self.level == 2 { 1.0 } else { 0.0 })
    }

    /// The constants of its sidecars' membership.
    pub fn membership(&self) -> MembershipConfig {
        let profile = match self.mesh.profile {
            Profile::Lan => MembershipConfig::lan(),
            Profile::Wan => MembershipConfig::wan(),
        };
        MembershipConfig { contacts: self.mesh.contacts.unwrap_or(self.mesh.connections) as usize, ..profile }
    }

    /// About how much work it is to play, to be compared with others: host-seconds, dearer at level 2.
    pub fn work(&self) -> u64 {
        let dear = if self.level == 2 { LEVEL_2 } else { 1.0 };
        (f64::from(self.mesh.nodes) * (self.seconds + self.settle) * dear) as u64
    }

    /// As a file.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("plain data always encodes")
    }
}

impl Step {
    /// A step of the swarm.
    pub fn new(t: f64, act: Do) -> Self {
        Self { t, act: Act(act), ..Self::default() }
    }

    /// Whether it has an end of its own, which is worth showing.
    pub fn lasts_a_while(&self) -> bool {
        !matches!(self.act.0, Do::Start | Do::Join | Do::Roll | Do::Policy | Do::Rollback | Do::Churn)
    }

    /// For people: what it does and how, without where and when.
    pub fn in_words(&self) -> String {
        let mut words = vec![self.name()];
        let texts = [&self.what, &self.how, &self.service, &self.version, &self.lane];
        words.extend(texts.into_iter().flatten().chain(self.select.iter().flatten()).cloned());
        words.extend(self.value.map(|value| value.to_string()));
        words.extend(self.count.map(|count| format!("x {count}")));
        words.join(" ")
    }

    /// As it is called in a file.
    fn name(&self) -> String {
        let text = serde_json::to_string(&self.act).unwrap_or_default();
        text.trim_matches('"').to_owned()
    }

    fn check(&self, of: &Scenario) -> Vec<String> {
        let (mut faults, seconds) = (Vec::new(), of.seconds);
        if self.act.0 == Do::Squat && of.level != 2 {
            faults.push("`do = Squat` needs `level = 2`: certificates decide there who is who".into());
        }
        let (needs, may, hows) = fields(self.act.0);
        let given = self.given();
        for field in needs.iter().filter(|field| !given.contains(*field)) {
            faults.push(format!("`do = {:?}` needs `{field}`", self.act.0));
        }
        for field in given.iter().filter(|field| !needs.contains(*field) && !may.contains(*field)) {
            faults.push(format!("`do = {:?}` does not use `{field}`", self.act.0));
        }
        if let Some(how) = &self.how
            && !hows.contains(&how.as_str())
        {
            faults.push(format!("how = \"{how}\": must be one of {}", hows.join(", ")));
        }
        if let Some(what) = &self.what
            && !["pod", "sidecar", "app"].contains(&what.as_str())
        {
            faults.push(format!("what = \"{what}\": must be pod, sidecar or app"));
        }
        if let Some(address) = &self.address
            && !["same", "new"].contains(&address.as_str())
        {
            faults.push(format!("address = \"{address}\": must be same or new"));
        }
        for nodes in [&self.nodes, &self.to].into_iter().flatten() {
            match nodes.parse::<Pick>() {
                Err(fault) => faults.push(fault),
                Ok(Pick::In(place)) if !of.mesh.places().contains(&place) => {
                    let there: Vec<String> = of.mesh.places().into_iter().collect();
                    faults.push(format!("`{nodes}` names no place of the mesh: it has {}", there.join(", ")));
                }
                Ok(_) => {}
            }
        }
        if let Some(lane) = &self.lane {
            match lane.parse::<Lane>() {
                Err(fault) => faults.push(format!("lane = \"{lane}\": {fault}")),
                Ok(lane) if lane.is_stable() => faults.push("lane = \"stable\": it has what the others leave".into()),
                Ok(_) => {}
            }
        }
        for one in self.select.iter().flatten() {
            faults.extend(one.parse::<Trait>().err().map(|fault| format!("select: {fault}")));
        }
        if let Some(reserve) = self.reserve.filter(|reserve| !(0.0..=100.0).contains(reserve)) {
            faults.push(format!("reserve = {reserve}: 0 to 100 per cent"));
        }
        if !(0.0..=seconds).contains(&self.t) {
            faults.push(format!("t = {} lies outside the {seconds} seconds in which faults may happen", self.t));
        }
        faults
    }

    fn given(&self) -> Vec<&'static str> {
        [
            ("nodes", self.nodes.is_some()),
            ("to", self.to.is_some()),
            ("for", self.lasts.is_some()),
            ("how", self.how.is_some()),
            ("what", self.what.is_some()),
            ("value", self.value.is_some()),
            ("service", self.service.is_some()),
            ("version", self.version.is_some()),
            ("count", self.count.is_some()),
            ("every", self.every.is_some()),
            ("period", self.period.is_some()),
            ("run", self.run.is_some()),
            ("stop", self.stop.is_some()),
            ("disk", self.disk.is_some()),
            ("address", self.address.is_some()),
            ("lane", self.lane.is_some()),
            ("select", self.select.is_some()),
            ("reserve", self.reserve.is_some()),
            ("link", self.link.is_some()),
        ]
        .into_iter()
        .filter_map(|(name, given)| given.then_some(name))
        .collect()
    }
}

type Names = &'static [&'static str];

/// Fields that an action needs, those it may have, and what `how` may be.
fn fields(act: Do) -> (Names, Names, Names) {
    match act {
        Do::Crash => (&["nodes"], &["for", "how", "what", "disk", "address"], &["refused", "silent"]),
        Do::Start => (&["nodes"], &["disk", "address"], &[]),
        Do::Join => (&["count"], &["every"], &[]),
        Do::Leave => (&["nodes"], &["for", "disk", "address"], &[]),
        Do::Drain => (&["nodes"], &["for"], &[]),
        Do::Pause => (&["nodes", "for"], &["what"], &[]),
        Do::Starve => (&["nodes", "for", "run", "stop"], &[], &[]),
        Do::OneWay => (&["nodes", "to"], &["for"], &[]),
        Do::Partition => (&["nodes"], &["to", "for"], &[]),
        Do::FlipFlop => (&["nodes", "period"], &["to", "for"], &[]),
        Do::Worsen => (&["nodes", "link"], &["to", "for"], &[]),
        Do::Clock => (&["nodes", "value"], &["for"], &[]),
        Do::Disk => (&["nodes", "how"], &["for"], &["full", "corrupt", "stale"]),
        Do::App => (&["nodes", "how"], &["for", "value"], &["down", "hang", "slow", "fail", "weak", "ok"]),
        Do::Drift => (&["nodes", "value"], &["for"], &[]),
        Do::Withdraw => (&["nodes"], &["for"], &[]),
        Do::Weigh => (&["nodes", "value"], &["for"], &[]),
        Do::Roll => (&["service", "version", "every"], &["nodes"], &[]),
        Do::Policy => {
            (&["service", "value"], &["nodes", "how", "lane", "select", "reserve"], &["testers", "no-testers"])
        }
        Do::Rollback => (&["service"], &["nodes"], &[]),
        Do::Churn => (&["count", "every", "value"], &["how"], &["crash", "leave"]),
        Do::Slow => (&["nodes", "value"], &["for"], &[]),
        Do::Squat => (&["nodes"], &["for"], &[]),
        Do::Lie => {
            (&["nodes"], &["for", "how"], &["death", "record", "generation", "replay", "garbage", "service", "signal"])
        }
    }
}

/// More would not fit into memory.
const MOST_NODES: u32 = 5000;

/// A host-second at level 2, in such of level 1.
const LEVEL_2: f64 = 20.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_named_with_its_place() {
        let text = r#"
            name = "x"
            seconds = 10
            [allow]
            nothing-such = "why"
            [[step]]
            t = 11
            do = "crash"
            period = 3
            [[step]]
            t = 1
            do = "pause"
            nodes = "most"
        "#;
        let faults = Scenario::parse(text).unwrap_err().to_string();
        for part in [
            "allow.nothing-such",
            "step 1: `do = Crash` needs `nodes`",
            "step 1: `do = Crash` does not use `period`",
            "step 1: t = 11",
            "step 2: `do = Pause` needs `for`",
            "step 2: `most`",
        ] {
            assert!(faults.contains(part), "{part} in:\n{faults}");
        }
        assert!(Scenario::parse("name = \"x\"\nseconds = 1\nsecond = 2").is_err());
    }

    #[test]
    fn what_is_said_of_places_and_routing_is_checked() {
        let text = r#"
            name = "x"
            seconds = 10
            [mesh]
            regions = 2
            zones = 2
            [mesh.routing]
            prefer_zones = true
            pin = ["user-1"]
            [[step]]
            t = 1
            do = "crash"
            nodes = "in us-3"
            [[step]]
            t = 2
            do = "policy"
            service = "orders"
            value = 5
            lane = "stable"
            select = ["v2"]
            reserve = 101
        "#;
        let faults = Scenario::parse(text).unwrap_err().to_string();
        for part in [
            "mesh.routing.prefer_zones",
            "mesh.routing.pin",
            "step 1: `in us-3` names no place of the mesh: it has eu, eu-1, eu-2, us,",
            "step 2: lane = \"stable\"",
            "step 2: select: `v2` is no condition",
            "step 2: reserve = 101",
        ] {
            assert!(faults.contains(part), "{part} in:\n{faults}");
        }
    }

    #[test]
    fn what_is_printed_reads_the_same() {
        let mut scenario = Scenario::parse("name = \"x\"\nseconds = 10").unwrap();
        scenario.mesh.routing.insert("prefer_zone".into(), true.into());
        let select = Some(vec!["version:v2".to_owned()]);
        let policy = Step { service: Some("orders".into()), value: Some(1.0), select, ..Step::new(1.0, Do::Policy) };
        scenario.step.push(policy);
        let step = Step { nodes: Some("random 2".into()), lasts: Some(3.5), ..Step::new(1.25, Do::OneWay) };
        scenario.step.push(Step { to: Some("rest".into()), ..step });
        scenario.step.push(Step {
            link: Some(Quality::default()),
            nodes: Some("all".into()),
            ..Step::new(2.0, Do::Worsen)
        });
        assert_eq!(Scenario::parse(&scenario.to_toml()).unwrap(), scenario);
    }
}
