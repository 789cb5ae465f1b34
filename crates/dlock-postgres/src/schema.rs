//! The tables and functions: their SQL, and the statements on them.

use std::time::Duration;

use dlock_core::{ErrorKind, Result};

use crate::config::Config;
use crate::connect::{Job, Link};
use crate::error::Trouble;
use crate::key::{check_prefix, check_schema};

/// The version of the tables and functions that this program works with.
const VERSION: i64 = 1;

/// The SQL that creates the tables and functions, for those who may not create them from their program.
///
/// Run it once, and connect with [`Config::create_tables`](crate::Config::create_tables) off. Running it again changes nothing. The user of
/// the locks then needs `USAGE` on the schema, `SELECT`, `INSERT`, `UPDATE` and `DELETE` on these tables, and `USAGE` on the sequence.
///
/// ```
/// let sql = dlock_postgres::migration("public", "dlock_")?;
/// assert!(sql.contains(r#"CREATE TABLE IF NOT EXISTS "public"."dlock_locks""#));
/// # Ok::<(), dlock_core::Error>(())
/// ```
///
/// # Errors
///
/// When the schema or the prefix is not one.
pub fn migration(schema: &str, table_prefix: &str) -> Result<String> {
    check_schema(schema)?;
    check_prefix(table_prefix)?;
    let all = [
        include_str!("sql/schema.sql"),
        include_str!("sql/session.sql"),
    ];
    Ok(with_tables(&all.join("\n"), schema, table_prefix))
}

/// A statement with its comments left out and the names of the tables filled in.
pub(crate) fn statement(sql: &str, config: &Config) -> String {
    statement_of(sql, &config.schema, &config.table_prefix)
}

pub(crate) fn statement_of(sql: &str, schema: &str, prefix: &str) -> String {
    let lines: Vec<&str> = sql
        .lines()
        .filter(|line| !line.starts_with("--"))
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    with_tables(&lines.join(" "), schema, prefix)
}

/// The names of tables and functions, with their schema and quoted: whatever the search path is, and whatever words SQL has.
fn with_tables(sql: &str, schema: &str, prefix: &str) -> String {
    let mut filled = String::with_capacity(sql.len() * 2);
    let mut rest = sql;
    while let Some((before, place, after)) = next_name(rest) {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = after.find(|c| !is_name(c)).unwrap_or(after.len());
        let (name, behind) = after.split_at(end);
        filled.push_str(before);
        match place {
            "{prefix}" => filled.push_str(&format!("\"{schema}\".\"{prefix}{name}\"")),
            // An index is made in its table's schema.
            _ => filled.push_str(&format!("\"{prefix}{name}\"")),
        }
        rest = behind;
    }
    filled.push_str(rest);
    filled
}

fn next_name(sql: &str) -> Option<(&str, &'static str, &str)> {
    let found = ["{prefix}", "{index}"]
        .into_iter()
        .filter_map(|place| Some((sql.find(place)?, place)))
        .min()?;
    let (before, rest) = sql.split_at(found.0);
    Some((before, found.1, rest.strip_prefix(found.1)?))
}

/// Finds the tables as they must be, or creates them.
pub(crate) async fn prepare(link: &Link, config: &Config, limit: Duration) -> Result<(), Trouble> {
    let (schema, prefix) = (&config.schema, &config.table_prefix);
    let ask = format!("SELECT v FROM {{prefix}}meta WHERE k = '{}'", config.mode);
    let ask = statement(&ask, config);
    let mut created = false;
    loop {
        match link.call(Job::Ask(&ask, &[]), limit).await {
            Ok(told) => match told.rows.first().and_then(|row| row.try_get::<i64>(0).ok()) {
                Some(VERSION) => return Ok(()),
                Some(other) => {
                    return Err(Trouble::new(
                        ErrorKind::Unsupported,
                        format!(
                            "the tables {schema}.{prefix}* have version {other}, and this program needs {VERSION}: use another \
                             table_prefix, or the same version of dlock in all programs"
                        ),
                    )
                    .unsent());
                }
                None if created => {
                    return Err(Trouble::unexpected_reply("no version of its tables"));
                }
                None => {}
            },
            Err(trouble) if trouble.has_code("42P01") && !created => {}
            Err(trouble) => return Err(trouble.about("looking for the tables").unsent()),
        }
        if !config.create_tables {
            return Err(Trouble::new(
                ErrorKind::Invalid,
                format!(
                    "the tables {schema}.{prefix}* are not there, or not those of mode={}: run the SQL of dlock_postgres::migration, or set \
                     create_tables=true",
                    config.mode
                ),
            )
            .unsent());
        }
        let sql = migration(schema, prefix)
            .map_err(|error| Trouble::new(ErrorKind::Invalid, error.message()).unsent())?;
        link.call(Job::Text(&sql), limit).await.map_err(|trouble| {
            let denied = trouble.has_code("42501");
            let trouble = trouble.about("creating the tables").unsent();
            if denied {
                return trouble.about(&format!(
                    "the user may create nothing in the schema {schema:?} (GRANT CREATE ON SCHEMA), so let somebody run the SQL of \
                     dlock_postgres::migration, or set schema"
                ));
            }
            trouble
        })?;
        created = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_filled_in() {
        let text = with_tables(
            "SELECT {prefix}f(x) FROM {prefix}locks -- {index}i",
            "s",
            "p_",
        );
        assert_eq!(text, r#"SELECT "s"."p_f"(x) FROM "s"."p_locks" -- "p_i""#);
    }

    #[test]
    fn a_migration_can_be_printed() {
        let sql = migration("public", "x_").expect("a good prefix");
        assert!(sql.contains("x_meta") && !sql.contains("{prefix}") && !sql.contains("{index}"));
        assert!(migration("public", "x; DROP TABLE users").is_err());
        assert!(migration("a\"b", "x").is_err());
    }
}
