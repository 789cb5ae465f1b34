//! The worker processes of a scenario, as the one who makes the faults sees them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_judge::{Line, Mode, Op, Phase};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, sleep, timeout};

use super::recorder::{Recorder, now};
use super::store::Site;
use super::worker::Job;
use crate::error::Doing;
use crate::{Error, FaultProxy, Result};

/// What is known of a worker by what it says.
#[derive(Debug, Default)]
struct Board {
    ready: bool,
    done: bool,
    /// The locks that it holds.
    holds: Vec<String>,
    /// When it last got each.
    got: HashMap<String, u64>,
    /// It stands between its check and its write.
    checked: bool,
    said: Vec<String>,
}

/// One worker process.
#[derive(Debug)]
pub struct Worker {
    number: u32,
    child: tokio::sync::Mutex<Child>,
    pid: Pid,
    commands: tokio::sync::Mutex<Option<ChildStdin>>,
    board: Arc<Mutex<Board>>,
    killed: Mutex<bool>,
    /// What stands between it and the store, one for each server.
    pub proxies: Vec<FaultProxy>,
}

/// All workers of a scenario.
#[derive(Debug)]
pub struct Crew {
    /// The workers.
    pub workers: Vec<Worker>,
    /// Where faults are written down.
    pub recorder: Recorder,
    folder: PathBuf,
}

/// What differs between crews.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The number of the first process.
    pub first: u32,
    /// How many processes.
    pub workers: u32,
    /// The locks of each.
    pub locks: Vec<(String, Mode)>,
    /// See [`Job::gate`].
    pub gate: bool,
    /// See [`Job::hold`].
    pub hold: u64,
    /// See [`Job::plain`].
    pub plain: bool,
    /// See [`Job::eager`].
    pub eager: bool,
    /// See [`Job::linger`].
    pub linger: u64,
    /// See [`Job::rate`]: of the first worker first. Whoever has none goes by the machine's clock.
    pub rates: Vec<f64>,
    /// See [`Job::plant`].
    pub plant: Option<super::Plant>,
    /// The dice.
    pub seed: u64,
    /// The environment of the workers.
    pub env: Vec<(String, String)>,
}

impl Shape {
    /// The usual crew: three who do all that can be done.
    #[must_use]
    pub fn new(locks: Vec<(String, Mode)>, seed: u64) -> Self {
        Self {
            first: 1,
            workers: 3,
            locks,
            gate: false,
            hold: 120,
            plain: false,
            eager: false,
            linger: 0,
            rates: Vec::new(),
            plant: None,
            seed,
            env: Vec::new(),
        }
    }
}

impl Crew {
    /// Starts the workers: `program` is the binary `judge`.
    ///
    /// # Errors
    /// When they cannot be started, or do not reach the store.
    pub async fn start(
        program: &Path,
        site: &Site,
        registers: std::net::SocketAddr,
        folder: &Path,
        shape: &Shape,
    ) -> Result<Self> {
        let recorder = Recorder::open(&folder.join("faults.jsonl"), 0)?;
        let mut crew = Self {
            workers: Vec::new(),
            recorder,
            folder: folder.to_owned(),
        };
        for number in (shape.first..).take(shape.workers as usize) {
            let (url, proxies) = site.url_behind_proxies().await?;
            let job = Job {
                process: number,
                url,
                registers,
                locks: shape.locks.clone(),
                seed: shape.seed.wrapping_mul(31).wrapping_add(number.into()),
                history: folder.join(format!("worker-{number}.jsonl")),
                gate: shape.gate,
                hold: shape.hold,
                plain: shape.plain,
                eager: shape.eager,
                linger: shape.linger,
                rate: shape.rates.get((number - shape.first) as usize).copied(),
                plant: shape.plant,
            };
            let worker = Worker::start(program, &job, proxies, &shape.env, folder)?;
            crew.workers.push(worker);
        }
        crew.eventually("the workers are ready", Duration::from_secs(60), |crew| {
            crew.workers
                .iter()
                .all(|worker| worker.see(|board| board.ready))
        })
        .await?;
        Ok(crew)
    }

