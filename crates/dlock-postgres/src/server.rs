//! What the server is, and whether it can keep locks.

use dlock_core::{ErrorKind, kit};

use crate::config::Config;
#[cfg(any(feature = "deadpool", feature = "sqlx"))]
use crate::connect::TAKES_WRITES;
use crate::connect::{Job, SharedConnections, Wire};
use crate::error::Trouble;
#[cfg(any(feature = "deadpool", feature = "sqlx"))]
use crate::schema;

/// The oldest server with all that our functions use. Tests run on 15.
const OLDEST: i32 = 12;

const LOOK: &str = "SELECT current_setting('server_version_num')::integer, current_setting('server_version'), \
    current_setting('server_encoding'), NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off'";

/// Refuses a server that cannot keep locks, with the reason.
pub(crate) async fn look(shared: &SharedConnections, config: &Config) -> Result<(), Trouble> {
    // Time for each of the hosts: all but the last may be silent.
    let hosts = u32::try_from(config.servers.len().max(1)).unwrap_or(u32::MAX);
    let limit = config.connect_timeout.saturating_mul(hosts);
    let limit = limit.saturating_add(shared.limit());
    let told = shared.call_within(Job::Ask(LOOK, &[]), limit).await;
    let told = told.map_err(Trouble::unsent)?;
    let row = told.rows.first();
    let number: Option<i32> = row.and_then(|row| row.try_get(0).ok());
    let version: Option<String> = row.and_then(|row| row.try_get(1).ok());
    let encoding: Option<String> = row.and_then(|row| row.try_get(2).ok());
    let writable: Option<bool> = row.and_then(|row| row.try_get(3).ok());
    if writable == Some(false) {
        return Err(Trouble::read_only(&config.all_places()));
    }
    judge(
        number.unwrap_or_default(),
        &version.unwrap_or_default(),
        &encoding.unwrap_or_default(),
    )
    .map_err(|why| Trouble::new(ErrorKind::Unsupported, why).unsent())
}

fn judge(number: i32, version: &str, encoding: &str) -> Result<(), String> {
    if number / 10_000 < OLDEST {
        return Err(format!(
            "the server's version is {version:?}: PostgreSQL {OLDEST} is needed, or later"
        ));
    }
    // Names are text, so that people can read the tables; another encoding would refuse some of them, or change them.
    if encoding != "UTF8" {
        return Err(format!(
            "the database's encoding is {encoding:?}: names of locks need UTF8, so create the database with ENCODING 'UTF8'"
        ));
    }
    Ok(())
}

/// Whether a pooler stands in between that gives our connection to others after each transaction.
///
/// Two connections that are open at the same time have two processes at the server, and each keeps its own. A pooler takes the server
/// connection that was used last, so both meet the same one; or the one meets different ones.
pub(crate) async fn is_pooled(shared: &SharedConnections) -> Result<bool, Trouble> {
    let mut tries = 3;
    loop {
        tries -= 1;
        match compare(shared).await {
            // A server may end a connection that was idle for a moment, as one is while the other logs in.
            Err(trouble) if trouble.broken && tries > 0 => {}
            found => return found.map_err(Trouble::unsent),
        }
    }
}

/// Refuses a place to listen at that leads elsewhere than the pool: nobody would ever be woken there.
#[cfg(any(feature = "deadpool", feature = "sqlx"))]
pub(crate) async fn check_listener(
    shared: &SharedConnections,
    config: &Config,
    store: &schema::StoreId,
) -> Result<(), Trouble> {
    let mut wire = shared.open_alone().await?;
    let limit = shared.limit();
    let look = async {
        let found = schema::store_at(&mut wire, config).await?;
        let rows = wire.ask(TAKES_WRITES, &[]).await.map_err(Trouble::unsent)?;
        let takes_writes = rows.first().and_then(|row| row.try_get(0).ok());
        Ok((found, takes_writes == Some(true)))
    };
    let looked = tokio::time::timeout(limit, look).await;
    let looked = looked.unwrap_or_else(|_| Err(Trouble::from(kit::no_answer(limit)).unsent()));
    let (found, takes_writes) = looked?;
    let _ = tokio::time::timeout(limit, wire.close()).await;
    if found.is_some_and(|found| found.may_be(store)) {
        // What a standby has is the same store, and nobody can listen there.
        return match takes_writes {
            true => Ok(()),
            false => Err(Trouble::read_only(&config.all_places())
                .about("listening_at leads to a server where nobody can listen")),
        };
    }
    Err(Trouble::new(
        ErrorKind::Invalid,
        format!(
            "listening_at leads to another database than the pool's, or its user may not read our tables ({}): name the one that the pool uses",
            config.all_places()
        ),
    )
    .unsent())
}

/// A pooler gives our connection to others, and with it what belongs to the session.
pub(crate) fn pooled() -> Trouble {
    Trouble::new(
        ErrorKind::Unsupported,
        "a pooler stands in between that gives connections to others after each transaction, and an advisory lock belongs to a connection: \
         connect to the server itself, set pool_mode=session, or use mode=lease",
    )
    .unsent()
}

async fn compare(shared: &SharedConnections) -> Result<bool, Trouble> {
    let (mut one, mut other) = (shared.open_alone().await?, shared.open_alone().await?);
    let limit = shared.limit();
    let look = async {
        let first = one.process().await?;
        for _ in 0..3 {
            // The first one twice in a row: a pooler that takes two connections in turn would else give each of us its own.
            if other.process().await? == first
                || one.process().await? != first
                || one.process().await? != first
            {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let outcome = tokio::time::timeout(limit, look).await;
    let close = async {
        Wire::close(one).await;
        Wire::close(other).await;
    };
    let _ = tokio::time::timeout(limit, close).await;
    outcome.unwrap_or_else(|_| Err(Trouble::from(kit::no_answer(limit)).unsent()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_cannot_keep_locks_are_refused_with_the_reason() {
        for (number, version, encoding, expected) in [
            (110_022, "11.22", "UTF8", "PostgreSQL 12 is needed"),
            (0, "", "UTF8", "PostgreSQL 12 is needed"),
            (150_000, "15.0", "LATIN1", "ENCODING 'UTF8'"),
        ] {
            let reason = judge(number, version, encoding).expect_err(expected);
            assert!(reason.contains(expected), "{reason}");
        }
        judge(120_000, "12.0", "UTF8").expect("a good server");
    }
}
