//! Where the demo's files are: a directory of its own, and what demos that were killed have left.
//!
//! A living demo holds a lock on a file in its directory; the system lets go of it however the process ends. A directory is
//! removed only where the name is a demo's, the owner is this user, the lock file is there and nobody holds it. Whoever keeps a
//! directory for its logs takes the lock file out.
//!
//! The sidecars of a demo that was killed die a moment after it: until then one of them may hold the lock (between fork and exec
//! it has all that its parent had), or write a file into a directory that is being removed. So the lock file goes last, and what
//! could not be removed is tried again, for a while beside the new demo and by every later one.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
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
        if sweep(base, &dir, owner) == Swept::SomethingLeft {
            let (base, own) = (base.to_owned(), dir.clone());
            // Not waited for: what it has not removed when this demo ends is the next one's.
            std::thread::spawn(move || sweep_on(&base, &own, owner));
        }
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

#[expect(clippy::disallowed_methods, reason = "a thread of its own, for some seconds")]
fn sweep_on(base: &Path, own: &Path, owner: u32) {
    for _ in 0..SWEEPS {
        std::thread::sleep(BETWEEN_SWEEPS);
        if sweep(base, own, owner) == Swept::All {
            break;
        }
    }
}

/// What of a sweep is left: of living demos as well, they are not told apart from a dead one whose lock a dying child holds.
#[derive(Debug, PartialEq, Eq)]
enum Swept {
    All,
    SomethingLeft,
}

fn sweep(base: &Path, own: &Path, owner: u32) -> Swept {
    let mut swept = Swept::All;
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let dir = entry.path();
        if !named || dir == own {
            continue;
        }
        let gone = match life_of(&dir, owner) {
            Ok(Life::Dead) => remove_lock_last(&dir).is_ok(),
            Ok(Life::Foreign) | Err(_) => true,
            Ok(Life::Held) => false,
        };
        if !gone {
            swept = Swept::SomethingLeft;
        }
    }
    swept
}

/// A removal that does not come to its end leaves a directory that the next sweep still knows for a demo's.
fn remove_lock_last(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() == LOCK {
            continue;
        }
        if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
    }
    fs::remove_dir_all(dir)
}

enum Life {
    /// The lock is free.
    Dead,
    /// Somebody holds the lock.
    Held,
    /// Not a directory of this user's.
    Foreign,
}

/// Whether it is a directory of this user's demos, and its process has ended. An error: no demo's, or its logs were kept.
fn life_of(dir: &Path, owner: u32) -> io::Result<Life> {
    let meta = fs::symlink_metadata(dir)?;
    if !meta.is_dir() || meta.uid() != owner {
        return Ok(Life::Foreign);
    }
    Ok(if File::open(dir.join(LOCK))?.try_lock().is_ok() { Life::Dead } else { Life::Held })
}

const PREFIX: &str = "lanemesh-demo-";
const LOCK: &str = "demo.lock";
/// Sweeps beside the new demo when the first left something, and the time between two: ten seconds in all. A killed process
/// is gone within one, on a machine with anything left to give.
const SWEEPS: u32 = 40;
const BETWEEN_SWEEPS: Duration = Duration::from_millis(250);

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

    /// A child that dies a moment after its parent: what it holds, and what it writes while the directory is removed.
    #[test]
    fn what_a_dying_child_still_holds_is_removed_as_soon_as_it_lets_go() {
        let base = tempfile::tempdir().unwrap();
        let killed = Place::within(base.path(), 1).unwrap();
        let left = killed.dir().to_owned();
        let inherited = killed._lock.try_clone().unwrap();
        drop(killed);
        let owner = fs::metadata(base.path()).unwrap().uid();
        assert_eq!(sweep(base.path(), Path::new(""), owner), Swept::SomethingLeft);
        assert!(left.exists());
        drop(inherited);
        sweep_on(base.path(), Path::new(""), owner);
        assert!(!left.exists());
    }

    #[test]
    fn a_removal_that_does_not_come_to_its_end_is_gone_on_with() {
        let base = tempfile::tempdir().unwrap();
        let killed = Place::within(base.path(), 1).unwrap();
        let left = killed.dir().to_owned();
        drop(killed);
        let data = left.join("data");
        fs::create_dir(&data).unwrap();
        let owner = fs::metadata(base.path()).unwrap().uid();
        std::thread::scope(|scope| {
            let child = scope.spawn(|| {
                for file in 0..2_000 {
                    let _ = fs::write(data.join(file.to_string()), "x");
                }
            });
            while !child.is_finished() {
                sweep(base.path(), Path::new(""), owner);
                assert!(!left.exists() || left.join(LOCK).exists());
            }
        });
        assert_eq!(sweep(base.path(), Path::new(""), owner), Swept::All);
        assert!(!left.exists());
    }
}
