//! Level 2 in the world: what processes do in a moment, their packets on the links, and what their endpoints tell the nodes.

use std::net::SocketAddr;

use lanemesh::{
    agent::{self, ForPeople, ForShell},
    net::{NetEvent, NetLimits},
    node::{Event as NodeEvent, Input, Output},
    types::Trust,
};

use super::{
    World,
    boot::{host_at, machine_of},
};
use crate::{
    host::Off,
    level2::{
        Level2, Totals,
        reactor::Process,
        socket::{Arrival, Packet},
        trust::RealTrust,
    },
    queue::{Event, MILLI, Run, SECOND, Time},
};

impl World {
    /// From now on, hosts that start have real networks.
    pub(super) fn make_real(&mut self) {
        let limits = NetLimits {
            connections: self.scenario.mesh.connections as usize,
            idle: std::time::Duration::from_secs_f64(self.scenario.mesh.idle),
            ..NetLimits::default()
        };
        self.real = Some(Level2::new(self.seed, super::boot::MESH, &self.services, limits));
    }

    /// What is counted at level 2.
    pub fn totals(&self) -> Option<Totals> {
        self.real.as_ref().map(|real| Totals { packets: self.links.packets.0, ..real.totals() })
    }

    /// Hosts that a host has connections with, at level 2.
    pub fn peers(&self, host: u32) -> Option<Vec<u32>> {
        let peers = self.real.as_ref()?.sidecar(host)?.net.peers();
        Some(peers.iter().filter_map(|node| self.host_of(node)).collect())
    }

    /// A host's network starts, before its node.
    pub(super) fn start_real(&mut self, host: u32, with_disk: bool) {
        let entry = &self.hosts[host as usize];
        let Some(real) = &mut self.real else { return };
        if !with_disk {
            real.lose_disk(host);
        }
        real.start(entry.run(), &entry.id, entry.addr, entry.cpu.clone());
    }

    /// What a host's node trusts, at level 2.
    pub(super) fn real_trust(&self, host: u32, honest: bool) -> Option<std::sync::Arc<dyn Trust>> {
        let sidecar = self.real.as_ref()?.sidecar(host)?;
        let (identity, process) = (sidecar.identity.clone(), sidecar.process.clone());
        Some(std::sync::Arc::new(match honest {
            true => RealTrust::honest(identity, process, self.register.clone()),
            false => RealTrust::liar(identity, process),
        }))
    }

    /// A host's run is over: it says goodbye to its peers' QUIC, or ends on the spot.
    pub(super) fn end_real(&mut self, run: Run, why: Off) {
        let Some(real) = &mut self.real else { return };
        if matches!(why, Off::Left | Off::NameTaken) {
            real.close(run.host);
            self.after(CLOSING, Event::Gone(run));
        } else {
            real.kill(run.host);
        }
    }

    /// A run that said goodbye is gone for good.
    pub(super) fn gone(&mut self, run: Run) {
        if let Some(real) = &mut self.real {
            real.kill_run(run);
        }
    }

    /// Another mesh's sidecar comes to where a host was.
    pub(super) fn squat(&mut self, host: u32) {
        let seeds = self.seeds();
        let entry = &self.hosts[host as usize];
        if let (Some(real), false) = (&mut self.real, entry.is_up()) {
            real.start_stranger(host, entry.addr, &seeds);
        }
    }

    /// And goes again.
    pub(super) fn end_squat(&mut self, host: u32) {
        if let Some(real) = &mut self.real {
            real.end_strangers(host);
        }
    }

    /// What a node wants of the network is done here, at level 2; everything else comes back.
    pub(super) fn carry(&mut self, host: u32, output: Output) -> Option<Output> {
        let Some(sidecar) = self.real.as_ref().and_then(|real| real.sidecar(host)) else { return Some(output) };
        sidecar.process.enter(|| agent::carry(&sidecar.net, output)).map(|rest| match rest {
            ForShell::Publish(table) => Output::Publish(table),
            ForShell::Persist { generation, stored } => Output::Persist { generation, stored },
            ForShell::Signal(signal) => Output::Signal(signal),
            ForShell::Event(event) => Output::Event(event),
        })
    }

    /// A host's process may run again.
    pub(super) fn release_real(&mut self, host: u32) {
        if let Some(sidecar) = self.real.as_ref().and_then(|real| real.sidecar(host)) {
            sidecar.process.release();
        }
    }

    /// Time has come to look at the timers.
    pub(super) fn due(&mut self) {
        let Some(real) = &mut self.real else { return };
        if real.armed.is_some_and(|armed| armed <= self.now) {
            real.armed = None;
        }
    }

    /// A packet comes to its receiver's machine.
    pub(super) fn packet(&mut self, packet: Packet) {
        let Some(real) = &mut self.real else { return };
        let (from, to, refusal) = (packet.from, packet.to, packet.refusal);
        real.reactor.advance(self.now);
        if real.wire.arrive(packet) != Arrival::Nobody || refusal {
            return;
        }
        let SocketAddr::V4(v4) = to else { return };
        let machine = host_at(*v4.ip(), &self.hosts).map(|host| self.hosts[host as usize].off);
        // A machine that is gone says nothing, nor does an address that nobody has.
        let refuses = matches!(machine, Some(None | Some(Off::Refused | Off::Left | Off::NameTaken)));
        if refuses && real.wire.may_refuse(self.now, to.ip(), from.ip()) {
            let answer = Packet { from: to, to: from, ecn: None, bytes: Default::default(), refusal: true };
            self.transmit(0, answer);
        }
    }

