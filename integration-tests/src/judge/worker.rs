//! What a worker process does: it takes locks in every way there is, works on the registers, gives the locks back, and writes all of it down.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlock_judge::{Line, Mode, Op, Phase, Register};
use dlocks::{Guard, Locks, Owner, Released, Settings};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, stdin};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::plant::{Liar, Plant};
use super::rate::Rate;
use super::recorder::Recorder;
use super::registers::Registers;
use super::store::connect;

/// What a worker is told when it starts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// Its number, from 1.
    pub process: u32,
    /// The store.
    pub url: String,
    /// Where the registers are.
    pub registers: SocketAddr,
    /// The locks, each with how it is asked for. One task for each.
    pub locks: Vec<(String, Mode)>,
    /// Its dice.
    pub seed: u64,
    /// Where its history goes.
    pub history: PathBuf,
    /// The first hold stops between its last check and its write, until it is told to `go`.
    pub gate: bool,
    /// How long a hold lasts at most, in milliseconds.
    pub hold: u64,
    /// Every wait is `lock()` to its end, every hold ends with `release()`.
    pub plain: bool,
    /// Every attempt is a try, again and again.
    pub eager: bool,
    /// For how many milliseconds its client keeps a lock that nobody of its own waits for.
    pub linger: u64,
    /// Its client's clock runs so much faster than the machine's.
    pub rate: Option<f64>,
    /// A mistake that the library is made to have, to see whether the judge sees it.
    pub plant: Option<Plant>,
}

/// Between two looks at the validity of a hold.
const LOOK: Duration = Duration::from_millis(10);

/// What a worker knows of its hold.
struct Seen {
    until: Option<dlocks::Moment>,
    /// When it was last seen to hold.
    held: u64,
}

struct Worker {
    job: Job,
    locks: Locks,
    /// Its clock, where that is not the machine's.
    rate: Option<Arc<Rate>>,
    recorder: Recorder,
    attempts: AtomicU64,
    stop: AtomicBool,
    stopped: Notify,
    go: Notify,
    gate: AtomicBool,
}

/// What a worker calls itself in the store.
#[must_use]
pub(super) fn label(process: u32) -> String {
    format!("{LABEL}{process}")
}

/// Which worker calls itself so.
#[must_use]
pub(super) fn of_label(label: &str) -> Option<u32> {
    label.strip_prefix(LABEL)?.parse().ok()
}

const LABEL: &str = "judge's worker ";

/// Later than this by so much, somebody got no processor: far less than the leases of waiters, far more than a busy machine usually takes.
pub(super) const STALL: Duration = Duration::from_millis(300);

/// Writes down when the process stood still.
async fn feel_pulse(worker: Arc<Worker>) {
    const BEAT: Duration = Duration::from_millis(50);
    loop {
        let began = super::now();
        sleep(BEAT).await;
        worker.recorder.was_late(began, BEAT + STALL);
    }
}

/// Runs a worker to its end: until it reads `stop`, or its input ends.
///
/// # Errors
/// When the store or the registers cannot be reached at the start, or the registers later.
#[allow(clippy::print_stdout, reason = "its parent reads it")]
pub async fn work(job: Job) -> Result<(), Box<dyn std::error::Error>> {
    let recorder = Recorder::open(&job.history, job.process)?;
    let settings = Settings::new()
        .retry_unreachable_for(Duration::from_secs(120))
        .label(label(job.process))
        .linger(Duration::from_millis(job.linger));
    let settings = match job.linger {
        0 => settings,
        // Several turns of these workers, whose work takes long for a hold that is passed on.
        _ => settings.local_time(Duration::from_millis(400)),
    };
    let rate = job.rate.map(|rate| Arc::new(Rate::new(rate)));
    let locks = match job.plant.filter(|plant| plant.hits(job.process)) {
        None => {
            let clock = rate.clone().map(|clock| clock as Arc<dyn dlocks::Clock>);
            connect(&job.url, settings, clock).await?
        }
        Some(plant) => {
            let settings = settings.lease(Duration::from_secs(2));
            Liar::locks(&job.url, plant, settings).await?
        }
    };
    let worker = Arc::new(Worker {
        locks,
        rate,
        recorder,
        attempts: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        stopped: Notify::new(),
        go: Notify::new(),
        gate: AtomicBool::new(job.gate),
        job,
    });
    println!("ready");
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..worker.job.locks.len() {
        let worker = worker.clone();
        tasks.spawn(async move { worker.cycles(task).await });
    }
    let listener = tokio::spawn(listen(worker.clone()));
    let pulse = tokio::spawn(feel_pulse(worker.clone()));
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    listener.abort();
    pulse.abort();
    // A store that is still in trouble is told in the history by what is left, not here.
    let _ = timeout(Duration::from_secs(10), worker.locks.close()).await;
    println!("done");
    Ok(())
}

