//! What is done to servers, whatever they are.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::{Fault, not_for};
use crate::judge::store::{Servers, Site};
use crate::{Clock, Error, RedisServer, Result};

impl Site {
    /// What each server has logged.
    pub(in crate::judge) fn logs(&self) -> Vec<String> {
        match &self.servers {
            Servers::Redis(nodes) => nodes.iter().map(|node| node.log()).collect(),
            Servers::Sentinel(group) => group.nodes().iter().map(|node| node.log()).collect(),
            Servers::Cluster(cluster) => cluster.nodes().iter().map(|node| node.log()).collect(),
            Servers::MySql(server) => vec![server.log()],
            Servers::Postgres(servers) => servers.iter().map(|one| one.log()).collect(),
            Servers::Etcd(server) => vec![server.log()],
            Servers::EtcdCluster(group) => group.members().iter().map(|one| one.log()).collect(),
            Servers::Zk(server) => vec![server.log()],
            Servers::ZkEnsemble(group) => group.members().iter().map(|one| one.log()).collect(),
            Servers::None => Vec::new(),
        }
    }

    pub(super) fn freeze(&self, count: usize) {
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

    pub(super) fn thaw(&self) {
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
    pub(super) async fn restart(&self, count: usize) -> Result<()> {
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
                servers[0].restart().await?;
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

    pub(super) async fn kill_connections(&self) -> Result<()> {
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

    /// Ends all connections of clients and lets none of them in for so long: by the number of connections, or by their login.
    pub(super) async fn shut_out(&self, fault: Fault, time: Duration) -> Result<()> {
        let by_number = fault == Fault::ConnectionLimit;
        match &self.servers {
            Servers::Redis(nodes) => {
                let (name, before, after) = match by_number {
                    true => ("maxclients", "10000", "1"),
                    false => ("requirepass", "", "another"),
                };
                let seconds = time.as_secs_f32().to_string();
                // On one connection from begin to end: where there is room for one alone, it has that.
                let words: [&[&str]; 5] = [
                    &["CONFIG", "SET", name, after],
                    &["CLIENT", "KILL", "TYPE", "normal"],
                    &["CLIENT", "KILL", "TYPE", "pubsub"],
                    &["BLPOP", "nothing-comes", &seconds],
                    &["CONFIG", "SET", name, before],
                ];
                let all = nodes.iter().map(|node| node.commands(&words));
                futures::future::try_join_all(all).await.map(drop)
            }
            Servers::MySql(server) => {
                let (out, back) = match by_number {
                    true => ("WITH MAX_USER_CONNECTIONS 1", "WITH MAX_USER_CONNECTIONS 0"),
                    false => ("ACCOUNT LOCK", "ACCOUNT UNLOCK"),
                };
                server
                    .sql(&format!("ALTER USER app@'127.0.0.1' {out}"))
                    .await?;
                self.kill_connections().await?;
                sleep(time).await;
                server
                    .sql(&format!("ALTER USER app@'127.0.0.1' {back}"))
                    .await
                    .map(drop)
            }
            _ => Err(not_for(fault, self.store)),
        }
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

/// Whether it is the servers that stand still.
impl Site {
    /// Whether every server of an ensemble says that it leads or follows, and yet none of them makes a session for a client that asks
    /// as the protocol has it, without the library.
    pub async fn commits_nothing(&self) -> bool {
        let Servers::ZkEnsemble(group) = &self.servers else {
            return false;
        };
        for member in group.members() {
            let said = timeout(ANSWERS, member.four_letter_word("srvr")).await;
            let in_place = |said: &String| {
                ["leader", "follower"]
                    .iter()
                    .any(|mode| said.contains(&format!("Mode: {mode}")))
            };
            if !said.is_ok_and(|said| said.is_ok_and(|said| in_place(&said))) {
                return false;
            }
        }
        let asked = group.addrs().into_iter().map(makes_a_session);
        let made = futures::future::join_all(asked).await;
        !made.contains(&true)
    }
}

/// For how long servers are asked whether they work.
const ANSWERS: Duration = Duration::from_secs(5);

/// Asks for a session of four seconds: a length, the protocol's version 0, no zxid seen, the timeout, no session before, no password, not for reading alone.
async fn makes_a_session(addr: std::net::SocketAddr) -> bool {
    let asked = async {
        let mut stream = tokio::net::TcpStream::connect(addr).await?;
        let mut request = vec![0; 49];
        request[3] = 45;
        request[16..20].copy_from_slice(&4_000_i32.to_be_bytes());
        request[31] = 16;
        stream.write_all(&request).await?;
        let mut length = [0; 4];
        stream.read_exact(&mut length).await
    };
    matches!(timeout(ANSWERS, asked).await, Ok(Ok(_)))
}

/// The time of day of the servers.
impl Site {
    /// Moves their clocks so many seconds ahead of the right time, and looks at the servers whether they go by them: a program that asks the kernel past the C
    /// library would not, and nothing would have been shown.
    pub(super) async fn move_clocks(&self, ahead: i64) -> Result<()> {
        if self.clocks.is_empty() {
            return Err(not_for(Fault::ServerClock, self.store));
        }
        for clock in &self.clocks {
            clock.set(ahead)?;
        }
        self.shows_time(ahead).await
    }

    /// Fails unless the servers whose clocks may be moved, and the first one in any case, show this time.
    ///
    /// # Errors
    /// When they do not, or cannot be asked.
    pub async fn shows_time(&self, ahead: i64) -> Result<()> {
        let mut shown = Vec::new();
        match &self.servers {
            Servers::Redis(nodes) => {
                for node in nodes.iter().take(self.clocks.len().max(1)) {
                    let time = node.command(&["TIME"]).await?;
                    shown.extend(time.list().first().and_then(crate::Reply::text));
                }
            }
            Servers::MySql(server) => shown.push(server.sql("SELECT UNIX_TIMESTAMP()").await?),
            _ => {}
        }
        if shown.is_empty() {
            return Err(not_for(Fault::ServerClock, self.store));
        }
        for time in shown {
            let seconds = time.trim().parse::<i64>();
            let seconds = seconds.map_err(|_| Error::answer("the time of a server", time))?;
            Clock::check(ahead, seconds)?;
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
            (Fault::ServerClock, _) => self.move_clocks(3600).await,
            (Fault::Eviction, Servers::Redis(nodes)) => {
                configure(nodes, &["maxmemory-policy", "allkeys-random"]).await?;
                configure(nodes, &["maxmemory", "1"]).await?;
                // A server that is over its limit evicts when it is asked for something that needs memory.
                for node in nodes {
                    let _ = node.command(&["SET", "something", "large"]).await;
                }
                configure(nodes, &["maxmemory", "0"]).await
            }
            (
                Fault::SwitchOver | Fault::FailOver | Fault::LeaderFrozen,
                Servers::Sentinel(group),
            ) => {
                let master = group.master().await?;
                let replica = group
                    .nodes()
                    .iter()
                    .find(|node| node.port() != master.port());
                let replica = replica.ok_or_else(|| not_for(fault, self.store))?;
                // What the replica did not get: the hold of this lock. Replication gives no order between its link and a crash.
                forget(replica).await?;
                match fault {
                    Fault::FailOver => master.kill(),
                    Fault::LeaderFrozen => master.freeze(),
                    _ => {
                        let words = ["SENTINEL", "FAILOVER", crate::SentinelGroup::MASTER_NAME];
                        group.sentinels()[0].command(&words).await?;
                    }
                }
                let next = group.master_after(master).await.map(drop);
                master.thaw();
                next
            }
            (Fault::FailOver | Fault::LeaderFrozen, Servers::Cluster(cluster)) => {
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
                match fault {
                    Fault::FailOver => master.kill(),
                    _ => master.freeze(),
                }
                let next = cluster.master_after(&key, master).await.map(drop);
                master.thaw();
                next
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

pub(super) async fn configure(nodes: &[RedisServer], words: &[&str]) -> Result<()> {
    for node in nodes {
        let words: Vec<_> = ["CONFIG", "SET"].iter().chain(words).copied().collect();
        node.command(&words).await?;
    }
    Ok(())
}
