//! Match rules made ready for one sidecar: what its place and tags decide once is decided here, the rest at each request.
//!
//! Rules are looked at in order, and the first whose conditions all hold decides. Without rules a request pays for one look at an
//! empty list.

use std::collections::BTreeMap;

use super::{Entry, decide::MAX_LANES};
use crate::types::{Condition, Lane, LanePolicy, MatchRule, Region, Zone};

/// Where a sidecar stands and whose it is, for conditions on region, zone and tags.
#[derive(Debug, Clone, Copy)]
pub struct Here<'a> {
    /// Its region.
    pub region: &'a Region,
    /// Its zone.
    pub zone: &'a Zone,
    /// Tags of the instances that its file announces.
    pub tags: &'a BTreeMap<String, String>,
}

/// One rule.
#[derive(Debug)]
pub(super) struct Rule {
    /// Its place in the policy, from 0.
    pub(super) number: u8,
    /// Index of its lane.
    pub(super) lane: u8,
    /// What is left to ask.
    when: Box<[Condition]>,
}

/// The rules that may match at this sidecar; `lanes` are the policy's by index. Without a standing, those on place and tags never do.
pub(super) fn compile(policy: &LanePolicy, lanes: &[Lane], here: Option<Here<'_>>) -> Box<[Rule]> {
    let one = |(number, rule): (u8, &MatchRule)| {
        let lane = lanes.iter().take(MAX_LANES + 1).position(|lane| *lane == rule.lane)? as u8;
        let fixed = |condition: &Condition| here_is(condition, here);
        if rule.when.iter().any(|condition| fixed(condition) == Some(false)) {
            return None;
        }
        let when = rule.when.iter().filter(|condition| fixed(condition).is_none()).cloned().collect();
        Some(Rule { number, lane, when })
    };
    (0..=u8::MAX).zip(&policy.rules).filter_map(one).collect()
}