async fn listen(worker: Arc<Worker>) {
    let mut commands = tokio::io::BufReader::new(stdin()).lines();
    while let Ok(Some(command)) = commands.next_line().await {
        match command.split_once(' ') {
            None if command == "go" => worker.go.notify_one(),
            Some(("block", millis)) => {
                // The whole runtime stands still, as with code that blocks in a task.
                let millis = millis.parse().unwrap_or(0);
                std::thread::sleep(Duration::from_millis(millis));
            }
            _ => break,
        }
    }
    worker.stop.store(true, Ordering::SeqCst);
    worker.stopped.notify_waiters();
    worker.go.notify_one();
}

/// One attempt and all that belongs to it.
struct Attempt<'a> {
    worker: &'a Worker,
    task: u32,
    lock: &'a str,
    mode: Mode,
    number: u64,
}

impl Attempt<'_> {
    fn line(&self, op: Op, phase: Phase) -> Line {
        let mut line = self.worker.recorder.line(op, phase);
        (line.task, line.attempt) = (self.task, self.number);
        line.lock = self.lock.to_owned();
        line
    }

    fn write(&self, op: Op, phase: Phase, note: &str) {
        let mut line = self.line(op, phase);
        line.note = note.to_owned();
        if matches!(op, Op::Acquire | Op::Try) {
            line.mode = Some(self.mode);
        }
        self.worker.recorder.write(&line);
    }
}

impl Worker {
    async fn cycles(&self, task: usize) -> crate::Result<()> {
        let (lock, mode) = self.job.locks[task].clone();
        let mut dice = fastrand::Rng::with_seed(self.job.seed ^ ((task as u64 + 1) << 40));
        let mut registers = Registers::connect(self.job.registers).await?;
        while !self.stop.load(Ordering::SeqCst) {
            let mode = match mode {
                // Writers are rarer.
                Mode::Shared if dice.u8(0..3) == 0 => Mode::Exclusive,
                mode => mode,
            };
            let attempt = Attempt {
                worker: self,
                task: task as u32,
                lock: &lock,
                mode,
                number: self.attempts.fetch_add(1, Ordering::SeqCst) + 1,
            };
            if let Some(guard) = self.ask(&attempt, &mut dice).await {
                tell("got", &lock);
                self.hold(&attempt, guard, &mut dice, &mut registers)
                    .await?;
                tell("end", &lock);
            }
            let pause = Duration::from_millis(dice.u64(0..30));
            let _ = timeout(pause, self.stopped.notified()).await;
        }
        Ok(())
    }

