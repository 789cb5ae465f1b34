//! Locks in ZooKeeper, as a user and an administrator see them.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where it breaks"
)]

mod zk_support;

use std::time::Duration;

use dlock_core::{ErrorKind, Locks, Mode, Name, Order, Released, Settings};
use integration_tests::{Direction, FaultProxy, ZooKeeperServer, until};
use zk_support::*;

#[tokio::test]
async fn locks_are_nodes_with_curators_names_below_chroot_and_folder() {
    let url = shared().await;
    let admin = Admin::connect(&url).await;
    admin.create("/shop", "").await;
    let locks = client(&format!("{url}/shop?folder=my/locks")).await;
    let guard = lock(&locks, "a/b").await;
    let queue = admin.queue("/shop/my/locks/a%2Fb").await;
    let id = uuid_of(&guard.owner_id());
    assert_eq!(queue, [format!("_c_{id}-lock-0000000000")]);
    let node = format!("/shop/my/locks/a%2Fb/{}", queue[0]);
    let (data, stat) = admin.0.get_data(&node).await.expect("the node");
    assert!(
        String::from_utf8_lossy(&data).starts_with("dlock:p:"),
        "{data:?}"
    );
    // A transaction has 64 tokens, for as many tasks to which the hold can be passed on.
    assert_eq!(
        guard.token().expect("a token").get(),
        stat.czxid as u64 * 64
    );
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}

fn uuid_of(simple: &str) -> String {
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &simple[range]);
    parts.join("-")
}

#[tokio::test]
async fn a_cycle_of_a_lock_that_nobody_else_wants_costs_two_requests() {
    let server = ZooKeeperServer::start().await.expect("zookeeper");
    let locks = client(&server.url()).await;
    let cycles = async |count: usize| {
        for _ in 0..count {
            let guard = lock(&locks, "a").await;
            assert_eq!(guard.release().await.expect("release"), Released::Freed);
        }
    };
    // Until it is known that nobody else wants it.
    cycles(4).await;
    let before = count(&server, "zk_packets_received").await;
    cycles(50).await;
    let packets = count(&server, "zk_packets_received").await - before;
    // Create and delete; and a heartbeat or two.
    assert!(
        (100..110).contains(&packets),
        "{packets} requests for 50 cycles"
    );
}

#[tokio::test]
async fn lock_that_others_want_again_is_noticed_at_once() {
    let server = ZooKeeperServer::start().await.expect("zookeeper");
    let (a, b) = (client(&server.url()).await, client(&server.url()).await);
    let admin = Admin::connect(&server.url()).await;
    for round in 0..10 {
        // Quiet for one of them.
        for _ in 0..5 {
            assert_eq!(
                lock(&a, "x").await.release().await.expect("release"),
                Released::Freed
            );
        }
        let other = lock(&b, "x").await;
        assert!(
            a.mutex("x")
                .expect("a name")
                .try_lock()
                .await
                .expect("try")
                .is_none(),
            "{round}"
        );
        assert_eq!(other.release().await.expect("release"), Released::Freed);
        // And with a node that was made anew, in which the numbers begin again.
        for _ in 0..3 {
            assert_eq!(
                lock(&a, "x").await.release().await.expect("release"),
                Released::Freed
            );
        }
        let last: u64 = lock(&a, "x").await.token().expect("a token").get();
        until("the place is left", SOON, || async {
            match admin.queue("/dlock/x").await.len() {
                0 => Ok(()),
                n => Err(integration_tests::Error::answer("queue", n.to_string())),
            }
        })
        .await
        .expect("dropped");
        admin.0.delete("/dlock/x", None).await.expect("delete");
        for _ in 0..20 {
            // Every number that the other one might expect is taken once.
            let other = lock(&b, "x").await;
            assert!(other.token().expect("a token").get() > last);
            assert!(
                a.mutex("x")
                    .expect("a name")
                    .try_lock()
                    .await
                    .expect("try")
                    .is_none(),
                "{round}"
            );
            assert_eq!(other.release().await.expect("release"), Released::Freed);
        }
    }
}

