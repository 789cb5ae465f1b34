//! What goes wrong: each fault happens, lasts a while, and is over when the call returns.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use super::crew::{Crew, Worker};
use super::store::{Servers, Site, Store};
use crate::{Clock, Direction, Error, PostgresServer, RedisServer, Result};

/// Which fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "`text` says what each does")]
pub enum Fault {
    None,
    HolderStoppedShort,
    HolderStoppedLong,
    WaiterStopped,
    HolderKilled,
    WaiterKilled,
    RuntimeBlocked,
    ClientClock,
    Partition,
    CutToServer,
    CutToClient,
    HalfOpen,
    Latency,
    RepliesLost,
    RequestsLate,
    Resets,
    ServerFrozen,
    ServerRestarted,
    ServerEmpty,
    ServerClock,
    WritesRefused,
    OutOfMemory,
    Eviction,
    ConnectionsKilled,
    HoldDeleted,
    LeaderKilled,
    LeaderFrozen,
    QuorumLost,
    SwitchOver,
    FailOver,
    Resharding,
    NodeDown,
    NodesForget,
}

impl Fault {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 33] = [
        Self::None,
        Self::HolderStoppedShort,
        Self::HolderStoppedLong,
        Self::WaiterStopped,
        Self::HolderKilled,
        Self::WaiterKilled,
        Self::RuntimeBlocked,
        Self::ClientClock,
        Self::Partition,
        Self::CutToServer,
        Self::CutToClient,
        Self::HalfOpen,
        Self::Latency,
        Self::RepliesLost,
        Self::RequestsLate,
        Self::Resets,
        Self::ServerFrozen,
        Self::ServerRestarted,
        Self::ServerEmpty,
        Self::ServerClock,
        Self::WritesRefused,
        Self::OutOfMemory,
        Self::Eviction,
        Self::ConnectionsKilled,
        Self::HoldDeleted,
        Self::LeaderKilled,
        Self::LeaderFrozen,
        Self::QuorumLost,
        Self::SwitchOver,
        Self::FailOver,
        Self::Resharding,
        Self::NodeDown,
        Self::NodesForget,
    ];

    /// Its name, and what it does.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::None => ("none", "nothing goes wrong"),
            Self::HolderStoppedShort => (
                "holder-stopped-short",
                "the holder's process is stopped for a third of its lease",
            ),
            Self::HolderStoppedLong => (
                "holder-stopped-long",
                "the holder's process is stopped for longer than its lease",
            ),
            Self::WaiterStopped => (
                "waiter-stopped",
                "a waiter's process is stopped for longer than the lease; its turn comes meanwhile",
            ),
            Self::HolderKilled => ("holder-killed", "the holder's process is killed (SIGKILL)"),
            Self::WaiterKilled => ("waiter-killed", "a waiter's process is killed (SIGKILL)"),
            Self::RuntimeBlocked => (
                "runtime-blocked",
                "the holder's runtime is blocked for longer than the lease",
            ),
            Self::ClientClock => (
                "client-clock",
                "the wall clock of all clients jumps an hour ahead, then two back",
            ),
            Self::Partition => (
                "partition",
                "nothing passes between the holder and the store, for longer than the lease",
            ),
            Self::CutToServer => (
                "cut-to-server",
                "nothing passes from the holder to the store",
            ),
            Self::CutToClient => (
                "cut-to-client",
                "nothing passes from the store to the holder",
            ),
            Self::HalfOpen => (
                "half-open",
                "the holder's connections fall silent; new ones work",
            ),
            Self::Latency => ("latency", "every round trip takes a third of the lease"),
            Self::RepliesLost => (
                "replies-lost",
                "replies are lost after the store has done the work, one after the other",
            ),
            Self::RequestsLate => (
                "requests-late",
                "what the holder sends arrives later than its lease, all at once",
            ),
            Self::Resets => ("resets", "connections are reset again and again"),
            Self::ServerFrozen => (
                "server-frozen",
                "all servers stand still for longer than the lease",
            ),
            Self::ServerRestarted => (
                "server-restarted",
                "all servers are killed and come back with their data",
            ),
            Self::ServerEmpty => (
                "server-empty",
                "the server is killed and comes back without data",
            ),
            Self::ServerClock => (
                "server-clock",
                "the server's wall clock jumps an hour ahead, and back",
            ),
            Self::WritesRefused => (
                "writes-refused",
                "the server refuses writes for longer than the lease",
            ),
            Self::OutOfMemory => (
                "out-of-memory",
                "the server has no memory for writes, for longer than the lease",
            ),
            Self::Eviction => ("eviction", "the server evicts keys to make room"),
            Self::ConnectionsKilled => (
                "connections-killed",
                "an administrator ends all connections, several times",
            ),
            Self::HoldDeleted => (
                "hold-deleted",
                "an administrator deletes what the store keeps of the holds",
            ),
            Self::LeaderKilled => ("leader-killed", "the leader is killed, and comes back"),
            Self::LeaderFrozen => (
                "leader-frozen",
                "the leader stands still until another is elected, and goes on",
            ),
            Self::QuorumLost => (
                "quorum-lost",
                "most servers stand still for longer than the lease",
            ),
            Self::SwitchOver => ("switch-over", "a planned fail-over to the replica"),
            Self::FailOver => (
                "fail-over",
                "the master is killed and its replica takes over",
            ),
            Self::Resharding => ("resharding", "slots move to another node under load"),
            Self::NodeDown => (
                "node-down",
                "one of three nodes is down, and comes back with its data",
            ),
            Self::NodesForget => (
                "nodes-forget",
                "a bare quorum of nodes is killed and comes back without data, though it was said to keep it",
            ),
        }
    }

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.words().0
    }

    /// What it does.
    #[must_use]
    pub fn text(self) -> &'static str {
        self.words().1
    }

    /// The fault of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.as_str() == name)
    }

    /// Whether it happens to the servers, so that no other scenario may use them meanwhile.
    #[must_use]
    pub fn hits_servers(self) -> bool {
        self >= Self::ServerFrozen
    }

    /// Whether it needs proxies between workers and servers.
    pub(crate) fn is_of_network(self) -> bool {
        self >= Self::Partition && self < Self::ServerFrozen
    }

    /// Makes it happen, and ends it.
    ///
    /// # Errors
    /// When a server or a worker does not do what it should.
    pub async fn strike(
        self,
        site: &Site,
        crew: &Crew,
        lock: &str,
        clock: Option<&Clock>,
        dice: &mut fastrand::Rng,
    ) -> Result<()> {
        let lease = site.store.lease();
        let long = lease + lease / 2;
        match self {
            Self::None => sleep(lease).await,
            Self::HolderStoppedShort => stop(crew, crew.holder(lock).await?, lease / 3).await,
            Self::HolderStoppedLong => stop(crew, crew.holder(lock).await?, long).await,
            Self::WaiterStopped => stop(crew, crew.waiter(lock), long).await,
            Self::HolderKilled => crew.holder(lock).await?.kill(&crew.recorder).await,
            Self::WaiterKilled => crew.waiter(lock).kill(&crew.recorder).await,
            Self::RuntimeBlocked => {
                let holder = crew.holder(lock).await?;
                holder.tell(&format!("block {}", long.as_millis())).await;
                sleep(long).await;
            }
            Self::ClientClock => {
                for ahead in [3600, -3600, 0] {
                    clock.map_or(Ok(()), |clock| clock.set(ahead))?;
                    sleep(lease / 2).await;
                }
            }
            Self::Partition | Self::CutToServer | Self::CutToClient => {
                let way = match self {
                    Self::CutToServer => Direction::ToServer,
                    Self::CutToClient => Direction::ToClient,
                    _ => Direction::Both,
                };
                let holder = crew.holder(lock).await?;
                holder
                    .proxies
                    .iter()
                    .for_each(|proxy| proxy.black_hole(way));
                sleep(long).await;
                heal(holder).await;
            }
            Self::HalfOpen => {
                let holder = crew.holder(lock).await?;
                holder.proxies.iter().for_each(|proxy| proxy.half_open());
                sleep(long).await;
                heal(holder).await;
            }
            Self::Latency => {
                for proxy in crew.workers.iter().flat_map(|worker| &worker.proxies) {
                    proxy.delay(Direction::Both, lease / 6);
                }
                sleep(2 * lease).await;
                for worker in &crew.workers {
                    heal(worker).await;
                }
            }
            Self::RepliesLost => {
                for _ in 0..20 {
                    let worker = &crew.workers[dice.usize(0..crew.workers.len())];
                    let proxy = &worker.proxies[dice.usize(0..worker.proxies.len())];
                    proxy.drop_reply(dice.u64(1..4));
                    sleep(lease / 13).await;
                }
                for worker in &crew.workers {
                    heal(worker).await;
                }
            }
            Self::RequestsLate => {
                let holder = crew.holder(lock).await?;
                let proxies = &holder.proxies;
                proxies
                    .iter()
                    .for_each(|proxy| proxy.pause(Direction::ToServer));
                sleep(long).await;
                proxies.iter().for_each(|proxy| proxy.resume());
            }
            Self::Resets => {
                for _ in 0..15 {
                    let worker = &crew.workers[dice.usize(0..crew.workers.len())];
                    for proxy in &worker.proxies {
                        proxy.reset_all().await;
                    }
                    sleep(lease / 10).await;
                }
            }
            _ => self.strike_store(site, crew, lock, long).await?,
        }
        Ok(())
    }

    async fn strike_store(
        self,
        site: &Site,
        crew: &Crew,
        lock: &str,
        long: Duration,
    ) -> Result<()> {
        // With a holder across it.
        crew.holder(lock).await?;
        match (self, &site.servers) {
            (Self::ServerFrozen, _) => {
                site.freeze(usize::MAX);
                sleep(long).await;
                site.thaw();
            }
            (Self::QuorumLost, _) => {
                site.freeze(2);
                sleep(long).await;
                site.thaw();
            }
            (Self::ServerRestarted | Self::ServerEmpty, _) => site.restart(usize::MAX).await?,
            (Self::NodeDown, _) => site.restart(1).await?,
            (Self::NodesForget, _) => site.restart(2).await?,
            (Self::ServerClock, _) => {
                let clock = site
                    .clock
                    .as_ref()
                    .ok_or_else(|| not_for(self, site.store))?;
                for ahead in [3600, 0] {
                    clock.set(ahead)?;
                    sleep(long).await;
                }
            }
            (Self::WritesRefused, Servers::Redis(nodes)) => {
                configure(nodes, &["min-replicas-to-write", "1"]).await?;
                sleep(long).await;
                configure(nodes, &["min-replicas-to-write", "0"]).await?;
            }
            (Self::WritesRefused, Servers::MySql(server)) => {
                server.sql("SET GLOBAL read_only = 1").await?;
                sleep(long).await;
                server.sql("SET GLOBAL read_only = 0").await?;
            }
            (Self::WritesRefused, Servers::Postgres(servers)) => {
                for (value, time) in [("on", long), ("off", Duration::ZERO)] {
                    refuse_writes(&servers[0], value).await?;
                    sleep(time).await;
                }
            }
            (Self::SwitchOver, Servers::Postgres(servers)) => {
                // The old one lives, keeps its connections, and takes no writes any more. Then nothing waits for the standby.
                refuse_writes(&servers[0], "on").await?;
                servers[1].promote().await?;
                sleep(long).await;
            }
            (Self::FailOver, Servers::Postgres(servers)) => {
                servers[0].kill();
                servers[1].promote().await?;
                sleep(long).await;
            }
            (Self::OutOfMemory | Self::Eviction, Servers::Redis(nodes)) => {
                let policy = match self {
                    Self::Eviction => "allkeys-random",
                    _ => "noeviction",
                };
                configure(nodes, &["maxmemory-policy", policy]).await?;
                configure(nodes, &["maxmemory", "1"]).await?;
                sleep(long).await;
                configure(nodes, &["maxmemory", "0"]).await?;
            }
            (Self::ConnectionsKilled, _) => {
                for _ in 0..6 {
                    site.kill_connections().await?;
                    sleep(long / 6).await;
                }
            }
            (Self::HoldDeleted, _) => {
                for _ in 0..3 {
                    crew.holder(lock).await?;
                    site.delete_holds(lock).await?;
                    sleep(long / 3).await;
                }
            }
            (Self::LeaderKilled, Servers::EtcdCluster(group)) => {
                let leader = group.leader().await?;
                leader.kill();
                group.leader_after(leader).await?;
                leader.restart().await?;
            }
            (Self::LeaderKilled, Servers::ZkEnsemble(group)) => {
                let leader = group.leader().await?;
                leader.kill();
                group.leader_after(leader).await?;
                leader.restart().await?;
            }
            (Self::LeaderFrozen, Servers::EtcdCluster(group)) => {
                let leader = group.leader().await?;
                leader.freeze();
                let next = group.leader_after(leader).await.map(drop);
                sleep(long).await;
                leader.thaw();
                next?;
            }
            (Self::LeaderFrozen, Servers::ZkEnsemble(group)) => {
                let leader = group.leader().await?;
                leader.freeze();
                let next = group.leader_after(leader).await.map(drop);
                sleep(long).await;
                leader.thaw();
                next?;
            }
            (Self::SwitchOver, Servers::Sentinel(group)) => {
                let master = group.master().await?;
                let words = ["SENTINEL", "FAILOVER", crate::SentinelGroup::MASTER_NAME];
                group.sentinels()[0].command(&words).await?;
                group.master_after(master).await?;
                sleep(long).await;
            }
            (Self::FailOver, Servers::Sentinel(group)) => {
                let master = group.master().await?;
                master.kill();
                group.master_after(master).await?;
                sleep(long).await;
            }
            (Self::FailOver, Servers::Cluster(cluster)) => {
                let key = format!("dlock:{{{lock}}}");
                let master = cluster.master_of(&key).await?;
                master.kill();
                cluster.master_after(&key, master).await?;
                sleep(long).await;
            }
            (Self::Resharding, Servers::Cluster(cluster)) => {
                let key = format!("dlock:{{{lock}}}");
                let from = cluster.master_of(&key).await?;
                let mut masters = Vec::new();
                for other in ["a", "b", "c", "d", "e", "f", "g", "h"] {
                    masters.push(cluster.master_of(other).await?);
                }
                let to = masters.iter().find(|node| node.port() != from.port());
                let to = to.ok_or_else(|| not_for(self, site.store))?;
                cluster.reshard(1500, from, to).await?;
            }
            _ => return Err(not_for(self, site.store)),
        }
        Ok(())
    }
}

