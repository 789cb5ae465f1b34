//! The cases of the conformance suite about clocks that are wrong, against a ZooKeeper whose time of day the test has in its hand.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks, and tells what it has seen"
)]

mod rights_support;
mod zk_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlock_conformance::{Ability, Harness, async_trait};
use dlock_core::Result;
use dlock_core::backend::Backend;
use dlock_zk::Config;
use integration_tests::{Clock, ZooKeeper, ZooKeeperServer};
use rights_support::{RUNTIME, all_pass, broken};
use zk_support::Admin;

struct Store {
    server: ZooKeeperServer,
    clock: Clock,
    looks: AtomicUsize,
}

#[async_trait]
impl Harness for Store {
    fn name(&self) -> &str {
        "zk"
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        let url = format!("{}?session=4s", self.server.url());
        Ok(Arc::new(Config::from_url(&url)?.connect().await?))
    }

    fn abilities(&self) -> &'static [Ability] {
        &[Ability::Skew]
    }

    async fn set_clock(&self, seconds_ahead: i64) -> Result<()> {
        self.clock.set(seconds_ahead).map_err(broken)?;
        // What the server writes beside a new node is its time of day, in milliseconds.
        let admin = Admin::connect(&self.server.url()).await;
        let path = format!("/look-{}", self.looks.fetch_add(1, Ordering::Relaxed));
        admin.create(&path, "").await;
        let (_, stat) = admin.0.get_data(&path).await.map_err(broken)?;
        Clock::check(seconds_ahead, stat.ctime / 1000).map_err(broken)
    }
}

#[test]
fn a_clock_of_the_server_that_is_wrong_does_no_harm() {
    let clock = Clock::new().expect("libfaketime");
    let settings = ZooKeeper {
        env: clock.env(),
        ..ZooKeeper::default()
    };
    let server = RUNTIME.block_on(ZooKeeperServer::start_with(settings));
    let store: Arc<dyn Harness> = Arc::new(Store {
        server: server.expect("ZooKeeper"),
        clock,
        looks: AtomicUsize::new(0),
    });
    all_pass(&store, Ability::Skew, 1, &[]);
}
