//! How a holder hears that others wait (C23), and a lock that lingers is given up for them (C21).
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where its expectation breaks"
)]

mod postgres_support;

use std::time::{Duration, Instant};

use dlock_core::{Hearing, Locks, Settings};
use integration_tests::{PostgresServer, until};
use postgres_support::*;

/// Much sooner than a renewal of these tests, and long enough for a machine that is busy.
const TOLD: Duration = Duration::from_secs(8);

async fn start() -> PostgresServer {
    PostgresServer::start().await.expect("a server")
}

/// Holds are renewed, and the store is asked, so seldom that only a message comes sooner.
fn renewed_seldom() -> Settings {
    Settings::new().lease(Duration::from_secs(60))
}

async fn with_settings(server: &PostgresServer, settings: Settings) -> Locks {
    let builder = Locks::builder(backend(&server.url()).await).settings(settings);
    builder.build().expect("good settings")
}

/// Waits until a count is what is wanted.
async fn counts(server: &PostgresServer, what: &str, sql: &str, wanted: &str) {
    until(what, SOON, || async {
        match server.sql(sql).await?.trim() {
            found if found == wanted => Ok(()),
            found => Err(integration_tests::Error::answer("count", found)),
        }
    })
    .await
    .expect(what);
}

const EARS: &str = "SELECT (SELECT count(*) FROM dlock_locks WHERE owner IS NOT NULL AND ear <> '') \
    + (SELECT count(*) FROM dlock_holders WHERE ear <> '')";
const BELLS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted";
const WAITERS: &str = "SELECT count(*) FROM dlock_waiters";

/// Resolves when so many holders have left word, and their connections listen.
async fn listened(server: &PostgresServer, holders: &str) {
    counts(server, "a holder that listens", EARS, holders).await;
    counts(server, "a connection that listens", BELLS, holders).await;
}

/// A lock that lingers for ever, as far as this test goes.
async fn lingering(server: &PostgresServer) -> Locks {
    let settings = renewed_seldom().linger(Duration::from_secs(600));
    let locks = with_settings(server, settings).await;
    free(lock(&locks, "a").await).await;
    listened(server, "1").await;
    locks
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_lingers_is_given_up_as_soon_as_somebody_waits() {
    let server = start().await;
    let mine = lingering(&server).await;
    assert!(matches!(mine.capabilities().wanted, Hearing::Told { .. }));
    let other = client(&server.url()).await;
    let start = Instant::now();
    let theirs = lock(&other, "a").await;
    assert!(start.elapsed() < TOLD, "{:?}", start.elapsed());
    // The new holder does not listen, so nobody is told of the next one.
    let back = waiter(&mine, "a");
    counts(&server, "it waits", WAITERS, "1").await;
    counts(&server, "nobody is told", EARS, "0").await;
    free(theirs).await;
    let back = soon("the lock again", back).await.expect("no panic");
    free(back.expect("the lock again")).await;
    mine.close().await.expect("closed");
}

/// The message went to a connection that had ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_word_that_was_lost_is_made_good_by_the_next_connection_that_listens() {
    let server = start().await;
    let mine = lingering(&server).await;
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND granted";
    assert_eq!(server.sql(cut).await.expect("cut off").trim(), "1");
    let other = client(&server.url()).await;
    let start = Instant::now();
    free(lock(&other, "a").await).await;
    assert!(start.elapsed() < TOLD, "{:?}", start.elapsed());
    mine.close().await.expect("closed");
}

