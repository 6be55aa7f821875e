//! Clients and servers that nobody here wrote (REQUIREMENTS P1, P2).

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Command, Stdio},
};

use crate::{
    skip::{skip, works},
    support::{Act, Fixture, Instance, Upstream},
};

/// What a program printed; fails when it did not succeed.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{printed}\n{said}", output.status);
    printed
}

/// Says what it was asked, and how large the body was.
fn mirror() -> Upstream {
    Upstream::start(|seen, _| {
        let expects = !seen.values("expect").is_empty();
        vec![Act::ok(&format!("{} {} {expects}", seen.line(), seen.body.len()))]
    })
}

#[test]
fn curl() {
    if !works("curl", &["--version"]) {
        return skip("curl", "install curl");
    }
    let up = mirror();
    let proxy = Fixture::one(up.addr);
    let url = format!("http://{}/a?b=c", proxy.addr());
    let host = ["-sS", "--fail", "--max-time", "20", "-H", "Host: orders"];
    let curl = |more: &[&str]| run("curl", &[&host, more].concat());
    assert_eq!(curl(&[&url]), "GET /a?b=c HTTP/1.1 0 false");
    assert_eq!(curl(&["-0", &url]), "GET /a?b=c HTTP/1.1 0 false", "HTTP/1.0 in, HTTP/1.1 on");
    assert_eq!(curl(&["-d", "x=1", &url]), "POST /a?b=c HTTP/1.1 3 false");
    assert_eq!(curl(&[&url, &url, &url]).matches("GET").count(), 3, "over one connection");
    // Above 1 MiB curl waits for a 100.
    let file = proxy.log.path().join("upload");
    std::fs::write(&file, vec![b'x'; 3_000_000]).unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(curl(&["-T", file, &url]), "PUT /a?b=c HTTP/1.1 3000000 true");
    assert_eq!(curl(&["-T", file, "-H", "Expect:", &url]), "PUT /a?b=c HTTP/1.1 3000000 false");
    assert_eq!(curl(&["-T", file, "-H", "Transfer-Encoding: chunked", &url]), "PUT /a?b=c HTTP/1.1 3000000 true");
    // As a proxy, and through a tunnel.
    let through = format!("http://{}", proxy.addr());
    let as_proxy = ["-sS", "--fail", "--max-time", "20", "-x", &through];
    assert_eq!(run("curl", &[&as_proxy[..], &["http://orders/p"]].concat()), "GET /p HTTP/1.1 0 false");
    let tunnel = run("curl", &[&as_proxy[..], &["-p", "http://orders:80/p"]].concat());
    assert_eq!(tunnel, "GET /p HTTP/1.1 0 false");
    let status = ["-sS", "-o", "/dev/null", "-w", "%{http_connect}", "-x", &through, "-p", "http://example.com:80/"];
    let output = Command::new("curl").args(status).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "404", "to services of the mesh only");
}

#[test]
fn busybox_wget() {
    if !works("busybox", &["wget", "--help"]) {
        return skip("busybox_wget", "install busybox");
    }
    let up = mirror();
    let proxy = Fixture::one(up.addr);
    let url = format!("http://{}/w", proxy.addr());
    let got = run("busybox", &["wget", "-q", "-O", "-", "--header", "Host: orders", &url]);
    assert!(got.starts_with("GET /w HTTP/1.1 0"), "{got}");
    let chunked = Upstream::bytes("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    let proxy = Fixture::one(chunked.addr);
    let url = format!("http://{}/", proxy.addr());
    assert_eq!(run("busybox", &["wget", "-q", "-O", "-", "--header", "Host: orders", &url]), "hello");
}

#[test]
fn c50_ab_with_and_without_keep_alive() {
    if !works("ab", &["-V"]) {
        return skip("c50_ab_with_and_without_keep_alive", "install apache2-utils");
    }
    let up = Upstream::ok("ok");
    let proxy = Fixture::one(up.addr);
    let url = format!("http://{}/", proxy.addr());
    let kept = run("ab", &["-k", "-q", "-s", "10", "-n", "200", "-c", "4", "-H", "Host: orders", &url]);
    let line = |text: &str, name: &str| {
        let found = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
        found.split_whitespace().last().unwrap().parse::<u32>().unwrap()
    };
    assert_eq!((line(&kept, "Failed requests"), line(&kept, "Keep-Alive requests")), (0, 200), "{kept}");
    let plain = run("ab", &["-q", "-s", "10", "-n", "50", "-c", "4", "-H", "Host: orders", &url]);
    assert_eq!((line(&plain, "Failed requests"), line(&plain, "Complete requests")), (0, 50), "{plain}");
}

#[test]
fn wrk() {
    // It has no option that succeeds without doing something.
    let has = Command::new("wrk").arg("-v").output().is_ok();
    if !has {
        return skip("wrk", "install wrk");
    }
    let up = Upstream::ok("ok");
    let proxy = Fixture::one(up.addr);
    let url = format!("http://{}/", proxy.addr());
    let said = run("wrk", &["-t1", "-c8", "-d1s", "--timeout", "5s", "-H", "Host: orders", &url]);
    assert!(said.contains("requests in") && !said.contains("Non-2xx") && !said.contains("Socket errors"), "{said}");
}

/// A WebSocket server, and then a client of it through the proxy whose address comes on standard input.
const WEBSOCKET: &str = r#"
import os, socket, sys, threading
from websockets.sync.client import connect
from websockets.sync.server import serve

def echo(connection):
    for message in connection:
        connection.send(message)

server = serve(echo, "127.0.0.1", 0, max_size=None)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.socket.getsockname()[1], flush=True)
host, port = sys.stdin.readline().strip().rsplit(":", 1)
sock = socket.create_connection((host, int(port)), timeout=20)
with connect("ws://orders/chat", sock=sock, max_size=None, additional_headers={"x-user-id": "u1"}) as client:
    for n in range(200):
        client.send(f"message {n}")
        assert client.recv(timeout=20) == f"message {n}"
    blob = os.urandom(1 << 20)
    client.send(blob)
    assert client.recv(timeout=20) == blob
    assert client.ping().wait(20)
assert client.close_code == 1000, client.close_code
print("fine", flush=True)
"#;

#[test]
fn python_websockets() {
    if !works("python3", &["-c", "import websockets.sync.server"]) {
        return skip("python_websockets", "pip install websockets, in the Python that is first in PATH");
    }
    let mut child = Command::new("python3")
        .args(["-c", WEBSOCKET])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let port: u16 = line.trim().parse().unwrap_or_else(|_| panic!("the server said {line:?}"));
    let proxy = Fixture::new(&[Instance::new("o1", ([127, 0, 0, 1], port).into())]);
    writeln!(child.stdin.take().unwrap(), "{}", proxy.addr()).unwrap();
    let (mut said, mut wrong) = (String::new(), String::new());
    output.read_to_string(&mut said).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut wrong).unwrap();
    assert!(child.wait().unwrap().success() && said.trim() == "fine", "{said}\n{wrong}");
    let log = proxy.access_log();
    assert_eq!((&log[0]["status"], &log[0]["user_id"]), (&101.into(), &"u1".into()));
}
