//! A Redis Cluster.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use futures::future::try_join_all;

use super::redis::value_of;
use super::{Redis, RedisServer, Reply, Server};
use crate::{Error, Result, program, until};

/// How long the cluster may take to form, and to fail over.
const LIMIT: Duration = Duration::from_secs(60);

/// The nodes of a Redis Cluster: three masters, and replicas where asked for.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts three masters without replicas, and waits until every node sees the whole cluster.
    ///
    /// # Errors
    /// When a program is missing, or the cluster does not form.
    pub async fn start() -> Result<Self> {
        Self::start_with(0).await
    }

    /// Starts three masters with `replicas` replicas each, which take over when their master is lost.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(replicas: usize) -> Result<Self> {
        let node = Redis {
            cluster: true,
            ..Redis::default()
        };
        let count = 3 * (1 + replicas);
        let nodes = try_join_all((0..count).map(|_| RedisServer::start_with(node.clone()))).await?;
        let cluster = Self { nodes };

        let mut create = Command::new(program::find("redis-cli", "redis-tools")?);
        create
            .args(["--cluster", "create"])
            .args(cluster.addrs().iter().map(SocketAddr::to_string));
        create.args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"]);
        program::output_of(create).await?;
        until("every node sees the whole cluster", LIMIT, || async {
            cluster.check().await
        })
        .await?;
        Ok(cluster)
    }

    /// All nodes, in the order of their start, running or not.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The addresses of all nodes.
    #[must_use]
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(Server::addr).collect()
    }

    /// The master that serves this key, as the first node that answers sees it.
    ///
    /// # Errors
    /// When no node answers within a minute.
    pub async fn master_of(&self, key: &str) -> Result<&RedisServer> {
        self.master_among(key, |_| true).await
    }

    /// The master that serves this key after `lost` was killed or frozen. Waits until a replica has taken over.
    ///
    /// # Errors
    /// When there is none within a minute.
    pub async fn master_after(&self, key: &str, lost: &RedisServer) -> Result<&RedisServer> {
        self.master_among(key, |node| node.port() != lost.port())
            .await
    }

    async fn master_among(
        &self,
        key: &str,
        may: impl Fn(&RedisServer) -> bool,
    ) -> Result<&RedisServer> {
        until("a master serves the key", LIMIT, || async {
            for node in self.nodes.iter().filter(|node| may(node)) {
                // The node itself must agree: only it knows whether it serves the slot, and answers MOVED if not.
                let role = tokio::time::timeout(Duration::from_millis(500), async {
                    node.command(&["EXISTS", key]).await?;
                    node.info("replication", "role").await
                });
                if matches!(role.await, Ok(Ok(role)) if role == "master") {
                    return Ok(node);
                }
            }
            Err(Error::answer("who serves the key?", "nobody"))
        })
        .await
    }

    /// The slot of a key.
    ///
    /// # Errors
    /// When no node answers.
    pub async fn slot_of(&self, key: &str) -> Result<String> {
        match self.nodes[0].command(&["CLUSTER", "KEYSLOT", key]).await? {
            Reply::Number(slot) => Ok(slot.to_string()),
            other => Err(Error::answer("CLUSTER KEYSLOT", format!("{other:?}"))),
        }
    }

    /// Begins to move a slot: from now on keys can be at either node.
    ///
    /// # Errors
    /// When a node refuses.
    pub async fn begin_move(&self, slot: &str, from: &RedisServer, to: &RedisServer) -> Result<()> {
        let (from_id, to_id) = (id_of(from).await?, id_of(to).await?);
        to.command(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &from_id])
            .await?;
        from.command(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &to_id])
            .await?;
        Ok(())
    }

    /// Moves one key, if it is there.
    ///
    /// # Errors
    /// When a node refuses.
    pub async fn move_key(&self, key: &str, from: &RedisServer, to: &RedisServer) -> Result<()> {
        let port = to.port().to_string();
        from.command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"])
            .await?;
        Ok(())
    }

    /// Moves what is left of a slot, and tells all nodes.
    ///
    /// # Errors
    /// When a node refuses.
    pub async fn end_move(&self, slot: &str, from: &RedisServer, to: &RedisServer) -> Result<()> {
        loop {
            let left = from
                .command(&["CLUSTER", "GETKEYSINSLOT", slot, "100"])
                .await?;
            let left: Vec<String> = left.list().iter().filter_map(Reply::text).collect();
            if left.is_empty() {
                break;
            }
            for key in left {
                self.move_key(&key, from, to).await?;
            }
        }
        let id = id_of(to).await?;
        // The new owner first, as `redis-cli` does it.
        let others = self.nodes.iter().filter(|node| node.port() != to.port());
        for node in std::iter::once(to).chain(others) {
            // Replicas learn it from the others, and refuse the command.
            if node.info("replication", "role").await? != "master" {
                continue;
            }
            node.command(&["CLUSTER", "SETSLOT", slot, "NODE", &id])
                .await?;
        }
        Ok(())
    }

    /// Moves so many slots, the lowest first, with `redis-cli --cluster reshard`.
    ///
    /// # Errors
    /// When it fails.
    pub async fn reshard(&self, count: usize, from: &RedisServer, to: &RedisServer) -> Result<()> {
        let mut reshard = Command::new(program::find("redis-cli", "redis-tools")?);
        reshard.args(["--cluster", "reshard", &from.addr().to_string()]);
        reshard.args(["--cluster-from", &id_of(from).await?]);
        reshard.args(["--cluster-to", &id_of(to).await?]);
        reshard.args(["--cluster-slots", &count.to_string(), "--cluster-yes"]);
        program::output_of(reshard).await?;
        Ok(())
    }

    /// Lets each node tell clients another port than its own, for example that of a proxy, and waits until all nodes say so.
    ///
    /// # Errors
    /// When a node refuses, or the others do not hear of it.
    pub async fn announce(&self, ports: &[u16]) -> Result<()> {
        for (node, port) in self.nodes.iter().zip(ports) {
            let port = port.to_string();
            node.command(&["CONFIG", "SET", "cluster-announce-port", &port])
                .await?;
        }
        until("every node tells the new ports", LIMIT, || async {
            for node in &self.nodes {
                let slots = node.command(&["CLUSTER", "SLOTS"]).await?;
                for range in slots.list() {
                    let told = range.list().get(2).map(|master| master.list());
                    let told = told.and_then(|master| master.get(1));
                    let new = |port: &i64| ports.iter().any(|new| i64::from(*new) == *port);
                    if !matches!(told, Some(Reply::Number(port)) if new(port)) {
                        return Err(Error::answer("CLUSTER SLOTS", format!("{slots:?}")));
                    }
                }
            }
            Ok(())
        })
        .await
    }

    /// Whether each node says that all slots are served, knows all others, and follows its master if it is a replica.
    async fn check(&self) -> Result<()> {
        for node in &self.nodes {
            let info = node
                .command(&["CLUSTER", "INFO"])
                .await?
                .text()
                .unwrap_or_default();
            let known = self.nodes.len().to_string();
            for (key, wanted) in [
                ("cluster_state", "ok"),
                ("cluster_slots_ok", "16384"),
                ("cluster_known_nodes", known.as_str()),
            ] {
                if value_of(&info, key).as_deref() != Some(wanted) {
                    return Err(Error::answer("CLUSTER INFO", info));
                }
            }
            let role = node.command(&["ROLE"]).await?;
            let words: Vec<_> = role.list().iter().filter_map(Reply::text).collect();
            if words.iter().any(|word| word == "slave")
                && !words.iter().any(|word| word == "connected")
            {
                return Err(Error::answer("ROLE", format!("{role:?}")));
            }
        }
        Ok(())
    }
}

/// The name by which a cluster knows a node.
async fn id_of(node: &RedisServer) -> Result<String> {
    let id = node.command(&["CLUSTER", "MYID"]).await?.text();
    id.ok_or_else(|| Error::answer("CLUSTER MYID", "nothing"))
}
