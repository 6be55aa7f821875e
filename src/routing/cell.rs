//! What the data path knows of one instance: one atomic word, shared by threads and by successive snapshots.

use crate::types::Mono;

/// Local state of one instance. Two refused connections in a row make it doubtful for some seconds.
#[derive(Debug, Default)]
pub struct InstanceCell {}

impl InstanceCell {
    /// Whether the walk skips it now.
    pub fn doubtful(&self, now: Mono) -> bool {
        todo!()
    }

    /// A connection was refused (or could not be made).
    pub fn refused(&self, now: Mono) {
        todo!()
    }

    /// It answered.
    pub fn answered(&self) {
        todo!()
    }

    /// Requests in flight from this sidecar.
    pub fn in_flight(&self) -> u32 {
        todo!()
    }
}
