//! Changing a policy: what an operator asks for, applied to the policy in force. Pure; the result is a whole new object.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::types::{
    AnonymousRule, BucketScheme, Condition, EmptyLaneRule, Lane, LanePolicy, LaneRule, MatchRule, Planted, PolicyFault,
    PolicyVersion, Selectors, ServiceName, SubjectSource, Wall,
};

/// Points by which a lane may grow without `force` and a reason, in basis points.
pub const UNFORCED_RAISE: u16 = 2000;

/// A change to a service's policy; what is absent stays as it is. `off` clears sizes, lists and rules.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyChange {
    /// Lane to size in basis points. A new lane starts after the last range. Takes a policy that was off into force again.
    pub sizes: BTreeMap<Lane, u16>,
    /// Most basis points that a lane may ever have in this experiment: nobody else gets those buckets. 0: no reserve.
    pub reserve: BTreeMap<Lane, u16>,
    /// Instances that serve a lane for their version and tags, whatever lane they announce, in place of what was set for that lane.
    /// Empty: only those that announce it.
    pub select: Selectors,
    /// Subjects to add to a lane's allow-list.
    pub allow: BTreeMap<Lane, Vec<String>>,
    /// Subjects to add to a lane's deny-list.
    pub deny: BTreeMap<Lane, Vec<String>>,
    /// Subjects to take off both lists of a lane.
    pub unlist: BTreeMap<Lane, Vec<String>>,
    /// Match rules in place of those in force; empty takes them all away.
    pub rules: Option<Vec<MatchRule>>,
    /// Everybody to stable, lists and rules cleared (`true`); or in force again (`false`).
    pub off: Option<bool>,
    /// Experiment name.
    pub experiment: Option<String>,
    /// Salt.
    pub salt: Option<String>,
    /// Bucket scheme.
    pub scheme: Option<BucketScheme>,
    /// Subject source.
    pub subject: Option<SubjectSource>,
    /// Requests without a subject.
    pub anonymous: Option<AnonymousRule>,
    /// Empty-lane rule.
    pub empty: Option<EmptyLaneRule>,
    /// Why; required for a raise of more than 20 points.
    pub reason: String,
    /// Needed for a raise of more than 20 points.
    pub force: bool,
}

/// Why a change is refused; each says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeFault {
    /// A raise of more than 20 points without `force` and a reason.
    #[error("lane `{lane}` would grow by {by} points: more than 20 at once needs --force and a --reason")]
    BigRaise {
        /// Which lane.
        lane: Lane,
        /// By how many percentage points, rounded up.
        by: u16,
    },
    /// A lane can't grow any more: another range begins.
    #[error("lane `{lane}` can't have {size} basis points: {why}")]
    NoRoom {
        /// Which lane.
        lane: Lane,
        /// The size asked for.
        size: u16,
        /// What is in the way.
        why: String,
    },
    /// `off` together with sizes, lists or rules.
    #[error("`off` clears sizes, lists and rules: it can't be set together with them")]
    OffWithRest,
    /// A match rule that may take everybody, without `force` and a reason.
    #[error(
        "rule {0} names no header, cookie or subject, and may take everybody to `{1}`: that needs --force and a --reason"
    )]
    BroadRule(usize, Lane),
    /// A subject that is to be let in and kept out.
    #[error("`{1}` can't be allowed in lane `{0}` and denied it: name it once")]
    AllowedAndDenied(Lane, String),
    /// A list of those kept out of a lane that does not exist.
    #[error("there is no lane `{0}` to deny anybody: it comes with a share, an allow-list, a rule or a selector")]
    NoSuchLane(Lane),
    /// The result breaks a rule.
    #[error(transparent)]
    Policy(#[from] PolicyFault),
}

