//! Steady load on a proxy over kept-open connections, with every outcome kept.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::http::Http;

/// Outcome of one request.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// When it began, and when it ended.
    pub from: Instant,
    pub to: Instant,
    pub user: String,
    /// Status; 0 when there was no response.
    pub status: u16,
    /// Instance and lane that served it, as the response headers tell.
    pub instance: String,
    pub lane: String,
    /// What went wrong, or the response's body.
    pub text: String,
}

/// Running load; stops when dropped.
pub struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<Mutex<Vec<Outcome>>>,
    threads: Vec<JoinHandle<()>>,
}

/// Connections at a time.
const CONNECTIONS: u32 = 4;

impl Load {
    /// GETs of `/` at a service, about so many a second, for the users `u0` to `u199` in turn.
    pub fn start(proxy: SocketAddr, service: &str, per_second: u32) -> Self {
        let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<Outcome>>>::default());
        let pause = Duration::from_secs(1) * CONNECTIONS / per_second;
        let threads = (0..CONNECTIONS)
            .map(|at| {
                let (stop, done, service) = (stop.clone(), done.clone(), service.to_owned());
                std::thread::spawn(move || {
                    let mut http = Http::new(proxy);
                    let mut next = Instant::now();
                    for n in (0..).map(|n| n * CONNECTIONS + at) {
                        if stop.load(SeqCst) {
                            return;
                        }
                        let outcome = one(&mut http, &service, &format!("u{}", n % 200));
                        done.lock().unwrap().push(outcome);
                        // Behind schedule it does not catch up: the rate is a ceiling.
                        next = (next + pause).max(Instant::now());
                        std::thread::sleep(next.saturating_duration_since(Instant::now()));
                    }
                })
            })
            .collect();
        Self { stop, done, threads }
    }

    /// Requests ended so far.
    pub fn count(&self) -> usize {
        self.done.lock().unwrap().len()
    }

    /// Waits until so many more have ended.
    pub fn run_for(&self, more: usize) {
        let wanted = self.count() + more;
        super::process::wait("more requests", || self.count() >= wanted);
    }

    /// Stops, and gives everything that happened.
    pub fn finish(mut self) -> Vec<Outcome> {
        self.stop.store(true, SeqCst);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        std::mem::take(&mut self.done.lock().unwrap())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
    }
}

fn one(http: &mut Http, service: &str, user: &str) -> Outcome {
    let from = Instant::now();
    let result = http.get(service, user, "/");
    let to = Instant::now();
    let mut outcome = Outcome {
        from,
        to,
        user: user.into(),
        status: 0,
        instance: String::new(),
        lane: String::new(),
        text: String::new(),
    };
    match result {
        Ok(answer) => {
            outcome.status = answer.status;
            outcome.instance = answer.header("x-lanemesh-instance").into();
            outcome.lane = answer.header("x-lanemesh-lane").into();
            outcome.text = answer.text();
        }
        Err(error) => outcome.text = error.to_string(),
    }
    outcome
}

/// Those that did not end with 200.
pub fn failures(outcomes: &[Outcome]) -> Vec<&Outcome> {
    outcomes.iter().filter(|outcome| outcome.status != 200).collect()
}
