//! The laws of merging, and what is refused.

use std::collections::BTreeMap;

use proptest::{prelude::*, sample::subsequence};

use super::*;
use crate::{
    lanes::{PolicyChange, rollback},
    types::{
        FakeTrust, Health, InstanceId, InstanceRecord, Lane, LanePolicy, NodeId, PolicyVersion, Protocol, ServiceName,
        Trust, VersionName, Wall,
    },
    wire::{Alive, Body, Left, Member, Statement, key_id},
};

const NOW: Wall = Wall(1_000_000);

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn signed_by(trust: &FakeTrust, who: &NodeId, body: &Body) -> Statement {
    let with_certificate = matches!(body, Body::Member(_) | Body::Policy(_));
    Statement::sign(trust, who, key_id(&FakeTrust::key(who)), body.kind(), body.encode(), with_certificate)
}

fn signed(body: &Body) -> Statement {
    let who = node(body.speaker());
    signed_by(&FakeTrust::new(&who), &who, body)
}

fn member(name: &str, generation: u64, revision: u32) -> Body {
    let addr = format!("127.0.0.1:{}", 1000 + generation % 1000).parse().unwrap();
    Body::Member(Member { node: node(name), generation, revision, addr, nonce: generation, program: "test".into() })
}

fn record(owner: &str, id: &str, generation: u64, sequence: u64) -> InstanceRecord {
    InstanceRecord {
        owner: node(owner),
        generation,
        sequence,
        id: InstanceId::new(id).unwrap(),
        service: ServiceName::new("orders").unwrap(),
        host: "127.0.0.1".into(),
        port: 8080,
        protocol: Protocol::Http1,
        env: "prod".parse().unwrap(),
        region: "r".parse().unwrap(),
        zone: "z".parse().unwrap(),
        version: VersionName::new("v1").unwrap(),
        lane: Lane::stable(),
        weight: 100,
        health: Health::Passing,
        drain: None,
        tags: BTreeMap::new(),
        capacity: None,
        updated_at: Wall(sequence),
        removed: sequence % 5 == 4,
        load: None,
        counted: false,
    }
}

fn policy(author: &str, epoch: u64, clock: u64) -> LanePolicy {
    let sizes = [(Lane::new("canary").unwrap(), (clock % 20) as u16 * 100)].into();
    let change = PolicyChange { sizes, ..PolicyChange::default() };
    let mut policy = change.apply(&ServiceName::new("orders").unwrap(), None, author, Wall(clock)).unwrap();
    policy.version = PolicyVersion { epoch, clock, author: author.into() };
    policy
}

fn merge_all(catalog: &mut Catalog, statements: &[Statement]) {
    let trust = FakeTrust::new(&node("me"));
    for statement in statements {
        catalog.merge(statement, &trust, NOW);
    }
}

/// A catalog that has met nodes a and b in their first generation.
fn introduced() -> Catalog {
    let mut catalog = Catalog::new();
    merge_all(&mut catalog, &[signed(&member("a", 1, 0)), signed(&member("b", 1, 0))]);
    catalog
}

fn anything() -> impl Strategy<Value = Statement> {
    let name = prop_oneof![Just("a"), Just("b")];
    prop_oneof![
        (name.clone(), 1..4_u64, 0..3_u32).prop_map(|(n, generation, revision)| member(n, generation, revision)),
        (name.clone(), 1..4_u64, 0..5_u16)
            .prop_map(|(n, generation, incarnation)| { Body::Alive(Alive { node: node(n), generation, incarnation }) }),
        (name.clone(), 1..4_u64).prop_map(|(n, generation)| Body::Left(Left { node: node(n), generation })),
        (name.clone(), 0..3_u8, 1..4_u64, 0..6_u64).prop_map(|(n, id, generation, sequence)| Body::Instance(record(
            n,
            &format!("i{id}"),
            generation,
            sequence
        ))),
        (name, 0..2_u64, 1..30_u64).prop_map(|(n, epoch, clock)| Body::Policy(policy(n, epoch, clock))),
    ]
    .prop_map(|body| signed(&body))
}

