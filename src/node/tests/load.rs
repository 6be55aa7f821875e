//! Loads on their way from a check to everybody's rings (REQUIREMENTS R10).

use std::time::Duration;

use super::world::World;
use crate::types::{InstanceId, LoadFigure};

fn measure(world: &mut World, at: usize, load: Option<f64>) {
    let id = InstanceId::new(world.name(at).as_str()).unwrap();
    world.order_of(at, |node, now| node.set_load(now, &id, load));
}

/// What `at` has heard of the load of each of the three.
fn heard(world: &World, at: usize) -> Vec<Option<LoadFigure>> {
    let find = |owner: usize| {
        let name = world.name(owner).clone();
        let mut instances = world.node(at).catalog().instances().map(|entry| &entry.record);
        instances.find(|record| record.owner == name).and_then(|record| record.load)
    };
    (0..3).map(find).collect()
}

#[test]
fn an_overloaded_instance_gives_way_for_everybody_and_comes_back() {
    let mut world = World::mesh(3, 7);
    let second = |world: &mut World, loads: [f64; 3]| {
        (0..3).for_each(|at| measure(world, at, Some(loads[at])));
        world.run(Duration::from_secs(1));
    };
    let share = |world: &World, of: usize| {
        let seen: Vec<u8> = (0..3).map(|at| heard(world, at)[of].unwrap().share).collect();
        assert!(seen.iter().all(|share| *share == seen[0]), "all have the same: {seen:?}");
        seen[0]
    };
    (0..45).for_each(|_| second(&mut world, [1.4, 0.4, 0.4]));
    assert_eq!((share(&world, 0), share(&world, 1)), (80, 100));
    (0..90).for_each(|_| second(&mut world, [0.2, 0.4, 0.4]));
    assert_eq!(share(&world, 0), 100);
    // The application stops saying so: the weight is what it was set to.
    (0..25).for_each(|_| second(&mut world, [1.4, 0.4, 0.4]));
    measure(&mut world, 0, None);
    world.run(Duration::from_secs(1));
    assert_eq!((0..3).map(|at| heard(&world, at)[0]).collect::<Vec<_>>(), [None; 3]);
}

#[test]
fn nobody_gives_way_while_all_are_as_busy_and_nothing_is_told_twice() {
    let mut world = World::mesh(3, 8);
    for _ in 0..60 {
        (0..3).for_each(|at| measure(&mut world, at, Some(1.6)));
        world.run(Duration::from_secs(1));
    }
    assert_eq!(heard(&world, 1), [Some(LoadFigure { percent: 160, share: 100 }); 3]);
    let name = world.name(2).clone();
    let mut own = world.node(0).catalog().instances().filter(|entry| entry.record.owner == name);
    assert!(own.next().unwrap().record.sequence < 5, "a steady load is told once");
}