fn not_for(fault: Fault, store: Store) -> Error {
    Error::answer(fault.as_str(), format!("not a fault of {}", store.as_str()))
}

async fn stop(crew: &Crew, worker: &Worker, time: Duration) {
    worker.freeze(&crew.recorder);
    sleep(time).await;
    worker.go_on(&crew.recorder);
}

async fn heal(worker: &Worker) {
    for proxy in &worker.proxies {
        proxy.heal().await;
    }
}

async fn configure(nodes: &[RedisServer], words: &[&str]) -> Result<()> {
    for node in nodes {
        let words: Vec<_> = ["CONFIG", "SET"].iter().chain(words).copied().collect();
        node.command(&words).await?;
    }
    Ok(())
}

/// As an administrator does before a switch-over.
async fn refuse_writes(server: &PostgresServer, value: &str) -> Result<()> {
    let set = format!("ALTER SYSTEM SET default_transaction_read_only = {value}");
    server.sql(&set).await?;
    server.sql("SELECT pg_reload_conf()").await.map(drop)
}

/// What is done to servers, whatever they are.
impl Site {
    fn freeze(&self, count: usize) {
        match &self.servers {
            Servers::Redis(nodes) => nodes.iter().take(count).for_each(|node| node.freeze()),
            Servers::Sentinel(group) => group.nodes().iter().for_each(|node| node.freeze()),
            Servers::Cluster(cluster) => cluster.nodes().iter().for_each(|node| node.freeze()),
            Servers::MySql(server) => server.freeze(),
            Servers::Postgres(servers) => servers.iter().for_each(|one| one.freeze_all()),
            Servers::Etcd(server) => server.freeze(),
            Servers::EtcdCluster(group) => {
                group
                    .members()
                    .iter()
                    .take(count)
                    .for_each(|one| one.freeze());
            }
            Servers::Zk(server) => server.freeze(),
            Servers::ZkEnsemble(group) => {
                group
                    .members()
                    .iter()
                    .take(count)
                    .for_each(|one| one.freeze());
            }
            Servers::None => {}
        }
    }