/// The policy of a service that has none yet: everybody to stable, by a bucket of the experiment named after the service.
fn first(service: &ServiceName) -> LanePolicy {
    LanePolicy {
        service: service.clone(),
        version: PolicyVersion { epoch: 0, clock: 0, author: String::new() },
        off: false,
        experiment: service.to_string(),
        salt: String::new(),
        scheme: BucketScheme::default(),
        lanes: BTreeMap::new(),
        subject: None,
        anonymous: AnonymousRule::default(),
        empty: EmptyLaneRule::default(),
        reason: String::new(),
        set_at: Wall(0),
        rules: Vec::new(),
        reserved: BTreeMap::new(),
        selectors: BTreeMap::new(),
    }
}

/// A version after everything seen: never behind the wall clock, never behind `seen`. In a new epoch the wall clock alone
/// counts: the epoch decides already, and a rollback must not inherit a clock that was ahead, which everybody would refuse.
fn next_version(seen: Option<&PolicyVersion>, epoch_step: u64, author: &str, wall: Wall) -> PolicyVersion {
    let (epoch, clock) = seen.map_or((0, 0), |version| (version.epoch, version.clock));
    let least = if epoch_step > 0 { 0 } else { clock.saturating_add(1) };
    PolicyVersion { epoch: epoch.saturating_add(epoch_step), clock: wall.0.max(least), author: author.to_owned() }
}

impl PolicyChange {
    /// The policy that results; `held` is the one in force.
    pub fn apply(
        &self,
        service: &ServiceName,
        held: Option<&LanePolicy>,
        author: &str,
        wall: Wall,
    ) -> Result<LanePolicy, ChangeFault> {
        let mut policy = held.cloned().unwrap_or_else(|| first(service));
        policy.version = next_version(held.map(|policy| &policy.version), 0, author, wall);
        policy.reason.clone_from(&self.reason);
        policy.set_at = wall;
        if self.off == Some(true) {
            let ruled = self.rules.as_ref().is_some_and(|rules| !rules.is_empty());
            if !self.sizes.is_empty() || !self.allow.is_empty() || !self.deny.is_empty() || ruled {
                return Err(ChangeFault::OffWithRest);
            }
            clear(&mut policy);
        } else {
            policy.off = policy.off && self.off.is_none() && self.sizes.is_empty();
        }
        self.apply_settings(&mut policy);
        self.apply_lists(&mut policy)?;
        self.apply_rules(&mut policy)?;
        self.apply_selectors(&mut policy);
        for (lane, most) in &self.reserve {
            reserve(&mut policy, held, lane, *most)?;
        }
        for (lane, size) in &self.sizes {
            self.resize(&mut policy, held, lane, *size)?;
        }
        policy.check()?;
        Ok(policy)
    }

    fn apply_settings(&self, policy: &mut LanePolicy) {
        fn set<T: Clone>(value: &Option<T>, place: &mut T) {
            if let Some(value) = value {
                place.clone_from(value);
            }
        }
        set(&self.experiment, &mut policy.experiment);
        set(&self.salt, &mut policy.salt);
        set(&self.scheme, &mut policy.scheme);
        set(&self.anonymous, &mut policy.anonymous);
        set(&self.empty, &mut policy.empty);
        if self.subject.is_some() {
            policy.subject.clone_from(&self.subject);
        }
    }

    fn apply_lists(&self, policy: &mut LanePolicy) -> Result<(), ChangeFault> {
        for (lane, subjects) in &self.allow {
            let rule = policy.lanes.entry(lane.clone()).or_default();
            subjects.iter().for_each(|subject| {
                rule.deny.remove(subject);
                rule.allow.insert(subject.clone());
            });
        }
        for (lane, subjects) in &self.deny {
            let allowed = self.allow.get(lane);
            if let Some(both) = subjects.iter().find(|subject| allowed.is_some_and(|allowed| allowed.contains(subject)))
            {
                return Err(ChangeFault::AllowedAndDenied(lane.clone(), both.clone()));
            }
            if !policy.lanes.contains_key(lane) && !self.makes(lane) {
                return Err(ChangeFault::NoSuchLane(lane.clone()));
            }
            let rule = policy.lanes.entry(lane.clone()).or_default();
            subjects.iter().for_each(|subject| {
                rule.allow.remove(subject);
                rule.deny.insert(subject.clone());
            });
        }
        for (lane, subjects) in &self.unlist {
            if let Some(rule) = policy.lanes.get_mut(lane) {
                rule.allow.retain(|subject| !subjects.contains(subject));
                rule.deny.retain(|subject| !subjects.contains(subject));
            }
        }
        Ok(())
    }

