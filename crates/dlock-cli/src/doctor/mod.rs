//! `dlock doctor`: is this store fit for locks?
//!
//! Each backend brings its own checks in a file of its own, and adds one line to [`CHECKS`].

mod capabilities;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "file")]
mod file;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "etcd", feature = "zk"))]
mod quorum;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redlock")]
mod redlock;
#[cfg(feature = "redis")]
mod sentinel;
#[cfg(any(feature = "etcd", feature = "zk"))]
mod wire;
#[cfg(feature = "zk")]
mod zk;

use std::time::{Duration, Instant};

use dlocks::{ErrorKind, Locks, Settings};
use futures::BoxFuture;
use serde_json::{Value, json};

use crate::connect::{Store, leave, shown};
use crate::exit::{ExitResult, UNSAFE};
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
        not(any(
            feature = "redis",
            feature = "redlock",
            feature = "etcd",
            feature = "zk",
            feature = "mysql",
            feature = "postgres"
        )),
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
    #[cfg(feature = "redlock")]
    ("redlock", |patient| Box::pin(redlock::check(patient))),
    #[cfg(feature = "etcd")]
    ("etcd", |patient| Box::pin(etcd::check(patient))),
    #[cfg(feature = "zk")]
    ("zk", |patient| Box::pin(zk::check(patient))),
    #[cfg(feature = "mysql")]
    ("mysql", |patient| Box::pin(mysql::check(patient))),
    #[cfg(feature = "postgres")]
    ("postgres", |patient| Box::pin(postgres::check(patient))),
];

pub(crate) async fn run(store: &Store) -> ExitResult {
    let url = store.url()?;
    let started = Instant::now();
    let locks = crate::connect::open(&url, Settings::new()).await?;
    let connected = started.elapsed();
    let trip = match measure(&locks).await {
        Err(error) if error.kind() != ErrorKind::Denied => return Err(error.into()),
        trip => trip,
    };
    let patient = Patient {
        locks: &locks,
        url: &url,
    };
    let mut findings = Vec::new();
    if let Err(denied) = &trip {
        let text = format!("no lock can be taken: {denied}");
        findings.push(Finding::new(Level::Unsafe, "permissions", text));
    }
    let trip = trip.ok();
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
        let trip = trip.map_or(String::new(), |trip| {
            let trip = show::micros(micros(trip));
            format!(", acquire and release take {trip} (median of {TRIPS})")
        });
        let connected = show::micros(micros(connected));
        let url = shown(&url);
        show::print(&format!("{url}\n  connected in {connected}{trip}\n"))?;
        show::print_table(&capabilities::table(&locks))?;
        show::print(&"")?;
        show::print_table(&findings_table(&findings))?;
    }
    leave(&locks).await;
    Ok(if is_unsafe { UNSAFE } else { 0 })
}

/// One acquire and release of a lock that nobody else uses.
async fn measure(locks: &Locks) -> dlocks::Result<Duration> {
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

/// The numbers that a version begins with: `[3, 4, 23]`.
#[cfg(any(
    feature = "redis",
    feature = "redlock",
    feature = "etcd",
    feature = "zk",
    feature = "mysql",
    feature = "postgres"
))]
pub(crate) fn numbers(version: &str) -> Vec<u32> {
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.');
    let plain = version.get(..end.unwrap_or(version.len()));
    plain
        .unwrap_or_default()
        .split('.')
        .filter_map(|part| part.parse().ok())
        .collect()
}

/// What was asked of the server for a session, against what it granted.
#[cfg(any(feature = "etcd", feature = "zk"))]
pub(crate) fn session(patient: &Patient<'_>, asked: Duration, why: &str) -> Option<Finding> {
    let dlocks::Liveness::Session { ttl } = patient.locks.capabilities().liveness else {
        return None;
    };
    let (asked_text, granted) = (show::short(asked), show::short(ttl));
    // Seconds are rounded up where the server counts in seconds.
    let differs = ttl < asked || ttl.saturating_sub(asked) >= Duration::from_secs(1);
    Some(if differs {
        let text = format!("{asked_text} were asked for, and the server grants {granted}: {why}");
        Finding::new(Level::Note, "session time", text)
    } else {
        Finding::new(Level::Good, "session time", granted)
    })
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
    trip: Option<Duration>,
    findings: &[Finding],
) -> Value {
    let findings: Vec<Value> = findings
        .iter()
        .map(|f| json!({ "level": f.level.word(), "check": f.check, "text": f.text }))
        .collect();
    json!({
        "backend": shown(url),
        "connect_us": micros(connected),
        "trip_us": trip.map(micros),
        "capabilities": capabilities::as_json(locks),
        "findings": findings,
    })
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_far_as_they_are_numbers() {
        for (text, expected) in [
            ("3.4.23", &[3, 4, 23][..]),
            ("3.8.0-${mvngit.commit.id}", &[3, 8, 0]),
            ("7.0", &[7, 0]),
            ("unknown", &[]),
            ("", &[]),
        ] {
            assert_eq!(numbers(text), expected, "{text}");
        }
    }
}
