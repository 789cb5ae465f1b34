//! Many at once: what hundreds of waiters cost the server, permits for which many try, lists that are longer than one answer.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks"
)]

mod etcd_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dlock_core::{Locks, Released, Settings};
use etcd_client::{PutOptions, Txn, TxnOp};
use etcd_support::*;
use integration_tests::{EtcdServer, FaultProxy};

/// Resolves when the server has had this many more signs of life of clients: one in each third of a session.
async fn thirds(server: &EtcdServer, count: f64) {
    let label = "grpc_method=\"LeaseKeepAlive\"";
    let kept = async || metric_with(server.addr(), "grpc_server_msg_received_total", label).await;
    let before = kept().await;
    until_so("signs of life", async || kept().await >= before + count).await;
}

async fn watchers(server: &EtcdServer) -> usize {
    metric(server.addr(), "etcd_debugging_mvcc_watcher_total").await as usize
}

/// More watches than this are not needed, however many tasks of one client wait for a lock.
const FEW: usize = 120;

/// Whoever comes when many of its client wait asks for its place and nothing else. All get their turn, in the order in which they came, whoever leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowd_of_one_client_costs_a_request_each_and_is_served_in_order() {
    const WAITERS: usize = 600;
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], "session=20s&answer_timeout=10s");
    let (holder, between) = (client(&url).await, client(&url).await);
    let crowd = strict_client(&url).await;
    let guard = lock(&holder, "a").await;
    let asked = async || {
        let label = "grpc_method=\"Txn\"";
        metric_with(server.addr(), "grpc_server_started_total", label).await
    };
    let before = asked().await;
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    let inside = Arc::new(AtomicUsize::new(0));
    let mut waits = Vec::new();
    let mut stand = |locks: &dlock_core::Locks| {
        let mutex = locks.mutex("a").expect("a name");
        let (served, inside) = (served.clone(), inside.clone());
        waits.push(tokio::spawn(async move {
            let guard = mutex.lock().await.expect("the lock");
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold");
            served.send(guard.token().expect("a token")).expect("heard");
            inside.fetch_sub(1, Ordering::SeqCst);
            let released = guard.release().await.expect("the store answers");
            assert_eq!(released, Released::Freed);
        }));
    };
    for _ in 0..WAITERS / 2 {
        stand(&crowd);
    }
    waiting(&holder, "a", WAITERS / 2).await;
    // Somebody else is in the middle.
    stand(&between);
    waiting(&holder, "a", WAITERS / 2 + 1).await;
    for _ in 0..WAITERS / 2 {
        stand(&crowd);
    }
    waiting(&holder, "a", WAITERS + 1).await;
    let asked = asked().await - before;
    let watchers = watchers(&server).await;
    println!("{asked} requests and {watchers} watches for {WAITERS} waiters");
    assert!(watchers < FEW, "{watchers} watches");
    assert!(asked < 2.0 * WAITERS as f64, "{asked} requests");
    // Some leave: in the middle, several in a row, and the last ones.
    let leave = |index: usize| index % 7 == 3 || (200..220).contains(&index) || index > 580;
    for (index, wait) in waits.iter().enumerate() {
        if leave(index) {
            wait.abort();
        }
    }
    assert_eq!(
        guard.release().await.expect("the store answers"),
        Released::Freed
    );
    let mut last = None;
    for (index, wait) in waits.into_iter().enumerate() {
        match soon(wait).await {
            Ok(()) => {}
            Err(error) => assert!(error.is_cancelled() && leave(index), "{index}: {error}"),
        }
    }
    order.close();
    while let Some(token) = order.recv().await {
        assert!(last < Some(token), "{token:?} after {last:?}");
        last = Some(token);
    }
    let mut raw = raw(&[server.addr()]).await;
    until_so("nothing is left", async || {
        entries(&mut raw, "a").await.is_empty()
    })
    .await;
}

