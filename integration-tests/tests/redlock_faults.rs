//! What goes wrong around a quorum, on five real servers, and what becomes of the lock.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;
mod redlock_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::backend::{Backend, Outcome};
use dlock_core::{ErrorKind, LossReason, Released, Settings};
use integration_tests::{FaultProxy, Redis, RedisServer};
use redis_support::{SOON, lock, number};
use redlock_support::*;

#[tokio::test]
async fn one_and_two_nodes_down_are_not_missed_and_three_are() {
    let five = start(5).await.expect("servers");
    let locks = five.client(PERSISTENT).await;
    let mut last = cycle(&locks, "a").await;
    for down in [3, 1] {
        five.servers[down].kill();
        for _ in 0..3 {
            let token = cycle(&locks, "a").await;
            assert!(token > last);
            last = token;
        }
        // A new client does not need them either.
        cycle(&five.client(PERSISTENT).await, "a").await;
        assert!(
            locks
                .mutex("b")
                .expect("a name")
                .try_lock()
                .await
                .expect("a quorum")
                .is_some()
        );
    }
    five.servers[0].kill();
    let start = Instant::now();
    let error = locks
        .mutex("a")
        .expect("a name")
        .try_lock()
        .await
        .expect_err("two of five");
    // The three decide it, perhaps before the others have answered.
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(start.elapsed() < seconds(3), "{:?}", start.elapsed());
    let text = error.to_string();
    assert!(text.contains("of 5 nodes agreed, 3 are needed"), "{text}");
    for server in &five.servers {
        assert!(text.contains(&server.addr().to_string()), "{text}");
    }
    assert_eq!(text.matches("is the server running?").count(), 3, "{text}");
    let others = text.matches("granted").count() + text.matches("not waited for").count();
    assert_eq!(others, 2, "{text}");
    let error = dlocks::connect(&five.url(PERSISTENT))
        .await
        .expect_err("no quorum");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    drop(locks);
    clean(&five).await;
}

#[tokio::test]
async fn a_frozen_node_costs_nothing_while_a_quorum_answers() {
    let five = start(5).await.expect("servers");
    // A time-out that would be noticed.
    let locks = five.client("?persistent=true&node_timeout=2s").await;
    cycle(&locks, "a").await;
    five.servers[2].freeze();
    let start = Instant::now();
    for _ in 0..20 {
        cycle(&locks, "a").await;
    }
    assert!(start.elapsed() < seconds(2), "{:?}", start.elapsed());
    let other = five
        .client("?persistent=true&node_timeout=2s&connect_timeout=300ms")
        .await;
    let guard = lock(&locks, "a").await;
    let start = Instant::now();
    assert!(
        other
            .mutex("a")
            .expect("a name")
            .try_lock()
            .await
            .expect("an answer")
            .is_none()
    );
    assert!(start.elapsed() < seconds(2), "{:?}", start.elapsed());
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    five.servers[2].thaw();
    // What the frozen node was asked for does not come to life with it.
    clean(&five).await;
    cycle(&locks, "a").await;
}

#[tokio::test]
async fn frozen_nodes_without_which_there_is_no_quorum_cost_their_time_out() {
    let five = start(5).await.expect("servers");
    let locks = five.client("?persistent=true&node_timeout=300ms").await;
    cycle(&locks, "a").await;
    for server in &five.servers[..3] {
        server.freeze();
    }
    let start = Instant::now();
    let error = locks
        .mutex("a")
        .expect("a name")
        .try_lock()
        .await
        .expect_err("no quorum");
    let took = start.elapsed();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(took >= ms(300) && took < seconds(2), "{took:?}");
    assert!(
        error.to_string().contains("no answer within 300ms"),
        "{error}"
    );
    for server in &five.servers[..3] {
        server.thaw();
    }
    let settings = Settings::new().retry_unreachable_for(seconds(20));
    let patient = locks.with(settings).expect("good settings");
    cycle(&patient, "a").await;
    clean(&five).await;
}

