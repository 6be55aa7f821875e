//! One of ten instances turns bad under 2,000 requests a second: it refuses, hangs, fails half of what it gets, or is ten times as
//! slow. What users of two sidecars see of it, who is moved, and who comes back (issue 6, "must reach").
//!
//! `cargo bench --bench sick [-- PART ... --rounds N]`; parts: `refuse`, `hang`, `errors`, `slow`. `--set KEY=VALUE` (once) for the
//! sidecars, to compare: `--set routing.signals=false`.
//!
//! The instances are servers of this program, announced by one sidecar without checks, so that nothing but requests can find the
//! fault. Open and ramp times are shortened, so that a round takes half a minute, and `breaker_slow` is 4 (it is off by default). One request in ten is a POST.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock and waits")]

mod support;

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use support::{
    http::Connection,
    option, parts, process,
    sidecar::{Mesh, free_port},
    table::Figures,
    until,
};

/// Instances.
const APPS: usize = 10;
/// Sidecars that send.
const SENDERS: usize = 2;
/// Client connections of each sidecar, and how often each of them asks.
const CLIENTS: usize = 200;
const PACE: Duration = Duration::from_millis(200);
/// Users of each sidecar; each always goes to the same instance.
const USERS: usize = 1_000;
/// What an instance works on a request while it is well.
const WORK: Duration = Duration::from_millis(3);
/// Load before the fault, with it, and after it until everybody should be back.
const BEFORE: Duration = Duration::from_secs(3);
const DURING: Duration = Duration::from_secs(12);
const AFTER: Duration = Duration::from_secs(14);
/// Longer than any request takes while all is well.
const UNDER_WAY: Duration = Duration::from_millis(100);
/// Longest wait for a process.
const START: Duration = Duration::from_secs(20);

fn main() {
    let rounds = option("--rounds").and_then(|number| number.parse().ok()).unwrap_or(1);
    let wanted = parts();
    println!("sick: {}; {rounds} rounds", process::machine());
    let stage = Stage::new();
    let mut figures = Figures::default();
    for round in 0..rounds {
        for (mood, names) in FAULTS {
            if wanted.is_empty() || wanted.iter().any(|word| word == names[0]) {
                let seen = stage.play((round * 3 + 1) % APPS, mood);
                figures.add(names[1], "requests", 0.0, Some(seen.safe_failed));
                figures.add(names[2], "requests", 5.0, Some(seen.posts_failed));
                figures.add(names[3], "times", 2.0, Some(seen.p99));
                figures.add(names[4], "users", 0.0, Some(seen.others_moved));
                figures.add(names[5], "users", 0.0, Some(seen.strayed));
                println!("round {} {:<7} load {:>5.2}: {seen:?}", round + 1, names[0], process::load());
            }
        }
    }
    figures.print();
}

/// How an instance behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Mood {
    Well,
    Refuses,
    Hangs,
    FailsHalf,
    Slow,
}

const FAULTS: [(Mood, [&str; 6]); 4] = [
    (
        Mood::Refuses,
        [
            "refuse",
            "refuses: failed GETs",
            "refuses: failed POSTs per sidecar",
            "refuses: p99, last 2 s / before",
            "refuses: users of others moved",
            "refuses: users not back",
        ],
    ),
    (
        Mood::Hangs,
        [
            "hang",
            "hangs: failed GETs",
            "hangs: failed POSTs per sidecar",
            "hangs: p99, last 2 s / before",
            "hangs: users of others moved",
            "hangs: users not back",
        ],
    ),
    (
        Mood::FailsHalf,
        [
            "errors",
            "fails half: failed GETs",
            "fails half: failed POSTs per sidecar",
            "fails half: p99, last 2 s / before",
            "fails half: users of others moved",
            "fails half: users not back",
        ],
    ),
    (
        Mood::Slow,
        [
            "slow",
            "10x slow: failed GETs",
            "10x slow: failed POSTs per sidecar",
            "10x slow: p99, last 2 s / before",
            "10x slow: users of others moved",
            "10x slow: users not back",
        ],
    ),
];

/// One instance's server.
struct App {
    addr: SocketAddr,
    mood: AtomicU8,
    ended: AtomicBool,
    served: AtomicU32,
    open: Mutex<Vec<TcpStream>>,
}

impl App {
    fn start() -> Arc<Self> {
        let app = Arc::new(Self {
            addr: free_port(),
            mood: AtomicU8::new(Mood::Well as u8),
            ended: AtomicBool::new(false),
            served: AtomicU32::new(0),
            open: Mutex::default(),
        });
        let of = app.clone();
        std::thread::spawn(move || of.accept());
        app
    }

    fn is(&self, mood: Mood) -> bool {
        self.mood.load(Relaxed) == mood as u8
    }

