//! One server as a node of a quorum: single questions and their answers, for a backend that asks several servers at once.
//!
//! `dlock-redlock` is made of these. Most users want [`Config::connect`](crate::Config::connect) instead. A node keeps its locks and their
//! waiters like any other Redis of this crate, by the same scripts, with two differences. The token that [`Node::take`] returns is
//! `max(last + 1, proposed)` (`last + 64` for an exclusive hold), so that independent servers which are proposed the same number agree in most
//! cases. And who waits brings its own ticket, the same to every server, so that their queues have the same order.

mod answer;
mod life;
mod place;

use std::fmt;
use std::sync::{Arc, Mutex};

use dlock_core::backend::{AttemptId, Lease, Renewal};
use dlock_core::{Error, ErrorKind, LockInfo, Name, Operation, Result};

use self::answer::read_taken;
pub use self::answer::{Leftover, Raised, Taken, Wish};
pub use self::life::Life;
pub use self::place::NodePlace;
use crate::acquire::{FirstStep, TOMBSTONE_TTL, unexpected_reply};
use crate::config::{Config, Style, Topology, address};
use crate::connect::{RedisReply, ScriptCall, millis};
use crate::error::Trouble;
use crate::release::FreeStep;
use crate::script::Script;
use crate::script_args::Attempt32;
use crate::store::Store;

/// The highest token that may be proposed: counters have 16 digits, and a server adds to them without loss up to 2^53.
pub const HIGHEST_PROPOSAL: u64 = 8_000_000_000_000_000;

/// How many tokens in a row an attempt owns that holds the lock alone: the counter that it was told, and those before it. Whoever shares the lock has
/// one.
pub const TURNS: u32 = 64;

/// One server.
///
/// ```
/// use dlock_redis::{Config, node::Node};
///
/// let node = Node::new(Config::from_url("redis://app:s3cret@cache-1:7000/2")?)?; // nothing is sent yet
/// assert_eq!(node.place(), "cache-1:7000");
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Node {
    store: Store,
    place: String,
    raise: Script,
    give_way: Script,
    life: Mutex<Option<Life>>,
}

impl Node {
    /// Checks the settings; nothing is sent.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for settings out of their range, and for what a single independent server cannot be: Sentinel, a
    /// Cluster, one with `replicas`, or the plain style.
    pub fn new(config: Config) -> Result<Self> {
        Self::checked(config).map_err(|error| {
            error
                .with_backend("redis")
                .with_operation(Operation::Configure)
        })
    }

    fn checked(config: Config) -> Result<Self> {
        let place = match &config.topology {
            Topology::Single(host) => {
                let (name, port) = address(host);
                dlock_core::backend::Host {
                    name,
                    port: Some(port),
                }
                .to_string()
            }
            Topology::Unix(path) => path.display().to_string(),
            _ => {
                return Err(Error::invalid(
                    "a node of a quorum must be one independent server: use redis://, rediss:// or redis+unix://",
                ));
            }
        };
        if config.style == Style::Plain {
            return Err(Error::invalid(
                "a node of a quorum cannot use style=plain: it needs a counter",
            ));
        }
        if config.replicas > 0 {
            return Err(Error::invalid(
                "replicas is set for a node of a quorum, which stands for itself: leave it out",
            ));
        }
        config.check()?;
        Ok(Self {
            store: Store::new(config.style(Style::Fair)),
            place,
            raise: Script::raise(),
            give_way: Script::give_way(),
            life: Mutex::new(None),
        })
    }

    /// Where the server is: host and port, or the path of a socket.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The database at the server.
    pub fn database(&self) -> u32 {
        self.store.config.db
    }

    /// Connects now, and checks what [`Config::connect`](crate::Config::connect) checks. Every other call connects by itself.
    ///
    /// # Errors
    ///
    /// As for [`Config::connect`](crate::Config::connect).
    pub async fn connect(&self) -> Result<()> {
        Ok(self.store.check().await?)
    }

