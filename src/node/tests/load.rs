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
    // The way back begins a minute after the last step down.
    (0..120).for_each(|_| second(&mut world, [0.2, 0.4, 0.4]));
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

/// Three sidecars, of which two send requests to the first: it knows the sum, and nobody else is told.
#[test]
fn an_owner_hears_what_all_have_in_flight_at_its_instance() {
    let mut world = World::mesh(3, 9);
    let (owner, id) = (world.name(0).clone(), InstanceId::new(world.name(0).as_str()).unwrap());
    let ask = |world: &mut World| world.order_of(0, |node, now| node.set_load_by_in_flight(now, &id, 40));
    let tell = |world: &mut World, at: usize, count: u32| {
        let counts = vec![(owner.clone(), id.clone(), count), (owner.clone(), InstanceId::new("else").unwrap(), 9)];
        world.order_of(at, |node, now| node.tell_in_flight(now, counts));
    };
    ask(&mut world);
    world.run(Duration::from_secs(1));
    let wanted = |at: usize| {
        let mut records = world.node(at).catalog().instances().map(|entry| entry.record.clone());
        records.find(|record| record.id == id).unwrap().counted
    };
    assert!((0..3).all(wanted), "everybody knows that it wants to hear");
    let told = |world: &mut World, at: usize| world.order_of(at, |node, now| node.in_flight(&id, now.mono));
    tell(&mut world, 1, 20);
    tell(&mut world, 2, 30);
    tell(&mut world, 0, 2);
    world.run(Duration::from_millis(500));
    assert_eq!([told(&mut world, 0), told(&mut world, 1)], [52, 0]);
    tell(&mut world, 2, 0);
    world.run(Duration::from_millis(500));
    assert_eq!(told(&mut world, 0), 22);
    // Whoever falls silent has none any more.
    world.run(Duration::from_secs(6));
    assert_eq!(told(&mut world, 0), 0);

    // Twice as many as it can have, while the others have few to do: it gives way.
    for _ in 0..45 {
        tell(&mut world, 1, 40);
        tell(&mut world, 2, 40);
        ask(&mut world);
        (1..3).for_each(|at| measure(&mut world, at, Some(0.3)));
        world.run(Duration::from_secs(1));
    }
    let figure = heard(&world, 2)[0].unwrap();
    assert!(figure.share < 100 && figure.percent > 150, "{figure:?}");
}
