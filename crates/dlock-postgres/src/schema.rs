//! The tables and functions: their SQL, and the statements on them.

use std::time::Duration;

use dlock_core::{ErrorKind, Result};

use crate::config::{Config, LockMode};
#[cfg(any(feature = "deadpool", feature = "sqlx"))]
use crate::connect::Wire;
use crate::connect::{Job, Row, SharedConnections};
use crate::error::Trouble;
use crate::key::{check_prefix, check_schema};

/// The version of the tables and functions that this program works with: 2 since a hold has several tokens (see `fence.rs`).
const VERSION: i64 = 2;

/// Whether somebody holds a lock in these tables. What an older version has left is a hold all the same.
const IN_USE: &str = "SELECT EXISTS (SELECT FROM {prefix}locks WHERE owner IS NOT NULL AND expires_at > clock_timestamp()) \
    OR EXISTS (SELECT FROM {prefix}holders WHERE expires_at > clock_timestamp()) \
    OR EXISTS (SELECT FROM {prefix}sessions WHERE owner IS NOT NULL AND NOT broken AND sign IN \
    (SELECT classid::bigint << 32 | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted \
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())))";

/// Ends the migration before it begins when another program has just made what it makes, with the code DLK02. One at a time, as the migration itself.
const UNLESS_MADE: &str = "SELECT pg_advisory_xact_lock(4983251072931170125); \
    DO $dlock$ DECLARE made boolean; BEGIN \
    IF to_regclass('{prefix}meta') IS NULL THEN RETURN; END IF; \
    EXECUTE 'SELECT count(*) = 3 FROM {prefix}meta WHERE k = ''store'' OR k IN (''lease'', ''session'') AND v = {version}' INTO made; \
    IF made THEN RAISE EXCEPTION 'made by another program' USING ERRCODE = 'DLK02'; END IF; \
    END $dlock$";

/// Which store it is, by its own word: the tables' number, the name and number of their database, and the number that the server was given when its data
/// folder was made. A fail-over to a standby, another address or a pool change none of them; a copy that a dump makes differs in the last two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreId {
    database: Database,
    number: i64,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Database {
    name: String,
    oid: u32,
    /// `None` where the user may not ask for it.
    system: Option<i64>,
}

impl StoreId {
    /// Whether both may be the same: of two users one may be told the server's number, and the other not.
    #[cfg(any(feature = "deadpool", feature = "sqlx"))]
    pub(crate) fn may_be(&self, other: &Self) -> bool {
        let without = |store: &Self| {
            let mut store = store.clone();
            store.database.system = None;
            store
        };
        let (one, two) = (self.database.system, other.database.system);
        without(self) == without(other) && (one == two || one.is_none() || two.is_none())
    }

    /// For people, for the order of locks in several stores, and for fences, which keep it: so it is the same for every user, and stays when the
    /// tables move to a new server with their tokens (a dump, `pg_upgrade`). The numbers of server and database do not, and count for
    /// [`may_be`](Self::may_be) alone.
    pub(crate) fn text(&self, config: &Config) -> String {
        let Self { database, number } = self;
        let name = &database.name;
        let (mode, schema, prefix) = (config.mode, &config.schema, &config.table_prefix);
        format!(
            "postgres:{name}?store={number:x}&mode={mode}&schema={schema}&table_prefix={prefix}"
        )
    }
}

/// What the table of versions says.
#[derive(Debug, Default)]
struct Found {
    /// Of the mode that is asked for.
    version: Option<i64>,
    /// Of either mode: they are brought up to date together.
    oldest: Option<i64>,
    newest: Option<i64>,
    number: Option<i64>,
    database: Database,
}

impl Found {
    /// Managed servers may forbid the question after their number: it is left out where that is so.
    fn ask(config: &Config, with_system: bool) -> String {
        let system = match with_system {
            true => "(SELECT system_identifier FROM pg_control_system())",
            false => "NULL::bigint",
        };
        let sql = format!(
            "SELECT k, v, d.datname::text, d.oid, {system} FROM {{prefix}}meta, pg_database d \
             WHERE k IN ('lease', 'session', 'store') AND d.datname = current_database()"
        );
        statement(&sql, config)
    }

    /// Whether the server does not tell its number to this user, or to nobody.
    fn hides_system(trouble: &Trouble) -> bool {
        trouble.message().contains("pg_control_system")
            && ["42501", "42883", "0A000"]
                .iter()
                .any(|code| trouble.has_code(code))
    }

    fn read(rows: &[Row], mode: LockMode) -> Result<Self, Trouble> {
        let unreadable = |_| Trouble::unexpected_reply("no version of its tables");
        let mut found = Self::default();
        for row in rows {
            let key: String = row.try_get(0).map_err(unreadable)?;
            let value: i64 = row.try_get(1).map_err(unreadable)?;
            found.database = Database {
                name: row.try_get(2).map_err(unreadable)?,
                oid: row.try_get(3).map_err(unreadable)?,
                system: row.try_get(4).map_err(unreadable)?,
            };
            if key == "store" {
                found.number = Some(value);
                continue;
            }
            found.oldest = Some(found.oldest.map_or(value, |oldest| oldest.min(value)));
            found.newest = found.newest.max(Some(value));
            if key == mode.to_string() {
                found.version = Some(value);
            }
        }
        Ok(found)
    }

    /// The store, if its tables are those of this program.
    fn store(self) -> Option<StoreId> {
        let number = self.number.filter(|_| self.version == Some(VERSION))?;
        Some(StoreId {
            database: self.database,
            number,
        })
    }
}

