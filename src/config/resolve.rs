//! From what was typed to what is meant.

use std::{collections::BTreeMap, time::Duration};

use super::Config;

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

/// One mistake: where, what, and how to mend it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub source: Source,
    /// Dotted key.
    pub key: String,
    /// What is wrong.
    pub reason: String,
    /// What to do.
    pub cure: String,
}

/// Values over the file: dotted key to text, with where each came from. Later ones win.
pub type Overrides = Vec<(String, String, Source)>;

/// Resolves a file's text (empty for no file) and overrides; every fault at once.
pub fn resolve(
    file_name: &str,
    text: &str,
    environment: &BTreeMap<String, String>,
    flags: &Overrides,
) -> Result<Config, Vec<Fault>> {
    todo!()
}

/// `250ms`, `1s`, `2m`; the error says so.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    todo!()
}
