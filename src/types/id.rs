//! Names that parse once at the edge. All are short, cheap to clone, ordered, and printed as they were written.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a text is not a name of the wanted kind; the message names the kind, the rule and the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid {kind}: {rule}")]
pub struct NameError {
    kind: &'static str,
    text: String,
    rule: &'static str,
}

const RULE: &str = "1 to 63 characters of a-z, 0-9, `-`, `_` and `.`, starting with a letter or digit";
const RULE_ANY_CASE: &str =
    "1 to 63 characters of A-Z, a-z, 0-9, `-`, `_`, `.` and `+`, starting with a letter or digit";

fn parse(kind: &'static str, text: &str, upper: bool) -> Result<Arc<str>, NameError> {
    let letter = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || (upper && c.is_ascii_uppercase());
    let inner = |c: u8| letter(c) || matches!(c, b'-' | b'_' | b'.') || (upper && c == b'+');
    let bytes = text.as_bytes();
    let valid = !bytes.is_empty() && bytes.len() <= 63 && letter(bytes[0]) && bytes.iter().all(|c| inner(*c));
    if valid {
        return Ok(Arc::from(text));
    }
    let shown = text.chars().take(80).collect();
    Err(NameError { kind, text: shown, rule: if upper { RULE_ANY_CASE } else { RULE } })
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $kind:literal, upper = $upper:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Parses; the error names the rule and the text.
            pub fn new(text: &str) -> Result<Self, NameError> {
                parse($kind, text, $upper).map(Self)
            }

            /// The name as it was written.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                struct Text;
                impl serde::de::Visitor<'_> for Text {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!("a ", $kind))
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        $name::new(text).map_err(E::custom)
                    }
                }
                d.deserialize_str(Text)
            }
        }
    };
}

name!(
    /// One sidecar, as its certificate names it. Stable over restarts; each run is a new generation.
    NodeId, "node id", upper = false
);
name!(
    /// The name that applications call (`Host: orders`). Lower case, since `Host` is case-insensitive.
    ServiceName, "service name", upper = false
);
name!(
    /// One address of one service, stable over restarts (a pod ordinal, say). The ring hashes these bytes and nothing else.
    InstanceId, "instance id", upper = false
);
name!(
    /// A traffic group: `stable`, `canary` or any other name. `stable` always exists.
    Lane, "lane", upper = false
);
name!(
    /// Environment (`prod`, `staging`): requests never cross it.
    Env, "env", upper = false
);
name!(
    /// Region of an instance.
    Region, "region", upper = false
);
name!(
    /// Availability zone of an instance.
    Zone, "zone", upper = false
);
name!(
    /// Version of the application, as its owner calls it (`v2`, `1.4.0-rc.1+ab12`).
    VersionName, "version", upper = true
);
name!(
    /// Name of one mesh. Certificates carry it, so that two meshes on one network never mix.
    MeshName, "mesh name", upper = false
);

impl Lane {
    /// The lane that always exists.
    pub const STABLE: &'static str = "stable";

    /// The lane that always exists.
    pub fn stable() -> Self {
        Self(Arc::from(Self::STABLE))
    }

    /// Whether this is the lane that always exists.
    pub fn is_stable(&self) -> bool {
        self.as_str() == Self::STABLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_to_their_rule() {
        for good in ["a", "orders", "orders-1.pod_3", "0x"] {
            assert_eq!(ServiceName::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "-a", ".a", "Orders", "a b", "a/b", "a\n", "ä", &"x".repeat(64)] {
            let error = ServiceName::new(bad).unwrap_err().to_string();
            assert!(error.contains("service name") && error.contains("1 to 63"), "{error}");
        }
        assert!(VersionName::new("v1.2+AB").is_ok());
    }

    #[test]
    fn a_name_that_breaks_the_rule_is_refused_from_the_wire() {
        assert!(serde_json::from_str::<NodeId>("\"n 1\"").is_err());
        assert_eq!(serde_json::from_str::<NodeId>("\"n1\"").unwrap().as_str(), "n1");
    }
}
