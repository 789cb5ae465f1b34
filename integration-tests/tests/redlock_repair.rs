//! Nodes that lose a hold, or get it late: what the holder may still count on, on real servers.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;
mod redlock_support;

use std::sync::Arc;

use dlock_core::backend::{AttemptId, Backend, Lease, Outcome, Renewal};
use dlock_core::{Mode, Name, Released, Settings};
use dlock_redis::node::{Node, Taken, Wish};
use dlock_redlock::RedlockBackend;
use integration_tests::{Clock, Direction, FaultProxy, Redis, RedisServer};
use redis_support::{SOON, calls, lock, number};
use redlock_support::*;

/// Three nodes. The second goes by a clock of its own; `holder` cannot reach the third, so its holds are at a bare quorum.
struct Bare {
    // Before the clock: no server may start again without it.
    nodes: Five,
    clock: Clock,
    third: FaultProxy,
    holder: Arc<RedlockBackend>,
}

async fn bare() -> Bare {
    let clock = Clock::new().expect("libfaketime");
    let nodes = start_with(3, |node| Redis {
        env: if node == 1 { clock.env() } else { Vec::new() },
        ..Redis::default()
    });
    let nodes = nodes.await.expect("servers");
    let (url, third) = cut_off(&nodes, 2, PERSISTENT).await;
    Bare {
        holder: backend(&url).await,
        nodes,
        clock,
        third,
    }
}

impl Bare {
    /// A hold whose lease the second node has then taken for over, since its clock jumped.
    async fn lost_at_the_second(&self) -> Arc<Lease> {
        let lease = take(&self.holder, "a").await;
        // Longer than the lease, and shorter than the node remembers who had it last.
        self.clock.set(60).expect("a clock");
        lease
    }

    /// Resolves when a quorum has extended it: a repair goes on in the background, and counts from the question after it.
    async fn extended(&self, lease: &Arc<Lease>) {
        integration_tests::until("a quorum", SOON, || async {
            match self.renew(lease).await {
                Renewal::Extended => Ok(()),
                other => Err(integration_tests::Error::answer(
                    "renew",
                    format!("{other:?}"),
                )),
            }
        })
        .await
        .expect("a quorum has it");
    }

    async fn renew(&self, lease: &Arc<Lease>) -> Renewal {
        let answers = self.holder.renew(std::slice::from_ref(lease)).await;
        answers.into_iter().next().expect("one answer")
    }
}

async fn take(backend: &RedlockBackend, name: &str) -> Arc<Lease> {
    match backend.try_acquire(&request(name)).await {
        Ok(Outcome::Held(lease)) => Arc::new(lease),
        other => panic!("it is free: {other:?}"),
    }
}

/// Resolves when the node has given the lock to this hold.
async fn given(server: &RedisServer, lease: &Lease) {
    let attempt = lease.attempt().to_string();
    value_at(server, lease.name().as_str(), |value| {
        value.contains(&attempt)
    })
    .await;
}

async fn value_at(server: &RedisServer, name: &str, wanted: impl Fn(&str) -> bool) {
    let key = format!("redlock:{{{name}}}");
    integration_tests::until("what the node has", SOON, || async {
        let value = server.command(&["GET", &key]).await?;
        match value.text() {
            Some(value) if wanted(&value) => Ok(()),
            other => Err(integration_tests::Error::answer(
                "GET",
                format!("{other:?}"),
            )),
        }
    })
    .await
    .expect("in time");
}

#[tokio::test]
async fn a_repaired_node_does_not_hide_that_somebody_else_held_the_lock_in_between() {
    let bare = bare().await;
    let lease = bare.lost_at_the_second().await;
    // By the clock of the second node and with the third, somebody else is a good holder.
    let other = bare.nodes.client(PERSISTENT).await;
    let guard = lock(&other, "a").await;
    assert!(guard.token() > lease.token());
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    value_at(&bare.nodes.servers[1], "a", |value| value.len() <= 17).await;
    // The first node still has the hold, the second is given it again.
    let renewed = bare.renew(&lease).await;
    assert!(matches!(renewed, Renewal::Failed(_)), "{renewed:?}");
    given(&bare.nodes.servers[1], &lease).await;
    for _ in 0..3 {
        let renewed = bare.renew(&lease).await;
        assert!(
            !matches!(renewed, Renewal::Extended),
            "two nodes again, as if nothing had happened"
        );
    }
}

