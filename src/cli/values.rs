//! What people type for shares, lanes with lists, subjects and tags. Every error shows what would be right.

use crate::types::{BasisPoints, Lane, MatchRule, ServiceName, SubjectPart, SubjectSource, Trait};

/// `5%`, `5.25%` or `525bp`: a share of all subjects in basis points, 0 to 10000. Integers only inside: nothing is rounded.
pub fn share(text: &str) -> Result<BasisPoints, String> {
    let wrong = |why: &str| format!("`{text}` is not a share: {why} (write `5%`, `0.25%` or `525bp`)");
    let points = if let Some(number) = text.strip_suffix("bp") {
        digits(number).ok_or_else(|| wrong("basis points are a whole number"))?
    } else if let Some(number) = text.strip_suffix('%') {
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let hundredths = match part.len() {
            1 => digits(part).map(|tenths| tenths * 10),
            2 => digits(part),
            _ => return Err(wrong("at most two digits after the point, 0.01% is the smallest share")),
        };
        let (whole, part) = digits(whole).zip(hundredths).ok_or_else(|| wrong("that is no number"))?;
        whole * 100 + part
    } else {
        return Err(wrong("it needs a unit"));
    };
    BasisPoints::try_from(points).ok().filter(|points| *points <= 10_000).ok_or_else(|| wrong("at most 100%"))
}

/// A service as people write it: like a host, in any case.
pub fn service(text: &str) -> Result<ServiceName, String> {
    ServiceName::new(&text.to_ascii_lowercase()).map_err(|error| error.to_string())
}

/// Digits only: no sign, no blanks.
fn digits(text: &str) -> Option<u32> {
    let plain = !text.is_empty() && text.len() <= 6 && text.bytes().all(|c| c.is_ascii_digit());
    plain.then(|| text.parse().ok())?
}

/// The lane that has a flag of its own.
pub fn canary() -> Lane {
    Lane::new("canary").expect("a valid lane")
}

/// `canary=5%`.
pub fn lane_share(text: &str) -> Result<(Lane, BasisPoints), String> {
    let (lane, size) =
        text.split_once('=').ok_or_else(|| format!("`{text}`: write `LANE=SHARE`, as in `canary=5%`"))?;
    Ok((Lane::new(lane).map_err(|error| error.to_string())?, share(size)?))
}

/// `canary:u1,u2`.
pub fn lane_list(text: &str) -> Result<(Lane, Vec<String>), String> {
    let wrong = || format!("`{text}`: write `LANE:SUBJECT,SUBJECT`, as in `canary:u1,u2`");
    let (lane, list) = text.split_once(':').ok_or_else(wrong)?;
    let subjects: Vec<String> = list.split(',').map(str::to_owned).collect();
    if subjects.iter().any(String::is_empty) {
        return Err(wrong());
    }
    Ok((Lane::new(lane).map_err(|error| error.to_string())?, subjects))
}

/// `header:x-user-id`, `cookie:uid`, or several joined by commas.
pub fn subject(text: &str) -> Result<SubjectSource, String> {
    crate::config::parse_subject(&text.split(',').collect::<Vec<_>>())
}

/// The other way round.
pub fn show_subject(source: &SubjectSource) -> String {
    let part = |part: &SubjectPart| match part {
        SubjectPart::Header(name) => format!("header:{name}"),
        SubjectPart::Cookie(name) => format!("cookie:{name}"),
    };
    source.parts.iter().map(part).collect::<Vec<_>>().join(",")
}

/// `name: value`, as a request has it.
pub fn header(text: &str) -> Result<String, String> {
    let wrong = || format!("`{text}`: write `NAME: VALUE`, as in `x-beta: 1`");
    let (name, _) = text.split_once(':').ok_or_else(wrong)?;
    let name_is_well = http::HeaderName::from_bytes(name.trim().as_bytes()).is_ok();
    if name_is_well && !text.contains(['\r', '\n']) { Ok(text.to_owned()) } else { Err(wrong()) }
}

/// `canary:header:x-beta=1,path:/v2`: a lane, and conditions that must all hold. A comma begins the next condition.
pub fn rule(text: &str) -> Result<MatchRule, String> {
    let wrong = || format!("`{text}`: write `LANE:CONDITION,CONDITION`, as in `canary:header:x-beta=1,path:/v2`");
    let (lane, conditions) = text.split_once(':').ok_or_else(wrong)?;
    let lane = Lane::new(lane).map_err(|error| error.to_string())?;
    let when: Result<_, _> = conditions.split(',').map(str::parse).collect();
    Ok(MatchRule { lane, when: when.map_err(|error: crate::types::ConditionError| error.to_string())? })
}

/// `canary:version:v2*,tag:track=beta`.
pub fn selector(text: &str) -> Result<(Lane, Vec<Trait>), String> {
    let wrong = || format!("`{text}`: write `LANE:TRAIT,TRAIT`, as in `canary:version:v2*,tag:track=beta`");
    let (lane, traits) = text.split_once(':').ok_or_else(wrong)?;
    let lane = Lane::new(lane).map_err(|error| error.to_string())?;
    let traits: Result<_, _> = traits.split(',').map(str::parse).collect();
    Ok((lane, traits.map_err(|error: crate::types::ConditionError| error.to_string())?))
}

