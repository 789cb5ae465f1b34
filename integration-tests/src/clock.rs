//! A clock that a test moves under a running server.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::error::Doing;
use crate::{Error, Folder, Result, program};

/// The time of day that a server believes in, by `libfaketime`. Hand [`env`](Self::env) to the server before it starts.
///
/// Only the time of day moves. What counts elapsed time, such as the server's own time-outs, goes on as it should.
#[derive(Debug)]
pub struct Clock {
    folder: Folder,
    library: String,
    /// Names the memory that programs under this clock have in common.
    shared: String,
    /// Owns that memory, and removes it when its input ends: with us, however we end. A server that is killed would leave its own.
    keeper: Child,
}

impl Clock {
    /// A clock that is right.
    ///
    /// # Errors
    /// When `libfaketime` is not installed.
    pub fn new() -> Result<Self> {
        let mut tries_left = 5;
        let (keeper, library, shared) = loop {
            tries_left -= 1;
            match start_keeper() {
                // It names its memory by its process id: one that was killed and had the same has left that behind.
                Err(Error::Answer { .. }) if tries_left > 0 => {}
                started => break started?,
            }
        };
        let clock = Self {
            folder: Folder::new("clock")?,
            library,
            shared,
            keeper,
        };
        clock.set(0)?;
        Ok(clock)
    }

    /// The environment of a program that is to go by this clock.
    #[must_use]
    pub fn env(&self) -> Vec<(String, String)> {
        let file = self.folder.file("offset");
        [
            // Debian's Redis takes its memory from jemalloc, which asks for the time while it starts; libfaketime needs memory to
            // answer that the first time, and neither gets on. So memory comes from the C library.
            ("LD_PRELOAD", format!("{}:libc.so.6", self.library)),
            ("FAKETIME_SHARED", self.shared.clone()),
            ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
            // Every look at the time reads the file.
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// Lets programs of other users go by this clock, as a PostgreSQL that root has started: its memory belongs to who made it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open_to_all(&self) -> Result<()> {
        let memory = Path::new("/dev/shm");
        let named = self.shared.split_whitespace();
        let files = named
            .map(|name| name.trim_start_matches('/'))
            .flat_map(|name| {
                // A semaphore is a file of another name.
                [memory.join(name), memory.join(format!("sem.{name}"))]
            });
        for file in files.filter(|file| file.exists()) {
            fs::set_permissions(&file, fs::Permissions::from_mode(0o666))
                .doing(format!("open {}", file.display()))?;
        }
        Ok(())
    }

    /// From now on the clock is so many seconds ahead of the right time, or behind it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn set(&self, seconds_ahead: i64) -> Result<()> {
        let (new, file) = (self.folder.file("new"), self.folder.file("offset"));
        // Never half written: a program may look at any moment.
        fs::write(&new, format!("{seconds_ahead:+}\n"))
            .and_then(|()| fs::rename(&new, &file))
            .doing("set a clock")
    }

    /// Fails unless a program that was started with [`env`](Self::env) shows this time, in seconds since 1970, to within a minute.
    ///
    /// # Errors
    /// When the library was not loaded, or the clock is not where it should be.
    pub fn check(seconds_ahead: i64, shown: i64) -> Result<()> {
        let right = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0));
        if (shown - right - seconds_ahead).abs() < 60 {
            return Ok(());
        }
        Err(Error::answer(
            "a moved clock",
            format!("{} s ahead, not {seconds_ahead}", shown - right),
        ))
    }
}

/// Starts the owner of the memory; with the library, which is somewhere else on each machine, and the memory's name.
fn start_keeper() -> Result<(Child, String, String)> {
    let mut command = Command::new(program::find("faketime", "faketime")?);
    command.args(["-m", "-f", "+0", "sh", "-c"]);
    command.arg("printenv LD_PRELOAD FAKETIME_SHARED; exec cat");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut keeper = command.spawn().doing("start faketime")?;
    let mut lines = keeper
        .stdout
        .take()
        .into_iter()
        .flat_map(|out| BufReader::new(out).lines());
    let mut line = || lines.next().and_then(std::result::Result::ok);
    if let (Some(library), Some(shared)) = (line(), line()) {
        return Ok((keeper, library, shared));
    }
    drop(keeper.stdin.take());
    keeper.wait().doing("end faketime")?;
    Err(Error::answer("faketime's environment", "nothing"))
}

impl Drop for Clock {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        self.keeper.wait().ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_goes_by_its_clock() {
        let clock = Clock::new().unwrap();
        for ahead in [0, 3600, -86_400 * 400] {
            clock.set(ahead).unwrap();
            let mut date = Command::new("date");
            date.arg("+%s").envs(clock.env());
            let shown = program::run(&mut date).unwrap();
            Clock::check(ahead, shown.trim().parse().unwrap()).unwrap();
        }
    }
}
