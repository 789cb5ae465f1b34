//! A Redis master with a replica, watched by three Sentinels.

use std::process::Command;
use std::time::Duration;

use futures::future::try_join_all;

use super::{Redis, RedisServer, Reply, Server, Site, Store, resp};
use crate::error::Doing;
use crate::{Error, Result, program, until};

/// A running Sentinel.
pub type SentinelServer = Server<Sentinel>;

/// How long the group may take to form, and to fail over.
const LIMIT: Duration = Duration::from_secs(60);

/// The settings of a Sentinel.
#[derive(Debug, Clone)]
pub struct Sentinel {
    /// The port of the first master on loopback.
    pub master: u16,
    /// How long the master must be silent until a Sentinel takes it for down.
    pub down_after: Duration,
}

impl Store for Sentinel {
    const NAME: &'static str = "sentinel";
    const URL_VARIABLE: &'static str = "DLOCK_TEST_SENTINEL_URL";

    async fn prepare(&self, site: &Site) -> Result<()> {
        // A Sentinel rewrites this file with what it learns, so a restart continues from there.
        let name = SentinelGroup::MASTER_NAME;
        let lines = [
            format!("port {}", site.port()),
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", site.folder.path().display()),
            format!("sentinel monitor {name} 127.0.0.1 {} 2", self.master),
            format!(
                "sentinel down-after-milliseconds {name} {}",
                self.down_after.as_millis()
            ),
            format!("sentinel failover-timeout {name} 3000"),
        ];
        std::fs::write(site.file("sentinel.conf"), lines.join("\n") + "\n")
            .doing("write sentinel.conf")
    }

    fn command(&self, site: &Site) -> Result<Command> {
        let mut command = Command::new(program::find("redis-sentinel", "redis-sentinel")?);
        command.arg(site.file("sentinel.conf"));
        Ok(command)
    }

    async fn probe(&self, site: &Site) -> Result<()> {
        // Shorter rounds than the usual one to ten seconds: the group forms and fails over sooner. Not kept in the
        // file, so it is set at every start, and its answer shows that the Sentinel is up. The ping period must stay:
        // a replica counts as promotable for five of them after its last INFO, which comes once a second then.
        let rounds = "SENTINEL DEBUG info-period 200 publish-period 200 ask-period 100";
        let rounds: Vec<_> = rounds.split(' ').collect();
        resp::ask(site.addr(), None, &rounds).await.map(drop)
    }

    fn url(&self, site: &Site) -> String {
        format!("redis://{}", site.addr())
    }
}

/// One master, one replica and three Sentinels with a quorum of two.
#[derive(Debug)]
pub struct SentinelGroup {
    nodes: Vec<RedisServer>,
    sentinels: Vec<SentinelServer>,
}

impl SentinelGroup {
    /// The name under which the Sentinels know the master.
    pub const MASTER_NAME: &'static str = "dlock";

    /// Starts the group, and waits until the replica follows and the Sentinels know all members.
    ///
    /// # Errors
    /// When a program is missing, or the group does not form.
    pub async fn start() -> Result<Self> {
        let master = RedisServer::start().await?;
        let replica = Redis {
            replica_of: Some(master.port()),
            ..Redis::default()
        };
        let replica = RedisServer::start_with(replica).await?;
        // Three that notice at the same moment each vote for themselves, and the next try comes much later. The third
        // notices so late that it only votes.
        let starts = [600, 700, 1700].map(|millis| {
            let down_after = Duration::from_millis(millis);
            SentinelServer::start_with(Sentinel {
                master: master.port(),
                down_after,
            })
        });
        let sentinels = try_join_all(starts).await?;

        let group = Self {
            nodes: vec![master, replica],
            sentinels,
        };
        until("the Sentinels know the group", LIMIT, || async {
            group.check().await
        })
        .await?;
        Ok(group)
    }

    /// The two Redis servers: the first master, then the first replica.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The three Sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[SentinelServer] {
        &self.sentinels
    }

    /// The master, as most Sentinels see it now.
    ///
    /// # Errors
    /// When no two Sentinels agree within a minute.
    pub async fn master(&self) -> Result<&RedisServer> {
        self.master_among(|_| true).await
    }

    /// The master after `lost` was killed or frozen. Waits until most Sentinels name it and it takes writes.
    ///
    /// # Errors
    /// When there is none within a minute.
    pub async fn master_after(&self, lost: &RedisServer) -> Result<&RedisServer> {
        self.master_among(|node| node.port() != lost.port()).await
    }

    /// A planned switch-over away from `master`. A Sentinel that has not heard of the replica of late refuses it ("no suitable replica"), or begins it and
    /// gives it up: it is told again then.
    ///
    /// # Errors
    /// When there is no other master within a minute.
    pub async fn switch_over(&self, master: &RedisServer) -> Result<()> {
        until("a switch-over", LIMIT, || async {
            let words = ["SENTINEL", "FAILOVER", Self::MASTER_NAME];
            let told = self.sentinels[0].command(&words).await;
            for _ in 0..50 {
                if self.sentinels[0].master_port().await? != master.port() {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                if told.is_err() {
                    break;
                }
            }
            Err(Error::answer("SENTINEL FAILOVER", format!("{told:?}")))
        })
        .await?;
        self.master_after(master).await.map(drop)
    }

    async fn master_among(&self, may: impl Fn(&RedisServer) -> bool) -> Result<&RedisServer> {
        until(
            "most Sentinels name a master that takes writes",
            LIMIT,
            || async {
                let mut named = Vec::new();
                for sentinel in &self.sentinels {
                    named.extend(sentinel.master_port().await.ok());
                }
                for node in self.nodes.iter().filter(|node| may(node)) {
                    let votes = named.iter().filter(|&&port| port == node.port()).count();
                    if votes >= 2 && node.info("replication", "role").await? == "master" {
                        return Ok(node);
                    }
                }
                Err(Error::answer("who is master?", format!("ports {named:?}")))
            },
        )
        .await
    }

    /// Whether the replica is in step and every Sentinel knows it and the two others.
    async fn check(&self) -> Result<()> {
        let link = self.nodes[1]
            .info("replication", "master_link_status")
            .await?;
        if link != "up" {
            return Err(Error::answer("master_link_status", link));
        }
        for sentinel in &self.sentinels {
            let known = sentinel
                .command(&["SENTINEL", "MASTER", Self::MASTER_NAME])
                .await?;
            for (field, wanted) in [
                ("flags", "master"),
                ("num-slaves", "1"),
                ("num-other-sentinels", "2"),
            ] {
                if known.field(field).as_deref() != Some(wanted) {
                    return Err(Error::answer(field, format!("{known:?}")));
                }
            }
        }
        Ok(())
    }
}

impl SentinelServer {
    /// Sends one command on a connection of its own.
    ///
    /// # Errors
    /// When the sentinel cannot be reached or answers with an error.
    pub async fn command(&self, words: &[&str]) -> Result<Reply> {
        resp::ask(self.addr(), None, words).await
    }

    /// The port of the master that this Sentinel would send a client to.
    async fn master_port(&self) -> Result<u16> {
        let answer = self
            .command(&[
                "SENTINEL",
                "GET-MASTER-ADDR-BY-NAME",
                SentinelGroup::MASTER_NAME,
            ])
            .await?;
        let port = answer
            .list()
            .get(1)
            .and_then(Reply::text)
            .and_then(|port| port.parse().ok());
        port.ok_or_else(|| Error::answer("GET-MASTER-ADDR-BY-NAME", format!("{answer:?}")))
    }
}
