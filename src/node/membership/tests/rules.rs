//! The machine's rules, one input at a time, and lies.

use bytes::Bytes;
use proptest::prelude::*;

use super::harness::{Life, World, ms, name};
use crate::{
    node::{Action, Membership, MembershipConfig},
    types::{
        FakeTrust,
        MemberState::{self, Alive, Doubtful, Down, Left},
        Mono,
    },
    wire::{Accusation, Body, Ctl, Evidence, Frame, Kind, Statement},
};

const START: Mono = Mono::from_millis(10_000);

/// Node 0 of a mesh of `count`, alone under test.
fn one_of(count: usize) -> Membership {
    let mut m = Membership::new(MembershipConfig::lan(), name(0), 1, 7, 42, START);
    (1..count).for_each(|index| assert!(m.alive(START, &name(index), 1, 0)));
    drain(&mut m);
    m
}

fn trust() -> FakeTrust {
    FakeTrust::new(&name(0))
}

fn drain(m: &mut Membership) -> Vec<Action> {
    std::iter::from_fn(|| m.poll()).collect()
}

/// Runs the timers, unanswered, up to a moment.
fn run_to(m: &mut Membership, until: Mono) {
    while let Some(at) = m.poll_timeout().filter(|at| *at <= until) {
        m.timeout(at, &trust());
    }
    m.timeout(until, &trust());
}

fn claim(accuser: usize, accused: usize, incarnation: u16, evidence: Evidence) -> (Accusation, Statement) {
    let accusation =
        Accusation { accuser: name(accuser), accused: name(accused), generation: 1, incarnation, evidence };
    let body = Body::Accusation(accusation.clone());
    let trust = FakeTrust::new(&name(accuser));
    (accusation, Statement::sign(&trust, &name(accuser), 7, Kind::Accusation, body.encode(), false))
}

fn accuse(m: &mut Membership, now: Mono, accuser: usize, accused: usize, incarnation: u16) {
    let (accusation, statement) = claim(accuser, accused, incarnation, Evidence::Silent);
    m.accusation(now, &accusation, &statement, &name(accuser), &trust());
}

#[test]
fn lies_of_one_remove_nobody_and_make_nobody_doubtful() {
    for (count, seed) in [(3, 1), (10, 2)] {
        let mut world = World::new(count, seed);
        let everybody: Vec<_> = (1..count).collect();
        for round in 0..300_usize {
            let victim = 1 + round % (count - 1);
            let incarnation = world.nodes[victim].m.incarnation();
            let (lie, _) = claim(0, victim, incarnation, Evidence::Refused);
            world.lie(0, &lie, &everybody);
            world.run(ms(100));
        }
        assert!(world.turns.is_empty(), "{:?}", world.turns);
        assert!(world.nodes.iter().all(|node| node.m.incarnation() == 0), "nor does it cost anybody an incarnation");
    }
}

#[test]
fn lies_of_two_remove_nobody_and_cost_the_liars_their_credit() {
    let mut world = World::new(10, 3);
    let everybody: Vec<_> = (2..10).collect();
    for round in 0..600 {
        for liar in [0, 1] {
            let victim = 2 + round % 8;
            let (lie, _) = claim(liar, victim, world.nodes[victim].m.incarnation(), Evidence::Refused);
            world.lie(liar, &lie, &everybody);
        }
        world.run(ms(50));
    }
    assert!(world.wrong_deaths(&[]).is_empty());
    let reports = &world.nodes[5].reports;
    assert!(reports.iter().any(|line| line.contains("n0000 keeps accusing")), "{reports:?}");
    world.turns.clear();
    world.run(ms(2_000));
    let (lie, _) = claim(0, 9, world.nodes[9].m.incarnation(), Evidence::Refused);
    let (same, _) = claim(1, 9, world.nodes[9].m.incarnation(), Evidence::Refused);
    world.lie(0, &lie, &[5]);
    world.lie(1, &same, &[5]);
    world.run(ms(500));
    assert_eq!(world.doubts(9), 0, "nobody listens any more");
}