    /// Whether a lane comes with this change.
    fn makes(&self, lane: &Lane) -> bool {
        let ruled = self.rules.iter().flatten().any(|rule| rule.lane == *lane);
        ruled || self.sizes.contains_key(lane) || self.select.contains_key(lane) || self.reserve.contains_key(lane)
    }

    /// Rules replace rules. A lane that only a rule names has no buckets. What sends everybody away is a raise like any other.
    fn apply_rules(&self, policy: &mut LanePolicy) -> Result<(), ChangeFault> {
        let Some(rules) = &self.rules else { return Ok(()) };
        for (number, rule) in (1..).zip(rules) {
            let broad = !rule.lane.is_stable() && !rule.when.iter().any(Condition::tells_users_apart);
            let known = policy.rules.contains(rule);
            if broad && !known && !rule.when.is_empty() && !self.is_meant() {
                return Err(ChangeFault::BroadRule(number, rule.lane.clone()));
            }
            if !rule.lane.is_stable() {
                policy.lanes.entry(rule.lane.clone()).or_default();
            }
        }
        policy.rules.clone_from(rules);
        Ok(())
    }

    fn apply_selectors(&self, policy: &mut LanePolicy) {
        for (lane, traits) in &self.select {
            if traits.is_empty() {
                policy.selectors.remove(lane);
            } else {
                policy.lanes.entry(lane.clone()).or_default();
                policy.selectors.insert(lane.clone(), traits.clone());
            }
        }
    }

    fn is_meant(&self) -> bool {
        self.force && !self.reason.trim().is_empty()
    }

    /// Gives a lane its size. A lane keeps its start for the experiment's life, so that raising only adds subjects; a lane
    /// without a range yet starts after the last one.
    fn resize(
        &self,
        policy: &mut LanePolicy,
        held: Option<&LanePolicy>,
        lane: &Lane,
        size: u16,
    ) -> Result<(), ChangeFault> {
        let before = policy.lanes.get(lane).cloned().unwrap_or_default();
        let raise = size.saturating_sub(before.size);
        if raise > UNFORCED_RAISE && !self.is_meant() {
            return Err(ChangeFault::BigRaise { lane: lane.clone(), by: raise.div_ceil(100) });
        }
        let before = match Planted::RaiseMoves.is_on() {
            true => LaneRule { start: (before.start + before.size).min(10_000 - size), ..before },
            false => before,
        };
        let room = policy.reserved.get(lane).copied().unwrap_or(0).max(size);
        let start = place(policy, held, lane, &before, room).map_err(|why| ChangeFault::NoRoom {
            lane: lane.clone(),
            size,
            why,
        })?;
        policy.lanes.insert(lane.clone(), LaneRule { start, size, ..before });
        Ok(())
    }
}

/// Keeps buckets free for a lane. Nobody moves by it.
fn reserve(policy: &mut LanePolicy, held: Option<&LanePolicy>, lane: &Lane, most: u16) -> Result<(), ChangeFault> {
    let rule = policy.lanes.get(lane).cloned().unwrap_or_default();
    if most == 0 {
        policy.reserved.remove(lane);
        return Ok(());
    }
    let start = place(policy, held, lane, &rule, most.max(rule.size)).map_err(|why| ChangeFault::NoRoom {
        lane: lane.clone(),
        size: most,
        why,
    })?;
    policy.lanes.insert(lane.clone(), LaneRule { start, ..rule });
    policy.reserved.insert(lane.clone(), most);
    Ok(())
}

