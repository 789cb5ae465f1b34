//! The client, its reconnects and time-outs. The only file, with `error.rs`, that names client types.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::{ErrorKind, Host};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError, ServerErrorKind, Value,
};
use tokio::time::timeout;

use crate::config::{Config, Topology, address, sentinel_address};
use crate::error::Trouble;
use crate::script::Script;
use crate::wait::Inbox;

/// After so many answers in a row that did not come, the connection counts as frozen: the client never replaces it by itself.
const FROZEN_AFTER: u32 = 2;
const OLDEST: (u32, u32) = (6, 0);
const SCAN_COUNT: u32 = 500;

/// One request: a script with its keys and arguments.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    script: &'a Script,
    cmd: Cmd,
}

impl<'a> Call<'a> {
    pub(crate) fn new<'k>(
        script: &'a Script,
        keys: impl ExactSizeIterator<Item = &'k str>,
    ) -> Self {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&script.hash).arg(keys.len());
        for key in keys {
            cmd.arg(key);
        }
        Self { script, cmd }
    }

    pub(crate) fn on(script: &'a Script, key: &str) -> Self {
        Self::new(script, std::iter::once(key))
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.cmd.arg(arg.as_ref());
        self
    }

    /// The same with the script's text, for a server that does not know it yet.
    fn with_source(&self) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(&self.script.source);
        for arg in self.cmd.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                cmd.arg(arg);
            }
        }
        cmd
    }
}

/// What a server says.
#[derive(Debug)]
pub(crate) enum Answer {
    Text(String),
    Number(i64),
    List(Vec<Answer>),
    Nothing,
}

impl From<Value> for Answer {
    fn from(value: Value) -> Self {
        match value {
            Value::Int(number) => Self::Number(number),
            Value::BulkString(bytes) => Self::Text(text(bytes)),
            Value::SimpleString(text) => Self::Text(text),
            Value::VerbatimString { text, .. } => Self::Text(text),
            Value::Okay => Self::Text("OK".to_owned()),
            Value::Boolean(yes) => Self::Number(yes.into()),
            Value::Double(number) => Self::Text(number.to_string()),
            Value::Array(list) | Value::Set(list) => {
                Self::List(list.into_iter().map(Self::from).collect())
            }
            Value::Map(pairs) => Self::List(
                pairs
                    .into_iter()
                    .flat_map(|(key, value)| [Self::from(key), Self::from(value)])
                    .collect(),
            ),
            _ => Self::Nothing,
        }
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into_owned())
}

#[derive(Clone)]
enum Connection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    async fn send(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        let value = match self {
            Self::One(connection) => connection.send_packed_command(cmd).await,
            Self::Cluster(connection) => connection.req_packed_command(cmd).await,
        };
        value?.extract_error()
    }

    /// To a given node of a cluster; to the server when there is only one.
    async fn send_to(
        &mut self,
        node: Option<&(String, u16)>,
        cmd: Cmd,
    ) -> Result<Value, RedisError> {
        match self {
            Self::One(_) => self.send(&cmd).await,
            Self::Cluster(connection) => {
                let route = match node {
                    Some((host, port)) => SingleNodeRoutingInfo::ByAddress {
                        host: host.clone(),
                        port: *port,
                    },
                    None => SingleNodeRoutingInfo::RandomPrimary,
                };
                let value = connection
                    .route_command(cmd, RoutingInfo::SingleNode(route))
                    .await;
                value?.extract_error()
            }
        }
    }

    async fn run(&mut self, call: &Call<'_>) -> Result<Value, RedisError> {
        match self.send(&call.cmd).await {
            Err(error) if error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript) => {
                tracing::debug!(
                    script = call.script.name,
                    "the server does not know the script: sending it"
                );
                self.send(&call.with_source()).await
            }
            answer => answer,
        }
    }

    async fn subscribe(&mut self, channel: &str) -> Result<(), RedisError> {
        match self {
            Self::One(connection) => connection.subscribe(channel).await,
            Self::Cluster(connection) => connection.subscribe(channel).await,
        }
    }
}

