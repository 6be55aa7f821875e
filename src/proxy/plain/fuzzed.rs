//! The door for `fuzz/` to plain heads and bodies.
//! Only built with `--cfg fuzzing`, and for the tests, which play what fuzzing has found worth keeping.

use std::net::{IpAddr, Ipv4Addr};

use http::HeaderName;

use super::{
    super::framing::Follower,
    chunks::{Chunks, LAST, add_chunk},
    request::{self, Limits, Parsed},
    response,
};

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Lines of an answer that is read again: fewer than what it may have.
const ROOM: usize = 254;
const LIMITS: Limits = Limits { head: 8_192, headers: 32, body: 4_096 };

/// A plain request ends where the follower, which knows nothing of it, has it end, without a fault; the head for instances is
/// plain itself, ends at the same body, and has nothing of the connection or of the mesh in it but what was added.
pub(in super::super) fn client_bytes(bytes: &[u8]) {
    let lane = HeaderName::from_static("x-lane");
    let parsed = request::parse(bytes, LIMITS, |head| {
        let mut out = Vec::new();
        request::write(&head, &lane, LOCAL, &mut out);
        out.extend_from_slice(b"\r\n");
        (head.size, head.length as usize, out)
    });
    let Parsed::Plain((size, length, out)) = parsed else { return };
    assert!(size <= bytes.len() && length <= 4_096);
    let mut follower = Follower::new(16_384, 64);
    let rest = vec![b'x'; length];
    assert_eq!(follower.feed(&bytes[..size]), size);
    assert_eq!(follower.between(), length == 0);
    assert_eq!(follower.feed(&rest), length);
    assert!(follower.between() && follower.fault(u64::MAX).is_none());
    let limits = Limits { head: 16_384, headers: 64, body: 4_096 };
    let again = request::parse(&out, limits, |head| {
        let allowed = |line: &httparse::Header<'_>| {
            let name = line.name.to_ascii_lowercase();
            let ours = name.replace('_', "-").starts_with("x-lanemesh-");
            let hop = ["connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade", "x-lane"];
            !hop.contains(&name.as_str()) && (!ours || name == "x-lanemesh-hops")
        };
        assert!(head.headers.iter().all(allowed));
        (head.size, head.length as usize)
    });
    assert_eq!(again, Parsed::Plain((out.len(), length)));
}

/// What is taken as an answer is one when it is written anew, with the same length; a body in chunks is the same however it is cut,
/// and put together it is taken apart to the same.
pub(in super::super) fn instance_bytes(bytes: &[u8]) {
    for head in [false, true] {
        let parsed = response::parse(bytes, head, |answer| {
            let mut out = Vec::new();
            response::write(&answer, &mut out);
            out.extend_from_slice(b"\r\n");
            (answer.facts, out.iter().filter(|byte| **byte == b'\n').count(), out)
        });
        let response::Parsed::Whole((facts, lines, out)) = parsed else { continue };
        // Clients are told more than an instance may say.
        if lines > ROOM {
            continue;
        }
        let again = response::parse(&out, head, |answer| answer.facts);
        let response::Parsed::Whole(again) = again else { panic!("what was written is no answer: {again:?}") };
        assert_eq!((again.status, again.size), (facts.status, out.len()));
        match facts.framing {
            response::Framing::Close => assert_eq!(again.framing, response::Framing::Chunked),
            framing => assert_eq!(again.framing, framing),
        }
    }
    let (whole, cut) = (chunked(bytes, usize::MAX), chunked(bytes, 1));
    assert_eq!(whole, cut);
    if let Some((data, _, true)) = whole {
        let mut again = Vec::new();
        add_chunk(&mut again, &data);
        again.extend_from_slice(LAST);
        assert_eq!(chunked(&again, usize::MAX), Some((data, again.len(), true)));
    }
}

fn chunked(bytes: &[u8], piece: usize) -> Option<(Vec<u8>, usize, bool)> {
    let (mut chunks, mut data, mut taken) = (Chunks::new(), Vec::new(), 0);
    for part in bytes.chunks(piece) {
        taken += chunks.take(part, |piece| data.extend_from_slice(piece)).ok()?;
    }
    Some((data, taken, chunks.ended()))
}
