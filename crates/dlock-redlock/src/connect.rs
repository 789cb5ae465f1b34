//! The nodes together, and what runs in the background for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, HeldNow, Result};
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use crate::abandon::Undoing;
use crate::config::Config;
use crate::error::{Word, Words};
use crate::lives::Lives;
use crate::peer::Peer;
use crate::stake::{Mask, bit};
use crate::vote::quorum_of;

/// What the operations share. Each file adds its own to it.
#[derive(Debug)]
pub(crate) struct Nodes {
    peers: Vec<Peer>,
    pub(crate) quorum: usize,
    node_timeout: Duration,
    pub(crate) longest_lease: Duration,
    pub(crate) persistent: bool,
    pub(crate) lives: Lives,
    pub(crate) undoing: Undoing,
    /// How long to wait before a node is asked again that could not be asked.
    pub(crate) retry: Duration,
    background: Arc<Background>,
}

impl Nodes {
    pub(crate) fn new(config: &Config) -> Result<Self> {
        let peers: Vec<Peer> = config.checked_peers()?.into_iter().map(Peer::new).collect();
        Ok(Self {
            quorum: quorum_of(peers.len()),
            lives: Lives::new(peers.len()),
            peers,
            node_timeout: config.node_timeout,
            longest_lease: config.longest_lease,
            persistent: config.persistent,
            undoing: Undoing::default(),
            retry: config.retry,
            background: Arc::default(),
        })
    }

    /// Connects to all nodes. A quorum must answer, and nobody may be what no node can be.
    pub(crate) async fn connect(&self) -> Result<()> {
        let mut words = Words::new(self.count());
        let answers = join_all((0..self.count()).map(|node| self.greet(node))).await;
        if let Some((one, other)) = self.twins() {
            return Err(Error::invalid(format!(
                "the nodes {} and {} are one server: a quorum needs independent ones",
                self.place(one),
                self.place(other)
            )));
        }
        let mut refused = false;
        for (node, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(()) => words.note(node, Word::Agreed("connected")),
                Err(error) => {
                    // A password that is wrong at one node is like a node that is down: it may have been changed there.
                    refused |= !error.is_retryable() && error.kind() != ErrorKind::Denied;
                    tracing::warn!(node = self.place(node), %error, "a node cannot be used");
                    words.note(node, Word::Failed(error));
                }
            }
        }
        if refused || words.agreed() < self.quorum {
            let needed = if refused { self.count() } else { self.quorum };
            return Err(self.quorum_error(words, needed));
        }
        Ok(())
    }

    async fn greet(&self, node: usize) -> Result<()> {
        self.peer(node)?.node.connect().await?;
        self.meet(node).await.map(|_| ())
    }

    pub(crate) fn count(&self) -> usize {
        self.peers.len()
    }

    pub(crate) fn all(&self) -> Mask {
        (0..self.count()).map(bit).fold(0, |all, bit| all | bit)
    }

    pub(crate) fn peer(&self, node: usize) -> Result<&Peer> {
        // A number is only ever made from the list itself.
        self.peers
            .get(node)
            .ok_or_else(|| Error::new(ErrorKind::Store, "there is no such node"))
    }

    pub(crate) fn place(&self, node: usize) -> &str {
        self.peers.get(node).map_or("?", |peer| peer.node.place())
    }

    /// How long a node may take for its answer to be waited for: far below the lease, which counts from the question.
    pub(crate) fn patience(&self, lease: Duration) -> Duration {
        self.node_timeout.min(lease / 2)
    }

    pub(crate) fn node_timeout(&self) -> Duration {
        self.node_timeout
    }

    /// Nothing is tried again in the background from now on.
    pub(crate) fn stop(&self) {
        self.background.stop.send_replace(true);
    }

    /// Resolves when nothing is to be tried again.
    pub(crate) async fn stopped(&self) {
        let mut stop = self.background.stop.subscribe();
        // The sender is ours, so it cannot be gone.
        let _ = stop.wait_for(|stop| *stop).await;
    }

    /// The error that names every node.
    pub(crate) fn quorum_error(&self, words: Words, needed: usize) -> Error {
        words.error(self.peers.iter().map(|peer| peer.node.place()), needed)
    }

    /// The same question to several nodes at once. What `make` makes may go on in the background.
    pub(crate) fn each<F, T>(
        self: &Arc<Self>,
        nodes: Mask,
        make: impl Fn(Arc<Self>, usize) -> F,
    ) -> FuturesUnordered<F>
    where
        F: Future<Output = (usize, T)>,
    {
        (0..self.count())
            .filter(|node| nodes & bit(*node) != 0)
            .map(|node| make(self.clone(), node))
            .collect()
    }

    /// Runs something to its end in the background. It ends with its runtime; what it leaves then ends with its lease.
    pub(crate) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let running = Running::new(self.background.clone());
        runtime.spawn(async move {
            let _running = running;
            work.await;
        });
    }

    /// Does something after a pause, unless nothing is to be tried by then. A close does not wait for it.
    pub(crate) fn later(
        self: &Arc<Self>,
        pause: Duration,
        work: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let nodes = self.clone();
        runtime.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(pause) => work(&nodes),
                () = nodes.stopped() => {}
            }
        });
    }

    /// Waits a moment for what runs in the background, and ends all connections.
    pub(crate) async fn close(&self) {
        let quiet = tokio::time::timeout(self.node_timeout * 2, self.background.quiet()).await;
        if quiet.is_err() {
            tracing::debug!("closing while a node has not confirmed everything: its leases end it");
        }
        self.stop();
        for peer in &self.peers {
            peer.node.close();
        }
    }
}

/// Does something while questions are under way that it does not need. They go on beside it, and what they came to is there at its end: a question
/// that nobody drives would keep its place among those that a node is asked at once, and others would wait for it.
pub(crate) async fn beside<T, F: Future>(
    work: impl Future<Output = T>,
    asks: &mut FuturesUnordered<F>,
) -> (T, Vec<F::Output>) {
    let mut work = std::pin::pin!(work);
    let mut done = Vec::new();
    loop {
        tokio::select! {
            biased;
            result = &mut work => return (result, done),
            Some(ask) = asks.next() => done.push(ask),
        }
    }
}

/// The error of a node that was not asked.
pub(crate) fn unasked(why: &str) -> Error {
    Error::new(ErrorKind::Store, why).with_held(HeldNow::No)
}

#[derive(Debug, Default)]
struct Background {
    running: AtomicUsize,
    quiet: Notify,
    stop: watch::Sender<bool>,
}

impl Background {
    async fn quiet(&self) {
        loop {
            let told = self.quiet.notified();
            if self.running.load(Ordering::Acquire) == 0 {
                return;
            }
            told.await;
        }
    }
}

struct Running(Arc<Background>);

impl Running {
    fn new(background: Arc<Background>) -> Self {
        background.running.fetch_add(1, Ordering::AcqRel);
        Self(background)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.quiet.notify_waiters();
        }
    }
}
