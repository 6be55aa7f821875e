//! No safe request fails while a healthy candidate is reachable.

use lanemesh::{
    routing::{GiveUp, MethodClass},
    types::LanePolicy,
};

use super::{Findings, Invariant, serves};
use crate::{
    app::App,
    host::Host,
    queue::{SECOND, Time},
    world::{End, Flight, World},
};

pub const NAME: &str = "safe-requests-succeed";
pub const DOC: &str = "A GET (its body can be sent again) fails only if no instance that its lane rules allow was well and in reach \
for the whole of it and 10 s before (45 s after a fault with the LAN's constants, since a flapping member is held down for 30 s); or after two retries of tries that had been sent, within the 15 s that it has \
(REQUIREMENTS R6, P4, S3); or where the lane in place of a lost one has no room for it (L7). A sidecar that runs for less than 10 s, or that something was wrong with in that time, is not held \
to it.";

pub struct Check;

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn unknown_service(&mut self, world: &World, host: u32, service: usize, found: &mut Findings) {
        if steady(world, host, world.now) && candidate(world, host, service, None, world.now).is_some() {
            let name = &world.services[service];
            found.add(
                NAME,
                format!("{} does not know {name}, which has instances in reach", world.hosts[host as usize].id),
            );
        }
    }

    fn landed(&mut self, world: &World, flight: &Flight, end: End, found: &mut Findings) {
        let failed = match end {
            End::Answered(status, _) => status >= 500,
            End::GaveUp(_) => true,
        };
        if !failed || flight.class != MethodClass::Safe || !steady(world, flight.at.host, flight.begun) {
            return;
        }
        if flight.decision.capped {
            // `takeover-keeps-room` looks whether there was none.
            return;
        }
        let used_up = flight.tries.len() > 2;
        let spent = matches!(
            end,
            End::Answered(..)
                | End::GaveUp(
                    GiveUp::UpstreamReset | GiveUp::UpstreamTimeout | GiveUp::RetriesUsedUp | GiveUp::Deadline
                )
        );
        if spent && used_up {
            return;
        }
        let Some(view) = flight.snapshot.service(world.services[flight.service].as_str()) else { return };
        let decided = &view.decided(&flight.decision.lane).name;
        // An empty canary falls back to stable for safe methods; one that is not empty is never left, and stable does not
        // fall into canary.
        let policy = view.policy.as_ref().map(|compiled| &*compiled.policy);
        let wanted = (decided.is_stable() || flight.decision.fallback.is_none()).then_some((decided.as_str(), policy));
        if let Some(who) = candidate(world, flight.at.host, flight.service, wanted, flight.begun) {
            let host = &world.hosts[flight.at.host as usize].id;
            let tries: Vec<String> =
                flight.tries.iter().map(|t| t.map_or("?".into(), |t| format!("n{}", t.host))).collect();
            found.add(NAME, format!("{host}: a GET to {} ({decided}) ends with {end:?} after tries at {tries:?}, while {who} is well and in reach", view.name));
        }
    }
}

/// Whether a sidecar has run, ready and without a fault, since 10 s before then.
fn steady(world: &World, host: u32, since: Time) -> bool {
    let entry = &world.hosts[host as usize];
    entry.is_clean(since, SPREAD)
        && entry.clean_since + SPREAD <= since
        && entry.started + SPREAD <= since
        && entry.ready_since.is_some_and(|ready| ready + SPREAD <= since)
        && entry.island_since + SPREAD <= since
}

/// An instance that was well and in reach since 10 s before then; of this lane under this policy, or of any.
fn candidate(
    world: &World,
    from: u32,
    service: usize,
    wanted: Option<(&str, Option<&LanePolicy>)>,
    since: Time,
) -> Option<String> {
    let regions = &world.routing.regions;
    let (own, released) = (&world.hosts[from as usize], world.bounds.released);
    let hosts = world.hosts.iter().filter(|host| {
        host.locality.env == own.locality.env
            && (regions.is_empty() || regions.contains(&host.locality.region))
            && host.is_clean(world.now, SPREAD)
            && host.clean_since + released <= since.max(host.started + released)
            && host.started + SPREAD <= since
            && host.island.is_some()
            && host.island == own.island
            && own.island_since + released <= since.max(own.started + released)
            && host.island_since + released <= since.max(host.started + released)
            && world.links.open_both(from, host.index)
    });
    let is_of = |host: &Host, app: &App, (lane, policy): (&str, Option<&LanePolicy>)| {
        serves(app, &app.version, &world.tags(host.index), policy) == lane
    };
    let mut apps = hosts.flat_map(|host| host.apps.iter().map(move |app| (host, app)));
    apps.find(|(host, app)| {
        app.service == service
            && wanted.is_none_or(|wanted| is_of(host, app, wanted))
            && app.drained.is_none()
            && app.weight > 0
            && app.well_since.is_some_and(|well| well + SPREAD <= since)
    })
    .map(|(_, app)| app.id.to_string())
}

const SPREAD: Time = 10 * SECOND;