    /// Takes the lock if it is free; the same attempt twice is one hold. The counter becomes `max(last + 1, proposed)` (`last + 64` for an exclusive hold), where
    /// `proposed` counts as at most [`HIGHEST_PROPOSAL`].
    ///
    /// The flag is set when the connection broke and the request was sent again: the first one may still be under way, and take
    /// effect later. Then [`free`](Node::free) it as a stray, whatever was answered.
    ///
    /// # Errors
    ///
    /// [`Error::held_now`] tells whether the attempt may have succeeded.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the attempt may hold the lock there: [`free`](Node::free) it, as a stray.
    pub async fn take(&self, wish: Wish<'_>, proposed: u64) -> Result<(Taken, bool)> {
        let (_until_answered, stray) = match self.begin(wish, proposed).await? {
            FirstStep::Held(counter) => return Ok((Taken::Held { counter }, false)),
            FirstStep::Ask { alone, stray } => (alone, stray),
        };
        let call = self.acquire(&self.store.scripts.acquire, wish, proposed, "");
        self.ask(&call, stray).await
    }

    /// How a question begins: with others that are asked at the same time, as at a single server.
    async fn begin(&self, wish: Wish<'_>, proposed: u64) -> Result<FirstStep<u64>, Trouble> {
        let store = &self.store;
        let item = || {
            let holder = store.script_args.holder(wish.attempt, wish.label);
            let proposed = digits(proposed.min(HIGHEST_PROPOSAL));
            (
                store.keys.lock(wish.name),
                [b"=", proposed.as_bytes(), &holder].concat(),
                store.script_args.lasts(wish.lease),
            )
        };
        store
            .take_together(wish.mode, store.config.answer_timeout, item)
            .await
    }

    /// A question that goes by itself. `stray`: it went with others before, and may still be under way there.
    async fn ask(&self, call: &ScriptCall<'_>, stray: bool) -> Result<(Taken, bool)> {
        let answer = self.trip(call).await;
        let taken = answer.and_then(|(answer, twice)| Ok((read_taken(answer)?, twice)));
        match taken {
            Ok((taken, twice)) => Ok((taken, twice || stray)),
            Err(trouble) if stray => Err(trouble.in_doubt().into()),
            Err(trouble) => Err(trouble.into()),
        }
    }

