//! Selectors of a lane policy (REQUIREMENTS L5): the instances of a lane told by their version and tags, whatever lane they announce.
//!
//! A trait is one text, the same for people, JSON and the wire: `version:v2`, `version:2.*`, `tag:track=beta`, `tag:track`. All
//! traits of a selector must hold. A lane serves with the instances that its selector takes and with those that announce it; an
//! instance that several selectors take belongs to the first of those lanes in name order.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{
    ConditionError, InstanceRecord, Lane, Wanted,
    rule::{named, value},
};

/// Most traits of one selector.
pub const MAX_TRAITS: usize = 8;
/// Longest trait, in bytes.
const MAX_TRAIT_BYTES: usize = 256;

/// Of each lane: what an instance must have to serve it without announcing it; no empty list.
pub type Selectors = BTreeMap<Lane, Vec<Trait>>;

/// The first lane whose selector takes an instance, in name order.
pub fn selected<'a>(selectors: &'a Selectors, record: &InstanceRecord) -> Option<&'a Lane> {
    let takes = |traits: &[Trait]| !traits.is_empty() && traits.iter().all(|one| one.is_of(record));
    selectors.iter().find(|(_, traits)| takes(traits)).map(|(lane, _)| lane)
}

/// One thing that an instance has to have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Trait {
    /// The version that it announces.
    Version(Wanted),
    /// A tag that it announces.
    Tag(String, Wanted),
}

impl Trait {
    /// Whether an instance has it.
    pub fn is_of(&self, record: &InstanceRecord) -> bool {
        match self {
            Self::Version(wanted) => wanted.admits(record.version.as_str()),
            Self::Tag(name, wanted) => record.tags.get(name).is_some_and(|value| wanted.admits(value)),
        }
    }

    fn read(text: &str) -> Result<Self, String> {
        const KINDS: &str = "write `version:NAME`, `version:BEGINNING*` or `tag:NAME=VALUE`";
        if text.len() > MAX_TRAIT_BYTES {
            return Err(format!("it has {} bytes, at most {MAX_TRAIT_BYTES} are carried", text.len()));
        }
        if text.chars().any(char::is_control) {
            return Err("it holds a control character".into());
        }
        match text.split_once(':') {
            Some(("version", "" | "*")) => Err("every instance has a version: name one, such as `version:v2`".into()),
            Some(("version", rest)) => Ok(Self::Version(value(rest))),
            Some(("tag", rest)) => {
                let (name, wanted) = named(rest)?;
                if name.is_empty() {
                    return Err("it names no tag, such as `tag:track=beta`".into());
                }
                Ok(Self::Tag(name.to_owned(), wanted))
            }
            _ => Err(KINDS.into()),
        }
    }
}

impl FromStr for Trait {
    type Err = ConditionError;
    fn from_str(text: &str) -> Result<Self, ConditionError> {
        Self::read(text).map_err(|why| ConditionError::new(text, why))
    }
}

impl fmt::Display for Trait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(Wanted::Present) => f.write_str("version:*"),
            Self::Version(Wanted::Is(value)) => write!(f, "version:{value}"),
            Self::Version(Wanted::Begins(value)) => write!(f, "version:{value}*"),
            Self::Tag(name, Wanted::Present) => write!(f, "tag:{name}"),
            Self::Tag(name, Wanted::Is(value)) => write!(f, "tag:{name}={value}"),
            Self::Tag(name, Wanted::Begins(value)) => write!(f, "tag:{name}={value}*"),
        }
    }
}

impl Serialize for Trait {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Trait {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn traits_read_back_as_written() {
        for text in ["version:v2", "version:2.*", "tag:track=beta", "tag:track", "tag:track=", "tag:track=be*"] {
            let one: Trait = text.parse().unwrap();
            assert_eq!(one.to_string(), text);
            let bytes = postcard::to_allocvec(&one).unwrap();
            assert_eq!(postcard::from_bytes::<Trait>(&bytes).unwrap(), one);
        }
    }

    #[test]
    fn what_is_no_trait_says_what_would_be_one() {
        for (text, cure) in [
            ("v2", "version:NAME"),
            ("zone:eu", "version:NAME"),
            ("version:", "version:v2"),
            ("version:*", "version:v2"),
            ("tag:", "tag:track=beta"),
            ("tag:=1", "tag:track=beta"),
            ("tag:a*", "NAME` alone"),
            ("tag:a*=*", "name whole"),
            ("tag:a=\n", "control"),
        ] {
            let error = text.parse::<Trait>().unwrap_err().to_string();
            assert!(error.contains(cure), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn nothing_that_is_typed_panics_and_what_reads_reads_back(text in "(version|tag):\\PC{0,20}") {
            if let Ok(one) = text.parse::<Trait>() {
                prop_assert_eq!(one.to_string().parse::<Trait>().unwrap(), one);
            }
        }
    }
}