/// The way to the store: one connection (or one for each node), replaced when it breaks or freezes.
pub(crate) struct Link {
    config: Arc<Config>,
    /// Where grants arrive, with its channel; none for a connection that nobody waits on.
    inbox: Option<(Arc<Inbox>, String)>,
    current: Mutex<Option<Current>>,
    /// Held while one caller connects for all; the last failure and the number of that attempt.
    connecting: tokio::sync::Mutex<Option<(u64, Trouble)>>,
    attempts: AtomicU64,
    unanswered: AtomicU32,
    closed: AtomicBool,
}

#[derive(Clone)]
struct Current {
    connection: Connection,
    number: u64,
}

impl Link {
    pub(crate) fn new(config: Arc<Config>, inbox: Option<(Arc<Inbox>, String)>) -> Self {
        Self {
            config,
            inbox,
            current: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(None),
            attempts: AtomicU64::new(0),
            unanswered: AtomicU32::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// Connects now, if it is not connected.
    pub(crate) async fn connect(&self) -> Result<(), Trouble> {
        self.connection().await.map(|_| ())
    }

    /// One trip. When the connection turns out to be dead, it is tried once more on a new one: then the flag is set, and the
    /// request may have been done twice.
    pub(crate) async fn call(
        &self,
        call: &Call<'_>,
        limit: Duration,
    ) -> Result<(Answer, bool), Trouble> {
        match self.call_once(call, limit).await {
            Ok(answer) => Ok((answer, false)),
            Err(trouble) if trouble.broken && trouble.sent => {
                tracing::debug!(
                    error = trouble.message(),
                    "the connection broke, trying a new one"
                );
                let again = self.call_once(call, limit).await;
                again
                    .map(|answer| (answer, true))
                    .map_err(Trouble::in_doubt)
            }
            Err(trouble) => Err(trouble),
        }
    }

    async fn call_once(&self, call: &Call<'_>, limit: Duration) -> Result<Answer, Trouble> {
        let Current {
            mut connection,
            number,
        } = self.connection().await?;
        let answer = self.within(limit, number, connection.run(call)).await?;
        Ok(answer.into())
    }

    /// One trip, and then the proof that `replicas` replicas have received it, if it changed anything worth it.
    pub(crate) async fn call_replicated(
        &self,
        call: &Call<'_>,
        limit: Duration,
        worth_it: impl Fn(&Answer) -> bool,
    ) -> Result<(Answer, u32), Trouble> {
        let Current {
            mut connection,
            number,
        } = self.connection().await?;
        let answer = Answer::from(self.within(limit, number, connection.run(call)).await?);
        if !worth_it(&answer) {
            return Ok((answer, 0));
        }
        // On the same connection: WAIT counts from the last write of its own.
        let mut wait = redis::cmd("WAIT");
        let patience = self.config.replicas_timeout;
        wait.arg(self.config.replicas).arg(millis(patience));
        let count = self
            .within(limit + patience, number, connection.send(&wait))
            .await?;
        let count = match count {
            Value::Int(count) => u32::try_from(count).unwrap_or(0),
            _ => 0,
        };
        Ok((answer, count))
    }

    /// All keys that fit a pattern, from every master.
    pub(crate) async fn scan(&self, pattern: &str) -> Result<Vec<String>, Trouble> {
        let Current {
            mut connection,
            number,
        } = self.connection().await?;
        let nodes: Vec<Option<(String, u16)>> = match &connection {
            Connection::One(_) => vec![None],
            Connection::Cluster(_) => {
                let mut ask = redis::cmd("CLUSTER");
                ask.arg("SLOTS");
                let slots = self
                    .within(
                        self.config.answer_timeout,
                        number,
                        connection.send_to(None, ask),
                    )
                    .await?;
                masters(slots.into()).into_iter().map(Some).collect()
            }
        };
        let mut keys = Vec::new();
        for node in &nodes {
            let mut cursor = "0".to_owned();
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(&cursor)
                    .arg("MATCH")
                    .arg(pattern)
                    .arg("COUNT")
                    .arg(SCAN_COUNT);
                scan.arg("TYPE").arg("string");
                let found = self
                    .within(
                        self.config.answer_timeout,
                        number,
                        connection.send_to(node.as_ref(), scan),
                    )
                    .await?;
                let Answer::List(parts) = Answer::from(found) else {
                    break;
                };
                let mut parts = parts.into_iter();
                let (Some(Answer::Text(next)), Some(Answer::List(some))) =
                    (parts.next(), parts.next())
                else {
                    break;
                };
                keys.extend(some.into_iter().filter_map(|key| match key {
                    Answer::Text(key) => Some(key),
                    _ => None,
                }));
                if next == "0" {
                    break;
                }
                cursor = next;
            }
        }
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }

    /// Ends the connection; later calls are refused.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        *self.locked() = None;
    }

