//! Environment and flags over the file. Both name keys by their dotted names; their text is read by the key's kind.
//!
//! A variable with the prefix that is no key is a fault, because a misspelt variable that is silently ignored is worse than
//! none. Left alone are the variables that Kubernetes sets for a Service named `lanemesh...` (`LANEMESH_SERVICE_HOST`,
//! `LANEMESH_PORT=tcp://...`), the reserved ones, and empty ones, which count as not set.

use std::collections::BTreeMap;

use super::{
    fault::{Faults, Place, Source, Wrong},
    keys::{self, ENVIRONMENT_PREFIX, KEYS, Key, Kind, RESERVED_ENVIRONMENT},
    raw::{Entries, Node, Value},
    table::nearest,
};

/// Values over the file: dotted key to text, with where each came from. Later ones win.
pub type Overrides = Vec<(String, String, Source)>;

/// The variable of a dotted key: `proxy.timeouts.per_try` is `LANEMESH_PROXY_TIMEOUTS_PER_TRY`.
pub fn environment_name(dotted: &str) -> String {
    format!("{ENVIRONMENT_PREFIX}{}", dotted.to_ascii_uppercase().replace('.', "_"))
}

/// A key and which of many it is for.
struct Target {
    within: Within,
    key: &'static Key,
    /// One entry of a table (`proxy.ports.orders`).
    entry: Option<String>,
}

enum Within {
    Fixed,
    Service(String),
    Instance(usize),
}

/// Lays environment and then flags over the file's entries.
pub(super) fn lay_over(
    top: &mut Entries,
    environment: &BTreeMap<String, String>,
    flags: &Overrides,
    faults: &mut Faults,
) {
    let mut from_environment = Vec::new();
    for (name, text) in environment.iter().filter(|(name, _)| name.starts_with(ENVIRONMENT_PREFIX)) {
        let source = Source::Environment(name.clone());
        match of_variable(name) {
            _ if text.is_empty() || RESERVED_ENVIRONMENT.contains(&name.as_str()) => {}
            Some((dotted, target)) => from_environment.push((dotted, text.clone(), source, target)),
            None if is_from_kubernetes(name, text) => {}
            None => faults.add(&Place::Over(source), "", unknown_variable(name)),
        }
    }
    let mut from_flags = Vec::new();
    for (dotted, text, source) in flags {
        match locate(dotted) {
            Some(target) => from_flags.push((dotted.clone(), text.clone(), source.clone(), target)),
            None => faults.add(&Place::Over(source.clone()), dotted.clone(), unknown_dotted(dotted)),
        }
    }
    for mut list in [from_environment, from_flags] {
        // New instances in order of their numbers; names sort 10 before 2.
        list.sort_by_key(|(.., target)| if let Within::Instance(index) = target.within { index } else { 0 });
        for (dotted, text, source, target) in list {
            if let Err(wrong) = put(top, &text, &source, target) {
                faults.add(&Place::Over(source), dotted, wrong);
            }
        }
    }
}

/// The key that a variable names, with its dotted name.
fn of_variable(name: &str) -> Option<(String, Target)> {
    let fixed = KEYS.iter().filter(|key| !matches!(key.section, "service" | "instance"));
    if let Some(key) = fixed.into_iter().find(|key| environment_name(&key.dotted()) == name) {
        return Some((key.dotted(), Target { within: Within::Fixed, key, entry: None }));
    }
    let (index, rest) = name.strip_prefix(ENVIRONMENT_PREFIX)?.strip_prefix("INSTANCE_")?.split_once('_')?;
    let key = keys::find("instance", &rest.to_ascii_lowercase())?;
    let index = index.parse().ok()?;
    Some((format!("instance.{index}.{}", key.name), Target { within: Within::Instance(index), key, entry: None }))
}

/// The key that a dotted name means.
fn locate(dotted: &str) -> Option<Target> {
    if let Some(rest) = dotted.strip_prefix("instance.") {
        let (index, rest) = rest.split_once('.')?;
        let (name, entry) = rest.split_once('.').map_or((rest, None), |(name, entry)| (name, Some(entry.to_owned())));
        let key = keys::find("instance", name).filter(|key| entry.is_none() || key.kind == Kind::Table)?;
        return Some(Target { within: Within::Instance(index.parse().ok()?), key, entry });
    }
    if let Some(rest) = dotted.strip_prefix("service.") {
        let (service, name) = rest.rsplit_once('.')?;
        let key = keys::find("service", name)?;
        return Some(Target { within: Within::Service(service.to_owned()), key, entry: None });
    }
    if let Some(service) = dotted.strip_prefix("proxy.ports.") {
        let key = keys::find("proxy", "ports")?;
        return Some(Target { within: Within::Fixed, key, entry: Some(service.to_owned()) });
    }
    let (section, name) = dotted.rsplit_once('.').unwrap_or(("", dotted));
    let key = keys::find(section, name)?;
    Some(Target { within: Within::Fixed, key, entry: None })
}

