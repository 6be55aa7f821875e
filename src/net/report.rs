//! Failed handshakes that a person should know of: put into words, and limited, since anybody can cause one.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::Mutex,
    time::{Duration, Instant},
};

use quinn::ConnectionError;

/// When each address was last reported.
pub(super) struct Reports {
    every: Duration,
    last: Mutex<BTreeMap<SocketAddr, Instant>>,
}

impl Reports {
    pub(super) fn new(every: Duration) -> Self {
        Self { every, last: Mutex::default() }
    }

    /// Whether a failure with `addr` should be reported now. Remembers a few addresses; while all of them are recent,
    /// others go unreported (they are still counted).
    pub(super) fn may_report(&self, addr: SocketAddr, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        last.retain(|_, at| now.saturating_duration_since(*at) < self.every);
        let due = !last.contains_key(&addr) && last.len() < MOST;
        if due {
            last.insert(addr, now);
        }
        due
    }
}

/// Why the certificates did not fit, if that is why a connection failed. The text may be the peer's, so it is clipped and
/// freed of control characters.
pub(super) fn certificate_fault(error: &ConnectionError) -> Option<String> {
    let (code, text, by) = match error {
        ConnectionError::TransportError(e) => (u64::from(e.code), e.reason.clone(), ""),
        ConnectionError::ConnectionClosed(close) => {
            (close.error_code.into(), String::from_utf8_lossy(&close.reason).into_owned(), "refused by the peer: ")
        }
        _ => return None,
    };
    // RFC 9001 4.8: 0x100 plus the TLS alert.
    if !(0x100..0x200).contains(&code) {
        return None;
    }
    let alert = code - 0x100;
    let plain = text.strip_prefix(TLS_PREFIX).and_then(|rest| rest.strip_suffix("))")).unwrap_or(&text);
    let plain = match (alert, plain) {
        (NO_ALPN, _) => "the peer speaks no protocol version that this node speaks: upgrade the older of the two",
        (_, "") => "the peer gives no reason",
        (_, plain) => plain,
    };
    Some(by.chars().chain(plain.chars().filter(|c| !c.is_control()).take(400)).collect())
}

/// How rustls prints an error of our verifier.
const TLS_PREFIX: &str = "invalid peer certificate: Other(OtherError(";
/// `no_application_protocol`, RFC 7301.
const NO_ALPN: u64 = 120;
const MOST: usize = 64;
