//! An administrator restores an old copy of the store under living clients.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod etcd_support;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use dlock_core::{Locks, LossReason, Released};
use etcd_support::*;
use integration_tests::EtcdServer;
use tracing_subscriber::fmt::MakeWriter;

/// Takes a copy of the store.
async fn snapshot(server: &EtcdServer) -> String {
    let file = server.site().file("snapshot");
    let file = file.to_str().expect("a plain path").to_owned();
    server
        .etcdctl(&["snapshot", "save", &file])
        .await
        .expect("a snapshot");
    file
}

/// Puts the copy in the place of the store, as an administrator does it.
async fn restore(server: &EtcdServer, file: &str) {
    server.kill();
    let data = server.site().file("data");
    std::fs::remove_dir_all(&data).expect("the old data go");
    let peer = format!("http://127.0.0.1:{}", server.site().port_at(1));
    let data = data.to_str().expect("a plain path");
    let cluster = format!("only={peer}");
    server
        .etcdctl(&[
            "snapshot",
            "restore",
            file,
            "--data-dir",
            data,
            "--name",
            "only",
            "--initial-cluster",
            &cluster,
            "--initial-advertise-peer-urls",
            &peer,
        ])
        .await
        .expect("restored");
    server.restart().await.expect("it comes again");
}

async fn freed(guard: dlock_core::Guard) {
    let released = guard.release().await.expect("the store answers");
    assert_eq!(released, Released::Freed);
}

/// Puts something into the store until its revision is past everything that clients have seen.
async fn go_on(server: &EtcdServer, count: usize) {
    let mut raw = raw(&[server.addr()]).await;
    for n in 0..count {
        raw.put("elsewhere", n.to_string(), None)
            .await
            .expect("a put");
    }
}

/// What was released comes back with the copy, under a lease that its client goes on to keep alive. Nobody holds it.
async fn released_entries_come_back(further: usize) {
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], "session=12s&answer_timeout=2s");
    let (owner, other) = (client(&url).await, client(&url).await);
    let keeps = lock(&owner, "kept").await;
    let ghosts = [lock(&owner, "a").await, lock(&owner, "b").await];
    let reader = owner.rw_lock("r").expect("a name").read().await;
    let permit = owner.semaphore("s", 1).expect("a name").acquire().await;
    let copy = snapshot(&server).await;
    for guard in ghosts {
        freed(guard).await;
    }
    freed(reader.expect("the lock")).await;
    freed(permit.expect("a permit")).await;
    let later = lock(&owner, "later").await;
    restore(&server, &copy).await;
    go_on(&server, further).await;

    // One that its own client wants again, and those that others want.
    let again = lock(&owner, "a").await;
    let taken = lock(&other, "b").await;
    let written = other.rw_lock("r").expect("a name").write_within(SOON).await;
    let permit = other.semaphore("s", 1).expect("a name");
    let permit = permit.acquire_within(SOON).await.expect("an answer");
    assert!(keeps.is_held(), "what was held all the time still is");
    // The store has never heard of it.
    assert_eq!(soon(later.lost()).await, LossReason::Gone);
    renewed(&owner).await;
    assert!(again.is_held() && keeps.is_held());
    let written = written.expect("the store answers").expect("the lock");
    let permit = permit.expect("a permit");
    for guard in [again, taken, written, permit, keeps] {
        freed(guard).await;
    }
}

#[tokio::test]
async fn released_entries_that_come_back_with_a_snapshot_go_again() {
    released_entries_come_back(0).await;
}

/// Then no revision tells that the store is another.
#[tokio::test]
async fn released_entries_go_again_also_when_the_store_has_gone_on() {
    released_entries_come_back(100).await;
}

/// One who waits would keep alive the very entry that it waits for.
#[tokio::test]
async fn waiter_behind_an_entry_of_its_own_client_that_came_back() {
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], "session=12s&answer_timeout=2s");
    let owner: Locks = strict_client(&url).await;
    let first = lock(&owner, "a").await;
    let waits = waiter(&owner, "a");
    waiting(&owner, "a", 1).await;
    let copy = snapshot(&server).await;
    freed(first).await;
    let second = soon(waits).await.expect("no panic").expect("the lock");
    restore(&server, &copy).await;
    // It waits now, as it did then, for one that was released.
    freed(second).await;
    let third = lock(&owner, "a").await;
    freed(third).await;
}

/// The store has an entry with the hold's key, but it is an earlier one: the hold is lost, and the earlier entry goes.
#[tokio::test]
async fn hold_is_lost_also_if_an_earlier_entry_with_its_key_came_back() {
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], "session=12s&answer_timeout=2s");
    let (owner, other) = (client(&url).await, client(&url).await);
    let first = lock(&owner, "a").await;
    let copy = snapshot(&server).await;
    freed(first).await;
    let second = lock(&owner, "a").await;
    restore(&server, &copy).await;
    assert_eq!(soon(second.lost()).await, LossReason::Gone);
    freed(lock(&other, "a").await).await;
}

/// What this thread logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").write(text)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Log {
    /// The lines that say this.
    fn lines(&self, what: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().expect("no panic").clone()).expect("text");
        let lines = text.lines().filter(|line| line.contains(what));
        lines.map(str::to_owned).collect()
    }
}

/// Tokens count the store's revisions, so the log warns when these have fallen.
#[tokio::test]
async fn revisions_that_fell_are_told_in_the_log() {
    const WARNING: &str = "the store went back to an older revision";
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .with_writer(log.clone())
        .finish();
    let _on = tracing::subscriber::set_default(subscriber);
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], "session=12s&answer_timeout=2s");
    let locks = client(&url).await;
    let copy = snapshot(&server).await;
    go_on(&server, 50).await;
    let guard = lock(&locks, "a").await;
    let before = guard.token().expect("a token");
    freed(guard).await;
    assert_eq!(log.lines(WARNING), [""; 0], "nothing has happened yet");
    restore(&server, &copy).await;
    let guard = lock(&locks, "a").await;
    let after = guard.token().expect("a token");
    assert!(after < before, "{after} after {before}: it did not fall");
    let told = log.lines(WARNING);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].contains(" WARN ") && told[0].contains("known=") && told[0].contains("told="),
        "{told:?}"
    );
    freed(guard).await;
    freed(lock(&locks, "a").await).await;
    assert_eq!(log.lines(WARNING), told, "it is told once");
}
