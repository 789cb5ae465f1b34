//! Locks by the connections of a pool that the user has: of deadpool-postgres, and of sqlx.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod postgres_support;

use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use dlock_core::kit::{Login, Tls};
use dlock_core::{Capability, ErrorKind, Locks, MultiLock, WakeUp};
use dlock_postgres::Config;
use dlock_postgres::fenced::Fence;
use dlock_postgres::transaction::TransactionLocks;
use integration_tests::{Postgres, PostgresServer};
use postgres_support::*;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

const STOCK: i64 = 120;
const TASKS: usize = 6;

async fn shop() -> PostgresServer {
    let server = PostgresServer::start().await.expect("a server");
    let table = format!(
        "CREATE TABLE stock (id bigint PRIMARY KEY, n bigint NOT NULL); INSERT INTO stock VALUES (1, {STOCK})"
    );
    server.sql(&table).await.expect("a table");
    server
}

fn deadpool(server: &PostgresServer, size: usize) -> Pool {
    let config = server.url().parse().expect("a good URL");
    let manager = Manager::new(config, tokio_postgres::NoTls);
    let builder = Pool::builder(manager).max_size(size);
    builder.build().expect("a pool")
}

async fn sqlx_pool(server: &PostgresServer, size: u32) -> PgPool {
    let options = PgPoolOptions::new().max_connections(size);
    options.connect(&server.url()).await.expect("a pool")
}

async fn locks_of(config: Config) -> Locks {
    Locks::new(config.connect().await.expect("a connection")).expect("defaults")
}

async fn stock_is(server: &PostgresServer, left: &str) {
    let found = server.sql("SELECT n FROM stock").await.expect("a row");
    assert_eq!(found.trim(), left);
}

