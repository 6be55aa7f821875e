//! Connections opened ahead to instances that come into rotation (REQUIREMENTS R9).

use std::{thread, time::Duration};

use lanemesh::types::{Health, Protocol};

use crate::support::{Act, Fixture, Instance, Upstream, fixture::eventually, h2::H2Up};

const OPENED: &str = "lanemesh_upstream_connections_ahead_total";

fn pair(old: &Upstream, new: &Upstream, health: Health) -> [Instance; 2] {
    [Instance::new("old", old.addr), Instance::new("new", new.addr).health(health)]
}

/// The first request to a newcomer goes over the connection that was waiting for it.
#[test]
fn a_newcomer_has_a_connection_before_its_first_request() {
    let (old, new) = (Upstream::ok("old"), Upstream::ok("new"));
    let mut proxy = Fixture::new(&pair(&old, &new, Health::Critical));
    assert_eq!(proxy.get("u1").text(), "old");
    assert_eq!(new.connections(), 0, "it is announced, and does not pass its check yet");
    proxy.publish(&pair(&old, &new, Health::Passing), &[]);
    eventually("a connection ahead", || new.connections() == 1 && proxy.metric(OPENED, &[]) == 1.0);
    assert_eq!(new.seen().len(), 0);
    let mine = (0..).map(|user| format!("u{user}")).find(|user| proxy.order(user)[0] == "new").unwrap();
    // It starts slowly: some of its users come at once.
    eventually("a request", || (0..50).any(|user| proxy.get(&format!("{mine}-{user}")).text() == "new"));
    assert_eq!((new.seen()[0].connection, new.connections()), (0, 1), "no handshake was waited for");
}

/// Who closes after every answer may serve one connection at a time: it is given none that says nothing.
#[test]
fn an_application_that_keeps_nothing_is_left_alone() {
    let closing = || {
        Upstream::start(|_, _| {
            vec![Act::send("HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: close\r\n\r\nold"), Act::Close]
        })
    };
    let (old, new, other) = (closing(), closing(), Upstream::ok("other"));
    let instances = |health| {
        let mut all = pair(&old, &new, health).to_vec();
        // Another service of the same thread keeps its connections.
        all.push(Instance::new("other", other.addr).service("other"));
        all
    };
    let mut proxy = Fixture::new(&instances(Health::Critical));
    assert_eq!(proxy.get("u1").text(), "old");
    assert_eq!(proxy.ask("GET / HTTP/1.1\r\nHost: other\r\n\r\n").text(), "other");
    proxy.publish(&instances(Health::Passing), &[]);
    assert_eq!(proxy.ask("GET / HTTP/1.1\r\nHost: other\r\n\r\n").text(), "other", "the thread knows of it");
    // As long as the slowest look at a new view takes.
    thread::sleep(Duration::from_millis(700));
    assert_eq!((new.connections(), proxy.metric(OPENED, &[])), (0, 0.0));
}

#[test]
fn as_many_as_are_allowed_and_none_where_that_is_none() {
    for most in [0, 2] {
        let old = Upstream::ok("old");
        let new: Vec<Upstream> = (0..5).map(|_| Upstream::ok("new")).collect();
        let first = Instance::new("old", old.addr);
        let mut proxy = Fixture::with(std::slice::from_ref(&first), &[], |config| config.proxy.connect_ahead = most);
        proxy.get("u1");
        let all: Vec<Instance> = [first]
            .into_iter()
            .chain(new.iter().enumerate().map(|(at, up)| Instance::new(&format!("new-{at}"), up.addr)))
            .collect();
        proxy.publish(&all, &[]);
        eventually("they are opened", || proxy.metric(OPENED, &[]) == most as f64);
        thread::sleep(Duration::from_millis(700));
        assert_eq!(new.iter().map(Upstream::connections).sum::<usize>(), most);
    }
}

#[test]
fn http2_instances_get_theirs_too() {
    let (old, new) = (H2Up::ok("h2"), H2Up::ok("h2"));
    let speaks = |id: &str, up: &H2Up| Instance::new(id, up.addr).protocol(Protocol::H2c);
    let mut proxy = Fixture::new(&[speaks("old", &old)]);
    assert_eq!(proxy.get("u1").text(), "h2");
    proxy.publish(&[speaks("old", &old), speaks("new", &new)], &[]);
    eventually("a connection ahead", || proxy.metric("lanemesh_upstream_connections_opened_total", &[]) == 2.0);
    assert_eq!((new.connections(), new.seen().len()), (1, 0));
}
