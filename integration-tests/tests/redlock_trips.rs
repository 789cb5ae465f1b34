//! A node of a quorum, asked by many tasks at once: their requests go together, and each must be told what its own may still do.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;
mod redlock_support;

use std::time::Duration;

use dlock_core::backend::AttemptId;
use dlock_core::{ErrorKind, HeldNow, Mode, Name, Result};
use dlock_redis::node::{Leftover, Node, TURNS, Taken, Wish};
use futures::future::{join_all, join3};
use integration_tests::{FaultProxy, Redis, RedisServer};
use redis_support::{acl, config, through};
use redlock_support::seconds;

/// Far ahead of every clock.
const AHEAD: u64 = 4_000_000_000_000_000;
const PROPOSED: u64 = 2_000_000_000_000_000;

/// A server, and its node by way of a proxy.
struct Line {
    server: RedisServer,
    proxy: FaultProxy,
    node: Node,
}

impl Line {
    async fn start() -> Self {
        let server = RedisServer::start_with(Redis {
            acl: Some(acl()),
            ..Redis::default()
        })
        .await
        .expect("redis");
        let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
        let url = through(&server, &proxy).replace("redis://", "redis://locker:s3cret@");
        let node = Node::new(config(&url)).expect("a node");
        node.connect().await.expect("connected");
        let line = Self {
            server,
            proxy,
            node,
        };
        // So that the server knows the script by its hash, and the first answer to it is not that it does not.
        line.in_a_crowd(async {}).await;
        line
    }

    async fn take(&self, name: &str, attempt: AttemptId) -> Result<(Taken, bool)> {
        self.node
            .take(wish(&name_of(name), attempt), PROPOSED)
            .await
    }

    async fn stand(&self, name: &str, attempt: AttemptId) -> Result<(Taken, bool)> {
        let _place = self.node.enter(attempt);
        let name = name_of(name);
        self.node.stand(wish(&name, attempt), PROPOSED, 1).await
    }

    async fn free(&self, name: &str, attempt: AttemptId, left: Leftover) -> Result<(bool, bool)> {
        let name = name_of(name);
        self.node.free(&name, attempt, left, PROPOSED).await
    }

    /// Does something while twenty tasks ask for other locks: it goes with others.
    async fn in_a_crowd<T>(&self, what: impl Future<Output = T>) -> T {
        let ask = |n| async move {
            let attempt = AttemptId::new();
            self.take(&format!("busy:{n}:{attempt}"), attempt).await
        };
        let (before, behind) = (join_all((0..8).map(ask)), join_all((8..20).map(ask)));
        let (_, answer, _) = join3(before, what, behind).await;
        answer
    }

    /// Loses the answer to the trip of many with this in it, and lets nobody connect again.
    async fn lose_answer_and_lock_out(&self, pattern: String) {
        self.password("another").await;
        self.proxy.drop_reply_to(pattern, Duration::ZERO);
    }

    async fn password(&self, password: &str) {
        let password = format!(">{password}");
        let set = ["ACL", "SETUSER", "locker", "resetpass", &password];
        self.server.command(&set).await.expect("ACL");
    }

    async fn counter(&self, name: &str, counter: u64) {
        let (key, counter) = (format!("dlock:{{{name}}}"), format!("{counter:016}"));
        let set = ["SET", &key, &counter, "PX", "600000"];
        self.server.command(&set).await.expect("SET");
    }
}

fn name_of(name: &str) -> Name {
    Name::new(name).expect("a name")
}

fn wish(name: &Name, attempt: AttemptId) -> Wish<'_> {
    Wish {
        name,
        mode: Mode::Exclusive,
        attempt,
        lease: seconds(30),
        label: "",
    }
}

/// How a trip of many asks for a lock, and how it frees one.
fn asks(attempt: AttemptId) -> String {
    format!("={PROPOSED:016}{attempt}")
}

fn frees(attempt: AttemptId) -> String {
    format!("-{attempt}")
}

fn holds(answer: Result<(Taken, bool)>) -> (u64, bool) {
    match answer {
        Ok((Taken::Held { counter }, twice)) => (counter, twice),
        answer => panic!("{answer:?}"),
    }
}

