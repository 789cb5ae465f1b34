//! Real servers for tests, alone and in groups.
//!
//! [`Server`] does for every store what is the same: folder, ports, process, log, waiting until it answers. A [`Store`]
//! says what differs: the command line, the question that shows that it is up, and the URL.

mod endpoint;
mod etcd;
mod group;
mod mysql;
mod postgres;
mod redis;
mod redis_cluster;
pub(crate) mod resp;
mod sentinel;
pub(crate) mod wire;
mod zookeeper;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use self::endpoint::{Endpoint, etcd, mysql, mysql_of, postgres, redis, zookeeper};
pub use self::etcd::{Etcd, EtcdCluster, EtcdServer};
pub use self::group::{Elects, Group};
pub use self::mysql::{Flavor, MySql, MySqlServer};
pub use self::postgres::{PgBouncer, PgBouncerServer, Postgres, PostgresServer};
pub(crate) use self::redis::value_of as redis_value;
pub use self::redis::{Redis, RedisServer, Tls};
pub use self::redis_cluster::RedisCluster;
pub use self::resp::Reply;
pub use self::sentinel::{Sentinel, SentinelGroup, SentinelServer};
pub use self::zookeeper::{ZooKeeper, ZooKeeperEnsemble, ZooKeeperServer};
use rustix::process::Signal;

use crate::port::Port;
use crate::process::processes_in;
use crate::{Error, Folder, Process, Result, until};

/// How long a server may take to answer. Generous: a loaded machine is slow, and a server that ends is noticed at once.
pub const START_LIMIT: Duration = Duration::from_secs(60);

/// How often a start is tried with other ports when somebody else has bound one.
const START_TRIES: usize = 5;

/// A kind of server: the value holds its settings, the trait says how such a server is run.
pub trait Store: Clone + std::fmt::Debug + Send + Sync + 'static {
    /// What messages and folders call it.
    const NAME: &'static str;

    /// The environment variable that points the tests at an existing server.
    const URL_VARIABLE: &'static str;

    /// How many ports a server needs. Clients use the first.
    fn ports(&self) -> usize {
        1
    }

    /// Writes what must be in the folder before the first start.
    fn prepare(&self, _site: &Site) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// The program and its arguments.
    ///
    /// # Errors
    /// [`Error::NotInstalled`] when the program is missing.
    fn command(&self, site: &Site) -> Result<Command>;

    /// Asks the server something that only a server that is ready answers well.
    fn probe(&self, site: &Site) -> impl Future<Output = Result<()>> + Send;

    /// The URL for `dlocks::connect`.
    fn url(&self, site: &Site) -> String;

    /// What asks the server to end.
    fn stop_signal(&self) -> Signal {
        Signal::TERM
    }
}

/// Where a server lives: its folder and its ports.
#[derive(Debug)]
pub struct Site {
    folder: Folder,
    ports: Vec<Port>,
}

impl Site {
    /// A new folder and freshly claimed ports for such a server.
    pub(crate) fn claim<S: Store>(store: &S) -> Result<Self> {
        let ports = (0..store.ports())
            .map(|_| Port::claim())
            .collect::<Result<_>>()?;
        Ok(Self {
            folder: Folder::new(S::NAME)?,
            ports,
        })
    }

    /// The port for clients.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port_at(0)
    }

    /// The n-th of the ports that [`Store::ports`] asked for.
    #[must_use]
    pub fn port_at(&self, n: usize) -> u16 {
        self.ports[n].number()
    }

    /// The address for clients.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// The path of a file in the server's folder.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.file(name)
    }
}

/// A server that was started for tests. It ends, and its folder goes, when the value is dropped.
///
/// All methods take `&self`, so a server can be shared between tasks and kept in a static.
#[derive(Debug)]
pub struct Server<S> {
    store: S,
    // Declared before `site`: the process must be gone when its folder is removed.
    process: Mutex<Arc<Process>>,
    site: Site,
}

impl<S: Store + Default> Server<S> {
    /// Starts a server with the default settings, and waits until it answers.
    ///
    /// # Errors
    /// When its program is missing, or it does not come up.
    pub async fn start() -> Result<Self> {
        Self::start_with(S::default()).await
    }
}