/// A look makes sure of two keys, and one trip does it for many waiters, without the rest of the queue.
#[tokio::test]
async fn idle_waiters_cost_few_requests_and_bytes() {
    const WAITERS: usize = 300;
    let server = EtcdServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let settings = "session=6s&answer_timeout=10s";
    let holder = client(&url([server.addr()], settings)).await;
    let crowd = strict_client(&url([proxy.addr()], settings)).await;
    let guard = lock(&holder, "a").await;
    let waits: Vec<_> = (0..WAITERS).map(|_| waiter(&crowd, "a")).collect();
    waiting(&holder, "a", WAITERS).await;
    // The first look of each comes a third of a session after it came.
    thirds(&server, 4.0).await;
    let asked = async || {
        let label = "grpc_method=\"Txn\"";
        metric_with(server.addr(), "grpc_server_started_total", label).await
    };
    let (before, read) = (asked().await, proxy.bytes());
    let started = Instant::now();
    // Two clients, so this is at least two thirds of a session.
    thirds(&server, 4.0).await;
    let asked = asked().await - before;
    let now = proxy.bytes();
    // On a busy machine it is more than two: looks go by the clock.
    let passed = started.elapsed().as_secs_f64() / 2.0;
    let read = (now.to_client - read.to_client) as f64 / WAITERS as f64 / passed;
    println!(
        "{asked} requests in two thirds of a session, and {read:.0} bytes for each of {WAITERS} waiters in one"
    );
    assert!(asked < WAITERS as f64 / 3.0, "{asked} requests");
    // The queue has some 70 bytes for each waiter, so to read it once for all who share a look, with all other looks as they are, takes 140 or more.
    assert!(read < 250.0, "each has read {read:.0} bytes");
    let watchers = watchers(&server).await;
    assert!(watchers < FEW, "{watchers} watches");
    assert!(guard.is_held());
    for wait in waits {
        wait.abort();
    }
    crowd.close().await.expect("closed");
}

/// Whoever waits for a permit reads what is near it, not the whole queue.
#[tokio::test]
async fn waiters_for_permits_read_little_and_all_get_one() {
    const WAITERS: usize = 150;
    let server = EtcdServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    // With so long a session nobody looks again by itself: a wake-up that is missed is a failure.
    let long = "session=240s&answer_timeout=10s";
    let holder = client(&url([server.addr()], long)).await;
    let crowd = strict_client(&url([proxy.addr()], long)).await;
    let permits = holder.semaphore("s", 2).expect("a name");
    let first = permits.acquire().await.expect("a permit");
    let second = permits.acquire().await.expect("a permit");
    let served = Arc::new(AtomicUsize::new(0));
    let mut waits = Vec::new();
    for _ in 0..WAITERS {
        let permits = crowd.semaphore("s", 2).expect("a name");
        let served = served.clone();
        waits.push(tokio::spawn(async move {
            let permit = permits.acquire().await.expect("a permit");
            served.fetch_add(1, Ordering::SeqCst);
            assert_eq!(
                permit.release().await.expect("the store answers"),
                Released::Freed
            );
        }));
    }
    waiting(&holder, "s", WAITERS).await;
    for permit in [first, second] {
        assert_eq!(
            permit.release().await.expect("the store answers"),
            Released::Freed
        );
    }
    for wait in waits {
        soon(wait).await.expect("no panic");
    }
    assert_eq!(served.load(Ordering::SeqCst), WAITERS);
    let read = proxy.bytes().to_client / WAITERS as u64;
    println!("{read} bytes for each of {WAITERS} waiters");
    assert!(read < 6000, "each has read {read} bytes");
}

/// Whoever moves up tells the next, which looks at nothing else. If that is lost, the next renewal tells it.
#[tokio::test]
async fn waiter_for_a_permit_learns_that_it_is_first_though_the_word_was_lost() {
    let server = EtcdServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let long = url([server.addr()], "session=240s&answer_timeout=10s");
    let (holder, last) = (client(&long).await, client(&long).await);
    let through = url([proxy.addr()], "session=6s&answer_timeout=10s");
    let middle = client(&through).await;
    let permits = holder.semaphore("s", 2).expect("a name");
    let first = permits.acquire().await.expect("a permit");
    let second = permits.acquire().await.expect("a permit");
    let mut waits = Vec::new();
    for (count, locks) in [(1, &middle), (2, &last)] {
        let permits = locks.semaphore("s", 2).expect("a name");
        waits.push(tokio::spawn(async move { permits.acquire().await }));
        waiting(&holder, "s", count).await;
    }
    until_so("both watch", async || watchers(&server).await == 2).await;
    let (last, middle) = (waits.pop().expect("a task"), waits.pop().expect("a task"));
    // Only what puts an entry, or puts it again, names the mode. A broken connection is tried once more.
    proxy.drop_requests("permit 2\n", 2);
    assert_eq!(
        first.release().await.expect("the store answers"),
        Released::Freed
    );
    let moved_up = soon(middle).await.expect("no panic").expect("a permit");
    assert_eq!(proxy.requests_to_drop(), 0, "the word was lost");
    assert_eq!(
        second.release().await.expect("the store answers"),
        Released::Freed
    );
    let permit = soon(last).await.expect("no panic").expect("a permit");
    for permit in [moved_up, permit] {
        assert_eq!(
            permit.release().await.expect("the store answers"),
            Released::Freed
        );
    }
}

