//! Double dials, restarts, renewals: how two peers get back to one good connection.

use std::{sync::mpsc as std_mpsc, time::Instant};

use super::*;

/// A peer in a runtime of its own, which can be killed without a word.
struct Process {
    runtime: Option<tokio::runtime::Runtime>,
    addr: SocketAddr,
    node: NodeId,
    heard: std_mpsc::Receiver<Bytes>,
}

impl Process {
    fn start(identity: Arc<Identity>, addr: SocketAddr, reset_key: [u8; 32]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (tell, heard) = std_mpsc::channel();
        let _inside = runtime.enter();
        let mut peer = Peer::with(identity, addr, |config| config.reset_key = reset_key);
        let (addr, node) = (peer.addr, peer.node.clone());
        runtime.spawn(async move {
            while let Some(event) = peer.events.recv().await {
                match event {
                    NetEvent::Envelope { bytes, .. } => drop(tell.send(bytes)),
                    NetEvent::SyncRequest { id, bytes, .. } => peer.net.reply(id, bytes),
                    _ => {}
                }
            }
        });
        drop(_inside);
        Self { runtime: Some(runtime), addr, node, heard }
    }

    /// Kill -9: no packet leaves, the port is free afterwards.
    fn kill(mut self) {
        self.runtime.take().unwrap().shutdown_timeout(Duration::from_secs(5));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Sends every 20 ms, as a prober would, until the process hears it; how long that took.
async fn until_heard(a: &Peer, process: &Process) -> Duration {
    let began = Instant::now();
    while process.heard.try_recv().is_err() {
        assert!(began.elapsed() < PATIENCE, "never heard");
        a.net.send(&process.node, process.addr, Bytes::from("anybody there?"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    began.elapsed()
}

async fn restart(second_reset_key: [u8; 32]) -> (Peer, Duration) {
    let authority = authority();
    let a = Peer::start(&authority, "a");
    let first = Process::start(identity(&authority, "b"), LOOPBACK.parse().unwrap(), [1; 32]);
    until_heard(&a, &first).await;
    let addr = first.addr;
    first.kill();
    let second = Process::start(identity(&authority, "b"), addr, second_reset_key);
    let took = until_heard(&a, &second).await;
    (a, took)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_peer_with_its_reset_key_is_reached_at_once() {
    let (a, took) = restart([1; 32]).await;
    // A reset costs one round trip and a dial another; the rest is for a busy machine.
    assert!(took < Duration::from_millis(1500), "{took:?}");
    assert_eq!(a.net.stats().dials_of_silent.get(), 0, "it was told, not found out");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_peer_that_lost_its_reset_key_is_found_by_racing_a_dial() {
    let (a, took) = restart([2; 32]).await;
    assert!(took < Duration::from_millis(2500), "{took:?}");
    assert_eq!(a.net.stats().dials_of_silent.get(), 1);
    until("the dead connection is closed", || a.net.stats().superseded.get() == 1).await;
    assert_eq!(a.net.connections(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sync_over_a_dead_connection_is_repeated_over_a_new_one() {
    let authority = authority();
    let mut a = Peer::start(&authority, "a");
    let first = Process::start(identity(&authority, "b"), LOOPBACK.parse().unwrap(), [1; 32]);
    until_heard(&a, &first).await;
    let addr = first.addr;
    first.kill();
    let second = Process::start(identity(&authority, "b"), addr, [2; 32]);
    a.net.open_sync(1, Some(&second.node), addr, Bytes::from("state?"));
    assert_eq!(a.sync_reply().await.1, Ok((second.node.clone(), Bytes::from("state?"))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_peer_that_dials_first_replaces_its_old_connection() {
    let authority = authority();
    let mut a = Peer::start(&authority, "a");
    let first = Process::start(identity(&authority, "b"), LOOPBACK.parse().unwrap(), [1; 32]);
    until_heard(&a, &first).await;
    let addr = first.addr;
    first.kill();
    let mut b = Peer::with(identity(&authority, "b"), addr, |config| config.reset_key = [2; 32]);
    b.send(&a, "i am back");
    assert_eq!(a.envelope().await.1, "i am back");
    a.net.retire(&b.node);
    until("the old one is closed", || a.net.engine.pool().peers.values().all(|peer| peer.links.len() == 1)).await;
    a.send(&b, "welcome");
    assert_eq!(b.envelope().await.1, "welcome", "the new connection has passed the test");
}

#[tokio::test]
async fn a_double_dial_ends_with_one_connection_opened_by_the_smaller_name() {
    let authority = authority();
    for _ in 0..10 {
        let (mut a, mut b) = (Peer::start(&authority, "a"), Peer::start(&authority, "b"));
        a.send(&b, "from a");
        b.send(&a, "from b");
        assert_eq!(b.envelope().await.1, "from a");
        assert_eq!(a.envelope().await.1, "from b");
        let single =
            |peer: &Peer| peer.net.engine.pool().peers.values().map(|p| p.links.len()).collect::<Vec<_>>() == [1];
        until("one connection each", || single(&a) && single(&b)).await;
        let both = a.net.stats().accepted.get() == 1 && b.net.stats().accepted.get() == 1;
        if both {
            assert!(a.net.engine.pool().front(&b.node).unwrap().by_us, "the one that a opened stays");
            assert!(!b.net.engine.pool().front(&a.node).unwrap().by_us);
        }
        a.send(&b, "after");
        assert_eq!(b.envelope().await.1, "after");
        b.send(&a, "after");
        assert_eq!(a.envelope().await.1, "after");
    }
}

#[tokio::test]
async fn what_cannot_be_delivered_is_dropped_in_time_and_counted() {
    let authority = authority();
    let a = Peer::with(identity(&authority, "a"), LOOPBACK.parse().unwrap(), |config| {
        config.limits = limits(|l| (l.dial_deadline, l.queue) = (Duration::from_millis(100), 10));
    });
    let deaf = std::net::UdpSocket::bind(LOOPBACK).unwrap();
    for _ in 0..25 {
        a.net.send(&node("deaf"), deaf.local_addr().unwrap(), Bytes::from("hello?"));
    }
    until("given up", || a.net.stats().dropped_unreachable.get() == 10).await;
    assert_eq!(a.net.stats().dropped_queue_full.get(), 15);
    assert_eq!(a.net.stats().dials_failed.get(), 1);
    assert!(a.net.engine.pool().peers.is_empty(), "nothing is left of it");
}

#[tokio::test]
async fn a_dial_follows_a_newer_address() {
    let authority = authority();
    let (a, mut b) = (Peer::start(&authority, "a"), Peer::start(&authority, "b"));
    let deaf = std::net::UdpSocket::bind(LOOPBACK).unwrap();
    a.net.send(&b.node, deaf.local_addr().unwrap(), Bytes::from("to the old address"));
    a.send(&b, "to the new one");
    assert_eq!(b.envelope().await.1, "to the old address");
    assert_eq!(b.envelope().await.1, "to the new one");
}

#[tokio::test]
async fn a_renewed_certificate_is_used_from_the_next_handshake() {
    let authority = authority();
    let short = identity_from(&authority, "a", now(), Duration::from_secs(3600));
    let (mut a, mut b) = (Peer::with(short, LOOPBACK.parse().unwrap(), |_| {}), Peer::start(&authority, "b"));
    meet(&mut a, &mut b).await;
    let renewed = identity(&authority, "a");
    a.net.renew(renewed.clone()).unwrap();
    b.send(&a, "the open connection stays");
    assert_eq!(a.envelope().await.1, "the open connection stays");
    let mut c = Peer::start(&authority, "c");
    meet(&mut c, &mut a).await;
    let seen = c.net.engine.pool().front(&a.node).unwrap().conn.clone();
    assert_eq!(c.net.engine.check(&seen).await.unwrap().key, renewed.facts().key);
    let stranger = a.net.renew(identity(&authority, "z")).unwrap_err().to_string();
    assert!(stranger.contains("`z`"), "{stranger}");
}

#[tokio::test]
async fn a_connection_ends_with_the_certificate_behind_it() {
    let authority = authority();
    let issued = Wall(now().0 - 58_000);
    let brief = identity_from(&authority, "brief", issued, Duration::from_secs(60));
    let (mut a, mut brief) = (Peer::start(&authority, "a"), Peer::with(brief, LOOPBACK.parse().unwrap(), |_| {}));
    meet(&mut brief, &mut a).await;
    until("closed", || a.net.connections() == 0).await;
    assert_eq!(a.net.stats().expired.get() + brief.net.stats().expired.get(), 1);
    brief.send(&a, "let me in");
    let reason = a.refusal().await;
    assert!(reason.contains("node `brief` of mesh `prod` expired on 2"), "{reason}");
}
