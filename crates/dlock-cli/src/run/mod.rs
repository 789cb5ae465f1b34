//! `dlock run`: holds a lock while a command runs.

mod group;
pub(crate) mod keeper;
pub(crate) mod on_lost;
pub(crate) mod shim;
mod signals;
mod supervise;
mod terminal;

use std::io::IsTerminal;
use std::time::Duration;

use dlock::{Guard, Liveness, Locks, Released, Settings};

use crate::cli::RunArgs;
use crate::connect::{Store, leave, shown};
use crate::exit::{self, Failure, Outcome};
use crate::run::group::Group;
use crate::run::keeper::Keeper;
use crate::run::signals::Signals;
use crate::run::supervise::{Ended, Limits, supervise};
use crate::run::terminal::Terminal;

const GRACE: Duration = Duration::from_secs(5);
/// A person at a terminal wonders after this time.
const SAY_THAT_WE_WAIT: Duration = Duration::from_secs(1);

pub(crate) async fn run(store: &Store, args: RunArgs) -> Outcome {
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
        number = signals.deadly() => return Ok(exit::by_signal(number)),
        locks = crate::connect::open(&url, settings) => locks?,
    };
    let limits = limits(&args, &locks)?;
    if args.ttl.is_some() && locks.capabilities().liveness == Liveness::Process {
        eprintln!("dlock: --ttl has no effect here: a file lock lasts as long as its process");
    }
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
                Ok(Ok(_)) => Err(not_acquired(&args)),
                Err(number) => Ok(exit::by_signal(number)),
            };
        }
    };
    let outcome = hold(&args, &url, limits, &mut signals, guard).await;
    leave(&locks).await;
    outcome
}

/// Runs the command with the lock held, then gives the lock back.
async fn hold(
    args: &RunArgs,
    url: &str,
    limits: Limits,
    signals: &mut Signals,
    guard: Guard,
) -> Outcome {
    let terminal = Terminal::open();
    let environment = [
        ("DLOCK_NAME", args.name.clone()),
        (
            "DLOCK_TOKEN",
            guard
                .token()
                .map(|token| token.to_string())
                .unwrap_or_default(),
        ),
        ("DLOCK_OWNER", guard.owner_id()),
        ("DLOCK_BACKEND", shown(url)),
    ];
    let started = Keeper::start().and_then(|mut keeper| {
        let group = Group::start(&args.command, &environment, terminal.as_ref())?;
        keeper.watch(group.id());
        Ok((keeper, group))
    });
    let (keeper, group) = match started {
        Ok(started) => started,
        Err(failure) => {
            let _ = guard.release().await;
            return Err(failure);
        }
    };
    let ended = supervise(&group, &guard, limits, signals, terminal.as_ref()).await;
    if let Some(terminal) = &terminal {
        terminal.take_back(group.id());
    }
    let was_good = guard.is_held();
    let released = guard.release().await;
    keeper.dismiss();
    match ended {
        Ended::Lost { why } => Err(Failure::new(
            exit::LOST,
            format!(
                "lock {:?} lost: {why}; check what the command has done",
                args.name
            ),
        )),
        Ended::Normally { code } => match released {
            Ok(Released::AlreadyLost) => Err(lost_unnoticed(args)),
            _ if !was_good => Err(lost_unnoticed(args)),
            Ok(_) => Ok(code),
            Err(error) => {
                eprintln!("dlock: {error}; the lock ends by itself");
                Ok(code)
            }
        },
    }
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
                match (args.no_wait, args.wait) {
                    (true, _) => lock.try_read().await,
                    (_, Some(limit)) => lock.read_within(limit).await,
                    _ => lock.read().await.map(Some),
                }
            }
            (_, Some(permits)) => {
                let lock = locks.semaphore(&args.name, permits)?;
                match (args.no_wait, args.wait) {
                    (true, _) => lock.try_acquire().await,
                    (_, Some(limit)) => lock.acquire_within(limit).await,
                    _ => lock.acquire().await.map(Some),
                }
            }
            _ => {
                let lock = locks.mutex(&args.name)?;
                match (args.no_wait, args.wait) {
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
        eprintln!("dlock: waiting for {name:?}{by}");
    }
    std::future::pending().await
}

fn not_acquired(args: &RunArgs) -> Failure {
    let code = args.conflict_exit_code.unwrap_or(exit::NOT_ACQUIRED);
    let after = match args.wait {
        Some(limit) if !args.no_wait => format!(" after {}", humantime::format_duration(limit)),
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
        on_lost: args.on_lost,
        grace,
        before_end,
    })
}
