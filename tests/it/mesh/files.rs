//! Running out of file descriptors: survived, said, and over when there are some again (REQUIREMENTS P7).

use std::{fs, net::SocketAddr, process::Command, time::Duration};

use crate::{
    skip::{skip, works},
    support::{
        Raw,
        process::{Mesh, Pod, wait},
    },
};

const GET: &str = "GET / HTTP/1.1\r\nHost: orders\r\n\r\n";

fn limit(pod: &Pod, files: usize) {
    let pid = pod.pid().to_string();
    let set = Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={files}:")]).status().unwrap();
    assert!(set.success());
}

fn open_files(pod: &Pod) -> usize {
    fs::read_dir(format!("/proc/{}/fd", pod.pid())).unwrap().count()
}

/// Processor time so far, in ticks of 10 ms.
fn ticks(pod: &Pod) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pod.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Whether a request on a connection of its own is answered with this status soon.
fn answers(proxy: SocketAddr, status: u16) -> bool {
    let mut client = Raw::connect(proxy);
    client.patience(Duration::from_millis(300)).send(GET);
    client.drain().0.starts_with(format!("HTTP/1.1 {status} ").as_bytes())
}

#[test]
fn running_out_of_files_is_survived_and_said_once() {
    if !works("prlimit", &["--version"]) {
        return skip("running_out_of_files_is_survived_and_said_once", "install util-linux (prlimit)");
    }
    let mesh = Mesh::new("files");
    let pods = mesh.service("orders", 1);
    let (pod, proxy) = (&pods[0], pods[0].run().proxy);
    wait("it serves", || answers(proxy, 200));
    // None left for connections to instances: one more client is taken, and told why it gets nothing.
    let mut held: Vec<Raw> = (0..12).map(|_| Raw::connect(proxy)).collect();
    wait("they are taken", || pod.ask("/metrics").is_some_and(|m| m.text().contains("lanemesh_client_connections 12")));
    limit(pod, open_files(pod));
    for client in &mut held {
        client.send(GET);
    }
    let answers_now: Vec<u16> = held.iter_mut().map(|client| client.response(false).status).collect();
    assert!(answers_now.iter().all(|status| [200, 503].contains(status)), "{answers_now:?}");
    // None left at all: new clients wait, and waiting costs next to nothing.
    limit(pod, open_files(pod));
    let waiting: Vec<Raw> = (0..80).map(|_| Raw::connect(proxy)).collect();
    wait("it is said", || pod.log().contains("cannot accept connections"));
    let before = ticks(pod);
    std::thread::sleep(Duration::from_secs(1));
    let spent = ticks(pod) - before;
    assert!(spent < 30, "{spent} ticks in a second: a busy loop");
    drop((held, waiting));
    wait("it serves again", || answers(proxy, 200));
    let said = pod.log().matches("cannot accept connections").count();
    assert!((1..=4).contains(&said), "said {said} times, by one or two threads");
}
