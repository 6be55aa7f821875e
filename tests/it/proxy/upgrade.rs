//! Upgrades (WebSocket and any other): a tunnel without a byte lost (REQUIREMENTS P1, P2).

use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use crate::support::{Act, End, Fixture, Instance, Raw, Upstream, fixture::eventually, raw::find};

const ASK: &str = "GET /chat HTTP/1.1\r\nHost: orders\r\nConnection: keep-alive, UPGRADE\r\nUpgrade: WebSocket\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nx-user-id: u1\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                      Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Both ends of a tunnel through a proxy.
struct Pair {
    proxy: Fixture,
    client: Raw,
    instance: Raw,
}

impl Pair {
    fn new(change: impl FnOnce(&mut lanemesh::proxy::ProxyConfig)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let proxy = Fixture::with(&[Instance::new("o1", addr)], &[], change);
        let mut client = proxy.client();
        client.send(ASK);
        let mut instance = Raw::from_stream(listener.accept().unwrap().0);
        instance.until("request", |bytes| find(bytes, b"\r\n\r\n").is_some());
        instance.take();
        instance.send(SWITCH);
        assert_eq!(client.response(false).status, 101);
        Self { proxy, client, instance }
    }
}

#[test]
fn c42_an_upgrade_becomes_a_tunnel_and_no_byte_is_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Fixture::one(listener.local_addr().unwrap());
    let mut client = proxy.client();
    // Impatient: sends right behind its request, as some protocols do.
    client.send(format!("{ASK}early from the client"));
    let mut instance = Raw::from_stream(listener.accept().unwrap().0);
    instance.until("request", |bytes| find(bytes, b"\r\n\r\n").is_some());
    let head = String::from_utf8(instance.take()).unwrap().to_lowercase();
    assert!(head.contains("\r\nconnection: upgrade\r\n") && head.contains("\r\nupgrade: websocket\r\n"), "{head}");
    assert!(head.contains("\r\nsec-websocket-key: ") && head.ends_with("\r\n\r\n"), "nothing before the 101: {head}");
    instance.send(format!("{SWITCH}early from the instance"));
    let response = client.response(false);
    assert_eq!((response.status, response.header("x-lanemesh-instance")), (101, Some("o1")));
    assert_eq!((response.header("connection"), response.header("upgrade")), (Some("upgrade"), Some("websocket")));
    assert!(response.header("sec-websocket-accept").is_some() && response.header("content-length").is_none());
    client.until("early bytes", |bytes| bytes == b"early from the instance");
    instance.until("early bytes", |bytes| bytes == b"early from the client");
    for n in 0..100 {
        client.send(format!("<{n}>"));
        instance.until("echo", |bytes| bytes.ends_with(format!("<{n}>").as_bytes()));
        instance.send(format!("[{n}]"));
        client.until("echo", |bytes| bytes.ends_with(format!("[{n}]").as_bytes()));
    }
    eventually("it is counted", || proxy.metric("lanemesh_tunnels", &[]) == 1.0);
    drop((client, instance));
    eventually("it ends with both", || proxy.metric("lanemesh_tunnels", &[]) == 0.0);
    let log = proxy.access_log();
    assert_eq!((&log[0]["status"], &log[0]["target_instance"]), (&101.into(), &"o1".into()));
    assert_eq!(log[0]["bytes"], 23 + 390, "what the client got after the 101");
}

#[test]
fn each_side_finishes_by_itself() {
    let Pair { mut client, mut instance, proxy } = Pair::new(|_| {});
    client.send("last words").half_close();
    assert_eq!(instance.drain(), (b"last words".to_vec(), End::Fin));
    thread::sleep(Duration::from_millis(100));
    instance.send("the answer to that").half_close();
    assert_eq!(client.drain(), (b"the answer to that".to_vec(), End::Fin));
    eventually("nothing is left", || proxy.running.as_ref().unwrap().in_flight() == 0);
    assert_eq!(proxy.access_log()[0]["error"], serde_json::Value::Null);
}