/// Whether a condition holds at this sidecar; `None` when that is the request's to say.
fn here_is(condition: &Condition, here: Option<Here<'_>>) -> Option<bool> {
    let holds = |holds: &dyn Fn(Here<'_>) -> bool| Some(here.is_some_and(holds));
    match condition {
        Condition::Region(region) => holds(&|here| here.region == region),
        Condition::Zone(zone) => holds(&|here| here.zone == zone),
        Condition::Tag(name, wanted) => holds(&|here| here.tags.get(name).is_some_and(|value| wanted.admits(value))),
        Condition::Header(..)
        | Condition::Cookie(..)
        | Condition::Path(_)
        | Condition::Method(_)
        | Condition::Subject(_) => None,
    }
}

impl Rule {
    /// Whether a request meets every condition.
    pub(super) fn matches(&self, entry: &Entry<'_>) -> bool {
        self.when.iter().all(|condition| holds(condition, entry))
    }
}

fn holds(condition: &Condition, entry: &Entry<'_>) -> bool {
    let head = entry.head;
    match condition {
        Condition::Header(name, wanted) => {
            head.and_then(|head| head.only(name)).is_some_and(|value| wanted.admits(value.trim_ascii()))
        }
        Condition::Cookie(name, wanted) => {
            head.and_then(|head| head.cookie(name)).is_some_and(|value| wanted.admits(value))
        }
        Condition::Path(prefix) => head.is_some_and(|head| is_below(head.path(), prefix)),
        Condition::Method(name) => head.is_some_and(|head| head.method() == name),
        Condition::Subject(wanted) => {
            entry.subject.is_some_and(|subject| !subject.is_empty() && wanted.admits(subject))
        }
        // Settled when the rule was made ready.
        Condition::Region(_) | Condition::Zone(_) | Condition::Tag(..) => false,
    }
}

/// Whether a path is the prefix itself, or that and further segments; bytes as they were sent.
fn is_below(path: &str, prefix: &str) -> bool {
    let rest = path.strip_prefix(prefix);
    rest.is_some_and(|rest| rest.is_empty() || prefix.ends_with('/') || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        lanes::{CompiledPolicy, LaneReason, PlainHead},
        types::{Lane, LaneRule, PolicyFault, ServiceName, Wall},
    };

    fn rule(lane: &str, when: &[&str]) -> MatchRule {
        MatchRule { lane: lane.parse().unwrap(), when: when.iter().map(|text| text.parse().unwrap()).collect() }
    }

    /// `beta` and `canary` without a share, and these rules.
    fn policy(rules: Vec<MatchRule>) -> LanePolicy {
        let change = crate::lanes::PolicyChange::default();
        let mut policy = change.apply(&ServiceName::new("orders").unwrap(), None, "n1", Wall(1)).unwrap();
        for lane in ["beta", "canary"] {
            policy.lanes.insert(lane.parse().unwrap(), LaneRule::default());
        }
        LanePolicy { rules, ..policy }
    }

    fn compiled(policy: LanePolicy) -> CompiledPolicy {
        policy.check().unwrap();
        let (region, zone) = ("eu".parse().unwrap(), "eu-1".parse().unwrap());
        let tags = [("team".to_owned(), "web".to_owned())].into();
        CompiledPolicy::at(policy.into(), Here { region: &region, zone: &zone, tags: &tags })
    }

    fn head(method: &str, path: &str, headers: &[(&str, &str)]) -> PlainHead {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        PlainHead { method: method.into(), path: path.into(), headers }
    }

    fn lane(policy: &CompiledPolicy, head: &PlainHead, subject: Option<&str>) -> (String, LaneReason, Option<u8>) {
        let decision = policy.decide(&Entry { subject, head: Some(head), ..Entry::default() });
        (policy.lane(decision.lane).to_string(), decision.reason, decision.rule)
    }

    #[test]
    fn each_kind_of_condition_does_what_it_says() {
        let request = head(
            "POST",
            "/v2/carts/7",
            &[
                ("x-beta", " 1 "),
                ("user-agent", "Mobile/7"),
                ("cookie", "beta=yes; a=1; a=2"),
                ("twice", "1"),
                ("twice", "1"),
            ],
        );
        for (condition, holds) in [
            ("header:x-beta=1", true),
            ("header:x-beta", true),
            ("header:x-beta=2", false),
            ("header:user-agent=Mobile/*", true),
            ("header:user-agent=Desktop/*", false),
            ("header:x-none", false),
            ("header:twice", false),
            ("cookie:beta=yes", true),
            ("cookie:beta", true),
            ("cookie:a", false),
            ("cookie:none", false),
            ("path:/v2", true),
            ("path:/v2/", true),
            ("path:/v2/carts/7", true),
            ("path:/", true),
            ("path:/v2/cart", false),
            ("path:/V2", false),
            ("method:POST", true),
            ("method:GET", false),
            ("subject:u1", true),
            ("subject:u*", true),
            ("subject:*", true),
            ("subject:u", false),
            ("region:eu", true),
            ("region:us", false),
            ("zone:eu-1", true),
            ("zone:eu-2", false),
            ("tag:team=web", true),
            ("tag:team", true),
            ("tag:team=w*", true),
            ("tag:team=app", false),
            ("tag:rack", false),
        ] {
            let policy = compiled(policy(vec![rule("canary", &[condition])]));
            let expected = if holds { ("canary", LaneReason::Rule) } else { ("stable", LaneReason::OutOfRange) };
            let (lane, reason, _) = lane(&policy, &request, Some("u1"));
            assert_eq!((lane.as_str(), reason), expected, "{condition}");
        }
    }

    #[test]
    fn all_conditions_of_a_rule_must_hold_and_the_first_rule_decides() {
        let policy = compiled(policy(vec![
            rule("stable", &["path:/pay"]),
            rule("beta", &["header:x-beta=1", "method:GET"]),
            rule("canary", &["header:x-beta=1"]),
        ]));
        let beta = &[("x-beta", "1")][..];
        let ask = |method, path, headers| lane(&policy, &head(method, path, headers), None);
        assert_eq!(ask("GET", "/pay/now", beta), ("stable".into(), LaneReason::Rule, Some(0)));
        assert_eq!(ask("GET", "/", beta), ("beta".into(), LaneReason::Rule, Some(1)));
        assert_eq!(ask("POST", "/", beta), ("canary".into(), LaneReason::Rule, Some(2)));
        assert_eq!(ask("GET", "/", &[]), ("stable".into(), LaneReason::Anonymous, None));
    }

    /// REQUIREMENTS L4: off, explicit, deny-list, allow-list, rules, range.
    #[test]
    fn lists_come_before_rules_and_rules_before_the_range() {
        let mut set = policy(vec![rule("canary", &["path:/v2"]), rule("beta", &["path:/"])]);
        let canary = set.lanes.get_mut("canary").unwrap();
        canary.deny.insert("denied".into());
        set.lanes.get_mut("beta").unwrap().allow.insert("listed".into());
        set.lanes.insert("all".parse().unwrap(), LaneRule { start: 0, size: 10_000, ..LaneRule::default() });
        let at = |policy: &CompiledPolicy, path, subject| lane(policy, &head("GET", path, &[]), Some(subject));
        let policy = compiled(set.clone());
        assert_eq!(at(&policy, "/v2", "u1"), ("canary".into(), LaneReason::Rule, Some(0)));
        assert_eq!(at(&policy, "/v2", "listed"), ("beta".into(), LaneReason::AllowList, None));
        assert_eq!(
            at(&policy, "/v2", "denied"),
            ("beta".into(), LaneReason::Rule, Some(1)),
            "that lane is closed to it"
        );
        set.rules.pop();
        assert_eq!(at(&compiled(set.clone()), "/", "u1"), ("all".into(), LaneReason::Range, None));
        set.off = true;
        assert_eq!(at(&compiled(set), "/v2", "u1"), ("stable".into(), LaneReason::Off, None));
    }

    #[test]
    fn a_sidecar_of_unknown_standing_and_a_request_without_a_head_match_nothing() {
        let set = policy(vec![rule("canary", &["zone:eu-1"]), rule("canary", &["header:x-beta"])]);
        let policy = CompiledPolicy::new(set.into());
        let decision = policy.decide(&Entry { subject: Some("u1"), ..Entry::default() });
        assert_eq!((decision.reason, decision.rule), (LaneReason::OutOfRange, None));
    }

    #[test]
    fn what_is_wrong_with_a_rule_is_named_with_its_cure() {
        let fault = |rules| policy(rules).check().unwrap_err();
        assert_eq!(fault(vec![rule("canary", &["path:/"]), rule("canary", &[])]), PolicyFault::NoCondition(2));
        let other = fault(vec![rule("gamma", &["path:/"])]);
        assert_eq!(
            other.to_string(),
            "rule 1 sends to lane `gamma`, which the policy does not have: give the lane a share (0% will do) or a list"
        );
        assert!(
            fault(vec![rule("canary", &["path:/"]); 65]).to_string().contains("rules of one policy: 65, at most 64")
        );
        assert!(
            fault(vec![rule("canary", &["path:/"; 9])]).to_string().contains("conditions of one rule: 9, at most 8")
        );
    }

    proptest! {
        /// Whatever the rules: the lane is that of the first that matches, read one by one.
        #[test]
        fn equals_the_rules_read_in_order(
            picked in prop::collection::vec((0_usize..3, prop::collection::vec(0_usize..6, 1..4)), 0..8),
            path in "/(a|b)?(/c)?",
            header in prop::option::of("[12]"),
            subject in prop::option::of("u[12]"),
        ) {
            let texts = ["path:/a", "path:/b/c", "header:h=1", "header:h", "subject:u1", "method:GET"];
            let lanes = ["stable", "beta", "canary"];
            let rules: Vec<MatchRule> = picked
                .iter()
                .map(|(lane, when)| rule(lanes[*lane], &when.iter().map(|at| texts[*at]).collect::<Vec<_>>()))
                .collect();
            let headers: Vec<_> = header.iter().map(|value| ("h", value.as_str())).collect();
            let request = head("GET", &path, &headers);
            let truth = |at: &usize| match *at {
                0 => path == "/a" || path.starts_with("/a/"),
                1 => path == "/b/c",
                2 => header.as_deref() == Some("1"),
                3 => header.is_some(),
                4 => subject.as_deref() == Some("u1"),
                _ => true,
            };
            let first = picked.iter().position(|(_, when)| when.iter().all(truth));
            let (lane, reason, number) = lane(&compiled(policy(rules)), &request, subject.as_deref());
            prop_assert_eq!(number.map(usize::from), first);
            match first {
                Some(at) => prop_assert_eq!((lane.as_str(), reason), (lanes[picked[at].0], LaneReason::Rule)),
                None => prop_assert_eq!(Lane::new(&lane).unwrap(), Lane::stable()),
            }
        }
    }
}
