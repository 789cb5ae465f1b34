//! Hand-made histories.

use crate::history::{History, Line, Mode, Op, Phase, Register, Setup};

/// Writes a history line by line. What belongs to a hold goes to the last one that was begun.
pub(crate) struct Script {
    lines: Vec<Line>,
    last: Line,
    attempts: u64,
}

impl Script {
    pub(crate) fn new() -> Self {
        Self {
            lines: Vec::new(),
            last: Line::new(0, 0, Op::Fault, Phase::Info),
            attempts: 0,
        }
    }

    pub(crate) fn history(&self) -> History {
        History::new(self.lines.clone())
    }

    pub(crate) fn setup(&mut self, fencing: bool, fair: bool) {
        self.setup_with(fencing, fair, 0);
    }

    /// With so many milliseconds for which a lock may linger.
    pub(crate) fn setup_with(&mut self, fencing: bool, fair: bool, linger: u64) {
        let mut line = Line::new(0, 0, Op::Setup, Phase::Info);
        line.setup = Some(Setup {
            store: "by hand".to_owned(),
            fencing,
            fair,
            lease: 1_000,
            bound: 1_000,
            linger,
        });
        self.lines.push(line);
    }

    pub(crate) fn push(&mut self, line: Line) {
        self.lines.push(line);
    }

    /// Begins an attempt.
    pub(crate) fn ask(&mut self, process: u32, op: Op, lock: &str, mode: Mode, at: u64) {
        self.attempts += 1;
        let mut line = Line::new(at, process, op, Phase::Invoke);
        line.lock = lock.to_owned();
        line.mode = Some(mode);
        line.attempt = self.attempts;
        self.lines.push(line.clone());
        self.last = line;
    }

    /// Ends the last attempt.
    pub(crate) fn answer(&mut self, at: u64, phase: Phase, token: Option<u64>, until: Option<u64>) {
        let mut line = self.last.clone();
        (line.at, line.phase, line.token, line.valid_until) = (at, phase, token, until);
        self.lines.push(line);
    }

    /// A try that was made at this moment and succeeded.
    pub(crate) fn hold(
        &mut self,
        process: u32,
        lock: &str,
        mode: Mode,
        at: u64,
        token: u64,
        until: Option<u64>,
    ) {
        self.ask(process, Op::Try, lock, mode, at.saturating_sub(1));
        self.answer(at, Phase::Ok, Some(token), until);
    }

    pub(crate) fn renew(&mut self, at: u64, until: u64) {
        let mut line = self.last.clone();
        (line.op, line.phase) = (Op::Renew, Phase::Info);
        (line.at, line.valid_until) = (at, Some(until));
        self.lines.push(line);
    }

    /// Any two lines of the last hold.
    pub(crate) fn pair(&mut self, op: Op, from: u64, to: u64) {
        for (at, phase) in [(from, Phase::Invoke), (to, Phase::Ok)] {
            let mut line = self.last.clone();
            (line.op, line.at, line.phase) = (op, at, phase);
            self.lines.push(line);
        }
    }

    pub(crate) fn release(&mut self, from: u64, to: u64) {
        self.pair(Op::Release, from, to);
    }

    /// The store was asked at this moment who waits, and answered at that one: this process does.
    pub(crate) fn waits(&mut self, process: u32, lock: &str, asked: u64, answered: u64) {
        let mut line = Line::new(answered, process, Op::Waits, Phase::Info);
        (line.lock, line.value) = (lock.to_owned(), Some(asked));
        self.lines.push(line);
    }

    pub(crate) fn lines_mut(&mut self) -> &mut Vec<Line> {
        &mut self.lines
    }

    pub(crate) fn killed(&mut self, process: u32, at: u64) {
        self.lines
            .push(Line::new(at, process, Op::Killed, Phase::Info));
    }

    pub(crate) fn info(&mut self, op: Op, at: u64) {
        self.lines.push(Line::new(at, 0, op, Phase::Info));
    }

    /// A write of the last hold's process that was acknowledged, after a read of `value - 1`.
    pub(crate) fn wrote(&mut self, at: u64, register: Register, token: u64, value: u64) {
        let mut line = self.last.clone();
        (line.op, line.phase, line.at) = (Op::Write, Phase::Ok, at);
        (line.register, line.token, line.value) = (Some(register), Some(token), Some(value));
        self.lines.push(line);
    }

    /// The same write in the register's own list.
    pub(crate) fn took(&mut self, register: Register, token: u64, value: u64) {
        let mut line = self.last.clone();
        (line.op, line.phase, line.at) = (Op::Took, Phase::Info, u64::MAX);
        (line.register, line.token, line.value) = (Some(register), Some(token), Some(value));
        self.lines.push(line);
    }
}
