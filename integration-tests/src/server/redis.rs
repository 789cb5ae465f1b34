//! One Redis server.

use std::path::PathBuf;
use std::process::Command;

use super::{Reply, Server, Site, Store, resp};
use crate::error::Doing;
use crate::{Error, Result, program};

/// A running Redis.
pub type RedisServer = Server<Redis>;

/// The settings of a Redis server. By default it keeps nothing on disk and wants no password.
#[derive(Debug, Clone, Default)]
pub struct Redis {
    /// Start Valkey instead, as `ci/valkey` has unpacked it.
    pub valkey: bool,
    /// Keep an append-only file, synced at every write, so that a restart finds all data again.
    pub durable: bool,
    /// The password of the default user.
    pub password: Option<String>,
    /// The lines of an ACL file. The first check signs in with `password` where there is one, so a `user default` line
    /// must agree with it.
    pub acl: Option<String>,
    /// Also serve TLS, on a second port: see [`RedisServer::tls_port`].
    pub tls: Option<Tls>,
    /// Run as a node of a Redis Cluster that has yet to be formed.
    pub cluster: bool,
    /// Follow the master on this loopback port.
    pub replica_of: Option<u16>,
    /// Further arguments, as in `["--maxmemory", "8mb"]`. They win over ours.
    pub args: Vec<String>,
    /// Further environment, for example that of a [`Clock`](crate::Clock).
    pub env: Vec<(String, String)>,
}

/// Files with which a server speaks TLS (PEM).
#[derive(Debug, Clone)]
pub struct Tls {
    /// The server's certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that signed it.
    pub authority: PathBuf,
}

/// The places of the ports in [`Site`]; each server has all, whether it uses them or not.
const BUS: usize = 1;
const TLS: usize = 2;

impl Store for Redis {
    const NAME: &'static str = "redis";
    const URL_VARIABLE: &'static str = "DLOCK_TEST_REDIS_URL";

    fn ports(&self) -> usize {
        3
    }

    async fn prepare(&self, site: &Site) -> Result<()> {
        let Some(acl) = &self.acl else { return Ok(()) };
        std::fs::write(site.file("users.acl"), acl).doing("write the ACL file")
    }

    fn command(&self, site: &Site) -> Result<Command> {
        let mut command = Command::new(if self.valkey {
            valkey()?
        } else {
            program::find("redis-server", "redis-server")?
        });
        command
            .current_dir(site.folder.path())
            .envs(self.env.iter().cloned());
        command.args(["--bind", "127.0.0.1", "--port", &site.port().to_string()]);
        command.args([
            "--save",
            "",
            "--appendonly",
            if self.durable { "yes" } else { "no" },
        ]);
        command.args(["--appendfsync", "always", "--enable-debug-command", "local"]);
        // Without a file between, a new replica gets no writes until its first acknowledgement, up to a second after
        // both sides have called the link up.
        command.args(["--repl-diskless-sync", "no"]);
        if let Some(password) = &self.password {
            command.args(["--requirepass", password, "--masterauth", password]);
        }
        if self.acl.is_some() {
            command.arg("--aclfile").arg(site.file("users.acl"));
        }
        if let Some(tls) = &self.tls {
            command.args([
                "--tls-port",
                &site.port_at(TLS).to_string(),
                "--tls-auth-clients",
                "no",
            ]);
            command.arg("--tls-cert-file").arg(&tls.certificate);
            command.arg("--tls-key-file").arg(&tls.key);
            command.arg("--tls-ca-cert-file").arg(&tls.authority);
        }
        if self.cluster {
            command.args(["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"]);
            command.args(["--cluster-port", &site.port_at(BUS).to_string()]);
            command.args(["--cluster-require-full-coverage", "no"]);
        }
        if let Some(master) = self.replica_of {
            command.args(["--replicaof", "127.0.0.1", &master.to_string()]);
        }
        command.args(&self.args);
        Ok(command)
    }

    async fn probe(&self, site: &Site) -> Result<()> {
        // A server that still loads its data answers the ping with an error.
        match resp::ask(site.addr(), self.password.as_deref(), &["PING"]).await? {
            Reply::Text(pong) if pong == "PONG" => Ok(()),
            other => Err(Error::answer("PING", format!("{other:?}"))),
        }
    }

    fn url(&self, site: &Site) -> String {
        let login = self
            .password
            .as_ref()
            .map(|password| format!(":{password}@"))
            .unwrap_or_default();
        format!("redis://{login}{}", site.addr())
    }
}

/// The program of Valkey.
fn valkey() -> Result<PathBuf> {
    let folder = program::unpacked("valkey", "DLOCK_TEST_VALKEY_DIR");
    let server = folder.join("root/usr/bin/valkey-server");
    program::need_file(&server.display().to_string(), "valkey-server")
}

impl Redis {
    /// Whether tests of Valkey can be run here. One that is missing is an error for the test that wants it, unless `DLOCK_TEST_WITHOUT` says
    /// that it is known to be missing; `ci/test` sets that, and says at its end what was not tested.
    #[must_use]
    pub fn is_valkey_tested() -> bool {
        program::is_tested("valkey")
    }
}

impl RedisServer {
    /// Sends one command on a connection of its own.
    ///
    /// # Errors
    /// When the server cannot be reached or answers with an error.
    pub async fn command(&self, words: &[&str]) -> Result<Reply> {
        resp::ask(self.addr(), self.settings().password.as_deref(), words).await
    }

    /// Sends several commands on one connection, each after the answer to the one before: what `WAIT` needs, which
    /// waits for the writes of its own connection only.
    ///
    /// # Errors
    /// At the first command that cannot be sent or is answered with an error.
    pub async fn commands(&self, commands: &[&[&str]]) -> Result<Vec<Reply>> {
        resp::ask_all(self.addr(), self.settings().password.as_deref(), commands).await
    }

    /// The port for TLS, where [`Redis::tls`] is set.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.site().port_at(TLS)
    }

    /// A value from `INFO`.
    pub(crate) async fn info(&self, section: &str, key: &str) -> Result<String> {
        let info = self
            .command(&["INFO", section])
            .await?
            .text()
            .unwrap_or_default();
        value_of(&info, key).ok_or_else(|| Error::answer(format!("INFO {section}"), info))
    }
}

/// The value in a line `key:value` of what `INFO` and `CLUSTER INFO` answer.
pub(crate) fn value_of(info: &str, key: &str) -> Option<String> {
    info.lines()
        .find_map(|line| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim().to_owned()))
}
