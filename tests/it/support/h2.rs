//! HTTP/2 frame by frame: a client that sends exactly what it is told, and an application that plays a script.
//!
//! Blocking, one connection a thread. SETTINGS and PING are acknowledged and windows are given back unless a test says otherwise,
//! so that a test names only the frames it is about.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use loona_hpack::Decoder;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types (RFC 9113 6).
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
/// Flags.
pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;
/// Settings.
pub const MAX_CONCURRENT_STREAMS: u16 = 3;
pub const INITIAL_WINDOW_SIZE: u16 = 4;
/// What everybody takes in one frame.
const MOST_FRAME: usize = 16_384;
/// Error codes.
pub const NO_ERROR: u32 = 0;
pub const PROTOCOL_ERROR: u32 = 1;
pub const INTERNAL_ERROR: u32 = 2;
pub const REFUSED_STREAM: u32 = 7;
pub const CANCEL: u32 = 8;
pub const ENHANCE_YOUR_CALM: u32 = 11;

pub type Fields = Vec<(String, String)>;

/// Field lines from pairs.
pub fn fields(pairs: &[(&str, &str)]) -> Fields {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Field lines of a request to `orders`.
pub fn request(method: &str, path: &str, more: &[(&str, &str)]) -> Fields {
    let mut all = fields(&[(":method", method), (":scheme", "http"), (":authority", "orders"), (":path", path)]);
    all.extend(fields(more));
    all
}

/// Field lines of a gRPC call.
pub fn call(more: &[(&str, &str)]) -> Fields {
    let mut all = request("POST", "/pkg.Orders/Get", &[("content-type", "application/grpc"), ("te", "trailers")]);
    all.extend(fields(more));
    all
}

/// All values of a field.
pub fn values<'a>(fields: &'a Fields, name: &str) -> Vec<&'a str> {
    fields.iter().filter(|(n, _)| n == name).map(|(_, value)| value.as_str()).collect()
}

/// A field block: literals without indexing, nothing compressed (RFC 7541 6.2.2).
pub fn block(fields: &Fields) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            let mut length = text.len();
            if length < 127 {
                out.push(length as u8);
            } else {
                out.push(127);
                length -= 127;
                while length >= 128 {
                    out.push((length % 128) as u8 | 128);
                    length /= 128;
                }
                out.push(length as u8);
            }
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

/// What the other end did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Headers { stream: u32, fields: Fields, end: bool },
    Data { stream: u32, bytes: Vec<u8>, end: bool },
    Reset { stream: u32, code: u32 },
    GoAway { last: u32, code: u32 },
    Settings(Vec<(u16, u32)>),
    Ping,
    Closed,
}

/// A whole response, or what there is of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub fields: Fields,
    pub body: Vec<u8>,
    pub trailers: Fields,
    /// The stream was reset.
    pub reset: Option<u32>,
    /// The fields ended the stream.
    pub only_fields: bool,
}

