//! The known traps of foca 2.0, each with what keeps us out of it.
//!
//! Not applicable, so without a test of its own: custom broadcasts that never fit and stay for ever (foca's `add_broadcast`),
//! larger ones first, and no anti-entropy for them. Nothing is ever given to foca to broadcast; the first test shows that
//! it has nothing to say but pings and acks.

use foca::{Codec, Header, Member, Message, PostcardCodec, State};

use super::{
    super::{
        engine::{Engine, Peer, Probe, ProbePacket},
        roster::ME,
    },
    harness::{Life, World, ms, name},
};
use crate::{
    node::{Action, Membership, MembershipConfig},
    types::{
        FakeTrust,
        MemberState::{Alive, Down},
        Mono,
    },
    wire::{Ctl, Frame},
};

fn engine() -> Engine {
    Engine::new(Peer { slot: ME, generation: 1 }, ms(300), ms(150), 5)
}

/// Runs foca's timers for some probe cycles without answering anything; what was sent.
fn unanswered(engine: &mut Engine, first: Vec<foca::Timer<Peer>>, cycles: usize) -> Vec<(Peer, ProbePacket)> {
    let (mut timers, mut sent) = (first, Vec::new());
    for _ in 0..cycles * 2 {
        timers.sort();
        if timers.is_empty() {
            break;
        }
        let effects = engine.timer(timers.remove(0));
        sent.extend(effects.send);
        for (_, timer) in effects.timers {
            assert!(!matches!(timer, foca::Timer::ChangeSuspectToDown { .. }), "foca's own verdicts are never armed");
            timers.push(timer);
        }
    }
    sent
}

#[test]
fn foca_on_its_own_only_ever_pings_whatever_it_suspects() {
    let mut engine = engine();
    let mut timers = Vec::new();
    for slot in 1..30 {
        timers.extend(engine.alive(Peer { slot, generation: 1 }, 0, false).timers.into_iter().map(|(_, timer)| timer));
    }
    let sent = unanswered(&mut engine, timers, 300);
    assert!(sent.len() >= 250, "it goes on probing: {}", sent.len());
    assert!(sent.iter().all(|(_, packet)| matches!(packet.probe, Probe::Ping(_)) && packet.encode().len() <= 16));
}

#[test]
fn a_stale_suspicion_never_turns_on_a_member_that_refuted_it() {
    // foca's own timer would declare it down, or tell it to renew itself, long after the refutation.
    let mut world = World::new(3, 4);
    world.cut.insert((0, 1));
    world.cut.insert((2, 1));
    world.run(ms(2_500));
    world.cut.clear();
    world.run(ms(120_000));
    assert!(world.whole());
    assert!(world.turns.iter().all(|turn| turn.state != Down));
    assert_eq!(world.nodes[0].m.life(&name(1)).unwrap().0, 1);
}

/// A packet as a node that lies would make it with foca's own codec.
fn foca_packet(message: Message<Peer>, entries: &[Member<Peer>]) -> Vec<u8> {
    let header = Header {
        src: Peer { slot: 2, generation: 1 },
        src_incarnation: 0,
        dst: Peer { slot: 0, generation: 1 },
        message,
    };
    let mut bytes = Vec::new();
    PostcardCodec.encode_header(&header, &mut bytes).unwrap();
    bytes.extend_from_slice(&(entries.len() as u16).to_be_bytes());
    for entry in entries {
        PostcardCodec.encode_member(entry, &mut bytes).unwrap();
    }
    bytes
}

/// A true ping, with entries behind it where a newer version might have something.
fn ping_with(entries: &[Member<Peer>]) -> Vec<u8> {
    let packet = ProbePacket { generation: 1, incarnation: 0, to_generation: 1, probe: Probe::Ping(1) };
    let mut bytes = packet.encode().to_vec();
    bytes.extend_from_slice(&foca_packet(Message::Gossip, entries));
    bytes
}

#[test]
fn forged_deaths_and_generations_of_others_have_no_form_here() {
    let forged = [
        Member::new(Peer { slot: 1, generation: 1 }, 0, State::Down),
        Member::new(Peer { slot: 3, generation: u64::MAX }, 0, State::Down),
        Member::new(Peer { slot: 3, generation: u64::MAX }, u16::MAX, State::Alive),
        Member::new(Peer { slot: 0, generation: 1 }, 0, State::Down),
        Member::new(Peer { slot: 77, generation: 1 }, 0, State::Alive),
    ];
    let mut world = World::new(5, 4);
    for _ in 0..50 {
        for message in [Message::Gossip, Message::Feed, Message::Ping(1), Message::TurnUndead, Message::Announce] {
            world.forge_probe(2, 0, &foca_packet(message, &forged));
        }
        world.forge_probe(2, 0, &ping_with(&forged));
        world.run(ms(100));
    }
    for member in [1, 3, 4] {
        assert_eq!(world.state(0, member), Some(Alive));
        assert_eq!(world.nodes[0].m.life(&name(member)), Some((1, 0)));
    }
    assert_eq!(world.nodes[0].m.active().len(), 4, "nobody was invented");
    assert_eq!(world.nodes[0].m.life(&name(0)), Some((1, 0)), "nor this node ended or renewed");
    // It still probes: a crash is found as ever.
    world.kill(4, Life::Silent);
    world.until(ms(6_000), |w| w.all_hold(4, Down)).expect("found");
}

