//! Strangers, namesakes and members that misbehave.

use super::*;
use crate::{net::NetFault, wire};

#[tokio::test]
async fn another_mesh_of_the_same_authority_is_refused_and_both_sides_say_why() {
    let staging = authority().for_mesh("staging");
    let (mut ours, mut theirs) = (Peer::start(&authority(), "a"), Peer::start(&staging, "b"));
    ours.send(&theirs, "hello");
    let here = ours.refusal().await;
    assert_eq!(
        here,
        "node `b` belongs to mesh `staging`, this one is mesh `prod`: correct the seeds or the certificate"
    );
    let there = theirs.refusal().await;
    assert_eq!(there, format!("refused by the peer: {here}"));
    until("nothing stays open", || ours.net.connections() + theirs.net.connections() == 0).await;
    assert!(theirs.events.try_recv().is_err(), "no envelope came through");
}

#[tokio::test]
async fn a_stranger_with_an_authority_of_its_own_is_refused() {
    let forged = Authority::new(&MeshName::new("prod").unwrap(), [8; 32], now());
    let (mut ours, mut stranger) = (Peer::start(&authority(), "a"), Peer::start(&forged, "b"));
    stranger.send(&ours, "hello");
    for reason in [stranger.refusal().await, ours.refusal().await] {
        assert!(reason.contains("comes from an authority that is not trusted here"), "{reason}");
        assert!(reason.contains("of mesh `prod`") && reason.contains("ca.pem"), "{reason}");
    }
}

#[tokio::test]
async fn a_client_whose_server_side_trusts_it_not_hears_why() {
    // The client trusts both authorities, the server only its own: the server refuses after the client was content.
    let (ours, other) = (authority(), Authority::new(&MeshName::new("prod").unwrap(), [8; 32], now()));
    let mut server = Peer::start(&ours, "server");
    let request =
        LeafRequest { node: node("c"), services: vec![], any_service: false, valid_for: LeafRequest::DEFAULT_VALIDITY };
    let leaf = other.sign(&request, [5; 32], now()).unwrap();
    let parts = IdentityParts {
        certificate: leaf.certificate,
        key: leaf.key,
        authorities: vec![other.certificate().clone(), ours.certificate().clone()],
        provider: Arc::new(rustls::crypto::ring::default_provider()),
        clock: Arc::new(rustls::time_provider::DefaultTimeProvider),
    };
    let identity = Arc::new(Identity::from_parts(parts).unwrap());
    let mut client = Peer::with(identity, LOOPBACK.parse().unwrap(), |_| {});
    client.send(&server, "hello");
    assert!(server.refusal().await.contains("node `c`"));
    assert!(client.refusal().await.starts_with("refused by the peer: the certificate of node `c`"));
    until("nothing stays open", || client.net.connections() == 0).await;
}

#[tokio::test]
async fn somebody_else_at_the_address_is_named() {
    let authority = authority();
    let (mut a, mut y) = (Peer::start(&authority, "a"), Peer::start(&authority, "y"));
    a.net.open_sync(1, Some(&node("x")), y.addr, Bytes::from("ask"));
    let (_, result) = a.sync_reply().await;
    let Err(NetFault::Handshake { addr, reason }) = result else { panic!("{result:?}") };
    assert_eq!(addr, y.addr);
    assert!(reason.starts_with("expected node `x`, answered by node `y`"), "{reason}");
    assert!(y.refusal().await.contains("expected node `x`"));
    assert_eq!((a.net.connections(), y.net.connections()), (0, 0));
}

#[tokio::test]
async fn failures_with_one_address_are_reported_once_and_counted_always() {
    let (mut ours, theirs) = (Peer::start(&authority(), "a"), Peer::start(&authority().for_mesh("staging"), "b"));
    for round in 1..=5 {
        ours.send(&theirs, "hello");
        until("refused", || ours.net.stats().handshakes_failed.get() == round).await;
    }
    ours.refusal().await;
    assert!(ours.events.try_recv().is_err());
}

