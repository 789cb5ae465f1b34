//! What the server is, and whether it can keep locks in a mode.

use std::collections::HashMap;
use std::time::Duration;

use dlock_core::ErrorKind;

use crate::bell::BELL_SILENCE;
use crate::config::{Config, LockMode};
use crate::connect::{Answer, Connection};
use crate::error::Trouble;
use crate::fence::TURNS;

/// Our sessions: bytes are bytes, times are UTC, and what a statement means, and how long it may take, does not depend on the server's
/// defaults.
fn setup(isolation: &str, maria: bool, wait_timeout: Duration, numbers: &str) -> String {
    let patience = if maria {
        "max_statement_time = 0, idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0, \
         idle_write_transaction_timeout = 0"
    } else {
        "max_execution_time = 0"
    };
    // completion_type CHAIN would begin the next transaction with each COMMIT, sql_select_limit would hide rows, and sql_safe_updates refuses
    // updates that our keys make safe.
    format!(
        "SET NAMES binary; SET SESSION TRANSACTION ISOLATION LEVEL {isolation}, READ WRITE; \
         SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', autocommit = 1, \
         completion_type = 'NO_CHAIN', sql_select_limit = 18446744073709551615, sql_safe_updates = 0, sql_big_selects = 1, \
         innodb_lock_wait_timeout = 1, wait_timeout = {}, {patience}{numbers}",
        wait_timeout.as_secs()
    )
}

const VARIABLES: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'wsrep_on', 'wsrep_provider', 'read_only', \
     'super_read_only', 'innodb_read_only', 'binlog_format', 'log_bin', 'group_replication_single_primary_mode', \
     'group_replication_group_name')";

/// The database as the server tells it apart from others: with `lower_case_table_names` two spellings are one.
const SCOPE: &str = "SELECT @@lower_case_table_names, IF(@@lower_case_table_names = 0, DATABASE(), LOWER(DATABASE()))";

/// Proxies answer a bare `CONNECTION_ID()` by themselves, with the number that they have given us.
const NUMBER: &str = "SELECT CONNECTION_ID() + 0";

/// A limit of rows would hide variables, and what is hidden cannot be judged.
const LOOK_SETUP: &str = "SET NAMES binary; SET SESSION sql_select_limit = 18446744073709551615";

/// A condition that is false on a server that was demoted.
const WRITABLE: &str = "CONCAT(@@global.read_only) IN ('0', 'OFF')";

/// 1, or an error of the statement (number [`DEMOTED`](crate::error::DEMOTED)) on a server that was demoted: for those statements that
/// would otherwise take effect there for a user whom `read_only` does not stop. SQL has no word for "fail", but too large a number fails.
const TAKES_WRITES: &str = "POW(10, 400 * (CONCAT(@@global.read_only) NOT IN ('0', 'OFF')))";

/// How our sessions begin, after a look at the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setup {
    /// For connections that calls share.
    pub(crate) shared: String,
    /// For connections that carry a hold: the server ends them after the session's validity.
    pub(crate) carrying: String,
    /// For connections that wait for a bell; `None` where a named lock would not be one for all clients.
    pub(crate) bells: Option<String>,
    pub(crate) scope: Scope,
    /// What stands for `{writable}` in a statement: a condition.
    pub(crate) writable: &'static str,
    /// What stands for `{takes_writes}`: 1, or the statement fails.
    pub(crate) takes_writes: &'static str,
}

/// The tables, by names that are equal where the server's are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) database: String,
    pub(crate) prefix: String,
}

impl Scope {
    /// As [`SCOPE`] tells it.
    fn read(answer: &Answer, prefix: &str) -> Option<Self> {
        let row = answer.rows.first()?;
        let exact = row.number(0)? == 0;
        Some(Self {
            database: row.text(1)?,
            prefix: if exact {
                prefix.to_owned()
            } else {
                prefix.to_ascii_lowercase()
            },
        })
    }
}

