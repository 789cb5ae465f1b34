//! The cases of the conformance suite about rights that are taken away and clocks that are wrong, against a Redis whose users and time of
//! day the test has in its hand.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_conformance::{
    Ability, CaseResult, Fault, Faulty, Harness, Need, async_trait, cases, check,
};
use dlock_core::backend::Backend;
use dlock_core::{Error, ErrorKind, Result};
use dlock_redis::Config;
use integration_tests::{Clock, Redis, RedisServer};
use redis_support::acl;
use redis_support::harness::{RUNTIME, broken};

struct Store {
    server: Arc<RedisServer>,
    clock: Clock,
    users: AtomicUsize,
    /// What a user for locks may do, as the documentation says.
    rules: Vec<String>,
}

/// A server that forgets a lock's counter goes on with its time of day, which must not be behind the last token then. The clock is moved by
/// two hours in all, so the counter is kept for longer.
async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    let config = Config::from_url(&format!("{url}?fence_ttl=3h"))?;
    Ok(Arc::new(config.connect().await?))
}

#[async_trait]
impl Harness for Store {
    fn name(&self) -> &str {
        "redis"
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        open(&self.server.url()).await
    }

    fn abilities(&self) -> &'static [Ability] {
        &[Ability::Deny, Ability::Skew]
    }

    /// A client with a user of its own.
    async fn faulty(&self) -> Result<Faulty> {
        let user = format!("client-{}", self.users.fetch_add(1, Ordering::Relaxed));
        let rights = Rights {
            server: self.server.clone(),
            user: user.clone(),
            rules: self.rules.clone(),
        };
        rights.give().await?;
        let url = self.server.url();
        let url = url.replace("redis://", &format!("redis://{user}:s3cret@"));
        Ok(Faulty {
            backend: open(&url).await?,
            fault: Arc::new(rights),
        })
    }

    async fn set_clock(&self, seconds_ahead: i64) -> Result<()> {
        self.clock.set(seconds_ahead).map_err(broken)
    }
}

struct Rights {
    server: Arc<RedisServer>,
    user: String,
    rules: Vec<String>,
}

impl Rights {
    async fn set(&self, rules: &[&str]) -> Result<()> {
        let mut command = vec!["ACL", "SETUSER", self.user.as_str()];
        command.extend(rules);
        let reply = self.server.command(&command).await.map_err(broken)?;
        match reply.text().as_deref() {
            Some("OK") => Ok(()),
            other => Err(Error::new(ErrorKind::Store, format!("ACL: {other:?}"))),
        }
    }

    async fn give(&self) -> Result<()> {
        let mut rules = vec!["reset", "on", ">s3cret"];
        rules.extend(self.rules.iter().map(String::as_str));
        self.set(&rules).await
    }
}

/// The other faults are not named among the abilities, and never asked for.
#[async_trait]
impl Fault for Rights {
    async fn deny(&self) {
        self.set(&["-@all"]).await.expect("rights are taken away");
    }

    async fn heal(&self) {
        self.give().await.expect("rights are given back");
    }

    async fn cut(&self) {}

    async fn hang(&self) {}

    async fn lose_reply(&self) {}

    async fn delay_replies(&self, _: Duration) {}
}

/// Every case that needs one of these abilities, and passes.
fn all_pass(of: Ability) {
    let clock = Clock::new().expect("libfaketime");
    let settings = Redis {
        env: clock.env(),
        ..Redis::default()
    };
    let server = RUNTIME.block_on(RedisServer::start_with(settings));
    let acl = acl();
    let (_, rules) = acl.split_once(">s3cret ").expect("the rules of the user");
    let store: Arc<dyn Harness> = Arc::new(Store {
        server: Arc::new(server.expect("Redis")),
        clock,
        users: AtomicUsize::new(0),
        rules: rules.split_whitespace().map(str::to_owned).collect(),
    });
    let named = cases().filter(|case| case.needs.contains(&Need::Able(of)));
    let names: Vec<&str> = named.map(|case| case.name).collect();
    assert!(!names.is_empty());
    let outcomes: Vec<(&str, CaseResult)> = names
        .into_iter()
        .map(|name| (name, check(&store, name)))
        .filter(|(_, outcome)| *outcome != CaseResult::Passed)
        .collect();
    assert!(outcomes.is_empty(), "{outcomes:#?}");
}

#[test]
fn what_is_refused_holds_nothing_and_is_told() {
    all_pass(Ability::Deny);
}

#[test]
fn a_clock_of_the_server_that_is_wrong_does_no_harm() {
    all_pass(Ability::Skew);
}
