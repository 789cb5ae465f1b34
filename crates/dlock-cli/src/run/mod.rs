//! `dlock run`: holds a lock while a command runs.

mod group;
pub(crate) mod heartbeat;
pub(crate) mod keeper;
pub(crate) mod on_lost;
mod processes;
mod report;
pub(crate) mod shim;
mod signals;
mod supervise;
mod terminal;

use std::io::IsTerminal;
use std::time::{Duration, Instant, SystemTime};

use dlocks::{Guard, Liveness, Locks, Released, Settings};
use rustix::process::{Signal, kill_current_process_group};

use crate::cli::RunArgs;
use crate::connect::{Store, leave, shown};
use crate::exit::{self, End, Failure, say};
use crate::run::group::Group;
pub(crate) use crate::run::group::myself;
use crate::run::heartbeat::Beat;
use crate::run::keeper::Keeper;
use crate::run::report::Report;
use crate::run::signals::Signals;
pub(crate) use crate::run::signals::unblock_child as hear_of_children;
use crate::run::supervise::{Ended, Limits, supervise};
use crate::run::terminal::Terminal;

const GRACE: Duration = Duration::from_secs(5);
/// A person at a terminal wonders after this time.
const SAY_THAT_WE_WAIT: Duration = Duration::from_secs(1);

pub(crate) async fn run(
    store: &Store,
    args: RunArgs,
    children_blocked: bool,
) -> Result<End, Failure> {
    let mut signals = Signals::catch()?;
    let url = store.url()?;
    let mut settings = Settings::new();
    if let Some(ttl) = args.ttl {
        settings = settings.lease(ttl);
    }
    if let Some(limit) = args.max_hold {
        settings = settings.max_hold(limit);
    }
    let locks = tokio::select! {
        biased;
        number = signals.deadly() => return Ok(End::Signal(number)),
        locks = crate::connect::open(&url, settings) => locks?,
    };
    let limits = limits(&args, &locks)?;
    if args.ttl.is_some() && locks.capabilities().liveness == Liveness::Process {
        say("--ttl has no effect here: a file lock lasts as long as its process");
    }
    let asked = Instant::now();
    let acquired = tokio::select! {
        biased;
        number = signals.deadly() => Err(number),
        acquired = acquire(&locks, &args) => Ok(acquired),
    };
    let guard = match acquired {
        Ok(Ok(Some(guard))) => guard,
        not_held => {
            // Leaves the line, so that nobody waits behind us, and nothing of an attempt that failed in the middle.
            leave(&locks).await;
            return match not_held {
                Ok(Err(failure)) => Err(failure),
                Ok(Ok(_)) if args.skip_ok => Ok(End::Code(0)),
                Ok(Ok(_)) => Err(not_acquired(&args)),
                Err(number) => Ok(End::Signal(number)),
            };
        }
    };
    let (waited, started) = (asked.elapsed(), SystemTime::now());
    let heartbeat = args.heartbeat.clone();
    let start = heartbeat.clone().map(|heartbeat| {
        // Beside the command, which waits for no watchman.
        tokio::spawn(async move { heartbeat.beat(Beat::Start, "").await })
    });
    let mut run = Run {
        args: &args,
        url: &url,
        limits,
        signals: &mut signals,
        children_blocked,
        ran: None,
        typed: None,
    };
    let outcome = run.hold(guard).await;
    let Run { ran, typed, .. } = run;
    leave(&locks).await;
    let code = match &outcome {
        Ok(End::Code(code)) => *code,
        Ok(End::Signal(number)) => exit::by_signal(*number),
        Err(failure) => failure.code,
    };
    if let Some(path) = &args.metrics {
        Report {
            name: &args.name,
            started,
            waited,
            ran: ran.unwrap_or_default(),
            code,
            lost: outcome
                .as_ref()
                .is_err_and(|failure| failure.code == exit::LOST),
        }
        .write(path);
    }
    if let Some(heartbeat) = heartbeat {
        if let Some(start) = start {
            // In order: a start that comes last would tell that it runs.
            let _ = start.await;
        }
        let beat = if code == 0 {
            Beat::Success
        } else {
            Beat::Failure
        };
        heartbeat.beat(beat, &format!("code={code}")).await;
    }
    if let Some(signal) = typed {
        // At the terminal, it would have reached everybody of our group: a script around us, the other end of a pipe.
        let _ = kill_current_process_group(signal);
    }
    outcome
}