/// Looks at the server, and refuses what would not be a lock on it.
pub(crate) async fn look(config: &Config) -> Result<Setup, Trouble> {
    let mut connection = Connection::open(config, LOOK_SETUP).await?;
    let limit = config.connect_timeout;
    let variables = tokio::time::timeout(limit, connection.text(VARIABLES)).await;
    let answer = variables.map_err(|_| {
        Trouble::new(
            ErrorKind::TimedOut,
            format!("the server said nothing about itself within {limit:?}"),
        )
        .unsent()
    })?;
    let found = found(&answer.map_err(Trouble::unsent)?);
    let number = tokio::time::timeout(limit, connection.text(NUMBER)).await;
    let number = number.ok().and_then(|answer| answer.ok()?.first_number());
    let scope = tokio::time::timeout(limit, connection.text(SCOPE)).await;
    let scope = scope
        .ok()
        .and_then(|answer| Scope::read(&answer.ok()?, &config.table_prefix));
    let is_direct = number == Some(u64::from(connection.id()));
    connection.close().await;
    judge(config.mode, &found, is_direct)
        .map_err(|reason| Trouble::new(ErrorKind::Unsupported, reason).unsent())?;
    let Some(scope) = scope else {
        return Err(Trouble::new(
            ErrorKind::Unsupported,
            "the server does not tell how it compares the names of databases",
        )
        .unsent());
    };
    // Statement-based logging refuses writes at READ COMMITTED. REPEATABLE READ locks a little more, and is as right.
    let isolation = if logs_statements(&found) {
        "REPEATABLE READ"
    } else {
        "READ COMMITTED"
    };
    let maria = is_maria(version(&found));
    // The automatic numbers of mode unique go in steps of a hold's tokens: see unique_claim.sql.
    let numbers = match config.mode {
        LockMode::Unique => {
            format!(", auto_increment_increment = {TURNS}, auto_increment_offset = {TURNS}")
        }
        _ => String::new(),
    };
    Ok(Setup {
        shared: setup(isolation, maria, Duration::from_secs(28_800), &numbers),
        carrying: setup(isolation, maria, silence(config.session_validity), ""),
        bells: (is_direct
            && config.pool.is_none()
            && several_writers(&found).is_none()
            && !logs_statements(&found))
        .then(|| setup(isolation, maria, BELL_SILENCE, "")),
        scope,
        // A replica that repeats the statement is read-only itself: it would change nothing, or stop with an error.
        writable: if logs_statements(&found) {
            "TRUE"
        } else {
            WRITABLE
        },
        takes_writes: if logs_statements(&found) {
            "1"
        } else {
            TAKES_WRITES
        },
    })
}

/// After how much silence the server ends a connection that carries a hold: its validity, in whole seconds.
pub(crate) fn silence(validity: Duration) -> Duration {
    Duration::from_secs(validity.as_secs() + u64::from(validity.subsec_nanos() > 0))
}

type Variables = HashMap<String, String>;

fn found(answer: &Answer) -> Variables {
    answer
        .rows
        .iter()
        .filter_map(|row| Some((row.text(0)?, row.text(1)?)))
        .collect()
}

fn is_on(found: &Variables, name: &str) -> bool {
    found
        .get(name)
        .is_some_and(|value| matches!(value.as_str(), "ON" | "1" | "YES"))
}

/// Whether a variable that says "read-only" says no. What is not known says yes.
pub(crate) fn is_off(value: &str) -> bool {
    matches!(value, "OFF" | "0" | "NO")
}

fn version(found: &Variables) -> &str {
    found.get("version").map_or("", String::as_str)
}

fn is_maria(version: &str) -> bool {
    version.contains("MariaDB")
}

fn logs_statements(found: &Variables) -> bool {
    let format = found.get("binlog_format").map(String::as_str);
    is_on(found, "log_bin") && format == Some("STATEMENT")
}

/// The reason why the mode would break on this server. It is `is_direct` when it calls our connection by the number that we were greeted with.
fn judge(mode: LockMode, found: &Variables, is_direct: bool) -> Result<(), String> {
    if let Some(too_old) = too_old(version(found)) {
        return Err(too_old);
    }
    for variable in ["super_read_only", "read_only", "innodb_read_only"] {
        let value = found.get(variable);
        if variable == "read_only" && value.is_none() {
            return Err(
                "the server does not tell whether it is read-only (the variable read_only): is it a MySQL or MariaDB?"
                    .to_owned(),
            );
        }
        if value.is_some_and(|value| !is_off(value)) {
            return Err(format!(
                "the server is read-only ({variable} is on), as a replica is: connect to the primary, which all clients must use"
            ));
        }
    }
    let several = several_writers(found);
    if mode == LockMode::Session && logs_statements(found) {
        return Err(
            "the server logs statements (binlog_format is STATEMENT), and then locks no rows at READ COMMITTED, which mode=session \
             needs. Let it log rows (ROW or MIXED), or use another mode"
                .to_owned(),
        );
    }
    if !is_direct && matches!(mode, LockMode::Session | LockMode::Advisory) {
        return Err(format!(
            "between this program and the server is a proxy that has connections of its own: locks of mode={mode} belong to a \
             connection, and would be given to others with it. Connect to the server itself, or use mode=lease"
        ));
    }
    match (several, mode) {
        (None, _) | (Some(_), LockMode::Lease) => Ok(()),
        (Some(several), LockMode::Unique) => Err(format!(
            "the server belongs to {several}: its automatic numbers do not increase from node to node, so mode=unique would \
             give wrong tokens. Use mode=lease"
        )),
        (Some(several), _) => Err(format!(
            "the server belongs to {several}: locks of mode={mode} are known to one node only, so clients of two nodes would \
             hold the same lock. Use mode=lease"
        )),
    }
}

