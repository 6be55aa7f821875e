//! From what was typed to what is meant.
//!
//! Every value is read with its default, and rules between values are checked on what was read; a fault never ends the reading,
//! so that all of them come out together. A rule between two values is not checked where one of them is at fault already.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use crate::types::{NodeId, Protocol, ServiceName, SubjectSource};

use super::{
    AccessLog, Admin, Check, CheckKind, Config, Fault, Gossip, Identity, Instance, LoadSource, LogFormat, Overrides,
    Profile, Proxy, Routing, ServiceRule, Shutdown, TcpKey, Timeouts,
    fault::{Faults, Wrong},
    keys::{Key, MAX_INSTANCES, MAX_SERVICES},
    overrides,
    raw::{self, Entries, Node, Value},
    routing,
    table::{Section, keep_known},
    values::{self, Parsed, format_duration, parse_check, parse_load, parse_subject, request_id_in, split},
};

/// Resolves a file's text (empty for no file) and what lies over it; every fault at once, the file's in order of its lines.
/// `environment` may be the whole environment: only names with the prefix are looked at.
pub fn resolve(
    file_name: &str,
    text: &str,
    environment: &BTreeMap<String, String>,
    flags: &Overrides,
) -> Result<Config, Vec<Fault>> {
    let mut faults = Faults::new(file_name);
    let mut top = raw::parse(text, &mut faults);
    keep_known("", "", &mut top, &mut faults);
    overrides::lay_over(&mut top, environment, flags, &mut faults);
    let config = config(&top, &mut faults);
    let faults = faults.into_sorted();
    if faults.is_empty() { Ok(config) } else { Err(faults) }
}

fn config(top: &Entries, f: &mut Faults) -> Config {
    let root = Section::fixed("", top);
    let log = Section::fixed("log", top);
    let shutdown = Section::fixed("shutdown", top);
    let node = root.get(f, "node", values::name);
    let proxy = proxy(top, f);
    let routing = routing::read(&Section::fixed("routing", top), &Routing::default(), f);
    let most_in_flight = u32::try_from(proxy.max_requests_per_instance).unwrap_or(u32::MAX);
    let routing = Arc::new(Routing { most_in_flight, ..routing });
    let config = Config {
        mesh: root.get(f, "mesh", values::name),
        data_dir: root.value(f, "data_dir", path),
        identity: identity(&Section::fixed("identity", top), node.as_ref(), f),
        node,
        gossip: gossip(&Section::fixed("gossip", top), f),
        proxy,
        admin: admin(&Section::fixed("admin", top), f),
        env: root.value(f, "env", values::name),
        region: root.value(f, "region", values::name),
        zone: root.value(f, "zone", values::name),
        instances: instances(top, f),
        services: services(top, &routing, f),
        routing,
        log_filter: log.value(f, "filter", values::log_filter),
        log_format: log.value(f, "format", log_format),
        access_log: access_log(&Section::fixed("access_log", top), f),
        shutdown: Shutdown {
            spread: shutdown.value(f, "spread", values::span),
            limit: shutdown.value(f, "limit", values::span),
        },
    };
    instance_ids(top, &config, f);
    ports_apart(top, &config, f);
    config
}

/// Files are looked for where `ca issue` puts them for this node.
fn identity(s: &Section<'_>, node: Option<&NodeId>, f: &mut Faults) -> Identity {
    let name = node.map_or("node", NodeId::as_str);
    let certificate = s.get(f, "certificate", path).unwrap_or_else(|| format!("identity/{name}.pem").into());
    let key = s.get(f, "key", path).unwrap_or_else(|| format!("identity/{name}-key.pem").into());
    Identity { certificate, key, ca: s.value(f, "ca", path) }
}

fn gossip(s: &Section<'_>, f: &mut Faults) -> Gossip {
    let bind: SocketAddr = s.value(f, "bind", values::address);
    let advertise: Option<SocketAddr> = s.get(f, "advertise", values::address);
    if let Some(address) = advertise {
        if address.ip().is_unspecified() || address.ip().is_multicast() {
            let reason = format!("{address} is no address that peers can send to");
            s.fault(f, "advertise", Wrong::new(reason, "write the address by which peers reach this host"));
        } else if address.port() == 0 && bind.port() != 0 && s.node("bind").is_some() {
            let cure = format!("write \"{}\"", SocketAddr::new(address.ip(), bind.port()));
            s.fault(
                f,
                "advertise",
                Wrong::new("port 0 stands for a port that the system chooses, but gossip.bind names one", cure),
            );
        }
    }
    let profile =
        |value: &Value, key: &Key| Ok(if values::choice(value, key)? == "wan" { Profile::Wan } else { Profile::Lan });
    Gossip {
        bind,
        advertise,
        seeds: s.value(f, "seeds", seeds),
        profile: s.value(f, "profile", profile),
        coalesce: s.value(f, "coalesce", values::span),
    }
}

