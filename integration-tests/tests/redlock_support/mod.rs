//! What the tests of the quorum share.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::Request;
use dlock_core::{Locks, Mode, Name, Released, Settings, SystemClock};
use dlock_redlock::{Config, RedlockBackend};
use integration_tests::{FaultProxy, Redis, RedisServer, Result};

use crate::redis_support::{SOON, lock, residue};

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

/// A URL that leads to one of the nodes by a proxy.
pub(crate) async fn behind_proxy(
    five: &Five,
    node: usize,
    parameters: &str,
) -> (String, FaultProxy) {
    let addr = five.servers[node].addr();
    let proxy = FaultProxy::start(addr).await.expect("a proxy");
    let url = five.url(parameters);
    let url = url.replace(&addr.to_string(), &proxy.addr().to_string());
    (url, proxy)
}

/// A URL that leads to every node by a proxy of its own.
pub(crate) async fn behind_proxies(five: &Five, parameters: &str) -> (String, Vec<FaultProxy>) {
    let mut url = five.url(parameters);
    let mut proxies = Vec::new();
    for server in &five.servers {
        let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
        url = url.replace(&server.addr().to_string(), &proxy.addr().to_string());
        proxies.push(proxy);
    }
    (url, proxies)
}

/// The same, with a proxy that lets nobody through yet.
pub(crate) async fn cut_off(five: &Five, node: usize, parameters: &str) -> (String, FaultProxy) {
    let (url, proxy) = behind_proxy(five, node, parameters).await;
    proxy.refuse();
    (url, proxy)
}

pub(crate) fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) const PERSISTENT: &str = "?persistent=true";

pub(crate) fn request(name: &str) -> Request {
    let name = Name::new(name).expect("a name");
    Request::new(name, Mode::Exclusive, Arc::new(SystemClock)).with_lease(seconds(10))
}

/// Resolves when nothing of any lock is left at the servers that run.
pub(crate) async fn clean(five: &Five) {
    for server in five.servers.iter().filter(|server| server.is_running()) {
        integration_tests::until("nothing is left", SOON, || async {
            match residue(server).await.as_slice() {
                [] => Ok(()),
                left => Err(integration_tests::Error::answer(
                    "KEYS",
                    format!("{left:?}"),
                )),
            }
        })
        .await
        .expect("clean-up");
    }
}

/// Every node has given something.
pub(crate) async fn everywhere(five: &Five) {
    for server in &five.servers {
        integration_tests::until("it is held there", SOON, || async {
            match residue(server).await.is_empty() {
                true => Err(integration_tests::Error::answer("KEYS", "nothing")),
                false => Ok(()),
            }
        })
        .await
        .expect("held at every node");
    }
}

pub(crate) async fn cycle(locks: &Locks, name: &str) -> u64 {
    let guard = lock(locks, name).await;
    let token = guard.token().expect("fencing").get();
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    token
}
