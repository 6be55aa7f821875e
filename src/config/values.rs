//! From one typed value to one meant value. Each parser takes a value as it comes (from the file with its type, from the
//! environment as loose text) and says, when it refuses, why and what to write instead.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use crate::types::{NameError, SubjectPart, SubjectSource};

use super::{
    CheckKind, LoadSource,
    fault::Wrong,
    keys::{Key, Kind},
    raw::{Node, Value},
};

/// Headers that carry a new value with every request. As a subject they would send each request of a user to another lane.
pub const REQUEST_ID_HEADERS: &[&str] =
    &["x-request-id", "request-id", "x-correlation-id", "traceparent", "x-b3-traceid"];

/// Result of parsing one value.
pub(super) type Parsed<T> = Result<T, Wrong>;

/// `250ms`, `1.5s`, `2m`, `1m30s`; units ns, us, ms, s, m, h, d. The error says so.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const UNITS: &str = "write a number and its unit without a space, such as 250ms, 1.5s, 2m or 1h";
    let shown: String = text.chars().take(40).collect();
    if text.is_empty() {
        return Err(format!("an empty text is no duration; {UNITS}"));
    }
    if text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(format!("`{shown}` has no unit; {UNITS}"));
    }
    if text.starts_with('-') {
        return Err(format!("`{shown}` is negative; {UNITS}"));
    }
    // humantime also knows months, years and spaces; these are more often slips than meant.
    let units = text.split(|c: char| c.is_ascii_digit() || c == '.').filter(|unit| !unit.is_empty());
    let known = text.starts_with(|c: char| c.is_ascii_digit())
        && units.clone().all(|unit| matches!(unit, "ns" | "us" | "ms" | "s" | "m" | "h" | "d"));
    if !known {
        return Err(format!("`{shown}` is no duration; {UNITS}"));
    }
    humantime::parse_duration(text).map_err(|_| format!("`{shown}` is no duration; {UNITS}"))
}

/// As [`parse_duration`] reads it: `3s333ms`, `1d`.
pub fn format_duration(span: Duration) -> String {
    // humantime separates with spaces and writes days out, which here are refused as input.
    humantime::format_duration(span).to_string().replace(' ', "").replace("days", "d").replace("day", "d")
}

/// `http:/path`, `tcp` or `none`. The error says so.
pub fn parse_check(text: &str) -> Result<CheckKind, String> {
    const ALLOWED: &str = "write \"http:/path\", \"tcp\" or \"none\"";
    match text {
        "tcp" => return Ok(CheckKind::Tcp),
        "none" => return Ok(CheckKind::None),
        _ => {}
    }
    let shown: String = text.chars().take(80).collect();
    let Some(path) = text.strip_prefix("http:") else {
        return Err(format!("`{shown}` is no check; {ALLOWED}"));
    };
    if path.starts_with("//") {
        return Err(format!(
            "`{shown}` names a host; only the path is given, host and port are the instance's: {ALLOWED}"
        ));
    }
    if !path.starts_with('/') || path.len() > 1024 || !path.bytes().all(|b| b.is_ascii_graphic() && b != b'#') {
        return Err(format!(
            "`{shown}` needs a path that starts with / and has no spaces (at most 1024 bytes); {ALLOWED}"
        ));
    }
    Ok(CheckKind::Http(path.to_owned()))
}

/// `none`, `check`, `in-flight:NUMBER` or `cgroup:DIR`. The error says so.
pub(super) fn parse_load(text: &str, capacity: Option<u32>) -> Result<LoadSource, String> {
    const ALLOWED: &str = "write \"none\", \"check\", \"in-flight:50\" or \"cgroup:/sys/fs/cgroup/...\"";
    match text {
        "none" => return Ok(LoadSource::None),
        "check" => return Ok(LoadSource::Check(capacity)),
        _ => {}
    }
    let shown: String = text.chars().take(80).collect();
    if let Some(most) = text.strip_prefix("in-flight:") {
        let most = most.trim().parse().ok().filter(|most| (1..=MOST_IN_FLIGHT).contains(most));
        let wrong = || format!("`{shown}` needs a number from 1 to {MOST_IN_FLIGHT}; {ALLOWED}");
        return most.map(LoadSource::InFlight).ok_or_else(wrong);
    }
    match text.strip_prefix("cgroup:") {
        Some(dir) if dir.starts_with('/') => Ok(LoadSource::Group(dir.into())),
        Some(_) => Err(format!("`{shown}` needs the whole path of a directory; {ALLOWED}")),
        None => Err(format!("`{shown}` is no source of load; {ALLOWED}")),
    }
}

