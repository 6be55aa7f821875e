//! The API on a real listener, asked in raw HTTP so that every header is what the test says.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::body::Body;
use hyper::service::Service;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::*;
use crate::agent::fake::{Fake, Told};

const TOKEN: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

struct Admin {
    addr: SocketAddr,
    told: Told,
    stop: CancellationToken,
    server: tokio::task::JoinHandle<()>,
}

fn state(fake: Fake) -> (AdminState, Told) {
    let (handle, told) = Handle::for_test(fake);
    let waiting_for = handle_waits(&told);
    let state = AdminState {
        handle,
        metrics: Arc::new(|| "# EOF\n".into()),
        ready: waiting_for,
        token: Arc::new(Token::new(TOKEN).unwrap()),
        clock: Arc::new(|| Mono::ZERO),
        allow_remote: false,
    };
    (state, told)
}

/// Ready after the first order: enough to see both answers.
fn handle_waits(told: &Told) -> Arc<dyn Fn() -> Vec<String> + Send + Sync> {
    let told = told.clone();
    Arc::new(move || if told.take().is_empty() { vec!["view".into(), "certificate".into()] } else { Vec::new() })
}

async fn start(fake: Fake, deadline: Duration) -> Admin {
    let (state, told) = state(fake);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let router = router(state, Terms { bound: addr, deadline });
    let server = tokio::spawn(serve_router(listener, router, stop.clone()));
    Admin { addr, told, stop, server }
}

struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Errors are always JSON with a reason.
    fn refused(&self, status: u16, reason: &str) {
        let error = self.json()["error"].as_str().map(str::to_owned).unwrap_or_default();
        assert_eq!(self.status, status, "{error}");
        assert!(error.contains(reason), "{error}");
    }
}

impl Admin {
    /// One request; `\n` ends lines, `HOST` stands for the address. A `host` line is added where there is none.
    async fn ask(&self, request: &str) -> Reply {
        let host = self.addr.to_string();
        let (head, body) = request.split_once("\n\n").unwrap_or((request, ""));
        let mut head = head.replace("HOST", &host).replace('\n', "\r\n");
        if !head.to_ascii_lowercase().contains("\r\nhost:") {
            head.push_str(&format!("\r\nhost: {host}"));
        }
        if !body.is_empty() {
            head.push_str(&format!("\r\ncontent-length: {}", body.len()));
        }
        let mut stream = TcpStream::connect(self.addr).await.unwrap();
        stream.write_all(format!("{head}\r\nconnection: close\r\n\r\n{body}").as_bytes()).await.unwrap();
        read(stream).await
    }

    async fn get(&self, path: &str) -> Reply {
        self.ask(&format!("GET {path} HTTP/1.1")).await
    }

    /// With everything that an order needs.
    async fn order(&self, method: &str, path: &str, body: &str) -> Reply {
        let headers = format!("authorization: Bearer {TOKEN}\ncontent-type: application/json");
        self.ask(&format!("{method} {path} HTTP/1.1\n{headers}\n\n{body}")).await
    }
}

