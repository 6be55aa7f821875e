//! The write token: made at the first start, kept in the data directory, readable by its owner only.
//!
//! Whoever can read the file may change this sidecar; that is the whole rule until operators have credentials of their own.
//! The process itself keeps no plain copy, so the token can't be logged or dumped by accident.

use std::{
    fmt,
    fs::{DirBuilder, File, OpenOptions, rename},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};

/// Name of the token's file in the data directory.
pub const FILE_NAME: &str = "admin.token";

/// Bytes of chance in a token; the file holds them in lower-case hex.
const TOKEN_BYTES: usize = 32;

/// A token that can be compared with, and nothing else.
///
/// Kept as an HMAC under a key of this process: comparing takes the same time wherever two tokens differ.
#[derive(Clone)]
pub struct Token {
    key: hmac::Key,
    tag: hmac::Tag,
}

/// Why there is no usable token; each names the file, the reason and the cure.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file or its directory can't be read or written.
    #[error("cannot {what} `{path}`: {error} (the data directory must be writable by the user that runs the sidecar)")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Others than the owner may read it.
    #[error(
        "`{path}` is open to others (mode {mode:04o}): whoever reads it may change this sidecar. Close it with \
         `chmod 600 {path}`, or remove it: a new token is made at the next start"
    )]
    OpenToOthers {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Not a token, although it was just made.
    #[error("`{0}` does not hold a token (64 hex digits): is another process writing it?")]
    Malformed(PathBuf),
    /// The operating system gave no random bytes.
    #[error("the operating system gave no random bytes for the write token")]
    NoRandomness,
}

impl Token {
    /// From its text, as it stands in the file.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map_err(|_| TokenError::NoRandomness)?;
        let tag = hmac::sign(&key, text.as_bytes());
        Ok(Self { key, tag })
    }

    /// Whether `presented` is this token.
    pub fn matches(&self, presented: &str) -> bool {
        hmac::verify(&self.key, presented.as_bytes(), self.tag.as_ref()).is_ok()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The token of `data_dir`, made (mode 0600, in one step) if there is none yet; kept over restarts.
///
/// Blocking; called once, at start. The data directory is made (mode 0700) when it does not exist.
pub fn load_or_create(data_dir: &Path) -> Result<Token, TokenError> {
    let path = data_dir.join(FILE_NAME);
    let held = match read(&path) {
        // A cut or empty file, after a power failure say: nobody holds what it should have held.
        Err(fault @ TokenError::Malformed(_)) => {
            tracing::warn!("{fault}. A new one is made");
            None
        }
        other => other?,
    };
    match held {
        Some(text) => Token::new(&text),
        None => {
            create(data_dir, &path)?;
            // Read back, so that of two processes starting at once both use what ended up in the file.
            let text = read(&path)?.ok_or_else(|| TokenError::Malformed(path.clone()))?;
            Token::new(&text)
        }
    }
}

/// The text of an existing, well-formed token that only its owner can read; `None` when there is no file.
fn read(path: &Path) -> Result<Option<String>, TokenError> {
    let failed = |error| TokenError::Io { what: "read", path: path.to_owned(), error };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    // Of the open file, not of its path: nobody can swap it in between.
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(TokenError::OpenToOthers { path: path.to_owned(), mode });
    }
    let mut bytes = Vec::new();
    file.take(1024).read_to_end(&mut bytes).map_err(failed)?;
    let text = String::from_utf8(bytes).unwrap_or_default();
    let text = text.trim_end();
    if text.len() != 2 * TOKEN_BYTES || !text.bytes().all(|c| c.is_ascii_hexdigit()) {
        return Err(TokenError::Malformed(path.to_owned()));
    }
    Ok(Some(text.to_owned()))
}

/// Written beside and renamed: a crash leaves a whole token or none.
fn create(data_dir: &Path, path: &Path) -> Result<(), TokenError> {
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |error| TokenError::Io { what, path, error }
    };
    DirBuilder::new().recursive(true).mode(0o700).create(data_dir).map_err(failed("create", data_dir))?;
    let mut random = [0; TOKEN_BYTES];
    SystemRandom::new().fill(&mut random).map_err(|_| TokenError::NoRandomness)?;
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let beside = data_dir.join(format!("{FILE_NAME}.{}", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)
        .map_err(failed("create", &beside))?;
    writeln!(file, "{text}").and_then(|()| file.sync_all()).map_err(failed("write", &beside))?;
    rename(&beside, path).map_err(failed("create", path))
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, read_dir, read_to_string, set_permissions, write};

    use super::*;

    #[test]
    fn a_token_is_made_once_closed_to_others_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("deep/data");
        let first = load_or_create(&data).unwrap();
        let path = data.join(FILE_NAME);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(data.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
        let text = read_to_string(&path).unwrap();
        assert_eq!(text.trim_end().len(), 64);
        assert!(first.matches(text.trim_end()));
        assert!(load_or_create(&data).unwrap().matches(text.trim_end()), "kept over a restart");
        assert_eq!(read_dir(&data).unwrap().count(), 1, "nothing is left lying about");
    }

    #[test]
    fn two_data_directories_have_two_tokens() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        load_or_create(one.path()).unwrap();
        let text = read_to_string(one.path().join(FILE_NAME)).unwrap();
        assert!(!load_or_create(two.path()).unwrap().matches(text.trim_end()));
    }

    #[test]
    fn a_file_that_others_may_read_is_refused_with_the_cure() {
        let dir = tempfile::tempdir().unwrap();
        load_or_create(dir.path()).unwrap();
        let path = dir.path().join(FILE_NAME);
        for mode in [0o640, 0o604, 0o660] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = load_or_create(dir.path()).unwrap_err().to_string();
            assert!(error.contains(&format!("{mode:04o}")) && error.contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn what_is_no_token_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        for content in ["", "short", &"g".repeat(64), &"a".repeat(65)] {
            write(&path, content).unwrap();
            set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            load_or_create(dir.path()).unwrap();
            let made = read_to_string(&path).unwrap();
            assert!(made.trim_end().len() == 64 && made.trim_end() != content, "{content}: {made}");
        }
    }

    #[test]
    fn only_the_very_token_matches_and_it_is_never_printed() {
        let text = "a".repeat(64);
        let token = Token::new(&text).unwrap();
        assert!(token.matches(&text));
        for other in ["", "a", &"a".repeat(63), &"a".repeat(65), &"A".repeat(64), &format!("{}b", "a".repeat(63))] {
            assert!(!token.matches(other));
        }
        assert!(!format!("{token:?}").contains("aaa"));
    }
}
