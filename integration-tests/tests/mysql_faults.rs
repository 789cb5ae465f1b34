//! Faults on a real MySQL or MariaDB: what every mode must survive, and what it must tell.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

#[macro_use]
mod mysql_support;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use dlock_core::{ErrorKind, HeldNow, Locks, Settings};
use integration_tests::{Direction, FaultProxy, Flavor, MySql, MySqlServer};
use mysql_async::prelude::Queryable;
use mysql_support::*;

on_both!(
    killed_and_restarted_server_is_an_outage_and_not_the_end,
    connections_killed_by_an_administrator_while_held_and_while_waiting,
    frozen_server_ends_calls_in_time_and_loses_holds_by_the_clock,
    max_connections_is_a_clear_error_and_passes,
    idle_time_out_of_the_server_ends_no_hold_and_fails_no_call,
    silent_network_does_not_keep_a_waiter_of_a_connected_mode,
    waiter_whose_server_is_out_of_reach_is_undone_when_it_is_back,
    stalled_server_gets_no_more_connections_than_were_promised,
    rows_whose_leases_end_before_the_answers_come_are_not_made_again_and_again,
    row_of_an_attempt_that_came_too_late_is_undone_and_not_left_to_its_lease,
);

async fn killed_and_restarted_server_is_an_outage_and_not_the_end(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let mut held = Vec::new();
    for mode in MODES {
        let locks = client(&url(&server, mode)).await;
        let guard = lock(&locks, "restart").await;
        held.push((mode, locks, guard));
    }
    server.kill();
    for (mode, locks, _) in &held {
        let other = locks.mutex("other").expect("a name");
        let error = other.try_lock().await.expect_err("it is down");
        assert!(
            matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut),
            "{mode}: {error}"
        );
    }
    server.restart().await.expect("it comes again");
    for (mode, locks, guard) in held {
        let before = guard.token();
        let next = {
            let other = hasty(&url(&server, mode)).await;
            let waits = waiter(&other, "restart");
            if matches!(mode, "session" | "advisory") {
                // It goes on with a new connection if it is quick enough, and is lost if not: never both.
                tokio::select! {
                    _ = guard.lost() => {}
                    () = tokio::time::sleep(Duration::from_secs(2)) => {}
                }
                let was_held = guard.is_held();
                let released = guard.release().await.expect("it answers");
                assert!(
                    was_held || released == dlock_core::Released::AlreadyLost,
                    "{mode}"
                );
            } else {
                // The row was committed.
                assert!(guard.is_held(), "{mode}");
                free(guard).await;
            }
            soon("the lock works again", waits)
                .await
                .expect("no panic")
                .expect("the lock")
        };
        assert!(next.token() > before, "{mode}: tokens start again");
        free(next).await;
        free(lock(&locks, "restart").await).await;
    }
}

async fn connections_killed_by_an_administrator_while_held_and_while_waiting(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in MODES {
        let url = url(&server, mode);
        let (holder, other) = (hasty(&url).await, hasty(&url).await);
        let guard = lock(&holder, "kill").await;
        let waits = waiter(&other, "kill");
        // A waiter of `session` and `advisory` shows as a connection; the others ask again and again anyway.
        tokio::time::sleep(Duration::from_millis(300)).await;
        for _ in 0..3 {
            kill(&server, &connections(&server).await).await;
        }
        // Either it goes on, with a new connection, or the waiter gets the lock after it knows.
        if guard.is_held() && !waits.is_finished() {
            let _ = guard.release().await.expect("it answers");
        } else {
            soon("the holder is told", guard.lost()).await;
        }
        let next = soon("the waiter gets it", waits).await.expect("no panic");
        free(next.expect("it answers")).await;
        holder.close().await.expect("closed");
        other.close().await.expect("closed");
    }
}