/// What makes several nodes take writes, if something does: each of them has named locks, row locks and automatic numbers of its own.
fn several_writers(found: &Variables) -> Option<&'static str> {
    // Percona's cluster does not show wsrep_on.
    let provider = found.get("wsrep_provider").map_or("", String::as_str);
    let is_galera = match found.get("wsrep_on") {
        Some(_) => is_on(found, "wsrep_on"),
        None => !matches!(provider, "" | "none"),
    };
    if is_galera {
        Some("a Galera cluster (wsrep_on, wsrep_provider)")
    } else if found
        .get("group_replication_group_name")
        .is_some_and(|name| !name.is_empty())
        && found
            .get("group_replication_single_primary_mode")
            .is_some_and(|value| value == "OFF")
    {
        Some("a group with several primaries (group_replication_single_primary_mode is off)")
    } else {
        None
    }
}

fn too_old(version: &str) -> Option<String> {
    // Old MariaDB servers put this in front, for old replicas.
    let digits = version.strip_prefix("5.5.5-").unwrap_or(version);
    let mut parts = digits
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|part| part.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (parts.next(), parts.next()) else {
        return Some(format!(
            "the server's version is {version:?}, which tells nothing: MySQL 8.0 or MariaDB 10.6 is needed, or later"
        ));
    };
    let number = (major, minor);
    let least = if is_maria(version) { (10, 6) } else { (8, 0) };
    (number < least).then(|| {
        format!("the server's version is {version}: MySQL 8.0 or MariaDB 10.6 is needed, or later")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server tells that takes writes, unless it says otherwise.
    fn variables(of: &[(&str, &str)]) -> Variables {
        [("read_only", "OFF")]
            .iter()
            .chain(of)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn servers_that_break_a_mode_are_refused_with_the_reason() {
        use LockMode::{Advisory, Lease, Session, Unique};
        const MARIA: (&str, &str) = ("version", "10.11.6-MariaDB-0+deb12u1");
        for (found, modes, expected) in [
            (vec![("version", "5.7.44")], vec![Lease], "5.7.44"),
            (
                vec![("version", "5.5.5-10.3.1-MariaDB")],
                vec![Lease],
                "10.6",
            ),
            (
                vec![MARIA, ("wsrep_on", "ON")],
                vec![Unique, Session, Advisory],
                "Galera",
            ),
            (
                vec![
                    ("version", "8.0.36"),
                    ("group_replication_group_name", "g"),
                    ("group_replication_single_primary_mode", "OFF"),
                ],
                vec![Unique, Session, Advisory],
                "several primaries",
            ),
            (
                vec![MARIA, ("log_bin", "ON"), ("binlog_format", "STATEMENT")],
                vec![Session],
                "ROW or MIXED",
            ),
            (
                vec![
                    ("version", "8.0.36"),
                    ("wsrep_provider", "/usr/lib/libgalera_smm.so"),
                ],
                vec![Unique, Session, Advisory],
                "Galera",
            ),
            (vec![("version", "")], vec![Lease], "tells nothing"),
            (vec![], vec![Lease], "tells nothing"),
            (
                vec![MARIA, ("read_only", "NO_LOCK")],
                vec![Lease, Session],
                "connect to the primary",
            ),
            (
                vec![MARIA, ("read_only", "ON")],
                vec![Lease, Unique, Session, Advisory],
                "connect to the primary",
            ),
        ] {
            for mode in modes {
                let reason = judge(mode, &variables(&found), true).expect_err(expected);
                assert!(reason.contains(expected), "{reason}");
            }
        }
    }

    #[test]
    fn good_servers_are_taken() {
        for found in [
            vec![
                ("version", "10.6.0-MariaDB"),
                ("wsrep_on", "OFF"),
                ("wsrep_provider", "/usr/lib/libgalera_smm.so"),
                ("read_only", "OFF"),
            ],
            vec![
                ("version", "8.0.36"),
                ("group_replication_single_primary_mode", "ON"),
            ],
            vec![("version", "11.4.2-MariaDB")],
            vec![("version", "9.1.0")],
        ] {
            for mode in [
                LockMode::Lease,
                LockMode::Unique,
                LockMode::Session,
                LockMode::Advisory,
            ] {
                assert_eq!(judge(mode, &variables(&found), true), Ok(()), "{found:?}");
            }
        }
        assert_eq!(
            judge(
                LockMode::Lease,
                &variables(&[("version", "8.0.36"), ("wsrep_on", "ON")]),
                true
            ),
            Ok(())
        );
    }

    #[test]
    fn a_server_that_hides_whether_it_takes_writes_is_refused() {
        let mut found = variables(&[("version", "9.1.0")]);
        found.remove("read_only");
        let reason = judge(LockMode::Lease, &found, true).expect_err("it does not tell");
        assert!(reason.contains("does not tell"), "{reason}");
    }

    #[test]
    fn proxies_that_share_connections_break_the_modes_that_live_on_one() {
        let found = variables(&[("version", "8.0.36")]);
        for mode in [LockMode::Session, LockMode::Advisory] {
            let reason = judge(mode, &found, false).expect_err("a proxy");
            assert!(reason.contains("is a proxy"), "{reason}");
        }
        for mode in [LockMode::Lease, LockMode::Unique] {
            assert_eq!(judge(mode, &found, false), Ok(()));
        }
    }
}