/// More requests in flight than this no instance has.
const MOST_IN_FLIGHT: u32 = 1_000_000;

/// `header:NAME` or `cookie:NAME`, several of them joined. Header names come back in lower case. The error says what to write.
pub fn parse_subject(parts: &[&str]) -> Result<SubjectSource, String> {
    const ALLOWED: &str = "write \"header:x-user-id\" or \"cookie:uid\"";
    if parts.is_empty() || parts.len() > 8 {
        return Err(format!("{} parts, 1 to 8 make a subject; {ALLOWED}", parts.len()));
    }
    let mut out = Vec::with_capacity(parts.len());
    for part in parts {
        let shown: String = part.chars().take(80).collect();
        let parsed = match part.split_once(':') {
            Some(("header", name)) if is_token(name) => SubjectPart::Header(name.to_ascii_lowercase()),
            Some(("cookie", name)) if is_token(name) => SubjectPart::Cookie(name.to_owned()),
            Some(("header" | "cookie", _)) => {
                return Err(format!("`{shown}` holds no valid name (letters, digits and -_.!#$%&'*+^`|~); {ALLOWED}"));
            }
            _ => return Err(format!("`{shown}` says neither header nor cookie; {ALLOWED}")),
        };
        if out.contains(&parsed) {
            return Err(format!("`{shown}` stands there twice; {ALLOWED}"));
        }
        out.push(parsed);
    }
    Ok(SubjectSource { parts: out })
}

/// A token of RFC 9110, at most 128 bytes: what header and cookie names are made of.
pub(super) fn is_token(name: &str) -> bool {
    let tchar = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    (1..=128).contains(&name.len()) && name.bytes().all(tchar)
}

/// The request id header that a subject is made of, if it is.
pub fn request_id_in(subject: &SubjectSource) -> Option<&str> {
    subject.parts.iter().find_map(|part| match part {
        SubjectPart::Header(name) if REQUEST_ID_HEADERS.contains(&name.as_str()) => Some(name.as_str()),
        _ => None,
    })
}

/// Splits what [`parse_duration`] and its like say into reason and cure.
pub(super) fn split(message: &str) -> Wrong {
    match message.rsplit_once("; ") {
        Some((reason, cure)) => Wrong::new(reason, cure),
        None => Wrong::new(message, "see `lanemesh config reference`"),
    }
}

fn wrong_kind(value: &Value, wanted: &str, example: &str) -> Wrong {
    Wrong::new(format!("is {}, not {wanted}", value.kind()), format!("write {example}"))
}

pub(super) fn text<'a>(value: &'a Value, _: &Key) -> Parsed<&'a str> {
    match value {
        Value::Text(text) | Value::Loose(text) if text.len() > 4096 => {
            Err(Wrong::new(format!("has {} bytes, at most 4096 are read", text.len()), "shorten it"))
        }
        Value::Text(text) | Value::Loose(text) if text.chars().any(char::is_control) => {
            Err(Wrong::new("holds a control character", "remove it (a line break, most often)"))
        }
        Value::Text(text) | Value::Loose(text) if text.is_empty() => {
            Err(Wrong::new("is empty", "give a value, or leave the key out for its default"))
        }
        Value::Text(text) | Value::Loose(text) => Ok(text),
        Value::Whole(_) | Value::Real(_) | Value::Flag(_) | Value::Date => {
            Err(wrong_kind(value, "a text", "it in double quotes"))
        }
        Value::List(_) | Value::Table(_) => Err(wrong_kind(value, "a text", "one text in double quotes")),
    }
}

pub(super) fn name<T: std::str::FromStr<Err = NameError>>(value: &Value, key: &Key) -> Parsed<T> {
    let text = text(value, key)?;
    text.parse().map_err(|error: NameError| {
        // `X is not a valid kind: rule`: the rule is the cure.
        let message = error.to_string();
        let (reason, rule) = message.rsplit_once(": ").unwrap_or((&message, "see `lanemesh config reference`"));
        Wrong::new(reason, format!("use {rule}"))
    })
}

pub(super) fn flag(value: &Value, _: &Key) -> Parsed<bool> {
    match value {
        Value::Flag(flag) => Ok(*flag),
        Value::Loose(text) if text == "true" => Ok(true),
        Value::Loose(text) if text == "false" => Ok(false),
        Value::Loose(text) | Value::Text(text) => {
            let shown: String = text.chars().take(40).collect();
            Err(Wrong::new(format!("`{shown}` is neither true nor false"), "write true or false, without quotes"))
        }
        _ => Err(wrong_kind(value, "true or false", "true or false")),
    }
}

