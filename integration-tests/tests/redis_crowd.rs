//! Many tasks of one client that ask at once: their requests go together, and each still gets its own answer.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use std::time::Duration;

use dlock_core::{ErrorKind, Guard, HeldNow, Order, Released, Settings};
use futures::future::join_all;
use integration_tests::{Direction, FaultProxy, Redis, RedisServer, Reply};
use redis_support::rooms::{rooms, work};
use redis_support::*;

const TASKS: u64 = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_needs_fewer_requests_and_nobody_gets_another_s_answer() {
    let server = RedisServer::start().await.expect("redis");
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    server
        .command(&["CONFIG", "RESETSTAT"])
        .await
        .expect("reset");
    let rooms = rooms(400);
    let tasks = (0..TASKS).flat_map(|task| {
        [
            tokio::spawn(work(one.clone(), rooms.clone(), task * 4, 30)),
            // The other client meets the first at some of the names.
            tokio::spawn(work(two.clone(), rooms.clone(), task * 4 + 2, 30)),
        ]
    });
    for task in join_all(tasks.collect::<Vec<_>>()).await {
        assert_eq!(task.expect("a task"), 30, "every release is confirmed");
    }
    let cycles = 2 * TASKS * 30;
    let requests = calls(&server, "evalsha").await + calls(&server, "eval").await;
    assert!(
        requests < cycles,
        "{requests} requests for {cycles} cycles: they did not go together"
    );
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

/// A client that has taken a lock a moment ago believes that its key is there, and names no other. When it is not there, the lock is had all the
/// same, but not past somebody who waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_whose_keys_are_gone_are_looked_at_with_all_their_keys() {
    let server = RedisServer::start().await.expect("redis");
    let locks = client(&server.url()).await;
    let rooms = rooms(64);
    let all_rooms = async || {
        // The first one comes last, when many are under way.
        let tasks = (1..=64).map(|task| tokio::spawn(work(locks.clone(), rooms.clone(), task, 1)));
        let done = join_all(tasks.collect::<Vec<_>>()).await;
        done.into_iter()
            .map(|task| task.expect("a task"))
            .sum::<u64>()
    };
    let lose_all_keys = async || {
        let keys = server.command(&["KEYS", "dlock:{room:*}"]).await;
        let keys = keys.expect("KEYS");
        for key in keys.list().iter().filter_map(Reply::text) {
            server.command(&["DEL", &key]).await.expect("DEL");
        }
    };
    for _ in 0..4 {
        assert_eq!(all_rooms().await, 64);
        lose_all_keys().await;
        assert_eq!(all_rooms().await, 64);
    }
    // Somebody stands in the queue of the first room, and listens.
    let inboxes = server.command(&["PUBSUB", "CHANNELS", "dlock:inbox:*"]);
    let inboxes = inboxes.await.expect("PUBSUB");
    let inbox = inboxes.list()[0].text().expect("an inbox");
    let waiter = "1".repeat(32);
    let about = format!("9999999999999X 30000 {inbox} somebody");
    lose_all_keys().await;
    for command in [
        ["ZADD", "dlock:{room:0}:q", "1", &waiter],
        ["HSET", "dlock:{room:0}:w", &waiter, &about],
    ] {
        server.command(&command).await.expect("a waiter");
    }
    let others = (1..64).map(|task| tokio::spawn(work(locks.clone(), rooms.clone(), task, 1)));
    let others: Vec<_> = others.collect();
    let mutex = locks.mutex("room:0").expect("a name");
    let first = tokio::spawn(async move { mutex.try_lock().await }).await;
    let first = first.expect("a task").expect("an answer");
    assert!(first.is_none(), "past the waiter");
    join_all(others).await;
    let info = locks.inspect("room:0").await.expect("inspect");
    assert_eq!(info.holders[0].label, "somebody");
}