#[test]
fn a_lone_accuser_is_answered_and_costs_no_incarnation_a_second_one_does() {
    let mut m = one_of(6);
    accuse(&mut m, START, 1, 0, 0);
    let here = Action::Send { to: name(1), frames: vec![Frame::Ctl(Ctl::Here)] };
    assert_eq!(drain(&mut m), vec![here]);
    accuse(&mut m, START, 1, 0, 0);
    assert_eq!(m.incarnation(), 0);
    drain(&mut m);
    accuse(&mut m, START + ms(100), 2, 0, 0);
    assert_eq!(m.incarnation(), 1);
    let [Action::Gossip { statement, eager: true, flood: false, except: None }] = &drain(&mut m)[..] else {
        panic!("a refutation")
    };
    let Ok(Body::Alive(alive)) = Body::decode(statement) else { panic!("a signed Alive") };
    assert_eq!((alive.node, alive.generation, alive.incarnation), (name(0), 1, 1));
    // Two that are more than five seconds apart are lone ones.
    accuse(&mut m, START + ms(300), 3, 0, 1);
    accuse(&mut m, START + ms(1_000), 3, 0, 1);
    let mut m = one_of(6);
    accuse(&mut m, START, 1, 0, 0);
    run_to(&mut m, START + ms(6_000));
    accuse(&mut m, START + ms(6_000), 2, 0, 0);
    assert_eq!(m.incarnation(), 0);
}

#[test]
fn refutations_are_limited_to_two_a_second() {
    let mut m = one_of(6);
    for step in 0..100 {
        let now = START + ms(step * 20);
        run_to(&mut m, now);
        let ctl = Ctl::Condemned { generation: 1, incarnation: m.incarnation() };
        m.ctl(now, &name(1), ctl, &trust());
    }
    assert!((3..=5).contains(&m.incarnation()), "{}", m.incarnation());
}

#[test]
fn a_first_accusation_is_private_and_a_second_distinct_one_makes_both_public() {
    let mut m = one_of(20);
    accuse(&mut m, START, 1, 5, 0);
    accuse(&mut m, START, 1, 5, 0);
    assert!(drain(&mut m).iter().all(|action| !matches!(action, Action::Gossip { .. })));
    assert_eq!(m.state(&name(5)), Some(Alive));
    assert!(m.public_accusations().is_empty());
    accuse(&mut m, START, 2, 5, 0);
    let gossip = drain(&mut m).into_iter().filter(|action| matches!(action, Action::Gossip { .. })).count();
    assert_eq!(gossip, 2);
    assert_eq!(m.state(&name(5)), Some(Doubtful));
    assert_eq!(m.public_accusations().len(), 2);
    assert_eq!(m.down(), vec![(name(5), 1, 0)], "peers that reach it can tell it");
}

#[test]
fn direct_contact_outweighs_accusations_for_a_second_and_a_refutation_for_good() {
    let mut m = one_of(20);
    m.heard(START, &name(5));
    accuse(&mut m, START, 1, 5, 0);
    accuse(&mut m, START, 2, 5, 0);
    assert_eq!(m.state(&name(5)), Some(Alive));
    run_to(&mut m, START + ms(1_100));
    assert_eq!(m.state(&name(5)), Some(Doubtful));
    drain(&mut m);
    assert!(m.alive(START + ms(1_200), &name(5), 1, 1));
    assert_eq!(m.state(&name(5)), Some(Alive));
    assert!(drain(&mut m).contains(&Action::Retract { accused: name(5) }));
    assert!(!m.is_current(&claim(1, 5, 0, Evidence::Silent).0) && m.is_current(&claim(1, 5, 1, Evidence::Silent).0));
    accuse(&mut m, START + ms(1_300), 3, 5, 0);
    let behind = Action::SendLatest { to: name(3), about: name(5) };
    assert_eq!(drain(&mut m), vec![behind], "who accuses an old life is corrected");
    assert_eq!(m.state(&name(5)), Some(Alive));
}

/// Accused by three, unanswered: down.
fn with_a_death() -> (Membership, Mono) {
    let mut m = one_of(20);
    (1..4).for_each(|accuser| accuse(&mut m, START, accuser, 5, 0));
    let now = START + ms(4_000);
    // Somebody answers now and then, so that this node knows itself well.
    for step in 0..40 {
        run_to(&mut m, START + ms(step * 100));
        (1..20).filter(|other| *other != 5).for_each(|other| m.heard(START + ms(step * 100), &name(other)));
    }
    run_to(&mut m, now);
    assert_eq!(m.state(&name(5)), Some(Down), "{:?}", m.why(&name(5), now));
    drain(&mut m);
    (m, now)
}

