//! Follows a client's byte stream beside hyper's parser, to see what hyper hides (RFC 9112 6.3).
//!
//! hyper is strict, but it repairs: with `Transfer-Encoding` it drops `Content-Length`, it merges equal `Content-Length`s, and it
//! cuts a `#fragment` off the target. A less strict hop in front of us may have framed the same bytes differently, so these are
//! refused instead of repaired. The follower tracks where heads and bodies begin and end, and notes the first message with a
//! fault. It only ever adds refusals; where it cannot follow (syntax that hyper refuses anyway), it stops and says nothing.
//!
//! It also keeps heads beyond the configured limits away from hyper, which would refuse them without a word of explanation: the
//! first byte beyond is where the follower stands still for good.
//!
//! Written by hand because httparse has no notion of a stream of messages; it looks at header names only and keeps no bytes
//! beyond the first few of a line.

use http::{HeaderName, Method};

use super::{Reason, forward::Refusal};

/// What hyper would have repaired in silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// More than one length, or a length that is not digits only; in words.
    Framing(&'static str),
    /// A fragment in the target.
    Target,
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Framing(what) => Self { reason: Reason::BadFraming, detail: what.to_owned() },
            Fault::Target => Reason::BadTarget.into(),
        }
    }
}

/// Which limit a head is beyond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    /// More bytes or headers than configured.
    Head,
    /// The request line alone has more bytes than that, or than any may have.
    Target,
}

/// Where in the stream it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Between messages; blank lines are skipped.
    Between,
    /// In a head.
    Head,
    /// So many bytes of a body (or of a chunk with its line end) are left.
    Body { left: u64, chunked: bool },
    /// In a chunk's size line.
    ChunkSize,
    /// In trailers.
    Trailers,
    /// Given up.
    Lost,
    /// In a head beyond the limits.
    Stuck(Limit),
}

/// Kept bytes of a line: enough for `transfer-encoding: gzip, chunked` and any 64-bit length. A length or encoding that goes on behind
/// them is refused.
pub(super) const KEPT: usize = 96;

/// Longest request line: hyper takes no target of more than 65,534 bytes.
const LONGEST_LINE: usize = 65_500;

/// Part of a request line.
#[derive(Debug, Clone, Copy)]
enum Word {
    None,
    Method,
    /// And the version behind it.
    Target,
}

/// The follower of one client connection.
#[derive(Debug)]
pub(super) struct Follower {
    place: Place,
    line: [u8; KEPT],
    line_length: usize,
    /// Something of it was not kept.
    line_cut: bool,
    first_line: bool,
    /// Where in the request line it is.
    word: Word,
    head_bytes: usize,
    headers: usize,
    length: Option<u64>,
    lengths: u32,
    encodings: u32,
    fault: Option<Fault>,
    /// The first line of the present head that no HTTP request has.
    odd: Option<&'static str>,
    heads: u64,
    first_fault: Option<(u64, Fault)>,
    max_bytes: usize,
    max_headers: usize,
}

impl Follower {
    pub(super) fn new(max_bytes: usize, max_headers: usize) -> Self {
        Self {
            place: Place::Between,
            line: [0; KEPT],
            line_length: 0,
            line_cut: false,
            first_line: true,
            word: Word::None,
            head_bytes: 0,
            headers: 0,
            length: None,
            lengths: 0,
            encodings: 0,
            fault: None,
            odd: None,
            heads: 0,
            first_fault: None,
            max_bytes,
            max_headers,
        }
    }

    /// The fault of the message with this index (from 0), or of one before it.
    pub(super) fn fault(&self, message: u64) -> Option<Fault> {
        self.first_fault.filter(|(at, _)| *at <= message).map(|(_, fault)| fault)
    }

