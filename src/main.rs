//! The binary `lanemesh`; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    lanemesh::cli::main()
}