pub(super) fn whole(value: &Value, key: &Key) -> Parsed<u64> {
    let (min, max) = if let Kind::Whole(min, max) = key.kind { (min, max) } else { (0, u64::MAX) };
    let cure = || format!("write a whole number from {min} to {max}, without quotes");
    let n = match value {
        Value::Whole(n) => *n,
        Value::Loose(text) => {
            let shown: String = text.chars().take(40).collect();
            text.parse().map_err(|_| Wrong::new(format!("`{shown}` is not a whole number"), cure()))?
        }
        _ => return Err(Wrong::new(format!("is {}, not a whole number", value.kind()), cure())),
    };
    match u64::try_from(n) {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ if n == i128::MAX => Err(Wrong::new("is far out of range", cure())),
        _ => Err(Wrong::new(format!("{n} is out of range"), cure())),
    }
}

/// 0.0 to 1.0, or `5%`.
pub(super) fn share(value: &Value, _: &Key) -> Parsed<f64> {
    let cure = "write 0.0 to 1.0, or a percentage such as \"5%\"";
    let (share, shown) = match value {
        Value::Real(x) => (*x, x.to_string()),
        #[allow(clippy::cast_precision_loss, reason = "whatever is not 0 or 1 is refused below")]
        Value::Whole(n) => (*n as f64, n.to_string()),
        Value::Loose(text) | Value::Text(text) => {
            let shown: String = text.chars().take(40).collect();
            let (digits, divisor) = text.strip_suffix('%').map_or((text.as_str(), 1.0), |digits| (digits, 100.0));
            let x: f64 = digits.parse().map_err(|_| Wrong::new(format!("`{shown}` is not a share"), cure))?;
            (x / divisor, shown)
        }
        _ => return Err(Wrong::new(format!("is {}, not a share", value.kind()), cure)),
    };
    if share.is_nan() {
        return Err(Wrong::new(format!("{shown} is not a number"), cure));
    }
    if !(0.0..=1.0).contains(&share) {
        return Err(Wrong::new(format!("{shown} is out of range"), cure));
    }
    Ok(share)
}

pub(super) fn span(value: &Value, key: &Key) -> Parsed<Duration> {
    let text = match value {
        Value::Text(text) | Value::Loose(text) => text,
        Value::Whole(n) => {
            let cure = format!("give the unit, in quotes: \"{n}s\" or \"{n}ms\"");
            return Err(Wrong::new(format!("{n} has no unit"), cure));
        }
        _ => return Err(wrong_kind(value, "a duration", "a text with a unit, such as \"250ms\" or \"2s\"")),
    };
    let span = parse_duration(text).map_err(|message| split(&message))?;
    let (min, max) = if let Kind::Span(min, max) = key.kind { (min, max) } else { (Duration::ZERO, Duration::MAX) };
    if (min..=max).contains(&span) {
        return Ok(span);
    }
    Err(Wrong::new(
        format!("{text} is out of range"),
        format!("write {} to {}", format_duration(min), format_duration(max)),
    ))
}

pub(super) fn address(value: &Value, key: &Key) -> Parsed<SocketAddr> {
    let cure = "write IP:port, such as \"127.0.0.1:8080\" or \"[::1]:8080\"";
    let text = match value {
        Value::Text(text) | Value::Loose(text) => text,
        _ => return Err(wrong_kind(value, "an address", "a text such as \"127.0.0.1:8080\"")),
    };
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let shown: String = text.chars().take(80).collect();
    if text.parse::<IpAddr>().is_ok() {
        return Err(Wrong::new(format!("`{shown}` has no port"), cure));
    }
    if let Some(port) = text.strip_prefix("localhost:") {
        return Err(Wrong::new(
            format!("`{shown}` is a name; {} takes an IP address", key.name),
            format!("write \"127.0.0.1:{port}\""),
        ));
    }
    if text.starts_with(':') {
        return Err(Wrong::new(
            format!("`{shown}` has no IP address"),
            format!("write \"127.0.0.1{shown}\", or \"0.0.0.0{shown}\" for every interface"),
        ));
    }
    Err(Wrong::new(format!("`{shown}` is not an IP address with a port"), cure))
}

pub(super) fn choice(value: &Value, key: &Key) -> Parsed<&'static str> {
    let Kind::Choice(allowed) = key.kind else { unreachable!("{} is a choice in the table of keys", key.name) };
    let cure = format!("write one of {}", allowed.iter().map(|a| format!("\"{a}\"")).collect::<Vec<_>>().join(", "));
    let (Value::Text(text) | Value::Loose(text)) = value else {
        return Err(Wrong::new(format!("is {}, not a text", value.kind()), cure));
    };
    allowed.iter().find(|one| **one == text).copied().ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        Wrong::new(format!("`{shown}` is not known"), cure)
    })
}