async fn frozen_server_ends_calls_in_time_and_loses_holds_by_the_clock(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let mut held = Vec::new();
    for mode in MODES {
        let locks = hasty(&url(&server, mode)).await;
        let guard = lock(&locks, "frozen").await;
        held.push((mode, locks, guard));
    }
    server.freeze();
    let limit = Duration::from_millis(500);
    for (mode, locks, _) in &held {
        let started = Instant::now();
        let another = locks.mutex("another").expect("a name");
        let error = another
            .lock_within(limit)
            .await
            .expect_err("nobody answers");
        assert!(
            matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unreachable),
            "{mode}: {error}"
        );
        assert!(started.elapsed() < limit + Duration::from_secs(5), "{mode}");
    }
    for (_, _, guard) in &held {
        soon("the loss is told", guard.lost()).await;
        assert!(!guard.is_held());
    }
    server.thaw();
    for (_, locks, _) in &held {
        free(lock(locks, "frozen").await).await;
    }
}

async fn max_connections_is_a_clear_error_and_passes(flavor: Flavor) {
    let server = MySqlServer::start_with(MySql {
        flavor,
        args: vec!["--max-connections=10".to_owned()],
        ..MySql::default()
    })
    .await
    .expect("a server");
    let url = url(&server, "advisory");
    let locks = client(&url).await;
    let mut held = Vec::new();
    let error = loop {
        let name = format!("lock {}", held.len());
        match locks.mutex(&name).expect("a name").try_lock().await {
            Ok(guard) => held.push(guard.expect("free")),
            Err(error) => break error,
        }
        assert!(held.len() < 20, "more connections than the server has");
    };
    assert_eq!(
        (error.kind(), error.held_now()),
        (ErrorKind::Store, HeldNow::No),
        "{error}"
    );
    assert!(error.to_string().contains("max_connections"), "{error}");
    for guard in held {
        free(guard).await;
    }
    let again = locks.mutex("afterwards").expect("a name").try_lock().await;
    drop(again.expect("there is room again"));
    locks.close().await.expect("closed");

    let few = client(&with(&url, "max_sessions=2")).await;
    let _held = (lock(&few, "a").await, lock(&few, "b").await);
    let third = few.mutex("c").expect("a name").try_lock().await;
    let error = third.expect_err("two is the limit");
    assert!(error.to_string().contains("max_sessions"), "{error}");
}

async fn idle_time_out_of_the_server_ends_no_hold_and_fails_no_call(flavor: Flavor) {
    let mut args = vec!["--wait-timeout=1", "--interactive-timeout=1"];
    args.extend(match flavor {
        Flavor::MariaDb => &["--idle-transaction-timeout=1", "--max-statement-time=1"][..],
        // It has no limit for idle transactions.
        Flavor::MySql => &["--max-execution-time=1000"],
    });
    let server = flavor.start_with(&args).await.expect("a server");
    let mut held = Vec::new();
    for mode in MODES {
        let url = url(&server, mode);
        let (locks, other) = (hasty(&url).await, hasty(&url).await);
        let guard = lock(&locks, "idle").await;
        let waits = waiter(&other, "idle");
        held.push((mode, locks, guard, waits));
    }
    // Over the server's time-outs several times, and over the session's too.
    tokio::time::sleep(Duration::from_secs(5)).await;
    for (mode, locks, guard, waits) in held {
        assert!(guard.is_held(), "{mode}");
        assert_eq!(locks.stats().renewals_failed, 0, "{mode}");
        free(guard).await;
        let next = soon("the waiter", waits).await.expect("no panic");
        free(next.expect("it waited")).await;
        free(lock(&locks, "idle").await).await;
    }
}

async fn silent_network_does_not_keep_a_waiter_of_a_connected_mode(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    for mode in ["session", "advisory"] {
        let url = url(&server, mode);
        let guard = lock(&client(&url).await, "silent").await;
        let through = url.replace(&server.addr().to_string(), &proxy.addr().to_string());
        let settings = Settings::new().retry_unreachable_for(Duration::ZERO);
        let other = Locks::builder(backend(&with(&through, "answer_timeout=1s")).await)
            .settings(settings)
            .build()
            .expect("settings");
        let waits = waiter(&other, "silent");
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.black_hole(Direction::Both);
        let error = soon("the waiter is told", waits)
            .await
            .expect("no panic")
            .expect_err("nobody answers");
        assert!(
            matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unreachable),
            "{mode}: {error}"
        );
        proxy.heal().await;
        free(guard).await;
    }
}

