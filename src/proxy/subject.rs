//! Who a request is: subject and route key from headers and cookies (REQUIREMENTS L3).

use std::borrow::Cow;

use super::fields::Fields;
use crate::types::{SubjectPart, SubjectSource};

/// The subject by `source`; `None` when any of its parts is missing, empty, or given more than once (nobody can tell which of
/// two the application believes). A request id is no subject unless asked for by name: it would be a new subject per request.
pub(super) fn extract<'a, F: Fields + ?Sized>(
    source: &SubjectSource,
    headers: &'a F,
    request_id: bool,
) -> Option<Cow<'a, str>> {
    let mut parts = source.parts.iter().map(|part| value(part, headers, request_id));
    let first = parts.next()??;
    if source.parts.len() == 1 {
        return Some(Cow::Borrowed(first));
    }
    let mut joined = first.to_owned();
    for part in parts {
        joined.push('\x1f');
        joined.push_str(part?);
    }
    Some(Cow::Owned(joined))
}

fn value<'a, F: Fields + ?Sized>(part: &SubjectPart, headers: &'a F, request_id: bool) -> Option<&'a str> {
    let text = match part {
        SubjectPart::Header(name) if is_request_id(name) && !request_id => None,
        SubjectPart::Header(name) => {
            let mut values = headers.all(name);
            let only = values.next().filter(|_| values.next().is_none());
            only.and_then(|value| std::str::from_utf8(value).ok())
        }
        SubjectPart::Cookie(name) => cookie(headers, name),
    };
    text.map(str::trim_ascii).filter(|text| !text.is_empty())
}

fn is_request_id(name: &str) -> bool {
    ["x-request-id", "x-correlation-id", "request-id", "traceparent", "x-b3-traceid"].contains(&name)
}

fn cookie<'a, F: Fields + ?Sized>(headers: &'a F, name: &str) -> Option<&'a str> {
    let lines = headers.all("cookie").filter_map(|value| std::str::from_utf8(value).ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim_ascii().split_once('='));
    let mut values = pairs.filter(|(key, _)| *key == name).map(|(_, value)| value);
    let only = values.next();
    // Sending the same cookie for two paths is common; two values for one subject are not to be guessed between.
    only.filter(|first| values.all(|other| other == *first)).map(|value| value.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;

    fn map(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        map
    }

    fn source(parts: &[&str]) -> SubjectSource {
        let part = |text: &&str| match text.split_once(':') {
            Some(("cookie", name)) => SubjectPart::Cookie(name.into()),
            _ => SubjectPart::Header((*text).into()),
        };
        SubjectSource { parts: parts.iter().map(part).collect() }
    }

    #[test]
    fn headers_cookies_and_several_joined() {
        let headers =
            map(&[("x-user-id", "u1"), ("x-tenant", "t1"), ("cookie", "a=b; sid=\"s1\"; c"), ("cookie", "z=1")]);
        let get = |parts: &[&str]| extract(&source(parts), &headers, false).map(Cow::into_owned);
        assert_eq!(get(&["x-user-id"]).as_deref(), Some("u1"));
        assert_eq!(get(&["cookie:sid"]).as_deref(), Some("s1"));
        assert_eq!(get(&["x-tenant", "x-user-id"]).as_deref(), Some("t1\x1fu1"));
        assert_eq!(get(&["x-tenant", "x-missing"]), None);
        assert_eq!(get(&["cookie:none"]), None);
    }

    #[test]
    fn doubt_means_no_subject() {
        let headers =
            map(&[("x-user-id", "u1"), ("x-user-id", "u2"), ("x-empty", " "), ("cookie", "s=1; s=2; t=1; t=1")]);
        for part in ["x-user-id", "x-empty", "cookie:s"] {
            assert_eq!(extract(&source(&[part]), &headers, false), None, "{part}");
        }
        assert_eq!(extract(&source(&["cookie:t"]), &headers, false).as_deref(), Some("1"));
    }

    #[test]
    fn a_request_id_is_a_subject_only_when_asked_for() {
        let headers = map(&[("x-request-id", "r1")]);
        assert_eq!(extract(&source(&["x-request-id"]), &headers, false), None);
        assert_eq!(extract(&source(&["x-request-id"]), &headers, true).as_deref(), Some("r1"));
    }
}
