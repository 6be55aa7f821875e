//! The constants of membership: each trades the time until a death is known against traffic and calm.
//!
//! The LAN values were measured (crashes, loss, pauses, slow and lying nodes, splits, 10 to 1,000 nodes); the WAN values
//! are the same shape stretched for round trips of some hundred milliseconds. Not here: anything a user sets by hand;
//! configuration chooses a profile.

use std::time::Duration;

/// Constants; each trades detection time against traffic or calm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MembershipConfig {
    /// One member is probed every so often. Shorter: deaths are noticed sooner, by about as much in the middle and four times as
    /// much at worst; longer: less traffic, of which this is nearly all.
    pub probe_period: Duration,
    /// An ack later than this is missed. Shorter than `probe_period`. Shorter: sooner a confirm; longer: fewer confirms of
    /// members that are only slow.
    pub probe_rtt: Duration,
    /// How long a member that missed an ack is asked again before it is accused. Shorter: sooner doubtful; longer: fewer false
    /// accusations under loss (at 30 % ten an hour and node with 600 ms of a question each 60 ms).
    pub confirm: Duration,
    /// Pause between two such questions. Shorter: more of them get through loss; longer: fewer packets.
    pub retry: Duration,
    /// Quiet time on QUIC after the first byte of a UDP probe: its own packets would spend the few refusals that a
    /// kernel sends a second.
    pub rest: Duration,
    /// After this much of a confirm without an answer, others are asked to look as well. Sooner: a quarter of a second less until
    /// a silent member is doubtful everywhere, for twice the traffic under loss.
    pub help_after: Duration,
    /// How many others are asked to look, and get a private accusation: the nearest by hash(accused, incarnation).
    pub helpers: usize,
    /// How many random others prove in each round that this node's own network works.
    pub controls: usize,
    /// Wait from the first accusation to death with one accuser. Longer: more time for a second one, or a sign of life.
    pub wait_max: Duration,
    /// The same with `accusers_enough` of them, or all that can exist. Shorter: a silent host leaves the rings sooner; longer:
    /// longer pauses are survived (2.8 s: one of 3 s, but at 30 % loss 3 of 200 paused nodes were declared down).
    pub wait_min: Duration,
    /// More accusers than these shorten nothing.
    pub accusers_enough: usize,
    /// The wait when two accusers saw the port refuse: what a living member needs to refute (some round trips), with some to
    /// spare. Shorter: a killed process leaves the rings sooner, and two liars have an easier game.
    pub wait_refused: Duration,
    /// Direct contact less than this ago outweighs what others say. Longer: calmer; shorter: later heard is sooner doubted.
    pub veto: Duration,
    /// A member heard less than this ago is not asked again after a missed ack.
    pub fresh: Duration,
    /// A lone accusation of somebody else's is forgotten after this. Longer: a second accuser that comes late still counts;
    /// shorter: an old mistake of one meets no new one of another.
    pub lone_expires: Duration,
    /// This long before a verdict three others are asked whether they know better.
    pub last_look: Duration,
    /// At least this much between two refutations of one's own. Longer: liars cost fewer incarnations and bytes; shorter: a
    /// false doubt is lifted sooner when accusations come one after the other.
    pub refute_gap: Duration,
    /// Being called this late means that this process stood still. Shorter: more judgement is held back on busy machines.
    pub pause: Duration,
    /// How long after such a pause nobody is accused or declared dead. Longer: surer that what came late was read first.
    pub hold: Duration,
    /// A member that alone this node doubts is asked again after this, growing to `again_max`. Shorter: a doubt that is wrong
    /// ends sooner, for packets to who is perhaps dead.
    pub again_min: Duration,
    /// See `again_min`.
    pub again_max: Duration,
    /// How often contact with members held dead is attempted (by few nodes each time; see `heal`). Shorter: a partition heals
    /// sooner; longer: fewer dials to the dead.
    pub heal_every: Duration,
    /// So many deaths inside `flap_window` hold a member down.
    pub flaps: u32,
    /// See `flaps`.
    pub flap_window: Duration,
    /// How long a flapping member is held down.
    pub flap_hold: Duration,
    /// Losses inside this window count together as one mass loss.
    pub mass_window: Duration,
    /// How long those who went in a mass loss are kept as a last resort.
    pub mass_keep: Duration,
    /// Losses inside this window make a node ask everybody else at once: few enough not to be chance, so soon that most of
    /// the others can still be warned of.
    pub sweep_window: Duration,
    /// At most this many members are asked in one sweep.
    pub sweep_most: usize,
    /// Pause between two sweeps.
    pub sweep_gap: Duration,
    /// Up to so many others everybody probes everybody; above, each member has fixed watchers (`circle`). As many as there
    /// can be open connections.
    pub contacts: usize,
}

