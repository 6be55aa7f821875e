//! Tests that need more than the Rust toolchain: skipped with the cure where it is missing, failed where it must be there.

use std::{
    io::Write,
    process::{Command, Stdio},
};

/// Says that a test is skipped and what would make it run. With `LANEMESH_NO_SKIP=1` (CI, where all of it is installed) the
/// test fails instead.
///
/// # Panics
///
/// With `LANEMESH_NO_SKIP=1`.
pub fn skip(test: &str, cure: &str) {
    if std::env::var_os("LANEMESH_NO_SKIP").is_some_and(|value| value == "1") {
        panic!("{test} must not be skipped here: {cure}");
    }
    // Straight to the handle: what `println!` writes is captured while a test passes.
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {cure}");
}

/// Whether a program runs with these arguments and succeeds.
pub fn works(program: &str, arguments: &[&str]) -> bool {
    let run = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    run.is_ok_and(|output| output.status.success())
}