/// Where a lane begins that is to have so much room: where it began before; after the last one when it is new, or began at bucket 0,
/// lost its buckets and others have them now. Why it can't have them, otherwise. A lane that has buckets in `held`, the policy that
/// is changed, never moves.
fn place(
    policy: &LanePolicy,
    held: Option<&LanePolicy>,
    lane: &Lane,
    before: &LaneRule,
    room: u16,
) -> Result<u16, String> {
    let others = || policy.lanes.iter().filter(|(other, _)| *other != lane && policy.room(other) > 0);
    let within = |start: u16| {
        let range = u32::from(start)..u32::from(start) + u32::from(room);
        others().find(move |(_, rule)| range.contains(&u32::from(rule.start)))
    };
    let roomless = policy.room(lane) == 0 && held.is_none_or(|held| held.room(lane) == 0);
    let movable = roomless && before.start == 0 && !(policy.lanes.contains_key(lane) && within(0).is_none());
    let after = |(other, rule): (&Lane, &LaneRule)| rule.start.saturating_add(policy.room(other));
    let start = if movable { others().map(after).max().unwrap_or(0) } else { before.start };
    if let Some((other, rule)) = within(start) {
        return Err(format!("lane `{other}` begins at bucket {}", rule.start));
    }
    if u32::from(start) + u32::from(room) > 10_000 {
        return Err(format!("it starts at bucket {start}, and there are 10000"));
    }
    Ok(start)
}

/// Everybody to stable, effective against anything that had not seen this: the epoch rises, lists are cleared.
pub fn rollback(
    service: &ServiceName,
    held: Option<&LanePolicy>,
    author: &str,
    reason: &str,
    wall: Wall,
) -> LanePolicy {
    let mut policy = held.cloned().unwrap_or_else(|| first(service));
    let seen = held.map(|policy| &policy.version);
    policy.version = next_version(seen, u64::from(!Planted::RollbackSameEpoch.is_on()), author, wall);
    clear(&mut policy);
    reason.clone_into(&mut policy.reason);
    policy.set_at = wall;
    policy
}

