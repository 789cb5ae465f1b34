//! An attempt with its place in the queue.

use std::pin::Pin;
use std::sync::Arc;

use dlock_core::{Attempt, Error, ErrorKind, HeldNow, Lease, Mode, Moment, Request, Result};

use super::{gone, in_order};
use crate::connect::{Seen, Session};
use crate::error::Fault;
use crate::queue::{Obstacle, Place, State, Verdict, places, read_data};

/// What the backend needs to find a hold again.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) path: String,
    pub(crate) sequence: i64,
    pub(crate) session: i64,
    pub(crate) label: Arc<str>,
}

/// An attempt with its place in the queue.
pub(crate) struct Queued {
    pub(crate) session: Arc<Session>,
    pub(crate) parent: String,
    pub(crate) mine: Place,
    pub(super) czxid: i64,
    /// The queue as it was last read.
    pub(crate) places: Vec<Place>,
    /// When the last request that was answered was sent: the session lived then.
    pub(crate) sent: Moment,
    /// Resolves when our node is changed or gone; set while we wait.
    pub(crate) own: Option<Telling>,
}

/// A watch that is being waited for.
pub(crate) type Telling = Pin<Box<dyn Future<Output = Seen> + Send + Sync>>;

impl Queued {
    pub(crate) fn path_of(&self, node: &str) -> String {
        format!("{}/{node}", self.parent)
    }

    pub(crate) fn verdict(&self) -> Result<Verdict> {
        crate::queue::verdict(&self.mine, &self.places).ok_or_else(removed)
    }

    /// A reader behind a writer, which may have become a reader.
    pub(crate) fn may_share_with(&self, obstacle: &Obstacle) -> bool {
        self.mine.mode == Mode::Shared && obstacle.mode == Mode::Exclusive
    }

    pub(super) async fn state_of(&self, obstacle: &Obstacle) -> Result<State, Fault> {
        let (data, _) = self.session.data(&self.path_of(&obstacle.node)).await?;
        Ok(read_data(&data).0)
    }

    /// Reads the queue again.
    pub(crate) async fn look(&mut self, request: &Request) -> Result<()> {
        loop {
            self.session.up().await?;
            let sent = request.now();
            let read = async {
                let (children, _) = self.session.children(&self.parent).await?;
                in_order(&self.session, &self.parent, places(&children)).await
            };
            match read.await {
                Ok(places) => {
                    self.places = places;
                    self.sent = sent;
                    return Ok(());
                }
                Err(Fault::Broken(_)) => {}
                Err(Fault::NoNode) => return Err(removed()),
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// The lock is ours, and the session lived when our last answered request was sent.
    pub(crate) fn held(&self, request: &Request) -> Attempt {
        let node = Node {
            path: self.path_of(&self.mine.node),
            sequence: self.mine.sequence,
            session: self.session.id(),
            label: request.label().into(),
        };
        let lease = Lease::new(request, self.sent).with_native(Arc::new(node));
        Attempt::Held(crate::fence::with_token(lease, self.czxid))
    }

    /// Gives the place back.
    pub(crate) async fn leave(&self) -> Result<()> {
        gone(self.session.delete(&self.path_of(&self.mine.node)).await)
    }

    pub(crate) async fn conflict(&self, request: &Request, used: u32) -> Result<Attempt> {
        self.leave().await?;
        Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "this semaphore is in use with {used} permits, and {} was asked for: everybody must give the same limit",
                request.mode()
            ),
        ))
    }
}

pub(crate) fn removed() -> Error {
    Error::new(
        ErrorKind::Store,
        "somebody deleted this attempt's node while it waited: it has to queue again",
    )
    .with_held(HeldNow::No)
}