/// Several texts; one text is a list of one, and loose text is split at commas.
pub(super) fn texts<'a>(value: &'a Value, _: &Key) -> Parsed<Vec<&'a str>> {
    let cure = "write a list of texts, such as [\"a\", \"b\"]";
    match value {
        Value::Text(text) => Ok(vec![text.as_str()]),
        Value::Loose(text) => Ok(text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect()),
        Value::List(list) if list.len() > 1_000 => {
            Err(Wrong::new(format!("has {} entries, at most 1000 are read", list.len()), "shorten the list"))
        }
        Value::List(list) => {
            let one = |node: &'a Node| match &node.value {
                Value::Text(text) => Ok(text.as_str()),
                other => Err(Wrong::new(format!("holds {}, not only texts", other.kind()), cure)),
            };
            list.iter().map(one).collect()
        }
        other => Err(Wrong::new(format!("is {}, not a list", other.kind()), cure)),
    }
}

/// `host:port` of a seed, checked as far as it can be without resolving it.
pub(super) fn seed(text: &str) -> Parsed<String> {
    let shown: String = text.chars().take(80).collect();
    let cure = "write \"host:port\", such as \"orders-0.orders:7946\" or \"[fd00::1]:7946\"";
    let refuse = |why: &str| Err(Wrong::new(format!("`{shown}` {why}"), cure));
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(Wrong::new(format!("`{shown}` has no port"), format!("write \"{shown}:7946\"")));
    };
    if text.parse::<std::net::Ipv6Addr>().is_ok() {
        return Err(Wrong::new(
            format!("`{shown}` is an IPv6 address without brackets"),
            format!("write \"[{shown}]:7946\""),
        ));
    }
    let digits = port.bytes().all(|b| b.is_ascii_digit());
    if !digits || !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return refuse("has no port from 1 to 65535");
    }
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    // A last label of digits is an IPv4 address or a slip of the pen, never a host name (RFC 1123 2.1).
    let number =
        host.rsplit('.').next().is_some_and(|last| !last.is_empty() && last.bytes().all(|b| b.is_ascii_digit()));
    if number && host.parse::<std::net::Ipv4Addr>().is_err() {
        return refuse("is neither a host name nor an IPv4 address");
    }
    let valid =
        bracketed.map_or_else(|| is_host(host) && !host.contains(':'), |ip| ip.parse::<std::net::Ipv6Addr>().is_ok());
    if valid { Ok(text.to_owned()) } else { refuse("is not a host name or IP address with a port") }
}

/// A host name, or an IP address without brackets; the rule of instance records.
pub(super) fn is_host(host: &str) -> bool {
    (1..=253).contains(&host.len())
        && host.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_' | b':' | b'%'))
}

/// `level` or `module=level`, several joined by commas.
pub(super) fn log_filter(value: &Value, key: &Key) -> Parsed<String> {
    let filter = text(value, key)?;
    for part in filter.split(',').map(str::trim) {
        let (module, level) = part.split_once('=').map_or(("lanemesh", part), |(module, level)| (module, level));
        let level_ok =
            ["off", "error", "warn", "info", "debug", "trace"].iter().any(|known| known.eq_ignore_ascii_case(level));
        let module_ok =
            !module.is_empty() && module.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':');
        if !level_ok || !module_ok {
            return Err(Wrong::new(
                format!("`{part}` is not a level or module=level"),
                "write off, error, warn, info, debug or trace, also per module: \"info,lanemesh::proxy=debug\"",
            ));
        }
    }
    Ok(filter.to_owned())
}

/// A header name that may carry a lane, in lower case.
pub(super) fn lane_header(value: &Value, key: &Key) -> Parsed<String> {
    let header = text(value, key)?.to_ascii_lowercase();
    if !is_token(&header) {
        let cure = "use letters, digits and -, such as \"x-lane\"";
        return Err(Wrong::new(format!("`{header}` is not a header name"), cure));
    }
    if FRAMING_HEADERS.contains(&header.as_str()) {
        let reason = format!("`{header}` has a meaning of its own in HTTP");
        return Err(Wrong::new(reason, "use a header of your own, such as \"x-lane\""));
    }
    Ok(header)
}

/// Headers that the proxy itself reads, writes or strips.
const FRAMING_HEADERS: &[&str] = &[
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "proxy-authenticate",
    "expect",
    "cookie",
    "authorization",
];
