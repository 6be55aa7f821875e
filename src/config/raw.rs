//! What was typed: the file as a tree of values with their lines, before anybody asks what it means.
//!
//! Invariant: no input makes this panic or use more than a small multiple of its size. Syntax errors do not hide the rest: the
//! parser recovers, and what it could read is checked as well.

use std::collections::BTreeMap;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::fault::{Fault, Faults, Place, Source, Wrong};

/// Largest configuration file, in bytes (1 MiB). Ten thousand instances fit twice.
pub const MAX_FILE_BYTES: usize = 1 << 20;

/// A value and where it was typed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) place: Place,
}

/// A table's entries, by key.
pub(super) type Entries = BTreeMap<String, Node>;

/// What was typed.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// Text of an environment variable, a flag or a default: its key decides what it is.
    Loose(String),
    Text(String),
    /// Saturates far outside of every range that a key has.
    Whole(i128),
    Real(f64),
    Flag(bool),
    /// A TOML date; no key takes one.
    Date,
    List(Vec<Node>),
    Table(Entries),
}

impl Value {
    /// For messages: `a number` and the like.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Loose(_) | Self::Text(_) => "a text",
            Self::Whole(_) => "a whole number",
            Self::Real(_) => "a fraction",
            Self::Flag(_) => "true or false",
            Self::Date => "a date",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }
}

/// A file's bytes as text: at most [`MAX_FILE_BYTES`], UTF-8. Read at most one byte more than that before calling this.
pub fn decode<'a>(file_name: &str, bytes: &'a [u8]) -> Result<&'a str, Box<Fault>> {
    let fault = |line, wrong: Wrong| {
        let source = Source::File { name: file_name.to_owned(), line };
        Box::new(Fault { source, key: String::new(), reason: wrong.reason, cure: wrong.cure })
    };
    if bytes.len() > MAX_FILE_BYTES {
        return Err(fault(1, too_large(bytes.len())));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|b| **b == b'\n').count();
        let reason = format!("byte {} is not UTF-8", error.valid_up_to() + 1);
        fault(line, Wrong::new(reason, "save the file as UTF-8"))
    })
}

/// Parses a file's text. What could not be read is a fault; the rest comes back.
pub(super) fn parse(text: &str, faults: &mut Faults) -> Entries {
    if text.len() > MAX_FILE_BYTES {
        faults.add(&Place::Line(1), "", too_large(text.len()));
        return Entries::new();
    }
    // A byte order mark, as some editors write it, has no meaning in UTF-8.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = Lines::new(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let line = lines.at(error.span().map_or(text.len(), |span| span.start));
        faults.add_broken(line, syntax(error.message()));
    }
    entries(table.into_inner(), &lines)
}

fn entries(table: DeTable<'_>, lines: &Lines) -> Entries {
    let one = |(key, value): (Spanned<_>, Spanned<_>)| {
        let place = Place::Line(lines.at(key.span().start));
        let key: std::borrow::Cow<'_, str> = key.into_inner();
        (key.into_owned(), Node { place, value: convert(value.into_inner(), lines) })
    };
    table.into_iter().map(one).collect()
}

fn convert(value: DeValue<'_>, lines: &Lines) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(n) => Value::Whole(i128::from_str_radix(n.as_str(), n.radix()).unwrap_or(i128::MAX)),
        DeValue::Float(x) => Value::Real(x.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(flag) => Value::Flag(flag),
        DeValue::Datetime(_) => Value::Date,
        DeValue::Table(table) => Value::Table(entries(table, lines)),
        DeValue::Array(list) => {
            let one = |item: Spanned<_>| {
                let place = Place::Line(lines.at(item.span().start));
                Node { place, value: convert(item.into_inner(), lines) }
            };
            Value::List(list.into_iter().map(one).collect())
        }
    }
}

/// From byte offsets to 1-based lines.
struct Lines {
    starts: Vec<usize>,
}

impl Lines {
    fn new(text: &str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at + 1);
        Self { starts: std::iter::once(0).chain(breaks).collect() }
    }

    fn at(&self, offset: usize) -> usize {
        self.starts.partition_point(|start| *start <= offset).max(1)
    }
}

fn too_large(bytes: usize) -> Wrong {
    Wrong::new(
        format!("the file has {bytes} bytes or more, at most {MAX_FILE_BYTES} are read"),
        "check that this is the right file; many instances can be registered with `lanemesh instances register`",
    )
}

/// The parser's message, with the cure for the slips that people make.
fn syntax(message: &str) -> Wrong {
    let slip = |word: &str| message.contains(word);
    let cure = if slip("duplicate key") {
        "keep one of the two; several instances are written as one [[instance]] block each"
    } else if slip("string values must be quoted") || slip("quoted") {
        "put the text in double quotes: key = \"text\""
    } else if slip("carriage return") {
        "end lines with LF or CRLF"
    } else if slip("recursion limit") {
        "no key here nests so deeply"
    } else {
        "write `key = value` lines under [section] headers, as in `lanemesh config reference`"
    };
    Wrong::new(format!("not TOML: {message}"), cure)
}