    fn thaw(&self) {
        match &self.servers {
            Servers::Redis(nodes) => nodes.iter().for_each(|node| node.thaw()),
            Servers::Sentinel(group) => group.nodes().iter().for_each(|node| node.thaw()),
            Servers::Cluster(cluster) => cluster.nodes().iter().for_each(|node| node.thaw()),
            Servers::MySql(server) => server.thaw(),
            Servers::Postgres(servers) => servers.iter().for_each(|one| one.thaw_all()),
            Servers::Etcd(server) => server.thaw(),
            Servers::EtcdCluster(group) => group.members().iter().for_each(|one| one.thaw()),
            Servers::Zk(server) => server.thaw(),
            Servers::ZkEnsemble(group) => group.members().iter().for_each(|one| one.thaw()),
            Servers::None => {}
        }
    }

    /// Kills so many servers, and starts them again.
    async fn restart(&self, count: usize) -> Result<()> {
        let pause = Duration::from_millis(300);
        match &self.servers {
            Servers::Redis(nodes) => {
                nodes.iter().take(count).for_each(|node| node.kill());
                sleep(pause).await;
                for node in nodes.iter().take(count) {
                    node.restart().await?;
                }
            }
            Servers::MySql(server) => {
                server.kill();
                sleep(pause).await;
                server.restart().await?;
            }
            Servers::Postgres(servers) => {
                servers[0].kill();
                // The processes that serve clients end a moment after it; until then a new server finds their memory in use, and ends.
                crate::until("it is back", Duration::from_secs(30), || {
                    servers[0].restart()
                })
                .await?;
            }
            Servers::Etcd(server) => {
                server.kill();
                sleep(pause).await;
                server.restart().await?;
            }
            Servers::Zk(server) => {
                server.kill();
                sleep(pause).await;
                server.restart().await?;
            }
            Servers::EtcdCluster(group) => {
                group.members().iter().for_each(|one| one.kill());
                let again = group.members().iter().map(|one| one.restart());
                futures::future::try_join_all(again).await?;
            }
            Servers::ZkEnsemble(group) => {
                group.members().iter().for_each(|one| one.kill());
                let again = group.members().iter().map(|one| one.restart());
                futures::future::try_join_all(again).await?;
            }
            _ => return Err(not_for(Fault::ServerRestarted, self.store)),
        }
        Ok(())
    }