impl<S: Store> Server<S> {
    /// Starts a server with these settings, and waits until it answers.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(store: S) -> Result<Self> {
        with_other_ports(|| async { Self::start_at(store.clone(), Site::claim(&store)?).await })
            .await
    }

    /// Starts a server at a place that was claimed before, for groups whose members must know each other's ports.
    pub(crate) async fn start_at(store: S, site: Site) -> Result<Self> {
        store.prepare(&site).await?;
        let process = Process::spawn(&store.command(&site)?, &site.file(LOG))?;
        let server = Self {
            store,
            process: Mutex::new(Arc::new(process)),
            site,
        };
        let ready = server.ready().await;
        // A port that somebody took is nobody's fault; for anything else the log has the answer.
        if ready
            .as_ref()
            .is_err_and(|error| !matches!(error, Error::PortTaken { .. }))
        {
            server.site.folder.keep();
        }
        ready.map(|()| server)
    }

    /// Starts it again with the same ports and data. Where it still runs it is asked to end first. What a killed server has left behind, as a
    /// PostgreSQL leaves the processes that serve its clients, is waited for: a new one would find its data in use, and end.
    ///
    /// # Errors
    /// When it does not come up again, or something of the one before does not go.
    pub async fn restart(&self) -> Result<()> {
        self.terminate().await?;
        let folder = self.site.folder.path();
        until("the server before has gone", START_LIMIT, || async {
            match processes_in(folder).len() {
                0 => Ok(()),
                left => Err(Error::answer("how many processes", left.to_string())),
            }
        })
        .await?;
        let process = Process::spawn(&self.store.command(&self.site)?, &self.site.file(LOG))?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(process);
        self.ready().await
    }

    /// Waits until it answers.
    ///
    /// # Errors
    /// When it ends instead, or does not answer within [`START_LIMIT`].
    pub async fn ready(&self) -> Result<()> {
        let process = self.process();
        until(&format!("{} is ready", S::NAME), START_LIMIT, || async {
            if !process.is_running() {
                return Err(self.why_it_ended());
            }
            self.store.probe(&self.site).await?;
            // A stranger on our port could have answered for a server that is just failing to bind it. Asked last,
            // because to look through all sockets of the system costs ten milliseconds.
            if !wire::listens(process.pid(), self.port()) {
                return Err(Error::answer("listening?", "not yet"));
            }
            Ok(())
        })
        .await
    }

    fn why_it_ended(&self) -> Error {
        let log = self.log();
        let tail = log.lines().rev().take(20).collect::<Vec<_>>();
        let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
        if log.to_lowercase().contains("address already in use") {
            return Error::PortTaken {
                server: S::NAME,
                tail,
            };
        }
        Error::Ended {
            server: S::NAME,
            tail,
        }
    }

    /// Kills it (SIGKILL), and returns when it is gone. [`restart`](Self::restart) brings it back.
    pub fn kill(&self) {
        self.process().kill();
    }

    /// Asks it to end (SIGTERM for most), and waits until it has.
    ///
    /// # Errors
    /// When it has not ended after a minute; it is killed then.
    pub async fn terminate(&self) -> Result<()> {
        self.process().end_by(self.store.stop_signal()).await
    }

    /// Stops it (SIGSTOP): its connections stay open, and nothing is answered.
    ///
    /// # Panics
    /// When it is not running.
    #[track_caller]
    pub fn freeze(&self) {
        self.process().freeze();
    }

    /// Lets it run on (SIGCONT) after [`freeze`](Self::freeze).
    pub fn thaw(&self) {
        self.process().thaw();
    }

    /// Whether it has not ended. A frozen server is running.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process().is_running()
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// The port for clients.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.site.port()
    }

    /// The address for clients; what a [`FaultProxy`](crate::FaultProxy) wants.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.site.addr()
    }

    /// The URL for `dlocks::connect`.
    #[must_use]
    pub fn url(&self) -> String {
        self.store.url(&self.site)
    }

    /// What it has logged so far, over all its starts.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.site.file(LOG)).unwrap_or_default()).into_owned()
    }

    /// Its settings.
    #[must_use]
    pub fn settings(&self) -> &S {
        &self.store
    }

    /// Its folder and ports.
    #[must_use]
    pub fn site(&self) -> &Site {
        &self.site
    }

    fn process(&self) -> Arc<Process> {
        Arc::clone(&self.process.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The log in a server's folder.
const LOG: &str = "log";

/// Starts something again, with other ports, when a stranger has bound one between the claim and the server's bind.
async fn with_other_ports<T, F>(mut start: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut tries = 1;
    loop {
        match start().await {
            Err(Error::PortTaken { .. }) if tries < START_TRIES => tries += 1,
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A stranger that binds the port between the claim and the start is noticed, and other ports are tried.
    async fn a_taken_port_is_replaced<S: Store + Default>() {
        let strangers = Mutex::new(Vec::new());
        let server = with_other_ports(|| async {
            let store = S::default();
            let site = Site::claim(&store)?;
            if strangers.lock().unwrap().len() < 2 {
                strangers
                    .lock()
                    .unwrap()
                    .push(TcpListener::bind(site.addr()).unwrap());
            }
            Server::start_at(store, site).await
        });
        let server = server.await.unwrap();
        assert_eq!(
            strangers.lock().unwrap().len(),
            2,
            "two tries met a stranger"
        );
        assert!(server.is_running());
    }

    #[tokio::test]
    async fn redis_gets_another_port() {
        a_taken_port_is_replaced::<Redis>().await;
    }

    #[tokio::test]
    async fn mariadb_gets_another_port() {
        a_taken_port_is_replaced::<MySql>().await;
    }

    #[tokio::test]
    async fn postgres_gets_another_port() {
        a_taken_port_is_replaced::<Postgres>().await;
    }

    #[tokio::test]
    async fn etcd_gets_another_port() {
        a_taken_port_is_replaced::<Etcd>().await;
    }

    #[tokio::test]
    async fn zookeeper_gets_another_port() {
        a_taken_port_is_replaced::<ZooKeeper>().await;
    }
}
