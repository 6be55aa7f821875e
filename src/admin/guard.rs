//! Who may ask at all: against web pages in a local browser (DNS rebinding, cross-site forms) and against strangers where the
//! admin address is not loopback.
//!
//! A page from elsewhere can make a browser send requests to 127.0.0.1, but it can't choose their `Host` (that is the page's
//! own name after a DNS rebinding), can't leave `Origin` out of a write, can't send JSON without asking first, and does not
//! know the token. Each of these alone stops it; all four are checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::time::timeout;

use super::{AdminState, Peer, Terms, error::Problem};

/// Every request: address, host, origin, deadline, and headers that keep answers out of caches and foreign pages.
pub(super) async fn everywhere(
    State((state, terms)): State<(AdminState, Terms)>,
    request: Request,
    next: Next,
) -> Response {
    let order = !request.method().is_safe();
    let mut response = match admit(&state, terms.bound, &request) {
        Err(problem) => problem.into_response(),
        Ok(()) => match timeout(terms.deadline, next.run(request)).await {
            Ok(response) => response,
            Err(_) => late(order).into_response(),
        },
    };
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn late(order: bool) -> Problem {
    let cure = match order {
        true => "the order may still be carried out: look before repeating it",
        false => "the sidecar is overloaded or stuck: see its log and /metrics",
    };
    Problem::new(StatusCode::GATEWAY_TIMEOUT, "no answer in time").cure(cure)
}

/// Orders: JSON, and the token. In this order, so that a cross-site form learns nothing about the token.
pub(super) async fn writes(State(state): State<AdminState>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    if !is_json(headers) {
        return Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "orders are JSON")
            .cure("send `content-type: application/json`")
            .into_response();
    }
    if !has_token(&state, headers) {
        return missing_token().into_response();
    }
    next.run(request).await
}

fn admit(state: &AdminState, bound: SocketAddr, request: &Request) -> Result<(), Problem> {
    let headers = request.headers();
    let host = named_host(request.uri(), headers)?;
    if !host_allowed(host, bound, state.allow_remote) {
        return Err(Problem::new(StatusCode::FORBIDDEN, format!("host `{}` is not this sidecar", shown(host)))
            .cure("ask by IP address or as localhost"));
    }
    for origin in headers.get_all(header::ORIGIN) {
        if !same_origin(origin, host) {
            return Err(Problem::new(StatusCode::FORBIDDEN, "requests of web pages from elsewhere are refused")
                .cure("send no `Origin` header"));
        }
    }
    let open = matches!(request.uri().path(), "/health" | "/ready" | "/metrics");
    let local = request.extensions().get::<Peer>().is_some_and(|Peer(peer)| peer.ip().to_canonical().is_loopback());
    if open || local || has_token(state, headers) { Ok(()) } else { Err(missing_token()) }
}

/// The one host that a request names, in its target or its `Host` header; both must agree (RFC 9112 3.2).
fn named_host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Result<&'a str, Problem> {
    let mut given = headers.get_all(header::HOST).iter();
    let (first, more) = (given.next(), given.next());
    let host = first.and_then(|value| value.to_str().ok());
    let target = uri.authority().map(|authority| authority.as_str());
    match (host, target, more) {
        (Some(host), None, None) => Ok(host),
        (Some(host), Some(target), None) if host.eq_ignore_ascii_case(target) => Ok(host),
        _ => Err(Problem::new(StatusCode::BAD_REQUEST, "the request must name exactly one host")),
    }
}

/// Whether `host` (`name` or `name:port`) names this sidecar: loopback by any usual name, with any port; the bound address
/// when it may be asked from elsewhere. An unspecified bound address (`0.0.0.0`) stands for every IP address: what a DNS
/// rebinding cannot forge is an address, only a name.
pub(super) fn host_allowed(host: &str, bound: SocketAddr, allow_remote: bool) -> bool {
    let Some(name) = without_port(host) else { return false };
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let Some(ip) = literal(name) else { return false };
    let usual = ip == IpAddr::V4(Ipv4Addr::LOCALHOST) || ip == IpAddr::V6(Ipv6Addr::LOCALHOST);
    usual || ((allow_remote || ip.is_loopback()) && (ip == bound.ip() || bound.ip().is_unspecified()))
}

