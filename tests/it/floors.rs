//! The floor plan, as a test: who may use whom, what the core may not touch, and what no file may hold.
//!
//! Reads the sources as text, without comments, strings and test-only items; it needs no compiler and is quick. It does
//! not see through macros or `super::super`, which nobody here uses to climb.

use std::{
    collections::BTreeSet,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

/// Floors from the ground up. A module may use every lower floor, and beside itself only what is named with it.
const FLOORS: &[&[(&str, &[&str])]] = &[
    &[("types", &[])],
    &[("config", &[]), ("wire", &[])],
    &[("catalog", &[]), ("health", &[]), ("lanes", &[]), ("routing", &["lanes"])],
    &[("node", &[])],
    &[("net", &["pki"]), ("pki", &[]), ("ready", &[]), ("telemetry", &[])],
    &[("admin", &["agent"]), ("agent", &[]), ("probe", &["agent"]), ("proxy", &["agent"])],
    &[("app", &[]), ("client", &[])],
    &[("cli", &["demo"]), ("demo", &[])],
];
/// The first so many floors are the core: time, chance and order are arguments there, and nothing waits.
const CORE_FLOORS: usize = 4;
/// What no path in the core may hold.
const NOT_IN_CORE: &[&str] = &[
    "HashMap",
    "HashSet",
    "Instant",
    "OsRng",
    "RandomState",
    "SystemRandom",
    "SystemTime",
    "TcpListener",
    "TcpStream",
    "UdpSocket",
    "axum",
    "dbg",
    "eprintln",
    "getrandom",
    "hyper",
    "mio",
    "println",
    "quinn",
    "rand::random",
    "rand::rng",
    "rustls",
    "socket2",
    "std::env",
    "std::fs",
    "std::io",
    "std::process",
    "std::thread",
    "tokio",
];
/// What the simulated part of the shell may not name: it is given its runtime, its clock and its randomness.
const NOT_SIMULATED: &[&str] = &["Instant::now", "SystemTime::now", "UnixTime::now", "std::thread", "tokio::spawn"];
const SIMULATED: &[&str] = &["net", "pki"];
/// Unfinished work, in code (macros) and in comments (marks).
const UNFINISHED: &[&str] = &["todo", "unimplemented", "dbg"];
const MARKS: &[&str] = &["FIXME", "TODO", "XXX"];
const MOST_LINES: usize = 600;

#[test]
fn every_module_uses_only_floors_below_its_own() {
    check(|file, faults| {
        let Some(module) = file.module() else { return };
        let Some(allowed) = allowed(module) else { return faults.add(file, "not on the floor plan: add its module") };
        for path in &file.paths {
            if let Some(used) = path.strip_prefix("crate::").and_then(|rest| rest.split("::").next())
                && used != module
                && is_module(used)
                && !allowed.contains(used)
            {
                faults.add(file, &format!("`{module}` may not use `{used}`, which is not below it ({path})"));
            }
        }
    });
}

#[test]
fn the_core_touches_no_socket_clock_file_chance_or_unordered_map() {
    let core: BTreeSet<&str> = FLOORS[..CORE_FLOORS].iter().flat_map(|floor| floor.iter().map(|(m, _)| *m)).collect();
    check(|file, faults| {
        if file.module().is_some_and(|module| core.contains(module)) {
            faults.names(file, NOT_IN_CORE, "the core is given its time and chance, and waits for nothing");
        }
    });
}

#[test]
fn what_the_simulator_drives_is_given_its_runtime_and_clock() {
    check(|file, faults| {
        // What stands for the system under quinn is what the simulator puts its own in the place of.
        let runtime = file.path.starts_with("src/net/frugal");
        if !runtime && file.module().is_some_and(|module| SIMULATED.contains(&module)) {
            faults.names(file, NOT_SIMULATED, "the simulator has its own: take it as an argument");
        }
    });
}

#[test]
fn every_file_says_what_it_is_for_and_stays_readable() {
    check(|file, faults| {
        if !file.text.starts_with("//!") {
            faults.add(file, "does not begin with `//!` and what it is for");
        }
        let lines = file.text.lines().count();
        if lines > MOST_LINES {
            faults.add(file, &format!("{lines} lines, at most {MOST_LINES}: split it by concern"));
        }
    });
}

#[test]
fn nothing_is_left_unfinished() {
    check(|file, faults| {
        faults.names(file, UNFINISHED, "finish it, or leave it out");
        let this = file.path.ends_with("floors.rs");
        for mark in MARKS.iter().filter(|mark| !this && has_word(&file.text, mark)) {
            faults.add(file, &format!("`{mark}`: finish it, or file an issue and say what is absent and why"));
        }
    });
}

#[test]
fn the_plan_and_the_library_name_the_same_modules() {
    let library = fs::read_to_string("src/lib.rs").expect("tests run in the package's directory");
    let declared: BTreeSet<&str> =
        library.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    let planned: BTreeSet<&str> = FLOORS.iter().flat_map(|floor| floor.iter().map(|(module, _)| *module)).collect();
    assert_eq!(declared, planned);
}

#[test]
fn the_guard_sees_what_it_should() {
    let source = r##"
        //! tokio::spawn in a comment
        use crate::{agent::Handle, types::{Mono, self}}; /* quinn::x /* nested */ hyper::y */
        #[cfg(test)]
        mod tests;
        #[cfg(test)]
        mod inner { fn f() { axum::g("}") } }
        fn f<'a>(x: &'a str) -> char { let _ = (b"mio::x", r#"std::fs "quoted" "#, 'x', '"'); std::env::var(x); todo!() }
        use std::{collections::{BTreeMap, HashMap as Map}, net::*};
    "##;
    let paths = paths(&plain_code(source));
    let wanted = [
        "crate::agent::Handle",
        "crate::types::Mono",
        "std::env::var",
        "std::collections::HashMap",
        "std::net",
        "todo",
    ];
    for path in wanted {
        assert!(paths.contains(path), "{path} in {paths:?}");
    }
    for absent in ["tokio", "quinn", "hyper", "axum", "mio", "std::fs"] {
        assert!(!paths.iter().any(|path| names(path, absent)), "{absent} in {paths:?}");
    }
    assert!(names("std::collections::HashMap", "HashMap") && names("HashMap::new", "HashMap"));
    assert!(!names("rustc_hash::FxHashMap", "HashMap") && !names("rand::rngs::Small", "rand::rng"));
    assert!(allowed("net").unwrap().contains("types") && !allowed("net").unwrap().contains("agent"));
    assert!(!allowed("lanes").unwrap().contains("routing") && allowed("routing").unwrap().contains("lanes"));
}

/// One source file.
struct Source {
    path: PathBuf,
    text: String,
    /// Every path that its code names, `use` groups spelled out.
    paths: BTreeSet<String>,
}

impl Source {
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).expect("readable sources");
        let paths = paths(&plain_code(&text));
        Self { path, text, paths }
    }

    /// The library module it belongs to, unless it holds tests only or is a crate's root.
    fn module(&self) -> Option<&str> {
        let mut parts = self.path.iter().map(|part| part.to_str().expect("plain file names"));
        if parts.next() != Some("src") || self.is_test() {
            return None;
        }
        let first = parts.next()?;
        let module = first.strip_suffix(".rs").unwrap_or(first);
        (!["lib", "main"].contains(&module)).then_some(module)
    }

    fn is_test(&self) -> bool {
        self.path.iter().any(|part| part == "tests" || part == "tests.rs")
    }
}

