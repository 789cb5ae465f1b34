//! Many at once: a crowd that comes to a ZooKeeper lock in one moment.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test ends where it breaks"
)]

mod zk_support;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Backend, Request};
use dlock_core::{Mode, Name, Order, Released, Settings, SystemClock};
use integration_tests::{Direction, FaultProxy, until};
use tokio::time::timeout;
use zk_support::*;

const WAITERS: usize = 1500;

/// More of one client never stand in line for an answer.
const AT_ONCE: u64 = 128;

/// Only so many ask for a place that the server can answer in time; the others have sent nothing, and no time-out runs for them.
#[tokio::test]
async fn crowd_of_one_client_asks_in_parts_and_shares_its_reads() {
    let server = server().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let holder = client(&(server.url() + "?session=60s")).await;
    let guard = lock(&holder, "a").await;
    let settings = Settings::new().order(Order::Strict).trip_timeout(3 * SOON);
    let crowd = client_with(&format!("zk://{}?session=60s", proxy.addr()), settings).await;
    let mark = lock(&crowd, "mark").await;
    let admin = Admin::connect(&server.url()).await;
    let before = count(&server, "zk_ephemerals_count").await;

    proxy.pause(Direction::ToClient);
    let read = proxy.received().to_client;
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..WAITERS {
        let (mutex, served) = (crowd.mutex("a").expect("a name"), served.clone());
        tokio::spawn(async move {
            let guard = mutex.lock().await.expect("the lock");
            served.send(guard.token().expect("a token")).ok();
            guard.release().await.expect("release")
        });
    }
    until("all of them", SOON, || async {
        match crowd.stats().waiting as usize {
            WAITERS => Ok(()),
            n => Err(integration_tests::Error::answer("waiting", n.to_string())),
        }
    })
    .await
    .expect("the crowd");
    // One connection carries requests in order: when the mark is gone, the server has had all that was sent before.
    drop(mark);
    queue_of(&admin, "/dlock/mark", 0).await;
    let asked = count(&server, "zk_ephemerals_count").await + 1 - before;
    println!("{asked} of {WAITERS} have asked for a place before the first answer");
    assert!(asked <= AT_ONCE, "{asked} ask at the same time");

    proxy.resume();
    until("all stand in the queue", 3 * SOON, || async {
        match count(&server, "zk_ephemerals_count").await - before {
            n if n as usize + 1 == WAITERS => Ok(()),
            n => Err(integration_tests::Error::answer("places", n.to_string())),
        }
    })
    .await
    .expect("nobody is given up");
    // Each watches itself and the one before, and a server counts a node once for each client that watches it.
    watched(&server, WAITERS as u64 + 1).await;
    assert_eq!(crowd.stats().failed, 0);
    // A place's name has some 60 bytes. If each had read the queue that it found, it would have read half of it.
    let each = (proxy.received().to_client - read) / WAITERS as u64;
    println!("{each} bytes for each of {WAITERS} waiters");
    assert!(
        each < 60 * WAITERS as u64 / 20,
        "each has read {each} bytes"
    );

    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let mut last = None;
    for _ in 0..20 {
        let next = timeout(SOON, order.recv()).await.expect("the next");
        assert!(last < next, "in the order of the queue");
        last = next;
    }
}

/// Whoever waits to be let in hears that the server is silent, as those do who were let in.
#[tokio::test]
async fn crowd_that_nobody_answers_is_told_so() {
    let server = server().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let settings = Settings::new()
        .order(Order::Strict)
        .trip_timeout(Duration::from_millis(500));
    let crowd = client_with(&format!("zk://{}?session=60s", proxy.addr()), settings).await;
    proxy.pause(Direction::ToClient);
    let waits: Vec<_> = (0..3 * AT_ONCE)
        .map(|_| {
            let mutex = crowd.mutex("a").expect("a name");
            tokio::spawn(async move { mutex.lock().await })
        })
        .collect();
    for wait in waits {
        let told = timeout(SOON, wait).await.expect("in time");
        let error = told.expect("no panic").expect_err("nobody answers");
        assert!(error.is_retryable(), "{error}");
    }
    proxy.resume();
}

/// Those who wait to be let in hear that others are answered: then the server is slow, and not silent. The backend is asked directly, because who asks through
/// the whole library would come again after an error.
#[tokio::test]
async fn slow_answers_to_others_are_no_silence_to_those_who_wait_to_be_let_in() {
    const CROWD: usize = 6 * AT_ONCE as usize;
    let server = server().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let holder = client(&(server.url() + "?session=60s")).await;
    let guard = lock(&holder, "a").await;
    let crowd = backend(&format!("zk://{}?session=60s", proxy.addr())).await;
    let before = count(&server, "zk_ephemerals_count").await;
    // The last wait for five answers to others, one after the other: longer than anybody bears with silence.
    proxy.delay(Direction::ToClient, Duration::from_secs(1));
    let mut waits = Vec::new();
    for _ in 0..CROWD {
        let name = Name::new("a").expect("a name");
        let request = Request::new(name, Mode::Exclusive, Arc::new(SystemClock))
            .with_trip_timeout(Duration::from_secs(3));
        let crowd = crowd.clone();
        waits.push(tokio::spawn(async move { crowd.acquire(&request).await }));
    }
    until("all stand in the queue", 2 * SOON, || async {
        let given_up = waits.iter().filter(|wait| wait.is_finished()).count();
        assert_eq!(given_up, 0, "who waited was told that the server is silent");
        match count(&server, "zk_ephemerals_count").await - before {
            n if n as usize == CROWD => Ok(()),
            n => Err(integration_tests::Error::answer("places", n.to_string())),
        }
    })
    .await
    .expect("nobody is given up");
    waits.iter().for_each(tokio::task::JoinHandle::abort);
    drop(guard);
}
