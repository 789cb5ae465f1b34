//! Restarts, and requests and answers that are lost or late.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod etcd_support;

use std::time::{Duration, Instant};

use dlock_core::{Guard, Locks, LossReason, Released};
use etcd_support::*;
use integration_tests::{Direction, EtcdServer, FaultProxy};

#[tokio::test]
async fn server_restarted_while_held_and_while_waited_for() {
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], "session=15s&answer_timeout=1s");
    let (holder, other) = (client(&url).await, client(&url).await);
    let guard = lock(&holder, "a").await;
    let waits = waiter(&other, "a");
    waiting(&holder, "a", 1).await;

    server.kill();
    server.restart().await.expect("it comes again");
    renewed(&holder).await;
    assert!(guard.is_held(), "etcd keeps holds on disk");
    assert!(!waits.is_finished());
    assert_eq!(
        guard.release().await.expect("the store answers"),
        Released::Freed
    );
    let next = soon(waits).await.expect("no panic").expect("the lock");
    assert_eq!(
        next.release().await.expect("the store answers"),
        Released::Freed
    );
}

#[tokio::test]
async fn lost_answer_to_a_keep_alive_is_not_a_loss() {
    let server = EtcdServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let locks = client(&url([proxy.addr()], "session=4s&answer_timeout=1s")).await;
    let guard = lock(&locks, "a").await;
    let mut raw = raw(&[server.addr()]).await;
    let lease = entries(&mut raw, "a").await[0].lease();
    for _ in 0..2 {
        proxy.drop_reply_to(varint(lease), Duration::from_millis(20));
        soon(proxy.reply_dropped()).await;
        renewed(&locks).await;
        assert!(guard.is_held());
    }
    assert_eq!(
        guard.release().await.expect("the store answers"),
        Released::Freed
    );
}

/// A number as it stands in a request.
fn varint(number: i64) -> Vec<u8> {
    let mut left = number.cast_unsigned();
    let mut bytes = Vec::new();
    while left >= 0x80 {
        bytes.push((left & 0x7f) as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
    bytes
}

/// The request is carried out, its answer is lost, and it is sent again: the entry is there, and is its own.
#[tokio::test]
async fn lost_answer_to_an_acquire_finds_its_own_entry() {
    async fn take(locks: &Locks, how: &str) -> Guard {
        let (mutex, lock) = (locks.mutex(how), locks.rw_lock(how));
        let semaphore = locks.semaphore(how, 2).expect("a name");
        let (mutex, lock) = (mutex.expect("a name"), lock.expect("a name"));
        let taken = match how {
            "lock" => mutex.lock().await.map(Some),
            "try_lock" => mutex.try_lock().await,
            "read" => lock.read().await.map(Some),
            "try_read" => lock.try_read().await,
            "acquire" => semaphore.acquire().await.map(Some),
            _ => semaphore.try_acquire().await,
        };
        taken.expect("the store answers").expect("it is free")
    }
    let server = EtcdServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let locks = client(&url([proxy.addr()], "session=30s")).await;
    let mut raw = raw(&[server.addr()]).await;
    for how in [
        "lock",
        "try_lock",
        "read",
        "try_read",
        "acquire",
        "try_acquire",
    ] {
        proxy.drop_reply_to(format!("dlock/{how}/"), Duration::from_millis(50));
        let guard = soon(take(&locks, how)).await;
        soon(proxy.reply_dropped()).await;
        let found = entries(&mut raw, how).await;
        assert_eq!(found.len(), 1, "{how}");
        assert_eq!(guard.token(), Some(token_of(&found[0])), "{how}");
        let released = guard.release().await.expect("the store answers");
        assert_eq!(released, Released::Freed, "{how}");
        assert!(entries(&mut raw, how).await.is_empty(), "{how}");
    }
    assert_eq!(locks.stats().failed, 0);
}

/// Two ways to one server. What a client sends over the one that it uses can be held, and arrive late.
struct TwoWays {
    server: EtcdServer,
    proxies: [FaultProxy; 2],
}

/// A request that is stuck on its way.
struct Stuck<'a> {
    proxy: &'a FaultProxy,
    server: &'a EtcdServer,
    /// What had arrived at the proxy when the request was there, and nothing else.
    sent: Instant,
    /// How many requests of its kind the server has answered.
    method: &'static str,
}

impl TwoWays {
    async fn start() -> Self {
        let server = EtcdServer::start().await.expect("a server");
        let proxies = [
            FaultProxy::start(server.addr()).await.expect("a proxy"),
            FaultProxy::start(server.addr()).await.expect("a proxy"),
        ];
        Self { server, proxies }
    }

    async fn client(&self) -> Locks {
        self.client_with("120s").await
    }

    /// A client that moves on after a while. Long enough for a busy machine to see its request come.
    async fn client_with(&self, session: &str) -> Locks {
        let addresses = self.proxies.iter().map(FaultProxy::addr);
        let parameters = format!("session={session}&answer_timeout=2s");
        client(&url(addresses, &parameters)).await
    }

    /// Holds the next request of a client that has sent something, while `work` is done, which sends it again the other way.
    async fn stick<T>(
        &self,
        method: &'static str,
        work: impl Future<Output = T>,
    ) -> (Stuck<'_>, T) {
        let used = usize::from(self.proxies[1].connections() > 0);
        let proxy = &self.proxies[used];
        assert_eq!(self.proxies[1 - used].connections(), 0, "one way is used");
        proxy.pause(Direction::ToServer);
        let before = proxy.received().to_server;
        let noted = async {
            until_so("the request is on its way", async || {
                proxy.received().to_server > before
            })
            .await;
            // Its parts follow each other at once; that the client no longer wants it comes when its patience is over.
            tokio::time::sleep(Duration::from_millis(50)).await;
            Instant::now()
        };
        let (sent, done) = tokio::join!(noted, work);
        let server = &self.server;
        let stuck = Stuck {
            proxy,
            server,
            sent,
            method,
        };
        (stuck, done)
    }
}

impl Stuck<'_> {
    async fn answered(&self) -> f64 {
        let label = format!("grpc_method=\"{}\"", self.method);
        metric_with(self.server.addr(), "grpc_server_handled_total", &label).await
    }

    /// Lets it arrive, without the word that nobody wants it any more, and waits until the server has done with it.
    async fn arrives(self) {
        let before = self.answered().await;
        self.proxy.resume_until(self.sent);
        until_so("the late request is carried out", async || {
            self.answered().await > before
        })
        .await;
    }
}

