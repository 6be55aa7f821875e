//! The bucket of a subject (REQUIREMENTS L1): the same answer on every node, in every version, for ever.
//!
//! `Prefixed`: the first 4 bytes, big-endian, modulo 10000, of SHA-256(P ‖ subject), where P is one SHA-256 block:
//! SHA-256(u32be len ‖ salt ‖ u32be len ‖ experiment) ‖ 32 zero bytes. The lengths keep (`ab`, `c`) apart from
//! (`a`, `bc`). `BareSubject`: the same of SHA-256(subject). Published vectors are in `tests/vectors.json`.
//!
//! Hand-written padding around `sha2`'s compression function, since the general hasher copies its 64-byte buffer twice for
//! every request; a property test holds it against the general hasher.

use sha2::{Digest, Sha256, block_api::compress256};

use crate::types::BucketScheme;

/// A subject's place in an experiment: 0..=9999.
pub type Bucket = u16;

/// Number of buckets; one is a basis point.
pub const BUCKETS: u32 = 10_000;

/// The state of SHA-256 after a policy's one-block prefix, so that a subject of up to 55 bytes costs one compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    state: [u32; 8],
    absorbed: u64,
}

impl Prefix {
    /// For one policy. `BareSubject` ignores salt and experiment.
    pub fn new(scheme: BucketScheme, salt: &str, experiment: &str) -> Self {
        match scheme {
            BucketScheme::BareSubject => Self { state: INITIAL, absorbed: 0 },
            BucketScheme::Prefixed => {
                let mut block = [0; BLOCK];
                block[..32].copy_from_slice(&seed(salt, experiment));
                let mut state = INITIAL;
                compress256(&mut state, &[block]);
                Self { state, absorbed: BLOCK as u64 }
            }
        }
    }

    /// The bucket of a subject. Never allocates.
    #[inline]
    pub fn bucket(&self, subject: &[u8]) -> Bucket {
        let mut state = self.state;
        let (whole, rest) = subject.as_chunks::<BLOCK>();
        if !whole.is_empty() {
            compress256(&mut state, whole);
        }
        let bits = (self.absorbed + subject.len() as u64).wrapping_mul(8);
        let mut last = [0; BLOCK];
        last[..rest.len()].copy_from_slice(rest);
        last[rest.len()] = 0x80;
        if rest.len() >= LENGTH_AT {
            compress256(&mut state, &[last]);
            last = [0; BLOCK];
        }
        last[LENGTH_AT..].copy_from_slice(&bits.to_be_bytes());
        compress256(&mut state, &[last]);
        (state[0] % BUCKETS) as Bucket
    }
}

fn seed(salt: &str, experiment: &str) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in [salt, experiment] {
        // A policy's texts have at most 64 bytes (`LanePolicy::check`); saturating keeps this total all the same.
        hasher.update(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().into()
}

const BLOCK: usize = 64;
/// Where the message length stands in the last block.
const LENGTH_AT: usize = 56;
/// Initial hash value of SHA-256 (FIPS 180-4, 5.3.3).
const INITIAL: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn first_word(digest: &[u8]) -> Bucket {
        (u32::from_be_bytes(digest[..4].try_into().unwrap()) % 10_000) as Bucket
    }

    fn by_definition(salt: &str, experiment: &str, subject: &[u8]) -> Bucket {
        let mut message = Sha256::digest(
            [
                &(salt.len() as u32).to_be_bytes()[..],
                salt.as_bytes(),
                &(experiment.len() as u32).to_be_bytes(),
                experiment.as_bytes(),
            ]
            .concat(),
        )
        .to_vec();
        message.extend([0; 32]);
        message.extend(subject);
        first_word(&Sha256::digest(message))
    }

    proptest! {
        #[test]
        fn equals_its_definition(salt in ".{0,20}", experiment in ".{0,20}", subject in prop::collection::vec(any::<u8>(), 0..300)) {
            let prefix = Prefix::new(BucketScheme::Prefixed, &salt, &experiment);
            prop_assert_eq!(prefix.bucket(&subject), by_definition(&salt, &experiment, &subject));
            let bare = Prefix::new(BucketScheme::BareSubject, &salt, &experiment);
            prop_assert_eq!(bare.bucket(&subject), first_word(&Sha256::digest(&subject)));
        }
    }

    #[test]
    fn every_length_around_a_block_is_padded_right() {
        let prefix = Prefix::new(BucketScheme::Prefixed, "s", "e");
        for length in 0..=200 {
            let subject = vec![b'x'; length];
            assert_eq!(prefix.bucket(&subject), by_definition("s", "e", &subject), "length {length}");
        }
    }

    #[test]
    fn experiments_are_independent_and_the_split_is_even() {
        let prefixes = ["first", "second"].map(|e| Prefix::new(BucketScheme::Prefixed, "", e));
        let (mut in_first, mut in_both) = (0, 0);
        for user in 0..20_000 {
            let subject = format!("user-{user}");
            let [a, b] = [&prefixes[0], &prefixes[1]].map(|p| p.bucket(subject.as_bytes()) < 2_000);
            in_first += u32::from(a);
            in_both += u32::from(a && b);
        }
        // 20 % and 4 %, each within four standard deviations of the binomial.
        assert!((3_774..=4_226).contains(&in_first), "{in_first}");
        assert!((690..=910).contains(&in_both), "{in_both}");
    }

    #[test]
    fn salt_and_experiment_do_not_run_together() {
        let state = |salt, experiment| Prefix::new(BucketScheme::Prefixed, salt, experiment);
        assert_ne!(state("ab", "c"), state("a", "bc"));
        assert_ne!(state("", "abc"), state("abc", ""));
    }
}
