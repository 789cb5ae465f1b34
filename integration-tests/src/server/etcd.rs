//! One etcd server, and a cluster of them.

use std::net::SocketAddr;
use std::process::Command;

use super::group::{Elects, Group};
use super::{Server, Site, Store, wire};
use crate::{Error, Result, program};

/// A running etcd.
pub type EtcdServer = Server<Etcd>;

/// A running etcd cluster.
pub type EtcdCluster = Group<Etcd>;

/// The settings of an etcd server.
#[derive(Debug, Clone)]
pub struct Etcd {
    /// Milliseconds between two heartbeats of a leader.
    pub heartbeat: u32,
    /// Milliseconds without a heartbeat after which a member stands for election. The server refuses leases shorter
    /// than one and a half times this.
    pub election: u32,
    /// Further arguments. They win over ours.
    pub args: Vec<String>,
    /// Further environment.
    pub env: Vec<(String, String)>,
    /// Where all members of the cluster are, by name and peer port; empty for a server of its own.
    members: Vec<(String, u16)>,
    name: String,
}

impl Default for Etcd {
    fn default() -> Self {
        Self {
            heartbeat: 50,
            election: 500,
            args: Vec::new(),
            env: Vec::new(),
            members: Vec::new(),
            name: "only".into(),
        }
    }
}

/// The place of the port for other members in [`Site`].
const PEER: usize = 1;

impl Store for Etcd {
    const NAME: &'static str = "etcd";
    const URL_VARIABLE: &'static str = "DLOCK_TEST_ETCD_URL";

    fn ports(&self) -> usize {
        2
    }

    fn command(&self, site: &Site) -> Result<Command> {
        let clients = format!("http://{}", site.addr());
        let peers = peer_url(site.port_at(PEER));
        let alone = [(self.name.clone(), site.port_at(PEER))];
        let members = if self.members.is_empty() {
            &alone[..]
        } else {
            &self.members
        };
        let cluster: Vec<_> = members
            .iter()
            .map(|(name, port)| format!("{name}={}", peer_url(*port)))
            .collect();

        let mut command = Command::new(program::find("etcd", "etcd-server")?);
        command.envs(self.env.iter().cloned());
        command
            .args(["--name", &self.name, "--data-dir"])
            .arg(site.file("data"));
        command.args([
            "--listen-client-urls",
            &clients,
            "--advertise-client-urls",
            &clients,
        ]);
        command.args([
            "--listen-peer-urls",
            &peers,
            "--initial-advertise-peer-urls",
            &peers,
        ]);
        command.args(["--initial-cluster", &cluster.join(",")]);
        command.args(["--heartbeat-interval", &self.heartbeat.to_string()]);
        command.args(["--election-timeout", &self.election.to_string()]);
        command.args(&self.args);
        Ok(command)
    }

    async fn probe(&self, site: &Site) -> Result<()> {
        // Healthy means: there is a leader, and a read went through consensus.
        let health = wire::ask_json(site.addr(), "/health", None).await?;
        if health["health"] == "true" {
            return Ok(());
        }
        Err(Error::answer("/health", health.to_string()))
    }

    fn url(&self, site: &Site) -> String {
        format!("etcd://{}", site.addr())
    }
}

impl Elects for Etcd {
    /// Longer times than for a server alone: members of a busy machine must not stand for election by mistake.
    fn for_group() -> Self {
        Self {
            heartbeat: 100,
            election: 1000,
            ..Self::default()
        }
    }

    fn member(self, index: usize, sites: &[Site]) -> Self {
        let name = |n: usize| format!("member-{n}");
        let members = sites
            .iter()
            .enumerate()
            .map(|(n, site)| (name(n), site.port_at(PEER)))
            .collect();
        Self {
            name: name(index),
            members,
            ..self
        }
    }

    async fn leads(&self, addr: SocketAddr) -> Result<bool> {
        let status = wire::ask_json(addr, "/v3/maintenance/status", Some("{}")).await?;
        let own = &status["header"]["member_id"];
        if own.is_string() {
            return Ok(*own == status["leader"]);
        }
        Err(Error::answer("status", status.to_string()))
    }
}

impl EtcdServer {
    /// Runs `etcdctl` with these words, and returns what it prints.
    ///
    /// # Errors
    /// When the program is missing or reports an error.
    pub async fn etcdctl(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(program::find("etcdctl", "etcd-client")?);
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.addr().to_string()])
            .args(words);
        program::output_of(command).await
    }
}

fn peer_url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}
