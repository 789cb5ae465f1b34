//! What makes locks in a MySQL or MariaDB unsafe. What breaks them outright, the backend refuses: a server that is too old or read-only,
//! and modes that a Galera cluster or a proxy would break.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlock_mysql::Config;
use dlock_mysql::mysql_async::prelude::Queryable;
use dlock_mysql::mysql_async::{Conn, Error, Row};

use crate::doctor::{Finding, Level, Patient, numbers};
use crate::show;

/// The client has no limit of its own.
const PATIENCE: Duration = Duration::from_secs(5);
/// Clocks that differ by more are not kept in step.
const DRIFT: Duration = Duration::from_secs(1);

const VARIABLES: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'innodb_flush_log_at_trx_commit', 'innodb_doublewrite', \
     'log_bin', 'sync_binlog', 'wsrep_on', 'group_replication_group_name', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled')";
/// Replicas show as threads that send them the log, to those who may see other users' threads.
const THREADS: &str = "SHOW PROCESSLIST";
const GRANTS: &str = "SHOW GRANTS";
const MICROS: &str = "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)";

pub(crate) async fn check(patient: &Patient<'_>) -> Vec<Finding> {
    let pool = async { Config::from_url(patient.url)?.client().await };
    let pool = match pool.await {
        Ok(pool) => pool,
        Err(error) => return vec![Finding::new(Level::Note, "server", error.to_string())],
    };
    let asked = async {
        let mut connection = pool.get_conn().await?;
        ask(&mut connection).await
    };
    let told = match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(told)) => told,
        Ok(Err(error)) => return vec![Finding::new(Level::Note, "server", error.to_string())],
        Err(_) => return vec![Finding::new(Level::Note, "server", "it does not answer")],
    };
    vec![
        version(&told),
        persistence(&told),
        replicas(&told),
        clock(&told),
    ]
}

/// What the server tells.
#[derive(Default)]
struct Told {
    variables: HashMap<String, String>,
    /// As many as we may see.
    replicas: usize,
    /// Whether we may see the threads of other users.
    sees_all: bool,
    /// How far its clock is from ours, less the trip.
    drift: Duration,
}

impl Told {
    fn get(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", String::as_str)
    }

    fn is_on(&self, name: &str) -> bool {
        matches!(self.get(name), "ON" | "1")
    }
}

async fn ask(connection: &mut Conn) -> Result<Told, Error> {
    let rows: Vec<(String, String)> = connection.query(VARIABLES).await?;
    let threads: Vec<Row> = connection.query(THREADS).await?;
    let replicas = threads.iter().filter(|row| is_replica(row)).count();
    let grants: Vec<String> = connection.query(GRANTS).await?;
    let before = now();
    let theirs: Option<u64> = connection.query_first(MICROS).await?;
    let theirs = theirs.map_or(before, Duration::from_micros);
    let drift = before.saturating_sub(theirs) + theirs.saturating_sub(now());
    Ok(Told {
        variables: rows.into_iter().collect(),
        replicas,
        sees_all: grants.iter().any(|grant| shows_threads(grant)),
        drift,
    })
}

fn is_replica(thread: &Row) -> bool {
    let command: Option<Option<String>> = thread.get("Command");
    command
        .flatten()
        .is_some_and(|command| command.starts_with("Binlog Dump"))
}

