//! Configuration files: a fault is told with its place, nothing ends the process.
#![no_main]

use std::collections::BTreeMap;

use lanemesh::config::{Overrides, decode, resolve, warnings};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = decode("lanemesh.toml", bytes) else { return };
    match resolve("lanemesh.toml", text, &BTreeMap::new(), &Overrides::default()) {
        Ok(config) => drop(warnings(&config)),
        Err(faults) => assert!(!faults.is_empty() && faults.iter().all(|fault| !fault.to_string().is_empty())),
    }
});
