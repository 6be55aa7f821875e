//! Envelopes, syncs and probes between peers that mean well.

use super::*;
use crate::{net::NetFault, wire};

#[tokio::test]
async fn envelopes_go_both_ways_over_one_authenticated_connection() {
    let (mut a, mut b) = pair(&authority()).await;
    until("a datagram may be sent", || {
        a.send(&b, "again");
        a.net.stats().datagrams_out.get() > 0
    })
    .await;
    let (from, bytes) = b.envelope().await;
    assert_eq!((from, bytes), (a.node.clone(), Bytes::from("again")));
    let most = a.net.engine.pool().front(&b.node).unwrap().conn.max_datagram_size().unwrap();
    assert!(most >= wire::MAX_DATAGRAM, "what `wire` calls a datagram goes as one: {most}");
    let big = Bytes::from(vec![5; 100_000]);
    b.net.send(&a.node, a.addr, big.clone());
    assert_eq!(a.envelope().await, (b.node.clone(), big), "what fits no datagram goes on a stream");
    assert_eq!((a.net.connections(), b.net.connections()), (1, 1));
    assert_eq!(a.net.peers(), [b.node.clone()]);
    assert_eq!(a.net.stats().dials.get() + b.net.stats().dials.get(), 1);
}

#[tokio::test]
async fn the_first_envelope_of_a_fresh_connection_arrives_a_hundred_times_in_a_row() {
    let authority = authority();
    let mut server = Peer::start(&authority, "server");
    for n in 0..100 {
        let client = Peer::start(&authority, &format!("c{n}"));
        client.send(&server, "first");
        client.send(&server, "second");
        assert_eq!(server.envelope().await, (client.node.clone(), Bytes::from("first")));
        assert_eq!(server.envelope().await, (client.node.clone(), Bytes::from("second")));
    }
}

#[tokio::test]
async fn the_first_envelopes_arrive_though_packets_overtake_each_other_and_get_lost() {
    let authority = authority();
    let mut server = Peer::start(&authority, "server");
    for n in 0..30 {
        let client = Peer::with(identity(&authority, &format!("c{n}")), LOOPBACK.parse().unwrap(), |config| {
            config.socket = Shuffle::bind(7 + n % 5);
            config.limits = limits(|l| l.dial_deadline = Duration::from_secs(10));
        });
        client.send(&server, "first");
        // Sent the moment that this side believes in the connection, when the other may not know it yet.
        until("connected", || client.net.connections() == 1).await;
        client.send(&server, "second");
        let mut got = [server.envelope().await.1, server.envelope().await.1];
        got.sort();
        assert_eq!(got, ["first", "second"]);
    }
}

#[tokio::test]
async fn a_sync_brings_the_reply_of_whoever_answers() {
    let authority = authority();
    let (mut a, b) = (Peer::start(&authority, "a"), Peer::start(&authority, "b"));
    let (b_node, b_addr) = (b.node.clone(), echo(b));
    a.net.open_sync(1, Some(&b_node), b_addr, Bytes::from("ask"));
    assert_eq!(a.sync_reply().await, (1, Ok((b_node.clone(), Bytes::from("ask")))));
    a.net.open_sync(2, None, b_addr, Bytes::from(vec![9; 1 << 20]));
    assert_eq!(a.sync_reply().await, (2, Ok((b_node, Bytes::from(vec![9; 1 << 20])))));
    assert_eq!(a.net.stats().dials.get(), 1, "the open connection was found by its address");
}

#[tokio::test]
async fn a_sync_with_an_unknown_seed_tells_who_it_is() {
    let authority = authority();
    let (mut a, b) = (Peer::start(&authority, "a"), Peer::start(&authority, "b"));
    let (b_node, b_addr) = (b.node.clone(), echo(b));
    a.net.open_sync(1, None, b_addr, Bytes::from("who are you"));
    assert_eq!(a.sync_reply().await.1.unwrap().0, b_node);
    assert_eq!(a.net.peers(), [b_node], "and the connection is kept");
}

#[tokio::test]
async fn a_sync_that_nobody_answers_ends_at_its_deadline() {
    let authority = authority();
    let (mut a, _mute) = (
        Peer::with(identity(&authority, "a"), LOOPBACK.parse().unwrap(), |c| {
            c.limits = limits(|l| l.stream_deadline = Duration::from_millis(200));
        }),
        Peer::start(&authority, "mute"),
    );
    a.net.open_sync(1, Some(&_mute.node), _mute.addr, Bytes::from("ask"));
    let (_, result) = a.sync_reply().await;
    assert_eq!(result, Err(NetFault::Silent(_mute.addr, Duration::from_millis(200))));
    assert_eq!(a.net.stats().syncs_failed.get(), 1);
}

