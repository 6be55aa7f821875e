//! An agent for the tests of those who ask it: holds plain data, carries out orders on it, and writes down what it was told.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use super::{
    CommandError, Diagnostics, Handle, InstanceInfo, MemberInfo, MemberStory, NewInstance, NodeDone, NodeInfo,
    PolicyChange, PolicyInfo, handle::Ask,
};
use crate::{
    node::{Accuser, Difference, PeerView, Story, StoryEvent},
    routing::{
        Builder, Candidate, CandidateTable, DoubtReport, Explanation, Locality, MeshAnswer, NodeAnswer, ObserverReport,
        Question, SignalsReport, SkipReason, SkippedInstance, Snapshot, Standing,
    },
    telemetry::ObservedSubject,
    types::{
        Drain, Health, InstanceId, InstanceRecord, Lane, LanePolicy, LaneRule, MemberState, Mono, NodeId, Observation,
        PolicyVersion, ServiceName, Wall,
    },
};

/// What the fake agent answers from.
pub(crate) struct Fake {
    /// Members.
    pub members: Vec<MemberInfo>,
    /// Instances.
    pub instances: Vec<InstanceInfo>,
    /// Policies.
    pub policies: Vec<PolicyInfo>,
    /// This sidecar.
    pub info: NodeInfo,
    /// The routing view.
    pub snapshot: Arc<Snapshot>,
    /// Takes questions and never answers them.
    pub mute: bool,
}

/// Orders that the fake agent was given, in words.
#[derive(Clone, Default)]
pub(crate) struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    /// Since the last time; empties the list.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }
}

impl Handle {
    /// A handle to a fake agent, which lives as long as the handle.
    pub(crate) fn for_test(mut fake: Fake) -> (Self, Told) {
        let (asks, mut inbox) = mpsc::channel(16);
        let snapshot = Arc::new(ArcSwap::new(fake.snapshot.clone()));
        let told = Told::default();
        let log = told.clone();
        tokio::spawn(async move {
            let mut kept = Vec::new();
            while let Some(ask) = inbox.recv().await {
                if fake.mute {
                    kept.push(ask);
                } else {
                    fake.answer(ask, &log);
                }
            }
        });
        (Self { asks, snapshot }, told)
    }

    /// A handle to an agent that is gone.
    pub(crate) fn dead() -> Self {
        let (asks, _) = mpsc::channel(1);
        Self { asks, snapshot: Arc::new(ArcSwap::from_pointee(Snapshot::empty())) }
    }
}

impl Fake {
    /// A mesh of three nodes, one of them down, and `orders` in two lanes.
    pub(crate) fn new() -> Self {
        let node = |name: &str| NodeId::new(name).unwrap();
        let member = |name: &str, state, port: u16, why: &[&str]| MemberInfo {
            node: node(name),
            state,
            this: name == "n1",
            addr: ([127, 0, 0, 1], port).into(),
            generation: 3,
            incarnation: 1,
            stale: false,
            services: vec![ServiceName::new("orders").unwrap()],
            why: why.iter().map(|why| (*why).to_owned()).collect(),
            program: "0.1.0".into(),
        };
        let mut drained = instance("n2", "canary", "v2", 8002);
        drained.record.drain =
            Some(Drain { by: "ann".into(), at: Wall(1_764_475_200_000), reason: "disk \u{1b}[31m full".into() });
        drained.excluded = Some("draining".into());
        drained.local = false;
        let instances = vec![instance("n1", "stable", "v1", 8001), drained];
        let set = PolicyChange {
            sizes: [(Lane::new("canary").unwrap(), 500)].into(),
            allow: [(Lane::new("canary").unwrap(), vec!["u1".into()])].into(),
            reason: "try v2".into(),
            ..PolicyChange::default()
        };
        let policy = policy(ServiceName::new("orders").unwrap(), &set, 0);
        Self {
            members: vec![
                member("n1", MemberState::Alive, 7001, &[]),
                member("n2", MemberState::Alive, 7002, &[]),
                member("n3", MemberState::Down, 7003, &["accused by n1", "accused by n2"]),
                member("n4", MemberState::Left, 7004, &["said goodbye"]),
            ],
            snapshot: snapshot(&instances, &policy),
            instances,
            policies: vec![PolicyInfo {
                policy,
                shares: [(Lane::stable(), 9_490), (Lane::new("canary").unwrap(), 510)].into(),
            }],
            info: NodeInfo {
                node: node("n1"),
                mesh: "demo".into(),
                version: "0.1.0".into(),
                generation: 3,
                incarnation: 1,
                gossip: ([127, 0, 0, 1], 7001).into(),
                proxy: ([127, 0, 0, 1], 15001).into(),
                ports: BTreeMap::new(),
                tcp_ports: BTreeMap::new(),
                admin: ([127, 0, 0, 1], 15000).into(),
                token_file: "/nonexistent/admin.token".into(),
                pid: 42,
                members: 2,
                connections: 1,
                digest: "00000000000000ff".into(),
                snapshot: 7,
                waiting_for: Vec::new(),
            },
            mute: false,
        }
    }

