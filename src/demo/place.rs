//! Where the demo's files are: a directory of its own, and what demos that were killed have left.
//!
//! A living demo holds a lock on a file in its directory; the system lets go of it however the process ends. A directory is
//! removed only where the name is a demo's, the owner is this user, the lock file is there and nobody holds it. Whoever keeps a
//! directory for its logs takes the lock file out.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// A demo's directory, held.
pub(super) struct Place {
    dir: PathBuf,
    _lock: File,
}

impl Place {
    /// Makes one among the system's temporary files, and removes those of dead demos.
    pub fn new() -> Result<Self> {
        Self::within(&std::env::temp_dir(), std::process::id())
    }

    fn within(base: &Path, pid: u32) -> Result<Self> {
        let dir = base.join(format!("{PREFIX}{pid}"));
        let fault = || format!("can't make {}", dir.display());
        fs::create_dir_all(&dir).with_context(fault)?;
        let lock = locked(&dir).with_context(fault)?;
        let owner = fs::metadata(&dir).with_context(fault)?.uid();
        sweep(base, &dir, owner);
        Ok(Self { dir, _lock: lock })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Leaves it to the user.
    pub fn keep(&self) {
        // Where that fails the next demo removes the logs: no more than a pity.
        let _ = fs::remove_file(self.dir.join(LOCK));
    }

    /// Removes it.
    pub fn remove(&self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The lock file appears under its name only when it is locked: nobody else ever sees it free while its demo lives.
fn locked(dir: &Path) -> io::Result<File> {
    let fresh = dir.join("demo.lock.new");
    let lock = File::create(&fresh)?;
    lock.lock()?;
    fs::rename(&fresh, dir.join(LOCK))?;
    Ok(lock)
}

fn sweep(base: &Path, own: &Path, owner: u32) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let dir = entry.path();
        if named && dir != own && is_dead(&dir, owner).unwrap_or(false) {
            // What can't be removed is tried by the next demo.
            let _ = fs::remove_dir_all(&dir);
        }
    }
}

/// Whether it is a directory of this user's demos whose process has ended.
fn is_dead(dir: &Path, owner: u32) -> io::Result<bool> {
    let meta = fs::symlink_metadata(dir)?;
    Ok(meta.is_dir() && meta.uid() == owner && File::open(dir.join(LOCK))?.try_lock().is_ok())
}

const PREFIX: &str = "lanemesh-demo-";
const LOCK: &str = "demo.lock";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_dead_demos_have_left_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let [living, dead, kept] = [1, 2, 3].map(|pid| Place::within(base.path(), pid).unwrap());
        let foreign = base.path().join("lanemesh-demo-notes");
        fs::create_dir(&foreign).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join(LOCK), "").unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), base.path().join("lanemesh-demo-4")).unwrap();
        let left = dead.dir().to_owned();
        fs::write(left.join("log"), "x").unwrap();
        kept.keep();
        let logs = kept.dir().to_owned();
        drop((dead, kept));

        let next = Place::within(base.path(), 5).unwrap();
        assert!(!left.exists() && living.dir().exists() && logs.exists() && foreign.exists());
        assert!(elsewhere.path().join(LOCK).exists() && next.dir().exists());
        next.remove();
        assert!(!next.dir().exists());
    }
}