/// Nobody finds the word: it was taken out of the row.
#[tokio::test(flavor = "multi_thread")]
async fn a_word_that_nobody_finds_is_made_good_with_a_renewal() {
    let server = start().await;
    let settings = Settings::new()
        .lease(Duration::from_secs(3))
        .linger(Duration::from_secs(600));
    let mine = with_settings(&server, settings).await;
    free(lock(&mine, "a").await).await;
    listened(&server, "1").await;
    server
        .sql("UPDATE dlock_locks SET ear = ''")
        .await
        .expect("nobody finds it");
    let other = client(&server.url()).await;
    free(lock(&other, "a").await).await;
    mine.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_of_the_same_client_is_no_other_and_hides_none() {
    let server = start().await;
    // Two of core's clients by one of the store's: what core knows of tasks of its own is not in play.
    let backend = backend(&server.url()).await;
    let by_it = || Locks::builder(backend.clone()).settings(renewed_seldom());
    let mine = by_it().build().expect("good settings");
    let beside = by_it().build().expect("good settings");
    let guard = lock(&mine, "a").await;
    let wanted = async {
        guard.wanted().await;
        Instant::now()
    };
    let others = async {
        listened(&server, "1").await;
        let own = waiter(&beside, "a");
        counts(&server, "its own waits", WAITERS, "1").await;
        // A word about it would have come by now.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let other = client(&server.url()).await;
        let came = Instant::now();
        (came, own, waiter(&other, "a"))
    };
    let both = tokio::time::timeout(SOON, async { tokio::join!(wanted, others) });
    let (heard, (came, own, other)) = both.await.expect("the word");
    assert!(came < heard, "told of a task of its own client");
    assert!(heard < came + TOLD);
    free(guard).await;
    for next in [own, other] {
        let next = soon("its turn", next).await.expect("no panic");
        free(next.expect("its turn")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_who_reads_hears_of_a_writer() {
    let server = start().await;
    let (one, two) = (
        with_settings(&server, renewed_seldom()).await,
        with_settings(&server, renewed_seldom()).await,
    );
    let read = async |locks: &Locks| {
        let lock = locks.rw_lock("a").expect("a name");
        lock.read().await.expect("a reader")
    };
    let (first, second) = (read(&one).await, read(&two).await);
    let mut waits = None;
    let writes = async {
        listened(&server, "2").await;
        let writer = client(&server.url()).await.rw_lock("a").expect("a name");
        waits = Some(tokio::spawn(async move { writer.write().await }));
    };
    let all = async { tokio::join!(first.wanted(), second.wanted(), writes) };
    tokio::time::timeout(SOON, all).await.expect("the word");
    for reader in [first, second] {
        free(reader).await;
    }
    let writer = soon("the writer", waits.expect("it waits")).await;
    free(writer.expect("no panic").expect("the lock")).await;
}

/// An exclusive holder that reads on from now still hears.
#[tokio::test(flavor = "multi_thread")]
async fn a_word_outlives_a_downgrade() {
    let server = start().await;
    let mine = with_settings(&server, renewed_seldom()).await;
    let guard = mine
        .rw_lock("a")
        .expect("a name")
        .write()
        .await
        .expect("the lock");
    {
        let mut wanted = std::pin::pin!(guard.wanted());
        tokio::select! {
            () = &mut wanted => panic!("nobody waits"),
            () = listened(&server, "1") => {}
        }
    }
    guard.downgrade().await.expect("a reader");
    counts(
        &server,
        "it still listens",
        "SELECT count(*) FROM dlock_holders WHERE ear <> ''",
        "1",
    )
    .await;
    let other = waiter(&client(&server.url()).await, "a");
    tokio::time::timeout(TOLD, guard.wanted())
        .await
        .expect("the word");
    free(guard).await;
    let other = soon("the writer", other).await.expect("no panic");
    free(other.expect("the lock")).await;
}

/// The connection that listens is driven by the runtime in which it was made. When that ends, a holder in another runtime makes the next one.
#[test]
fn a_holder_hears_although_the_runtime_that_listened_has_ended() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime")
    };
    let (home, passing) = (runtime(), runtime());
    let (server, mine, first) = home.block_on(async {
        let server = start().await;
        let mine = with_settings(&server, renewed_seldom()).await;
        let first = lock(&mine, "first").await;
        (server, mine, first)
    });
    passing.block_on(async {
        let mut wanted = std::pin::pin!(first.wanted());
        tokio::select! {
            () = &mut wanted => panic!("nobody waits"),
            () = listened(&server, "1") => {}
        }
    });
    home.block_on(async {
        let guard = lock(&mine, "a").await;
        let other = client(&server.url()).await;
        #[allow(clippy::async_yields_async, reason = "it waits until the lock is free")]
        let ends = async {
            counts(&server, "both have left word", EARS, "2").await;
            passing.shutdown_background();
            // It ended with its runtime, or the next one has it already.
            tokio::time::sleep(Duration::from_millis(200)).await;
            waiter(&other, "a")
        };
        let both = async { tokio::join!(guard.wanted(), ends) };
        let ((), waits) = tokio::time::timeout(TOLD, both).await.expect("the word");
        free(guard).await;
        let next = soon("its turn", waits).await.expect("no panic");
        free(next.expect("its turn")).await;
        free(first).await;
    });
}