    /// A packet sets out.
    fn transmit(&mut self, delay: Time, packet: Packet) {
        // Also a machine's former addresses: somebody else may be there.
        let at = |addr: SocketAddr| match addr {
            SocketAddr::V4(v4) => machine_of(*v4.ip(), &self.hosts),
            SocketAddr::V6(_) => None,
        };
        let (Some(from), Some(to)) = (at(packet.from), at(packet.to)) else {
            self.stats.lost += 1;
            return;
        };
        let size = (packet.bytes.len() + UDP_HEADERS) as u64;
        let sender = &mut self.hosts[from as usize];
        sender.sent = (sender.sent.0 + size, sender.sent.1 + 1);
        let delay = delay + sender.busy_until.saturating_sub(self.now);
        let fate = self.links.packet(from, to);
        self.stats.lost += u64::from(fate[0].is_none());
        for way in fate.into_iter().flatten() {
            self.after(delay + way, Event::Packet(Box::new(packet.clone())));
        }
    }

    /// Everything that processes have to do in this moment.
    pub(super) fn turn(&mut self) {
        let Some(real) = &self.real else { return };
        real.reactor.advance(self.now);
        while let Some(process) = self.real.as_ref().and_then(|real| real.reactor.next()) {
            self.work(&process);
        }
        self.arm();
    }

    /// Lets a process work until it has nothing to do, or for so long that time must pass.
    fn work(&mut self, process: &std::sync::Arc<Process>) {
        let run = process.run;
        let entry = &self.hosts[run.host as usize];
        let stranger = run.epoch == 0;
        if !stranger && entry.paused.is_some_and(|until| until > self.now) {
            // `resume` releases it.
            return process.hold();
        }
        if !stranger && entry.busy_until > self.now {
            process.hold();
            return self.plan_free(run.host);
        }
        process.set_skew(entry.clock);
        loop {
            let (worked, mut idle) = (process.step(), false);
            if !worked {
                match self.real.as_mut().and_then(|real| real.event(run)) {
                    Some(event) => self.net_event(run, event),
                    None => idle = true,
                }
            }
            self.take_sent();
            self.settle_cpu(run.host);
            if idle {
                break;
            }
            if !stranger && self.hosts[run.host as usize].busy_until >= self.now + TURN {
                // It goes on when this much is done.
                process.kick();
                break;
            }
        }
    }

    /// What was sent goes on its way.
    fn take_sent(&mut self) {
        let sent = self.real.as_ref().map(|real| real.wire.take_sent()).unwrap_or_default();
        for (delay, packet) in sent {
            self.transmit(delay, packet);
        }
    }

    /// An endpoint tells its node something.
    fn net_event(&mut self, run: Run, event: NetEvent) {
        let entry = &self.hosts[run.host as usize];
        if entry.epoch != run.epoch || entry.node.is_none() {
            return;
        }
        match agent::input(event) {
            Ok(input) => self.net_input(run, input),
            Err(ForPeople::NameClaimed { addr }) => self.node_event(run.host, NodeEvent::NameClaimed { addr }),
            Err(ForPeople::HandshakeRefused { addr, reason }) => {
                self.stats.handshakes_refused += 1;
                self.log
                    .note(self.now, || format!("{} handshake with {addr}: {reason}", self.hosts[run.host as usize].id));
            }
        }
    }

    fn net_input(&mut self, run: Run, input: Input) {
        if let Input::Envelope { bytes, .. } = &input {
            self.overhear(bytes);
        }
        self.log.input(self.now, run.host, &input);
        self.feed(run.host, input);
    }

    /// Plans the next look at the timers.
    fn arm(&mut self) {
        let Some(real) = &mut self.real else { return };
        let Some(next) = real.reactor.next_timer() else { return };
        if real.armed.is_none_or(|armed| next < armed) {
            real.armed = Some(next);
            self.queue.plan(next, Event::Due);
        }
    }

    /// Plans a look at what waits for a host that is at work.
    pub(super) fn plan_free(&mut self, host: u32) {
        let entry = &mut self.hosts[host as usize];
        if entry.free_at.is_none_or(|at| at <= self.now) {
            entry.free_at = Some(entry.busy_until);
            let (at, run) = (entry.busy_until, entry.run());
            self.queue.plan(at, Event::Free(run));
        }
    }

    /// A host has done what it was at: what came meanwhile is next, as far as that leaves it free.
    pub(super) fn free(&mut self, run: Run) {
        let at = run.host as usize;
        if self.hosts[at].epoch != run.epoch {
            return;
        }
        self.hosts[at].free_at = None;
        while self.hosts[at].is_awake(self.now) {
            if self.hosts[at].busy_until > self.now {
                return self.plan_free(run.host);
            }
            let Some(event) = self.hosts[at].inbox.pop_front() else { break };
            self.happen(event);
        }
        self.plan_wake(run.host);
        self.release_real(run.host);
    }

    /// The host works on what it was charged.
    pub(super) fn settle_cpu(&mut self, host: u32) {
        let entry = &mut self.hosts[host as usize];
        let due = entry.cpu.take();
        if due > 0 && entry.is_up() {
            entry.busy_until = entry.busy_until.max(self.now) + due;
        }
    }
}

/// A goodbye takes no longer.
const CLOSING: Time = SECOND + 100 * MILLI;
/// A process works for so long in one moment; what it sends in it is late by what it has worked.
const TURN: Time = MILLI / 5;
/// IPv4 and UDP.
const UDP_HEADERS: usize = 28;
