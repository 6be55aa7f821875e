//! One run, from scenario and seed to its summary.

use crate::{log::Log, queue::SECOND, readout::Readout, scenario::Scenario, stats::Summary, world::World};

/// How a run is to be played.
#[derive(Default)]
pub struct Options {
    /// Where lines of the log go.
    pub log: Log,
    /// Whether the readout is printed.
    pub readout: bool,
    /// Whether the run ends at the first violation.
    pub stop_at_first: bool,
    /// Called each virtual second with the part that is played, 0 to 1.
    pub progress: Option<Box<dyn FnMut(f64)>>,
    /// Looks on as an invariant does.
    pub watcher: Option<Box<dyn crate::invariants::Invariant>>,
    /// Whether the process ends with it: then nobody needs the hosts' memory back, which of a thousand takes a second.
    pub last: bool,
}

/// Plays a scenario. It must have passed its check.
pub fn play(scenario: &Scenario, seed: u64, mut options: Options) -> Summary {
    let mut world = World::new(scenario.clone(), seed, options.log);
    if options.stop_at_first {
        world.stop_at_first();
    }
    options.watcher.into_iter().for_each(|watcher| world.watch(watcher));
    let mut readout = Readout::new(options.readout);
    world.play(|world| {
        readout.second(world);
        if let Some(progress) = &mut options.progress {
            progress(world.now as f64 / world.end() as f64);
        }
        note_convergence(world);
    });
    note_convergence(&mut world);
    readout.end(&world);
    let summary = summary(&world);
    if options.last {
        std::mem::forget(std::mem::take(&mut world.hosts));
    }
    summary
}

/// Notes since when everybody agrees for good.
fn note_convergence(world: &mut World) {
    let Some(calm) = world.calm_since else { return };
    let mut digests =
        world.hosts.iter().filter(|host| host.is_member() && !host.foreign).filter_map(|host| host.node.as_ref());
    let first = digests.next().map(|node| node.digest());
    // Equal digests are cheap to find; equal and wrong is what `views-converge` looks for.
    let agree = digests.all(|node| Some(node.digest()) == first);
    world.stats.converged = match (agree, world.stats.converged) {
        (false, _) => None,
        (true, None) => Some(world.now.max(calm)),
        (true, since) => since,
    };
}

fn summary(world: &World) -> Summary {
    let members = world.members();
    let seconds = world.now as f64 / SECOND as f64;
    let sent: u64 = world.hosts.iter().map(|host| host.sent.0).sum::<u64>() + world.stats.sync_bytes;
    let stats = &world.stats;
    Summary {
        scenario: world.scenario.name.clone(),
        seed: world.seed,
        hash: format!("{:016x}", world.log.hash()),
        members: members.up,
        right: members.right,
        seconds,
        events: stats.events,
        converged_after: stats.converged.zip(world.calm_since).map(|(at, calm)| (at - calm) as f64 / SECOND as f64),
        down_in_contact: stats.down_in_contact,
        doubts_in_contact: stats.doubts_in_contact,
        requests: stats.requests,
        failed: stats.failed,
        reasons: stats.reasons.clone(),
        slow: stats.slow,
        moved: stats.moved,
        fell_back: stats.fell_back,
        bytes_per_node_second: (sent as f64 / seconds.max(1.0) / world.hosts.len() as f64).round(),
        network: world.totals(),
        violations: world.findings.all().to_vec(),
    }
}
