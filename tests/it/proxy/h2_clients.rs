//! HTTP/2 clients and servers that nobody here wrote: curl, nghttp, h2load, grpcio.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
};

use lanemesh::types::Protocol;

use crate::{
    skip::{skip, works},
    support::{
        Act, Fixture, Instance, Upstream,
        h2::{H2Up, Reply},
    },
};

/// What a program says, when it succeeds.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Echoing applications of either protocol behind one proxy: `orders` (HTTP/1.1) and `billing` (HTTP/2).
fn both() -> (Upstream, H2Up, Fixture) {
    let old = Upstream::start(|seen, _| vec![Act::ok(&String::from_utf8_lossy(&seen.body))]);
    let new = H2Up::answering(|seen| Reply::ok(&seen.body.len().to_string()));
    let instances =
        [Instance::new("o1", old.addr), Instance::new("b1", new.addr).service("billing").protocol(Protocol::H2c)];
    let proxy = Fixture::new(&instances);
    (old, new, proxy)
}

#[test]
fn curl_speaks_both_versions_and_uploads() {
    let version = Command::new("curl").arg("--version").output();
    if !version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("HTTP2")) {
        return skip("curl_speaks_both_versions_and_uploads", "install curl with HTTP/2");
    }
    let (_old, _new, proxy) = both();
    let url = format!("http://{}/p?q=1", proxy.addr());
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&[b'x'; 1_000_000]).unwrap();
    let upload = format!("@{}", file.path().display());
    for version in ["--http2-prior-knowledge", "--http1.1", "--http2"] {
        let ask = |service: &str, more: &[&str]| {
            let host = format!("Host: {service}");
            let mut arguments = vec![version, "-sS", "--max-time", "20", "-H", &host, &url];
            arguments.extend(more);
            run("curl", &arguments)
        };
        assert_eq!(ask("orders", &["-d", "hello"]), "hello", "{version}");
        assert_eq!(ask("billing", &["-d", "hello"]), "5", "{version}");
        assert_eq!(ask("orders", &["--data-binary", &upload]).len(), 1_000_000, "{version}");
        assert_eq!(ask("billing", &["--data-binary", &upload]), "1000000", "{version}");
        let told = ask("nowhere", &["-o", "/dev/null", "-w", "%{http_code} %header{x-lanemesh-error}"]);
        assert!(told.starts_with("404"), "{version}: {told}");
        assert!(ask("orders", &["-I"]).contains("200"), "{version}");
    }
}

#[test]
fn nghttp_and_h2load_are_content() {
    if !works("nghttp", &["--version"]) || !works("h2load", &["--version"]) {
        return skip("nghttp_and_h2load_are_content", "apt-get install nghttp2-client");
    }
    let (_old, new, proxy) = both();
    let url = format!("http://{}/", proxy.addr());
    for service in ["orders", "billing"] {
        let authority = format!(":authority: {service}");
        let told = run("nghttp", &["-v", "-t", "20", "-H", &authority, &url]);
        assert!(told.contains(":status: 200"), "{told}");
        let told = run("h2load", &["-n", "2000", "-c", "4", "-m", "20", "-H", &authority, &url]);
        assert!(told.contains("2000 succeeded, 0 failed, 0 errored"), "{told}");
    }
    assert_eq!(new.connections(), 1, "all of it over one connection");
}

/// A running Python program; killed when dropped.
struct Python(Child);

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn grpcio_calls_grpcio() {
    if !works("python3", &["-c", "import grpc"]) {
        return skip("grpcio_calls_grpcio", "pip install grpcio");
    }
    let script = |name: &str| format!("{}/tests/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut server = Python(
        Command::new("python3")
            .arg(script("grpc_server.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut port = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let addr = format!("127.0.0.1:{}", port.trim()).parse().unwrap();
    let proxy = Fixture::new(&[
        Instance::new("e1", addr).service("echo").protocol(Protocol::Grpc),
        Instance::new("r1", Upstream::refusing()).service("refusing").protocol(Protocol::Grpc),
    ]);
    let told = run("python3", &[&script("grpc_client.py"), &proxy.addr().port().to_string()]);
    assert_eq!(told.trim(), "ok");
    let log = proxy.access_log();
    assert!(log.iter().filter(|line| line["status"] == 200).count() > 500, "{} lines", log.len());
}
