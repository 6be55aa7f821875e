//! A small blocking HTTP/1.1 client that reports failures instead of panicking: for questions to a sidecar that may be gone,
//! and for load whose failures are counted.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use super::raw::find;

/// A whole response.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    /// First value of a header, empty when absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(n, _)| n == name).map_or("", |(_, value)| value)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// `null` when it is no JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// One kept-open connection; opened again when the other side closed it.
#[derive(Debug)]
pub struct Http {
    addr: SocketAddr,
    patience: Duration,
    stream: Option<TcpStream>,
    rest: Vec<u8>,
}

impl Http {
    pub fn new(addr: SocketAddr) -> Self {
        Self { addr, patience: Duration::from_secs(10), stream: None, rest: Vec::new() }
    }

    /// Longest silence that is waited for.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sends one request and reads its response. As browsers and pools do, it repeats a request once when a connection that
    /// had been idle turns out closed before a byte of the response: that close is no failure of the server.
    pub fn send(&mut self, request: &[u8]) -> io::Result<Answer> {
        let reused = self.stream.is_some();
        match self.exchange(request) {
            Err(_) if reused && self.stream.is_none() && self.rest.is_empty() => self.exchange(request),
            other => other,
        }
    }

    /// GET of a path of this host for a user.
    pub fn get(&mut self, host: &str, user: &str, path: &str) -> io::Result<Answer> {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nx-user-id: {user}\r\n\r\n").as_bytes())
    }

    fn exchange(&mut self, request: &[u8]) -> io::Result<Answer> {
        if self.stream.is_none() {
            self.rest.clear();
            let stream = TcpStream::connect_timeout(&self.addr, self.patience)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(self.patience))?;
            self.stream = Some(stream);
        }
        let result = self.write(request).and_then(|()| self.read(request.starts_with(b"HEAD ")));
        let stays = result.as_ref().is_ok_and(|answer| !answer.header("connection").eq_ignore_ascii_case("close"));
        if !stays {
            self.stream = None;
        }
        result
    }

    fn write(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.as_mut().ok_or(ErrorKind::NotConnected)?.write_all(request)
    }

    fn read(&mut self, no_body: bool) -> io::Result<Answer> {
        let end = self.fill(|bytes| find(bytes, b"\r\n\r\n"))? + 4;
        let head = String::from_utf8_lossy(&self.rest[..end]).into_owned();
        self.rest.drain(..end);
        let bad = || io::Error::new(ErrorKind::InvalidData, format!("no response: {head:?}"));
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).ok_or_else(bad)?;
        let pair = |line: &str| line.split_once(':').map(|(n, v)| (n.to_lowercase(), v.trim().to_owned()));
        let mut answer = Answer { status, headers: lines.filter_map(pair).collect(), body: Vec::new() };
        if no_body || matches!(status, 204 | 304) {
            return Ok(answer);
        }
        if let Ok(length) = answer.header("content-length").parse::<usize>() {
            self.fill(|bytes| (bytes.len() >= length).then_some(0))?;
            answer.body = self.rest.drain(..length).collect();
        } else if answer.header("transfer-encoding") == "chunked" {
            loop {
                let end = self.fill(|bytes| find(bytes, b"\r\n"))?;
                let line = String::from_utf8_lossy(&self.rest[..end]).into_owned();
                let size = usize::from_str_radix(line.trim(), 16).map_err(|_| bad())?;
                self.fill(|bytes| (bytes.len() >= end + 2 + size + 2).then_some(0))?;
                answer.body.extend_from_slice(&self.rest[end + 2..end + 2 + size]);
                self.rest.drain(..end + 2 + size + 2);
                if size == 0 {
                    break;
                }
            }
        } else {
            let stream = self.stream.as_mut().ok_or(ErrorKind::NotConnected)?;
            stream.read_to_end(&mut self.rest)?;
            answer.body = std::mem::take(&mut self.rest);
            self.stream = None;
        }
        Ok(answer)
    }

    fn fill(&mut self, done: impl Fn(&[u8]) -> Option<usize>) -> io::Result<usize> {
        let mut buffer = [0; 64 * 1024];
        loop {
            if let Some(at) = done(&self.rest) {
                return Ok(at);
            }
            let n = self.stream.as_mut().ok_or(ErrorKind::NotConnected)?.read(&mut buffer)?;
            if n == 0 {
                self.stream = None;
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.rest.extend_from_slice(&buffer[..n]);
        }
    }
}
