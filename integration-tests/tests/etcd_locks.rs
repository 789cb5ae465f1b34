//! What an etcd backend must do beyond the contract: order and wake-ups in a crowd, the fence, requests, clear errors.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks"
)]

mod etcd_support;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::backend::{Backend, Outcome, Renewal, Request};
use dlock_core::{ErrorKind, Locks, Mode, Name, Released, SystemClock};
use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp, WatchOptions};
use etcd_support::*;
use integration_tests::{Direction, Etcd, EtcdServer, FaultProxy};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

/// With so long a session nobody looks again by itself for longer than [`SOON`]: a wake-up that is missed is a failure.
const PATIENT: &str = "session=120s&answer_timeout=10s";

#[tokio::test]
async fn two_hundred_waiters_wake_one_by_one_in_order() {
    const WAITERS: usize = 200;
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], PATIENT);
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(strict_client(&url).await);
    }
    // Not the client of the first waiter.
    let guard = lock(&clients[1], "a").await;
    let (served, mut order) = mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for index in 0..WAITERS {
        let mutex = clients[index % clients.len()].mutex("a").expect("a name");
        let served = served.clone();
        tasks.push(tokio::spawn(async move {
            let guard = mutex.lock().await.expect("the lock");
            let _ = served.send((index, guard.token()));
            assert_eq!(
                guard.release().await.expect("the store answers"),
                Released::Freed
            );
        }));
        // Each has its place before the next comes.
        waiting_raw(&server, "a", index + 2).await;
    }
    // Each watches the entry before its own; the first, who will hold by the event alone, its own too.
    until_so("all watch", async || {
        metric(server.addr(), "etcd_debugging_mvcc_watcher_total").await as usize == WAITERS + 1
    })
    .await;
    let label = "grpc_method=\"Watch\"";
    let events = async || {
        // Each request to watch is answered once; the rest are events.
        metric_with(server.addr(), "grpc_server_msg_sent_total", label).await
            - metric_with(server.addr(), "grpc_server_msg_received_total", label).await
    };
    let before = events().await;
    let start = Instant::now();
    assert_eq!(
        guard.release().await.expect("the store answers"),
        Released::Freed
    );
    let mut last = None;
    for expected in 0..WAITERS {
        let (index, token) = soon(order.recv()).await.expect("a waiter");
        assert_eq!(index, expected, "first come, first served");
        assert!(token > last, "tokens increase");
        last = token;
    }
    println!("{WAITERS} hand-offs in {:?}", start.elapsed());
    for task in tasks {
        task.await.expect("no panic");
    }
    let woken = events().await - before;
    assert!(
        woken <= WAITERS as f64,
        "{woken} wake-ups for {WAITERS} releases"
    );
}

async fn waiting_raw(server: &EtcdServer, name: &str, count: usize) {
    let mut raw = raw(&[server.addr()]).await;
    until_so("an entry", async || {
        entries(&mut raw, name).await.len() == count
    })
    .await;
}