proptest! {
    #[test]
    fn any_order_and_any_repetition_give_the_same_catalog(
        statements in prop::collection::vec(anything(), 1..24),
        seed in any::<u64>(),
        again in subsequence((0..24).collect::<Vec<usize>>(), 0..24),
    ) {
        let mut one = introduced();
        merge_all(&mut one, &statements);

        let mut shuffled: Vec<Statement> = statements.clone();
        shuffled.extend(again.iter().filter_map(|at| statements.get(*at)).cloned());
        let mut state = seed | 1;
        for at in (1..shuffled.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            shuffled.swap(at, (state >> 33) as usize % (at + 1));
        }
        let mut other = introduced();
        merge_all(&mut other, &shuffled);

        prop_assert_eq!(one.digest(), other.digest());
        prop_assert_eq!(one.summary(), other.summary());
        prop_assert_eq!(one.statements(), other.statements());
    }

    #[test]
    fn one_exchange_makes_two_catalogs_equal(
        left in prop::collection::vec(anything(), 0..20),
        right in prop::collection::vec(anything(), 0..20),
    ) {
        let (mut one, mut other) = (introduced(), introduced());
        merge_all(&mut one, &left);
        merge_all(&mut other, &right);
        // As a sync does: what differs comes back, what is older is answered with the winner, what is wanted is sent.
        let trust = FakeTrust::new(&node("me"));
        let (statements, wanted) = other.difference(&one.summary());
        let mut back = Vec::new();
        for statement in &statements {
            if let Merge::Older(newer) = one.merge(statement, &trust, NOW) {
                back.push(*newer);
            }
        }
        merge_all(&mut other, &back);
        merge_all(&mut other, &one.statements_of(&wanted));
        // A new generation may have dropped records of the old one on either side; the second round settles that.
        let (rest, wanted) = other.difference(&one.summary());
        merge_all(&mut one, &rest);
        merge_all(&mut other, &one.statements_of(&wanted));
        prop_assert_eq!(one.digest(), other.digest());
    }

    #[test]
    fn the_digest_is_that_of_what_is_held(statements in prop::collection::vec(anything(), 0..24)) {
        let mut grown = introduced();
        merge_all(&mut grown, &statements);
        let mut fresh = Catalog::new();
        merge_all(&mut fresh, &grown.statements());
        prop_assert_eq!(grown.digest(), fresh.digest());
    }
}

#[test]
fn nothing_is_taken_that_its_owner_did_not_sign() {
    let mut catalog = introduced();
    let (a, b) = (node("a"), node("b"));
    let liar = FakeTrust::new(&b);
    let before = catalog.digest();
    let forged = [
        // b speaks for a under its own name.
        signed_by(&liar, &b, &Body::Instance(record("a", "i0", 1, 9))),
        // b speaks for a under a's name, with b's key.
        Statement {
            key: key_id(&FakeTrust::key(&a)),
            ..signed_by(&liar, &a, &Body::Instance(record("a", "i0", 1, 9)))
        },
        // b says goodbye for a, b raises a's incarnation, b introduces a at a poisonous generation.
        signed_by(&liar, &b, &Body::Left(Left { node: a.clone(), generation: 1 })),
        signed_by(&liar, &b, &Body::Alive(Alive { node: a.clone(), generation: 1, incarnation: u16::MAX })),
        signed_by(&liar, &b, &member("a", u64::MAX, 0)),
        Statement {
            certificate: Some(liar.own_certificate().to_vec().into()),
            ..signed_by(&liar, &a, &member("a", u64::MAX, 0))
        },
    ];
    for statement in forged {
        let merged = catalog.merge(&statement, &FakeTrust::new(&node("me")), NOW);
        assert!(matches!(merged, Merge::Refused(_)), "{statement:?} was {merged:?}");
    }
    // A relay changes one byte of what a signed.
    let genuine = signed(&Body::Instance(record("a", "i0", 1, 2)));
    for at in 0..genuine.body.len() {
        let mut body = genuine.body.to_vec();
        body[at] ^= 1;
        let bent = Statement { body: body.into(), ..genuine.clone() };
        assert!(!matches!(catalog.merge(&bent, &liar, NOW), Merge::News(_)), "byte {at}");
    }
    assert_eq!(catalog.digest(), before);
}

#[test]
fn a_service_that_the_certificate_does_not_list_is_refused_everywhere() {
    let trust = FakeTrust::with_services(&node("c"), "test", &["billing"]);
    let c = node("c");
    let mut catalog = Catalog::new();
    merge_all(&mut catalog, &[signed_by(&trust, &c, &member("c", 1, 0))]);
    let merged = catalog.merge(&signed_by(&trust, &c, &Body::Instance(record("c", "i0", 1, 1))), &trust, NOW);
    assert!(matches!(&merged, Merge::Refused(Refusal::Content(why)) if why.contains("does not list")), "{merged:?}");
}

