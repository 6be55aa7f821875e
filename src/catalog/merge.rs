//! Merging one statement: de-duplicate, order, verify, take.

use std::sync::Arc;

use super::{Catalog, Change, InstanceEntry, MemberEntry, PolicyEntry, table::Place};
use crate::{
    types::{
        CertFacts, InstanceRecord, LanePolicy, MAX_OBSERVATIONS, MAX_RECORD_BYTES, MAX_SIGNAL_BYTES, Observation,
        Planted, Signal, Trust, Wall,
    },
    wire::{Accusation, Alive, Body, BodyFault, Left, Member, Statement, key_id},
};

/// Largest encoded policy, in bytes.
const MAX_POLICY_BYTES: usize = 64 * 1024;
/// Largest epoch of a policy: far more rollbacks than will ever happen, and room to count on.
const MAX_EPOCH: u64 = 1 << 40;
/// How far ahead of this node's clock a policy's clock may be, in milliseconds. A policy that sends everybody to stable is
/// taken from any clock: a rollback must reach a node whose own clock is wrong as well.
pub const MAX_AHEAD_MS: u64 = 60_000;

/// What became of a statement.
#[derive(Debug, Clone, PartialEq)]
pub enum Merge {
    /// Taken: pass it on.
    News(Change),
    /// Held already.
    Known,
    /// A newer one is held: answer the sender with it.
    Older(Box<Statement>),
    /// A verified accusation: the membership's to judge. Never stored here.
    Accusation(Accusation),
    /// A verified signal. Never stored here either.
    Signal(Signal),
    /// The signer has not been introduced, or signs with an unknown key: a sync brings it.
    UnknownSigner,
    /// Not believed.
    Refused(Refusal),
}

/// Why a statement is not believed. The sender may be innocent: it can have passed on what it can't judge.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The bytes are not what they say they are, or of a kind of a newer version.
    #[error("{0}")]
    Body(#[from] BodyFault),
    /// The signer speaks for somebody else.
    #[error("signed by `{signer}`, but only `{speaker}` may say it")]
    NotTheOwner {
        /// Who signed.
        signer: String,
        /// Who may say it.
        speaker: String,
    },
    /// No certificate where one must be, or one that is not accepted.
    #[error("certificate of `{0}`: {1}")]
    Certificate(String, String),
    /// The signature does not fit.
    #[error("signature of `{0}` does not fit")]
    Signature(String),
    /// The content breaks a limit or rule.
    #[error("{0}")]
    Content(String),
}

impl Refusal {
    /// The kind of fault, for complaints and counts.
    pub const fn class(&self) -> &'static str {
        match self {
            Self::Body(_) => "body",
            Self::NotTheOwner { .. } => "owner",
            Self::Certificate(..) => "certificate",
            Self::Signature(_) => "signature",
            Self::Content(_) => "content",
        }
    }
}

impl Catalog {
    /// Merges a statement that came from the network, from disk, or from this node itself.
    pub fn merge(&mut self, statement: &Statement, trust: &dyn Trust, now: Wall) -> Merge {
        let body = match Body::decode(statement) {
            Ok(body) => body,
            Err(fault) => return Merge::Refused(fault.into()),
        };
        if body.speaker() != statement.signer.as_str() && !Planted::AnySpeaker.is_on() {
            let (signer, speaker) = (statement.signer.to_string(), body.speaker().to_owned());
            return Merge::Refused(Refusal::NotTheOwner { signer, speaker });
        }
        match body {
            Body::Member(member) => self.merge_member(member, statement, trust, now),
            Body::Alive(alive) => self.merge_alive(alive, statement, trust),
            Body::Left(left) => self.merge_left(left, statement, trust),
            Body::Accusation(accusation) => match self.verified(statement, trust) {
                Ok(_) => Merge::Accusation(accusation),
                Err(refused) => refused,
            },
            Body::Signal(signal) => self.checked_signal(signal, statement, trust),
            Body::Instance(record) => self.merge_instance(record, statement, trust),
            Body::Policy(policy) => self.merge_policy(policy, statement, trust, now),
        }
    }