fn packets(m: &mut Membership) -> Vec<(crate::types::NodeId, ProbePacket)> {
    let mut found = Vec::new();
    while let Some(action) = m.poll() {
        if let Action::Send { to, frames } = action {
            for frame in frames {
                if let Frame::Foca(bytes) = frame {
                    found.push((to.clone(), ProbePacket::decode(&bytes).unwrap()));
                }
            }
        }
    }
    found
}

#[test]
fn a_packet_for_an_earlier_run_is_not_answered_but_its_sender_learns_who_lives_here() {
    let now = Mono::from_millis(1_000);
    let mut m = Membership::new(MembershipConfig::lan(), name(0), 2, 7, 1, now);
    m.alive(now, &name(1), 1, 0);
    while m.poll().is_some() {}
    let packet = ProbePacket { generation: 1, incarnation: 0, to_generation: 1, probe: Probe::Ping(9) };
    m.foca(now, &name(1), packet.encode());
    assert_eq!(m.poll(), Some(Action::Sync { with: name(1) }));
    assert_eq!(m.poll(), None);
    m.foca(now, &name(1), ProbePacket { to_generation: 2, ..packet }.encode());
    let answers = packets(&mut m);
    assert_eq!(answers.len(), 1);
    assert_eq!((answers[0].1.generation, answers[0].1.probe), (2, Probe::Ack(9)));
}

#[test]
fn a_packet_of_an_earlier_run_changes_nothing_and_one_of_a_later_run_replaces_it() {
    let now = Mono::from_millis(1_000);
    let mut m = Membership::new(MembershipConfig::lan(), name(0), 1, 7, 1, now);
    m.alive(now, &name(1), 5, 0);
    while m.poll().is_some() {}
    let packet = ProbePacket { generation: 4, incarnation: 9, to_generation: 1, probe: Probe::Ping(9) };
    m.foca(now, &name(1), packet.encode());
    assert!(packets(&mut m).is_empty());
    assert_eq!(m.life(&name(1)), Some((5, 0)));
    m.foca(now, &name(1), ProbePacket { generation: 6, incarnation: 0, ..packet }.encode());
    assert_eq!(m.life(&name(1)), Some((6, 0)));
    assert_eq!(packets(&mut m)[0].1.to_generation, 6, "and it is answered");
}

#[test]
fn the_last_incarnation_ends_in_a_new_generation_not_in_silence() {
    // foca would become a member that never probes or answers again.
    let (now, trust) = (Mono::from_millis(1_000), FakeTrust::new(&name(0)));
    let mut m = Membership::new(MembershipConfig::lan(), name(0), 1, 7, 1, now);
    m.alive(now, &name(1), 1, 0);
    while m.engine.raise_incarnation() {}
    m.roster.set_life(ME, 1, m.engine.incarnation());
    while m.poll().is_some() {}
    let condemned = Ctl::Condemned { generation: 1, incarnation: m.incarnation() };
    m.ctl(now, &name(1), condemned, &trust);
    assert_eq!(m.poll(), Some(Action::TakeNextGeneration));
    m.set_generation(now, 2);
    let ping = ProbePacket { generation: 1, incarnation: 0, to_generation: 2, probe: Probe::Ping(3) };
    m.foca(now, &name(1), ping.encode());
    assert_eq!(packets(&mut m).len(), 1, "answers");
    m.timeout(now + ms(301), &trust);
    assert_eq!(packets(&mut m).len(), 1, "and probes");
    m.ctl(now + ms(700), &name(1), Ctl::Condemned { generation: 2, incarnation: 0 }, &trust);
    assert_eq!(m.incarnation(), 1, "and refutes");
}

#[test]
fn foca_takes_a_member_back_that_was_declared_down() {
    // Down is terminal in foca: a higher incarnation alone changes nothing there.
    let mut engine = engine();
    let peer = Peer { slot: 1, generation: 1 };
    let mut timers: Vec<_> = engine.alive(peer, 0, false).timers.into_iter().map(|(_, timer)| timer).collect();
    engine.down(peer);
    timers.clear();
    timers.extend(engine.alive(peer, 1, true).timers.into_iter().map(|(_, timer)| timer));
    assert!(!unanswered(&mut engine, timers, 3).is_empty(), "probed again");
    let newer = Peer { slot: 1, generation: 2 };
    engine.down(peer);
    let timers = engine.alive(newer, 0, false).timers.into_iter().map(|(_, timer)| timer).collect();
    let sent = unanswered(&mut engine, timers, 3);
    assert!(sent.iter().all(|(to, _)| *to == newer) && !sent.is_empty(), "the newer run only");
}
