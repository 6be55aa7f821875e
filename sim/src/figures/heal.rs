//! Halves that meet again.

use super::{Figure, Size, mesh, spread_figure, step, until, world};
use crate::{
    queue::{SECOND, seconds},
    scenario::Do,
};

/// Halves that meet again.
pub fn partition(size: Size, tell: &mut dyn FnMut(Figure)) {
    for (nodes, lasts) in [(10, 30.0), (100, 60.0), (300, 60.0), (300, 3600.0)] {
        // An hour of 300 nodes takes its time: only when it is asked for.
        if nodes > size.most || (lasts > 1000.0 && size.node_hours < 100.0) {
            continue;
        }
        for loss in [0.0, 0.1] {
            let trials = if nodes >= 100 { size.trials.min(3) } else { size.trials };
            let (mut healed, mut never, mut bytes) = (Vec::new(), 0, 0.0f64);
            for trial in 0..trials {
                let mut scenario = mesh(nodes, loss, 90.0 + lasts);
                let half = format!("0-{}", nodes / 2 - 1);
                // Not in step with anybody's timers.
                let t = 20.0 + 0.13 * f64::from(trial);
                scenario.step.push(step(t, Do::Partition, half, lasts));
                let mut world = world(scenario, size.seed + u64::from(trial));
                world.advance(seconds(t));
                let sent = |world: &crate::world::World| {
                    world.hosts.iter().map(|host| host.sent.0).sum::<u64>() + world.stats.sync_bytes
                };
                let before = sent(&world);
                world.advance(seconds(t + lasts));
                bytes = bytes.max((sent(&world) - before) as f64 / lasts / f64::from(nodes));
                let begun = world.now;
                match until(&mut world, 60.0, super::whole) {
                    Some(at) => healed.push((at - begun) as f64 / SECOND as f64),
                    None => never += 1,
                }
            }
            let at = format!("{nodes} nodes, {lasts} s, loss {:.0} %", loss * 100.0);
            let goal = if loss > 0.0 { 2.0 } else { 1.0 };
            tell(spread_figure(format!("whole again, {at}"), healed, never, (goal, goal)));
            let what = format!("bytes a node and second while split, {at}");
            tell(Figure { what, goal: "20000".into(), ours: format!("{bytes:.0}"), met: bytes <= 20_000.0 });
        }
    }
}
