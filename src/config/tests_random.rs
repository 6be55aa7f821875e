//! Whatever is typed: no panic, and every refusal says why and what to do.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{keys::KEYS, *};
use crate::types::{InstanceId, InstanceRecord, Lane, NodeId, Wall};

fn read(text: &str) -> Result<Config, Vec<Fault>> {
    resolve("f", text, &BTreeMap::new(), &Vec::new())
}

/// Pieces that a mangled file is put together from.
fn piece() -> impl Strategy<Value = String> {
    let keys: Vec<&'static str> = KEYS.iter().map(|key| key.name).collect();
    prop_oneof![
        proptest::sample::select(keys).prop_map(str::to_owned),
        proptest::sample::select(vec![
            " = ",
            "\n",
            "[",
            "]",
            "[[instance]]\n",
            "[service.a]\n",
            "[proxy]\n",
            "[proxy.timeouts]\n",
            "{",
            "}",
            ",",
            "\"",
            "'",
            "\"\"\"",
            ".",
            "#",
            "\r\n",
            "\r",
            "\u{feff}",
            "nan",
            "-inf",
            "-1",
            "0x7fffffffffffffffff",
            "1e999",
            "\"5 m\"",
            "\"1s\"",
            "[\"header:traceparent\"]",
            "\"127.0.0.1:15001\"",
            "true",
            "1979-05-27T07:32:00Z",
            "instance",
            "service",
            "\\u0000",
        ])
        .prop_map(str::to_owned),
        ".{0,8}",
    ]
}

#[test]
fn long_repetition_never_panics() {
    for piece in ["[", "=\n", "a.", "{", "[[instance]]\n", "[a.b]\n", "x=[[[1]]]\n", "\"", "a\n", "\r", "a={b=1}\n"] {
        let _ = read(&piece.repeat(20_000 / piece.len()));
    }
}

fn names_a_place(faults: &[Fault]) -> bool {
    !faults.is_empty() && faults.iter().all(|fault| !fault.reason.is_empty() && !fault.cure.is_empty())
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(text) = decode("f", &bytes) {
            prop_assert!(read(text).map_or_else(|faults| names_a_place(&faults), |_| true));
        }
    }

    #[test]
    fn mangled_files_never_panic(pieces in prop::collection::vec(piece(), 0..40)) {
        let text = pieces.concat();
        prop_assert!(read(&text).map_or_else(|faults| names_a_place(&faults), |_| true));
    }

    #[test]
    fn deep_nesting_never_panics(depth in 0usize..3000, open in prop::sample::select(vec!["[", "{a=", "a.", "[["])) {
        let _ = read(&format!("proxy = {}", open.repeat(depth)));
        let _ = read(&open.repeat(depth));
    }

    #[test]
    fn random_overrides_never_panic(keys in prop::collection::vec(("[A-Z0-9_]{0,20}", ".{0,12}"), 0..6), dotted in "[a-z0-9.]{0,24}", known in 0..KEYS.len(), text in ".{0,24}") {
        let mut env: BTreeMap<String, String> = keys.into_iter().map(|(k, v)| (format!("LANEMESH_{k}"), v)).collect();
        env.insert(environment_name(&KEYS[known].dotted()).replace("_N_", "_0_"), text.clone());
        let flag = |key: &str| (key.to_owned(), text.clone(), Source::Flag("--set".into()));
        let flags = vec![flag(&dotted), flag(&KEYS[known].dotted())];
        prop_assert!(resolve("", "", &env, &flags).map_or_else(|faults| names_a_place(&faults), |_| true));
    }

    /// What is accepted here is accepted where it is announced: no refusal comes late.
    #[test]
    fn an_accepted_instance_makes_a_valid_record(host in "[a-zA-Z0-9.:%/_ -]{1,20}", weight in -1i32..2000, port in 0u32..70_000, tag in "[a-z\\t]{0,5}", value in "[a-z\\t]{0,5}") {
        let text = format!("[[instance]]\nservice = \"a\"\nhost = '{host}'\nport = {port}\nweight = {weight}\ntags = {{ '{tag}' = '{value}' }}");
        if let Ok(config) = read(&text) {
            let i = config.instances[0].clone();
            let record = InstanceRecord {
                owner: NodeId::new("n").unwrap(), generation: 1, sequence: 0, id: InstanceId::new("i").unwrap(),
                service: i.service, host: i.host.unwrap(), port: i.port, protocol: i.protocol, env: config.env, region: config.region,
                zone: config.zone, version: i.version, lane: Lane::stable(), weight: i.weight, health: Default::default(), drain: None,
                tags: i.tags, capacity: i.capacity, updated_at: Wall(0), removed: false, load: None, counted: false,
            };
            prop_assert_eq!(record.check(), Ok(()));
        }
    }
}
