//! Outages and busy locks, as the many tasks of one client meet them (C4, C5, C13, C16).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{World, millis, seconds};
use dlock_core::{ErrorKind, HeldNow, Settings};
use futures::future::join_all;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn an_outage_is_one_patience_for_all_local_waiters() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new().retry_unreachable_for(seconds(10)));
    control.cut();
    let start = Instant::now();
    let waits = (0..20).map(|_| async {
        let error = locks.mutex("x").unwrap().lock().await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        start.elapsed()
    });
    let last = join_all(waits).await.into_iter().max().unwrap();
    assert!(last <= seconds(11), "the last error after {last:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_back_in_time_serves_all_who_waited() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new().retry_unreachable_for(seconds(10)));
    control.cut();
    let waits = (0..20).map(|_| async {
        let guard = locks.mutex("x").unwrap().lock().await.unwrap();
        guard.release().await.unwrap()
    });
    let heal = async {
        tokio::time::sleep(seconds(8)).await;
        control.heal();
    };
    tokio::join!(join_all(waits), heal);
}

#[tokio::test(start_paused = true)]
async fn names_out_of_reach_do_not_delay_the_clean_up_of_others() {
    for hang in [false, true] {
        let world = World::new();
        let (locks, shards) = world.shards(Settings::new(), Duration::ZERO);
        let mut far = Vec::new();
        for n in 0..200 {
            let name = format!("far:{n}");
            far.push(locks.mutex(&name).unwrap().lock().await.unwrap());
        }
        shards.far_fails.store(!hang, Ordering::Relaxed);
        shards.far_hangs.store(hang, Ordering::Relaxed);
        let near = locks.mutex("near").unwrap().lock().await.unwrap();
        drop(far);
        tokio::time::sleep(seconds(1)).await;
        drop(near);
        let start = Instant::now();
        world.until_free("near").await;
        assert!(start.elapsed() < millis(200), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn tries_on_a_hung_store_leave_one_entry_a_name() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new().trip_timeout(seconds(1)));
    control.hang();
    let end = Instant::now() + Duration::from_secs(120);
    let polls = (0..50).map(|n| {
        let mutex = locks.mutex(format!("x{n}")).unwrap();
        async move {
            while Instant::now() < end {
                let error = mutex.try_lock().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::TimedOut);
            }
        }
    });
    let most = async {
        let mut most = 0;
        while Instant::now() < end {
            most = most.max(locks.stats().in_doubt);
            tokio::time::sleep(millis(500)).await;
        }
        most
    };
    let (_, most) = tokio::join!(join_all(polls), most);
    assert!(most <= 50, "{most} entries for 50 names");
    control.heal();
    locks.close().await.unwrap();
    assert_eq!(world.names(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_grant_whose_reply_was_lost_is_abandoned_before_the_pause() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    let other = world.client();
    for round in 0..20 {
        control.lose_reply(1);
        let mutex = locks.mutex("x").unwrap();
        let mut call = Box::pin(mutex.lock());
        assert!(futures::poll!(call.as_mut()).is_pending());
        // Without time passing, the clean-up has had its chance.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        let info = other.inspect("x").await.unwrap();
        assert!(!info.is_locked(), "round {round}");
        drop(call);
        tokio::time::sleep(seconds(3)).await;
    }
}

/// Another client holds, and tasks of one client wait with a limit: the answer is "busy", not "the store did not answer".
#[tokio::test(start_paused = true)]
async fn busy_is_busy_for_every_local_waiter() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    control.delay_requests(millis(80));
    let holder = world.client();
    let _held = holder.mutex("x").unwrap().lock().await.unwrap();
    for round in 0..5 {
        // The next in the line often has less time left than the store needs for an answer.
        let waits = (0..8).map(|n| {
            let mutex = locks.mutex("x").unwrap();
            async move {
                tokio::time::sleep(millis(n * 20)).await;
                mutex.lock_within(millis(300)).await
            }
        });
        for answer in join_all(waits).await {
            assert!(
                answer.expect("busy is not an error").is_none(),
                "round {round}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn readers_and_permits_of_a_client_go_side_by_side() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    control.delay_replies(millis(5));
    let start = Instant::now();
    let readers = (0..200).map(|_| async {
        let lock = locks.rw_lock("x").unwrap();
        lock.read().await.unwrap()
    });
    let readers = join_all(readers).await;
    assert!(start.elapsed() <= millis(20), "{:?}", start.elapsed());
    assert_eq!(locks.stats().held, 200);
    drop(readers);

    let start = Instant::now();
    let permits = (0..200).map(|_| async {
        let semaphore = locks.semaphore("y", 200).unwrap();
        semaphore.acquire().await.unwrap()
    });
    let permits = join_all(permits).await;
    assert!(start.elapsed() <= millis(20), "{:?}", start.elapsed());
    drop(permits);
}

/// A writer in the line keeps its place: readers that come later go behind it.
#[tokio::test(start_paused = true)]
async fn readers_side_by_side_do_not_pass_a_local_writer() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    control.delay_replies(millis(5));
    let lock = locks.rw_lock("x").unwrap();
    let first = lock.read().await.unwrap();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let writer = {
        let (lock, order) = (lock.clone(), order.clone());
        tokio::spawn(async move {
            let guard = lock.write().await.unwrap();
            order.lock().unwrap().push("writer");
            guard.release().await.unwrap()
        })
    };
    tokio::time::sleep(millis(20)).await;
    let readers: Vec<_> = (0..10)
        .map(|_| {
            let (lock, order) = (lock.clone(), order.clone());
            tokio::spawn(async move {
                let guard = lock.read().await.unwrap();
                order.lock().unwrap().push("reader");
                guard.release().await.unwrap()
            })
        })
        .collect();
    tokio::time::sleep(millis(50)).await;
    assert!(order.lock().unwrap().is_empty());
    drop(first);
    let _ = writer.await.unwrap();
    for reader in readers {
        let _ = reader.await.unwrap();
    }
    assert_eq!(order.lock().unwrap().first(), Some(&"writer"));
}

#[tokio::test(start_paused = true)]
async fn renewals_of_many_holds_go_in_a_bounded_number_of_trips() {
    let world = World::new();
    let settings = Settings::new().lease(seconds(30));
    let (locks, shards) = world.shards(settings, millis(50));
    let mut guards = Vec::new();
    for n in 0..20_000 {
        guards.push(locks.mutex(format!("x{n}")).unwrap().lock().await.unwrap());
    }
    tokio::time::sleep(seconds(35)).await;
    let most = shards.most.load(Ordering::Relaxed);
    assert!(most <= 32, "{most} trips at once");
    assert!(guards.iter().all(|guard| guard.is_held()));
    assert!(locks.stats().renewals >= 20_000);
}

/// What an earlier attempt of this client may still hold is undone before the next one asks.
#[tokio::test(start_paused = true)]
async fn a_try_after_a_lost_reply_does_not_meet_itself() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    let mutex = locks.mutex("x").unwrap();
    for _ in 0..10 {
        control.lose_reply(1);
        let error = mutex.try_lock().await.unwrap_err();
        assert_eq!(error.held_now(), HeldNow::Unknown);
        let guard = mutex.try_lock().await.unwrap();
        let guard = guard.expect("nobody else wants it");
        let _ = guard.release().await.unwrap();
    }
}

/// However many undos wait for a part of the store that does not answer, renewals do not stand behind them.
#[tokio::test(start_paused = true)]
async fn a_backlog_of_undos_costs_no_hold() {
    let world = World::new();
    let settings = Settings::new().lease(seconds(3));
    let (locks, shards) = world.shards(settings, Duration::ZERO);
    let mut far = Vec::new();
    for n in 0..12_000 {
        let name = format!("far:{n}");
        far.push(locks.mutex(&name).unwrap().lock().await.unwrap());
    }
    let near = locks.mutex("near").unwrap().lock().await.unwrap();
    shards.far_hangs.store(true, Ordering::Relaxed);
    drop(far);
    for _ in 0..20 {
        tokio::time::sleep(millis(500)).await;
        assert!(near.is_held());
    }
}

/// C5: a head that had been told "others hold it" is no evidence once the store has failed it.
#[tokio::test(start_paused = true)]
async fn an_outage_is_not_busy_for_those_behind_a_head_that_was_told_so_before() {
    let world = World::new();
    let settings = Settings::new()
        .retry_unreachable_for(seconds(60))
        .trip_timeout(seconds(1));
    let (locks, control) = world.client_with(settings);
    let holder = world.client();
    let _held = holder.mutex("x").unwrap().lock().await.unwrap();
    let mutex = locks.mutex("x").unwrap();
    let head = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    tokio::time::sleep(millis(10)).await;
    control.cut();
    tokio::time::sleep(millis(10)).await;
    let error = mutex.lock_within(seconds(2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(error.held_now(), HeldNow::No, "it has asked nothing itself");
    head.abort();
}

/// What is wrong with one request is no trouble of the store's.
#[tokio::test(start_paused = true)]
async fn a_refused_request_does_not_tell_the_line_of_an_outage() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new().retry_unreachable_for(Duration::ZERO));
    control.delay_replies(millis(5));
    let two = locks.semaphore("x", 2).unwrap();
    let held = two.acquire().await.unwrap();
    let wrong = locks.semaphore("x", 3).unwrap();
    let (refused, right) = tokio::join!(wrong.acquire(), two.acquire());
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
    drop((right.unwrap(), held));
}