/// What is wrong, in the order of the files.
#[derive(Default)]
struct Faults(BTreeSet<String>);

impl Faults {
    fn add(&mut self, file: &Source, fault: &str) {
        self.0.insert(format!("{}: {fault}", file.path.display()));
    }

    fn names(&mut self, file: &Source, words: &[&str], why: &str) {
        for path in &file.paths {
            if words.iter().any(|word| names(path, word)) {
                self.add(file, &format!("`{path}`: {why}"));
            }
        }
    }
}

fn check(rule: impl Fn(&Source, &mut Faults)) {
    let mut files = Vec::new();
    for dir in ["src", "tests", "sim/src", "benches", "examples"] {
        collect(Path::new(dir), &mut files);
    }
    assert!(files.iter().any(|path| path.ends_with("lib.rs")), "no sources found: run in the package's directory");
    let mut faults = Faults::default();
    for path in files {
        rule(&Source::read(path), &mut faults);
    }
    let report = faults.0.iter().fold(String::new(), |mut report, fault| {
        let _ = write!(report, "\n  {fault}");
        report
    });
    assert!(report.is_empty(), "{report}\n");
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    // A directory that does not exist holds no sources.
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.map(|entry| entry.expect("a readable directory").path()) {
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn is_module(name: &str) -> bool {
    FLOORS.iter().any(|floor| floor.iter().any(|(module, _)| *module == name))
}

fn allowed(module: &str) -> Option<BTreeSet<&'static str>> {
    let level = FLOORS.iter().position(|floor| floor.iter().any(|(name, _)| *name == module))?;
    let (_, beside) = FLOORS[level].iter().find(|(name, _)| *name == module)?;
    let below = FLOORS[..level].iter().flat_map(|floor| floor.iter().map(|(name, _)| *name));
    Some(below.chain(beside.iter().copied()).collect())
}

/// Whether `path` holds the parts of `word` in a row.
fn names(path: &str, word: &str) -> bool {
    let padded = format!("::{path}::");
    padded.contains(&format!("::{word}::"))
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

/// The code without comments, literals and items that exist in tests only.
fn plain_code(text: &str) -> String {
    without_test_items(&without_literals(text))
}

fn without_literals(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skip = literal_length(rest, code.chars().next_back());
        if skip > 0 {
            code.push(' ');
            rest = &rest[skip..];
        } else {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    code
}

/// Bytes of the comment or literal that `rest` begins with; 0 if it begins with code.
fn literal_length(rest: &str, before: Option<char>) -> usize {
    let until = |end: &str, from: usize| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if rest.starts_with("//") {
        return until("\n", 2);
    }
    if rest.starts_with("/*") {
        return comment_length(rest);
    }
    if rest.starts_with('"') {
        return quoted_length(rest);
    }
    if rest.starts_with('r') && (!in_word || before == Some('b')) {
        let hashes = rest[1..].bytes().take_while(|c| *c == b'#').count();
        if rest[1 + hashes..].starts_with('"') {
            return until(&format!("\"{}", "#".repeat(hashes)), 2 + hashes);
        }
    }
    // A character, and not a lifetime.
    match rest.strip_prefix('\'').map(|inner| (inner, inner.chars().next())) {
        Some((_, Some('\\'))) => until("'", 3),
        Some((inner, Some(c))) if inner[c.len_utf8()..].starts_with('\'') => 2 + c.len_utf8(),
        _ => 0,
    }
}

fn comment_length(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let (step, change) = match &rest.as_bytes()[at..] {
            [b'/', b'*', ..] => (2, 1),
            [b'*', b'/', ..] => (2, -1),
            _ => (1, 0),
        };
        (at, depth) = (at + step, depth + change);
        if depth == 0 {
            break;
        }
    }
    at
}

fn quoted_length(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn without_test_items(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(test)]") {
        kept.push_str(&rest[..at]);
        rest = &rest[at..];
        rest = &rest[item_length(rest)..];
    }
    kept + rest
}

/// Bytes up to the item's `;` or closing brace.
fn item_length(item: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in item.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 && (c == '}' || c == ';') {
            return at + 1;
        }
    }
    item.len()
}