    fn merge_member(&mut self, member: Member, statement: &Statement, trust: &dyn Trust, now: Wall) -> Merge {
        let order = (member.generation, member.revision, &statement.body);
        if let Some(held) = self.members.get(&member.node) {
            let held_order = (held.member.generation, held.member.revision, &held.statement.body);
            match order.cmp(&held_order) {
                std::cmp::Ordering::Less => return Merge::Older(Box::new(held.statement.clone())),
                std::cmp::Ordering::Equal => return Merge::Known,
                std::cmp::Ordering::Greater => {}
            }
        }
        let facts = match certified(statement, trust, now) {
            Ok(facts) => facts,
            Err(refusal) => return Merge::Refused(refusal),
        };
        let node = member.node.clone();
        self.settle(Place::Member(node.clone()), statement);
        self.drop_records(&node, member.generation);
        let before = self.members.get_mut(&node);
        let (alive, left) = before.map_or((None, None), |entry| {
            let entry = Arc::make_mut(entry);
            (entry.alive.take(), entry.left.take())
        });
        let entry =
            MemberEntry { member, statement: statement.clone(), key: statement.key, facts, alive, left, stale: false };
        self.members.insert(node.clone(), Arc::new(entry));
        Merge::News(Change::Member(node))
    }

    fn merge_alive(&mut self, alive: Alive, statement: &Statement, trust: &dyn Trust) -> Merge {
        let Some(entry) = self.members.get(&alive.node) else { return Merge::UnknownSigner };
        if let Some((generation, incarnation, held)) = &entry.alive {
            match (alive.generation, alive.incarnation).cmp(&(*generation, *incarnation)) {
                std::cmp::Ordering::Less => return Merge::Older(Box::new(held.clone())),
                std::cmp::Ordering::Equal => return Merge::Known,
                std::cmp::Ordering::Greater => {}
            }
        }
        if let Err(refused) = self.verified(statement, trust) {
            return refused;
        }
        let node = alive.node;
        self.settle(Place::Alive(node.clone()), statement);
        if let Some(entry) = self.members.get_mut(&node) {
            Arc::make_mut(entry).alive = Some((alive.generation, alive.incarnation, statement.clone()));
        }
        Merge::News(Change::Alive(node))
    }

    fn merge_left(&mut self, left: Left, statement: &Statement, trust: &dyn Trust) -> Merge {
        let Some(entry) = self.members.get(&left.node) else { return Merge::UnknownSigner };
        if Planted::ForgetLeave.is_on() {
            return Merge::Known;
        }
        if let Some((generation, held)) = &entry.left {
            match left.generation.cmp(generation) {
                std::cmp::Ordering::Less => return Merge::Older(Box::new(held.clone())),
                std::cmp::Ordering::Equal => return Merge::Known,
                std::cmp::Ordering::Greater => {}
            }
        }
        if let Err(refused) = self.verified(statement, trust) {
            return refused;
        }
        let node = left.node;
        self.settle(Place::Left(node.clone()), statement);
        if let Some(entry) = self.members.get_mut(&node) {
            Arc::make_mut(entry).left = Some((left.generation, statement.clone()));
        }
        Merge::News(Change::Left(node))
    }

    fn merge_instance(&mut self, record: InstanceRecord, statement: &Statement, trust: &dyn Trust) -> Merge {
        let Some(owner) = self.members.get(&record.owner) else { return Merge::UnknownSigner };
        if record.generation < owner.member.generation {
            // The owner has restarted since; whoever still passes this on needs to hear of that.
            return Merge::Older(Box::new(owner.statement.clone()));
        }
        let before = self.instance(&record.owner, &record.id);
        if let Some(held) = before {
            let held_order = (held.record.generation, held.record.sequence, &held.statement.body);
            match (record.generation, record.sequence, &statement.body).cmp(&held_order) {
                std::cmp::Ordering::Less if Planted::RecordsUnordered.is_on() => {}
                std::cmp::Ordering::Less => return Merge::Older(Box::new(held.statement.clone())),
                std::cmp::Ordering::Equal => return Merge::Known,
                std::cmp::Ordering::Greater => {}
            }
        }
        if let Err(refusal) = acceptable(&record, statement, &owner.facts) {
            return Merge::Refused(refusal);
        }
        if let Err(refused) = self.verified(statement, trust) {
            return refused;
        }
        let before = before.map(|entry| entry.record.clone());
        let (service, after) = (record.service.clone(), Arc::new(record));
        let (owner, id) = (after.owner.clone(), after.id.clone());
        self.settle(Place::Instance(owner.clone(), id.clone()), statement);
        let entry = InstanceEntry { record: after.clone(), statement: statement.clone() };
        Arc::make_mut(self.instances.entry(owner)).insert(id, entry);
        Merge::News(Change::Instance { service, before, after })
    }

