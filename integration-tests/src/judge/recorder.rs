//! Writes lines of a history as they happen.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use dlock_judge::{Line, Op, Phase};
use dlocks::{Clock, SystemClock};

use crate::Result;
use crate::error::Doing;

/// Nanoseconds on the one clock of all histories: the library's own, so that a validity can be compared with it.
#[must_use]
pub fn now() -> u64 {
    SystemClock.now().as_nanos()
}

/// The file of one process. A line is one write, so a kill cuts the last line at most.
#[derive(Debug)]
pub struct Recorder {
    process: u32,
    file: Mutex<File>,
}

impl Recorder {
    /// Writes to the end of this file.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open(path: &Path, process: u32) -> Result<Self> {
        let file = File::options().create(true).append(true).open(path);
        let file = file.doing(format!("open {}", path.display()))?;
        Ok(Self {
            process,
            file: Mutex::new(file),
        })
    }

    /// A line of this process at this moment.
    #[must_use]
    pub fn line(&self, op: Op, phase: Phase) -> Line {
        Line::new(now(), self.process, op, phase)
    }

    /// Writes down that nothing went on since this moment, if that is longer ago than it should be.
    pub(super) fn was_late(&self, since: u64, at_most: Duration) {
        let mut line = self.line(Op::StoodStill, Phase::Info);
        if u128::from(line.at.saturating_sub(since)) > at_most.as_nanos() {
            line.value = Some(since);
            self.write(&line);
        }
    }

    /// Writes it.
    ///
    /// # Panics
    /// When the disk is full: a history with holes judges nothing.
    pub fn write(&self, line: &Line) {
        let mut text = serde_json::to_string(line).expect("a line is JSON");
        text.push('\n');
        let mut file = self.file.lock().expect("no panic while writing");
        file.write_all(text.as_bytes())
            .expect("the history is written");
    }
}
