//! The undo of an attempt.

use dlock_core::backend::Request;
use dlock_core::{Result, kit};

use super::gone;
use crate::ZkBackend;
use crate::error::Fault;

impl ZkBackend {
    /// Undoes whatever an attempt may have left: its place in the queue, whether it holds or waits.
    ///
    /// It is final. The requests of one session are carried out in the order in which they were sent; when the session moves to another
    /// connection, the server refuses what is left of the old one. So after this session's `sync` and read, a create that was
    /// under way in the same session is either seen or will never be. An earlier session is known to have ended before this one began,
    /// see [`CurrentSession::session`](crate::current_session::CurrentSession::session), and a create of it with it. And no new request of this
    /// attempt is made, because the attempt is known only in this process, which remembers.
    pub(crate) async fn abandon(&self, request: &Request) -> Result<()> {
        kit::remember_abandoned(request.attempt());
        let session = self.sessions.session().await?;
        session.up().await?;
        let parent = self.lock_path(request.name());
        let all = match session.queue(&parent).await {
            Ok(all) => all,
            Err(Fault::NoNode) => return Ok(()),
            Err(fault) => return Err(fault.into()),
        };
        let left: Vec<_> = all
            .of(request.attempt())
            .map(|place| session.delete(&format!("{parent}/{}", place.node)))
            .collect();
        for deleted in left {
            gone(deleted.await)?;
        }
        if all.is_untouched {
            // The server leaves a container alone that never had a child. If it is in use by now, it refuses.
            let _ = session.delete(&parent).await;
        }
        Ok(())
    }
}