    fn merge_policy(&mut self, policy: LanePolicy, statement: &Statement, trust: &dyn Trust, now: Wall) -> Merge {
        if let Some(held) = self.policies.get(&policy.service) {
            match (&policy.version, &statement.body).cmp(&(&held.policy.version, &held.statement.body)) {
                std::cmp::Ordering::Less if Planted::PoliciesUnordered.is_on() => {}
                std::cmp::Ordering::Less => return Merge::Older(Box::new(held.statement.clone())),
                std::cmp::Ordering::Equal => return Merge::Known,
                std::cmp::Ordering::Greater => {}
            }
        }
        if statement.body.len() > MAX_POLICY_BYTES {
            let is = statement.body.len();
            return Merge::Refused(Refusal::Content(format!(
                "policy of {is} bytes, at most {MAX_POLICY_BYTES} are carried"
            )));
        }
        if !policy.off && policy.version.clock > now.0.saturating_add(MAX_AHEAD_MS) {
            let ahead = (policy.version.clock - now.0) / 1000;
            let text =
                format!("policy of `{}` is {ahead} s ahead of this node's clock: check the clocks", policy.service);
            return Merge::Refused(Refusal::Content(text));
        }
        if policy.version.epoch > MAX_EPOCH {
            return Merge::Refused(Refusal::Content(format!("policy of `{}`: impossible epoch", policy.service)));
        }
        if let Err(fault) = policy.check() {
            return Merge::Refused(Refusal::Content(format!("policy of `{}`: {fault}", policy.service)));
        }
        // Judged at the time it was set: a policy outlives its author's certificate.
        if let Err(refusal) = certified(statement, trust, Wall(policy.version.clock)) {
            return Merge::Refused(refusal);
        }
        let service = policy.service.clone();
        self.settle(Place::Policy(service.clone()), statement);
        let entry = PolicyEntry { policy: Arc::new(policy), statement: statement.clone() };
        self.policies.insert(service.clone(), entry);
        Merge::News(Change::Policy(service))
    }

    fn checked_signal(&self, signal: Signal, statement: &Statement, trust: &dyn Trust) -> Merge {
        let fits = signal.seen.len() <= MAX_OBSERVATIONS && statement.body.len() <= MAX_SIGNAL_BYTES;
        if !fits || !signal.seen.iter().all(Observation::is_sound) {
            return Merge::Refused(Refusal::Content(format!("signal of `{}` with impossible counts", signal.observer)));
        }
        match self.verified(statement, trust) {
            Ok(_) => Merge::Signal(signal),
            Err(refused) => refused,
        }
    }

    /// Checks the signature with the key that the signer introduced itself with.
    fn verified(&self, statement: &Statement, trust: &dyn Trust) -> Result<&MemberEntry, Merge> {
        let entry = self.members.get(&statement.signer).ok_or(Merge::UnknownSigner)?;
        if entry.key != statement.key {
            return Err(Merge::UnknownSigner);
        }
        let message = Statement::message(statement.kind, &statement.body);
        if Planted::NoSignatures.is_on() || trust.verify(&entry.facts.key, &message, &statement.signature) {
            return Ok(entry);
        }
        Err(Merge::Refused(Refusal::Signature(statement.signer.to_string())))
    }
}

/// Checks a statement that brings its signer's certificate along.
fn certified(statement: &Statement, trust: &dyn Trust, at: Wall) -> Result<CertFacts, Refusal> {
    let signer = statement.signer.to_string();
    let refuse = |why: String| Refusal::Certificate(signer.clone(), why);
    let der = statement.certificate.as_ref().ok_or_else(|| refuse("missing".into()))?;
    let facts = trust.check_certificate(der, at).map_err(|error| refuse(error.to_string()))?;
    if facts.node != statement.signer {
        return Err(refuse(format!("names `{}`", facts.node)));
    }
    if key_id(&facts.key) != statement.key {
        return Err(refuse("holds another key than the statement".into()));
    }
    let message = Statement::message(statement.kind, &statement.body);
    if !Planted::NoSignatures.is_on() && !trust.verify(&facts.key, &message, &statement.signature) {
        return Err(Refusal::Signature(signer));
    }
    Ok(facts)
}

fn acceptable(record: &InstanceRecord, statement: &Statement, owner: &CertFacts) -> Result<(), Refusal> {
    let content = |text: String| Refusal::Content(format!("instance `{}` of `{}`: {text}", record.id, record.owner));
    if statement.body.len() > MAX_RECORD_BYTES {
        return Err(content(format!("{} bytes, at most {MAX_RECORD_BYTES} are carried", statement.body.len())));
    }
    record.check().map_err(|fault| content(fault.to_string()))?;
    if !owner.may_announce(&record.service) && !Planted::AnyService.is_on() {
        return Err(content(format!("its certificate does not list service `{}`", record.service)));
    }
    Ok(())
}
