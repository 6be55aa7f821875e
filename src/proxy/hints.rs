//! Interim responses (1xx but 100 and 101; `103 Early Hints`, say) on their way to the client.
//!
//! hyper's server has no way to send them, and its client tells of them through a callback that must be `Send`. So the callback
//! holds nothing but the client connection's number, finds the connection among those of its thread, and the bytes are written
//! ahead of the response that hyper still waits for. A hint that cannot go at once is dropped: it is worth nothing later.

use std::{cell::RefCell, rc::Rc};

use http::{HeaderMap, StatusCode, header};
use rustc_hash::FxHashMap;

use super::{client::Client, headers::clean_response};

/// The client connections of a thread, by number.
pub(super) type Clients = Rc<RefCell<FxHashMap<u64, Rc<Client>>>>;

thread_local! {
    static CLIENTS: RefCell<Clients> = RefCell::default();
}

/// Makes these the clients that hints of this thread are for.
pub(super) fn on_this_thread(clients: Clients) {
    CLIENTS.set(clients);
}

/// Passes an instance's interim response on to the client with this number.
pub(super) fn pass_on(number: u64, status: StatusCode, headers: HeaderMap) {
    let client = CLIENTS.with_borrow(|clients| clients.borrow().get(&number).cloned());
    if let Some(client) = client
        && let Some(text) = text(status, headers)
    {
        client.hint(text.as_bytes());
    }
}

/// As it goes over the wire; `None` when it is too long for a hint or holds what is no text.
fn text(status: StatusCode, mut headers: HeaderMap) -> Option<String> {
    clean_response(&mut headers);
    // No interim response has a body.
    headers.remove(header::CONTENT_LENGTH);
    let mut text = format!("HTTP/1.1 {status}\r\n");
    for (name, value) in &headers {
        text += &format!("{name}: {}\r\n", value.to_str().ok()?);
    }
    text += "\r\n";
    (text.len() <= LONGEST).then_some(text)
}

/// Longest hint that is passed on; fits any socket's buffer.
const LONGEST: usize = 8 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_cleaned_and_has_no_body() {
        let mut headers = HeaderMap::new();
        for (name, value) in
            [("link", "</a.css>"), ("link", "</b.js>"), ("content-length", "5"), ("connection", "x-y"), ("x-y", "1")]
        {
            headers.append(name, value.parse().unwrap());
        }
        let expected = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\nlink: </b.js>\r\n\r\n";
        assert_eq!(text(StatusCode::EARLY_HINTS, headers).as_deref(), Some(expected));
    }

    #[test]
    fn a_long_one_is_dropped() {
        let mut headers = HeaderMap::new();
        headers.append("link", "x".repeat(LONGEST).parse().unwrap());
        assert_eq!(text(StatusCode::EARLY_HINTS, headers), None);
    }
}
