//! Match rules of a lane policy (REQUIREMENTS L4): what a request looks like, and the lane that such a request goes to.
//!
//! A condition is one text, the same for people, JSON and the wire: `header:x-beta=1`, `cookie:beta`, `path:/v2`,
//! `method:POST`, `subject:tenant-7*`, `region:eu`, `zone:eu-1`, `tag:team=web`. A value that ends in `*` is matched by
//! what begins so; a name without a value by whatever has it. So nothing but the star has to be escaped, and it cannot be: a value
//! that really ends in a star is matched by its beginning.
//!
//! Not here: reading a request (`lanes`).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{Lane, Region, Zone};

/// Most rules of one policy.
pub const MAX_RULES: usize = 64;
/// Most conditions of one rule.
pub const MAX_CONDITIONS: usize = 8;
/// Longest condition, in bytes.
pub const MAX_CONDITION_BYTES: usize = 256;

/// Requests that meet every condition go to the lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatchRule {
    /// Where they go: `stable` or a lane of the policy.
    pub lane: Lane,
    /// At least one; all must hold.
    pub when: Vec<Condition>,
}

/// What a value has to be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// Anything, also empty.
    Present,
    /// Exactly this.
    Is(String),
    /// Something that begins so.
    Begins(String),
}

impl Wanted {
    /// Whether a value is what is wanted.
    #[inline]
    pub fn admits(&self, value: &str) -> bool {
        match self {
            Self::Present => true,
            Self::Is(text) => value == text,
            Self::Begins(text) => value.starts_with(text.as_str()),
        }
    }
}

/// One thing that a request has to have. Names and values are compared byte by byte, but header names without regard to case.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Condition {
    /// A request header (name in lower case) that is there exactly once.
    Header(String, Wanted),
    /// A cookie of one value.
    Cookie(String, Wanted),
    /// The path as it was sent, without the query and without decoding anything: this, or this and further segments.
    Path(String),
    /// The method.
    Method(String),
    /// The subject.
    Subject(Wanted),
    /// The region of the sidecar that the request enters by.
    Region(Region),
    /// Its zone.
    Zone(Zone),
    /// A tag of an instance that this sidecar's file announces: who the caller is.
    Tag(String, Wanted),
}

/// Why a text is no condition; says what would be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no condition: {why}")]
pub struct ConditionError {
    text: String,
    why: String,
}

impl ConditionError {
    /// Of what was typed, as far as it can be shown.
    pub(super) fn new(text: &str, why: String) -> Self {
        Self { text: text.chars().filter(|c| !c.is_control()).take(80).collect(), why }
    }
}

impl Condition {
    /// Whether it tells one user's requests from another's; a rule without such a condition may take everybody.
    pub fn tells_users_apart(&self) -> bool {
        matches!(self, Self::Header(..) | Self::Cookie(..) | Self::Subject(_))
    }

    fn read(text: &str) -> Result<Self, String> {
        const KINDS: &str = "write `header:NAME=VALUE`, `cookie:NAME=VALUE`, `path:/PREFIX`, `method:NAME`, `subject:VALUE`, \
                             `region:NAME`, `zone:NAME` or `tag:NAME=VALUE`";
        if text.len() > MAX_CONDITION_BYTES {
            return Err(format!("it has {} bytes, at most {MAX_CONDITION_BYTES} are carried", text.len()));
        }
        if text.chars().any(char::is_control) {
            return Err("it holds a control character".into());
        }
        let (kind, rest) = text.split_once(':').ok_or(KINDS)?;
        Ok(match kind {
            "header" => {
                let (name, wanted) = named(rest)?;
                Self::Header(token(name, "a header name")?.to_ascii_lowercase(), wanted)
            }
            "cookie" => {
                let (name, wanted) = named(rest)?;
                Self::Cookie(token(name, "a cookie name")?.to_owned(), wanted)
            }
            "path" if !rest.starts_with('/') => return Err("a path begins with `/`".into()),
            "path" if rest.contains(['?', '#', '*']) => {
                return Err("a path is a prefix of whole segments, without `?`, `#` and `*`, such as `path:/v2`".into());
            }
            "path" => Self::Path(rest.to_owned()),
            "method" => Self::Method(token(rest, "a method")?.to_ascii_uppercase()),
            "subject" if rest.is_empty() => {
                return Err("it names no subject, such as `subject:u1` or `subject:tenant-7*`".into());
            }
            "subject" => Self::Subject(value(rest)),
            "region" => Self::Region(Region::new(rest).map_err(|error| error.to_string())?),
            "zone" => Self::Zone(Zone::new(rest).map_err(|error| error.to_string())?),
            "tag" => {
                let (name, wanted) = named(rest)?;
                if name.is_empty() {
                    return Err("it names no tag, such as `tag:team=web`".into());
                }
                Self::Tag(name.to_owned(), wanted)
            }
            _ => return Err(KINDS.into()),
        })
    }
}

/// `NAME`, `NAME=VALUE` or `NAME=BEGINNING*`.
pub(super) fn named(text: &str) -> Result<(&str, Wanted), String> {
    Ok(match text.split_once('=') {
        None if text.ends_with('*') => return Err("write `NAME` alone for any value".into()),
        None => (text, Wanted::Present),
        Some((name, _)) if name.ends_with('*') => {
            return Err("only a value may end with `*`: write the name whole".into());
        }
        Some((name, text)) => (name, value(text)),
    })
}

