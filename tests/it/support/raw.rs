//! A client that writes exact bytes and reads what comes back, to the end of the connection if asked.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::Duration,
};

/// How a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The other end finished sending.
    Fin,
    /// It reset the connection.
    Rst,
    /// It is still open after the wait.
    Open,
}

/// One parsed response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    /// The only value of a header; panics when there are several.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        let first = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "`{name}` twice in {:?}", self.headers);
        first
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A client connection.
#[derive(Debug)]
pub struct Raw {
    stream: TcpStream,
    /// Read and not yet used.
    rest: Vec<u8>,
}

impl Raw {
    pub fn connect(addr: SocketAddr) -> Self {
        Self::from_stream(TcpStream::connect(addr).expect("the proxy listens"))
    }

    /// Also for the other side: an accepted connection.
    pub fn from_stream(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Self { stream, rest: Vec::new() }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        // The other end may refuse before it has read everything.
        let _ = self.stream.write_all(bytes.as_ref());
        self
    }

    pub fn half_close(&mut self) -> &mut Self {
        self.stream.shutdown(Shutdown::Write).unwrap();
        self
    }

    pub fn reset(self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// A second handle, to send while another thread reads.
    pub fn writer(&self) -> TcpStream {
        self.stream.try_clone().unwrap()
    }

    /// Sends a request and reads its response.
    pub fn ask(&mut self, request: impl AsRef<[u8]>) -> Response {
        let head = request.as_ref().starts_with(b"HEAD ");
        self.send(request);
        self.response(head)
    }

    /// Reads bytes until `done` is content with what is there; panics with what came when nothing more does.
    pub fn until(&mut self, what: &str, done: impl Fn(&[u8]) -> bool) -> &mut Self {
        let mut buffer = [0; 64 * 1024];
        while !done(&self.rest) {
            match self.stream.read(&mut buffer) {
                Ok(n) if n > 0 => self.rest.extend_from_slice(&buffer[..n]),
                ended => panic!("no {what}: {ended:?} after {:?}", String::from_utf8_lossy(&self.rest)),
            }
        }
        self
    }

    /// Bytes read and not yet used.
    pub fn pending(&self) -> &[u8] {
        &self.rest
    }

    /// Takes the bytes read so far.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.rest)
    }

    /// The next response; 1xx are skipped. `no_body`: it answers a HEAD.
    pub fn response(&mut self, no_body: bool) -> Response {
        loop {
            let (status, headers) = self.head();
            if (100..200).contains(&status) && status != 101 {
                continue;
            }
            let mut response = Response { status, headers, body: Vec::new() };
            if !no_body && !matches!(status, 101 | 204 | 304) {
                response.body = self.body(&response);
            }
            return response;
        }
    }

    fn head(&mut self) -> (u16, Vec<(String, String)>) {
        self.until("response head", |bytes| find(bytes, b"\r\n\r\n").is_some());
        let end = find(&self.rest, b"\r\n\r\n").unwrap();
        let head = String::from_utf8(self.rest.drain(..end + 4).collect()).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let pair = |line: &str| line.split_once(':').map(|(n, v)| (n.to_lowercase(), v.trim().to_owned())).unwrap();
        (status, lines.map(pair).collect())
    }

    fn body(&mut self, response: &Response) -> Vec<u8> {
        if let Some(length) = response.header("content-length") {
            let length: usize = length.parse().unwrap();
            self.until("whole body", |bytes| bytes.len() >= length);
            return self.rest.drain(..length).collect();
        }
        if response.header("transfer-encoding").is_some() {
            let mut body = Vec::new();
            loop {
                self.until("chunk size", |bytes| find(bytes, b"\r\n").is_some());
                let end = find(&self.rest, b"\r\n").unwrap();
                let line: Vec<u8> = self.rest.drain(..end + 2).collect();
                let size = usize::from_str_radix(std::str::from_utf8(&line[..end]).unwrap(), 16).unwrap();
                self.until("chunk", |bytes| bytes.len() >= size + 2);
                body.extend(self.rest.drain(..size));
                self.rest.drain(..2);
                if size == 0 {
                    return body;
                }
            }
        }
        let (rest, _) = self.drain();
        rest
    }

    /// Everything up to the end of the connection, and how it ended.
    pub fn drain(&mut self) -> (Vec<u8>, End) {
        let mut buffer = [0; 64 * 1024];
        let end = loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => break End::Fin,
                Ok(n) => self.rest.extend_from_slice(&buffer[..n]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break End::Open,
                Err(_) => break End::Rst,
            }
        };
        (std::mem::take(&mut self.rest), end)
    }

    pub fn patience(&mut self, wait: Duration) -> &mut Self {
        self.stream.set_read_timeout(Some(wait)).unwrap();
        self
    }
}

/// Where `needle` begins.
pub fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}