    /// What it is that no parser of HTTP/1 takes, as far as the lines of the present head tell.
    pub(super) fn oddity(&self) -> Option<&'static str> {
        let unfinished =
            || (self.place == Place::Head).then(|| odd(&self.line[..self.line_length], self.first_line, false));
        self.odd.or_else(|| unfinished().flatten())
    }

    /// Looks no further: the connection speaks something else from here on.
    pub(super) fn stop(&mut self) {
        (self.place, self.first_fault) = (Place::Lost, None);
    }

    /// Whether a head has begun and not ended.
    pub(super) fn in_head(&self) -> bool {
        self.place == Place::Head
    }

    /// The head under way is beyond the limits: nothing that comes now is to be parsed.
    pub(super) fn stuck(&self) -> Option<Limit> {
        match self.place {
            Place::Stuck(limit) => Some(limit),
            _ => None,
        }
    }

    /// Whether nothing is under way that the client would have to send the rest of.
    pub(super) fn between(&self) -> bool {
        self.place == Place::Between
    }

    /// Takes the bytes that hyper is about to see, and returns how many of them it may: all, unless a head is beyond the limits.
    pub(super) fn feed(&mut self, all: &[u8]) -> usize {
        let mut bytes = all;
        while !bytes.is_empty() {
            match self.place {
                Place::Lost => return all.len(),
                Place::Stuck(_) => return all.len() - bytes.len(),
                Place::Body { left, chunked } => {
                    let taken = left.min(bytes.len() as u64);
                    bytes = &bytes[taken as usize..];
                    self.place = match (left - taken, chunked) {
                        (0, true) => Place::ChunkSize,
                        (0, false) => Place::Between,
                        (left, _) => Place::Body { left, chunked },
                    };
                }
                Place::Between | Place::Head | Place::ChunkSize | Place::Trailers => bytes = self.feed_line(bytes),
            }
        }
        all.len()
    }

    /// Takes bytes up to the end of a line; returns the rest. Takes none where the limits are reached.
    fn feed_line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let end = bytes.iter().position(|c| *c == b'\n');
        let (part, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        if self.place == Place::Between && !part.trim_ascii().is_empty() {
            self.begin_head();
        }
        if let Some(limit) = self.beyond(part) {
            self.place = Place::Stuck(limit);
            return bytes;
        }
        let room = KEPT - self.line_length;
        let kept = &part[..part.len().min(room)];
        self.line[self.line_length..self.line_length + kept.len()].copy_from_slice(kept);
        self.line_length += kept.len();
        self.line_cut |= part[kept.len()..].iter().any(|c| !c.is_ascii_whitespace());
        if self.place == Place::Head {
            self.head_bytes += part.len() + usize::from(end.is_some());
            if self.first_line && self.target_of(part).contains(&b'#') {
                self.fault.get_or_insert(Fault::Target);
            }
        }
        if end.is_none() {
            return rest;
        }
        self.end_line();
        (self.line_length, self.line_cut) = (0, false);
        &rest[1..]
    }

    /// What of this further part of a request line is behind the method, whose name may have a `#` in it.
    fn target_of<'a>(&mut self, part: &'a [u8]) -> &'a [u8] {
        let begins = match self.word {
            Word::Target => return part,
            Word::Method => Some(0),
            Word::None => part.iter().position(|c| !c.is_ascii_whitespace()),
        };
        let Some(begins) = begins else { return &[] };
        self.word = Word::Method;
        let Some(length) = part[begins..].iter().position(|c| *c == b' ') else { return &[] };
        self.word = Word::Target;
        &part[begins + length..]
    }

    /// Whether a head with this further part of a line would be beyond the limits.
    fn beyond(&self, part: &[u8]) -> Option<Limit> {
        if self.place != Place::Head {
            return None;
        }
        let bytes = self.head_bytes + part.len() + 1;
        if self.first_line && bytes > self.max_bytes.min(LONGEST_LINE) {
            Some(Limit::Target)
        } else if bytes > self.max_bytes || self.headers >= self.max_headers && self.begins_header(part) {
            Some(Limit::Head)
        } else {
            None
        }
    }

    /// Whether the present line of a head, with this part, is a header and not the end of the head. One that begins with a carriage
    /// return and goes on is neither: hyper refuses it.
    fn begins_header(&self, part: &[u8]) -> bool {
        let first = self.line[..self.line_length].first().or(part.first());
        !self.first_line && first.is_some_and(|c| *c != b'\r')
    }

    fn begin_head(&mut self) {
        self.place = Place::Head;
        (self.first_line, self.word) = (true, Word::None);
        (self.head_bytes, self.headers, self.lengths, self.encodings) = (0, 0, 0, 0);
        (self.length, self.fault, self.odd) = (None, None, None);
    }

    fn end_line(&mut self) {
        let line = self.line;
        let line = line[..self.line_length].strip_suffix(b"\r").unwrap_or(&line[..self.line_length]);
        if self.place == Place::Head && self.odd.is_none() && !line.is_empty() {
            self.odd = odd(line, self.first_line, self.line_length < KEPT);
        }
        match self.place {
            Place::Head if line.is_empty() => self.end_head(),
            Place::Head if self.first_line => self.first_line = false,
            Place::Head => self.header(line),
            Place::ChunkSize => self.place = chunk(line),
            Place::Trailers if line.is_empty() => self.place = Place::Between,
            _ => {}
        }
    }

    fn header(&mut self, line: &[u8]) {
        self.headers += 1;
        let Some(colon) = line.iter().position(|c| *c == b':') else { return };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let framing = [b"content-length".as_slice(), b"transfer-encoding"];
        if self.line_cut && framing.iter().any(|framing| name.eq_ignore_ascii_case(framing)) {
            self.fault
                .get_or_insert(Fault::Framing("Content-Length or Transfer-Encoding is longer than any needs to be"));
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            self.lengths += 1;
            let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
            self.length = digits.then(|| std::str::from_utf8(value).ok()?.parse().ok()).flatten();
            if self.lengths > 1 {
                self.fault.get_or_insert(Fault::Framing("Content-Length comes more than once"));
            } else if self.length.is_none() {
                self.fault.get_or_insert(Fault::Framing("Content-Length is not a number of digits only"));
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.encodings += 1;
            // `chunked` twice, or anything beside it: nothing that an application behind us must understand the same way.
            if self.encodings > 1 {
                self.fault.get_or_insert(Fault::Framing("Transfer-Encoding comes more than once"));
            } else if !value.eq_ignore_ascii_case(b"chunked") {
                self.fault.get_or_insert(Fault::Framing("Transfer-Encoding is something else than chunked"));
            }
        }
    }

    fn end_head(&mut self) {
        if self.lengths > 0 && self.encodings > 0 {
            self.fault.get_or_insert(Fault::Framing("both Content-Length and Transfer-Encoding"));
        }
        if let Some(fault) = self.fault {
            self.first_fault.get_or_insert((self.heads, fault));
        }
        self.heads += 1;
        self.place = match (self.fault, self.encodings, self.length) {
            // The connection is closed after a refusal: nothing to follow.
            (Some(_), ..) => Place::Lost,
            (None, 1.., _) => Place::ChunkSize,
            (None, 0, Some(left @ 1..)) => Place::Body { left, chunked: false },
            (None, 0, _) => Place::Between,
        };
    }
}