    fn answer(&mut self, ask: Ask, told: &Told) {
        match ask {
            Ask::Members(back) => drop(back.send(self.members.clone())),
            Ask::Member(node, back) => {
                let info = self.members.iter().find(|info| info.node == node).cloned();
                drop(back.send(info.map(|info| MemberStory { info, story: story() })));
            }
            Ask::Compare(back) => drop(back.send(views())),
            Ask::Observe(order, back) => {
                told.note(format!("observe {} for {} ms by {}", order.subject, order.for_ms, order.by));
                let silent = NodeDone { node: name("n2"), fault: Some("no answer within 3.5 s".into()) };
                drop(back.send(Ok(vec![NodeDone { node: name("n1"), fault: None }, silent])));
            }
            Ask::Observed(back) => {
                let subject = ObservedSubject { subject: "u7".into(), left_ms: 59_001, by: "ann".into() };
                drop(back.send(vec![subject]));
            }
            Ask::Mesh(question, back) => drop(back.send(Ok(self.mesh(&question)))),
            Ask::Instances(back) => drop(back.send(self.instances.clone())),
            Ask::Info(back) => drop(back.send(self.info.clone())),
            Ask::Policies(back) => drop(back.send(self.policies.clone())),
            Ask::SetInstance(id, change, back) => {
                told.note(format!("set {id} {change:?}"));
                let changed = self.own(&id).and_then(|info| {
                    info.record.weight = change.weight.unwrap_or(info.record.weight);
                    info.record.lane = change.lane.unwrap_or(info.record.lane.clone());
                    info.record.tags = change.tags.unwrap_or(info.record.tags.clone());
                    checked(&info.record)
                });
                drop(back.send(changed));
            }
            Ask::Register(new, back) => {
                told.note(format!("register {}", new.id));
                let record = self.registered(new);
                let answer = checked(&record);
                if answer.is_ok() {
                    self.instances.push(InstanceInfo {
                        record,
                        owner_state: MemberState::Alive,
                        local: true,
                        stale: false,
                        excluded: None,
                        failing: None,
                        selected: None,
                    });
                }
                drop(back.send(answer));
            }
            Ask::Announce(instance, back) => {
                told.note(format!("announce {}", instance.spec.id));
                drop(back.send(Err(CommandError::Unavailable)));
            }
            Ask::Deregister(id, back) => {
                told.note(format!("deregister {id}"));
                let found = self.own(&id).map(|_| ());
                self.instances.retain(|info| info.record.id != id || found.is_err());
                drop(back.send(found));
            }
            Ask::Drain { ids, by, reason, min_ready, back } => {
                told.note(format!("drain {ids:?} by {by}: {reason}"));
                let answer = match min_ready {
                    Some(least) if least > 0 => Err(CommandError::Refused(format!(
                        "lane `stable` would be left with 0 ready instances, {least} are wanted"
                    ))),
                    _ => Ok(ids),
                };
                drop(back.send(answer));
            }
            Ask::Undrain { ids, back } => {
                told.note(format!("undrain {ids:?}"));
                drop(back.send(Ok(ids)));
            }
            Ask::SetPolicy(service, change, back) => {
                told.note(format!("policy {service} {change:?}"));
                let policy = policy(service, &change, 0);
                self.keep(&policy);
                drop(back.send(policy.check().map(|()| policy).map_err(|e| CommandError::Refused(e.to_string()))));
            }
            Ask::Rollback(service, reason, back) => {
                told.note(format!("rollback {service}: {reason}"));
                let known = self.policies.iter().any(|info| info.policy.service == service);
                let change = PolicyChange { off: Some(true), reason, ..PolicyChange::default() };
                let missing = CommandError::NotFound(format!("service `{service}` has no policy to roll back"));
                let policy = known.then(|| policy(service, &change, 1)).ok_or(missing);
                policy.iter().for_each(|policy| self.keep(policy));
                drop(back.send(policy));
            }
            Ask::Diagnostics(back) => drop(back.send(Diagnostics::default())),
            Ask::Checked(id, result) => told.note(format!("checked {id} {result:?}")),
            Ask::Signals(back) => drop(back.send(signals())),
            Ask::Rules(_) => told.note("rules".into()),
            Ask::Health(id, health) => told.note(format!("health {id} {health:?}")),
            Ask::Load(id, load) => told.note(format!("load {id} {load:?}")),
            Ask::LoadByInFlight(id, most) => told.note(format!("load {id} of {most} in flight")),
            Ask::Shutdown => told.note("shutdown".into()),
            Ask::Leave(back) => {
                told.note("leave".into());
                let _ = back.send(());
            }
        }
    }

