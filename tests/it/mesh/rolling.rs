//! Restarts and shutdowns that no user notices (REQUIREMENTS P6, P7).

use std::{
    collections::BTreeMap,
    net::TcpListener,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use crate::support::{
    Act, End, Raw, Upstream,
    http::Http,
    process::{Mesh, Pod, wait},
    raw::find,
};

/// Requests that a rolling restart must survive at least; more by this variable, as for the figures in the documentation.
const REQUESTS: &str = "LANEMESH_TEST_ROLLING_REQUESTS";
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

fn application(listener: TcpListener) -> Upstream {
    Upstream::on(listener, |_, _| vec![Act::ok("ok")])
}

#[test]
fn a_rolling_restart_of_every_instance_loses_no_request_of_any_method() {
    let wanted: u64 = std::env::var(REQUESTS).ok().and_then(|text| text.parse().ok()).unwrap_or(3_000);
    let mesh = Mesh::new("rolling");
    let mut pods: Vec<Pod> = Vec::new();
    let mut apps: Vec<Upstream> = Vec::new();
    for at in 1..=3 {
        let app = application(TcpListener::bind("127.0.0.1:0").unwrap());
        let mut pod = mesh.pod(&format!("orders-{at}"), &["orders"]);
        pod.instance("orders", app.addr, "check = \"tcp\"\ncheck_interval = \"200ms\"");
        pod.seeds = pods.first().map(|pod| pod.run().gossip).into_iter().collect();
        pod.start();
        pods.push(pod);
        apps.push(app);
    }
    let mut shop = mesh.pod("shop", &[]);
    shop.seeds = vec![pods[0].run().gossip];
    shop.start();
    wait("the shop routes to three", || shop.candidates("orders").len() == 3);

    let (proxy, next, over) = (shop.run().proxy, AtomicU64::new(0), AtomicBool::new(false));
    let mut counts = BTreeMap::new();
    let mut processed: BTreeMap<String, u32> = BTreeMap::new();
    let failed = thread::scope(|scope| {
        let load = |_| {
            scope.spawn(|| {
                let (mut client, mut failed) = (Http::new(proxy), Vec::new());
                while !over.load(SeqCst) || next.load(SeqCst) < wanted {
                    let id = next.fetch_add(1, SeqCst);
                    let method = METHODS[id as usize % METHODS.len()];
                    let body = if matches!(method, "GET" | "DELETE") { String::new() } else { format!("body of {id}") };
                    let request = format!(
                        "{method} /{id} HTTP/1.1\r\nHost: orders\r\nx-user-id: u{}\r\ncontent-length: {}\r\n\r\n{body}",
                        id % 500,
                        body.len()
                    );
                    match client.send(request.as_bytes()) {
                        Ok(answer) if answer.status == 200 => {}
                        other => failed.push(format!("{method} {id}: {other:?}")),
                    }
                    thread::sleep(Duration::from_millis(1));
                }
                failed
            })
        };
        let load: Vec<_> = (0..4).map(load).collect();
        for at in 0..pods.len() {
            assert_eq!(pods[at].stop(), Some(0), "{} ends in order", pods[at].name);
            apps[at].kill();
            count(&apps[at], &mut counts, &mut processed);
            apps[at] = application(TcpListener::bind(apps[at].addr).unwrap());
            pods[at].start();
            wait("it is back", || shop.candidates("orders").len() == 3);
        }
        over.store(true, SeqCst);
        load.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<String>>()
    });
    for app in &apps {
        count(app, &mut counts, &mut processed);
    }
    let done = next.load(SeqCst);
    println!("MEASURED rolling restart of 3 instances: {} of {done} requests failed", failed.len());
    assert!(failed.is_empty(), "{} of {done}: {:#?}", failed.len(), &failed[..failed.len().min(10)]);
    assert_eq!(counts.len(), METHODS.len(), "{counts:?}");
    let twice: Vec<_> = processed.iter().filter(|(line, times)| **times > 1 && line.starts_with('P')).collect();
    assert!(twice.is_empty(), "processed twice: {twice:?}");
}

/// Adds up what an application saw of requests by method, and of each one.
fn count(app: &Upstream, methods: &mut BTreeMap<String, u32>, each: &mut BTreeMap<String, u32>) {
    for seen in app.seen() {
        *methods.entry(seen.line().split(' ').next().unwrap().to_owned()).or_default() += 1;
        *each.entry(seen.line().to_owned()).or_default() += 1;
    }
}

/// A sidecar whose application is `addr`, with a tunnel through it: the client's and the instance's end.
fn tunnelled(mesh: &Mesh, limit: &str) -> (Pod, Raw, Raw) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut pod = mesh.pod("orders-1", &["orders"]);
    pod.instance("orders", listener.local_addr().unwrap(), "check = \"none\"");
    pod.flags =
        ["--set", "shutdown.spread=100ms", "--set", &format!("shutdown.limit={limit}")].map(String::from).into();
    pod.start();
    wait("it routes to itself", || pod.candidates("orders").len() == 1);
    let mut client = Raw::connect(pod.run().proxy);
    client.send("GET / HTTP/1.1\r\nHost: orders\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
    let mut instance = Raw::from_stream(listener.accept().unwrap().0);
    instance.until("request", |bytes| find(bytes, b"\r\n\r\n").is_some());
    instance.take();
    instance.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
    assert_eq!(client.response(false).status, 101);
    (pod, client, instance)
}

#[test]
fn a_tunnel_is_carried_up_to_the_shutdowns_limit_and_then_closed() {
    let mesh = Mesh::new("limit");
    let (mut pod, mut client, mut instance) = tunnelled(&mesh, "2s");
    let began = Instant::now();
    pod.signal(Signal::SIGTERM);
    thread::sleep(Duration::from_millis(800));
    client.send("still there");
    instance.until("bytes", |bytes| bytes == b"still there");
    instance.take();
    assert_eq!(pod.await_exit().code(), Some(0));
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!((client.drain(), instance.drain()), ((vec![], End::Fin), (vec![], End::Fin)));
}

#[test]
fn a_shutdown_ends_with_its_last_tunnel_and_a_second_signal_ends_it_at_once() {
    let mesh = Mesh::new("second");
    let (mut pod, client, mut instance) = tunnelled(&mesh, "60s");
    pod.signal(Signal::SIGTERM);
    thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    drop(client);
    assert_eq!(instance.drain().1, End::Fin);
    drop(instance);
    assert_eq!(pod.await_exit().code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    drop(pod);

    let mesh = Mesh::new("third");
    let (mut pod, mut client, _instance) = tunnelled(&mesh, "60s");
    pod.signal(Signal::SIGTERM);
    thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    pod.signal(Signal::SIGTERM);
    assert_eq!(pod.await_exit().code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(client.drain(), (vec![], End::Fin));
}