#[test]
fn the_time_of_death_is_set_once_and_a_contact_is_told_of_it() {
    let (mut m, now) = with_a_death();
    let gone = m.gone_since(&name(5));
    let later = now + ms(500);
    accuse(&mut m, later, 7, 5, 0);
    m.held_dead_by_peer(later, &name(5), 1, 0, &trust());
    m.heard(later, &name(5));
    assert_eq!(m.gone_since(&name(5)), gone);
    let told = Ctl::Condemned { generation: 1, incarnation: 0 };
    assert!(drain(&mut m).contains(&Action::Send { to: name(5), frames: vec![Frame::Ctl(told)] }));
    m.heard(later + ms(10), &name(5));
    assert!(drain(&mut m).is_empty(), "but not with every packet");
    assert!(m.alive(later + ms(20), &name(5), 1, 1));
    assert_eq!((m.state(&name(5)), m.gone_since(&name(5))), (Some(Alive), None));
    assert!(m.public_accusations().is_empty());
}

#[test]
fn a_goodbye_is_final_for_its_generation_and_the_name_is_free_at_once() {
    let mut m = one_of(5);
    m.left(START, &name(2), 1);
    assert_eq!(m.state(&name(2)), Some(Left));
    assert!(!m.alive(START, &name(2), 1, 9));
    m.left(START + ms(5), &name(2), 1);
    assert_eq!(m.gone_since(&name(2)), Some(START));
    assert!(m.alive(START + ms(10), &name(2), 2, 0));
    assert_eq!(m.state(&name(2)), Some(Alive));
    m.left(START + ms(20), &name(2), 1);
    assert_eq!(m.state(&name(2)), Some(Alive), "a late goodbye of the earlier run");
    let (mut m, now) = with_a_death();
    m.left(now, &name(5), 1);
    assert_eq!(m.state(&name(5)), Some(Left), "a goodbye that comes after the verdict is believed");
}

#[test]
fn what_is_not_newer_is_no_news_and_nobody_tells_this_node_what_it_is() {
    let mut m = one_of(3);
    assert!(!m.alive(START, &name(1), 1, 0));
    assert!(!m.alive(START, &name(0), u64::MAX, u16::MAX));
    assert!(!m.alive(START, &name(1), 0, 9));
    m.left(START, &name(0), 1);
    assert_eq!(m.life(&name(0)), Some((1, 0)));
    assert_eq!(m.state(&name(0)), Some(Alive));
    assert_eq!(m.active(), vec![name(1), name(2)]);
}

#[test]
fn a_forgotten_member_is_unknown_and_may_come_back_with_any_generation() {
    let (mut m, now) = with_a_death();
    m.forget(&name(5));
    assert_eq!((m.state(&name(5)), m.why(&name(5), now)), (None, vec![]));
    assert!(m.alive(now, &name(5), 1, 0));
    assert_eq!(m.state(&name(5)), Some(Alive));
    m.forget(&name(5));
    assert!(m.alive(now, &name(99), 3, 0), "takes the free slot");
    run_to(&mut m, now + ms(500));
    assert_eq!(m.state(&name(99)), Some(Alive));
}

#[test]
fn nobody_is_probed_or_answered_as_a_member_before_it_was_introduced() {
    let mut m = one_of(2);
    let mut stranger = Membership::new(MembershipConfig::lan(), name(9), 1, 7, 1, START);
    stranger.alive(START, &name(0), 1, 0);
    run_to(&mut stranger, START + ms(400));
    let ping = drain(&mut stranger).into_iter().find_map(|action| match action {
        Action::Send { frames, .. } => match &frames[0] {
            Frame::Foca(packet) => Some(packet.clone()),
            _ => None,
        },
        _ => None,
    });
    m.foca(START, &name(9), ping.expect("it probes"));
    assert_eq!(drain(&mut m), vec![Action::Sync { with: name(9) }], "it is asked who it is instead");
    assert_eq!(m.state(&name(9)), None);
}

#[test]
fn why_says_what_is_held_in_short_lines() {
    let mut m = one_of(20);
    let now = START + ms(500);
    accuse(&mut m, START, 1, 5, 0);
    let (accusation, statement) = claim(2, 5, 0, Evidence::Refused);
    m.accusation(START, &accusation, &statement, &name(2), &trust());
    assert_eq!(
        m.why(&name(5), now),
        ["doubtful for 0.5 s", "accused by n0001 (silent), n0002 (port refused) 0.5 s ago", "not heard directly yet"]
    );
    m.alive(now, &name(5), 1, 1);
    m.heard(now, &name(5));
    assert_eq!(m.why(&name(5), now + ms(100)), ["heard 0.1 s ago", "refuted once"]);
    assert_eq!(m.why(&name(0), now), ["this node"]);
}

