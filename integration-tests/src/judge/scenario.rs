//! One run: a crew at work, a fault, and the judgement.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_judge::{Finding, History, Kind, Line, Op, Phase, Setup, judge};
use dlocks::{Capability, Locks};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

use super::crew::{Crew, Shape};
use super::faults::{Fault, Form};
use super::plan::Expected;
use super::plant::Plant;
use super::recorder::now;
use super::registers::Registers;
use super::store::{Site, Store};
use super::worker;
use crate::{Clock, Error, RedisServer, Result};

/// What is run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// On which store.
    pub store: Store,
    /// What happens, one after the other.
    pub faults: Vec<Fault>,
    /// The dice of workers and faults.
    pub seed: u64,
    /// The binary `judge`.
    pub program: PathBuf,
    /// Where histories go.
    pub folder: PathBuf,
    /// Every client has several tasks for each lock, which pass it on among themselves, and keeps it for so long when none of them waits.
    /// None: one task for each lock, which asks the store each time.
    pub passed_on: Option<Duration>,
    /// A mistake that is to be seen.
    pub plant: Option<Plant>,
    /// How much of faults that have many places.
    pub form: Form,
}

/// What came of it.
#[derive(Debug)]
pub struct RoundReport {
    /// What the checkers found.
    pub findings: Vec<Finding>,
    /// How many holds there were.
    pub holds: usize,
    /// How many pairs of waits were judged by their order.
    pub ordered: usize,
    /// How often the store was seen to have one of the workers in its queue.
    pub seen_waiting: usize,
    /// The servers answer nobody, not even a client that is not ours.
    pub stands_still: bool,
    /// What the faults say of themselves.
    pub said: Vec<String>,
    /// The history, for a reader.
    pub history: PathBuf,
    /// What ran.
    pub version: String,
    /// How long it took.
    pub took: Duration,
}

impl RoundReport {
    /// How often each kind was found.
    #[must_use]
    pub fn kinds(&self) -> BTreeMap<Kind, usize> {
        let mut kinds = BTreeMap::new();
        for finding in &self.findings {
            *kinds.entry(finding.kind).or_default() += 1;
        }
        kinds
    }

    /// The findings that this verdict does not allow.
    #[must_use]
    pub fn against(&self, expected: Expected) -> Vec<&Finding> {
        let allowed = |kind| match expected {
            Expected::Safe => kind == Kind::LateWrite,
            Expected::Hole(_) | Expected::Bug(_) => matches!(
                kind,
                Kind::LateWrite | Kind::LostUpdate | Kind::TwoHolders | Kind::NotLinearizable
            ),
            Expected::Stalls(_) => {
                kind == Kind::LateWrite
                    || self.stands_still && matches!(kind, Kind::Stuck | Kind::LeftBehind)
            }
        };
        let mut against: Vec<_> = self.findings.iter().collect();
        against.retain(|finding| !allowed(finding.kind));
        against
    }

    /// In a few words.
    #[must_use]
    pub fn text(&self) -> String {
        let kinds: Vec<_> = self
            .kinds()
            .iter()
            .map(|(kind, count)| format!("{} × {count}", kind.as_str()))
            .collect();
        let found = match kinds.is_empty() {
            true => "nothing found".to_owned(),
            false => kinds.join(", "),
        };
        let said: Vec<_> = self.said.iter().map(|said| format!("; {said}")).collect();
        format!("{} holds, {found}{}", self.holds, said.concat())
    }
}

/// The registers of all scenarios of this process.
///
/// # Errors
/// When Redis is missing.
pub async fn registers() -> Result<&'static RedisServer> {
    static SERVER: OnceCell<RedisServer> = OnceCell::const_new();
    SERVER.get_or_try_init(RedisServer::start).await
}

impl Scenario {
    /// The name of its locks and its folder.
    fn name(&self) -> String {
        let fault = self.faults.first().map_or("none", |fault| fault.as_str());
        let passed_on = self.passed_on.map_or("", |_| "-passed-on");
        format!("{}-{fault}{passed_on}-{}", self.store.as_str(), self.seed)
    }

    /// Runs it on servers of its own, or on these.
    ///
    /// # Errors
    /// When a server or a worker does not do what it should. What the lock did wrong is a finding, no error.
    pub async fn run(&self, shared: Option<Arc<Site>>) -> Result<RoundReport> {
        let start = Instant::now();
        let site = match shared {
            Some(site) => site,
            None => Arc::new(self.stage().await?),
        };
        let folder = self.folder.join(self.name());
        std::fs::remove_dir_all(&folder).ok();
        std::fs::create_dir_all(&folder).map_err(|source| Error::Io {
            what: format!("make {}", folder.display()),
            source,
        })?;
        let report = self.run_on(site.clone(), &folder, start).await;
        if !report.as_ref().is_ok_and(|it| it.findings.is_empty()) {
            // What the servers say is gone with them.
            for (number, log) in site.logs().into_iter().enumerate() {
                std::fs::write(folder.join(format!("server-{}.log", number + 1)), log).ok();
            }
        }
        report
    }

