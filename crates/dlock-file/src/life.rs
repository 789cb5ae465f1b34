//! Proof of life: a file that a client keeps locked for as long as it lives. The kernel frees it when the process dies (C12).

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::str::FromStr;

use dlock_core::Result;

use crate::connect::{Store, locked, private_file};
use crate::error::failed;
use crate::key::Key;

/// How many clients a new one looks at, at most.
const FUNERALS: usize = 64;

/// One client: 64 random bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ClientId(u64);

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
    file: File,
}

impl Life {
    pub(crate) fn id(&self) -> ClientId {
        self.id
    }

    fn is_in_place(&self) -> bool {
        match (self.file.metadata(), fs::metadata(&self.path)) {
            (Ok(ours), Ok(there)) => ours.ino() == there.ino() && ours.dev() == there.dev(),
            _ => false,
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = self.file.unlock();
    }
}

impl Store {
    /// Who we are, for what we write.
    pub(crate) fn me(&self) -> Result<ClientId> {
        let mut life = locked(&self.life);
        let id = match life.as_ref() {
            Some(life) if life.is_in_place() => return Ok(life.id),
            // Somebody removed the file. With a new one our holds are good again, in case they are still written down.
            Some(life) => life.id,
            None => ClientId(uuid::Uuid::new_v4().as_u64_pair().0),
        };
        let path = self.path("clients", &id.to_string());
        let draft = path.with_extension("draft");
        // Locked before it has its name: nobody ever sees it unlocked while we live.
        let file = private_file()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&draft)
            .and_then(|file| {
                file.lock()?;
                fs::rename(&draft, &path)?;
                Ok(file)
            })
            .map_err(|error| failed("make", &path, error))?;
        match life.as_mut() {
            Some(life) => life.file = file,
            None => *life = Some(Life { id, path, file }),
        }
        Ok(id)
    }

    /// Whether a client lives.
    pub(crate) fn is_alive(&self, id: ClientId) -> Result<bool> {
        if locked(&self.life)
            .as_ref()
            .is_some_and(|life| life.id == id)
        {
            return Ok(true);
        }
        let path = self.path("clients", &id.to_string());
        match File::open(&path) {
            Ok(file) => is_locked(&file).map_err(|error| failed("lock", &path, error)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("open", &path, error)),
        }
    }

    /// Removes what clients left that were killed: their proofs, their sockets, and their lines in lock files (C16).
    pub(crate) fn bury_the_dead(&self) -> Result<()> {
        let dead = self.dead()?;
        if dead.is_empty() {
            return Ok(());
        }
        for file in self.files("locks")? {
            self.sweep_lock(&file)?;
        }
        for socket in self.files("wake")? {
            let owner = socket.split_once('.').map(|(id, _)| id.parse());
            if matches!(owner, Some(Ok(id)) if dead.contains(&id)) {
                let _ = fs::remove_file(self.path("wake", &socket));
            }
        }
        // Last, so that a burial that was interrupted is done again.
        for id in dead {
            let _ = fs::remove_file(self.path("clients", &id.to_string()));
        }
        Ok(())
    }

    fn dead(&self) -> Result<HashSet<ClientId>> {
        let mut files = self.files("clients")?;
        // A thousand clients that start at once shall not look at each other a million times.
        fastrand::shuffle(&mut files);
        files.truncate(FUNERALS);
        let mut dead = HashSet::new();
        for file in files {
            match file.parse() {
                Ok(id) if !self.is_alive(id)? => {
                    dead.insert(id);
                }
                Ok(_) => {}
                Err(()) => self.remove_old_draft(&file),
            }
        }
        Ok(dead)
    }

    /// A draft that nobody has locked is that of a client that was killed in its first moments, or is about to be locked.
    fn remove_old_draft(&self, file: &str) {
        let path = self.path("clients", file);
        let old = fs::metadata(&path)
            .and_then(|found| found.modified())
            .ok()
            .and_then(|time| time.elapsed().ok())
            .is_some_and(|age| age.as_secs() > 60);
        if old {
            let _ = fs::remove_file(path);
        }
    }

    fn sweep_lock(&self, file: &str) -> Result<()> {
        let Some(key) = Key::of_file(file) else {
            return Ok(());
        };
        let _gate = self.gate(&key)?;
        let Some(state) = self.glance(file)? else {
            // Its writer was killed before the first word.
            let _ = fs::remove_file(self.path("locks", file));
            return Ok(());
        };
        let mut page = self.page(&key, &state.name)?;
        if page.state.sweep_all(|id| self.is_alive(id))? {
            page.write()?;
            self.wake_next(&page.state);
        }
        Ok(())
    }

    /// The names of the files in a part of the folder, in order.
    pub(crate) fn files(&self, part: &str) -> Result<Vec<String>> {
        let path = self.folder.join(part);
        let entries = fs::read_dir(&path).map_err(|error| failed("read", &path, error))?;
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| failed("read", &path, error))?;
            files.push(entry.file_name().to_string_lossy().into_owned());
        }
        files.sort();
        Ok(files)
    }
}

fn is_locked(file: &File) -> io::Result<bool> {
    // Shared, so that two who look at the same dead client do not take each other for it.
    match file.try_lock_shared() {
        Ok(()) => {
            let _ = file.unlock();
            Ok(false)
        }
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}
