//! The folder: made private, refused when it cannot be trusted, and the few ways in which its files are touched.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock_core::{Error, ErrorKind, Name, Result};

use crate::access::Access;
use crate::error::failed;
use crate::key::Key;
use crate::life::Life;
use crate::record::LockRecord;
use crate::slots;
use crate::wake_socket::WakeSocket;

/// Written into the folder, so that a later format is not misread by an earlier version.
const FORMAT: &str = "dlock-file 2\n";

/// One client of a folder.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) folder: PathBuf,
    pub(crate) access: Access,
    /// Made by the first acquire: a client that only looks leaves nothing.
    pub(crate) life: Mutex<Option<Life>>,
    /// Made by the first wait.
    pub(crate) wake_socket: Mutex<Option<WakeSocket>>,
}

impl Store {
    pub(crate) fn open(folder: &Path, access: Access) -> Result<Self> {
        make_folder(folder, access)?;
        check_trust(folder, rustix::process::geteuid().as_raw(), access)?;
        let folder = fs::canonicalize(folder).map_err(|e| failed("open", folder, e))?;
        check_format(&folder, access)?;
        for part in ["gates", "locks", "clients", "wake"] {
            let path = folder.join(part);
            access
                .make_folder(&path)
                .map_err(|error| failed("make", &path, error))?;
        }
        let store = Self {
            folder,
            access,
            life: Mutex::new(None),
            wake_socket: Mutex::new(None),
        };
        store.sweep_dead_clients()?;
        Ok(store)
    }

    pub(crate) fn path(&self, part: &str, file: &str) -> PathBuf {
        self.folder.join(part).join(file)
    }

    /// What is written about a lock, to be changed: behind its gate.
    pub(crate) fn page(&self, key: &Key, name: &Name) -> Result<Page> {
        let path = self.path("locks", &key.file);
        let mut page = Page {
            file: open_if_there(&path)?,
            path,
            access: self.access,
            number: 0,
            record: LockRecord::new(name.clone()),
        };
        if let Some(file) = &page.file {
            let (number, text) = slots::read(file).map_err(|e| failed("read", &page.path, e))?;
            page.number = number;
            // A file without a whole text is that of a writer killed right at the start, or of a machine that lost its
            // power; in both cases nobody holds.
            if let Some(record) = LockRecord::parse(&text) {
                check_name(&record, name, &page.path)?;
                page.record = record;
            }
        }
        Ok(page)
    }

    /// What one file of `locks/` says now; `None` when it went away. Needs no gate: a writer leaves the newest text alone.
    pub(crate) fn glance(&self, file: &str) -> Result<Option<LockRecord>> {
        let path = self.path("locks", file);
        let Some(file) = open_if_there(&path)? else {
            return Ok(None);
        };
        // Two writes within one read spoil both slots: look again.
        for _ in 0..10 {
            let (_, text) = slots::read(&file).map_err(|e| failed("read", &path, e))?;
            if let Some(record) = LockRecord::parse(&text) {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }
}

/// A lock's file, behind its gate.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) record: LockRecord,
    path: PathBuf,
    access: Access,
    file: Option<File>,
    number: u64,
}

impl Page {
    /// Writes the record in one step; a lock that nobody uses has no file ([C16](dlock_core::contract#c16)).
    pub(crate) fn write(&mut self) -> Result<()> {
        let path = &self.path;
        if self.record.is_empty() {
            return match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(failed("remove", path, error))
                }
                _ => Ok(()),
            };
        }
        let file = match self.file.take() {
            Some(file) => file,
            None => self
                .access
                .open_or_make(path)
                .map_err(|error| failed("make", path, error))?,
        };
        slots::write(&file, self.number, &self.record.to_string())
            .map_err(|error| failed("write", path, error))?;
        self.number += 1;
        self.file = Some(file);
        Ok(())
    }
}

fn check_name(record: &LockRecord, name: &Name, path: &Path) -> Result<()> {
    if record.name == *name {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Store,
        format!(
            "{} belongs to the lock {:?}: remove it if nobody uses it",
            path.display(),
            record.name
        ),
    )
    .with_backend("file"))
}

fn open_if_there(path: &Path) -> Result<Option<File>> {
    match File::options().read(true).write(true).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("open", path, error)),
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one step on a thread that may block. A step whose future is dropped runs to its end; what it does then is undone by
/// `abandon`, or refused because `abandon` came first.
pub(crate) async fn blocking<T: Send + 'static>(
    store: &Arc<Store>,
    step: impl FnOnce(&Store) -> Result<T> + Send + 'static,
) -> Result<T> {
    let store = store.clone();
    match tokio::task::spawn_blocking(move || step(&store)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::new(
            ErrorKind::Store,
            "the runtime is shutting down, and the step was not done",
        )),
    }
}

fn read_if_there(path: &Path) -> Result<Option<String>> {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path, error)),
    }
}

fn make_folder(folder: &Path, access: Access) -> Result<()> {
    if fs::symlink_metadata(folder).is_ok() {
        return Ok(());
    }
    access
        .make_folder(folder)
        .map_err(|error| match error.kind() {
            // Here "not found" is about the user's path, not about a folder that went away.
            io::ErrorKind::NotFound => Error::new(
                ErrorKind::Denied,
                format!("cannot make the folder {}: {error}", folder.display()),
            )
            .with_backend("file"),
            _ => failed("make the folder", folder, error),
        })
}