/// C15: a grant whose answer was lost counts nowhere and stays nowhere.
#[tokio::test]
async fn grants_whose_answers_were_lost_are_freed() {
    let five = start(5).await.expect("servers");
    let mut url = five.url("?persistent=true&node_timeout=300ms&answer_timeout=500ms");
    let mut proxies = Vec::new();
    for server in &five.servers[..3] {
        let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
        url = url.replace(&server.addr().to_string(), &proxy.addr().to_string());
        proxies.push(proxy);
    }
    let locks = client(&url).await;
    cycle(&locks, "a").await;
    // Requests get through, answers do not: all five nodes give the lock, and two say so.
    for proxy in &proxies {
        proxy.black_hole(integration_tests::Direction::ToClient);
    }
    let error = locks
        .mutex("b")
        .expect("a name")
        .try_lock()
        .await
        .expect_err("too few");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    for proxy in &proxies {
        proxy.heal().await;
    }
    let other = five.client(PERSISTENT).await;
    cycle(&other, "b").await;
    clean(&five).await;
}

/// Resolves so many milliseconds after a full second of the time of day.
async fn past_a_second(wanted: u64) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = u64::from(now.expect("after 1970").subsec_millis());
    tokio::time::sleep(ms((1000 + wanted - now) % 1000)).await;
}

/// Redis tells the difference of two times without their fractions: soon after its start, a second too much.
#[tokio::test]
async fn a_node_never_looks_older_than_it_is() {
    past_a_second(500).await;
    // Its life begins after this.
    let before = Instant::now();
    let server = RedisServer::start().await.expect("a server");
    loop {
        // Each asks anew.
        let config = dlock_redis::Config::from_url(&server.url()).expect("a URL");
        let node = dlock_redis::node::Node::new(config).expect("a node");
        let age = node.life().await.expect("INFO").age();
        let real = before.elapsed();
        assert!(age <= real, "it seems to be {age:?} old after {real:?}");
        if age > seconds(1) {
            break;
        }
        tokio::time::sleep(ms(5)).await;
    }
}

/// A node that came back without its data does not count until the longest lease has passed.
#[tokio::test]
async fn a_node_restarted_empty_does_not_count_for_the_longest_lease() {
    // A busy machine may take its time to answer.
    const PARAMETERS: &str = "?longest_lease=3s&node_timeout=1s";
    let three = start(3).await.expect("servers");
    let settings = Settings::new()
        .lease(seconds(3))
        .retry_unreachable_for(seconds(20));
    // Nobody knows whether they had other data a moment ago.
    let other = client_with(&three.url(PARAMETERS), settings.clone()).await;
    let mutex = other.mutex("a").expect("a name");
    let error = mutex.try_lock().await.expect_err("too young");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("counts again in"), "{error}");
    cycle(&other, "a").await;
    // A hold at two of them that is not renewed, so that nobody knows of it but these two.
    let (url, _third) = cut_off(&three, 2, PARAMETERS).await;
    let locks = client_with(&url, settings.renewal(false)).await;
    past_a_second(500).await;
    let guard = lock(&locks, "a").await;
    // One goes for good, and one comes back.
    three.servers[0].kill();
    three.servers[1].kill();
    let down = Instant::now();
    three.servers[1].restart().await.expect("restart");
    // Now it says that it has run for a second, which it has not.
    past_a_second(20).await;
    // It has forgotten, and the third never knew: they would be a quorum.
    let next = loop {
        match mutex.try_lock().await {
            Ok(Some(next)) => break next,
            // Busy, or too few nodes.
            Ok(None) | Err(_) => tokio::time::sleep(ms(5)).await,
        }
        assert!(down.elapsed() < SOON * 2, "it never counts again");
    };
    assert!(!guard.is_held(), "two holders after {:?}", down.elapsed());
    assert!(down.elapsed() >= seconds(3), "{:?}", down.elapsed());
    assert!(next.token() > guard.token());
    // Somebody who says that nodes keep their data is believed: they count at once.
    three.servers[2].kill();
    three.servers[2].restart().await.expect("restart");
    let trusting = three.client("?persistent=true&node_timeout=1s").await;
    cycle(&trusting, "b").await;
}