impl Response {
    /// The only value of a field, in the head or in the trailers; empty when absent.
    pub fn field(&self, name: &str) -> &str {
        let all: Vec<&str> = [values(&self.fields, name), values(&self.trailers, name)].concat();
        assert!(all.len() < 2, "`{name}` twice in {self:?}");
        all.first().copied().unwrap_or_default()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// One end of a connection.
pub struct Conn {
    stream: TcpStream,
    rest: Vec<u8>,
    decoder: Decoder<'static>,
    block: Vec<u8>,
    /// Acknowledge SETTINGS and PING.
    pub acknowledge: bool,
    /// Give windows back.
    pub give_back: bool,
    /// What `response` read of other streams.
    pending: Vec<Event>,
}

impl Conn {
    /// A client that has sent preface and SETTINGS.
    pub fn client(addr: SocketAddr) -> Self {
        let mut conn = Self::bare(TcpStream::connect(addr).expect("the proxy listens"));
        conn.raw(PREFACE).settings(&[]);
        conn
    }

    /// An end that has sent nothing.
    pub fn bare(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let (rest, block, pending) = (Vec::new(), Vec::new(), Vec::new());
        Self { stream, rest, decoder: Decoder::new(), block, acknowledge: true, give_back: true, pending }
    }

    pub fn raw(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        // The other end may have ended the connection: that shows in what is read.
        let _ = self.stream.write_all(bytes.as_ref());
        self
    }

    pub fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> &mut Self {
        self.raw(frame(kind, flags, stream, payload))
    }

    pub fn settings(&mut self, settings: &[(u16, u32)]) -> &mut Self {
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(id, value)| [id.to_be_bytes().to_vec(), value.to_be_bytes().to_vec()].concat())
            .collect();
        self.frame(SETTINGS, 0, 0, &payload)
    }

    /// HEADERS, as one frame.
    pub fn headers(&mut self, stream: u32, fields: &Fields, end: bool) -> &mut Self {
        self.frame(HEADERS, END_HEADERS | u8::from(end), stream, &block(fields))
    }

    /// DATA, in as many frames as it takes.
    pub fn data(&mut self, stream: u32, bytes: impl AsRef<[u8]>, end: bool) -> &mut Self {
        let bytes = bytes.as_ref();
        let mut left = bytes.len().div_ceil(MOST_FRAME).max(1);
        for piece in bytes.chunks(MOST_FRAME).chain(bytes.is_empty().then_some(bytes)) {
            left -= 1;
            self.frame(DATA, u8::from(end && left == 0), stream, piece);
        }
        self
    }

    pub fn reset(&mut self, stream: u32, code: u32) -> &mut Self {
        self.frame(RST_STREAM, 0, stream, &code.to_be_bytes())
    }

    pub fn go_away(&mut self, last: u32, code: u32) -> &mut Self {
        self.frame(GOAWAY, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat())
    }

    /// Answers a stream with 200 and a body.
    pub fn ok(&mut self, stream: u32, body: &str) -> &mut Self {
        self.headers(stream, &fields(&[(":status", "200")]), false).data(stream, body, true)
    }

    /// Ends the sending side.
    pub fn shut(&mut self) -> &mut Self {
        let _ = self.stream.shutdown(Shutdown::Write);
        self
    }

    pub fn patience(&mut self, wait: Duration) -> &mut Self {
        self.stream.set_read_timeout(Some(wait)).unwrap();
        self
    }

    /// A second handle of the socket.
    pub fn writer(&self) -> TcpStream {
        self.stream.try_clone().unwrap()
    }

    /// The next thing the other end does; panics after ten seconds of nothing.
    pub fn next(&mut self) -> Event {
        self.poll().expect("something within the time")
    }

    /// The next thing, or nothing in the time that `patience` gives.
    pub fn poll(&mut self) -> Option<Event> {
        loop {
            let Some(head) = self.read(9)? else { return Some(Event::Closed) };
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
            let Some(payload) = self.read(length)? else { return Some(Event::Closed) };
            let code = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
            match kind {
                HEADERS | CONTINUATION => {
                    assert!(flags & (8 | 32) == 0, "padding and priority are not sent by the proxy");
                    self.block.extend_from_slice(&payload);
                    assert!(flags & END_HEADERS != 0, "a head in several frames");
                    let block = std::mem::take(&mut self.block);
                    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
                    let decoded = self.decoder.decode(&block).expect("a field block");
                    let fields = decoded.into_iter().map(|(name, value)| (text(name), text(value))).collect();
                    return Some(Event::Headers { stream, fields, end: flags & END_STREAM != 0 });
                }
                DATA => {
                    if self.give_back && length > 0 {
                        let add = (length as u32).to_be_bytes();
                        self.frame(WINDOW_UPDATE, 0, 0, &add).frame(WINDOW_UPDATE, 0, stream, &add);
                    }
                    return Some(Event::Data { stream, bytes: payload, end: flags & END_STREAM != 0 });
                }
                RST_STREAM => return Some(Event::Reset { stream, code: code(0) }),
                GOAWAY => return Some(Event::GoAway { last: code(0), code: code(4) }),
                SETTINGS if flags & ACK == 0 => {
                    if self.acknowledge {
                        self.frame(SETTINGS, ACK, 0, &[]);
                    }
                    let pair = |six: &[u8]| {
                        (u16::from_be_bytes([six[0], six[1]]), u32::from_be_bytes(six[2..6].try_into().unwrap()))
                    };
                    return Some(Event::Settings(payload.chunks(6).map(pair).collect()));
                }
                PING if flags & ACK == 0 => {
                    if self.acknowledge {
                        self.frame(PING, ACK, 0, &payload);
                    }
                    return Some(Event::Ping);
                }
                _ => {}
            }
        }
    }

    /// So many bytes; `Some(None)` at the end of the connection, `None` when they don't come in time.
    #[expect(clippy::option_option, reason = "two ways of having nothing")]
    fn read(&mut self, length: usize) -> Option<Option<Vec<u8>>> {
        let mut buffer = [0; 64 * 1024];
        while self.rest.len() < length {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Some(None),
                Ok(n) => self.rest.extend_from_slice(&buffer[..n]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return None,
                Err(_) => return Some(None),
            }
        }
        Some(Some(self.rest.drain(..length).collect()))
    }

    /// Reads until `done` wants no more; gives the event that ended it. What is passed over is lost.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&Event) -> bool) -> Event {
        loop {
            let event = self.next();
            if done(&event) {
                return event;
            }
            assert_ne!(event, Event::Closed, "closed before {what}");
        }
    }