#[test]
fn large_streams_cross_whole_whoever_is_slow() {
    let Pair { client, instance, proxy: _proxy } = Pair::new(|_| {});
    let body = |seed: u32| -> Vec<u8> {
        (0..6_000_000_u32).map(|n| (n.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    };
    let send = |end: &Raw, bytes: Vec<u8>| {
        let mut writer = end.writer();
        thread::spawn(move || {
            writer.write_all(&bytes).unwrap();
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        })
    };
    let receive = |end: &Raw, pause: Duration| {
        let mut reader = end.writer();
        thread::spawn(move || {
            let (mut all, mut buffer) = (Vec::new(), vec![0; 300_000]);
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                all.extend_from_slice(&buffer[..count]);
                thread::sleep(pause);
            }
            all
        })
    };
    let writers = [send(&client, body(1)), send(&instance, body(2))];
    let (up, down) = (receive(&instance, Duration::from_millis(2)), receive(&client, Duration::ZERO));
    assert!(up.join().unwrap() == body(1) && down.join().unwrap() == body(2));
    for writer in writers {
        writer.join().unwrap();
    }
}

#[test]
fn a_reset_on_one_side_is_a_reset_on_the_other() {
    let Pair { client, mut instance, proxy } = Pair::new(|_| {});
    let began = Instant::now();
    client.reset();
    assert_eq!(instance.drain().1, End::Rst);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    eventually("it has ended", || proxy.running.as_ref().unwrap().in_flight() == 0);
    assert_eq!(proxy.access_log()[0]["error"], "client_aborted");
    let Pair { mut client, instance, proxy } = Pair::new(|_| {});
    instance.reset();
    assert_eq!(client.drain().1, End::Rst);
    eventually("it has ended", || proxy.running.as_ref().unwrap().in_flight() == 0);
    assert_eq!(proxy.access_log()[0]["error"], "upstream_reset");
}

#[test]
fn silence_has_a_limit_of_its_own() {
    let Pair { mut client, mut instance, proxy } = Pair::new(|config| {
        config.proxy.timeouts.idle = Duration::from_millis(100);
        config.proxy.timeouts.tunnel_idle = Duration::from_millis(1_200);
    });
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(600));
        client.send("x");
        instance.until("one byte", |bytes| !bytes.is_empty());
        instance.take();
    }
    let began = Instant::now();
    assert_eq!((client.drain().1, instance.drain().1), (End::Fin, End::Fin));
    assert!((900..3_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    eventually("it has ended", || proxy.running.as_ref().unwrap().in_flight() == 0);
    assert_eq!(proxy.access_log()[0]["error"], "tunnel_idle");
}

#[test]
fn one_side_that_never_finishes_is_not_waited_for_as_long() {
    let Pair { mut client, mut instance, proxy: _proxy } = Pair::new(|config| {
        config.proxy.timeouts.idle = Duration::from_millis(300);
        config.proxy.timeouts.tunnel_idle = Duration::from_secs(60);
    });
    client.half_close();
    assert_eq!(instance.drain().1, End::Fin);
    assert_eq!(client.drain().1, End::Fin);
}

#[test]
fn a_refused_upgrade_is_an_ordinary_answer() {
    let up = Upstream::start(|seen, _| {
        vec![if seen.values("upgrade").is_empty() {
            Act::ok("plain")
        } else {
            Act::send("HTTP/1.1 426 Upgrade Required\r\nupgrade: chat/2\r\ncontent-length: 2\r\n\r\nno")
        }]
    });
    let proxy = Fixture::one(up.addr);
    let mut client = proxy.client();
    let response = client.ask(ASK);
    assert_eq!((response.status, response.text().as_str()), (426, "no"));
    for request in [
        // `Upgrade` alone, `Connection` alone, HTTP/1.0, an obsolete one, one with a body that is still on its way.
        "GET / HTTP/1.1\r\nHost: orders\r\nUpgrade: websocket\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: orders\r\nConnection: upgrade\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: orders\r\nConnection: keep-alive, upgrade\r\nUpgrade: websocket\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: orders\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        "PUT / HTTP/1.1\r\nHost: orders\r\nConnection: upgrade\r\nUpgrade: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    ] {
        assert_eq!(client.ask(request).text(), "plain", "{request}");
        let seen = up.seen().pop().unwrap();
        assert!(seen.values("upgrade").is_empty() && seen.values("connection").is_empty(), "{}", seen.head);
    }
}

#[test]
fn a_small_body_may_come_before_the_switch() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Fixture::one(listener.local_addr().unwrap());
    let mut client = proxy.client();
    client.send("POST /exec HTTP/1.1\r\nHost: orders\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 4\r\n\r\nbodyraw");
    let mut instance = Raw::from_stream(listener.accept().unwrap().0);
    instance.until("request with its body", |bytes| bytes.ends_with(b"\r\n\r\nbody"));
    instance.take();
    // Without naming what it switches to, as some servers do.
    instance.send("HTTP/1.1 101 UPGRADED\r\nContent-Type: application/x-raw\r\n\r\nhi");
    let response = client.response(false);
    assert_eq!((response.status, response.header("upgrade")), (101, Some("tcp")));
    client.until("raw bytes", |bytes| bytes == b"hi");
    instance.until("raw bytes", |bytes| bytes == b"raw");
}

