//! A client's byte stream as the proxy looks at it beside hyper, and its head as the proxy rewrites it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| lanemesh::proxy::fuzzed::client_bytes(bytes));
