//! Tables of the file against the table of keys: what does not belong is named with the nearest key that does, and what belongs
//! is read with its default.

use super::{
    fault::{Faults, Place, Wrong},
    keys::{self, Absent, KEYS, SECTIONS},
    raw::{Entries, Node, Value},
    values::Parsed,
};

/// Removes what no key of `section` is, with a fault for each; afterwards sections are tables and every key is known.
pub(super) fn keep_known(section: &str, shown: &str, entries: &mut Entries, faults: &mut Faults) {
    entries.retain(|name, node| {
        let shown = join(shown, name);
        let inner = join(section, name);
        if keys::find(section, name).is_some() {
            return true;
        }
        match (inner.as_str(), &mut node.value) {
            ("service", Value::Table(services)) => {
                services.retain(|name, node| keep_table("service", &join("service", name), node, faults));
                true
            }
            ("instance", Value::List(list)) => {
                let mut index = 0;
                list.retain_mut(|node| {
                    let shown = format!("instance.{index}");
                    index += 1;
                    keep_table("instance", &shown, node, faults)
                });
                true
            }
            ("instance", _) => not_a_section("instance", &shown, node, faults),
            (known, _) if SECTIONS.iter().any(|(name, _)| *name == known) => keep_table(known, &shown, node, faults),
            _ => {
                faults.add(&node.place, shown, unknown(section, name));
                false
            }
        }
    });
}

fn keep_table(section: &str, shown: &str, node: &mut Node, faults: &mut Faults) -> bool {
    if let Value::Table(entries) = &mut node.value {
        keep_known(section, shown, entries, faults);
        return true;
    }
    not_a_section(section, shown, node, faults)
}

fn not_a_section(section: &str, shown: &str, node: &Node, faults: &mut Faults) -> bool {
    let header = match section {
        "instance" => "write [[instance]], with its keys below, one block per instance".to_owned(),
        "service" => "write [service.NAME], with its keys below".to_owned(),
        _ => format!("write [{section}], with its keys below"),
    };
    faults.add(&node.place, shown, Wrong::new(format!("is {}, not a section", node.value.kind()), header));
    false
}

/// What to say of a key that is not known: the nearest of its section, else where it belongs, else what there is.
fn unknown(section: &str, name: &str) -> Wrong {
    let prefix = if section.is_empty() { String::new() } else { format!("{section}.") };
    let subsections =
        SECTIONS.iter().filter_map(|(s, _)| s.strip_prefix(&prefix)).filter(|s| !s.is_empty() && !s.contains('.'));
    let here: Vec<&str> =
        KEYS.iter().filter(|key| keys::belongs(key, section)).map(|key| key.name).chain(subsections).collect();
    let cure = if let Some(near) = nearest(name, here.iter().copied()) {
        format!("did you mean `{near}`?")
    } else if let Some(key) = KEYS.iter().find(|key| key.name == name) {
        match key.section {
            "" => "it belongs at the top of the file, before the first [section]".to_owned(),
            "instance" => "it belongs in an [[instance]] block".to_owned(),
            "service" => "it belongs in [service.NAME]".to_owned(),
            section => format!("it belongs in [{section}]"),
        }
    } else {
        format!("known here: {}", here.join(", "))
    };
    Wrong::new("is not a known key", cure)
}

/// The candidate that a slip of the fingers may have meant.
pub(super) fn nearest<'a>(typed: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if typed.len() > 100 {
        return None;
    }
    let typed = typed.to_ascii_lowercase().replace('-', "_");
    let allowed = (typed.chars().count() / 3).clamp(1, 3);
    let by_distance = candidates.map(|name| (distance(&typed, &name.to_ascii_lowercase()), name));
    by_distance.filter(|(distance, _)| *distance <= allowed).min().map(|(_, name)| name)
}

/// Edits between two texts, a swap of neighbours counting as one (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