/// What went with others, without an answer, may still come: whoever then asks alone is told so, whatever the answer is.
#[tokio::test]
async fn a_question_whose_trip_broke_may_still_come() {
    let line = Line::start().await;
    for stands in [false, true] {
        for is_done in [false, true] {
            let (name, attempt) = (format!("{stands}{is_done}"), AttemptId::new());
            match is_done {
                true => line.proxy.drop_reply_to(asks(attempt), Duration::ZERO),
                false => line.proxy.drop_requests(asks(attempt), 1),
            }
            let answer = match stands {
                true => line.in_a_crowd(line.stand(&name, attempt)).await,
                false => line.in_a_crowd(line.take(&name, attempt)).await,
            };
            let (_, twice) = holds(answer);
            assert!(twice, "{stands} {is_done}");
            assert_eq!(line.proxy.requests_to_drop(), 0);
            line.proxy.reply_dropped().await;
        }
    }
}

#[tokio::test]
async fn a_question_that_is_refused_after_its_trip_broke_is_in_doubt() {
    let line = Line::start().await;
    let attempt = AttemptId::new();
    line.lose_answer_and_lock_out(asks(attempt)).await;
    let error = line.in_a_crowd(line.take("a", attempt)).await;
    let error = error.expect_err("the password is another");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(error.held_now(), HeldNow::Unknown, "{error}");
}

/// A release that went with others, without an answer: it may have freed the hold, or come later, and then free what the same attempt has by then.
#[tokio::test]
async fn a_release_whose_trip_broke_may_still_come() {
    let line = Line::start().await;
    let done = AttemptId::new();
    holds(line.take("done", done).await);
    line.proxy.drop_reply_to(frees(done), Duration::ZERO);
    let freed = line.in_a_crowd(line.free("done", done, Leftover::Hold));
    let error = freed.await.expect_err("who freed it?");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(error.held_now(), HeldNow::Unknown, "{error}");
    line.proxy.reply_dropped().await;

    let lost = AttemptId::new();
    holds(line.take("lost", lost).await);
    line.proxy.drop_requests(frees(lost), 1);
    let freed = line.in_a_crowd(line.free("lost", lost, Leftover::Hold));
    assert_eq!(freed.await.expect("an answer"), (true, true));
    assert_eq!(line.proxy.requests_to_drop(), 0);
}

#[tokio::test]
async fn a_release_that_is_refused_after_its_trip_broke_is_in_doubt() {
    let line = Line::start().await;
    let attempt = AttemptId::new();
    holds(line.take("a", attempt).await);
    line.lose_answer_and_lock_out(frees(attempt)).await;
    let freed = line.in_a_crowd(line.free("a", attempt, Leftover::Hold));
    let error = freed.await.expect_err("the password is another");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(error.held_now(), HeldNow::Unknown, "{error}");
}

/// Only a hold goes with others: what may have left more is removed with all of it, and the node remembers to refuse what is still to come.
#[tokio::test]
async fn an_attempt_that_is_undone_in_a_crowd_is_refused_from_then_on() {
    let line = Line::start().await;
    let attempt = AttemptId::new();
    holds(line.take("a", attempt).await);
    let freed = line.in_a_crowd(line.free("a", attempt, Leftover::Stray));
    assert_eq!(freed.await.expect("an answer"), (true, false));
    let late = line.take("a", attempt).await;
    assert!(late.is_err(), "{late:?}");
}

/// Also where the node has never heard of the lock, or has forgotten it, so that only what it remembers of the attempt is there.
#[tokio::test]
async fn an_attempt_that_was_undone_is_refused_in_a_crowd() {
    let line = Line::start().await;
    let attempt = AttemptId::new();
    let freed = line.free("a", attempt, Leftover::Stray).await;
    assert!(!freed.expect("an answer").0);
    let late = line.in_a_crowd(line.take("a", attempt)).await;
    let error = late.expect_err("it was undone");
    assert_eq!(error.held_now(), HeldNow::No, "{error}");
}

/// Whoever proposes less than the node has counted gets tokens of its own all the same.
#[tokio::test]
async fn tokens_in_a_crowd_are_above_the_counter() {
    let line = Line::start().await;
    let mut last = AHEAD;
    line.counter("a", last).await;
    // The second time the lock is known.
    for _ in 0..2 {
        let attempt = AttemptId::new();
        let taken = line.in_a_crowd(line.take("a", attempt)).await;
        let (counter, _) = holds(taken);
        assert_eq!(counter, last + u64::from(TURNS));
        last = counter;
        let freed = line.in_a_crowd(line.free("a", attempt, Leftover::Hold));
        assert_eq!(freed.await.expect("an answer"), (true, false));
    }
    // Not far enough above it, too.
    line.counter("near", PROPOSED - 1).await;
    let taken = line.in_a_crowd(line.take("near", AttemptId::new())).await;
    assert_eq!(holds(taken).0, PROPOSED - 1 + u64::from(TURNS));
}
