//! Notes for people after an order about lanes: who is to serve a lane, and whether anybody does today.
//!
//! Notes, never errors: the order is done, and instances may come later. With `--json` there are none: what is printed then is the
//! sidecar's answer.

use std::collections::BTreeSet;

use super::{
    Failure,
    client::{Client, encode, parse, with_query},
    output::first_few,
};
use crate::{
    agent::{InstanceInfo, PolicyInfo},
    types::{Lane, LanePolicy, ServiceName, Trait},
};

/// A service's instances, as the asked sidecar sees them.
pub(super) async fn instances(client: &Client, service: &ServiceName) -> Result<Vec<InstanceInfo>, Failure> {
    parse(client.get(&with_query("/v1/instances", &[("service", Some(service.as_str()))])).await?)
}

/// A service's policy, if it has one.
pub(super) async fn policy(client: &Client, service: &ServiceName) -> Result<Option<LanePolicy>, Failure> {
    match client.get(&format!("/v1/policies/{}", encode(service.as_str()))).await {
        Ok(answer) => Ok(Some(parse::<PolicyInfo>(answer)?.policy)),
        Err(Failure { exit: super::Exit::NotFound, .. }) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Everybody is to go to stable: why nobody can, where no instance serves it, and what to do.
pub(super) fn no_stable(policy: &LanePolicy, instances: &[InstanceInfo]) -> Option<String> {
    let lanes: BTreeSet<&Lane> = instances.iter().map(|info| policy.lane_of(&info.record)).collect();
    if lanes.is_empty() || lanes.iter().any(|lane| lane.is_stable()) {
        return None;
    }
    let service = &policy.service;
    let announced = instances.iter().any(|info| info.record.lane.is_stable());
    let by: Vec<&Lane> = policy.selectors.keys().filter(|lane| lanes.contains(lane)).collect();
    let names: Vec<&str> = by.iter().map(|lane| lane.as_str()).collect();
    if announced && !by.is_empty() {
        let of = if by.len() == 1 { "the selector of lane" } else { "the selectors of lanes" };
        let unselect: Vec<String> = by.iter().map(|lane| format!("--unselect {lane}")).collect();
        return Some(format!(
            "no instance serves stable: {of} {} takes them all, and a rollback leaves selectors in force. Until then requests fail\ncure: \
             lanemesh policy set {service} {}\n",
            names.join(", "),
            unselect.join(" ")
        ));
    }
    let there: Vec<&str> = lanes.iter().map(|lane| lane.as_str()).collect();
    Some(format!(
        "no instance serves stable (lanes there: {}). Until one does, requests fail\ncure: lanemesh instances set ID --lane \
         stable, at the sidecar of an instance that is to serve them\n",
        there.join(", ")
    ))
}

/// Selectors that take nobody today, and what there is in place of what they ask for.
pub(super) fn unmatched(service: &ServiceName, select: &[(Lane, Vec<Trait>)], instances: &[InstanceInfo]) -> String {
    let nobody = |(_, traits): &&(Lane, Vec<Trait>)| {
        !instances.iter().any(|info| traits.iter().all(|one| one.is_of(&info.record)))
    };
    let note = |(lane, traits): &(Lane, Vec<Trait>)| {
        let wanted: Vec<String> = traits.iter().map(ToString::to_string).collect();
        let missing = traits.iter().find(|one| !instances.iter().any(|info| one.is_of(&info.record)));
        let there = match missing {
            Some(one) => there(one, instances),
            None => "each of them some instance has, none all of them".into(),
        };
        format!(
            "note: no instance of `{service}` has {} today, so none serves lane `{lane}` by it ({there})\n",
            wanted.join(" and ")
        )
    };
    select.iter().filter(nobody).map(note).collect()
}

/// What instances have of the kind that a trait asks for.
fn there(one: &Trait, instances: &[InstanceInfo]) -> String {
    let (what, values): (String, BTreeSet<&str>) = match one {
        Trait::Version(_) => ("versions".into(), instances.iter().map(|info| info.record.version.as_str()).collect()),
        Trait::Tag(name, _) => {
            let values = instances.iter().filter_map(|info| info.record.tags.get(name));
            (format!("values of tag `{name}`"), values.map(String::as_str).collect())
        }
    };
    let values = if values.is_empty() { "none".into() } else { first_few(values.into_iter(), MOST) };
    format!("{what} there: {values}")
}

/// Lanes from which a selector was to be taken that have none.
pub(super) fn without_selector(held: Option<&LanePolicy>, unselect: &[Lane]) -> String {
    let has = |lane: &Lane| held.is_some_and(|policy| policy.selectors.contains_key(lane));
    let with: Vec<&str> = held.iter().flat_map(|policy| policy.selectors.keys()).map(|lane| lane.as_str()).collect();
    let there = if with.is_empty() { "no lane has one".into() } else { format!("lanes with one: {}", with.join(", ")) };
    let note = |lane: &Lane| format!("note: lane `{lane}` had no selector ({there})\n");
    unselect.iter().filter(|lane| !has(lane)).map(note).collect()
}

/// Names in a note.
const MOST: usize = 8;

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::*;
    use crate::{agent::fake::Fake, types::Lane};

    fn lane(name: &str) -> Lane {
        Lane::new(name).unwrap()
    }

    fn select(of: &str, traits: &[&str]) -> (Lane, Vec<Trait>) {
        (lane(of), traits.iter().map(|one| Trait::from_str(one).unwrap()).collect())
    }

    /// `n1` of stable, version v1; `n2` of canary, version v2.
    fn two() -> (LanePolicy, Vec<InstanceInfo>) {
        let fake = Fake::new();
        (fake.policies[0].policy.clone(), fake.instances)
    }

    #[test]
    fn a_stable_that_selectors_have_emptied_is_named_with_its_cure() {
        let (mut policy, mut instances) = two();
        assert_eq!(no_stable(&policy, &instances), None);
        assert_eq!(no_stable(&policy, &[]), None, "nobody is there: that is another matter");
        policy.selectors = [select("canary", &["version:v1"])].into();
        let text = no_stable(&policy, &instances).unwrap();
        assert!(text.contains("the selector of lane canary takes them all"), "{text}");
        assert!(text.contains("cure: lanemesh policy set orders --unselect canary\n"), "{text}");
        policy.selectors.clear();
        instances.remove(0);
        let text = no_stable(&policy, &instances).unwrap();
        assert!(text.contains("lanes there: canary") && !text.contains("unselect"), "{text}");
    }

    #[test]
    fn a_selector_that_takes_nobody_says_what_there_is() {
        let (policy, instances) = two();
        let notes = |traits: &[&str]| unmatched(&policy.service, &[select("canary", traits)], &instances);
        assert_eq!(notes(&["version:v2"]), "");
        assert!(notes(&["version:v9"]).contains("has version:v9 today"), "{}", notes(&["version:v9"]));
        assert!(notes(&["version:v9"]).contains("(versions there: v1,v2)"));
        assert!(notes(&["version:v1", "tag:track=beta"]).contains("(values of tag `track` there: none)"));
    }

    #[test]
    fn what_had_no_selector_is_said() {
        let (mut policy, _) = two();
        assert!(without_selector(None, &[lane("canary")]).contains("lane `canary` had no selector (no lane has one)"));
        policy.selectors = [select("canary", &["version:v1"])].into();
        assert_eq!(without_selector(Some(&policy), &[lane("canary")]), "");
        assert!(without_selector(Some(&policy), &[lane("cannary")]).contains("(lanes with one: canary)"));
    }
}