/// How many connections of its own the client has.
async fn own_connections(server: &PostgresServer) -> String {
    let own = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock'";
    let found = server.sql(own).await.expect("a count");
    found.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_and_work_share_a_deadpool() {
    let server = shop().await;
    let pool = deadpool(&server, 4);
    let locks = locks_of(Config::over_deadpool(pool.clone())).await;
    let tasks = (0..TASKS).map(|_| {
        let (pool, locks) = (pool.clone(), locks.clone());
        tokio::spawn(async move {
            for _ in 0..STOCK as usize / TASKS {
                let mutex = locks.mutex("stock:1").expect("a name");
                let sale = mutex.run(async |_| {
                    let client = pool.get().await.expect("a connection");
                    let row = client.query_one("SELECT n FROM stock", &[]).await;
                    let left: i64 = row.expect("a row").get(0);
                    let sell = "UPDATE stock SET n = $1";
                    client.execute(sell, &[&(left - 1)]).await.expect("a sale");
                });
                sale.await.expect("the lock");
            }
        })
    });
    for task in futures::future::join_all(tasks).await {
        task.expect("no panic");
    }
    stock_is(&server, "0").await;
    assert_eq!(own_connections(&server).await, "0");
    assert!(pool.status().size <= 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_and_work_share_a_pool_of_sqlx() {
    let server = shop().await;
    let pool = sqlx_pool(&server, 4).await;
    let locks = locks_of(Config::over_sqlx(pool.clone())).await;
    let tasks = (0..TASKS).map(|_| {
        let (pool, locks) = (pool.clone(), locks.clone());
        tokio::spawn(async move {
            for _ in 0..STOCK as usize / TASKS {
                let mutex = locks.mutex("stock:1").expect("a name");
                let sale = mutex.run(async |_| {
                    let mut tx = pool.begin().await.expect("a transaction");
                    let left: i64 = sqlx::query_scalar("SELECT n FROM stock")
                        .fetch_one(&mut *tx)
                        .await
                        .expect("a row");
                    let sell = sqlx::query("UPDATE stock SET n = $1").bind(left - 1);
                    sell.execute(&mut *tx).await.expect("a sale");
                    tx.commit().await.expect("a commit");
                });
                sale.await.expect("the lock");
            }
        })
    });
    for task in futures::future::join_all(tasks).await {
        task.expect("no panic");
    }
    stock_is(&server, "0").await;
    assert_eq!(own_connections(&server).await, "0");
    let info = locks.inspect("stock:1").await.expect("an answer");
    assert!(!info.is_locked());
}

/// Readers, permits, renewal, list and break go by the pool too.
#[tokio::test(flavor = "multi_thread")]
async fn everything_goes_by_the_pool() {
    let server = shop().await;
    let (dead, sqlx) = (deadpool(&server, 4), sqlx_pool(&server, 4).await);
    for config in [Config::over_deadpool(dead), Config::over_sqlx(sqlx)] {
        let backend = config.connect().await.expect("a connection");
        let settings = dlock_core::Settings::new().lease(Duration::from_secs(2));
        let locks = Locks::builder(backend).settings(settings);
        let locks = locks.build().expect("good settings");
        let rwlock = locks.rw_lock("r").expect("a name");
        let (one, two) = (rwlock.read().await, rwlock.read().await);
        let (one, two) = (one.expect("the lock"), two.expect("the lock"));
        let permit = locks.semaphore("p", 2).expect("a name").acquire().await;
        let permit = permit.expect("a permit");
        let list = locks.list("").await.expect("a list");
        assert_eq!(list.len(), 2, "{list:?}");
        // Two leases: they are renewed.
        tokio::time::sleep(Duration::from_secs(4)).await;
        for guard in [one, two, permit] {
            assert!(guard.is_held());
            free(guard).await;
        }
        let guard = lock(&locks, "b").await;
        assert!(locks.break_lock("b").await.expect("an answer"));
        soon("the loss", guard.lost()).await;
    }
}

/// Somebody has left a transaction open by hand: a grant in it could be rolled back later. So it is closed, and another connection is asked.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_granted_in_a_transaction_that_somebody_left_open() {
    let server = shop().await;
    let (dead, sqlx) = (deadpool(&server, 1), sqlx_pool(&server, 1).await);
    let clients = [
        locks_of(Config::over_deadpool(dead.clone())).await,
        locks_of(Config::over_sqlx(sqlx.clone())).await,
    ];
    let client = dead.get().await.expect("a connection");
    client.batch_execute("BEGIN").await.expect("it begins");
    drop(client);
    let mut conn = sqlx.acquire().await.expect("a connection");
    let begin = sqlx::raw_sql("BEGIN");
    begin.execute(&mut *conn).await.expect("it begins");
    drop(conn);
    for (n, locks) in clients.iter().enumerate() {
        let guard = lock(locks, &format!("lock {n}")).await;
        // What others see is committed.
        let held = format!(
            "SELECT count(*) FROM dlock_locks WHERE name = 'lock {n}' AND owner IS NOT NULL"
        );
        assert_eq!(server.sql(&held).await.expect("a count").trim(), "1");
        free(guard).await;
    }
    let open = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    assert_eq!(server.sql(open).await.expect("a count").trim(), "0");
}

/// A call that is given up takes its connection with it: the next user of the pool need not wait for what the server still does.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_call_gives_back_no_busy_connection() {
    let server = shop().await;
    let (dead, sqlx) = (deadpool(&server, 2), sqlx_pool(&server, 2).await);
    let clients = [
        locks_of(Config::over_deadpool(dead.clone())).await,
        locks_of(Config::over_sqlx(sqlx.clone())).await,
    ];
    for locks in &clients {
        free(lock(locks, "stuck").await).await;
    }
    let mut stranger = connection(&server.url()).await;
    let tx = stranger.transaction().await.expect("a transaction");
    let keep = "SELECT 1 FROM dlock_locks FOR UPDATE";
    tx.execute(keep, &[]).await.expect("the row");
    for locks in &clients {
        let mutex = locks.mutex("stuck").expect("a name");
        let given_up = tokio::time::timeout(Duration::from_millis(300), mutex.try_lock()).await;
        given_up.expect_err("the row is kept");
    }
    let quick = Duration::from_secs(5);
    for _ in 0..4 {
        let client = tokio::time::timeout(quick, dead.get()).await;
        let client = client.expect("in time").expect("a connection");
        let asked = tokio::time::timeout(quick, client.query_one("SELECT 1", &[])).await;
        asked.expect("in time").expect("an answer");
        let asked = sqlx::query("SELECT 1").execute(&sqlx);
        let asked = tokio::time::timeout(quick, asked).await;
        asked.expect("in time").expect("an answer");
    }
    tx.rollback().await.expect("a rollback");
    for locks in &clients {
        free(lock(locks, "stuck").await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_listens_wakes_waiters_of_a_pool() {
    let server = shop().await;
    let pool = sqlx_pool(&server, 4).await;
    let polls = Config::over_sqlx(pool.clone()).connect().await;
    let polls = locks_of_backend(polls.expect("a connection"));
    assert!(!polls.capabilities().has(Capability::Push));
    let config = Config::over_sqlx(pool).listening_at(&server.url());
    let locks = locks_of(config.expect("a good URL")).await;
    assert!(locks.capabilities().has(Capability::Push));
    let guard = lock(&polls, "a").await;
    let waiting = waiter(&locks, "a");
    let queued = "SELECT 1 / count(*) FROM dlock_waiters WHERE bell IS NOT NULL";
    integration_tests::until("it waits", SOON, || server.sql(queued))
        .await
        .expect("a waiter");
    free(guard).await;
    let next = soon("the waiter", waiting).await.expect("no panic");
    free(next.expect("the lock")).await;
    assert_eq!(own_connections(&server).await, "1");
}

fn locks_of_backend(backend: dlock_postgres::PostgresBackend) -> Locks {
    Locks::new(backend).expect("defaults")
}

/// One transaction: the lock, the fence and the work.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_sqlx_has_the_lock_until_its_end() {
    let server = shop().await;
    let pool = sqlx_pool(&server, 8).await;
    let locks = TransactionLocks::new("public", "shop_").expect("a prefix");
    let fence = Fence::new("public", "shop_").expect("a prefix");
    for sql in [locks.table_sql(), fence.table_sql()] {
        server.sql(sql).await.expect("a table");
    }
    let tasks = (0..TASKS).map(|_| {
        let (pool, locks) = (pool.clone(), locks.clone());
        tokio::spawn(async move {
            for _ in 0..STOCK as usize / TASKS {
                let mut tx = pool.begin().await.expect("a transaction");
                locks.lock_sqlx(&mut tx, "stock:1").await.expect("the lock");
                let left: i64 = sqlx::query_scalar("SELECT n FROM stock")
                    .fetch_one(&mut *tx)
                    .await
                    .expect("a row");
                let sell = sqlx::query("UPDATE stock SET n = $1").bind(left - 1);
                sell.execute(&mut *tx).await.expect("a sale");
                tx.commit().await.expect("a commit");
            }
        })
    });
    for task in futures::future::join_all(tasks).await {
        task.expect("no panic");
    }
    stock_is(&server, "0").await;
    for (token, good) in [(5, true), (8, true), (7, false)] {
        let mut tx = pool.begin().await.expect("a transaction");
        let token = dlock_core::FencingToken::new(token);
        let checked = fence.check_sqlx(&mut tx, "stock:1", token).await;
        match checked {
            Ok(()) => assert!(good, "{token}"),
            Err(error) => {
                assert!(!good, "{error}");
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            }
        }
        tx.commit().await.expect("a commit");
    }
}

/// The URL of another database of the same server.
fn of_database(server: &PostgresServer, name: &str) -> String {
    let (place, _) = server
        .url()
        .rsplit_once('/')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .expect("a path");
    format!("{place}/{name}")
}

fn deadpool_at(url: &str) -> Pool {
    let manager = Manager::new(url.parse().expect("a good URL"), tokio_postgres::NoTls);
    Pool::builder(manager).max_size(4).build().expect("a pool")
}

/// Two databases, of which one is a copy of the other: a lock of all must take one in each.
#[tokio::test(flavor = "multi_thread")]
async fn pools_of_two_databases_are_two_stores() {
    let server = shop().await;
    let first = locks_of(Config::over_deadpool(deadpool(&server, 4))).await;
    server
        .sql("CREATE DATABASE other")
        .await
        .expect("a database");
    let url = of_database(&server, "other");
    let second = locks_of(Config::over_deadpool(deadpool_at(&url))).await;
    let both = MultiLock::new([
        first.mutex("a").expect("a name"),
        second.mutex("a").expect("a name"),
    ]);
    let guard = soon("both", both.expect("two").lock()).await.expect("both");
    for locks in [&first, &second] {
        let info = locks.inspect("a").await.expect("an answer");
        assert!(info.is_locked(), "a member was left out");
    }
    free(guard).await;
    assert_ne!(first.identity(), second.identity());
}

/// What is the same store has one name, however one gets there; a copy of it has another.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_has_one_identity_by_every_way() {
    let server = shop().await;
    let plain = client(&server.url()).await;
    let pool = locks_of(Config::over_sqlx(sqlx_pool(&server, 2).await)).await;
    let addr = server.addr();
    // The database of the user's name is libpq's default, and a second host that is down changes nothing.
    let short = client(&format!("postgres://dlock@{addr}")).await;
    let listed = client(&format!(
        "postgres://dlock@127.0.0.1:1,{addr}/dlock?connect_timeout=2s"
    ))
    .await;
    for other in [&pool, &short, &listed] {
        assert_eq!(plain.identity(), other.identity());
    }
    let twice = MultiLock::new([
        plain.mutex("a").expect("a name"),
        pool.mutex("a").expect("a name"),
    ]);
    assert_eq!(twice.expect("one").members().len(), 1);
    let prefixed = client(&with(&server.url(), "table_prefix=x_")).await;
    let session = client(&with(&server.url(), "mode=session")).await;
    for other in [&prefixed, &session] {
        assert_ne!(plain.identity(), other.identity());
    }
    for locks in [&plain, &pool, &short, &listed, &prefixed, &session] {
        locks.close().await.expect("closed");
    }
    until_alone(&server).await;
    let copy = "CREATE DATABASE copy TEMPLATE dlock";
    connection(&of_database(&server, "postgres"))
        .await
        .batch_execute(copy)
        .await
        .expect("a copy");
    let copy = client(&of_database(&server, "copy")).await;
    assert_ne!(plain.identity(), copy.identity());
}

/// Nobody is connected to the database: it can be copied.
async fn until_alone(server: &PostgresServer) {
    let admin = connection(&of_database(server, "postgres")).await;
    soon("all have gone", async {
        loop {
            let others = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = 'dlock'";
            let row = admin.query_one(others, &[]).await.expect("a count");
            if row.get::<_, i64>(0) == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// What was set before stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_to_listen_changes_no_other_setting() {
    let server = shop().await;
    let config = Config::over_deadpool(deadpool(&server, 2))
        .table_prefix("kept_")
        .listening_at(&with(&server.url(), "waiter_lease=2s"));
    let locks = locks_of(config.expect("a good URL")).await;
    free(lock(&locks, "a").await).await;
    let tables = "SELECT count(*) FROM pg_tables WHERE tablename IN ('kept_locks', 'dlock_locks')";
    assert_eq!(server.sql(tables).await.expect("a count").trim(), "1");
    server.sql("TABLE kept_locks").await.expect("its table");
}

/// Waiters would never be woken there.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_to_listen_must_be_the_pools_own() {
    let server = shop().await;
    server
        .sql("CREATE DATABASE other")
        .await
        .expect("a database");
    let other = of_database(&server, "other");
    // Also where it has tables of ours.
    for _ in 0..2 {
        let config = Config::over_deadpool(deadpool(&server, 2)).listening_at(&other);
        let connected = config.expect("a good URL").connect().await;
        let error = connected.expect_err("another database");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("another database"), "{error}");
        client(&other).await;
    }
}

/// A place that looks the same and hears nothing, as a copy of the server does: it is left and tried again ever more rarely.
#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_hears_nothing_is_not_opened_all_the_time() {
    let server = shop().await;
    client(&server.url()).await;
    let twin = PostgresServer::start_with(Postgres {
        follows: Some(server.port()),
        set: vec!["log_connections=on".to_owned()],
        ..Postgres::default()
    });
    let twin = twin.await.expect("a standby");
    twin.promote().await.expect("a twin");
    let config = Config::over_deadpool(deadpool(&server, 4)).listening_at(&twin.url());
    let locks = locks_of(config.expect("a good URL")).await;
    let guard = lock(&locks, "a").await;
    let others = locks_of(
        Config::over_deadpool(deadpool(&server, 4))
            .listening_at(&twin.url())
            .expect("a good URL"),
    )
    .await;
    let opened = || twin.log().matches("connection authorized").count();
    let before = opened();
    let waiting = waiter(&others, "a");
    tokio::time::sleep(Duration::from_secs(4)).await;
    let opened = opened() - before;
    assert!((1..=25).contains(&opened), "{opened} connections in 4 s");
    free(guard).await;
    let next = soon("the waiter", waiting).await.expect("no panic");
    free(next.expect("the lock")).await;
}

/// Who may not ask for the number of the server still has a store, by what else is known of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_tell_its_number_is_known_by_the_rest() {
    let server = shop().await;
    client(&server.url()).await;
    let rights = "CREATE ROLE app LOGIN PASSWORD 'app'; GRANT USAGE ON SCHEMA public TO app; \
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app; GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO app; \
        REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC";
    server.sql(rights).await.expect("a user");
    let url = server.url().replace("dlock@", "app:app@");
    let (one, two) = (client(&url).await, client(&url).await);
    assert_eq!(one.identity(), two.identity());
    free(lock(&one, "a").await).await;
}

/// The login and the certificates that were set stay, unless the URL names others.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_to_listen_has_the_login_and_the_certificates_that_were_set() {
    let server = shop().await;
    client(&server.url()).await;
    let rights = "CREATE ROLE app LOGIN PASSWORD 'app'; GRANT USAGE ON SCHEMA public TO app; \
        GRANT SELECT ON ALL TABLES IN SCHEMA public TO app; \
        REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC";
    server.sql(rights).await.expect("a user");
    let place = format!("postgres://{}/dlock", server.addr());
    let set = || Config::over_deadpool(deadpool(&server, 4));
    let asked = || async { Ok(Login::new("app", "app")) };
    for config in [
        set().user("app").password("app").listening_at(&place),
        set().credentials(asked).listening_at(&place),
        set()
            .user("app")
            .password("app")
            .listening_at(&server.url()),
    ] {
        let locks = locks_of(config.expect("a good URL")).await;
        let wake_up = locks.capabilities().wake_up;
        assert!(matches!(wake_up, WakeUp::Push { .. }), "{wake_up:?}");
    }
    // This server has no certificate, so whoever asks for one must not get through.
    let encrypted = set().tls(Tls::new()).listening_at(&server.url());
    let connected = encrypted.expect("a good URL").connect().await;
    let error = connected.expect_err("without a certificate");
    assert!(error.to_string().contains("TLS"), "{error}");
    // Both at once is neither.
    for off in ["tls=false", "sslmode=disable"] {
        let both = set()
            .tls(Tls::new())
            .listening_at(&with(&server.url(), off));
        let error = both.expect_err("TLS that is on and off");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let twice = set().credentials(asked).listening_at(&server.url());
    let error = twice.expect_err("two users");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

/// A standby lets nobody listen: waiters would never be woken.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_to_listen_must_not_be_a_standby() {
    let server = shop().await;
    client(&server.url()).await;
    let standby = PostgresServer::start_with(Postgres {
        follows: Some(server.port()),
        ..Postgres::default()
    });
    let standby = standby.await.expect("a standby");
    let config = Config::over_deadpool(deadpool(&server, 4)).listening_at(&standby.url());
    let connected = config.expect("a good URL").connect().await;
    let error = connected.expect_err("a standby");
    for part in ["listening_at", "standby", "primary"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    // Both are named: the one that takes writes is listened at.
    let addrs = format!("{},{}", standby.addr(), server.addr());
    let both = format!("postgres://dlock@{addrs}/dlock");
    let config = Config::over_deadpool(deadpool(&server, 4)).listening_at(&both);
    let locks = locks_of(config.expect("a good URL")).await;
    let wake_up = locks.capabilities().wake_up;
    assert!(matches!(wake_up, WakeUp::Push { .. }), "{wake_up:?}");
}