/// Whoever can change the files of the folder can take or free every lock in it.
fn check_trust(folder: &Path, user: u32, access: Access) -> Result<()> {
    let found = fs::symlink_metadata(folder).map_err(|error| failed("open", folder, error))?;
    let shown = folder.display();
    let mode = found.mode();
    let why = if found.file_type().is_symlink() {
        format!("the folder {shown} is a symbolic link: name the folder it points to")
    } else if !found.is_dir() {
        format!("{shown} is not a folder: remove it, or choose another with file:/path")
    } else if access == Access::Group && mode & 0o002 != 0 {
        format!("everybody may write to the folder {shown}: run chmod o-w on it")
    } else if access == Access::Group && mode & 0o2070 != 0o2070 {
        format!(
            "the folder {shown} is not open to its group: run chgrp and chmod g+rwxs on it, or leave access=group out"
        )
    } else if access == Access::Group {
        return Ok(());
    } else if found.uid() != user {
        format!(
            "the folder {shown} belongs to user {}, and you are {user}: choose another with file:/path, or share it with \
             file:/path?access=group",
            found.uid()
        )
    } else if mode & 0o022 != 0 {
        format!(
            "others may write to the folder {shown}: run chmod go-w on it, choose another with file:/path, or say \
             file:/path?access=group"
        )
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Denied, why).with_backend("file"))
}

fn check_format(folder: &Path, access: Access) -> Result<()> {
    let path = folder.join("format");
    match read_if_there(&path)? {
        Some(text) if text == FORMAT => Ok(()),
        Some(text) if !text.is_empty() => Err(Error::new(
            ErrorKind::Store,
            format!(
                "the folder {} has the format {:?}, and this version knows {:?}: use the same version of dlock everywhere",
                folder.display(),
                text.trim_end(),
                FORMAT.trim_end()
            ),
        )
        .with_retryable(false)
        .with_backend("file")),
        _ => {
            // Several first clients may write it at once; each of them renames the same text into place.
            let draft = folder.join(format!("format.{}", uuid::Uuid::new_v4().simple()));
            access
                .file()
                .write(true)
                .create_new(true)
                .open(&draft)
                .and_then(|mut file| {
                    access.open_up(&file)?;
                    file.write_all(FORMAT.as_bytes())
                })
                .and_then(|()| fs::rename(&draft, &path))
                .map_err(|error| failed("write", &path, error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn refusal(folder: &Path) -> String {
        let error = Store::open(folder, Access::Owner).expect_err("not to be trusted");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        error.to_string()
    }

    #[test]
    fn a_new_folder_is_private() {
        let dir = tempfile::tempdir().expect("temp");
        let folder = dir.path().join("a/b");
        Store::open(&folder, Access::Owner).expect("made");
        let mode = fs::metadata(&folder).expect("there").mode();
        assert_eq!(mode & 0o777, 0o700);
        Store::open(&folder, Access::Owner).expect("opened again");
    }

    #[test]
    fn folders_that_others_could_change_are_refused() {
        let dir = tempfile::tempdir().expect("temp");
        let real = dir.path().join("real");
        fs::create_dir(&real).expect("made");
        let link = dir.path().join("link");
        symlink(&real, &link).expect("linked");
        assert!(refusal(&link).contains("symbolic link"));

        fs::set_permissions(&real, fs::Permissions::from_mode(0o770)).expect("changed");
        assert!(refusal(&real).contains("chmod go-w"));

        let file = dir.path().join("file");
        fs::write(&file, "").expect("written");
        assert!(refusal(&file).contains("not a folder"));

        fs::set_permissions(&real, fs::Permissions::from_mode(0o700)).expect("changed");
        let user = rustix::process::geteuid().as_raw();
        let error = check_trust(&real, user + 1, Access::Owner).expect_err("another owner");
        assert!(error.to_string().contains("belongs to user"), "{error}");
    }

    #[test]
    fn a_folder_is_shared_with_its_group_only_when_both_sides_say_so() {
        let dir = tempfile::tempdir().expect("temp");
        let folder = dir.path().join("shared");
        Store::open(&folder, Access::Group).expect("made");
        let mode = |path: &Path| fs::metadata(path).expect("there").mode();
        assert_eq!(mode(&folder) & 0o7777, 0o2770);
        assert_eq!(mode(&folder.join("locks")) & 0o7777, 0o2770);
        assert_eq!(mode(&folder.join("format")) & 0o777, 0o660);
        assert!(refusal(&folder).contains("access=group"));
        let group = |mode| {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).expect("changed");
            let error = Store::open(&folder, Access::Group).expect_err("not to be trusted");
            error.to_string()
        };
        assert!(group(0o2777).contains("chmod o-w"));
        assert!(group(0o700).contains("g+rwxs"));
    }

    #[test]
    fn another_format_is_refused() {
        let dir = tempfile::tempdir().expect("temp");
        fs::write(dir.path().join("format"), "dlock-file 9\n").expect("written");
        let error = Store::open(dir.path(), Access::Owner).expect_err("unknown format");
        assert!(error.to_string().contains("dlock-file 9"), "{error}");
    }
}