#[test]
fn another_instance_takes_over_only_before_the_switch() {
    let reset = Upstream::start(|_, _| vec![Act::Reset]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let instances = [
        Instance::new("down", Upstream::refusing()),
        Instance::new("reset", reset.addr),
        Instance::new("up", listener.local_addr().unwrap()),
    ];
    let proxy = Fixture::new(&instances);
    let key = (0..).map(|n| format!("u{n}")).find(|key| proxy.order(key)[2] == "up").unwrap();
    let mut client = proxy.client();
    client.send(ASK.replace("u1", &key));
    let mut instance = Raw::from_stream(listener.accept().unwrap().0);
    instance.until("request", |bytes| find(bytes, b"\r\n\r\n").is_some());
    instance.send(SWITCH);
    let response = client.response(false);
    assert_eq!((response.status, response.header("x-lanemesh-instance")), (101, Some("up")));
    instance.reset();
    assert_eq!(client.drain(), (vec![], End::Rst), "nothing is begun anew behind the client's back");
}

#[test]
fn a_drain_keeps_tunnels_and_the_stop_closes_them() {
    let Pair { mut client, mut instance, mut proxy } = Pair::new(|_| {});
    let running = proxy.running.take().unwrap();
    running.drain();
    assert_eq!(running.in_flight(), 1, "a shutdown waits for it");
    client.send("still there");
    instance.until("bytes", |bytes| bytes == b"still there");
    instance.take();
    let began = Instant::now();
    running.stop();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!((client.drain(), instance.drain()), ((vec![], End::Fin), (vec![], End::Fin)));
}

#[test]
fn many_idle_tunnels_are_cheap_and_all_work() {
    let up = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Fixture::one(up.local_addr().unwrap());
    let mut pairs = Vec::new();
    for _ in 0..200 {
        let mut client = proxy.client();
        client.send(ASK);
        let mut instance = Raw::from_stream(up.accept().unwrap().0);
        instance.until("request", |bytes| find(bytes, b"\r\n\r\n").is_some());
        instance.take();
        instance.send(SWITCH);
        assert_eq!(client.response(false).status, 101);
        pairs.push((client, instance));
    }
    eventually("all are tunnels", || proxy.metric("lanemesh_tunnels", &[]) == 200.0);
    for (n, (client, instance)) in pairs.iter_mut().enumerate() {
        client.send(format!("{n}"));
        instance.until("bytes", |bytes| bytes == n.to_string().as_bytes());
    }
}