/// Tasks that do not take turns among themselves meet in one trip, also with the release before them.
#[tokio::test]
async fn of_those_who_want_the_same_lock_in_one_trip_one_gets_it() {
    let server = RedisServer::start().await.expect("redis");
    let settings = Settings::new().order(Order::Strict);
    let locks = client_with(&server.url(), settings).await;
    let attempt = |name: String| {
        let mutex = locks.mutex(name).expect("a name");
        tokio::spawn(async move { mutex.try_lock().await.expect("an answer") })
    };
    let mut last = None;
    for round in 0..3 {
        if round == 1 {
            // Free, and known to the server.
            let guard: Guard = last.take().expect("a guard");
            assert_eq!(guard.release().await.expect("release"), Released::Freed);
        }
        server.freeze();
        let mut alone = Vec::new();
        for n in 0..8 {
            alone.push(attempt(format!("alone:{round}:{n}")));
            tokio::task::yield_now().await;
        }
        let release = last.take().map(|guard| tokio::spawn(guard.release()));
        tokio::task::yield_now().await;
        let mut tries = Vec::new();
        for _ in 0..20 {
            tries.push(attempt("wanted".to_owned()));
            tokio::task::yield_now().await;
        }
        server.thaw();
        for guard in join_all(alone).await {
            assert!(guard.expect("a task").is_some());
        }
        if let Some(release) = release {
            let end = release.await.expect("a task").expect("release");
            assert_eq!(end, Released::Freed);
        }
        let guards = join_all(tries).await;
        let mut guards: Vec<_> = guards
            .into_iter()
            .filter_map(|g| g.expect("a task"))
            .collect();
        assert_eq!(guards.len(), 1, "round {round} (C1)");
        last = guards.pop();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_that_others_hold_are_busy_or_waited_for() {
    let server = RedisServer::start().await.expect("redis");
    let (mine, theirs) = (client(&server.url()).await, client(&server.url()).await);
    let held = join_all((0..TASKS / 2).map(|n| lock(&theirs, Box::leak(format!("n:{n}").into()))));
    let held = held.await;
    let tries = (0..TASKS).map(|n| {
        let mutex = mine.mutex(format!("n:{n}")).expect("a name");
        tokio::spawn(async move { mutex.try_lock().await.expect("an answer") })
    });
    for (n, guard) in join_all(tries.collect::<Vec<_>>())
        .await
        .into_iter()
        .enumerate()
    {
        let guard = guard.expect("a task");
        assert_eq!(guard.is_some(), n as u64 >= TASKS / 2, "n:{n}");
    }
    let waiters = (0..TASKS).map(|n| {
        let mutex = mine.mutex(format!("n:{n}")).expect("a name");
        tokio::spawn(async move { mutex.lock_within(SOON).await.expect("an answer") })
    });
    let waiters: Vec<_> = waiters.collect();
    waiting(&mine, "n:0", 1).await;
    for guard in held {
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
    for guard in join_all(waiters).await {
        let guard = guard.expect("a task").expect("it is free");
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_one_lock_is_told_to_its_own_task_alone() {
    let server = RedisServer::start_with(Redis {
        acl: Some(acl().replace("~dlock:* ", "~dlock:{good* ~dlock:{dlock-check-* ")),
        ..Redis::default()
    })
    .await
    .expect("redis");
    let url = server.url().replace("redis://", "redis://locker:s3cret@");
    let locks = client(&url).await;
    // Neither a lock of ours nor a string; and a string that looks a little like one.
    for strange in [
        &["HSET", "dlock:{good:7}", "a", "b"][..],
        &["SET", "dlock:{good:71}", "somebody else's!"],
    ] {
        server.command(strange).await.expect("a command");
    }
    for _ in 0..5 {
        let tasks = (0..TASKS).map(|n| {
            let name = match n {
                33 => "forbidden".to_owned(),
                n => format!("good:{n}"),
            };
            let mutex = locks.mutex(name).expect("a name");
            tokio::spawn(async move {
                let guard = mutex.try_lock().await?.expect("nobody has it");
                guard.release().await
            })
        });
        let ends = join_all(tasks.collect::<Vec<_>>()).await;
        for (n, end) in ends.into_iter().enumerate() {
            match (n, end.expect("a task")) {
                (7 | 71, Err(error)) => assert_eq!(error.kind(), ErrorKind::Store, "{error}"),
                (33, Err(error)) => assert_eq!(error.kind(), ErrorKind::Denied, "{error}"),
                (7 | 33 | 71, Ok(_)) => panic!("{n} was taken"),
                (_, end) => assert_eq!(end.expect("a lock"), Released::Freed),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_futures_leave_nothing_and_stop_nobody() {
    let server = RedisServer::start().await.expect("redis");
    let locks = client(&server.url()).await;
    for round in 0..10_u64 {
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let mutex = locks.mutex(format!("d:{task}")).expect("a name");
                tokio::spawn(async move {
                    let guard = mutex.lock().await.expect("a lock");
                    let _ = guard.release().await;
                })
            })
            .collect();
        // At another moment in each round: not begun, waiting for others, under way, held.
        for _ in 0..round * 3 {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_micros(round * 150)).await;
        for task in tasks.iter().step_by(2) {
            task.abort();
        }
        for task in tasks {
            if let Err(error) = task.await {
                assert!(error.is_cancelled(), "{error}");
            }
        }
    }
    // Whatever was dropped is undone: another client gets every lock.
    let other = client(&server.url()).await;
    for task in 0..TASKS {
        drop(lock(&other, &format!("d:{task}")).await);
    }
    for locks in [locks, other] {
        locks.close().await.expect("close");
    }
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_break_in_a_crowd_let_nobody_in_twice() {
    let server = RedisServer::start().await.expect("redis");
    let proxy = FaultProxy::start(server.addr()).await.expect("proxy");
    let settings = Settings::new().retry_unreachable_for(seconds(20));
    let broken = client_with(&through(&server, &proxy), settings).await;
    let sound = client(&server.url()).await;
    let rooms = rooms(60);
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let locks = if task % 4 == 0 { &sound } else { &broken };
            tokio::spawn(work(locks.clone(), rooms.clone(), task, 30))
        })
        .collect();
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(30)).await;
        proxy.reset_all().await;
    }
    for task in join_all(tasks).await {
        task.expect("nobody met another");
    }
    for locks in [broken, sound] {
        locks.close().await.expect("everything is confirmed");
    }
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_is_reported_to_everybody_in_time() {
    let server = RedisServer::start().await.expect("redis");
    let proxy = FaultProxy::start(server.addr()).await.expect("proxy");
    let url = format!(
        "{}?answer_timeout=300ms&connect_timeout=1s",
        through(&server, &proxy)
    );
    let locks = client(&url).await;
    proxy.black_hole(Direction::Both);
    let tries = (0..TASKS).map(|n| {
        let mutex = locks.mutex(format!("s:{n}")).expect("a name");
        tokio::spawn(async move { tokio::time::timeout(SOON, mutex.try_lock()).await })
    });
    for answer in join_all(tries.collect::<Vec<_>>()).await {
        let error = answer
            .expect("a task")
            .expect("in time")
            .expect_err("silence");
        assert!(error.is_retryable(), "{error}");
    }
    proxy.heal().await;
    let other = client(&server.url()).await;
    for n in 0..TASKS {
        drop(lock(&other, &format!("s:{n}")).await);
    }
    locks.close().await.expect("close");
    other.close().await.expect("close");
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_lock_that_cannot_be_renewed_costs_no_other() {
    let server = RedisServer::start().await.expect("redis");
    let settings = Settings::new().lease(seconds(3));
    let locks = client_with(&server.url(), settings).await;
    let (bad, good) = (lock(&locks, "bad").await, lock(&locks, "good").await);
    for command in [
        &["DEL", "dlock:{bad}"][..],
        &["HSET", "dlock:{bad}", "a", "b"],
    ] {
        server.command(command).await.expect("a command");
    }
    // Both were due in the same trips.
    let reason = tokio::time::timeout(SOON, bad.lost()).await;
    reason.expect("the loss is told");
    let lost = tokio::time::timeout(seconds(2), good.lost()).await;
    assert!(lost.is_err(), "it was not renewed because of the other");
    assert_eq!(good.release().await.expect("release"), Released::Freed);
}

/// A trip of many carries a release, and its answer is lost; what then asks alone is refused for good, and knows nothing of the first.
#[tokio::test]
async fn a_release_that_is_refused_after_a_trip_without_an_answer_is_in_doubt() {
    let server = RedisServer::start_with(Redis {
        acl: Some(acl()),
        ..Redis::default()
    })
    .await
    .expect("redis");
    let proxy = FaultProxy::start(server.addr()).await.expect("proxy");
    let url = through(&server, &proxy).replace("redis://", "redis://locker:s3cret@");
    let locks = client(&url).await;
    let guard = lock(&locks, "held").await;
    let owner = locks.inspect("held").await.expect("inspect").holders[0]
        .owner
        .clone();
    let crowd = |of: &str| {
        let tries = (0..20).map(|n| {
            let mutex = locks.mutex(format!("{of}:{n}")).expect("a name");
            async move { mutex.try_lock().await.map(drop) }
        });
        join_all(tries.collect::<Vec<_>>())
    };
    // So that the server knows the script by its hash, and the first answer to it is not that it does not.
    crowd("first").await;
    let password = ["ACL", "SETUSER", "locker", "resetpass", ">another"];
    server.command(&password).await.expect("ACL");
    proxy.drop_reply_to(format!("-{owner}"), Duration::ZERO);
    let (_, end) = futures::future::join(crowd("second"), guard.release()).await;
    let error = end.expect_err("the password is another");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(error.held_now(), HeldNow::Unknown, "{error}");
}
