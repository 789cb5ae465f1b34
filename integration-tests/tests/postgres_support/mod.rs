//! What the tests of the PostgreSQL backend share.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Guard, Locks, Released, Result, Settings};
use dlock_postgres::{Config, PostgresBackend};
use tokio::task::JoinHandle;

/// Longer than anything takes on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A URL, which may have parameters already, with more of them.
pub(crate) fn with(url: &str, parameters: &str) -> String {
    let sign = if url.contains('?') { '&' } else { '?' };
    format!("{url}{sign}{parameters}")
}

/// A connection of another program.
pub(crate) async fn connection(url: &str) -> tokio_postgres::Client {
    let url = url.split('?').next().unwrap_or(url);
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
        .await
        .expect("a connection");
    tokio::spawn(connection);
    client
}

pub(crate) async fn backend(url: &str) -> Arc<PostgresBackend> {
    let config = Config::from_url(url).expect("a good URL");
    Arc::new(config.connect().await.expect("a connection"))
}

pub(crate) async fn client(url: &str) -> Locks {
    Locks::new(backend(url).await).expect("defaults")
}

/// A client whose holds last 3 s without a sign of life.
pub(crate) async fn hasty(url: &str) -> Locks {
    Locks::builder(backend(url).await)
        .settings(Settings::new().lease(Duration::from_secs(3)))
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
