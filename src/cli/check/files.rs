//! The part that needs no network: the configuration, and the certificate files that it names.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    sync::Arc,
    time::Duration,
};

use super::{
    Loaded,
    finding::{Finding, fail, ok, skip, warn, with_cure},
};
use crate::{
    app::CertificateCheck,
    config::{self, Config, Fault, format_duration},
    pki::{CertFault, Identity, PkiError},
    types::Wall,
};

/// `configuration.file` and `configuration.warnings`.
pub(super) fn configuration(loaded: &Loaded) -> Vec<Finding> {
    match loaded {
        Loaded::Nothing(why) => [FILE, WARNINGS].map(|name| skip(name, *why)).into(),
        Loaded::Unreadable(failure) => {
            let cure = failure.cure.clone().unwrap_or_else(|| "name another file with --config".into());
            vec![fail(FILE, failure.error.clone(), cure), skip(WARNINGS, NO_CONFIG)]
        }
        Loaded::Faulty(faults) => faults.iter().map(fault).chain([skip(WARNINGS, NO_CONFIG)]).collect(),
        Loaded::Good { config, name } => {
            let (instances, seeds) = (config.instances.len(), config.gossip.seeds.len());
            let good = ok(FILE, format!("{name}: good, {}, {}", count(instances, "instance"), count(seeds, "seed")));
            let mut warnings: Vec<Finding> = config::oddities(config)
                .into_iter()
                .map(|text| warn(WARNINGS, text, "change it, unless it is meant so"))
                .collect();
            if warnings.is_empty() {
                warnings.push(ok(WARNINGS, "none"));
            }
            [vec![good], warnings].concat()
        }
    }
}

fn fault(fault: &Fault) -> Finding {
    let key = if fault.key.is_empty() { String::new() } else { format!("{}: ", fault.key) };
    fail(FILE, format!("{}: {key}{}", fault.source, fault.reason), fault.cure.clone())
}

/// What came of the certificate files.
pub(super) struct Files {
    pub findings: Vec<Finding>,
    /// `None` where they can't be used.
    pub identity: Option<Arc<Identity>>,
}

/// The group `identity`. Checks follow each other: what comes after a fault could not be looked at.
pub(super) fn identity(loaded: &Loaded) -> Files {
    let Loaded::Good { config, .. } = loaded else {
        let why = loaded.why_not();
        return Files {
            findings: IDENTITY.iter().chain(&[MODES]).map(|name| skip(name, why)).collect(),
            identity: None,
        };
    };
    let files = &config.identity;
    let (mut findings, identity) = match Identity::load(&files.certificate, &files.key, &files.ca) {
        Ok(identity) => (good(config, &identity), Some(Arc::new(identity))),
        Err(error) => (faulty(config, &error), None),
    };
    findings.extend(modes(config));
    Files { findings, identity }
}

fn good(config: &Config, identity: &Identity) -> Vec<Finding> {
    let files = &config.identity;
    let facts = identity.facts();
    let show = |path: &Path| path.display().to_string();
    let who = format!("node `{}` of mesh `{}`", facts.node, facts.mesh);
    let mut findings = vec![
        ok(FILES, format!("{}, {}, {}", show(&files.certificate), show(&files.key), show(&files.ca))),
        ok(KEY, "the key is the certificate's"),
        ok(CHAIN, format!("issued by an authority of {}", show(&files.ca))),
        validity(facts.not_before, facts.not_after, identity.now()),
    ];
    let CertificateCheck { faults, .. } = crate::app::check_certificates(config);
    if faults.is_empty() {
        let services: Vec<&str> = facts.services.iter().map(|service| service.as_str()).collect();
        let may = match (facts.any_service, services.is_empty()) {
            (true, _) => "may announce any service".to_owned(),
            (false, true) => "may announce no service".to_owned(),
            (false, false) => format!("may announce {}", services.join(", ")),
        };
        findings.push(ok(NAMES, format!("{who}, {may}")));
    }
    findings.extend(faults.iter().map(|text| {
        let (seen, cure) = with_cure(text, "issue a certificate that fits, or change the configuration");
        fail(NAMES, seen, cure)
    }));
    findings
}