/// It cannot ask whether the server still knows it, and that question was not even sent. But its wait was: it may be granted the lock, long after its
/// caller has gone.
async fn waiter_whose_server_is_out_of_reach_is_undone_when_it_is_back(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in ["session", "advisory"] {
        let url = with(&server.url(), &format!("mode={mode}&session_validity=5m"));
        let guard = lock(&client(&url).await, "reach").await;
        let before = connections(&server).await;
        let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
        let through = url.replace(&server.addr().to_string(), &proxy.addr().to_string());
        // A connection that was idle for so long is asked first whether it lives.
        let settings = Settings::new().retry_unreachable_for(Duration::ZERO);
        let other = Locks::builder(backend(&with(&through, "answer_timeout=5500ms")).await)
            .settings(settings)
            .build()
            .expect("settings");
        let waits = waiter(&other, "reach");
        tokio::time::sleep(Duration::from_millis(500)).await;
        let its: Vec<_> = connections(&server).await;
        let its: Vec<_> = its.into_iter().filter(|id| !before.contains(id)).collect();
        let idle = idle_connections(&server).await;
        let (idle, waiting): (Vec<_>, Vec<_>) = its.into_iter().partition(|id| idle.contains(id));
        assert_eq!(waiting.len(), 1, "{mode}: {idle:?}");
        kill(&server, &idle).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        proxy.half_open();
        proxy.refuse();
        let error = soon("the waiter is told", waits).await.expect("no panic");
        let error = error.expect_err("it is out of reach");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{mode}: {error}");
        assert_eq!(error.held_now(), HeldNow::Unknown, "{mode}: {error}");
        assert!(connections(&server).await.contains(&waiting[0]), "{mode}");
        proxy.accept();
        soon("the end of the wait", async {
            while connections(&server).await.contains(&waiting[0]) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        free(guard).await;
    }
}

/// The numbers of those on which nothing runs.
async fn idle_connections(server: &MySqlServer) -> Vec<String> {
    let sql = match server.flavor() {
        Flavor::MariaDb => "SELECT id FROM information_schema.processlist WHERE command = 'Sleep'",
        Flavor::MySql => {
            "SELECT processlist_id FROM performance_schema.threads WHERE processlist_command = 'Sleep'"
        }
    };
    let ids = server.sql(sql).await.expect("a list");
    ids.lines().map(str::to_owned).collect()
}

/// Calls that give up one after the other must not leave a connection each that is still being made.
async fn stalled_server_gets_no_more_connections_than_were_promised(flavor: Flavor) {
    const MOST: usize = 4;
    let server = flavor.start().await.expect("a server");
    for mode in MODES {
        let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
        let through =
            url(&server, mode).replace(&server.addr().to_string(), &proxy.addr().to_string());
        let parameters = format!("connections={MOST}&max_sessions={MOST}&connect_timeout=4s");
        let locks = Locks::builder(backend(&with(&through, &parameters)).await)
            .settings(Settings::new().trip_timeout(Duration::from_millis(100)))
            .build()
            .expect("settings");
        free(lock(&locks, "warm").await).await;
        proxy.black_hole(Direction::Both);
        let end = Instant::now() + Duration::from_secs(3);
        let calls = (0..3 * MOST).map(|n| {
            let mutex = locks.mutex(format!("stalled {n}")).expect("a name");
            async move {
                while Instant::now() < end {
                    let tried = mutex.try_lock().await;
                    tried.expect_err("nobody answers");
                    // Where all sessions are taken, that is told at once.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
        let port = proxy.addr().port();
        let looks = async {
            let (mut most, mut before) = (0, HashSet::new());
            while Instant::now() < end {
                let now = sockets_to(port);
                // One that is being closed is gone soon.
                most = most.max(now.intersection(&before).count());
                before = now;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            most
        };
        let (_, most) = tokio::join!(futures::future::join_all(calls), looks);
        // Calls share some, and holders and waiters have their own.
        let promised = match mode {
            "lease" | "unique" => MOST,
            _ => 2 * MOST,
        };
        assert!(most <= promised, "{mode}: {most} for {promised}");
        proxy.heal().await;
        free(lock(&locks, "warm").await).await;
    }
}

/// Each of them would keep the lock from others for a lease, and nobody would hold it.
async fn rows_whose_leases_end_before_the_answers_come_are_not_made_again_and_again(
    flavor: Flavor,
) {
    const LEASE: Duration = Duration::from_millis(600);
    let server = flavor.start().await.expect("a server");
    let url = url(&server, "unique");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let through = url.replace(&server.addr().to_string(), &proxy.addr().to_string());
    // Long enough for every step of an attempt, and its undo, again and again.
    let settings = Settings::new().lease(LEASE).trip_timeout(4 * SOON);
    let slow = Locks::builder(backend(&through).await)
        .settings(settings)
        .build()
        .expect("settings");
    proxy.delay(Direction::ToClient, LEASE * 3 / 2);
    let slow = slow.mutex("late").expect("a name");
    let error = slow.try_lock().await.expect_err("it came too late");
    assert_eq!(error.kind(), ErrorKind::TooLate, "{error}");
    proxy.heal().await;
    free(lock(&client(&url).await, "late").await).await;
}

/// The first row is gone when its token is to be drawn, so that makes another one: nobody was told of it, and it would keep others out for a lease.
async fn row_of_an_attempt_that_came_too_late_is_undone_and_not_left_to_its_lease(flavor: Flavor) {
    const LEASE: Duration = Duration::from_millis(4_500);
    let server = flavor.start().await.expect("a server");
    let url = url(&server, "unique");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let through = url.replace(&server.addr().to_string(), &proxy.addr().to_string());
    let settings = Settings::new().lease(LEASE).trip_timeout(4 * SOON);
    let slow = Locks::builder(backend(&with(&through, "answer_timeout=20s")).await)
        .settings(settings)
        .build()
        .expect("settings");
    let mut admin = connection(&url).await;
    // Two answers take longer than a lease, and one does not.
    proxy.delay(Direction::ToClient, LEASE * 2 / 3);
    let mutex = slow.mutex("late").expect("a name");
    let late = tokio::spawn(async move { mutex.try_lock().await });
    soon("its first row", async {
        loop {
            let gone = "DELETE FROM dlock_unique WHERE name = 'late'";
            admin.query_drop(gone).await.expect("an answer");
            if admin.affected_rows() > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let error = soon("an answer", late).await.expect("no panic");
    let error = error.expect_err("it came too late");
    proxy.heal().await;
    assert_eq!(error.kind(), ErrorKind::TooLate, "{error}");
    loop {
        let rows = "SELECT expires_at > UTC_TIMESTAMP(6) FROM dlock_unique WHERE name = 'late'";
        let lives: Option<bool> = admin.query_first(rows).await.expect("an answer");
        match lives {
            None => return,
            Some(lives) => assert!(lives, "its lease has ended, and it was not undone"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The connections that this process has, or is making, to a port of this machine, by their own port.
fn sockets_to(port: u16) -> HashSet<String> {
    const CLOSED_BY_US: [&str; 6] = ["04", "05", "06", "07", "09", "0B"];
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's list");
    let end = format!(":{port:04X}");
    let mut found = HashSet::new();
    for line in table.lines() {
        let mut fields = line.split_whitespace().skip(1).map(str::to_owned);
        let (Some(from), Some(to), Some(state)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if to.ends_with(&end) && !CLOSED_BY_US.contains(&state.as_str()) {
            found.insert(from);
        }
    }
    found
}
