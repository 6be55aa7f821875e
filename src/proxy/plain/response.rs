//! Heads of instances' answers: framing decided (RFC 9112 6.3), and written anew for the client.
//!
//! One answer has one length. What two parsers could read differently (two lengths, a length and a transfer coding, a coding that nobody
//! asked for) is no answer at all.

use std::mem::MaybeUninit;

use httparse::{Header, Status};

use super::{
    super::{
        headers::{Kind, add_line, is_plain_token, kind},
        io::MAX_RESPONSE_HEADERS,
    },
    request::{add_number, digits},
};

/// How long the body of an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// There is none, whatever the head says.
    None,
    /// So many bytes.
    Length(u64),
    /// In chunks.
    Chunked,
    /// Until the connection ends.
    Close,
}

/// What is known of an answer by its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) status: u16,
    /// Bytes of the head.
    pub(super) size: usize,
    pub(super) framing: Framing,
    /// The connection may carry another request afterwards.
    pub(super) persistent: bool,
}

/// A whole head.
pub(super) struct Head<'a> {
    pub(super) facts: Facts,
    reason: &'a [u8],
    headers: &'a [Header<'a>],
    /// What each of them is.
    kinds: [Kind; MAX_RESPONSE_HEADERS],
    /// `Connection` names some.
    nominates: bool,
    /// `Content-Length`, of an answer without a body.
    length: Option<u64>,
}

/// What the bytes of an instance begin with.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed<T> {
    /// A whole head.
    Whole(T),
    /// What may become one.
    Partial,
    /// No answer that may be passed on; and whether another instance may be asked, or the answer would be the same.
    Bad(&'static str, Blame),
}

/// What a bad answer says about its instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    /// It broke: another one may do better.
    Broken,
    /// It speaks HTTP, but does what nobody asked for: the request ends.
    Unasked,
}

/// Gives a whole head to `then`. `head`: the request was `HEAD`.
pub(super) fn parse<T>(bytes: &[u8], head: bool, then: impl FnOnce(Head<'_>) -> T) -> Parsed<T> {
    let mut space = [const { MaybeUninit::uninit() }; MAX_RESPONSE_HEADERS];
    let mut response = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let size = match config.parse_response_with_uninit_headers(&mut response, bytes, &mut space) {
        Ok(Status::Complete(size)) => size,
        Ok(Status::Partial) => return Parsed::Partial,
        Err(httparse::Error::TooManyHeaders) => {
            return Parsed::Bad("its answer has more than 256 headers", Blame::Broken);
        }
        Err(_) => return Parsed::Bad("its answer is not valid HTTP", Blame::Broken),
    };
    match check(&response, size, head) {
        Ok(head) => Parsed::Whole(then(head)),
        Err((what, blame)) => Parsed::Bad(what, blame),
    }
}

fn check<'a>(
    response: &'a httparse::Response<'_, '_>,
    size: usize,
    head: bool,
) -> Result<Head<'a>, (&'static str, Blame)> {
    let status = response.code.unwrap_or(0);
    let old = response.version == Some(0);
    let (mut length, mut codings, mut closes, mut keeps) = (None, 0_u32, false, false);
    let (mut several, mut plain, mut nominates) = (false, true, false);
    let mut kinds = [Kind::Other; MAX_RESPONSE_HEADERS];
    for (line, noted) in response.headers.iter().zip(&mut kinds) {
        *noted = kind(line.name.as_bytes());
        match *noted {
            Kind::ContentLength => {
                let Some(said) = digits(line.value) else {
                    return Err(("its answer has a Content-Length that is no number", Blame::Broken));
                };
                several |= length.is_some_and(|length| length != said);
                length = Some(said);
            }
            Kind::TransferEncoding => {
                codings += 1;
                plain &= line.value.trim_ascii().eq_ignore_ascii_case(b"chunked");
            }
            Kind::Connection => {
                for token in line.value.split(|c| *c == b',').map(<[u8]>::trim_ascii) {
                    closes |= token.eq_ignore_ascii_case(b"close");
                    keeps |= token.eq_ignore_ascii_case(b"keep-alive");
                    nominates |= !is_plain_token(token);
                }
            }
            _ => {}
        }
    }
    if status == 101 {
        return Err(("it switches protocols unasked", Blame::Unasked));
    }
    if codings > 1 || !plain {
        return Err(("it uses a transfer coding that nobody asked for", Blame::Unasked));
    }
    if several {
        return Err(("its answer has two different Content-Lengths", Blame::Broken));
    }
    let bare = head || matches!(status, 100..=199 | 204 | 304);
    if codings > 0 && !bare && (length.is_some() || old) {
        let what = if old {
            "its answer is HTTP/1.0 and has a Transfer-Encoding"
        } else {
            "its answer has both Content-Length and Transfer-Encoding"
        };
        return Err((what, Blame::Broken));
    }
    let framing = match (bare, codings, length) {
        (true, ..) => Framing::None,
        (false, 1.., _) => Framing::Chunked,
        (false, 0, Some(length)) => Framing::Length(length),
        (false, 0, None) => Framing::Close,
    };
    let persistent = framing != Framing::Close && !closes && (keeps || !old);
    let facts = Facts { status, size, framing, persistent };
    // Of another request's answer: that of `GET`, or the one that the client has. A coding says that it would not be known.
    let length = length.filter(|_| (head || status == 304) && codings == 0);
    let (reason, headers) = (response.reason.unwrap_or_default().as_bytes(), &*response.headers);
    Ok(Head { facts, reason, headers, kinds, nominates, length })
}

/// Writes the head for the client up to its last lines, which the caller adds; says whether it has a `Date`.
pub(super) fn write(head: &Head<'_>, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(b"HTTP/1.1 ");
    let status = head.facts.status;
    out.extend([status / 100, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8));
    out.push(b' ');
    out.extend_from_slice(head.reason);
    out.extend_from_slice(b"\r\n");
    let nominated = if head.nominates { nominated(head) } else { Vec::new() };
    let mut dated = false;
    for (line, kind) in head.headers.iter().zip(head.kinds) {
        let name = line.name.as_bytes();
        match kind {
            Kind::Connection
            | Kind::HopByHop
            | Kind::Te
            | Kind::Upgrade
            | Kind::Ours
            | Kind::ContentLength
            | Kind::TransferEncoding => {}
            // What it announces is not passed on.
            Kind::Trailer => {}
            _ if nominated.iter().any(|token| name.eq_ignore_ascii_case(token)) => {}
            kind => {
                dated |= kind == Kind::Date;
                add_line(out, name, line.value);
            }
        }
    }
    match (head.facts.framing, head.length) {
        (Framing::Length(length), _) | (Framing::None, Some(length)) => add_number(out, b"content-length", length),
        (Framing::Chunked | Framing::Close, _) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        (Framing::None, None) => {}
    }
    dated
}

/// What `Connection` names beside the connection itself.
fn nominated<'a>(head: &Head<'a>) -> Vec<&'a [u8]> {
    let lines = head.headers.iter().zip(head.kinds).filter(|(_, kind)| *kind == Kind::Connection);
    let tokens = lines.flat_map(|(line, _)| line.value.split(|c| *c == b',')).map(<[u8]>::trim_ascii);
    tokens.filter(|token| !is_plain_token(token)).collect()
}
