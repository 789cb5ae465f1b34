//! The clients of a folder: which of them live, and what the dead have left.

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io;

use dlock_core::backend::AttemptId;
use dlock_core::{Error, ErrorKind, Result};

use crate::connect::{Store, locked};
use crate::error::failed;
use crate::key::Key;
use crate::life::{ClientId, Life};
use crate::origin::Origin;

/// How many clients a new one looks at, at most.
const LOOKED_AT: usize = 64;

impl Store {
    /// Who we are, for what we write.
    pub(crate) fn me(&self) -> Result<ClientId> {
        let mut life = locked(&self.life);
        let id = match life.as_ref() {
            Some(life) if life.is_in_place() => return Ok(life.id()),
            // Somebody removed the file. With a new one our holds are good again, in case they are still written down.
            Some(life) => life.id(),
            None => ClientId::new(),
        };
        let path = self.path("clients", &id.to_string());
        let draft = path.with_extension("draft");
        // Locked before it has its name: nobody ever sees it unlocked while we live.
        let file = self
            .access
            .file()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&draft)
            .and_then(|file| {
                file.lock()?;
                self.access.open_up(&file)?;
                fs::rename(&draft, &path)?;
                Ok(file)
            })
            .map_err(|error| failed("make", &path, error))?;
        match life.as_mut() {
            Some(life) => life.replace_file(file),
            None => *life = Some(Life::new(id, path, file)),
        }
        Ok(id)
    }

    /// Before a line of an attempt is written: it stands for `me`, which must not have ended meanwhile.
    pub(crate) fn note_line(&self, me: ClientId, attempt: AttemptId) -> Result<()> {
        match locked(&self.life).as_mut() {
            Some(life) if life.id() == me => {
                life.note_line(attempt);
                Ok(())
            }
            _ => Err(
                Error::new(ErrorKind::Closed, "the client was closed meanwhile")
                    .with_backend("file"),
            ),
        }
    }

    /// After the line of an attempt was removed, or found to be gone.
    pub(crate) fn strike_line(&self, attempt: AttemptId) {
        if let Some(life) = locked(&self.life).as_mut() {
            life.strike_line(attempt);
        }
    }

    /// Whether a client lives. When its proof is missing, the process that wrote the line is asked, where one is known: a holder may have
    /// lost its proof to a cleaner of old files. A waiter may be passed over; it comes again by itself.
    pub(crate) fn is_alive(&self, id: ClientId, origin: Option<&Origin>) -> Result<bool> {
        if locked(&self.life)
            .as_ref()
            .is_some_and(|life| life.id() == id)
        {
            return Ok(true);
        }
        let path = self.path("clients", &id.to_string());
        match File::open(&path) {
            Ok(file) => is_locked(&file).map_err(|error| failed("lock", &path, error)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(origin.is_some_and(Origin::may_live))
            }
            Err(error) => Err(failed("open", &path, error)),
        }
    }

    /// Removes what clients left that were killed: their proofs, their sockets, and their lines in lock files ([C16](dlock_core::contract#c16)).
    pub(crate) fn sweep_dead_clients(&self) -> Result<()> {
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
        files.truncate(LOOKED_AT);
        let mut dead = HashSet::new();
        for file in files {
            match file.parse() {
                Ok(id) if !self.is_alive(id, None)? => {
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
        let Some(record) = self.glance(file)? else {
            // Its writer was killed before the first word.
            let _ = fs::remove_file(self.path("locks", file));
            return Ok(());
        };
        let mut page = self.page(&key, &record.name)?;
        if page
            .record
            .sweep_all(|id, origin| self.is_alive(id, origin))?
        {
            page.write()?;
            self.wake_next(&page.record);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Access;

    /// Its proof is gone in good order, so the line would stand there until the process ends.
    #[test]
    fn no_line_is_written_for_a_client_that_was_closed_meanwhile() {
        let dir = tempfile::tempdir().expect("temp");
        let store = Store::open(dir.path(), Access::Owner).expect("made");
        let me = store.me().expect("a proof");
        store.note_line(me, AttemptId::new()).expect("it lives");
        locked(&store.life).take();
        let path = store.path("clients", &me.to_string());
        assert!(path.exists(), "with a line left, the proof stays");
        assert!(!store.is_alive(me, Some(&Origin::ours())).expect("asked"));
        let next = store.me().expect("another proof");
        let closed = store.note_line(me, AttemptId::new());
        assert_eq!(closed.expect_err("closed").kind(), ErrorKind::Closed);
        locked(&store.life).take();
        let path = store.path("clients", &next.to_string());
        assert!(!path.exists(), "without a line, nothing is left");
    }
}
