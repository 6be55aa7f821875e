//! Failure signals on their way through a mesh.

use std::time::Duration;

use super::world::World;
use crate::{
    node::Input,
    types::{FakeTrust, InstanceId, Observation, ServiceName, Signal},
    wire::{Body, Envelope, Frame, Kind, Statement},
};

fn seen(world: &World, owner: usize, failures: u16) -> Observation {
    let owner = world.name(owner).clone();
    let (service, instance) = (ServiceName::new("orders").unwrap(), InstanceId::new(owner.as_str()).unwrap());
    Observation { service, owner, instance, attempts: 6, failures }
}

#[test]
fn everybody_hears_a_signal_once_and_at_once() {
    let mut world = World::mesh(12, 3);
    let observation = seen(&world, 4, 3);
    let told = world.order_of(2, |node, now| node.signal(now, vec![observation.clone()]));
    assert_eq!(told, 1);
    let all = |world: &World| (0..12).filter(|at| *at != 2).all(|at| world.signals(at).len() == 1);
    let took = world.run_until(Duration::from_secs(2), all).expect("everybody hears");
    assert!(took <= Duration::from_millis(50), "{took:?}");
    world.run(Duration::from_secs(3));
    assert!(all(&world) && world.signals(2).is_empty(), "copies are not handed out again");
    assert_eq!(world.signals(7)[0].seen, vec![observation]);
}

#[test]
fn a_signal_is_cut_to_what_a_datagram_holds() {
    let mut world = World::mesh(3, 1);
    let many = vec![seen(&world, 1, 3); 40];
    assert_eq!(world.order_of(0, |node, now| node.signal(now, many)), 16);
    let nothing = world.order_of(0, |node, now| node.signal(now, Vec::new()));
    assert_eq!(nothing, 0);
}

/// What is signed by another, older than what was heard, sent too often or impossible goes no further.
#[test]
fn old_forged_and_impossible_signals_are_dropped() {
    let mut world = World::mesh(4, 5);
    let liar = FakeTrust::new(world.name(3));
    let (observer, generation) = (world.name(3).clone(), world.node(3).generation());
    let key = world.node(0).catalog().member(&observer).unwrap().key;
    let say = |world: &mut World, number: u64, signer: usize, observation: Observation| {
        let signal = Signal { observer: observer.clone(), generation, number, seen: vec![observation] };
        let body = Body::Signal(signal).encode();
        let statement = Statement::sign(&liar, &world.name(signer).clone(), key, Kind::Signal, body, false);
        let bytes = Envelope { digest: 0, frames: vec![Frame::Statement(statement)] }.encode();
        let (from, addr) = (observer.clone(), ([127, 0, 0, 1], 1).into());
        world.give(0, Input::Envelope { from, addr, bytes });
        world.run(Duration::from_millis(100));
        world.signals(0).len()
    };
    let good = seen(&world, 1, 3);
    assert_eq!(say(&mut world, 5, 3, good.clone()), 1);
    assert_eq!(say(&mut world, 4, 3, good.clone()), 1, "older");
    assert_eq!(say(&mut world, 6, 2, good.clone()), 1, "in another's name");
    let impossible = Observation { failures: 7, ..good.clone() };
    assert_eq!(say(&mut world, 7, 3, impossible), 1);
    assert_eq!(say(&mut world, 8, 3, good), 2);
}