    /// Waits for something that the workers say.
    ///
    /// # Errors
    /// When it does not come, or a worker ends by itself.
    pub async fn eventually(
        &self,
        what: &str,
        limit: Duration,
        seen: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        let end = Instant::now() + limit;
        while !seen(self) {
            for worker in &self.workers {
                if worker.has_failed().await {
                    let said = worker.see(|board| board.said.join("\n"));
                    let log = std::fs::read_to_string(self.folder.join("workers.log"));
                    return Err(Error::answer(
                        format!("worker {}", worker.number),
                        format!("it ended: {said}\n{}", log.unwrap_or_default()),
                    ));
                }
            }
            if Instant::now() > end {
                return Err(Error::TimedOut {
                    what: what.to_owned(),
                    limit,
                    last: String::new(),
                });
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Waits until somebody who may act holds the lock.
    ///
    /// # Errors
    /// When nobody does for a long time.
    pub async fn holder(&self, lock: &str) -> Result<&Worker> {
        let found = |crew: &Self| crew.holder_now(lock).is_some();
        self.eventually("somebody holds", Duration::from_secs(30), found)
            .await?;
        Ok(self.holder_now(lock).unwrap_or(&self.workers[0]))
    }

    /// Waits until the first worker that lives holds the lock.
    ///
    /// # Errors
    /// When it does not for a long time.
    pub(super) async fn first_when_it_holds(&self, lock: &str) -> Result<&Worker> {
        let mut living = self.workers.iter().filter(|worker| !worker.is_dead());
        let first = living.next().unwrap_or(&self.workers[0]);
        let holds = |_: &Self| first.see(|board| board.holds.iter().any(|name| name == lock));
        self.eventually("the first worker holds", Duration::from_secs(60), holds)
            .await?;
        Ok(first)
    }

    fn holder_now(&self, lock: &str) -> Option<&Worker> {
        self.workers.iter().find(|worker| {
            !worker.is_dead() && worker.see(|board| board.holds.iter().any(|name| name == lock))
        })
    }

    /// Somebody alive who does not hold it now.
    #[must_use]
    pub fn waiter(&self, lock: &str) -> &Worker {
        let holder = self.holder_now(lock).map(|worker| worker.number);
        let mut others = self.workers.iter();
        others
            .find(|worker| !worker.is_dead() && Some(worker.number) != holder)
            .unwrap_or(&self.workers[0])
    }

    /// Whether each of the locks was got by somebody after this moment.
    #[must_use]
    pub fn got_since(&self, locks: &[(String, Mode)], moment: u64) -> bool {
        locks.iter().all(|(lock, _)| {
            let mut workers = self.workers.iter();
            workers.any(|worker| worker.see(|board| board.got.get(lock) > Some(&moment)))
        })
    }

    /// Who of the living did not get which of the locks after this moment.
    #[must_use]
    pub fn without_since(&self, locks: &[(String, Mode)], moment: u64) -> Vec<(u32, String)> {
        let living = self.workers.iter().filter(|worker| !worker.is_dead());
        let all = living.flat_map(|worker| locks.iter().map(move |(lock, _)| (worker, lock)));
        all.filter(|(worker, lock)| worker.last_got(lock) <= Some(moment))
            .map(|(worker, lock)| (worker.number, lock.clone()))
            .collect()
    }

    /// Writes down what goes wrong.
    pub fn note(&self, op: Op, note: &str) {
        let mut line = self.recorder.line(op, Phase::Info);
        line.note = note.to_owned();
        self.recorder.write(&line);
    }

    /// Ends all workers as they should end. Whoever does not is killed, and named.
    pub async fn stop(&self) -> Vec<String> {
        self.note(Op::Stopping, "");
        for worker in &self.workers {
            worker.thaw();
            worker.tell("stop").await;
        }
        let mut late = Vec::new();
        for worker in self.workers.iter().filter(|worker| !worker.is_dead()) {
            let mut child = worker.child.lock().await;
            let ended = timeout(Duration::from_secs(30), child.wait()).await;
            if !matches!(&ended, Ok(Ok(status)) if status.success()) {
                let said = worker.see(|board| board.said.join(" | "));
                late.push(format!("worker {}: {ended:?} {said}", worker.number));
                let _ = child.kill().await;
            }
        }
        late
    }
}

impl Worker {
    fn start(
        program: &Path,
        job: &Job,
        proxies: Vec<FaultProxy>,
        env: &[(String, String)],
        folder: &Path,
    ) -> Result<Self> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(folder.join("workers.log"))
            .doing("open the log of the workers")?;
        let mut child = Command::new(program)
            .arg("worker")
            .arg(serde_json::to_string(job).expect("a job is JSON"))
            .envs(env.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .doing("start a worker")?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let pid = id.and_then(Pid::from_raw).expect("it has just started");
        let commands = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let board = Arc::new(Mutex::new(Board::default()));
        tokio::spawn(follow(lines, board.clone()));
        Ok(Self {
            number: job.process,
            child: tokio::sync::Mutex::new(child),
            pid,
            commands: tokio::sync::Mutex::new(commands),
            board,
            killed: Mutex::new(false),
            proxies,
        })
    }

    fn see<T>(&self, look: impl FnOnce(&Board) -> T) -> T {
        look(&self.board.lock().expect("no panic while looking"))
    }

    /// Whether it stands between its check and its write.
    #[must_use]
    pub fn has_checked(&self) -> bool {
        self.see(|board| board.checked)
    }

    /// When it last got this lock.
    #[must_use]
    pub fn last_got(&self, lock: &str) -> Option<u64> {
        self.see(|board| board.got.get(lock).copied())
    }

    async fn has_failed(&self) -> bool {
        if self.is_dead() || self.see(|board| board.done) {
            return false;
        }
        let mut child = self.child.lock().await;
        matches!(child.try_wait(), Ok(Some(_)))
    }

    pub(super) fn is_dead(&self) -> bool {
        *self.killed.lock().expect("no panic")
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// SIGSTOP.
    pub fn freeze(&self, recorder: &Recorder) {
        self.signal(Signal::STOP);
        self.note(recorder, Op::Stopped);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGCONT, written down.
    pub fn go_on(&self, recorder: &Recorder) {
        self.note(recorder, Op::Continued);
        self.thaw();
    }

    /// SIGKILL. Returns when it is gone.
    pub async fn kill(&self, recorder: &Recorder) {
        *self.killed.lock().expect("no panic") = true;
        // Before it: the kernel frees a dead process's files and connections before anybody is told of its end.
        self.note(recorder, Op::Killed);
        let _ = self.child.lock().await.kill().await;
        self.board.lock().expect("no panic").holds.clear();
    }

    fn signal(&self, signal: Signal) {
        if !self.is_dead() {
            let _ = kill_process(self.pid, signal);
        }
    }

    fn note(&self, recorder: &Recorder, op: Op) {
        recorder.write(&Line::new(now(), self.number, op, Phase::Info));
    }

    /// A command on its input.
    pub async fn tell(&self, command: &str) {
        let mut commands = self.commands.lock().await;
        if let Some(input) = commands.as_mut() {
            let _ = input.write_all(format!("{command}\n").as_bytes()).await;
        }
    }
}

async fn follow(
    mut lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
    board: Arc<Mutex<Board>>,
) {
    while let Ok(Some(line)) = lines.next_line().await {
        let mut board = board.lock().expect("no panic while looking");
        match line.split_once(' ') {
            None if line == "ready" => board.ready = true,
            None if line == "done" => board.done = true,
            Some(("got", lock)) => {
                board.holds.push(lock.to_owned());
                board.got.insert(lock.to_owned(), now());
            }
            Some(("end", lock)) => {
                // Once: another task of it may have got the same lock from this one.
                if let Some(at) = board.holds.iter().position(|name| name == lock) {
                    board.holds.swap_remove(at);
                }
            }
            Some(("checked", _)) => board.checked = true,
            _ => board.said.push(line),
        }
    }
}