/// How long it is valid; the last tenth of its life is worth a word.
fn validity(from: Wall, until: Wall, now: Wall) -> Finding {
    let left = until.0.saturating_sub(now.0);
    let days = format_duration(Duration::from_secs(left / 1000 / 3600 * 3600));
    let at = super::output::time(until);
    if left < until.0.saturating_sub(from.0) / 10 {
        let cure = "issue a new one with `lanemesh ca issue --force` and restart the sidecar";
        return warn(VALIDITY, format!("valid only until {at}, {days} more"), cure);
    }
    ok(VALIDITY, format!("valid until {at}, {days} more"))
}

/// The check that an error belongs to fails; those before it passed, those after it were not reached.
fn faulty(config: &Config, error: &PkiError) -> Vec<Finding> {
    let files = &config.identity;
    let at = match error {
        PkiError::Io { .. } => FILES,
        PkiError::Unusable { path, .. } if *path == files.key => KEY,
        PkiError::Unusable { path, .. } if *path == files.ca => CHAIN,
        PkiError::Certificate { fault: CertFault::Expired(..) | CertFault::NotYetValid(..), .. } => VALIDITY,
        PkiError::Certificate { fault: CertFault::UnknownAuthority(_), .. } => CHAIN,
        PkiError::Certificate { fault: CertFault::OtherMesh { .. } | CertFault::OtherNode { .. }, .. } => NAMES,
        _ => FILES,
    };
    let failed = IDENTITY.iter().position(|name| *name == at).unwrap_or(0);
    let (seen, cure) = with_cure(&error.to_string(), "issue it again with `lanemesh ca issue --force`");
    let finding = |(index, name): (usize, &&'static str)| match index.cmp(&failed) {
        std::cmp::Ordering::Less => ok(name, "good"),
        std::cmp::Ordering::Equal => fail(name, seen.clone(), cure.clone()),
        std::cmp::Ordering::Greater => skip(name, "the certificate files can't be used"),
    };
    IDENTITY.iter().enumerate().map(finding).collect()
}

/// Secrets that others can read.
fn modes(config: &Config) -> Vec<Finding> {
    let token = config.data_dir.join(crate::admin::token::FILE_NAME);
    let key = &config.identity.key;
    let mut findings = Vec::new();
    for (what, path) in [("take part in the mesh with it", key), ("change policies with it", &token)] {
        // One that is not there is no fault here: the token is made by the first start.
        let Ok(meta) = fs::metadata(path) else { continue };
        let mode = meta.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let path = path.display();
            findings.push(warn(
                MODES,
                format!("{path} has mode {mode:o}: others can read it, and {what}"),
                format!("chmod 600 {path}"),
            ));
        }
    }
    findings.extend(data_dir(&config.data_dir));
    if findings.is_empty() {
        findings.push(ok(MODES, "secrets are readable by their owner only"));
    }
    findings
}

/// A data directory that can't be written to keeps a sidecar from starting.
fn data_dir(dir: &Path) -> Option<Finding> {
    let cure = "set data_dir to a directory that the sidecar's user may write to";
    match fs::metadata(dir) {
        Ok(meta) if !meta.is_dir() => Some(fail(MODES, format!("data_dir {} is no directory", dir.display()), cure)),
        Ok(meta) if nix::unistd::access(dir, nix::unistd::AccessFlags::W_OK).is_err() => {
            let (path, owner) = (dir.display(), meta.uid());
            Some(fail(MODES, format!("data_dir {path} (of user {owner}) can't be written to by this user"), cure))
        }
        // It is made at the start.
        Ok(_) | Err(_) => None,
    }
}

fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

const FILE: &str = "configuration.file";
const WARNINGS: &str = "configuration.warnings";
const FILES: &str = "identity.files";
const KEY: &str = "identity.key";
const CHAIN: &str = "identity.chain";
const VALIDITY: &str = "identity.validity";
const NAMES: &str = "identity.names";
const MODES: &str = "identity.modes";
/// In the order in which they are looked at.
const IDENTITY: [&str; 5] = [FILES, KEY, CHAIN, VALIDITY, NAMES];
const NO_CONFIG: &str = "the configuration has faults";