    /// One that agrees, one that passes over the instance, one that is silent.
    fn mesh(&self, question: &Question) -> MeshAnswer {
        let own = question.answer(&self.snapshot, Mono::ZERO);
        let skipping = own.clone().map(|mut there| {
            let why = SkipReason::BreakerOpen;
            there.skipped.extend(there.instance.take().map(|target| SkippedInstance { id: target.id, why }));
            there
        });
        let answer = |name: &str, explanation: Option<Explanation>| NodeAnswer {
            node: NodeId::new(name).unwrap(),
            fault: explanation.is_none().then(|| "no answer within 3.5 s".to_owned()),
            explanation,
            differences: Vec::new(),
        };
        let answers = vec![answer("n1", own.clone()), answer("n2", own), answer("n3", skipping), answer("n4", None)];
        MeshAnswer::new(self.info.node.clone(), answers)
    }

    fn own(&mut self, id: &InstanceId) -> Result<&mut InstanceInfo, CommandError> {
        let missing = CommandError::NotFound(format!("this sidecar announces no instance `{id}`"));
        self.instances.iter_mut().find(|info| info.record.id == *id && info.local).ok_or(missing)
    }

    fn registered(&self, new: NewInstance) -> InstanceRecord {
        let mut record = instance("n1", new.lane.as_str(), new.version.as_str(), new.port).record;
        record.id = new.id;
        record.service = new.service;
        record.host = new.host.unwrap_or(record.host);
        record.weight = new.weight;
        record.tags = new.tags;
        record
    }

    fn keep(&mut self, policy: &LanePolicy) {
        self.policies.retain(|info| info.policy.service != policy.service);
        let shares = policy.lanes.iter().map(|(lane, rule)| (lane.clone(), rule.size.into())).collect();
        self.policies.push(PolicyInfo { policy: policy.clone(), shares });
    }
}

/// The routing view that a sidecar would have of this.
fn snapshot(instances: &[InstanceInfo], policy: &LanePolicy) -> Arc<Snapshot> {
    let locality = Locality {
        env: "default".parse().unwrap(),
        region: "default".parse().unwrap(),
        zone: "default".parse().unwrap(),
        tags: BTreeMap::new(),
    };
    let candidate = |info: &InstanceInfo| Candidate {
        record: Arc::new(info.record.clone()),
        owner: info.owner_state,
        stale: info.stale,
        held: false,
    };
    let table = CandidateTable {
        version: 7,
        digest: 255,
        instances: instances.iter().map(candidate).collect(),
        policies: [(policy.service.clone(), Arc::new(policy.clone()))].into(),
    };
    Builder::new(locality).build(&table, Mono::ZERO).0
}

/// One instance that two sidecars saw fail.
fn signals() -> SignalsReport {
    let node = |name: &str| NodeId::new(name).unwrap();
    let (service, instance) = (ServiceName::new("orders").unwrap(), InstanceId::new("n2").unwrap());
    let seen = Observation {
        service: service.clone(),
        owner: node("n2"),
        instance: instance.clone(),
        attempts: 2,
        failures: 2,
    };
    let observer = ObserverReport { observer: node("n3"), age_ms: 1_500, standing: Standing::Agreed, seen: vec![seen] };
    let observers = vec![node("n1"), node("n3")];
    let doubt =
        DoubtReport { service, instance, owner: node("n2"), attempts: 4, failures: 4, observers, age_ms: 1_400 };
    SignalsReport { node: node("n1"), own: Vec::new(), observers: vec![observer], doubts: vec![doubt] }
}

