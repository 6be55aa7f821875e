//! foca, unmodified, as the engine of probes, acks and the own incarnation; and the wall around it.
//!
//! foca believes whatever a packet says: any peer's `Down` removes anybody at any incarnation, any third-party entry adds
//! members or moves their incarnation, `TurnUndead` ends this node. So none of that has a form here. What travels is
//! [`ProbePacket`]: a ping or an ack, and what the sender says of *itself*. Who sent it is told by the authenticated
//! connection, never by the packet; foca's own encoding exists only inside this process, made from both.
//!
//! Not here: foca's gossip, announcements, custom broadcasts, indirect pings and suspicion. They are never configured,
//! and what foca sends of them anyway is dropped.

use std::{
    num::{NonZeroU8, NonZeroUsize},
    time::Duration,
};

use bytes::Bytes;
use foca::{
    Codec, Config, Foca, Header, Identity, Member, Message, NoCustomBroadcast, Notification, PostcardCodec, Runtime,
    State, Timer,
};
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

use super::roster::Slot;

/// A member as foca knows it. Local to this process (the slot is an index here), so it is small and cheap to compare;
/// everything mutable about a member is kept outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Peer {
    pub(super) slot: Slot,
    pub(super) generation: u64,
}

impl Identity for Peer {
    type Addr = Slot;

    /// Never: a new life is a new generation, which only the owner's signed introduction brings.
    fn renew(&self) -> Option<Self> {
        None
    }

    fn addr(&self) -> Slot {
        self.slot
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.generation > adversary.generation
    }
}

/// The two things that probing says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Probe {
    /// Asks for an ack with the same number.
    Ping(u8),
    /// Answers a ping.
    Ack(u8),
}

/// What a `Frame::Foca` carries: foca's header without what the connection knows (source, destination) and without
/// everything that is not the sender's to say. Postcard; bytes after what this version knows are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProbePacket {
    /// The sender's generation.
    pub(super) generation: u64,
    /// The sender's incarnation.
    pub(super) incarnation: u16,
    /// The generation of the receiver that is meant.
    pub(super) to_generation: u64,
    /// Ping or ack.
    pub(super) probe: Probe,
}

impl ProbePacket {
    pub(super) fn encode(&self) -> Bytes {
        postcard::to_allocvec(self).expect("plain data always encodes").into()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::take_from_bytes(bytes).ok().map(|(packet, _newer)| packet)
    }
}

/// What foca wants done.
#[derive(Default)]
pub(super) struct Effects {
    /// Pings and acks to send.
    pub(super) send: Vec<(Peer, ProbePacket)>,
    /// Timers to hand back.
    pub(super) timers: Vec<(Duration, Timer<Peer>)>,
    /// foca began to probe: it has a member again.
    pub(super) active: bool,
}

impl Runtime<Peer> for Effects {
    fn notify(&mut self, notification: Notification<'_, Peer>) {
        // Every other notification repeats what this module has just told foca.
        self.active |= notification == Notification::Active;
    }

    fn send_to(&mut self, to: Peer, data: &[u8]) {
        let header: Result<Header<Peer>, _> = PostcardCodec.decode_header(data);
        let Ok(header) = header else { return };
        let probe = match header.message {
            Message::Ping(number) => Probe::Ping(number),
            Message::Ack(number) => Probe::Ack(number),
            _ => return,
        };
        let (generation, incarnation) = (header.src.generation, header.src_incarnation);
        self.send.push((to, ProbePacket { generation, incarnation, to_generation: to.generation, probe }));
    }

    fn submit_after(&mut self, timer: Timer<Peer>, after: Duration) {
        // Suspicion is ours: foca's own timer would kill on this node's word alone, also after a refutation.
        if !matches!(timer, Timer::ChangeSuspectToDown { .. }) {
            self.timers.push((after, timer));
        }
    }
}

/// foca with its wall.
pub(super) struct Engine {
    foca: Foca<Peer, PostcardCodec, Pcg64Mcg, NoCustomBroadcast>,
    me: Peer,
    incarnation: u16,
}

