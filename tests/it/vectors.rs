//! The contracts: the library against `tests/vectors.json`, that file against Python's hashlib and xxhash, and the gateway
//! examples against it. Whoever has to change an answer in that file breaks every deployed mesh and gateway.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use lanemesh::{
    lanes::Prefix,
    routing::{Member, Ring, admission_hash, key_hash, point_hash, points_of},
    types::{BucketScheme, InstanceId, InstanceRecord},
    wire::Body,
};
use serde::Deserialize;

use crate::skip::{skip, works};

#[derive(Deserialize)]
struct Vectors {
    bucket: Vec<Bucket>,
    key_hash: Vec<KeyHash>,
    points_of_weight: Vec<PointsOfWeight>,
    points: Vec<Point>,
    admission_hash: Vec<Admission>,
    failover: Vec<Failover>,
    record: Vec<Record>,
}

#[derive(Deserialize)]
struct Bucket {
    scheme: BucketScheme,
    salt: String,
    experiment: String,
    subject: String,
    bucket: u16,
}

#[derive(Deserialize)]
struct KeyHash {
    key: String,
    hash: String,
}

#[derive(Deserialize)]
struct PointsOfWeight {
    weight: u16,
    points: u32,
}

#[derive(Deserialize)]
struct Point {
    id: InstanceId,
    index: u32,
    hash: String,
}

#[derive(Deserialize)]
struct Admission {
    key: String,
    id: InstanceId,
    hash: String,
}

#[derive(Deserialize)]
struct Failover {
    instances: Vec<Weighted>,
    orders: Vec<Order>,
}

#[derive(Deserialize)]
struct Weighted {
    id: InstanceId,
    weight: u16,
}

#[derive(Deserialize)]
struct Order {
    key: String,
    order: Vec<InstanceId>,
}

#[derive(Deserialize)]
struct Record {
    record: InstanceRecord,
    bytes: String,
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../vectors.json")).expect("the file is JSON")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn buckets() {
    for Bucket { scheme, salt, experiment, subject, bucket } in vectors().bucket {
        let computed = Prefix::new(scheme, &salt, &experiment).bucket(subject.as_bytes());
        assert_eq!(computed, bucket, "{scheme:?} {salt:?} {experiment:?} {subject:?}");
    }
}

#[test]
fn hashes() {
    let vectors = vectors();
    for KeyHash { key, hash } in vectors.key_hash {
        assert_eq!(format!("{:016x}", key_hash(key.as_bytes())), hash, "{key:?}");
    }
    for Point { id, index, hash } in vectors.points {
        assert_eq!(format!("{:016x}", point_hash(&id, index)), hash, "{id} {index}");
    }
    for Admission { key, id, hash } in vectors.admission_hash {
        assert_eq!(format!("{:08x}", admission_hash(key_hash(key.as_bytes()), &id)), hash, "{key:?} {id}");
    }
    for PointsOfWeight { weight, points } in vectors.points_of_weight {
        assert_eq!(points_of(weight), points, "weight {weight}");
    }
}

#[test]
fn failover_orders() {
    for Failover { instances, orders } in vectors().failover {
        let members = instances.into_iter().map(|Weighted { id, weight }| Member { id, weight });
        let ring = Ring::new(members).expect("within limits");
        for Order { key, order } in orders {
            let slots = ring.order(key_hash(key.as_bytes()));
            let computed: Vec<_> = slots.map(|slot| ring.members()[usize::from(slot)].id.clone()).collect();
            assert_eq!(computed, order, "{key:?}");
        }
    }
}

#[test]
fn record_bytes() {
    for Record { record, bytes } in vectors().record {
        assert_eq!(hex(&Body::Instance(record).encode()), bytes);
    }
}

#[test]
fn python_computes_the_same() {
    if !works("python3", &["-c", "import xxhash"]) {
        return skip("python_computes_the_same", "install Python 3 and its xxhash package (pip install xxhash)");
    }
    let run =
        Command::new("python3").current_dir(root()).args(["tests/vectors.py", "check", "tests/vectors.json"]).output();
    let run = run.expect("python3 ran a moment ago");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn gateway_in_python() {
    if !works("python3", &["--version"]) {
        return skip("gateway_in_python", "install Python 3");
    }
    gateway("python3", &["examples/gateway/bucket.py"]);
}

#[test]
fn gateway_in_java() {
    if !works("java", &["--version"]) || !works("javac", &["--version"]) {
        return skip("gateway_in_java", "install a JDK of version 11 or later (apt-get install default-jdk-headless)");
    }
    gateway("java", &["examples/gateway/Bucket.java"]);
}

#[test]
fn gateway_in_go() {
    if !works("go", &["version"]) {
        return skip("gateway_in_go", "install Go 1.19 or later (apt-get install golang-go)");
    }
    gateway("go", &["run", "examples/gateway/bucket.go"]);
}

/// Feeds every bucket question to a gateway's lines and compares the answers.
fn gateway(program: &str, arguments: &[&str]) {
    let vectors = vectors().bucket;
    let scheme = |scheme| if scheme == BucketScheme::Prefixed { "prefixed" } else { "bare-subject" };
    let question = |b: &Bucket| format!("{}\t{}\t{}\t{}\n", scheme(b.scheme), b.salt, b.experiment, b.subject);
    let questions: String = vectors.iter().map(question).collect();
    let mut child = Command::new(program)
        .current_dir(root())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program ran a moment ago");
    // Fits the pipe's buffer, so that writing all of it before reading cannot block.
    assert!(questions.len() < 32 * 1024);
    child.stdin.take().expect("piped").write_all(questions.as_bytes()).expect("the program reads");
    let output = child.wait_with_output().expect("the program ends");
    assert!(output.status.success());
    let answers: Vec<u16> =
        String::from_utf8_lossy(&output.stdout).lines().map(|line| line.trim().parse().expect("a number")).collect();
    let expected: Vec<u16> = vectors.iter().map(|b| b.bucket).collect();
    assert_eq!(answers, expected);
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
