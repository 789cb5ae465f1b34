//! Proof of life: a file that a client keeps locked for as long as it lives. The kernel frees it when the process dies ([C12](dlock_core::contract#c12)).

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::str::FromStr;

use dlock_core::backend::AttemptId;

/// One client: 64 random bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ClientId(u64);

impl ClientId {
    pub(crate) fn new() -> Self {
        Self(uuid::Uuid::new_v4().as_u64_pair().0)
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for ClientId {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        u64::from_str_radix(text, 16).map(Self).map_err(|_| ())
    }
}

/// This client's own proof. Its end frees everything that the client still holds.
#[derive(Debug)]
pub(crate) struct Life {
    id: ClientId,
    path: PathBuf,
    /// Locked.
    file: File,
    /// The attempts of which a line may stand in a lock's file.
    lines: HashSet<AttemptId>,
}

impl Life {
    pub(crate) fn new(id: ClientId, path: PathBuf, file: File) -> Self {
        Self {
            id,
            path,
            file,
            lines: HashSet::new(),
        }
    }

    pub(crate) fn id(&self) -> ClientId {
        self.id
    }

    /// Whether others still find the file under its name.
    pub(crate) fn is_in_place(&self) -> bool {
        match (self.file.metadata(), fs::metadata(&self.path)) {
            (Ok(ours), Ok(there)) => ours.ino() == there.ino() && ours.dev() == there.dev(),
            _ => false,
        }
    }

    /// The same client, by a new file.
    pub(crate) fn replace_file(&mut self, file: File) {
        self.file = file;
    }

    pub(crate) fn note_line(&mut self, attempt: AttemptId) {
        self.lines.insert(attempt);
    }

    pub(crate) fn strike_line(&mut self, attempt: AttemptId) {
        self.lines.remove(&attempt);
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // With lines left, the file stays: one that can be locked says that its client has ended, and one that is missing does not.
        // Whoever comes next removes both.
        if self.lines.is_empty() {
            let _ = fs::remove_file(&self.path);
        }
        let _ = self.file.unlock();
    }
}