/// `30s`, `10m`, `1h`.
pub fn span(text: &str) -> Result<std::time::Duration, String> {
    crate::config::parse_duration(text)
}

/// `key=value`; the value may be empty and may hold further `=`.
pub fn tag(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}`: write `KEY=VALUE`")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cli::output;

    #[test]
    fn shares_are_exact() {
        for (text, points) in [
            ("0%", 0),
            ("5%", 500),
            ("5.0%", 500),
            ("5.25%", 525),
            ("0.5%", 50),
            ("0.05%", 5),
            ("0.01%", 1),
            ("525bp", 525),
            ("100%", 10_000),
            ("100.00%", 10_000),
            ("10000bp", 10_000),
        ] {
            assert_eq!(share(text), Ok(points), "{text}");
        }
    }

    #[test]
    fn what_is_no_share_says_what_would_be() {
        for text in [
            "",
            "%",
            "bp",
            "5",
            "25",
            "5 %",
            "-5%",
            "+5%",
            "5.%",
            ".5%",
            "5.255%",
            "100.01%",
            "101%",
            "10001bp",
            "1.5bp",
            "1e2%",
            "٥%",
            "99999999999%",
            "5%%",
            "NaN%",
        ] {
            let error = share(text).unwrap_err();
            assert!(error.contains("`5%`") && error.contains("525bp"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_can_be_typed(points in 0u16..=10_000) {
            prop_assert_eq!(share(&output::share(points)), Ok(points));
            prop_assert_eq!(share(&format!("{points}bp")), Ok(points));
        }

        #[test]
        fn nothing_that_is_typed_panics(text in "\\PC*") {
            let _ = (share(&text), lane_share(&text), lane_list(&text), subject(&text), tag(&text), rule(&text), selector(&text), header(&text));
        }
    }

    #[test]
    fn lanes_take_shares_and_lists() {
        let canary = Lane::new("canary").unwrap();
        assert_eq!(lane_share("canary=5%"), Ok((canary.clone(), 500)));
        assert_eq!(lane_list("canary:u1,u:2"), Ok((canary, vec!["u1".into(), "u:2".into()])));
        for text in ["canary", "canary:", "canary:u1,", ":u1", "Canary:u1"] {
            assert!(lane_list(text).is_err(), "{text}");
        }
        assert!(lane_share("canary:5%").unwrap_err().contains("canary=5%"));
    }

    #[test]
    fn subjects_read_back_as_typed() {
        let source = subject("header:X-User-Id,cookie:uid").unwrap();
        assert_eq!(show_subject(&source), "header:x-user-id,cookie:uid");
        for text in ["", "x-user-id", "header:", "header:a b", "cookie:", "cookie:a=b", "query:u", "header:a,"] {
            assert!(subject(text).is_err(), "{text}");
        }
    }

    #[test]
    fn selectors_are_a_lane_and_traits() {
        let (lane, traits) = selector("canary:version:v2*,tag:track=beta").unwrap();
        let traits: Vec<String> = traits.iter().map(ToString::to_string).collect();
        assert_eq!((lane.as_str(), traits.join(" ").as_str()), ("canary", "version:v2* tag:track=beta"));
        for (text, cure) in [("canary", "LANE:TRAIT"), ("canary:", "version:NAME"), ("canary:v2", "version:NAME")] {
            assert!(selector(text).unwrap_err().contains(cure), "{text}");
        }
    }

    #[test]
    fn rules_are_a_lane_and_conditions() {
        let typed = rule("canary:header:x-beta=1,path:/v2").unwrap();
        assert_eq!((typed.lane.as_str(), typed.to_string().as_str()), ("canary", "header:x-beta=1, path:/v2"));
        for (text, cure) in [
            ("canary", "LANE:CONDITION"),
            ("canary:", "header:NAME=VALUE"),
            ("canary:x-beta=1", "header:NAME=VALUE"),
            ("canary:path:/v2,", "header:NAME=VALUE"),
            ("Canary:path:/v2", "lane"),
        ] {
            let error = rule(text).unwrap_err();
            assert!(error.contains(cure), "{text}: {error}");
        }
    }

    #[test]
    fn headers_are_typed_as_requests_have_them() {
        assert_eq!(header("x-beta: 1").as_deref(), Ok("x-beta: 1"));
        assert_eq!(header("x-empty:").as_deref(), Ok("x-empty:"));
        for text in ["x-beta", ": 1", "x beta: 1", "a: 1\r\nb: 2"] {
            assert!(header(text).unwrap_err().contains("NAME: VALUE"), "{text}");
        }
    }

    #[test]
    fn tags_split_at_the_first_equals_sign() {
        assert_eq!(tag("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(tag("a="), Ok(("a".into(), String::new())));
        assert!(tag("=b").is_err() && tag("a").is_err());
    }
}
