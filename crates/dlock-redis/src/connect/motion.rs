//! What is sent, and the way to whoever is responsible for it while a cluster moves its keys from node to node.
//!
//! The client crate would follow a cluster's directions by itself, but it sends a request again also when a connection broke, and does not tell.
//! So it is told to send everything once, and what comes after is decided here: only a request that was answered with "not here" or "not now"
//! is sent again, which nobody can have done.

use std::time::{Duration, Instant};

use redis::cluster_routing::{Route, SingleNodeRoutingInfo, SlotAddr};
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

use super::RedisLink;
use super::call::{Connection, ScriptCall};
use super::silence::slot_of;
use crate::error::Trouble;

/// How long to wait before the same is asked again. A slot with few keys is moved within milliseconds.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// How often one request is sent on: to a node that does not know its script, and to the next one after a move.
const MOST_DIRECTIONS: u32 = 4;

/// One thing to send.
#[derive(Clone, Copy)]
pub(super) enum Outgoing<'a> {
    Script(&'a ScriptCall<'a>),
    /// To whoever is responsible for its key.
    Command(&'a Cmd),
    /// The same, and in a cluster behind it, on the same connection, a command that counts what that connection has written.
    Counted(&'a ScriptCall<'a>, &'a Cmd),
    /// To a node of a cluster, or to any.
    At(Option<&'a (String, u16)>, &'a Cmd),
}

impl Outgoing<'_> {
    /// The key that decides which node of a cluster gets it, if it is one of ours.
    pub(super) fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Script(call) | Self::Counted(call, _) => call.key(),
            Self::Command(_) | Self::At(..) => None,
        }
    }
}

impl RedisLink {
    /// Sends again what a cluster has refused for now, until the time is over.
    pub(super) async fn in_motion(
        &self,
        what: Outgoing<'_>,
        until: Instant,
        mut refused: Trouble,
    ) -> Result<Value, Trouble> {
        let mut pause = SHORTEST_PAUSE;
        loop {
            if Instant::now() + pause >= until {
                // The client connects again by itself, but with the password and the certificates that it was given at first.
                if refused.lacks_connection
                    && let Some(number) = self.number()
                {
                    self.current.give_up(number);
                }
                return Err(refused.of_a_cluster());
            }
            tokio::time::sleep(pause).await;
            pause = LONGEST_PAUSE.min(2 * pause);
            let mut current = self.connection().await?;
            let left = until.saturating_duration_since(Instant::now());
            refused = match self.within(left, &mut current, what).await {
                Err(trouble) if trouble.passing => trouble,
                other => return other,
            };
        }
    }
}

impl Connection {
    /// How long a cluster's directions are followed; nobody else gives any.
    pub(super) fn until(&self, limit: Duration) -> Option<Instant> {
        matches!(self, Self::Cluster(_)).then(|| Instant::now() + limit)
    }

    /// Sends it once. The node that a slot is being moved to takes a request only with the word that we were sent there.
    pub(super) async fn go(&mut self, what: Outgoing<'_>) -> Result<Value, RedisError> {
        match what {
            Outgoing::Script(call) => self.run(call).await,
            Outgoing::Counted(call, count) => Box::pin(self.run_counted(call, count)).await,
            Outgoing::Command(cmd) => self.send(cmd).await,
            Outgoing::At(node, cmd) => Box::pin(self.send_to(node, cmd.clone())).await,
        }
    }

    /// Runs a script and then `count`, one behind the other on the connection to one node: what comes on another one would count nothing,
    /// and `WAIT` would call that confirmed. The answers are two in a list.
    async fn run_counted(
        &mut self,
        call: &ScriptCall<'_>,
        count: &Cmd,
    ) -> Result<Value, RedisError> {
        let Self::Cluster(connection) = self else {
            return Err(RedisError::from((ErrorKind::Client, "not a cluster")));
        };
        let slot = slot_of(call.key().unwrap_or_default());
        let mut place = SingleNodeRoutingInfo::SpecificNode(Route::new(slot, SlotAddr::Master));
        let (mut cmd, mut asking) = (call.command().clone(), false);
        let mut directions = 0;
        loop {
            let mut both = redis::pipe();
            if asking {
                both.cmd("ASKING");
            }
            both.add_command(cmd.clone()).add_command(count.clone());
            let answers = 2 + usize::from(asking);
            let mut answers = connection
                .route_pipeline(both, 0, answers, place.clone())
                .await?;
            let (counted, done) = (answers.pop(), answers.pop());
            let error = match done.unwrap_or(Value::Nil).extract_error() {
                Ok(done) => return Ok(Value::Array(vec![done, counted.unwrap_or(Value::Nil)])),
                Err(error) => error,
            };
            directions += 1;
            match error.kind() {
                _ if directions > MOST_DIRECTIONS => return Err(error),
                ErrorKind::Server(ServerErrorKind::NoScript) => cmd = call.with_source(),
                ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask) => {
                    asking = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
                    match sent_to(&error) {
                        Some(there) => place = there,
                        None => return Err(error),
                    }
                }
                _ => return Err(error),
            }
        }
    }

    /// Goes where a cluster has sent us, if it has.
    pub(super) async fn follow(
        &mut self,
        cmd: &Cmd,
        answer: Result<Value, RedisError>,
    ) -> Result<Value, RedisError> {
        let Self::Cluster(connection) = self else {
            return answer;
        };
        let Err(error) = &answer else {
            return answer;
        };
        if error.kind() != ErrorKind::Server(ServerErrorKind::Ask) {
            return answer;
        }
        let Some(place) = sent_to(error) else {
            return answer;
        };
        let mut both = redis::pipe();
        both.cmd("ASKING");
        both.add_command(cmd.clone());
        let mut answers = connection.route_pipeline(both, 0, 2, place).await?;
        match answers.pop() {
            Some(last) => last.extract_error(),
            None => answer,
        }
    }
}

/// Where the node that sent this error says that the keys are.
fn sent_to(error: &RedisError) -> Option<SingleNodeRoutingInfo> {
    let (node, _) = error.redirect_node()?;
    let (host, port) = node.rsplit_once(':')?;
    Some(SingleNodeRoutingInfo::ByAddress {
        host: host.trim_matches(['[', ']']).to_owned(),
        port: port.parse().ok()?,
    })
}
