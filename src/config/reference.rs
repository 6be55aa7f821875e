//! The commented reference of every key, its default and its meaning, printed from the table of keys.
//!
//! It is a configuration file itself: keys with a default stand there with it, keys without are commented out (`#key = ...`,
//! no space, where prose has one), and resolving it gives the defaults.

use super::{
    keys::{Absent, KEYS, Key, Kind, SECTIONS},
    overrides::environment_name,
    values::format_duration,
};

/// A complete configuration file with every key, commented.
pub fn reference() -> String {
    let mut out = String::new();
    prose(&mut out, INTRODUCTION);
    for (section, about) in SECTIONS {
        out.push('\n');
        prose(&mut out, about);
        // Sections that come once per name or instance have no default: they are commented out whole.
        let many = matches!(*section, "service" | "instance");
        match *section {
            "" => {}
            "service" => out.push_str("#[service.orders]\n"),
            "instance" => out.push_str("#[[instance]]\n"),
            section => out.push_str(&format!("[{section}]\n")),
        }
        for key in KEYS.iter().filter(|key| key.section == *section) {
            out.push('\n');
            describe(&mut out, key, many);
        }
    }
    out
}

fn describe(out: &mut String, key: &Key, commented: bool) {
    prose(out, key.about);
    let mut facts = vec![takes(key.kind)];
    let value = match key.absent {
        Absent::Is(value) => {
            facts.push(format!("default {}", literal(key, value)));
            value
        }
        Absent::Unset(example, then) => {
            facts.push(format!("when not given: {then}"));
            example
        }
        Absent::Needed(example) => {
            facts.push("has to be given".to_owned());
            example
        }
    };
    prose(out, &format!("({})", facts.join("; ")));
    if key.section != "service" {
        prose(out, &format!("Environment: {}", environment_name(&key.dotted())));
    }
    let commented = commented || !matches!(key.absent, Absent::Is(_));
    out.push_str(&format!("{}{} = {}\n", if commented { "#" } else { "" }, key.name, literal(key, value)));
}

/// What a key takes, in words, with its range.
fn takes(kind: Kind) -> String {
    match kind {
        Kind::Name | Kind::Text => "text".to_owned(),
        Kind::Path => "path".to_owned(),
        Kind::Flag => "true or false".to_owned(),
        Kind::Whole(min, max) => format!("whole number, {min} to {max}"),
        Kind::Share => "share, 0.0 to 1.0 or \"5%\"".to_owned(),
        Kind::Span(min, max) => {
            format!("duration, {} to {}", format_duration(min), format_duration(max))
        }
        Kind::Address => "IP:port".to_owned(),
        Kind::Choice(allowed) => format!("one of {}", allowed.join(", ")),
        Kind::Texts => "list of texts; in the environment a,b".to_owned(),
        Kind::Table => "table; in the environment a=x,b=y".to_owned(),
    }
}

/// A value as it stands in a file.
pub(super) fn literal(key: &Key, text: &str) -> String {
    match key.kind {
        Kind::Flag | Kind::Whole(..) | Kind::Share | Kind::Table => text.to_owned(),
        Kind::Texts if text.starts_with('[') => text.to_owned(),
        Kind::Texts if text.is_empty() => "[]".to_owned(),
        Kind::Texts => format!("[\"{}\"]", text.replace(',', "\", \"")),
        _ => format!("\"{text}\""),
    }
}

/// Comment lines of at most 100 characters.
fn prose(out: &mut String, text: &str) {
    for paragraph in text.lines() {
        let mut line = String::from("#");
        for word in paragraph.split_whitespace() {
            if line.len() + word.len() >= 100 {
                out.push_str(&line);
                out.push('\n');
                line = String::from("#");
            }
            line.push(' ');
            line.push_str(word);
        }
        out.push_str(&line);
        out.push('\n');
    }
}

const INTRODUCTION: &str = "\
lanemesh configuration: every key, with its default.

Environment variables come over the file, flags over the environment. A variable's name is the dotted key in capitals with _ for \
each dot; an empty variable counts as not set. N in a name is the number of an instance, from 0: \
LANEMESH_INSTANCE_0_PORT changes the first [[instance]] of the file, or makes one.
Durations have a unit: 250ms, 1.5s, 2m, 1h. Names of nodes, services, instances, lanes and so on have 1 to 63 characters of a-z, \
0-9, -, _ and . (a version also A-Z and +).
Check a file with `lanemesh config check FILE`: it names every fault at once, with its line and its cure.";