#[test]
fn a_mesh_that_lost_a_member_and_a_newcomer_that_never_met_it_agree() {
    let mut world = World::new(6, 8);
    world.kill(3, Life::Silent);
    world.until(ms(8_000), |w| w.all_hold(3, Down)).expect("down");
    let mut newcomer = one_of(6);
    newcomer.forget(&name(3));
    assert_eq!(world.digests().into_iter().collect::<Vec<_>>(), vec![newcomer.digest()]);
    world.leave(4);
    newcomer.left(START, &name(4), 1);
    assert_eq!(world.digests().into_iter().collect::<Vec<_>>(), vec![newcomer.digest()]);
}

/// Anything that can come in.
#[derive(Debug, Clone)]
enum Step {
    Alive(usize, u64, u16),
    Left(usize, u64),
    Forget(usize),
    Heard(usize),
    Probe(usize, Vec<u8>),
    Packet(usize, u64, u16, u64, u8),
    Ping(usize, u64),
    Ack(usize, u64),
    Check(usize, usize),
    Condemned(usize, u16),
    Verify(usize, usize),
    Accuse(usize, usize, u16, bool),
    HeldDead(usize, u16),
    Refused(u64),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let node = || 0..6_usize;
    prop_oneof![
        (node(), 0..3_u64, 0..3_u16).prop_map(|(n, g, i)| Step::Alive(n, g, i)),
        (node(), 0..3_u64).prop_map(|(n, g)| Step::Left(n, g)),
        node().prop_map(Step::Forget),
        node().prop_map(Step::Heard),
        (node(), prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(n, b)| Step::Probe(n, b)),
        (node(), 0..3_u64, 0..3_u16, 0..2_u64, 0..4_u8).prop_map(|(n, g, i, t, k)| Step::Packet(n, g, i, t, k)),
        (node(), any::<u64>()).prop_map(|(n, t)| Step::Ping(n, t)),
        (node(), 0..20_u64).prop_map(|(n, t)| Step::Ack(n, t)),
        (node(), node()).prop_map(|(n, a)| Step::Check(n, a)),
        (node(), 0..3_u16).prop_map(|(n, i)| Step::Condemned(n, i)),
        (node(), node()).prop_map(|(n, a)| Step::Verify(n, a)),
        (node(), node(), 0..3_u16, any::<bool>()).prop_map(|(n, a, i, r)| Step::Accuse(n, a, i, r)),
        (node(), node(), 0..3_u16, any::<bool>()).prop_map(|(n, a, i, r)| Step::Accuse(n, a, i, r)),
        (node(), 0..3_u16).prop_map(|(n, i)| Step::HeldDead(n, i)),
        (0..20_u64).prop_map(Step::Refused),
        (0..3_000_u64).prop_map(Step::Wait),
        (0..300_u64).prop_map(Step::Wait),
    ]
}

fn take(m: &mut Membership, now: &mut Mono, step: Step) {
    let trust = trust();
    let check = |about: usize, token| Ctl::Check { accused: name(about), generation: 1, incarnation: 0, token };
    match step {
        Step::Alive(n, g, i) => drop(m.alive(*now, &name(n), g, i)),
        Step::Left(n, g) => m.left(*now, &name(n), g),
        Step::Forget(n) => m.forget(&name(n)),
        Step::Heard(n) => m.heard(*now, &name(n)),
        Step::Probe(n, bytes) => m.foca(*now, &name(n), bytes.into()),
        Step::Packet(n, g, i, t, k) => {
            let packet = postcard::to_allocvec(&(g, i, t, k / 2, k)).unwrap();
            m.foca(*now, &name(n), Bytes::from(packet));
        }
        Step::Ping(n, token) => m.ctl(*now, &name(n), Ctl::Ping { token }, &trust),
        Step::Ack(n, token) => m.ctl(*now, &name(n), Ctl::Ack { token }, &trust),
        Step::Check(n, about) => m.ctl(*now, &name(n), check(about, 3), &trust),
        Step::Condemned(n, i) => {
            m.ctl(*now, &name(n), Ctl::Condemned { generation: 1, incarnation: i }, &trust);
        }
        Step::Verify(n, about) => {
            let ctl = Ctl::Verify { accused: name(about), generation: 1, incarnation: 0 };
            m.ctl(*now, &name(n), ctl, &trust);
        }
        Step::Accuse(n, about, i, refused) => {
            let evidence = if refused { Evidence::Refused } else { Evidence::Silent };
            let (accusation, statement) = claim(n, about, i, evidence);
            m.accusation(*now, &accusation, &statement, &name(n), &trust);
        }
        Step::HeldDead(n, i) => m.held_dead_by_peer(*now, &name(n), 1, i, &trust),
        Step::Refused(token) => m.refused(*now, token, &trust),
        Step::Wait(wait) => {
            let until = *now + ms(wait);
            if wait < 1_500 {
                run_to(m, until)
            } else {
                m.timeout(until, &trust)
            }
            *now = until;
        }
    }
}