/// The name before an optional, numeric port.
fn without_port(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(inner) => {
            let end = inner.find(']')? + 2;
            (&host[..end], &host[end..])
        }
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let numeric = |digits: &str| digits.parse::<u16>().is_ok() && digits.bytes().all(|c| c.is_ascii_digit());
    (port.is_empty() || port.strip_prefix(':').is_some_and(numeric)).then_some(name)
}

fn literal(name: &str) -> Option<IpAddr> {
    match name.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => name.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

/// Whether a page of this origin was itself served here: same host, same port.
fn same_origin(origin: &HeaderValue, host: &str) -> bool {
    let origin = origin.to_str().unwrap_or_default();
    origin.strip_prefix("http://").is_some_and(|authority| authority.eq_ignore_ascii_case(host))
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = value.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

fn has_token(state: &AdminState, headers: &HeaderMap) -> bool {
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let Some((scheme, token)) = value.split_once(' ') else { return false };
    scheme.eq_ignore_ascii_case("bearer") && state.token.matches(token.trim())
}

fn missing_token() -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "the write token is missing or wrong").cure(
        "send `authorization: Bearer <token>`, with the CLI set --token-file or LANEMESH_TOKEN; the token is in the \
         sidecar's data directory, in `admin.token`, readable by its owner",
    )
}

/// A host as it may be repeated in a message.
fn shown(host: &str) -> String {
    host.chars().filter(|c| !c.is_control()).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: &str = "127.0.0.1:15000";

    fn allowed(host: &str, bound: &str, allow_remote: bool) -> bool {
        host_allowed(host, bound.parse().unwrap(), allow_remote)
    }

    #[test]
    fn loopback_is_asked_by_its_usual_names_with_any_port() {
        for host in ["localhost", "LocalHost:15000", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:65535"] {
            assert!(allowed(host, LOOPBACK, false), "{host}");
        }
    }

    #[test]
    fn every_other_name_is_refused() {
        for host in [
            "",
            "evil.example",
            "evil.example:15000",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1:evil",
            "127.0.0.1:+15000",
            "127.0.0.1:99999",
            "127.0.0.1:",
            "user@127.0.0.1",
            "[::1",
            "[::1]x",
            "::1",
            "2130706433",
            "127.1",
            "10.0.0.7:15000",
            "0.0.0.0",
        ] {
            assert!(!allowed(host, LOOPBACK, false), "{host}");
            assert!(!allowed(host, LOOPBACK, true), "{host}");
        }
    }

    #[test]
    fn the_bound_address_counts_where_others_may_ask() {
        assert!(allowed("10.0.0.7:15000", "10.0.0.7:15000", true));
        assert!(!allowed("10.0.0.7:15000", "10.0.0.7:15000", false));
        assert!(!allowed("10.0.0.8:15000", "10.0.0.7:15000", true));
        assert!(allowed("127.0.0.5:15000", "127.0.0.5:15000", false), "another loopback address is no name either");
        assert!(allowed("10.1.2.3:15000", "0.0.0.0:15000", true), "any address of this machine");
        assert!(!allowed("evil.example", "0.0.0.0:15000", true), "but no name");
        assert!(allowed("[2001:db8::7]", "[2001:db8::7]:15000", true));
    }

    #[test]
    fn a_page_is_at_home_only_on_this_very_port() {
        let same = |origin: &'static str| same_origin(&HeaderValue::from_static(origin), LOOPBACK);
        assert!(same("http://127.0.0.1:15000"));
        for origin in ["null", "", "http://127.0.0.1:8000", "https://127.0.0.1:15000", "http://evil.example"] {
            assert!(!same(origin), "{origin}");
        }
    }

    #[test]
    fn a_request_names_one_host() {
        let headers = |hosts: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, HeaderValue::from_static(host));
            }
            headers
        };
        let origin_form = Uri::from_static("/v1/members");
        let absolute = Uri::from_static("http://localhost:1/v1/members");
        assert_eq!(named_host(&origin_form, &headers(&["a"])).unwrap(), "a");
        assert!(named_host(&origin_form, &headers(&[])).is_err());
        assert!(named_host(&origin_form, &headers(&["localhost", "evil.example"])).is_err());
        assert!(named_host(&absolute, &headers(&["localhost:1"])).is_ok());
        assert!(named_host(&absolute, &headers(&["evil.example"])).is_err());
    }
}