/// What is wrong with a line of a head, which may be cut off or still to be finished; for people, so it need not find everything.
fn odd(line: &[u8], first: bool, whole: bool) -> Option<&'static str> {
    if first && line.first() == Some(&0x16) {
        return Some("it begins like TLS, which is not taken here");
    }
    if first {
        let mut words = line.split(|c| *c == b' ');
        let (method, version) = (words.next().unwrap_or_default(), words.nth(1));
        return if Method::from_bytes(method).is_err() {
            Some("its first line does not begin with a method")
        } else if words.next().is_some() {
            Some("there is a space in the request target")
        } else if !whole {
            None
        } else if version.is_some_and(|version| version != b"HTTP/1.1" && version != b"HTTP/1.0") {
            Some("its version is neither HTTP/1.1 nor HTTP/1.0")
        } else if version.is_none() {
            Some("its first line is not of the form METHOD TARGET HTTP/1.1")
        } else {
            None
        };
    }
    let control = |c: &u8| c.is_ascii_control() && *c != b'\t';
    match line.iter().position(|c| *c == b':') {
        _ if line.first().is_some_and(u8::is_ascii_whitespace) => Some("a header goes on in a second line"),
        Some(colon) if line[..colon].last().is_some_and(u8::is_ascii_whitespace) => {
            Some("there is a space behind a header's name, before its colon")
        }
        Some(colon) if HeaderName::from_bytes(&line[..colon]).is_err() => {
            Some("a header's name has a character that names may not have")
        }
        Some(colon) if line[colon..].iter().any(control) => Some("a header's value has a control character"),
        None if whole => Some("a header has no colon"),
        Some(_) | None => None,
    }
}