/// Others who try at the same time are no reason to say busy as long as there are permits.
#[tokio::test]
async fn try_acquire_gets_a_permit_while_there_are_some() {
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], "session=60s&answer_timeout=10s");
    let mut tasks = Vec::new();
    for _ in 0..16 {
        let locks = client(&url).await;
        tasks.push(tokio::spawn(async move {
            let permits = locks.semaphore("s", 100).expect("a name");
            let mut busy = 0;
            for _ in 0..12 {
                match permits.try_acquire().await.expect("the store answers") {
                    Some(permit) => drop(permit),
                    None => busy += 1,
                }
            }
            busy
        }));
    }
    let mut busy = 0;
    for task in tasks {
        busy += task.await.expect("no panic");
    }
    assert_eq!(busy, 0, "16 clients and 100 permits");
}

/// The last permits are given too, and no more than there are.
#[tokio::test]
async fn tries_for_the_last_permits_never_exceed_the_limit_and_leave_nothing() {
    const LIMIT: u32 = 3;
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], "session=60s&answer_timeout=10s");
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (locks, inside) = (client(&url).await, inside.clone());
        tasks.push(tokio::spawn(async move {
            let permits = locks.semaphore("s", LIMIT).expect("a name");
            let mut got = 0;
            for _ in 0..15 {
                let Some(permit) = permits.try_acquire().await.expect("the store answers") else {
                    continue;
                };
                got += 1;
                let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                assert!(now <= LIMIT as usize, "{now} hold {LIMIT} permits");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                assert_eq!(
                    permit.release().await.expect("the store answers"),
                    Released::Freed
                );
            }
            got
        }));
    }
    let mut got = 0;
    for task in tasks {
        got += task.await.expect("no panic");
    }
    assert!(got > 0);
    let mut raw = raw(&[server.addr()]).await;
    assert!(entries(&mut raw, "s").await.is_empty());
}

/// With each renewal a client looks what hangs on its lease. What came or went meanwhile is no entry of the past.
#[tokio::test]
async fn looks_at_the_lease_take_nothing_away_that_is_held() {
    let server = EtcdServer::start().await.expect("a server");
    let locks = client(&url([server.addr()], "session=2s&answer_timeout=10s")).await;
    let kept = lock(&locks, "kept").await;
    let mut tasks = Vec::new();
    for number in 0..8 {
        let locks = locks.clone();
        tasks.push(tokio::spawn(async move {
            let mutex = locks.mutex(format!("a{number}")).expect("a name");
            while locks.stats().renewals < 12 {
                let guard = mutex.lock().await.expect("the lock");
                assert_eq!(
                    guard.release().await.expect("the store answers"),
                    Released::Freed
                );
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    assert!(kept.is_held());
}

#[tokio::test]
async fn list_is_longer_than_one_answer() {
    const LOCKS: usize = 40_000;
    let server = EtcdServer::start().await.expect("a server");
    let mut raw = raw(&[server.addr()]).await;
    let lease = raw.lease_grant(600, None).await.expect("a lease").id();
    // As long a label as is allowed would make 40 MB; this makes more than the 4 MiB that a client takes in one answer.
    let value = format!("attempt\nexclusive\n{}", "label".repeat(20));
    let numbers: Vec<usize> = (0..LOCKS).collect();
    for some in numbers.chunks(100) {
        let puts = some.iter().map(|number| {
            let key = format!("dlock/many:{number:05}/w/{lease:x}-0");
            let options = PutOptions::new().with_lease(lease);
            TxnOp::put(key, value.as_str(), Some(options))
        });
        let txn = Txn::new().and_then(puts.collect::<Vec<_>>());
        raw.txn(txn).await.expect("entries");
    }
    // Each answer has its own limit; the whole, of forty, has none.
    let settings = Settings::new().trip_timeout(Duration::from_millis(20));
    let backend = backend(&url([server.addr()], "session=60s&answer_timeout=10s")).await;
    let locks = Locks::builder(backend).settings(settings).build();
    let locks = locks.expect("good settings");
    let listed = locks.list("many:").await.expect("a list");
    assert_eq!(listed.len(), LOCKS);
    assert_eq!(locks.list("many:3999").await.expect("a list").len(), 10);
    assert!(
        listed
            .windows(2)
            .all(|pair| pair[0].name.as_str() < pair[1].name.as_str())
    );
}
