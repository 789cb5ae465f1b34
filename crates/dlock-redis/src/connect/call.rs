//! One request and its answer.

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, RedisError, ServerErrorKind, Value};

use crate::key::SIDES;
use crate::script::Script;

/// One request: a script with its keys and arguments.
#[derive(Debug)]
pub(crate) struct ScriptCall<'a> {
    script: &'a Script,
    cmd: Cmd,
}

impl<'a> ScriptCall<'a> {
    pub(crate) fn new<'k>(
        script: &'a Script,
        keys: impl ExactSizeIterator<Item = &'k str>,
    ) -> Self {
        // Room for a usual call: growing step by step takes longer than all the rest.
        let mut cmd = Cmd::with_capacity(2 * keys.len() + 8, 256 + 96 * keys.len());
        cmd.arg("EVALSHA").arg(&script.hash).arg(keys.len());
        for key in keys {
            cmd.arg(key);
        }
        Self { script, cmd }
    }

    /// On a lock with a queue: with all its keys, in the order of `lock.lua`. A cluster then never runs a script while some of them are at
    /// one node and some at another.
    pub(crate) fn on(script: &'a Script, key: &str) -> Self {
        let mut cmd = Cmd::with_capacity(14, 640);
        cmd.arg("EVALSHA").arg(&script.hash).arg(1 + SIDES.len());
        cmd.arg(key);
        let mut side = String::with_capacity(key.len() + 2);
        for end in SIDES {
            side.clear();
            side.push_str(key);
            side.push_str(end);
            cmd.arg(&side);
        }
        Self { script, cmd }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.cmd.arg(arg.as_ref());
        self
    }

    /// The first key.
    pub(super) fn key(&self) -> Option<&[u8]> {
        match self.cmd.args_iter().nth(3)? {
            redis::Arg::Simple(key) => Some(key),
            _ => None,
        }
    }

    pub(super) fn command(&self) -> &Cmd {
        &self.cmd
    }

    /// The same with the script's text, for a server that does not know it yet.
    pub(super) fn with_source(&self) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(self.script.source);
        for arg in self.cmd.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                cmd.arg(arg);
            }
        }
        cmd
    }
}

/// The name by which a server knows a script.
pub(crate) fn hash_of(source: &str) -> String {
    redis::Script::new(source).get_hash().to_owned()
}

/// What a server says.
#[derive(Debug)]
pub(crate) enum RedisReply {
    Text(String),
    Number(i64),
    List(Vec<RedisReply>),
    Nothing,
}

impl From<Value> for RedisReply {
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
pub(crate) enum Connection {
    One(MultiplexedConnection),
    /// One that the application has, which connects again by itself.
    #[cfg(feature = "client")]
    Managed(redis::aio::ConnectionManager),
    Cluster(ClusterConnection),
}

impl Connection {
    pub(super) async fn send(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        match self {
            Self::One(connection) => connection.send_packed_command(cmd).await?.extract_error(),
            #[cfg(feature = "client")]
            Self::Managed(connection) => {
                let answer = Box::pin(connection.send_packed_command(cmd)).await;
                answer?.extract_error()
            }
            Self::Cluster(connection) => {
                let answer = connection.req_packed_command(cmd).await;
                let answer = answer.and_then(Value::extract_error);
                Box::pin(self.follow(cmd, answer)).await
            }
        }
    }

    /// To a given node of a cluster; to the server when there is only one.
    pub(super) async fn send_to(
        &mut self,
        node: Option<&(String, u16)>,
        cmd: Cmd,
    ) -> Result<Value, RedisError> {
        match self {
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
            _ => self.send(&cmd).await,
        }
    }

    pub(super) async fn run(&mut self, call: &ScriptCall<'_>) -> Result<Value, RedisError> {
        match self.send(&call.cmd).await {
            Err(error) if error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript) => {
                tracing::debug!(
                    script = call.script.name,
                    "the server does not know the script: sending it"
                );
                let cmd = call.with_source();
                Box::pin(self.send(&cmd)).await
            }
            answer => answer,
        }
    }

    pub(super) async fn subscribe(&mut self, channel: &str) -> Result<(), RedisError> {
        match self {
            Self::One(connection) => connection.subscribe(channel).await,
            #[cfg(feature = "client")]
            Self::Managed(connection) => connection.subscribe(channel).await,
            Self::Cluster(connection) => connection.subscribe(channel).await,
        }
    }
}
