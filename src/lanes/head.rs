//! What the lane decision may look at in a request's head: one narrow face for the proxy's headers, for `route`'s arguments and
//! for the simulator, so that subjects and rules are read by one code path (REQUIREMENTS L3, L4).
//!
//! Doubt means absence everywhere: a header that is there twice, or a cookie of two values, is not guessed at, since nobody can
//! tell which of the two the application believes.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize};

use crate::types::{SubjectPart, SubjectSource};

/// A request's head.
pub trait Head: fmt::Debug {
    /// The method as sent.
    fn method(&self) -> &str;
    /// The path as sent, without the query: `/` at least, except for `CONNECT`.
    fn path(&self) -> &str;
    /// Hands over every value of a header (its name in lower case), in order.
    fn values<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8]));

    /// The one value of a header; `None` when there is none, several, or no text.
    fn only(&self, name: &str) -> Option<&str> {
        let (mut first, mut count) = (None, 0);
        self.values(name, &mut |value| {
            count += 1;
            first = Some(value);
        });
        first.filter(|_| count == 1).and_then(text)
    }

    /// The first value of a header that is text.
    fn first(&self, name: &str) -> Option<&str> {
        let mut found = None;
        self.values(name, &mut |value| found = found.or_else(|| text(value)));
        found
    }

    /// The value of a cookie; given twice, only if both are the same (sending the same cookie for two paths is common).
    fn cookie(&self, name: &str) -> Option<&str> {
        let mut found: Option<&str> = None;
        let mut clash = false;
        self.values("cookie", &mut |line| {
            let pairs = text(line).into_iter().flat_map(|line| line.split(';'));
            for (_, value) in pairs.filter_map(|pair| pair.trim_ascii().split_once('=')).filter(|(key, _)| *key == name)
            {
                clash |= found.is_some_and(|first| first != value);
                found = found.or(Some(value));
            }
        });
        found.filter(|_| !clash).map(|value| value.trim_matches('"'))
    }
}

fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok()
}

/// The subject by `source`; `None` when any of its parts is missing, empty, or in doubt. A request id is no subject unless asked for
/// by name: it would be a new subject per request.
pub fn subject<'a>(source: &SubjectSource, head: &'a dyn Head, request_id: bool) -> Option<Cow<'a, str>> {
    let mut parts = source.parts.iter().map(|part| value(part, head, request_id));
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

fn value<'a>(part: &SubjectPart, head: &'a dyn Head, request_id: bool) -> Option<&'a str> {
    let text = match part {
        SubjectPart::Header(name) if is_request_id(name) && !request_id => None,
        SubjectPart::Header(name) => head.only(name),
        SubjectPart::Cookie(name) => head.cookie(name),
    };
    text.map(str::trim_ascii).filter(|text| !text.is_empty())
}

fn is_request_id(name: &str) -> bool {
    ["x-request-id", "x-correlation-id", "request-id", "traceparent", "x-b3-traceid"].contains(&name)
}

/// A head as headers in order: for tests, the simulator and questions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainHead {
    /// See [`Head::method`].
    pub method: String,
    /// See [`Head::path`].
    pub path: String,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
}

impl Head for PlainHead {
    fn method(&self) -> &str {
        &self.method
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn values<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.headers.iter().filter(|(own, _)| own == name).for_each(|(_, value)| each(value.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(lines: &[(&str, &str)]) -> PlainHead {
        let headers = lines.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        PlainHead { method: "GET".into(), path: "/".into(), headers }
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
        let head =
            head(&[("x-user-id", "u1"), ("x-tenant", "t1"), ("cookie", "a=b; sid=\"s1\"; c"), ("cookie", "z=1")]);
        let get = |parts: &[&str]| subject(&source(parts), &head, false).map(Cow::into_owned);
        assert_eq!(get(&["x-user-id"]).as_deref(), Some("u1"));
        assert_eq!(get(&["cookie:sid"]).as_deref(), Some("s1"));
        assert_eq!(get(&["x-tenant", "x-user-id"]).as_deref(), Some("t1\x1fu1"));
        assert_eq!(get(&["x-tenant", "x-missing"]), None);
        assert_eq!(get(&["cookie:none"]), None);
    }

    #[test]
    fn doubt_means_no_subject() {
        let head =
            head(&[("x-user-id", "u1"), ("x-user-id", "u2"), ("x-empty", " "), ("cookie", "s=1; s=2; t=1; t=1")]);
        for part in ["x-user-id", "x-empty", "cookie:s"] {
            assert_eq!(subject(&source(&[part]), &head, false), None, "{part}");
        }
        assert_eq!(subject(&source(&["cookie:t"]), &head, false).as_deref(), Some("1"));
        assert_eq!(head.first("x-user-id"), Some("u1"));
    }

    #[test]
    fn a_request_id_is_a_subject_only_when_asked_for() {
        let head = head(&[("x-request-id", "r1")]);
        assert_eq!(subject(&source(&["x-request-id"]), &head, false), None);
        assert_eq!(subject(&source(&["x-request-id"]), &head, true).as_deref(), Some("r1"));
    }
}
