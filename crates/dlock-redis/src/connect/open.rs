//! How a connection is made: to one server, by way of Sentinel, or to a Cluster.

use std::time::Duration;

use dlock_core::ErrorKind;
use dlock_core::backend::Host;
use redis::cluster::ClusterClientBuilder;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError, Value,
};
use tokio::time::timeout;

use super::RedisLink;
use super::call::{Connection, RedisReply};
use super::silence::Silence;
#[cfg(feature = "tls")]
use super::tls::certificates;
use crate::config::{Config, Topology, address, sentinel_address};
use crate::error::Trouble;

const OLDEST: (u32, u32) = (6, 0);

impl RedisLink {
    pub(super) async fn open(&self) -> Result<(Connection, Silence), Trouble> {
        let config = &self.config;
        let mut connection = match (&self.given, &config.topology) {
            (Some(given), _) => given.clone(),
            (_, Topology::Single(host)) => self.open_one(tcp(config, address(host))).await?,
            (_, Topology::Unix(path)) => self.open_one(ConnectionAddr::Unix(path.clone())).await?,
            (_, Topology::Sentinel { sentinels, master }) => {
                self.open_master(sentinels, master).await?
            }
            (_, Topology::Cluster(nodes)) => self.open_cluster(nodes).await?,
        };
        greet(&mut connection, config).await?;
        let silence = match &connection {
            Connection::Cluster(_) => {
                let mut ask = redis::cmd("CLUSTER");
                ask.arg("SLOTS");
                let slots = connection.send_to(None, ask).await?;
                Silence::of_cluster(&slots.into())
            }
            _ => Silence::of_one(),
        };
        if let Some((_, channel)) = &self.inbox {
            connection
                .subscribe(channel)
                .await
                .map_err(|error| Trouble::from(error).about("subscribe to our inbox"))?;
        }
        Ok((connection, silence))
    }

    async fn open_one(&self, addr: ConnectionAddr) -> Result<Connection, Trouble> {
        let login = login(self.config.login.now().await?).set_db(self.config.db.into());
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
                // An answer says more about what is wrong than a sentinel that was silent, so it is the one that the error tells.
                Some(other) if is_silence(&trouble) && !is_silence(&other) => other,
                _ => trouble,
            });
        }
        Err(worst.unwrap_or_else(|| Trouble::new(ErrorKind::Invalid, "no sentinel is given")))
    }

    async fn ask_sentinel(&self, sentinel: &Host, master: &str) -> Result<(String, u16), Trouble> {
        let config = &self.config;
        let login = login(config.sentinel_login.now().await?);
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let mut connection = client(config, tcp(config, sentinel_address(sentinel)), login)?
            .get_multiplexed_async_connection_with_config(&settings)
            .await?;
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        let found = RedisReply::from(
            connection
                .send_packed_command(&ask)
                .await?
                .extract_error()?,
        );
        if let RedisReply::List(parts) = found
            && let [RedisReply::Text(host), RedisReply::Text(port)] = parts.as_slice()
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
            .map(|node| {
                let login = RedisConnectionInfo::default();
                info(config, tcp(config, address(node)), login)
            })
            .collect();
        let (user, password) = config.login.now().await?;
        // A write that waits for replicas may take so much longer.
        let patience = match config.replicas {
            0 => config.answer_timeout,
            _ => config.answer_timeout + config.replicas_timeout,
        };
        let mut builder = ClusterClientBuilder::new(infos?)
            .use_protocol(ProtocolVersion::RESP3)
            .tcp_settings(tcp_settings(config))
            .connection_timeout(config.connect_timeout)
            .response_timeout(patience)
            .overall_response_timeout(Some(patience))
            // It would send a request again when its connection broke, and not tell: see `motion.rs`.
            .retries(0)
            .push_sender(self.pushes());
        if let Some(user) = user {
            builder = builder.username(user);
        }
        if let Some(password) = password {
            builder = builder.password(password);
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &config.tls {
            builder = builder
                .tls(redis::cluster::TlsMode::Secure)
                .certs(certificates(tls)?);
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

/// Checks that this is a Redis we can work with. `HELLO` needs no permission, unlike `INFO`.
async fn greet(connection: &mut Connection, config: &Config) -> Result<(), Trouble> {
    let about = connection.send_to(None, redis::cmd("HELLO")).await?;
    let RedisReply::List(about) = RedisReply::from(about) else {
        return Err(Trouble::new(
            ErrorKind::Store,
            "the server does not introduce itself as a Redis",
        )
        .for_good());
    };
    let field = |name: &str| {
        about.chunks_exact(2).find_map(|pair| match pair {
            [RedisReply::Text(key), RedisReply::Text(value)] if key == name => Some(value.as_str()),
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
    matches!(trouble.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut)
}

fn login((user, password): (Option<String>, Option<String>)) -> RedisConnectionInfo {
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
    if config.tls.is_some() {
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

fn tcp_settings(config: &Config) -> TcpSettings {
    // Without it the system holds small requests back, waiting for more.
    let mut settings = TcpSettings::default().set_nodelay(true);
    if let Some(time) = config.keepalive {
        let keepalive = TcpKeepalive::new().with_time(time);
        #[cfg(not(target_os = "openbsd"))]
        let keepalive = keepalive
            .with_interval((time / 3).max(Duration::from_secs(1)))
            .with_retries(3);
        settings = settings.set_keepalive(keepalive);
    }
    #[cfg(target_os = "linux")]
    if let Some(time) = config.user_timeout {
        settings = settings.set_user_timeout(time);
    }
    settings
}

fn info(
    config: &Config,
    addr: ConnectionAddr,
    login: RedisConnectionInfo,
) -> Result<ConnectionInfo, RedisError> {
    Ok(addr
        .into_connection_info()?
        .set_tcp_settings(tcp_settings(config))
        .set_redis_settings(login))
}

fn client(
    config: &Config,
    addr: ConnectionAddr,
    login: RedisConnectionInfo,
) -> Result<Client, Trouble> {
    let info = info(config, addr, login)?;
    #[cfg(feature = "tls")]
    if let Some(tls) = &config.tls {
        return Ok(Client::build_with_tls(info, certificates(tls)?)?);
    }
    Ok(Client::open(info)?)
}
