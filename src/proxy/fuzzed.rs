//! The door for `fuzz/`: what looks at bytes of clients, without sockets and without hyper. Only built with `--cfg fuzzing`.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};

use super::{framing::Follower, headers, plain, target};

/// The follower says the same however the bytes are cut, lets nothing through beyond its limits, and what is left of a head after
/// cleaning has nothing of the connection or of the mesh in it.
pub fn client_bytes(bytes: &[u8]) {
    let mut whole = Follower::new(8_192, 32);
    let let_through = whole.feed(bytes);
    assert!(let_through <= bytes.len());
    let mut cut = Follower::new(8_192, 32);
    let mut passed = 0;
    for byte in bytes {
        passed += cut.feed(std::slice::from_ref(byte));
    }
    assert_eq!(
        (passed, cut.stuck(), cut.between(), cut.in_head()),
        (let_through, whole.stuck(), whole.between(), whole.in_head())
    );
    assert_eq!(cut.fault(u64::MAX), whole.fault(u64::MAX));
    head(bytes);
    plain::fuzzed::client_bytes(bytes);
}

/// What an instance sends is taken or refused, and what is taken means one thing.
pub fn instance_bytes(bytes: &[u8]) {
    plain::fuzzed::instance_bytes(bytes);
}

fn head(bytes: &[u8]) {
    let mut lines = bytes.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let Some(first) = lines.next() else { return };
    let mut words = first.split(|byte| *byte == b' ');
    let (Some(method), Some(uri)) = (words.next(), words.next()) else { return };
    let Ok(method) = Method::from_bytes(method) else { return };
    let Ok(mut uri) = Uri::try_from(uri) else { return };
    let mut map = HeaderMap::new();
    for line in lines.take(64) {
        let Some(at) = line.iter().position(|byte| *byte == b':') else { continue };
        let name = HeaderName::from_bytes(&line[..at]);
        let value = HeaderValue::from_bytes(line[at + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            map.append(name, value);
        }
    }
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let mut map = map.clone();
        if target::resolve(&method, version, &mut uri, &mut map, None).is_err() {
            return;
        }
        assert_eq!(map.get_all(http::header::HOST).iter().count(), 1);
        let whole = method == Method::OPTIONS && uri.path() == "*";
        assert!(uri.scheme().is_none() && (whole || uri.path().starts_with('/')));
        let _ = headers::wanted_upgrade(&map);
        if headers::clean_request(&mut map, &HeaderName::from_static("x-lane")).is_err() {
            return;
        }
        assert!(map.get(http::header::CONNECTION).is_none_or(|value| value == "te"));
        for name in ["keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "x-lanemesh-lane", "x-lane"] {
            assert!(!map.contains_key(name), "{name} is left");
        }
    }
}