fn seeds(value: &Value, key: &Key) -> Parsed<Vec<String>> {
    let (good, bad): (Vec<_>, Vec<_>) =
        values::texts(value, key)?.into_iter().map(values::seed).partition(Result::is_ok);
    let bad = bad.into_iter().filter_map(Result::err).reduce(Wrong::and);
    bad.map_or_else(|| Ok(good.into_iter().flatten().collect()), Err)
}

fn proxy(top: &Entries, f: &mut Faults) -> Proxy {
    let s = &Section::fixed("proxy", top);
    let subject: SubjectSource = s.value(f, "subject", subject);
    if let Some(header) = request_id_in(&subject) {
        let cure = "use a header that stays with the user; for batch traffic of one service, set subject and \
                    request_id_as_subject = true in [service.NAME]";
        s.fault(f, "subject", request_id(header, cure));
    }
    Proxy {
        bind: s.value(f, "bind", values::address),
        ports: ports(s, "ports", "{ orders = \"127.0.0.1:18001\" }", f),
        tcp_ports: ports(s, "tcp_ports", "{ redis = \"127.0.0.1:16379\" }", f),
        workers: small(s.value(f, "workers", values::whole)),
        expose_decision: s.value(f, "expose_decision", values::flag),
        lane_header: s.value(f, "lane_header", values::lane_header),
        max_head_bytes: small(s.value(f, "max_head_bytes", values::whole)),
        max_headers: small(s.value(f, "max_headers", values::whole)),
        max_connections: small(s.value(f, "max_connections", values::whole)),
        max_requests_per_instance: small(s.value(f, "max_requests_per_instance", values::whole)),
        connect_ahead: small(s.value(f, "connect_ahead", values::whole)),
        max_replay_bytes: s.value(f, "max_replay_bytes", values::whole),
        h2_max_streams: small(s.value(f, "h2_max_streams", values::whole)),
        max_retries: small(s.value(f, "max_retries", values::whole)),
        timeouts: timeouts(&Section::fixed("proxy.timeouts", top), f),
        subject,
    }
}

/// Dedicated ports: a table from service to address.
fn ports(s: &Section<'_>, key: &str, example: &str, f: &mut Faults) -> BTreeMap<ServiceName, SocketAddr> {
    let mut ports = BTreeMap::new();
    for (name, node) in table_of(s, f, key, example) {
        let dotted = s.dotted(&format!("{key}.{name}"));
        let key = super::keys::find("proxy", "bind");
        let address = key.map(|key| values::address(&node.value, key));
        match (ServiceName::new(name), address) {
            (Ok(service), Some(Ok(address))) => drop(ports.insert(service, address)),
            (Err(error), _) => f.add(&node.place, dotted, bad_name(&error)),
            (_, Some(Err(wrong))) => f.add(&node.place, dotted, wrong),
            (_, None) => {}
        }
    }
    ports
}

fn timeouts(s: &Section<'_>, f: &mut Faults) -> Timeouts {
    let total: Duration = s.value(f, "total", values::span);
    let third = total / 3;
    let per_try: Duration = s.get(f, "per_try", values::span).unwrap_or_else(|| third.min(Duration::from_secs(5)));
    let connect: Duration = s.get(f, "connect", values::span).unwrap_or_else(|| per_try.min(Duration::from_secs(1)));
    let shown = format_duration;
    if per_try > third {
        let reason = format!(
            "{} is more than a third of total ({}), so a slow instance leaves no time for two others",
            shown(per_try),
            shown(total)
        );
        let cure = format!("lower it to {} or raise total to {}", shown(whole_ms(third)), shown(per_try * 3));
        s.fault(f, "per_try", Wrong::new(reason, cure));
    }
    if connect > per_try {
        let reason = format!("{} is longer than per_try ({}), which contains it", shown(connect), shown(per_try));
        s.fault(f, "connect", Wrong::new(reason, format!("lower it to {} or less", shown(per_try))));
    }
    Timeouts {
        connect,
        per_try,
        silence: s.value(f, "silence", values::span),
        total,
        idle: s.value(f, "idle", values::span),
        tunnel_idle: s.value(f, "tunnel_idle", values::span),
        pool_idle: s.value(f, "pool_idle", values::span),
        h2_ping: s.value(f, "h2_ping", values::span),
        head: s.value(f, "head", values::span),
        body: s.value(f, "body", values::span),
    }
}