    fn locked(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connection(&self) -> Result<Current, Trouble> {
        if let Some(current) = self.locked().as_ref() {
            return Ok(current.clone());
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(Trouble::new(ErrorKind::Closed, "this client was closed").unsent());
        }
        let limit = self.config.connect_timeout;
        let too_slow = || {
            Trouble::new(
                ErrorKind::TimedOut,
                format!("no connection within {limit:?}: is the server alive and reachable?"),
            )
            .unsent()
        };
        let seen = self.attempts.load(Ordering::Acquire);
        let mut last = timeout(limit, self.connecting.lock())
            .await
            .map_err(|_| too_slow())?;
        if let Some(current) = self.locked().as_ref() {
            return Ok(current.clone());
        }
        // An attempt that began after we came has failed for us too.
        if let Some((attempt, trouble)) = last.as_ref()
            && *attempt > seen
        {
            return Err(trouble.clone());
        }
        let number = self.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        let opened = match timeout(limit, self.open()).await {
            Ok(opened) => opened.map_err(Trouble::unsent),
            Err(_) => Err(too_slow()),
        };
        match opened {
            Ok(connection) => {
                let current = Current { connection, number };
                *last = None;
                self.unanswered.store(0, Ordering::Relaxed);
                *self.locked() = Some(current.clone());
                Ok(current)
            }
            Err(trouble) => {
                *last = Some((number, trouble.clone()));
                Err(trouble)
            }
        }
    }

    /// Waits for an answer, and gives the connection up when it is dead or frozen.
    async fn within<T>(
        &self,
        limit: Duration,
        number: u64,
        trip: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, Trouble> {
        let trouble = match timeout(limit, trip).await {
            Ok(Ok(answer)) => {
                if self.unanswered.load(Ordering::Relaxed) != 0 {
                    self.unanswered.store(0, Ordering::Relaxed);
                }
                return Ok(answer);
            }
            Ok(Err(error)) => Trouble::from(error),
            Err(_) => Trouble::new(
                ErrorKind::TimedOut,
                format!("no answer within {limit:?}: is the server alive and reachable?"),
            ),
        };
        let frozen = trouble.kind == ErrorKind::TimedOut
            && self.unanswered.fetch_add(1, Ordering::Relaxed) + 1 >= FROZEN_AFTER;
        if trouble.broken || frozen {
            self.give_up(number);
        }
        Err(trouble)
    }

    fn give_up(&self, number: u64) {
        let mut current = self.locked();
        if current
            .as_ref()
            .is_some_and(|current| current.number == number)
        {
            *current = None;
        }
    }

    async fn open(&self) -> Result<Connection, Trouble> {
        let config = &self.config;
        let mut connection = match &config.topology {
            Topology::Single(host) => self.open_one(tcp(config, address(host))).await?,
            Topology::Unix(path) => self.open_one(ConnectionAddr::Unix(path.clone())).await?,
            Topology::Sentinel { sentinels, master } => self.open_master(sentinels, master).await?,
            Topology::Cluster(nodes) => self.open_cluster(nodes).await?,
        };
        greet(&mut connection, config).await?;
        if let Some((_, channel)) = &self.inbox {
            connection
                .subscribe(channel)
                .await
                .map_err(|error| Trouble::from(error).about("subscribe to our inbox"))?;
        }
        Ok(connection)
    }

    async fn open_one(&self, addr: ConnectionAddr) -> Result<Connection, Trouble> {
        let login = login(self.config.user.as_deref(), self.config.password.as_deref())
            .set_db(self.config.db.into());
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(None) // ours covers more
            .set_response_timeout(None)
            .set_push_sender(self.pushes());
        let connection = client(&self.config, addr, login)?
            .get_multiplexed_async_connection_with_config(&settings)
            .await?;
        Ok(Connection::One(connection))
    }

    /// Asks one sentinel after the other, and believes only a server that says itself that it is a master.
    async fn open_master(&self, sentinels: &[Host], master: &str) -> Result<Connection, Trouble> {
        let mut worst = None;
        for sentinel in sentinels {
            let attempt = async {
                let addr = self.ask_sentinel(sentinel, master).await?;
                let mut connection = self.open_one(tcp(&self.config, addr)).await?;
                greet(&mut connection, &self.config).await?;
                Ok(connection)
            };
            let share =
                self.config.connect_timeout / u32::try_from(sentinels.len()).unwrap_or(1).max(1);
            let trouble: Trouble = match timeout(share, attempt).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(trouble)) => trouble,
                Err(_) => Trouble::new(ErrorKind::TimedOut, format!("no answer within {share:?}")),
            };
            let trouble = trouble.about(&format!("sentinel {}", sentinel.with_port(26379)));
            tracing::debug!(error = trouble.message(), "this sentinel did not help");
            worst = Some(match worst {
                // What somebody said is worth more than silence.
                Some(other) if is_silence(&trouble) && !is_silence(&other) => other,
                _ => trouble,
            });
        }
        Err(worst.unwrap_or_else(|| Trouble::new(ErrorKind::Invalid, "no sentinel is given")))
    }