/// Every path in the code, groups spelled out: `use a::{b, c::d}` names `a::b` and `a::c::d`.
fn paths(code: &str) -> BTreeSet<String> {
    let tokens = tokens(code);
    let mut found = BTreeSet::new();
    let mut at = 0;
    while at < tokens.len() {
        at = if is_name(tokens[at]) { path(&tokens, at, "", &mut found) } else { at + 1 };
    }
    found
}

/// Reads the path at `at`, which goes on from `prefix`; returns where it ends.
fn path(tokens: &[&str], mut at: usize, prefix: &str, found: &mut BTreeSet<String>) -> usize {
    let mut whole = prefix.to_owned();
    while let Some(name) = tokens.get(at).filter(|token| is_name(token)) {
        if !whole.is_empty() {
            whole.push_str("::");
        }
        whole.push_str(name);
        at += 1;
        if tokens.get(at) != Some(&"::") {
            break;
        }
        at += 1;
        if tokens.get(at) == Some(&"{") {
            return group(tokens, at + 1, &whole, found);
        }
    }
    found.insert(whole);
    at
}

fn group(tokens: &[&str], mut at: usize, prefix: &str, found: &mut BTreeSet<String>) -> usize {
    while let Some(token) = tokens.get(at) {
        at = match *token {
            "}" => return at + 1,
            name if is_name(name) => path(tokens, at, prefix, found),
            _ => at + 1,
        };
    }
    at
}

/// Names, `::` and single marks.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(c) = rest.chars().next() {
        let name = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let length = if name > 0 {
            name
        } else if rest.starts_with("::") {
            2
        } else {
            c.len_utf8()
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}