#[tokio::test]
async fn empty_nodes_go_by_themselves() {
    let server = ZooKeeperServer::start_with(with_quick_clean_up())
        .await
        .expect("zookeeper");
    let locks = client(&server.url()).await;
    let admin = Admin::connect(&server.url()).await;
    for number in 0..20 {
        let guard = lock(&locks, &format!("n{number}")).await;
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
    until("the folder is gone", SOON, || async {
        match admin.0.check_stat("/dlock").await.expect("stat") {
            None => Ok(()),
            Some(stat) => Err(integration_tests::Error::answer(
                "children",
                stat.num_children.to_string(),
            )),
        }
    })
    .await
    .expect("cleaned up");
    // And come back.
    let guard = lock(&locks, "n0").await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn parent_that_vanishes_at_any_moment_is_made_again() {
    let server = ZooKeeperServer::start().await.expect("zookeeper");
    let locks = client(&server.url()).await;
    let admin = Admin::connect(&server.url()).await;
    // An administrator who deletes every empty node as fast as possible.
    let deleting = tokio::spawn(async move {
        loop {
            let _ = admin.0.delete("/dlock/a", None).await;
            let _ = admin.0.delete("/dlock", None).await;
        }
    });
    for _ in 0..50 {
        let guard = lock(&locks, "a").await;
        assert!(guard.is_held());
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
    deleting.abort();
}

#[tokio::test]
async fn changes_are_made_only_under_the_lock() {
    let url = shared().await;
    let admin = Admin::connect(&url).await;
    for (path, data) in [
        ("/fenced", ""),
        ("/fenced/chroot", ""),
        ("/fenced/stock", "100"),
    ] {
        admin.create(path, data).await;
    }
    let zk = backend(&format!("{url}/fenced/chroot")).await;
    let locks = Locks::builder(zk.clone()).build().expect("defaults");
    let guard = lock(&locks, "stock").await;
    let node = zk.lock_node(&guard).await.expect("its node");
    assert!(node.starts_with("/fenced/chroot/dlock/stock/_c_"), "{node}");

    let sold = zk
        .fenced(&guard)
        .set("/fenced/stock", "99", Some(0))
        .create("/fenced/sale", "1");
    sold.commit().await.expect("held");
    assert_eq!(admin.read("/fenced/stock").await, "99");
    assert_eq!(admin.read("/fenced/sale").await, "1");

    // A version that is not the right one: nothing of it is done.
    let stale = zk
        .fenced(&guard)
        .delete("/fenced/sale", None)
        .set("/fenced/stock", "0", Some(0));
    let error = stale.commit().await.expect_err("the version is 1");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(admin.read("/fenced/sale").await, "1");

    // The hold ends without its holder's knowledge.
    assert!(
        client(&format!("{url}/fenced/chroot"))
            .await
            .break_lock("stock")
            .await
            .expect("break")
    );
    let error = zk
        .fenced(&guard)
        .set("/fenced/stock", "0", None)
        .commit()
        .await
        .expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(admin.read("/fenced/stock").await, "99");
}

#[tokio::test]
async fn inspect_tells_holders_and_waiters_in_order() {
    let url = shared().await;
    let (a, b) = (client(&url).await, client(&url).await);
    let first = a
        .rw_lock("inspected")
        .expect("a name")
        .read()
        .await
        .expect("a reader");
    let second = b
        .rw_lock("inspected")
        .expect("a name")
        .read()
        .await
        .expect("a reader");
    let writer = b.rw_lock("inspected").expect("a name");
    let writer = tokio::spawn(async move { writer.write().await });
    waiting(&a, "inspected", 1).await;
    let info = a.inspect("inspected").await.expect("inspect");
    let owners: Vec<_> = info
        .holders
        .iter()
        .map(|holder| holder.owner.clone())
        .collect();
    assert_eq!(owners, [first.owner_id(), second.owner_id()]);
    assert!(
        info.holders
            .iter()
            .all(|holder| holder.mode == Mode::Shared)
    );
    assert_eq!(info.holders[1].token, second.token());
    let since = info.holders[1].since.expect("when it came");
    let age = since.elapsed().unwrap_or_default();
    assert!(age < SOON, "by the server's clock: {age:?}");
    assert!(info.holders[0].since <= info.holders[1].since);
    assert_eq!(info.waiters[0].mode, Mode::Exclusive);
    // Breaking it frees both readers' places, and the writer gets it.
    assert!(a.break_lock("inspected").await.expect("break"));
    let write = tokio::time::timeout(SOON, writer)
        .await
        .expect("soon")
        .expect("no panic");
    assert_eq!(
        write.expect("the lock").release().await.expect("release"),
        Released::Freed
    );
}

#[tokio::test]
async fn semaphore_serves_its_waiters_one_by_one() {
    let server = ZooKeeperServer::start().await.expect("zookeeper");
    let url = server.url();
    let holder = client(&url).await.semaphore("s", 3).expect("a semaphore");
    let mut permits = Vec::new();
    for _ in 0..3 {
        permits.push(holder.acquire().await.expect("a permit"));
    }
    let look = client(&url).await;
    let (granted, mut grants) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..6 {
        let semaphore = client(&url).await.semaphore("s", 3).expect("a semaphore");
        let granted = granted.clone();
        tokio::spawn(async move {
            granted
                .send((number, semaphore.acquire().await.expect("a permit")))
                .ok();
        });
        waiting(&look, "s", number + 1).await;
    }
    // Whichever permit comes back, the first waiter gets it.
    for (expected, index) in [(0, 1), (1, 0), (2, 0), (3, 1), (4, 2), (5, 0)] {
        let permit = permits.remove(index);
        assert_eq!(permit.release().await.expect("release"), Released::Freed);
        let (number, permit) = tokio::time::timeout(SOON, grants.recv())
            .await
            .expect("soon")
            .expect("one");
        assert_eq!(number, expected);
        permits.push(permit);
    }
    for permit in permits {
        assert_eq!(permit.release().await.expect("release"), Released::Freed);
    }
}

#[tokio::test]
async fn the_servers_word_on_the_sessions_time_counts() {
    // Ticks of 200 ms: from 400 ms to a minute.
    let url = shared().await;
    for (asked, granted) in [("100ms", 400), ("5s", 5_000), ("24h", 60_000)] {
        let locks = client(&format!("{url}?session={asked}")).await;
        assert_eq!(locks.lease(), Duration::from_millis(granted), "{asked}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_who_try_are_not_kept_out_by_writers_who_try_in_vain() {
    let url = shared().await;
    let (holder, writer, reader) = (client(&url).await, client(&url).await, client(&url).await);
    let held = holder.rw_lock("tried").expect("a name");
    let held = held.read().await.expect("a reader");
    let tries = writer.rw_lock("tried").expect("a name");
    let tries = tokio::spawn(async move {
        loop {
            assert!(
                tries.try_write().await.expect("try").is_none(),
                "a reader holds"
            );
        }
    });
    let shares = reader.rw_lock("tried").expect("a name");
    for round in 0..200 {
        let guard = shares.try_read().await.expect("try");
        let guard = guard.unwrap_or_else(|| panic!("{round}: busy, and only readers hold"));
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
    tries.abort();
    assert_eq!(held.release().await.expect("release"), Released::Freed);
}

/// Without a look at each.
#[tokio::test]
async fn length_of_a_queue_is_counted_by_zookeeper() {
    let server = server().await;
    let backend = backend(&server.url()).await;
    let locks = client_with(&server.url(), Settings::new().order(Order::Strict)).await;
    let length = async |name: &str| {
        let name = Name::new(name).expect("a good name");
        backend
            .queue_length(&name)
            .await
            .expect("the store answers")
    };
    assert_eq!(length("a").await, 0);
    let guard = lock(&locks, "a").await;
    assert_eq!(length("a").await, 1);
    let waits = (0..20).map(|_| {
        let mutex = locks.mutex("a").expect("a good name");
        tokio::spawn(async move { mutex.lock().await })
    });
    let waits: Vec<_> = waits.collect();
    waiting(&locks, "a", 20).await;
    assert_eq!(length("a").await, 21);
    // One who comes behind them knows how many are before it, and counts nobody who comes later.
    let position = async || {
        let name = Name::new("a").expect("a good name");
        let asked = backend.queue_position(&name).await;
        asked.expect("the store answers")
    };
    assert_eq!(position().await, None, "nobody of that client waits");
    let last = Locks::builder(backend.clone()).build().expect("defaults");
    let wait = |locks: &Locks| {
        let mutex = locks.mutex("a").expect("a good name");
        tokio::spawn(async move { mutex.lock().await })
    };
    let its = wait(&last);
    waiting(&locks, "a", 21).await;
    let later = wait(&locks);
    waiting(&locks, "a", 22).await;
    assert_eq!(position().await, Some(21));
    its.abort();
    later.abort();
    waiting(&locks, "a", 20).await;
    assert_eq!(position().await, None);
    drop(guard);
    for wait in waits {
        wait.abort();
    }
    let _held = lock(&last, "b").await;
    let name = Name::new("b").expect("a good name");
    let asked = backend.queue_position(&name).await;
    assert_eq!(asked.expect("the store answers"), None, "it holds");
}

/// Each answer has its own limit; the whole, of hundreds, has none.
#[tokio::test]
async fn list_takes_as_long_as_the_server_answers() {
    const LOCKS: usize = 300;
    let server = server().await;
    let holder = client(&server.url()).await;
    let names: Vec<String> = (0..LOCKS).map(|n| format!("many:{n:03}")).collect();
    let held = names.iter().map(|name| lock(&holder, name));
    let held = futures::future::join_all(held).await;
    let settings = Settings::new().trip_timeout(Duration::from_millis(1));
    let locks = client_with(&server.url(), settings).await;
    let listed = locks.list("many:").await.expect("a list");
    let listed: Vec<&str> = listed.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(listed, names);
    drop(held);
}

/// A server that says nothing is no reason to wait for ever.
#[tokio::test]
async fn list_at_a_silent_server_ends() {
    let server = server().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let url = format!("zk://{}?session=2s&connect_timeout=1s", proxy.addr());
    let locks = client(&url).await;
    proxy.black_hole(Direction::Both);
    for _ in 0..2 {
        let listed = tokio::time::timeout(SOON, locks.list("")).await;
        let error = listed.expect("it ends").expect_err("nobody answers");
        assert!(error.is_retryable(), "{error}");
    }
}

#[tokio::test]
async fn reader_that_waits_already_is_let_in_by_a_downgrade() {
    let url = shared().await + "?folder=waits_already";
    let (mine, other) = (client(&url).await, client(&url).await);
    let guard = mine.rw_lock("a").expect("a name").write().await;
    let guard = guard.expect("the lock");
    let reader = other.rw_lock("a").expect("a name");
    let waits = tokio::spawn(async move { reader.read().await });
    waiting(&mine, "a", 1).await;
    guard.downgrade().await.expect("a reader");
    let shares = tokio::time::timeout(SOON, waits).await.expect("in time");
    let shares = shares.expect("no panic").expect("the lock");
    assert!(guard.is_held() && shares.is_held());
    for guard in [guard, shares] {
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
}