    async fn kill_connections(&self) -> Result<()> {
        match &self.servers {
            Servers::Redis(nodes) => {
                for node in nodes {
                    for kind in ["normal", "pubsub"] {
                        node.command(&["CLIENT", "KILL", "TYPE", kind]).await?;
                    }
                }
            }
            Servers::MySql(server) => {
                let all = "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = 'app'";
                for id in server.sql(all).await?.lines() {
                    // One that has gone meanwhile is no matter.
                    let _ = server.sql(&format!("KILL {id}")).await;
                }
            }
            Servers::Postgres(servers) => {
                let all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dlock'";
                servers[0].sql(all).await?;
            }
            _ => return Err(not_for(Fault::ConnectionsKilled, self.store)),
        }
        Ok(())
    }

    /// As an administrator would, past the library where the store has a way.
    pub(crate) async fn delete_holds(&self, lock: &str) -> Result<()> {
        match &self.servers {
            Servers::Redis(nodes) => {
                for node in nodes {
                    let pattern = format!("*{lock}}}");
                    let keys = node.command(&["KEYS", &pattern]).await?;
                    for key in keys.list().iter().filter_map(crate::Reply::text) {
                        node.command(&["DEL", &key]).await?;
                    }
                }
            }
            Servers::Etcd(server) => {
                let leases = server.etcdctl(&["lease", "list"]).await?;
                for lease in leases.lines().skip(1) {
                    let _ = server.etcdctl(&["lease", "revoke", lease]).await;
                }
            }
            _ => {
                let client = self.client().await;
                let client = client.map_err(|error| Error::answer("connect", error.to_string()))?;
                // Some need as long as a connection takes to end.
                let broken = timeout(Duration::from_secs(20), client.break_lock(lock)).await;
                let broken = broken.map_err(|_| Error::answer("break a lock", "no answer"))?;
                broken.map_err(|error| Error::answer("break a lock", error.to_string()))?;
                let _ = client.close().await;
            }
        }
        Ok(())
    }
}

