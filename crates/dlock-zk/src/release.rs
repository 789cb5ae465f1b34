//! Free if still the owner; and a writer that becomes a reader.

use dlock_core::backend::Lease;
use dlock_core::{Error, ErrorKind, Mode, Released, Result};

use crate::ZkBackend;
use crate::acquire::{HeldNode, Telling};
use crate::error::{Fault, not_ours};
use crate::queue::{NodeState, node_data};

impl ZkBackend {
    /// Deletes the hold's node. Its name holds the attempt's id and is never used again, so nobody else's can be meant ([C6](dlock_core::contract#c6)).
    ///
    /// A hold of a session that has ended is looked for as well: the server may not have cleaned up yet.
    pub(crate) async fn release(&self, lease: &Lease) -> Result<Released> {
        let node = lease.native::<HeldNode>().ok_or_else(not_ours)?;
        let session = self.sessions.session().await?;
        session.up().await?;
        // Whoever held alone, and first, knows that nobody is before the next one.
        let was_alone = lease.mode() == Mode::Exclusive && node.session == session.id();
        let line = session.line();
        let parent = self.lock_path(lease.name());
        let watched = (was_alone && self.quiet.wants_watch(lease.name(), line))
            .then(|| session.watch_data(&parent));
        let deleted = session.delete(&node.path).await;
        if was_alone && deleted.is_ok() {
            let watch = match watched {
                // Sent before the delete, so it was set while our node kept its parent alive.
                Some(watched) => watched
                    .await
                    .ok()
                    .map(|(_, watch)| -> Telling { Box::pin(watch.seen()) }),
                None => None,
            };
            self.quiet.left(lease.name(), line, node.sequence, watch);
        }
        match deleted {
            Ok(()) => Ok(Released::Freed),
            Err(Fault::NoNode) => Ok(Released::AlreadyLost),
            Err(fault) => Err(fault.into()),
        }
    }

    /// Writes into the node that it is a reader's now. Its place stays, so nobody gets in between; readers that wait for it watch
    /// its data.
    pub(crate) async fn downgrade(&self, lease: &Lease) -> Result<()> {
        let node = lease.native::<HeldNode>().ok_or_else(not_ours)?;
        let session = self.sessions.session().await?;
        session.up().await?;
        let data = node_data(NodeState::Downgraded, &node.label);
        match session.set_data(&node.path, &data).await {
            Ok(()) => Ok(()),
            Err(Fault::NoNode) => Err(Error::new(
                ErrorKind::Lost,
                "the hold is gone, so there is nothing to downgrade",
            )),
            Err(fault) => Err(fault.into()),
        }
    }
}
