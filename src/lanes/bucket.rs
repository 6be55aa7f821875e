//! The bucket of a subject (REQUIREMENTS L1).

use crate::types::BucketScheme;

/// A subject's place in an experiment: 0..=9999.
pub type Bucket = u16;

/// The state of SHA-256 after a policy's one-block prefix, so that a subject of up to 55 bytes costs one compression.
#[derive(Clone)]
pub struct Prefix {}

impl Prefix {
    /// For one policy.
    pub fn new(scheme: BucketScheme, salt: &str, experiment: &str) -> Self {
        todo!()
    }

    /// The bucket of a subject. Never allocates.
    pub fn bucket(&self, subject: &[u8]) -> Bucket {
        todo!()
    }
}