/// The SQL that creates the tables and functions, for those who may not create them from their program.
///
/// Run it once, in one transaction (`psql -1 -v ON_ERROR_STOP=1`), and connect with [`Config::create_tables`](crate::Config::create_tables) off. Running
/// it again changes nothing; on the tables of an older version it brings them up to date, and programs of that version then take no lock any more; on those
/// of a newer version it is an error, and changes nothing. The user of
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

/// Finds the tables as they must be, or makes them so; and which store it is.
pub(crate) async fn prepare(
    shared: &SharedConnections,
    config: &Config,
    limit: Duration,
) -> Result<StoreId, Trouble> {
    let (schema, prefix) = (&config.schema, &config.table_prefix);
    let mut with_system = true;
    let mut made = false;
    loop {
        let ask = Found::ask(config, with_system);
        let found = match shared.call(Job::Ask(&ask, &[]), limit).await {
            Ok(told) => Found::read(&told.rows, config.mode)?,
            Err(trouble) if with_system && Found::hides_system(&trouble) => {
                with_system = false;
                continue;
            }
            Err(trouble) if trouble.has_code("42P01") && !made => Found::default(),
            Err(trouble) => return Err(trouble.about("looking for the tables").unsent()),
        };
        let (oldest, newest) = (found.oldest, found.newest);
        let tables = format!("the tables {schema}.{prefix}*");
        let refuse = |kind, text: String| Err(Trouble::new(kind, text).unsent());
        if let Some(newer) = newest.filter(|newest| *newest > VERSION) {
            return refuse(
                ErrorKind::Unsupported,
                format!(
                    "{tables} have version {newer}, and this program needs {VERSION}: use another table_prefix, or the same version of \
                     dlock in all programs"
                ),
            );
        }
        if let Some(store) = found.store() {
            return Ok(store);
        }
        if made {
            return Err(Trouble::unexpected_reply("no version of its tables"));
        }
        let older = oldest.filter(|oldest| *oldest < VERSION);
        let old = older.map(|older| {
            format!("{tables} have version {older}, and this program needs {VERSION}")
        });
        if !config.create_tables {
            return match old {
                Some(old) => refuse(
                    ErrorKind::Unsupported,
                    format!(
                        "{old}: stop the programs of the version before and run the SQL of dlock_postgres::migration, or use another table_prefix"
                    ),
                ),
                None => refuse(
                    ErrorKind::Invalid,
                    format!(
                        "{tables} are not there, or not those of mode={}: run the SQL of dlock_postgres::migration, or set create_tables=true",
                        config.mode
                    ),
                ),
            };
        }
        if let Some(old) = &old
            && is_in_use(shared, config, limit).await?
        {
            return refuse(
                ErrorKind::Unsupported,
                format!(
                    "{old}, while a program of the version before holds a lock there: stop those programs first, or use another table_prefix"
                ),
            );
        }
        let making = make(shared, config, limit).await;
        making.map_err(|trouble| match &old {
            Some(old) => trouble.about(old),
            None => trouble,
        })?;
        made = true;
    }
}

async fn is_in_use(
    shared: &SharedConnections,
    config: &Config,
    limit: Duration,
) -> Result<bool, Trouble> {
    let ask = statement(IN_USE, config);
    let told = shared.call(Job::Ask(&ask, &[]), limit).await;
    let told = told.map_err(|trouble| trouble.about("looking for holds").unsent())?;
    told.first()
}

/// Runs the migration, if nobody was quicker: many programs may start at once, and each would keep the others waiting. One that was quicker may be newer
/// than we are: then nothing is changed either, and the next look tells.
async fn make(shared: &SharedConnections, config: &Config, limit: Duration) -> Result<(), Trouble> {
    let schema = &config.schema;
    let sql = migration(schema, &config.table_prefix)
        .map_err(|error| Trouble::new(ErrorKind::Invalid, error.message()).unsent())?;
    let sql = format!(
        "{}; {sql}",
        statement(
            &UNLESS_MADE.replace("{version}", &VERSION.to_string()),
            config
        )
    );
    let made = shared.call(Job::Text(&sql), limit).await;
    made.map(drop).or_else(|trouble| match trouble.has_code("DLK02") || trouble.has_code("DLK03") {
        true => Ok(()),
        false => Err(trouble),
    }).map_err(|trouble| {
        let denied = trouble.has_code("42501");
        let trouble = trouble.about("making the tables").unsent();
        if denied {
            return trouble.about(&format!(
                "the user may not make our tables in the schema {schema:?} (GRANT CREATE ON SCHEMA) or does not own them, so let somebody run \
                 the SQL of dlock_postgres::migration, or set schema"
            ));
        }
        trouble
    })
}

/// Which store a connection of its own leads to; `None` where there are no tables as this program needs them.
#[cfg(any(feature = "deadpool", feature = "sqlx"))]
pub(crate) async fn store_at(wire: &mut Wire, config: &Config) -> Result<Option<StoreId>, Trouble> {
    let mut asked = wire.ask(&Found::ask(config, true), &[]).await;
    if asked.as_ref().is_err_and(Found::hides_system) {
        asked = wire.ask(&Found::ask(config, false), &[]).await;
    }
    match asked {
        Ok(rows) => {
            let rows: Vec<Row> = rows.into_iter().map(Row::Own).collect();
            Ok(Found::read(&rows, config.mode)?.store())
        }
        Err(trouble) if trouble.has_code("42P01") => Ok(None),
        Err(trouble) => Err(trouble.unsent()),
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
