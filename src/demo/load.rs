//! The users: 2,000 of them, each asking again and again through the shop's loopback port; where each request was served is
//! read from the decision headers and remembered.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinSet};

/// How many there are.
pub const USERS: usize = 2000;
/// Client connections.
const CLIENTS: usize = 16;
/// Requests a second, all clients together: every user is seen once a second.
const RATE: u32 = 2000;

/// Where a user was served.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Served {
    /// Lane.
    pub lane: Arc<str>,
    /// Instance.
    pub instance: Arc<str>,
}

/// A user was served elsewhere than before.
#[derive(Debug, Clone)]
pub struct Move {
    /// When.
    pub at: Instant,
    /// Who.
    pub user: usize,
    /// Before.
    pub from: Served,
    /// After.
    pub to: Served,
}

/// Everything seen so far.
#[derive(Debug, Default)]
pub struct Seen {
    /// Where each user was served last, and when.
    pub users: Vec<Option<(Served, Instant)>>,
    /// Every change of lane or instance.
    pub moves: Vec<Move>,
    /// Requests answered or failed.
    pub requests: u64,
    /// Failed ones: no answer, or a status other than 200.
    pub failures: u64,
    /// What the first failures said.
    pub samples: Vec<String>,
    /// Latencies in microseconds, since the last [`Load::take_latencies`].
    pub latencies: Vec<u32>,
}

/// The running load.
pub struct Load {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    clients: JoinSet<()>,
}

/// The name of a user.
pub fn user(at: usize) -> String {
    format!("u{at}")
}

impl Load {
    /// Starts all users against a proxy.
    pub fn start(proxy: &str) -> Self {
        let seen = Arc::new(Mutex::new(Seen { users: vec![None; USERS], ..Seen::default() }));
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            clients.spawn(ask_on(client, proxy.to_owned(), seen.clone(), stop.clone()));
        }
        Self { seen, stop, clients }
    }

    /// Looks at what was seen.
    pub fn look<T>(&self, at: impl FnOnce(&Seen) -> T) -> T {
        at(&self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// The latencies since the last call, sorted.
    pub fn take_latencies(&self) -> Vec<u32> {
        let mut seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut latencies = std::mem::take(&mut seen.latencies);
        drop(seen);
        latencies.sort_unstable();
        latencies
    }

    /// Waits until every user was served at least once after this moment.
    pub async fn everybody_since(&self, since: Instant) {
        while !self.look(|seen| seen.users.iter().all(|user| user.as_ref().is_some_and(|(_, at)| *at > since))) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends the load.
    pub async fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while self.clients.join_next().await.is_some() {}
    }
}

/// One client connection's share of the users, at a steady pace.
async fn ask_on(client: usize, proxy: String, seen: Arc<Mutex<Seen>>, stop: Arc<AtomicBool>) {
    let mut connection = None;
    let pace = Duration::from_secs(1) * CLIENTS as u32 / RATE;
    let mut ticks = tokio::time::interval(pace);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        for at in (client..USERS).step_by(CLIENTS) {
            ticks.tick().await;
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let began = Instant::now();
            let answer = ask(&mut connection, &proxy, at).await;
            note(&seen, at, began, answer);
        }
    }
}

fn note(seen: &Mutex<Seen>, user: usize, began: Instant, answer: Result<Served, String>) {
    let mut seen = seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    seen.requests += 1;
    seen.latencies.push(u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX));
    match answer {
        Ok(served) => {
            // The time of asking counts: an answer that was under way when something changed belongs to before.
            let before = seen.users[user].replace((served.clone(), began));
            if let Some((from, _)) = before.filter(|(from, _)| *from != served) {
                seen.moves.push(Move { at: began, user, from, to: served });
            }
        }
        Err(error) => {
            seen.failures += 1;
            if seen.samples.len() < 5 {
                seen.samples.push(format!("{}: {error}", self::user(user)));
            }
        }
    }
}

async fn ask(connection: &mut Option<SendRequest<Empty<Bytes>>>, proxy: &str, at: usize) -> Result<Served, String> {
    let mut sender = match connection.take().filter(|sender| !sender.is_closed()) {
        Some(sender) => sender,
        None => connect(proxy).await?,
    };
    sender.ready().await.map_err(|error| error.to_string())?;
    let request = Request::get("/").header("host", "orders").header("x-user-id", user(at)).body(Empty::new());
    let request = request.map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let (head, body) = response.into_parts();
    body.collect().await.map_err(|error| error.to_string())?;
    *connection = Some(sender);
    let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).map(Arc::from);
    match (head.status.as_u16(), header("x-lanemesh-lane"), header("x-lanemesh-instance")) {
        (200, Some(lane), Some(instance)) => Ok(Served { lane, instance }),
        (status, ..) => Err(format!("status {status} {}", header("x-lanemesh-error").unwrap_or_default())),
    }
}

async fn connect(proxy: &str) -> Result<SendRequest<Empty<Bytes>>, String> {
    let stream = TcpStream::connect(proxy).await.map_err(|error| error.to_string())?;
    let _ = stream.set_nodelay(true);
    let (sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // Its end shows at the sender.
    tokio::spawn(async move { drop(driver.await) });
    Ok(sender)
}
