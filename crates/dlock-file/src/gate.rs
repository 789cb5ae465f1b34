//! The gate before a lock's file: an exclusive file lock that is held for microseconds, never while a user holds a lock.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dlock_core::{Error, ErrorKind, Result};

use crate::connect::Store;
use crate::error::failed;
use crate::key::Key;

/// A gate is shut for microseconds, unless its process was stopped right there.
const PATIENCE: Duration = Duration::from_secs(5);
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

/// An open gate; dropping it lets the next one in. Gates are never removed: there are 64 for all names.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
}

impl Store {
    /// Goes through the gate of a lock. Blocks, so it is called on a thread for that.
    pub(crate) fn gate(&self, key: &Key) -> Result<Gate> {
        let path = self.path("gates", &format!("{:02x}", key.gate));
        let until = Instant::now() + PATIENCE;
        loop {
            // Each pass has its own descriptor: the kernel's lock belongs to it, so tasks exclude each other as well (C2).
            let file = self
                .access
                .open_or_make(&path)
                .map_err(|error| failed("open", &path, error))?;
            lock(&file, &path, until)?;
            let gate = Gate {
                file,
                path: path.clone(),
            };
            if gate.is_in_place() {
                return Ok(gate);
            }
            // Somebody removed the file between our open and our lock, and others use a new one.
        }
    }
}

/// Asks instead of waiting in the kernel: a thread that waits there cannot be ended, not even by the runtime's shutdown.
fn lock(file: &File, path: &std::path::Path, until: Instant) -> Result<()> {
    let mut pause = SHORTEST_PAUSE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(failed("lock", path, error)),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => {
                return Err(Error::new(
                    ErrorKind::TimedOut,
                    format!(
                        "{} is locked for {PATIENCE:?}: is a process stopped (Ctrl-Z, a debugger)? fuser -v tells which",
                        path.display()
                    ),
                )
                .with_backend("file"));
            }
            Err(TryLockError::WouldBlock) => {
                std::thread::sleep(pause.mul_f64(0.5 + fastrand::f64()));
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

impl Gate {
    fn is_in_place(&self) -> bool {
        match (self.file.metadata(), std::fs::metadata(&self.path)) {
            (Ok(ours), Ok(there)) => ours.ino() == there.ino() && ours.dev() == there.dev(),
            _ => false,
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // Not left to the close: a process that is just being started may hold a copy of the descriptor until its exec.
        let _ = self.file.unlock();
    }
}
