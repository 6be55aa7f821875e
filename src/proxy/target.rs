//! Which service a request is for: by dedicated port, by the authority of an absolute-form target, or by `Host`.
//!
//! A service name is compared without regard to case, port and one trailing dot. Nothing else is guessed: no search domains, no
//! `service.namespace`. hyper accepts requests with no or several `Host` headers; here HTTP/1.1 needs exactly one, and HTTP/2 an
//! `:authority` or one `Host`, which must agree when there are both.

use http::{HeaderMap, HeaderValue, Method, Uri, Version, header, uri::Scheme};

use super::Reason;

/// Longest service name.
const LONGEST: usize = 63;

/// A service name as the client wrote it, in lower case, without allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    bytes: [u8; LONGEST],
    length: u8,
}

impl Wanted {
    /// Empty when the name is longer than any service's.
    pub(super) fn new(name: &str) -> Self {
        let mut bytes = [0; LONGEST];
        let fits = name.len() <= LONGEST;
        let length = if fits { name.len() } else { 0 };
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        bytes.make_ascii_lowercase();
        Self { bytes, length: length as u8 }
    }

    pub(super) fn as_str(&self) -> &str {
        // Copied whole from a `str`, and lower-casing ASCII keeps UTF-8 whole.
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

/// Finds the wanted service, and makes target and `Host` what the instance shall see: origin-form and exactly one `Host`.
/// `dedicated` is the service of the port, if the port has one.
pub(super) fn resolve(
    method: &Method,
    version: Version,
    uri: &mut Uri,
    headers: &mut HeaderMap,
    dedicated: Option<&str>,
) -> Result<Wanted, Reason> {
    if method == Method::CONNECT {
        return Err(Reason::ConnectUnsupported);
    }
    let http2 = version == Version::HTTP_2;
    // Over HTTP/2 every request is written like this, with the scheme that the client believes in.
    let taken = |scheme: &Scheme| *scheme == Scheme::HTTP || http2 && *scheme == Scheme::HTTPS;
    let from_target = match (uri.scheme(), uri.authority()) {
        (None, None) if uri.path().starts_with('/') => None,
        // Asks the service as a whole (RFC 9110 9.3.7), which its instances answer.
        (None, None) if uri.path() == "*" && method == Method::OPTIONS => None,
        (Some(scheme), Some(authority)) if taken(scheme) && uri.path().starts_with('/') => {
            Some(parse(authority.as_str(), if http2 { Reason::BadHost } else { Reason::BadTarget })?)
        }
        // `*` of other methods, `products`, `ftp://...`, `https://...`: nothing that a path on an instance could be made of.
        _ => return Err(Reason::BadTarget),
    };
    let mut hosts = headers.get_all(header::HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    let from_host = match host {
        _ if second.is_some() => return Err(Reason::BadHost),
        Some(host) => Some(parse(host.to_str().map_err(|_| Reason::BadHost)?, Reason::BadHost)?),
        None if version > Version::HTTP_10 && !(http2 && from_target.is_some()) => return Err(Reason::BadHost),
        None => None,
    };
    // RFC 9113 8.3.1: whichever of the two somebody else believes, it must be the same.
    if http2 && from_target.is_some() && from_host.is_some() && from_target != from_host {
        return Err(Reason::BadHost);
    }
    if from_target.is_some() {
        to_origin_form(uri, headers)?;
    }
    let wanted = match dedicated {
        Some(service) => Some(Wanted::new(service)),
        None => from_target.or(from_host),
    };
    let wanted = wanted.ok_or(Reason::BadHost)?;
    if !headers.contains_key(header::HOST) {
        let host = HeaderValue::from_str(wanted.as_str()).map_err(|_| Reason::BadHost)?;
        headers.insert(header::HOST, host);
    }
    Ok(wanted)
}

/// The service that a `CONNECT` asks for, in authority-form (RFC 9112 3.2.3). The port has to be there and valid (RFC 9110 9.3.6).
pub(super) fn of_connect(
    version: Version,
    uri: &Uri,
    headers: &HeaderMap,
    dedicated: Option<&str>,
) -> Result<Wanted, Reason> {
    let authority = match (uri.scheme(), uri.authority(), uri.path_and_query()) {
        (None, Some(authority), None) if authority.port_u16().is_some_and(|port| port != 0) => authority,
        _ => return Err(Reason::BadTarget),
    };
    let hosts = headers.get_all(header::HOST).iter().count();
    if hosts > 1 || version > Version::HTTP_10 && hosts == 0 {
        return Err(Reason::BadHost);
    }
    let wanted = parse(authority.as_str(), Reason::BadTarget)?;
    Ok(dedicated.map_or(wanted, Wanted::new))
}

/// RFC 9112 3.2.2: the authority of the target replaces `Host`.
fn to_origin_form(uri: &mut Uri, headers: &mut HeaderMap) -> Result<(), Reason> {
    if let Some(authority) = uri.authority() {
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| Reason::BadTarget)?;
        headers.insert(header::HOST, host);
    }
    // An empty path is written as `/`, also before a query; a fragment was cut off, and may have been all there was.
    // (Of an empty one `as_str` says `/` as well, but a `Uri` made of it has none.)
    let given = uri.path_and_query().filter(|given| given.as_str() != "/");
    let path = given.cloned().unwrap_or_else(|| http::uri::PathAndQuery::from_static("/"));
    *uri = Uri::from(path);
    Ok(())
}

/// What the value of a `Host` header asks for, if it is a proper one.
pub(super) fn of_host(value: &[u8]) -> Option<Wanted> {
    parse(std::str::from_utf8(value).ok()?, Reason::BadHost).ok()
}

/// `name`, `name:port` or `[IPv6]:port`; no user information, no path, nothing empty.
fn parse(authority: &str, fault: Reason) -> Result<Wanted, Reason> {
    let (name, port) = match authority.rfind(':') {
        Some(at) if !authority[at..].contains(']') => (&authority[..at], Some(&authority[at + 1..])),
        _ => (authority, None),
    };
    let port_fine = port
        .is_none_or(|port| !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit()) && port.parse::<u16>().is_ok());
    let name = name.strip_suffix('.').unwrap_or(name);
    let literal = name.starts_with('[') && name.ends_with(']') && name.len() > 2;
    let inner = if literal { &name[1..name.len() - 1] } else { name };
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_' | b'~') || literal && c == b':';
    if name.is_empty() || !port_fine || !inner.bytes().all(allowed) {
        return Err(fault);
    }
    Ok(Wanted::new(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(target: &str, hosts: &[&str], version: Version) -> Result<(String, String, String), Reason> {
        let mut uri: Uri = target.parse().map_err(|_| Reason::BadTarget)?;
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, HeaderValue::from_str(host).unwrap());
        }
        let wanted = resolve(&Method::GET, version, &mut uri, &mut headers, None)?;
        assert_eq!(headers.get_all(header::HOST).iter().count(), 1);
        let host = headers[header::HOST].to_str().unwrap().to_owned();
        Ok((wanted.as_str().to_owned(), uri.to_string(), host))
    }

    #[test]
    fn host_is_needed_once_and_valid() {
        let bad: [&[&str]; 8] = [
            &[],
            &["orders", "billing"],
            &["orders", "orders"],
            &[""],
            &["orders/x"],
            &["a@orders"],
            &["orders:99999"],
            &["orders:"],
        ];
        for hosts in bad {
            assert_eq!(run("/", hosts, Version::HTTP_11), Err(Reason::BadHost), "{hosts:?}");
        }
        for host in ["orders", "ORDERS", "orders.", "orders:15001", "Orders.:80"] {
            assert_eq!(run("/", &[host], Version::HTTP_11).unwrap().0, "orders", "{host}");
        }
        assert_eq!(run("/", &[], Version::HTTP_10), Err(Reason::BadHost));
    }

    #[test]
    fn the_authority_of_an_absolute_target_decides() {
        let ok = |service: &str, path: &str, host: &str| Ok((service.into(), path.into(), host.into()));
        assert_eq!(run("http://orders/p?q=1", &["billing"], Version::HTTP_11), ok("orders", "/p?q=1", "orders"));
        assert_eq!(run("HTTP://ORDERS", &["orders"], Version::HTTP_11), ok("orders", "/", "ORDERS"));
        assert_eq!(run("http://orders?x=1", &["o"], Version::HTTP_11), ok("orders", "/?x=1", "orders"));
        assert_eq!(run("http://orders/", &[], Version::HTTP_10), ok("orders", "/", "orders"));
        for bad in ["ftp://orders/", "https://orders/", "products", "*", "http://u@orders/"] {
            assert_eq!(run(bad, &["orders"], Version::HTTP_11), Err(Reason::BadTarget), "{bad}");
        }
    }

    #[test]
    fn http2_needs_an_authority_or_a_host_and_no_contradiction() {
        let run = |target: &str, hosts: &[&str]| run(target, hosts, Version::HTTP_2);
        let ok = |path: &str, host: &str| Ok(("orders".to_owned(), path.to_owned(), host.to_owned()));
        assert_eq!(run("http://orders/p", &[]), ok("/p", "orders"));
        assert_eq!(run("http://orders#x", &[]), ok("/", "orders"), "a fragment in place of a path");
        assert_eq!(run("https://orders:443/", &[]), ok("/", "orders:443"));
        assert_eq!(run("http://orders/", &["ORDERS:80"]), ok("/", "orders"));
        assert_eq!(run("/p", &["orders"]), ok("/p", "orders"));
        for (target, hosts) in [("http://orders/", &["billing"][..]), ("/p", &[]), ("/p", &["orders", "orders"])] {
            assert_eq!(run(target, hosts), Err(Reason::BadHost), "{target}");
        }
        assert_eq!(run("http://u@orders/", &[]), Err(Reason::BadHost));
    }

    #[test]
    fn a_dedicated_port_decides_and_keeps_the_clients_host() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("localhost:9000"));
        let mut uri = Uri::from_static("/");
        let wanted = resolve(&Method::GET, Version::HTTP_11, &mut uri, &mut headers, Some("orders")).unwrap();
        assert_eq!((wanted.as_str(), &headers[header::HOST]), ("orders", &"localhost:9000".parse().unwrap()));
    }

    #[test]
    fn paths_go_through_unchanged() {
        for path in ["/a/../b", "/a/%2e%2e/b", "//a", "/a%2Fb", "/a%2fb", "/a;v=1/b", "/a?x=/../y", "/%00", "/a?", "/?"]
        {
            assert_eq!(run(path, &["orders"], Version::HTTP_11).unwrap().1, path);
            let absolute = format!("http://orders{path}");
            assert_eq!(run(&absolute, &["orders"], Version::HTTP_11).unwrap().1, path);
        }
    }

    #[test]
    fn an_overlong_name_is_no_service() {
        assert_eq!(run("/", &[&"a".repeat(80)], Version::HTTP_11).unwrap().0, "");
    }
}
