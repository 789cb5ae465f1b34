//! What the server is, and how our sessions on it begin.

mod judge;

use std::time::Duration;

use dlock_core::ErrorKind;

use crate::config::{Config, LockMode};
use crate::connect::{Answer, Connection};
use crate::error::Trouble;
use crate::fence::TURNS;

pub(crate) use self::judge::is_off;
use self::judge::{found, is_maria, judge, logs_statements, several_writers, version};

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

/// The server ends a connection with a bell (see `bell.rs`) after so much silence.
const BELL_SILENCE: Duration = Duration::from_secs(15);

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
    /// Whether replicas repeat our statements, instead of the changes that they made.
    pub(crate) logs_statements: bool,
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
    let logs_statements = logs_statements(&found);
    let isolation = if logs_statements {
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
            && !logs_statements)
            .then(|| setup(isolation, maria, BELL_SILENCE, "")),
        scope,
        // A replica that repeats the statement is read-only itself: it would change nothing, or stop with an error.
        writable: if logs_statements { "TRUE" } else { WRITABLE },
        takes_writes: if logs_statements { "1" } else { TAKES_WRITES },
        logs_statements,
    })
}

/// After how much silence the server ends a connection that carries a hold: its validity, in whole seconds.
pub(crate) fn silence(validity: Duration) -> Duration {
    Duration::from_secs(validity.as_secs() + u64::from(validity.subsec_nanos() > 0))
}