/// Whether a line of `SHOW GRANTS` lets its user see the threads of others. A role may grant more than is told here.
fn shows_threads(grant: &str) -> bool {
    let Some((rights, _)) = grant.split_once(" ON *.* TO ") else {
        return false;
    };
    let rights = rights.strip_prefix("GRANT ").unwrap_or(rights);
    rights
        .split(',')
        .any(|right| matches!(right.trim(), "ALL PRIVILEGES" | "PROCESS"))
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

fn version(told: &Told) -> Finding {
    let version = told.get("version");
    let found = numbers(version);
    // The last versions of MySQL 8.0 and MariaDB 10.6 came in 2026.
    let old: &[u32] = if version.contains("MariaDB") {
        &[10, 11]
    } else {
        &[8, 4]
    };
    if !found.is_empty() && found.as_slice() < old {
        let text = format!("{version}, which is no longer maintained: upgrade");
        return Finding::new(Level::Note, "version", text);
    }
    Finding::new(Level::Good, "version", version)
}

fn persistence(told: &Told) -> Finding {
    let (level, text) = match told.get("innodb_flush_log_at_trx_commit") {
        // After a crash the server undoes what is not in the binary log.
        "1" | "3" if told.is_on("log_bin") && told.get("sync_binlog") != "1" => (
            Level::Unsafe,
            "the binary log is not synced at each commit, so a crash of the machine can lose the last locks: set sync_binlog = 1",
        ),
        "1" | "3" if told.get("innodb_doublewrite") == "OFF" => (
            Level::Note,
            "synced at each commit, but innodb_doublewrite is off: a page that is half written at a crash spoils the table",
        ),
        "1" | "3" => (Level::Good, "the log is synced at each commit"),
        "" => (Level::Note, "the server does not tell"),
        _ => (
            Level::Unsafe,
            "a crash of the machine can lose the last second's locks: set innodb_flush_log_at_trx_commit = 1",
        ),
    };
    Finding::new(level, "persistence", text)
}

fn replicas(told: &Told) -> Finding {
    let waits =
        told.is_on("rpl_semi_sync_master_enabled") || told.is_on("rpl_semi_sync_source_enabled");
    let (level, text) = if told.is_on("wsrep_on") {
        (
            Level::Note,
            "a Galera cluster: a hold is certified by all nodes before it counts, and mode=lease is the one that works".to_owned(),
        )
    } else if !told.get("group_replication_group_name").is_empty() {
        (
            Level::Note,
            "group replication: a hold is agreed on before it counts; let all clients use the primary".to_owned(),
        )
    } else {
        match (told.replicas, waits) {
            (0, _) if !told.sees_all => (
                Level::Note,
                "not known: this user may not see them (it lacks the right PROCESS)".to_owned(),
            ),
            (0, _) if told.is_on("log_bin") => (
                Level::Note,
                "none is connected now; if one that was is promoted, it may lack the last locks"
                    .to_owned(),
            ),
            (0, _) => (
                Level::Good,
                "none: the server keeps no log for them, so no fail-over can lose a lock"
                    .to_owned(),
            ),
            (n, true) => (
                Level::Note,
                format!("{n} replicas, and commits wait for one: a fail-over seldom loses a lock"),
            ),
            (n, false) => (
                Level::Unsafe,
                format!(
                    "{n} replicas, and commits do not wait for them: a fail-over can lose a lock; use semi-synchronous replication"
                ),
            ),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn told(variables: &[(&str, &str)], replicas: usize) -> Told {
        Told {
            variables: variables
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            replicas,
            sees_all: true,
            drift: Duration::ZERO,
        }
    }

    #[test]
    fn servers_are_judged_by_what_they_say() {
        let flush =
            |value| persistence(&told(&[("innodb_flush_log_at_trx_commit", value)], 0)).level;
        assert_eq!(
            (flush("1"), flush("2"), flush("0")),
            (Level::Good, Level::Unsafe, Level::Unsafe)
        );
        let logged = |sync| {
            let variables = [
                ("innodb_flush_log_at_trx_commit", "1"),
                ("log_bin", "ON"),
                ("sync_binlog", sync),
            ];
            persistence(&told(&variables, 0)).level
        };
        assert_eq!((logged("1"), logged("0")), (Level::Good, Level::Unsafe));
        let blind = Told {
            sees_all: false,
            ..told(&[], 0)
        };
        assert_eq!(replicas(&blind).level, Level::Note);
        for (grant, sees) in [
            (
                "GRANT ALL PRIVILEGES ON *.* TO `root`@`%` WITH GRANT OPTION",
                true,
            ),
            ("GRANT SELECT, PROCESS ON *.* TO `a`@`%`", true),
            ("GRANT USAGE ON *.* TO `a`@`%`", false),
            ("GRANT ALL PRIVILEGES ON `dlock`.* TO `a`@`%`", false),
        ] {
            assert_eq!(shows_threads(grant), sees, "{grant}");
        }
        let semi = [("rpl_semi_sync_source_enabled", "ON")];
        assert_eq!(replicas(&told(&[], 0)).level, Level::Good);
        assert_eq!(replicas(&told(&[("log_bin", "ON")], 0)).level, Level::Note);
        assert_eq!(replicas(&told(&[], 2)).level, Level::Unsafe);
        assert_eq!(replicas(&told(&semi, 2)).level, Level::Note);
        assert_eq!(replicas(&told(&[("wsrep_on", "ON")], 0)).level, Level::Note);
        for (text, level) in [
            ("10.11.6-MariaDB-0+deb12u1", Level::Good),
            ("10.6.22-MariaDB", Level::Note),
            ("8.4.3", Level::Good),
            ("8.0.40", Level::Note),
        ] {
            assert_eq!(
                version(&told(&[("version", text)], 0)).level,
                level,
                "{text}"
            );
        }
        let late = Told {
            drift: Duration::from_secs(7),
            ..Told::default()
        };
        assert!(clock(&late).text.starts_with("7s away"));
    }
}
