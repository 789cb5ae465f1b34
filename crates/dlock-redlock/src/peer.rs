//! One node as the quorum sees it: whether it is asked at all, and whether its word counts.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dlock_core::{Error, ErrorKind, HeldNow, Result};
use dlock_redis::node::{Life, Node};

/// A node, and how it has answered of late.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) node: Node,
    /// Calls under way.
    under_way: AtomicUsize,
    /// When something last moved: an answer came, or a first call was made. Microseconds after `origin`.
    moved: AtomicU64,
    origin: Instant,
    /// The connection on which it refused to tell its age; 0 for none. It is not asked again there.
    mute: AtomicU64,
}

impl Peer {
    pub(crate) fn new(node: Node) -> Self {
        Self {
            node,
            under_way: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            origin: Instant::now(),
            mute: AtomicU64::new(0),
        }
    }

    /// Which life of its server answers; `None` from one that keeps every write and does not let us ask, since it need not tell
    /// its age.
    pub(crate) async fn life(&self, persistent: bool) -> Result<Option<Life>> {
        let connection = self.node.connection();
        if persistent && connection == Some(self.mute.load(Ordering::Acquire)) {
            return Ok(None);
        }
        match self.node.life().await {
            Ok(life) => Ok(Some(life)),
            Err(error) if persistent && error.kind() == ErrorKind::Denied => {
                let now = self.node.connection();
                if let Some(number) = now.filter(|_| now == connection) {
                    self.mute.store(number, Ordering::Release);
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// One call; it may go on in the background for longer than the quorum waits for it.
    ///
    /// A node that has owed an answer for longer than `patience` is not asked anything else meanwhile, so that a frozen one does
    /// not collect requests without end.
    pub(crate) async fn call<T>(
        &self,
        patience: Duration,
        trip: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if self.under_way.fetch_add(1, Ordering::AcqRel) == 0 {
            self.moved.store(self.now(), Ordering::Release);
        }
        let _under_way = UnderWay(self);
        let silent = self
            .now()
            .saturating_sub(self.moved.load(Ordering::Acquire));
        let silent = Duration::from_micros(silent);
        if silent > patience {
            return Err(Error::new(
                ErrorKind::TimedOut,
                format!(
                    "it has owed an answer for {}, and is not asked anything else before",
                    rounded(silent)
                ),
            )
            .with_held(HeldNow::No));
        }
        let answer = trip.await;
        if !matches!(&answer, Err(error) if error.kind() == ErrorKind::TimedOut) {
            self.moved.store(self.now(), Ordering::Release);
        }
        answer
    }
}

struct UnderWay<'a>(&'a Peer);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether what is answered on the connection of this life counts: a server that came back without its data has forgotten who
/// holds, until every hold that it gave before has ended.
pub(crate) fn is_of_age(life: &Life, longest_lease: Duration) -> Result<(), String> {
    let age = life.age();
    if age >= longest_lease {
        return Ok(());
    }
    Err(format!(
        "it started {} ago and counts again in {}, unless it keeps every write (persistent=true)",
        rounded(age),
        rounded(longest_lease - age)
    ))
}

/// For people.
pub(crate) fn rounded(time: Duration) -> String {
    if time < Duration::from_secs(10) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{} s", time.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Peer {
        let config = dlock_redis::Config::from_url("redis://127.0.0.1:1").expect("a URL");
        Peer::new(Node::new(config).expect("a node"))
    }

    const PATIENCE: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn a_node_that_owes_an_answer_is_left_alone_until_it_has_given_it() {
        let peer = peer();
        let (answer, asked) = tokio::sync::oneshot::channel::<()>();
        let slow = peer.call(PATIENCE, async {
            asked.await.ok();
            Ok(())
        });
        let others = async {
            peer.call(PATIENCE, async { Ok(()) })
                .await
                .expect("early enough");
            tokio::time::sleep(PATIENCE * 2).await;
            let asked = peer.call(PATIENCE, async { Ok(()) }).await;
            let error = asked.expect_err("it owes an answer");
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            assert_eq!(error.held_now(), HeldNow::No);
            answer.send(()).ok();
        };
        let (slow, ()) = tokio::join!(slow, others);
        slow.expect("its answer");
        peer.call(PATIENCE, async { Ok(()) })
            .await
            .expect("all is answered");
    }

    #[tokio::test]
    async fn a_dropped_call_owes_nothing() {
        let peer = peer();
        let dropped = peer.call(PATIENCE, std::future::pending::<Result<()>>());
        assert!(tokio::time::timeout(PATIENCE * 2, dropped).await.is_err());
        peer.call(PATIENCE, async { Ok(()) }).await.expect("asked");
    }
}
