//! Every response that the proxy makes itself: status, reason, and what to do about it.
//!
//! [`Reason::ALL`] is the documented list. A reason is in `x-lanemesh-error` (for programs), in `proxy-status` (RFC 9209), in the
//! metric `lanemesh_proxy_errors_total` and in the access log; its text and cure are in the body.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use super::headers::{PROXY_STATUS, Put, X_ERROR};
use crate::routing::GiveUp;

/// Why the proxy answers in an upstream's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Not HTTP at all.
    BadSyntax,
    /// Conflicting or odd `Content-Length` and `Transfer-Encoding`.
    BadFraming,
    /// `Host` is missing, there is more than one, or it is no `name[:port]`.
    BadHost,
    /// The request target is neither a path nor an `http://` URL.
    BadTarget,
    /// `Connection` nominates a header that framing, routing or the mesh stands on.
    BadConnectionHeader,
    /// The client stopped sending its request.
    RequestTimeout,
    /// The request head is larger than configured.
    HeadTooLarge,
    /// The request line is longer than configured, or than any may be.
    TargetTooLong,
    /// `CONNECT` over HTTP/2.
    ConnectUnsupported,
    /// No such service in the mesh.
    UnknownService,
    /// No candidate in the lane.
    NoInstance,
    /// No candidate in the lane, and too many requests leave it already.
    FallbackLimit,
    /// Every candidate refused its connection; nothing was sent.
    AllRefused,
    /// The connection broke before a response came, and the request may have been processed.
    UpstreamReset,
    /// What the instance sent is no HTTP response that may be passed on.
    BadResponse,
    /// The instance speaks a protocol that this version does not.
    ProtocolUnsupported,
    /// No response in the time of one try.
    UpstreamTimeout,
    /// No response in the time of all tries, or inside the caller's `x-request-timeout`.
    Deadline,
    /// The request has passed too many sidecars.
    Loop,
    /// The instance's address is this sidecar's own proxy or admin port.
    OwnAddress,
    /// Too many client connections.
    TooManyConnections,
    /// Every instance of the lane has as many requests of this sidecar as it may.
    Overloaded,
    /// This host has no more files or ports to give.
    LocalLimit,
    /// The instances take no more concurrent streams.
    Overflow,
}

struct Entry {
    reason: Reason,
    name: &'static str,
    status: u16,
    /// Error type of RFC 9209 2.3.
    proxy_status: &'static str,
    what: &'static str,
    cure: &'static str,
}

const fn entry(
    reason: Reason,
    name: &'static str,
    status: u16,
    proxy_status: &'static str,
    what: &'static str,
    cure: &'static str,
) -> Entry {
    Entry { reason, name, status, proxy_status, what, cure }
}

