//! What the tests of the quorum share.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::Arc;

use dlock_core::{Locks, Settings};
use dlock_redlock::{Config, RedlockBackend};
use integration_tests::{Redis, RedisServer, Result};

/// Independent servers, usually five.
pub(crate) struct Five {
    pub(crate) servers: Vec<RedisServer>,
}

pub(crate) async fn start(count: usize) -> Result<Five> {
    start_with(count, |_| Redis::default()).await
}

pub(crate) async fn start_with(count: usize, settings: impl Fn(usize) -> Redis) -> Result<Five> {
    let servers = (0..count).map(|n| RedisServer::start_with(settings(n)));
    let servers = futures::future::try_join_all(servers).await?;
    Ok(Five { servers })
}

impl Five {
    pub(crate) fn url(&self, parameters: &str) -> String {
        let hosts: Vec<String> = self.servers.iter().map(|s| s.addr().to_string()).collect();
        format!("redlock://{}{parameters}", hosts.join(","))
    }

    pub(crate) async fn client(&self, parameters: &str) -> Locks {
        client(&self.url(parameters)).await
    }
}

pub(crate) async fn backend(url: &str) -> Arc<RedlockBackend> {
    let config = Config::from_url(url).expect("a good URL");
    Arc::new(config.connect().await.expect("a connection"))
}

pub(crate) async fn client(url: &str) -> Locks {
    Locks::new(backend(url).await).expect("defaults")
}

pub(crate) async fn client_with(url: &str, settings: Settings) -> Locks {
    Locks::builder(backend(url).await)
        .settings(settings)
        .build()
        .expect("good settings")
}
