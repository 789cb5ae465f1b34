//! What makes locks in a PostgreSQL unsafe. What breaks them outright, the backend refuses: a server that is too old or takes no writes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlock_postgres::tokio_postgres::{Client, Error};
use dlock_postgres::{Config, LockMode};
use dlocks::{Capability, Locks};

use crate::doctor::{Finding, Level, Patient, numbers};
use crate::show;

/// The client has no limit of its own.
const PATIENCE: Duration = Duration::from_secs(5);
/// Clocks that differ by more are not kept in step.
const DRIFT: Duration = Duration::from_secs(1);

const LOOK: &str = "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('full_page_writes'), \
    current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication), \
    pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

pub(crate) async fn check(patient: &Patient<'_>) -> Vec<Finding> {
    let asked = async {
        let config = Config::from_url(patient.url)?;
        let client = config.client().await?;
        Ok::<_, dlocks::Error>((ask(&client).await, config.mode()))
    };
    let note = |text: String| vec![Finding::new(Level::Note, "server", text)];
    let (told, mode) = match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok((Ok(told), mode))) => (told, mode),
        Ok(Ok((Err(error), _))) => return note(error.to_string()),
        Ok(Err(error)) => return note(error.to_string()),
        Err(_) => return note("it does not answer".to_owned()),
    };
    vec![
        version(&told),
        persistence(&told),
        replicas(&told),
        clock(&told),
        wake_up(patient.locks, mode),
    ]
}

/// What the server tells.
#[derive(Default)]
struct Told {
    version: String,
    fsync: bool,
    full_pages: bool,
    /// Commits wait for some of them.
    waits: bool,
    /// As many as we may see.
    standbys: i64,
    sees_all: bool,
    /// How far its clock is from ours, less the trip.
    drift: Duration,
}

async fn ask(client: &Client) -> Result<Told, Error> {
    let before = now();
    let row = client.query_one(LOOK, &[]).await?;
    let theirs: i64 = row.try_get(6)?;
    let theirs = Duration::from_micros(theirs.unsigned_abs());
    Ok(Told {
        version: row.try_get(0)?,
        fsync: row.try_get::<_, String>(1)? == "on",
        full_pages: row.try_get::<_, String>(2)? == "on",
        waits: !row.try_get::<_, String>(3)?.is_empty(),
        standbys: row.try_get(4)?,
        sees_all: row.try_get(5)?,
        drift: before.saturating_sub(theirs) + theirs.saturating_sub(now()),
    })
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

fn version(told: &Told) -> Finding {
    let version = &told.version;
    // The last version of PostgreSQL 13 came in 2025, of 14 in 2026.
    if numbers(version).first().is_some_and(|major| *major < 14) {
        let text = format!("{version}, which is no longer maintained: upgrade");
        return Finding::new(Level::Note, "version", text);
    }
    Finding::new(Level::Good, "version", version.as_str())
}

fn persistence(told: &Told) -> Finding {
    let (level, text) = match (told.fsync, told.full_pages) {
        (true, true) => (
            Level::Good,
            "the log is synced at each commit of ours, whatever synchronous_commit says",
        ),
        (true, false) => (
            Level::Note,
            "synced at each commit, but full_page_writes is off: a page that is half written at a crash spoils the table",
        ),
        (false, _) => (
            Level::Unsafe,
            "fsync is off: a crash of the machine can lose locks, or the whole database; set fsync = on",
        ),
    };
    Finding::new(level, "persistence", text)
}

fn replicas(told: &Told) -> Finding {
    let (level, text) = match (told.standbys, told.waits) {
        (0, _) if !told.sees_all => (
            Level::Note,
            "not known: this user may not see them (it lacks the role pg_read_all_stats)"
                .to_owned(),
        ),
        (0, _) => (
            Level::Good,
            "none is connected, so no fail-over can lose a lock".to_owned(),
        ),
        (n, true) => (
            Level::Note,
            format!(
                "{n} standbys, and commits wait for synchronous_standby_names: a fail-over to one of those loses no lock"
            ),
        ),
        (n, false) => (
            Level::Unsafe,
            format!(
                "{n} standbys, and commits do not wait for them: a fail-over can lose a lock; set synchronous_standby_names"
            ),
        ),
    };
    Finding::new(level, "replicas", text)
}

fn clock(told: &Told) -> Finding {
    if told.drift > DRIFT {
        let drift = show::short(told.drift);
        let text =
            format!("{drift} away from ours; locks use the server's alone, but do not let it jump");
        return Finding::new(Level::Note, "clock", text);
    }
    Finding::new(Level::Good, "clock", "in step with ours")
}

fn wake_up(locks: &Locks, mode: LockMode) -> Finding {
    if mode == LockMode::Session {
        let text = "waiters stand in the server's own queue, each with a connection";
        return Finding::new(Level::Good, "wake-up", text);
    }
    if locks.capabilities().has(Capability::Push) {
        return Finding::new(Level::Good, "wake-up", "waiters are told by NOTIFY");
    }
    Finding::new(
        Level::Note,
        "wake-up",
        "waiters ask again: a pooler that shares connections stands in between, or listen=false is set",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_judged_by_what_they_say() {
        let told = |fsync, full_pages, standbys, waits| Told {
            fsync,
            full_pages,
            standbys,
            waits,
            sees_all: true,
            ..Told::default()
        };
        assert_eq!(persistence(&told(true, true, 0, false)).level, Level::Good);
        assert_eq!(persistence(&told(true, false, 0, false)).level, Level::Note);
        assert_eq!(
            persistence(&told(false, true, 0, false)).level,
            Level::Unsafe
        );
        assert_eq!(replicas(&told(true, true, 0, false)).level, Level::Good);
        assert_eq!(replicas(&told(true, true, 2, true)).level, Level::Note);
        assert_eq!(replicas(&told(true, true, 2, false)).level, Level::Unsafe);
        assert_eq!(replicas(&Told::default()).level, Level::Note);
        for (version, level) in [("15.18 (Debian)", Level::Good), ("12.1", Level::Note)] {
            let told = Told {
                version: version.to_owned(),
                ..Told::default()
            };
            assert_eq!(super::version(&told).level, level, "{version}");
        }
        let late = Told {
            drift: Duration::from_secs(7),
            ..Told::default()
        };
        assert!(clock(&late).text.starts_with("7s away"));
    }
}
