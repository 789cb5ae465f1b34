//! One ZooKeeper server, and an ensemble of them.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use super::group::{Elects, Group};
use super::{Server, Site, Store, Tls, wire};
use crate::error::Doing;
use crate::{Error, Result, program};

/// A running ZooKeeper.
pub type ZooKeeperServer = Server<ZooKeeper>;

/// A running ZooKeeper ensemble.
pub type ZooKeeperEnsemble = Group<ZooKeeper>;

/// The settings of a ZooKeeper server.
#[derive(Debug, Clone)]
pub struct ZooKeeper {
    /// Milliseconds of a tick. Sessions last from two ticks to a minute.
    pub tick: u32,
    /// Sync the log at every write. Off by default: it costs time, and a kill of the process loses nothing without it.
    pub sync: bool,
    /// Also serve TLS, on a second port, to clients with a certificate of the same authority: see [`ZooKeeperServer::tls_port`].
    pub tls: Option<Tls>,
    /// Further lines of its configuration file, as in `"maxClientCnxns=5"`. They win over ours.
    pub config: Vec<String>,
    /// Further environment. `JAVA_TOOL_OPTIONS` takes flags of the virtual machine.
    pub env: Vec<(String, String)>,
    /// The `server.N` lines of an ensemble; empty for a server of its own.
    members: Vec<String>,
    id: usize,
}

impl Default for ZooKeeper {
    fn default() -> Self {
        Self {
            tick: 200,
            sync: false,
            tls: None,
            config: Vec::new(),
            env: Vec::new(),
            members: Vec::new(),
            id: 1,
        }
    }
}

/// The places of the ports for other members in [`Site`].
const QUORUM: usize = 1;
const ELECTION: usize = 2;
const TLS: usize = 3;

/// The jar names all others that it needs in its manifest; only the logger is ours to choose.
const JARS: [(&str, &str); 2] = [
    ("/usr/share/java/zookeeper.jar", "zookeeper"),
    ("/usr/share/java/slf4j-simple.jar", "libslf4j-java"),
];

/// Except for these, which TLS needs.
const TLS_JARS: [(&str, &str); 3] = [
    ("/usr/share/java/netty-codec.jar", "libnetty-java"),
    ("/usr/share/java/netty-resolver.jar", "libnetty-java"),
    (
        "/usr/share/java/netty-transport-native-unix-common.jar",
        "libnetty-java",
    ),
];

impl Store for ZooKeeper {
    const NAME: &'static str = "zookeeper";
    const URL_VARIABLE: &'static str = "DLOCK_TEST_ZK_URL";

    fn ports(&self) -> usize {
        4
    }

    async fn prepare(&self, site: &Site) -> Result<()> {
        let data = site.file("data");
        fs::create_dir(&data).doing("make the data folder")?;
        fs::write(data.join("myid"), self.id.to_string()).doing("write myid")?;

        // Times that do not depend on the tick, long enough for a busy machine: ten seconds to join, and three without
        // a word until a member gives up its leader, or a leader its follower.
        let ticks = |millis: u32| (millis / self.tick).max(2);
        let lines = [
            format!("tickTime={}", self.tick),
            format!("initLimit={}", ticks(10_000)),
            format!("syncLimit={}", ticks(3_000)),
            format!("minSessionTimeout={}", 2 * self.tick),
            "maxSessionTimeout=60000".to_owned(),
            format!("dataDir={}", data.display()),
            "clientPortAddress=127.0.0.1".to_owned(),
            format!("clientPort={}", site.port()),
            "maxClientCnxns=0".to_owned(),
            "admin.enableServer=false".to_owned(),
            "4lw.commands.whitelist=*".to_owned(),
        ];
        let secure = match &self.tls {
            Some(tls) => secure_lines(tls, site)?,
            None => Vec::new(),
        };
        let all: Vec<_> = lines
            .iter()
            .chain(&self.members)
            .chain(&secure)
            .chain(&self.config)
            .map(String::as_str)
            .collect();
        fs::write(site.file("zoo.cfg"), all.join("\n") + "\n").doing("write zoo.cfg")
    }

    fn command(&self, site: &Site) -> Result<Command> {
        let more = TLS_JARS.iter().filter(|_| self.tls.is_some());
        let jars: Vec<_> = JARS.iter().chain(more).collect();
        for &&(jar, package) in &jars {
            program::need_file(jar, package)?;
        }
        let jars: Vec<_> = jars.iter().map(|(jar, _)| *jar).collect();
        let mut command = Command::new(program::find("java", "default-jre-headless")?);
        command.envs(self.env.iter().cloned());
        // A small machine with a quick start: no optimising compiler, the simplest collector.
        command.args([
            "-Xmx128m",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            "-Xshare:auto",
        ]);
        command.arg("-Djava.net.preferIPv4Stack=true");
        command.arg(format!(
            "-Dzookeeper.forceSync={}",
            if self.sync { "yes" } else { "no" }
        ));
        command.args([
            "-cp",
            &jars.join(":"),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        ]);
        command.arg(site.file("zoo.cfg"));
        Ok(command)
    }

    async fn probe(&self, site: &Site) -> Result<()> {
        mode(site.addr()).await.map(drop)
    }

    fn url(&self, site: &Site) -> String {
        format!("zk://{}", site.addr())
    }
}

/// The lines for a port with TLS, which only Netty serves. Its key store is one file with the key and the certificate.
fn secure_lines(tls: &Tls, site: &Site) -> Result<Vec<String>> {
    let read = |file: &PathBuf| fs::read_to_string(file).doing("read the server's certificate");
    let store = site.file("server.pem");
    fs::write(&store, read(&tls.key)? + &read(&tls.certificate)?).doing("write the key store")?;
    Ok(vec![
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned(),
        "secureClientPortAddress=127.0.0.1".to_owned(),
        format!("secureClientPort={}", site.port_at(TLS)),
        "ssl.keyStore.type=PEM".to_owned(),
        format!("ssl.keyStore.location={}", store.display()),
        "ssl.trustStore.type=PEM".to_owned(),
        format!("ssl.trustStore.location={}", tls.authority.display()),
        "ssl.clientAuth=need".to_owned(),
    ])
}

impl Elects for ZooKeeper {
    fn for_group() -> Self {
        Self::default()
    }

    fn member(self, index: usize, sites: &[Site]) -> Self {
        let line = |(n, site): (usize, &Site)| {
            format!(
                "server.{}=127.0.0.1:{}:{}",
                n + 1,
                site.port_at(QUORUM),
                site.port_at(ELECTION)
            )
        };
        Self {
            id: index + 1,
            members: sites.iter().enumerate().map(line).collect(),
            ..self
        }
    }

    async fn leads(&self, addr: SocketAddr) -> Result<bool> {
        Ok(mode(addr).await? == "leader")
    }
}

impl ZooKeeperServer {
    /// Sends a four-letter word such as `stat`, `cons` or `mntr`.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn four_letter_word(&self, word: &str) -> Result<String> {
        wire::ask(self.addr(), word).await
    }

    /// The port for TLS, where [`ZooKeeper::tls`] is set.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.site().port_at(TLS)
    }
}

/// `standalone`, `leader` or `follower`; a server that does not serve yet has none.
async fn mode(addr: SocketAddr) -> Result<String> {
    let answer = wire::ask(addr, "srvr").await?;
    let mode = answer
        .lines()
        .find_map(|line| line.strip_prefix("Mode: "))
        .map(str::to_owned);
    mode.ok_or_else(|| Error::answer("srvr", answer))
}