#[tokio::test]
async fn more_syncs_at_once_than_a_peer_takes_still_all_end() {
    let authority = authority();
    let (mut a, b) = (Peer::start(&authority, "a"), Peer::start(&authority, "b"));
    let (b_node, b_addr) = (b.node.clone(), echo(b));
    for token in 0..100 {
        a.net.open_sync(token, Some(&b_node), b_addr, Bytes::from(token.to_string()));
    }
    let (mut answered, mut busy) = (0, 0);
    for _ in 0..100 {
        match a.sync_reply().await {
            (token, Ok((_, reply))) => {
                assert_eq!(reply, token.to_string());
                answered += 1;
            }
            (_, Err(NetFault::Busy(64))) => busy += 1,
            (_, Err(other)) => panic!("{other}"),
        }
    }
    assert!(answered >= 64 && answered + busy == 100, "{answered} answered");
}

#[tokio::test]
async fn a_port_that_refuses_is_reported_and_one_that_listens_is_not() {
    let authority = authority();
    let (mut a, b) = (Peer::start(&authority, "a"), Peer::start(&authority, "b"));
    let gone = std::net::UdpSocket::bind(LOOPBACK).unwrap().local_addr().unwrap();
    a.net.udp_probe(1, b.addr);
    a.net.udp_probe(2, gone);
    assert!(matches!(a.event().await, NetEvent::Refused { token: 2 }));
    until("both probes ended", || a.net.stats().probes.get() == 2 && a.net.engine.probes_idle()).await;
    assert!(a.events.try_recv().is_err(), "the living port is not reported");
}

#[tokio::test]
async fn an_envelope_too_large_for_any_stream_is_dropped_and_counted() {
    let (a, mut b) = pair(&authority()).await;
    a.net.send(&b.node, b.addr, Bytes::from(vec![0; wire::MAX_STREAM + 1]));
    assert_eq!(a.net.stats().dropped_too_large.get(), 1);
    a.send(&b, "next");
    assert_eq!(b.envelope().await.1, "next");
}

#[tokio::test]
async fn what_was_sent_before_closing_arrives_and_peers_hear_of_the_end() {
    let (a, mut b) = pair(&authority()).await;
    until("a datagram may be sent", || {
        a.send(&b, "a datagram");
        a.net.stats().datagrams_out.get() > 0
    })
    .await;
    a.net.send_reliable(&b.node, b.addr, Bytes::from("goodbye"));
    a.send(&b, "the last datagram");
    assert!(!a.net.engine.is_flushed(), "nothing of it is acknowledged yet");
    until("all is delivered", || a.net.engine.is_flushed()).await;
    a.net.close().await;
    let mut missing = vec!["goodbye", "the last datagram"];
    while !missing.is_empty() {
        let (_, bytes) = b.envelope().await;
        missing.retain(|text| bytes != *text);
    }
    until("the connection is gone", || b.net.connections() == 0).await;
    a.send(&b, "from the grave");
    assert_eq!(a.net.stats().dropped_unreachable.get(), 1);
}

#[tokio::test]
async fn a_full_pool_closes_the_connection_heard_least_recently() {
    let authority = authority();
    let mut hub = Peer::with(identity(&authority, "hub"), LOOPBACK.parse().unwrap(), |config| {
        config.limits = limits(|l| l.connections = 2);
    });
    let mut spokes: Vec<Peer> = ["x", "y", "z"].map(|name| Peer::start(&authority, name)).into();
    meet(&mut spokes[0], &mut hub).await;
    tokio::time::sleep(Duration::from_millis(2)).await; // the clock of "heard" counts milliseconds
    meet(&mut spokes[1], &mut hub).await;
    tokio::time::sleep(Duration::from_millis(2)).await;
    spokes[0].send(&hub, "still here");
    assert_eq!(hub.envelope().await.1, "still here");
    meet(&mut spokes[2], &mut hub).await;
    assert_eq!(hub.net.peers(), [node("x"), node("z")]);
    assert_eq!(hub.net.stats().evicted.get(), 1);
    until("the other side knows", || spokes[1].net.connections() == 0).await;
}

#[tokio::test]
async fn ipv6_peers_meet() {
    let authority = authority();
    let any = "[::1]:0".parse().unwrap();
    let Ok(_) = std::net::UdpSocket::bind("[::1]:0") else {
        eprintln!("skipped: this host has no IPv6; run where ::1 exists");
        return;
    };
    let (mut a, mut b) =
        (Peer::with(identity(&authority, "a"), any, |_| {}), Peer::with(identity(&authority, "b"), any, |_| {}));
    meet(&mut a, &mut b).await;
}