#[tokio::test]
async fn a_repaired_node_counts_again_when_nobody_came_in_between() {
    let bare = bare().await;
    let lease = bare.lost_at_the_second().await;
    let renewed = bare.renew(&lease).await;
    assert!(matches!(renewed, Renewal::Failed(_)), "{renewed:?}");
    bare.extended(&lease).await;
}

/// The more nodes have a hold, the more of them may go.
#[tokio::test]
async fn a_hold_at_a_bare_quorum_is_given_to_the_others_with_the_next_renewal() {
    let bare = bare().await;
    let lease = take(&bare.holder, "a").await;
    bare.third.accept();
    let renewed = bare.renew(&lease).await;
    assert!(matches!(renewed, Renewal::Extended), "{renewed:?}");
    given(&bare.nodes.servers[2], &lease).await;
    bare.clock.set(60).expect("a clock");
    bare.extended(&lease).await;
    assert_eq!(
        bare.holder.release(&lease).await.expect("release"),
        Released::Freed
    );
}

/// Readers that meet get their numbers in another order at each node. A grant above the token proves nothing by itself; but a hold must
/// not be without a node to spare for long.
#[tokio::test]
async fn late_grants_to_a_reader_are_vouched_for_before_its_first_renewal() {
    let three = start(3).await.expect("servers");
    let (url, third) = behind_proxy(&three, 2, "?persistent=true&node_timeout=5s").await;
    let (late, other) = (backend(&url).await, backend(&three.url(PERSISTENT)).await);
    let reader = || {
        let name = dlock_core::Name::new("a").expect("a name");
        let clock = Arc::new(dlock_core::SystemClock);
        dlock_core::backend::Request::new(name, dlock_core::Mode::Shared, clock)
            .with_lease(seconds(10))
    };
    third.pause(Direction::ToServer);
    let Ok(Outcome::Held(lease)) = late.try_acquire(&reader()).await else {
        panic!("two of three");
    };
    let lease = Arc::new(lease);
    let Ok(Outcome::Held(_)) = other.try_acquire(&reader()).await else {
        panic!("readers share");
    };
    held_at(&three.servers[2], 1).await;
    let trips = async |node: usize| calls(&three.servers[node], "evalsha").await;
    let before = (trips(0).await, trips(1).await);
    third.resume();
    held_at(&three.servers[2], 2).await;
    // The round comes by itself, to all three.
    integration_tests::until("a round", SOON, || async {
        let now = (trips(0).await, trips(1).await);
        match now.0 > before.0 && now.1 > before.1 {
            true => Ok(()),
            false => Err(integration_tests::Error::answer(
                "trips",
                format!("{now:?}"),
            )),
        }
    })
    .await
    .expect("nobody vouches");
    // The nodes have answered; what is asked behind that comes back after the client has read it.
    let name = dlock_core::Name::new("a").expect("a name");
    late.inspect(&name).await.expect("an answer of each");
    integration_tests::until("it counts", SOON, || async {
        // As if the first were gone: it answers nobody, and the other two are a quorum.
        three.servers[0].kill();
        match late.renew(std::slice::from_ref(&lease)).await.as_slice() {
            [Renewal::Extended] => Ok(()),
            other => Err(integration_tests::Error::answer(
                "renew",
                format!("{other:?}"),
            )),
        }
    })
    .await
    .expect("the third counts");
}

/// Resolves when so many readers hold the lock "a" at the node.
async fn held_at(server: &RedisServer, readers: i64) {
    integration_tests::until("readers at the node", SOON, || async {
        let count = server.command(&["ZCARD", "redlock:{a}:h"]).await?;
        match number(&count) {
            now if now == readers => Ok(()),
            now => Err(integration_tests::Error::answer("ZCARD", now.to_string())),
        }
    })
    .await
    .expect("in time");
}

