//! Answers to what people and the admin API ask.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::oneshot;

use super::{
    CommandError, InstanceInfo, MemberInfo, MemberStory, NewInstance, NodeInfo, PolicyInfo,
    handle::Ask,
    run::{Agent, LocalInstance, Watch},
};
use crate::{
    config::{Check, parse_check},
    lanes::{CompiledPolicy, Entry},
    node::{InstanceSpec, Node, OrderError},
    types::{InstanceRecord, Lane, MemberState, NodeId, ServiceName},
};

/// Subjects asked to show how a policy divides them.
const SAMPLES: u32 = 10_000;

impl From<OrderError> for CommandError {
    fn from(error: OrderError) -> Self {
        match error {
            OrderError::NoInstance { .. } | OrderError::Nothing => Self::NotFound(error.to_string()),
            _ => Self::Refused(error.to_string()),
        }
    }
}

impl Agent {
    /// Answers one question or carries out one order. Whoever asked may have gone: an answer nobody waits for is dropped.
    pub(super) fn answer(&mut self, ask: Ask) {
        let now = self.now();
        match ask {
            Ask::Members(back) => drop(back.send(self.members())),
            Ask::Member(node, back) => drop(back.send(self.member(&node))),
            Ask::Compare(back) => self.compare(back),
            Ask::Mesh(question, back) => self.ask_mesh(*question, back),
            Ask::Observe(order, back) => self.observe_mesh(order, back),
            Ask::Observed(back) => drop(back.send(self.observed.list(self.clock.mono()))),
            Ask::Instances(back) => drop(back.send(self.instances())),
            Ask::Info(back) => {
                // Whoever asks before everything is bound hears that nobody answers.
                if let Some(info) = self.present_info() {
                    drop(back.send(info));
                }
            }
            Ask::Diagnostics(back) => drop(back.send(self.diagnostics())),
            Ask::Policies(back) => drop(back.send(self.policies())),
            Ask::SetInstance(id, change, back) => {
                drop(back.send(self.node.change_instance(now, &id, change).map_err(Into::into)));
            }
            Ask::Register(new, back) => drop(back.send(self.register(new))),
            Ask::Announce(instance, back) => drop(back.send(self.announce(instance))),
            Ask::Deregister(id, back) => {
                let done = self.node.withdraw(now, &id);
                if done.is_ok() {
                    self.failing.remove(&id);
                    self.watch(Watch::Stop(id));
                }
                drop(back.send(done.map_err(Into::into)));
            }
            Ask::Drain { ids, by, reason, min_ready, back } => {
                let done = self.node.drain(now, &ids, &by, &reason, min_ready);
                self.answer_when_written(done.map_err(Into::into), back);
            }
            Ask::Undrain { ids, back } => {
                let done = self.node.undrain(now, &ids);
                self.answer_when_written(done.map_err(Into::into), back);
            }
            Ask::SetPolicy(service, change, back) => {
                let set = |node: &mut Node| node.set_policy(now, &service, &change).map_err(Into::into);
                drop(back.send(self.sensible(&service, &change).and_then(|()| set(&mut self.node))));
            }
            Ask::Rollback(service, reason, back) => {
                let roll = |node: &mut Node| node.rollback(now, &service, &reason).map_err(Into::into);
                drop(back.send(self.known_service(&service).and_then(|()| roll(&mut self.node))));
            }
            Ask::Health(id, health) => self.node.set_health(now, &id, health),
            Ask::Checked(id, Ok(())) => drop(self.failing.remove(&id)),
            Ask::Checked(id, Err(reason)) => drop(self.failing.insert(id, reason)),
            Ask::Load(id, load) => self.node.set_load(now, &id, load),
            Ask::LoadByInFlight(id, most) => self.node.set_load_by_in_flight(now, &id, most),
            Ask::Signals(back) => drop(back.send(self.signals())),
            Ask::Rules(rules) => self.builder.set_rules(rules),
            Ask::Shutdown => self.drain_for_shutdown(),
            Ask::Leave(back) => self.leave(back),
        }
    }

