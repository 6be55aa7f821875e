//! A slow instance is left, where that is asked for.

use std::collections::BTreeMap;

use super::{Findings, Invariant, Try, secs};
use crate::{
    app::Mood,
    queue::{MILLI, SECOND, Time},
    world::World,
};

pub const NAME: &str = "slow-are-left";
pub const DOC: &str = "With `breaker_slow` a sidecar that asks an instance once a second or more sends it no more than three requests in ten seconds, once it has been \
slower by that much, and half as much again, for a quarter of a minute; as long as half of its lane is quick (REQUIREMENTS R5).";

#[derive(Default)]
pub struct Check {
    /// Since when each has been slow.
    slow: BTreeMap<(u32, u8), Time>,
    /// Requests in the last ten seconds, from each host to each of those.
    sent: BTreeMap<(u32, u32, u8), Vec<Time>>,
}

impl Invariant for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sample(&mut self, world: &World, _: &mut Findings) {
        let Some(times) = world.routing.breaker.slow else { return };
        let least = Time::from(times) * ORDINARY * 3 / 2;
        let apps =
            world.hosts.iter().flat_map(|host| (0_u8..).zip(&host.apps).map(move |(at, app)| (host.index, at, app)));
        let is_slow = |mood| matches!(mood, Mood::Slow(by) if by >= least);
        let now: Vec<(u32, u8)> = apps.filter(|(.., app)| is_slow(app.mood)).map(|(host, at, _)| (host, at)).collect();
        let half = 2 * now.len() > world.hosts.len() / world.services.len().max(1);
        self.slow.retain(|app, _| now.contains(app) && !half);
        now.iter().filter(|_| !half).for_each(|app| _ = self.slow.entry(*app).or_insert(world.now));
    }

    fn tried(&mut self, world: &World, attempt: &Try<'_>, found: &mut Findings) {
        let Some(target) = attempt.target else { return };
        let Some(since) = self.slow.get(&(target.host, target.app)).map(|since| since + PATIENCE) else { return };
        let from = &world.hosts[attempt.flight.at.host as usize];
        if world.now < since || from.started + PATIENCE > world.now || !from.is_clean(world.now, PATIENCE) {
            return;
        }
        let sent = self.sent.entry((from.index, target.host, target.app)).or_default();
        sent.retain(|at| at + SPAN > world.now && *at >= since);
        sent.push(world.now);
        if sent.len() > TRIES {
            let (id, slow) = (&attempt.entry.record.id, secs(world.now + PATIENCE - since));
            found.add(
                NAME,
                format!("{} sends {} requests in 10 s to {id}, which has been slow for {slow} s", from.id, sent.len()),
            );
        }
    }
}

/// What an answer of a simulated application takes on average.
const ORDINARY: Time = 8 * MILLI;
const PATIENCE: Time = 15 * SECOND;
const SPAN: Time = 10 * SECOND;
/// Those that try whether it is well again.
const TRIES: usize = 3;