    fn turn(&self, mood: Mood) {
        self.mood.store(mood as u8, Relaxed);
        if mood == Mood::Refuses {
            self.open.lock().expect("nobody panics").drain(..).for_each(|open| drop(open.shutdown(Shutdown::Both)));
        }
    }

    fn accept(self: Arc<Self>) {
        let mut listener = None;
        while !self.ended.load(Relaxed) {
            if self.is(Mood::Refuses) {
                listener = None;
            } else if listener.is_none() {
                let bound = TcpListener::bind(self.addr).expect("the port is still free");
                bound.set_nonblocking(true).expect("a listener can be made so");
                listener = Some(bound);
            }
            match listener.as_ref().map(TcpListener::accept) {
                Some(Ok((stream, _))) => {
                    stream.set_nonblocking(false).expect("a connection can be made so");
                    self.open.lock().expect("nobody panics").push(stream.try_clone().expect("a handle"));
                    let of = self.clone();
                    std::thread::spawn(move || of.serve(stream));
                }
                _ => sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Requests have a known length of nothing: their heads are all there is to read.
    fn serve(&self, mut stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let (mut buffer, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            while let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                buffer.drain(..end + 4);
                while self.is(Mood::Hangs) {
                    sleep(Duration::from_millis(20));
                }
                sleep(if self.is(Mood::Slow) { WORK * 10 } else { WORK });
                let fails = self.is(Mood::FailsHalf) && self.served.fetch_add(1, Relaxed).is_multiple_of(2);
                let status = if fails { "503 Service Unavailable" } else { "200 OK" };
                let name = self.addr.port().to_string();
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{name}", name.len());
                if stream.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
            match stream.read(&mut piece) {
                Ok(0) | Err(_) => return,
                Ok(read) => buffer.extend_from_slice(&piece[..read]),
            }
        }
    }
}

/// Ten instances, one sidecar that announces them, and those that send.
struct Stage {
    apps: Vec<Arc<App>>,
    mesh: Mesh,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.apps.iter().for_each(|app| app.ended.store(true, Relaxed));
    }
}

impl Stage {
    fn new() -> Self {
        let apps: Vec<Arc<App>> = (0..APPS).map(|_| App::start()).collect();
        let mut mesh = Mesh::new("sick");
        let owner = mesh.add("owner", None);
        for (at, app) in apps.iter().enumerate() {
            for (key, value) in
                [("id", format!("orders-{at}")), ("service", "orders".into()), ("host", "127.0.0.1".into())]
            {
                owner.set.push(format!("instance.{at}.{key}={value}"));
            }
            owner.set.push(format!("instance.{at}.port={}", app.addr.port()));
            owner.set.push(format!("instance.{at}.check=none"));
        }
        for sender in 0..SENDERS {
            let sender = mesh.add(&format!("shop-{sender}"), None);
            sender.set.extend(
                [
                    "routing.breaker_open=2s",
                    "routing.breaker_ramp=3s",
                    "routing.slow_start=0ms",
                    "routing.breaker_slow=4",
                ]
                .map(String::from),
            );
            sender.set.extend(option("--set"));
        }
        mesh.start_all();
        let stage = Self { apps, mesh };
        for sidecar in &stage.mesh.sidecars[1..] {
            let mut admin = Connection::new(sidecar.admin);
            let all = until(START, Duration::from_millis(20), || {
                (admin.json("/v1/services")?[0]["candidates"] == APPS).then_some(())
            });
            all.expect("every sender routes to all instances");
        }
        stage
    }

    /// One fault of one instance, from before it to after it.
    fn play(&self, bad: usize, mood: Mood) -> Summary {
        let begin = Instant::now() + Duration::from_millis(100);
        let [sick, well, end] = [BEFORE, BEFORE + DURING, BEFORE + DURING + AFTER].map(|after| begin + after);
        let senders = &self.mesh.sidecars[1..];
        let seen: Vec<Vec<Seen>> = std::thread::scope(|scope| {
            let load = |(number, proxy): (usize, SocketAddr)| {
                let clients =
                    (0..CLIENTS).map(move |client| scope.spawn(move || load(proxy, number, client, begin, end)));
                clients.collect::<Vec<_>>()
            };
            let loads: Vec<_> = senders.iter().map(|sidecar| sidecar.proxy).enumerate().map(load).collect();
            sleep(sick.saturating_duration_since(Instant::now()));
            self.apps[bad].turn(mood);
            sleep(well.saturating_duration_since(Instant::now()));
            self.apps[bad].turn(Mood::Well);
            let ended = loads
                .into_iter()
                .map(|clients| clients.into_iter().flat_map(|client| client.join().expect("no client panics")));
            ended.map(Iterator::collect).collect()
        });
        Summary::of(&seen, self.apps[bad].addr.port(), [begin, sick, well, end])
    }
}

/// One request as its client saw it.
struct Seen {
    user: usize,
    post: bool,
    sent: Instant,
    took: Duration,
    /// The port of the instance that answered 200.
    by: Option<u16>,
}

/// One client's timetable.
fn load(proxy: SocketAddr, sidecar: usize, client: usize, begin: Instant, end: Instant) -> Vec<Seen> {
    let mut connection = Connection::new(proxy);
    let mut due = begin + PACE * client as u32 / CLIENTS as u32;
    let (mut count, mut seen) = (0, Vec::new());
    while due < end {
        sleep(due.saturating_duration_since(Instant::now()));
        let user = (client + count * CLIENTS) % USERS;
        let post = (client + count).is_multiple_of(10);
        count += 1;
        let sent = Instant::now();
        let by = ask(&mut connection, sidecar * USERS + user, post);
        seen.push(Seen { user: sidecar * USERS + user, post, sent, took: sent.elapsed(), by });
        // A late one does not make the following ones hurry.
        due = (due + PACE).max(Instant::now());
    }
    seen
}

fn ask(connection: &mut Connection, user: usize, post: bool) -> Option<u16> {
    let method = if post { "POST" } else { "GET" };
    let request = format!("{method} / HTTP/1.1\r\nhost: orders\r\nx-user-id: u{user}\r\ncontent-length: 0\r\n\r\n");
    connection.send(request.as_bytes()).ok()?;
    let answer = connection.receive().ok().filter(|answer| answer.status == 200)?;
    std::str::from_utf8(answer.body).ok()?.parse().ok()
}

/// What one fault did.
#[derive(Debug)]
struct Summary {
    #[expect(dead_code, reason = "printed")]
    requests: usize,
    safe_failed: f64,
    posts_failed: f64,
    p99: f64,
    /// Users of the bad instance that were elsewhere in the end of the fault.
    #[expect(dead_code, reason = "printed")]
    moved: usize,
    others_moved: f64,
    strayed: f64,
    /// The bad instance's port.
    #[expect(dead_code, reason = "printed")]
    bad: u16,
    /// Each user that is not back: what was sent for it in the end, how long it took in milliseconds, and who answered.
    #[expect(dead_code, reason = "printed")]
    strays: BTreeMap<usize, Vec<(u128, Option<u16>)>>,
}

impl Summary {
    fn of(seen: &[Vec<Seen>], bad: u16, [begin, sick, well, end]: [Instant; 4]) -> Self {
        let all = || seen.iter().flatten();
        let failed = |post: bool| all().filter(|seen| seen.post == post && seen.by.is_none()).count() as f64;
        let warm = begin + Duration::from_secs(1);
        let last = |until: Instant| (until - Duration::from_secs(2), until);
        let p99 = |(from, to): (Instant, Instant)| {
            let mut times: Vec<Duration> =
                all().filter(|seen| seen.sent >= from && seen.sent < to).map(|seen| seen.took).collect();
            times.sort();
            times.get(times.len() * 99 / 100).copied().unwrap_or_default()
        };
        let served = |(from, to): (Instant, Instant)| -> BTreeMap<usize, u16> {
            let within = all().filter(|seen| seen.sent >= from && seen.sent < to);
            within.filter_map(|seen| Some((seen.user, seen.by?))).collect()
        };
        // Whoever is under way at the moment of the fault may already be served elsewhere because of it, which says nothing of where
        // its user was at home.
        let settled = sick - UNDER_WAY;
        let (before, during, after) = (served((warm, settled)), served(last(well)), served(last(end)));
        let others = during.iter().filter(|(user, by)| before.get(user).is_some_and(|was| was != *by && *was != bad));
        let away = during.iter().filter(|(user, by)| before.get(user) == Some(&bad) && **by != bad);
        let strayed: Vec<usize> = after
            .iter()
            .filter(|(user, by)| before.get(user).is_some_and(|was| was != *by))
            .map(|(user, _)| *user)
            .collect();
        let told = |user: &usize| {
            let sent = all().filter(|seen| seen.user == *user && seen.sent >= last(end).0);
            (*user, sent.map(|seen| (seen.took.as_millis(), seen.by)).collect())
        };
        Self {
            requests: all().count(),
            safe_failed: failed(false),
            posts_failed: failed(true) / SENDERS as f64,
            p99: p99(last(well)).as_secs_f64() / p99((warm, sick)).as_secs_f64(),
            moved: away.count(),
            others_moved: others.count() as f64,
            strayed: strayed.len() as f64,
            bad,
            strays: strayed.iter().map(told).collect(),
        }
    }
}