fn checked(record: &InstanceRecord) -> Result<InstanceRecord, CommandError> {
    record.check().map(|()| record.clone()).map_err(|fault| CommandError::Refused(fault.to_string()))
}

fn policy(service: ServiceName, change: &PolicyChange, epoch: u64) -> LanePolicy {
    let mut lanes: BTreeMap<Lane, LaneRule> = BTreeMap::new();
    let mut start = 0;
    for (lane, size) in &change.sizes {
        *lanes.entry(lane.clone()).or_default() = LaneRule { start, size: *size, ..LaneRule::default() };
        start += size;
    }
    for (lane, subjects) in &change.allow {
        lanes.entry(lane.clone()).or_default().allow.extend(subjects.iter().cloned());
    }
    LanePolicy {
        version: PolicyVersion { epoch, clock: 1_764_475_200_000, author: "n1".into() },
        off: change.off.unwrap_or(false),
        experiment: change.experiment.clone().unwrap_or_else(|| service.to_string()),
        service,
        salt: change.salt.clone().unwrap_or_default(),
        scheme: change.scheme.unwrap_or_default(),
        lanes,
        subject: change.subject.clone(),
        anonymous: change.anonymous.unwrap_or_default(),
        empty: change.empty.unwrap_or_default(),
        reason: change.reason.clone(),
        set_at: Wall(1_764_475_200_000),
        rules: change.rules.clone().unwrap_or_default(),
        reserved: change.reserve.clone(),
        selectors: change.select.clone().into_iter().filter(|(_, traits)| !traits.is_empty()).collect(),
    }
}

/// An instance of `orders`, owned by the node of the same name.
pub(crate) fn instance(name: &str, lane: &str, version: &str, port: u16) -> InstanceInfo {
    let record = InstanceRecord {
        owner: NodeId::new(name).unwrap(),
        generation: 3,
        sequence: 1,
        id: InstanceId::new(name).unwrap(),
        service: ServiceName::new("orders").unwrap(),
        host: "127.0.0.1".into(),
        port,
        protocol: Default::default(),
        env: "default".parse().unwrap(),
        region: "default".parse().unwrap(),
        zone: "default".parse().unwrap(),
        version: version.parse().unwrap(),
        lane: lane.parse().unwrap(),
        weight: 100,
        health: Health::Passing,
        drain: None,
        tags: BTreeMap::new(),
        capacity: None,
        updated_at: Wall(1_764_475_200_000),
        removed: false,
        load: None,
        counted: false,
    };
    let (owner_state, excluded, failing, selected) = (MemberState::Alive, None, None, None);
    InstanceInfo { record, owner_state, local: true, stale: false, excluded, failing, selected }
}

fn name(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

/// Of a member that others doubt.
fn story() -> Story {
    let event = |ago_ms, what: &str| StoryEvent { ago_ms, what: what.into() };
    Story {
        since_ms: 1_200,
        probed_here: true,
        watchers: Vec::new(),
        heard_ms: Some(2_500),
        probes: 40,
        missed: 2,
        round_trip_us: Some(1_500),
        accusers: vec![Accuser { node: name("n3"), evidence: "port refused".into(), ago_ms: 900 }],
        public: false,
        refutations: 1,
        wrong_accusations: 0,
        ignored_as_accuser: false,
        own_health: 0,
        events: vec![event(900, "its port refused: accused"), event(5_000, "missed an ack")],
    }
}

/// One that agrees, one that does not, one that is silent.
fn views() -> Vec<PeerView> {
    let same =
        |node| PeerView { node: name(node), fault: None, differences: Vec::new(), newer_there: 0, older_there: 0 };
    let differs = Difference { member: name("n4"), here: "alive".into(), there: "down".into() };
    vec![
        same("n2"),
        PeerView { differences: vec![differs], newer_there: 1, ..same("n3") },
        PeerView { fault: Some("10.0.0.4:7946 did not answer within 1s".into()), ..same("n4") },
    ]
}