/// One node is down, one forgets: the third alone remembers, and the holder is told.
#[tokio::test]
async fn a_holder_that_lost_its_quorum_to_a_restart_knows_it() {
    const PARAMETERS: &str = "?longest_lease=3s";
    let three = start(3).await.expect("servers");
    let settings = Settings::new()
        .lease(seconds(3))
        .retry_unreachable_for(seconds(20));
    let locks = client_with(&three.url(PARAMETERS), settings.clone()).await;
    let guard = lock(&locks, "a").await;
    let old = guard.token();
    three.servers[0].kill();
    three.servers[1].kill();
    three.servers[1].restart().await.expect("restart");
    let reason = tokio::time::timeout(SOON, guard.lost()).await;
    let reason = reason.expect("told in time");
    assert!(
        matches!(reason, LossReason::Expired | LossReason::Gone),
        "{reason:?}"
    );
    let other = client_with(&three.url(PARAMETERS), settings).await;
    assert!(lock(&other, "a").await.token() > old);
}

#[tokio::test]
async fn nodes_that_keep_their_data_may_restart_under_a_hold() {
    let three = start_with(3, |_| Redis {
        durable: true,
        ..Redis::default()
    })
    .await
    .expect("servers");
    let settings = Settings::new().lease(seconds(6));
    let locks = client_with(&three.url(PERSISTENT), settings).await;
    let guard = lock(&locks, "a").await;
    for server in &three.servers {
        server.kill();
        server.restart().await.expect("restart");
    }
    let other = three.client(PERSISTENT).await;
    assert!(
        other
            .mutex("a")
            .expect("a name")
            .try_lock()
            .await
            .expect("an answer")
            .is_none()
    );
    assert!(guard.is_held());
    assert_ne!(
        guard.release().await.expect("release"),
        Released::AlreadyLost
    );
}