#[tokio::test]
async fn ones_own_address_among_the_seeds_is_told_from_a_namesake() {
    let authority = authority();
    let mut a = Peer::start(&authority, "a");
    a.net.open_sync(1, None, a.addr, Bytes::from("ask"));
    assert_eq!(a.sync_reply().await.1, Err(NetFault::Itself(a.addr)));
    assert!(a.events.try_recv().is_err(), "that is no fault to report");
    let mut namesake = Peer::start(&authority, "a");
    a.net.open_sync(2, None, namesake.addr, Bytes::from("ask"));
    let expected = NetFault::OwnName { addr: namesake.addr, node: node("a") };
    let (mut reason, mut result) = (None, None);
    while reason.is_none() || result.is_none() {
        match a.event().await {
            NetEvent::HandshakeRefused { reason: text, .. } => reason = Some(text),
            NetEvent::SyncReply { result: got, .. } => result = Some(got),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(result.unwrap(), Err(expected.clone()));
    assert_eq!(reason.unwrap(), expected.to_string());
    // The one that was dialled knows it too.
    assert!(matches!(namesake.event().await, NetEvent::NameClaimed { addr } if addr == a.addr));
}

#[tokio::test]
async fn junk_on_a_stream_spoils_that_stream_and_nothing_else() {
    let authority = authority();
    let (mut a, mut b) = (Peer::start(&authority, "a"), Peer::start(&authority, "b"));
    meet(&mut a, &mut b).await;
    let raw = a.net.engine.pool().front(&b.node).unwrap().conn.clone();
    let mut stream = raw.open_uni().await.unwrap();
    stream.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
    until("counted", || b.net.stats().dropped_too_large.get() == 1).await;
    // Half an envelope, then the end.
    let mut stream = raw.open_uni().await.unwrap();
    stream.write_all(&[100, 0, 0, 0, 1, 2, 3]).await.unwrap();
    stream.finish().unwrap();
    let mut c = Peer::start(&authority, "c");
    meet(&mut c, &mut b).await;
    a.send(&b, "still good");
    assert_eq!(b.envelope().await, (a.node.clone(), Bytes::from("still good")));
}

#[tokio::test]
async fn a_sync_larger_than_is_read_ends_without_an_answer() {
    let authority = authority();
    let (mut a, b) = (Peer::start(&authority, "a"), Peer::start(&authority, "b"));
    let (b_node, b_addr) = (b.node.clone(), echo(b));
    a.net.open_sync(1, Some(&b_node), b_addr, Bytes::from(vec![0; wire::MAX_STREAM + 1]));
    assert!(a.sync_reply().await.1.is_err());
    a.net.open_sync(2, Some(&b_node), b_addr, Bytes::from("small"));
    assert_eq!(a.sync_reply().await.1.unwrap().1, "small");
}

#[tokio::test]
async fn an_agent_that_sleeps_loses_envelopes_but_never_its_endpoint() {
    let authority = authority();
    let (mut a, mut b) = pair(&authority).await;
    until("many lost", || {
        (0..50).for_each(|_| a.send(&b, "more"));
        b.net.stats().dropped_inbox_full.get() > 10
    })
    .await;
    while b.events.try_recv().is_ok() {}
    b.send(&a, "awake");
    assert_eq!(a.envelope().await.1, "awake");
}

#[tokio::test]
async fn strangers_that_never_finish_a_handshake_keep_nobody_out() {
    let authority = authority();
    let mut server = Peer::with(identity(&authority, "server"), LOOPBACK.parse().unwrap(), |config| {
        config.limits = limits(|l| l.handshakes = 4);
    });
    // Clients whose packets all get lost after the first: they hold a handshake each.
    let mut stuck = Vec::new();
    for n in 0..6 {
        let client = Peer::with(identity(&authority, &format!("s{n}")), LOOPBACK.parse().unwrap(), |config| {
            config.socket = Shuffle::bind(2);
        });
        client.send(&server, "half");
        stuck.push(client);
    }
    let good = Peer::start(&authority, "good");
    let reached = async {
        loop {
            good.send(&server, "whole");
            if let Ok((from, _)) = tokio::time::timeout(Duration::from_millis(300), server.envelope()).await
                && from == good.node
            {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.expect("let in");
    good.net.close().await;
}
