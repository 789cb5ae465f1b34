//! Modes `session` and `advisory`: what a hold is when its connection breaks (C1).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

#[macro_use]
mod mysql_support;

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use dlock_core::backend::{Backend, Outcome, Renewal, Request};
use dlock_core::{Guard, Locks, LossReason, Mode, Name, Released, SystemClock};
use integration_tests::{FaultProxy, Flavor, MySqlServer};
use mysql_support::*;

on_both!(
    clean_hand_over_costs_nothing_and_a_crash_the_validity,
    tries_alone_get_the_lock_of_a_crashed_holder,
    holder_goes_on_with_another_connection_while_nobody_else_wants_the_lock,
    release_on_a_dead_connection_frees_at_once,
    broken_lock_is_lost_by_its_holder_before_another_one_holds,
    break_that_is_given_up_leaves_no_session_in_use,
    lost_hold_gives_its_session_back,
    renewal_that_comes_after_the_release_ends_no_connection,
    release_of_a_lost_hold_leaves_no_lock_behind,
    connections_of_many_holds_are_used_again,
    hold_that_waited_and_went_on_is_given_back_by_its_new_connection,
    two_never_hold_at_once_while_connections_are_reset_and_killed,
);

const CONNECTED: [&str; 2] = ["session", "advisory"];

fn short(server: &MySqlServer, mode: &str) -> String {
    with(&server.url(), &format!("mode={mode}&session_validity=1s"))
}

/// The same way to the server, through a proxy.
async fn through(server: &MySqlServer, url: &str) -> (FaultProxy, Locks) {
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let url = url.replace(&server.addr().to_string(), &proxy.addr().to_string());
    (proxy, client(&url).await)
}

async fn clean_hand_over_costs_nothing_and_a_crash_the_validity(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in CONNECTED {
        // Whoever waits for a validity here is not done soon.
        let long = with(&server.url(), &format!("mode={mode}&session_validity=5m"));
        let (holder, other) = (client(&long).await, client(&long).await);
        for _ in 0..10 {
            let guard = lock(&holder, "hand over").await;
            let waits = waiter(&other, "hand over");
            free(guard).await;
            let next = soon("the waiter", waits).await.expect("no panic");
            free(next.expect("the lock")).await;
        }
        let url = url(&server, mode);
        let other = client(&url).await;

        // To the server, this client is gone with all its connections, and did not leave in order.
        let (proxy, crashes) = through(&server, &url).await;
        let guard = lock(&crashes, "hand over").await;
        let waits = waiter(&other, "hand over");
        proxy.refuse();
        proxy.reset_all().await;
        let tried = client(&url).await;
        let tried = tried.mutex("hand over").expect("a name").try_lock().await;
        assert!(tried.expect("it answers").is_none(), "{mode}");
        let next = soon("the waiter", waits).await.expect("no panic");
        assert!(!guard.is_held(), "{mode}: two hold");
        free(next.expect("the lock")).await;
    }
}

