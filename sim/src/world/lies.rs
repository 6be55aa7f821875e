//! A lying peer: a member with a valid certificate of its own that says what is not so.
//!
//! It has what a real one would have: its own key, and whatever it overheard. It can't make another's signature; it may try.

use std::sync::Arc;

use bytes::Bytes;
use lanemesh::{
    types::{Health, InstanceId, InstanceRecord, NodeId, Observation, ServiceName, Signal},
    wire::{Accusation, Alive, Body, Ctl, Envelope, Evidence, Frame, Kind, Left, Member, Statement, key_id},
};

use super::{World, boot::MESH};
use crate::{
    chance::Chance,
    queue::{Event, SECOND},
    scenario::Step,
    trust::SimTrust,
};

impl World {
    /// Statements that went by, for a liar to replay.
    pub(super) fn overhear(&mut self, bytes: &Bytes) {
        if self.liars == 0 {
            return;
        }
        let Ok((envelope, _)) = Envelope::decode(bytes.clone()) else { return };
        for frame in envelope.frames {
            if let Frame::Statement(statement) = frame {
                self.overheard.push_back(statement);
                if self.overheard.len() > OVERHEARD {
                    self.overheard.pop_front();
                }
            }
        }
    }

    /// A liar speaks, and will speak again.
    pub(super) fn tell_lies(&mut self, index: u32, step: &Step, liar: u32) -> u32 {
        let over = self.faults.iter().any(|fault| fault.step == index && fault.ended.is_some());
        if over || !self.hosts[liar as usize].is_up() {
            return liar;
        }
        let mut chance = self.chance(&[LIES, u64::from(liar), self.now]);
        let there: Vec<u32> =
            self.hosts.iter().filter(|host| host.is_member() && host.index != liar).map(|host| host.index).collect();
        let (Some(victim), Some(listener)) = (chance.pick(&there).copied(), chance.pick(&there).copied()) else {
            return liar;
        };
        let kinds = ["death", "record", "generation", "replay", "garbage", "service"];
        let kind = step.how.as_deref().or_else(|| chance.pick(&kinds).copied()).unwrap_or("death");
        let bytes = if kind == "garbage" {
            (0..chance.below(300)).map(|_| chance.next() as u8).collect()
        } else {
            Envelope { digest: chance.next(), frames: self.lies(liar, victim, kind, &mut chance) }.encode()
        };
        self.stats.lies += 1;
        self.send(liar, &self.hosts[listener as usize].id.clone(), self.hosts[listener as usize].addr, bytes);
        self.after(SECOND / 10, Event::Part { step: index, part: liar });
        liar
    }

    fn lies(&self, liar: u32, victim: u32, kind: &str, chance: &mut Chance) -> Vec<Frame> {
        let (own, other) = (&self.hosts[liar as usize], &self.hosts[victim as usize]);
        let generation = other.node.as_ref().map_or(1, |node| node.generation());
        let incarnation = other.node.as_ref().map_or(0, |node| node.membership().incarnation());
        let trust = self
            .real_trust(liar, false)
            .unwrap_or_else(|| Arc::new(SimTrust::liar(MESH, &own.id, &self.certified(liar))));
        let key =
            trust.check_certificate(trust.own_certificate(), own.now(self.now).wall).map_or(0, |f| key_id(&f.key));
        let theirs = SimTrust::key_id(&other.id);
        let as_them = chance.hits(0.5);
        let say = |body: &Body, signer: &NodeId| {
            // Whose key a statement claims is free to say; the signature is the liar's all the same.
            let key = if as_them && *signer != own.id { theirs } else { key };
            let certified = matches!(body.kind(), Kind::Member | Kind::Policy);
            Frame::Statement(Statement::sign(&*trust, signer, key, body.kind(), body.encode(), certified))
        };
        let (me, it) = (own.id.clone(), other.id.clone());
        match kind {
            "death" => {
                let accusation = |evidence| Accusation {
                    accuser: me.clone(),
                    accused: it.clone(),
                    generation,
                    incarnation,
                    evidence,
                };
                let evidence = if chance.hits(0.5) { Evidence::Silent } else { Evidence::Refused };
                let goodbye = Body::Left(Left { node: it.clone(), generation });
                vec![
                    say(&Body::Accusation(accusation(evidence)), &me),
                    // A second accuser who never said so.
                    say(&Body::Accusation(Accusation { accuser: it.clone(), ..accusation(evidence) }), &it),
                    say(&goodbye, &it),
                    say(&goodbye, &me),
                    Frame::Ctl(Ctl::Condemned { generation, incarnation }),
                    Frame::Ctl(Ctl::Verify { accused: it.clone(), generation, incarnation }),
                ]
            }
            "signal" => {
                // The same few instances that fellow liars name, as far as it may without being told apart by it.
                let there = self.hosts.iter().filter(|host| host.is_member() && !host.lies).take(3);
                let observation = |host: &crate::host::Host| Observation {
                    service: self.services[host.apps[0].service].clone(),
                    owner: host.id.clone(),
                    instance: host.apps[0].id.clone(),
                    attempts: 6,
                    failures: 6,
                };
                let seen = there.map(observation).collect();
                let generation = own.node.as_ref().map_or(1, |node| node.generation());
                let signal = Signal { observer: me.clone(), generation, number: self.now, seen };
                vec![
                    say(&Body::Signal(signal.clone()), &me),
                    say(&Body::Signal(Signal { observer: it.clone(), ..signal }), &it),
                ]
            }
            "record" => {
                let held = own.node.as_ref().and_then(|node| {
                    node.catalog().owned_by(&it).next().map(|entry| InstanceRecord::clone(&entry.record))
                });
                let Some(record) = held else { return Vec::new() };
                let forged = InstanceRecord {
                    sequence: record.sequence + 1 + chance.below(1000) as u64,
                    port: 6666,
                    health: Health::Passing,
                    ..record
                };
                vec![say(&Body::Instance(forged.clone()), &it), say(&Body::Instance(forged), &me)]
            }
            "service" => {
                // Its own instance, of a service that its certificate does not list.
                let held = own.node.as_ref().and_then(|node| node.own_instances().next().cloned());
                let Some(record) = held else { return Vec::new() };
                let id = InstanceId::new("vault-0").expect("a valid name");
                let service = ServiceName::new("vault").expect("a valid name");
                vec![say(&Body::Instance(InstanceRecord { id, service, sequence: 1, ..record }), &me)]
            }
            "generation" => {
                let far = u64::MAX - chance.below(3) as u64;
                let member = Member {
                    node: it.clone(),
                    generation: far,
                    revision: 0,
                    addr: own.addr,
                    nonce: chance.next(),
                    program: "liar".into(),
                };
                let alive = Body::Alive(Alive { node: it.clone(), generation: far, incarnation: u16::MAX });
                vec![say(&Body::Member(member.clone()), &it), say(&Body::Member(member), &me), say(&alive, &it)]
            }
            _ => {
                let count = chance.below(6);
                let picked = (0..count).filter_map(|_| self.overheard.get(chance.below(self.overheard.len())));
                picked.cloned().map(Frame::Statement).collect()
            }
        }
    }
}

const LIES: u64 = 40;
/// Statements that are kept for replaying.
const OVERHEARD: usize = 500;