fn admin(s: &Section<'_>, f: &mut Faults) -> Admin {
    let bind: SocketAddr = s.value(f, "bind", values::address);
    let allow_remote = s.value(f, "allow_remote", values::flag);
    if !bind.ip().to_canonical().is_loopback() && !allow_remote {
        let reason = format!("{bind} is not loopback: others could read this sidecar's state and try its write token");
        let cure = format!("write \"127.0.0.1:{}\", or set admin.allow_remote = true if that is meant", bind.port());
        s.fault(f, "bind", Wrong::new(reason, cure));
    }
    Admin { bind, allow_remote }
}

fn access_log(s: &Section<'_>, f: &mut Faults) -> AccessLog {
    AccessLog {
        sample: s.value(f, "sample", values::share),
        format: s.value(f, "format", log_format),
        hash_subject: s.value(f, "hash_subject", values::flag),
        path: s.get(f, "path", path),
    }
}

fn services(top: &Entries, routing: &Arc<Routing>, f: &mut Faults) -> BTreeMap<ServiceName, ServiceRule> {
    let mut rules = BTreeMap::new();
    let Some(node) = top.get("service") else { return rules };
    let Some(table) = node.table() else { return rules };
    if table.len() > MAX_SERVICES {
        let reason = format!("{} services, at most {MAX_SERVICES} are taken", table.len());
        f.add(&node.place, "service", Wrong::new(reason, "give rules only for services that this pod calls"));
        return rules;
    }
    for (name, node) in table {
        let s = Section::one("service", name, node);
        let rule = ServiceRule {
            subject: s.get(f, "subject", subject),
            route_key: s.get(f, "route_key", subject),
            request_id_as_subject: s.value(f, "request_id_as_subject", values::flag),
            tcp_key: s.value(f, "tcp_key", tcp_key),
            routing: Some(routing::read(&s, routing, f)).filter(|own| *own != **routing).map(Arc::new),
        };
        if let (Some(header), false) = (rule.subject.as_ref().and_then(request_id_in), rule.request_id_as_subject) {
            let cure = "use a header that stays with the user, or set request_id_as_subject = true for batch and load-test traffic";
            s.fault(f, "subject", request_id(header, cure));
        }
        match ServiceName::new(name) {
            Ok(service) => drop(rules.insert(service, rule)),
            Err(error) => f.add(&node.place, format!("service.{name}"), bad_name(&error)),
        }
    }
    rules
}

fn instances(top: &Entries, f: &mut Faults) -> Vec<Instance> {
    let Some(Node { value: Value::List(list), place }) = top.get("instance") else { return Vec::new() };
    if list.len() > MAX_INSTANCES {
        let reason = format!("{} instances, at most {MAX_INSTANCES} are taken", list.len());
        f.add(place, "instance", Wrong::new(reason, "spread them over several sidecars"));
        return Vec::new();
    }
    let one = |(index, node): (usize, &Node)| instance(&Section::one("instance", &index.to_string(), node), f);
    list.iter().enumerate().filter_map(one).collect()
}

/// `None` where a needed key is missing or at fault, which is then among the faults.
fn instance(s: &Section<'_>, f: &mut Faults) -> Option<Instance> {
    let protocol = |value: &Value, key: &Key| {
        Ok(match values::choice(value, key)? {
            "h2c" => Protocol::H2c,
            "grpc" => Protocol::Grpc,
            "tcp" => Protocol::Tcp,
            _ => Protocol::Http1,
        })
    };
    let id = s.get(f, "id", values::name);
    let service = s.get(f, "service", values::name);
    let host = s.get(f, "host", host);
    let port = s.get(f, "port", values::whole).map(small);
    let protocol = s.value(f, "protocol", protocol);
    let version = s.value(f, "version", values::name);
    let lane = s.value(f, "lane", values::name);
    let weight = small(s.value(f, "weight", values::whole));
    let tags = tags(s, f);
    let capacity = s.get(f, "capacity", values::whole).map(small);
    let check = check(s, f, capacity);
    Some(Instance { id, service: service?, host, port: port?, protocol, version, lane, weight, tags, capacity, check })
}