/// What opens a hole, for tests that force it.
impl Site {
    /// Makes the store forget the hold of a lock at once, in the way of this fault, and returns while its holder may still believe in it.
    ///
    /// # Errors
    /// When a server does not do what it should, or the fault is none that opens a hole here.
    pub async fn strike_now(&self, fault: Fault, lock: &str) -> Result<()> {
        match (fault, &self.servers) {
            (Fault::ServerEmpty, _) => self.restart(usize::MAX).await,
            (Fault::NodesForget, _) => self.restart(2).await,
            (Fault::HoldDeleted, _) => self.delete_holds(lock).await,
            (Fault::ServerClock, _) => {
                let clock = self
                    .clock
                    .as_ref()
                    .ok_or_else(|| not_for(fault, self.store))?;
                clock.set(3600)
            }
            (Fault::Eviction, Servers::Redis(nodes)) => {
                configure(nodes, &["maxmemory-policy", "allkeys-random"]).await?;
                configure(nodes, &["maxmemory", "1"]).await?;
                // A server that is over its limit evicts when it is asked for something that needs memory.
                for node in nodes {
                    let _ = node.command(&["SET", "something", "large"]).await;
                }
                configure(nodes, &["maxmemory", "0"]).await
            }
            (Fault::SwitchOver | Fault::FailOver, Servers::Sentinel(group)) => {
                let master = group.master().await?;
                let replica = group
                    .nodes()
                    .iter()
                    .find(|node| node.port() != master.port());
                let replica = replica.ok_or_else(|| not_for(fault, self.store))?;
                // What the replica did not get: the hold of this lock. Replication gives no order between its link and a crash.
                forget(replica).await?;
                if fault == Fault::FailOver {
                    master.kill();
                } else {
                    let words = ["SENTINEL", "FAILOVER", crate::SentinelGroup::MASTER_NAME];
                    group.sentinels()[0].command(&words).await?;
                }
                group.master_after(master).await.map(drop)
            }
            (Fault::FailOver, Servers::Cluster(cluster)) => {
                let key = format!("dlock:{{{lock}}}");
                let master = cluster.master_of(&key).await?;
                for node in cluster
                    .nodes()
                    .iter()
                    .filter(|node| node.port() != master.port())
                {
                    if node.info("replication", "role").await? == "slave" {
                        forget(node).await?;
                    }
                }
                master.kill();
                cluster.master_after(&key, master).await.map(drop)
            }
            _ => Err(not_for(fault, self.store)),
        }
    }
}

/// Takes all from a replica, as if it had not reached it: writes in flight are lost so when a master dies.
async fn forget(replica: &RedisServer) -> Result<()> {
    replica
        .command(&["CONFIG", "SET", "replica-read-only", "no"])
        .await?;
    replica.command(&["FLUSHALL"]).await.map(drop)
}
