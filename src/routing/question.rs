//! What `lanemesh route` asks: a request in words, answered on one snapshot by the proxy's own code (REQUIREMENTS R11). The same
//! question goes to every node of the mesh, and what their answers differ in is told here too.

use serde::{Deserialize, Serialize};

use super::{Explanation, MethodClass, SkippedInstance, Snapshot, choose};
use crate::{
    lanes::PlainHead,
    types::{InstanceId, Mono, NodeId},
};

/// A request as an operator describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Question {
    /// The service.
    pub service: String,
    /// What is hashed on the ring; `None` reads it from the head, as the service's rules say.
    pub key: Option<String>,
    /// Who is bucketed; `None` reads it from the head, and takes the key where the head says nothing. Empty: nobody.
    pub subject: Option<String>,
    /// The lane that it names; `None` reads it from the head.
    pub lane: Option<String>,
    /// Method, path and headers; names of headers in lower case.
    pub head: PlainHead,
    /// What is left to chance (requests without a key, keys that are spread) is decided by this, everywhere the same.
    pub random: u64,
}

impl Question {
    /// The decision on a snapshot, in words; `None` when it has no such service.
    pub fn answer(&self, snapshot: &Snapshot, now: Mono) -> Option<Explanation> {
        let service = snapshot.service(&self.service)?;
        let who = service.reading.read(&self.head);
        let read = who.request(&self.head, MethodClass::of(&self.head.method), self.random);
        let subject = self.subject.as_deref().or(read.subject).or(self.key.as_deref());
        let request = super::Request {
            subject: subject.filter(|subject| !subject.is_empty()),
            route_key: self.key.as_deref().or(read.route_key),
            explicit_lane: self.lane.as_deref().or(read.explicit_lane),
            ..read
        };
        let decision = choose(snapshot, service, &request, now);
        Some(Explanation::of(snapshot, service, &request, &decision, now))
    }
}

/// One node's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAnswer {
    /// Whose.
    pub node: NodeId,
    /// Why there is none; `None` when there is one.
    pub fault: Option<String>,
    /// What it would do.
    pub explanation: Option<Explanation>,
    /// In what it differs from the answer of the node that was asked first, and why; empty when both send the request to the same
    /// instance for the same lane.
    pub differences: Vec<String>,
}

/// Every node's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshAnswer {
    /// The node that asked the others.
    pub here: NodeId,
    /// By node id, the asking one among them.
    pub answers: Vec<NodeAnswer>,
}

impl MeshAnswer {
    /// Of answers without differences, which are worked out against the asking node's.
    pub fn new(here: NodeId, mut answers: Vec<NodeAnswer>) -> Self {
        answers.sort_by(|a, b| a.node.cmp(&b.node));
        let own = answers.iter().find(|answer| answer.node == here).and_then(|answer| answer.explanation.clone());
        for answer in &mut answers {
            answer.differences = match (&own, &answer.explanation) {
                (Some(own), Some(there)) => there.differences(own),
                _ => Vec::new(),
            };
        }
        Self { here, answers }
    }
}

impl Explanation {
    /// In what this answer, of another node, differs from `here`, and why; empty when both send the request to the same instance for
    /// the same lane. Snapshots that differ in other things are no difference.
    pub fn differences(&self, here: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let lane = self.lane != here.lane || self.served_lane != here.served_lane;
        let target = |explanation: &Self| explanation.instance.as_ref().map(|target| target.id.clone());
        let instance = target(self) != target(here);
        if !lane && !instance {
            return found;
        }
        if self.policy != here.policy {
            let version = |explanation: &Self| match &explanation.policy {
                Some(version) => format!("{}.{} by {}", version.epoch, version.clock, version.author),
                None => "none".to_owned(),
            };
            found.push(format!("its policy is {}, here {}", version(self), version(here)));
        }
        if (&self.subject, &self.route_key) != (&here.subject, &here.route_key) {
            found.push(
                "it reads subject or route key in another way: compare `subject` and `route_key` of the two".into(),
            );
        }
        if self.lane != here.lane {
            found.push(format!("lane {} ({}), here {}", self.lane, self.lane_why, here.lane));
        } else if lane {
            found.push(format!("served by {}, here by {}", served(self), served(here)));
        }
        if instance {
            found.extend(self.why_another_instance(here));
        }
        if found.is_empty() {
            let (there, here) = (&self.snapshot_digest, &here.snapshot_digest);
            found.push(match there == here {
                true => "another instance of the same view: its own zone (`prefer_zone`), its own load (`balance`, `bounded_load`) or what it \
                         met itself decides"
                    .to_owned(),
                false => format!("another instance: its snapshot is {there}, here {here}"),
            });
        }
        found
    }

    /// What the other node holds against instances that this one does not, and the other way round.
    fn why_another_instance(&self, here: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let skips = |explanation: &Self, id: &InstanceId| explanation.skipped.iter().any(|skipped| skipped.id == *id);
        for SkippedInstance { id, why } in self.skipped.iter().filter(|skipped| !skips(here, &skipped.id)) {
            found.push(format!("it passes over {id}: {}", why.words()));
        }
        for SkippedInstance { id, why } in here.skipped.iter().filter(|skipped| !skips(self, &skipped.id)) {
            found.push(format!("here {id} is passed over: {}", why.words()));
        }
        let excludes = |explanation: &Self, id: &InstanceId| explanation.excluded.iter().any(|left| left.id == *id);
        let matters = |explanation: &Self, id: &InstanceId| explanation.failover.first() == Some(id);
        for left in self.excluded.iter().filter(|left| !excludes(here, &left.id) && matters(here, &left.id)) {
            found.push(format!("it leaves out {}: {}", left.id, left.why.words()));
        }
        for left in here.excluded.iter().filter(|left| !excludes(self, &left.id) && matters(self, &left.id)) {
            found.push(format!("here {} is left out: {}", left.id, left.why.words()));
        }
        if self.candidates != here.candidates {
            found.push(format!("it knows {} candidates, here {}", self.candidates, here.candidates));
        }
        if self.pinned != here.pinned {
            found.push("its rules pin the key otherwise: compare `pin` in the two configurations".into());
        }
        if (self.spread > 1) != (here.spread > 1) {
            let which = if self.spread > 1 { "there" } else { "here" };
            found.push(format!("the key is spread {which}, for it is asked for more often"));
        }
        found
    }
}

