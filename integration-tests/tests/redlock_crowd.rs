//! Many tasks of one client that ask a quorum at once: their requests go to each node together, and none is kept waiting for another.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;
mod redlock_support;

use std::time::{Duration, Instant};

use dlock_core::{Locks, Order, Released, Settings};
use futures::future::join_all;
use integration_tests::{Direction, FaultProxy};
use redis_support::rooms::{rooms, work};
use redis_support::{SOON, calls, lock, number};
use redlock_support::*;

/// What a far network adds to every answer.
const AWAY: Duration = Duration::from_millis(20);
/// A node may take half a second, beside a busy machine. One trip after the other, a crowd would take seconds.
const PATIENT: &str = "?persistent=true&node_timeout=500ms";
/// Who waits for long meets every stall of a busy machine.
const MORE_PATIENT: &str = "?persistent=true&node_timeout=2s";
const CROWD: usize = 120;

/// Three nodes that are far away for one client, which is connected to all of them.
struct Far {
    three: Five,
    proxies: Vec<FaultProxy>,
    locks: Locks,
}

impl Far {
    async fn start(settings: Settings, parameters: &str) -> Self {
        let three = start(3).await.expect("servers");
        let (url, proxies) = behind_proxies(&three, parameters).await;
        let locks = client_with(&url, settings).await;
        cycle(&locks, "a").await;
        for proxy in &proxies {
            proxy.delay(Direction::ToClient, AWAY);
        }
        Self {
            three,
            proxies,
            locks,
        }
    }

    fn is_near(&self) {
        for proxy in &self.proxies {
            proxy.delay(Direction::ToClient, Duration::ZERO);
        }
    }

    /// How many stand in the queue of each node.
    async fn queues(&self) -> Vec<i64> {
        let counts = self.three.servers.iter().map(|server| async move {
            let count = server.command(&["ZCARD", "redlock:{a}:q"]).await;
            number(&count.expect("ZCARD"))
        });
        join_all(counts).await
    }