    /// A whole request on a stream, and its response.
    pub fn ask(&mut self, stream: u32, fields: &Fields, body: &str) -> Response {
        self.headers(stream, fields, body.is_empty());
        if !body.is_empty() {
            self.data(stream, body, true);
        }
        self.response(stream)
    }

    /// The response on a stream; events of other streams are kept for their own calls.
    pub fn response(&mut self, stream: u32) -> Response {
        let mut response = Response::default();
        let mut kept = std::mem::take(&mut self.pending).into_iter();
        let mut others = Vec::new();
        loop {
            let event = kept.next().unwrap_or_else(|| self.next());
            match event {
                Event::Headers { stream: at, fields, end } if at == stream => {
                    if response.status == 0 {
                        response.status = values(&fields, ":status")[0].parse().unwrap();
                        (response.fields, response.only_fields) = (fields, end);
                    } else {
                        response.trailers = fields;
                    }
                    if end {
                        break;
                    }
                }
                Event::Data { stream: at, bytes, end } if at == stream => {
                    response.body.extend_from_slice(&bytes);
                    if end {
                        break;
                    }
                }
                Event::Reset { stream: at, code } if at == stream => {
                    response.reset = Some(code);
                    break;
                }
                Event::Closed => panic!("closed; of stream {stream} there was {response:?}"),
                Event::Headers { .. } | Event::Data { .. } | Event::Reset { .. } => others.push(event),
                _ => {}
            }
        }
        others.extend(kept);
        self.pending = others;
        response
    }
}

/// A frame's bytes.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// One request as an HTTP/2 application saw it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Number of the connection, from 0.
    pub connection: usize,
    pub stream: u32,
    pub fields: Fields,
    pub body: Vec<u8>,
    pub trailers: Fields,
}

impl Seen {
    pub fn values(&self, name: &str) -> Vec<&str> {
        values(&self.fields, name)
    }
}

/// An answer of an application.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub fields: Fields,
    pub body: Vec<u8>,
    pub trailers: Option<Fields>,
}

impl Reply {
    pub fn ok(body: &str) -> Self {
        Self { fields: fields(&[(":status", "200")]), body: body.into(), trailers: None }
    }

