//! `CONNECT` and TCP ports: bytes of any kind to an instance of the mesh (REQUIREMENTS P1, R6).

use std::{
    io::Write,
    net::{SocketAddr, TcpListener},
    thread,
    time::{Duration, Instant},
};

use lanemesh::{
    config::{ServiceRule, TcpKey},
    types::ServiceName,
};

use crate::support::{
    Act, End, Fixture, Instance, Raw, Upstream,
    fixture::{eventually, silent},
    raw::find,
};

fn connect(target: &str, headers: &str) -> String {
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{headers}\r\n")
}

fn service() -> ServiceName {
    ServiceName::new("orders").unwrap()
}

/// A proxy with a TCP port for `orders`, and the port.
fn tcp(instances: &[Instance], key: TcpKey) -> (Fixture, SocketAddr) {
    let proxy = Fixture::with(instances, &[], |config| {
        config.proxy.tcp_ports.insert(service(), "127.0.0.1:0".parse().unwrap());
        config.services.insert(service(), ServiceRule { tcp_key: key, ..ServiceRule::default() });
    });
    let port = proxy.running.as_ref().unwrap().tcp_ports()[&service()];
    (proxy, port)
}

/// Says its name to everybody and then sends back what it gets.
fn greeter(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let _ = stream.write_all(name.as_bytes());
                let mut from = stream.try_clone().unwrap();
                let _ = std::io::copy(&mut from, &mut stream);
                let _ = stream.shutdown(std::net::Shutdown::Write);
            });
        }
    });
    addr
}

/// What a greeter behind a TCP port calls itself.
fn name(port: SocketAddr) -> String {
    let mut client = Raw::connect(port);
    client.half_close();
    String::from_utf8(client.drain().0).unwrap()
}

#[test]
fn connect_is_a_tunnel_to_an_instance_chosen_by_key() {
    let proxy = Fixture::new(&[Instance::new("a", greeter("a")), Instance::new("b", greeter("b"))]);
    for n in 0..20 {
        let key = format!("u{n}");
        let owner = proxy.order(&key)[0].clone();
        let mut client = proxy.client();
        // Impatient, as a TLS client behind a fast proxy may be.
        client.send(format!("{}hello", connect("orders:443", &format!("x-user-id: {key}\r\n"))));
        let response = client.until("head", |bytes| find(bytes, b"\r\n\r\n").is_some()).head_only();
        assert_eq!((response.status, response.header("x-lanemesh-instance")), (200, Some(owner.as_str())));
        assert!(response.header("content-length").is_none() && response.header("transfer-encoding").is_none());
        client.until("echo", |bytes| bytes == format!("{owner}hello").as_bytes());
        client.take();
        client.send("GET / HTTP/1.1\r\nHost: billing\r\nx-lane: canary\r\n\r\n").half_close();
        let (echo, end) = client.drain();
        assert_eq!((find(&echo, b"x-lane: canary").is_some(), end), (true, End::Fin), "nothing inside is looked at");
    }
    let log = proxy.access_log();
    assert_eq!(
        (&log[0]["method"], &log[0]["status"], &log[0]["path"]),
        (&"CONNECT".into(), &200.into(), &"orders:443".into())
    );
}

#[test]
fn connect_leads_to_services_of_the_mesh_and_nowhere_else() {
    let up = Upstream::ok("ok");
    let proxy =
        Fixture::new(&[Instance::new("o1", up.addr), Instance::new("b1", Upstream::refusing()).service("billing")]);
    let elsewhere = up.addr.to_string();
    for (request, status, reason) in [
        (connect("example.com:443", ""), 404, "unknown_service"),
        (connect(&elsewhere, ""), 404, "unknown_service"),
        (connect("orders", ""), 400, "bad_target"),
        (connect("orders:", ""), 400, "bad_target"),
        (connect("orders:0", ""), 400, "bad_target"),
        (connect("orders:99999", ""), 400, "bad_target"),
        (connect("/orders:80", ""), 400, "bad_target"),
        (connect("http://orders:80/", ""), 400, "bad_target"),
        (connect("orders:80", "Content-Length: 3\r\n"), 400, "bad_framing"),
        (connect("orders:80", "Content-Length: 0\r\n"), 400, "bad_framing"),
        (connect("orders:80", "Transfer-Encoding: chunked\r\n"), 400, "bad_framing"),
        (connect("orders:80", "Host: billing\r\n"), 400, "bad_host"),
        ("CONNECT orders:80 HTTP/1.1\r\n\r\n".to_owned(), 400, "bad_host"),
        (connect("billing:80", ""), 503, "all_refused"),
    ] {
        let response = proxy.ask(&request);
        let told = (response.status, response.header("x-lanemesh-error"));
        // What is no target at all is for hyper to refuse.
        let fits = told == (status, Some(reason)) || status == 400 && told == (400, Some("bad_syntax"));
        assert!(fits, "{request}: {told:?}");
    }
    assert_eq!(up.connections(), 0);
    // Refused, the connection goes on as HTTP.
    let mut client = proxy.client();
    assert_eq!(client.ask(connect("billing:80", "")).status, 503);
    assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: orders\r\n\r\n").status, 200);
}

