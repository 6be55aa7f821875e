//! Full-state synchronisation streams, and the state file, which is read before anything else runs.
#![no_main]

use lanemesh::{
    node::Stored,
    wire::{SyncReply, SyncRequest},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(request) = SyncRequest::decode(bytes) {
        assert_eq!(SyncRequest::decode(&request.encode()), Some(request));
    }
    if let Some(reply) = SyncReply::decode(bytes) {
        assert_eq!(SyncReply::decode(&reply.encode()), Some(reply));
    }
    if let Ok(stored) = Stored::decode(bytes) {
        assert!(Stored::decode(&stored.encode()).is_ok());
    }
});
