//! How a holder gets to know that others wait, in each mode (C23).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

#[macro_use]
mod mysql_support;

use std::time::Duration;

use dlock_core::backend::Backend;
use dlock_core::{Locks, Name, Order, Settings};
use dlock_mysql::MySqlBackend;
use integration_tests::Flavor;
use mysql_support::*;

on_both!(
    those_who_wait_are_known_to_other_clients_and_only_to_them,
    waiters_that_die_or_give_up_are_not_waited_for,
    a_crowd_of_waiters_is_seen_to_the_last,
);

/// Waits until a client knows whether others wait.
async fn known(what: &str, backend: &MySqlBackend, waits: bool) {
    let name = Name::new("a").expect("a name");
    integration_tests::until(what, SOON, || async {
        match backend.others_wait(&name).await {
            now if now == waits => Ok(()),
            now => Err(integration_tests::Error::answer(
                "others_wait",
                now.to_string(),
            )),
        }
    })
    .await
    .expect("it is known");
}

async fn is_known(backend: &MySqlBackend) -> bool {
    backend.others_wait(&Name::new("a").expect("a name")).await
}

async fn those_who_wait_are_known_to_other_clients_and_only_to_them(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in MODES {
        let url = url(&server, mode);
        let (one, two) = (backend(&url).await, backend(&url).await);
        let holder = Locks::new(one.clone()).expect("defaults");
        let waiter = Locks::new(two.clone()).expect("defaults");
        let guard = lock(&holder, "a").await;
        assert!(!is_known(&one).await, "{mode}: nobody waits");
        // A task of its own that asks the server by itself is nobody else.
        let strict = Settings::new().order(Order::Strict);
        let own = holder
            .with(strict)
            .expect("settings")
            .mutex("a")
            .expect("a name");
        let own = tokio::spawn(async move { own.lock().await });
        let theirs = mysql_support::waiter(&waiter, "a");
        known(mode, &one, true).await;
        known(mode, &two, true).await;
        theirs.abort();
        // The task of the first is still there.
        known(mode, &one, false).await;
        assert!(is_known(&two).await, "{mode}: a task of the other waits");
        soon("the word", async {
            let theirs = mysql_support::waiter(&waiter, "a");
            guard.wanted().await;
            theirs.abort();
        })
        .await;
        free(guard).await;
        free(
            soon("the own", own)
                .await
                .expect("no panic")
                .expect("the lock"),
        )
        .await;
        for (who, backend) in [("one", &one), ("two", &two)] {
            known(&format!("{mode}: {who}"), backend, false).await;
        }
    }
}

async fn waiters_that_die_or_give_up_are_not_waited_for(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in MODES {
        let url = url(&server, mode);
        let one = backend(&url).await;
        let holder = Locks::new(one.clone()).expect("defaults");
        let guard = lock(&holder, "a").await;
        let waiter = client(&url).await;
        let mutex = waiter.mutex("a").expect("a name");
        let brief = mutex.lock_within(Duration::from_millis(600));
        assert!(brief.await.expect("it answers").is_none(), "{mode}");
        known(&format!("{mode}: gave up"), &one, false).await;
        // One that ends without a word.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let its = url.clone();
        runtime.spawn(async move { client(&its).await.mutex("a").expect("a name").lock().await });
        known(&format!("{mode}: waits"), &one, true).await;
        runtime.shutdown_background();
        known(&format!("{mode}: died"), &one, false).await;
        free(guard).await;
    }
}

/// Only so many have a place; who has none gets one when another leaves.
async fn a_crowd_of_waiters_is_seen_to_the_last(flavor: Flavor) {
    const CROWD: usize = 11;
    let server = flavor.start().await.expect("a server");
    for mode in ["session", "advisory"] {
        let url = url(&server, mode);
        let first = client(&url).await;
        let guard = lock(&first, "a").await;
        let (got, mut gets) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..CROWD {
            let (url, got) = (url.clone(), got.clone());
            tokio::spawn(async move {
                let backend = backend(&url).await;
                let locks = Locks::new(backend.clone()).expect("defaults");
                let guard = locks.mutex("a").expect("a name").lock().await;
                got.send((backend, locks, guard.expect("the lock"))).ok();
            });
        }
        free(guard).await;
        for left in (0..CROWD).rev() {
            let (backend, _locks, guard) = soon("the next", gets.recv()).await.expect("one more");
            known(&format!("{mode}: {left} more"), &backend, left > 0).await;
            free(guard).await;
        }
    }
}