    fn acquire<'a>(
        &self,
        script: &'a Script,
        wish: Wish<'_>,
        proposed: u64,
        inbox: &str,
    ) -> ScriptCall<'a> {
        let store = &self.store;
        let key = store.keys.lock(wish.name);
        ScriptCall::on(script, &key)
            .arg(store.script_args.holder(wish.attempt, wish.label))
            .arg(store.script_args.acquire(wish.mode, wish.lease, inbox))
            .arg(store.script_args.lasts(wish.lease).to_string())
            .arg(digits(proposed.min(HIGHEST_PROPOSAL)))
    }

    /// A call on the heap: whoever asks several nodes at once moves what it waits for from hand to hand, and this is large.
    async fn trip(&self, call: &ScriptCall<'_>) -> Result<(RedisReply, bool), Trouble> {
        let store = &self.store;
        Box::pin(store.link.call(call, store.config.answer_timeout)).await
    }

    /// Raises the counter to `token`, if the attempt still holds the lock there.
    ///
    /// # Errors
    ///
    /// When the server did not confirm.
    pub async fn raise(&self, name: &Name, attempt: AttemptId, token: u64) -> Result<Raised> {
        let key = self.store.keys.lock(name);
        let call = ScriptCall::on(&self.raise, &key)
            .arg(Attempt32::new(attempt))
            .arg(digits(token));
        match self.trip(&call).await?.0 {
            RedisReply::Number(1) => Ok(Raised::Yes),
            RedisReply::Number(_) => Ok(Raised::Gone),
            RedisReply::Text(counter) => match counter.parse() {
                Ok(counter) => Ok(Raised::TooLow { counter }),
                Err(_) => Err(unexpected_reply("a counter that is no number").into()),
            },
            _ => Err(unexpected_reply("to a raise in an unknown form").into()),
        }
    }

    /// Extends many leases in one trip, one answer for each.
    pub async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        self.store.renew(leases).await
    }

    /// Frees what the attempt has there; `false` when it held nothing. Whoever is next in the queue is given the lock, with `proposed` as in
    /// [`take`](Node::take).
    ///
    /// The flag is set when the connection broke and the request was sent again: the first one may still be under way, and would free what
    /// the same attempt takes there later. So it must not ask this server again.
    ///
    /// # Errors
    ///
    /// When the server did not confirm.
    pub async fn free(
        &self,
        name: &Name,
        attempt: AttemptId,
        left: Leftover,
        proposed: u64,
    ) -> Result<(bool, bool)> {
        let store = &self.store;
        let (mut until_answered, mut sent_before) = (None, false);
        if left == Leftover::Hold {
            match store.free_together(name, attempt).await? {
                FreeStep::Freed => return Ok((true, false)),
                FreeStep::Ask {
                    alone,
                    sent_before: before,
                } => {
                    (until_answered, sent_before) = (alone, before);
                }
            }
        }
        let key = store.keys.lock(name);
        let (script, memory) = match left {
            Leftover::Hold | Leftover::SharedHold => (&store.scripts.release, 0),
            Leftover::Place => (&store.scripts.abandon, 0),
            Leftover::Stray => (&store.scripts.abandon, millis(TOMBSTONE_TTL)),
        };
        let call = store
            .call(script, &key, Attempt32::new(attempt))
            .arg(memory.to_string())
            .arg(digits(proposed.min(HIGHEST_PROPOSAL)));
        let freed = self.trip(&call).await;
        drop(until_answered);
        let (answer, twice) = match freed {
            // The first request may have freed it.
            Err(trouble) if sent_before => return Err(trouble.in_doubt().into()),
            freed => freed?,
        };
        match (answer, twice || sent_before) {
            (RedisReply::Number(1), twice) => Ok((true, twice)),
            (_, false) => Ok((false, false)),
            // The first request may have freed it, and its answer was lost: nobody knows (C15).
            (_, true) if left != Leftover::Stray => Err(Trouble::new(
                ErrorKind::Unreachable,
                "the connection broke during the release, and afterwards the hold was gone",
            )
            .into()),
            (_, true) => Ok((false, true)),
        }
    }

    /// Turns an exclusive hold into a shared one. Readers who are next in the queue are given the lock, with `proposed` as in
    /// [`take`](Node::take).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when the hold is gone.
    pub async fn downgrade(&self, lease: &Lease, proposed: u64) -> Result<()> {
        let store = &self.store;
        let key = store.keys.lock(lease.name());
        let call = store
            .call(
                &store.scripts.downgrade,
                &key,
                Attempt32::new(lease.attempt()),
            )
            .arg("0")
            .arg(digits(proposed.min(HIGHEST_PROPOSAL)));
        match self.trip(&call).await?.0 {
            RedisReply::Number(1) => Ok(()),
            _ => Err(Error::new(
                ErrorKind::Lost,
                "the hold is gone, so there is nothing to downgrade",
            )),
        }
    }

    /// Who holds the lock there.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked.
    pub async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        self.store.inspect(name).await
    }

    /// All locks that are held there and whose name starts with `prefix`, sorted by name.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.store.list(prefix).await
    }

    /// Ends the connection; later calls are refused.
    pub fn close(&self) {
        self.store.link.close();
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)
    }
}

fn digits(token: u64) -> String {
    format!("{token:016}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_one_server() {
        for (url, expected) in [
            ("redis+cluster://a,b", "one independent server"),
            ("redis+sentinel://a/m", "one independent server"),
            ("redis://a?style=plain", "style=plain"),
            ("redis://a?replicas=1", "replicas is set"),
        ] {
            let error = Node::new(Config::from_url(url).expect(url)).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(expected), "{url}: {error}");
        }
    }
}
