//! What a person who writes a configuration sees: defaults, precedence, and every fault with its place, reason and cure.

use std::{collections::BTreeMap, time::Duration};

use super::{keys::KEYS, *};
use crate::types::{Env, NodeId, Protocol, ServiceName, SubjectPart};

fn read(text: &str) -> Result<Config, Vec<Fault>> {
    resolve("mesh.toml", text, &BTreeMap::new(), &Vec::new())
}

fn faults(text: &str) -> Vec<String> {
    read(text).expect_err("this file has faults").iter().map(ToString::to_string).collect()
}

/// Exactly one fault, which says all of this.
fn one_fault(text: &str, says: &[&str]) {
    let faults = faults(text);
    assert_eq!(faults.len(), 1, "{faults:#?}");
    for part in says {
        assert!(faults[0].contains(part), "`{part}` is not in: {}", faults[0]);
    }
}

fn environment(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

fn flag(key: &str, text: &str) -> (String, String, Source) {
    (key.to_owned(), text.to_owned(), Source::Flag(format!("--{key}")))
}

#[test]
fn an_empty_file_is_a_whole_configuration() {
    let config = read("").unwrap();
    assert_eq!(config.gossip.bind.to_string(), "0.0.0.0:7946");
    assert_eq!(config.proxy.bind.to_string(), "127.0.0.1:15001");
    assert_eq!(config.admin.bind.to_string(), "127.0.0.1:15000");
    assert_eq!(config.env, Env::new("default").unwrap());
    let t = config.proxy.timeouts;
    assert_eq!(
        (t.connect, t.per_try, t.total),
        (Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(15))
    );
    assert_eq!(config.proxy.subject.parts, [SubjectPart::Header("x-user-id".into())]);
    assert_eq!(config.access_log.sample, 0.0);
    assert!(config.instances.is_empty() && config.node.is_none());
    assert_eq!(warnings(&config), Vec::<String>::new());
}

#[test]
fn the_reference_is_the_defaults_and_names_every_key() {
    let text = reference();
    assert_eq!(read(&text).unwrap(), read("").unwrap());
    for key in KEYS {
        let line = format!("{} = ", key.name);
        assert!(text.lines().any(|l| l.trim_start_matches('#').starts_with(&line)), "{} is missing", key.dotted());
        assert!(key.section == "service" || text.contains(&environment_name(&key.dotted())), "{}", key.dotted());
    }
    assert!(text.lines().all(|line| line.len() <= 130));
}

#[test]
fn the_reference_with_every_key_taken_in_is_accepted_too() {
    let whole: String = reference()
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(code) if !code.is_empty() && !code.starts_with(' ') => format!("{code}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let config = read(&whole).unwrap();
    assert_eq!(config.instances.len(), 1);
    assert_eq!(config.instances[0].tags["rack"], "a7");
    assert_eq!(config.services[&ServiceName::new("orders").unwrap()].subject.as_ref().unwrap().parts.len(), 2);
    assert_eq!(config.proxy.ports.len(), 1);
    // Every key was given once, and each by its own name: nothing in the table is unreachable.
    let codes = whole.lines().filter(|l| !l.starts_with('#') && l.contains(" = ")).count();
    assert_eq!(codes, KEYS.len());
}

#[test]
fn both_ends_of_every_range_are_taken_and_beyond_is_refused() {
    for key in KEYS {
        let header = match key.section {
            "" => String::new(),
            "service" => "[service.a]\n".to_owned(),
            "instance" => "[[instance]]\n".to_owned(),
            section => format!("[{section}]\n"),
        };
        let about_range = |value: String| {
            let result = read(&format!("{header}{} = {value}", key.name));
            result.err().unwrap_or_default().iter().any(|f| f.reason.contains("out of range"))
        };
        if let keys::Kind::Whole(min, max) = key.kind {
            assert!(!about_range(min.to_string()) && !about_range(max.to_string()), "{}", key.dotted());
            assert!(about_range((max + 1).to_string()) && about_range("-1".into()), "{}", key.dotted());
            assert!(about_range("99999999999999999999999999999999999999999999999".into()), "{}", key.dotted());
        }
        if let keys::Kind::Span(min, max) = key.kind {
            let shown = |d: Duration| format!("\"{}ms\"", d.as_millis());
            assert!(!about_range(shown(min)) && !about_range(shown(max)), "{}", key.dotted());
            assert!(about_range(shown(max + Duration::from_millis(1))), "{}", key.dotted());
        }
    }
}

#[test]
fn a_whole_file_is_read() {
    let config = read(
        r#"
        node = "orders-1"
        region = "eu"
        [gossip]
        bind = "[::]:0"
        advertise = "[fd00::5]:7946"
        seeds = ["orders-0.orders:7946", "10.0.0.1:7946", "[fd00::1]:7946"]
        profile = "wan"
        [proxy]
        ports = { pay = "127.0.0.1:18001" }
        subject = ["header:X-Tenant", "cookie:Uid"]
        timeouts.total = "600ms"
        [service.batch]
        subject = "header:x-request-id"
        request_id_as_subject = true
        [[instance]]
        service = "orders"
        port = 8080
        version = "v2+A"
        lane = "canary"
        weight = 0
        check = "http:/healthz?full=1"
        [[instance]]
        id = "pay-1"
        service = "pay"
        host = "db.example"
        port = 5432
        protocol = "tcp"
        check = "none"
        check_interval = "200ms"
        tags = { rack = "ü" }
        "#,
    )
    .unwrap();
    assert_eq!(config.node, Some(NodeId::new("orders-1").unwrap()));
    assert_eq!(config.identity.certificate, std::path::Path::new("identity/orders-1.pem"));
    assert_eq!(config.identity.key, std::path::Path::new("identity/orders-1-key.pem"));
    assert_eq!(config.gossip.profile, Profile::Wan);
    assert_eq!(config.gossip.seeds.len(), 3);
    // Header names do not depend on case, cookie names do.
    let parts = [SubjectPart::Header("x-tenant".into()), SubjectPart::Cookie("Uid".into())];
    assert_eq!(config.proxy.subject.parts, parts);
    // Limits that were not typed shrink with those that were.
    assert_eq!(config.proxy.timeouts.per_try, Duration::from_millis(200));
    assert_eq!(config.proxy.timeouts.connect, Duration::from_millis(200));
    let [orders, pay] = &config.instances[..] else { panic!("two instances") };
    assert_eq!((orders.id.as_ref(), orders.lane.as_str(), orders.weight), (None, "canary", 0));
    assert_eq!(orders.check.kind, CheckKind::Http("/healthz?full=1".into()));
    assert_eq!(
        (pay.protocol, &pay.check.kind, pay.check.timeout),
        (Protocol::Tcp, &CheckKind::None, Duration::from_millis(200))
    );
    assert_eq!(warnings(&config).len(), 1, "weight 0 is worth a word: {:?}", warnings(&config));
}

#[test]
fn the_walk_through_of_the_readme_is_accepted() {
    let files = [
        include_str!("../../examples/by-hand/orders-1.toml"),
        include_str!("../../examples/by-hand/orders-2.toml"),
        include_str!("../../examples/by-hand/orders-3.toml"),
    ];
    let configs = files.map(|text| read(text).unwrap());
    for config in &configs {
        assert_eq!(warnings(config), Vec::<String>::new());
        assert!(config.gossip.seeds.contains(&config.gossip.bind.to_string()));
    }
    // The README's commands ask the first without naming it.
    let defaults = read("").unwrap();
    assert_eq!((configs[0].proxy.bind, configs[0].admin.bind), (defaults.proxy.bind, defaults.admin.bind));
}

#[test]
fn every_fault_is_reported_at_once_with_line_reason_and_cure() {
    let all = faults(
        "nod = \"a\"\n\
         [proxy]\n\
         bind = \"localhost:15001\"\n\
         per_try = \"1s\"\n\
         max_headers = \"128\"\n\
         [proxy.timeouts]\n\
         idle = 60\n\
         head = \"5 m\"\n\
         [admin]\n\
         bind = \"0.0.0.0:15000\"\n\
         [[instance]]\n\
         service = \"Orders\"\n\
         weight = 1601\n\
         [access_log]\n\
         sample = nan\n",
    );
    let expected = [
        "mesh.toml:1: nod: is not a known key; did you mean `node`?",
        "mesh.toml:3: proxy.bind: `localhost:15001` is a name; bind takes an IP address; write \"127.0.0.1:15001\"",
        "mesh.toml:4: proxy.per_try: is not a known key; it belongs in [proxy.timeouts]",
        "mesh.toml:5: proxy.max_headers: is a text, not a whole number; write a whole number from 16 to 4096, without quotes",
        "mesh.toml:7: proxy.timeouts.idle: 60 has no unit; give the unit, in quotes: \"60s\" or \"60ms\"",
        "mesh.toml:8: proxy.timeouts.head: `5 m` is no duration; write a number and its unit without a space, such as 250ms, 1.5s, 2m or 1h",
        "mesh.toml:10: admin.bind: 0.0.0.0:15000 is not loopback: others could read this sidecar's state and try its write token; write \"127.0.0.1:15000\", or set admin.allow_remote = true if that is meant",
        "mesh.toml:11: instance.0.port: is missing; add port = 8080",
        "mesh.toml:12: instance.0.service: `Orders` is not a valid service name; use 1 to 63 characters of a-z, 0-9, `-`, `_` and `.`, starting with a letter or digit",
        "mesh.toml:13: instance.0.weight: 1601 is out of range; write a whole number from 0 to 1600, without quotes",
        "mesh.toml:15: access_log.sample: NaN is not a number; write 0.0 to 1.0, or a percentage such as \"5%\"",
    ];
    assert_eq!(all, expected);
}

#[test]
fn syntax_errors_have_a_line_and_do_not_hide_the_rest() {
    let all = faults("env = prod\n[proxy]\nbind = \"127.0.0.1:1\"\nbind = \"127.0.0.1:2\"\nworkres = 2\n");
    assert!(all[0].starts_with("mesh.toml:1: not TOML: "), "{all:#?}");
    assert!(all.iter().any(|f| f.starts_with("mesh.toml:4: not TOML: duplicate key")), "{all:#?}");
    assert!(
        all.contains(&"mesh.toml:5: proxy.workres: is not a known key; did you mean `workers`?".into()),
        "{all:#?}"
    );
    // What was typed but could not be read is not called missing, and a line is complained about once.
    one_fault("[[instance]]\nservice = orders\nport = 8080\n", &["mesh.toml:2: not TOML"]);
    for broken in ["[proxy", "a = \"", "= 1", "[[instance]]\nport = 1,\n", "tags = { a = }", "\0", "node = \"a\rb\""] {
        let all = faults(broken);
        assert!(all[0].starts_with("mesh.toml:") && all[0].contains("not TOML"), "{broken:?}: {all:#?}");
        assert!(all.iter().all(|f| !f.contains('\n')), "one line each: {all:#?}");
    }
}

#[test]
fn a_byte_order_mark_and_windows_line_ends_are_no_fault() {
    let config = read("\u{feff}node = \"a\"\r\n[proxy]\r\nworkers = 2\r\n").unwrap();
    assert_eq!((config.node.unwrap().as_str(), config.proxy.workers), ("a", 2));
    one_fault("\u{feff}\r\n\r\nnoed = 1\r\n", &["mesh.toml:3: noed"]);
}

#[test]
fn numbers_out_of_sense_are_refused() {
    for sample in ["1.01", "101", "-0.1", "inf", "-inf", "nan", "\"101%\"", "\"-1%\"", "\"much\"", "true"] {
        one_fault(&format!("[access_log]\nsample = {sample}"), &["mesh.toml:2: access_log.sample", "0.0 to 1.0"]);
    }
    for (sample, meant) in [("0.25", 0.25), ("1", 1.0), ("\"5%\"", 0.05), ("\"0.5\"", 0.5)] {
        assert_eq!(read(&format!("[access_log]\nsample = {sample}")).unwrap().access_log.sample, meant);
    }
    one_fault("[[instance]]\nservice = \"a\"\nport = 0", &["instance.0.port: 0 is out of range", "1 to 65535"]);
    one_fault("[[instance]]\nservice = \"a\"\nport = 8080.5", &["is a fraction, not a whole number"]);
    one_fault("[proxy]\nmax_retries = 1979-05-27", &["is a date"]);
}

#[test]
fn durations_need_a_unit_and_nothing_else() {
    for (text, ms) in [("250ms", 250), ("1.5s", 1500), ("2m", 120_000), ("1m30s", 90_000), ("1h", 3_600_000), ("0s", 0)]
    {
        assert_eq!(parse_duration(text).unwrap(), Duration::from_millis(ms));
    }
    for text in
        ["", "5", "5 m", "5M", "5y", "-5s", "s", ".5s", "5s ", "1e3s", "5s-", "99999999999999999999s", "٥s", "1..5s"]
    {
        let error = parse_duration(text).unwrap_err();
        assert!(error.contains("250ms"), "{text:?}: {error}");
    }
}

#[test]
fn a_try_leaves_time_for_two_others() {
    one_fault(
        "[proxy.timeouts]\ntotal = \"10s\"\nper_try = \"5s\"",
        &[
            "mesh.toml:3: proxy.timeouts.per_try",
            "more than a third of total (10s)",
            "lower it to 3s333ms or raise total to 15s",
        ],
    );
    one_fault("[proxy.timeouts]\nconnect = \"6s\"", &["proxy.timeouts.connect: 6s is longer than per_try (5s)"]);
    one_fault(
        "[[instance]]\nservice = \"a\"\nport = 1\ncheck_timeout = \"2s\"",
        &["instance.0.check_timeout: 2s is longer than check_interval (1s)"],
    );
}

#[test]
fn a_request_id_is_no_subject_unless_asked_for_by_name() {
    for header in REQUEST_ID_HEADERS {
        let upper = header.to_ascii_uppercase();
        let typed = format!("[service.orders]\nsubject = [\"cookie:uid\", \"header:{upper}\"]");
        one_fault(&typed, &["mesh.toml:2: service.orders.subject", header, "request_id_as_subject = true"]);
        assert!(read(&format!("{typed}\nrequest_id_as_subject = true")).is_ok());
        one_fault(&format!("proxy.subject = \"header:{header}\""), &["proxy.subject", "[service.NAME]"]);
    }
    for (subject, says) in [
        ("[]", "0 parts"),
        ("\"x-user-id\"", "neither header nor cookie"),
        ("\"header:\"", "no valid name"),
        ("[\"cookie:a\", \"cookie:a\"]", "twice"),
        ("[1]", "not only texts"),
    ] {
        one_fault(&format!("[proxy]\nsubject = {subject}"), &["mesh.toml:2: proxy.subject", says]);
    }
}

#[test]
fn the_admin_api_stays_on_loopback_unless_asked_for() {
    for loopback in ["127.0.0.1:0", "127.9.9.9:1", "[::1]:15000", "[::ffff:127.0.0.1]:15000"] {
        assert!(read(&format!("admin.bind = \"{loopback}\"")).is_ok(), "{loopback}");
    }
    for remote in ["0.0.0.0:15000", "[::]:15000", "10.0.0.1:15000"] {
        one_fault(&format!("admin.bind = \"{remote}\""), &["admin.bind", "admin.allow_remote = true"]);
        let config = read(&format!("admin.bind = \"{remote}\"\nadmin.allow_remote = true")).unwrap();
        assert_eq!(warnings(&config).len(), 1);
    }
    let config = read("proxy.bind = \"0.0.0.0:15001\"").unwrap();
    assert!(warnings(&config)[0].contains("proxy.bind"));
}

#[test]
fn listeners_do_not_share_an_address() {
    one_fault(
        "admin.bind = \"127.0.0.1:15001\"",
        &["mesh.toml:1: admin.bind: 127.0.0.1:15001 is taken by proxy.bind; ", "port 0"],
    );
    one_fault(
        "[proxy]\nbind = \"0.0.0.0:80\"\nports = { a = \"127.0.0.1:80\", b = \"127.0.0.1:81\" }",
        &["mesh.toml:3: proxy.ports.a: 127.0.0.1:80 is taken by proxy.bind"],
    );
    assert!(read("proxy.bind = \"127.0.0.1:0\"\nadmin.bind = \"127.0.0.1:0\"").is_ok());
}

#[test]
fn instance_ids_are_unique_and_one_may_take_the_nodes() {
    let unnamed = "[[instance]]\nservice = \"a\"\nport = 1\n";
    assert_eq!(read(unnamed).unwrap().instances[0].check, Check::default());
    one_fault(&unnamed.repeat(2), &["mesh.toml:4: instance.1.id", "only one instance", "give this one an id"]);
    let named = "[[instance]]\nid = \"x\"\nservice = \"a\"\nport = 1\n";
    one_fault(&named.repeat(2), &["mesh.toml:6: instance.1.id: `x` is another instance's id already"]);
    one_fault(&format!("node = \"x\"\n{unnamed}{named}"), &["instance.1.id: `x` is another"]);
}

#[test]
fn sections_of_the_wrong_shape_say_how_to_write_them() {
    one_fault("proxy = 3", &["proxy: is a whole number, not a section", "write [proxy]"]);
    one_fault("[instance]\nport = 1", &["mesh.toml:1: instance: is a table", "[[instance]]"]);
    one_fault("service = \"a\"", &["service: is a text", "[service.NAME]"]);
    one_fault("[[proxy]]\nbind = \"127.0.0.1:1\"", &["write [proxy]"]);
    one_fault("proxy.ports = 3", &["proxy.ports: is a whole number, not a table", "127.0.0.1:18001"]);
    one_fault(
        "[service.\"A b\"]\nsubject = \"cookie:u\"",
        &["mesh.toml:1: service.A b: `A b` is not a valid service name"],
    );
    one_fault("[gosip]\nbind = \"1.1.1.1:1\"", &["gosip: is not a known key", "did you mean `gossip`?"]);
    one_fault("zzzzzzz = 1", &["known here: node, mesh, data_dir"]);
}

#[test]
fn addresses_and_seeds_say_what_is_missing() {
    for (seed, says) in [
        ("orders-0", "write \"orders-0:7946\""),
        ("fd00::1", "write \"[fd00::1]:7946\""),
        ("a:0", "no port from 1"),
        ("http://a:1", "is not a host"),
        (":7946", "is not a host"),
        ("[x]:1", "is not a host"),
    ] {
        one_fault(&format!("gossip.seeds = [\"{seed}\"]"), &["gossip.seeds", says]);
    }
    for (bind, says) in [
        ("127.0.0.1", "has no port"),
        (":7946", "0.0.0.0:7946"),
        ("1.2.3.4:70000", "not an IP address"),
        ("", "not an IP address"),
    ] {
        one_fault(&format!("gossip.bind = \"{bind}\""), &["gossip.bind", says]);
    }
    one_fault("gossip.advertise = \"0.0.0.0:7946\"", &["no address that peers can send to"]);
}

#[test]
fn texts_checks_filters_and_choices_name_what_is_allowed() {
    one_fault("log.filter = \"verbose\"", &["off, error, warn, info, debug or trace"]);
    assert_eq!(read("log.filter = \"info,lanemesh::proxy=DEBUG\"").unwrap().log_filter, "info,lanemesh::proxy=DEBUG");
    one_fault("log.format = \"xml\"", &["`xml` is not known", "\"text\", \"json\""]);
    one_fault("data_dir = \"\"", &["data_dir: is empty"]);
    one_fault("proxy.lane_header = \"Host\"", &["`host` has a meaning of its own"]);
    assert_eq!(read("proxy.lane_header = \"X-Lane\"").unwrap().proxy.lane_header, "x-lane");
    for check in ["http", "http:health", "http://a/b", "https:/a", "http:/a b", "TCP", "http:/a\\nb"] {
        let text = format!("[[instance]]\nservice = \"a\"\nport = 1\ncheck = \"{check}\"");
        assert!(faults(&text)[0].contains("instance.0.check"), "{check}");
    }
}

#[test]
fn environment_lies_over_the_file_and_flags_over_both() {
    let file = "node = \"file\"\nzone = \"file\"\nregion = \"file\"\n[gossip]\nseeds = [\"a:1\"]\n";
    let env = environment(&[
        ("LANEMESH_NODE", "environment"),
        ("LANEMESH_ZONE", "environment"),
        ("LANEMESH_GOSSIP_SEEDS", "b:1, [::1]:2"),
        ("LANEMESH_PROXY_EXPOSE_DECISION", "true"),
        ("LANEMESH_PROXY_TIMEOUTS_IDLE", "5s"),
        ("LANEMESH_PROXY_PORTS", "orders=127.0.0.1:1,pay=127.0.0.1:2"),
        ("LANEMESH_ACCESS_LOG_SAMPLE", "5%"),
        ("LANEMESH_REGION", ""),
        ("PATH", "/bin"),
    ]);
    let flags = vec![
        flag("node", "flag"),
        flag("proxy.workers", "1"),
        flag("proxy.ports.pay", "127.0.0.1:3"),
        flag("service.a.b.subject", "cookie:u,header:t"),
    ];
    let config = resolve("mesh.toml", file, &env, &flags).unwrap();
    assert_eq!(config.node.unwrap().as_str(), "flag");
    assert_eq!((config.zone.as_str(), config.region.as_str()), ("environment", "file"), "an empty variable is not set");
    assert_eq!(config.gossip.seeds, ["b:1", "[::1]:2"]);
    assert!(config.proxy.expose_decision);
    assert_eq!((config.proxy.workers, config.proxy.timeouts.idle), (1, Duration::from_secs(5)));
    assert_eq!(config.proxy.ports[&ServiceName::new("pay").unwrap()].port(), 3);
    assert_eq!(config.access_log.sample, 0.05);
    assert_eq!(config.services[&ServiceName::new("a.b").unwrap()].subject.as_ref().unwrap().parts.len(), 2);
}

#[test]
fn a_container_needs_no_file() {
    let env = environment(&[
        ("LANEMESH_INSTANCE_0_SERVICE", "orders"),
        ("LANEMESH_INSTANCE_0_PORT", "8080"),
        ("LANEMESH_INSTANCE_0_TAGS", "rack=a7,os=linux"),
        ("LANEMESH_INSTANCE_1_ID", "pay-1"),
        ("LANEMESH_INSTANCE_1_SERVICE", "pay"),
        ("LANEMESH_INSTANCE_1_PORT", "9090"),
        // What Kubernetes adds when a Service is called lanemesh or lanemesh-admin.
        ("LANEMESH_SERVICE_HOST", "10.96.0.7"),
        ("LANEMESH_SERVICE_PORT", "7946"),
        ("LANEMESH_SERVICE_PORT_GOSSIP", "7946"),
        ("LANEMESH_PORT", "udp://10.96.0.7:7946"),
        ("LANEMESH_PORT_7946_UDP_ADDR", "10.96.0.7"),
        ("LANEMESH_ADMIN_SERVICE_HOST", "10.96.0.8"),
        ("LANEMESH_NO_SKIP", "1"),
    ]);
    let config = resolve("", "", &env, &Vec::new()).unwrap();
    assert_eq!(config.instances.len(), 2);
    assert_eq!((config.instances[0].port, config.instances[0].tags.len()), (8080, 2));
}

#[test]
fn faults_of_environment_and_flags_name_them() {
    let env = environment(&[
        ("LANEMESH_GOSIP_BIND", "1.2.3.4:5"),
        ("LANEMESH_PROXY_WORKERS", "many"),
        ("LANEMESH_INSTANCE_3_PORT", "1"),
        ("LANEMESH_SERVICE_ORDERS_SUBJECT", "cookie:u"),
        ("LANEMESH_PROXY_PORTS", "orders"),
        ("LANEMESH_ADMIN_BIND", "0.0.0.0:1"),
    ]);
    let flags = vec![flag("proxy.bnid", "x"), flag("log.format", "xml"), flag("env", "")];
    let list: Vec<String> =
        resolve("mesh.toml", "zon = 1", &env, &flags).unwrap_err().iter().map(ToString::to_string).collect();
    let whole = list.join("\n");
    for says in [
        "mesh.toml:1: zon: is not a known key; did you mean `zone`?",
        "environment LANEMESH_GOSIP_BIND: is not a variable of this program; did you mean LANEMESH_GOSSIP_BIND?",
        "environment LANEMESH_PROXY_WORKERS: proxy.workers: `many` is not a whole number; ",
        "environment LANEMESH_INSTANCE_3_PORT: instance.3.port: there are 0 instances before it; number it 0",
        "environment LANEMESH_SERVICE_ORDERS_SUBJECT: is not a variable of this program; rules of one service go in the file",
        "environment LANEMESH_PROXY_PORTS: proxy.ports: `orders` has no `=`; ",
        "environment LANEMESH_ADMIN_BIND: admin.bind: 0.0.0.0:1 is not loopback",
        "flag --proxy.bnid: proxy.bnid: is not a known key; did you mean `proxy.bind`?",
        "flag --log.format: log.format: `xml` is not known; ",
        "flag --env: env: is empty; ",
    ] {
        assert!(whole.contains(says), "`{says}` is not in:\n{whole}");
    }
    assert_eq!(list.len(), 10, "{whole}");
}

#[test]
fn sizes_have_limits_that_are_named() {
    let instances =
        |n: usize| (0..n).map(|i| format!("[[instance]]\nid=\"i{i}\"\nservice=\"a\"\nport=1\n")).collect::<String>();
    assert_eq!(read(&instances(MAX_INSTANCES)).unwrap().instances.len(), MAX_INSTANCES);
    one_fault(&instances(MAX_INSTANCES + 1), &["instance: 10001 instances, at most 10000"]);
    let services = |n: usize| (0..n).map(|i| format!("[service.s{i}]\n")).collect::<String>();
    assert_eq!(read(&services(MAX_SERVICES)).unwrap().services.len(), MAX_SERVICES);
    one_fault(&services(MAX_SERVICES + 1), &["service: 10001 services, at most 10000"]);
    one_fault(&"#".repeat(MAX_FILE_BYTES + 1), &["mesh.toml:1: the file has 1048577 bytes", "at most 1048576"]);
    assert!(read(&"#".repeat(MAX_FILE_BYTES)).is_ok());
    let many = faults(&(0..5000).map(|i| format!("key{i}z = 1\n")).collect::<String>());
    assert_eq!(many.len(), 201);
    assert!(many[200].contains("4800 more faults"), "{}", many[200]);
}

#[test]
fn bytes_become_text_or_a_fault_with_its_line() {
    assert_eq!(decode("f", b"a = 1").unwrap(), "a = 1");
    assert!(decode("f", b"a = 1\nb = \"\xff\"").unwrap_err().to_string().starts_with("f:2: byte 12 is not UTF-8; "));
    assert!(decode("f", &vec![b' '; MAX_FILE_BYTES + 1]).unwrap_err().to_string().contains("at most 1048576"));
}

#[test]
fn tags_are_kept_whole_or_refused() {
    let tagged = |tags: &str| read(&format!("[[instance]]\nservice = \"a\"\nport = 1\n[instance.tags]\n{tags}"));
    for bytes in [0, 511, 512, 513, 1200, 4096] {
        let value = "v".repeat(bytes);
        let config = tagged(&format!("k = \"{value}\"")).unwrap();
        assert_eq!(config.instances[0].tags["k"], value);
    }
    for (tags, says) in [
        (format!("k = \"{}\"", "v".repeat(4097)), "instance.0.tags.k: a value of 4097 bytes"),
        (format!("{} = \"v\"", "k".repeat(129)), "a name of 129 bytes"),
        ("\"a\\nb\" = \"v\"".to_owned(), "a name of 3 bytes, or with control characters"),
        ("k = 1".to_owned(), "is a whole number, not a text"),
        (format!("a = \"{0}\"\nb = \"{0}\"\nc = \"{0}\"", "v".repeat(4000)), "the tags have 12009 bytes"),
    ] {
        let faults: Vec<String> = tagged(&tags).unwrap_err().iter().map(ToString::to_string).collect();
        assert!(faults.len() == 1 && faults[0].contains(says), "{says}: {faults:#?}");
    }
}

#[test]
fn routing_rules_stand_for_all_services_or_for_one() {
    let config = read(
        "[routing]\nbreaker_failures = 5\nbreaker_of = 8\nslow_start = \"30s\"\n\
         [service.orders]\nbreaker_counts = [\"connect\", \"503\"]\nretry_share = \"5%\"\n\
         [service.cart]\nroute_key = [\"header:x-cart\"]\n",
    )
    .unwrap();
    assert_eq!((config.routing.breaker.failures, config.routing.slow_start), (5, Duration::from_secs(30)));
    let of = |name: &str| config.services[&ServiceName::new(name).unwrap()].routing.clone();
    assert_eq!(of("cart"), None);
    let orders = of("orders").unwrap();
    assert_eq!((orders.breaker.failures, orders.breaker.of, orders.retry_share), (5, 8, 0.05));
    let counts = orders.breaker.counts;
    assert!(counts.connect && !counts.reset && counts.statuses.contains(503) && !counts.statuses.contains(500));
    assert_eq!(*read("").unwrap().routing, Routing::default());
    let text = "[proxy]\nmax_requests_per_instance = 9\n[routing]\nbounded_load = 125\nspread = [\"a=b=3\"]\n\
                [service.orders]\nbreaker_counts = [\"grpc:unavailable\", \"grpc:4\"]\nfallback_on = [\"saturated\"]\n";
    let config = read(text).unwrap();
    let orders = config.services[&ServiceName::new("orders").unwrap()].routing.clone().unwrap();
    assert_eq!((orders.bounded_load, orders.most_in_flight), (Some(125), 9));
    assert_eq!((orders.spread.clone(), orders.fallback.saturated), (vec![("a=b".to_owned(), 3)], true));
    let grpc = orders.breaker.counts.grpc;
    assert_eq!([4, 13, 14].map(|code| grpc.contains(code)), [true, false, true]);
}

#[test]
fn routing_rules_that_cannot_be_are_refused() {
    one_fault(
        "[routing]\nbreaker_failures = 7",
        &["mesh.toml:2", "7 of the last 6 can never be reached", "lower it to 6"],
    );
    one_fault("[service.a]\nbreaker_open = \"10m\"", &["service.a.breaker_open", "longer than breaker_open_max (5m)"]);
    one_fault("[routing]\nbreaker_counts = [\"404\"]", &["`404` is no kind of failure", "500 to 599"]);
    one_fault("[routing]\nbreaker_counts = [\"grpc:17\"]", &["`grpc:17` is no kind of failure"]);
    one_fault("[routing]\nspread = [\"tenant-7=1\"]", &["`tenant-7=1` says of no key", "from 2 to 64"]);
    one_fault("[routing]\nspread = [\"a=2\", \"a=3\"]", &["`a` is there twice", "one entry for each key"]);
    one_fault("[routing]\npin = [\"a=o-1\", \"b=o-1\", \"a=o-2\"]", &["`a` is there twice"]);
    one_fault("[routing]\npin = [\"tenant-7=\"]", &["`tenant-7=` does not pin a key", "tenant-7=orders-3"]);
    one_fault("[routing]\npin = [\"a,b\"]", &["`a,b` does not pin a key"]);
    one_fault("[proxy]\nslow_start = \"1s\"", &["proxy.slow_start", "it belongs in [routing]"]);
}
