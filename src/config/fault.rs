//! Mistakes in the configuration: where, what, and how to mend it. They are collected, never thrown, so that one start shows
//! them all.

use std::{collections::BTreeSet, fmt};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The file, at a line (1-based).
    File {
        /// File name as given.
        name: String,
        /// Line.
        line: usize,
    },
    /// An environment variable.
    Environment(String),
    /// A flag.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, line } => write!(f, "{name}:{line}"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// One mistake: where, what, and how to mend it. Prints as `file:line: key: reason; cure`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub source: Source,
    /// Dotted key; empty where the fault is the file's, not a key's (syntax, size).
    pub key: String,
    /// What is wrong.
    pub reason: String,
    /// What to do.
    pub cure: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.source)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "{}; {}", self.reason, self.cure)
    }
}

impl std::error::Error for Fault {}

/// Why one value is not accepted, before its place is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) reason: String,
    pub(super) cure: String,
}

impl Wrong {
    pub(super) fn new(reason: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { reason: reason.into(), cure: cure.into() }
    }

    /// Two of one value: both reasons, and the cures that differ.
    pub(super) fn and(self, other: Self) -> Self {
        let both = |a: String, b: String| if a.contains(&b) { a } else { format!("{a}; {b}") };
        Self { reason: both(self.reason, other.reason), cure: both(self.cure, other.cure) }
    }
}

/// Where in its source a value stands. A line has no file name, so that ten thousand values do not carry it ten thousand times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Line(usize),
    Over(Source),
}

/// The faults found so far.
#[derive(Debug)]
pub(super) struct Faults {
    file: String,
    list: Vec<Fault>,
    /// Found beyond [`MAX_FAULTS`].
    more: usize,
    /// Lines that are not TOML. What else is said of them would be about a guess of the parser.
    broken: BTreeSet<usize>,
}

impl Faults {
    pub(super) fn new(file: &str) -> Self {
        Self { file: file.to_owned(), list: Vec::new(), more: 0, broken: BTreeSet::new() }
    }

    pub(super) fn add(&mut self, place: &Place, key: impl Into<String>, wrong: Wrong) {
        if matches!(place, Place::Line(line) if self.broken.contains(line)) {
            return;
        }
        if self.list.len() >= MAX_FAULTS {
            self.more += 1;
            return;
        }
        let source = match place {
            Place::Line(line) => Source::File { name: self.file.clone(), line: *line },
            Place::Over(source) => source.clone(),
        };
        let fault =
            Fault { source, key: one_line(key.into()), reason: one_line(wrong.reason), cure: one_line(wrong.cure) };
        self.list.push(fault);
    }

    /// A line that is not TOML. One slip often makes several errors on its line; the first one names it.
    pub(super) fn add_broken(&mut self, line: usize, wrong: Wrong) {
        if !self.broken.contains(&line) {
            self.add(&Place::Line(line), "", wrong);
            self.broken.insert(line);
        }
    }

    /// Whether some of the file could not be read, so that what is missing may have been typed.
    pub(super) fn incomplete(&self) -> bool {
        !self.broken.is_empty()
    }

    /// The file's by line, then the environment's, then the flags'.
    pub(super) fn into_sorted(mut self) -> Vec<Fault> {
        self.list.sort_by_key(|fault| match &fault.source {
            Source::File { line, .. } => (0, *line),
            Source::Environment(_) => (1, 0),
            Source::Flag(_) => (2, 0),
        });
        if let (Some(last), more @ 1..) = (self.list.last(), self.more) {
            let source = last.source.clone();
            let reason = format!("{more} more faults are not listed");
            self.list.push(Fault { source, key: String::new(), reason, cure: "mend these first".into() });
        }
        self.list
    }
}

/// A quoted value must not break the list into lines of its own, nor reach the terminal as control characters.
fn one_line(text: String) -> String {
    if text.chars().any(char::is_control) { text.replace(char::is_control, "\u{fffd}") } else { text }
}

/// Faults listed at once; a file of a megabyte can hold a hundred thousand, and nobody reads them.
const MAX_FAULTS: usize = 200;