    pub fn field(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.into(), value.into()));
        self
    }

    pub fn trailers(mut self, pairs: &[(&str, &str)]) -> Self {
        self.trailers = Some(fields(pairs));
        self
    }
}

/// An application that speaks HTTP/2; its threads end with their connections.
pub struct H2Up {
    pub addr: SocketAddr,
    log: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
}

impl H2Up {
    /// `script` plays a connection, whose preface was read and to which nothing was sent; it gets the connection's number and the
    /// log of requests. The connection is closed when it returns.
    pub fn start(script: impl Fn(&mut Conn, usize, &Mutex<Vec<Seen>>) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let up = Self { addr, log: Arc::default(), connections: Arc::default(), closed: Arc::default() };
        let (log, connections, closed) = (up.log.clone(), up.connections.clone(), up.closed.clone());
        let script = Arc::new(script);
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let number = connections.fetch_add(1, SeqCst);
                let (log, script, closed) = (log.clone(), script.clone(), closed.clone());
                thread::spawn(move || {
                    let mut conn = Conn::bare(stream);
                    // The proxy keeps connections open for longer than a test lasts.
                    conn.patience(Duration::from_secs(60));
                    if conn.read(PREFACE.len()).flatten().is_some_and(|bytes| bytes == PREFACE) {
                        script(&mut conn, number, &log);
                    }
                    drop(conn);
                    closed.fetch_add(1, SeqCst);
                });
            }
        });
        up
    }

    /// Answers every whole request.
    pub fn answering(reply: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::with(&[], reply)
    }

    /// The same with settings.
    pub fn with(settings: &'static [(u16, u32)], reply: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(move |conn, number, log| {
            conn.settings(settings);
            while let Some(seen) = next_request(conn, number) {
                log.lock().unwrap().push(seen.clone());
                send(conn, seen.stream, &reply(&seen));
            }
        })
    }

    /// Answers everything with 200 and this body.
    pub fn ok(body: &'static str) -> Self {
        Self::answering(move |_| Reply::ok(body))
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.log.lock().unwrap().clone()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    /// Connections that the application has closed.
    pub fn closed(&self) -> usize {
        self.closed.load(SeqCst)
    }
}

/// Sends an answer.
pub fn send(conn: &mut Conn, stream: u32, reply: &Reply) {
    let ends = reply.body.is_empty() && reply.trailers.is_none();
    conn.headers(stream, &reply.fields, ends);
    if !reply.body.is_empty() {
        conn.data(stream, &reply.body, reply.trailers.is_none());
    }
    if let Some(trailers) = &reply.trailers {
        conn.headers(stream, trailers, true);
    }
}

/// The next request that is whole, in the order in which they end; `None` at the end of the connection.
pub fn next_request(conn: &mut Conn, connection: usize) -> Option<Seen> {
    let mut open = std::mem::take(&mut conn.pending);
    loop {
        let event = conn.poll()?;
        open.push(event.clone());
        let ended = match event {
            Event::Headers { stream, end: true, .. } | Event::Data { stream, end: true, .. } => stream,
            Event::Closed => return None,
            _ => continue,
        };
        let mut seen = Seen { connection, stream: ended, ..Seen::default() };
        for event in &open {
            match event {
                Event::Headers { stream, fields, .. } if *stream == ended => {
                    if seen.fields.is_empty() {
                        seen.fields.clone_from(fields);
                    } else {
                        seen.trailers.clone_from(fields);
                    }
                }
                Event::Data { stream, bytes, .. } if *stream == ended => seen.body.extend_from_slice(bytes),
                _ => {}
            }
        }
        let other = |event: &Event| match event {
            Event::Headers { stream, .. } | Event::Data { stream, .. } => *stream != ended,
            _ => false,
        };
        open.retain(other);
        conn.pending = open;
        return Some(seen);
    }
}
