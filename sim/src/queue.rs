//! What will happen, by (time, sequence): events of the same moment happen in the order in which they were planned.

use std::{cmp::Reverse, collections::BinaryHeap, net::SocketAddr};

use bytes::Bytes;
use lanemesh::{node::DialError, routing::Outcome};

use crate::level2::socket::Packet;

/// Nanoseconds of virtual time since the start.
pub type Time = u64;
/// One second.
pub const SECOND: Time = 1_000_000_000;
/// One millisecond.
pub const MILLI: Time = 1_000_000;

/// Virtual time of some seconds.
pub fn seconds(s: f64) -> Time {
    (s * SECOND as f64) as Time
}

/// Which host, in which of its runs. An event for a run that has ended does not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Index of the host.
    pub host: u32,
    /// Counts its starts.
    pub epoch: u32,
}

/// Something that happens.
#[derive(Debug)]
pub enum Event {
    /// A node's timer.
    Wake(Run),
    /// A datagram or one-way stream arrives.
    Envelope { to: Run, from: u32, addr: SocketAddr, bytes: Bytes },
    /// A sync arrives.
    SyncAsked { to: Run, sync: u64, bytes: Bytes },
    /// A sync ends at the one who opened it: answered by that host, or not.
    SyncEnded { to: Run, token: u64, result: Result<(u32, Bytes), DialError> },
    /// A UDP probe's port refuses.
    Refused { to: Run, token: u64 },
    /// The seeds are resolved.
    Seeds(Run),
    /// A sidecar tells what fails there.
    Tell(Run),
    /// An application is checked.
    Check { at: Run, app: u8 },
    /// An application begins to listen.
    Listen { at: Run, app: u8, start: u32 },
    /// A user of this host's application sends a request.
    Client(Run),
    /// A request goes on.
    Flight(u32),
    /// A try ends.
    Tried { flight: u32, outcome: Outcome, status: u16 },
    /// A try that would end at `end` has waited for as long as a silent instance is waited for, since `since`.
    Waited { flight: u32, since: Time, end: Time, outcome: Outcome, status: u16 },
    /// A stopped process goes on.
    Resume(Run),
    /// A starving process loses its turn.
    Starve { at: Run, fault: u32 },
    /// A step of the scenario begins.
    Begin(u32),
    /// A step of the scenario ends.
    End(u32),
    /// A planned part of a step (a rolling deploy's next node, say).
    Part { step: u32, part: u32 },
    /// Invariants look at everything.
    Sample,
    /// A packet arrives (level 2, as all that follow).
    Packet(Box<Packet>),
    /// Timers are looked at.
    Due,
    /// A process has done what it had to do.
    Free(Run),
    /// A run that said goodbye is gone.
    Gone(Run),
}

/// The future. What is ordered are three numbers; the events themselves stay where they were put.
#[derive(Default)]
pub struct Queue {
    /// Time, sequence, place.
    heap: BinaryHeap<Reverse<(Time, u64, u32)>>,
    events: Vec<Option<Event>>,
    free: Vec<u32>,
    sequence: u64,
}

impl Queue {
    /// Plans an event.
    pub fn plan(&mut self, at: Time, event: Event) {
        self.sequence += 1;
        let place = match self.free.pop() {
            Some(place) => {
                self.events[place as usize] = Some(event);
                place
            }
            None => {
                self.events.push(Some(event));
                self.events.len() as u32 - 1
            }
        };
        self.heap.push(Reverse((at, self.sequence, place)));
    }

    /// The next event, unless it lies after `until`.
    pub fn next(&mut self, until: Time) -> Option<(Time, Event)> {
        if self.heap.peek().is_none_or(|Reverse((at, ..))| *at > until) {
            return None;
        }
        let Reverse((at, _, place)) = self.heap.pop()?;
        self.free.push(place);
        self.events[place as usize].take().map(|event| (at, event))
    }

    /// Events planned.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether nothing is planned.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_time_then_by_plan() {
        let mut queue = Queue::default();
        for (at, step) in [(5, 0), (3, 1), (5, 2), (3, 3)] {
            queue.plan(at, Event::Begin(step));
        }
        let mut order = Vec::new();
        while let Some((_, Event::Begin(step))) = queue.next(4) {
            order.push(step);
        }
        assert_eq!((order, queue.len()), (vec![1, 3], 2));
    }
}