/// After a crash a `try_lock` never waits, and gets the lock as soon as it is certain that the dead one no longer holds.
async fn tries_alone_get_the_lock_of_a_crashed_holder(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in CONNECTED {
        let url = short(&server, mode);
        let other = client(&url).await;
        let (proxy, crashes) = through(&server, &url).await;
        let guard = lock(&crashes, "tries").await;
        proxy.refuse();
        proxy.reset_all().await;
        let mutex = other.mutex("tries").expect("a name");
        let next = soon("a try", async {
            loop {
                if let Some(guard) = mutex.try_lock().await.expect("it answers") {
                    return guard;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let next = next.await;
        assert!(!guard.is_held(), "{mode}: two hold");
        assert!(next.token() > guard.token(), "{mode}");
        free(next).await;
    }
}

async fn holder_goes_on_with_another_connection_while_nobody_else_wants_the_lock(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in CONNECTED {
        let locks = client(&url(&server, mode)).await;
        let guard = lock(&locks, "alone").await;
        let token = guard.token();
        kill(&server, &connections(&server).await).await;
        let renewals = locks.stats().renewals;
        soon("two renewals", async {
            while locks.stats().renewals < renewals + 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        assert!(guard.is_held(), "{mode}");
        assert_eq!(guard.token(), token, "{mode}");
        assert_eq!(locks.stats().losses.total(), 0, "{mode}");
        let other = client(&url(&server, mode)).await;
        let taken = other.mutex("alone").expect("a name").try_lock().await;
        assert!(taken.expect("it answers").is_none(), "{mode}");
        free(guard).await;
        free(lock(&other, "alone").await).await;
    }
}

async fn release_on_a_dead_connection_frees_at_once(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in CONNECTED {
        let (locks, other) = (
            client(&url(&server, mode)).await,
            client(&url(&server, mode)).await,
        );
        let guard = lock(&locks, "dead").await;
        kill(&server, &connections(&server).await).await;
        free(guard).await;
        let next = other.mutex("dead").expect("a name").try_lock().await;
        free(
            next.expect("it answers")
                .expect("it was given back in order"),
        )
        .await;
    }
}

async fn broken_lock_is_lost_by_its_holder_before_another_one_holds(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in CONNECTED {
        let url = short(&server, mode);
        let (holder, other) = (client(&url).await, client(&url).await);
        let guard = lock(&holder, "broken").await;
        assert!(other.break_lock("broken").await.expect("it answers"));
        assert!(!guard.is_held(), "{mode}: the break came back too early");
        assert_eq!(
            soon("the loss is told", guard.lost()).await,
            LossReason::Gone
        );
        let next = other.mutex("broken").expect("a name").try_lock().await;
        let next = next.expect("it answers").expect("it is free now");
        assert!(next.token() > guard.token(), "{mode}");
        assert_eq!(
            guard.release().await.expect("it answers"),
            Released::AlreadyLost
        );
        free(next).await;
        assert!(!other.break_lock("broken").await.expect("it answers"));
    }
}

/// A break takes the lock itself, to see that it is free. It is dropped at each of its steps around that.
async fn break_that_is_given_up_leaves_no_session_in_use(flavor: Flavor) {
    const STEPS: usize = 16;
    let server = flavor.start().await.expect("a server");
    let request = |name: &str| {
        let name = Name::new(name).expect("a good name");
        Request::new(name, Mode::Exclusive, Arc::new(SystemClock))
    };
    for mode in CONNECTED {
        let url = with(
            &server.url(),
            &format!("mode={mode}&session_validity=500ms"),
        );
        let holder = backend(&url).await;
        let broken = (0..STEPS).map(async |steps| {
            let name = format!("broken {steps}");
            let held = holder.try_acquire(&request(&name)).await;
            assert!(matches!(held, Ok(Outcome::Held(_))), "{held:?}");
            let breaker = backend(&with(&url, "max_sessions=1&connections=1")).await;
            let name = Name::new(&name).expect("a good name");
            let started = Instant::now();
            let mut left = steps;
            let mut breaks = Box::pin(breaker.break_lock(&name));
            poll_fn(|context| {
                if breaks.as_mut().poll(context).is_ready() {
                    return Poll::Ready(());
                }
                // Before this it waits for the holder's validity.
                if started.elapsed() < Duration::from_millis(450) {
                    return Poll::Pending;
                }
                match left.checked_sub(1) {
                    None => return Poll::Ready(()),
                    Some(fewer) => left = fewer,
                }
                Poll::Pending
            })
            .await;
            drop(breaks);
            let next = breaker.try_acquire(&request("another one")).await;
            if let Err(error) = next {
                panic!("{mode}, after {steps} steps: {error}");
            }
        });
        futures::future::join_all(broken).await;
    }
}

/// Core does not ask the store about a hold that is gone, so what the client keeps for it must go with the answer.
async fn lost_hold_gives_its_session_back(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in CONNECTED {
        let url = short(&server, mode);
        let (holder, other) = (
            client(&with(&url, "max_sessions=1")).await,
            client(&url).await,
        );
        let guard = lock(&holder, "broken").await;
        assert!(other.break_lock("broken").await.expect("it answers"));
        soon("the loss is told", guard.lost()).await;
        let next = soon("a session for another lock", lock(&holder, "next")).await;
        free(next).await;
        drop(guard);
    }
}

/// The connection of a hold that was given back may carry another one.
async fn renewal_that_comes_after_the_release_ends_no_connection(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in CONNECTED {
        let backend = backend(&url(&server, mode)).await;
        let name = Name::new("renewed late").expect("a name");
        let request = Request::new(name, Mode::Exclusive, Arc::new(SystemClock));
        let taken = backend.try_acquire(&request).await.expect("an answer");
        let Outcome::Held(lease) = taken else {
            panic!("{mode}: it is not free");
        };
        let lease = Arc::new(lease);
        let before: BTreeSet<_> = connections(&server).await.into_iter().collect();
        let renewed = std::slice::from_ref(&lease);
        let (freed, renewed) = tokio::join!(backend.release(&lease), backend.renew(renewed));
        assert_eq!(freed.expect("an answer"), Released::Freed, "{mode}");
        assert!(
            matches!(renewed[0], Renewal::Lost(_)),
            "{mode}: {renewed:?}"
        );
        let after: BTreeSet<_> = connections(&server).await.into_iter().collect();
        assert_eq!(after, before, "{mode}");
        backend.close().await.expect("an end");
    }
}

/// A release whose mark is gone has not given the lock back at the server: its connection must not be kept with it.
async fn release_of_a_lost_hold_leaves_no_lock_behind(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in CONNECTED {
        // Nobody renews, and the server ends no silent connection, before the test is over.
        let url = with(&server.url(), &format!("mode={mode}&session_validity=5m"));
        let (holder, other) = (client(&url).await, client(&url).await);
        let guard = lock(&holder, "gone").await;
        let forget = format!(
            "UPDATE dlock_{mode}_marks SET stamp = stamp + 1, owner = NULL WHERE name = 'gone' AND part = 1"
        );
        server.sql(&forget).await.expect("changed");
        let released = guard.release().await.expect("it answers");
        assert_eq!(released, Released::AlreadyLost, "{mode}");
        free(lock(&other, "gone").await).await;
    }
}

/// A new connection costs several trips. Those of many holds stay for the next ones.
async fn connections_of_many_holds_are_used_again(flavor: Flavor) {
    const HOLDS: usize = 40;
    let server = flavor.start().await.expect("a server");
    for mode in CONNECTED {
        let url = with(&server.url(), &format!("mode={mode}&session_validity=5m"));
        let locks = client(&url).await;
        let all = async || {
            let names = (0..HOLDS).map(|number| format!("many {number}"));
            let held = names.map(async |name| lock(&locks, &name).await);
            let held = futures::future::join_all(held).await;
            futures::future::join_all(held.into_iter().map(free)).await;
            connections(&server).await.into_iter().collect()
        };
        let before: BTreeSet<_> = all().await;
        let after: BTreeSet<_> = all().await;
        // Those that calls share may have become more.
        let again = before.intersection(&after).count();
        assert!(again >= HOLDS, "{mode}: {again} of {} again", before.len());
        locks.close().await.expect("closed");
    }
}

/// The place among those who wait was the old connection's, and the new one has nothing to give back there. It is as good as any for the next attempt.
async fn hold_that_waited_and_went_on_is_given_back_by_its_new_connection(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in CONNECTED {
        let url = url(&server, mode);
        let (holder, locks) = (client(&url).await, client(&url).await);
        let guard = lock(&holder, "waited").await;
        let waits = waiter(&locks, "waited");
        tokio::time::sleep(Duration::from_millis(200)).await;
        free(guard).await;
        let guard = soon("the waiter", waits).await.expect("no panic");
        let guard = guard.expect("the lock");
        holder.close().await.expect("closed");
        let before = connections(&server).await;
        kill(&server, &before).await;
        let renewals = locks.stats().renewals;
        soon("two renewals", async {
            while locks.stats().renewals < renewals + 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        let went_on: BTreeSet<_> = connections(&server).await.into_iter().collect();
        assert!(before.iter().all(|id| !went_on.contains(id)), "{mode}");
        free(guard).await;
        free(lock(&locks, "other").await).await;
        let after: BTreeSet<_> = connections(&server).await.into_iter().collect();
        assert!(after.is_subset(&went_on), "{mode}: another one was made");
        locks.close().await.expect("closed");
    }
}

/// The highest token of those who were told that they hold.
#[derive(Default)]
struct Checker {
    last: AtomicU64,
    visits: AtomicU64,
}

impl Checker {
    /// One visit: nobody else may be inside while we are *and our hold is valid*.
    async fn visit(&self, guard: &Guard, mode: &str) {
        let token = guard.token().expect("a token").get();
        let before = self.last.fetch_max(token, Ordering::SeqCst);
        assert!(before < token, "{mode}: token {token} after {before}");
        for _ in 0..20 {
            if !guard.is_held() {
                return;
            }
            // A later holder would have raised it, and we are still valid.
            let last = self.last.load(Ordering::SeqCst);
            assert!(
                last == token || !guard.is_held(),
                "{mode}: {token} and {last} hold at the same time"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.visits.fetch_add(1, Ordering::SeqCst);
    }
}

/// Four clients take turns while connections are reset and killed all the time: two never hold at once (C1).
async fn two_never_hold_at_once_while_connections_are_reset_and_killed(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in CONNECTED {
        let checker = Arc::<Checker>::default();
        let over = Arc::<AtomicBool>::default();
        let url = short(&server, mode);
        let mut proxies = Vec::new();
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let (proxy, locks) = through(&server, &url).await;
            proxies.push(proxy);
            let (checker, over) = (checker.clone(), over.clone());
            tasks.push(tokio::spawn(async move {
                while !over.load(Ordering::SeqCst) {
                    let mutex = locks.mutex("storm").expect("a name");
                    // An outage is no failure here.
                    if let Ok(Some(guard)) = mutex.lock_within(Duration::from_secs(4)).await {
                        checker.visit(&guard, mode).await;
                        let _ = guard.release().await;
                    }
                }
            }));
        }
        let end = Instant::now() + Duration::from_secs(8);
        let mut turn = 0;
        while Instant::now() < end {
            turn += 1;
            proxies[turn % 4].reset_all().await;
            if turn % 3 == 0 {
                let all = connections(&server).await;
                kill(&server, &all[..all.len().min(2)]).await;
            }
            tokio::time::sleep(Duration::from_millis(200 + 70 * (turn as u64 % 7))).await;
        }
        over.store(true, Ordering::SeqCst);
        for task in tasks {
            soon("the client ends", task).await.expect("no panic");
        }
        let visits = checker.visits.load(Ordering::SeqCst);
        assert!(visits > 3, "{mode}: {visits} undisturbed visits in all");
    }
}
