//! Connections between sidecars, as far as the core can tell: cold, being dialled, warm; dead with either end's run.
//!
//! What is sent while a dial is under way waits for it. The outcome of a dial is known to the simulation when it begins; what
//! changes on the way in that second is not foreseen. Not here: QUIC's own recovery, idle limits, eviction (level 2).

use rustc_hash::FxHashMap;

use crate::queue::Time;

/// One connection.
#[derive(Debug, Clone, Copy)]
struct Conn {
    epochs: (u32, u32),
    ready: Time,
    works: bool,
}

/// What a connection is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// There is none.
    Cold,
    /// It belongs to an earlier run of the peer; it is gone now that somebody noticed.
    Dead,
    /// Being dialled: ready then, or given up then.
    Dialing(Result<Time, Time>),
    /// Open.
    Warm,
}

/// All connections.
#[derive(Debug, Default)]
pub struct Conns {
    pairs: FxHashMap<(u32, u32), Conn>,
    /// Dials begun.
    pub dials: u64,
}

fn ordered(a: (u32, u32), b: (u32, u32)) -> ((u32, u32), (u32, u32)) {
    if a.0 <= b.0 { ((a.0, b.0), (a.1, b.1)) } else { ((b.0, a.0), (b.1, a.1)) }
}

impl Conns {
    /// How it stands between two hosts, each with its present run.
    pub fn standing(&mut self, now: Time, a: (u32, u32), b: (u32, u32)) -> Standing {
        let (pair, epochs) = ordered(a, b);
        let Some(conn) = self.pairs.get(&pair) else { return Standing::Cold };
        if conn.epochs != epochs {
            self.pairs.remove(&pair);
            return Standing::Dead;
        }
        match (conn.works, now < conn.ready) {
            (true, true) => Standing::Dialing(Ok(conn.ready)),
            (true, false) => Standing::Warm,
            (false, true) => Standing::Dialing(Err(conn.ready)),
            (false, false) => {
                self.pairs.remove(&pair);
                Standing::Cold
            }
        }
    }

    /// A dial begins: it will be ready then, or given up then.
    pub fn dial(&mut self, a: (u32, u32), b: (u32, u32), outcome: Result<Time, Time>) {
        let (pair, epochs) = ordered(a, b);
        let (Ok(ready) | Err(ready)) = outcome;
        self.dials += 1;
        self.pairs.insert(pair, Conn { epochs, ready, works: outcome.is_ok() });
    }

    /// Closes what is open between two hosts.
    pub fn close(&mut self, a: u32, b: u32) {
        self.pairs.remove(&if a <= b { (a, b) } else { (b, a) });
    }

    /// Connections that are open, both of whose ends still run: `epoch` gives a host's present run.
    pub fn open(&self, now: Time, epoch: impl Fn(u32) -> Option<u32>) -> usize {
        let lives = |(pair, conn): &(&(u32, u32), &Conn)| {
            let both = (epoch(pair.0), epoch(pair.1)) == (Some(conn.epochs.0), Some(conn.epochs.1));
            both && conn.works && conn.ready <= now
        };
        self.pairs.iter().filter(lives).count()
    }

    /// Connections known, dead ones included.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_dies_with_either_run() {
        let mut conns = Conns::default();
        let (a, b) = ((1, 1), (0, 1));
        assert_eq!(conns.standing(0, a, b), Standing::Cold);
        conns.dial(a, b, Ok(5));
        assert_eq!(conns.standing(4, b, a), Standing::Dialing(Ok(5)));
        assert_eq!(conns.standing(5, b, a), Standing::Warm);
        assert_eq!((conns.open(5, |_| Some(1)), conns.open(4, |_| Some(1)), conns.open(5, |_| None)), (1, 0, 0));
        assert_eq!(conns.standing(6, (0, 2), a), Standing::Dead);
        assert_eq!(conns.standing(6, (0, 2), a), Standing::Cold);
        conns.dial(a, b, Err(9));
        assert_eq!(conns.standing(8, a, b), Standing::Dialing(Err(9)));
        assert_eq!(conns.standing(9, a, b), Standing::Cold);
    }
}
