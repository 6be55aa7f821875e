//! News: one record, everybody's records, newcomers.

use lanemesh::node::InstanceChange;

use super::{Figure, Size, mesh, spread_figure, until, world};
use crate::{
    queue::{SECOND, Time, seconds},
    scenario::Do,
    world::World,
};

/// Weights that tell records apart.
fn change(weight: u16) -> InstanceChange {
    InstanceChange { weight: Some(weight), ..InstanceChange::default() }
}

fn holds(world: &World, observer: u32, owner: u32, weight: u16) -> bool {
    let (observer, owner) = (&world.hosts[observer as usize], &world.hosts[owner as usize]);
    let held = observer.node.as_ref().and_then(|node| node.catalog().instance(&owner.id, &owner.apps[0].id));
    held.is_some_and(|entry| entry.record.weight == weight)
}

fn since(begun: Time, at: Time) -> f64 {
    (at - begun) as f64 / SECOND as f64
}

/// One record changes.
pub fn record(size: Size, tell: &mut dyn FnMut(Figure)) {
    for nodes in [100, 1000].into_iter().filter(|nodes| *nodes <= size.most) {
        for loss in [0.0, 0.3] {
            let trials = if nodes > 300 { size.trials.min(5) } else { size.trials };
            let mut world = world(mesh(nodes, loss, 20.0), size.seed);
            world.advance(seconds(20.0));
            let (mut most_of_them, mut all, mut never) = (Vec::new(), Vec::new(), 0);
            for trial in 0..trials {
                let owner = (trial * 13 + 5) % nodes;
                let weight = 101 + trial as u16;
                world.order(owner, |node, now, id| drop(node.change_instance(now, id, change(weight))));
                let begun = world.now;
                let count = |world: &World| (0..nodes).filter(|at| holds(world, *at, owner, weight)).count();
                let enough = (nodes as usize * 99).div_ceil(100);
                most_of_them.extend(until(&mut world, 10.0, |world| count(world) >= enough).map(|at| since(begun, at)));
                match until(&mut world, 10.0, |world| count(world) == nodes as usize) {
                    Some(at) => all.push(since(begun, at)),
                    None => never += 1,
                }
                world.advance(world.now + seconds(2.0));
            }
            let at = format!("{nodes} nodes, loss {:.0} %", loss * 100.0);
            let missing = trials as usize - most_of_them.len();
            tell(spread_figure(format!("99 % hold a changed record, {at}"), most_of_them, missing, (0.7, 0.7)));
            tell(spread_figure(format!("everybody does, {at}"), all, never, (5.0, 5.0)));
        }
    }
}

/// Everybody's record changes at once.
pub fn publish(size: Size, tell: &mut dyn FnMut(Figure)) {
    for nodes in [100, 300, 1000].into_iter().filter(|nodes| *nodes <= size.most) {
        for loss in [0.0, 0.1] {
            let mut world = world(mesh(nodes, loss, 20.0), size.seed);
            world.advance(seconds(20.0));
            for owner in 0..nodes {
                world.order(owner, |node, now, id| drop(node.change_instance(now, id, change(77))));
            }
            let begun = world.now;
            let pairs = nodes as usize * nodes as usize;
            let enough = pairs - pairs / 1000;
            let held = |world: &World| {
                (0..nodes).map(|at| (0..nodes).filter(|owner| holds(world, at, *owner, 77)).count()).sum::<usize>()
            };
            let took = until(&mut world, 30.0, |world| held(world) >= enough).map(|at| since(begun, at));
            let what = format!("99.9 % of all records everywhere, {nodes} nodes, loss {:.0} %", loss * 100.0);
            let never = usize::from(took.is_none());
            tell(spread_figure(what, took.into_iter().collect(), never, (5.0, 5.0)));
        }
    }
}

/// One node joins; everybody starts at once.
pub fn join(size: Size, tell: &mut dyn FnMut(Figure)) {
    for nodes in [100, 300, 1000].into_iter().filter(|nodes| *nodes <= size.most) {
        let mut scenario = mesh(nodes, 0.0, 40.0);
        scenario.mesh.warm = false;
        let mut late = crate::scenario::Step::new(30.0, Do::Join);
        late.count = Some(1);
        scenario.step.push(late);
        let mut world = world(scenario, size.seed);
        // Everybody has started after `mesh.start`.
        let started = seconds(world.scenario.mesh.start);
        let took = until(&mut world, 29.0, |world| world.now >= started && super::whole(world));
        let took = took.map(|at| since(started, at));
        let never = usize::from(took.is_none());
        let what = format!("cold start of {nodes} from 3 seeds: everybody sees everybody");
        tell(spread_figure(what, took.into_iter().collect(), never, (10.0, 10.0)));
        world.advance(seconds(30.0));
        let begun = world.now;
        let full = |world: &World| {
            let Some(node) = world.hosts.last().and_then(|host| host.node.as_ref()) else { return false };
            node.catalog().instances().filter(|entry| !entry.record.removed).count() > nodes as usize
        };
        let took = until(&mut world, 9.0, full).map(|at| since(begun, at));
        let never = usize::from(took.is_none());
        tell(spread_figure(format!("a newcomer holds all of {nodes}"), took.into_iter().collect(), never, (1.0, 1.0)));
    }
}