    /// Asks in one of all the ways there are. Errors are fine: the store is in trouble.
    async fn ask(&self, attempt: &Attempt<'_>, dice: &mut fastrand::Rng) -> Option<Guard> {
        let way = match (self.job.eager, self.job.plain) {
            (true, _) => 0,
            (_, true) => 9,
            _ => dice.u8(0..10),
        };
        let op = if way < 2 { Op::Try } else { Op::Acquire };
        let limit = Duration::from_millis(dice.u64(0..1500));
        let owner = Owner::new();
        attempt.write(op, Phase::Invoke, "");
        let asked = async {
            let (name, locks) = (attempt.lock, &self.locks);
            match (attempt.mode, way) {
                (Mode::Permit(n), 0..2) => locks.semaphore(name, n)?.try_acquire().await,
                (Mode::Permit(n), 2..4) => locks.semaphore(name, n)?.acquire_within(limit).await,
                (Mode::Permit(n), _) => locks.semaphore(name, n)?.acquire().await.map(Some),
                (Mode::Shared, 0..2) => locks.rw_lock(name)?.try_read().await,
                (Mode::Shared, 2..4) => locks.rw_lock(name)?.read_within(limit).await,
                (Mode::Shared, _) => locks.rw_lock(name)?.read().await.map(Some),
                (Mode::Exclusive, _) if name.ends_with(":r") => match way {
                    0..2 => locks.rw_lock(name)?.try_write().await,
                    2..4 => locks.rw_lock(name)?.write_within(limit).await,
                    _ => locks.rw_lock(name)?.write().await.map(Some),
                },
                (Mode::Exclusive, 0..2) => locks.mutex(name)?.try_lock().await,
                (Mode::Exclusive, 2..4) => locks.mutex(name)?.lock_within(limit).await,
                (Mode::Exclusive, 4) => {
                    let mutex = locks.mutex(name)?.owned_by(owner);
                    mutex.lock().await.map(Some)
                }
                (Mode::Exclusive, _) => locks.mutex(name)?.lock().await.map(Some),
            }
        };
        // Some lose patience: the future is dropped wherever it is (C13).
        let patience = match way {
            5 => Duration::from_millis(dice.u64(0..1000)),
            _ => Duration::MAX,
        };
        let mut stopped = Box::pin(self.stopped.notified());
        stopped.as_mut().enable();
        if self.stop.load(Ordering::SeqCst) {
            attempt.write(op, Phase::Unknown, "told to stop");
            return None;
        }
        let asked = tokio::select! {
            asked = timeout(patience, asked) => asked,
            () = stopped => {
                attempt.write(op, Phase::Unknown, "told to stop");
                return None;
            }
        };
        match asked {
            Ok(Ok(Some(guard))) => {
                let mut line = attempt.line(op, Phase::Ok);
                line.mode = Some(attempt.mode);
                line.token = guard.token().map(u64::from);
                line.valid_until = guard.valid_until().map(|until| self.real(until));
                if !guard.is_held() {
                    // It was over before it could be written down, and a hold that was lost has no validity to tell.
                    line.valid_until = Some(0);
                }
                self.recorder.write(&line);
                if way == 4 && attempt.mode == Mode::Exclusive && !attempt.lock.ends_with(":r") {
                    self.reenter(attempt, &owner).await;
                }
                Some(guard)
            }
            Ok(Ok(None)) => {
                attempt.write(op, Phase::Fail, "busy");
                None
            }
            Ok(Err(error)) => {
                // No "busy": for the judge it may have held.
                attempt.write(op, Phase::Unknown, &error.to_string());
                sleep(Duration::from_millis(20)).await;
                None
            }
            Err(_) => {
                attempt.write(op, Phase::Unknown, "the future was dropped");
                None
            }
        }
    }

    /// The same owner once more, and back.
    async fn reenter(&self, attempt: &Attempt<'_>, owner: &Owner) {
        let Ok(mutex) = self.locks.mutex(attempt.lock) else {
            return;
        };
        attempt.write(Op::Reenter, Phase::Invoke, "");
        match mutex.owned_by(*owner).try_lock().await {
            Ok(Some(inner)) => {
                attempt.write(Op::Reenter, Phase::Ok, "");
                attempt.write(Op::Leave, Phase::Invoke, "");
                let _ = inner.release().await;
                attempt.write(Op::Leave, Phase::Ok, "");
            }
            other => {
                let note = format!("{:?}", other.map(|guard| guard.is_some()));
                attempt.write(Op::Reenter, Phase::Unknown, &note);
            }
        }
    }

