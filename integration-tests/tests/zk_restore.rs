//! An administrator puts an old copy of a ZooKeeper server's data back, or other limits, under living clients.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where it breaks"
)]

mod zk_support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use dlock_core::Released;
use integration_tests::ZooKeeperServer;
use tokio::time::{sleep, timeout};
use zk_support::*;

const DATA: &str = "data/version-2";
const COPY: &str = "copy";

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
}

/// Takes a copy of the store.
async fn copy(server: &ZooKeeperServer) {
    server.kill();
    copy_files(&server.site().file(DATA), &server.site().file(COPY));
    server.restart().await.expect("it comes again");
}

/// Puts the copy in the place of the store, as an administrator does it.
async fn restore(server: &ZooKeeperServer) {
    server.kill();
    let data = server.site().file(DATA);
    fs::remove_dir_all(&data).expect("the old data go");
    copy_files(&server.site().file(COPY), &data);
    server.restart().await.expect("it comes again");
}

/// A server takes no client that has seen more transactions than it has. As long as that is so, clients have no connection; they must not
/// insist on what they have seen for ever.
#[tokio::test]
async fn clients_go_on_after_a_restore() {
    let server = server().await;
    let url = server.url() + "?session=2s";
    let (locks, other) = (client(&url).await, client(&url).await);
    let kept = lock(&locks, "kept").await;
    // If that takes long, the session ends, and the next lock comes with a new one.
    copy(&server).await;
    let later = lock(&locks, "later").await;
    for _ in 0..20 {
        let guard = lock(&other, "a").await;
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
    restore(&server).await;
    let a = lock(&locks, "a").await;
    assert_eq!(a.release().await.expect("release"), Released::Freed);
    let b = lock(&other, "b").await;
    assert_eq!(b.release().await.expect("release"), Released::Freed);
    // The copy has a session that nobody can take up; its holds go with it.
    for guard in [kept, later] {
        assert!(!guard.is_held());
        let free = lock(&other, guard.name().as_str()).await;
        assert_eq!(free.release().await.expect("release"), Released::Freed);
    }
}

/// What was released since the copy was taken comes back with it, under a session that its client goes on to keep alive. Nobody holds it.
#[tokio::test]
async fn released_places_that_come_back_block_nobody() {
    let server = server().await;
    let url = server.url() + "?session=60s";
    let (owner, other) = (client(&url).await, client(&url).await);
    let keeps = lock(&owner, "kept").await;
    let ghosts = [lock(&owner, "a").await, lock(&owner, "b").await];
    let permit = owner.semaphore("s", 1).expect("a name").acquire().await;
    let mutex = other.mutex("kept").expect("a name");
    let waits = tokio::spawn(async move { mutex.lock().await });
    waiting(&owner, "kept", 1).await;
    copy(&server).await;
    renewed(&owner).await;
    for guard in ghosts {
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
    let permit = permit.expect("a permit");
    assert_eq!(permit.release().await.expect("release"), Released::Freed);
    restore(&server).await;
    // Until it has counted past what the clients have seen: on an ensemble, every new leader does.
    let admin = Admin::connect(&server.url()).await;
    for number in 0..200 {
        admin.create(&format!("/{number}"), "").await;
    }
    let third = client(&url).await;
    for name in ["a", "b"] {
        let guard = lock(&third, name).await;
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
    let semaphore = third.semaphore("s", 1).expect("a name");
    let permit = semaphore.acquire_within(SOON).await.expect("an answer");
    drop(permit.expect("a permit"));
    // What is in use, and was, is as it was.
    assert!(keeps.is_held());
    assert!(!waits.is_finished(), "two hold");
    renewed(&owner).await;
    assert_eq!(keeps.release().await.expect("release"), Released::Freed);
    let next = timeout(SOON, waits).await.expect("the waiter");
    let next = next.expect("no panic").expect("the lock");
    assert_eq!(next.release().await.expect("release"), Released::Freed);
}

/// A session that a server would shorten is ended by its client, and must not be kept alive by attempts to bury it.
#[tokio::test]
async fn places_of_a_session_that_was_shortened_go() {
    let server = server().await;
    let locks = client(&(server.url() + "?session=12s")).await;
    let guard = lock(&locks, "a").await;
    server.kill();
    let config = server.site().file("zoo.cfg");
    let lines = fs::read_to_string(&config).expect("its settings");
    let lines = lines.replace("maxSessionTimeout=60000", "maxSessionTimeout=4000");
    fs::write(&config, lines).expect("new settings");
    server.restart().await.expect("it comes again");
    let busy = locks.mutex("b").expect("a name");
    let asks = tokio::spawn(async move {
        loop {
            let refused = busy.try_lock().await.expect_err("its time is not granted");
            if refused.to_string().contains("connect again") {
                break;
            }
            sleep(Duration::from_millis(300)).await;
        }
    });
    timeout(SOON, guard.lost()).await.expect("told");
    let other = client(&(server.url() + "?session=4s")).await;
    let next = timeout(SOON, lock(&other, "a")).await.expect("it is free");
    assert_eq!(next.release().await.expect("release"), Released::Freed);
    timeout(SOON, asks).await.expect("clear").expect("no panic");
}

/// A client that was alone with a lock reads nothing when its next number follows its last one. A server that was put back gives numbers again.
#[tokio::test]
async fn number_that_is_given_again_makes_no_second_holder() {
    // It leaves the lock's node alone for a minute, so that the numbers go on.
    let server = ZooKeeperServer::start().await.expect("zookeeper");
    let url = server.url() + "?session=20s";
    let (owner, other) = (client(&url).await, client(&url).await);
    let keeps = lock(&owner, "kept").await;
    let cycles = async |locks: &dlock_core::Locks, count: usize| {
        for _ in 0..count {
            let guard = lock(locks, "a").await;
            assert_eq!(guard.release().await.expect("release"), Released::Freed);
        }
    };
    cycles(&owner, 1).await;
    copy(&server).await;
    renewed(&owner).await;
    cycles(&owner, 8).await;
    restore(&server).await;
    let admin = Admin::connect(&server.url()).await;
    for number in 0..200 {
        admin.create(&format!("/{number}"), "").await;
    }
    renewed(&owner).await;
    cycles(&other, 7).await;
    let holds = lock(&other, "a").await;
    let mutex = owner.mutex("a").expect("a name");
    let second = mutex.lock_within(Duration::from_millis(300)).await;
    assert!(second.expect("an answer").is_none(), "two hold");
    assert!(holds.is_held() && keeps.is_held());
}