#[test]
fn an_older_statement_is_answered_with_the_newer_one() {
    let mut catalog = introduced();
    let (old, new) =
        (signed(&Body::Instance(record("a", "i0", 1, 1))), signed(&Body::Instance(record("a", "i0", 1, 2))));
    merge_all(&mut catalog, std::slice::from_ref(&new));
    let trust = FakeTrust::new(&node("me"));
    assert_eq!(catalog.merge(&old, &trust, NOW), Merge::Older(Box::new(new.clone())));
    assert_eq!(catalog.merge(&new, &trust, NOW), Merge::Known);
    // A record from before the owner's restart is answered with the restart.
    let restarted = signed(&member("a", 2, 0));
    merge_all(&mut catalog, std::slice::from_ref(&restarted));
    assert_eq!(catalog.instances().count(), 0);
    assert_eq!(catalog.merge(&new, &trust, NOW), Merge::Older(Box::new(restarted)));
}

#[test]
fn a_rollback_beats_a_raise_whatever_arrives_first() {
    let (raise, back) =
        (policy("a", 0, 900), rollback(&"orders".parse().unwrap(), Some(&policy("b", 0, 5)), "b", "", Wall(6)));
    let statements = [signed(&Body::Policy(raise)), signed(&Body::Policy(back))];
    for order in [[0, 1], [1, 0]] {
        let mut catalog = introduced();
        merge_all(&mut catalog, &order.map(|at| statements[at].clone()));
        assert!(catalog.policies().next().unwrap().policy.off);
    }
}

#[test]
fn a_policy_from_a_clock_far_ahead_is_refused_until_its_time_comes() {
    let mut catalog = introduced();
    let trust = FakeTrust::new(&node("me"));
    let ahead = signed(&Body::Policy(policy("a", 0, NOW.0 + 61_000)));
    assert!(matches!(catalog.merge(&ahead, &trust, NOW), Merge::Refused(Refusal::Content(_))));
    assert!(matches!(catalog.merge(&ahead, &trust, Wall(NOW.0 + 2_000)), Merge::News(_)));
}

#[test]
fn a_rollback_is_taken_from_any_clock() {
    let mut catalog = introduced();
    let trust = FakeTrust::new(&node("me"));
    let raise = policy("a", 0, NOW.0);
    merge_all(&mut catalog, &[signed(&Body::Policy(raise.clone()))]);
    // This node's clock is an hour behind the one that rolls back.
    let back = rollback(&raise.service, Some(&raise), "b", "", Wall(NOW.0 + 3_600_000));
    assert!(matches!(catalog.merge(&signed(&Body::Policy(back)), &trust, NOW), Merge::News(_)));
    assert!(catalog.policies().next().unwrap().policy.off);
}

#[test]
fn what_a_newer_version_appends_is_carried_on_unchanged() {
    let mut catalog = introduced();
    let who = node("a");
    let mut body = Body::Instance(record("a", "i0", 1, 1)).encode();
    body.extend_from_slice(b"a field of tomorrow");
    let trust = FakeTrust::new(&who);
    let key = key_id(&FakeTrust::key(&who));
    let statement = Statement::sign(&trust, &who, key, crate::wire::Kind::Instance, body, false);
    assert!(matches!(catalog.merge(&statement, &trust, NOW), Merge::News(_)));
    assert!(catalog.statements().contains(&statement), "passed on byte by byte, the signature still fits");
}

#[test]
fn the_gone_count_nothing_and_are_told_only_to_who_knows_them() {
    let left = signed(&Body::Left(Left { node: node("b"), generation: 1 }));
    let mut old = introduced();
    merge_all(&mut old, &[signed(&Body::Instance(record("b", "b-1", 1, 1))), left.clone()]);
    let mut newcomer = Catalog::new();
    merge_all(&mut newcomer, &[signed(&member("a", 1, 0))]);
    let before = old.digest();
    old.set_gone(&node("b"), true);
    assert_eq!(old.digest(), newcomer.digest(), "who never met b holds the same");

    assert_eq!(old.difference(&newcomer.summary()).0, [], "a newcomer hears nothing of b");
    let (_, wanted) = newcomer.difference(&old.summary());
    assert_eq!(old.statements_of(&wanted), [], "not even when it asks");

    let (told, _) = old.difference(&introduced().summary());
    assert!(told.contains(&left), "who knows b hears that it left");
    let (_, wanted) = introduced().difference(&old.summary());
    assert!(old.statements_of(&wanted).contains(&left));
    assert_eq!(old.statements().len(), 4, "and the disk keeps everything");

    old.set_gone(&node("b"), false);
    assert_eq!(old.digest(), before);
    old.set_gone(&node("b"), true);
    old.forget(&node("b"));
    assert_eq!(old.digest(), newcomer.digest());
}