/// After a chunk's size line: `size` and, after `;`, extensions.
fn chunk(line: &[u8]) -> Place {
    let size = line.split(|c| *c == b';').next().unwrap_or_default().trim_ascii();
    let size = std::str::from_utf8(size).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
    match size.and_then(|size| size.checked_add(2)) {
        // The size line of the last chunk has no data behind it.
        Some(2) => Place::Trailers,
        Some(left) => Place::Body { left, chunked: true },
        None => Place::Lost,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn follow(bytes: &[u8], piece: usize) -> Follower {
        let mut follower = Follower::new(1024, 10);
        for part in bytes.chunks(piece) {
            follower.feed(part);
        }
        follower
    }

    #[test]
    fn what_hyper_repairs_is_refused() {
        for (lines, fault) in [
            ("Content-Length: 5\r\nTransfer-Encoding: chunked", "both"),
            ("transfer-encoding: chunked\r\ncontent-length: 5", "both"),
            ("Content-Length: 5\r\nContent-Length: 5", "Content-Length comes more than once"),
            ("Content-Length: 5, 5", "digits"),
            ("Content-Length: +5", "digits"),
            ("Content-Length: 0x5", "digits"),
            ("Content-Length:", "digits"),
            (&format!("Content-Length: {:0100}", 5), "longer"),
            (&format!("Content-Length: {:100}6", 5), "longer"),
            (&format!("Transfer-Encoding: chunked{:100}", ", chunked"), "something else"),
            (&format!("Transfer-Encoding: chunked{:>100}", ", chunked"), "longer"),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "Transfer-Encoding comes more than once"),
            ("Transfer-Encoding: chunked, chunked", "something else than chunked"),
            ("Transfer-Encoding: gzip, chunked", "something else than chunked"),
        ] {
            let head = format!("POST / HTTP/1.1\r\nHost: o\r\n{lines}\r\n\r\n");
            for piece in [1, 3, 10_000] {
                let Some(Fault::Framing(what)) = follow(head.as_bytes(), piece).fault(0) else { panic!("{lines}") };
                assert!(what.contains(fault), "{lines}: {what}");
            }
        }
        assert_eq!(follow(b"GET /a#b HTTP/1.1\r\n\r\n", 4).fault(0), Some(Fault::Target));
        for piece in [1, 3, 100] {
            assert_eq!(follow(b"A#B /a HTTP/1.1\r\n\r\n", piece).fault(0), None, "a method may be called that");
            assert_eq!(follow(b" # \n\n", piece).fault(0), None);
        }
    }

    #[test]
    fn heads_beyond_the_limits_are_kept_away() {
        let headers = |count: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "a: 1\r\n".repeat(count));
        let odd = |count: usize| format!("GET / HTTP/1.1\r\n{}\r(: 1\r\na: 1\r\n\r\n", "a: 1\r\n".repeat(count));
        let long = |size: usize| format!("GET / HTTP/1.1\r\na: {}\r\n\r\n", "x".repeat(size));
        let line = |size: usize| format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(size));
        for (head, stuck) in [
            (headers(10), None),
            (headers(11), Some(Limit::Head)),
            (long(1_001), None),
            (long(1_200), Some(Limit::Head)),
            (odd(8), None),
            (odd(10), Some(Limit::Head)),
            (line(1_006), None),
            (line(1_200), Some(Limit::Target)),
        ] {
            for piece in [1, 3, 50, 10_000] {
                let mut follower = Follower::new(1024, 10);
                let sent = format!("GET / HTTP/1.1\r\n\r\n{head}");
                let passed: usize = sent.as_bytes().chunks(piece).map(|part| follower.feed(part)).sum();
                assert_eq!(follower.stuck(), stuck, "{} bytes", head.len());
                assert!(passed >= 18 && (passed < sent.len()) == stuck.is_some(), "{passed} of {}", sent.len());
                assert!(passed <= 18 + 1024);
            }
        }
    }

    #[test]
    fn bodies_that_look_like_headers_are_bodies() {
        let trap = "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n";
        let sized = format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n{trap}", trap.len());
        let chunked = format!(
            "\r\nPOST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{:x};q=1\r\n{trap}\r\n0\r\nContent-Length: 7\r\n\r\n",
            trap.len()
        );
        let plain = "GET / HTTP/1.1\nHost: o\n\n";
        let bad = "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx";
        let stream = format!("{sized}{chunked}{plain}{bad}");
        for piece in 1..40 {
            let follower = follow(stream.as_bytes(), piece);
            assert_eq!(follower.fault(2), None, "piece {piece}");
            assert!(matches!(follower.fault(3), Some(Fault::Framing(_))), "piece {piece}");
        }
    }

    #[test]
    fn what_is_no_request_is_told_in_words() {
        for (bytes, what) in [
            ("\x16\x03\x01\x02\0", Some("like TLS")),
            ("{\"a\": 1}\r\n\r\n", Some("begin with a method")),
            ("GET\r\n\r\n", Some("METHOD TARGET HTTP/1.1")),
            ("GET /\r\n\r\n", Some("METHOD TARGET HTTP/1.1")),
            ("GET /a b HTTP/1.1\r\n\r\n", Some("space in the request target")),
            ("GET / HTTP/3.0\r\n\r\n", Some("neither HTTP/1.1 nor")),
            ("GET / HTTP/1.1\r\nHost: a\r\nfolded: b\r\n c\r\n\r\n", Some("second line")),
            ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", Some("before its colon")),
            ("GET / HTTP/1.1\r\nH(st: a\r\n\r\n", Some("character that names")),
            ("GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n", Some("control character")),
            ("GET / HTTP/1.1\r\nHost\r\n\r\n", Some("no colon")),
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", None),
            ("POST /a?b HTTP/1.0\r\nHost: a\r\n", None),
        ] {
            for piece in [1, 3, 10_000] {
                let told = follow(bytes.as_bytes(), piece).oddity();
                assert_eq!(told.is_some(), what.is_some(), "{bytes:?}: {told:?}");
                assert!(told.unwrap_or_default().contains(what.unwrap_or_default()), "{bytes:?}: {told:?}");
            }
        }
        let long = format!("GET /{} HTTP/1.1\r\nname: {}\r\n\r\n", "x".repeat(300), "y".repeat(300));
        assert_eq!(follow(long.as_bytes(), 7).oddity(), None);
    }

    #[test]
    fn it_knows_when_a_head_is_under_way() {
        let mut follower = Follower::new(1024, 10);
        assert!(!follower.in_head());
        follower.feed(b"\r\nGE");
        assert!(follower.in_head());
        follower.feed(b"T / HTTP/1.1\r\n\r\n");
        assert!(!follower.in_head());
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_give_one_answer(bytes in prop::collection::vec(any::<u8>(), 0..400), piece in 1usize..50) {
            let (a, b) = (follow(&bytes, piece), follow(&bytes, 1));
            prop_assert_eq!((a.first_fault, a.heads, a.place), (b.first_fault, b.heads, b.place));
        }
    }
}