fn check(s: &Section<'_>, f: &mut Faults, capacity: Option<u32>) -> Check {
    let kind = |value: &Value, key: &Key| parse_check(values::text(value, key)?).map_err(|message| split(&message));
    let kind = s.value(f, "check", kind);
    let interval: Duration = s.value(f, "check_interval", values::span);
    let timeout: Duration =
        s.get(f, "check_timeout", values::span).unwrap_or_else(|| interval.min(Duration::from_millis(500)));
    if timeout > interval {
        let shown = format_duration;
        let reason = format!("{} is longer than check_interval ({})", shown(timeout), shown(interval));
        s.fault(f, "check_timeout", Wrong::new(reason, format!("lower it to {} or less", shown(interval))));
    }
    let rise = small(s.value(f, "rise", values::whole));
    let fall = small(s.value(f, "fall", values::whole));
    let load =
        |value: &Value, key: &Key| parse_load(values::text(value, key)?, capacity).map_err(|message| split(&message));
    let load = s.value(f, "load", load);
    if matches!(load, LoadSource::Check(_)) && !matches!(kind, CheckKind::Http(_)) {
        let reason = "`check` reads a header of the health reply, and this check has none";
        s.fault(f, "load", Wrong::new(reason, "set check = \"http:/path\", or load = \"cgroup:DIR\""));
    }
    Check { kind, interval, timeout, load, rise, fall }
}

/// Labels, within the limits of an instance record, so that a refusal comes where they are typed.
fn tags(s: &Section<'_>, f: &mut Faults) -> BTreeMap<String, String> {
    let mut tags = BTreeMap::new();
    let mut bytes = 0;
    for (name, node) in table_of(s, f, "tags", "{ rack = \"a7\" }") {
        let clean = |text: &str| !text.chars().any(char::is_control);
        let wrong = match &node.value {
            _ if name.is_empty() || name.len() > 128 || !clean(name) => Wrong::new(
                format!("a name of {} bytes, or with control characters", name.len()),
                "use 1 to 128 plain bytes",
            ),
            Value::Text(text) | Value::Loose(text) if text.len() <= 4096 && clean(text) => {
                bytes += name.len() + text.len() + 2;
                tags.insert(name.clone(), text.clone());
                continue;
            }
            Value::Text(text) | Value::Loose(text) => Wrong::new(
                format!("a value of {} bytes, or with control characters", text.len()),
                "use at most 4096 plain bytes",
            ),
            other => Wrong::new(format!("is {}, not a text", other.kind()), "put the value in double quotes"),
        };
        let shown: String = name.chars().take(80).collect();
        f.add(&node.place, s.dotted(&format!("tags.{shown}")), wrong);
    }
    if bytes > crate::types::MAX_RECORD_BYTES {
        let reason = format!(
            "the tags have {bytes} bytes, and a record with all its fields at most {}",
            crate::types::MAX_RECORD_BYTES
        );
        s.fault(f, "tags", Wrong::new(reason, "shorten them"));
    }
    tags
}

/// The entries of a key that takes a table; none when it was not given.
fn table_of<'a>(
    s: &Section<'a>,
    f: &mut Faults,
    name: &str,
    example: &str,
) -> impl Iterator<Item = (&'a String, &'a Node)> + use<'a> {
    let table = s.node(name).and_then(Node::table);
    if let (Some(node), None) = (s.node(name), table) {
        let cure = format!("write {name} = {example}");
        s.fault(f, name, Wrong::new(format!("is {}, not a table", node.value.kind()), cure));
    }
    table.into_iter().flatten()
}