/// One section being read: a table of the file, or nothing, with defaults behind it.
pub(super) struct Section<'a> {
    /// As the table of keys calls it.
    schema: &'static str,
    /// As a person sees it (`instance.2`).
    shown: String,
    place: Place,
    entries: Option<&'a Entries>,
}

impl<'a> Section<'a> {
    /// A section with one fixed place, from the top of the file; absent when the file has none.
    pub(super) fn fixed(schema: &'static str, top: &'a Entries) -> Self {
        let mut place = Place::Line(1);
        let mut entries = Some(top);
        for step in schema.split('.').filter(|step| !step.is_empty()) {
            let node = entries.and_then(|entries| entries.get(step));
            place = node.map_or(place, |node| node.place.clone());
            entries = node.and_then(Node::table);
        }
        Self { schema, shown: schema.to_owned(), place, entries }
    }

    /// One of many: `[service.NAME]`, `[[instance]]`.
    pub(super) fn one(schema: &'static str, name: &str, node: &'a Node) -> Self {
        Self { schema, shown: format!("{schema}.{name}"), place: node.place.clone(), entries: node.table() }
    }

    /// Dotted key for messages.
    pub(super) fn dotted(&self, name: &str) -> String {
        join(&self.shown, name)
    }

    /// What was typed for a key.
    pub(super) fn node(&self, name: &str) -> Option<&'a Node> {
        self.entries.and_then(|entries| entries.get(name))
    }

    /// Where a key was typed, or its section where it was not.
    pub(super) fn place(&self, name: &str) -> &Place {
        self.node(name).map_or(&self.place, |node| &node.place)
    }

    /// Reads a key. `None`: not given, without a default (or refused, which is then among the faults).
    pub(super) fn get<T>(
        &self,
        faults: &mut Faults,
        name: &str,
        parse: impl Fn(&Value, &keys::Key) -> Parsed<T>,
    ) -> Option<T> {
        let key = keys::find(self.schema, name)
            .unwrap_or_else(|| unreachable!("{} is in the table of keys", self.dotted(name)));
        if let Some(node) = self.node(name) {
            match parse(&node.value, key) {
                Ok(value) => return Some(value),
                Err(wrong) => faults.add(&node.place, self.dotted(name), wrong),
            }
        } else if let (Absent::Needed(example), false) = (key.absent, faults.incomplete()) {
            let example = super::reference::literal(key, example);
            faults.add(&self.place, self.dotted(name), Wrong::new("is missing", format!("add {name} = {example}")));
        }
        match key.absent {
            Absent::Is(text) => parse(&Value::Loose(text.to_owned()), key).ok(),
            Absent::Unset(..) | Absent::Needed(_) => None,
        }
    }

    /// Reads a key, without its default.
    pub(super) fn given<T>(
        &self,
        faults: &mut Faults,
        name: &str,
        parse: impl Fn(&Value, &keys::Key) -> Parsed<T>,
    ) -> Option<T> {
        self.node(name).and_then(|_| self.get(faults, name, parse))
    }

    /// Reads a key that has a default.
    pub(super) fn value<T>(
        &self,
        faults: &mut Faults,
        name: &str,
        parse: impl Fn(&Value, &keys::Key) -> Parsed<T>,
    ) -> T {
        self.get(faults, name, parse).unwrap_or_else(|| unreachable!("{} has a default that parses", self.dotted(name)))
    }

    /// Names a fault at a key, or at its section where the key was not given (unless that may be for want of reading it).
    pub(super) fn fault(&self, faults: &mut Faults, name: &str, wrong: Wrong) {
        if self.node(name).is_none() && faults.incomplete() {
            return;
        }
        faults.add(self.place(name), self.dotted(name), wrong);
    }
}

impl Node {
    /// Its entries, if it is a table.
    pub(super) fn table(&self) -> Option<&Entries> {
        match &self.value {
            Value::Table(entries) => Some(entries),
            _ => None,
        }
    }
}
