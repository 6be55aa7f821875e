//! `lanemesh policy show|set`: the lane policy of a service, mesh-wide.

use std::collections::BTreeMap;

use clap::ValueEnum;
use http::Method;

use super::{
    Exit, Failure, Outcome,
    client::{Client, Sidecar, encode},
    output::{first_few, pairs, share, table, time},
    served, shown, values,
};
use crate::{
    agent::{PolicyChange, PolicyInfo},
    types::{
        AnonymousRule, BasisPoints, BucketScheme, EmptyLane, EmptyLaneRule, Lane, LanePolicy, LaneRule, MatchRule,
        Selectors, ServiceName, SubjectSource, Trait,
    },
};

/// Show or change who goes to which lane
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Show all policies, or one with everything
    Show {
        /// Service; all when absent
        service: Option<ServiceName>,
        #[command(flatten)]
        sidecar: Sidecar,
    },
    Set(Box<Set>),
}

/// Change a policy, mesh-wide; what is not given stays as it is (sizes keep the lists, only --off clears them)
#[derive(Debug, clap::Args)]
struct Set {
    /// Service
    #[arg(value_parser = values::service)]
    service: ServiceName,
    /// Share of a lane, such as `canary=5%`; may be repeated
    #[arg(long = "lane", value_name = "LANE=SHARE", value_parser = values::lane_share)]
    lanes: Vec<(Lane, BasisPoints)>,
    /// Share of the lane `canary`: `5%`, `0.25%` or `525bp`
    #[arg(long, value_name = "SHARE", value_parser = values::share)]
    canary: Option<BasisPoints>,
    /// Most that a lane may have in this experiment, such as `canary=20%`: those buckets stay free for it, its share can't pass
    /// them; `0%` takes the reserve away; may be repeated
    #[arg(long = "reserve", value_name = "LANE=SHARE", value_parser = values::lane_share)]
    reserve: Vec<(Lane, BasisPoints)>,
    /// Instances that serve a lane for their version and tags, whatever lane they announce; all traits must hold. Traits:
    /// version:NAME, tag:NAME=VALUE; `VALUE*` is a beginning. Replaces what was set for the lane; may be repeated
    #[arg(long = "select", value_name = "LANE:TRAIT,...", value_parser = values::selector)]
    select: Vec<(Lane, Vec<Trait>)>,
    /// Only instances that announce the lane serve it; may be repeated
    #[arg(long = "unselect", value_name = "LANE", value_parser = Lane::new)]
    unselect: Vec<Lane>,
    /// Subjects that always go to a lane; may be repeated
    #[arg(long, value_name = "LANE:SUBJECT,...", value_parser = values::lane_list)]
    allow: Vec<(Lane, Vec<String>)>,
    /// Subjects that never go to a lane; may be repeated
    #[arg(long, value_name = "LANE:SUBJECT,...", value_parser = values::lane_list)]
    deny: Vec<(Lane, Vec<String>)>,
    /// Subjects to take off both lists of a lane; may be repeated
    #[arg(long, value_name = "LANE:SUBJECT,...", value_parser = values::lane_list)]
    unlist: Vec<(Lane, Vec<String>)>,
    /// Requests that go to a lane whatever their bucket; all conditions must hold, the first rule decides, and the rules
    /// given replace those in force. Conditions: header:NAME=VALUE, cookie:NAME=VALUE, path:/PREFIX, method:NAME,
    /// subject:VALUE, region:NAME, zone:NAME, tag:NAME=VALUE; `VALUE*` is a beginning, a name alone any value. May be repeated
    #[arg(long = "rule", value_name = "LANE:CONDITION,...", value_parser = values::rule)]
    rules: Vec<MatchRule>,
    /// Take away all match rules
    #[arg(long, conflicts_with = "rules")]
    no_rules: bool,
    /// Everybody to stable; clears shares, lists and rules
    #[arg(long, conflicts_with = "on")]
    off: bool,
    /// The policy counts again
    #[arg(long)]
    on: bool,
    /// Where the subject comes from, such as `header:x-user-id` or `header:x-tenant,cookie:uid`
    #[arg(long, value_name = "SOURCE", value_parser = values::subject)]
    subject: Option<SubjectSource>,
    /// Requests without a subject: all to stable, or each by a random number of its own
    #[arg(long)]
    anonymous: Option<Anonymous>,
    /// Safe methods (GET, HEAD, ...) when their lane is empty
    #[arg(long, value_name = "WHAT")]
    empty_safe: Option<Empty>,
    /// Other methods when their lane is empty
    #[arg(long, value_name = "WHAT")]
    empty_unsafe: Option<Empty>,
    /// Requests of stable when stable is empty: refused, or served by other lanes
    #[arg(long, value_name = "WHAT")]
    empty_stable: Option<Empty>,
    /// Name of the experiment; another name is another distribution of subjects
    #[arg(long, value_name = "NAME")]
    experiment: Option<String>,
    /// Text mixed into the bucket
    #[arg(long)]
    salt: Option<String>,
    /// How a subject becomes a bucket
    #[arg(long)]
    scheme: Option<Scheme>,
    /// Why; required for a raise of more than 20 points
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
    /// Allow a raise of more than 20 points
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    sidecar: Sidecar,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Anonymous {
    Stable,
    Request,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Empty {
    Fallback,
    Fail,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Scheme {
    Prefixed,
    BareSubject,
}

impl From<Empty> for EmptyLane {
    fn from(empty: Empty) -> Self {
        match empty {
            Empty::Fallback => Self::Fallback,
            Empty::Fail => Self::Fail,
        }
    }
}

pub(super) async fn run(args: &Args, json: bool) -> Outcome {
    match &args.verb {
        Verb::Show { service: None, sidecar } => {
            let answer = sidecar.client()?.get("/v1/policies").await?;
            shown(json, answer, |policies: &Vec<PolicyInfo>| list(policies))
        }
        Verb::Show { service: Some(service), sidecar } => {
            let answer = sidecar.client()?.get(&path(service)).await?;
            shown(json, answer, |info: &PolicyInfo| details(&info.policy, Some(&info.shares)))
        }
        Verb::Set(set) => {
            let mut client = set.sidecar.client()?;
            let mut change = set.change()?;
            if set.empty_safe.is_some() || set.empty_unsafe.is_some() || set.empty_stable.is_some() {
                change.empty = Some(set.empty(in_force(&client, &set.service).await?));
            }
            if change
                == (PolicyChange { reason: change.reason.clone(), force: change.force, ..PolicyChange::default() })
            {
                return Err(Failure::new(Exit::Usage, "nothing to change")
                    .cure("give a share (`--canary 5%`), a list, or another setting; `lanemesh policy set --help`"));
            }
            let mut notes = match set.unselect.is_empty() || json {
                true => String::new(),
                false => served::without_selector(served::policy(&client, &set.service).await?.as_ref(), &set.unselect),
            };
            let answer = client.order(Method::PATCH, &path(&set.service), &change).await?;
            if !set.select.is_empty() && !json {
                // The order is done; what can't be looked at now takes nothing from that.
                let instances = served::instances(&client, &set.service).await;
                notes.extend(instances.ok().map(|all| served::unmatched(&set.service, &set.select, &all)));
            }
            shown(json, answer, |policy: &LanePolicy| format!("{}{notes}", details(policy, None)))
        }
    }
}

fn path(service: &ServiceName) -> String {
    format!("/v1/policies/{}", encode(service.as_str()))
}

/// The empty-lane rule in force: it is replaced whole, so a change of one part starts from it.
async fn in_force(client: &Client, service: &ServiceName) -> Result<EmptyLaneRule, Failure> {
    Ok(served::policy(client, service).await?.map(|policy| policy.empty).unwrap_or_default())
}

impl Set {
    /// All but the empty-lane rule.
    fn change(&self) -> Result<PolicyChange, Failure> {
        let canary = self.canary.map(|size| (values::canary(), size));
        let mut sizes = BTreeMap::new();
        for (lane, size) in self.lanes.iter().cloned().chain(canary) {
            if sizes.insert(lane.clone(), size).is_some() {
                return Err(Failure::new(Exit::Usage, format!("lane `{lane}` is given two shares")));
            }
        }
        let mut select: Selectors = self.unselect.iter().map(|lane| (lane.clone(), Vec::new())).collect();
        select.extend(self.select.iter().cloned());
        Ok(PolicyChange {
            sizes,
            reserve: self.reserve.iter().cloned().collect(),
            select,
            allow: merged(&self.allow),
            deny: merged(&self.deny),
            unlist: merged(&self.unlist),
            rules: (self.no_rules || !self.rules.is_empty()).then(|| self.rules.clone()),
            off: (self.off || self.on).then_some(self.off),
            experiment: self.experiment.clone(),
            salt: self.salt.clone(),
            scheme: self.scheme.map(|scheme| match scheme {
                Scheme::Prefixed => BucketScheme::Prefixed,
                Scheme::BareSubject => BucketScheme::BareSubject,
            }),
            subject: self.subject.clone(),
            anonymous: self.anonymous.map(|rule| match rule {
                Anonymous::Stable => AnonymousRule::Stable,
                Anonymous::Request => AnonymousRule::Request,
            }),
            empty: None,
            reason: self.reason.clone(),
            force: self.force,
        })
    }

    fn empty(&self, rule: EmptyLaneRule) -> EmptyLaneRule {
        EmptyLaneRule {
            safe: self.empty_safe.map_or(rule.safe, Into::into),
            unsafe_methods: self.empty_unsafe.map_or(rule.unsafe_methods, Into::into),
            stable_to_others: self.empty_stable.map_or(rule.stable_to_others, |empty| matches!(empty, Empty::Fallback)),
        }
    }
}

/// Repeated flags of one lane become one list.
fn merged(lists: &[(Lane, Vec<String>)]) -> BTreeMap<Lane, Vec<String>> {
    let mut all: BTreeMap<Lane, Vec<String>> = BTreeMap::new();
    for (lane, subjects) in lists {
        all.entry(lane.clone()).or_default().extend_from_slice(subjects);
    }
    all
}

fn list(policies: &[PolicyInfo]) -> String {
    let row = |PolicyInfo { policy, .. }: &PolicyInfo| {
        let sizes: Vec<String> =
            policy.lanes.iter().map(|(lane, rule)| format!("{lane} {}", share(rule.size))).collect();
        let listed: usize = policy.lanes.values().map(|rule| rule.allow.len() + rule.deny.len()).sum();
        vec![
            policy.service.to_string(),
            if policy.off { "off".to_owned() } else { sizes.join(", ") },
            listed.to_string(),
            format!("{}.{}", policy.version.epoch, policy.version.clock),
            format!("by {} at {}", policy.version.author, time(policy.set_at)),
            policy.reason.clone(),
        ]
    };
    table(
        &["SERVICE", "SHARES", "LISTED", "VERSION", "SET", "REASON"],
        policies.iter().map(row).collect(),
        "no policies: everybody goes to stable",
    )
}

/// Everything in one policy; `shares` are the lanes of 10,000 samples, where the sidecar told them.
fn details(policy: &LanePolicy, shares: Option<&BTreeMap<Lane, u32>>) -> String {
    let empty = |rule: EmptyLane| match rule {
        EmptyLane::Fallback => "fallback",
        EmptyLane::Fail => "fail",
    };
    let stable = if policy.empty.stable_to_others { "fallback" } else { "fail" };
    let head = pairs(&[
        ("service", policy.service.to_string()),
        ("state", if policy.off { "off: everybody goes to stable" } else { "on" }.to_owned()),
        ("version", format!("{}.{} by {}", policy.version.epoch, policy.version.clock, policy.version.author)),
        ("set at", time(policy.set_at)),
        ("reason", policy.reason.clone()),
        ("experiment", policy.experiment.clone()),
        ("salt", policy.salt.clone()),
        (
            "scheme",
            match policy.scheme {
                BucketScheme::Prefixed => "prefixed",
                BucketScheme::BareSubject => "bare-subject",
            }
            .to_owned(),
        ),
        ("subject", policy.subject.as_ref().map_or("as each sidecar is configured".into(), values::show_subject)),
        (
            "anonymous",
            match policy.anonymous {
                AnonymousRule::Stable => "stable",
                AnonymousRule::Request => "request",
            }
            .to_owned(),
        ),
        (
            "empty lane",
            format!(
                "safe {}, unsafe {}, stable {stable}",
                empty(policy.empty.safe),
                empty(policy.empty.unsafe_methods)
            ),
        ),
    ]);
    format!("{head}\n{}{}{}", lanes(policy, shares), rules(policy), selectors(policy))
}

/// Instances that serve a lane without announcing it; nothing when there are none.
fn selectors(policy: &LanePolicy) -> String {
    if policy.selectors.is_empty() {
        return String::new();
    }
    let row = |(lane, traits): (&Lane, &Vec<Trait>)| {
        let traits: Vec<String> = traits.iter().map(ToString::to_string).collect();
        vec![lane.to_string(), traits.join(", ")]
    };
    format!("\n{}", table(&["LANE", "SERVED ALSO BY INSTANCES WITH"], policy.selectors.iter().map(row).collect(), ""))
}

/// Those it has, and those that are kept free for it.
fn buckets(policy: &LanePolicy, lane: &Lane, rule: &LaneRule) -> String {
    let range = |size: BasisPoints| format!("{} to {}", rule.start, u32::from(rule.start) + u32::from(size) - 1);
    let has = if rule.size == 0 { "none".to_owned() } else { range(rule.size) };
    match policy.reserved.get(lane) {
        Some(most) if *most > 0 => format!("{has} of {}", range(*most)),
        _ => has,
    }
}

/// In the order in which they are looked at; nothing when there are none.
fn rules(policy: &LanePolicy) -> String {
    if policy.rules.is_empty() {
        return String::new();
    }
    let row = |(number, rule): (usize, &MatchRule)| vec![number.to_string(), rule.lane.to_string(), rule.to_string()];
    format!("\n{}", table(&["RULE", "LANE", "REQUESTS WITH"], (1..).zip(&policy.rules).map(row).collect(), ""))
}

fn lanes(policy: &LanePolicy, shares: Option<&BTreeMap<Lane, u32>>) -> String {
    let sampled = |lane: &Lane| match shares {
        Some(shares) => {
            let of_10_000 = shares.get(lane).copied().unwrap_or(0);
            share(BasisPoints::try_from(of_10_000).unwrap_or(BasisPoints::MAX))
        }
        None => String::new(),
    };
    let rest = policy.lanes.values().fold(10_000u32, |rest, rule| rest.saturating_sub(rule.size.into()));
    let rest = if policy.off { 10_000 } else { rest };
    let mut rows = vec![vec![
        Lane::STABLE.to_owned(),
        share(BasisPoints::try_from(rest).unwrap_or(0)),
        "the rest".to_owned(),
        sampled(&Lane::stable()),
        String::new(),
        String::new(),
    ]];
    // A lane without share, lists and rules is as if it were not there.
    let said = |lane: &Lane, rule: &LaneRule| {
        let ruled = policy.rules.iter().any(|rule| rule.lane == *lane);
        let kept = policy.room(lane) > 0 || policy.selectors.contains_key(lane);
        kept || !rule.allow.is_empty() || !rule.deny.is_empty() || ruled
    };
    for (lane, rule) in policy.lanes.iter().filter(|(lane, rule)| said(lane, rule)) {
        rows.push(vec![
            lane.to_string(),
            share(rule.size),
            buckets(policy, lane, rule),
            sampled(lane),
            first_few(rule.allow.iter(), MOST_SUBJECTS),
            first_few(rule.deny.iter(), MOST_SUBJECTS),
        ]);
    }
    let mut header = vec!["LANE", "SHARE", "BUCKETS", "SAMPLED", "ALLOWED", "DENIED"];
    if shares.is_none() {
        header.remove(SAMPLED);
        rows.iter_mut().for_each(|row| drop(row.remove(SAMPLED)));
    }
    table(&header, rows, "")
}

/// Column of the sampled shares.
const SAMPLED: usize = 3;
/// Subjects shown of a list; JSON has them all.
const MOST_SUBJECTS: usize = 8;