/// Ids must differ; only one instance may do without, and takes the node's.
fn instance_ids(top: &Entries, config: &Config, f: &mut Faults) {
    let Some(Node { value: Value::List(list), .. }) = top.get("instance") else { return };
    let node = config.node.as_ref().map(|node| node.as_str());
    let mut seen = BTreeSet::new();
    let mut unnamed = 0;
    for (index, item) in list.iter().enumerate().take(MAX_INSTANCES) {
        let s = Section::one("instance", &index.to_string(), item);
        let id = match s.node("id").map(|id| &id.value) {
            Some(Value::Text(id) | Value::Loose(id)) => Some(id.as_str()),
            Some(_) => continue,
            None => {
                unnamed += 1;
                if unnamed > 1 {
                    let reason = "only one instance can take the node id as its own";
                    s.fault(
                        f,
                        "id",
                        Wrong::new(
                            reason,
                            format!("give this one an id, such as id = \"{}-{index}\"", node.unwrap_or("orders")),
                        ),
                    );
                    continue;
                }
                node
            }
        };
        if let Some(id) = id.filter(|id| !seen.insert(*id)) {
            s.fault(
                f,
                "id",
                Wrong::new(format!("`{id}` is another instance's id already"), "ids are unique within the mesh"),
            );
        }
    }
}

/// Two listeners on one TCP address: the second would fail at start with a message that names neither key.
fn ports_apart(top: &Entries, config: &Config, f: &mut Faults) {
    let proxy = Section::fixed("proxy", top);
    let admin = Section::fixed("admin", top);
    let dedicated =
        [("ports", &config.proxy.ports), ("tcp_ports", &config.proxy.tcp_ports)].into_iter().flat_map(|(key, all)| {
            let typed = proxy.node(key).and_then(Node::table);
            let place = proxy.place(key);
            all.iter().map(move |(service, address)| {
                let place = typed.and_then(|table| table.get(service.as_str())).map_or(place, |node| &node.place);
                (*address, place, format!("proxy.{key}.{service}"))
            })
        });
    let mut taken = vec![(config.proxy.bind, "proxy.bind".to_owned())];
    for (address, place, key) in
        std::iter::once((config.admin.bind, admin.place("bind"), "admin.bind".into())).chain(dedicated)
    {
        match taken.iter().find(|(other, _)| overlap(*other, address)) {
            Some((_, other)) => {
                let reason = format!("{address} is taken by {other}");
                f.add(place, key, Wrong::new(reason, "choose another port, or port 0 for any"));
            }
            None => taken.push((address, key)),
        }
    }
}

fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let any = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() != 0 && a.port() == b.port() && (any || a.ip() == b.ip())
}

fn path(value: &Value, key: &Key) -> Parsed<PathBuf> {
    values::text(value, key).map(PathBuf::from)
}

fn host(value: &Value, key: &Key) -> Parsed<String> {
    let host = values::text(value, key)?;
    if values::is_host(host) {
        return Ok(host.to_owned());
    }
    let shown: String = host.chars().take(80).collect();
    Err(Wrong::new(
        format!("`{shown}` is not a host name or IP address"),
        "write it without scheme, port, path or brackets",
    ))
}

fn subject(value: &Value, key: &Key) -> Parsed<SubjectSource> {
    parse_subject(&values::texts(value, key)?).map_err(|message| split(&message))
}

fn tcp_key(value: &Value, key: &Key) -> Parsed<TcpKey> {
    let text = values::text(value, key)?;
    match (text, text.strip_prefix("fixed:")) {
        ("source", _) => Ok(TcpKey::Source),
        ("random", _) => Ok(TcpKey::Random),
        (_, Some(fixed)) if !fixed.is_empty() => Ok(TcpKey::Fixed(fixed.to_owned())),
        _ => {
            let shown: String = text.chars().take(80).collect();
            Err(Wrong::new(format!("`{shown}` is no key"), "write \"source\", \"random\" or \"fixed:TEXT\""))
        }
    }
}

fn log_format(value: &Value, key: &Key) -> Parsed<LogFormat> {
    Ok(if values::choice(value, key)? == "json" { LogFormat::Json } else { LogFormat::Text })
}

/// Into the type of a field whose key's range fits it (a test reads every range's ends).
fn small<T: TryFrom<u64>>(n: u64) -> T {
    T::try_from(n).unwrap_or_else(|_| unreachable!("{n} is within its key's range, which fits the field"))
}

fn whole_ms(span: Duration) -> Duration {
    Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

fn request_id(header: &str, cure: &str) -> Wrong {
    Wrong::new(format!("`{header}` changes with every request, so a user would change lanes with every request"), cure)
}

fn bad_name(error: &crate::types::NameError) -> Wrong {
    let message = error.to_string();
    let (reason, rule) = message.rsplit_once(": ").unwrap_or((&message, "see `lanemesh config reference`"));
    Wrong::new(reason, format!("use {rule}"))
}
