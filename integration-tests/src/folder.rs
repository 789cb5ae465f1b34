//! Temporary folders that do not outlive the process that made them.
//!
//! ```text
//! <root>/lock               taken while folders of processes are made or swept
//! <root>/run-<pid>-<n>/     one per process; its file `alive` is locked as long as the process lives
//! <root>/kept/              folders kept for a reader; swept after a day
//! <root>/cache/             things that cost time to make, shared by all processes
//! <root>/ports/             one lock file per port in use
//! ```
//!
//! The root lies in memory (`/dev/shm`) where there is such a folder: a server that syncs its files is then quick.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::Result;
use crate::error::Doing;

/// Keep the folders of all servers when set.
const KEEP: &str = "DLOCK_KEEP_LOGS";

/// Kept folders older than this are swept.
const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// A folder of one server: its data, its configuration and its log.
///
/// It is removed when dropped. It is kept, and its path printed, when the thread is panicking, when [`keep`](Self::keep)
/// was called, or when the environment variable `DLOCK_KEEP_LOGS` is set. A server shared by the whole test process (see
/// [`redis`](crate::redis)) is never dropped: to read its log, set the variable.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    keep: AtomicBool,
}

impl Folder {
    /// Makes a new, empty folder.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(name: &str) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let home = home()?;
        let path = home.join(format!("{name}-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&path).doing(format!("make {}", path.display()))?;
        Ok(Self {
            path,
            keep: AtomicBool::new(false),
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Keeps it for a reader when it is dropped.
    pub fn keep(&self) {
        self.keep.store(true, Ordering::Relaxed);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if keeping_all() {
            return;
        }
        if !std::thread::panicking() && !self.keep.load(Ordering::Relaxed) {
            fs::remove_dir_all(&self.path).ok();
        } else if let Ok(kept) = move_to_kept(&self.path) {
            announce(&kept);
        }
    }
}

/// Tells the reader of a test's output where a folder is.
#[allow(
    clippy::print_stderr,
    reason = "the reader of a failed test wants the path"
)]
fn announce(kept: &Path) {
    eprintln!("kept: {}", kept.display());
}

/// Moves a folder to where a later sweep leaves it alone.
fn move_to_kept(path: &Path) -> io::Result<PathBuf> {
    let mut name = path
        .parent()
        .and_then(Path::file_name)
        .unwrap_or_default()
        .to_owned();
    name.push("-");
    name.push(path.file_name().unwrap_or_default());
    let kept = root()?.join("kept").join(name);
    fs::create_dir_all(kept.parent().unwrap_or(path))?;
    fs::rename(path, &kept)?;
    Ok(kept)
}

fn keeping_all() -> bool {
    std::env::var_os(KEEP).is_some()
}

/// A folder below the root that all test processes of this user share.
pub(crate) fn shared(name: &str) -> Result<PathBuf> {
    let path = root()
        .doing("make the root of the test folders")?
        .join(name);
    fs::create_dir_all(&path).doing(format!("make {}", path.display()))?;
    Ok(path)
}

/// Opens a file to be locked, and makes it where it is missing.
pub(crate) fn lock_file(path: &Path) -> io::Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
}

fn root() -> io::Result<PathBuf> {
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    };
    let root = base.join(format!("dlock-tests-{}", rustix::process::getuid()));
    fs::create_dir_all(&root)?;
    Ok(root)
}

/// The folder of this process. The first call makes it and sweeps those of the dead.
fn home() -> Result<&'static Path> {
    static HOME: OnceLock<io::Result<(PathBuf, File)>> = OnceLock::new();
    match HOME.get_or_init(settle) {
        Ok((path, _alive)) => Ok(path),
        Err(error) => Err(io::Error::new(error.kind(), error.to_string()))
            .doing("make the folder of this process"),
    }
}

/// Makes the folder of this process and takes its `alive` lock, which the kernel frees when the process ends.
fn settle() -> io::Result<(PathBuf, File)> {
    let root = root()?;
    // Without this lock a sweep could meet a folder whose owner has not yet locked it.
    let door = lock_file(&root.join("lock"))?;
    door.lock()?;
    sweep(&root)?;

    let place = if keeping_all() {
        root.join("kept")
    } else {
        root
    };
    fs::create_dir_all(&place)?;
    let pid = std::process::id();
    // A process with this id may have lived before, in a folder that was kept.
    let home = (1_u32..)
        .map(|n| place.join(format!("run-{pid}-{n}")))
        .find(|path| !path.exists())
        .expect("fewer than four thousand million folders");
    fs::create_dir(&home)?;
    if keeping_all() {
        announce(&home);
    }
    let alive = lock_file(&home.join("alive"))?;
    alive.lock()?;
    Ok((home, alive))
}

fn sweep(root: &Path) -> io::Result<()> {
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        let ours = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("run-"));
        if ours && is_stale(&path) {
            fs::remove_dir_all(&path).ok();
        }
    }
    let Ok(kept) = fs::read_dir(root.join("kept")) else {
        return Ok(());
    };
    for path in kept.flatten().map(|entry| entry.path()) {
        // Whatever cannot be looked at has just been removed by its reader.
        let age = path
            .metadata()
            .and_then(|about| about.modified())
            .map(|time| time.elapsed());
        if matches!(age, Ok(Ok(age)) if age > KEPT_FOR) && is_stale(&path) {
            fs::remove_dir_all(&path).ok();
        }
    }
    Ok(())
}

/// Whether the process that made this folder is gone.
fn is_stale(path: &Path) -> bool {
    match File::options().write(true).open(path.join("alive")) {
        Ok(alive) => !matches!(alive.try_lock(), Err(TryLockError::WouldBlock)),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_folder_is_gone() {
        let folder = Folder::new("test").unwrap();
        let path = folder.path().to_owned();
        fs::write(folder.file("log"), "x").unwrap();
        assert!(path.is_dir());
        drop(folder);
        assert_eq!(path.exists(), keeping_all());
    }

    #[test]
    fn a_folder_of_a_panicking_thread_is_kept() {
        let (send, receive) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let folder = Folder::new("panicking").unwrap();
            fs::write(folder.file("log"), "why").unwrap();
            send.send(folder.path().to_owned()).unwrap();
            panic!("on purpose");
        });
        let path = receive.recv().unwrap();
        thread.join().unwrap_err();

        let kept = if keeping_all() {
            path
        } else {
            let run = path
                .parent()
                .and_then(Path::file_name)
                .unwrap()
                .to_string_lossy()
                .into_owned();
            root().unwrap().join("kept").join(format!(
                "{run}-{}",
                path.file_name().unwrap().to_string_lossy()
            ))
        };
        assert_eq!(fs::read_to_string(kept.join("log")).unwrap(), "why");
        fs::remove_dir_all(kept).unwrap();
    }

    #[test]
    fn the_folder_of_a_dead_process_is_swept_and_that_of_a_live_one_is_not() {
        let root = Folder::new("sweep").unwrap();
        let dead = root.file("run-1-1");
        let live = root.file("run-2-1");
        for path in [&dead, &live] {
            fs::create_dir(path).unwrap();
            lock_file(&path.join("alive")).unwrap();
        }
        let alive = lock_file(&live.join("alive")).unwrap();
        alive.lock().unwrap();

        sweep(root.path()).unwrap();
        assert!(!dead.exists());
        assert!(live.exists());
    }
}
