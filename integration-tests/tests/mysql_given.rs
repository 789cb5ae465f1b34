//! Locks over a pool that the application has already.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where its expectation breaks"
)]

#[macro_use]
mod mysql_support;

use dlock_core::{ErrorKind, Locks, Released};
use dlock_mysql::Config;
use integration_tests::Flavor;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Pool, PoolConstraints, PoolOpts};
use mysql_support::*;

on_both!(
    sharing_costs_the_server_no_connection,
    the_application_gets_its_connections_back_as_they_were,
    what_would_not_work_is_refused,
);

/// A pool of at most two connections, by which the server knows us.
fn pool(url: &str, more: impl FnOnce(OptsBuilder) -> OptsBuilder) -> Pool {
    let opts = Opts::from_url(plain(url)).expect("a good URL");
    let constraints = PoolConstraints::new(0, 2).expect("good limits");
    let limits = PoolOpts::default().with_constraints(constraints);
    Pool::new(more(OptsBuilder::from_opts(opts).pool_opts(limits)))
}

/// How many connections use a database that only this test has.
async fn connections(watcher: &mut Conn, database: &str) -> u64 {
    let sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = ?";
    let count: Option<u64> = watcher.exec_first(sql, (database,)).await.expect("a count");
    count.expect("a row")
}

/// A database of its own, and a URL of it.
async fn database(flavor: Flavor, name: &str) -> (Conn, String) {
    let server = integration_tests::mysql_of(flavor).await.expect("a server");
    let mut watcher = connection(server.url()).await;
    let sql = format!("CREATE DATABASE IF NOT EXISTS {name}");
    watcher.query_drop(sql).await.expect("a database");
    let (start, _) = plain(server.url()).rsplit_once('/').expect("a database");
    (watcher, format!("{start}/{name}"))
}

async fn over(url: &str, mode: &str, pool: &Pool) -> Locks {
    let config = Config::from_url(&with(url, &format!("mode={mode}"))).expect("a good URL");
    let backend = config.connect_over(pool.clone()).await;
    Locks::new(backend.expect("a backend")).expect("defaults")
}

async fn sharing_costs_the_server_no_connection(flavor: Flavor) {
    let (mut watcher, url) = database(flavor, "given_count").await;
    for mode in ["lease", "unique"] {
        let pool = pool(&url, |opts| opts);
        let locks = over(&url, mode, &pool).await;
        let all = (0..10).map(|n| {
            let locks = locks.clone();
            async move { lock(&locks, &format!("{mode}:{n}")).await }
        });
        let guards = futures::future::join_all(all).await;
        let count = connections(&mut watcher, "given_count").await;
        assert!(count <= 2, "{mode}: {count} connections, the pool has two");
        for guard in guards {
            assert_eq!(guard.release().await.expect("released"), Released::Freed);
        }
        // Others see the same locks.
        let guard = lock(&locks, mode).await;
        let other = client(&with(&url, &format!("mode={mode}"))).await;
        let mutex = other.mutex(mode).expect("a good name");
        assert!(mutex.try_lock().await.expect("asked").is_none());
        assert_eq!(guard.release().await.expect("released"), Released::Freed);
        assert!(mutex.try_lock().await.expect("asked").is_some());
        other.close().await.expect("closed");
        locks.close().await.expect("closed");
        pool.disconnect().await.expect("the application's own end");
    }
}

async fn the_application_gets_its_connections_back_as_they_were(flavor: Flavor) {
    let (_watcher, url) = database(flavor, "given_clean").await;
    let pool = pool(&url, |opts| opts);
    let ask = "SELECT CONCAT(@@session.time_zone, @@session.sql_mode, @@session.innodb_lock_wait_timeout, @@character_set_client, \
        @@session.auto_increment_increment)";
    let session = async || -> Option<String> {
        let mut conn = pool.get_conn().await.expect("a connection");
        conn.query_first(ask).await.expect("a row")
    };
    let before = session().await;
    for mode in ["lease", "unique"] {
        let locks = over(&url, mode, &pool).await;
        for n in 0..4 {
            let guard = lock(&locks, "a").await;
            assert_eq!(session().await, before, "{mode}: while it is held, {n}");
            assert_eq!(guard.release().await.expect("released"), Released::Freed);
            assert_eq!(session().await, before, "{mode}: after the release, {n}");
        }
    }
}

async fn what_would_not_work_is_refused(flavor: Flavor) {
    let (_watcher, url) = database(flavor, "given_refused").await;
    for (more, pool, kind, says) in [
        (
            "mode=session",
            pool(&url, |opts| opts),
            ErrorKind::Unsupported,
            "closing its connection",
        ),
        (
            "mode=advisory",
            pool(&url, |opts| opts),
            ErrorKind::Unsupported,
            "closing its connection",
        ),
        (
            "mode=lease",
            pool(&url, |opts| opts.client_found_rows(true)),
            ErrorKind::Invalid,
            "client_found_rows",
        ),
        (
            "mode=lease",
            pool(&url, |opts| opts.db_name(Some("information_schema"))),
            ErrorKind::Invalid,
            "information_schema",
        ),
    ] {
        let config = Config::from_url(&with(&url, more)).expect("a good URL");
        let error = config.connect_over(pool).await.expect_err(says);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}