impl Engine {
    pub(super) fn new(me: Peer, period: Duration, rtt: Duration, seed: u64) -> Self {
        let config = Config {
            probe_period: period,
            probe_rtt: rtt,
            num_indirect_probes: NonZeroUsize::MIN,
            max_transmissions: NonZeroU8::MIN,
            suspect_to_down_after: Duration::from_secs(u32::MAX.into()),
            remove_down_after: None,
            max_packet_size: NonZeroUsize::new(256).expect("not zero"),
            notify_down_members: false,
            periodic_announce: None,
            periodic_announce_to_down_members: None,
            periodic_gossip: None,
        };
        let foca = Foca::new(me, config, Pcg64Mcg::seed_from_u64(seed), PostcardCodec);
        Self { foca, me, incarnation: 0 }
    }

    /// Own generation.
    pub(super) fn generation(&self) -> u64 {
        self.me.generation
    }

    /// Own incarnation.
    pub(super) fn incarnation(&self) -> u16 {
        self.incarnation
    }

    /// Adds a member or takes it into a higher life; `was_down` when it was declared down at this generation.
    pub(super) fn alive(&mut self, peer: Peer, incarnation: u16, was_down: bool) -> Effects {
        let mut effects = Effects::default();
        if was_down {
            self.ignore(|foca| foca.handle_timer(Timer::RemoveDown(peer), &mut effects));
        }
        self.apply(Member::new(peer, incarnation, State::Alive), effects)
    }

    /// Stops probing a member: down is terminal in foca, until [`Engine::alive`] lifts it.
    pub(super) fn down(&mut self, peer: Peer) -> Effects {
        self.apply(Member::down(peer), Effects::default())
    }

    /// Removes every trace of a member.
    pub(super) fn forget(&mut self, peer: Peer) -> Effects {
        let mut effects = self.down(peer);
        self.ignore(|foca| foca.handle_timer(Timer::RemoveDown(peer), &mut effects));
        effects
    }

    /// Raises the own incarnation by one. `false` when the last one is reached: foca would end at the next.
    pub(super) fn raise_incarnation(&mut self) -> bool {
        if self.incarnation >= u16::MAX - 1 {
            return false;
        }
        // The gossip with which foca would spread this itself is dropped; our own signed statement carries it.
        let suspected = Member::new(self.me, self.incarnation, State::Suspect);
        let mut dropped = Effects::default();
        self.ignore(|foca| foca.apply_many(std::iter::once(suspected), false, &mut dropped));
        self.incarnation += 1;
        true
    }

    /// One of foca's timers is due.
    pub(super) fn timer(&mut self, timer: Timer<Peer>) -> Effects {
        let mut effects = Effects::default();
        self.ignore(|foca| foca.handle_timer(timer, &mut effects));
        effects
    }

    /// A packet of a known, active member, with `from` as the authenticated connection names it.
    pub(super) fn packet(&mut self, from: Peer, packet: &ProbePacket) -> Effects {
        let message = match packet.probe {
            Probe::Ping(number) => Message::Ping(number),
            Probe::Ack(number) => Message::Ack(number),
        };
        let header = Header { src: from, src_incarnation: packet.incarnation, dst: self.me, message };
        let mut bytes = Vec::with_capacity(48);
        PostcardCodec.encode_header(&header, &mut bytes).expect("a vector grows");
        let mut effects = Effects::default();
        self.ignore(|foca| foca.handle_data(&bytes, &mut effects));
        effects
    }

    fn apply(&mut self, member: Member<Peer>, mut effects: Effects) -> Effects {
        self.ignore(|foca| foca.apply_many(std::iter::once(member), false, &mut effects));
        effects
    }

    /// foca's errors tell of packets it cannot read, which cannot be (they are made here), or that a timer came in an
    /// unexpected order after a long pause, from which it recovers by itself.
    fn ignore<E>(
        &mut self,
        call: impl FnOnce(&mut Foca<Peer, PostcardCodec, Pcg64Mcg, NoCustomBroadcast>) -> Result<(), E>,
    ) {
        let _ = call(&mut self.foca);
    }
}