/// In the order of [`Reason`].
#[rustfmt::skip]
const TABLE: [Entry; 24] = [
    entry(Reason::BadSyntax, "bad_syntax", 400, "http_request_error",
        "what the client sent is not an HTTP request",
        "send HTTP/1.1 or HTTP/2 without TLS to this port"),
    entry(Reason::BadFraming, "bad_framing", 400, "http_request_error",
        "where the request's body ends is not certain",
        "send one Content-Length of digits only, or Transfer-Encoding: chunked with whole chunks, never both"),
    entry(Reason::BadHost, "bad_host", 400, "http_request_error",
        "the request needs exactly one Host header of the form name or name:port (over HTTP/2, none that differs from :authority)",
        "send Host: <service>"),
    entry(Reason::BadTarget, "bad_target", 400, "http_request_error",
        "the request target is neither a path (/...) nor a URL of the form http://<service>/...",
        "send a path with a Host header, or use the proxy as http_proxy; fragments (#...) are not sent to servers"),
    entry(Reason::BadConnectionHeader, "bad_connection_header", 400, "http_request_error",
        "the Connection header names a header that the proxy itself relies on",
        "take Host, Content-Length, Transfer-Encoding and mesh headers out of Connection"),
    entry(Reason::RequestTimeout, "request_timeout", 408, "http_request_error",
        "the client stopped sending its request",
        "send the rest sooner, or raise proxy.timeouts"),
    entry(Reason::HeadTooLarge, "head_too_large", 431, "http_request_error",
        "the request head is larger than this sidecar accepts",
        "send fewer or shorter headers, or raise proxy.max_head_bytes or proxy.max_headers"),
    entry(Reason::TargetTooLong, "target_too_long", 414, "http_request_error",
        "the request line is longer than this sidecar accepts",
        "send what is long in the body, or raise proxy.max_head_bytes; more than 65500 bytes are never taken"),
    entry(Reason::ConnectUnsupported, "connect_not_supported", 501, "http_request_denied",
        "CONNECT is taken over HTTP/1.1 only",
        "open the tunnel with HTTP/1.1"),
    entry(Reason::UnknownService, "unknown_service", 404, "destination_not_found",
        "no instance of this service is known in the mesh",
        "check the spelling with `lanemesh services`; if it is right, its sidecars have not joined"),
    entry(Reason::NoInstance, "no_instance", 503, "destination_unavailable",
        "the lane has no instance that takes traffic",
        "see who was left out and why with `lanemesh route <service> --key <subject>`"),
    entry(Reason::FallbackLimit, "fallback_limit", 503, "destination_unavailable",
        "the lane has no instance that takes traffic, and as many requests as may leave it in a second have done so",
        "see why the lane is left with `lanemesh route <service> --key <subject>`, or raise routing.fallback_per_second or routing.fallback_capacity"),
    entry(Reason::AllRefused, "all_refused", 503, "connection_refused",
        "every instance of the lane refused its connection; nothing was sent, the request may be repeated",
        "check that the applications listen: `lanemesh instances`"),
    entry(Reason::UpstreamReset, "upstream_reset_before_response", 502, "connection_terminated",
        "the instance closed the connection before it answered; the request may have been processed",
        "repeat it if that is harmless; look for crashes in the instance's log"),
    entry(Reason::BadResponse, "bad_upstream_response", 502, "http_protocol_error",
        "the instance's answer is not valid HTTP, or switches protocols unasked",
        "look at the instance's answer with curl; it may speak TLS on this port, or HTTP/2 \
         (announce it with protocol = \"h2c\" or \"grpc\")"),
    entry(Reason::ProtocolUnsupported, "protocol_not_supported", 502, "destination_unavailable",
        "the instance speaks no HTTP",
        "announce it with the protocol that it speaks: \"http1\", \"h2c\" or \"grpc\""),
    entry(Reason::UpstreamTimeout, "upstream_timeout", 504, "http_response_timeout",
        "the instance did not answer in the time of one try",
        "raise proxy.timeouts.per_try if its answers take longer by design"),
    entry(Reason::Deadline, "deadline", 504, "http_response_timeout",
        "no instance answered in the time that the request has",
        "raise proxy.timeouts.total, or the caller's x-request-timeout"),
    entry(Reason::Loop, "loop", 508, "proxy_loop_detected",
        "the request has passed too many sidecars",
        "look for an instance whose address is a sidecar's proxy port"),
    entry(Reason::OwnAddress, "instance_is_this_sidecar", 508, "proxy_loop_detected",
        "the instance's address is a port of this sidecar itself",
        "announce the application's own port"),
    entry(Reason::TooManyConnections, "too_many_connections", 503, "connection_limit_reached",
        "this sidecar holds as many client connections as it may",
        "keep connections open and reuse them, or raise proxy.max_connections"),
    entry(Reason::Overloaded, "overloaded", 503, "connection_limit_reached",
        "every instance has as many requests under way from this sidecar as it may; nothing was sent, the request may be repeated",
        "send less, add instances, or raise proxy.max_requests_per_instance"),
    entry(Reason::LocalLimit, "local_limit", 503, "proxy_internal_error",
        "this sidecar may open no more files or ports; nothing was sent, the request may be repeated",
        "raise its limit on open files (ulimit -n, LimitNOFILE=), or lower proxy.max_connections"),
    entry(Reason::Overflow, "overflow", 503, "connection_limit_reached",
        "the instances have as many HTTP/2 streams under way as they take at a time; nothing was sent, the request may be repeated",
        "raise the applications' limit on concurrent streams, or add instances"),
];

impl Reason {
    /// All of them, in documented order.
    pub const ALL: [Self; 24] = {
        let mut all = [Self::BadSyntax; 24];
        let mut at = 0;
        while at < all.len() {
            all[at] = TABLE[at].reason;
            at += 1;
        }
        all
    };

