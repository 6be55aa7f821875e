//! Hot keys (REQUIREMENTS R8): a key that is named in the rules, or that this sidecar's users ask for more often than
//! `spread_above` a second, is spread over the first few instances of its failover order instead of going to one.
//!
//! How often a key is asked for is counted in a table of fixed size, by its hash: of two keys that share a place the more frequent
//! one holds it (Misra and Gries 1982, with one counter a place), so that a hot key is found and a cold one is not taken for
//! it. A key that was hot stays so for [`STAYS`] seconds, or its users would move to and fro at the limit.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{Request, key_hash};
use crate::{config::Routing, types::Mono};

/// Keys that are named in the rules, by hash, and over how many instances each is spread.
pub(super) type Named = Vec<(u64, u8)>;

/// Of the rules' texts.
pub(super) fn named(rules: &Routing) -> Named {
    let mut named: Named = rules.spread.iter().map(|(key, over)| (key_hash(key.as_bytes()), *over)).collect();
    named.sort_unstable();
    named
}

/// How often keys are asked for.
#[derive(Debug, Default)]
pub(super) struct Rates {
    /// Made when the first request is counted.
    places: OnceLock<Box<[AtomicU64; PLACES]>>,
}

/// A place, unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Place {
    /// More of the key's hash. 20 bits.
    tag: u32,
    /// Second in which it was counted last. 20 bits, wrapping.
    second: u32,
    /// Requests in that second. 20 bits, saturating.
    count: u32,
    /// Seconds for which it stays hot. 4 bits.
    hot: u8,
}

impl Rates {
    /// A request for a key begins.
    pub(super) fn count(&self, key_hash: u64, above: u32, now: Mono) {
        let places = self.places.get_or_init(|| Box::new([const { AtomicU64::new(0) }; PLACES]));
        let (at, tag) = (place_of(key_hash), tag_of(key_hash));
        let count = |word| Some(Place::unpack(word).at(now, above).counted(tag, above).pack());
        let always = places[at].fetch_update(Relaxed, Relaxed, count);
        debug_assert!(always.is_ok(), "the closure never refuses");
    }

    /// Whether a key is hot.
    pub(super) fn is_hot(&self, key_hash: u64, above: u32, now: Mono) -> bool {
        let Some(places) = self.places.get() else { return false };
        let place = Place::unpack(places[place_of(key_hash)].load(Relaxed));
        place.tag == tag_of(key_hash) && place.at(now, above).hot > 0
    }
}

impl Place {
    const fn unpack(word: u64) -> Self {
        Self {
            tag: (word >> 44) as u32,
            second: (word >> 24) as u32 & MASK,
            count: (word >> 4) as u32 & MASK,
            hot: word as u8 & 0xf,
        }
    }

    const fn pack(self) -> u64 {
        (self.tag as u64) << 44 | (self.second as u64) << 24 | (self.count as u64) << 4 | self.hot as u64
    }

    /// As it stands in the present second.
    fn at(self, now: Mono, above: u32) -> Self {
        let second = (now.millis() / 1_000) as u32 & MASK;
        let passed = second.wrapping_sub(self.second) & MASK;
        if passed == 0 {
            return self;
        }
        // The second that was counted keeps it hot from its own end on.
        let hot = if self.count > above { STAYS } else { self.hot };
        let hot = u32::from(hot).saturating_sub(passed) as u8;
        Self { second, count: 0, hot, ..self }
    }

    fn counted(self, tag: u32, above: u32) -> Self {
        if self.tag != tag && (self.count > 0 || self.hot > 0) {
            // Somebody else's place; who comes more often wins it.
            return Self { count: self.count.saturating_sub(1), ..self };
        }
        let count = (self.count + 1).min(MASK);
        let hot = if count > above { STAYS } else { self.hot };
        Self { tag, count, hot, ..self }
    }
}

fn place_of(key_hash: u64) -> usize {
    key_hash as usize % PLACES
}

fn tag_of(key_hash: u64) -> u32 {
    (key_hash >> 44) as u32
}

/// Over how many instances a request's key is spread; 1 for an ordinary one.
#[inline]
pub(super) fn spread(service: &super::ServiceView, key_hash: u64, now: Mono) -> u8 {
    if service.named.is_empty() && service.rules.spread_above.is_none() {
        return 1;
    }
    if let Ok(at) = service.named.binary_search_by_key(&key_hash, |(hash, _)| *hash) {
        return service.named[at].1;
    }
    let hot = service.rules.spread_above.is_some_and(|above| service.state.rates.is_hot(key_hash, above, now));
    if hot { service.rules.spread_over } else { 1 }
}