/// A node that answers late gives a writer's lock to somebody who is a reader by now.
#[tokio::test]
async fn a_grant_that_comes_after_the_downgrade_does_not_stay_exclusive() {
    let three = start(3).await.expect("servers");
    let settings = Settings::new().lease(seconds(3));
    let locks = client_with(&three.url("?persistent=true&node_timeout=100ms"), settings).await;
    cycle(&locks, "warm").await;
    three.servers[2].freeze();
    let rw = locks.rw_lock("a").expect("a name");
    let guard = rw.write().await.expect("two of three");
    // As long as the node owes its answer, it is asked nothing else.
    tokio::time::sleep(ms(300)).await;
    guard.downgrade().await.expect("two of three");
    three.servers[2].thaw();
    value_at(&three.servers[2], "a", |value| value.ends_with("+S")).await;
    // So it is no obstacle to other readers, who may need it.
    three.servers[0].kill();
    let other = three.client(PERSISTENT).await;
    let reader = other.rw_lock("a").expect("a name").try_read().await;
    assert!(reader.expect("an answer").is_some());
    assert!(guard.is_held());
}

/// The same where the downgrade itself did not get through to a node.
#[tokio::test]
async fn a_node_that_missed_the_downgrade_does_not_stay_exclusive() {
    let three = start(3).await.expect("servers");
    let (url, third) = behind_proxy(&three, 2, "?persistent=true&node_timeout=1s").await;
    let settings = Settings::new().lease(seconds(3));
    let locks = client_with(&url, settings).await;
    let rw = locks.rw_lock("a").expect("a name");
    let guard = rw.write().await.expect("all of them");
    value_at(&three.servers[2], "a", |value| value.len() > 48).await;
    third.refuse();
    third.reset_all().await;
    guard.downgrade().await.expect("two of three");
    third.accept();
    value_at(&three.servers[2], "a", |value| value.ends_with("+S")).await;
    assert!(guard.is_held());
}

/// A hold that a quorum has lost wants no node any more: when its holder must know, it leaves the queues in which it stood for those that lost it
/// first, and nothing is left of it where the others still had it.
#[tokio::test]
async fn a_lost_hold_leaves_the_queues() {
    let nodes = start(3).await.expect("servers");
    let holder = backend(&nodes.url(PERSISTENT)).await;
    let name = Name::new("a").expect("a name");
    let lease = match holder
        .try_acquire(&request("a").with_lease(seconds(8)))
        .await
    {
        Ok(Outcome::Held(lease)) => Arc::new(lease),
        other => panic!("it is free: {other:?}"),
    };
    for server in &nodes.servers {
        given(server, &lease).await;
    }
    let forget = async |server: &RedisServer| {
        let config = dlock_redis::Config::from_url(&server.url()).expect("a URL");
        let node = Node::new(config.prefix("redlock")).expect("a node");
        let wish = Wish {
            name: &name,
            mode: Mode::Exclusive,
            attempt: AttemptId::new(),
            lease: seconds(120),
            label: "",
        };
        server.command(&["FLUSHALL"]).await.expect("FLUSHALL");
        let (taken, _) = node.take(wish, 1).await.expect("an answer");
        assert!(matches!(taken, Taken::Held { .. }));
    };
    let queue = async |wanted: &[String]| {
        integration_tests::until("the queue", SOON, || async {
            let queue = nodes.servers[0].command(&["ZRANGE", "redlock:{a}:q", "0", "-1"]);
            let queue = queue.await?;
            let queue: Vec<String> = queue.list().iter().filter_map(|one| one.text()).collect();
            match queue == wanted {
                true => Ok(()),
                false => Err(integration_tests::Error::answer(
                    "ZRANGE",
                    format!("{queue:?}"),
                )),
            }
        })
        .await
        .expect("in time");
    };
    let renew = async || holder.renew(std::slice::from_ref(&lease)).await;
    forget(&nodes.servers[0]).await;
    let renewed = renew().await;
    assert!(matches!(renewed[0], Renewal::Extended), "{renewed:?}");
    queue(&[lease.attempt().to_string()]).await;
    forget(&nodes.servers[1]).await;
    let renewed = renew().await;
    assert!(matches!(renewed[0], Renewal::Lost(_)), "{renewed:?}");
    // Nobody else gets a node that still has it before the holder must know of the loss.
    let value = nodes.servers[2].command(&["GET", "redlock:{a}"]).await;
    let value = value.expect("an answer").text().unwrap_or_default();
    assert!(value.len() > 17, "it was freed at once: {value:?}");
    queue(&[]).await;
    integration_tests::until("nothing is left", SOON, || async {
        let value = nodes.servers[2].command(&["GET", "redlock:{a}"]).await?;
        match value.text().filter(|value| value.len() > 17) {
            None => Ok(()),
            left => Err(integration_tests::Error::answer("GET", format!("{left:?}"))),
        }
    })
    .await
    .expect("in time");
}