    async fn ask_sentinel(&self, sentinel: &Host, master: &str) -> Result<(String, u16), Trouble> {
        let config = &self.config;
        let login = login(
            config.sentinel_user.as_deref(),
            config.sentinel_password.as_deref(),
        );
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let mut connection = client(config, tcp(config, sentinel_address(sentinel)), login)?
            .get_multiplexed_async_connection_with_config(&settings)
            .await?;
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        let found = Answer::from(
            connection
                .send_packed_command(&ask)
                .await?
                .extract_error()?,
        );
        if let Answer::List(parts) = found
            && let [Answer::Text(host), Answer::Text(port)] = parts.as_slice()
            && let Ok(port) = port.parse()
        {
            return Ok((host.clone(), port));
        }
        Err(Trouble::new(
            ErrorKind::Invalid,
            format!("it knows no master named {master:?}: check the name"),
        ))
    }

    async fn open_cluster(&self, nodes: &[Host]) -> Result<Connection, Trouble> {
        let config = &self.config;
        let infos: Result<Vec<ConnectionInfo>, RedisError> = nodes
            .iter()
            .map(|node| info(tcp(config, address(node)), RedisConnectionInfo::default()))
            .collect();
        let mut builder = ClusterClientBuilder::new(infos?)
            .use_protocol(ProtocolVersion::RESP3)
            .tcp_settings(TcpSettings::default().set_nodelay(true))
            .connection_timeout(config.connect_timeout)
            .response_timeout(config.answer_timeout)
            .overall_response_timeout(Some(config.answer_timeout))
            .push_sender(self.pushes());
        if let Some(user) = &config.user {
            builder = builder.username(user);
        }
        if let Some(password) = &config.password {
            builder = builder.password(password);
        }
        #[cfg(feature = "tls")]
        if config.tls {
            builder = builder
                .tls(redis::cluster::TlsMode::Secure)
                .certs(certificates(config));
        }
        let connection = builder.build()?.get_async_connection().await?;
        Ok(Connection::Cluster(connection))
    }

    /// What to do with messages: they go straight to the waiter, without a task in between.
    fn pushes(
        &self,
    ) -> impl Fn(PushInfo) -> Result<(), std::convert::Infallible> + Send + Sync + 'static {
        let inbox = self.inbox.as_ref().map(|(inbox, _)| inbox.clone());
        move |push: PushInfo| {
            if let Some(inbox) = &inbox {
                match push.kind {
                    PushKind::Message => {
                        if let Some(Value::BulkString(payload)) = push.data.last() {
                            inbox.deliver(payload);
                        }
                    }
                    // Messages may have been missed: everybody looks for himself.
                    PushKind::Disconnection => inbox.wake_all(),
                    _ => {}
                }
            }
            Ok(())
        }
    }
}

/// What a node of a quorum must know: whether it is still talking to the same server.
impl Link {
    /// The number of the connection in use; a new connection has a higher one.
    pub(crate) fn number(&self) -> Option<u64> {
        self.locked().as_ref().map(|current| current.number)
    }