impl MembershipConfig {
    /// Round trips of a few milliseconds.
    pub fn lan() -> Self {
        let ms = Duration::from_millis;
        Self {
            probe_period: ms(300),
            probe_rtt: ms(150),
            confirm: ms(600),
            retry: ms(60),
            rest: ms(20),
            help_after: ms(100),
            helpers: 3,
            controls: 2,
            wait_max: ms(8_000),
            wait_min: ms(2_800),
            accusers_enough: 3,
            wait_refused: ms(400),
            veto: ms(1_000),
            fresh: ms(200),
            lone_expires: ms(5_000),
            last_look: ms(300),
            refute_gap: ms(500),
            pause: ms(1_000),
            hold: ms(2_000),
            again_min: ms(250),
            again_max: ms(2_000),
            heal_every: ms(500),
            flaps: 3,
            flap_window: ms(60_000),
            flap_hold: ms(30_000),
            mass_window: ms(60_000),
            mass_keep: ms(600_000),
            sweep_window: ms(3_000),
            sweep_most: 128,
            sweep_gap: ms(5_000),
            contacts: 256,
        }
    }

    /// Round trips up to some hundred milliseconds: everything about three times as long. Deaths are known as much later, and
    /// pauses of 7 s are survived.
    pub fn wan() -> Self {
        let ms = Duration::from_millis;
        Self {
            probe_period: ms(1_000),
            probe_rtt: ms(500),
            confirm: ms(2_000),
            retry: ms(200),
            rest: ms(50),
            help_after: ms(400),
            wait_max: ms(20_000),
            wait_min: ms(7_000),
            wait_refused: ms(1_500),
            veto: ms(3_000),
            fresh: ms(600),
            lone_expires: ms(15_000),
            last_look: ms(1_000),
            refute_gap: ms(1_000),
            pause: ms(2_000),
            hold: ms(5_000),
            again_min: ms(800),
            again_max: ms(5_000),
            heal_every: ms(1_000),
            sweep_window: ms(8_000),
            sweep_gap: ms(15_000),
            ..Self::lan()
        }
    }

    /// Who watches a member in a mesh too large for everybody to be in touch with everybody. A node watches as many and is
    /// watched by as many, so this takes up to half of its connections where there are few.
    pub(in crate::node) fn watchers(&self) -> usize {
        (self.contacts / 4).clamp(2, MOST_WATCHERS)
    }

    /// A node looks at the same member for others at most this often.
    pub(super) fn help_gap(&self) -> Duration {
        self.confirm / 2
    }

    /// Wait from the first accusation to death: Lifeguard's curve (Dadgar, Phillips, Currey 2018, section IV-B) from
    /// `wait_max` at one accuser down to `wait_min` at `accusers_enough`. `possible` is how many accusers can exist;
    /// with one nobody could ever confirm, and the wait is one and a half times the shortest.
    pub(super) fn wait(&self, accusers: usize, possible: usize) -> Duration {
        let enough = self.accusers_enough.min(possible);
        if enough <= 1 {
            return self.wait_min * 3 / 2;
        }
        let confirmed = LN_PER_MILLE[accusers.clamp(1, enough).min(LN_PER_MILLE.len()) - 1];
        let full = LN_PER_MILLE[enough.min(LN_PER_MILLE.len()) - 1];
        let span = self.wait_max.saturating_sub(self.wait_min);
        self.wait_max.saturating_sub(span * confirmed / full)
    }
}

/// Half of them may die at once and some are still there: with 16, of 1,000 members none is left unwatched (2^-16 each).
const MOST_WATCHERS: usize = 16;

/// 1000 ln(k) for k = 1.. accusers. A table, since `f64::ln` may differ in its last bit between platforms.
const LN_PER_MILLE: [u32; 8] = [0, 693, 1_099, 1_386, 1_609, 1_792, 1_946, 2_079];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_accusers_shorten_the_wait_until_there_are_enough() {
        let config = MembershipConfig::lan();
        let waits: Vec<_> = (1..=5).map(|accusers| config.wait(accusers, 10)).collect();
        assert_eq!(waits[0], config.wait_max);
        assert!(waits[1] < waits[0] && waits[2] < waits[1]);
        assert_eq!(waits[2], config.wait_min);
        assert_eq!(waits[4], config.wait_min);
    }

    #[test]
    fn small_meshes_do_not_wait_for_accusers_that_cannot_exist() {
        let config = MembershipConfig::lan();
        assert_eq!(config.wait(1, 1), config.wait_min * 3 / 2);
        assert_eq!(config.wait(2, 2), config.wait_min);
        assert_eq!(config.wait(1, 2), config.wait_max);
    }
}
