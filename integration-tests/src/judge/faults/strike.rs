//! How each fault is made to happen, to processes, networks and servers.

use std::time::Duration;

use tokio::time::sleep;

use super::servers::configure;
use super::{Fault, Form, cuts, not_for, time};
use crate::error::Doing;
use crate::judge::crew::{Crew, Worker};
use crate::judge::store::{Servers, Site};
use crate::{Clock, Direction, PostgresServer, Result};

impl Fault {
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
        form: Form,
        dice: &mut fastrand::Rng,
    ) -> Result<()> {
        let lease = site.store.lease();
        let long = lease + lease / 2;
        match self {
            // The order of waiters is judged in quiet times alone.
            Self::None => sleep(2 * lease).await,
            Self::HolderStoppedShort => stop(crew, crew.holder(lock).await?, lease / 3).await,
            Self::HolderStoppedLong => stop(crew, crew.holder(lock).await?, long).await,
            Self::WaiterStopped => stop(crew, crew.waiter(lock), long).await,
            Self::WaiterStoppedShort => stop(crew, crew.waiter(lock), lease / 3).await,
            Self::HolderKilled => crew.holder(lock).await?.kill(&crew.recorder).await,
            Self::WaiterKilled => crew.waiter(lock).kill(&crew.recorder).await,
            Self::GranteeKilled => {
                crew.holder(lock).await?;
                let waiter = crew.waiter(lock);
                waiter.freeze(&crew.recorder);
                // By then whoever held has released, and it was this one's turn.
                sleep(lease / 4).await;
                waiter.kill(&crew.recorder).await;
            }
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
            Self::ClientRate => {
                // The slow one, and then whoever holds.
                cut_off(crew.first_when_it_holds(lock).await?, long).await;
                cut_off(crew.holder(lock).await?, long).await;
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
            Self::Jitter => {
                for _ in 0..20 {
                    for proxy in crew.workers.iter().flat_map(|worker| &worker.proxies) {
                        for way in [Direction::ToServer, Direction::ToClient] {
                            proxy.delay(way, lease.mul_f32(dice.f32() / 6.0));
                        }
                    }
                    sleep(lease / 13).await;
                }
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
            Self::CutAtBytes => cuts::at_bytes(crew, (site.store, lock), form, dice).await?,
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
            (Self::NodeFrozen, _) => {
                site.freeze(1);
                sleep(long).await;
                site.thaw();
            }
            (Self::NodesForget, _) => site.restart(2).await?,
            (Self::NodeEmpty, _) => {
                site.restart(1).await?;
                // Until it counts again, and a while longer.
                sleep(2 * long).await;
            }
            (Self::ServerClock, _) => {
                for ahead in [3600, 0] {
                    site.move_clocks(ahead).await?;
                    sleep(long).await;
                }
            }
            (Self::ServerRate, Servers::Redis(nodes)) => {
                let rates = &Self::RATES[Self::RATES.len() - nodes.len()..];
                let before = time::look_at(nodes).await?;
                for _ in 0..2 {
                    cut_off(crew.holder(lock).await?, long).await;
                }
                let after = time::look_at(nodes).await?;
                for ((before, after), rate) in before.iter().zip(&after).zip(rates) {
                    before.ran_at(after, *rate)?;
                }
            }
            (Self::WritesRefused, Servers::Redis(nodes)) => {
                configure(nodes, &["min-replicas-to-write", "1"]).await?;
                sleep(long).await;
                configure(nodes, &["min-replicas-to-write", "0"]).await?;
            }
            (Self::SaveFailed, Servers::Redis(nodes)) => {
                for node in nodes {
                    // A folder where its file should be: the save fails, and Redis refuses writes until one succeeds.
                    std::fs::create_dir_all(node.site().file("dump.rdb").join("x"))
                        .doing("stand in the way of a save")?;
                    node.command(&["CONFIG", "SET", "save", "3600 1"]).await?;
                    node.command(&["BGSAVE"]).await?;
                }
                sleep(long).await;
                configure(nodes, &["save", ""]).await?;
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
            (Self::ConnectionLimit | Self::LoginRefused, _) => {
                site.shut_out(self, long).await?;
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
            (Self::LeaderFrozen, Servers::Sentinel(group)) => {
                let master = group.master().await?;
                master.freeze();
                let next = group.master_after(master).await.map(drop);
                sleep(long).await;
                // It goes on as a master that knows of no other, until it is told.
                master.thaw();
                next?;
            }
            (Self::LeaderFrozen, Servers::Cluster(cluster)) => {
                let key = format!("dlock:{{{lock}}}");
                let master = cluster.master_of(&key).await?;
                master.freeze();
                let next = cluster.master_after(&key, master).await.map(drop);
                sleep(long).await;
                master.thaw();
                next?;
            }
            (Self::SwitchOver, Servers::Sentinel(group)) => {
                let master = group.master().await?;
                group.switch_over(master).await?;
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
            (Self::SwitchOver, Servers::EtcdCluster(group)) => {
                let leader = group.leader().await?;
                // One line each: id, state, name, where members and where clients reach it.
                let members = leader.etcdctl(&["member", "list"]).await?;
                let own = leader.addr().to_string();
                let mut others = members.lines().filter(|line| !line.contains(&own));
                let other = others.next().and_then(|line| line.split(',').next());
                let other = other.ok_or_else(|| not_for(self, site.store))?;
                leader.etcdctl(&["move-leader", other]).await?;
                sleep(long).await;
            }
            (Self::Compacted, Servers::Etcd(server)) => {
                for _ in 0..6 {
                    // Nobody comes back before it is done.
                    let proxies = || crew.workers.iter().flat_map(|worker| &worker.proxies);
                    proxies().for_each(|proxy| proxy.black_hole(Direction::Both));
                    for proxy in proxies() {
                        proxy.reset_all().await;
                    }
                    for value in ["one", "another"] {
                        server.etcdctl(&["put", "compacted", value]).await?;
                    }
                    let told = server.etcdctl(&["get", "compacted", "-w", "json"]).await?;
                    let told: serde_json::Value = serde_json::from_str(&told)
                        .map_err(|error| crate::Error::answer("etcdctl get", error.to_string()))?;
                    let now = told["header"]["revision"].to_string();
                    server.etcdctl(&["compact", &now]).await?;
                    for worker in &crew.workers {
                        heal(worker).await;
                    }
                    sleep(long / 6).await;
                }
            }
            (Self::SwitchOver, Servers::Cluster(cluster)) => {
                let key = format!("dlock:{{{lock}}}");
                let master = cluster.master_of(&key).await?;
                let own = master.port().to_string();
                for node in cluster.nodes() {
                    let is_its = node.info("replication", "role").await? == "slave"
                        && node.info("replication", "master_port").await? == own;
                    if is_its {
                        node.command(&["CLUSTER", "FAILOVER"]).await?;
                    }
                }
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

async fn stop(crew: &Crew, worker: &Worker, time: Duration) {
    worker.freeze(&crew.recorder);
    sleep(time).await;
    worker.go_on(&crew.recorder);
}

/// To the end of what it believes, and longer.
async fn cut_off(holder: &Worker, time: Duration) {
    let proxies = holder.proxies.iter();
    proxies.for_each(|proxy| proxy.black_hole(Direction::Both));
    sleep(time).await;
    heal(holder).await;
}

pub(super) async fn heal(worker: &Worker) {
    for proxy in &worker.proxies {
        proxy.heal().await;
    }
}

/// As an administrator does before a switch-over.
async fn refuse_writes(server: &PostgresServer, value: &str) -> Result<()> {
    let set = format!("ALTER SYSTEM SET default_transaction_read_only = {value}");
    server.sql(&set).await?;
    server.sql("SELECT pg_reload_conf()").await.map(drop)
}