/// Others come and go all the time, so the events of each wait meet looks and watches at any moment.
#[tokio::test]
async fn no_wake_up_is_missed_in_a_crowd_that_comes_again() {
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], PATIENT);
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let locks = strict_client(&url).await;
        for _ in 0..6 {
            let locks = locks.clone();
            tasks.push(tokio::spawn(async move {
                for _ in 0..15 {
                    let guard = lock(&locks, "a").await;
                    assert_eq!(
                        guard.release().await.expect("the store answers"),
                        Released::Freed
                    );
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("no panic");
    }
}

/// The keys that a lock ever had, as the server's history tells.
async fn keys_ever(raw: &mut Client, name: &str) -> HashSet<Vec<u8>> {
    let prefix = format!("dlock/{name}/");
    let last = raw.put("last", "", None).await.expect("a put");
    let last = last.header().expect("a header").revision();
    let all = WatchOptions::new().with_range("e").with_start_revision(1);
    let mut history = raw.watch("dlock", Some(all)).await.expect("a watch");
    // The end of the history is a key of this range too.
    raw.put("dlock", "", None).await.expect("a put");
    let mut keys = HashSet::new();
    loop {
        let told = soon(history.message()).await.expect("an answer");
        for event in told.expect("the stream goes on").events() {
            let kv = event.kv().expect("a key");
            if kv.mod_revision() > last {
                return keys;
            }
            if kv.key().starts_with(prefix.as_bytes()) {
                keys.insert(kv.key().to_vec());
            }
        }
    }
}

/// etcd remembers every key until its history is compacted, and looks at them all for each acquire.
#[tokio::test]
async fn keys_are_used_again() {
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], "session=60s");
    let mut raw = raw(&[server.addr()]).await;
    let locks = client(&url).await;
    for turn in 0..300 {
        let mutex = locks.mutex("a").expect("a name");
        let guard = match turn % 2 {
            0 => mutex.lock().await.expect("the lock"),
            _ => mutex.try_lock().await.expect("an answer").expect("free"),
        };
        assert!(mutex.try_lock().await.expect("an answer").is_none());
        assert_eq!(
            guard.release().await.expect("the store answers"),
            Released::Freed
        );
    }
    assert_eq!(keys_ever(&mut raw, "a").await.len(), 1);

    let mut tasks = Vec::new();
    for _ in 0..2 {
        let locks = strict_client(&url).await;
        for _ in 0..3 {
            let locks = locks.clone();
            tasks.push(tokio::spawn(async move {
                for _ in 0..20 {
                    let mutex = locks.mutex("b").expect("a name");
                    // Waiters that give up, before or after the store has answered, and holds that are dropped give their keys back too.
                    let soon = Duration::from_millis(3);
                    drop(mutex.lock_within(soon).await);
                    drop(lock(&locks, "b").await);
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    // What is dropped is freed in the background, so a task can have two entries for a moment.
    let keys = keys_ever(&mut raw, "b").await;
    assert!(keys.len() <= 24, "{} keys for 6 tasks", keys.len());
}

/// Also that of a try that was told busy, of a waiter that left at its deadline, and of a hold that somebody removed.
#[tokio::test]
async fn keys_of_attempts_that_came_to_nothing_are_used_again() {
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], "session=3s");
    let mut raw = raw(&[server.addr()]).await;
    let (holder, locks) = (client(&url).await, client(&url).await);
    let mutex = locks.mutex("a").expect("a name");
    for _ in 0..4 {
        let guard = lock(&holder, "a").await;
        for _ in 0..5 {
            assert!(mutex.try_lock().await.expect("an answer").is_none());
        }
        let waited = mutex.lock_within(Duration::from_millis(50)).await;
        assert!(waited.expect("an answer").is_none());
        assert_eq!(guard.release().await.expect("an answer"), Released::Freed);
        let removed = lock(&locks, "a").await;
        assert!(holder.break_lock("a").await.expect("an answer"));
        soon(removed.lost()).await;
        drop(removed);
    }
    let keys = keys_ever(&mut raw, "a").await;
    // What is removed from the queue may be on its way while the next one takes a place.
    assert!(keys.len() <= 3, "{} keys for two clients", keys.len());
}

#[tokio::test]
async fn words_from_the_past_leave_a_later_entry_with_the_same_key() {
    let server = EtcdServer::start().await.expect("a server");
    let backend = backend(&url([server.addr()], "session=60s")).await;
    let mut raw = raw(&[server.addr()]).await;
    let request = || {
        let name = Name::new("a").expect("a name");
        Request::new(name, Mode::Exclusive, Arc::new(SystemClock))
    };
    let take = async |request: &Request| match backend.try_acquire(request).await {
        Ok(Outcome::Held(lease)) => Arc::new(lease),
        other => panic!("not held: {other:?}"),
    };
    let old_request = request();
    let old = take(&old_request).await;
    let key = entries(&mut raw, "a").await[0].key().to_vec();
    assert_eq!(backend.release(&old).await.expect("freed"), Released::Freed);
    let new_request = request();
    let new = take(&new_request).await;
    let entry = entries(&mut raw, "a").await.remove(0);
    assert_eq!(entry.key(), key, "the key is used again");

    assert_eq!(
        backend.release(&old).await.expect("an answer"),
        Released::AlreadyLost
    );
    backend
        .abandon(&old_request)
        .await
        .expect("nothing to undo");
    backend.downgrade(&old).await.expect_err("it is gone");
    let answers = backend.renew(&[old.clone(), new.clone()]).await;
    assert!(
        matches!(answers[..], [Renewal::Lost(_), Renewal::Extended]),
        "{answers:?}"
    );
    let after = entries(&mut raw, "a").await.remove(0);
    assert_eq!(after.mod_revision(), entry.mod_revision(), "untouched");

    // An attempt that is given up without its revision known takes away its own entry alone.
    backend.abandon(&new_request).await.expect("undone");
    assert!(entries(&mut raw, "a").await.is_empty());
    let last = take(&request()).await;
    backend
        .abandon(&new_request)
        .await
        .expect("nothing to undo");
    assert_eq!(
        backend.release(&last).await.expect("freed"),
        Released::Freed
    );
}

#[tokio::test]
async fn fence_lets_a_transaction_commit_only_while_the_lock_is_held() {
    let server = EtcdServer::start().await.expect("a server");
    let backend = backend(&url([server.addr()], "session=5s")).await;
    let locks = Locks::new(Arc::clone(&backend) as Arc<dyn dlock_core::backend::Backend>)
        .expect("defaults");
    let mut raw = raw(&[server.addr()]).await;
    let mut commits = async |guard: &dlock_core::Guard| {
        let fence = backend.fence(guard).expect("a hold of this backend");
        let held = Compare::create_revision(fence.key, CompareOp::Equal, fence.create_revision);
        let txn = Txn::new()
            .when([held])
            .and_then([TxnOp::put("stock", "1", None)]);
        raw.txn(txn).await.expect("a transaction").succeeded()
    };
    let guard = lock(&locks, "a/b").await;
    assert!(commits(&guard).await);
    assert!(locks.break_lock("a/b").await.expect("broken"));
    assert!(!commits(&guard).await);
    soon(guard.lost()).await;
    assert!(!commits(&guard).await, "also when the client knows");

    let lock = locks.rw_lock("r").expect("a name");
    let guard = lock.write().await.expect("the lock");
    assert!(commits(&guard).await);
    let token = guard.token();
    guard.downgrade().await.expect("downgraded");
    assert_eq!(guard.token(), token, "a downgrade keeps the token");
    assert!(commits(&guard).await);
    let reader = lock.read().await.expect("readers share");
    assert!(commits(&reader).await);
    let permit = locks
        .semaphore("s", 2)
        .expect("a name")
        .acquire()
        .await
        .expect("a permit");
    assert!(commits(&permit).await);
}

#[tokio::test]
async fn requests_per_cycle() {
    let server = EtcdServer::start().await.expect("a server");
    let locks = client(&url([server.addr()], "session=60s")).await;
    let count = async || metric(server.addr(), "grpc_server_started_total").await;
    let mutex = locks.mutex("a").expect("a name");
    let cycle = async || {
        let guard = mutex.lock().await.expect("the lock");
        assert_eq!(
            guard.release().await.expect("the store answers"),
            Released::Freed
        );
        let guard = mutex
            .try_lock()
            .await
            .expect("an answer")
            .expect("it is free");
        assert_eq!(
            guard.release().await.expect("the store answers"),
            Released::Freed
        );
    };
    cycle().await;
    let before = count().await;
    for _ in 0..10 {
        cycle().await;
    }
    assert_eq!(
        count().await - before,
        40.0,
        "one request to acquire, one to release"
    );
}

#[tokio::test]
async fn unreachable_and_foreign_servers_are_told_apart_in_time() {
    let server = EtcdServer::start().await.expect("a server");
    let limit = Duration::from_secs(2);
    let connect = async |url: String| {
        let started = Instant::now();
        let config = dlock_etcd::Config::from_url(&url)
            .expect("a good URL")
            .connect_timeout(limit);
        let error = config.connect().await.expect_err("no connection");
        let took = started.elapsed();
        assert!(took < limit + Duration::from_secs(2), "{took:?}: {error}");
        error
    };
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    proxy.black_hole(Direction::Both);
    let error = connect(format!("etcd://{}", proxy.addr())).await;
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");

    let free = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let addr = free.local_addr().expect("an address");
    drop(free);
    let error = connect(format!("etcd://{addr}")).await;
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains(&addr.to_string()), "{error}");
    let error = connect(format!("etcd://{addr},{}", proxy.addr())).await;
    assert!(
        matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut),
        "{error}"
    );
    assert!(error.to_string().contains(&addr.to_string()), "{error}");
    assert!(
        error.to_string().contains(&proxy.addr().to_string()),
        "{error}"
    );

    // A port that speaks HTTP/1 alone, as etcd's for v2 did, and one that speaks something else.
    for words in [
        "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        "-ERR unknown command\r\n",
    ] {
        let other = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let addr = other.local_addr().expect("an address");
        let talks = tokio::spawn(async move {
            while let Ok((mut stream, _)) = other.accept().await {
                stream.write_all(words.as_bytes()).await.ok();
                // It listens on, as a server does.
                tokio::spawn(
                    async move { tokio::io::copy(&mut stream, &mut tokio::io::sink()).await },
                );
            }
        });
        let error = connect(format!("etcd://{addr}")).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(
            error.to_string().contains("is it the right port?"),
            "{error}"
        );
        talks.abort();
    }

    // A port of etcd itself that serves HTTP/1 alone, as one for v2 did. It hangs up, and what it says about it may be lost.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = free.local_addr().expect("an address");
    drop(free);
    let mut settings = Etcd::default();
    settings.args = vec![format!("--listen-metrics-urls=http://{addr}")];
    let _server = EtcdServer::start_with(settings).await.expect("a server");
    let error = connect(format!("etcd://{addr}")).await;
    assert!(
        matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unreachable),
        "{error}"
    );
    assert!(
        error.to_string().contains("is it the right port?"),
        "{error}"
    );

    let error = dlock_etcd::Config::from_url("http://localhost").expect_err("another scheme");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

/// `etcdctl lock`, and every program with the `concurrency.Mutex` of etcd's own client, stands in the same queue as our writers.
#[tokio::test]
async fn lock_of_etcds_own_client_and_ours_exclude_each_other() {
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], PATIENT);
    let (locks, other) = (client(&url).await, client(&url).await);
    let mut raw = raw(&[server.addr()]).await;
    let guard = lock(&locks, "a").await;
    // It asks for the lock, says so when it has it, and keeps it until there is a certain file.
    let over = server.site().file("over");
    let script = format!(
        "echo held; while [ ! -e {} ]; do sleep 0.05; done",
        over.display()
    );
    let mut theirs = tokio::process::Command::new("etcdctl")
        .args(["--endpoints", &server.addr().to_string()])
        .args(["lock", "dlock/a/w", "--", "sh", "-c", &script])
        .env("ETCDCTL_API", "3")
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("etcdctl");
    until_so("it stands behind us", async || {
        entries(&mut raw, "a").await.len() == 2
    })
    .await;
    let waits = waiter(&other, "a");
    until_so("and we behind it", async || {
        entries(&mut raw, "a").await.len() == 3
    })
    .await;
    let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(
        theirs.stdout.take().expect("piped"),
    ));
    let early = tokio::time::timeout(Duration::from_millis(300), lines.next_line()).await;
    assert!(early.is_err(), "two hold: {early:?}");
    assert_eq!(
        guard.release().await.expect("the store answers"),
        Released::Freed
    );
    let said = soon(lines.next_line()).await.expect("its output");
    assert_eq!(said.as_deref(), Some("held"));
    let tried = locks.mutex("a").expect("a name").try_lock().await;
    assert!(tried.expect("the store answers").is_none(), "two hold");
    let reader = locks.rw_lock("a").expect("a name").try_read().await;
    assert!(reader.expect("the store answers").is_none(), "two hold");
    assert!(!waits.is_finished(), "two hold");
    std::fs::write(&over, "").expect("a file");
    let next = soon(waits).await.expect("no panic").expect("the lock");
    assert_eq!(
        next.release().await.expect("the store answers"),
        Released::Freed
    );
    soon(theirs.wait()).await.expect("it ends");
}
