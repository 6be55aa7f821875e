//! `lanemesh config check` and `config reference`; also where `run` gets its configuration from.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::{Value, json};

use super::{Exit, Failure, output};
use crate::{
    app,
    config::{self, Config, Fault, MAX_FILE_BYTES, Overrides, Source},
};

/// Check a configuration file, or print every key
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Check a file (with LANEMESH_* variables over it): every fault at once, with line, reason and cure
    Check {
        /// Configuration file (TOML)
        file: PathBuf,
    },
    /// Print a complete file with every key, its default and its meaning
    Reference,
}

pub(super) fn run(args: &Args, json: bool) -> Result<(String, ExitCode), Failure> {
    match &args.verb {
        Verb::Check { file } => {
            let checked = load(Some(file), &Overrides::new())?;
            let certificates = checked.as_ref().map(app::check_certificates).unwrap_or_default();
            let good = checked.is_ok() && certificates.faults.is_empty();
            let code = if good { ExitCode::SUCCESS } else { Exit::Failed.into() };
            Ok((report(file, &checked, &certificates, json), code))
        }
        Verb::Reference => {
            let text = config::reference();
            let text = if json { output::json(&json!({ "reference": text })) } else { text };
            Ok((text, ExitCode::SUCCESS))
        }
    }
}

/// Reads the file (if any) and the environment, and resolves all three layers. The outer error is a file that can't be read.
pub(super) fn load(file: Option<&Path>, flags: &Overrides) -> Result<Result<Config, Vec<Fault>>, Failure> {
    let name = file.map(|file| file.display().to_string()).unwrap_or_default();
    let bytes = file.map(read).transpose()?.unwrap_or_default();
    let text = match config::decode(&name, &bytes) {
        Ok(text) => text,
        Err(fault) => return Ok(Err(vec![*fault])),
    };
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .collect();
    Ok(config::resolve(&name, text, &environment, flags))
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(Exit::Failed, format!("cannot read `{}`: {error}", file.display()))
            .cure("`lanemesh config reference > lanemesh.toml` makes a file to start from")
    };
    let mut bytes = Vec::new();
    // One byte over the limit is enough to see that it is passed.
    let limit = MAX_FILE_BYTES as u64 + 1;
    File::open(file).and_then(|file| file.take(limit).read_to_end(&mut bytes)).map_err(failed)?;
    Ok(bytes)
}

/// All faults as the one failure that `run` ends with.
pub(super) fn refused(faults: &[Fault]) -> Failure {
    let count = faults.len();
    let lines: String = faults.iter().map(|fault| format!("\n{}", words(fault))).collect();
    let noun = if count == 1 { "fault" } else { "faults" };
    Failure::new(Exit::Failed, format!("{count} {noun} in the configuration{lines}"))
        .cure("`lanemesh config reference` prints every key")
}

fn report(
    file: &Path,
    checked: &Result<Config, Vec<Fault>>,
    certificates: &app::CertificateCheck,
    json: bool,
) -> String {
    let (faults, mut warnings, removal) = match checked {
        Ok(config) => (&[][..], config::warnings(config), app::worst_removal(config)),
        Err(faults) => (&faults[..], Vec::new(), Vec::new()),
    };
    warnings.extend(certificates.warnings.iter().cloned());
    let count = faults.len() + certificates.faults.len();
    if json {
        let of_files = certificates.faults.iter().map(|fault| json!({ "key": "identity", "reason": fault }));
        let faults: Vec<Value> = faults.iter().map(as_json).chain(of_files).collect();
        let removal: Vec<Value> = removal
            .iter()
            .map(|case| json!({ "event": case.event, "within_ms": case.within.as_millis() as u64 }))
            .collect();
        return output::json(&json!({
            "ok": count == 0, "faults": faults, "warnings": warnings,
            "worst_removal": removal, "worst_removal_members": app::MEMBERS,
        }));
    }
    let mut text = String::new();
    for warning in warnings {
        text.push_str(&format!("warning: {}\n", output::clean(&warning)));
    }
    for fault in faults.iter().map(words).chain(certificates.faults.iter().map(|fault| output::clean(fault))) {
        text.push_str(&format!("{fault}\n"));
    }
    if !removal.is_empty() {
        let members = app::MEMBERS;
        text.push_str(&format!(
            "at worst until nobody sends an instance a new request ({members} members, no loss):\n"
        ));
        for case in removal {
            text.push_str(&format!("  {:<34} {}\n", case.event, config::format_duration(case.within)));
        }
    }
    let file = output::clean(&file.display().to_string());
    match count {
        0 => text.push_str(&format!("{file}: good\n")),
        1 => text.push_str(&format!("{file}: 1 fault\n")),
        count => text.push_str(&format!("{file}: {count} faults\n")),
    }
    text
}

fn words(fault: &Fault) -> String {
    let key = if fault.key.is_empty() { String::new() } else { format!("{}: ", fault.key) };
    let reason = format!("{}: {key}{}", fault.source, fault.reason);
    format!("{}\n  cure: {}", output::clean(&reason), output::clean(&fault.cure))
}

fn as_json(fault: &Fault) -> Value {
    let mut body = json!({ "key": fault.key, "reason": fault.reason, "cure": fault.cure });
    match &fault.source {
        Source::File { name, line } => {
            body["file"] = json!(name);
            body["line"] = json!(line);
        }
        Source::Environment(name) => body["environment"] = json!(name),
        Source::Flag(name) => body["flag"] = json!(name),
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(source: Source) -> Fault {
        Fault { source, key: "proxy.bind".into(), reason: "`x` is no address".into(), cure: "write IP:port".into() }
    }

    #[test]
    fn faults_say_where_what_and_how_to_mend() {
        let faults = vec![
            fault(Source::File { name: "a.toml".into(), line: 3 }),
            fault(Source::Environment("LANEMESH_PROXY_BIND".into())),
        ];
        let text = report(Path::new("a.toml"), &Err(faults.clone()), &Default::default(), false);
        assert_eq!(
            text,
            "a.toml:3: proxy.bind: `x` is no address\n  cure: write IP:port\n\
             environment LANEMESH_PROXY_BIND: proxy.bind: `x` is no address\n  cure: write IP:port\n\
             a.toml: 2 faults\n"
        );
        let value: Value =
            serde_json::from_str(&report(Path::new("a.toml"), &Err(faults.clone()), &Default::default(), true))
                .unwrap();
        assert_eq!(value["ok"], false);
        assert_eq!(value["faults"][0]["line"], 3);
        assert_eq!(value["faults"][1]["environment"], "LANEMESH_PROXY_BIND");
        assert!(refused(&faults).to_string().starts_with("error: 2 faults in the configuration\na.toml:3: proxy.bind"));
    }

    #[test]
    fn a_missing_file_is_told_apart_from_a_faulty_one() {
        let failure = load(Some(Path::new("/nonexistent/lanemesh.toml")), &Overrides::new()).unwrap_err();
        assert!(failure.error.contains("/nonexistent/lanemesh.toml") && failure.cure.is_some());
    }
}