    async fn run_on(&self, site: Arc<Site>, folder: &Path, start: Instant) -> Result<RoundReport> {
        let registers = registers().await?.addr();
        let client = connect(&site).await?;
        let locks = site.locks(&self.name(), &client);
        let tasks = self.passed_on.map_or(1, |_| TASKS);
        let linger = self.passed_on.map_or(0, millis);
        let clock = match self.faults.contains(&Fault::ClientClock) {
            true => Some(Clock::new()?),
            false => None,
        };
        let shape = Shape {
            plant: self.plant,
            hold: match self.plant {
                // Longer than the lease.
                Some(Plant::RenewsInWordsOnly | Plant::GrantsWhatIsBusy) => 3_000,
                _ if self.faults.iter().any(|fault| fault.is_of_rates()) => 3_000,
                _ => 120,
            },
            // Whoever waits could be the one that holds in silence.
            eager: self.plant == Some(Plant::ReleasesInWordsOnly),
            // Who is passed over waits to the end.
            plain: self.plant == Some(Plant::PassesOver),
            env: clock.as_ref().map(Clock::env).unwrap_or_default(),
            linger,
            rates: match self.faults.contains(&Fault::ClientRate) {
                true => Fault::RATES.to_vec(),
                false => Vec::new(),
            },
            ..Shape::new(vec![locks.clone(); tasks].concat(), self.seed)
        };
        let crew = Crew::start(&self.program, &site, registers, folder, &shape).await?;
        write_setup(&crew, &site, &client, linger);
        let calm = AtomicBool::new(true);
        let Ends { late, starved } = tokio::select! {
            ends = self.run_faults(&site, &crew, &locks, clock.as_ref(), &calm) => ends?,
            never = look(&client, &crew, &locks[0].0, &calm) => match never {},
        };
        self.sum_up(&site, &crew, &client, &locks, &late).await?;
        let _ = client.close().await;
        let history = merge(folder)?;
        let path = folder.join("history.jsonl");
        let mut findings = tokio::task::spawn_blocking({
            let history = history.clone();
            move || judge(&history)
        })
        .await
        .expect("the judge does not panic");
        findings.extend(starved);
        findings.extend(late.into_iter().map(|detail| Finding {
            kind: Kind::Stuck,
            lock: String::new(),
            at: 0,
            detail,
        }));
        let is_stuck = findings.iter().any(|one| one.kind == Kind::Stuck);
        Ok(RoundReport {
            findings,
            ordered: dlock_judge::order::judged(&history),
            seen_waiting: {
                let lines = history.lines().iter();
                lines.filter(|line| line.op == Op::Waits).count()
            },
            stands_still: is_stuck && site.commits_nothing().await,
            said: {
                let lines = history.lines().iter().filter(|line| line.op == Op::Fault);
                let notes = lines.map(|line| line.note.clone());
                notes
                    .filter(|note| Fault::from_name(note).is_none())
                    .collect()
            },
            holds: dlock_judge::holds(&history).len(),
            history: path,
            version: site.version().to_owned(),
            took: start.elapsed(),
        })
    }

    /// All faults, one after the other, to the end of the workers.
    async fn run_faults(
        &self,
        site: &Site,
        crew: &Crew,
        locks: &[(String, dlock_judge::Mode)],
        clock: Option<&Clock>,
        calm: &AtomicBool,
    ) -> Result<Ends> {
        let mut ends = Ends::default();
        let begun = now();
        let warm = |crew: &Crew| crew.got_since(locks, begun);
        crew.eventually("every lock goes round", Duration::from_secs(30), warm)
            .await?;
        let mut dice = fastrand::Rng::with_seed(self.seed);
        for fault in &self.faults {
            sleep(Duration::from_millis(dice.u64(100..600))).await;
            crew.note(Op::Fault, fault.as_str());
            calm.store(*fault == Fault::None, Ordering::SeqCst);
            let struck = fault
                .strike(site, crew, &locks[0].0, clock, self.form, &mut dice)
                .await;
            calm.store(true, Ordering::SeqCst);
            crew.note(Op::Healed, fault.as_str());
            struck?;
            let healed = now();
            let limit = self.store.bound_for_all() + BEGIN;
            let again = |crew: &Crew| crew.without_since(locks, healed).is_empty();
            let waited = crew.eventually("everybody gets every lock again", limit, again);
            match waited.await {
                // Whoever waited so long is the judge's business; a client that is only told of errors, or busy, waits for nothing.
                Err(Error::TimedOut { .. }) => {
                    let left_out = crew.without_since(locks, healed).into_iter();
                    ends.starved.extend(left_out.map(|(worker, lock)| Finding {
                        kind: Kind::Stuck,
                        lock,
                        at: healed,
                        detail: format!(
                            "worker {worker} did not get it in {limit:?} after {}",
                            fault.as_str()
                        ),
                    }));
                }
                other => other?,
            }
            sleep(Duration::from_millis(300)).await;
        }
        ends.late = crew.stop().await;
        Ok(ends)
    }

