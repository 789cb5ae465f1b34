//! What the tests of the MySQL backend share.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod relay;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::Backend;
use dlock_core::{Guard, Liveness, Locks, Released, Result, Settings};
use dlock_mysql::{Config, MySqlBackend};
use integration_tests::{Flavor, MySqlServer};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use tokio::task::JoinHandle;

/// Makes two tests of each function: one on MariaDB, one on MySQL.
#[allow(unused_macros, reason = "some tests are of one server")]
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod mariadb {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::$name(integration_tests::Flavor::MariaDb).await;
                }
            )*
        }
        mod mysql {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    if integration_tests::Flavor::MySql.is_tested() {
                        super::$name(integration_tests::Flavor::MySql).await;
                    }
                }
            )*
        }
    };
}

/// All ways to keep a lock.
pub(crate) const MODES: [&str; 4] = ["lease", "unique", "session", "advisory"];
/// Longer than anything takes on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A URL, which may have parameters already, with more of them.
pub(crate) fn with(url: &str, parameters: &str) -> String {
    let sign = if url.contains('?') { '&' } else { '?' };
    format!("{url}{sign}{parameters}")
}

/// The URL as other clients of the server take it: without our parameters.
pub(crate) fn plain(url: &str) -> &str {
    url.split('?').next().unwrap_or(url)
}

pub(crate) async fn connection(url: &str) -> Conn {
    let opts = Opts::from_url(plain(url)).expect("a good URL");
    Conn::new(opts).await.expect("a connection")
}

/// A server's URL for a mode whose holds last 3 s without a sign of life.
pub(crate) fn url(server: &MySqlServer, mode: &str) -> String {
    with(&server.url(), &format!("mode={mode}&session_validity=3s"))
}

pub(crate) async fn backend(url: &str) -> Arc<MySqlBackend> {
    let config = Config::from_url(url).expect("a good URL");
    Arc::new(config.connect().await.expect("a connection"))
}

pub(crate) async fn client(url: &str) -> Locks {
    Locks::new(backend(url).await).expect("defaults")
}

/// Whoever waits must not have to ask a second time: an error is told at once.
pub(crate) async fn impatient(url: &str) -> Locks {
    let settings = Settings::new().retry_unreachable_for(Duration::ZERO);
    let builder = Locks::builder(backend(url).await).settings(settings);
    builder.build().expect("good settings")
}

/// A client whose holds last 3 s without a sign of life, whatever the mode.
pub(crate) async fn hasty(url: &str) -> Locks {
    let backend = backend(url).await;
    let settings = match backend.capabilities().liveness {
        Liveness::Lease => Settings::new().lease(Duration::from_secs(3)),
        _ => Settings::new(),
    };
    Locks::builder(backend)
        .settings(settings)
        .build()
        .expect("good settings")
}

pub(crate) async fn lock(locks: &Locks, name: &str) -> Guard {
    let mutex = locks.mutex(name).expect("a name");
    soon("the lock", mutex.lock()).await.expect("the lock")
}

/// Waits for a lock in a task of its own.
pub(crate) fn waiter(locks: &Locks, name: &str) -> JoinHandle<Result<Guard>> {
    let mutex = locks.mutex(name).expect("a name");
    tokio::spawn(async move { mutex.lock().await })
}

/// Gives a lock back that was held to the end.
pub(crate) async fn free(guard: Guard) {
    let released = guard.release().await.expect("the server answers");
    assert_eq!(released, Released::Freed);
}

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future)
        .await
        .unwrap_or_else(|_| panic!("not within {SOON:?}: {what}"))
}

/// The numbers of all connections of lock clients.
pub(crate) async fn connections(server: &MySqlServer) -> Vec<String> {
    let sql = match server.flavor() {
        Flavor::MariaDb => {
            "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'root' AND db = 'dlock'"
        }
        // There the list fails (error 3854) while a statement with bytes that are no text runs, as our own have them.
        Flavor::MySql => {
            "SELECT processlist_id FROM performance_schema.threads WHERE processlist_id <> CONNECTION_ID() \
             AND processlist_user = 'root' AND processlist_db = 'dlock'"
        }
    };
    let ids = server.sql(sql).await.expect("a list");
    ids.lines().map(str::to_owned).collect()
}

/// Ends connections, as an administrator does.
pub(crate) async fn kill(server: &MySqlServer, ids: &[String]) {
    for id in ids {
        // It may have ended meanwhile.
        let _ = server.sql(&format!("KILL {id}")).await;
    }
}

/// Takes a lock of `advisory` and gives it back: what the server calls it.
pub(crate) async fn name_at_the_server(watcher: &mut Conn, url: &str, name: &str) -> String {
    for statement in ["log_output = 'TABLE'", "general_log = ON"] {
        let set = format!("SET GLOBAL {statement}");
        watcher.query_drop(set).await.expect("set");
    }
    // MariaDB tells the arguments of those statements only that are prepared from here on.
    free(lock(&client(url).await, name).await).await;
    let said = "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log \
        WHERE command_type = 'Execute' AND argument LIKE '%GET_LOCK(%' ORDER BY event_time DESC LIMIT 1";
    let said: Option<String> = watcher.query_first(said).await.expect("the log");
    let off = "SET GLOBAL general_log = OFF";
    watcher.query_drop(off).await.expect("set");
    let said = said.expect("it was taken");
    let (_, rest) = said.split_once(" GET_LOCK('").expect("its name");
    rest.split('\'').next().expect("its end").to_owned()
}

/// Which connection has it.
pub(crate) async fn owner_at_the_server(watcher: &mut Conn, lock: &str) -> Option<u64> {
    let asked = format!("SELECT IS_USED_LOCK('{lock}')");
    let owner: Option<Option<u64>> = watcher.query_first(asked).await.expect("an answer");
    owner.flatten()
}
