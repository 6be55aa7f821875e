//! The consistent-hash ring (REQUIREMENTS R2).

/// Points of an instance at weight 100.
pub const POINTS_AT_NORMAL_WEIGHT: u32 = 256;

/// Hash of a route key: xxh3-64 with a fixed seed over the raw bytes.
pub fn key_hash(key: &[u8]) -> u64 {
    todo!()
}

/// Sorted points with an index on their top bits.
pub struct Ring {}

/// Placeholder.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct RingReport {}

#[allow(unused_variables)]
impl RingReport {
    /// Placeholder.
    pub fn of(service: &super::ServiceView) -> Self {
        todo!()
    }
}

impl std::fmt::Display for RingReport {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        todo!()
    }
}