/// Which of them a request takes.
pub(super) fn pick(request: &Request<'_>, over: u8) -> u8 {
    ((u128::from(request.random) * u128::from(over)) >> 64) as u8
}

const PLACES: usize = 1_024;
const MASK: u32 = (1 << 20) - 1;
/// Seconds for which a key stays hot.
const STAYS: u8 = 10;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::routing::{Attempts, AttemptsConfig, Builder, MethodClass, Rules, Step, choose, testing::*};

    fn at(ms: u64) -> Mono {
        Mono::from_millis(ms)
    }

    #[test]
    fn a_key_is_hot_above_its_rate_and_for_a_while_after() {
        let rates = Rates::default();
        let ask = |times: u32, ms| (0..times).for_each(|_| rates.count(7, 100, at(ms)));
        ask(100, 5_000);
        assert!(!rates.is_hot(7, 100, at(5_000)));
        ask(1, 5_900);
        assert!(rates.is_hot(7, 100, at(5_900)) && !rates.is_hot(8, 100, at(5_900)));
        assert!(rates.is_hot(7, 100, at(14_900)) && !rates.is_hot(7, 100, at(15_900)));
    }

    #[test]
    fn of_two_keys_in_one_place_the_frequent_one_is_found() {
        let rates = Rates::default();
        let other = 7 + (9 << 44);
        assert_eq!(place_of(7), place_of(other));
        for _ in 0..300 {
            rates.count(other, 100, at(1_000));
            rates.count(7, 100, at(1_000));
            rates.count(7, 100, at(1_000));
        }
        assert!(rates.is_hot(7, 100, at(1_000)) && !rates.is_hot(other, 100, at(1_000)));
    }

    proptest! {
        #[test]
        fn packing_loses_nothing(tag in 0..=MASK, second in 0..=MASK, count in 0..=MASK, hot in 0_u8..16) {
            let place = Place { tag, second, count, hot };
            prop_assert_eq!(Place::unpack(place.pack()), place);
        }
    }

    /// Of 4,000 requests for one subject: how many each instance gets.
    fn shares(routing: Routing, subject: &str) -> BTreeMap<u16, u32> {
        let rules = Rules::new(0, routing.into(), &BTreeMap::new());
        let snapshot = Builder::with(locality(), rules).build(&fleet(8, 0), NOW).0;
        let service = snapshot.service("orders").unwrap();
        let config = AttemptsConfig {
            max_retries: 0,
            per_try: std::time::Duration::from_secs(1),
            total: std::time::Duration::from_secs(3),
        };
        let mut shares = BTreeMap::new();
        for n in 0..4_000_u64 {
            let request = Request { random: n << 52 | 1, ..get(subject) };
            let decision = choose(&snapshot, service, &request, NOW);
            let mut attempts = Attempts::new(&decision, MethodClass::Safe, true, config, NOW);
            let Step::Try { instance, .. } = attempts.next(service, NOW) else { panic!("a try") };
            *shares.entry(instance).or_insert(0) += 1;
            let order: BTreeSet<u16> =
                service.lanes[0].order(decision.key_hash).take(usize::from(decision.spread)).collect();
            assert!(order.contains(&instance));
        }
        shares
    }

    #[test]
    fn a_named_key_is_spread_evenly_over_the_first_of_its_order_and_others_are_not() {
        let routing = || Routing { spread: vec![("tenant-7".into(), 3)], ..Routing::default() };
        let spread = shares(routing(), "tenant-7");
        assert!(spread.len() == 3 && spread.values().all(|count| (1_200..1_470).contains(count)), "{spread:?}");
        assert_eq!(shares(routing(), "tenant-8").len(), 1);
    }

    #[test]
    fn a_key_that_is_asked_for_too_often_is_spread() {
        let routing = || Routing { spread_above: Some(500), spread_over: 4, ..Routing::default() };
        let spread = shares(routing(), "tenant-7");
        assert!(spread.len() == 4 && *spread.values().max().unwrap() < 1_700, "{spread:?}");
        assert_eq!(shares(Routing { spread_above: Some(5_000), ..routing() }, "tenant-7").len(), 1);
    }
}
