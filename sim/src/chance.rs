//! Chance from the seed, and from nothing else.
//!
//! [`Chance::of`] makes a stream of its own for whatever the parts name (packet 17 from host 3 to host 5, say), so that one
//! event more in one place does not reshuffle what happens everywhere else. Hand-written, because the sequence must be the
//! same on every platform and in every version: SplitMix64 (Steele, Lea, Flood 2014) is ten lines.

/// A stream of numbers.
#[derive(Debug, Clone)]
pub struct Chance(u64);

/// SplitMix64's finalizer.
pub const fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Chance {
    /// The stream of one thing.
    pub fn of(seed: u64, parts: &[u64]) -> Self {
        let start = mix(seed.wrapping_add(GOLDEN));
        Self(parts.iter().fold(start, |state, part| mix(state.wrapping_add(GOLDEN) ^ mix(*part))))
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "a source of chance never ends and is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// 0.0 up to, not including, 1.0.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Whether something of probability `p` happens. Draws nothing where it can't or must.
    pub fn hits(&mut self, p: f64) -> bool {
        p > 0.0 && (p >= 1.0 || self.unit() < p)
    }

    /// 0 up to, not including, `n`; 0 for 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// From `low` up to, not including, `high`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// One of them.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }

    /// Waiting time of a Poisson process with this rate (a second), in seconds.
    pub fn waiting(&mut self, rate: f64) -> f64 {
        -(1.0 - self.unit()).ln() / rate
    }

    /// Up to `count` of them, each once, in random order.
    pub fn some<T: Clone>(&mut self, of: &[T], count: usize) -> Vec<T> {
        let mut all = of.to_vec();
        let count = count.min(all.len());
        for at in 0..count {
            let other = at + self.below(all.len() - at);
            all.swap(at, other);
        }
        all.truncate(count);
        all
    }
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_apart_and_repeat() {
        let draw = |parts: &[u64]| Chance::of(7, parts).next();
        assert_eq!(draw(&[1, 2]), draw(&[1, 2]));
        assert_ne!(draw(&[1, 2]), draw(&[2, 1]));
        assert_ne!(Chance::of(8, &[1, 2]).next(), draw(&[1, 2]));
    }

    #[test]
    fn draws_are_even() {
        let mut chance = Chance::of(1, &[]);
        let hits = (0..100_000).filter(|_| chance.hits(0.1)).count();
        assert!((9_700..10_300).contains(&hits), "{hits}");
        let mut some = chance.some(&[1, 2, 3, 4], 9);
        some.sort();
        assert_eq!(some, [1, 2, 3, 4]);
        assert_eq!(chance.below(0), 0);
    }
}