fn put(top: &mut Entries, text: &str, source: &Source, target: Target) -> Result<(), Wrong> {
    let place = Place::Over(source.clone());
    let mut table = top;
    match &target.within {
        Within::Fixed => {
            for step in target.key.section.split('.').filter(|step| !step.is_empty()) {
                table = table_in(table, step, &place);
            }
        }
        Within::Service(name) => table = table_in(table_in(table, "service", &place), name, &place),
        Within::Instance(index) => table = instance_in(table, *index, &place)?,
    }
    if let Some(entry) = target.entry {
        let table = table_in(table, target.key.name, &place);
        table.insert(entry, Node { value: Value::Loose(text.to_owned()), place });
        return Ok(());
    }
    let value = if target.key.kind == Kind::Table { pairs(text, &place)? } else { Value::Loose(text.to_owned()) };
    table.insert(target.key.name.to_owned(), Node { value, place });
    Ok(())
}

/// The table at a key, made when absent.
fn table_in<'a>(entries: &'a mut Entries, name: &str, place: &Place) -> &'a mut Entries {
    let empty = || Node { value: Value::Table(Entries::new()), place: place.clone() };
    let node = entries.entry(name.to_owned()).or_insert_with(empty);
    if !matches!(node.value, Value::Table(_)) {
        *node = empty();
    }
    match &mut node.value {
        Value::Table(entries) => entries,
        _ => unreachable!("made a table just above"),
    }
}

/// The table of an instance: one of the file's, or the next.
fn instance_in<'a>(top: &'a mut Entries, index: usize, place: &Place) -> Result<&'a mut Entries, Wrong> {
    let empty = || Node { value: Value::List(Vec::new()), place: place.clone() };
    let node = top.entry("instance".to_owned()).or_insert_with(empty);
    if !matches!(node.value, Value::List(_)) {
        *node = empty();
    }
    let Value::List(list) = &mut node.value else { unreachable!("made a list just above") };
    if index > list.len() {
        let have = list.len();
        return Err(Wrong::new(
            format!("there are {have} instances before it"),
            format!("number it {have}; the first is 0"),
        ));
    }
    if index == list.len() {
        list.push(Node { value: Value::Table(Entries::new()), place: place.clone() });
    }
    match &mut list[index].value {
        Value::Table(entries) => Ok(entries),
        _ => unreachable!("only tables are kept in the list of instances"),
    }
}

/// `a=b,c=d` as a table.
fn pairs(text: &str, place: &Place) -> Result<Value, Wrong> {
    let mut table = Entries::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=') else {
            let shown: String = pair.chars().take(80).collect();
            return Err(Wrong::new(format!("`{shown}` has no `=`"), "write name=value, several joined by commas"));
        };
        let node = Node { value: Value::Loose(value.trim().to_owned()), place: place.clone() };
        table.insert(name.trim().to_owned(), node);
    }
    Ok(Value::Table(table))
}

/// What Kubernetes sets in every container for a Service whose name begins with `lanemesh`.
fn is_from_kubernetes(name: &str, text: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || (name.contains("_PORT") && text.contains("://"))
        || name.split_once("_PORT_").is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn unknown_variable(name: &str) -> Wrong {
    let known: Vec<String> =
        KEYS.iter().filter(|key| key.section != "service").map(|key| environment_name(&key.dotted())).collect();
    let cure = match nearest(name, known.iter().map(String::as_str)) {
        Some(near) => format!("did you mean {}?", near.to_ascii_uppercase()),
        None if name.starts_with("LANEMESH_SERVICE_") => {
            "rules of one service go in the file: [service.NAME]".to_owned()
        }
        None => "unset it, or see the names in `lanemesh config reference`".to_owned(),
    };
    Wrong::new("is not a variable of this program", cure)
}

fn unknown_dotted(dotted: &str) -> Wrong {
    let known: Vec<String> = KEYS.iter().map(Key::dotted).collect();
    let cure = match nearest(dotted, known.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "see the keys in `lanemesh config reference`".to_owned(),
    };
    Wrong::new("is not a known key", cure)
}