    /// Servers of its own. Groups of servers that start beside many others sometimes do not come together in time: they get a second
    /// chance, since nothing of the library has run yet.
    #[allow(clippy::print_stderr, reason = "who reads a run should know of it")]
    async fn stage(&self) -> Result<Site> {
        let fault = self.faults.first().copied();
        match Site::start(self.store, fault).await {
            Ok(site) => Ok(site),
            Err(missing @ Error::NotInstalled { .. }) => Err(missing),
            Err(first) => {
                eprintln!("{}: started once more, since {first}", self.name());
                Site::start(self.store, fault).await
            }
        }
    }

    /// What is left in the store, and what the registers took.
    async fn sum_up(
        &self,
        site: &Site,
        crew: &Crew,
        client: &Locks,
        locks: &[(String, dlock_judge::Mode)],
        late: &[String],
    ) -> Result<()> {
        let mut registers = Registers::connect(registers().await?.addr()).await?;
        let end = Instant::now() + site.store.lease() + site.store.bound();
        for (lock, _) in locks {
            for line in registers.took(lock).await? {
                crew.recorder.write(&line);
            }
            // A worker that had to be killed leaves what it has to its lease.
            if !client.capabilities().has(Capability::Inspect) || !late.is_empty() {
                continue;
            }
            let mut line = loop {
                let mut line = crew.recorder.line(Op::Left, Phase::Info);
                match client.inspect(lock).await {
                    Ok(info) => {
                        line.value = Some((info.holders.len() + info.waiters.len()) as u64);
                        line.note = format!("{:?} {:?}", info.holders, info.waiters);
                    }
                    Err(error) => {
                        line.value = Some(u64::MAX);
                        line.note = error.to_string();
                    }
                }
                if line.value == Some(0) || Instant::now() > end {
                    break line;
                }
                sleep(Duration::from_millis(50)).await;
            };
            line.lock.clone_from(lock);
            crew.recorder.write(&line);
        }
        Ok(())
    }
}

/// Asks the store again and again who waits, and writes that down: what the judge of the order goes by. Not while anything is wrong, when
/// nobody's place is sure.
async fn look(client: &Locks, crew: &Crew, lock: &str, calm: &AtomicBool) -> Infallible {
    let has = |capability| client.capabilities().has(capability);
    if !has(Capability::Fair) || !has(Capability::Inspect) {
        return pending().await;
    }
    loop {
        sleep(BETWEEN_LOOKS).await;
        if !calm.load(Ordering::SeqCst) {
            continue;
        }
        let asked = now();
        let Ok(info) = client.inspect(lock).await else {
            continue;
        };
        let waiters = info.waiters.iter();
        for process in waiters.filter_map(|waiter| worker::of_label(&waiter.label)) {
            let mut line = Line::new(now(), process, Op::Waits, Phase::Info);
            (line.lock, line.value) = (lock.to_owned(), Some(asked));
            crew.recorder.write(&line);
        }
        crew.recorder.was_late(asked, worker::STALL);
    }
}

/// What was wrong at the end of a run.
#[derive(Debug, Default)]
struct Ends {
    /// Workers that did not end by themselves, and what they said.
    late: Vec<String>,
    /// Who did not get a lock after a fault was over.
    starved: Vec<Finding>,
}

/// For so long a worker may be busy with another attempt, which has a limit, before it waits for a lock to the end.
const BEGIN: Duration = Duration::from_secs(5);

/// Short beside the time that the workers hold.
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);

/// A client of the one who judges: the store is well when it is made.
///
/// # Errors
/// When it is not.
pub async fn connect(site: &Site) -> Result<Locks> {
    let client = site.client().await;
    client.map_err(|error| Error::answer("connect", error.to_string()))
}

/// How many tasks of a client want each lock where it is passed on.
const TASKS: usize = 3;

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The first line of a history, for clients that let a lock linger for so many milliseconds.
pub fn write_setup(crew: &Crew, site: &Site, client: &Locks, linger: u64) {
    let mut line = crew.recorder.line(Op::Setup, Phase::Info);
    line.setup = Some(Setup {
        store: site.store.as_str().to_owned(),
        fencing: client.capabilities().has(Capability::Fencing),
        fair: client.capabilities().has(Capability::Fair),
        lease: millis(site.store.lease()),
        bound: millis(site.store.bound()),
        linger,
    });
    crew.recorder.write(&line);
}

/// All files of a run as one history, which is written beside them.
///
/// # Errors
/// When a file cannot be read or is no history.
pub fn merge(folder: &Path) -> Result<History> {
    let doing = |source| Error::Io {
        what: format!("read {}", folder.display()),
        source,
    };
    let mut text = String::new();
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .map_err(doing)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
        .filter(|path| !path.ends_with("history.jsonl"))
        .collect();
    files.sort();
    for file in files {
        text += &std::fs::read_to_string(file).map_err(doing)?;
        text.push('\n');
    }
    let history = History::parse(&text).map_err(|why| Error::answer("a history", why))?;
    std::fs::write(folder.join("history.jsonl"), history.to_text()).map_err(doing)?;
    Ok(history)
}