/// One run that has its lock.
struct Run<'a> {
    args: &'a RunArgs,
    url: &'a str,
    limits: Limits,
    signals: &'a mut Signals,
    children_blocked: bool,
    /// How long the command ran.
    ran: Option<Duration>,
    /// The signal that somebody sent to the command from the terminal, and that ended it.
    typed: Option<Signal>,
}

impl Run<'_> {
    /// Runs the command with the lock held, then gives the lock back.
    async fn hold(&mut self, guard: Guard) -> Result<End, Failure> {
        let (args, since) = (self.args, Instant::now());
        let terminal = Terminal::open();
        let token = guard.token().map(|token| token.to_string());
        let environment = [
            ("DLOCK_NAME", args.name.clone()),
            ("DLOCK_TOKEN", token.unwrap_or_default()),
            ("DLOCK_OWNER", guard.owner_id()),
            ("DLOCK_BACKEND", shown(self.url)),
        ];
        let started = Keeper::start().and_then(|mut keeper| {
            let group = Group::start(
                &args.words(),
                &environment,
                terminal.as_ref(),
                self.children_blocked,
            )?;
            keeper.watch(group.id());
            group.begin();
            Ok((keeper, group))
        });
        let (keeper, group) = match started {
            Ok(started) => started,
            Err(failure) => {
                let _ = guard.release().await;
                return Err(failure);
            }
        };
        let ended = supervise(
            &group,
            &guard,
            &self.limits,
            self.signals,
            terminal.as_ref(),
            &environment,
        )
        .await;
        self.ran = Some(since.elapsed());
        let had_terminal = terminal.is_some_and(|terminal| terminal.take_back(group.id()));
        self.typed = typed(&ended, had_terminal);
        let mut end = ended.end;
        if ended.lost.is_none()
            && self.typed.is_none()
            && !ended
                .passed_on
                .iter()
                .any(|signal| signals::is_deadly(*signal))
            && let Some(number) = self.hold_on(&guard, since).await
        {
            end = End::Signal(number);
        }
        let was_good = guard.is_held();
        let released = guard.release().await;
        keeper.dismiss();
        if let Some(why) = ended.lost {
            return Err(Failure::new(
                exit::LOST,
                format!(
                    "lock {:?} lost: {why}; check what the command has done",
                    args.name
                ),
            ));
        }
        match released {
            Ok(Released::AlreadyLost) => Err(lost_unnoticed(args)),
            _ if !was_good => Err(lost_unnoticed(args)),
            Ok(_) => Ok(end),
            Err(error) => {
                say(format_args!("{error}; the lock ends by itself"));
                Ok(end)
            }
        }
    }

    /// Holds the lock for the rest of `--at-least`. Ends early when it is lost, or with the signal that ends us.
    async fn hold_on(&mut self, guard: &Guard, since: Instant) -> Option<i32> {
        let rest = self.args.at_least?.saturating_sub(since.elapsed());
        let loss = guard.loss_signal();
        tokio::select! {
            biased;
            number = self.signals.deadly() => Some(number),
            _ = loss.reason() => None,
            () = tokio::time::sleep(rest) => None,
        }
    }
}

/// Ctrl-C and Ctrl-\ go to the group that has the terminal, which is the command's: we get none of it.
fn typed(ended: &Ended, had_terminal: bool) -> Option<Signal> {
    let End::Signal(number) = ended.end else {
        return None;
    };
    [Signal::INT, Signal::QUIT]
        .into_iter()
        .find(|signal| signal.as_raw() == number)
        .filter(|signal| had_terminal && !ended.passed_on.contains(signal))
}

