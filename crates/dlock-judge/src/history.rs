use serde::{Deserialize, Serialize};

/// What was asked, done or seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// The first line: what the store declares, in [`Line::setup`].
    Setup,
    /// A lock that is waited for, with or without a limit.
    Acquire,
    /// A lock that is not waited for.
    Try,
    /// The holder takes the lock once more. [`Line::attempt`] is that of the first hold.
    Reenter,
    /// The inner one of two holds of one owner ends.
    Leave,
    /// A hold's validity was seen to reach further, by [`Line::valid_until`].
    Renew,
    /// An exclusive hold becomes a shared one.
    Downgrade,
    /// A hold is given back.
    Release,
    /// The holder was told that its hold is over.
    Lost,
    /// The store was seen to have the process in the queue of a lock: [`Line::at`] is when its answer was there, [`Line::value`] when it was asked.
    Waits,
    /// A register is read.
    Read,
    /// A register is written.
    Write,
    /// The process was killed.
    Killed,
    /// The process was stopped (SIGSTOP), or goes on.
    Stopped,
    /// See [`Op::Stopped`].
    Continued,
    /// The process, or the store that was asked, got no processor from [`Line::value`] to [`Line::at`]: the machine was busy.
    StoodStill,
    /// Something goes wrong from here on, or went wrong at this moment.
    Fault,
    /// Everything works again, and the waiters may be expected to go on.
    Healed,
    /// From here on processes end as they were told to.
    Stopping,
    /// One entry of a register's own list of the writes that it took, in their order. Written at the end.
    Took,
    /// How many holders and waiters the store still knew at the end, in [`Line::value`].
    Left,
}

/// How far an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It begins.
    Invoke,
    /// It was done.
    Ok,
    /// It was not done, and that is certain.
    Fail,
    /// Nobody knows.
    Unknown,
    /// It has no beginning and no end: it was seen.
    Info,
}

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Together with other readers.
    Shared,
    /// One of so many.
    Permit(u32),
}

/// Which register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Register {
    /// Refuses a token lower than one it has seen.
    Fenced,
    /// Takes every write.
    Unfenced,
}

/// What the store declares, and how long things may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The arrangement.
    pub store: String,
    /// Every hold has a token.
    pub fencing: bool,
    /// First come, first served.
    pub fair: bool,
    /// How long a dead holder keeps the lock at most, in milliseconds.
    pub lease: u64,
    /// How long after healing, beyond the lease, the next waiter may take to get in, in milliseconds.
    pub bound: u64,
    /// How long a client may keep a lock after its release, in milliseconds.
    #[serde(default, skip_serializing_if = "is_default")]
    pub linger: u64,
}

/// One line of a history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Nanoseconds on the machine's clock that counts suspended time: the same for all processes.
    pub at: u64,
    /// Which process; 0 is the one that makes the faults.
    pub process: u32,
    /// Which of its tasks.
    #[serde(default, skip_serializing_if = "is_default")]
    pub task: u32,
    /// What.
    pub op: Op,
    /// How far.
    pub phase: Phase,
    /// The name of the lock.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lock: String,
    /// How it is asked for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: Option<Mode>,
    /// Ties the lines of one hold, from the question to its end. Counts within the process.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attempt: u64,
    /// The fencing token.
    #[serde(default, skip_serializing_if = "is_default")]
    pub token: Option<u64>,
    /// Until when the holder believed that it holds; none where only the end of the process ends the hold, and 0 where it had ended before that
    /// could be written down.
    #[serde(default, skip_serializing_if = "is_default")]
    pub valid_until: Option<u64>,
    /// What was read or written.
    #[serde(default, skip_serializing_if = "is_default")]
    pub value: Option<u64>,
    /// Where it was read or written.
    #[serde(default, skip_serializing_if = "is_default")]
    pub register: Option<Register>,
    /// What the store declares.
    #[serde(default, skip_serializing_if = "is_default")]
    pub setup: Option<Setup>,
    /// For readers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub note: String,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Line {
    /// A line with these things and nothing else.
    #[must_use]
    pub fn new(at: u64, process: u32, op: Op, phase: Phase) -> Self {
        Self {
            at,
            process,
            task: 0,
            op,
            phase,
            lock: String::new(),
            mode: None,
            attempt: 0,
            token: None,
            valid_until: None,
            value: None,
            register: None,
            setup: None,
            note: String::new(),
        }
    }
}

/// All lines of all processes, in the order of their times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    lines: Vec<Line>,
}

impl History {
    /// Puts lines in order.
    #[must_use]
    pub fn new(mut lines: Vec<Line>) -> Self {
        // Stable: two lines of one process at one moment stay as they were written.
        lines.sort_by_key(|line| line.at);
        Self { lines }
    }

    /// Reads lines of JSON, from several files one behind the other.
    ///
    /// A last line of a file that is cut off was being written when its process was killed, and is left out.
    ///
    /// # Errors
    /// At a whole line that is not part of a history.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            match serde_json::from_str(line) {
                Ok(line) => lines.push(line),
                Err(error) if error.is_eof() => {}
                Err(error) => return Err(format!("line {}: {error}: {line}", number + 1)),
            }
        }
        Ok(Self::new(lines))
    }

    /// The lines.
    #[must_use]
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// What the store declares; a strict guess where no line says so.
    #[must_use]
    pub fn setup(&self) -> Setup {
        let said = self.lines.iter().find_map(|line| line.setup.clone());
        said.unwrap_or(Setup {
            store: "unknown".to_owned(),
            fencing: true,
            fair: false,
            lease: 1_000,
            bound: 5_000,
            linger: 0,
        })
    }

    /// As it is written to a file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let lines = self.lines.iter().map(|line| {
            let line = serde_json::to_string(line);
            line.unwrap_or_default() + "\n"
        });
        lines.collect()
    }

    /// The names of the locks in it.
    #[must_use]
    pub fn locks(&self) -> Vec<&str> {
        let mut names: Vec<_> = self
            .lines
            .iter()
            .map(|line| line.lock.as_str())
            .filter(|name| !name.is_empty())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_in_the_order_of_time() {
        let mut late = Line::new(9, 1, Op::Try, Phase::Ok);
        late.mode = Some(Mode::Permit(3));
        late.token = Some(4);
        late.lock = "ein \"Name\"".to_owned();
        let early = Line::new(2, 0, Op::Fault, Phase::Info);
        let history = History::new(vec![late, early]);
        assert_eq!(history.lines()[0].at, 2);
        assert_eq!(History::parse(&history.to_text()), Ok(history));
    }

    #[test]
    fn a_line_that_a_kill_cut_off_is_left_out_and_nonsense_is_not() {
        let whole = History::new(vec![Line::new(1, 1, Op::Try, Phase::Ok)]).to_text();
        let cut = format!("{whole}{{\"at\":5,\"proc\n{whole}");
        assert_eq!(History::parse(&cut).map(|all| all.lines().len()), Ok(2));
        let error = History::parse(&format!("{whole}what?\n")).expect_err("nonsense");
        assert!(error.starts_with("line 2:"), "{error}");
    }
}