    fn entry(self) -> &'static Entry {
        &TABLE[self as usize]
    }

    /// The name in `x-lanemesh-error`, metrics and logs.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// The status given to the client.
    pub fn status(self) -> u16 {
        self.entry().status
    }

    /// What happened.
    pub fn what(self) -> &'static str {
        self.entry().what
    }

    /// What to do.
    pub fn cure(self) -> &'static str {
        self.entry().cure
    }

    /// Whether the connection is closed after it: the rest of what the client sent cannot be trusted or is not read.
    pub(super) fn closes(self) -> bool {
        matches!(
            self,
            Self::BadSyntax
                | Self::BadFraming
                | Self::BadHost
                | Self::BadTarget
                | Self::BadConnectionHeader
                | Self::RequestTimeout
                | Self::HeadTooLarge
                | Self::TargetTooLong
                | Self::ConnectUnsupported
                | Self::TooManyConnections
        )
    }

    /// Whether an `Accept` header asks for JSON.
    pub(super) fn wants_json(accept: &HeaderValue) -> bool {
        accept.to_str().is_ok_and(|text| text.contains("application/json"))
    }

    /// The response, as JSON or text.
    pub(super) fn response(self, json: bool, detail: &str) -> Response<Bytes> {
        let (kind, body) = if json {
            let value = serde_json::json!({
                "error": self.name(), "detail": detail, "what": self.what(), "cure": self.cure(),
            });
            ("application/json", format!("{value}\n"))
        } else {
            let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
            let text = format!("lanemesh: {}{detail}\ncure: {}\nreason: {}\n", self.what(), self.cure(), self.name());
            ("text/plain; charset=utf-8", text)
        };
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        self.mark(headers);
        if matches!(self, Self::TooManyConnections | Self::Overloaded | Self::LocalLimit) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.closes() {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// The whole response as it goes over the wire, for a connection that is closed with it and that hyper does not hold.
    pub(super) fn last_words(self, detail: &str) -> String {
        let mut response = self.response(false, detail);
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        String::from_utf8_lossy(&on_the_wire(&response, &[], true)).into_owned()
    }

    /// Names the reason in a response's headers.
    pub(super) fn mark(self, headers: &mut HeaderMap) {
        headers.insert(X_ERROR, HeaderValue::from_static(self.name()));
        let status = format!("lanemesh; error={}; details=\"{}\"", self.entry().proxy_status, self.name());
        if let Ok(value) = HeaderValue::from_str(&status) {
            headers.insert(PROXY_STATUS, value);
        }
    }
}

/// A response as it goes over the wire, with these lines more; without its body where the request was `HEAD`.
pub(super) fn on_the_wire(response: &Response<Bytes>, more: &[u8], with_body: bool) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {}\r\n", response.status()).into_bytes();
    for (name, value) in response.headers() {
        head.put(name, value);
    }
    head.put(&header::CONTENT_LENGTH, &HeaderValue::from(response.body().len()));
    head.extend_from_slice(more);
    head.extend_from_slice(b"\r\n");
    head.extend_from_slice(if with_body { response.body() } else { &[] });
    head
}

impl From<GiveUp> for Reason {
    fn from(why: GiveUp) -> Self {
        match why {
            GiveUp::NoInstance => Self::NoInstance,
            GiveUp::FallbackLimit => Self::FallbackLimit,
            GiveUp::AllRefused => Self::AllRefused,
            // "Used up" without an answer to pass on means that the last try broke.
            GiveUp::UpstreamReset | GiveUp::RetriesUsedUp => Self::UpstreamReset,
            GiveUp::UpstreamTimeout => Self::UpstreamTimeout,
            GiveUp::Deadline => Self::Deadline,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_reasons_and_every_entry_is_complete() {
        for (at, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at, "{reason:?}");
            assert!((400..600).contains(&reason.status()));
            assert!(!reason.what().is_empty() && !reason.cure().is_empty());
            assert!(reason.name().bytes().all(|c| c.is_ascii_lowercase() || c == b'_'));
        }
    }

    #[test]
    fn a_client_that_asks_for_json_gets_it() {
        assert!(Reason::wants_json(&HeaderValue::from_static("text/html, application/json;q=0.9")));
        let text = Reason::NoInstance.response(false, "orders");
        assert!(String::from_utf8_lossy(text.body()).contains("reason: no_instance"));
        let json = Reason::NoInstance.response(true, "orders");
        let body: serde_json::Value = serde_json::from_slice(json.body()).unwrap();
        assert_eq!((json.status().as_u16(), body["error"].as_str()), (503, Some("no_instance")));
        assert_eq!(json.headers()[X_ERROR], "no_instance");
    }
}