fn served(explanation: &Explanation) -> &str {
    explanation.served_lane.as_ref().map_or("nobody", |lane| lane.as_str())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use super::*;
    use crate::{
        config::{Routing, ServiceRule},
        lanes::LaneReason,
        routing::{Builder, Rules, testing::*},
        types::{LanePolicy, MatchRule, MemberState, SubjectPart, SubjectSource},
    };

    fn asked(headers: &[(&str, &str)]) -> Question {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let head = PlainHead { method: "GET".into(), path: "/".into(), headers };
        Question { service: "orders".into(), head, random: 7, ..Question::default() }
    }

    fn beta_rule(policy: LanePolicy) -> LanePolicy {
        let when = vec!["header:x-beta=1".parse().unwrap()];
        LanePolicy { rules: vec![MatchRule { lane: "canary".parse().unwrap(), when }], ..policy }
    }

    /// With a rule of its own for who a request is from.
    fn read_by(cookie: &str, key: &str) -> Arc<Snapshot> {
        let one = |part| Some(SubjectSource { parts: vec![part] });
        let rule = ServiceRule {
            subject: one(SubjectPart::Cookie(cookie.into())),
            route_key: one(SubjectPart::Header(key.into())),
            ..ServiceRule::default()
        };
        let services: BTreeMap<_, _> = [("orders".parse().unwrap(), rule)].into();
        let rules = Rules::new(0, Arc::new(Routing::default()), &services);
        Builder::with(locality(), rules).build(&with_policy(fleet(4, 2), beta_rule(policy(500))), NOW).0
    }

    #[test]
    fn headers_are_read_as_the_proxy_reads_them_and_arguments_come_first() {
        let snapshot = read_by("uid", "x-cart");
        let headers = [("cookie", "uid=ann"), ("x-cart", "c7"), ("x-lane", "canary")];
        let read = asked(&headers).answer(&snapshot, NOW).unwrap();
        assert_eq!((read.subject.as_deref(), read.route_key.as_deref()), (Some("ann"), Some("c7")));
        assert!(read.probe, "the lane header of one who may not use it");
        let told = Question { key: Some("k".into()), subject: Some("ben".into()), ..asked(&headers) };
        let told = told.answer(&snapshot, NOW).unwrap();
        assert_eq!((told.subject.as_deref(), told.route_key.as_deref()), (Some("ben"), Some("k")));
        let only_key = Question { key: Some("k".into()), ..asked(&[]) }.answer(&snapshot, NOW).unwrap();
        assert_eq!(only_key.subject.as_deref(), Some("k"));
        let nobody = Question { subject: Some(String::new()), ..asked(&headers) }.answer(&snapshot, NOW).unwrap();
        assert_eq!(nobody.lane_reason, LaneReason::Anonymous);
        assert!(Question { service: "else".into(), ..asked(&[]) }.answer(&snapshot, NOW).is_none());
    }

    #[test]
    fn a_rule_that_matches_is_named() {
        let snapshot = built(&with_policy(fleet(4, 2), beta_rule(policy(0))));
        let answer = asked(&[("x-user-id", "ann"), ("x-beta", "1")]).answer(&snapshot, NOW).unwrap();
        assert_eq!((answer.lane.as_str(), answer.lane_reason, answer.rule), ("canary", LaneReason::Rule, Some(1)));
        assert!(
            answer.to_string().contains("lane       canary: rule 1 of the policy matches: header:x-beta=1"),
            "{answer}"
        );
    }

    #[test]
    fn what_nodes_differ_in_is_told_with_its_reason() {
        let node = |name: &str| NodeId::new(name).unwrap();
        let question = Question { key: Some("ann".into()), ..asked(&[]) };
        let calm = with_policy(fleet(4, 2), policy(0));
        let here = question.answer(&built(&calm), NOW).unwrap();
        let owner_of = here.instance.as_ref().unwrap().id.to_string();
        let mut doubted = calm.clone();
        owner(&mut doubted, &owner_of, MemberState::Doubtful);
        let answers = [
            ("n1", Some(calm.clone())),
            ("n2", Some(calm.clone())),
            ("n3", Some(doubted)),
            ("n4", Some(with_policy(fleet(4, 2), policy(10_000)))),
            ("n5", None),
        ];
        let answer = |(name, table): (&str, Option<crate::routing::CandidateTable>)| NodeAnswer {
            node: node(name),
            fault: table.is_none().then(|| "no answer".to_owned()),
            explanation: table.map(|table| question.answer(&built(&table), NOW).unwrap()),
            differences: Vec::new(),
        };
        let mesh = MeshAnswer::new(node("n2"), answers.into_iter().rev().map(answer).collect());
        let of = |at: usize| mesh.answers[at].differences.join("; ");
        assert_eq!((of(0).as_str(), of(1).as_str(), of(4).as_str()), ("", "", ""));
        assert!(of(2).contains(&format!("it passes over {owner_of}: its sidecar is accused")), "{}", of(2));
        assert!(
            of(3).contains("its policy is 0.10000 by n1, here 0.0 by n1") && of(3).contains("lane canary"),
            "{}",
            of(3)
        );
    }
}