    async fn hold(
        &self,
        attempt: &Attempt<'_>,
        guard: Guard,
        dice: &mut fastrand::Rng,
        registers: &mut Registers,
    ) -> crate::Result<()> {
        let alone = attempt.mode == Mode::Exclusive;
        let token = guard.token().map(u64::from);
        let mut read = HashMap::new();
        if alone {
            for register in [Register::Unfenced, Register::Fenced] {
                let Some(token) = token.or((register == Register::Unfenced).then_some(0)) else {
                    continue;
                };
                let value = registers.read(register, attempt.lock, token).await?;
                let mut line = attempt.line(Op::Read, Phase::Ok);
                line.phase = value.map_or(Phase::Fail, |_| Phase::Ok);
                (line.register, line.value, line.token) = (Some(register), value, Some(token));
                self.recorder.write(&line);
                read.extend(value.map(|value| (register, value)));
            }
        }
        let mut left = Duration::from_millis(dice.u64(1..=self.job.hold.max(1)));
        let mut seen = Seen {
            until: guard.valid_until(),
            held: super::now(),
        };
        while guard.is_held() && !left.is_zero() && !self.stop.load(Ordering::SeqCst) {
            let slice = left.min(LOOK);
            sleep(slice).await;
            left -= slice;
            self.look(attempt, &guard, &mut seen);
        }
        if guard.is_held() && self.gate.swap(false, Ordering::SeqCst) {
            tell("checked", attempt.lock);
            // Until then it goes on believing, and that is written down.
            while timeout(LOOK, self.go.notified()).await.is_err() {
                self.look(attempt, &guard, &mut seen);
            }
            self.update(attempt, token, &read, registers).await?;
        } else if guard.is_held() && alone {
            self.update(attempt, token, &read, registers).await?;
        }
        self.look(attempt, &guard, &mut seen);
        if attempt.lock.ends_with(":r") && alone && dice.bool() && !self.job.plain {
            attempt.write(Op::Downgrade, Phase::Invoke, "");
            let (phase, note) = match guard.downgrade().await {
                Ok(()) => (Phase::Ok, String::new()),
                Err(error) => (Phase::Unknown, error.to_string()),
            };
            attempt.write(Op::Downgrade, phase, &note);
            sleep(LOOK).await;
            self.look(attempt, &guard, &mut seen);
        }
        if !guard.is_held() {
            // It was told at some moment after it was last seen to hold, which is all that may be claimed.
            let mut line = attempt.line(Op::Lost, Phase::Info);
            line.at = seen.held;
            self.recorder.write(&line);
        }
        attempt.write(Op::Release, Phase::Invoke, "");
        if !self.job.plain && dice.u8(0..5) == 0 {
            drop(guard);
            attempt.write(Op::Release, Phase::Unknown, "dropped");
            return Ok(());
        }
        let (phase, note) = match guard.release().await {
            Ok(Released::Freed) => (Phase::Ok, "freed".to_owned()),
            Ok(other) => (Phase::Unknown, format!("{other:?}")),
            Err(error) => (Phase::Unknown, error.to_string()),
        };
        attempt.write(Op::Release, phase, &note);
        Ok(())
    }

    /// What the client takes for this moment, on the clock of the history.
    fn real(&self, moment: dlocks::Moment) -> u64 {
        let shown = moment.as_nanos();
        self.rate.as_ref().map_or(shown, |rate| rate.real(shown))
    }

    /// Writes down that the hold is valid for longer than was known, or is over.
    fn look(&self, attempt: &Attempt<'_>, guard: &Guard, seen: &mut Seen) {
        let mut line = attempt.line(Op::Renew, Phase::Info);
        let until = guard.valid_until();
        if !guard.is_held() {
            return;
        }
        seen.held = line.at;
        if until != seen.until {
            line.valid_until = until.map(|until| self.real(until));
            self.recorder.write(&line);
            seen.until = until;
        }
    }

    /// The write that belongs to the read.
    async fn update(
        &self,
        attempt: &Attempt<'_>,
        token: Option<u64>,
        read: &HashMap<Register, u64>,
        registers: &mut Registers,
    ) -> crate::Result<()> {
        for register in [Register::Unfenced, Register::Fenced] {
            let Some(value) = read.get(&register).map(|value| value + 1) else {
                continue;
            };
            let token = token.unwrap_or_default();
            let mut line = attempt.line(Op::Write, Phase::Invoke);
            (line.register, line.value, line.token) = (Some(register), Some(value), Some(token));
            self.recorder.write(&line);
            let who = (self.job.process, attempt.number);
            let took = registers
                .write(register, attempt.lock, (token, value), who)
                .await?;
            line.at = super::now();
            line.phase = if took { Phase::Ok } else { Phase::Fail };
            self.recorder.write(&line);
        }
        Ok(())
    }
}

#[allow(clippy::print_stdout, reason = "its parent reads it")]
fn tell(what: &str, lock: &str) {
    println!("{what} {lock}");
}