pub(super) fn value(text: &str) -> Wanted {
    match text.strip_suffix('*') {
        Some("") => Wanted::Present,
        Some(beginning) => Wanted::Begins(beginning.to_owned()),
        None => Wanted::Is(text.to_owned()),
    }
}

/// RFC 9110, 5.6.2.
fn token<'a>(text: &'a str, what: &str) -> Result<&'a str, String> {
    let inner = |c: u8| c.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&c);
    let is_token = !text.is_empty() && text.bytes().all(inner);
    if is_token { Ok(text) } else { Err(format!("`{text}` is not {what}")) }
}

impl FromStr for Condition {
    type Err = ConditionError;
    fn from_str(text: &str) -> Result<Self, ConditionError> {
        Self::read(text).map_err(|why| ConditionError::new(text, why))
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |f: &mut fmt::Formatter<'_>, kind: &str, name: &str, wanted: &Wanted| match wanted {
            Wanted::Present => write!(f, "{kind}:{name}"),
            Wanted::Is(value) => write!(f, "{kind}:{name}={value}"),
            Wanted::Begins(value) => write!(f, "{kind}:{name}={value}*"),
        };
        match self {
            Self::Header(name, wanted) => named(f, "header", name, wanted),
            Self::Cookie(name, wanted) => named(f, "cookie", name, wanted),
            Self::Tag(name, wanted) => named(f, "tag", name, wanted),
            Self::Path(prefix) => write!(f, "path:{prefix}"),
            Self::Method(name) => write!(f, "method:{name}"),
            Self::Subject(Wanted::Present) => f.write_str("subject:*"),
            Self::Subject(Wanted::Is(value)) => write!(f, "subject:{value}"),
            Self::Subject(Wanted::Begins(value)) => write!(f, "subject:{value}*"),
            Self::Region(name) => write!(f, "region:{name}"),
            Self::Zone(name) => write!(f, "zone:{name}"),
        }
    }
}

impl Serialize for Condition {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

impl fmt::Display for MatchRule {
    /// The conditions, as a person reads them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, condition) in self.when.iter().enumerate() {
            let joint = if at == 0 { "" } else { ", " };
            write!(f, "{joint}{condition}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn conditions_read_back_as_written() {
        for text in [
            "header:x-beta=1",
            "header:x-beta",
            "header:user-agent=Mobile/*",
            "header:x-empty=",
            "cookie:beta=a=b",
            "path:/v2",
            "method:POST",
            "subject:tenant-7*",
            "subject:*",
            "subject:u1",
            "region:eu",
            "zone:eu-1",
            "tag:team=web",
        ] {
            let condition: Condition = text.parse().unwrap();
            assert_eq!(condition.to_string(), text);
            let bytes = postcard::to_allocvec(&condition).unwrap();
            assert_eq!(postcard::from_bytes::<Condition>(&bytes).unwrap(), condition);
        }
        assert_eq!("header:X-Beta=A".parse::<Condition>().unwrap().to_string(), "header:x-beta=A");
        assert_eq!("method:get".parse::<Condition>().unwrap(), Condition::Method("GET".into()));
    }

    #[test]
    fn what_is_no_condition_says_what_would_be_one() {
        for (text, cure) in [
            ("x-beta=1", "header:NAME=VALUE"),
            ("query:a=1", "header:NAME=VALUE"),
            ("header:x beta=1", "header name"),
            ("header:=1", "header name"),
            ("header:x-b*", "NAME` alone"),
            ("header:x-b*=1", "name whole"),
            ("cookie:a b", "cookie name"),
            ("path:v2", "begins with `/`"),
            ("path:/v2/*", "whole segments"),
            ("method:", "a method"),
            ("subject:", "subject:u1"),
            ("region:Ö", "region"),
            ("tag:=1", "tag:team=web"),
            ("header:a=\n", "control"),
        ] {
            let error = text.parse::<Condition>().unwrap_err().to_string();
            assert!(error.contains(cure), "{text}: {error}");
        }
        assert!(
            format!("subject:{}", "u".repeat(300))
                .parse::<Condition>()
                .unwrap_err()
                .to_string()
                .contains("at most 256")
        );
    }

    #[test]
    fn a_rule_takes_no_key_that_it_does_not_know() {
        let rule: MatchRule = serde_json::from_str(r#"{"lane":"canary","when":["header:x-beta=1"]}"#).unwrap();
        assert_eq!(serde_json::to_string(&rule).unwrap(), r#"{"lane":"canary","when":["header:x-beta=1"]}"#);
        assert!(serde_json::from_str::<MatchRule>(r#"{"lane":"canary","wenn":[]}"#).is_err());
    }

    proptest! {
        #[test]
        fn nothing_that_is_typed_panics_and_what_reads_reads_back(text in "(header|cookie|path|subject|tag|zone):\\PC{0,20}") {
            if let Ok(condition) = text.parse::<Condition>() {
                prop_assert_eq!(condition.to_string().parse::<Condition>().unwrap(), condition);
            }
        }
    }
}
