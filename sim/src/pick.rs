//! Which hosts a step means: `all`, `3`, `1,4,7`, `2-5`, `random 3`, `half`, `third`, `seeds`, `rest` (what the other side is not), `in us`, `in us-1`
//! (a region or zone).

use std::str::FromStr;

use crate::chance::Chance;

/// Which hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pick {
    /// Everybody.
    All,
    /// By index.
    These(Vec<u32>),
    /// So many, at random.
    Random(usize),
    /// One in so many, rounded down, at random.
    Share(usize),
    /// Everybody's seeds.
    Seeds,
    /// Whom the other side does not name.
    Rest,
    /// Those that stand in a region or zone of this name.
    In(String),
}

impl FromStr for Pick {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || {
            format!(
                "`{text}` names no hosts: use all, half, third, seeds, rest, `random 3`, `in eu-1`, or indices like `0,2,5-7`"
            )
        };
        match text {
            "all" => return Ok(Self::All),
            "half" => return Ok(Self::Share(2)),
            "third" => return Ok(Self::Share(3)),
            "seeds" => return Ok(Self::Seeds),
            "rest" => return Ok(Self::Rest),
            _ => {}
        }
        if let Some(count) = text.strip_prefix("random ") {
            return count.parse().map(Self::Random).map_err(|_| fault());
        }
        if let Some(place) = text.strip_prefix("in ").map(str::trim).filter(|place| !place.is_empty()) {
            return Ok(Self::In(place.to_owned()));
        }
        let mut these = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) =
                first.trim().parse().and_then(|f| last.trim().parse().map(|l| (f, l))).map_err(|_| fault())?;
            if last.saturating_sub(first) > 100_000 {
                return Err(fault());
            }
            these.extend(first..=last);
        }
        Ok(Self::These(these))
    }
}

impl Pick {
    /// The hosts, out of those there are (for [`Pick::In`]: of those that stand there); `other` is the other side.
    pub fn resolve(&self, there: &[u32], seeds: u32, other: &[u32], chance: &mut Chance) -> Vec<u32> {
        let mut picked = match self {
            Self::All | Self::In(_) => there.to_vec(),
            Self::These(these) => these.iter().copied().filter(|host| there.contains(host)).collect(),
            Self::Random(count) => chance.some(there, *count),
            Self::Share(of) => chance.some(there, there.len() / of),
            Self::Seeds => there.iter().copied().filter(|host| *host < seeds).collect(),
            Self::Rest => there.iter().copied().filter(|host| !other.contains(host)).collect(),
        };
        picked.sort_unstable();
        picked.dedup();
        picked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hosts() {
        let there: Vec<u32> = (0..9).collect();
        let pick = |text: &str| text.parse::<Pick>().unwrap().resolve(&there, 2, &[0, 1], &mut Chance::of(1, &[]));
        assert_eq!(pick("3-5,1"), [1, 3, 4, 5]);
        assert_eq!(pick("seeds"), [0, 1]);
        assert_eq!(pick("rest"), [2, 3, 4, 5, 6, 7, 8]);
        assert_eq!("in us-1".parse(), Ok(Pick::In("us-1".into())));
        assert_eq!((pick("random 3").len(), pick("half").len(), pick("random 99").len()), (3, 4, 9));
        for bad in ["", "most", "in ", "random x", "1-", "0-99999999"] {
            assert!(bad.parse::<Pick>().is_err(), "{bad}");
        }
    }
}
