//! What the endpoint counts, for metrics. Plain atomics: readers take what they find.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts up, seldom down.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(super) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Relaxed);
    }

    pub(super) fn one(&self) {
        self.add(1);
    }
}

/// Counters of one endpoint since it started. Bytes are envelopes' and syncs', without QUIC's own.
#[derive(Debug, Default)]
pub struct NetStats {
    /// Envelopes sent as datagrams.
    pub datagrams_out: Counter,
    /// Envelopes received as datagrams.
    pub datagrams_in: Counter,
    /// Envelopes sent on streams.
    pub stream_envelopes_out: Counter,
    /// Envelopes received on streams.
    pub stream_envelopes_in: Counter,
    /// Bytes sent.
    pub bytes_out: Counter,
    /// Bytes received.
    pub bytes_in: Counter,
    /// Envelopes dropped because the queue to a peer was full; the oldest goes.
    pub dropped_queue_full: Counter,
    /// Envelopes dropped because their peer could not be reached in time.
    pub dropped_unreachable: Counter,
    /// Envelopes dropped because a connection ended or stalled while they were on a stream.
    pub dropped_stream: Counter,
    /// Received envelopes dropped because the agent did not keep up.
    pub dropped_inbox_full: Counter,
    /// Envelopes dropped for their size, sent or received.
    pub dropped_too_large: Counter,
    /// Dials begun.
    pub dials: Counter,
    /// Dials that led to no connection.
    pub dials_failed: Counter,
    /// Dials begun because an open connection had gone silent.
    pub dials_of_silent: Counter,
    /// Incoming connections accepted.
    pub accepted: Counter,
    /// Incoming connections refused since too many handshakes were under way.
    pub refused_busy: Counter,
    /// Handshakes that failed over a certificate, at either end.
    pub handshakes_failed: Counter,
    /// Connections closed because the same peer has another one: a double dial, or a restart.
    pub superseded: Counter,
    /// Connections closed to keep the pool within its limit.
    pub evicted: Counter,
    /// Connections closed because the peer's certificate expired.
    pub expired: Counter,
    /// Syncs opened.
    pub syncs_out: Counter,
    /// Syncs opened that got no reply.
    pub syncs_failed: Counter,
    /// Syncs that peers opened.
    pub syncs_in: Counter,
    /// UDP probes sent.
    pub probes: Counter,
    /// UDP probes that were refused.
    pub probes_refused: Counter,
}