async fn read(mut stream: TcpStream) -> Reply {
    let mut bytes = Vec::new();
    timeout(Duration::from_secs(10), stream.read_to_end(&mut bytes)).await.unwrap().unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Reply { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

async fn started() -> Admin {
    start(Fake::new(), HANDLER_DEADLINE).await
}

#[tokio::test]
async fn questions_are_answered_in_json() {
    let admin = started().await;
    assert_eq!(admin.get("/v1/info").await.json()["node"], "n1");
    assert_eq!(admin.get("/v1/members").await.json().as_array().unwrap().len(), 4);
    assert_eq!(admin.get("/v1/members?state=down,left").await.json().as_array().unwrap().len(), 2);
    assert_eq!(admin.get("/v1/instances").await.json()[1]["record"]["drain"]["by"], "ann");
    assert_eq!(admin.get("/v1/instances?lane=canary").await.json()[0]["record"]["id"], "n2");
    assert_eq!(admin.get("/v1/instances?service=other").await.json().as_array().unwrap().len(), 0);
    assert_eq!(admin.get("/v1/instances/n1").await.json()["record"]["lane"], "stable");
    assert_eq!(admin.get("/v1/policies").await.json()[0]["policy"]["reason"], "try v2");
    assert_eq!(admin.get("/health").await.json()["status"], "alive");
    let metrics = admin.get("/metrics").await;
    assert!(metrics.body == "# EOF\n" && metrics.head.contains("content-type: application/openmetrics-text"));
    assert!(admin.get("/").await.body.contains("/v1/route/{service}"));
    assert!(admin.told.take().is_empty());
}

#[tokio::test]
async fn what_is_not_there_says_what_is() {
    let admin = started().await;
    admin.get("/v1/instances/n9").await.refused(404, "no instance `n9`");
    admin.get("/v1/policies/cart").await.refused(404, "everybody goes to stable");
    let unknown = admin.get("/v1/route/nosuch?key=u1").await;
    unknown.refused(404, "no service `nosuch`");
    assert_eq!(unknown.json()["cure"], "known services: orders");
    admin.get("/v1/ring/nosuch").await.refused(404, "no service `nosuch`");
    admin.get("/v2/members").await.refused(404, "`/v2/members`");
    admin.get("/v1/members?state=sleepy").await.refused(400, "alive, doubtful, down and left");
    admin.get("/v1/members?stat=down").await.refused(400, "stat");
    admin.get("/v1/instances/N%201").await.refused(400, "instance id");
}

#[tokio::test]
async fn services_and_routes_are_read_from_the_snapshot_in_force() {
    let admin = started().await;
    let service = admin.get("/v1/services").await.json()[0].clone();
    assert_eq!((&service["candidates"], &service["instances"]), (&1.into(), &2.into()));
    assert_eq!(service["lanes"]["canary"], serde_json::json!({ "instances": 1, "candidates": 0, "size": 500 }));
    let listed = admin.get("/v1/route/orders?key=u1").await.json();
    assert_eq!(
        (&listed["lane"], &listed["lane_reason"]),
        (&"canary".into(), &"allow-list".into()),
        "the key is the subject"
    );
    assert_eq!(listed["instance"]["id"], "n1", "the only canary is drained, GET falls back");
    assert_eq!(listed["excluded"][0]["why"], "draining");
    let post = admin.get("/v1/route/orders?key=u1&method=post").await.json();
    assert!(post["instance"].is_null(), "other methods fail: {post}");
    let other = admin.get("/v1/route/orders?key=u1&subject=nobody-listed").await.json();
    assert_eq!((&other["route_key"], &other["lane"]), (&"u1".into(), &"stable".into()));
    let anonymous = admin.get("/v1/route/orders?key=k&subject=").await.json();
    assert_eq!((&anonymous["subject"], &anonymous["lane_reason"]), (&serde_json::Value::Null, &"anonymous".into()));
    let lane = admin.get("/v1/route/orders?key=u1&lane=canary").await.json();
    assert_eq!(lane["lane_reason"], "explicit");
    assert_eq!(admin.get("/v1/route/orders?key=%F0%9F%A6%80%26").await.json()["subject"], "🦀&");
    assert_eq!(admin.get("/v1/ring/orders").await.json()["lanes"][1]["instances"][0]["points"], 256);
    admin.get("/v1/route/orders?kye=u1").await.refused(400, "kye");
}

#[tokio::test]
async fn readiness_names_what_it_waits_for() {
    let admin = started().await;
    let waiting = admin.get("/ready").await;
    assert_eq!(waiting.status, 503);
    assert_eq!(waiting.json()["waiting_for"], serde_json::json!(["view", "certificate"]));
    admin.order("POST", "/v1/leave", "").await;
    assert_eq!(admin.get("/ready").await.status, 200);
}

/// Case C98: what a page from elsewhere can make a browser send.
#[tokio::test]
async fn a_browser_is_no_way_in() {
    let admin = started().await;
    for host in ["evil.example:15000", "evil.example", "127.0.0.1.evil.example", "10.0.0.1:15000"] {
        admin.ask(&format!("GET /v1/members HTTP/1.1\nhost: {host}")).await.refused(403, "is not this sidecar");
    }
    for host in ["localhost:1", "[::1]", "127.0.0.1:15000", "HOST"] {
        assert_eq!(admin.ask(&format!("GET /v1/members HTTP/1.1\nhost: {host}")).await.status, 200, "{host}");
    }
    let auth = format!("authorization: Bearer {TOKEN}");
    let json = "content-type: application/json";
    for origin in ["http://evil.example", "null", "http://127.0.0.1:8000"] {
        let order = format!("POST /v1/drain HTTP/1.1\norigin: {origin}\n{json}\n{auth}\n\n{{}}");
        admin.ask(&order).await.refused(403, "from elsewhere");
        admin.ask(&format!("GET /v1/members HTTP/1.1\norigin: {origin}")).await.refused(403, "from elsewhere");
    }
    assert_eq!(admin.ask("GET /v1/members HTTP/1.1\norigin: http://HOST").await.status, 200);
    for kind in
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp"]
    {
        let form = format!("POST /v1/drain HTTP/1.1\ncontent-type: {kind}\n{auth}\n\n{{}}");
        admin.ask(&form).await.refused(415, "orders are JSON");
    }
    admin.ask(&format!("POST /v1/drain HTTP/1.1\n{auth}\n\n{{}}")).await.refused(415, "orders are JSON");
    for wrong in ["", "\nauthorization: Bearer 00", "\nauthorization: Basic 0123", &format!("\nauthorization: {TOKEN}")]
    {
        let order = format!("POST /v1/drain HTTP/1.1\n{json}{wrong}\n\n{{}}");
        admin.ask(&order).await.refused(401, "token is missing or wrong");
    }
    for path in ["/v1/drain", "/v1/undrain", "/v1/leave", "/v1/rollback/orders"] {
        let got = admin.get(path).await;
        got.refused(405, "does not take GET");
        assert!(got.head.contains("allow: post"), "{}", got.head);
    }
    assert!(admin.told.take().is_empty(), "none of these changed anything");
    let own = format!("POST /v1/instances HTTP/1.1\n{json}\n{auth}\n\n");
    for host in ["127.0.0.1", "localhost"] {
        let port = admin.addr.port();
        let body = format!(r#"{{"id":"x","service":"orders","host":"{host}","port":{port},"version":"v1"}}"#);
        admin.ask(&format!("{own}{body}")).await.refused(422, "admin API, not an application");
    }
    assert!(admin.told.take().is_empty(), "nor did these");
}

#[tokio::test]
async fn answers_stay_out_of_caches_and_foreign_pages() {
    let admin = started().await;
    for path in ["/v1/members", "/nosuch"] {
        let head = admin.get(path).await.head;
        for header in
            ["cache-control: no-store", "x-content-type-options: nosniff", "cross-origin-resource-policy: same-origin"]
        {
            assert!(head.contains(header), "{head}");
        }
        assert!(!head.contains("access-control-allow"), "{head}");
    }
}

#[tokio::test]
async fn wrong_methods_name_the_right_ones() {
    let admin = started().await;
    let reply = admin.order("PUT", "/v1/instances/n1", "{}").await;
    reply.refused(405, "does not take PUT");
    assert!(
        reply.head.contains("allow: ") && reply.head.contains("patch") && reply.head.contains("delete"),
        "{}",
        reply.head
    );
    for path in ["/v1/members", "/metrics", "/health", "/v1/route/orders"] {
        admin.order("POST", path, "{}").await.refused(405, "does not take POST");
    }
}

#[tokio::test]
async fn orders_reach_the_agent_and_its_answer_comes_back() {
    let admin = started().await;
    assert_eq!(admin.order("PATCH", "/v1/instances/n1", r#"{"weight":50}"#).await.json()["weight"], 50);
    let new = r#"{"id":"x1","service":"orders","host":"10.0.0.9","port":8080,"version":"v1"}"#;
    let made = admin.order("POST", "/v1/instances", new).await;
    assert_eq!((made.status, made.json()["lane"].as_str()), (201, Some("stable")));
    assert_eq!(admin.order("DELETE", "/v1/instances/x1", "").await.status, 200);
    admin.get("/v1/instances/x1").await.refused(404, "x1");
    let drain = r#"{"ids":["n1"],"reason":"disk","by":"ann"}"#;
    assert_eq!(admin.order("POST", "/v1/drain", drain).await.json()["ids"], serde_json::json!(["n1"]));
    assert_eq!(admin.order("POST", "/v1/undrain", "{}").await.status, 200);
    let policy = r#"{"sizes":{"canary":500},"allow":{"canary":["u1"]}}"#;
    let set = admin.order("PATCH", "/v1/policies/orders", policy).await.json();
    assert_eq!(set["lanes"]["canary"]["size"], 500);
    assert_eq!(admin.get("/v1/policies/orders").await.json()["policy"], set);
    assert_eq!(admin.order("POST", "/v1/rollback/orders", r#"{"reason":"errors"}"#).await.json()["off"], true);
    assert_eq!(admin.order("POST", "/v1/leave", "").await.status, 200);
    let told = admin.told.take();
    assert!(
        told.contains(&"drain [n1] by ann: disk".to_owned()) && told.contains(&"rollback orders: errors".to_owned()),
        "{told:?}"
    );
    assert!(told.contains(&"deregister x1".to_owned()) && told.contains(&"leave".to_owned()), "{told:?}");
}

#[tokio::test]
async fn the_agents_refusals_keep_their_reason() {
    let admin = started().await;
    admin.order("PATCH", "/v1/instances/n1", r#"{"weight":1601}"#).await.refused(422, "weight 1601 is out of range");
    admin.order("PATCH", "/v1/instances/n9", r#"{"weight":1}"#).await.refused(404, "n9");
    admin.order("DELETE", "/v1/instances/n9", "").await.refused(404, "n9");
    admin.order("POST", "/v1/drain", r#"{"min_ready":1}"#).await.refused(422, "1 are wanted");
    admin.order("POST", "/v1/rollback/cart", "{}").await.refused(404, "no policy to roll back");
    let long = format!(r#"{{"reason":"{}"}}"#, "x".repeat(513));
    admin.order("POST", "/v1/drain", &long).await.refused(422, "`reason` has 513 bytes");
}

#[tokio::test]
async fn bodies_that_make_no_sense_say_why() {
    let admin = started().await;
    admin.order("PATCH", "/v1/instances/n1", "{").await.refused(400, "EOF");
    admin.order("PATCH", "/v1/instances/n1", r#"{"wieght":1}"#).await.refused(400, "wieght");
    admin.order("PATCH", "/v1/instances/n1", r#"{"weight":-1}"#).await.refused(400, "-1");
    admin.order("PATCH", "/v1/instances/n1", r#"{"lane":"Canary"}"#).await.refused(400, "valid lane");
    admin.order("POST", "/v1/instances", "").await.refused(400, "missing field");
    assert!(admin.told.take().is_empty());
}

/// Case C15: refused whole at the edge, never cut.
#[tokio::test]
async fn bodies_over_the_limit_are_refused_whole() {
    let admin = started().await;
    let tags = |bytes: usize| format!(r#"{{"tags":{{"k":"{}"}}}}"#, "x".repeat(bytes));
    for bytes in [511, 512, 513, 1200, 4096] {
        let set = admin.order("PATCH", "/v1/instances/n1", &tags(bytes)).await;
        assert_eq!(set.json()["tags"]["k"].as_str().unwrap().len(), bytes);
    }
    admin.order("PATCH", "/v1/instances/n1", &tags(4097)).await.refused(422, "at most 4096");
    assert_eq!(admin.told.take().len(), 6);
    admin.order("PATCH", "/v1/instances/n1", &tags(MAX_BODY)).await.refused(413, "at most 65536 bytes");
    // Without a length up front.
    let chunk = "x".repeat(MAX_BODY);
    let chunked = format!(
        "PATCH /v1/instances/n1 HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\nconnection: close\r\n\r\n{:x}\r\n{chunk}\r\n{:x}\r\n{chunk}\r\n0\r\n\r\n",
        admin.addr, MAX_BODY, MAX_BODY
    );
    let mut stream = TcpStream::connect(admin.addr).await.unwrap();
    stream.write_all(chunked.as_bytes()).await.unwrap();
    read(stream).await.refused(413, "at most 65536 bytes");
    assert!(admin.told.take().is_empty());
}

#[tokio::test]
async fn an_agent_that_does_not_answer_is_told_in_time() {
    let mute = Fake { mute: true, ..Fake::new() };
    let admin = start(mute, Duration::from_millis(50)).await;
    admin.get("/v1/members").await.refused(504, "no answer in time");
    admin.order("POST", "/v1/leave", "").await.refused(504, "no answer in time");
    assert_eq!(admin.get("/health").await.status, 200, "health does not depend on the agent");
    // A body that never ends is held by the same deadline.
    let mut stream = TcpStream::connect(admin.addr).await.unwrap();
    let head = format!(
        "POST /v1/drain HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\n\
         content-length: 10\r\nconnection: close\r\n\r\n{{",
        admin.addr
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    read(stream).await.refused(504, "no answer in time");
}

#[tokio::test]
async fn a_dead_agent_is_unavailable() {
    let (mut state, _told) = state(Fake::new());
    state.handle = Handle::dead();
    let terms = Terms { bound: ([127, 0, 0, 1], 15000).into(), deadline: HANDLER_DEADLINE };
    let status = asked_from(state, terms, [127, 0, 0, 1], "/v1/members", "").await;
    assert_eq!(status, 503);
}

#[tokio::test]
async fn strangers_need_the_token_for_reads_too() {
    let terms = Terms { bound: ([10, 0, 0, 7], 15000).into(), deadline: HANDLER_DEADLINE };
    for (from, path, token, status) in [
        ([127, 0, 0, 1], "/v1/members", "", 200),
        ([10, 0, 0, 8], "/v1/members", "", 401),
        ([10, 0, 0, 8], "/v1/members", TOKEN, 200),
        ([10, 0, 0, 8], "/", "", 401),
        ([10, 0, 0, 8], "/health", "", 200),
        ([10, 0, 0, 8], "/metrics", "", 200),
    ] {
        let state = AdminState { allow_remote: true, ..state(Fake::new()).0 };
        assert_eq!(asked_from(state, terms, from, path, token).await, status, "{from:?} {path}");
    }
}

/// As if the connection came from elsewhere.
async fn asked_from(state: AdminState, terms: Terms, from: [u8; 4], path: &str, token: &str) -> u16 {
    let mut request = Request::builder().uri(path).header("host", terms.bound.to_string());
    if !token.is_empty() {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.extension(Peer((from, 4000).into())).body(Body::empty()).unwrap();
    TowerToHyperService::new(router(state, terms)).call(request).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn stopping_ends_idle_connections_and_frees_the_port() {
    let admin = started().await;
    let mut idle = TcpStream::connect(admin.addr).await.unwrap();
    idle.write_all(format!("GET /health HTTP/1.1\r\nhost: {}\r\n\r\n", admin.addr).as_bytes()).await.unwrap();
    let mut byte = [0];
    idle.read_exact(&mut byte).await.unwrap();
    admin.stop.cancel();
    timeout(Duration::from_secs(5), admin.server).await.expect("it stops").unwrap();
    TcpListener::bind(admin.addr).await.expect("the port is free");
}
