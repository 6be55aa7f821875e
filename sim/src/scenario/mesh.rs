//! The mesh of a scenario: how many there are, where they stand, what they serve and are told.

use std::collections::{BTreeMap, BTreeSet};

use lanemesh::config::{self, Breaker, Routing};
use serde::{Deserialize, Serialize};

use crate::links::Quality;

/// The mesh at the start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mesh {
    /// Hosts, each a sidecar and an application.
    pub nodes: u32,
    /// The first so many are everybody's seeds.
    pub seeds: u32,
    /// Seconds in which all start, evenly at random.
    pub start: f64,
    /// All have run for long when it begins, and hold the same (level 1).
    pub warm: bool,
    /// Services, shared out among the hosts in turn.
    pub services: u32,
    /// Share of the instances that are of lane `canary`, version `v2`.
    pub canary: f64,
    /// Share of the hosts that are in env `staging`.
    pub staging: f64,
    /// Requests a second from each host's users; 0 for none.
    pub rate: f64,
    /// Distinct users.
    pub users: u32,
    /// Share of the requests that come from one user: a hot key.
    pub hot: f64,
    /// The last so many hosts are of another mesh under the same authority, and were given this one's seeds.
    pub foreign: u32,
    /// Timers: `lan` or `wan`.
    pub profile: Profile,
    /// Bytes of tags on each instance record.
    pub tag_bytes: u32,
    /// Regions, named as in [`REGIONS`], and zones of each (`eu-1`, `eu-2`). Where there are several regions, the instances of a
    /// service are shared out among all zones.
    pub regions: u32,
    /// See `regions`.
    pub zones: u32,
    /// Instances have a tag `rack`, `r0` to one less than this, by turns; 0: none has.
    pub racks: u32,
    /// Instances that host 0 announces beside its own.
    pub extra_instances: u32,
    /// How slow every machine is: 1 as in `cpu`, 10 ten times as slow, 0 for work that takes no time. When not given: 0 at
    /// level 1, 1 at level 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Peer connections that a sidecar keeps open (level 2).
    pub connections: u32,
    /// Others with whom a sidecar keeps in touch; in a larger mesh each has a few watchers. When not given: as many as it keeps
    /// connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contacts: Option<u32>,
    /// Seconds of silence after which a connection is closed (level 2).
    pub idle: f64,
    /// Whether sidecars tell each other what fails.
    pub signals: bool,
    /// `routing.breaker_slow` of every sidecar; 0 is off.
    pub breaker_slow: u32,
    /// Requests a second that an application serves; what is above it gets 503 at once. 0: no limit.
    pub most_rate: u32,
    /// Whether checks see no more of an application than that it listens.
    pub shallow: bool,
    /// Requests a second that an ordinary instance can serve; its weight then follows its load. 0: nobody measures that.
    pub capacity: f64,
    /// Every link.
    pub link: Quality,
    /// Every sidecar's `[routing]`, with the keys of the product's own configuration: `prefer_zone`, `pin`, `spread`, ...
    #[serde(skip_serializing_if = "toml::Table::is_empty")]
    pub routing: toml::Table,
}

impl Default for Mesh {
    fn default() -> Self {
        Self {
            nodes: 12,
            seeds: 3,
            start: 1.0,
            warm: false,
            services: 3,
            canary: 0.25,
            staging: 0.0,
            rate: 2.0,
            users: 200,
            hot: 0.0,
            foreign: 0,
            profile: Profile::Lan,
            tag_bytes: 0,
            regions: 1,
            zones: 3,
            racks: 0,
            extra_instances: 0,
            cpu: None,
            connections: 256,
            contacts: None,
            idle: 180.0,
            signals: true,
            breaker_slow: 0,
            most_rate: 0,
            shallow: false,
            capacity: 0.0,
            link: Quality::default(),
            routing: toml::Table::new(),
        }
    }
}

impl Mesh {
    /// Region and number of the zone (from 1) of a host.
    pub fn place(&self, host: u32) -> (&'static str, u32) {
        let (regions, zones) = (self.regions.clamp(1, REGIONS.len() as u32), self.zones.max(1));
        if regions == 1 {
            return (REGIONS[0], host % zones + 1);
        }
        // Each round begins one place on, or all canaries, which come by turns as well, would stand in the same few places.
        let (turn, places) = (host / self.services.max(1), regions * zones);
        let place = (turn + turn / places) % places;
        (REGIONS[(place % regions) as usize], place / regions + 1)
    }

    /// Names of its regions and zones.
    pub(super) fn places(&self) -> BTreeSet<String> {
        let regions = &REGIONS[..(self.regions as usize).clamp(1, REGIONS.len())];
        let zones = regions.iter().flat_map(|region| (1..=self.zones).map(move |zone| format!("{region}-{zone}")));
        zones.chain(regions.iter().map(|region| (*region).to_owned())).collect()
    }

    /// What every sidecar is told about routing; every fault of it.
    pub fn rules(&self) -> Result<Routing, Vec<String>> {
        let mut rules = Routing::default();
        if !self.routing.is_empty() {
            let file = toml::Table::from_iter([("routing".to_owned(), toml::Value::Table(self.routing.clone()))]);
            let config = config::resolve("mesh", &file.to_string(), &BTreeMap::new(), &Vec::new());
            let config = config.map_err(|faults| {
                faults
                    .iter()
                    .map(|fault| format!("mesh.{}: {}; {}", fault.key, fault.reason, fault.cure))
                    .collect::<Vec<_>>()
            })?;
            rules = Routing { most_in_flight: rules.most_in_flight, ..Routing::clone(&config.routing) };
        }
        rules.signals &= self.signals;
        if self.breaker_slow > 0 {
            rules.breaker = Breaker { slow: Some(self.breaker_slow), ..rules.breaker };
        }
        Ok(rules)
    }
}

/// Names of regions, as far as they are needed.
pub const REGIONS: [&str; 5] = ["eu", "us", "ap", "sa", "af"];
/// More would be more than there are hosts.
pub(super) const MOST_ZONES: u32 = 100;

/// Timers of the membership.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Round trips of milliseconds.
    #[default]
    Lan,
    /// Round trips up to some hundred milliseconds.
    Wan,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_has_instances_in_every_place_and_canaries_in_most() {
        let mesh = Mesh { nodes: 48, services: 2, regions: 2, zones: 2, ..Mesh::default() };
        for service in 0..2 {
            let places = (0..24).map(|turn| mesh.place(turn * 2 + service));
            let canaries = (0..24).filter(|turn| turn % 4 == 3).map(|turn| mesh.place(turn * 2 + service));
            assert_eq!(places.collect::<BTreeSet<_>>().len(), 4);
            assert_eq!(canaries.collect::<BTreeSet<_>>().len(), 4);
        }
    }
}
