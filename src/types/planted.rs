//! Planted faults: small mistakes, as somebody might make them, that the simulator must find (the test of its tests).
//!
//! Each place that holds one asks [`Planted::is_on`]. Without the cargo feature `planted`, which no build of the product
//! has, the answer is a constant `false` and nothing of it is left in the program. With it, at most one fault is on, for the
//! thread that called [`plant`] and for no other: a simulation is one thread, and two of them may search at a time.
//!
//! A global, since a fault that is an argument would be in every signature between a simulation and the mistake. It is no
//! input of the core: nothing but a test chooses one.

#[cfg(feature = "planted")]
use std::cell::Cell;

macro_rules! faults {
    ($($fault:ident, $name:literal, $what:literal;)*) => {
        /// A mistake that can be switched on.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Planted {
            $(#[doc = $what] $fault,)*
        }

        impl Planted {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$fault,)*];

            /// As it is called on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$fault => $name,)*
                }
            }

            /// What is wrong while it is on.
            pub const fn what(self) -> &'static str {
                match self {
                    $(Self::$fault => $what,)*
                }
            }
        }
    };
}

faults! {
    LoseRefutations, "lose-refutations", "A node that is accused says nothing.";
    RefutationsDontLift, "refutations-do-not-lift", "A refutation does not bring back a member that is held down.";
    StaleSuspicions, "stale-suspicions", "An accusation of a life that is over counts against the present one.";
    DoubleCount, "double-count", "One accuser counts as two.";
    OwnWordIsEnough, "own-word-is-enough", "A member is declared dead on this node's word alone, however many others there are.";
    SlowConvicts, "slow-convicts", "A node that stands still or hears nobody accuses and convicts all the same.";
    NoControl, "no-control", "A missed answer is an accusation, whether or not this node's own network works.";
    ForgetLeave, "forget-leave", "Goodbyes are not taken.";
    NeverHeal, "never-heal", "Nobody tries to reach the members that are down.";
    DeathUnseen, "death-unseen", "The routing view is not made anew when a member goes down or comes back.";
    RecordsUnordered, "records-unordered", "An instance record replaces the held one, whichever is newer.";
    PoliciesUnordered, "policies-unordered", "A policy replaces the held one, whichever is newer.";
    NoSignatures, "no-signatures", "Statements are taken without a look at their signature.";
    AnySpeaker, "any-speaker", "A statement about somebody is taken from anybody who signs it with a key of its own.";
    AnyService, "any-service", "An instance is taken of a service that its owner's certificate does not list.";
    NoAntiEntropy, "no-anti-entropy", "Nodes whose digests differ do not exchange what they lack.";
    PoliciesNotSynced, "policies-not-synced", "Policies are gossiped, but are no part of digest, exchange and state file.";
    ForgetTombstones, "forget-tombstones", "A member that has gone is forgotten at the next tidying up, not after an hour.";
    NeverForget, "never-forget", "A member that has gone is kept for ever.";
    DeadToNewcomers, "dead-to-newcomers", "Newcomers are told of members that have gone.";
    SeedsOnce, "seeds-once", "A seed that does not answer is not asked again.";
    GenerationNotRaised, "generation-not-raised", "A restarted node goes on with its old generation and counts from the start.";
    GossipWithoutEnd, "gossip-without-end", "What is spread is spread for ever.";
    RingByPlace, "ring-by-place", "An instance's points on the ring depend on its place in the list.";
    RingUnsorted, "ring-in-arrival-order", "New points are merged into a ring in the order in which they came.";
    WeightsIgnored, "weights-ignored", "Every instance has the same share of the ring.";
    RingsByNames, "rings-by-names", "A ring is taken for that of other weights if the names are the same.";
    ForeignEnv, "foreign-env", "Instances of other environments are candidates.";
    KeepDrained, "keep-drained", "Drained instances stay candidates.";
    KeepCritical, "keep-critical", "Instances whose checks fail stay candidates.";
    KeepDead, "keep-dead", "Instances of members that are down stay candidates.";
    FlapsNotHeld, "flaps-not-held", "An instance that keeps failing and coming back is taken back at once each time.";
    SameInstanceAgain, "same-instance-again", "A retry may go to the instance that has just failed.";
    RefusedIsFinal, "refused-is-final", "A refused connection is the end of a request.";
    RetryUnsafe, "retry-unsafe", "A request that must not be sent twice is retried.";
    NoDeadline, "no-deadline", "A request that is retried starts its time anew.";
    UnsafeFallsBack, "unsafe-falls-back", "A request that must stay in its lane is served by another when that lane is empty.";
    LaneByDice, "lane-by-dice", "A subject's lane is drawn for each request.";
    BucketByVersion, "bucket-by-version", "A subject's bucket changes with each change of the policy.";
    RaiseMoves, "raise-moves", "A raise puts a lane's buckets elsewhere.";
    RollbackSameEpoch, "rollback-same-epoch", "A rollback does not begin a new epoch.";
    BucketsBeforeRules, "buckets-before-rules", "A subject in a lane's buckets goes there before the match rules are looked at.";
    SelectorIgnored, "selector-ignored", "An instance serves the lane that it announces, whatever a selector says.";
    RegionIgnored, "region-ignored", "Who leaves its zone goes anywhere in the lane, not to its region first.";
    PinForgotten, "pin-forgotten", "A pinned key is an ordinary one once its instance was gone for a moment.";
    RoomIgnored, "room-ignored", "A lane takes all users of one that was lost, whether it has room for them or not.";
}

#[cfg(feature = "planted")]
thread_local! {
    static ON: Cell<Option<Planted>> = const { Cell::new(None) };
}

/// Switches a fault on for this thread, in place of any other; `None`: none.
#[cfg(feature = "planted")]
pub fn plant(fault: Option<Planted>) {
    ON.set(fault);
}

impl Planted {
    /// Whether this is the fault that is on.
    #[inline(always)]
    pub fn is_on(self) -> bool {
        #[cfg(feature = "planted")]
        return ON.get() == Some(self);
        #[cfg(not(feature = "planted"))]
        return false;
    }

    /// The fault of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|fault| fault.name() == name)
    }
}
