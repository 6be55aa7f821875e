//! The data directory: one state file, replaced atomically; a damaged one is set aside, never fatal.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::mpsc,
};

use crate::node::Stored;

/// Of what a run has written down, the file that is written again and again.
pub const STATE: &str = "state";
const LOCK: &str = "lock";
const RESET_KEY: &str = "reset.key";
/// States and questions waiting for the writer.
const JOBS: usize = 16;

/// The data directory of one running sidecar; held exclusively.
pub struct StateDir {
    dir: PathBuf,
    jobs: Option<mpsc::SyncSender<Job>>,
    writer: Option<std::thread::JoinHandle<()>>,
    _lock: fs::File,
}

/// Why the data directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another process runs on it.
    #[error("data directory {0} is in use by another lanemesh process: give each sidecar its own data_dir")]
    InUse(PathBuf),
    /// The system refuses.
    #[error("data directory {path}: {error}; set data_dir to a directory that this user may write to")]
    Io {
        /// What was touched.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

impl StateDir {
    /// Opens or makes the directory, and locks it.
    pub fn open(dir: &Path) -> Result<Self, StateError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |error| StateError::Io { path, error }
        };
        fs::create_dir_all(dir).map_err(at(dir))?;
        let lock_path = dir.join(LOCK);
        let lock =
            fs::File::options().create(true).write(true).truncate(false).open(&lock_path).map_err(at(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(StateError::InUse(dir.to_owned())),
            Err(fs::TryLockError::Error(error)) => return Err(at(&lock_path)(error)),
        }
        Ok(Self { dir: dir.to_owned(), jobs: None, writer: None, _lock: lock })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// What an earlier run wrote down; nothing when there was none, or when it is damaged (then it is set aside).
    pub fn load(&self) -> Stored {
        let path = self.dir.join(STATE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Stored::default(),
            Err(error) => {
                tracing::warn!("state file {}: {error}; starting without it", path.display());
                return Stored::default();
            }
        };
        match Stored::decode(&bytes) {
            Ok(stored) => stored,
            Err(fault) => {
                let aside = self.dir.join("state.damaged");
                let kept = fs::rename(&path, &aside).map_or_else(
                    |e| format!("could not be set aside: {e}"),
                    |()| format!("kept as {}", aside.display()),
                );
                tracing::warn!("state file {}: {fault}; {kept}; starting without it", path.display());
                Stored::default()
            }
        }
    }

    /// 32 random bytes that stay the same over restarts: lets peers notice at once that an old connection is dead.
    pub fn reset_key(&self, fresh: [u8; 32]) -> [u8; 32] {
        let path = self.dir.join(RESET_KEY);
        if let Some(kept) = fs::read(&path).ok().and_then(|bytes| bytes.try_into().ok()) {
            return kept;
        }
        if let Err(error) = replace(&path, &fresh) {
            tracing::warn!("{}: {error}; peers will notice a restart later", path.display());
        }
        fresh
    }

    /// Encodes and writes the state, soon, off this thread; of several only the last.
    pub(super) fn write(&mut self, stored: Box<Stored>) {
        self.hand_over(Job::Write(stored));
    }

    /// Calls back when everything handed over so far has been written, or could not be.
    pub(super) fn when_written(&mut self, back: impl FnOnce() + Send + 'static) {
        self.hand_over(Job::Tell(Box::new(back)));
    }

    fn hand_over(&mut self, job: Job) {
        let jobs = self.jobs.get_or_insert_with(|| {
            let (jobs, inbox) = mpsc::sync_channel(JOBS);
            let path = self.dir.join(STATE);
            let writer =
                std::thread::Builder::new().name("lanemesh-state".into()).spawn(move || write_all(&path, &inbox));
            if let Err(error) = &writer {
                tracing::warn!("no thread for the state file: {error}; a restart will know less");
            }
            self.writer = writer.ok();
            jobs
        });
        // A disk that hangs must not hang the gossip: what finds the queue full is dropped, and the next state is whole again.
        if let Err(mpsc::TrySendError::Full(Job::Tell(back)) | mpsc::TrySendError::Disconnected(Job::Tell(back))) =
            jobs.try_send(job)
        {
            back();
        }
    }
}

/// What the writer is told.
enum Job {
    Write(Box<Stored>),
    Tell(Box<dyn FnOnce() + Send>),
}

/// The writer: takes what has gathered, writes the newest state, then tells those who wait.
fn write_all(path: &Path, inbox: &mpsc::Receiver<Job>) {
    let mut failing = false;
    while let Ok(first) = inbox.recv() {
        let (mut newest, mut waiting) = (None, Vec::new());
        for job in std::iter::once(first).chain(inbox.try_iter()) {
            match job {
                Job::Write(stored) => newest = Some(stored),
                Job::Tell(back) => waiting.push(back),
            }
        }
        if let Some(stored) = newest {
            let written = replace(path, &stored.encode());
            if let Err(error) = &written
                && !failing
            {
                tracing::warn!("state file {}: {error}; going on without it, a restart will know less", path.display());
            }
            failing = written.is_err();
        }
        waiting.into_iter().for_each(|back| back());
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(writer) = self.writer.take() {
            // What was handed over is written before the process ends.
            let _ = writer.join();
        }
    }
}

/// Replaces a file atomically; readable by the owner only.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = fs::File::options().create(true).write(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    // The new name is on disk only with its directory.
    path.parent().map_or(Ok(()), |dir| fs::File::open(dir)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_survives_a_restart_and_damage_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let stored = Stored { generation: 3, ..Stored::default() };
        let mut state = StateDir::open(dir.path()).unwrap();
        assert_eq!(state.load(), Stored::default());
        state.write(Box::new(stored.clone()));
        assert!(matches!(StateDir::open(dir.path()), Err(StateError::InUse(_))), "a second process is refused");
        drop(state);
        let state = StateDir::open(dir.path()).unwrap();
        assert_eq!(state.load(), stored);
        assert_eq!(state.reset_key([1; 32]), state.reset_key([2; 32]));
        fs::write(dir.path().join(STATE), b"LMS1 garbage").unwrap();
        assert_eq!(state.load(), Stored::default());
        assert!(dir.path().join("state.damaged").exists());
    }
}
