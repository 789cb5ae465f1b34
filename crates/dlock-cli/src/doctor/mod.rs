//! `dlock doctor`: is this store fit for locks?
//!
//! Each backend brings its own checks in a file of its own, and adds one line to [`CHECKS`].

mod capabilities;
#[cfg(feature = "file")]
mod file;
#[cfg(feature = "redis")]
mod redis;

use std::time::{Duration, Instant};

use dlock::{Locks, Settings};
use futures::BoxFuture;
use serde_json::{Value, json};

use crate::connect::{Store, shown};
use crate::exit::{Outcome, UNSAFE};
use crate::show;

/// Small enough not to disturb, large enough for a median.
const TRIPS: usize = 25;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Good,
    Note,
    /// Locks can be held twice, or lost.
    Unsafe,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Note => "note",
            Self::Unsafe => "unsafe",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    pub(crate) check: &'static str,
    /// What was found, and what to do about it.
    pub(crate) text: String,
}

impl Finding {
    pub(crate) fn new(level: Level, check: &'static str, text: impl Into<String>) -> Self {
        Self {
            level,
            check,
            text: text.into(),
        }
    }
}

/// What a check may look at.
pub(crate) struct Patient<'a> {
    pub(crate) locks: &'a Locks,
    /// With the password: a check may open a connection of its own.
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "for checks that connect by themselves")
    )]
    pub(crate) url: &'a str,
}

mod futures {
    /// A check is an async function.
    pub(crate) type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + 'a>>;
}

type Check = for<'a> fn(&'a Patient<'a>) -> BoxFuture<'a, Vec<Finding>>;

/// The backend (as in its capabilities, or `*`) and its checks.
const CHECKS: &[(&str, Check)] = &[
    ("*", |patient| Box::pin(capabilities::check(patient))),
    #[cfg(feature = "file")]
    ("file", |patient| Box::pin(file::check(patient))),
    #[cfg(feature = "redis")]
    ("redis", |patient| Box::pin(redis::check(patient))),
];

pub(crate) async fn run(store: &Store) -> Outcome {
    let url = store.url()?;
    let started = Instant::now();
    let locks = crate::connect::open(&url, Settings::new()).await?;
    let connected = started.elapsed();
    let trip = measure(&locks).await?;
    let patient = Patient {
        locks: &locks,
        url: &url,
    };
    let mut findings = Vec::new();
    for (backend, check) in CHECKS {
        if *backend == "*" || *backend == locks.capabilities().backend {
            findings.extend(check(&patient).await);
        }
    }
    let is_unsafe = findings
        .iter()
        .any(|finding| finding.level == Level::Unsafe);
    if store.json {
        show::print(&as_json(&locks, &url, connected, trip, &findings))?;
    } else {
        show::print(&format!(
            "{}\n  connected in {}, acquire and release take {} (median of {TRIPS})\n",
            shown(&url),
            show::micros(micros(connected)),
            show::micros(micros(trip)),
        ))?;
        show::print_table(&capabilities::table(&locks))?;
        show::print(&"")?;
        show::print_table(&findings_table(&findings))?;
    }
    let _ = locks.close().await;
    Ok(if is_unsafe { UNSAFE } else { 0 })
}

/// One acquire and release of a lock that nobody else uses.
async fn measure(locks: &Locks) -> dlock::Result<Duration> {
    let lock = locks.mutex(format!("dlock-doctor-{:016x}", fastrand::u64(..)))?;
    let mut times = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        let start = Instant::now();
        let _ = lock.lock().await?.release().await?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times.get(TRIPS / 2).copied().unwrap_or_default())
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn findings_table(findings: &[Finding]) -> comfy_table::Table {
    let mut table = show::table(&["", "check", "finding"]);
    for finding in findings {
        table.add_row([
            show::coloured(finding.level.word(), finding.level != Level::Unsafe),
            comfy_table::Cell::new(finding.check),
            comfy_table::Cell::new(&finding.text),
        ]);
    }
    table
}

fn as_json(
    locks: &Locks,
    url: &str,
    connected: Duration,
    trip: Duration,
    findings: &[Finding],
) -> Value {
    let findings: Vec<Value> = findings
        .iter()
        .map(|f| json!({ "level": f.level.word(), "check": f.check, "text": f.text }))
        .collect();
    json!({
        "backend": shown(url),
        "connect_us": micros(connected),
        "trip_us": micros(trip),
        "capabilities": capabilities::as_json(locks),
        "findings": findings,
    })
}
