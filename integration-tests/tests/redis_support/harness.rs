//! What the conformance harnesses of stores made of Redis servers share.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use dlock_conformance::{Fault, Residue, async_trait};
use dlock_core::{Error, ErrorKind, Name, Result};
use integration_tests::{Direction, FaultProxy, RedisServer};

/// The cases have runtimes of their own; what the servers need outlives them here.
pub(crate) static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Runtime::new().expect("a runtime"));

static KEPT: Mutex<Vec<Arc<FaultProxy>>> = Mutex::new(Vec::new());

pub(crate) fn broken(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Store, format!("the test's own server: {error}"))
}

/// A proxy for each server, and what disturbs all of them as one.
pub(crate) async fn proxies(servers: &[&RedisServer]) -> Result<Line> {
    let addrs: Vec<_> = servers.iter().map(|server| server.addr()).collect();
    proxies_at(&addrs).await
}

pub(crate) async fn proxies_at(servers: &[SocketAddr]) -> Result<Line> {
    let mut line = Vec::new();
    for server in servers {
        let proxy = FaultProxy::start(*server).await.map_err(broken)?;
        line.push(Arc::new(proxy));
    }
    // A case may drop the handle and go on with the client.
    KEPT.lock().expect("no panic").extend(line.iter().cloned());
    Ok(Line(line, Servers::Independent))
}

/// A proxy for each node of a cluster, for one client alone: what the nodes tell it about each other leads to these proxies too.
pub(crate) async fn proxies_of_cluster(nodes: &[SocketAddr]) -> Result<Line> {
    let Line(line, _) = proxies_at(nodes).await?;
    let both: Vec<_> = nodes
        .iter()
        .copied()
        .zip(line.iter().map(|proxy| proxy.addr()))
        .collect();
    line.iter().for_each(|proxy| proxy.tell_instead(&both));
    Ok(Line(line, Servers::OneStore))
}

/// How the servers behind several proxies belong together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Servers {
    /// Each is asked the same.
    Independent,
    /// Each has a part, so one of them answers.
    OneStore,
}

pub(crate) struct Line(pub(crate) Vec<Arc<FaultProxy>>, Servers);

#[async_trait]
impl Fault for Line {
    async fn cut(&self) {
        for proxy in &self.0 {
            proxy.refuse();
            proxy.reset_all().await;
        }
    }

    async fn hang(&self) {
        for proxy in &self.0 {
            proxy.black_hole(Direction::Both);
        }
    }

    async fn half_open(&self) {
        for proxy in &self.0 {
            proxy.half_open();
        }
    }

    async fn heal(&self) {
        for proxy in &self.0 {
            proxy.heal().await;
            proxy.accept();
        }
    }

    async fn lose_reply(&self) {
        if self.1 == Servers::Independent {
            self.0.iter().for_each(|proxy| proxy.drop_reply(1));
            return;
        }
        // One answer is to be lost, whichever node gives it.
        for proxy in &self.0 {
            proxy.drop_reply_to("EVALSHA", Duration::ZERO);
        }
        let line = self.0.clone();
        RUNTIME.spawn(async move {
            let lost = line.iter().map(|proxy| Box::pin(proxy.reply_dropped()));
            let (_, which, _) = futures::future::select_all(lost).await;
            for (place, proxy) in line.iter().enumerate() {
                if place != which {
                    proxy.heal().await;
                }
            }
        });
    }

    async fn delay_replies(&self, delay: Duration) {
        for proxy in &self.0 {
            proxy.delay(Direction::ToClient, delay);
        }
    }
}

/// Moves the end of every lease of a lock into the past; the queue stays as it is.
pub(crate) async fn expire_at(server: &RedisServer, key: &str) -> Result<()> {
    const SCRIPT: &str = "local k = KEYS[1] local v = redis.call('GET', k) if not v then return 0 end \
        if #v == 32 then return redis.call('DEL', k) end \
        if string.find(v, '^%x', 18) then redis.call('PEXPIRE', k, tonumber(string.sub(v, 50, 62))) else \
        for _, a in ipairs(redis.call('ZRANGE', k .. ':h', 0, -1)) do redis.call('ZADD', k .. ':h', 1, a) end end \
        return 1";
    server
        .command(&["EVAL", SCRIPT, "1", key])
        .await
        .map_err(broken)?;
    Ok(())
}

/// The key of a lock whose name needs no escape.
pub(crate) fn key_of(prefix: &str, name: &Name) -> String {
    format!("{prefix}:{{{name}}}")
}

/// Adds up what is left at one server.
pub(crate) async fn residue_at(server: &RedisServer, left: &mut Residue) -> Result<()> {
    *left.entry("keys".to_owned()).or_default() += super::residue(server).await.len() as u64;
    let channels = server
        .command(&["PUBSUB", "CHANNELS"])
        .await
        .map_err(broken)?;
    let ours = channels
        .list()
        .iter()
        .filter_map(|c| c.text())
        .filter(|c| c.contains(":inbox:"));
    *left.entry("inboxes".to_owned()).or_default() += ours.count() as u64;
    let clients = server
        .command(&["CLIENT", "LIST", "TYPE", "pubsub"])
        .await
        .map_err(broken)?;
    let lines = clients.text().unwrap_or_default().lines().count();
    *left.entry("connections".to_owned()).or_default() += lines as u64;
    Ok(())
}
