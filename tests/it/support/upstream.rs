//! An application that plays a script: per request exact bytes, pauses, closes and resets; and logs what it received.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use super::raw::find;

/// One request as the upstream saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Number of the connection, from 0.
    pub connection: usize,
    /// Request line and headers, as they came.
    pub head: String,
    /// Its body, decoded.
    pub body: Vec<u8>,
}

impl Seen {
    /// All values of a header.
    pub fn values(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).collect()
    }

    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }
}

/// One thing the upstream does.
#[derive(Debug, Clone)]
pub enum Act {
    /// Sends bytes.
    Send(Vec<u8>),
    /// Waits.
    Pause(Duration),
    /// Ends the connection in order.
    Close,
    /// Resets it.
    Reset,
}

impl Act {
    pub fn send(text: impl AsRef<[u8]>) -> Self {
        Self::Send(text.as_ref().to_vec())
    }

    /// A `200` with a body of known length.
    pub fn ok(body: &str) -> Self {
        Self::send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
    }
}

type Script = dyn Fn(&Seen, usize) -> Vec<Act> + Send + Sync;

/// A running upstream; stops when dropped.
pub struct Upstream {
    pub addr: SocketAddr,
    log: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
    open: Arc<Mutex<Vec<Weak<TcpStream>>>>,
    stopped: Arc<AtomicBool>,
}

impl Upstream {
    /// `script` gets the request and how many this upstream saw before.
    pub fn start(script: impl Fn(&Seen, usize) -> Vec<Act> + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), script)
    }

    /// The same on a listener that is there.
    pub fn on(listener: TcpListener, script: impl Fn(&Seen, usize) -> Vec<Act> + Send + Sync + 'static) -> Self {
        let upstream = Self {
            addr: listener.local_addr().unwrap(),
            log: Arc::default(),
            connections: Arc::default(),
            closed: Arc::default(),
            open: Arc::default(),
            stopped: Arc::default(),
        };
        let (log, open, stopped) = (upstream.log.clone(), upstream.open.clone(), upstream.stopped.clone());
        let (connections, closed) = (upstream.connections.clone(), upstream.closed.clone());
        let script: Arc<Script> = Arc::new(script);
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if stopped.load(SeqCst) {
                    return;
                }
                let number = connections.fetch_add(1, SeqCst);
                let stream = Arc::new(stream);
                open.lock().unwrap().push(Arc::downgrade(&stream));
                let (log, script, closed) = (log.clone(), script.clone(), closed.clone());
                thread::spawn(move || {
                    play(stream, number, &log, &*script);
                    closed.fetch_add(1, SeqCst);
                });
            }
        });
        upstream
    }

    /// Answers everything with 200 and this body.
    pub fn ok(body: &'static str) -> Self {
        Self::start(move |_, _| vec![Act::ok(body)])
    }

    /// Answers everything with these bytes.
    pub fn bytes(answer: &'static str) -> Self {
        Self::start(move |_, _| vec![Act::send(answer)])
    }

    /// An address that refuses connections.
    pub fn refusing() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    /// Requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.log.lock().unwrap().clone()
    }

    /// The only request; panics when there was none or more.
    pub fn only(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:#?}");
        seen[0].clone()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    /// Connections that have ended.
    pub fn closed(&self) -> usize {
        self.closed.load(SeqCst)
    }

    /// As kill -9: refuses new connections and resets the open ones.
    pub fn kill(&self) {
        self.stopped.store(true, SeqCst);
        for stream in self.open.lock().unwrap().drain(..).filter_map(|stream| stream.upgrade()) {
            let _ = socket2::SockRef::from(&*stream).set_linger(Some(Duration::ZERO));
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        // Wakes the accept loop, which then drops the listener.
        let _ = TcpStream::connect(self.addr);
        let began = Instant::now();
        while TcpStream::connect(self.addr).is_ok() && began.elapsed() < Duration::from_secs(2) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stopped.store(true, SeqCst);
        let _ = TcpStream::connect(self.addr);
    }
}

fn play(stream: Arc<TcpStream>, connection: usize, log: &Mutex<Vec<Seen>>, script: &Script) {
    let _ = stream.set_nodelay(true);
    let mut rest = Vec::new();
    while let Some(seen) = read_request(&stream, connection, &mut rest) {
        let before = {
            let mut log = log.lock().unwrap();
            log.push(seen.clone());
            log.len() - 1
        };
        for act in script(&seen, before) {
            match act {
                Act::Send(bytes) => {
                    if (&*stream).write_all(&bytes).is_err() {
                        return;
                    }
                }
                Act::Pause(time) => thread::sleep(time),
                Act::Close => {
                    let _ = stream.shutdown(std::net::Shutdown::Both);
                    return;
                }
                Act::Reset => {
                    // Takes effect when the last handle goes, which is here: `open` holds weak ones.
                    let _ = socket2::SockRef::from(&*stream).set_linger(Some(Duration::ZERO));
                    return;
                }
            }
        }
    }
}

fn read_request(stream: &TcpStream, connection: usize, rest: &mut Vec<u8>) -> Option<Seen> {
    fill(stream, rest, |bytes| find(bytes, b"\r\n\r\n").is_some())?;
    let end = find(rest, b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&rest[..end]).into_owned();
    rest.drain(..end);
    let mut seen = Seen { connection, head, body: Vec::new() };
    if let Some(length) = seen.values("content-length").first().and_then(|text| text.parse::<usize>().ok()) {
        fill(stream, rest, |bytes| bytes.len() >= length)?;
        seen.body = rest.drain(..length).collect();
    } else if !seen.values("transfer-encoding").is_empty() {
        loop {
            fill(stream, rest, |bytes| find(bytes, b"\r\n").is_some())?;
            let end = find(rest, b"\r\n")?;
            let size = usize::from_str_radix(&String::from_utf8_lossy(&rest[..end]), 16).ok()?;
            fill(stream, rest, |bytes| bytes.len() >= end + 2 + size + 2)?;
            seen.body.extend_from_slice(&rest[end + 2..end + 2 + size]);
            rest.drain(..end + 2 + size + 2);
            if size == 0 {
                break;
            }
        }
    }
    Some(seen)
}

fn fill(mut stream: &TcpStream, rest: &mut Vec<u8>, done: impl Fn(&[u8]) -> bool) -> Option<()> {
    let mut buffer = [0; 64 * 1024];
    while !done(rest) {
        match stream.read(&mut buffer) {
            Ok(n) if n > 0 => rest.extend_from_slice(&buffer[..n]),
            _ => return None,
        }
    }
    Some(())
}