    /// What the server says about itself, and the number of the connection on which it did.
    pub(crate) async fn server_info(&self) -> Result<(u64, Answer), Trouble> {
        let Current {
            mut connection,
            number,
        } = self.connection().await?;
        let mut ask = redis::cmd("INFO");
        ask.arg("server");
        let trip = connection.send_to(None, ask);
        let info = self
            .within(self.config.answer_timeout, number, trip)
            .await?;
        Ok((number, info.into()))
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("config", &self.config)
            .field("connected", &self.locked().is_some())
            .finish_non_exhaustive()
    }
}

/// Checks that this is a Redis we can work with. `HELLO` needs no permission, unlike `INFO`.
async fn greet(connection: &mut Connection, config: &Config) -> Result<(), Trouble> {
    let about = connection.send_to(None, redis::cmd("HELLO")).await?;
    let Answer::List(about) = Answer::from(about) else {
        return Err(Trouble::new(
            ErrorKind::Store,
            "the server does not introduce itself as a Redis",
        )
        .for_good());
    };
    let field = |name: &str| {
        about.chunks_exact(2).find_map(|pair| match pair {
            [Answer::Text(key), Answer::Text(value)] if key == name => Some(value.as_str()),
            _ => None,
        })
    };
    let version = field("version").unwrap_or("0");
    let mut parts = version
        .split('.')
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if found < OLDEST {
        return Err(Trouble::new(
            ErrorKind::Unsupported,
            format!("the server is Redis {version}, which is too old: 6.0 or newer is needed"),
        ));
    }
    match field("mode") {
        Some("sentinel") => {
            return Err(Trouble::new(
                ErrorKind::Invalid,
                "this is a sentinel, which keeps no data: use redis+sentinel://host:port/master",
            ));
        }
        Some("cluster") if !config.is_cluster() => {
            return Err(Trouble::new(
                ErrorKind::Invalid,
                "the server is a node of a cluster: use redis+cluster://",
            ));
        }
        _ => {}
    }
    if field("role").is_some_and(|role| role != "master") && !config.is_cluster() {
        return Err(Trouble::new(
            ErrorKind::Unreachable,
            "the server is a replica, which takes no writes: name the master, or use redis+sentinel://",
        ));
    }
    Ok(())
}

fn is_silence(trouble: &Trouble) -> bool {
    matches!(trouble.kind, ErrorKind::Unreachable | ErrorKind::TimedOut)
}

/// The masters in the answer to `CLUSTER SLOTS`.
fn masters(slots: Answer) -> Vec<(String, u16)> {
    let Answer::List(ranges) = slots else {
        return Vec::new();
    };
    let mut found: Vec<(String, u16)> = ranges
        .iter()
        .filter_map(|range| match range {
            Answer::List(range) => match range.get(2)? {
                Answer::List(node) => match node.as_slice() {
                    [Answer::Text(host), Answer::Number(port), ..] => {
                        Some((host.clone(), u16::try_from(*port).ok()?))
                    }
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn login(user: Option<&str>, password: Option<&str>) -> RedisConnectionInfo {
    let mut login = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
    if let Some(user) = user {
        login = login.set_username(user);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    login
}

fn tcp(config: &Config, (host, port): (String, u16)) -> ConnectionAddr {
    if config.tls {
        ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

fn info(addr: ConnectionAddr, login: RedisConnectionInfo) -> Result<ConnectionInfo, RedisError> {
    // Without it the system holds small requests back, waiting for more.
    let settings = TcpSettings::default().set_nodelay(true);
    Ok(addr
        .into_connection_info()?
        .set_tcp_settings(settings)
        .set_redis_settings(login))
}

fn client(
    config: &Config,
    addr: ConnectionAddr,
    login: RedisConnectionInfo,
) -> Result<Client, RedisError> {
    let info = info(addr, login)?;
    #[cfg(feature = "tls")]
    if config.tls {
        return Client::build_with_tls(info, certificates(config));
    }
    let _ = config;
    Client::open(info)
}

#[cfg(feature = "tls")]
fn certificates(config: &Config) -> redis::TlsCertificates {
    redis::TlsCertificates {
        client_tls: config
            .identity
            .as_ref()
            .map(|(cert, key)| redis::ClientTlsConfig {
                client_cert: cert.clone(),
                client_key: key.clone(),
            }),
        root_cert: config.ca.clone(),
    }
}

/// Whole milliseconds, at least one.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}