#[test]
fn connect_goes_on_to_the_next_instance_before_it_is_answered() {
    let instances = [
        Instance::new("down1", Upstream::refusing()),
        Instance::new("down2", Upstream::refusing()),
        Instance::new("up", greeter("up")),
    ];
    let proxy = Fixture::new(&instances);
    for n in 0..10 {
        let mut client = proxy.client();
        client.send(connect("orders:80", &format!("x-user-id: u{n}\r\n")));
        client.until("greeting", |bytes| bytes.ends_with(b"\r\n\r\nup"));
    }
}

#[test]
fn a_tcp_port_carries_anything_and_each_side_finishes_by_itself() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (proxy, port) = tcp(&[Instance::new("o1", listener.local_addr().unwrap())], TcpKey::Source);
    let mut client = Raw::connect(port);
    client.send(b"\0\xff\x16\x03not HTTP\r\n\r\n");
    let mut instance = Raw::from_stream(listener.accept().unwrap().0);
    instance.until("bytes", |bytes| bytes == b"\0\xff\x16\x03not HTTP\r\n\r\n");
    instance.take();
    client.half_close();
    assert_eq!(instance.drain(), (vec![], End::Fin));
    instance.send("late words").half_close();
    assert_eq!(client.drain(), (b"late words".to_vec(), End::Fin));
    eventually("it has ended", || proxy.running.as_ref().unwrap().in_flight() == 0);
    let log = proxy.access_log();
    assert_eq!(
        (&log[0]["method"], &log[0]["service"], &log[0]["bytes"]),
        (&"TCP".into(), &"orders".into(), &10.into())
    );
    assert_eq!((&log[0]["target_instance"], &log[0]["route_key"]), (&"o1".into(), &"n1".into()));
}

#[test]
fn a_tcp_connections_place_comes_from_its_key() {
    let instances: Vec<Instance> = ["a", "b", "c"].map(|id| Instance::new(id, greeter(id))).into();
    let (proxy, port) = tcp(&instances, TcpKey::Source);
    assert!((0..6).all(|_| name(port) == proxy.order("n1")[0]), "loopback: by the node's name");
    let (proxy, port) = tcp(&instances, TcpKey::Fixed("writer".into()));
    assert!((0..6).all(|_| name(port) == proxy.order("writer")[0]));
    let (_proxy, port) = tcp(&instances, TcpKey::Random);
    let names: std::collections::BTreeSet<String> = (0..60).map(|_| name(port)).collect();
    assert_eq!(names.len(), 3, "by chance");
}

#[test]
fn a_tcp_connection_goes_on_to_the_next_instance_before_its_first_byte() {
    let closes = Upstream::start(|_, _| vec![Act::ok("never asked")]);
    closes.kill();
    // Takes connections and closes them at once, as a forwarder without its target does.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at_once = listener.local_addr().unwrap();
    thread::spawn(move || while listener.accept().is_ok() {});
    let instances =
        [Instance::new("refuses", closes.addr), Instance::new("closes", at_once), Instance::new("up", greeter("up"))];
    let (proxy, port) = tcp(&instances, TcpKey::Random);
    for _ in 0..20 {
        assert_eq!(name_of_quiet_client(port), "up");
    }
    assert!(proxy.metric("lanemesh_proxy_errors_total", &[]) == 0.0);
}

/// A client that waits for the server's first word.
fn name_of_quiet_client(port: SocketAddr) -> String {
    let mut client = Raw::connect(port);
    client.until("greeting", |bytes| !bytes.is_empty());
    String::from_utf8(client.take()).unwrap()
}

#[test]
fn a_tcp_client_without_an_instance_is_reset_and_the_reason_counted() {
    let (proxy, port) = tcp(&[Instance::new("o1", Upstream::refusing())], TcpKey::Source);
    assert_eq!(Raw::connect(port).drain().1, End::Rst);
    assert_eq!(proxy.metric("lanemesh_proxy_errors_total", &["all_refused"]), 1.0);
    let log = proxy.access_log();
    assert_eq!((&log[0]["error"], &log[0]["status"]), (&"all_refused".into(), &503.into()));
}

#[test]
fn a_silent_tcp_connection_is_kept_up_to_its_limit_and_closed_by_the_stop() {
    let (listener, addr) = silent();
    let mut proxy = Fixture::with(&[Instance::new("o1", addr)], &[], |config| {
        config.proxy.tcp_ports.insert(service(), "127.0.0.1:0".parse().unwrap());
        config.proxy.timeouts.connect = Duration::from_millis(50);
        config.proxy.timeouts.tunnel_idle = Duration::from_millis(800);
    });
    let port = proxy.running.as_ref().unwrap().tcp_ports()[&service()];
    let began = Instant::now();
    assert_eq!(Raw::connect(port).drain().1, End::Fin);
    assert!((600..3_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    let mut held = Raw::connect(port);
    eventually("it is carried", || proxy.metric("lanemesh_tunnels", &[]) == 1.0);
    proxy.running.take().unwrap().stop();
    assert_eq!(held.drain().1, End::Fin);
    drop(listener);
}