fn lost_unnoticed(args: &RunArgs) -> Failure {
    Failure::new(
        exit::LOST,
        format!(
            "lock {:?} was lost while the command ran: check what it has done",
            args.name
        ),
    )
}

async fn acquire(locks: &Locks, args: &RunArgs) -> Result<Option<Guard>, Failure> {
    let wait = async {
        match (args.shared, args.permits) {
            (true, _) => {
                let lock = locks.rw_lock(&args.name)?;
                match (args.tries(), args.wait) {
                    (true, _) => lock.try_read().await,
                    (_, Some(limit)) => lock.read_within(limit).await,
                    _ => lock.read().await.map(Some),
                }
            }
            (_, Some(permits)) => {
                let lock = locks.semaphore(&args.name, permits)?;
                match (args.tries(), args.wait) {
                    (true, _) => lock.try_acquire().await,
                    (_, Some(limit)) => lock.acquire_within(limit).await,
                    _ => lock.acquire().await.map(Some),
                }
            }
            _ => {
                let lock = locks.mutex(&args.name)?;
                match (args.tries(), args.wait) {
                    (true, _) => lock.try_lock().await,
                    (_, Some(limit)) => lock.lock_within(limit).await,
                    _ => lock.lock().await.map(Some),
                }
            }
        }
    };
    tokio::select! {
        biased;
        guard = wait => Ok(guard?),
        () = tell_that_we_wait(locks, &args.name) => Ok(None),
    }
}

/// Tells a person at a terminal what is going on. Never ends.
async fn tell_that_we_wait(locks: &Locks, name: &str) {
    if std::io::stderr().is_terminal() {
        tokio::time::sleep(SAY_THAT_WE_WAIT).await;
        let holder = match locks.inspect(name).await {
            Ok(info) => info.holders.first().map(|holder| holder.label.clone()),
            Err(_) => None,
        };
        let by = holder
            .map(|holder| format!(", held by {holder}"))
            .unwrap_or_default();
        say(format_args!("waiting for {name:?}{by}"));
    }
    std::future::pending().await
}

fn not_acquired(args: &RunArgs) -> Failure {
    let code = args.conflict_exit_code.unwrap_or(exit::NOT_ACQUIRED);
    let after = match args.wait {
        Some(limit) if !args.tries() => format!(" after {}", humantime::format_duration(limit)),
        _ => String::new(),
    };
    Failure::new(
        code,
        format!(
            "lock {:?} is held by others{after}: wait longer with --wait, or see dlock inspect",
            args.name
        ),
    )
}

/// The grace must leave room for renewals: a command is not stopped because one renewal is late.
fn limits(args: &RunArgs, locks: &Locks) -> Result<Limits, Failure> {
    if let (Some(least), Some(most)) = (args.at_least, args.max_hold)
        && least > most
    {
        return Err(Failure::usage("--at-least is longer than --max-hold"));
    }
    let lease = match locks.capabilities().liveness {
        Liveness::Process => None,
        _ => Some(locks.lease()),
    };
    let most = lease.map(|lease| lease / 2);
    let grace = match (args.grace, most) {
        (Some(grace), Some(most)) if grace > most => {
            return Err(Failure::usage(format!(
                "--grace {} is more than half of the lock's time of {}: shorten it, or give a longer --ttl",
                humantime::format_duration(grace),
                humantime::format_duration(lease.unwrap_or_default()),
            )));
        }
        (Some(grace), _) => grace,
        (None, most) => GRACE.min(most.map_or(GRACE, |most| most / 2)),
    };
    // A maximum is for the whole hold, so the grace comes out of it.
    let before_end = args.max_hold.map_or(grace, |limit| grace.min(limit / 2));
    Ok(Limits {
        on_lost: args.on_lost.clone(),
        grace,
        before_end,
    })
}
