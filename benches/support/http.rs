//! A blocking HTTP/1.1 client on one kept-open connection. Hand-written because a load generator's own cost and waits must be
//! known; it understands `content-length` and chunked bodies, which is all that these servers send.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;

/// Longest wait for one answer.
const ANSWER: Duration = Duration::from_secs(5);

/// One connection.
pub struct Connection {
    addr: SocketAddr,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
}

/// An answer: status and body.
pub struct Answer<'a> {
    pub status: u16,
    pub body: &'a [u8],
}

impl Connection {
    /// To this address; opened with the first request.
    pub fn new(addr: SocketAddr) -> Self {
        Self { addr, stream: None, buffer: Vec::with_capacity(8192) }
    }

    /// GET.
    pub fn get(&mut self, path: &str) -> io::Result<Answer<'_>> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.addr);
        self.send(request.as_bytes())?;
        self.receive()
    }

    /// GET, the answer as JSON; `None` for any other than 200.
    pub fn json(&mut self, path: &str) -> Option<Value> {
        let answer = self.get(path).ok()?;
        if answer.status == 200 { serde_json::from_slice(answer.body).ok() } else { None }
    }

    /// Writes a whole request.
    pub fn send(&mut self, request: &[u8]) -> io::Result<()> {
        if self.stream.is_none() {
            let stream = TcpStream::connect_timeout(&self.addr, ANSWER)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER))?;
            self.stream = Some(stream);
        }
        let written = self.stream.as_mut().map_or(Ok(()), |stream| stream.write_all(request));
        written.inspect_err(|_| self.stream = None)
    }

    /// Reads a whole answer.
    pub fn receive(&mut self) -> io::Result<Answer<'_>> {
        match self.read_answer() {
            Ok((status, from, to)) => Ok(Answer { status, body: &self.buffer[from..to] }),
            Err(error) => {
                self.stream = None;
                Err(error)
            }
        }
    }

    fn read_answer(&mut self) -> io::Result<(u16, usize, usize)> {
        self.buffer.clear();
        let head_end = loop {
            if let Some(at) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            self.read_more()?;
        };
        let head = String::from_utf8_lossy(&self.buffer[..head_end]).to_ascii_lowercase();
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or_else(bad)?;
        let field =
            |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned());
        let length = field("content-length:").and_then(|length| length.parse::<usize>().ok());
        let close = field("connection:").is_some_and(|value| value.contains("close"));
        let end = match length {
            Some(length) => {
                while self.buffer.len() < head_end + length {
                    self.read_more()?;
                }
                head_end + length
            }
            // Chunked: what is inside is not looked at here.
            None => {
                while !self.buffer.ends_with(b"0\r\n\r\n") {
                    self.read_more()?;
                }
                self.buffer.len()
            }
        };
        if close {
            self.stream = None;
        }
        Ok((status, head_end, end))
    }

    fn read_more(&mut self) -> io::Result<()> {
        let stream = self.stream.as_mut().ok_or_else(bad)?;
        let mut piece = [0; 16 * 1024];
        match stream.read(&mut piece)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                self.buffer.extend_from_slice(&piece[..read]);
                Ok(())
            }
        }
    }
}

/// An order to an admin API: POST or PATCH with the write token.
pub fn order(addr: SocketAddr, method: &str, path: &str, token: &str, body: &str) -> io::Result<()> {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {addr}\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut connection = Connection::new(addr);
    connection.send(request.as_bytes())?;
    let answer = connection.receive()?;
    if answer.status / 100 == 2 {
        Ok(())
    } else {
        let said = String::from_utf8_lossy(answer.body).into_owned();
        Err(io::Error::other(format!("{method} {path}: {} {said}", answer.status)))
    }
}

fn bad() -> io::Error {
    io::Error::other("not an HTTP answer")
}
