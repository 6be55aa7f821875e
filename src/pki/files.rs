//! Reading and writing PEM files: private keys readable by their owner only, nothing overwritten unasked.

use std::{
    fs,
    io::{ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject};

/// Why certificate files can't be read, used or written. Each message names the path and the cure.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// The file system says no.
    #[error("cannot {action} {}: {source}{}", path.display(), cure(source))]
    Io {
        /// `read`, `write`, ...
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// Its answer.
        source: std::io::Error,
    },
    /// Would replace what is there.
    #[error("{} is there already: replace it with --force, or choose another directory", path.display())]
    Exists {
        /// Which file.
        path: PathBuf,
    },
    /// A file does not hold what it should, or does not fit the others.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// Which file.
        path: PathBuf,
        /// What is wrong, and the cure.
        reason: String,
    },
    /// The own certificate is not accepted, as peers would not accept it either.
    #[error("{}: {fault}", path.display())]
    Certificate {
        /// Its file.
        path: PathBuf,
        /// Why not.
        fault: super::CertFault,
    },
    /// What is asked for makes no sense.
    #[error("{0}")]
    Request(String),
}

/// What helps against the commonest reasons.
fn cure(source: &std::io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::NotFound => {
            "; `lanemesh ca init` and `lanemesh ca issue` make certificate files, the configuration's [identity] says where they are"
        }
        ErrorKind::PermissionDenied => "; it must be readable by the user that runs this",
        ErrorKind::InvalidData => "; it is no PEM file",
        _ => "",
    }
}

/// A file to be written.
pub(super) struct Output {
    pub path: PathBuf,
    pub text: String,
    /// Mode 0600 in place of 0644.
    pub secret: bool,
}

/// Writes all or, if any is there and `force` is not set, none. Each is complete or absent at every moment.
pub(super) fn write_all(outputs: &[Output], force: bool) -> Result<(), PkiError> {
    if !force && let Some(there) = outputs.iter().find(|o| o.path.exists()) {
        return Err(PkiError::Exists { path: there.path.clone() });
    }
    outputs.iter().try_for_each(|output| write(output, force))
}

fn write(output: &Output, force: bool) -> Result<(), PkiError> {
    let fail = |source| PkiError::Io { action: "write", path: output.path.clone(), source };
    if let Some(dir) = output.path.parent() {
        fs::create_dir_all(dir).map_err(fail)?;
    }
    let mut temporary = output.path.clone().into_os_string();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let mode = if output.secret { 0o600 } else { 0o644 };
    let written = (|| {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(output.text.as_bytes())?;
        file.sync_all()?;
        // A hard link fails where the name is taken, a rename replaces it.
        if force { fs::rename(&temporary, &output.path) } else { fs::hard_link(&temporary, &output.path) }
    })();
    // After a rename there is nothing left to remove.
    let _ = fs::remove_file(&temporary);
    written.map_err(fail)
}

/// The text of a file.
pub(super) fn text(path: &Path) -> Result<String, PkiError> {
    fs::read_to_string(path).map_err(|source| PkiError::Io { action: "read", path: path.into(), source })
}

/// All certificates of a PEM file; at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let text = text(path)?;
    let unusable = |reason: String| PkiError::Unusable { path: path.into(), reason };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let found = found.map_err(|e| unusable(format!("not readable as PEM ({e}): issue it again")))?;
    if found.is_empty() {
        return Err(unusable("holds no `BEGIN CERTIFICATE`: is it the key file, or another format than PEM?".into()));
    }
    Ok(found)
}

/// The private key of a PEM file, PKCS #8.
pub(super) fn private_key(path: &Path) -> Result<PrivatePkcs8KeyDer<'static>, PkiError> {
    let text = text(path)?;
    match PrivateKeyDer::from_pem_slice(text.as_bytes()) {
        Ok(PrivateKeyDer::Pkcs8(key)) => Ok(key),
        _ => Err(PkiError::Unusable {
            path: path.into(),
            reason: "holds no `BEGIN PRIVATE KEY` (PKCS #8, Ed25519): is it the certificate file?".into(),
        }),
    }
}
