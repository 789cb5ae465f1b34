//! An attempt with its place in the queue.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dlock_core::backend::{Lease, Outcome, Request};
use dlock_core::{Error, ErrorKind, HeldNow, Mode, Moment, Result, kit};

use super::gone;
use crate::connect::{Claim, Listing, Seen, Session};
use crate::error::Fault;
use crate::queue::{QueuePlace, Verdict};

/// What the backend needs to find a hold again.
#[derive(Debug)]
pub(crate) struct HeldNode {
    pub(crate) path: String,
    pub(crate) sequence: i64,
    pub(crate) session: i64,
    /// The place is wanted as long as this lives.
    _claim: Arc<Claim>,
    pub(crate) label: Arc<str>,
    /// A permit that was granted after a wait, whose successor may not have been told. The renewal tells it again.
    pub(crate) untold: AtomicBool,
}

/// An attempt with its place in the queue.
pub(crate) struct Queued {
    pub(crate) session: Arc<Session>,
    pub(super) claim: Arc<Claim>,
    pub(crate) parent: String,
    pub(crate) mine: QueuePlace,
    pub(super) czxid: i64,
    /// What it may do in the queue as it was last read. The queue itself is not kept: thousands may wait.
    pub(crate) verdict: Verdict,
    /// The session lived then: a change that a majority had to take was sent at that moment, and was answered. Reads do not count, because a
    /// follower that has lost its leader answers them, and a leader its followers, while the others may have ended the session.
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

    /// Reads the queue again.
    pub(crate) async fn look(&mut self) -> Result<Arc<Listing>> {
        loop {
            self.session.up().await?;
            match self.session.queue(&self.parent).await {
                Ok(all) => {
                    self.judge(all.verdict(&self.mine))?;
                    return Ok(all);
                }
                Err(Fault::Broken(_)) => {}
                Err(Fault::NoNode) => return Err(removed()),
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// Notes what the place may do in the queue; `None`: it is not there any more.
    pub(crate) fn judge(&mut self, verdict: Option<Verdict>) -> Result<()> {
        self.verdict = verdict.ok_or_else(removed)?;
        Ok(())
    }

    /// The lock is ours, and the session lived when our last answered request was sent.
    pub(crate) fn held(&self, request: &Request) -> Result<Outcome> {
        let node = HeldNode {
            path: self.path_of(&self.mine.node),
            sequence: self.mine.sequence,
            session: self.session.id(),
            _claim: self.claim.clone(),
            label: request.label().into(),
            untold: AtomicBool::new(self.tells(request)),
        };
        let lease = Lease::new(request, self.sent).with_native(Arc::new(node));
        crate::fence::with_token(lease, self.czxid).map(Outcome::Held)
    }

    /// Whether somebody may wait to be told that this permit was granted: it was not when it came.
    pub(crate) fn tells(&self, request: &Request) -> bool {
        matches!(self.mine.mode, Mode::Permit { .. }) && request.is_contended()
    }

    /// Gives the place back.
    pub(crate) async fn leave(&self) -> Result<()> {
        gone(self.session.delete(&self.path_of(&self.mine.node)).await)
    }

    pub(crate) async fn conflict(&self, request: &Request, used: u32) -> Result<Outcome> {
        self.leave().await?;
        Err(kit::other_limit(used, request.mode()))
    }
}

pub(crate) fn removed() -> Error {
    Error::new(
        ErrorKind::Store,
        "somebody deleted this attempt's node while it waited: it has to queue again",
    )
    .with_held(HeldNow::No)
}
