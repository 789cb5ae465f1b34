//! How a holder hears that others wait (C23), and a lock that lingers is given up for them (C21).

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::{Guard, Locks, Settings};
use integration_tests::{RedisServer, until};
use redis_support::*;
use tokio::task::JoinHandle;

/// Holds are renewed, and the store is asked, so seldom that only a message comes sooner.
fn renewed_seldom() -> Settings {
    Settings::new().lease(seconds(60))
}

fn wait_for(locks: &Locks, name: &str) -> JoinHandle<Guard> {
    let mutex = locks.mutex(name).expect("a name");
    tokio::spawn(async move { mutex.lock().await.expect("a lock") })
}

/// Resolves when the store knows that the holder listens.
async fn listened(server: &RedisServer, name: &str) {
    let key = format!("dlock:{{{name}}}");
    until("a holder that listens", SOON, || async {
        let value = server.command(&["GET", &key]).await?.text();
        match value.as_deref().and_then(|value| value.chars().nth(16)) {
            Some('!') => Ok(()),
            _ => Err(integration_tests::Error::answer("GET", "nobody listens")),
        }
    })
    .await
    .expect("it listens");
}

/// A lock that lingers for ever, as far as this test goes.
async fn lingering(server: &RedisServer, name: &str) -> Locks {
    let settings = renewed_seldom().linger(seconds(600));
    let locks = client_with(&server.url(), settings).await;
    let _ = lock(&locks, name).await.release().await.expect("release");
    listened(server, name).await;
    locks
}

#[tokio::test]
async fn a_lock_that_lingers_is_given_up_as_soon_as_somebody_waits() {
    let server = RedisServer::start().await.expect("redis");
    let (mine, other) = (lingering(&server, "a").await, client(&server.url()).await);
    let start = Instant::now();
    let theirs = lock(&other, "a").await;
    assert!(start.elapsed() < seconds(1), "{:?}", start.elapsed());
    // The new holder does not listen, so nobody is told of the next one.
    server
        .command(&["CONFIG", "RESETSTAT"])
        .await
        .expect("reset");
    let back = wait_for(&mine, "a");
    waiting(&other, "a", 1).await;
    assert_eq!(calls(&server, "publish").await, 0);
    let _ = theirs.release().await.expect("release");
    drop(back.await.expect("the lock again"));
    mine.close().await.expect("closed");
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

#[tokio::test]
async fn nothing_is_left_of_a_holder_that_listened_in_vain() {
    let server = RedisServer::start().await.expect("redis");
    let mine = lingering(&server, "a").await;
    mine.close().await.expect("closed");
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_word_that_was_lost_is_made_good_with_a_renewal() {
    let server = RedisServer::start().await.expect("redis");
    let settings = Settings::new().lease(seconds(3)).linger(seconds(600));
    let mine = client_with(&server.url(), settings).await;
    let _ = lock(&mine, "a").await.release().await.expect("release");
    listened(&server, "a").await;
    // Nobody finds the inbox.
    let gone = server.command(&["DEL", "dlock:{a}:w"]).await;
    assert_eq!(number(&gone.expect("DEL")), 1);
    let other = client(&server.url()).await;
    let theirs = tokio::time::timeout(seconds(2), lock(&other, "a")).await;
    drop(theirs.expect("within a renewal"));
}

#[tokio::test]
async fn a_waiter_of_the_same_client_is_no_other_and_hides_none() {
    let server = RedisServer::start().await.expect("redis");
    // Two of core's clients by one of the store's: what core knows of tasks of its own is not in play.
    let config = dlock_redis::Config::from_url(&server.url()).expect("a URL");
    let backend = Arc::new(config.connect().await.expect("a client"));
    let by_it = || Locks::builder(backend.clone()).settings(renewed_seldom());
    let mine = by_it().build().expect("good settings");
    let beside = by_it().build().expect("good settings");
    let guard = lock(&mine, "a").await;
    let wanted = async {
        guard.wanted().await;
        Instant::now()
    };
    let others = async {
        listened(&server, "a").await;
        let own = wait_for(&beside, "a");
        waiting(&mine, "a", 1).await;
        listened(&server, "a").await;
        // The holder's word outlives the waiter's, which lasts some seconds.
        let left = server.command(&["PTTL", "dlock:{a}:w"]).await;
        let left = number(&left.expect("PTTL"));
        assert!(left > 30_000, "the word is remembered for {left} ms");
        let came = Instant::now();
        let other = wait_for(&client(&server.url()).await, "a");
        (came, own, other)
    };
    let both = tokio::time::timeout(seconds(10), async { tokio::join!(wanted, others) });
    let (heard, (came, own, other)) = both.await.expect("the word");
    assert!(came < heard, "told of a task of its own client");
    assert!(heard < came + seconds(1));
    let _ = guard.release().await.expect("release");
    for next in [own, other] {
        drop(next.await.expect("its turn"));
    }
}

#[tokio::test]
async fn everybody_who_reads_hears_of_a_writer() {
    let server = RedisServer::start().await.expect("redis");
    let (one, two, three) = (
        client_with(&server.url(), renewed_seldom()).await,
        client_with(&server.url(), renewed_seldom()).await,
        client(&server.url()).await,
    );
    let read = async |locks: &Locks| {
        let lock = locks.rw_lock("a").expect("a name");
        lock.read().await.expect("a reader")
    };
    let (first, second) = (read(&one).await, read(&two).await);
    let writer = three.rw_lock("a").expect("a name");
    let writes = async {
        // Both have left word.
        until("two that listen", SOON, || async {
            match number(&server.command(&["HLEN", "dlock:{a}:w"]).await?) {
                2 => Ok(()),
                _ => Err(integration_tests::Error::answer("HLEN", "fewer")),
            }
        })
        .await
        .expect("two that listen");
        writer.write().await.expect("the writer")
    };
    let readers = async {
        tokio::join!(first.wanted(), second.wanted());
        for guard in [first, second] {
            let _ = guard.release().await.expect("release");
        }
    };
    let all = tokio::time::timeout(seconds(5), async { tokio::join!(readers, writes) });
    drop(all.await.expect("both heard").1);
    for locks in [one, two, three] {
        locks.close().await.expect("closed");
    }
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

/// A message must not leave before the waiter stands in the queue, whatever the server may refuse (C22).
#[tokio::test]
async fn nobody_hears_of_a_waiter_that_the_store_has_refused() {
    let server = RedisServer::start().await.expect("redis");
    let _mine = lingering(&server, "a").await;
    let other = client(&server.url()).await;
    let set = ["CONFIG", "SET", "min-replicas-to-write", "1"];
    server.command(&set).await.expect("CONFIG SET");
    server
        .command(&["CONFIG", "RESETSTAT"])
        .await
        .expect("reset");
    let mutex = other.mutex("a").expect("a name");
    let refused = mutex.lock_within(Duration::from_millis(300)).await;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(calls(&server, "publish").await, 0);
}