/// A node that forgot a hold is given it again at the next renewal. It counts when a quorum of the others has vouched for it, and not
/// before: it cannot tell who else was there.
#[tokio::test]
async fn a_node_that_forgot_a_hold_is_repaired_and_counts_when_others_vouch_for_it() {
    let three = start(3).await.expect("servers");
    let redlock = backend(&three.url(PERSISTENT)).await;
    let Outcome::Held(lease) = redlock.try_acquire(&request("a")).await.expect("an answer") else {
        panic!("free");
    };
    let lease = Arc::new(lease);
    let attempt = lease.attempt().to_string();
    for server in &three.servers {
        given(server, &attempt).await;
    }
    let renew = async || redlock.renew(std::slice::from_ref(&lease)).await;
    // One node does not answer, one has lost the key: one alone still has it, and that is no quorum.
    three.servers[2].freeze();
    three.servers[1]
        .command(&["DEL", "redlock:{a}"])
        .await
        .expect("DEL");
    for expected in ["it no longer has the hold", "it has the hold again"] {
        let answers = renew().await;
        let [dlock_core::backend::Renewal::Failed(error)] = answers.as_slice() else {
            panic!("a repaired node counted: {answers:?}");
        };
        assert!(error.to_string().contains(expected), "{error}");
        given(&three.servers[1], &attempt).await;
    }
    // The two that had it all the time vouch for the other ...
    three.servers[2].thaw();
    integration_tests::until("a quorum", SOON, || async {
        match renew().await.as_slice() {
            [dlock_core::backend::Renewal::Extended] => Ok(()),
            other => Err(integration_tests::Error::answer(
                "renew",
                format!("{other:?}"),
            )),
        }
    })
    .await
    .expect("all three are there");
    // ... as soon as it has answered too, and from then on one of them may go.
    let answers = renew().await;
    assert!(
        matches!(answers.as_slice(), [dlock_core::backend::Renewal::Extended]),
        "{answers:?}"
    );
    integration_tests::until("it counts", 2 * SOON, || async {
        three.servers[2].freeze();
        let answers = renew().await;
        three.servers[2].thaw();
        match answers.as_slice() {
            [dlock_core::backend::Renewal::Extended] => Ok(()),
            other => {
                // The connection to a node that was frozen is made anew, in its time.
                given(&three.servers[2], &attempt).await;
                for _ in 0..10 {
                    renew().await;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(integration_tests::Error::answer(
                    "renew",
                    format!("{other:?}"),
                ))
            }
        }
    })
    .await
    .expect("it counts");
    // The repaired counter is no lower than the token, so the next holder's is higher.
    assert_eq!(
        redlock.release(&lease).await.expect("release"),
        Released::Freed
    );
    let Outcome::Held(next) = redlock.try_acquire(&request("a")).await.expect("an answer") else {
        panic!("free");
    };
    assert!(next.token() > lease.token());
    assert_eq!(
        redlock.release(&next).await.expect("release"),
        Released::Freed
    );
}

/// Resolves when the node has given the lock "a" to this attempt.
async fn given(server: &RedisServer, attempt: &str) {
    integration_tests::until("the node has the hold", SOON, || async {
        let value = server.command(&["GET", "redlock:{a}"]).await?;
        match value.text() {
            Some(value) if value.contains(attempt) => Ok(()),
            other => Err(integration_tests::Error::answer(
                "GET",
                format!("{other:?}"),
            )),
        }
    })
    .await
    .expect("in time");
}

/// An attempt that was abandoned while nodes were down cannot come back with them.
#[tokio::test]
async fn abandon_is_confirmed_by_a_quorum_and_finished_later() {
    let five = start(5).await.expect("servers");
    let redlock = backend(&five.url("?persistent=true&node_timeout=300ms")).await;
    let attempt = request("a");
    let Outcome::Held(_) = redlock.try_acquire(&attempt).await.expect("an answer") else {
        panic!("free");
    };
    five.servers[0].freeze();
    five.servers[1].freeze();
    redlock
        .abandon(&attempt)
        .await
        .expect("three of five confirm");
    let other = request("a");
    let Outcome::Held(lease) = redlock.try_acquire(&other).await.expect("an answer") else {
        panic!("an abandoned attempt is in the way");
    };
    assert_eq!(
        redlock.release(&lease).await.expect("release"),
        Released::Freed
    );
    five.servers[2].freeze();
    let error = redlock
        .abandon(&attempt)
        .await
        .expect_err("two of five are not enough");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    for server in &five.servers[..3] {
        server.thaw();
    }
    clean(&five).await;
    // And it is refused when it asks again.
    let again = redlock.try_acquire(&attempt).await;
    assert!(!matches!(again, Ok(Outcome::Held(_))), "{again:?}");
}

/// What a node remembers of attempts that it is to refuse.
async fn refused_attempts(server: &RedisServer, name: &str) -> i64 {
    let key = format!("redlock:{{{name}}}:t");
    number(&server.command(&["ZCARD", &key]).await.expect("ZCARD"))
}

/// A release that comes before the answers of slow nodes frees them too, and costs those who come later nothing.
#[tokio::test]
async fn a_release_before_the_last_answers_leaves_nothing_to_remember() {
    let five = start(5).await.expect("servers");
    let mut url = five.url("?persistent=true&node_timeout=5s&answer_timeout=10s");
    let mut slow = Vec::new();
    for server in &five.servers[..2] {
        let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
        url = url.replace(&server.addr().to_string(), &proxy.addr().to_string());
        slow.push(proxy);
    }
    let locks = client(&url).await;
    cycle(&locks, "a").await;
    for proxy in &slow {
        proxy.delay(integration_tests::Direction::ToClient, ms(300));
    }
    for _ in 0..5 {
        cycle(&locks, "a").await;
    }
    clean(&five).await;
    locks.close().await.expect("close");
    for server in &five.servers {
        assert_eq!(refused_attempts(server, "a").await, 0);
    }
}

/// A request that was sent again on a new connection may still come on the old one: the node must know that it has ended.
#[tokio::test]
async fn a_request_that_was_sent_twice_is_refused_after_the_release() {
    let three = start(3).await.expect("servers");
    let proxy = FaultProxy::start(three.servers[1].addr())
        .await
        .expect("a proxy");
    let url = three.url("?persistent=true&node_timeout=5s");
    let url = url.replace(
        &three.servers[1].addr().to_string(),
        &proxy.addr().to_string(),
    );
    // The quorum needs that node, so no answer of it is late.
    three.servers[2].kill();
    let locks = client(&url).await;
    cycle(&locks, "a").await;
    proxy.drop_reply(1);
    let guard = lock(&locks, "a").await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    assert_eq!(refused_attempts(&three.servers[0], "a").await, 0);
    assert_eq!(refused_attempts(&three.servers[1], "a").await, 1);
    clean(&three).await;
}
