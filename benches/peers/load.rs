//! Load from programs that people trust: wrk for HTTP/1.1, h2load for HTTP/2.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    time::Duration,
};

/// What is spoken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

/// One kind of load.
pub struct Load {
    pub protocol: Protocol,
    pub connections: usize,
    pub path: &'static str,
}

/// What came of it.
pub struct Done {
    pub requests: u64,
    /// Not 200, broken or late.
    pub failed: u64,
    /// Median time of a request.
    pub median_us: f64,
}

/// Users in the load; each always goes to the same instance.
const USERS: usize = 997;

impl Load {
    /// Runs for this long, on one core where `core` says so.
    pub fn run(&self, addr: SocketAddr, time: Duration, core: Option<usize>) -> Done {
        let (program, args) = match self.protocol {
            Protocol::Http1 => ("wrk", self.wrk(addr, time)),
            Protocol::Http2 => ("h2load", self.h2load(addr, time)),
        };
        let mut command = match core {
            Some(core) => {
                let mut pinned = Command::new("taskset");
                pinned.args(["-c", &core.to_string(), program]);
                pinned
            }
            None => Command::new(program),
        };
        let output = command.args(&args).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}: apt-get install wrk nghttp2-client"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let done = match self.protocol {
            Protocol::Http1 => of_wrk(&text),
            Protocol::Http2 => of_h2load(&text),
        };
        done.unwrap_or_else(|| {
            panic!("{program} says what is not understood: {text}{}", String::from_utf8_lossy(&output.stderr))
        })
    }

    fn wrk(&self, addr: SocketAddr, time: Duration) -> Vec<String> {
        let script = std::env::temp_dir().join(format!("lanemesh-bench-{}.lua", std::process::id()));
        let text = format!(
            "local all, at = {{}}, 0\nfunction init(args)\n  for n = 1, {USERS} do\n    all[n] = wrk.format(\"GET\", \"{}\", \
             {{[\"Host\"] = \"orders\", [\"x-user-id\"] = \"user-\" .. n}})\n  end\nend\nfunction request()\n  at = at % {USERS} + 1\n  \
             return all[at]\nend\n",
            self.path
        );
        std::fs::write(&script, text).expect("a script can be written");
        let args = [
            "-t1".to_owned(),
            format!("-c{}", self.connections),
            format!("-d{}s", time.as_secs()),
            "--latency".to_owned(),
            "--timeout".to_owned(),
            "5s".to_owned(),
            "-s".to_owned(),
            script.display().to_string(),
            format!("http://{addr}"),
        ];
        args.into()
    }

    fn h2load(&self, addr: SocketAddr, time: Duration) -> Vec<String> {
        let body = std::env::temp_dir().join(format!("lanemesh-bench-{}.body", std::process::id()));
        std::fs::write(&body, [&[0, 0, 0, 0, 32][..], &[7; 32]].concat()).expect("a body can be written");
        let args = [
            "-t1".to_owned(),
            format!("-c{}", self.connections),
            "-m8".to_owned(),
            "-D".to_owned(),
            time.as_secs().to_string(),
            "--warm-up-time=0".to_owned(),
            "-d".to_owned(),
            body.display().to_string(),
            "-H".to_owned(),
            "content-type: application/grpc".to_owned(),
            "-H".to_owned(),
            "te: trailers".to_owned(),
            "-H".to_owned(),
            "x-user-id: user-7".to_owned(),
            format!("http://{addr}{}", self.path),
        ];
        args.into()
    }
}

fn of_wrk(text: &str) -> Option<Done> {
    let requests = text.lines().find(|line| line.contains(" requests in "))?.split_whitespace().next()?.parse().ok()?;
    let number_after = |word: &str| {
        let rest = &text[text.find(word)? + word.len()..];
        rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    let words = ["Non-2xx or 3xx responses:", "connect", "read", "write", "timeout"];
    let errors = text.lines().any(|line| line.trim_start().starts_with("Socket errors:"));
    let failed = words.iter().take(if errors { words.len() } else { 1 }).filter_map(|word| number_after(word)).sum();
    let median = text.lines().find(|line| line.trim_start().starts_with("50%"))?.split_whitespace().nth(1)?;
    Some(Done { requests, failed, median_us: micros(median)? })
}

fn of_h2load(text: &str) -> Option<Done> {
    let line = text.lines().find(|line| line.starts_with("requests:"))?;
    let before = |word: &str| {
        let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        words[..words.iter().position(|found| *found == word)?].last()?.parse::<u64>().ok()
    };
    let succeeded = before("succeeded")?;
    // min, max, mean, sd: the mean stands for the median here.
    let mean = text.lines().find(|line| line.starts_with("time for request:"))?.split_whitespace().nth(5)?;
    Some(Done { requests: succeeded, failed: before("failed")? + before("errored")?, median_us: micros(mean)? })
}

/// `12.34us`, `1.20ms`, `1.01s`.
fn micros(text: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    units.iter().find_map(|(unit, factor)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * factor))
}

/// Opens so many connections, asks once on each, and keeps them.
pub fn hold(addr: SocketAddr, count: usize) -> Vec<TcpStream> {
    let open = |user: usize| {
        let mut stream = TcpStream::connect(addr).expect("the proxy takes connections");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time");
        let ask = format!("GET /b/256 HTTP/1.1\r\nHost: orders\r\nx-user-id: user-{user}\r\n\r\n");
        stream.write_all(ask.as_bytes()).expect("it takes a request");
        let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
        // The body is 256 times the same letter.
        while !seen.ends_with(&[b'x'; 256]) {
            let read = stream.read(&mut buffer).expect("it answers");
            assert!(read > 0, "closed: {}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&buffer[..read]);
        }
        stream
    };
    (0..count).map(open).collect()
}
