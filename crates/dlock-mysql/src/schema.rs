//! The tables: their SQL, and the statements on them.

use std::time::Duration;

use dlock_core::{ErrorKind, Result};

use crate::config::LockMode;
use crate::connect::{Job, SharedConnections};
use crate::error::Trouble;
use crate::fence::TURNS;
use crate::key::check_prefix;

/// The version of the tables that this program works with.
fn version(mode: LockMode) -> u64 {
    match mode {
        LockMode::Lease | LockMode::Unique => 1,
        // A mark names its connection by a call sign, and has the holder's label.
        LockMode::Session | LockMode::Advisory => 2,
    }
}

/// The SQL that creates the tables of a mode, for those who may not create them from their program.
///
/// Run it once, and connect with [`Config::create_tables`](crate::Config::create_tables) off. Running it again changes nothing. The user of
/// the locks then needs `SELECT`, `INSERT`, `UPDATE` and `DELETE` on these tables.
///
/// ```
/// use dlock_mysql::{LockMode, migration};
///
/// let sql = migration(LockMode::Lease, "dlock_")?;
/// assert!(sql.contains("CREATE TABLE IF NOT EXISTS `dlock_locks`"));
/// # Ok::<(), dlock_core::Error>(())
/// ```
///
/// # Errors
///
/// When the prefix is not one.
pub fn migration(mode: LockMode, table_prefix: &str) -> Result<String> {
    check_prefix(table_prefix)?;
    let sql = match mode {
        LockMode::Lease => include_str!("sql/schema.sql"),
        LockMode::Unique => include_str!("sql/schema_unique.sql"),
        LockMode::Session => include_str!("sql/schema_session.sql"),
        LockMode::Advisory => include_str!("sql/schema_advisory.sql"),
    };
    Ok(with_tables(sql, table_prefix))
}

/// A statement with its comments left out, and the names of the tables and the tokens of a hold filled in.
pub(crate) fn statement(sql: &str, prefix: &str) -> String {
    let lines: Vec<&str> = sql
        .lines()
        .filter(|line| !line.starts_with("--"))
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    with_tables(&lines.join(" "), prefix).replace("{turns}", &TURNS.to_string())
}

/// The same for a mode whose statements fail on a server that was demoted.
pub(crate) fn guarded(sql: &str, prefix: &str, takes_writes: &str) -> String {
    statement(sql, prefix).replace("{takes_writes}", takes_writes)
}

/// The names of the tables, quoted: `{prefix}unique` without a prefix is a word of SQL.
fn with_tables(sql: &str, prefix: &str) -> String {
    let mut parts = sql.split("{prefix}");
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = part.find(|c| !is_name(c)).unwrap_or(part.len());
        let (table, rest) = part.split_at(end);
        filled.push_str(&quoted(&format!("{prefix}{table}")));
        filled.push_str(rest);
    }
    filled
}

/// A name that was checked, as SQL takes it whatever it is.
pub(crate) fn quoted(table: &str) -> String {
    format!("`{table}`")
}

/// Finds the tables as they must be, or creates them.
pub(crate) async fn prepare(
    shared: &SharedConnections,
    mode: LockMode,
    prefix: &str,
    create: bool,
    limit: Duration,
) -> Result<(), Trouble> {
    let ask = format!("SELECT v FROM `{prefix}meta` WHERE k = '{mode}'");
    let needed = version(mode);
    let mut created = false;
    loop {
        match shared.call(Job::Text(&ask), limit).await {
            Ok(told) => match told.answer.first_number() {
                Some(found) if found == needed => return Ok(()),
                Some(other) => {
                    return Err(Trouble::new(
                        ErrorKind::Unsupported,
                        format!(
                            "the tables {prefix}* have version {other}, and this program needs {needed}: use another \
                             table_prefix, or the same version of dlock in all programs"
                        ),
                    )
                    .unsent());
                }
                None if created => {
                    return Err(Trouble::unexpected_reply("no version of its tables"));
                }
                // Another mode made the table.
                None => {}
            },
            Err(trouble) if trouble.code == Some(1146) && !created => {}
            Err(trouble) => return Err(trouble.about("looking for the tables").unsent()),
        }
        if !create {
            return Err(Trouble::new(
                ErrorKind::Invalid,
                format!(
                    "there is no table {prefix}meta: run the SQL of dlock_mysql::migration, or set create_tables=true"
                ),
            )
            .unsent());
        }
        let sql = migration(mode, prefix)
            .map_err(|error| Trouble::new(ErrorKind::Invalid, error.message()).unsent())?;
        shared
            .call(Job::Text(&statement(&sql, prefix)), limit)
            .await
            .map_err(|trouble| trouble.about("creating the tables").unsent())?;
        created = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_have_no_comments_and_no_placeholders_left() {
        let text = statement("-- arguments: a\nSELECT 1\n  FROM {prefix}locks\n", "p_");
        assert_eq!(text, "SELECT 1 FROM `p_locks`");
    }

    #[test]
    fn a_migration_can_be_printed() {
        let sql = migration(LockMode::Lease, "x_").expect("a good prefix");
        assert!(sql.contains("x_meta") && !sql.contains("{prefix}"));
        assert!(migration(LockMode::Lease, "x; DROP TABLE users").is_err());
    }
}