async fn freed(guard: Guard) {
    let released = guard.release().await.expect("the store answers");
    assert_eq!(released, Released::Freed);
}

#[tokio::test]
async fn request_that_arrives_after_its_release_leaves_nothing() {
    let ways = TwoWays::start().await;
    let mut raw = raw(&[ways.server.addr()]).await;
    let locks = ways.client().await;
    // The request is stuck, is sent again the other way, and is granted there.
    let (stuck, guard) = ways.stick("Txn", lock(&locks, "a")).await;
    freed(guard).await;
    stuck.arrives().await;
    assert!(
        entries(&mut raw, "a").await.is_empty(),
        "a late request took effect"
    );
    locks.close().await.expect("closed");
    let all = etcd_client::GetOptions::new().with_prefix();
    let left = raw.get("dlock/", Some(all)).await.expect("keys");
    assert_eq!(left.count(), 0, "marks go with the lease");
}

#[tokio::test]
async fn try_that_was_busy_takes_no_effect_later() {
    let ways = TwoWays::start().await;
    let holder = client(&url([ways.server.addr()], "session=60s")).await;
    let mut raw = raw(&[ways.server.addr()]).await;
    let guard = lock(&holder, "a").await;
    let locks = ways.client().await;
    // The request is stuck, is sent again the other way, and is told there that the lock is held.
    let mutex = locks.mutex("a").expect("a name");
    let (stuck, tried) = ways.stick("Txn", mutex.try_lock()).await;
    assert!(tried.expect("the store answers").is_none());
    freed(guard).await;
    // The client goes on with the same key, and then the request arrives.
    freed(lock(&locks, "a").await).await;
    stuck.arrives().await;
    assert!(
        entries(&mut raw, "a").await.is_empty(),
        "a late request took effect"
    );
}

/// A release that one server did not answer is done by another. The first request arrives when the client holds the lock again.
#[tokio::test]
async fn late_delete_of_a_release_meets_no_later_hold() {
    let ways = TwoWays::start().await;
    let mut raw = raw(&[ways.server.addr()]).await;
    let locks = ways.client().await;
    let guard = lock(&locks, "a").await;
    let (stuck, ()) = ways.stick("DeleteRange", freed(guard)).await;
    let guard = lock(&locks, "a").await;
    stuck.arrives().await;
    let found = entries(&mut raw, "a").await;
    assert_eq!(found.len(), 1, "the hold is in the store");
    assert_eq!(guard.token(), Some(token_of(&found[0])));
    freed(guard).await;
}

/// A hold was granted to the second of two requests. Its entry is deleted by hand, and then the first request arrives and puts another
/// with the same key, later in the queue: that is not the hold.
#[tokio::test]
async fn entry_of_a_late_request_does_not_pass_for_the_hold() {
    let ways = TwoWays::start().await;
    let mut raw = raw(&[ways.server.addr()]).await;
    let locks = ways.client_with("12s").await;
    let (stuck, guard) = ways.stick("Txn", lock(&locks, "a")).await;
    let entry = entries(&mut raw, "a").await.remove(0);
    raw.delete(entry.key(), None).await.expect("deleted");
    stuck.arrives().await;
    assert_eq!(soon(guard.lost()).await, LossReason::Gone);
    until_so("nothing is left", async || {
        entries(&mut raw, "a").await.is_empty()
    })
    .await;
}

/// What makes late requests fail goes when none can come any more, also if the client lives on and is never disturbed again.
#[tokio::test]
async fn marks_go_while_the_client_lives() {
    let server = EtcdServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let locks = client(&url([proxy.addr()], "session=4s&late_limit=3s")).await;
    let keeps = lock(&locks, "kept").await;
    let mut raw = raw(&[server.addr()]).await;
    let mut marks = async || {
        let all = etcd_client::GetOptions::new().with_prefix();
        let found = raw.get("dlock/!/", Some(all)).await.expect("marks");
        found.count()
    };
    for name in ["a", "b", "c", "d"] {
        proxy.drop_reply_to(format!("dlock/{name}/"), Duration::from_millis(50));
        let guard = lock(&locks, name).await;
        soon(proxy.reply_dropped()).await;
        assert_eq!(
            guard.release().await.expect("the store answers"),
            Released::Freed
        );
    }
    assert!(marks().await > 0, "no request was in doubt");
    until_so("the marks go", async || marks().await == 0).await;
    assert!(keeps.is_held());
}