/// The digest of a fresh machine that is told the same lives.
fn digest_of(m: &Membership) -> u64 {
    let (generation, incarnation) = m.life(&name(0)).unwrap();
    let mut copy = Membership::new(MembershipConfig::lan(), name(0), generation, 7, 1, START);
    (0..incarnation).for_each(|i| {
        copy.held_dead_by_peer(START + ms(u64::from(i) * 600), &name(0), generation, i, &trust());
    });
    for node in m.active().into_iter().rev() {
        let (generation, incarnation) = m.life(&node).unwrap();
        copy.alive(START, &node, generation, incarnation);
    }
    copy.digest()
}

/// Found by the property below: foca was about to probe a member that had been forgotten meanwhile.
#[test]
fn foca_may_still_want_to_probe_somebody_forgotten() {
    let (mut m, mut now) = (one_of(5), START);
    let wait = Step::Wait;
    let steps =
        [wait(1500), wait(1500), Step::Forget(1), Step::Alive(5, 0, 0), wait(1751), Step::Forget(2), Step::Forget(5)];
    for step in steps.into_iter().chain([wait(1490), wait(610)]) {
        take(&mut m, &mut now, step);
    }
    assert_eq!(m.active(), [name(3), name(4)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_in_lives_only_rise_and_the_digest_is_that_of_the_view(
        steps in prop::collection::vec(step(), 1..80)
    ) {
        let mut m = one_of(5);
        let mut now = START;
        let mut lives = std::collections::BTreeMap::new();
        for step in steps {
            if let Step::Forget(n) = &step
                && *n != 0
            {
                lives.remove(&name(*n));
            }
            take(&mut m, &mut now, step);
            for node in (0..6).map(name) {
                let Some(life) = m.life(&node) else { continue };
                prop_assert!(lives.get(&node).is_none_or(|before| *before <= life));
                lives.insert(node.clone(), life);
                prop_assert_eq!(
                    m.gone_since(&node).is_some(),
                    matches!(m.state(&node), Some(MemberState::Down | MemberState::Left))
                );
            }
            prop_assert!(m.poll_timeout().is_none_or(|at| at >= now || at.since(now) < ms(1)));
        }
        let held_down = m.active().len() + m.down().len() < (1..6).filter(|n| m.state(&name(*n)).is_some_and(|s| s != Left)).count();
        if !held_down {
            prop_assert_eq!(m.digest(), digest_of(&m));
        }
    }

    /// Alone, one accuser of any kind and number of words never makes a member doubtful that answers.
    #[test]
    fn one_voice_is_never_enough(words in prop::collection::vec((1..6_usize, 0..2_u16, any::<bool>(), 0..900_u64), 1..40)) {
        let mut m = one_of(7);
        let mut now = START;
        for (about, incarnation, refused, wait) in words {
            let evidence = if refused { Evidence::Refused } else { Evidence::Silent };
            let (accusation, statement) = claim(6, about, incarnation, evidence);
            m.accusation(now, &accusation, &statement, &name(6), &trust());
            for step in 0..wait / 50 {
                run_to(&mut m, now + ms(step * 50));
                (1..6).for_each(|other| m.heard(now + ms(step * 50), &name(other)));
            }
            now = now + ms(wait);
            for other in 1..6 {
                prop_assert_eq!(m.state(&name(other)), Some(Alive));
            }
        }
    }
}
