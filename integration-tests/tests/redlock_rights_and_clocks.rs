//! The cases of the conformance suite about rights that are taken away and clocks that are wrong, against five Redis nodes whose users and times of
//! day the test has in its hand. (What a clock that jumps while somebody holds does, is in `redlock_clocks.rs`.)
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks, and tells what it has seen"
)]

mod redis_support;
mod redlock_support;
mod rights_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlock_conformance::{Ability, Faulty, Harness, async_trait};
use dlock_core::Result;
use dlock_core::backend::Backend;
use dlock_redlock::Config;
use integration_tests::{Clock, Redis, Reply};
use redlock_support::{Five, PERSISTENT, start_with};
use rights_support::{Denial, RUNTIME, Rights, all_pass, broken};

struct Store {
    // Before the clocks: no server may start again without its clock.
    nodes: Arc<Five>,
    clocks: Vec<Clock>,
    users: AtomicUsize,
}

async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Config::from_url(url)?.connect().await?))
}

#[async_trait]
impl Harness for Store {
    fn name(&self) -> &str {
        "redlock"
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        open(&self.nodes.url(PERSISTENT)).await
    }

    fn abilities(&self) -> &'static [Ability] {
        &[Ability::Deny, Ability::Skew]
    }

    /// A client with a user of its own at every node.
    async fn faulty(&self) -> Result<Faulty> {
        let user = format!("client-{}", self.users.fetch_add(1, Ordering::Relaxed));
        let rights = AtEveryNode {
            nodes: self.nodes.clone(),
            user: user.clone(),
        };
        rights.give_back().await?;
        let url = self.nodes.url(PERSISTENT);
        let url = url.replace("redlock://", &format!("redlock://{user}:s3cret@"));
        Ok(Faulty {
            backend: open(&url).await?,
            fault: Arc::new(Denial(rights)),
        })
    }

    async fn set_clock(&self, seconds_ahead: i64) -> Result<()> {
        for (server, clock) in self.nodes.servers.iter().zip(&self.clocks) {
            clock.set(seconds_ahead).map_err(broken)?;
            let time = server.command(&["TIME"]).await.map_err(broken)?;
            let shown = time.list().first().and_then(Reply::text);
            let shown = shown.and_then(|seconds| seconds.parse().ok());
            let shown = shown.ok_or_else(|| broken("no time"))?;
            Clock::check(seconds_ahead, shown).map_err(broken)?;
        }
        Ok(())
    }
}

struct AtEveryNode {
    nodes: Arc<Five>,
    user: String,
}

impl AtEveryNode {
    async fn set(&self, rules: &[&str]) -> Result<()> {
        for server in &self.nodes.servers {
            let mut command = vec!["ACL", "SETUSER", self.user.as_str()];
            command.extend(rules);
            let reply = server.command(&command).await.map_err(broken)?;
            if reply.text().as_deref() != Some("OK") {
                return Err(broken(format!("ACL: {reply:?}")));
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Rights for AtEveryNode {
    async fn take_away(&self) -> Result<()> {
        self.set(&["-@all"]).await
    }

    async fn give_back(&self) -> Result<()> {
        self.set(&["reset", "on", ">s3cret", "~*", "&*", "+@all"])
            .await
    }
}

fn store() -> Arc<dyn Harness> {
    let clocks: Vec<Clock> = (0..5).map(|_| Clock::new().expect("libfaketime")).collect();
    let nodes = RUNTIME.block_on(start_with(5, |node| Redis {
        env: clocks[node].env(),
        ..Redis::default()
    }));
    Arc::new(Store {
        nodes: Arc::new(nodes.expect("servers")),
        clocks,
        users: AtomicUsize::new(0),
    })
}

#[test]
fn what_is_refused_holds_nothing_and_is_told() {
    all_pass(&store(), Ability::Deny, 6, &[]);
}

#[test]
fn clocks_of_the_nodes_that_are_wrong_do_no_harm() {
    all_pass(&store(), Ability::Skew, 2, &[]);
}
