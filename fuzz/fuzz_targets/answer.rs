//! What an instance sends: the head of an answer as the proxy rewrites it, and a body in chunks.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| lanemesh::proxy::fuzzed::instance_bytes(bytes));