fn clear(policy: &mut LanePolicy) {
    policy.off = true;
    policy.rules.clear();
    for rule in policy.lanes.values_mut() {
        *rule = LaneRule { start: rule.start, ..LaneRule::default() };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn service() -> ServiceName {
        ServiceName::new("orders").unwrap()
    }

    fn canary() -> Lane {
        Lane::new("canary").unwrap()
    }

    fn sized(size: u16) -> PolicyChange {
        PolicyChange { sizes: [(canary(), size)].into(), ..PolicyChange::default() }
    }

    #[test]
    fn a_rollback_does_not_inherit_a_clock_that_was_ahead() {
        let service = ServiceName::new("orders").unwrap();
        let ahead = PolicyVersion { epoch: 3, clock: 9_000_000, author: "n1".into() };
        let held = LanePolicy { version: ahead.clone(), ..first(&service) };
        let back = rollback(&service, Some(&held), "n1", "", Wall(1_000));
        assert_eq!((back.version.epoch, back.version.clock), (4, 1_000));
        assert!(back.version > ahead, "the epoch decides");
    }

    #[test]
    fn a_percentage_keeps_the_lists_and_off_clears_them() {
        let allow = PolicyChange { allow: [(canary(), vec!["u1".into()])].into(), ..PolicyChange::default() };
        let a = allow.apply(&service(), None, "n1", Wall(5)).unwrap();
        let b = sized(500).apply(&service(), Some(&a), "n1", Wall(5)).unwrap();
        assert!(b.lanes[&canary()].allow.contains("u1") && b.lanes[&canary()].size == 500);
        assert!(b.version > a.version, "newer though the clock stood still");
        let off = PolicyChange { off: Some(true), ..PolicyChange::default() };
        let c = off.apply(&service(), Some(&b), "n1", Wall(6)).unwrap();
        assert!(c.off && c.lanes[&canary()].allow.is_empty() && c.lanes[&canary()].size == 0);
        let d = sized(100).apply(&service(), Some(&c), "n1", Wall(7)).unwrap();
        assert!(!d.off, "a size takes the policy into force again");
    }

    #[test]
    fn a_raise_of_more_than_twenty_points_needs_force_and_a_reason() {
        let held = sized(500).apply(&service(), None, "n1", Wall(1)).unwrap();
        assert!(sized(2500).apply(&service(), Some(&held), "n1", Wall(2)).is_ok());
        let big = sized(2501);
        assert!(matches!(big.apply(&service(), Some(&held), "n1", Wall(2)), Err(ChangeFault::BigRaise { by: 21, .. })));
        let forced = PolicyChange { force: true, reason: "launch".into(), ..big };
        assert!(forced.apply(&service(), Some(&held), "n1", Wall(2)).is_ok());
    }

    #[test]
    fn a_rollback_beats_a_raise_that_had_not_seen_it() {
        let held = sized(500).apply(&service(), None, "n1", Wall(1)).unwrap();
        let back = rollback(&service(), Some(&held), "n1", "errors", Wall(2));
        let unseen = sized(900).apply(&service(), Some(&held), "n2", Wall(99_999)).unwrap();
        assert!(back.version > unseen.version && back.off);
    }

    #[test]
    fn lanes_keep_their_start_and_never_overlap() {
        let beta = Lane::new("beta").unwrap();
        let a = sized(500).apply(&service(), None, "n1", Wall(1)).unwrap();
        let second = PolicyChange { sizes: [(beta.clone(), 300)].into(), ..PolicyChange::default() };
        let b = second.apply(&service(), Some(&a), "n1", Wall(2)).unwrap();
        assert_eq!(b.lanes[&beta].start, 500);
        let error = sized(600).apply(&service(), Some(&b), "n1", Wall(3)).unwrap_err();
        assert!(error.to_string().contains("`beta` begins at bucket 500"), "{error}");
    }

    fn reserving(lane: &str, most: u16, size: u16) -> PolicyChange {
        let lane = Lane::new(lane).unwrap();
        let sizes = [(lane.clone(), size)].into();
        PolicyChange { reserve: [(lane, most)].into(), sizes, ..PolicyChange::default() }
    }

    #[test]
    fn what_is_reserved_stays_free_and_is_never_passed() {
        let a = reserving("canary", 2_000, 500).apply(&service(), None, "n1", Wall(1)).unwrap();
        let beta = Lane::new("beta").unwrap();
        let small = PolicyChange { sizes: [(beta.clone(), 300)].into(), ..PolicyChange::default() };
        let b = small.apply(&service(), Some(&a), "n1", Wall(2)).unwrap();
        assert_eq!((b.lanes[&beta].start, b.lanes[&canary()].start), (2_000, 0), "after what canary may have");
        let c = sized(2_000).apply(&service(), Some(&b), "n1", Wall(3)).unwrap();
        assert_eq!(c.lanes[&canary()].size, 2_000);
        let error = sized(2_001).apply(&service(), Some(&c), "n1", Wall(4)).unwrap_err().to_string();
        assert!(error.contains("`beta` begins at bucket 2000"), "{error}");
        let error = sized(700).apply(
            &service(),
            Some(&reserving("canary", 600, 0).apply(&service(), None, "n1", Wall(1)).unwrap()),
            "n1",
            Wall(4),
        );
        let error = error.unwrap_err().to_string();
        assert!(error.contains("600 are reserved") && error.contains("--reserve canary=700bp"), "{error}");
        let error = reserving("canary", 300, 500).apply(&service(), None, "n1", Wall(5)).unwrap_err().to_string();
        assert!(error.contains("300 are reserved"), "{error}");
        let back = rollback(&service(), Some(&c), "n1", "", Wall(6));
        assert_eq!(back.reserved, c.reserved, "the experiment goes on as it was laid out");
        back.check().unwrap();
        let freed = reserving("canary", 0, 100).apply(&service(), Some(&c), "n1", Wall(7)).unwrap();
        assert!(freed.reserved.is_empty() && freed.lanes[&canary()].size == 100);
    }

    #[test]
    fn selectors_are_set_by_lane_and_outlive_a_rollback() {
        let of = |traits: &[&str]| PolicyChange {
            select: [(canary(), traits.iter().map(|text| text.parse().unwrap()).collect())].into(),
            ..PolicyChange::default()
        };
        let a = of(&["version:v2*"]).apply(&service(), None, "n1", Wall(1)).unwrap();
        assert!(a.lanes.contains_key(&canary()), "the lane comes with its selector");
        assert_eq!(sized(500).apply(&service(), Some(&a), "n1", Wall(2)).unwrap().selectors, a.selectors);
        assert_eq!(rollback(&service(), Some(&a), "n1", "", Wall(2)).selectors, a.selectors);
        assert!(of(&[]).apply(&service(), Some(&a), "n1", Wall(2)).unwrap().selectors.is_empty());
        let many = vec!["tag:a"; crate::types::MAX_TRAITS + 1];
        assert!(matches!(
            of(&many).apply(&service(), None, "n1", Wall(1)),
            Err(ChangeFault::Policy(PolicyFault::TooMany { .. }))
        ));
    }

    proptest! {
        /// Whatever is asked for in whatever order: what is carried out leaves every lane where it began, no two share a bucket, and
        /// none passes its reserve.
        #[test]
        fn lanes_stay_where_they_begin(orders in prop::collection::vec((0_usize..4, prop::option::of(0_u16..4_000), prop::option::of(0_u16..4_000)), 1..30)) {
            let mut held: Option<LanePolicy> = None;
            for (at, (lane, most, size)) in orders.into_iter().enumerate() {
                let lane = Lane::new(["a", "b", "c", "d"][lane]).unwrap();
                let change = PolicyChange {
                    reserve: most.map(|most| (lane.clone(), most)).into_iter().collect(),
                    sizes: size.map(|size| (lane.clone(), size)).into_iter().collect(),
                    force: true,
                    reason: "any".into(),
                    ..PolicyChange::default()
                };
                let Ok(next) = change.apply(&service(), held.as_ref(), "n1", Wall(at as u64)) else { continue };
                next.check().unwrap();
                for (name, rule) in held.iter().flat_map(|held| held.lanes.iter().filter(|(name, _)| held.room(name) > 0)) {
                    prop_assert_eq!(next.lanes[name].start, rule.start);
                }
                for (name, most) in &next.reserved {
                    prop_assert!(next.lanes[name].size <= *most);
                }
                held = Some(next);
            }
        }
    }

    #[test]
    fn a_lane_that_began_at_bucket_0_comes_back_to_its_users() {
        let lane = |name: &str| Lane::new(name).unwrap();
        let beta = PolicyChange { sizes: [(lane("beta"), 200)].into(), ..PolicyChange::default() };
        let apply =
            |change: &PolicyChange, held: &LanePolicy| change.apply(&service(), Some(held), "n1", Wall(2)).unwrap();
        let both = apply(&beta, &sized(500).apply(&service(), None, "n1", Wall(1)).unwrap());
        let back = rollback(&service(), Some(&both), "n1", "", Wall(2));
        let again = apply(&sized(500), &apply(&beta, &back));
        assert_eq!(again.lanes, both.lanes, "after a rollback, whichever is raised first");
        let kept = PolicyChange { reserve: [(canary(), 900)].into(), ..PolicyChange::default() };
        let kept = apply(&beta, &kept.apply(&service(), None, "n1", Wall(1)).unwrap());
        let given = PolicyChange { reserve: [(canary(), 0)].into(), ..sized(0) };
        assert_eq!(
            apply(&given, &kept).lanes[&canary()].start,
            0,
            "a reserve given back in the change that sets a size"
        );
        let larger = PolicyChange { reserve: [(canary(), 0)].into(), ..sized(1_000) };
        let refused = larger.apply(&service(), Some(&kept), "n1", Wall(3));
        assert!(matches!(refused, Err(ChangeFault::NoRoom { .. })), "{refused:?}");
    }

    #[test]
    fn a_list_that_contradicts_itself_or_names_no_lane_is_refused() {
        let list = |subject: &str| BTreeMap::from([(canary(), vec![subject.to_owned()])]);
        let both = PolicyChange { allow: list("u1"), deny: list("u1"), ..PolicyChange::default() };
        let refused = both.apply(&service(), None, "n1", Wall(1)).unwrap_err();
        assert_eq!(refused, ChangeFault::AllowedAndDenied(canary(), "u1".into()));
        let deny = PolicyChange { deny: list("u1"), ..PolicyChange::default() };
        assert_eq!(deny.apply(&service(), None, "n1", Wall(1)).unwrap_err(), ChangeFault::NoSuchLane(canary()));
        let with_share = PolicyChange { deny: list("u1"), ..sized(500) };
        let held = with_share.apply(&service(), None, "n1", Wall(1)).unwrap();
        assert!(deny.apply(&service(), Some(&held), "n1", Wall(2)).is_ok());
        let other = PolicyChange { allow: list("u2"), deny: list("u1"), ..PolicyChange::default() };
        assert!(other.apply(&service(), None, "n1", Wall(1)).is_ok(), "the allow-list brings the lane");
    }

    fn ruled(rules: &[(&str, &str)]) -> PolicyChange {
        let rule = |(lane, condition): &(&str, &str)| MatchRule {
            lane: lane.parse().unwrap(),
            when: vec![condition.parse().unwrap()],
        };
        PolicyChange { rules: Some(rules.iter().map(rule).collect()), ..PolicyChange::default() }
    }

    #[test]
    fn rules_replace_rules_and_off_and_rollback_clear_them() {
        let a = ruled(&[("canary", "header:x-beta=1")]).apply(&service(), None, "n1", Wall(1)).unwrap();
        assert!(a.rules.len() == 1 && a.lanes[&canary()] == LaneRule::default(), "the lane comes with its rule");
        let b = sized(500).apply(&service(), Some(&a), "n1", Wall(2)).unwrap();
        assert_eq!(b.rules, a.rules, "a share keeps them");
        let c = ruled(&[("beta", "cookie:beta"), ("stable", "path:/pay")]).apply(&service(), Some(&b), "n1", Wall(3));
        let c = c.unwrap();
        assert_eq!(c.rules.iter().map(|rule| rule.lane.as_str()).collect::<Vec<_>>(), ["beta", "stable"]);
        let off = PolicyChange { off: Some(true), ..PolicyChange::default() };
        assert!(off.apply(&service(), Some(&c), "n1", Wall(4)).unwrap().rules.is_empty());
        assert!(rollback(&service(), Some(&c), "n1", "", Wall(4)).rules.is_empty());
        assert!(ruled(&[]).apply(&service(), Some(&c), "n1", Wall(4)).unwrap().rules.is_empty());
        let both = PolicyChange { off: Some(true), ..ruled(&[("canary", "header:x-beta")]) };
        assert_eq!(both.apply(&service(), Some(&c), "n1", Wall(4)).unwrap_err(), ChangeFault::OffWithRest);
    }

    #[test]
    fn a_rule_that_may_take_everybody_is_a_raise_like_any_other() {
        for condition in ["path:/", "method:GET", "zone:eu-1", "region:eu", "tag:team=web"] {
            let change = ruled(&[("canary", condition)]);
            let refused = change.apply(&service(), None, "n1", Wall(1)).unwrap_err();
            assert_eq!(refused, ChangeFault::BroadRule(1, canary()), "{condition}");
            let forced = PolicyChange { force: true, reason: "launch".into(), ..change.clone() };
            let held = forced.apply(&service(), None, "n1", Wall(1)).unwrap();
            assert!(change.apply(&service(), Some(&held), "n1", Wall(2)).is_ok(), "it is in force already");
            assert!(ruled(&[("stable", condition)]).apply(&service(), None, "n1", Wall(1)).is_ok());
        }
    }
}