    /// How many scripts each node has run, when it runs no more.
    async fn scripts(&self) -> Vec<u64> {
        let mut last = Vec::new();
        loop {
            let counts = self.three.servers.iter();
            let now = join_all(counts.map(|server| calls(server, "evalsha"))).await;
            if now == last {
                return now;
            }
            last = now;
            tokio::time::sleep(ms(300)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_tries_one_lock_is_told_in_time_that_others_have_it() {
    let far = Far::start(Settings::new(), PATIENT).await;
    let other = far.three.client(PERSISTENT).await;
    let held = lock(&other, "a").await;
    let tries = (0..CROWD).map(|_| {
        let mutex = far.locks.mutex("a").expect("a name");
        tokio::spawn(async move { mutex.try_lock().await })
    });
    let answers = join_all(tries.collect::<Vec<_>>()).await;
    let answers = answers.into_iter().map(|answer| answer.expect("a task"));
    let told: Vec<_> = answers
        .filter(|answer| !matches!(answer, Ok(None)))
        .collect();
    assert!(told.is_empty(), "{} of {CROWD}: {:?}", told.len(), told[0]);
    assert_eq!(far.queues().await, [0, 0, 0]);
    assert_eq!(held.release().await.expect("release"), Released::Freed);
    clean(&far.three).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_waits_for_one_lock_stands_at_every_node_and_stays() {
    let far = Far::start(Settings::new().order(Order::Strict), MORE_PATIENT).await;
    let other = far.three.client(PERSISTENT).await;
    let held = lock(&other, "a").await;
    let begun = Instant::now();
    let waiters: Vec<_> = (0..CROWD)
        .map(|_| {
            let mutex = far.locks.mutex("a").expect("a name");
            tokio::spawn(async move {
                let guard = mutex.lock().await.expect("the lock");
                guard.release().await.expect("release")
            })
        })
        .collect();
    let all = [CROWD as i64; 3];
    while far.queues().await != all {
        let queues = far.queues().await;
        assert!(begun.elapsed() < seconds(1), "{queues:?} stand");
        tokio::time::sleep(ms(5)).await;
    }
    let stand = Instant::now();
    while stand.elapsed() < seconds(10) {
        assert_eq!(far.queues().await, all, "after {:?}", stand.elapsed());
        tokio::time::sleep(ms(50)).await;
    }
    far.is_near();
    assert_eq!(held.release().await.expect("release"), Released::Freed);
    for waiter in join_all(waiters).await {
        assert_eq!(waiter.expect("a task"), Released::Freed);
    }
    clean(&far.three).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_who_leave_together_are_freed_each_by_one_request() {
    const READERS: usize = 150;
    let far = Far::start(Settings::new(), PATIENT).await;
    let room = far.locks.rw_lock("a").expect("a name");
    let readers = join_all((0..READERS).map(|_| room.read())).await;
    let readers: Vec<_> = readers
        .into_iter()
        .map(|reader| reader.expect("to read"))
        .collect();
    let before = far.scripts().await;
    let ends = join_all(readers.into_iter().map(|reader| reader.release())).await;
    let ends: Vec<_> = ends.into_iter().map(|end| end.expect("release")).collect();
    assert!(ends.iter().all(|end| *end == Released::Freed), "{ends:?}");
    let spent = far.scripts().await.into_iter().zip(before);
    let spent: Vec<_> = spent.map(|(now, before)| now - before).collect();
    assert_eq!(spent, [READERS as u64; 3]);
    clean(&far.three).await;
}

/// Eight ask; one node is slower than the quorum, whose counters differ and have to be raised. Meanwhile the slow one answers, so that whoever asks then
/// waits for nobody there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_answer_keeps_nobody_waiting_while_counters_are_raised() {
    let three = start(3).await.expect("servers");
    let (url, proxies) = behind_proxies(
        &three,
        "?persistent=true&node_timeout=5s&answer_timeout=10s",
    )
    .await;
    let locks = client(&url).await;
    cycle(&locks, "a").await;
    let count_on = async |name: &str, node: usize, counter: &str| {
        let key = format!("redlock:{{{name}}}");
        let set = ["SET", &key, counter, "PX", "600000"];
        three.servers[node].command(&set).await.expect("SET");
    };
    for waits in [false, true] {
        for proxy in &proxies {
            proxy.delay(Direction::ToClient, Duration::ZERO);
        }
        clean(&three).await;
        let name = |n: usize| format!("{waits}:{n}");
        for n in 0..8 {
            // The first node is below the second, and is told its number.
            count_on(&name(n), 0, "4000000000000000").await;
            count_on(&name(n), 1, "4000000000000500").await;
        }
        proxies[0].delay(Direction::ToClient, ms(1000));
        proxies[2].delay(Direction::ToClient, ms(1100));
        let ask = |n: usize| {
            let mutex = locks.mutex(name(n)).expect("a name");
            tokio::spawn(async move {
                match waits {
                    true => mutex.lock().await.map(Some),
                    false => mutex.try_lock().await,
                }
            })
        };
        let eight: Vec<_> = (0..8).map(ask).collect();
        // The raise is under way from 1,000 ms to 2,000 ms, and the slow answer is there at 1,100 ms.
        tokio::time::sleep(ms(1200)).await;
        let asked = Instant::now();
        let last = ask(8);
        let key = format!("redlock:{{{}}}", name(8));
        integration_tests::until("the slow node is asked", SOON, || async {
            let value = three.servers[2].command(&["GET", &key]).await?;
            match value.text() {
                Some(_) => Ok(()),
                None => Err(integration_tests::Error::answer("GET", "nothing")),
            }
        })
        .await
        .expect("asked");
        let asked = asked.elapsed();
        assert!(asked < ms(500), "after {asked:?}, waits: {waits}");
        for guard in join_all(eight.into_iter().chain([last])).await {
            let guard = guard.expect("a task").expect("an answer");
            drop(guard.expect("nobody else has it"));
        }
    }
}

const ROOMS: usize = 64;

/// Counters that are ahead of every clock, and not the same: what is proposed is always too low.
async fn count_ahead(three: &Five) {
    for (node, server) in three.servers.iter().enumerate() {
        for room in 0..ROOMS {
            let key = format!("redlock:{{room:{room}}}");
            let counter = 4_000_000_000_000_000 + (node * 40 * (room % 3)) as u64;
            let counter = counter.to_string();
            let set = ["SET", &key, &counter, "PX", "600000"];
            server.command(&set).await.expect("SET");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_break_in_a_crowd_let_nobody_in_twice() {
    const TASKS: u64 = 80;
    let three = start(3).await.expect("servers");
    let (url, proxies) = behind_proxies(&three, PERSISTENT).await;
    let settings = Settings::new().retry_unreachable_for(seconds(20));
    let broken = client_with(&url, settings).await;
    let sound = three.client(PERSISTENT).await;
    count_ahead(&three).await;
    let rooms = rooms(ROOMS);
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let locks = if task % 4 == 0 { &sound } else { &broken };
            tokio::spawn(work(locks.clone(), rooms.clone(), task, 20))
        })
        .collect();
    for round in 0..12 {
        tokio::time::sleep(ms(40)).await;
        proxies[round % 3].reset_all().await;
    }
    let mut freed = 0;
    for task in join_all(tasks).await {
        freed += task.expect("nobody met another");
    }
    assert!(freed > TASKS * 20 / 2, "{freed} of {}", TASKS * 20);
    for locks in [broken, sound] {
        locks.close().await.expect("everything is confirmed");
    }
    clean(&three).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_futures_leave_nothing_and_stop_nobody() {
    let three = start(3).await.expect("servers");
    let locks = three.client(PERSISTENT).await;
    count_ahead(&three).await;
    for round in 0..10_u64 {
        let tasks: Vec<_> = (0..ROOMS)
            .map(|room| {
                let mutex = locks.mutex(format!("room:{room}")).expect("a name");
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
        tokio::time::sleep(Duration::from_micros(round * 300)).await;
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
    let other = three.client(PERSISTENT).await;
    for room in 0..ROOMS {
        drop(lock(&other, &format!("room:{room}")).await);
    }
    for locks in [locks, other] {
        locks.close().await.expect("close");
    }
    clean(&three).await;
}