    /// A drain survives a restart, also one that follows at once: it is on disk before it is answered.
    fn answer_when_written<T: Send + 'static>(&mut self, answer: T, back: oneshot::Sender<T>) {
        self.node.handle_timeout(self.now());
        self.carry_out();
        self.state.when_written(move || drop(back.send(answer)));
    }

    fn register(&mut self, new: NewInstance) -> Result<InstanceRecord, CommandError> {
        if let Some(other) = self.other_owner(&new.id) {
            let text = format!("node `{other}` announces an instance `{}`: give this one an id of its own", new.id);
            return Err(CommandError::Refused(text));
        }
        let check = match new.check.as_deref() {
            None => Check::default(),
            Some(text) => {
                let kind = parse_check(text).map_err(CommandError::Refused)?;
                Check { kind, ..Check::default() }
            }
        };
        let spec = InstanceSpec {
            id: new.id,
            service: new.service,
            host: new.host.unwrap_or_else(|| self.host.clone()),
            port: new.port,
            protocol: new.protocol,
            env: self.locality.env.clone(),
            region: self.locality.region.clone(),
            zone: self.locality.zone.clone(),
            version: new.version,
            lane: new.lane,
            weight: new.weight,
            tags: new.tags,
            capacity: new.capacity,
        };
        self.announce(LocalInstance { spec, check })
    }

    pub(super) fn announce(
        &mut self,
        LocalInstance { spec, check }: LocalInstance,
    ) -> Result<InstanceRecord, CommandError> {
        let record = self.node.announce(self.now(), spec)?;
        let (id, host, port) = (record.id.clone(), record.host.clone(), record.port);
        self.watch(Watch::Start { id, host, port, check });
        Ok(record)
    }

    fn members(&self) -> Vec<MemberInfo> {
        let (me, now) = (self.node.id(), self.clock.mono());
        let mut services: BTreeMap<_, BTreeSet<ServiceName>> = BTreeMap::new();
        for entry in self.node.catalog().instances().filter(|entry| !entry.record.removed) {
            services.entry(entry.record.owner.clone()).or_default().insert(entry.record.service.clone());
        }
        let info = |(node, entry): (_, &crate::catalog::MemberEntry)| {
            let this = node == me;
            let state = match self.node.membership().state(node) {
                _ if entry.has_left() => MemberState::Left,
                _ if this => MemberState::Alive,
                state => state.unwrap_or(MemberState::Down),
            };
            let incarnation = if this { self.node.membership().incarnation() } else { entry.life().1 };
            MemberInfo {
                node: node.clone(),
                state,
                this,
                addr: entry.member.addr,
                generation: entry.member.generation,
                incarnation,
                stale: entry.stale,
                services: services.get(node).into_iter().flatten().cloned().collect(),
                why: self.node.membership().why(node, now),
                program: entry.member.program.clone(),
            }
        };
        self.node.catalog().members().map(info).collect()
    }

    fn member(&self, node: &NodeId) -> Option<MemberStory> {
        let info = self.members().into_iter().find(|info| info.node == *node)?;
        let story = self.node.membership().story(node, self.clock.mono())?;
        Some(MemberStory { info, story })
    }

    fn instances(&self) -> Vec<InstanceInfo> {
        let snapshot = self.snapshot.load();
        let members = self.members();
        let info = |entry: &crate::catalog::InstanceEntry| {
            let record = &entry.record;
            let owner = members.iter().find(|member| member.node == record.owner);
            let seen = snapshot.service(record.service.as_str()).and_then(|service| {
                service.instances.iter().find(|i| i.record.id == record.id && i.record.owner == record.owner)
            });
            InstanceInfo {
                record: (**record).clone(),
                owner_state: owner.map_or(MemberState::Down, |member| member.state),
                local: &record.owner == self.node.id(),
                stale: owner.is_some_and(|member| member.stale),
                excluded: match seen {
                    Some(entry) => entry.excluded.map(|why| why.as_str().to_owned()),
                    // Held, but the routing view with it is still being built or held back.
                    None => Some("not-in-view-yet".to_owned()),
                },
                failing: if record.owner == *self.node.id() { self.failing.get(&record.id).cloned() } else { None },
                selected: seen.map(|entry| &entry.record.lane).filter(|lane| **lane != record.lane).cloned(),
            }
        };
        let mut infos: Vec<InstanceInfo> =
            self.node.catalog().instances().filter(|entry| !entry.record.removed).map(info).collect();
        infos.sort_by(|a, b| (&a.record.service, &a.record.id).cmp(&(&b.record.service, &b.record.id)));
        infos
    }

    fn policies(&self) -> Vec<PolicyInfo> {
        let info = |entry: &crate::catalog::PolicyEntry| {
            let compiled = CompiledPolicy::new(entry.policy.clone());
            let mut shares: BTreeMap<Lane, u32> = BTreeMap::new();
            for i in 0..SAMPLES {
                let subject = format!("sample-{i}");
                let decision = compiled.decide(&Entry { subject: Some(&subject), ..Entry::default() });
                *shares.entry(compiled.lane(decision.lane).clone()).or_default() += 1;
            }
            PolicyInfo { policy: (*entry.policy).clone(), shares }
        };
        self.node.catalog().policies().map(info).collect()
    }

    /// `None` while the sidecar is still being composed.
    fn present_info(&self) -> Option<NodeInfo> {
        let snapshot = self.snapshot.load();
        Some(NodeInfo {
            generation: self.node.generation(),
            incarnation: self.node.membership().incarnation(),
            members: self.node.membership().active().len() + 1,
            connections: self.net.connections(),
            digest: format!("{:016x}", self.node.digest()),
            snapshot: snapshot.version,
            waiting_for: self.ready.waiting_for(),
            ..self.info.get()?.clone()
        })
    }
}
